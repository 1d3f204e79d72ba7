"""The schedule: every job once, the operator's priorities first, near the best possible, and no decline for ever."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.fleet.scheduling.schedule import Decline, JobKind, Slot, Take, schedule
from training.fleet.scheduling.schedule_state import ASKS_S, Rolling

HOSTS = ["desk", "laptop", "pi"]
seconds = st.dictionaries(st.sampled_from(HOSTS), st.floats(1, 1e4), max_size=3)
drawn_kinds = st.lists(
    st.tuples(st.integers(0, 20), seconds, st.integers(0, 1), st.sampled_from([0.0, 0.3])), max_size=6
).map(lambda found: [JobKind(str(n), *each) for n, each in enumerate(found)])
drawn_slots = st.lists(st.tuples(st.sampled_from(HOSTS), st.floats(0, 1e4)), max_size=4).map(
    lambda found: [Slot(host, ready, ready * 2) for host, ready in found]
)


@given(drawn_kinds, drawn_slots)
def test_every_job_is_given_out_once_where_it_fits(kinds, slots):
    made = schedule(kinds, slots)
    given_out = Counter()
    for slot, shares in zip(made.slots, made.shares, strict=True):
        begin = slot.ready_s
        for share in shares:
            assert slot.host in made.kinds[share.kind].seconds
            assert share.begin_s == begin
            assert share.count > 0
            begin = share.end_s
            given_out[share.kind] += share.count
    here = {slot.host for slot in slots}
    for kind in kinds:
        fits = bool(here & set(kind.seconds))
        assert given_out[kind.key] == (kind.count if fits else 0)


@given(st.integers(1, 40), st.lists(st.floats(1, 20), min_size=1, max_size=4))
def test_jobs_of_one_kind_end_as_soon_as_they_can(count, seconds):
    told = {str(n): each_s for n, each_s in enumerate(seconds)}
    ends = sorted(each_s * (n + 1) for each_s in seconds for n in range(count))
    made = schedule([JobKind("k", count, told, 0, 0.0)], [*map(Slot, told)])
    assert made.end_s <= ends[count - 1] * 1.002


@given(drawn_kinds, drawn_slots)
def test_on_each_slot_a_higher_priority_comes_first(kinds, slots):
    made = schedule(kinds, slots)
    for shares in made.shares:
        priorities = [made.kinds[share.kind].priority for share in shares]
        assert priorities == sorted(priorities, reverse=True)


@given(drawn_kinds, drawn_slots, drawn_slots)
def test_a_schedule_that_is_kept_ends_no_later_than_a_new_one(kinds, before, slots):
    assert schedule(kinds, slots, schedule(kinds, before)).end_s <= schedule(kinds, slots).end_s * 1.002


@given(drawn_kinds, drawn_slots, st.sets(st.sampled_from(HOSTS)))
def test_nobody_waits_for_a_host_that_is_out(kinds, slots, hosts):
    only = schedule(kinds, slots).only(hosts)
    for host in HOSTS:
        said = only.decide(host)
        assert said is None or (said.by if isinstance(said, Decline) else said.instead_of or host) in hosts


@given(drawn_kinds.filter(bool), drawn_slots, st.sampled_from(HOSTS), st.booleans())
def test_what_is_taken_while_a_schedule_is_made_is_not_in_it(kinds, slots, host, was_read):
    rolling = Rolling()
    rolling.renew(kinds, slots, 0.0)
    said, at_first = rolling.decide(host, 0.0), rolling.made
    rolling.begin()
    left = {kind.key: at_first.count(kind.key) for kind in kinds}
    if isinstance(said, Take):
        rolling.took(host, said)
        left[said.kind] -= 1
    read = [replace(kind, count=left[kind.key] if was_read else kind.count) for kind in kinds]
    rolling.follow(schedule(read, slots, at_first), 0.0, left.__getitem__)
    assert {kind.key: rolling.made.count(kind.key) for kind in kinds} == left


def test_two_machines_are_near_the_best():
    """Beside every possible assignment of a few jobs; a rule of thumb has no bound, so drawn cases stand for all."""
    chance, ratios = random.Random(1), []
    for _ in range(300):
        times = [[chance.randint(1, 20), chance.randint(1, 20)] for _ in range(chance.randint(1, 6))]
        kinds = [JobKind(str(n), 1, dict(zip("ab", map(float, each), strict=True))) for n, each in enumerate(times)]
        best = min(
            max(sum(each[to] for each, to in zip(times, tos, strict=True) if to == at) for at in (0, 1))
            for tos in itertools.product((0, 1), repeat=len(times))
        )
        ratios.append(schedule(kinds, [Slot("a"), Slot("b")]).end_s / best)
    assert statistics.mean(ratios) < 1.02
    assert max(ratios) < 1.4


@given(drawn_kinds, drawn_slots)
def test_an_answer_is_a_job_that_fits_or_a_wait_with_an_end(kinds, slots):
    made = schedule(kinds, slots)
    for slot in slots:
        said = made.decide(slot.host)
        if isinstance(said, Take):
            assert slot.host in made.kinds[said.kind].seconds
        elif isinstance(said, Decline):
            assert said.by != slot.host
            assert max(10.0, said.here_s) <= said.open_s < math.inf
        else:
            assert not any(kind.count and slot.host in kind.seconds for kind in kinds)


def test_a_slow_host_waits_for_the_fast_one_and_is_told_for_whom_and_how_long():
    made = schedule([JobKind("net", 1, {"gpu": 60.0, "pi": 6000.0})], [Slot("gpu", 30.0, 45.0), Slot("pi")])
    said = made.decide("pi")
    assert said == Decline("net", by="gpu", begin_s=30.0, end_s=90.0, here_s=6000.0, open_s=6000.0, overdue_s=180.0)
    assert made.decide("gpu") == Take("net")
    later = made.decide("pi", 10.0)
    assert (later.begin_s, later.end_s, later.here_s) == (20.0, 80.0, 6000.0), "from when it asks"


def test_with_much_to_do_a_slow_host_gets_its_part():
    made = schedule([JobKind("net", 100, {"gpu": 60.0, "pi": 600.0})], [Slot("gpu"), Slot("pi")])
    assert made.decide("pi") == Take("net")
    assert made.end_s < 60 * 100 * 10 / 11 * 1.1


def test_who_has_nothing_takes_from_the_one_that_ends_last():
    kinds = [JobKind("net", 2, {"gpu": 100.0, "desk": 150.0}), JobKind("tree", 1, {"gpu": 10.0})]
    made = schedule(kinds, [Slot("gpu"), Slot("late", 0.0)])
    assert made.decide("desk") == Take("net", instead_of="gpu")


def test_what_somebody_waits_for_comes_first_on_its_slot():
    kinds = [JobKind("long", 1, {"gpu": 100.0}), JobKind("short", 1, {"gpu": 10.0, "pi": 5000.0})]
    assert schedule(kinds, [Slot("gpu")]).decide("gpu") == Take("long")
    assert schedule(kinds, [Slot("gpu")], None, {"short": 30.0}).decide("gpu") == Take("short")


def test_a_host_that_is_gone_has_no_share():
    kinds = [JobKind("net", 1, {"gpu": 60.0, "pi": 6000.0})]
    before = schedule(kinds, [Slot("gpu"), Slot("pi")])
    assert schedule(kinds, [Slot("pi")], before).decide("pi") == Take("net")


@pytest.mark.parametrize("places", [2, 3])
def test_where_nothing_changed_each_place_of_a_host_keeps_its_jobs(places):
    kinds = [JobKind("short", 1, {"desk": 1.0}), JobKind("long", 1, {"desk": 3.0})]
    slots = [Slot("desk", 6.0, 6.0, n) for n in range(places)]
    before = schedule(kinds, slots)
    assert schedule(kinds, slots, before).shares == before.shares


def test_hosts_that_are_nearly_alike_get_a_job_each_before_any_gets_two():
    """Jobs that train side by side share their host's cores."""
    kinds = [JobKind("net", 3, {"desk": 100.0, "lap": 104.0, "den": 108.0})]
    made = schedule(kinds, [Slot(host, number=n) for host in ("desk", "lap", "den") for n in range(3)])
    assert [made.decide(host) for host in ("desk", "lap", "den")] == [Take("net")] * 3


