"""The forecast: every job once, no slot doing two things, an interval that holds what comes four times of five."""

from __future__ import annotations

import heapq
import math
import random
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.fleet.scheduling.forecast import WaitingKind, forecast
from training.fleet.scheduling.predictions import Prediction
from training.fleet.scheduling.schedule import JobKind, Slot, Take, schedule

HOSTS = ["desk", "laptop", "pi"]
seconds = st.dictionaries(st.sampled_from(HOSTS), st.floats(1, 1e4), max_size=3)
drawn_works = st.lists(
    st.tuples(st.integers(0, 12), seconds, st.integers(0, 1), st.sampled_from([0.0, 0.1, 0.8]), st.sampled_from("ab")),
    max_size=5,
).map(lambda found: [work(str(n), *each) for n, each in enumerate(found)])
drawn_slots = st.lists(st.tuples(st.sampled_from(HOSTS), st.floats(0, 1e4)), max_size=4).map(
    lambda found: [Slot(host, ready, ready * 2) for host, ready in found]
)


def work(key, count, times, priority=0, spread=0.3, of="net", **parts):
    told = {host: Prediction(seconds, spread, **parts) for host, seconds in times.items()}
    return WaitingKind(
        JobKind(key, count, times, priority, spread), tuple(f"{key}-{n}" for n in range(count)), of, told
    )


@given(drawn_works, drawn_slots, st.booleans())
def test_every_job_comes_once_and_no_slot_does_two_at_a_time(works, slots, first_come):
    slots = [replace(slot, job=f"now-{n}" if slot.ready_s else None) for n, slot in enumerate(slots)]
    made = forecast(works, slots, first_come=first_come)
    here = {slot.host for slot in slots}
    fit = [job for each in works if here & set(each.kind.seconds) for job in each.jobs]
    now = [slot.job for slot in slots if slot.job]
    assert sorted(stay.job for stay in made.stays) == sorted([*fit, *now])
    assert sorted(made.nowhere) == sorted(job for each in works for job in each.jobs if job not in fit)
    kinds = {job: each.kind for each in works for job in each.jobs}
    free = [0.0 if slot.job else slot.ready_s for slot in slots]
    for stay in made.stays:
        assert stay.host == slots[stay.slot].host
        assert stay.begin_s >= free[stay.slot]
        assert stay.job in now or stay.host in kinds[stay.job].seconds
        free[stay.slot] = stay.end_s


def test_first_come_gives_the_first_job_of_the_highest_priority_to_whoever_is_free():
    works = [
        work("low", 1, {"pi": 5.0}),
        work("long", 1, {"desk": 10.0, "pi": 1000.0}, 1),
        work("next", 1, {"pi": 7.0}, 1),
    ]
    slots = [Slot("pi"), Slot("desk", 1.0, 1.0)]
    stays = forecast(works, slots, first_come=True).stays
    assert [(stay.job, stay.host) for stay in stays] == [("long-0", "pi"), ("next-0", "pi"), ("low-0", "pi")]
    assert ("long-0", "desk") in [(stay.job, stay.host) for stay in forecast(works, slots).stays]


@given(drawn_works, drawn_slots)
def test_what_is_expected_lies_between_low_and_high(works, slots):
    made = forecast(works, slots)
    assert made.low_s <= made.end_s <= made.high_s < math.inf
    assert all(stay.begin_s <= stay.end_s and stay.low_s <= stay.end_s <= stay.high_s for stay in made.stays)


def test_with_nothing_uncertain_it_ends_when_it_is_expected_to():
    made = forecast([work("net", 4, {"gpu": 60.0, "pi": 600.0}, spread=0.0)], [Slot("gpu", 30.0)])
    assert (made.low_s, made.end_s, made.high_s) == (270.0, 270.0, 270.0)
    assert [(stay.job, stay.begin_s, stay.end_s) for stay in made.stays][1] == ("net-1", 90.0, 150.0)


def test_a_host_that_lets_a_job_go_is_named_with_the_reason():
    made = forecast([work("net", 1, {"gpu": 60.0, "pi": 6000.0})], [Slot("gpu", 30.0, 45.0), Slot("pi")])
    assert [stay.host for stay in made.stays] == ["gpu"]
    assert [(each.host, each.stay.host, each.here_s) for each in made.waits] == [("pi", "gpu", 6000.0)]


def test_all_is_done_when_what_is_trained_now_has_ended_too():
    net, slots = work("net", 1, {"gpu": 10.0}, spread=0.0), [Slot("gpu"), Slot("pi", 1000.0, 1000.0, job="now")]
    assert forecast([net], slots).end_s == 1000.0


