"""A worker's claim: identify the host, find the attempts that it already holds, and grant the best job for it.

No HTTP and no SQL. A call runs inside one transaction of the writer. A call either returns a reply or raises
:class:`training.fleet.wire.constants.Refusal`, which undoes all that the call wrote to the database.
"""

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from training.files import to_free
from training.fleet.queue.choose import NoJob
from training.fleet.queue.grants import Claimant, GrantedJob
from training.fleet.scheduling import booking
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.job import Attempt, EndReason, Host, Job, JobStatus
from training.fleet.scheduling.resources import HeldAttempt
from training.fleet.service.fleet import Calls, FleetState, held_of
from training.fleet.service.guards import CRASHED_CLAIMS_MAX, check_claim, ended
from training.fleet.service.hosts import KnownHost
from training.fleet.service.sessions import HostSessions
from training.fleet.wire.attempts import BookedView, ClaimReply, ClaimRequest, DeclinedView
from training.fleet.wire.constants import SET_ASIDE_TOLD, ProblemType, Refusal

SPARE_HOSTS_KEPT = 2_000  # hosts remembered that never had a job …
SPARE_HOSTS_STEP = 50  # … checked after so many new ones
FULL_RETRY_S = 10.0  # seconds until a host with all its slots taken asks again


class Claims(Calls):
    """The calls by which hosts ask for jobs and get them."""

    def __init__(self, fleet: FleetState, sessions: HostSessions) -> None:
        super().__init__(fleet)
        self._sessions = sessions

    def claim(self, request: ClaimRequest) -> ClaimReply:
        """Grant the best job for this host; if this request was granted a job before, repeat that grant; if there is no
        job, return the reason."""
        check_claim(request)
        return self._asked(request, anew=True)

    def _asked(self, request: ClaimRequest, *, anew: bool) -> ClaimReply:
        try:
            return self._claim(request, anew=anew)
        finally:
            self._note_life(request)

    def claim_again(self, request: ClaimRequest, poll: int) -> ClaimReply:
        """Claim again for a request that waits, unless a newer request for the same slot waits. ``poll`` is the
        request's number from :meth:`wait_begins`.

        If an older claim were asked again, it would overwrite the host's capability, which the newer request states.
        """
        if self._hosts.is_overtaken(request.host_id, poll, request.slot):
            reason = f"a newer request of host {request.host_id} waits for work"
            return ClaimReply(reason=reason, retry_after_s=FULL_RETRY_S, ask_again=True)
        return self._asked(request, anew=False)

    def _claim(self, request: ClaimRequest, *, anew: bool) -> ClaimReply:
        before = self._asked_before(request)
        if before is not None and before.session_id in (None, request.session_id):
            return self._repeat(before)
        held_back = self._sessions.guard_identity(request)
        if held_back is not None:
            return held_back
        if before is not None:
            return self._repeat_after_a_crash(before, request)
        claimant = Claimant(request.instance_id, request.session_id, request.slot, request.request_id)
        self._note(request, claimant)
        if anew:  # what has waited does not know what was said since
            self._hosts.rests(request.host_id, request.resting)
        held = self._end_older_sessions(request)
        self._guard_slot(request, held)
        slots = self._fleet.slots(self._hosts.known[request.host_id])
        return msgspec.structs.replace(
            self._give(request, claimant, held), slots=slots, terms=self._fleet.terms(request.host_id)
        )

    def _give(self, request: ClaimRequest, claimant: Claimant, held: list[Attempt]) -> ClaimReply:
        """Grant the best job to a host that may claim and holds these attempts; if there is none, return the reason."""
        if not self._fleet.store.has_room():
            remedy = to_free(self._fleet.store.root)
            return ClaimReply(reason=f"the receiver's disk is low; {remedy} there", retry_after_s=60.0)
        sick = self._queue.quarantines.checked_in(request.host_id, request.capability)
        out = {**self._fleet.at_rest(self._queue.db), **sick}
        if request.host_id in out:
            reason = f"this host is {out[request.host_id].sentence()}"
            if request.host_id in sick:
                return ClaimReply(reason=reason, retry_after_s=60.0)
            return ClaimReply(reason=reason, retry_after_s=FULL_RETRY_S, ask_again=True)  # who waits counts as idle
        host = self._fleet.host_of(self._hosts.known[request.host_id])
        full = rules.is_full(host, held)
        if full is not None:  # nor does it wait: a waiting host counts as idle
            return ClaimReply(reason=full, retry_after_s=FULL_RETRY_S, ask_again=True)
        late = self._goes_on(request)
        if late is not None:
            return ClaimReply(reason=late, retry_after_s=FULL_RETRY_S, ask_again=True)
        first_come = self._fleet.plan.scheduling is rules.Scheduling.FIRST_COME
        fleet = self._fleet.fleet(but=host.name, out=out)
        if fleet.waiting:  # they go before with what they have room for
            there = (self._beside(peer, self._queue.attempts.live_on(peer.name)) for peer in fleet.waiting)
            fleet = replace(fleet, waiting=tuple(there))
        outcome = self._queue.grant(self._beside(host, held, request), claimant, fleet, first_come=first_come)
        if isinstance(outcome, NoJob):
            return ClaimReply(
                reason=outcome.reason,
                retry_after_s=outcome.retry_after_s,
                declined=None if outcome.declined is None else DeclinedView.of(outcome.declined),
                echo=self._sessions.round_of(request.host_id),
            )
        return self._granted(outcome, self._policy.stale_after_s)

    def as_booked(self, host: Host, held: Iterable[Attempt]) -> Host:
        """Return the host with the room that remains if its attempts use all that they booked, and other programs use
        no memory. The result is for displays only; claims bring the real use."""
        training = [each.booking for each in held_of(held)]
        return booking.beside(host.at_best(), [HeldAttempt(each, each.ram_gib, each.vram_gib) for each in training])

    def _beside(self, host: Host, held: Iterable[Attempt], request: ClaimRequest | None = None) -> Host:
        """Return the host with the room that its running trainers leave; ``request`` states how much memory they use
        now."""
        return booking.beside(host, held_of(held, () if request is None else request.training))

    def _goes_on(self, request: ClaimRequest) -> str | None:
        """Return why a host must first report an attempt that was given up as lost, but that its worker still has; None
        if it has none.

        A new grant of that attempt's job to the same host would lose the work, so the host gets no job before that
        report.
        """
        training = [each.claim_id for each in request.training]
        for claim_id in (*request.delivering, *training):
            attempt = self._queue.attempts.by_claim(claim_id)
            if attempt is None or attempt.live or attempt.instance_id != request.instance_id:
                continue
            job, delivers = self._fleet.job(attempt.job_id), claim_id in request.delivering
            if not rules.may_adopt(job, attempt):
                continue
            if delivers:
                return f"host {attempt.host} first delivers {job.name}, which was given up as lost but may be adopted"
            if attempt.readoptions < self._policy.max_readoptions:
                return f"host {attempt.host} still trains {job.name}, which was given up as lost; its heartbeat is due"
        return None

    def _asked_before(self, request: ClaimRequest) -> Attempt | None:
        """Return the attempt that this very request was already granted; None if there is none."""
        if request.request_id is None:
            return None
        return self._queue.attempts.by_request(request.host_id, request.request_id)

    def _repeat(self, attempt: Attempt) -> ClaimReply:
        job = self._fleet.job(attempt.job_id)
        if not attempt.live:
            raise ended(attempt)
        self._queue.events.repeated("claim_repeat", job)
        granted = GrantedJob(job.granted(attempt), attempt)
        return self._granted(granted, self._remaining_s(job), repeated=True)

    def _repeat_after_a_crash(self, attempt: Attempt, request: ClaimRequest) -> ClaimReply:
        """Repeat an answer that was lost in a crash to the worker's new session, which found the request on its disk.

        From now on the claim belongs to the new session. If the job is running, the answer had arrived, and the request
        is refused.
        """
        if attempt.live and self._fleet.job(attempt.job_id).status is JobStatus.RUNNING:
            raise Refusal(
                ProblemType.LEASE_SUPERSEDED,
                "another session had the answer to this request and went on; send a new request",
            )
        reply = self._repeat(attempt)
        self._queue.attempts.hand_on(attempt, request.session_id)
        return reply

    def _remaining_s(self, job: Job) -> float:
        """Return the remaining seconds of a live job's lease; 0 if the wall clock was set by more than ``clock_step_s``
        since the last check."""
        assert job.heartbeat_at is not None
        now = self._clock.now()
        step = self._fleet.watch.step_until(now, self._clock.monotonic())
        if abs(step) > self._policy.clock_step_s:
            return 0.0
        return max(0.0, job.heartbeat_at + self._policy.stale_after_s - now)

    def _granted(self, grant: GrantedJob, lease_s: float, *, repeated: bool = False) -> ClaimReply:
        return ClaimReply(
            echo=self._sessions.round_of(grant.attempt.host),
            job_id=grant.job.job_id,
            name=grant.job.name,
            spec=grant.job.spec,
            env=self._fleet.plan.variables(grant.attempt.host),
            claim_id=grant.attempt.claim_id,
            attempt=grant.attempt.attempt,
            lease_s=lease_s,
            repeated=repeated,
            state=self._fleet.state_of(grant.job.job_id),
            state_every_s=self._policy.state_every_s,
            booked=BookedView.of(grant.attempt.booked),
        )

    def _note_life(self, request: ClaimRequest) -> None:
        """Record that a host was seen if the request comes from its known installation, even if the claim is
        refused."""
        known = self._hosts.known.get(request.host_id)
        if known is not None and known.instance_id in (None, request.instance_id):
            self._hosts.heard(known.name, self._clock.now())

    def _note(self, request: ClaimRequest, claimant: Claimant) -> None:
        now = self._clock.now()
        self._queue.hosts.note(
            request.host_id,
            request.capability,
            claimant,
            request.trainer_digests,
            [
                {"job_id": one.job_id[:128], "name": one.name[:64], "size": one.size, "why": one.why[:300]}
                for one in request.set_aside[:SET_ASIDE_TOLD]
            ],
        )
        known = self._hosts.known.get(request.host_id)
        host = known or KnownHost(request.host_id, request.capability, now, now)
        if request.instance_id not in (None, host.instance_id):
            host = replace(host, instance_id=request.instance_id, conflict=None, conflict_at=0.0)
        heard = replace(
            host,
            capability=request.capability,
            last_seen=now,
            session_id=request.session_id or host.session_id,
            trainer_digests=request.trainer_digests or host.trainer_digests,
        )
        self._hosts.put(heard)
        if request.instance_id is not None and request.session_id is not None:
            self._sessions.line(request, self._hosts.known[request.host_id])
        if known is None and len(self._hosts.known) % SPARE_HOSTS_STEP == 0:
            self._forget_spare_hosts()

    def _forget_spare_hosts(self) -> None:
        """Forget hosts that never had a job and keep no undelivered work, except the ``SPARE_HOSTS_KEPT`` seen last,
        because a caller can invent host names."""
        for name in self._queue.hosts.forget_spare(SPARE_HOSTS_KEPT):
            self._hosts.forget(name)
            self._sessions.forget(name)

    def _end_older_sessions(self, request: ClaimRequest) -> list[Attempt]:
        """End the attempts of a worker's older sessions, except those whose bundles the worker delivers now; return the
        host's remaining live attempts. Also record the crashes that the request reports."""
        held = self._queue.attempts.live_on(request.host_id)
        if request.session_id is None or request.instance_id is None:
            return held
        held = [self._delivers(attempt, request) for attempt in held]
        for attempt in list(held):
            if attempt.instance_id == request.instance_id and attempt.session_id != request.session_id:
                error = f"the worker on {request.host_id} restarted without this job"
                self._sessions.lose(request.host_id, attempt)
                self._queue.settle(self._fleet.job(attempt.job_id), attempt, EndReason.HOST_LOST, error=error)
                held.remove(attempt)
        if request.crashed_claims:
            last_seen = {known.name: known.last_seen for known in self._fleet.known_hosts()}
            for claim_id in request.crashed_claims[:CRASHED_CLAIMS_MAX]:
                self._queue.quarantines.crashed(request.host_id, claim_id, last_seen)
        return held

    def _delivers(self, attempt: Attempt, request: ClaimRequest) -> Attempt:
        """Record that an attempt no longer trains and belongs to this session, if the request says that its bundle is
        being delivered; return the attempt."""
        if attempt.claim_id not in request.delivering or attempt.instance_id != request.instance_id:
            return attempt
        if attempt.session_id != request.session_id:
            self._queue.attempts.hand_on(attempt, request.session_id)
        return replace(self._queue.attempts.train_no_more(attempt), session_id=request.session_id)

    def _guard_slot(self, request: ClaimRequest, held: list[Attempt]) -> None:
        if request.session_id is None:
            return
        for attempt in held:
            if attempt.session_id == request.session_id and attempt.slot == request.slot:
                raise Refusal(
                    ProblemType.SLOT_BUSY,
                    f"slot {request.slot} of host {request.host_id} holds job {attempt.job_id}; end that first",
                )
