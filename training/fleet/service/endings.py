"""The calls with which a worker ends an attempt (a verified artifact, or a failure) or sends its last output.

The module also decides who may upload a bundle: with a live claim, by hand, or for work that stays unconfirmed. No HTTP
and no SQL.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

from training.contract import spec_hash
from training.fleet.queue.attempts import DeliveryNews, KeptReport
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling import quarantine
from training.fleet.scheduling.job import Attempt, EndReason, Job, JobStatus
from training.fleet.service import unconfirmed
from training.fleet.service.fleet import Calls, FleetState
from training.fleet.service.guards import (
    check_id,
    check_spec,
    ended,
    ran_out_of,
    refuse_another,
    reported_reason,
    trained_s,
)
from training.fleet.service.output import keep_last_words, keep_lines
from training.fleet.wire.attempts import (
    CompleteReply,
    CompleteRequest,
    DeliverRequest,
    FailRequest,
    OutputReply,
    OutputRequest,
    StatusReply,
)
from training.fleet.wire.constants import ERROR_CHARS_MAX, ProblemType, Refusal

BUNDLES_MAX = 3  # of one attempt


def delivering(fleet: FleetState, job_id: str, claim_id: str | None, host_id: str | None) -> tuple[Job, Attempt]:
    """Return the caller's attempt and its job as granted, if the attempt may deliver a bundle; else raise Refusal. A
    live attempt is recorded as no longer training."""
    job, attempt = fleet.claimed(job_id, claim_id, host_id, or_completed=True)
    if not (attempt.live or rules.may_adopt(job, attempt) or attempt.end_reason is EndReason.COMPLETED):
        raise ended(attempt)
    job = job.granted(attempt)
    return job, fleet.queue.attempts.train_no_more(attempt) if attempt.live else attempt


def completed(job: Job, artifact_id: str, attempt: int) -> CompleteReply:
    """Return the reply which confirms that this attempt completed the job with this artifact."""
    return CompleteReply(job_id=job.job_id, status=JobStatus.COMPLETED, artifact_id=artifact_id, attempt=attempt)


class Endings(Calls):
    """The calls that complete and fail attempts, and that store their output."""

    def output(self, job_id: str, request: OutputRequest) -> OutputReply:
        """Store lines of an attempt's output, even after the attempt's end. Storing output does not renew the attempt's
        lease."""
        _, attempt = self._fleet.claimed(job_id, request.claim_id, request.host_id, or_completed=True)
        return OutputReply(log_next=keep_lines(self._queue, attempt, request.log))

    def completable(self, job_id: str, request: CompleteRequest) -> tuple[Job, Attempt] | CompleteReply | None:
        """Return the job, and the attempt with its artifact, if the bundle must now be verified. Return None if
        :meth:`complete` can answer or refuse without verifying the bundle, and the reply if the work stays
        unconfirmed."""
        strange = unconfirmed.job_of(self._fleet, job_id, request.claim_id, request.host_id)
        if strange is not None:
            return unconfirmed.keep(self._fleet, strange, request)
        job, attempt = delivering(self._fleet, job_id, request.claim_id, request.host_id)
        settled = attempt.end_reason is EndReason.COMPLETED
        mismatch = request.spec_hash not in (None, spec_hash(job.spec))
        stored = request.artifact_id in self._queue.attempts.artifacts_of(attempt)
        if settled or mismatch or not stored:
            return None
        return job, replace(attempt, artifact_id=request.artifact_id, record=request.record)

    def complete(self, job_id: str, request: CompleteRequest, kept: KeptReport | None = None) -> CompleteReply:
        """Complete the job with the artifact of its live attempt, or of a lost attempt that may be adopted; ``kept`` is
        the stored report's row. If the attempt completed with this artifact before, only add its output and progress,
        and repeat the reply."""
        job, attempt = self._fleet.claimed(job_id, request.claim_id, request.host_id, or_completed=True)
        if attempt.end_reason is EndReason.COMPLETED:
            keep_last_words(self._queue, attempt, request)
            return self._receipt_again(job, attempt, request.artifact_id)
        if not attempt.live and not rules.may_adopt(job, attempt):
            raise ended(attempt)
        check_spec(job.granted(attempt), request.spec_hash)
        delivered = request.artifact_id in self._queue.attempts.artifacts_of(attempt)
        self._fleet.check_stored(job.granted(attempt), request.artifact_id, delivered=delivered)
        keep_last_words(self._queue, attempt, request)
        settle = self._queue.accept if attempt.live else self._queue.moves.adopt
        self._queue.quarantines.assess(settle(job, attempt, request.artifact_id, request.record))
        self._queue.attempts.keep_result(job.granted(attempt), attempt.attempt, kept)
        self._hosts.delivered(attempt.host)
        return completed(job, request.artifact_id, attempt.attempt)

    def _receipt_again(self, job: Job, attempt: Attempt, artifact_id: str) -> CompleteReply:
        refuse_another(attempt, artifact_id)
        if job.status is JobStatus.COMPLETED:
            self._queue.events.repeated("complete_repeat", job)
        return completed(job, artifact_id, attempt.attempt)

    def fail(self, job_id: str, request: FailRequest) -> StatusReply:
        """End the live attempt without an artifact, for the reported reason; the policy decides if the job is tried
        again. A report of an attempt that ended for this reason before only adds its output and progress."""
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
        hopeless = None if memory is None else self._widen(job, attempt.host, memory)
        told = replace(attempt, exit_code=request.exit_code, record=request.record, out_of_memory=memory)
        told = replace(told, lived_s=trained_s(request, reason))
        self._queue.quarantines.assess(self._queue.settle(job, told, reason, error=error, hopeless=hopeless))
        return StatusReply(job_id=job.job_id, status=self._fleet.job(job_id).status)

    def _widen(self, job: Job, host: str, memory: str) -> str | None:
        """Restrict a job that ran out of memory on ``host`` to hosts with more, and return None. If no known host has
        more, leave the job as it is, and return a sentence."""
        hosts = {known.name: self._fleet.host_of(known) for known in self._fleet.known_hosts()}
        needs = quarantine.wants_more(job.needs, memory, hosts[host])
        found = quarantine.hopeless(needs, memory, hosts[host], hosts.values())
        if found is None:
            self._queue.moves.widen(job, needs)
        return found


class UploadPermission(NamedTuple):
    """Permission to upload a bundle, with the claim and job to which the bundle belongs."""

    job_id: str
    attempt: int  # 0: it belongs to none yet, by hand or unconfirmed
    claim_id: str
    model: str
    mode: str
    host: str

    @property
    def alone(self) -> str:
        """Return the key under which only one request at a time puts a bundle into the store: the claim's id, or for a
        bundle without an attempt, a key of the host."""
        return self.claim_id if self.attempt else f"unconfirmed {self.host}"


class Uploads(Calls):
    """The calls that decide who may upload a bundle, record uploads, and deliver bundles by hand."""

    def upload_permission(
        self,
        job_id: str,
        claim_id: str | None,
        host_id: str | None,
        *,
        sha256: str | None = None,
        size: int | None = None,
        by_hand: bool = False,
    ) -> UploadPermission:
        """Return the permission to upload a bundle of ``size`` bytes, or raise Refusal. Callers ask before the body is
        read and again at its end.

        Packing an attempt again gives an equal bundle, so more than ``BUNDLES_MAX`` different ones are a fault or
        malice, and refused.
        """
        own, host, strange = claim_id or "", host_id or "", unconfirmed.job_of(self._fleet, job_id, claim_id, host_id)
        if strange is None and by_hand and not self._stands(claim_id):
            strange = self._waiting(job_id, own, host)
            own = _by_hand(own, strange)  # parts of claims that ended are cleared away
        if strange is not None:
            unconfirmed.check_wanted(self._fleet, host, own, sha256, size or 0)
            return UploadPermission(job_id, 0, own, strange.model, strange.mode, host)
        job, attempt = delivering(self._fleet, job_id, claim_id, host_id)
        if sha256 is not None:
            self._check_wanted(attempt, sha256)
        return UploadPermission(job.job_id, attempt.attempt, attempt.claim_id, job.model, job.mode, attempt.host)

    def _check_wanted(self, attempt: Attempt, sha256: str) -> None:
        if attempt.end_reason is EndReason.COMPLETED:
            refuse_another(attempt, sha256)
        delivered = self._queue.attempts.artifacts_of(attempt)
        if sha256 not in delivered and len(delivered) >= BUNDLES_MAX:
            raise Refusal(
                ProblemType.TOO_LARGE,
                f"this attempt brought {BUNDLES_MAX} different bundles already; complete the job by one of them",
            )

    def no_longer_uploading(self, claims: Iterable[str], put_out: Collection[str]) -> set[str]:
        """Return the claims whose attempt has ended and may deliver nothing more: it may not be adopted, or its host is
        revoked (in ``put_out``). An unknown claim is not returned, because an older database may have been restored."""
        over = set()
        for claim_id in claims:
            attempt = self._queue.attempts.by_claim(claim_id)
            if attempt is None:
                continue
            may_come = attempt.host not in put_out and rules.may_adopt(self._fleet.job(attempt.job_id), attempt)
            if not (attempt.live or may_come):
                over.add(claim_id)
        return over

    def hosts_of(self, claims: Iterable[str]) -> dict[str, str]:
        """Map each of these claims to its host, and an unknown claim to the empty name."""
        found = {claim: self._queue.attempts.by_claim(claim) for claim in claims}
        return {claim: "" if each is None else each.host for claim, each in found.items()}

    def _stands(self, claim_id: str | None) -> bool:
        """Return True if the claim itself permits the upload, because its attempt is live or may be adopted."""
        attempt = None if claim_id is None else self._queue.attempts.by_claim(claim_id)
        return attempt is not None and (attempt.live or rules.may_adopt(self._fleet.job(attempt.job_id), attempt))

    def upload_done(self, permission: UploadPermission, artifact_id: str, size: int) -> DeliveryNews | None:
        """Record that an attempt, or unconfirmed work, delivered a bundle, which is durable in the store, and return
        whether that is news; raise Refusal if the claim is no longer valid.

        Return None if the client must send the bundle again: the store no longer has it, or for unconfirmed work, an
        operator has refused the work, or its claim brought another bundle.
        """
        here = self._fleet.store.find(artifact_id, model=permission.model, mode=permission.mode) is not None
        if not permission.attempt:
            row = {**permission._asdict(), "artifact_id": artifact_id, "size": size, "now": self._clock.now()}
            return DeliveryNews.KNOWN if here and self._queue.db.run("add_unconfirmed", **row) else None
        job, attempt = delivering(self._fleet, permission.job_id, permission.claim_id, None)
        if attempt.end_reason is EndReason.COMPLETED:
            refuse_another(attempt, artifact_id)
        if not here:
            return None
        stored = self._queue.attempts.add_artifact(attempt, artifact_id, job.model, job.mode, size)
        if attempt.live:  # an upload counts as a heartbeat
            self._queue.moves.renew(job, attempt, seq=attempt.seq)
        return stored

    def deliverable(
        self, job_id: str, request: DeliverRequest, *, accepted: bool = False
    ) -> tuple[Job, Attempt] | CompleteReply | None:
        """Return the pending job, and a new attempt for a delivery by hand, or of unconfirmed work that an operator
        ``accepted``. Return None if this delivery was accepted before, and the reply if the work stays unconfirmed."""
        check_id("claim_id", request.claim_id)
        job = self._fleet.job(job_id)
        same = (job.artifact_id, job.worker_hostname) == (request.artifact_id, request.host_id)
        if job.status is JobStatus.COMPLETED and same:
            return None
        strange = None if accepted else unconfirmed.job_of(self._fleet, job_id, request.claim_id, request.host_id)
        if strange is not None:
            return unconfirmed.keep(self._fleet, strange, request)
        job = self._waiting(job_id, request.claim_id, request.host_id)
        check_spec(job, request.spec_hash)
        now, number = self._clock.now(), job.attempt + 1
        trained_under = self._queue.attempts.by_claim(request.claim_id)
        return job, Attempt(
            job_id=job.job_id,
            attempt=number,
            claim_id=_by_hand(request.claim_id, job) if trained_under else request.claim_id,
            host=request.host_id,
            generation=job.generation,
            granted_at=now,
            artifact_id=request.artifact_id,
            record={**(request.record or {}), "by_hand": request.claim_id},
            granted=trained_under.granted if trained_under else job.spec,
        )

    def deliver(
        self,
        job_id: str,
        request: DeliverRequest,
        made: Attempt | None,
        size: int,
        kept: KeptReport | None = None,
        *,
        accepted: bool = False,
    ) -> tuple[CompleteReply, bool]:
        """Complete a pending job with a bundle that its host had set aside, or with unconfirmed work that an operator
        ``accepted``. Return the reply, and True if this call completed the job; False if the request repeats an
        accepted one, or the work stays unconfirmed.

        ``made`` is the attempt whose provenance is stored beside the bundle of ``size`` bytes; ``kept`` is the stored
        report's row.
        """
        found = self.deliverable(job_id, request, accepted=accepted)
        if isinstance(found, CompleteReply):
            return found, False
        if found is not None:
            job, again = found
            place = (again.attempt, again.generation)
            if made is None or (made.attempt, made.generation) != place:
                raise Refusal(ProblemType.WRONG_STATE, f"job {job.name} has changed since; deliver once more")
            self._fleet.check_stored(job, request.artifact_id)
            self._queue.moves.deliver(job, made, size)
            self._queue.db.run("forget_unconfirmed", claim_id=made.claim_id)
            self._queue.attempts.keep_result(job.granted(made), made.attempt, kept)
            self._hosts.delivered(made.host)
        job = self._fleet.job(job_id)
        return completed(job, request.artifact_id, job.attempt), found is not None

    def _waiting(self, job_id: str, claim_id: str, host_id: str) -> Job:
        """Return the job if it is pending and a bundle of this claim and host may complete it; else raise Refusal."""
        job = self._fleet.job(job_id)
        if job.status is JobStatus.CANCELLED:
            raise Refusal(
                ProblemType.JOB_CANCELLED,
                f"job {job.name} was cancelled; requeue it first, with the workers that would take it stopped",
            )
        if job.status is not JobStatus.PENDING:
            raise Refusal(
                ProblemType.WRONG_STATE,
                f"job {job.name} is {job.status}: only one that waits is completed by hand; stop the workers that "
                "would take it, requeue it, and deliver once more",
            )
        attempt = self._queue.attempts.by_claim(claim_id)
        if attempt is not None and (attempt.job_id, attempt.host) != (job_id, host_id):
            raise Refusal(ProblemType.LEASE_SUPERSEDED, f"that claim was not host {host_id}'s on this job")
        for each in self._queue.attempts.of_job(job_id):
            said = (each.claim_id, (each.record or {}).get("by_hand"))
            if each.end_reason is EndReason.COMPLETED and each.host == host_id and claim_id in said:
                raise Refusal(
                    ProblemType.LEASE_SUPERSEDED,
                    f"that claim completed job {job.name} before, and an operator requeued it since; drop the work",
                )
        return job


def _by_hand(claim_id: str, job: Job) -> str:
    """Return the id of the new claim under which a bundle of ``claim_id`` is delivered by hand."""
    return f"{claim_id[:100]}-{job.attempt + 1}"
