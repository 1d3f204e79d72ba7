"""``cis490-jobs incidents`` and ``judge``: what needs a person stands out, and hostile words stay words."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from types import SimpleNamespace

from training.fleet.cli import program
from training.fleet.cli.context import CommandContext

ONE = {
    "number": 17, "kind": "alarms", "host": "office\x1b[31m", "model": "gbt realistic", "began_at": 0.0,
    "raised_at": 8.0, "last_alarm_at": 34.0, "ended": "over", "threshold": 0.62, "peak": 0.31, "verdict": "false",
    "why": [{"channel": "forks", "share": 0.38}, {"channel": "cpu_user", "share": 0.21}],
}  # fmt: skip
OPEN = {**ONE, "number": 18, "ended": None, "verdict": None, "why": []}
CHANGE = {
    **ONE, "number": 2, "kind": "change", "began_at": 40.0, "at_once": False, "told_at": 90.0,
    "channels": [{"channel": "fo\x1brks", "measure": "spread", "before": 0.21, "after": 3.4}], "more_channels": 2,
    "ended": None, "verdict": None, "judged_by": None,
}  # fmt: skip
WATCH = {"host": "attic", "model": "gbt realistic", "heard_at": 40.0, "silent": False}


def shown(*argv, **answer):
    found = {"incidents": [OPEN, ONE], "watches": [WATCH], "next_before": None, "now": 100.0} | answer
    asked = []
    client = SimpleNamespace(
        close=lambda: None,
        incidents=lambda **how: asked.append(how) or found,
        judge=lambda number, **how: asked.append((number, how)) or {**ONE, **answer},
    )
    out, err = io.StringIO(), io.StringIO()
    world = CommandContext(connect=lambda url, token: client, environ={})
    assert program.main([*argv], context=replace(world, out=out, err=err)) == 0, err.getvalue()
    return f"{asked} {out.getvalue()}"


def test_incidents_are_listed_with_reasons_and_verdicts():
    text = shown("incidents", "--host", "office")
    assert "'host': 'office'" in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0].endswith("attic is watched with gbt realistic, last report 1 min ago")
    office, score = "office\\x1b[31m 1970-01-01 00:00:08 34 s", "gbt realistic 0.93 over 0.62"
    assert f"18 {office}, open {score} look into it" in lines
    assert f"17 {office} {score} forks 38 %, cpu_user 21 % false" in lines
    assert json.loads(shown("incidents", "--json").partition("] ")[2])["incidents"][1] == ONE


def test_nobody_watched_and_nothing_told_are_said_apart():
    assert "no host is watched" in shown("incidents", incidents=[], watches=[])
    silent = shown("incidents", incidents=[], watches=[{**WATCH, "silent": True}])
    assert "attic (gbt realistic) last reported 1 min ago: is its watch running?" in silent
    assert "no incident was reported" in silent


def test_a_verdict_is_said_back():
    assert "[(17, {'verdict': 'false'})] incident 17 on office\\x1b[31m: false" in shown("judge", "17", "false")
    assert "not judged" in shown("judge", "17", "open", verdict=None)


def test_changes_are_listed_among_incidents():
    over = {**CHANGE, "host": "attic", "at_once": True, "ended": "confirmed"}
    lines = [" ".join(line.split()) for line in shown("incidents", incidents=[CHANGE, over, ONE]).splitlines()]
    how = "has changed since 1970-01-01 00:00:40 UTC: spread of fo\\x1brks 0.21 → 3.4 and 2 more"
    assert f"2 office\\x1b[31m 1970-01-01 00:01:30 gbt realistic {how} look into it" in lines
    assert any("is unlike its reference: spread of" in line and line.endswith(" confirmed") for line in lines)
    assert any("--confirm-change" in line for line in lines)
    assert "--confirm-change" not in shown("incidents", incidents=[over])


def test_a_change_that_an_operator_closed_needs_no_person():
    text = shown("incidents", incidents=[{**CHANGE, "verdict": "closed", "judged_by": "ada\x1b"}])
    assert ("closed by ada\\x1b" in text, "--confirm-change" in text) == (True, False)
    said = shown("judge", "2", "closed", verdict="closed")
    assert "[(2, {'verdict': 'closed'})] incident 17 on office\\x1b[31m: closed" in said
