"""Data sets on their way to simulated hosts: slow, broken off by whoever stops them, refused, or without room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulation.world import Timer, World
from training.contract import job_identity
from training.fleet.scheduling.job import EndReason
from training.fleet.worker.state import events as t
from training.fleet.worker.state.exit_code import Failure

SIZE = 1000
_TROUBLE = (
    (EndReason.UPLOAD_FAILED, "the receiver does not give the data set"),
    (EndReason.SPAWN_FAILED, "no room for the data set"),
)


def with_data_sets(simulation: Any) -> None:
    """For ``run_seed(prepare=…)``: every other job names a data set, and has its id and its fate for that."""
    scenario = simulation.scenario
    fates = (scenario.work_s, scenario.illness.poison_s, scenario.illness.appetite)
    for job in [*scenario.jobs, *scenario.later_jobs][::2]:
        before, job["dataset"] = job["job_id"], "d" * 64
        job["job_id"] = job_identity(job)
        for fate in fates:
            if before in fate:
                fate[job["job_id"]] = fate.pop(before)


class Fetch:
    """One assignment's data set, as the worker's shell would fetch it; ends in ``there`` or in one SpawnFailed.

    It comes in a few parts, each of which takes at most ``part_s``.
    """

    def __init__(
        self,
        world: World,
        assignment: t.Assignment,
        part_s: float,
        soon: Callable[[float, Callable[[], None]], Timer],
        take: Callable[[t.Event], None],
        there: Callable[[], None],
        *,
        calm: bool,
    ) -> None:
        self.claim_id = assignment.claim_id
        self._world, self._soon, self._take, self._there = world, soon, take, there
        chance = world.chance(f"fetch {assignment.claim_id}")
        self._parts = chance.randint(1, 4)
        self._part_s = chance.random() * part_s
        self._breaks_at = chance.randint(0, 3) if not calm and chance.random() < 0.25 else -1
        self._trouble = chance.choice(_TROUBLE)
        self._stopped = False
        self._next(0)

    def stop(self) -> None:
        """Nobody wants it any more: noticed after the piece that is on its way, of which a part has many."""
        if not self._stopped:
            self._stopped = True
            self._timer.cancel()
            self._timer = self._soon(0.3, lambda: self._arrived(-1))

    def _next(self, part: int) -> None:
        self._timer = self._soon(self._part_s, lambda: self._arrived(part + 1))

    def _arrived(self, part: int) -> None:
        if self._stopped:
            self._world.tally["fetches broken off"] += 1
            self._fail(EndReason.SPAWN_FAILED, "nobody wants the data set any more")
        elif part == self._breaks_at:
            self._world.tally["fetches that failed"] += 1
            self._fail(*self._trouble)
        elif part < self._parts:
            done = SIZE * part // self._parts
            self._take(t.Fetching(claim_id=self.claim_id, done=done, size=SIZE))
            self._next(part)
        else:
            self._world.tally["data sets fetched"] += 1
            self._there()

    def _fail(self, reason: EndReason, words: str) -> None:
        self._take(t.SpawnFailed(claim_id=self.claim_id, failure=Failure(reason, words)))
