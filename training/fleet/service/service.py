"""One plain method per protocol call, with the guards that need more than the row.

No HTTP and no SQL. Every method runs inside one transaction of the writer and either returns a reply or raises
:class:`training.fleet.wire.messages.Refusal`; what was written before a refusal is undone with it.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import msgspec

from training.contract import spec_hash
from training.fleet.database.writer import Database
from training.fleet.queue.ahead import Made, Making
from training.fleet.queue.attempts import Stored
from training.fleet.queue.choose import NoJob
from training.fleet.queue.durations import Learned
from training.fleet.queue.jobs import Claimant, Grant, JobQueue
from training.fleet.queue.orders import orders
from training.fleet.queue.plan_write import PlanWrite
from training.fleet.queue.quarantine import quarantines
from training.fleet.queue.results import Kept
from training.fleet.scheduling import booking, copies, quarantine
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.copies import Line, Standing
from training.fleet.scheduling.job import LIVE, Attempt, EndReason, Host, Job, JobStatus
from training.fleet.scheduling.orders import HostOrder, Order
from training.fleet.scheduling.policy import Fleet, Scheduling, Watch
from training.fleet.scheduling.resources import Held
from training.fleet.service.changes import notes, told
from training.fleet.service.guards import (
    CRASHED_CLAIMS_MAX,
    check_claim,
    check_id,
    check_known,
    check_release,
    ended,
    ran_out_of,
    ran_too_long,
    refuse_another,
    refuse_twin,
    reported_reason,
    the_one_meant,
    the_one_to_change,
    trained_s,
)
from training.fleet.service.hosts import HostRegistry, KnownHost, Plan
from training.fleet.service.out import at_rest, taken_out
from training.fleet.service.output import keep_last_words, keep_lines, keep_progress
from training.fleet.service.terms import terms_of
from training.fleet.wire.constants import SET_ASIDE_TOLD, SLOTS_MAX
from training.fleet.wire.messages import (
    ERROR_CHARS_MAX,
    Action,
    BookedView,
    ClaimReply,
    ClaimRequest,
    CompleteReply,
    CompleteRequest,
    DeclinedView,
    DeliverRequest,
    FailRequest,
    HeartbeatReply,
    HeartbeatRequest,
    HostOrderReply,
    HostTerms,
    MovedReply,
    OutputReply,
    OutputRequest,
    ProblemType,
    Refusal,
    ReleaseReply,
    ReloadReply,
    StatusReply,
    TrainerUse,
)
from training.fleet.wire.states import StateView
from training.printable import duration

SPARE_HOSTS_KEPT = 2_000  # hosts remembered that never had a job …
SPARE_HOSTS_STEP = 50  # … checked after so many new ones
BUNDLES_MAX = 3  # of one attempt
FULL_RETRY_S = 10.0  # seconds until a host with all its slots taken asks again


class Store(Protocol):
    """The store as the service uses it."""

    def has_room(self, incoming_bytes: int = 0) -> bool: ...

    def find(self, artifact_id: str, *, model: str, mode: str) -> object | None: ...


@dataclass(frozen=True, slots=True)
class UploadPermission:
    """Permission to upload: the claim is live, or its finished work may still be adopted."""

    job_id: str
    attempt: int  # 0 by hand
    claim_id: str
    model: str
    mode: str
    host: str
    by_hand: bool = False  # for `deliver`: it belongs to no attempt yet


class Service:
    """The receiver's decisions. One instance, used by the writer thread (or the simulation's only thread)."""

    def __init__(
        self,
        queue: JobQueue,
        dataset_store: Store,
        plan: Plan | None = None,
        *,
        new_round: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        """``new_round`` draws the echo of an answer (:mod:`training.fleet.scheduling.copies`)."""
        self.queue = queue
        self._planned = plan is not None  # until then there is nothing to compare a plan with
        self._new_round = new_round
        self.policy = queue.policy
        self._dataset_store = dataset_store
        self._clock = queue.clock
        self._watch = Watch.begin(self._clock.now(), self._clock.monotonic(), self.policy)
        self._last_watch = self._watch  # before the last look
        self._catch_up()
        self._lines: dict[str, tuple[str, Line]] = {}  # host → installation, its sessions
        known = [KnownHost(row.pop("hostname"), **row) for row in queue.workers()]
        self.host_registry = HostRegistry(known, plan if plan is not None else Plan())
        self.data_bytes: Callable[[str], float | None] = lambda _dataset_id: None  # the size of a data set, if known
        self.state_of: Callable[[str], StateView | None] = lambda _job_id: None  # a job's newest saved state
        queue.ahead.kinds.learned = self.learned(queue.db)
        self.wait_begins, self.wait_ends = self.host_registry.wait_begins, self.host_registry.wait_ends

    @property
    def plan(self) -> Plan:
        return self.host_registry.plan

    def learned(self, reader: Database) -> Learned:
        """Return what the attempts behind a connection teach, with what else is known of data sets and hosts."""
        return Learned(
            reader,
            data_bytes=lambda dataset_id: self.data_bytes(dataset_id),
            calibrations=lambda: self.host_registry.calibrations,
        )

    # ── hosts ───────────────────────────────────────────────────────────────────────────────

    def known_hosts(self) -> list[KnownHost]:
        """Return every host that ever asked, by name."""
        return sorted(self.host_registry.known.values(), key=lambda known: known.name)

    def alive(self, known: KnownHost) -> bool:
        """Return True when the host was last seen within a lease."""
        return known.last_seen >= self._alive_since()

    def _alive_since(self) -> float:
        """Return the time since which a host must have been seen to count as alive.

        While a step of the clock is not handled yet: by either time.
        """
        now = self._clock.now()
        step = self._watch.step_until(now, self._clock.monotonic())
        return now - self.policy.stale_after_s - max(0.0, step)

    def host_of(self, known: KnownHost) -> Host:
        """Return the host as the decision sees it: detected, cut down to what the manifest declares."""
        return self.host_registry.host(known)

    def fleet(self, but: str | None = None, out: Iterable[str] = ()) -> Fleet:
        """List the other hosts for scheduling; those in quarantine (``out``) do not count. For the writer's thread."""
        without = frozenset(out) if but is None else frozenset((but, *out))
        return self.host_registry.fleet(**self._times(), without=without, to=but)

    def fleet_beside(self, host: str, out: Iterable[str]) -> Fleet:
        """Return what :meth:`fleet` tells of a host's others, for any thread."""
        return self.host_registry.looked_up(**self._times(), without=frozenset((host, *out)), to=host)

    def _times(self) -> dict[str, float]:
        return {"heard_since": self._alive_since(), "known_since": self._clock.now() - self.policy.gone_s}

    def release(self, name: str, by: str) -> ReleaseReply:
        """Release a host from quarantine."""
        known = self.host_registry.called(name)
        name = name if known is None else known.name
        held = quarantines(self.queue.db).get(name)
        reason = check_release(name, held, self.host_registry.known)
        self.queue.quarantines.release(name, by)
        return ReleaseReply(host=name, reason=reason)

    def order(self, name: str, order: Order, by: str) -> HostOrderReply:
        """Put a host under an order of an operator; a repetition changes nothing."""
        name, before = self._under_order(name)
        given = self.queue.orders.give(name, order, by)
        return HostOrderReply(
            host=name,
            order=given.order,
            by=given.by,
            since=given.since,
            was=None if before is None else before.order,
            jobs=[self._job(each.job_id).name for each in self.queue.attempts.live_on(name)],
        )

    def resume_host(self, name: str, by: str) -> HostOrderReply:
        """End the order that a host is under: it gets jobs again, and its paused trainers go on."""
        name, before = self._under_order(name)
        ended = self.queue.orders.end(name, by)
        out = taken_out(self.queue.db, self.host_registry).get(name)
        if before is None or not ended:
            rest = "it gets work" if out is None else f"it is {out.sentence()}"
            raise Refusal(ProblemType.WRONG_STATE, f"host {name} is neither paused nor drained; {rest}")
        return HostOrderReply(
            host=name,
            was=before.order,
            by=before.by,
            since=before.since,
            jobs=[self._job(each.job_id).name for each in self.queue.attempts.live_on(name)],
            note=None if out is None else out.sentence(),
        )

    def _under_order(self, name: str) -> tuple[str, HostOrder | None]:
        """Return a host's name as it is known, and the order that it is under."""
        given, known = orders(self.queue.db), self.host_registry.called(name)
        name = name if known is None else known.name
        check_known(name, {*self.host_registry.known, *given})
        return name, given.get(name)

    # ── claim ───────────────────────────────────────────────────────────────────────────────

    def claim(self, request: ClaimRequest) -> ClaimReply:
        """Grant the best job for this host, answer a repeated request alike, or give the reason for none."""
        check_claim(request)
        return self._asked(request, anew=True)

    def _asked(self, request: ClaimRequest, *, anew: bool) -> ClaimReply:
        try:
            return self._claim(request, anew=anew)
        finally:
            self._note_life(request)

    def claim_again(self, request: ClaimRequest, poll: int) -> ClaimReply:
        """Claim for a request that waits (``poll``: its number of :meth:`wait_begins`), unless a newer one waits.

        Two open claims of one host, whose capability changed between them, would otherwise undo each other's word on
        every turn, and each change of a host makes a new schedule, after which both ask again.
        """
        if self.host_registry.is_overtaken(request.host_id, poll, request.slot):
            reason = f"a newer request of host {request.host_id} waits for work"
            return ClaimReply(reason=reason, retry_after_s=FULL_RETRY_S, ask_again=True)
        return self._asked(request, anew=False)

    def _claim(self, request: ClaimRequest, *, anew: bool) -> ClaimReply:
        before = self._asked_before(request)
        if before is not None and before.session_id in (None, request.session_id):
            return self._repeat(before)
        held_back = self._guard_identity(request)
        if held_back is not None:
            return held_back
        if before is not None:
            return self._repeat_after_a_crash(before, request)
        claimant = Claimant(request.instance_id, request.session_id, request.slot, request.request_id)
        self._note(request, claimant)
        if anew:  # what has waited does not know what was said since
            self.host_registry.rests(request.host_id, request.resting)
        held = self._end_older_sessions(request)
        self._guard_slot(request, held)
        slots = self._slots_told(self.host_registry.known[request.host_id])
        return msgspec.structs.replace(
            self._give(request, claimant, held), slots=slots, terms=self._terms(request.host_id)
        )

    def _terms(self, host: str) -> HostTerms:
        """Return what a host's owner and operators ask of its worker now."""
        return terms_of(self.plan.declared(host), orders(self.queue.db).get(host))

    def _slots_told(self, known: KnownHost) -> int:
        """Return for how many jobs at once a host's worker may ask."""
        return min(booking.most_at_once(self.host_of(known)), SLOTS_MAX)

    def _give(self, request: ClaimRequest, claimant: Claimant, held: list[Attempt]) -> ClaimReply:
        """Give the best job to a host that may claim and holds these attempts, or the reason for none."""
        if not self.may_grant:
            return ClaimReply(reason="the receiver's disk is low; free some space there", retry_after_s=60.0)
        sick = self.queue.quarantines.checked_in(request.host_id, request.capability)
        out = {**at_rest(self.queue.db, self.host_registry), **sick}
        if request.host_id in out:
            reason = f"this host is {out[request.host_id].sentence()}"
            if request.host_id in sick:
                return ClaimReply(reason=reason, retry_after_s=60.0)
            return ClaimReply(reason=reason, retry_after_s=FULL_RETRY_S, ask_again=True)  # who waits counts as idle
        host = self.host_of(self.host_registry.known[request.host_id])
        full = rules.is_full(host, held)
        if full is not None:  # nor does it wait: a waiting host counts as idle
            return ClaimReply(reason=full, retry_after_s=FULL_RETRY_S, ask_again=True)
        late = self._goes_on(request)
        if late is not None:
            return ClaimReply(reason=late, retry_after_s=FULL_RETRY_S, ask_again=True)
        first_come = self.plan.scheduling is Scheduling.FIRST_COME
        fleet = self.fleet(but=host.name, out=out)
        if fleet.waiting:  # they go before with what they have room for
            there = (self._beside(peer, self.queue.attempts.live_on(peer.name)) for peer in fleet.waiting)
            fleet = replace(fleet, waiting=tuple(there))
        outcome = self.queue.grant(self._beside(host, held, request), claimant, fleet, first_come=first_come)
        if isinstance(outcome, NoJob):
            return ClaimReply(
                reason=outcome.reason,
                retry_after_s=outcome.retry_after_s,
                declined=None if outcome.declined is None else DeclinedView(**asdict(outcome.declined)),
                echo=self._round(request.host_id),
            )
        return self._granted(outcome, self.policy.stale_after_s)

    def as_booked(self, host: Host, held: Iterable[Attempt]) -> Host:
        """Return a host with the room that is left of what it has, its attempts having taken all that they may: for
        those who only tell, as the figures that count come with a claim."""
        training = [each.booked for each in held if each.heard_s is not None]
        return booking.beside(host.at_best(), [Held(each, each.ram_gib, each.vram_gib) for each in training])

    def _beside(self, host: Host, held: Iterable[Attempt], request: ClaimRequest | None = None) -> Host:
        """Return a host with the room beside what it trains, of which its worker's ``request`` says what it uses."""
        uses = {} if request is None else {each.claim_id: each for each in request.training}
        training = [each for each in held if each.heard_s is not None]
        return booking.beside(host, [_held(each, uses.get(each.claim_id)) for each in training])

    def _goes_on(self, request: ClaimRequest) -> str | None:
        """Find a job that this worker has in hand though it was given up for lost, and tell why it gets none until the
        receiver has heard of that: granted again to the same host, what was done of it would be lost.
        """
        training = [each.claim_id for each in request.training]
        for claim_id in (*request.delivering, *training):
            attempt = self.queue.attempts.by_claim(claim_id)
            if attempt is None or attempt.live or attempt.instance_id != request.instance_id:
                continue
            job, delivers = self._job(attempt.job_id), claim_id in request.delivering
            if not rules.may_adopt(job, attempt):
                continue
            if delivers:
                return f"host {attempt.host} first delivers {job.name}, which was given up for lost and may be adopted"
            if attempt.readoptions < self.policy.max_readoptions:
                return f"host {attempt.host} still trains {job.name}, which was given up for lost: its heartbeat first"
        return None

    def _asked_before(self, request: ClaimRequest) -> Attempt | None:
        """Find the attempt that this request was already granted."""
        if request.request_id is None:
            return None
        return self.queue.attempts.by_request(request.host_id, request.request_id)

    def _repeat(self, attempt: Attempt) -> ClaimReply:
        job = self._job(attempt.job_id)
        if not attempt.live:
            raise ended(attempt)
        self.queue.events.repeated("claim_repeat", job)
        granted = Grant(job.granted(attempt), attempt)
        return self._granted(granted, self._remaining_s(job), repeated=True)

    def _repeat_after_a_crash(self, attempt: Attempt, request: ClaimRequest) -> ClaimReply:
        """Repeat an answer that was lost in a crash, to another session, which found the request on its disk.

        The claim is that session's from now on, unless the answer is known to have arrived.
        """
        if attempt.live and self._job(attempt.job_id).status is JobStatus.RUNNING:
            raise Refusal(
                ProblemType.LEASE_SUPERSEDED,
                "another session had the answer to this request and went on; send a new request",
            )
        reply = self._repeat(attempt)
        self.queue.attempts.hand_on(attempt, request.session_id)
        return reply

    def _remaining_s(self, job: Job) -> float:
        """Return the rest of a live job's lease, or 0 by a clock that stepped a moment ago."""
        assert job.heartbeat_at is not None
        now = self._clock.now()
        step = self._watch.step_until(now, self._clock.monotonic())
        if abs(step) > self.policy.clock_step_s:
            return 0.0
        return max(0.0, job.heartbeat_at + self.policy.stale_after_s - now)

    def _granted(self, grant: Grant, lease_s: float, *, repeated: bool = False) -> ClaimReply:
        return ClaimReply(
            echo=self._round(grant.attempt.host),
            job_id=grant.job.job_id,
            name=grant.job.name,
            spec=grant.job.spec,
            env=self.plan.variables(grant.attempt.host),
            claim_id=grant.attempt.claim_id,
            attempt=grant.attempt.attempt,
            lease_s=lease_s,
            repeated=repeated,
            state=self.state_of(grant.job.job_id),
            state_every_s=self.policy.state_every_s,
            booked=BookedView(**grant.attempt.booked.to_dict()),
        )

    def _note_life(self, request: ClaimRequest) -> None:
        """Note that the known installation of a host lives: a claim refused or held back is a sign of it, too."""
        known = self.host_registry.known.get(request.host_id)
        if known is not None and known.instance_id in (None, request.instance_id):
            self.host_registry.heard(known.name, self._clock.now())

    def _guard_identity(self, request: ClaimRequest) -> ClaimReply | None:
        """Admit one living installation per host id; of its sessions only the newest may claim, of copies none.

        Returns an answer to be sent at once, or None if the claim may go on.
        """
        known = self.host_registry.called(request.host_id)
        if known is not None and known.name != request.host_id:
            twin = refuse_twin(request.host_id, known.name)
            self._note_conflict(known, f"a worker asks as {request.host_id}: {twin.detail}")
            raise twin
        if known is None or request.instance_id is None or known.instance_id is None:
            return None
        watch = self._watch.look(self._clock.now(), self._clock.monotonic(), self.policy)
        if known.instance_id != request.instance_id:
            # As with its claims, the other one is lost only after a whole lease of observed silence.
            if watch.may_sweep and not self.alive(known):
                return None
            self._note_conflict(known, self._stranger(request.instance_id, known))
            raise Refusal(
                ProblemType.HOST_ID_CONFLICT,
                f"another installation has the host id {request.host_id} and was not seen silent for a lease; "
                "give this one its own --host-id, or stop the other and wait for a lease",
            )
        return None if request.session_id is None else self._guard_session(request, known, watch)

    def _stranger(self, instance_id: str, known: KnownHost) -> str:
        lease = duration(self.policy.stale_after_s)
        return (
            f"a worker whose state folder is another's or new (installation {instance_id[:8]}, known is "
            f"{str(known.instance_id)[:8]}) asks as {known.name} and gets no work: it is let in when the known one "
            f"was silent for {lease}, or give it a --host-id of its own"
        )

    def _note_conflict(self, known: KnownHost, sentence: str) -> None:
        at = self._clock.monotonic()
        self.host_registry.put(replace(known, conflict=sentence, conflict_at=at))

    def refused(self, known: KnownHost) -> str | None:
        """Tell operators that another installation asks in this host's name, and is refused."""
        since_s = self._clock.monotonic() - known.conflict_at
        return known.conflict if since_s < self.policy.stale_after_s else None

    def _guard_session(self, request: ClaimRequest, known: KnownHost, watch: Watch) -> ClaimReply | None:
        assert request.session_id is not None
        line = self._line(request, known)
        copied = line.copied
        standing = line.ask(
            request.session_id,
            request.echo,
            self._clock.monotonic(),
            lease_s=self.policy.stale_after_s,
            may_be_silent=watch.may_sweep,
            new_round=self._new_round(),
        )
        if standing in (Standing.OWN, Standing.NEW):
            return None
        host = request.host_id
        if standing is Standing.EARLIER:
            if request.echo is None:
                raise Refusal(
                    ProblemType.LEASE_SUPERSEDED,
                    f"a newer session of host {host} has begun; this one may not claim any more",
                )
            return ClaimReply(
                reason=f"another session of host {host} was seen; the living one asks again",
                ask_again=True,
                echo=line.round,
            )
        sentence = copies.sentence(host)
        if copied:
            raise Refusal(ProblemType.HOST_ID_CONFLICT, sentence)
        self.queue.quarantines.refund(line.lost())
        return ClaimReply(reason=sentence, ask_again=True, echo=line.round)

    def _line(self, request: ClaimRequest, known: KnownHost) -> Line:
        assert request.session_id is not None
        assert request.instance_id is not None
        instance, line = self._lines.get(request.host_id, ("", None))
        if line is None or instance != request.instance_id:
            current = known.session_id or request.session_id
            silent_s = max(0.0, self._clock.now() - known.last_seen)
            heard = {current: self._clock.monotonic() - silent_s}
            line = Line(current, self._new_round(), heard)
            self._lines[request.host_id] = request.instance_id, line
        return line

    def _round(self, host: str) -> str | None:
        """Return the echo that a worker sends back with its next request."""
        _, line = self._lines.get(host, ("", None))
        return None if line is None else line.round

    def copied(self, known: KnownHost) -> str | None:
        """Tell operators that a machine and its copy share one identity."""
        instance, line = self._lines.get(known.name, ("", None))
        copied = line is not None and line.copied and instance == known.instance_id
        return copies.sentence(known.name) if copied else None

    def _note(self, request: ClaimRequest, claimant: Claimant) -> None:
        now = self._clock.now()
        self.queue.note_host(
            request.host_id,
            request.capability,
            claimant,
            request.trainer_digests,
            [
                {
                    "job_id": one.job_id[:128],
                    "name": one.name[:64],
                    "size": one.size,
                    "why": one.why[:300],
                }
                for one in request.set_aside[:SET_ASIDE_TOLD]
            ],
        )
        known = self.host_registry.known.get(request.host_id)
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
        self.host_registry.put(heard)
        if request.instance_id is not None and request.session_id is not None:
            self._line(request, self.host_registry.known[request.host_id])
        if known is None and len(self.host_registry.known) % SPARE_HOSTS_STEP == 0:
            self._forget_spare_hosts()

    def _forget_spare_hosts(self) -> None:
        """Forget the least recent hosts without a job beyond the bound: any loopback caller can invent hosts."""
        for name in self.queue.forget_spare_hosts(SPARE_HOSTS_KEPT):
            self.host_registry.forget(name)
            self._lines.pop(name, None)

    def _end_older_sessions(self, request: ClaimRequest) -> list[Attempt]:
        """End the claims of a worker's older sessions, lost by its restart; returns the host's live attempts."""
        held = self.queue.attempts.live_on(request.host_id)
        if request.session_id is None or request.instance_id is None:
            return held
        held = [self._delivers(attempt, request) for attempt in held]
        for attempt in list(held):
            if attempt.instance_id == request.instance_id and attempt.session_id != request.session_id:
                error = f"the worker on {request.host_id} began anew without this job"
                self._lines[request.host_id][1].lose(attempt.session_id, attempt.claim_id)
                self.queue.settle(self._job(attempt.job_id), attempt, EndReason.HOST_LOST, error=error)
                held.remove(attempt)
        if request.crashed_claims:
            last_seen = {known.name: known.last_seen for known in self.known_hosts()}
            for claim_id in request.crashed_claims[:CRASHED_CLAIMS_MAX]:
                self.queue.quarantines.crashed(request.host_id, claim_id, last_seen)
        return held

    def _delivers(self, attempt: Attempt, request: ClaimRequest) -> Attempt:
        """Note of an attempt that the worker says it delivers, that it trains no more and is this session's."""
        if attempt.claim_id not in request.delivering or attempt.instance_id != request.instance_id:
            return attempt
        if attempt.session_id != request.session_id:
            self.queue.attempts.hand_on(attempt, request.session_id)
        return replace(self.queue.attempts.train_no_more(attempt), session_id=request.session_id)

    def _guard_slot(self, request: ClaimRequest, held: list[Attempt]) -> None:
        if request.session_id is None:
            return
        for attempt in held:
            if attempt.session_id == request.session_id and attempt.slot == request.slot:
                raise Refusal(
                    ProblemType.SLOT_BUSY,
                    f"slot {request.slot} of host {request.host_id} holds job {attempt.job_id}; end that first",
                )

    # ── heartbeat, complete, fail ───────────────────────────────────────────────────────────

    def heartbeat(self, job_id: str, request: HeartbeatRequest) -> HeartbeatReply:
        """Renew the lease of the live attempt; a host given up for lost may be readmitted."""
        job, attempt = self.claimed(job_id, request.claim_id, request.host_id)
        known = self.host_registry.known.get(attempt.host)
        _, line = self._lines.get(attempt.host, ("", None))
        if line is not None:  # of another installation's sessions it knows none
            session = request.session_id or attempt.session_id  # another session may deliver what one left
            copied = line.copied
            line.heartbeat(session, request.echo, self._clock.monotonic())
            if line.copied and not copied:
                self.queue.quarantines.refund(line.lost())
        if attempt.live and self._handed_on(attempt, request.session_id):
            raise Refusal(
                ProblemType.LEASE_SUPERSEDED,
                f"another session of host {attempt.host} goes on with this attempt; drop the work",
            )
        if attempt.end_reason is EndReason.CANCELLED:
            return HeartbeatReply(action=Action.STOP, lease_s=0.0, log_next=attempt.log_next)
        if not attempt.live:
            held = self.queue.attempts.live_on(attempt.host)
            full = known is not None and not self._takes_back(self.host_of(known), attempt, held)
            if full or not rules.may_readopt(job, attempt, held, self.policy):
                raise ended(attempt)
            job, attempt = self.queue.readopt(job, attempt)
        attempt = self._heard(job, attempt, request)
        keep_progress(self.queue, attempt, request.seq, request.progress)
        self._keep_usage(attempt, request)
        self.queue.renew(job, attempt, seq=request.seq, progress=request.progress)
        log_next = keep_lines(self.queue, attempt, request.log)
        # although its worker goes on
        limit_s = rules.overran(job.granted(attempt).spec, attempt.heard_s, self.policy)
        if limit_s is not None:
            too_long = ran_too_long(attempt.host, attempt.heard_s or 0.0, limit_s)
            job = self._job(job_id)
            settled = self.queue.settle(job, attempt, EndReason.TRAINER_FAILED, error=too_long)
            self.queue.quarantines.assess(settled)
            return HeartbeatReply(action=Action.STOP, lease_s=0.0, log_next=log_next)
        if known is not None:
            self.host_registry.rests(known.name, request.resting)
        terms = self._terms(attempt.host)
        return HeartbeatReply(
            action=Action.CONTINUE,
            lease_s=self.policy.stale_after_s,
            log_next=log_next,
            echo=self._round(attempt.host),
            slots=None if known is None else self._slots_told(known),
            terms=terms,
        )

    @property
    def may_grant(self) -> bool:
        """Return True while there is room for results on the receiver's disk."""
        return self._dataset_store.has_room()

    @staticmethod
    def _takes_back(host: Host, attempt: Attempt, held: list[Attempt]) -> bool:
        """Check that a host has the place still that an attempt of it had before it was given up for lost."""
        training = [_held(each, None) for each in held if each.heard_s is not None]
        return rules.is_full(host, held) is None and booking.takes_back(attempt.booked, host, training)

    def _heard(self, job: Job, attempt: Attempt, request: HeartbeatRequest) -> Attempt:
        """Count this heartbeat for the live attempt; a restart of the receiver begins no new count."""
        stood_s = max(attempt.paused_s, request.paused_s)
        since_s = self._clock.now() - (job.heartbeat_at or attempt.granted_at) - (stood_s - attempt.paused_s)
        heard_s = rules.heard_s(attempt.heard_s, since_s, request.progress, self.policy)
        paused, resumable = request.paused, request.resumable
        return replace(attempt, heard_s=heard_s, paused=paused, paused_s=stood_s, resumable=resumable)

    def _keep_usage(self, attempt: Attempt, request: HeartbeatRequest) -> None:
        if request.usage is not None and request.seq > attempt.seq:
            seconds = max(0.0, self._clock.now() - attempt.granted_at)
            self.queue.curves.add_sample(attempt, request.seq, seconds, msgspec.structs.asdict(request.usage))

    def _handed_on(self, attempt: Attempt, session: str | None) -> bool:
        """Check that the host's present session succeeded ``session``, which held the claim."""
        _, line = self._lines.get(attempt.host, ("", None))
        if line is None or session is None or session == attempt.session_id:
            return False
        return session in line.heard and attempt.session_id == line.current

    def output(self, job_id: str, request: OutputRequest) -> OutputReply:
        """Keep an attempt's output, also after its end: it renews no lease."""
        _, attempt = self.claimed(job_id, request.claim_id, request.host_id, or_completed=True)
        return OutputReply(log_next=keep_lines(self.queue, attempt, request.log))

    def completable(self, job_id: str, request: CompleteRequest) -> tuple[Job, Attempt] | None:
        """Return the job and attempt whose bundle must be verified; None when only an answer is due."""
        job, attempt = self._delivering(job_id, request.claim_id, request.host_id)
        settled = attempt.end_reason is EndReason.COMPLETED
        mismatch = request.spec_hash not in (None, spec_hash(job.spec))
        stored = self.queue.attempts.artifact_of(attempt, request.artifact_id) is not None
        return (job, attempt) if stored and not (settled or mismatch) else None

    def complete(self, job_id: str, request: CompleteRequest, kept: Kept | None = None) -> CompleteReply:
        """Accept the artifact of the live attempt, or adopt that of the last one; ``kept`` is the report beside it."""
        job, attempt = self.claimed(job_id, request.claim_id, request.host_id, or_completed=True)
        if attempt.end_reason is EndReason.COMPLETED:
            keep_last_words(self.queue, attempt, request)
            return self._receipt_again(job, attempt, request.artifact_id)
        if not attempt.live and not rules.may_adopt(job, attempt):
            raise ended(attempt)
        self._check_result(job, attempt, request)
        keep_last_words(self.queue, attempt, request)
        settle = self.queue.accept if attempt.live else self.queue.adopt
        self.queue.quarantines.assess(settle(job, attempt, request.artifact_id, request.record))
        self.queue.results.keep(job.granted(attempt), attempt.attempt, kept)
        return CompleteReply(
            job_id=job.job_id,
            status=JobStatus.COMPLETED,
            artifact_id=request.artifact_id,
            attempt=attempt.attempt,
        )

    def _receipt_again(self, job: Job, attempt: Attempt, artifact_id: str) -> CompleteReply:
        refuse_another(attempt, artifact_id)
        if job.status is JobStatus.COMPLETED:
            self.queue.events.repeated("complete_repeat", job)
        return CompleteReply(
            job_id=job.job_id,
            status=JobStatus.COMPLETED,
            artifact_id=artifact_id,
            attempt=attempt.attempt,
        )

    def _check_result(self, job: Job, attempt: Attempt, request: CompleteRequest) -> None:
        job = job.granted(attempt)
        if request.spec_hash is not None and request.spec_hash != spec_hash(job.spec):
            raise Refusal(
                ProblemType.SPEC_MISMATCH,
                f"what was trained is not what job {job.name} asks for; fail the attempt instead",
            )
        row = self.queue.attempts.artifact_of(attempt, request.artifact_id)
        stored = row is not None and self._dataset_store.find(request.artifact_id, model=job.model, mode=job.mode)
        if not stored:
            raise Refusal(
                ProblemType.NO_ARTIFACT,
                f"artifact {request.artifact_id[:12]}… of job {job.name} is not in the store; upload it first",
            )

    def fail(self, job_id: str, request: FailRequest) -> StatusReply:
        """End the live attempt without an artifact; the policy decides what follows."""
        reason = reported_reason(request)
        job, attempt = self.claimed(job_id, request.claim_id, request.host_id)
        if attempt.end_reason is reason:
            keep_last_words(self.queue, attempt, request)
            return StatusReply(job_id=job.job_id, status=job.status)
        if not attempt.live:
            raise ended(attempt)
        keep_last_words(self.queue, attempt, request)
        error = request.error[:ERROR_CHARS_MAX] or reason.value
        memory = ran_out_of(request, reason)
        settled = self.queue.settle(
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
        self.queue.quarantines.assess(settled)
        return StatusReply(job_id=job.job_id, status=self._job(job_id).status)

    def _widen(self, job: Job, host: str, memory: str) -> str | None:
        """Restrict a job that ran out of memory on ``host`` to hosts with more; or say why there is none."""
        hosts = {known.name: self.host_of(known) for known in self.known_hosts()}
        needs = quarantine.wants_more(job.needs, memory, hosts[host])
        self.queue.widen(job, needs)
        return quarantine.hopeless(needs, memory, hosts[host], hosts.values())

    # ── uploads ─────────────────────────────────────────────────────────────────────────────

    def upload_permission(
        self,
        job_id: str,
        claim_id: str | None,
        host_id: str | None,
        *,
        sha256: str | None = None,
        by_hand: bool = False,
    ) -> UploadPermission:
        """Permit the upload of a bundle, before its body is read and again at its end.

        Packing an attempt again gives an equal bundle, so many different ones are a fault or malice.
        """
        if by_hand and not self._stands(claim_id):
            job = self._waiting(job_id, claim_id or "", host_id or "")
            own = _by_hand(claim_id or "", job)  # parts of claims that ended are cleared away
            return UploadPermission(job.job_id, 0, own, job.model, job.mode, host_id or "", by_hand=True)
        job, attempt = self._delivering(job_id, claim_id, host_id)
        if sha256 is not None:
            self._check_wanted(attempt, sha256)
        return UploadPermission(job.job_id, attempt.attempt, attempt.claim_id, job.model, job.mode, attempt.host)

    def _delivering(self, job_id: str, claim_id: str | None, host_id: str | None) -> tuple[Job, Attempt]:
        """The attempt whose bundle may come, and its job as it was granted."""
        job, attempt = self.claimed(job_id, claim_id, host_id, or_completed=True)
        if not (attempt.live or rules.may_adopt(job, attempt) or attempt.end_reason is EndReason.COMPLETED):
            raise ended(attempt)
        job = job.granted(attempt)
        return job, self.queue.attempts.train_no_more(attempt) if attempt.live else attempt

    def _check_wanted(self, attempt: Attempt, sha256: str) -> None:
        if attempt.end_reason is EndReason.COMPLETED:
            refuse_another(attempt, sha256)
        delivered = self.queue.attempts.artifacts_of(attempt)
        if sha256 not in delivered and len(delivered) >= BUNDLES_MAX:
            raise Refusal(
                ProblemType.TOO_LARGE,
                f"this attempt brought {BUNDLES_MAX} different bundles already; complete the job by one of them",
            )

    def no_longer_uploading(self, claims: Iterable[str], put_out: Collection[str]) -> set[str]:
        """List the claims whose attempt can deliver nothing any more, or has ended on a revoked host. A
        unknown claim is not listed: an older database may have been restored.
        """
        over = set()
        for claim_id in claims:
            attempt = self.queue.attempts.by_claim(claim_id)
            if attempt is None:
                continue
            may_come = attempt.host not in put_out and rules.may_adopt(self._job(attempt.job_id), attempt)
            if not (attempt.live or may_come):
                over.add(claim_id)
        return over

    def hosts_of(self, claims: Iterable[str]) -> dict[str, str]:
        """Map these claims to their hosts; an unknown claim to the empty name."""
        found = {claim: self.queue.attempts.by_claim(claim) for claim in claims}
        return {claim: "" if each is None else each.host for claim, each in found.items()}

    def _stands(self, claim_id: str | None) -> bool:
        """Check that the claim itself permits the upload, so that this is no delivery by hand."""
        attempt = None if claim_id is None else self.queue.attempts.by_claim(claim_id)
        return attempt is not None and (attempt.live or rules.may_adopt(self._job(attempt.job_id), attempt))

    def upload_done(self, permission: UploadPermission, artifact_id: str, size: int) -> Stored | None:
        """Assign a bundle that is durable in the store to its attempt, if the claim still stands.

        None when retention took an equal bundle away at this moment: it is to be sent once more.
        """
        if permission.by_hand:
            return Stored.KNOWN
        job, attempt = self._delivering(permission.job_id, permission.claim_id, None)
        if attempt.end_reason is EndReason.COMPLETED:
            refuse_another(attempt, artifact_id)
        if not self._dataset_store.find(artifact_id, model=permission.model, mode=permission.mode):
            return None
        stored = self.queue.attempts.add_artifact(attempt, artifact_id, job.model, job.mode, size)
        if attempt.live:  # an upload counts as a heartbeat
            self.queue.renew(job, attempt, seq=attempt.seq)
        return stored

    # ── by hand ─────────────────────────────────────────────────────────────────────────────

    def deliverable(self, job_id: str, request: DeliverRequest) -> tuple[Job, Attempt] | None:
        """Return the waiting job and the attempt for a delivery by hand; None when it was accepted before."""
        check_id("claim_id", request.claim_id)
        job = self._job(job_id)
        same = (job.artifact_id, job.worker_hostname) == (request.artifact_id, request.host_id)
        if job.status is JobStatus.COMPLETED and same:
            return None
        job = self._waiting(job_id, request.claim_id, request.host_id)
        if request.spec_hash != spec_hash(job.spec):
            raise Refusal(ProblemType.SPEC_MISMATCH, f"what was trained is not what job {job.name} asks for")
        now, number = self._clock.now(), job.attempt + 1
        trained_under = self.queue.attempts.by_claim(request.claim_id)
        return job, Attempt(
            job_id=job.job_id,
            attempt=number,
            claim_id=_by_hand(request.claim_id, job),
            host=request.host_id,
            generation=job.generation,
            granted_at=now,
            artifact_id=request.artifact_id,
            record={**(request.record or {}), "by_hand": request.claim_id},
            granted=trained_under.granted if trained_under else None,
        )

    def deliver(
        self, job_id: str, request: DeliverRequest, made: Attempt | None, size: int, kept: Kept | None = None
    ) -> tuple[CompleteReply, bool]:
        """Complete a waiting job with a bundle that its host had set aside; the flag is False for a repetition.

        ``made`` is the attempt whose provenance lies beside the bundle, which is ``size`` bytes; so does ``kept``.
        """
        found = self.deliverable(job_id, request)
        if found is not None:
            job, again = found
            place = (again.attempt, again.generation)
            if made is None or (made.attempt, made.generation) != place:
                raise Refusal(ProblemType.WRONG_STATE, f"job {job.name} has gone on meanwhile; deliver once more")
            if not self._dataset_store.find(request.artifact_id, model=job.model, mode=job.mode):
                raise Refusal(
                    ProblemType.NO_ARTIFACT,
                    f"artifact {request.artifact_id[:12]}… is not in the store; upload it first",
                )
            self.queue.deliver(job, made, size)
            self.queue.results.keep(job.granted(made), made.attempt, kept)
        reply = CompleteReply(
            job_id=job_id,
            status=JobStatus.COMPLETED,
            artifact_id=request.artifact_id,
            attempt=self._job(job_id).attempt,
        )
        return reply, found is not None

    def _waiting(self, job_id: str, claim_id: str, host_id: str) -> Job:
        """Return the job if a bundle of this claim and host may complete it: it waits, and the host may have it."""
        job = self._job(job_id)
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
        attempt = self.queue.attempts.by_claim(claim_id)
        if attempt is not None:
            if (attempt.job_id, attempt.host) == (job_id, host_id):
                return job
            raise Refusal(ProblemType.LEASE_SUPERSEDED, f"that claim was not host {host_id}'s on this job")
        known = self.host_registry.known.get(host_id)  # an older copy of the database may not know the claim
        no = rules.fits_for_good(job.needs, self.host_of(known)) if known else "it is not known yet"
        if no is not None:
            raise Refusal(ProblemType.WRONG_STATE, f"host {host_id} could not be given job {job.name}: {no}")
        return job

    # ── the operator ────────────────────────────────────────────────────────────────────────

    def resolve(self, ref: str) -> str:
        """Resolve ``ref`` to a job's id: it is an id, a name, or a unique prefix of an id."""
        return the_one_meant(ref, self.queue.named(ref))

    def resolve_to_change(self, ref: str) -> str:
        """Resolve more strictly, for a change: an answer alone does not show a change of the wrong job."""
        return the_one_to_change(ref, self.queue.named(ref))

    def cancel(self, ref: str, *, by: str = "operator", as_removed: bool = False) -> MovedReply:
        """Cancel a job for good, or ``as_removed`` (it left the plan) until a plan names it again."""
        job_id = self.resolve_to_change(ref)
        job = self._job(job_id)
        if as_removed and job.in_manifest:
            raise Refusal(ProblemType.WRONG_STATE, f"job {job.name} is in the plan; cancel it by its name or its id")
        if not self.queue.cancel(job_id, by=by, as_removed=as_removed):
            failed = job.status is JobStatus.FAILED
            why = "; take it out of the plan and reload first" if failed else "; there is nothing to cancel"
            raise Refusal(ProblemType.WRONG_STATE, f"job {job.name} is {job.status} already{why}")
        return self._moved(ref, job_id)

    def requeue(self, ref: str) -> MovedReply:
        """Queue the job again with the plan's present settings, or the last ones of a job that left it."""
        job_id = self.resolve_to_change(ref)
        self.queue.requeue(job_id)
        return self._moved(ref, job_id)

    def hold(self, ref: str, *, by: str = "operator") -> MovedReply:
        """Keep the job from being granted until it is unheld; a repetition changes nothing."""
        job_id = self.resolve_to_change(ref)
        self.queue.hold(job_id, by=by)
        return self._moved(ref, job_id)

    def unhold(self, ref: str, *, by: str = "operator") -> MovedReply:
        """Let the job be granted again."""
        job_id = self.resolve_to_change(ref)
        self.queue.unhold(job_id, by=by)
        return self._moved(ref, job_id)

    def _moved(self, ref: str, job_id: str) -> MovedReply:
        job = self._job(job_id)
        return MovedReply.of(job, near=self.queue.near(ref, job_id))

    def reload(self, jobs: Iterable[Mapping[str, Any]] | PlanWrite, plan: Plan) -> ReloadReply:
        """Make a checked manifest the plan. Jobs in flight go on with what they were granted."""
        before = self.compared_with
        synced = jobs.finish() if isinstance(jobs, PlanWrite) else self.queue.sync(jobs)
        self.host_registry.plan, self._planned = plan, True
        self.queue.keep_plan_datasets(plan.dataset_names)
        return told(synced, before, self.host_registry, self.queue.held())

    @property
    def compared_with(self) -> Plan | None:
        """The plan that a reload compares with; None until there is one."""
        return self.plan if self._planned else None

    def resume(self, plan: Plan, jobs: int) -> ReloadReply:
        """Go on with the plan after a restart: the queue has these jobs already."""
        self.host_registry.plan, self._planned = plan, True
        return ReloadReply(inserted=0, updated=0, unchanged=jobs, removed=0, notes=notes(self.host_registry))

    def datasets_here(self, here: frozenset[str]) -> None:
        """Set the data sets that hosts can get; jobs that need another one wait."""
        self.host_registry.datasets = here

    def missing_datasets(self) -> dict[str, str]:
        """List the data sets for which jobs of the plan wait, by the plan's names for them."""
        return self.plan.missing(self.host_registry.datasets)

    # ── time ────────────────────────────────────────────────────────────────────────────────

    def tick(self) -> int:
        """Check the clocks and end attempts silent for a lease of *observed* time; returns their number.

        When its commit fails afterwards, :meth:`forget_look` must follow.
        """
        watch = self._watch.look(self._clock.now(), self._clock.monotonic(), self.policy)
        step = watch.step_s
        if step:
            self.queue.shift_times(step)
            self.host_registry.shift(step, self._clock.now())
        # Not before the write: a step that was not written is found again.
        self._last_watch, self._watch = self._watch, watch
        return self.queue.sweep_stale() if watch.may_sweep else 0

    def forget_look(self) -> None:
        """Forget the last look after its commit failed: the next one finds the same step again."""
        if self._watch.step_s:
            self.host_registry.shift(-self._watch.step_s, math.inf)
        self._watch = self._last_watch

    def _catch_up(self) -> None:
        """Undo a clock that went back while the receiver was down: a small board without a clock chip starts with the
        time of its last shutdown, and every lease and hold would seem to end in the future."""
        behind = self.queue.newest_time() - self._clock.now()
        if behind > self.policy.clock_step_s:
            self.queue.shift_times(-behind)

    # ── the schedule, where a thread makes it beside the calls ──────────────────────────────

    @property
    def must_schedule(self) -> bool:
        """Return True when a schedule is to be made. For any thread."""
        return self.plan.scheduling is Scheduling.SOONEST and self.queue.ahead.is_due(self.policy)

    def begin_schedule(self) -> Making:
        """Note what a schedule is to be made of, for :meth:`Ahead.make`."""
        return self.queue.ahead.begin(self.fleet(out=taken_out(self.queue.db, self.host_registry)).alive, self.policy)

    def follow_schedule(self, making: Making, made: Made) -> list[str]:
        """Put a schedule into force; returns the hosts with an open claim that would get a job by it."""
        self.queue.ahead.follow(making, made)
        return self.queue.ahead.called(self.host_registry.waiting_hosts())

    # ── inside ──────────────────────────────────────────────────────────────────────────────

    def _job(self, job_id: str) -> Job:
        job = self.queue.get(job_id)
        if job is None:
            raise Refusal(ProblemType.UNKNOWN_JOB, f"no job has the id {job_id[:80]!r}")
        return job

    def claimed(
        self, job_id: str, claim_id: str | None, host_id: str | None, *, or_completed: bool = False
    ) -> tuple[Job, Attempt]:
        """Find the caller's job and attempt, live or not.

        A caller of the old form names no claim; it is served if its host holds the live attempt (or, with
        ``or_completed``, delivered the job already).
        """
        job = self._job(job_id)
        if claim_id is None:
            wanted = LIVE | {JobStatus.COMPLETED} if or_completed else LIVE
            number = job.attempt if host_id and job.worker_hostname == host_id and job.status in wanted else None
            found = [each for each in self.queue.attempts.of_job(job_id) if each.attempt == number]
            attempt = found[0] if found else None
        else:
            attempt = self.queue.attempts.by_claim(claim_id)
        if attempt is None or attempt.job_id != job_id or host_id not in (None, attempt.host):
            if job.status is JobStatus.CANCELLED:
                raise Refusal(ProblemType.JOB_CANCELLED, f"job {job.name} was cancelled; stop and drop the work")
            raise Refusal(
                ProblemType.LEASE_SUPERSEDED,
                f"the caller holds no live claim on job {job.name}; drop the work",
            )
        self.host_registry.heard(attempt.host, self._clock.now())
        return job, attempt


def _by_hand(claim_id: str, job: Job) -> str:
    """Make the claim id of a delivery by hand."""
    return f"{claim_id[:100]}-{job.attempt + 1}"


def _held(attempt: Attempt, use: TrainerUse | None) -> Held:
    """Return what an attempt holds of its host; of one whose use nobody tells all that it may hold is still to come."""
    return Held(attempt.booked) if use is None else Held(attempt.booked, use.ram_gib, use.vram_gib)
