"""Fuzz the renderer: `cis490-jobs` shows any answer or says what is wrong, and the terminal obeys none of it.

The first byte chooses the command and, by its highest bit, how the rest is used: as the answer itself, or as texts
(apart by newlines) in place of those of a good answer.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
from collections.abc import Iterator
from typing import Any

import typer.main

from fuzz.checks import shows_nothing_unseen
from training.fleet.cli import program
from training.fleet.cli.context import DEFAULT_URL, URL_VARIABLE, CommandContext
from training.fleet.client.client import FleetClient
from training.fleet.client.transport import Response
from training.fleet.wire.constants import HEADER_DATABASE

NOW = 1_700_000_000.0
_SHOWN = {HEADER_DATABASE.lower(): "d" * 32}  # else nothing of an answer is looked at
_VIEW: dict[str, Any] = {
    "job_id": "ab" * 32, "name": "gbt-realistic", "model": "gbt", "mode": "realistic", "status": "running",
    "priority": 1,
    "host": "pi", "attempt": 1, "generation": 1, "trainer_failures": 0, "host_losses": 0, "ended_by": "trainer",
    "progress": {"event": "epoch", "eta_s": 9.5}, "error": "ValueError: no", "artifact_id": "cd" * 32,
    "obstacle": "none",
    "created_at": NOW - 90, "claimable_at": NOW - 90, "claimed_at": NOW - 80, "heartbeat_at": NOW, "finished_at": None,
    "in_manifest": True,
}  # fmt: skip
_FAILED = _VIEW | {"status": "failed"}
_STUCK = _VIEW | {"status": "pending"}
_CERTIFICATE = {
    "name": "pi", "role": "host", "fingerprint": "77c1", "issued_at": NOW, "expires_at": NOW, "revoked_at": NOW,
    "created_at": NOW,
}  # fmt: skip
# Every command with an answer that holds what any of its requests looks for.
COMMANDS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("status",), {
        "jobs": [_VIEW, _FAILED, _STUCK], "counts": {"running": 1}, "now": NOW, "next_after": None, "status": "ok",
        "detail": "the disk is low",
    }),
    (("list",), {"jobs": [_VIEW, _FAILED], "counts": {}, "now": NOW, "next_after": None}),
    (("show", "x"), {
        "job": _VIEW, "now": NOW, "spec": {
            "model": "gbt", "mode": "realistic", "hyper": {"epochs": "many"}, "train_hosts": ["lab"], "seed": 1,
            "split_recipe": "host", "min_ram_gib": 2.0, "allowed_hosts": ["pi"],
        }, "attempts": [{
            "attempt": 1, "host": "pi", "granted_at": NOW, "ended_at": NOW, "end_reason": "failed", "error": "no",
        }], "events": [{
            "at": NOW, "transition": "claim", "to_status": "claimed", "host": "pi", "detail": "by hand",
        }],
    }),
    (("explain", "x"), {
        "name": "gbt", "summary": "waits", "hosts": [{"host": "pi", "fits": False, "reason": "no GPU", "wait_s": 5}],
    }),
    (("workers",), {"now": NOW, "workers": [{
        "hostname": "pi", "alive": True, "last_seen": NOW, "jobs": ["gbt"], "conflict": "two", "obstacle": "old",
        "capability": {
            "cpu_cores": 4, "ram_available_gib": 2, "ram_total_gib": 4, "cuda_available": True,
            "cuda_devices": [{"name": "GPU", "vram_free_gib": 1, "vram_total_gib": 8}],
        },
    }]}),
    (("cancel", "x"), {"job_id": "ab", "status": "cancelled"}),
    (("reload",), {"inserted": 1, "updated": 2, "unchanged": 3, "removed": 4}),
    (("logs", "x"), {
        "job_id": "ab", "attempt": 1, "first": 0, "lines": ["epoch 1", "epoch 2"], "next": 0, "live": False,
    }),
    (("certificates",), {"certificates": [_CERTIFICATE], "now": NOW}),
    (("tokens", "list"), {"tokens": [_CERTIFICATE], "now": NOW}),
    (("audit",), {"entries": [{
        "seq": 1, "at": NOW, "who": "ada", "act": "cancel", "subject": "gbt", "before": "{}", "after": "{}",
        "digest": "00",
    }], "next_after": None, "now": NOW}),
    (("dataset", "list"), {"now": NOW, "datasets": [{
        "dataset_id": "ab" * 32, "names": ["lab"], "size": 5, "files": 1, "pieces": 1, "pushed_at": NOW,
    }]}),
    (("cancel", "x"), {"type": "unknown_job", "title": "Not Found", "status": 404, "detail": "no job is called x"}),
)  # fmt: skip
WORDS = (
    b"\x1b]0;owned\x07", b"\x1b[2J\x1b[H", b"\x1b]52;c;cm0gLXJmIC8=\x07", b"\x9b31m", b"\xc2\x9b31m",
    b"\xe2\x80\xae", b"\r",
    b"\n", b"\x08" * 8, b"\x00", b"\x7f", b"\xe2\x80\x8b", b"\xf3\xa0\x81\x81", b"\xef\xb8\x8f", b"[bold red]", b"[/]",
    b"[link=file:///etc/passwd]", b":smile:", b"\\u001b[2J", b"\\ud83d", b"\\u202e", b"\\u2028", b"\\u0085",
    b"null", b"{}",
    b"[]", b"-1", b"1e999", b"9" * 40, b"true", b'"', b"\\", b"\xff", b"\xed\xa0\x80", b"[" * 300, b"\t", b"%s",
    b"{0}",
    b"\xd8\xa7\xd9\x84", b"\xe1\x85\x9f", b"\xe3\x85\xa4", b"\xe2\xa0\x80",
)  # fmt: skip

# Made once: it takes longer than the command.
typer.main.get_command = functools.cache(typer.main.get_command)


def one_input(data: bytes) -> None:
    head, rest = (data[0], data[1:]) if data else (0, b"")
    argv, good = COMMANDS[(head & 0x7F) % len(COMMANDS)]
    if head & 0x80:
        texts = itertools.cycle(rest.decode("utf-8", "surrogateescape").split("\n"))
        body = json.dumps(_with(good, texts)).encode()
    else:
        body = rest
    status = 404 if "detail" in good and "title" in good else 200
    answer = Response(status, {**_SHOWN, "content-type": "application/json"}, body)
    out, err = io.StringIO(), io.StringIO()
    world = CommandContext(
        connect=lambda url, token: FleetClient(url, operator_token=token, transport=_Answers(answer), tries=1),
        out=out,
        err=err,
        environ={URL_VARIABLE: DEFAULT_URL},
        sleep=_never,
    )
    program.main([*argv], context=world)
    shows_nothing_unseen(out.getvalue())
    shows_nothing_unseen(err.getvalue())


class _Answers:
    """A transport with one answer for everything, until a command asks for page after page."""

    def __init__(self, answer: Response) -> None:
        self._answer, self._left = answer, 20

    def request(self, *_: object, **_how: object) -> Response:
        self._left -= 1
        return self._answer if self._left > 0 else Response(200, _SHOWN, b"{}")

    def close(self) -> None:
        pass


def _with(good: Any, texts: Iterator[str]) -> Any:
    """``good`` with all its texts exchanged."""
    if isinstance(good, str):
        return next(texts)
    if isinstance(good, dict):
        return {key: _with(value, texts) for key, value in good.items()}
    if isinstance(good, list):
        return [_with(value, texts) for value in good]
    return good


def _never(_seconds: float) -> None:
    raise KeyboardInterrupt
