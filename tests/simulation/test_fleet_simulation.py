"""The whole fleet, simulated: no promise is broken in any of them, each replays to the byte, planted bugs are seen.

``make sim`` looks at 200, ``make sim SEEDS=…`` at as many as you like, ``make torture PART=sim`` at 20,000.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys

import pytest
from builders import a_capability, a_job, a_worker_claim
from fakes import Counting, FakeClock, FakeShelf
from places import ROOT

from simulation.coordinator import InlineWriter
from simulation.planted_bugs import BUGS, Change, PlantedBug
from simulation.report import Report, run_many
from simulation.run import run_seed
from simulation.witness import Checker
from simulation.world import Violation, World
from training.fleet.queue.jobs import JobQueue
from training.fleet.service.hosts import Plan
from training.fleet.service.service import Service
from training.fleet.service.wakes import Wakes

OTHERS = range(75, 105)  # where a bug's own fleet shows it no more: of every sort some
MOST = 200  # fleets that are looked at for what can happen and has not yet


@pytest.mark.timeout(1200)  # a minute of work, on a machine that may be busy
@pytest.mark.parametrize(("first", "fewest"), [(72, 30), pytest.param(102, 170, marks=pytest.mark.thorough)])
def test_no_promise_is_broken_in_any_fleet(first: int, fewest: int) -> None:
    """Look until each kind of fault and each row of the transition table has occurred, and the faults are many."""
    report = Report()
    with contextlib.closing(run_many(range(first, first + MOST), jobs=min(2, os.cpu_count() or 1))) as verdicts:
        for verdict in verdicts:
            report.add(verdict)
            if report.violations or (report.seeds >= fewest and not report.never()):
                break
    table = "\n".join(report.lines())
    assert report.violations == [], f"replay one with `make sim SEED=…`\n{table}"
    assert report.never() == [], table
    assert report.faults.total() >= 250 * report.seeds, table
    assert report.hours >= 2 * report.seeds, table


def _traced(seed: int, hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.simulation", "--seed", str(seed), "--json"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(json.loads(done.stdout)["trace"])


def test_a_seed_replays_byte_for_byte() -> None:
    here = run_seed(78)
    assert here.trace_hash == run_seed(78).trace_hash
    assert here.trace_hash == _traced(78, "1") == _traced(78, "2")
    assert here.trace_hash != run_seed(79).trace_hash


def test_a_run_in_which_time_stands_still_is_a_violation() -> None:
    world = World(0)

    def again() -> None:
        world.after(0.0, again)

    world.after(1.0, again)
    with pytest.raises(Violation, match=r"events at 1.000 s, and no end"):
        world.run(2.0)


def test_a_timeline_can_be_read() -> None:
    lines = run_seed(1, keep_lines=True).lines
    assert any("receiver   starts" in line for line in lines)
    assert any("pending → claimed by" in line for line in lines)
    assert any("✗ lost" in line for line in lines)


def seen_by_a_fleet(first: int) -> bool:
    """Look until a promise is broken; AssertionError when the simulation itself is."""
    for seed in (first, *OTHERS):
        verdict = run_seed(seed)
        assert not verdict.broken, f"the simulation is broken: {verdict.violation}"
        if verdict.sees:
            return True
    return False


def test_a_broken_simulation_sees_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(InlineWriter, "commit")
    with pytest.raises(AssertionError, match=r"the simulation is broken: .*has no attribute 'commit'"):
        seen_by_a_fleet(0)


def test_a_host_that_is_awake_is_not_woken_for_jobs_that_it_has_yet_to_do() -> None:
    """One core does them one after another, so that a second such host would have one done before the last ends."""
    queue = JobQueue(":memory:", clock=FakeClock(), new_claim_id=Counting())
    with contextlib.closing(queue):
        service = Service(queue, FakeShelf())
        service.reload([a_job(f"job-{n}") for n in range(4)], Plan(hosts={"pc": {"mac": "a0:b1:c2:d3:e4:f5"}}))
        service.claim(a_worker_claim("pc", capability=a_capability(cores=1)))
        assert not Wakes(service).due()


SLOW = {  # several fleets must be looked at, or a long one
    "leases do not move with the clock",
    "states of jobs that ended are kept",
    "epochs are kept only while the attempt lives",
    "a drop leaves the trainer running",
    "a pardon gives nothing back",
    "a requeue forgets the hold",
    "a sick host is not noticed",
    "adopt from any state",
    "what was printed unseen is not looked for",
    "jobs pay for what a sick host did",
    "what a crash left is counted twice",
    "a full disk is final",
    "a lost receipt ends the delivery",
    "accept any complete",
    "accept any upload",
    "adopt across a requeue",
    "adoption keeps the loss",
    "an end lies before its beginning",
    "the same job thrice is enough",
    "who is declined is not told when to ask again",
    "who is declined is to ask again at once",
}
_THOROUGH = SLOW | {bug.name for number, bug in enumerate(BUGS) if number % 6 and bug.seed is not None}
_BUGS = [pytest.param(bug, id=bug.name, marks=[pytest.mark.thorough] * (bug.name in _THOROUGH)) for bug in BUGS]


@pytest.mark.parametrize("bug", _BUGS)
def test_a_planted_bug_is_seen(bug: PlantedBug) -> None:
    """Also the regressions: what the simulation found once stands among the planted bugs.

    Every change of the code around it may change what a seed stands for; then others are tried.
    """
    if bug.seen_by:
        module, _, function = bug.seen_by.partition(":")
        look = getattr(importlib.import_module(module), function)
        look()
        with bug.planted(), pytest.raises(AssertionError):
            look()
        return
    assert bug.seed is not None
    with bug.planted():
        assert seen_by_a_fleet(bug.seed), (
            f"no fleet sees {bug.name!r} any more; `python -m tests.simulation --bugs` looks further"
        )


def test_every_promise_is_stated() -> None:
    """By a docstring of each class that is made for a fleet: the page sends its readers there."""
    modules = [
        importlib.import_module(f"simulation.{path.stem}")
        for path in (ROOT / "tests" / "simulation").glob("*checkers.py")
    ]
    classes = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    bases = {base for each in classes for base in each.__mro__[1:]}
    made = {each for each in classes - bases if issubclass(each, Checker)}
    assert len(made) >= 50
    assert sorted(each.__name__ for each in made if not each.__doc__) == []


def test_there_are_enough_planted_bugs() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 40


def test_a_bug_that_cannot_be_planted_says_so() -> None:
    gone = Change("sql", "beat_job", "no such line", "")
    with pytest.raises(LookupError, match="has 0 times the line"), gone.made():
        pass
