"""The promise about what retention lets go: the worse models only, with a row and a note, and never made again."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from simulation.tidy import quality
from simulation.witness import Checker, Facts, Observation
from training.fleet.store.artifacts import Artifact

_STANDING = "SELECT subject, done_at IS NOT NULL FROM removals WHERE what = 'bundle' AND back_at IS NULL"
_DELIVERIES = (
    "SELECT model || '_' || mode || '/' || artifact_id, job_id, attempt, EXISTS (SELECT 1 FROM curve_points AS p "
    "WHERE p.job_id = artifacts.job_id AND p.metric IS NOT NULL) FROM artifacts ORDER BY seq"
)
_FINAL = ("completed", "failed", "cancelled")


class Delivery(NamedTuple):
    """A bundle that a job brought, with whether any figure of that job ever came."""

    subject: str
    job_id: str
    attempt: int
    judged: bool

    @property
    def kind(self) -> str:
        return self.subject.partition("/")[0]

    def completes(self, jobs: dict[str, Facts]) -> bool:
        job = jobs[self.job_id]
        mine = job.attempt == self.attempt and job.artifact_id == self.subject.partition("/")[2]
        return job.status == "completed" and mine


def _figure(deliveries: list[Delivery], jobs: dict[str, Facts]) -> float | None:
    known = [quality(each.job_id) for each in deliveries if each.judged and each.completes(jobs)]
    return max(known, default=None)


class OnlyTheWorseGo(Checker):
    """Of each model and mode the best stay, and what no finished job let go; who lost a model is not trained again."""

    def prepare(self) -> None:
        self._best = self.scenario.retention.best
        self._gone: set[str] = set()  # bundles
        self._completed: set[str] = set()  # jobs that were completed by one of them

    def restarted(self) -> None:
        if self._best is not None:
            standing = self._standing()
            self.demand(standing.keys() == self._gone, "a start found other removals than were committed")

    def see(self, seen: Observation) -> None:
        if self._best is None:
            return
        for event in seen.events:
            if event.transition == "requeue":
                self._completed.discard(event.job_id)
            elif event.transition == "claim":
                self.demand(event.job_id not in self._completed, f"{event.job_id[:8]} is trained again unasked")
        standing = self._standing().keys()
        if seen.call.name == "retention":
            for subject in sorted(standing - self._gone):
                self._judge(subject, standing, seen.after.jobs)
            self._gone = set(standing)
        self._gone &= standing  # a bundle came again

    def _judge(self, subject: str, standing: Set[str], jobs: dict[str, Facts]) -> None:
        bundles: dict[str, list[Delivery]] = {}
        for row in self.witness.rows(_DELIVERIES):
            bundles.setdefault(row[0], []).append(Delivery(*row))
        own = bundles[subject]
        for each in own:
            job = jobs[each.job_id]
            settled = job.status in _FINAL and job.held_by is None
            self.demand(settled, f"a model of {each.job_id[:8]}, which is {job.status}, went")
        by_it = {each.job_id for each in own if each.completes(jobs)}
        self._completed |= by_it
        if not by_it or self._best is None:
            return
        figure = _figure(own, jobs)
        self.demand(figure is not None, f"{subject[:24]} went, and nothing says how good it is")
        others = [
            _figure(each, jobs)
            for name, each in bundles.items()
            if name not in standing and each[0].kind == own[0].kind
        ]
        as_good = sum(other is not None and other >= (figure or 0.0) for other in others)
        self.demand(as_good >= self._best, f"{subject[:24]} went and was among the best")

    def at_end(self) -> None:
        if self._best is None:
            return
        store, standing = self.witness.receiver.store, self._standing()
        for subject in {row[0]: None for row in self.witness.rows(_DELIVERIES)}:
            artifact = Artifact.at(subject)
            name, model, mode = artifact.artifact_id, artifact.model, artifact.mode
            found = store.find(name, model=model, mode=mode)
            if subject not in standing:
                self.demand(found is not None, f"{subject[:24]} is not in the store, and no row says why")
                store.verify(name, model=model, mode=mode)
            elif standing[subject]:
                self.demand(found is None, f"{subject[:24]} went by its row, and is there")
                self.demand(store.removed_note(artifact) is not None, f"nothing beside {subject[:24]} says why it went")

    def _standing(self) -> dict[str, bool]:
        return {subject: bool(done) for subject, done in self.witness.rows(_STANDING)}
