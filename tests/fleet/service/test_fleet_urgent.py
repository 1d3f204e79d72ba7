"""Urgent jobs through the service: who is asked to give way, what its worker hears, and who gets the place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from builders import a_beat, a_capability, a_failure, a_job, a_worker_claim
from fakes import Counting, FakeClock, FakeShelf

from training.fleet.queue.jobs import JobQueue
from training.fleet.scheduling.job import JobStatus
from training.fleet.scheduling.orders import Order
from training.fleet.scheduling.policy import Policy, Scheduling
from training.fleet.service.service import Plan, Service
from training.fleet.service.urgent import UrgentJobs
from training.fleet.service.views import Views
from training.fleet.wire.messages import ClaimReply, HeartbeatReply

POLICY = Policy()
ONE = {"pi": {"slots": 1}, "desk": {"slots": 1}}
HOUR = {"event": "epoch", "epoch": 10, "epochs": 100, "eta_s": 3600.0, "seconds": 400.0}


class House:
    """A service, hosts that train one job each, and a clock."""

    def __init__(self, *jobs: dict[str, Any], hosts: dict[str, Any] | None = None, **plan: Any) -> None:
        self.clock = FakeClock()
        self.queue = JobQueue(":memory:", clock=self.clock, new_claim_id=Counting())
        self.shelf = FakeShelf()
        self.service = Service(self.queue, self.shelf)
        self.hosts, self.plan = ONE if hosts is None else hosts, plan
        self.urgent = UrgentJobs(self.service)
        self.views = Views(self.queue.db, self.service)
        self.requests = 0
        self.seq: dict[str, int] = {}
        self.jobs: list[dict[str, Any]] = []
        self.reload(*jobs)

    def reload(self, *more: dict[str, Any]) -> None:
        self.jobs += more
        self.service.reload(self.jobs, Plan(hosts=self.hosts, **self.plan))

    def claim(self, host: str = "pi", **said: Any) -> ClaimReply:
        self.requests += 1
        said = {"request_id": f"r{self.requests}", "capability": a_capability(), **said}
        return self.service.claim(a_worker_claim(host, **said))

    def beat(self, granted: ClaimReply, after_s: float = 0.0, **said: Any) -> HeartbeatReply:
        self.clock.advance(after_s)
        claim, job = str(granted.claim_id), str(granted.job_id)
        self.seq[claim] = self.seq.get(claim, 0) + 1
        told = {"progress": HOUR, "resumable": True, **said}
        return self.service.heartbeat(job, a_beat(claim, seq=self.seq[claim], **told))

    def trains(self, host: str = "pi", **said: Any) -> ClaimReply:
        """Let a host train for 400 seconds."""
        granted = self.claim(host)
        assert granted.job_id is not None
        for _ in range(4):
            self.beat(granted, 100.0, **said)
        return granted

    def hand_back(self, granted: ClaimReply) -> None:
        error = "handed back: urgent: u goes first here"
        failure = a_failure(granted.claim_id, reason="worker_shutdown", error=error, exit_code=75)
        self.service.fail(str(granted.job_id), failure)

    def asked(self) -> list[str]:
        return [f"{each.name} for {each.urgent_name} on {each.host}" for each in self.urgent.due()]

    def summary(self, job: str) -> str:
        return self.views.explain(f"id-{job}").summary


@contextlib.contextmanager
def a_house() -> Iterator[House]:
    made = House(a_job("long"))
    yield made
    made.queue.close()


@pytest.fixture
def house() -> Iterator[House]:
    with a_house() as made:
        yield made


def urgent(name: str = "u", **wishes: Any) -> dict[str, Any]:
    return a_job(name, urgent=True, **wishes)


def test_a_running_job_gives_way_and_the_urgent_one_gets_its_place(house: House) -> None:
    long = house.trains()
    assert house.asked() == [], "nothing urgent waits"
    house.reload(a_job("other"), urgent())
    assert house.beat(long).hand_back is None
    assert house.asked() == ["long for u on pi"]
    assert house.asked() == [], "it is asked once"
    assert house.summary("u").startswith("long gives way on pi; ")
    assert house.summary("long") == "the job is running; it is asked to give way to u, which is urgent"
    assert house.views.job("id-u").job.note == "long gives way on pi"
    assert house.beat(long, 20.0).hand_back == "urgent: u goes first here"
    house.hand_back(long)
    row = house.queue.get("id-long")
    assert row is not None
    assert (row.status, row.trainer_failures, row.host_losses) == (JobStatus.PENDING, 0, 0)
    assert house.summary("long").startswith("it gave way to u on pi and goes on from its saved state; ")
    assert house.claim("pi").job_id == "id-u"
    assert house.claim("desk").job_id in ("id-other", "id-long")


def test_the_place_is_kept_for_so_long_and_no_longer(house: House) -> None:
    house.reload(a_job("other", priority=90))
    other = house.claim("desk")  # desk has the one of the higher priority
    long = house.trains()
    house.reload(urgent(priority=90, allowed_hosts=["pi"]))
    assert house.asked() == ["long for u on pi"]
    house.hand_back(long)
    house.reload(a_job("more", priority=99, allowed_hosts=["pi"]))  # it came later than the word was given
    house.clock.advance(POLICY.give_way_s - 1)
    assert house.claim("pi").job_id == "id-u"
    house.beat(other)


def test_after_that_time_anybody_gets_it_and_nobody_is_asked_again(house: House) -> None:
    long = house.trains()
    house.reload(urgent())
    assert house.asked() == ["long for u on pi"]
    house.clock.advance(POLICY.give_way_s + 1)
    assert house.beat(long).hand_back is None
    assert house.asked() == []
    assert house.summary("u") == "it waits: pi: host pi holds 1 job and has 1 slot: it gets another when one has ended"
    for _ in range(4):
        house.beat(long, POLICY.give_way_again_s / 4)
    assert house.asked() == ["long for u on pi"], "after that time it is"


def test_two_urgent_jobs_do_not_thrash_one_job(house: House) -> None:
    long = house.trains()
    house.reload(urgent("u1"), urgent("u2"))
    assert house.asked() == ["long for u1 on pi"]
    house.beat(long)
    house.hand_back(long)
    first = house.claim("pi")
    assert first.job_id == "id-u1"
    again = house.claim("desk")
    assert again.job_id == "id-u2", "first in its priority"
    house.service.fail("id-u2", a_failure(again.claim_id, reason="worker_shutdown"))
    house.service.hold("u2")
    again = house.claim("desk")
    assert again.job_id == "id-long"
    for _ in range(4):
        house.beat(again, 100.0)
    house.service.unhold("u2")
    house.beat(first)
    assert house.asked() == [], "it gave way a moment ago, and u1 is urgent itself"


def test_who_cannot_go_on_elsewhere_is_left_alone(house: House) -> None:
    long = house.trains(resumable=False)
    house.reload(urgent())
    assert house.asked() == []
    house.beat(long)
    assert house.asked() == ["long for u on pi"]


def test_a_host_that_gets_no_jobs_is_asked_for_nothing() -> None:
    with a_house() as house:
        long = house.trains()
        house.reload(urgent())
        house.service.order("pi", Order.DRAIN, "ada")
        assert house.asked() == []
        house.service.resume_host("pi", "ada")
        assert house.asked() == ["long for u on pi"]
        house.service.order("pi", Order.DRAIN, "ada")
        assert house.beat(long).hand_back is None, "a drained host's trainers run to their end"
        house.service.resume_host("pi", "ada")
        house.shelf.room = False
        assert house.beat(long).hand_back is None, "nobody would be given the place"
        assert house.asked() == []


def test_a_held_or_cancelled_urgent_job_needs_no_place(house: House) -> None:
    long = house.trains()
    house.reload(urgent())
    house.service.hold("u")
    assert house.asked() == []
    house.service.unhold("u")
    assert house.asked() == ["long for u on pi"]
    house.service.hold("u")
    assert house.beat(long).hand_back is None
    house.service.unhold("u")
    assert house.beat(long).hand_back is not None
    house.service.cancel("u")
    assert house.beat(long).hand_back is None


def test_nobody_gives_way_where_a_job_of_a_higher_priority_waits() -> None:
    with a_house() as house:
        house.trains()
        house.reload(urgent(), a_job("first", priority=90))
        assert house.asked() == []
        house.reload(a_job("elsewhere"))
        house.service.cancel("first")
        assert house.asked() == ["long for u on pi"]


def test_what_was_asked_outlives_the_receiver_and_moves_with_its_clock(house: House) -> None:
    long = house.trains()
    house.reload(urgent())
    assert house.asked() == ["long for u on pi"]
    again = Service(house.queue, FakeShelf())
    again.host_registry.plan = Plan(hosts=ONE)
    assert UrgentJobs(again).due() == []
    told = again.heartbeat("id-long", a_beat(long.claim_id, seq=99, progress=HOUR, resumable=True))
    assert told.hand_back is not None
    for step_s in (-86_400.0, 86_400.0):
        house.clock.step(step_s)
        house.queue.shift_times(step_s)
        (standing,) = house.queue.interruptions.standing()
        assert standing.claim_id == long.claim_id


@pytest.mark.parametrize("scheduling", Scheduling)
def test_urgent_jobs_are_the_first_of_their_priority(scheduling: Scheduling) -> None:
    house = House(a_job("a"), a_job("b"), scheduling=scheduling)
    house.claim("desk")
    house.clock.advance(5)
    house.reload(urgent(), a_job("first", priority=90))
    house.clock.advance(POLICY.reschedule_s)
    order = [house.claim(f"pi-{n}").job_id for n in range(3)]
    assert order == ["id-first", "id-u", "id-b"]
    house.queue.close()


def test_beside_others_nobody_takes_the_room_that_is_being_made() -> None:
    hosts = {"pi": {"slots": 3}}
    house = House(a_job("small", min_cores=1, threads=1), a_job("large", min_cores=2), hosts=hosts)
    granted = [house.claim("pi", slot=n, capability=a_capability(cores=3)) for n in range(2)]
    large = next(each for each in granted if each.job_id == "id-large")
    for _ in range(4):
        house.clock.advance(100)
        for each in granted:
            house.beat(each)
    house.reload(urgent(min_cores=2), a_job("more", threads=1))
    assert house.asked() == ["large for u on pi"]
    assert house.claim("pi", slot=2, capability=a_capability(cores=3)).job_id is None
    house.hand_back(large)
    assert house.claim("pi", slot=1, capability=a_capability(cores=3)).job_id == "id-u"
    house.queue.close()
