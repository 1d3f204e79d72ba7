"""What ``make torture`` consists of: parts, each made of tasks that run in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Task:
    """``call(*args)`` returns what it counted, or raises AssertionError with what was broken."""

    call: Callable[..., Counter[str]]
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Part:
    name: str
    promise: str
    tasks: Callable[[bool], list[Task]]  # full?
    alone: bool = False  # its tasks measure time: one after the other


def _powercut_db(full: bool) -> list[Task]:
    from torture.database_parts import check_life

    return (
        [Task(check_life, (seed, 12)) for seed in range(110)]
        if full
        else [Task(check_life, (0, 3))]
    )


def _powercut_store(full: bool) -> list[Task]:
    from torture.store_parts import power_cuts

    return [Task(power_cuts, (seed, 40)) for seed in range(100 if full else 1)]


def _nth_failure(full: bool) -> list[Task]:
    from torture.failing_database import N_MAX, REQUESTS, all_cases
    from torture.store_parts import failures

    return [Task(all_cases, (name, N_MAX if full else 20)) for name in REQUESTS] + [Task(failures)]


def _sim(full: bool) -> list[Task]:
    return [Task(simulated, (first, 100)) for first in range(0, 20_000 if full else 100, 100)]


def simulated(first: int, count: int) -> Counter[str]:
    """So many simulated fleets in this process."""
    from sim.run import run_seed

    counts: Counter[str] = Counter()
    for seed in range(first, first + count):
        verdict = run_seed(seed)
        assert verdict.violation is None, verdict.violation
        counts["seeds"] += 1
        counts["fleet_minutes"] += round(verdict.hours * 60)
        counts["faults"] += verdict.faults.total()
        counts["events"] += verdict.happened
    return counts


def planted_bugs() -> Counter[str]:
    """Every planted bug is seen by its own seed."""
    from sim.planted_bugs import BUGS

    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "0",
            "-k",
            "planted",
            "tests/test_fleet_simulation.py",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-2000:]
    return Counter(planted_bugs=len(BUGS))


PARTS = (
    Part("powercut-db", "acknowledged is durable", _powercut_db),
    Part("powercut-store", "a row names a bundle that is there, whole", _powercut_store),
    Part("nth-failure", "a failing disk loses nothing acknowledged", _nth_failure),
    Part("sim", "never lost, never double", _sim),
)
