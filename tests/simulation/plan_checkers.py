"""The promises about the plan: what a reload leaves behind, what is granted by it, and what is recorded of that."""

from __future__ import annotations

import json
from typing import Any

from stored import provenance_of

from simulation.witness import Checker, Observation
from training.fleet.wire.attempts import ClaimReply

Spec = dict[str, Any]


class PlanIsTakenOver(Checker):
    """After a reload the jobs of the plan are what the file says, whatever became of them, and no two share a name."""

    def see(self, seen: Observation) -> None:
        if seen.call.name != "reload" or seen.error is not None:
            return
        file = {job["job_id"]: job for job in self.witness.receiver.read}
        rows = self.witness.rows("SELECT job_id, name, spec, priority FROM jobs WHERE in_manifest = 1")
        self.demand({row[0] for row in rows} == file.keys(), "the plan holds other jobs than the file")
        self.demand(len({row[1] for row in rows}) == len(rows), "two jobs of the plan share a name")
        for job_id, name, spec, priority in rows:
            said = file[job_id]
            found, wanted = ((name, json.loads(spec), priority), (said["name"], said, said["priority"]))
            self.demand(found == wanted, f"{job_id[:8]} is not what the file says: {found}")


class UndoUndoes(Checker):
    """A plan that names a job again brings it back if it was cancelled because it had left, and else does not."""

    def prepare(self) -> None:
        self._as_removed: dict[str, bool] = {}  # of cancelled jobs: why

    def see(self, seen: Observation) -> None:
        reload = seen.call.name == "reload" and seen.error is None
        for event in seen.events:
            if event.transition in ("cancel", "take_out"):
                by_plan = seen.call.name in ("plan part", "reload")  # it never came into force
                path = "" if seen.call.request is None else seen.call.request.path
                self._as_removed[event.job_id] = by_plan or "removed=true" in path
            elif event.transition == "requeue":
                why = self._as_removed.pop(event.job_id, False)
                self.demand(why or not reload, f"a reload brought {event.job_id[:8]} back")
        if reload:
            planned = {job["job_id"] for job in self.witness.receiver.read}
            left = [job_id for job_id in planned if self._as_removed.get(job_id)]
            self.demand(not left, f"{left} stay cancelled because they had left")


class RemovedIsPassedOver(Checker):
    """A job that left the plan is granted only after a plan names it again, or an operator requeues it."""

    def prepare(self) -> None:
        self._requeued: set[str] = set()  # not in the plan, and granted all the same

    def see(self, seen: Observation) -> None:
        by_plan = seen.call.name in ("plan part", "reload")
        for event in seen.events:
            if event.transition == "requeue":
                self._requeued.add(event.job_id)
                self.demand(not seen.after.jobs[event.job_id].passed_over, f"{event.job_id[:8]} is requeued in vain")
            elif event.transition == "claim":
                self.demand(not seen.before.jobs[event.job_id].passed_over, f"{event.job_id[:8]} has left the plan")
        for job_id in seen.changed() if by_plan else ():
            if seen.after.jobs[job_id].passed_over:
                self._requeued.discard(job_id)
        if seen.call.name == "reload" and seen.error is None:
            rows = self.witness.rows("SELECT job_id FROM jobs WHERE in_manifest = 0 AND passed_over = 0")
            left = {str(job_id) for (job_id,) in rows} - self._requeued
            self.demand(not left, f"{left} have left the plan, and wait like others")


def _trained_under(claim_id: str) -> str:
    """The claim that was granted; work that is brought by hand adds the number of its own attempt."""
    return claim_id.partition("-")[0]


class RecordIsTheGrant(Checker):
    """Hold that a grant is by the newest plan, and is kept and sealed as it was, whatever follows."""

    def prepare(self) -> None:
        self._said: dict[str, Spec] = {}  # what the last plan that named a job said of it
        self._coming: dict[str, Spec] = {}  # what the plan says that is being written
        self._granted: dict[str, Spec] = {}  # by claim

    def see(self, seen: Observation) -> None:
        if seen.call.name == "reload" and seen.error is None:
            self._said |= {job["job_id"]: dict(job) for job in self.witness.receiver.read}
            self._coming = {}
        elif seen.call.name == "plan part":
            self._coming = {job["job_id"]: dict(job) for job in self.witness.receiver.read}
        reply = seen.result
        if seen.call.name != "claim" or not isinstance(reply, ClaimReply) or reply.claim_id is None:
            return
        assert reply.spec is not None
        job_id = str(reply.job_id)
        self.demand(job_id in self._said, f"{job_id[:8]} was granted before the plan that brings it was in force")
        newest = self._coming if reply.spec == self._coming.get(job_id) else self._said
        wanted = self._granted.setdefault(reply.claim_id, newest[job_id])
        self.demand(reply.spec == wanted, f"{reply.job_id} was granted with another plan")
        self.demand(reply.name == wanted["name"], f"{reply.job_id} was granted by another name")

    def restarted(self) -> None:
        for claim_id, kept in self.witness.rows("SELECT claim_id, granted FROM attempts"):
            spec = None if kept is None else json.loads(kept)
            wanted = self._granted.get(_trained_under(claim_id))
            self.demand(spec == wanted, f"of claim {claim_id[:8]} another grant is kept")

    def at_end(self) -> None:
        self.restarted()
        accepted = self.witness.rows(
            "SELECT a.job_id, a.attempt, a.claim_id, r.artifact_id, r.model, r.mode FROM attempts AS a "
            "JOIN artifacts AS r ON r.job_id = a.job_id AND r.attempt = a.attempt "
            "AND r.artifact_id = a.artifact_id WHERE a.end_reason = 'completed'"
        )
        store = self.witness.receiver.store
        for job_id, attempt, claim_id, artifact, model, mode in accepted:
            if self.witness.removed(artifact, model, mode):
                continue
            for record in provenance_of(store, store.verify(artifact, model=model, mode=mode)):
                if (record["job_id"], record["attempt"]) == (job_id, attempt):
                    wanted = self._granted[_trained_under(claim_id)]
                    self.demand(record["spec"] == wanted, f"{job_id[:8]} #{attempt} is sealed otherwise")
