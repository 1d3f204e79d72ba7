"""An operator's calls on jobs (cancel, requeue, hold, unhold) and hosts (release, pause, drain, resume, expel). No HTTP
and no SQL."""

from training.fleet.queue.unavailable import orders, quarantines
from training.fleet.scheduling.job import EndReason, JobStatus
from training.fleet.scheduling.orders import HostOrder, OrderKind
from training.fleet.service.fleet import Calls
from training.fleet.service.guards import check_known, check_release, the_one_meant, the_one_to_change
from training.fleet.wire.attempts import MovedReply
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.messages import HostOrderReply, ReleaseReply


class OperatorCalls(Calls):
    """The calls by which operators change jobs and hosts."""

    def resolve(self, ref: str) -> str:
        """Return the id of the job that ``ref`` names: an id, a name, or a unique prefix of an id. Raise Refusal if
        ``ref`` names none or several."""
        return the_one_meant(ref, self._queue.moves.named(ref))

    def resolve_to_change(self, ref: str) -> str:
        """Return the id of the job to change. The rules are stricter than :meth:`resolve`'s, because the reply alone
        would not show that the wrong job was changed."""
        return the_one_to_change(ref, self._queue.moves.named(ref))

    def readable(self, ref: str, host_id: str | None) -> str:
        """Return the id of the job that ``ref`` names, if the caller may see it; a training host may see only jobs that
        it has worked on."""
        job_id = self.resolve(ref)
        if host_id is not None and all(attempt.host != host_id for attempt in self._queue.attempts.of_job(job_id)):
            raise Refusal(ProblemType.NOT_YOURS, f"host {host_id} never worked on this job")
        return job_id

    def expel(self, host_id: str) -> int:
        """End a revoked host's attempts, so that other hosts get its jobs at once; return the number of ended
        attempts."""
        attempts = self._queue.attempts.live_on(host_id)
        for attempt in attempts:
            error = f"host {host_id} was revoked by the operator"
            self._queue.settle(self._fleet.job(attempt.job_id), attempt, EndReason.HOST_LOST, error=error)
        return len(attempts)

    def cancel(self, ref: str, *, by: str = "operator", as_removed: bool = False) -> MovedReply:
        """Cancel a job, until an operator requeues it. With ``as_removed``, cancel only a job that left the plan; a
        plan that names the job again revives it. Raise Refusal if its status leaves nothing to cancel, or with
        ``as_removed`` it is in the plan."""
        job_id = self.resolve_to_change(ref)
        job = self._fleet.job(job_id)
        if as_removed and job.in_manifest:
            raise Refusal(ProblemType.WRONG_STATE, f"job {job.name} is in the plan; cancel it by its name or its id")
        if not self._queue.cancel(job_id, by=by, as_removed=as_removed):
            failed = job.status is JobStatus.FAILED
            why = "; take it out of the plan and reload first" if failed else "; there is nothing to cancel"
            raise Refusal(ProblemType.WRONG_STATE, f"job {job.name} is {job.status} already{why}")
        return self._moved(ref, job_id)

    def requeue(self, ref: str) -> MovedReply:
        """Make the job pending again, with the plan's present settings; if the job left the plan, with its last
        ones."""
        job_id = self.resolve_to_change(ref)
        self._queue.requeue(job_id)
        return self._moved(ref, job_id)

    def hold(self, ref: str, *, by: str = "operator") -> MovedReply:
        """Keep the job from being granted until it is unheld; holding it again changes nothing."""
        job_id = self.resolve_to_change(ref)
        self._queue.hold(job_id, by=by)
        return self._moved(ref, job_id)

    def unhold(self, ref: str, *, by: str = "operator") -> MovedReply:
        """Let a held job be granted again."""
        job_id = self.resolve_to_change(ref)
        self._queue.unhold(job_id, by=by)
        return self._moved(ref, job_id)

    def _moved(self, ref: str, job_id: str) -> MovedReply:
        job = self._fleet.job(job_id)
        return MovedReply.of(job, near=self._queue.moves.near(ref, job_id))

    def release(self, name: str, by: str) -> ReleaseReply:
        """Release a host from quarantine, and return the reason of the quarantine; raise Refusal if it is not in
        quarantine, or if only a healthy report of the host ends the quarantine."""
        known = self._hosts.called(name)
        name = name if known is None else known.name
        held = quarantines(self._queue.db).get(name)
        reason = check_release(name, held, self._hosts.known)
        self._queue.quarantines.release(name, by)
        return ReleaseReply(host=name, reason=reason)

    def order(self, name: str, order: OrderKind, by: str) -> HostOrderReply:
        """Put a host under an operator's order; giving the same order again changes nothing."""
        name, before = self._under_order(name)
        given = self._queue.orders.give(name, order, by)
        was = None if before is None else before.order
        return HostOrderReply.of(given, was=was, jobs=self._held_by(name), note=None)

    def resume_host(self, name: str, by: str) -> HostOrderReply:
        """End a host's order; raise Refusal if it has no order. The host gets jobs again, and its paused trainers
        continue, unless something else prevents that."""
        name, before = self._under_order(name)
        ended = self._queue.orders.end(name, by)
        out = self._fleet.taken_out(self._queue.db).get(name)
        if before is None or not ended:
            rest = "it gets work" if out is None else f"it is {out.sentence()}"
            raise Refusal(ProblemType.WRONG_STATE, f"host {name} is neither paused nor drained; {rest}")
        note = None if out is None else out.sentence()
        return HostOrderReply.of(before, order=None, was=before.order, jobs=self._held_by(name), note=note)

    def _held_by(self, host: str) -> list[str]:
        return [self._fleet.job(each.job_id).name for each in self._queue.attempts.live_on(host)]

    def _under_order(self, name: str) -> tuple[str, HostOrder | None]:
        """Return the host's name as it is known, and its present order (None: it has none); raise Refusal for an
        unknown host."""
        given, known = orders(self._queue.db), self._hosts.called(name)
        name = name if known is None else known.name
        check_known(name, {*self._hosts.known, *given})
        return name, given.get(name)