@given(st.lists(st.floats(1, 1e4), min_size=2, max_size=8, unique=True), st.integers(1, 4))
def test_where_nothing_is_known_a_host_begins_with_the_shortest_whoever_was_to_have_it(sizes, hosts):
    """Else a giant, alone on the slot of a host that turns out slow, would end last of all."""
    names = [f"host-{n}" for n in range(hosts)]
    kinds = [JobKind(str(size), 1, dict.fromkeys(names, size), spread=2.5) for size in sizes]
    made = schedule(kinds, [Slot(name) for name in names])
    for name, shortest in zip(names, sorted(sizes), strict=False):
        said = made.decide(name)
        assert isinstance(said, Take)
        assert said.kind == str(shortest)
        made = made.took(name, said.kind, said.instead_of)


def test_of_uncertain_times_a_slow_host_is_given_less():
    """A job that is begun on a machine that turns out far slower ends last of all."""
    sure, unsure = (
        schedule([JobKind("net", 100, {"gpu": 60.0, "pi": 180.0}, spread=spread)], [Slot("gpu"), Slot("pi")])
        for spread in (0.0, 0.9)
    )
    assert sum(share.count for share in unsure.shares[1]) < sum(share.count for share in sure.shares[1]) <= 26


def test_where_nothing_ends_sooner_every_job_stays_with_its_host():
    kinds = [JobKind("net", 1, {"desk": 60.0, "laptop": 60.0}), JobKind("tree", 1, {"desk": 60.0, "laptop": 60.0})]
    before = schedule(kinds, [Slot("laptop"), Slot("desk")])
    for slots in itertools.permutations([Slot("desk"), Slot("laptop")]):
        after = schedule(kinds, slots, before)
        assert [after.decide(host) for host in ("desk", "laptop")] == [
            before.decide(host) for host in ("desk", "laptop")
        ]


