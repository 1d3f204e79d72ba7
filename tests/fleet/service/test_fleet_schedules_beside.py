"""A schedule that is made beside the calls: what holds meanwhile, who waits for it, and that nobody waits for long."""

from __future__ import annotations

import math
from contextlib import closing

import pytest
from builders import a_capability, a_job
from service_running import POLICY, Receiver

from training.fleet.queue.choose import BEING_MADE
from training.fleet.scheduling.orders import OrderKind
from training.fleet.scheduling.predictions import Prediction
from training.fleet.wire.attempts import FailRequest, TrainerUse


@pytest.fixture
def fleet():
    """A desktop that trains, and jobs that wait; a test makes the schedules."""
    receiver = Receiver()
    receiver.queue.ahead.make_beside(receiver.queue.db, receiver.service.learned(receiver.queue.db))
    receiver.plan(*(a_job(f"job-{n}", seed=n, hyper={"max_depth": 2 ** (n % 4)}) for n in range(12)))
    receiver.granted("desktop")
    yield receiver
    receiver.close()


def ask(fleet, host="pi", **fields):
    return fleet.ask(host, **fields)


def unlike(*jobs, **seconds):
    """Hosts that have asked, on which each of these jobs takes so long; no thread makes schedules."""
    fleet = Receiver()
    fleet.plan()
    for host in seconds:
        ask(fleet, host)
    fleet.queue.ahead.kinds.predictions = lambda _, hosts: {each: Prediction(seconds[each], 0.1) for each in hosts}
    fleet.plan(*jobs)
    return fleet


def make(fleet):
    """Make a schedule; returns the waiting hosts that are called."""
    making = fleet.service.begin_schedule()
    return fleet.service.follow_schedule(making, fleet.queue.ahead.make(making))


def test_a_host_that_is_new_waits_for_the_schedule_and_then_has_its_job(fleet):
    for _ in range(2):
        said = ask(fleet)
        assert (said.job_id, said.reason, said.retry_after_s) == (None, BEING_MADE, 1.0)
        assert fleet.service.must_schedule
    fleet.service.host_registry.wait_begins("pi")
    assert make(fleet) == ["pi"]
    assert ask(fleet).job_id is not None


def test_no_host_waits_for_schedules_that_nobody_makes(fleet):
    assert ask(fleet).reason == BEING_MADE
    fleet.clock.advance(29.0)
    assert ask(fleet).reason == BEING_MADE
    fleet.clock.advance(2.0)
    assert ask(fleet).job_id is not None


def test_a_host_waits_for_one_schedule_and_not_for_the_next_as_well(fleet, monkeypatch):
    assert ask(fleet).reason == BEING_MADE
    make(fleet)
    monkeypatch.setattr("training.fleet.scheduling.schedule.Schedule.decide", lambda *_: None)
    assert ask(fleet).job_id is not None


def test_a_host_that_asks_while_a_schedule_is_made_waits_for_the_next_one(fleet):
    making = fleet.service.begin_schedule()
    fleet.clock.advance(1.0)
    assert ask(fleet).reason == BEING_MADE
    fleet.service.follow_schedule(making, fleet.queue.ahead.make(making))
    assert ask(fleet).reason == BEING_MADE
    make(fleet)
    assert ask(fleet).job_id is not None


def test_while_a_schedule_is_made_the_last_one_holds(fleet):
    ask(fleet)
    make(fleet)
    making = fleet.service.begin_schedule()
    made = fleet.queue.ahead.make(making)
    assert ask(fleet).job_id is not None
    fleet.service.follow_schedule(making, made)
    assert sum(share.count for shares in fleet.queue.ahead.rolling.made.shares for share in shares) == 10


def test_one_is_due_at_once_for_new_jobs_and_for_the_rest_when_it_costs_little(fleet):
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


def test_one_is_due_for_a_plan_that_only_edits_jobs(fleet):
    make(fleet)
    assert not fleet.queue.ahead.is_due(POLICY)
    fleet.plan(*(a_job(f"job-{n}", seed=n, priority=n, hyper={"max_depth": 2 ** (n % 4)}) for n in range(12)))
    assert fleet.queue.ahead.is_due(POLICY)


@pytest.mark.parametrize(("elsewhere_s", "goes_to"), [(200.0, "pi"), (60_000.0, "desktop")])
def test_a_job_that_failed_waits_for_a_second_try_where_all_others_take_many_times_as_long(elsewhere_s, goes_to):
    fleet = unlike(a_job("one"), pi=elsewhere_s, desktop=100.0)
    failed = FailRequest(claim_id=fleet.granted("desktop"), error="a flaky driver", exit_code=1)
    fleet.service.fail(fleet.job().job_id, failed)
    got = ""
    for _ in range(40):
        fleet.clock.advance(10.0)
        for host in ("pi", "desktop"):
            got = got or (host if ask(fleet, host).job_id is not None else "")
    assert got == goes_to
    fleet.close()


