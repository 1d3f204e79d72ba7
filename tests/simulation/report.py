"""Many seeds at once, and what they showed, for people and for machines."""

from __future__ import annotations

import itertools
import multiprocessing
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from simulation.faults import Fault
from simulation.run import Verdict, run_seed
from training.fleet.scheduling.job import TRANSITIONS


@dataclass
class Report:
    """The sum of many verdicts."""

    seeds: int = 0
    hours: float = 0.0
    happened: int = 0
    violations: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    tally: Counter[str] = field(default_factory=Counter)

    def add(self, verdict: Verdict) -> None:
        self.seeds += 1
        self.hours += verdict.hours
        self.happened += verdict.happened
        if verdict.violation is not None:
            self.violations.append(verdict.violation)
        self.faults += verdict.faults
        self.fired += verdict.fired
        self.tally += verdict.tally

    def never(self) -> list[str]:
        """Kinds of faults and rows of the transition table that never occurred: then the run says little."""
        kinds = [f"fault: {kind}" for kind in Fault if not self.faults[kind]]
        return kinds + [f"transition: {name}" for name in TRANSITIONS if not self.fired[name]]

    @property
    def good(self) -> bool:
        return not self.violations and not self.never()

    def to_dict(self) -> dict[str, Any]:
        return {
            "seeds": self.seeds,
            "fleet_hours": round(self.hours, 1),
            "events": self.happened,
            "faults_in_all": self.faults.total(),
            "violations": self.violations,
            "never": self.never(),
            "faults": {kind.value: self.faults[kind] for kind in Fault},
            "transitions": {name: self.fired[name] for name in TRANSITIONS},
            "costs": dict(sorted(self.tally.items())),
        }

    def lines(self) -> Iterator[str]:
        """A table for people."""
        yield (
            f"{self.seeds:,} seeds, {self.hours:,.0f} fleet-hours, {self.faults.total():,} faults, "
            f"{self.happened:,} events"
        )
        yield ""
        left = [f"{kind.value:<30}{self.faults[kind]:>9,}" for kind in Fault]
        right = [f"{name:<18}{self.fired[name]:>9,}" for name in TRANSITIONS]
        yield f"{'fault':<30}{'times':>9}     {'transition':<18}{'times':>9}"
        for fault, transition in itertools.zip_longest(left, right, fillvalue=""):
            yield f"{fault:<39}     {transition}".rstrip()
        yield ""
        for name, value in sorted(self.tally.items()):
            yield f"{name}: {value:,}"
        yield from (f"VIOLATION {violation}" for violation in self.violations)
        yield from (f"NEVER {what}" for what in self.never())
        yield "no promise was broken" if self.good else "FAILED"


def run_many(seeds: Iterable[int], jobs: int = 1) -> Generator[Verdict, None, None]:
    """Verdicts in the order of the seeds, from ``jobs`` processes."""
    if jobs <= 1:
        yield from map(run_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(run_seed, seeds, chunksize=4)
