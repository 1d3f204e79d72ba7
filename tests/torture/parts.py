"""The parts of ``make torture``, each made of tasks that run in processes of their own."""

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

    return [Task(check_life, (seed, 12)) for seed in range(110)] if full else [Task(check_life, (0, 3))]


def _powercut_store(full: bool) -> list[Task]:
    from torture.store_parts import power_cuts

    return [Task(power_cuts, (seed, 40)) for seed in range(40 if full else 1)]


def _nth_failure(full: bool) -> list[Task]:
    from torture.failing_database import N_MAX, REQUESTS, all_cases
    from torture.store_parts import failures

    return [Task(all_cases, (name, N_MAX if full else 20)) for name in REQUESTS] + [Task(failures)]


def _kill(full: bool) -> list[Task]:
    from torture.kills import kill_everywhere
    from torture.scenes import kill_in_scenes

    seeds = range(20 if full else 1)
    return [Task(call, (seed,)) for call in (kill_everywhere, kill_in_scenes) for seed in seeds]


def _network(full: bool) -> list[Task]:
    from torture.bad_network import KINDS, strike_at

    return [Task(strike_at, (kind, full)) for kind in KINDS]


def _disk_full(full: bool) -> list[Task]:
    from torture.disk_full import AT, DISKS, scenario

    places = AT if full else AT[3:4]
    return [Task(scenario, (disk, place)) for disk in DISKS for place in places]


def _suspended(full: bool) -> list[Task]:
    from torture import suspended as s

    places, receivers = (s.AT, s.RECEIVER_AT) if full else (s.AT[4:8:3], s.RECEIVER_AT[3:4])
    return [
        *(Task(s.worker_sleeps, (place, taken)) for place in places for taken in (False, True)),
        *(Task(s.receiver_away, (place,)) for place in receivers),
        Task(s.receiver_sleeps),
        Task(s.two_installations),
        Task(s.copied_disk, (20 if full else 3,)),
    ]


def _slow(full: bool) -> list[Task]:
    from torture.load import slow_clients

    return [Task(slow_clients, (2000, True) if full else (200, False))]


def _many(full: bool) -> list[Task]:
    from torture.load import many_workers

    return [Task(many_workers, (100, 600.0) if full else (20, 20.0))]


def _sim(full: bool) -> list[Task]:
    """Quick fleets, and slow ones, whose storms take days and which cost as many seconds as five quick ones."""
    from simulation.scenario import SLOW_FROM

    quick, slow, later = (16_000, 4_450, 600) if full else (40, 10, 0)
    return [
        *(Task(simulated, (first, 40)) for first in range(0, quick, 40)),
        *(Task(simulated, (SLOW_FROM + first, 10)) for first in range(0, slow, 10)),
        # Behind the others, whose numbers the record knows: fleets for the faults and rules that came after them.
        *(Task(simulated, (quick + first, 40)) for first in range(0, later, 40)),
    ]


def simulated(first: int, count: int) -> Counter[str]:
    """So many simulated fleets in this process."""
    from simulation.run import run_seed

    counts: Counter[str] = Counter()
    for seed in range(first, first + count):
        verdict = run_seed(seed)
        assert verdict.violation is None, verdict.violation
        counts["seeds"] += 1
        counts["fleet_minutes"] += round(verdict.hours * 60)
        counts["faults"] += verdict.faults.total()
        counts["events"] += verdict.happened
        counts.update({f"fault {kind}": times for kind, times in verdict.faults.items()})
        counts.update({f"row {name}": times for name, times in verdict.fired.items()})
    return counts


def _bugs(full: bool) -> list[Task]:
    return [Task(planted_bugs)] if full else []  # in small they are tests of their own


def planted_bugs() -> Counter[str]:
    """Every planted bug is seen by its own seed."""
    from simulation.planted_bugs import BUGS

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-k", "planted", "tests/simulation/test_fleet_simulation.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-2000:]
    return Counter(planted_bugs=len(BUGS))


PARTS = (
    Part("powercut-db", "what was acknowledged survives a power cut", _powercut_db),
    Part("powercut-store", "whoever was told that a bundle is stored finds it, whole", _powercut_store),
    Part("nth-failure", "a disk that fails once, or for ever, loses nothing acknowledged", _nth_failure),
    Part("kill", "whoever is killed, wherever: no job is lost, none ends twice", _kill),
    Part("network", "wherever a connection is cut, held, doubled or slowed: one completion", _network),
    Part("disk-full", "a full disk costs time, no restart and nothing acknowledged", _disk_full),
    Part("suspended", "sleep, absence and a second machine of the same name: one completion", _suspended),
    Part("slow", "slow clients are refused beside a good one that is served", _slow, alone=True),
    Part("many", "many workers at once: no error, no job held by two", _many, alone=True),
    Part("sim", "the simulated fleet keeps every promise", _sim),
    Part("bugs", "the simulation sees every planted bug", _bugs),
)
