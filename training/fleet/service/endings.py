"""The ends of an attempt, as its worker reports them: last output, a verified artifact, or a failure.

No HTTP and no SQL.
"""

from __future__ import annotations

from training.contract import spec_hash
from training.fleet.queue.results import KeptReport
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling import quarantine
from training.fleet.scheduling.job import Attempt, EndReason, Job, JobStatus
from training.fleet.service.fleet import FleetState
from training.fleet.service.guards import ended, ran_out_of, refuse_another, reported_reason, trained_s
from training.fleet.service.output import keep_last_words, keep_lines
from training.fleet.wire.attempts import (
    CompleteReply,
    CompleteRequest,
    FailRequest,
    OutputReply,
    OutputRequest,
    StatusReply,
)
from training.fleet.wire.constants import ERROR_CHARS_MAX, ProblemType, Refusal


def delivering(fleet: FleetState, job_id: str, claim_id: str | None, host_id: str | None) -> tuple[Job, Attempt]:
    """Return the attempt whose bundle may be delivered, and its job as granted."""
    job, attempt = fleet.claimed(job_id, claim_id, host_id, or_completed=True)
    if not (attempt.live or rules.may_adopt(job, attempt) or attempt.end_reason is EndReason.COMPLETED):
        raise ended(attempt)
    job = job.granted(attempt)
    return job, fleet.queue.attempts.train_no_more(attempt) if attempt.live else attempt


def completed(job: Job, artifact_id: str, attempt: int) -> CompleteReply:
    """Make the receipt for an artifact."""
    return CompleteReply(job_id=job.job_id, status=JobStatus.COMPLETED, artifact_id=artifact_id, attempt=attempt)


class Endings:
    """Completes and fails attempts."""

    def __init__(self, fleet: FleetState) -> None:
        """Share the fleet's state."""
        self._fleet, self._queue = fleet, fleet.queue

    def output(self, job_id: str, request: OutputRequest) -> OutputReply:
        """Store an attempt's output, even after its end; this does not renew its lease."""
        _, attempt = self._fleet.claimed(job_id, request.claim_id, request.host_id, or_completed=True)
        return OutputReply(log_next=keep_lines(self._queue, attempt, request.log))

    def completable(self, job_id: str, request: CompleteRequest) -> tuple[Job, Attempt] | None:
        """Return the job and attempt whose bundle must be verified; None if the request only repeats an earlier one."""
        job, attempt = delivering(self._fleet, job_id, request.claim_id, request.host_id)
        settled = attempt.end_reason is EndReason.COMPLETED
        mismatch = request.spec_hash not in (None, spec_hash(job.spec))
        stored = self._queue.attempts.artifact_of(attempt, request.artifact_id) is not None
        return (job, attempt) if stored and not (settled or mismatch) else None

    def complete(self, job_id: str, request: CompleteRequest, kept: KeptReport | None = None) -> CompleteReply:
        """Accept the artifact of the live attempt, or that of the last attempt if it was given up; ``kept`` is the
        stored report."""
        job, attempt = self._fleet.claimed(job_id, request.claim_id, request.host_id, or_completed=True)
        if attempt.end_reason is EndReason.COMPLETED:
            keep_last_words(self._queue, attempt, request)
            return self._receipt_again(job, attempt, request.artifact_id)
        if not attempt.live and not rules.may_adopt(job, attempt):
            raise ended(attempt)
        self._check_result(job, attempt, request)
        keep_last_words(self._queue, attempt, request)
        settle = self._queue.accept if attempt.live else self._queue.moves.adopt
        self._queue.quarantines.assess(settle(job, attempt, request.artifact_id, request.record))
        self._queue.results.keep(job.granted(attempt), attempt.attempt, kept)
        return completed(job, request.artifact_id, attempt.attempt)

    def _receipt_again(self, job: Job, attempt: Attempt, artifact_id: str) -> CompleteReply:
        refuse_another(attempt, artifact_id)
        if job.status is JobStatus.COMPLETED:
            self._queue.events.repeated("complete_repeat", job)
        return completed(job, artifact_id, attempt.attempt)

    def _check_result(self, job: Job, attempt: Attempt, request: CompleteRequest) -> None:
        job = job.granted(attempt)
        if request.spec_hash is not None and request.spec_hash != spec_hash(job.spec):
            raise Refusal(
                ProblemType.SPEC_MISMATCH,
                f"what was trained is not what job {job.name} asks for; fail the attempt instead",
            )
        row = self._queue.attempts.artifact_of(attempt, request.artifact_id)
        stored = row is not None and self._fleet.store.find(request.artifact_id, model=job.model, mode=job.mode)
        if not stored:
            raise Refusal(
                ProblemType.NO_ARTIFACT,
                f"artifact {request.artifact_id[:12]}… of job {job.name} is not in the store; upload it first",
            )

    def fail(self, job_id: str, request: FailRequest) -> StatusReply:
        """End the live attempt without an artifact; the policy decides what follows."""
        reason = reported_reason(request)
        job, attempt = self._fleet.claimed(job_id, request.claim_id, request.host_id)
        if attempt.end_reason is reason:
            keep_last_words(self._queue, attempt, request)
            return StatusReply(job_id=job.job_id, status=job.status)
        if not attempt.live:
            raise ended(attempt)
        keep_last_words(self._queue, attempt, request)
        error = request.error[:ERROR_CHARS_MAX] or reason.value
        memory = ran_out_of(request, reason)
        settled = self._queue.settle(
            job,
            attempt,
            reason,
            error=error,
            exit_code=request.exit_code,
            record=request.record,
            lived_s=trained_s(request, reason),
            out_of_memory=memory,
            hopeless=None if memory is None else self._widen(job, attempt.host, memory),
        )
        self._queue.quarantines.assess(settled)
        return StatusReply(job_id=job.job_id, status=self._fleet.job(job_id).status)

    def _widen(self, job: Job, host: str, memory: str) -> str | None:
        """Restrict a job that ran out of memory on ``host`` to hosts with more memory; or say why there is none."""
        hosts = {known.name: self._fleet.host_of(known) for known in self._fleet.known_hosts()}
        needs = quarantine.wants_more(job.needs, memory, hosts[host])
        self._queue.moves.widen(job, needs)
        return quarantine.hopeless(needs, memory, hosts[host], hosts.values())
