"""A schedule that is made beside the calls: what holds meanwhile, who waits for it, and that nobody waits for long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from builders import a_job, a_worker_claim
from service_running import Receiver

from training.fleet.queue.choose import BEING_MADE
from training.fleet.scheduling.predictions import Prediction
from training.fleet.wire.messages import ClaimReply, FailRequest


@pytest.fixture
def fleet() -> Iterator[Receiver]:
    """A desktop that trains, and jobs that wait; a test makes the schedules."""
    receiver = Receiver()
    receiver.queue.ahead.make_beside(receiver.queue.db, receiver.service.learned(receiver.queue.db))
    receiver.plan(*(a_job(f"job-{n}", seed=n, hyper={"max_depth": 2 ** (n % 4)}) for n in range(12)))
    receiver.granted("desktop")
    yield receiver
    receiver.close()


def ask(fleet: Receiver, host: str = "pi", slot: int = 0) -> ClaimReply:
    return fleet.claim(a_worker_claim(host, slot=slot))


def make(fleet: Receiver) -> list[str]:
    """Make a schedule; returns the waiting hosts that are called."""
    making = fleet.service.begin_schedule()
    return fleet.service.follow_schedule(making, fleet.queue.ahead.make(making))


def test_a_host_that_is_new_waits_for_the_schedule_and_then_has_its_job(fleet: Receiver) -> None:
    for _ in range(2):
        said = ask(fleet)
        assert (said.job_id, said.reason, said.retry_after_s) == (None, BEING_MADE, 1.0)
        assert fleet.service.must_schedule
    fleet.service.wait_begins("pi")
    assert make(fleet) == ["pi"]
    assert ask(fleet).job_id is not None


def test_no_host_waits_for_schedules_that_nobody_makes(fleet: Receiver) -> None:
    assert ask(fleet).reason == BEING_MADE
    fleet.clock.advance(29.0)
    assert ask(fleet).reason == BEING_MADE
    fleet.clock.advance(2.0)
    assert ask(fleet).job_id is not None


def test_a_host_waits_for_one_schedule_and_not_for_the_next_as_well(
    fleet: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(fleet).reason == BEING_MADE
    make(fleet)
    monkeypatch.setattr("training.fleet.scheduling.schedule.Schedule.decide", lambda *_: None)
    assert ask(fleet).job_id is not None


def test_while_a_schedule_is_made_the_last_one_holds(fleet: Receiver) -> None:
    ask(fleet)
    make(fleet)
    making = fleet.service.begin_schedule()
    made = fleet.queue.ahead.make(making)
    granted = ask(fleet)
    assert granted.job_id is not None
    fleet.service.follow_schedule(making, made)
    in_force = fleet.queue.ahead.rolling.made
    assert in_force is not None
    assert sum(share.count for shares in in_force.shares for share in shares) == 10


def test_one_is_due_at_once_for_new_jobs_and_for_the_rest_when_it_costs_little(fleet: Receiver) -> None:
    ask(fleet)
    ticks = iter(range(10_000))
    fleet.queue.ahead.stopwatch = lambda: float(next(ticks))  # each takes a second
    make(fleet)
    assert ask(fleet).job_id is not None
    for after_s, due in ((19.0, False), (2.0, True)):
        fleet.clock.advance(after_s)
        assert fleet.service.must_schedule == due
    make(fleet)
    fleet.plan(*(a_job(f"more-{n}", seed=n) for n in range(3)))
    assert fleet.service.must_schedule
    fleet.plan(*(a_job(f"more-{n}", seed=n) for n in range(3)), scheduling="first-come")
    assert not fleet.service.must_schedule


@pytest.mark.parametrize(("elsewhere_s", "goes_to"), [(200.0, "pi"), (60_000.0, "desktop")])
def test_a_job_that_failed_waits_for_a_second_try_where_all_others_take_many_times_as_long(
    monkeypatch: pytest.MonkeyPatch, elsewhere_s: float, goes_to: str
) -> None:
    fleet = Receiver()
    fleet.plan()
    ask(fleet, "pi")
    fleet.plan(a_job("one"))
    times = {"desktop": Prediction(100.0, 0.1), "pi": Prediction(elsewhere_s, 0.1)}
    monkeypatch.setattr(fleet.queue.ahead.kinds, "predictions", lambda _, hosts: {each: times[each] for each in hosts})
    failed = FailRequest(claim_id=fleet.granted("desktop"), error="a flaky driver", exit_code=1)
    fleet.service.fail(fleet.job().job_id, failed)
    got = ""
    for _ in range(40):
        fleet.clock.advance(10.0)
        for host in ("pi", "desktop"):
            got = got or (host if ask(fleet, host).job_id is not None else "")
    assert got == goes_to
    fleet.close()
