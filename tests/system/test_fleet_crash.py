"""Processes that are killed with ``kill -9`` at every named place, and the seam that makes this possible."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys

import pytest
from inline_steps import fold
from places import ROOT
from torture import points, scenes
from torture.fleet import Fleet
from torture.kills import kill_everywhere
from torture.verdict import all_told, judge

from training.crashpoint import VARIABLE, armed
from training.fleet.scheduling.job import KEEPS_STATUS, TRANSITIONS

posix = pytest.mark.skipif(os.name != "posix", reason="kills POSIX processes")


def places_in_the_code():
    found = set()
    for file in (ROOT / "training").rglob("*.py"):
        if file.name != "crashpoint.py":
            found |= set(re.findall(r'crashpoint\(\s*"([^"]+)"', file.read_text(encoding="utf-8")))
    return found


def test_every_place_in_the_code_is_in_the_list():
    """A place that stands for several in one line is listed by its parts."""
    listed = {*points.NAMES, *points.ELSEWHERE}
    families = {name.rpartition(".")[0] for name in listed}
    unlisted = {place for place in places_in_the_code() if place not in listed | families}
    assert not unlisted, "add them to tests/torture/points.py"


def test_every_place_in_the_list_is_in_the_code():
    code = places_in_the_code()
    ours = {*points.RECEIVER, *points.WORKER, *points.ELSEWHERE}
    assert {name for name in ours if name not in code and name.rpartition(".")[0] not in code} == set()
    moves = {name.partition(".")[2] for name in ours if name.startswith("transition.")}
    # Events about jobs that stay pending, with at most one row in the same transaction.
    assert moves == set(TRANSITIONS) - KEEPS_STATUS - {"wake"}


def test_every_place_elsewhere_has_a_scene():
    assert set(scenes.SCENES) == set(points.ELSEWHERE)


@posix
def test_a_place_is_named_with_count_and_manner():
    assert armed({}) == {}
    assert armed({VARIABLE: "a.b"}) == {"a.b": (1, signal.SIGKILL)}
    assert armed({VARIABLE: "a.b:7:STOP"}) == {"a.b": (7, signal.SIGSTOP)}


@posix
@pytest.mark.parametrize(("at", "passes"), [("here", 0), ("here:3", 2), ("x.y:2", 1), ("no", 4)])
def test_it_ends_there_and_not_before(at, passes):
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


CHUNK = "INSERT INTO log_chunks (job_id, attempt, first, count, text) SELECT job_id, attempt, {} FROM log_files"
TAMPERED = {
    "is pending": "UPDATE jobs SET status = 'pending', finished_at = NULL",
    "by 0 attempts": "UPDATE attempts SET end_reason = 'host_lost' WHERE end_reason = 'completed'",
    "not numbered": "UPDATE jobs SET attempt = attempt + 1",
    "has a gap": "DELETE FROM events WHERE seq = 2",
    "does not follow": "UPDATE events SET from_status = 'running' WHERE seq = 2",
    "receipt was given": "UPDATE attempts SET artifact_id = 'another' WHERE end_reason = 'completed'",
    "was granted is missing": "UPDATE attempts SET claim_id = 'another'",
    "upload was acknowledged": "DELETE FROM artifacts",
    "has 0 lines, of 10005": "DELETE FROM log_files",
    "has 1 lines, of 10005": CHUNK.format("0, 1, 'chatter 1'") + "; DELETE FROM log_files",
    "has 10006 lines, of 10005": CHUNK.format("count, 1, 'chatter 10000'"),
}


@posix
@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_the_verdict_sees_what_is_wrong():
    """On a fleet that kept every promise, and then on its records tampered with."""
    with Fleet() as fleet:
        fleet.start_receiver()
        worker = fleet.start_worker()
        fleet.wait_for(fleet.add(behave="well", chatter="10000"), "completed")
        all_told(fleet)
        worker.terminate()
        worker.wait()
        fleet.receiver.terminate()
        fleet.receiver.wait()
        judge(fleet)
        database = fleet.folder / "state" / "jobs.db"
        fold(database, fleet.folder / "state" / "models")
        judge(fleet)
        sound = database.read_bytes()
        for words, change in TAMPERED.items():
            with contextlib.closing(sqlite3.connect(database)) as connection, connection:
                connection.executescript(change)
            with pytest.raises(AssertionError, match=words):
                judge(fleet)
            for leftover in database.parent.glob("jobs.db-*"):
                leftover.unlink()
            database.write_bytes(sound)
        (bundle,) = fleet.folder.glob("state/models/*/*/bundle.tar.zst")
        (provenance,) = fleet.folder.glob("state/models/*/*/provenance/*.json")
        whole = bundle.read_bytes()
        bundle.write_bytes(whole[:-1])
        with pytest.raises(AssertionError, match="damaged"):
            judge(fleet)
        bundle.write_bytes(whole)
        provenance.unlink()
        with pytest.raises(AssertionError, match="without provenance"):
            judge(fleet)


@posix
@pytest.mark.timeout(900)  # under a minute of work, on a machine that may be busy
@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_killed_once_at_every_place(half):
    """Receiver, workers, launchers and trainers; afterwards every job has ended once and nothing told is lost."""
    places = points.NAMES[half::2]
    counts = kill_everywhere(seed=0, names=places)
    assert not [place for place in places if not counts[f"at {place}"]]
    assert counts["kills"] >= len(places)


@posix
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "place",
    [
        "transition.adopt",
        "transition.pardon",
        pytest.param("transition.readopt", marks=pytest.mark.thorough),
        pytest.param("transition.deliver", marks=pytest.mark.thorough),
    ],
)
def test_killed_while_a_late_word_is_heeded(place):
    """The receiver, while it takes a lost host or its work back, or pardons what died on a sick one."""
    scenes.SCENES[place](place, random.Random(0))
