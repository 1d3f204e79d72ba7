"""Every row of the transition table, through the service and through the bare queue."""

from __future__ import annotations

import pytest
from builders import a_completion, a_job
from service_running import POLICY, A, Receiver

from training.contract import spec_hash
from training.fleet.scheduling.job import TRANSITIONS, JobStatus
from training.fleet.scheduling.policy import Scheduling
from training.fleet.service.hosts import Plan
from training.fleet.service.wakes import Wakes
from training.fleet.wire.attempts import DeliverRequest
from training.fleet.wire.constants import Refusal

S = JobStatus


class World(Receiver):
    """A service with one job called ``one``."""

    def __init__(self):
        super().__init__()
        self.plan(a_job("one"), scheduling=Scheduling.FIRST_COME)

    def lose(self):
        """Silence for a lease, in ordinary looks at the clock, beyond the quiet time after the start."""
        self.watch(2 * POLICY.stale_after_s + 2 * POLICY.sweep_period_s)


@pytest.fixture
def world():
    made = World()
    yield made
    made.queue.close()


# ── every row, through the service ──────────────────────────────────────────────────────────


def claimed(world):
    return world.granted()


def running(world):
    claim_id = claimed(world)
    world.beat(claim_id)
    return claim_id


def lost(world):
    claim_id = claimed(world)
    world.lose()
    assert world.status() is S.PENDING
    return claim_id


def completed(world):
    claim_id = claimed(world)
    world.deliver(claim_id)
    return claim_id


def asked_twice(world):
    first, again = (world.ask(request_id="r1") for _ in range(2))
    assert (again.claim_id, again.repeated, first.repeated) == (first.claim_id, True, False)


def completed_twice(world):
    world.service.complete("id-one", a_completion(completed(world), A))


def delivered_by_hand(world):
    """Work that its host had set aside completes the job that waits again."""
    claim_id = claimed(world)
    world.service.requeue("one")
    job = world.queue.get("id-one")
    request = DeliverRequest(host_id="pi", claim_id=claim_id, artifact_id=A, spec_hash=spec_hash(job.spec))
    found = world.service.deliverable("id-one", request)
    world.dataset_store.put(A, model=job.model, mode=job.mode)
    world.service.deliver("id-one", request, found[1], 10)


def failing(exit_code):
    return lambda w: w.fail(running(w), exit_code=exit_code)


def handed_back(world):
    world.fail(running(world), reason="worker_shutdown")


def unstartable(world):
    """Three times in a row: the host is taken out, and the job does not pay for it."""
    for _ in range(3):
        world.fail(claimed(world), reason="spawn_failed")
        world.clock.advance(1000)


def taken_out(world):
    """A failed job of the plan stays in sight; one that the plan no longer names can be taken out."""
    failing(65)(world)
    with pytest.raises(Refusal, match="is failed already; take it out of the plan and reload first"):
        world.service.cancel("one")
    world.plan(scheduling=Scheduling.FIRST_COME)
    world.service.cancel("one", as_removed=True)
    with pytest.raises(Refusal, match="nothing to cancel"):
        world.service.cancel("one")


def woken(world):
    lost(world)
    world.service.host_registry.plan = Plan(hosts={"pi": {"mac": "a0:b1:c2:d3:e4:f5"}})
    assert list(Wakes(world.service).due()) == ["pi"]


ROWS = {
    "insert": (lambda w: None, S.PENDING),
    "claim": (claimed, S.CLAIMED),
    "claim_repeat": (asked_twice, S.CLAIMED),
    "heartbeat": (running, S.RUNNING),
    "complete": (completed, S.COMPLETED),
    "complete_repeat": (completed_twice, S.COMPLETED),
    "adopt": (lambda w: w.deliver(lost(w)), S.COMPLETED),
    "deliver": (delivered_by_hand, S.COMPLETED),
    "readopt": (lambda w: w.beat(lost(w)), S.RUNNING),
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


def test_whoever_worked_on_a_job_may_look_at_it_and_nobody_else(world):
    claimed(world)
    world.service.requeue("one")
    world.ask("desk")
    for host in ("pi", "desk", None):
        assert world.service.readable("one", host) == "id-one"
    with pytest.raises(Refusal, match="host mac never worked on this job"):
        world.service.readable("one", "mac")


def test_every_row_of_the_table_has_its_test():
    assert set(ROWS) == set(TRANSITIONS)


@pytest.mark.parametrize("name", ROWS)
def test_row(world, name):
    act, status = ROWS[name]
    act(world)
    assert world.status() is status
    assert world.queue.events.fired[name] == 1


# The same through the bare queue, for the rows that it has.
BARE = {
    "heartbeat": lambda w: w.queue.heartbeat("id-one", "pi"),
    "complete": lambda w: w.queue.complete("id-one", "pi", artifact_id=A),
    "retry": lambda w: w.queue.fail("id-one", "pi", exit_code=1),
    "exhaust": lambda w: w.queue.fail("id-one", "pi", exit_code=2),
    "cancel": lambda w: w.queue.cancel("id-one"),
    "requeue": lambda w: w.queue.requeue("id-one"),
    "sweep": lambda w: w.queue.sweep_stale(stale_after_s=-1),
}


@pytest.mark.parametrize("name", BARE)
def test_row_of_the_bare_queue(world, name):
    assert world.queue.claim_next(worker_hostname="pi", capability={}) is not None
    assert BARE[name](world)
    assert world.status() is TRANSITIONS[name].target
    assert world.queue.events.fired[name] == world.queue.events.fired["claim"] == 1