@pytest.mark.parametrize(("works", "held_s"), [(False, 0.0), (False, 1000.0), (True, 0.0)])
def test_no_host_waits_for_one_whose_foretold_end_has_passed_twice_its_length(works, held_s):
    """As for one that has a job, says for ever that it is nearly done, and takes no other."""
    nearly = {"event": "epoch", "epoch": 99, "epochs": 100}
    jobs = [a_job(f"job-{n}", seed=n) for n in range(40)]
    with closing(unlike(*jobs, desktop=10.0, pi=5000.0)) as fleet:
        fleet.plan(*jobs, hosts={"desktop": {"slots": 1}})
        claim, waited_s = fleet.granted("desktop"), 0.0
        name = fleet.queue.attempts.by_claim(claim).job_id.removeprefix("id-")
        fleet.queue.ahead.kinds.predictions = lambda _, hosts: {
            each: Prediction({"desktop": 10.0, "pi": 5000.0}[each], 0.1) for each in hosts
        }
        for n in range(int(held_s / 100.0)):
            fleet.clock.advance(100.0)
            fleet.beat(claim, name, seq=n, progress=nearly | {"seconds": 100.0 * n})
        told = ask(fleet, "pi").declined
        bound_s = math.exp(0.1) * (2.0 * (told.ends_at - fleet.clock.now()) + held_s)
        while (said := ask(fleet, "pi")).job_id is None and waited_s < (300.0 if works else 3000.0):
            assert said.declined.by == "desktop"
            fleet.clock.advance(5.0)
            waited_s += 5.0
            progress = nearly | {"seconds": held_s + waited_s}
            fleet.beat(claim, name, seq=1000 + int(waited_s), progress=progress)
            if works and waited_s % 30.0 == 0.0:
                fleet.deliver(claim, name=name)
                claim = fleet.granted("desktop")
                name = fleet.queue.attempts.by_claim(claim).job_id.removeprefix("id-")
        assert waited_s == (300.0 if works else pytest.approx(bound_s, abs=5.0))


def test_a_host_is_never_to_ask_again_within_a_second():
    """Its wait for a job may be over, and that job finds no room beside what it trains."""
    jobs = [a_job("mine", min_ram_gib=4.0, allowed_hosts=["pi"]), *(a_job(f"{n}", min_ram_gib=7.0) for n in range(4))]
    hosts = {"pi": {"slots": 2}, "desktop": {"slots": 1}}
    with closing(unlike(*jobs, desktop=10.0, pi=4000.0)) as fleet:
        fleet.plan(*jobs, hosts=hosts)
        claim, declined = fleet.granted("pi"), 0
        fleet.granted("desktop")
        for _ in range(500):
            said = ask(fleet, "pi", slot=1, training=[TrainerUse(claim_id=claim, ram_gib=4.0)])
            assert said.job_id is None
            assert (said.retry_after_s or 1.0) >= 1.0
            declined += said.declined is not None
            fleet.clock.advance(0.7)
        assert 0 < declined < 500


def test_what_a_host_was_promised_does_not_outlive_its_absence():
    with closing(unlike(*[a_job(f"job-{n}", seed=n) for n in range(3)], desktop=100.0, pi=500.0)) as fleet:
        claim = fleet.granted("desktop")
        assert ask(fleet, "pi").declined is not None
        for n in range(20):
            fleet.clock.advance(POLICY.stale_after_s / 2)
            fleet.beat(claim, "job-0", seq=n + 1)
        assert ask(fleet, "pi").declined.open_at > fleet.clock.now() + 200.0, "its wait begins again"


def test_no_job_is_kept_for_a_host_that_is_gone():
    with closing(unlike(a_job("one"), desktop=10.0, laptop=900.0, pi=500.0)) as fleet:
        assert ask(fleet, "pi").job_id is None
        for _ in range(2):
            assert ask(fleet, "laptop").job_id is None
            fleet.clock.advance(0.6 * POLICY.stale_after_s)
        assert ask(fleet, "pi").job_id is not None


def test_no_job_is_kept_for_a_host_that_is_paused():
    with closing(unlike(a_job("one"), desktop=10.0, laptop=900.0, pi=500.0)) as fleet:
        assert ask(fleet, "pi").job_id is None
        fleet.service.order("desktop", OrderKind.PAUSE, "ada")
        assert ask(fleet, "pi").job_id is not None


def test_a_job_that_came_after_a_schedule_is_kept_for_its_host_too():
    with closing(unlike(a_job("one"), desktop=10.0, pi=500.0)) as fleet:
        assert ask(fleet, "desktop").job_id == "id-one"
        fleet.plan(a_job("one"), a_job("two"))
        assert ask(fleet, "pi").job_id is None


def test_a_job_that_comes_right_after_a_schedule_is_not_given_to_whoever_asks_first():
    with closing(unlike(a_job("one"), desktop=10.0, pi=500.0)) as fleet:
        ahead, told = fleet.queue.ahead, fleet.queue.ahead.kinds.predictions
        ahead.make_beside(fleet.queue.db, fleet.service.learned(fleet.queue.db))
        ahead.kinds.predictions = told
        make(fleet)
        assert ask(fleet, "desktop").job_id == "id-one"
        fleet.plan(a_job("one"), a_job("two"))
        assert ask(fleet, "pi").reason == BEING_MADE
        make(fleet)
        assert "desktop will have two done" in (ask(fleet, "pi").reason or "")


def test_of_jobs_that_are_alike_the_one_of_higher_priority_goes_first():
    with closing(unlike(a_job("low", priority=1), a_job("high", priority=2), desktop=10.0, pi=10.0)) as fleet:
        assert ask(fleet, "pi").job_id == "id-high"


def test_no_job_is_scheduled_for_a_host_whose_memory_others_use():
    with closing(unlike(desktop=10.0, pi=10.0)) as fleet:
        for host, free_gib in (("desktop", 16.0), ("pi", 1.0)):
            ask(fleet, host, capability=a_capability(ram=16.0, ram_available_gib=free_gib))
        fleet.plan(*(a_job(f"job-{n}", seed=n, min_ram_gib=4) for n in range(3)))
        kinds = fleet.queue.ahead.make(fleet.service.begin_schedule()).schedule.kinds.values()
        assert [[*kind.seconds] for kind in kinds] == [["desktop"]]
