"""The heartbeat of a running trainer: it renews the lease, and the reply tells the worker to continue or to stop. No
HTTP and no SQL."""

from dataclasses import replace

import msgspec

from training.fleet.scheduling import booking
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.job import Attempt, EndReason, Job
from training.fleet.service.fleet import Calls, FleetState, held_of
from training.fleet.service.guards import ended, ran_too_long
from training.fleet.service.output import keep_lines, keep_progress
from training.fleet.service.sessions import HostSessions
from training.fleet.wire.attempts import HeartbeatReply, HeartbeatRequest
from training.fleet.wire.constants import Action, ProblemType, Refusal


class Heartbeats(Calls):
    """The call that renews leases, and ends attempts that run too long."""

    def __init__(self, fleet: FleetState, sessions: HostSessions) -> None:
        super().__init__(fleet)
        self._sessions = sessions

    def heartbeat(self, job_id: str, request: HeartbeatRequest) -> HeartbeatReply:
        """Renew the lease of the caller's live attempt; an attempt that was given up as lost may become live again. The
        reply is "stop" if the job was cancelled, or if the attempt ran too long, which then is ended."""
        job, attempt = self._fleet.claimed(job_id, request.claim_id, request.host_id)
        known = self._hosts.known.get(attempt.host)
        self._sessions.heard(attempt, request)
        if attempt.live and self._sessions.handed_on(attempt, request.session_id):
            raise Refusal(
                ProblemType.LEASE_SUPERSEDED,
                f"another session of host {attempt.host} continues this attempt; drop the work",
            )
        if attempt.end_reason is EndReason.CANCELLED:
            return HeartbeatReply(action=Action.STOP, lease_s=0.0, log_next=attempt.log_next)
        if not attempt.live:
            held = self._queue.attempts.live_on(attempt.host)
            host = None if known is None else self._fleet.host_of(known)
            full = host is not None and (  # the place that the attempt had is not there any more
                rules.is_full(host, held) is not None or not booking.takes_back(attempt.booked, host, held_of(held))
            )
            if full or not rules.may_readopt(job, attempt, held, self._policy):
                raise ended(attempt)
            job, attempt = self._queue.moves.readopt(job, attempt)
        attempt = self._heard(job, attempt, request)
        keep_progress(self._queue, attempt, request.seq, request.progress)
        if request.usage is not None and request.seq > attempt.seq:
            seconds = max(0.0, self._clock.now() - attempt.granted_at)
            self._queue.curves.add_sample(attempt, request.seq, seconds, msgspec.structs.asdict(request.usage))
        self._queue.moves.renew(job, attempt, seq=request.seq, progress=request.progress)
        log_next = keep_lines(self._queue, attempt, request.log)
        # although its worker goes on
        limit_s = rules.overran(job.granted(attempt).spec, attempt, self._policy)
        if limit_s is not None:
            too_long = ran_too_long(attempt.host, attempt.held_s, limit_s)
            job = self._fleet.job(job_id)
            settled = self._queue.settle(job, attempt, EndReason.TRAINER_FAILED, error=too_long)
            self._queue.quarantines.assess(settled)
            return HeartbeatReply(action=Action.STOP, lease_s=0.0, log_next=log_next)
        if known is not None:
            self._hosts.rests(known.name, request.resting)
        terms = self._fleet.terms(attempt.host)
        return HeartbeatReply(
            action=Action.CONTINUE,
            lease_s=self._policy.stale_after_s,
            log_next=log_next,
            echo=self._sessions.round_of(attempt.host),
            slots=None if known is None else self._fleet.slots(known),
            terms=terms,
        )

    def _heard(self, job: Job, attempt: Attempt, request: HeartbeatRequest) -> Attempt:
        """Return the attempt with the time since its last heartbeat added to its times, pauses excluded up to the
        host's ``pause_max_s`` in all; a restart of the receiver does not reset these times."""
        stood_s, most_s = max(attempt.paused_s, request.paused_s), self._fleet.plan.pause_max_s(attempt.host)
        since_s = self._clock.now() - (job.heartbeat_at or attempt.granted_at)
        since_s -= min(stood_s, most_s) - min(attempt.paused_s, most_s)
        return replace(
            attempt,
            heard_s=rules.heard_s(attempt.heard_s, since_s, request.progress, self._policy),
            held_s=rules.held_s(attempt, since_s, self._policy),
            paused=request.paused,
            paused_s=stood_s,
            resumable=request.resumable,
        )