def test_errors_that_are_shared_do_not_cancel_out():
    """A hundred jobs on one machine, each uncertain by half: all are, because the machine or the family is."""
    slots = [Slot("gpu")]
    for parts in ({}, {"everywhere": 0.5}):
        made = forecast([work("net", 100, {"gpu": 60.0}, spread=0.5, **parts)], slots)
        assert made.high_s / made.low_s == pytest.approx(math.exp(2 * 1.28 * 0.5), rel=0.15)
    own = forecast([work("net", 100, {"gpu": 60.0}, spread=0.1, own=0.1)], slots)
    assert own.high_s / own.low_s < 1.06


def test_a_host_that_may_turn_out_slow_is_relieved_by_the_other():
    net = work("net", 20, {"gpu": 60.0, "new": 60.0})
    net = replace(net, predictions={"gpu": Prediction(60.0, 0.0), "new": Prediction(60.0, 1.0)})
    made = forecast([net], [Slot("gpu"), Slot("new")])
    assert 540 <= made.end_s <= 720, "a job more or less than the half of them"
    assert made.high_s < 1200 + 60, "the other host does it all"


def test_one_long_job_that_nobody_can_share_makes_the_end_as_unsure_as_it_is():
    works = [work("long", 1, {"gpu": 1000.0}, spread=0.5), work("short", 90, {"pi": 10.0}, spread=0.1, own=0.1)]
    made = forecast(works, [Slot("gpu"), Slot("pi")])
    assert made.high_s / made.low_s > math.exp(2 * 1.28 * 0.35)


def test_a_plan_of_many_jobs_ends_when_all_hosts_together_can_have_done_them():
    times = {"gpu": 10.0, "desk": 40.0, "pi": 500.0}
    slots = [Slot(host) for host in times]
    made = forecast([work("net", 10_000, times, spread=0.0)], slots)
    assert 1.0 <= made.end_s * sum(1 / each for each in times.values()) / 10_000 < 1.08
    assert len({stay.job for stay in made.stays}) == 10_000


def test_another_host_makes_it_end_no_later():
    chance = random.Random(5)
    for _ in range(60):
        names = ["a", "b", "c", "d"]
        works = [
            work(str(n), chance.randint(1, 4), {name: chance.uniform(10, 1000) for name in names}, spread=0.0)
            for n in range(8)
        ]
        few = forecast(works, [Slot(name) for name in names[:3]])
        assert forecast(works, [Slot(name) for name in names]).end_s <= few.end_s * 1.001


def _played(works, hosts, longer, chance):
    """Let real asks happen, each on a new schedule; returns when all is done."""
    left = {each.kind.key: each.kind.count for each in works}
    kinds = {each.kind.key: each.kind for each in works}
    ends = []
    doing = {}
    now = 0.0
    while True:
        for host in hosts:
            if host in doing:
                continue
            waiting = [JobKind(key, n, kinds[key].seconds, 0, kinds[key].spread) for key, n in left.items() if n]
            slots = [Slot(each, _left_s(doing.get(each), now), 1e9) for each in hosts]
            said = schedule(waiting, slots).decide(host) if waiting else None
            if isinstance(said, Take):
                left[said.kind] -= 1
                expected = kinds[said.kind].seconds[host]
                took = expected * longer[said.kind, host] * math.exp(chance.gauss(0, 0.15))
                doing[host] = (now, expected)
                heapq.heappush(ends, (now + took, host))
        if not ends:
            return now
        now, host = heapq.heappop(ends)
        del doing[host]


def _left_s(doing, now):
    return 0.0 if doing is None else max(doing[0] + doing[1] - now, (now - doing[0]) / 10)


def test_four_of_five_plans_end_within_the_interval_and_half_before_its_middle():
    """Of drawn truths, played by an online rule of its own: errors of kinds, of hosts for a family, of each attempt."""
    chance, within, cases, ratios = random.Random(11), 0, 80, list[float]()
    hosts = ["a", "b", "c"]
    spreads = dict(zip(hosts, (0.0, 0.26, 0.52), strict=True))  # of a host for a family
    for _ in range(cases):
        works = []
        for n in range(4):
            times = {host: chance.lognormvariate(4 + at, 0.5) for at, host in enumerate(hosts)}
            told = {
                host: Prediction(times[host], math.hypot(0.15, 0.26, here), own=0.15, everywhere=0.26)
                for host, here in spreads.items()
            }
            works.append(replace(work(str(n), 3, times, 0, 0.4, "xy"[n % 2]), predictions=told))
        made = forecast(works, [Slot(host) for host in hosts])
        families = {(host, of): chance.gauss(0, 1) for host in hosts for of in "xy"}
        of_kind = {each.kind.key: chance.gauss(0, 0.26) for each in works}
        longer = {
            (each.kind.key, host): math.exp(of_kind[each.kind.key] + families[host, each.family] * spreads[host])
            for each in works
            for host in hosts
        }
        came_s = _played(works, hosts, longer, chance)
        within += made.low_s <= came_s <= made.high_s
        ratios.append(came_s / made.end_s)
    assert 0.7 <= within / cases <= 0.95
    assert 0.9 <= statistics.median(ratios) <= 1.1
