"""Processes that are killed with ``kill -9`` at every named place, and the seam that makes this possible."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torture import points
from torture.kills import kill_at

from training.crashpoint import VARIABLE, armed
from training.fleet.job import TRANSITIONS

ROOT = Path(__file__).resolve().parents[1]
posix = pytest.mark.skipif(os.name != "posix", reason="kills POSIX processes")


def places_in_the_code() -> set[str]:
    found: set[str] = set()
    for file in (ROOT / "training").rglob("*.py"):
        if file.name != "crashpoint.py":
            found |= set(re.findall(r'crashpoint\(\s*"([^"]+)"', file.read_text(encoding="utf-8")))
    return found


def test_every_place_in_the_code_is_in_the_list() -> None:
    """A place that stands for several in one line is listed by its parts."""
    listed = {*points.NAMES, *points.ELSEWHERE}
    families = {name.rpartition(".")[0] for name in listed}
    unlisted = {place for place in places_in_the_code() if place not in listed | families}
    assert not unlisted, "add them to tests/torture/points.py"


def test_every_place_in_the_list_is_in_the_code() -> None:
    code = places_in_the_code()
    ours = {*points.RECEIVER, *points.WORKER}
    assert {
        name for name in ours if name not in code and name.rpartition(".")[0] not in code
    } == set()
    moves = {name.partition(".")[2] for name in points.RECEIVER if name.startswith("transition.")}
    assert moves <= set(TRANSITIONS)


def test_a_place_is_named_with_count_and_manner() -> None:
    assert armed({}) == {}
    assert armed({VARIABLE: "a.b"}) == {"a.b": (1, signal.SIGKILL)}
    assert armed({VARIABLE: "a.b:7:STOP"}) == {"a.b": (7, signal.SIGSTOP)}


@posix
@pytest.mark.parametrize(("at", "passes"), [("here", 0), ("here:3", 2), ("x.y:2", 1), ("no", 4)])
def test_it_ends_there_and_not_before(at: str, passes: int) -> None:
    program = (
        "from training.crashpoint import crashpoint as c\n"
        "for n in range(4):\n  c('here'); c('x', 'y'); print(n, flush=True)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, VARIABLE: at, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == (0 if at == "no" else -signal.SIGKILL)
    assert run.stdout.split() == [str(n) for n in range(passes)]


@posix
@pytest.mark.timeout(900)  # under a minute of work, on a machine that may be busy
def test_killed_once_at_every_place() -> None:
    """Receiver, workers, launchers and trainers; afterwards every job has ended once and nothing told is lost."""
    counts = kill_at(points.NAMES, seed=0)
    never = [place for place in points.NAMES if not counts[f"at {place}"]]
    assert not never
    assert counts["kills"] >= len(points.NAMES)
