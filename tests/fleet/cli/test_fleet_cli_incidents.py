"""``cis490-jobs incidents`` and ``judge``: what needs a person stands out, and hostile words stay words."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from training.fleet.cli import program
from training.fleet.cli.context import CommandContext

ONE = {
    "number": 17, "host": "office\x1b[31m", "model": "gbt realistic", "began_at": 0.0, "raised_at": 8.0,
    "last_alarm_at": 34.0, "over": True, "threshold": 0.62, "peak": 0.31, "verdict": "false",
    "why": [{"channel": "forks", "share": 0.38}, {"channel": "cpu_user", "share": 0.21}],
}  # fmt: skip
OPEN = {**ONE, "number": 18, "over": False, "verdict": None, "why": []}
WATCH = {"host": "attic", "model": "gbt realistic", "heard_at": 40.0, "silent": False}


def shown(*argv: str, **answer: Any) -> str:
    found = {"incidents": [OPEN, ONE], "watches": [WATCH], "next_before": None, "now": 100.0} | answer
    asked: list[Any] = []
    client = SimpleNamespace(
        incidents=lambda **how: asked.append(how) or found, judge=lambda *how: asked.append(how) or {**ONE, **answer}
    )
    out, err = io.StringIO(), io.StringIO()
    world = CommandContext(connect=lambda url, token: client, environ={})  # type: ignore[arg-type]
    assert program.main([*argv], context=replace(world, out=out, err=err)) == 0, err.getvalue()
    return f"{asked} {out.getvalue()}"


def test_incidents_are_listed_with_reasons_and_verdicts() -> None:
    text = shown("incidents", "--host", "office")
    assert "'host': 'office'" in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0].endswith("attic is watched with gbt realistic, heard 1 min ago")
    office, score = "office\\x1b[31m 1970-01-01 00:00:08 34 s", "gbt realistic 0.93 over 0.62"
    assert f"18 {office}, open {score} look into it" in lines
    assert f"17 {office} {score} forks 38 %, cpu_user 21 % false" in lines
    assert json.loads(shown("incidents", "--json").partition("] ")[2])["incidents"][1] == ONE


def test_nobody_watched_and_nothing_told_are_said_apart() -> None:
    assert "no host is watched" in shown("incidents", incidents=[], watches=[])
    silent = shown("incidents", incidents=[], watches=[{**WATCH, "silent": True}])
    assert "attic (gbt realistic) was heard last 1 min ago: is its watch running?" in silent
    assert "no incident was told of" in silent


def test_a_verdict_is_said_back() -> None:
    assert "[(17, 'false')] incident 17 on office\\x1b[31m: false" in shown("judge", "17", "false")
    assert "not judged" in shown("judge", "17", "open", verdict=None)
