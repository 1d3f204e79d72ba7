"""Every row of the transition table, and the service against a small model under generated calls, late and repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from builders import a_beat, a_completion, a_failure, a_job, a_worker_claim
from fakes import Counting, FakeClock, FakeShelf
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from training.contract import spec_hash
from training.fleet.queue.jobs import JobQueue
from training.fleet.scheduling.job import FINAL, LIVE, TRANSITIONS, EndReason, JobStatus
from training.fleet.scheduling.policy import Policy, Scheduling
from training.fleet.service.hosts import Plan
from training.fleet.service.membership import readable
from training.fleet.service.service import Service
from training.fleet.service.wakes import Wakes
from training.fleet.wire.attempts import ClaimReply, DeliverRequest
from training.fleet.wire.constants import ProblemType, Refusal

A, B = "a" * 64, "b" * 64
S, R = JobStatus, EndReason


class World:
    """A service over a queue in memory, a shelf and a clock; one job called ``one`` unless told otherwise."""

    def __init__(self, jobs: tuple[str, ...] = ("one",), policy: Policy | None = None) -> None:
        self.clock, self.dataset_store = FakeClock(), FakeShelf()
        self.policy = policy or Policy()
        self.queue = JobQueue(":memory:", clock=self.clock, policy=self.policy, new_claim_id=Counting())
        self.service = Service(self.queue, self.dataset_store)
        self.reload(jobs)

    def reload(self, jobs: tuple[str, ...]) -> None:
        specs = [a_job(name, priority=n) for n, name in enumerate(jobs)]
        self.service.reload(specs, Plan(scheduling=Scheduling.FIRST_COME))

    def claim(self, host: str = "pi", **fields: object) -> ClaimReply:
        return self.service.claim(a_worker_claim(host, **fields))  # type: ignore[arg-type]

    def deliver(self, claim_id: str, artifact: str = A, job: str = "id-one") -> str:
        """Upload and complete, as a worker does."""
        ticket = self.service.upload_permission(job, claim_id, None)
        self.dataset_store.put(artifact, model=ticket.model, mode=ticket.mode)
        self.service.upload_done(ticket, artifact, 10)
        return self.service.complete(job, a_completion(claim_id, artifact)).status

    def lose(self) -> None:
        """Silence for a lease, in ordinary looks at the clock, beyond the quiet time after the start."""
        for _ in range(2 * round(self.policy.stale_after_s / self.policy.sweep_period_s) + 2):
            self.clock.advance(self.policy.sweep_period_s)
            self.service.tick()

    def status(self, job: str = "id-one") -> JobStatus:
        found = self.queue.get(job)
        assert found is not None
        return found.status


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.queue.close()


# ── every row, through the service ──────────────────────────────────────────────────────────

Row = Callable[[World], object]


def claimed(world: World) -> str:
    claim_id = world.claim().claim_id
    assert claim_id is not None
    return claim_id


def running(world: World) -> str:
    claim_id = claimed(world)
    world.service.heartbeat("id-one", a_beat(claim_id))
    return claim_id


def lost(world: World) -> str:
    claim_id = claimed(world)
    world.lose()
    assert world.status() is S.PENDING
    return claim_id


def completed(world: World) -> str:
    claim_id = claimed(world)
    world.deliver(claim_id)
    return claim_id


def asked_twice(world: World) -> None:
    first, again = (world.claim(request_id="r1") for _ in range(2))
    assert (again.claim_id, again.repeated, first.repeated) == (first.claim_id, True, False)


def completed_twice(world: World) -> None:
    world.service.complete("id-one", a_completion(completed(world), A))


def delivered_by_hand(world: World) -> None:
    """Work that its host had set aside completes the job that waits again."""
    claim_id = claimed(world)
    world.service.requeue("one")
    job = world.queue.get("id-one")
    assert job is not None
    request = DeliverRequest(host_id="pi", claim_id=claim_id, artifact_id=A, spec_hash=spec_hash(job.spec))
    found = world.service.deliverable("id-one", request)
    assert found is not None
    world.dataset_store.put(A, model=job.model, mode=job.mode)
    world.service.deliver("id-one", request, found[1], 10)


def failing(exit_code: int) -> Row:
    return lambda w: w.service.fail("id-one", a_failure(running(w), exit_code=exit_code))


def handed_back(world: World) -> None:
    world.service.fail("id-one", a_failure(running(world), reason="worker_shutdown"))


def unstartable(world: World) -> None:
    """Three times in a row: the host is taken out, and the job does not pay for it."""
    for _ in range(3):
        world.service.fail("id-one", a_failure(claimed(world), reason="spawn_failed"))
        world.clock.advance(1000)


def taken_out(world: World) -> None:
    """A failed job of the plan stays in sight; one that the plan no longer names can be taken out."""
    failing(65)(world)
    with pytest.raises(Refusal, match="is failed already; take it out of the plan and reload first"):
        world.service.cancel("one")
    world.service.reload([], Plan(scheduling=Scheduling.FIRST_COME))
    world.service.cancel("one", as_removed=True)
    with pytest.raises(Refusal, match="nothing to cancel"):
        world.service.cancel("one")


def woken(world: World) -> None:
    lost(world)
    world.service.host_registry.plan = Plan(hosts={"pi": {"mac": "a0:b1:c2:d3:e4:f5"}})
    (due,) = Wakes(world.service).due()
    assert due.host == "pi"


ROWS: dict[str, tuple[Row, JobStatus]] = {
    "insert": (lambda w: None, S.PENDING),
    "claim": (claimed, S.CLAIMED),
    "claim_repeat": (asked_twice, S.CLAIMED),
    "heartbeat": (running, S.RUNNING),
    "complete": (completed, S.COMPLETED),
    "complete_repeat": (completed_twice, S.COMPLETED),
    "adopt": (lambda w: w.deliver(lost(w)), S.COMPLETED),
    "deliver": (delivered_by_hand, S.COMPLETED),
    "readopt": (lambda w: w.service.heartbeat("id-one", a_beat(lost(w))), S.RUNNING),
    "retry": (failing(1), S.PENDING),
    "hand_back": (handed_back, S.PENDING),
    "sweep": (lost, S.PENDING),
    "exhaust": (failing(65), S.FAILED),
    "cancel": (lambda w: (running(w), w.service.cancel("one")), S.CANCELLED),
    "take_out": (taken_out, S.CANCELLED),
    "requeue": (lambda w: (completed(w), w.service.requeue("one")), S.PENDING),
    "pardon": (unstartable, S.PENDING),
    "hold": (lambda w: (running(w), w.service.hold("one")), S.RUNNING),
    "unhold": (lambda w: (w.service.hold("one"), w.service.unhold("one")), S.PENDING),
    "wake": (woken, S.PENDING),
}


def test_whoever_worked_on_a_job_may_look_at_it_and_nobody_else(world: World) -> None:
    claimed(world)
    world.service.requeue("one")
    world.claim("desk")
    for host in ("pi", "desk", None):
        assert readable(world.service, "one", host) == "id-one"
    with pytest.raises(Refusal, match="host mac never worked on this job"):
        readable(world.service, "one", "mac")


def test_every_row_of_the_table_has_its_test() -> None:
    assert set(ROWS) == set(TRANSITIONS)


@pytest.mark.parametrize("name", ROWS)
def test_row(world: World, name: str) -> None:
    act, status = ROWS[name]
    act(world)
    assert world.status() is status
    assert world.queue.events.fired[name] == 1


# The same through the bare queue, for the rows that it has.
BARE: dict[str, Row] = {
    "heartbeat": lambda w: w.queue.heartbeat("id-one", "pi"),
    "complete": lambda w: w.queue.complete("id-one", "pi", artifact_id=A),
    "retry": lambda w: w.queue.fail("id-one", "pi", exit_code=1),
    "exhaust": lambda w: w.queue.fail("id-one", "pi", exit_code=2),
    "cancel": lambda w: w.queue.cancel("id-one"),
    "requeue": lambda w: w.queue.requeue("id-one"),
    "sweep": lambda w: w.queue.sweep_stale(stale_after_s=-1),
}


@pytest.mark.parametrize("name", BARE)
def test_row_of_the_bare_queue(world: World, name: str) -> None:
    assert world.queue.claim_next(worker_hostname="pi", capability={}) is not None
    assert BARE[name](world)
    assert world.status() is TRANSITIONS[name].target
    assert world.queue.events.fired[name] == world.queue.events.fired["claim"] == 1


# ── the model ───────────────────────────────────────────────────────────────────────────────

JOBS, HOSTS = ("one", "two", "three"), ("pi", "desktop")
RULES = Policy(
    stale_after_s=60, max_attempts=2, max_host_losses=3, max_grants=7, max_readoptions=1,
    backoff_s=10, backoff_max_s=10, retry_elsewhere_grace_s=0, sweep_period_s=100,
    odd_deaths=0, suspect_crashes=0, short_run_s=0,  # these have tests of their own
)  # fmt: skip
COSTS = {R.TRAINER_FAILED: "failures", R.HOST_LOST: "losses", R.UPLOAD_FAILED: "losses"}
COSTS |= {R.SPAWN_FAILED: "losses"}


@dataclass
class MClaim:
    """An attempt in the model."""

    job: str
    host: str
    session: int
    claim_id: str
    number: int
    generation: int
    ended: EndReason | None = None
    readopted: int = 0
    artifact: str | None = None


@dataclass
class MJob:
    """A job in the model."""

    claimable_at: float
    status: JobStatus = S.PENDING
    live: MClaim | None = None
    heard_at: float = 0.0
    attempts: int = 0
    generation: int = 1
    grants: int = 0
    failures: int = 0
    losses: int = 0
    artifact: str | None = None


class FleetMachine(RuleBasedStateMachine):
    """Two hosts, three jobs, every call at any time; the model predicts each answer."""

    @initialize()
    def begin(self) -> None:
        self.world = World(JOBS, RULES)
        self.start = self.now
        self.jobs = {f"id-{name}": MJob(self.now) for name in JOBS}
        self.claims: list[MClaim] = []
        self.sessions = dict.fromkeys(HOSTS, 1)
        self.asked: dict[tuple[str, str], MClaim] = {}

    @property
    def now(self) -> float:
        return self.world.clock.now()

    # ── what may happen ─────────────────────────────────────────────────────────────────────

    @rule(host=st.sampled_from(HOSTS))
    def claim(self, host: str) -> None:
        """An ordinary worker asks, with a request of its own."""
        self.claim_as(host, self.sessions[host], f"r{len(self.asked)}-{self.now}")

    @rule(host=st.sampled_from(HOSTS), began=st.sampled_from([-1, 0, 1]), data=st.data())
    def claim_oddly(self, host: str, began: int, data: st.DataObject) -> None:
        """Asked again, by a worker that began anew, or by one that should be dead."""
        requests = [request for asker, request in self.asked if asker == host]
        session = max(1, self.sessions[host] + began)
        self.claim_as(host, session, data.draw(st.sampled_from([*requests[-3:], "new"])))

    def claim_as(self, host: str, session: int, request: str) -> None:
        before = self.asked.get((host, request))
        own = before is not None and before.session == session
        if session < self.sessions[host] and not own:
            assert self.try_claim(host, session, request) is None
        elif before is not None:
            self.sessions[host] = max(session, self.sessions[host])
            answered: str | ProblemType = before.claim_id if before.ended is None else self.gone(before)
            if not own and before.ended is None:
                if self.jobs[before.job].status is S.RUNNING:  # its answer had arrived
                    answered = ProblemType.LEASE_SUPERSEDED
                else:
                    before.session = session
            assert self.try_claim(host, session, request) == answered
        else:
            self.sessions[host] = session
            for each in self.live_of(host):
                if each.session != session:
                    self.end(each, R.HOST_LOST)
            busy, ready = (self.live_of(host), [each for each in self.jobs.values() if self.ready(each)])
            answer = self.try_claim(host, session, request)
            assert answer is ProblemType.SLOT_BUSY if busy else (answer is None) == (not ready)

    def try_claim(self, host: str, session: int, request: str) -> str | ProblemType | None:
        """The claim id that was answered, None for "no job", or the slug of the refusal."""
        try:
            reply = self.world.claim(host, session=session, request_id=request)
        except Refusal as refusal:
            return refusal.problem_type
        if reply.job_id is not None and not reply.repeated:
            self.granted(reply, host, session, request)
        return reply.claim_id

    def granted(self, reply: ClaimReply, host: str, session: int, request: str) -> None:
        assert reply.job_id is not None
        assert reply.claim_id is not None
        job = self.jobs[reply.job_id]
        best = max(  # priorities are the order of JOBS
            (n for n, name in enumerate(JOBS) if self.ready(self.jobs[f"id-{name}"]))
        )
        assert reply.job_id == f"id-{JOBS[best]}"
        job.attempts, job.grants = job.attempts + 1, job.grants + 1
        assert reply.attempt == job.attempts, "numbered on and on, never reused"
        claim = MClaim(reply.job_id, host, session, reply.claim_id, job.attempts, job.generation)
        job.status, job.live, job.heard_at = S.CLAIMED, claim, self.now
        self.claims.append(claim)
        self.asked[host, request] = claim

    @rule(host=st.sampled_from(HOSTS))
    def clone(self, host: str) -> None:
        if any(each.host == host for each in self.claims):
            known = self.world.service.host_registry.known[host]
            if self.now - known.last_seen <= RULES.stale_after_s:
                with pytest.raises(Refusal) as refused:
                    self.world.claim(host, instance_id="another", session_id="z", request_id="z")
                assert refused.value.problem_type is ProblemType.HOST_ID_CONFLICT

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        claim = self.any_claim(data)
        answer = self.answer(lambda: self.world.service.heartbeat(claim.job, a_beat(claim.claim_id)).action)
        job = self.jobs[claim.job]
        went_on = self.live_of(claim.host)
        if self.adoptable(claim) and not went_on and claim.readopted < RULES.max_readoptions:
            claim.ended, claim.readopted, job.live = None, claim.readopted + 1, claim
            job.losses = max(0, job.losses - 1)
        if claim.ended is None:
            job.status, job.heard_at = S.RUNNING, self.now
            assert answer == "continue"
        else:
            assert answer == ("stop" if claim.ended is R.CANCELLED else self.gone(claim))

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), artifact=st.sampled_from([A, B]))
    def complete(self, data: st.DataObject, artifact: str) -> None:
        claim = self.any_claim(data)
        answer = self.answer(lambda: self.world.deliver(claim.claim_id, artifact, claim.job))
        job = self.jobs[claim.job]
        if claim.ended is None or self.adoptable(claim):
            if claim.ended is R.HOST_LOST:
                job.losses = max(0, job.losses - 1)
            claim.ended, claim.artifact = R.COMPLETED, artifact
            job.status, job.live, job.artifact = S.COMPLETED, None, artifact
            assert answer == "completed"
        elif claim.ended is R.COMPLETED:
            same = artifact == claim.artifact
            assert answer == ("completed" if same else ProblemType.RESULT_CONFLICT)
        else:
            assert answer is self.gone(claim)

    @precondition(lambda self: self.claims)
    @rule(
        data=st.data(),
        reason=st.sampled_from([R.TRAINER_FAILED, R.INTERRUPTED, R.WORKER_SHUTDOWN, R.UPLOAD_FAILED]),
        exit_code=st.sampled_from([1, 1, 65, 137]),
    )
    def fail(self, data: st.DataObject, reason: EndReason, exit_code: int) -> None:
        claim = self.any_claim(data)
        request = a_failure(claim.claim_id, reason=reason.value, exit_code=exit_code)
        answer = self.answer(lambda: self.world.service.fail(claim.job, request).status)
        if claim.ended is None:
            self.end(claim, reason, exit_code)
            assert answer == self.jobs[claim.job].status
        elif claim.ended is reason:
            assert answer == self.jobs[claim.job].status, "the same again: the same word"
        else:
            assert answer is self.gone(claim)

    @rule(name=st.sampled_from(JOBS), word=st.sampled_from(["cancel", "requeue", "reload"]))
    def operate(self, name: str, word: str) -> None:
        job = self.jobs[f"id-{name}"]
        if word == "reload":
            self.world.reload(JOBS)
        elif word == "requeue":
            assert self.world.service.requeue(name).status == "pending"
            self.close(job, R.SUPERSEDED)
            job.status, job.claimable_at, job.artifact = S.PENDING, self.now, None
            job.generation, job.grants, job.failures, job.losses = job.generation + 1, 0, 0, 0
        elif job.status in FINAL:
            assert self.answer(lambda: self.world.service.cancel(name).status) is ProblemType.WRONG_STATE
        else:
            assert self.world.service.cancel(name).status == "cancelled"
            self.close(job, R.CANCELLED)
            job.status = S.CANCELLED

    @rule(seconds=st.sampled_from([1.0, 10.0, 61.0]))
    def time_goes_by(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        swept = self.world.service.tick()
        silent = [j for j in self.jobs.values() if j.live and self.now - j.heard_at > 60]
        if self.now - self.start < 60:
            silent = []
        assert swept == len(silent)
        for job in silent:
            assert job.live is not None
            self.end(job.live, R.HOST_LOST)

    # ── the model's rules ───────────────────────────────────────────────────────────────────

    def any_claim(self, data: st.DataObject) -> MClaim:
        """Mostly a recent one, so that something happens; sometimes one of long ago."""
        back = data.draw(st.integers(1, min(len(self.claims), 6)))
        return self.claims[-back]

    def ready(self, job: MJob) -> bool:
        return job.status is S.PENDING and job.claimable_at <= self.now

    def live_of(self, host: str) -> list[MClaim]:
        return [j.live for j in self.jobs.values() if j.live is not None and j.live.host == host]

    def adoptable(self, claim: MClaim) -> bool:
        job = self.jobs[claim.job]
        last = (claim.number, claim.generation) == (job.attempts, job.generation)
        return claim.ended is R.HOST_LOST and job.status is S.PENDING and last

    def gone(self, claim: MClaim) -> ProblemType:
        return ProblemType.JOB_CANCELLED if claim.ended is R.CANCELLED else ProblemType.LEASE_SUPERSEDED

    def close(self, job: MJob, reason: EndReason) -> None:
        if job.live is not None:
            job.live.ended, job.live = reason, None

    def end(self, claim: MClaim, reason: EndReason, exit_code: int = 0) -> None:
        job = self.jobs[claim.job]
        self.close(job, reason)
        cost = COSTS.get(reason)
        job.failures += cost == "failures"
        job.losses += cost == "losses"
        over = (cost == "failures" and (job.failures >= 2 or exit_code == 65)) or (cost == "losses" and job.losses >= 3)
        job.status = S.FAILED if over or job.grants >= 7 else S.PENDING
        pause = 10 if cost is not None and reason is not R.HOST_LOST else 0
        job.claimable_at = self.now + pause

    def answer(self, call: Callable[[], str]) -> str | ProblemType:
        try:
            return call()
        except Refusal as refusal:
            return refusal.problem_type

    # ── what must hold after every step ─────────────────────────────────────────────────────

    @invariant()
    def the_table_is_the_models(self) -> None:
        for job_id, model in self.jobs.items():
            job = self.world.queue.get(job_id)
            assert job is not None
            assert (job.status, job.attempt, job.generation) == (model.status, model.attempts, model.generation)
            assert (job.grants, job.trainer_failures, job.host_losses) == (model.grants, model.failures, model.losses)
            assert job.artifact_id == model.artifact
            assert job.claim_id == (model.live.claim_id if model.live else None)
            if job.status is S.FAILED:
                assert job.ended_by, "a failed job says which budget ended it"

    @invariant()
    def one_attempt_lives_where_a_job_is_held(self) -> None:
        for job_id, model in self.jobs.items():
            attempts = self.world.queue.attempts.of_job(job_id)
            assert [each.attempt for each in attempts] == list(range(1, len(attempts) + 1))
            live = [each.claim_id for each in attempts if each.live]
            assert live == ([model.live.claim_id] if model.status in LIVE and model.live else [])
            assert sum(each.end_reason is R.COMPLETED for each in attempts) <= model.generation

    @invariant()
    def replaying_the_events_gives_the_table(self) -> None:
        for job_id in self.jobs:
            status, attempt, generation = None, 0, 1
            for event in self.world.queue.db.all("events_of_job", job_id=job_id):
                row = TRANSITIONS[event["transition"]]
                assert event["from_status"] == status
                assert status in row.sources
                status = row.target
                assert event["to_status"] == status
                attempt += row.name == "claim"
                generation += row.name == "requeue"
            job = self.world.queue.get(job_id)
            assert job is not None
            assert (job.status, job.attempt, job.generation) == (status, attempt, generation)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.queue.close()


TestFleet = FleetMachine.TestCase
TestFleet.settings = settings(max_examples=60, stateful_step_count=60)
