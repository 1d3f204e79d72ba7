"""A schedule that takes long is made in pieces, between calls: who waits for it, and what holds meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from builders import a_job, a_worker_claim
from service_running import Receiver

from training.fleet.queue.choose import BEING_MADE
from training.fleet.wire.messages import ClaimReply


@pytest.fixture
def fleet() -> Iterator[Receiver]:
    """A desktop that trains, jobs that wait, and whose schedules take many pieces."""
    receiver = Receiver()
    receiver.queue.ahead.at_once = receiver.queue.ahead.piece = 0
    receiver.plan(*(a_job(f"job-{n}", seed=n, hyper={"max_depth": 2 ** (n % 4)}) for n in range(12)))
    receiver.granted("desktop")
    yield receiver
    receiver.close()


def ask(fleet: Receiver, host: str = "pi", slot: int = 0) -> ClaimReply:
    return fleet.claim(a_worker_claim(host, slot=slot))


def think(fleet: Receiver) -> int:
    pieces = 1
    while fleet.service.think():
        pieces += 1
    return pieces


def test_a_host_that_is_new_waits_for_the_schedule_and_then_has_its_job(fleet: Receiver) -> None:
    for _ in range(2):
        said = ask(fleet)
        assert (said.job_id, said.reason, said.retry_after_s) == (None, BEING_MADE, 1.0)
        assert fleet.queue.ahead.is_awaited
    assert think(fleet) > 3
    assert ask(fleet).job_id is not None
    assert not fleet.queue.ahead.is_awaited


def test_asking_alone_makes_the_schedule_in_the_end(fleet: Receiver) -> None:
    assert next(number for number in range(1000) if ask(fleet).job_id is not None) > 1


def test_a_host_waits_for_one_schedule_and_not_for_the_next_as_well(
    fleet: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(fleet).reason == BEING_MADE
    think(fleet)
    monkeypatch.setattr("training.fleet.scheduling.schedule.Schedule.decide", lambda *_: None)
    fleet.plan(*(a_job(name, seed=n) for n, name in enumerate(["one", "two", "three", "four"])))
    assert ask(fleet).job_id is not None


def test_while_a_schedule_is_made_the_last_one_holds(fleet: Receiver) -> None:
    ask(fleet)
    think(fleet)
    fleet.plan(*(a_job(f"more-{n}", seed=n) for n in range(3)))
    said = ask(fleet)
    assert fleet.queue.ahead.being_made
    assert said.job_id is not None


def test_nobody_waits_for_a_host_that_left_while_a_schedule_is_made(fleet: Receiver) -> None:
    for host in ("pi", "laptop"):
        ask(fleet, host)
        think(fleet)
    assert hosts(fleet) == {"desktop", "pi", "laptop"}
    fleet.clock.advance(590.0)
    for host in ("pi", "laptop"):
        ask(fleet, host, slot=1)
        think(fleet)
    fleet.clock.advance(20.0)
    ask(fleet, "pi", slot=2)
    assert fleet.queue.ahead.being_made
    assert hosts(fleet) == {"pi", "laptop"}


def hosts(fleet: Receiver) -> set[str]:
    made = fleet.queue.ahead.rolling.made
    return set() if made is None else {slot.host for slot in made.slots}


def test_a_schedule_whose_making_failed_is_begun_anew(fleet: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(fleet).reason == BEING_MADE
    with monkeypatch.context() as patched:
        patched.setattr("training.fleet.queue.ahead._may_take", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            think(fleet)
    assert not fleet.queue.ahead.being_made
    assert ask(fleet).reason == BEING_MADE
    think(fleet)
    assert ask(fleet).job_id is not None


def test_for_a_crowd_the_schedule_is_made_before_anybody_asks(fleet: Receiver) -> None:
    service = fleet.service
    for host in ("pi", "laptop"):
        ask(fleet, host)
        service.wait_begins(host)
    think(fleet)
    assert not service.is_crowded
    service.crowd = 2
    assert service.is_crowded
    fleet.plan(*(a_job(f"more-{n}", seed=n) for n in range(3)))
    fleet.clock.advance(10.0)
    assert service.think_ahead()
    think(fleet)
    assert fleet.queue.ahead.is_up_to_date
    assert not service.think_ahead()
    for host in ("pi", "laptop"):
        assert ask(fleet, host, slot=1).job_id is not None
    fleet.plan(*(a_job(f"more-{n}", seed=n) for n in range(3)), scheduling="first-come")
    assert not service.is_crowded


def test_the_time_of_all_pieces_counts_for_when_the_next_is_made(fleet: Receiver) -> None:
    ticks = iter(range(10_000))
    fleet.queue.ahead.stopwatch = lambda: next(ticks) / 1000
    ask(fleet)
    pieces = 1 + think(fleet)
    # Twenty times what it took, and each piece took a thousandth of a second.
    for slot, (after_s, begun) in enumerate(((pieces * 0.02 - 0.01, False), (0.1, True)), 1):
        fleet.clock.advance(after_s)
        assert ask(fleet, slot=slot).job_id is not None
        assert fleet.queue.ahead.being_made == begun