def test_what_was_taken_leaves_no_gap_in_what_a_slot_does_next():
    lengths = {"long": (1, 100.0), "middle": (2, 50.0), "short": (1, 10.0)}
    made = schedule([JobKind(key, count, {"gpu": each}) for key, (count, each) in lengths.items()], [Slot("gpu")])

    def begins(of):
        return [(share.kind, share.count, share.begin_s) for share in of.shares[0]]

    assert begins(made.took("gpu", "long")) == [("middle", 2, 100.0), ("short", 1, 200.0)]
    one = made.took("pi", "middle", instead_of="gpu")
    assert begins(one) == [("long", 1, 0.0), ("middle", 1, 100.0), ("short", 1, 150.0)]
    assert begins(one.took("pi", "middle", instead_of="gpu")) == [("long", 1, 0.0), ("short", 1, 100.0)]


def test_a_host_takes_a_more_urgent_job_only_while_it_has_it_done_sooner():
    kinds = [JobKind("urgent", 1, {"gpu": 10.0, "pi": 60.0}, priority=1), JobKind("own", 1, {"pi": 5.0})]
    made = schedule(kinds, [Slot("gpu", 90.0), Slot("pi", 45.0)])
    assert made.decide("pi", 20.0) == Take("urgent", instead_of="gpu")
    assert made.decide("pi", 45.0) == Take("own")


def a_wait(here_s=100.0, ready_s=50.0):
    """Return a job that a host with nothing to do leaves to a better one, and their slots."""
    return [JobKind("net", 1, {"gpu": 10.0, "pi": here_s})], [Slot("gpu", ready_s, ready_s), Slot("pi")]


@pytest.fixture
def rolling():
    return Rolling()


def test_a_wait_ends_when_the_job_would_have_been_done_here_whatever_is_said_meanwhile(rolling):
    """As of a better host whose progress says for ever that it is ready in a moment."""
    for now in range(0, 100, 10):
        rolling.renew(*a_wait(), float(now))
        assert rolling.decide("pi", float(now)).open_s == 100.0 - now
    rolling.renew(*a_wait(), 100.0)
    assert rolling.decide("pi", 100.0) == Take("net", instead_of="gpu")


def test_no_host_begins_a_long_job_as_one_that_seemed_short_was_waited_for(rolling):
    rolling.renew(*a_wait(), 0.0)
    assert isinstance(rolling.decide("pi", 0.0), Decline)
    rolling.renew(*a_wait(here_s=1700.0), 30.0)  # by now it is known better
    assert rolling.decide("pi", 30.0).open_s == 90.0, "until the other one is late"


@pytest.mark.parametrize(
    ("held_s", "spread", "takes", "most_s"),
    [(0.0, 0.0, (), 60.0), (300.0, 0.0, (), 320.0), (0.0, 1.0, (), 60.0 * math.e), (0.0, 0.0, (20.0, 50.0), 110.0)],
)
def test_a_wait_ends_when_what_was_foretold_of_the_better_host_has_passed_twice_its_length(
    held_s, spread, takes, most_s
):
    """As of a host that says for ever that it is ready in a moment, and takes no job."""
    kinds = [JobKind("net", 9, {"gpu": 5.0, "pi": 1e6}, spread=spread)]
    rolling, now = Rolling(), 0.0
    while True:
        took = max((at for at in takes if at <= now), default=-held_s)
        rolling.renew(kinds, [Slot("gpu", 5.0, 5.0, held_s=now - took), Slot("pi")], now)
        if now == took > 0:
            rolling.took("gpu", Take("net"))
        if isinstance(said := rolling.decide("pi", now), Take):
            break
        assert now + said.open_s <= most_s + 1.0
        now += 5.0
    assert most_s <= now < most_s + 5.0


@pytest.mark.parametrize(("silent_s", "left_s"), [(50.0, 50.0), (70.0, 100.0)])
def test_who_has_not_asked_for_long_begins_to_wait_again(rolling, silent_s, left_s):
    rolling.renew(*a_wait(), 0.0)
    rolling.decide("pi", 0.0)
    rolling.renew(*a_wait(), silent_s)
    assert rolling.decide("pi", silent_s).open_s == left_s


def test_a_wait_is_over_with_a_job_or_when_the_host_is_silent():
    for over in (
        lambda rolling: rolling.took("pi", Take("net")),
        lambda rolling: rolling.follow(schedule([], []), ASKS_S + 1.0),
    ):
        rolling = Rolling()
        rolling.renew(*a_wait(), 0.0)
        rolling.decide("pi", 0.0)
        assert rolling.awaited() == {"net": 100.0}
        over(rolling)
        assert not rolling.waits


def test_a_wait_goes_on_when_one_schedule_did_not_know_the_host(rolling):
    """A clock that stepped can make a host seem silent for one making."""
    rolling.renew(*a_wait(), 0.0)
    rolling.decide("pi", 0.0)
    rolling.follow(schedule([], []), 10.0)
    rolling.renew(*a_wait(), 20.0)
    assert rolling.decide("pi", 20.0).open_s == 80.0
