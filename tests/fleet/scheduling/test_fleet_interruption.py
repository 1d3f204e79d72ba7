"""Which running attempt gives way to an urgent job: the rule, against plain words for each of its promises."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from builders import a_host, needs
from hypothesis import given
from hypothesis import strategies as st

from training.fleet.scheduling import booking, interruption
from training.fleet.scheduling.interruption import Trains, Urgent, stands_until
from training.fleet.scheduling.job import Host
from training.fleet.scheduling.policy import Policy
from training.fleet.scheduling.resources import Booking, Held

POLICY = Policy()
PI = a_host("pi", slots=1, ram_total_gib=8.0)
DESK = a_host("desk", slots=1, ram_total_gib=8.0)
HOSTS = {host.name: host for host in (PI, DESK)}


def trains(claim: str = "c", host: str = "pi", **facts: Any) -> Trains:
    known = {"held": Held(Booking(1, 1.0)), "left_s": 3600.0, "resumable": True, "grants_left": 100}
    return Trains(**{"claim_id": claim, "job_id": f"job-{claim}", "host": host, **known, **facts})


def urgent(job: str = "u", **facts: Any) -> Urgent:
    return Urgent(**{"job_id": job, "needs": needs(), "seconds": {"pi": 100.0}, **facts})


def asked(waiting: Urgent | list[Urgent], *training: Trains, hosts: dict[str, Host] = HOSTS) -> dict[str, str]:
    """Return who gives way to whom: urgent job → claim."""
    some = waiting if isinstance(waiting, list) else [waiting]
    return {each.job_id: each.claim_id for each in interruption.interruptions(some, hosts, training, POLICY)}


def test_the_one_that_trains_where_the_urgent_job_fits_gives_way() -> None:
    assert asked(urgent(), trains()) == {"u": "c"}
    (found,) = interruption.interruptions([urgent()], HOSTS, [trains()], POLICY)
    assert (found.host, found.done_s, found.waiting_s) == ("pi", POLICY.move_s + 100.0, 3700.0)


def test_nobody_gives_way_who_may_not() -> None:
    for facts in (
        {"resumable": False},
        {"urgent": True},
        {"priority": 1},
        {"grants_left": 1},
        {"asked_s": POLICY.give_way_again_s - 1},
        {"host": "away"},
        {"left_s": 2 * POLICY.move_s},
    ):
        assert asked(urgent(), trains(**facts)) == {}, facts
    assert asked(urgent(priority=1), trains(priority=1)) == {"u": "c"}
    assert asked(urgent(asked_s=POLICY.give_way_again_s - 1), trains()) == {}
    assert asked(urgent(behind={"pi"}), trains()) == {}, "a job of a higher priority waits"
    assert asked(urgent(seconds={}), trains()) == {}, "it fits nowhere"


def test_nobody_gives_way_where_waiting_is_as_good() -> None:
    both = urgent(seconds={"pi": 100.0, "desk": 300.0})
    assert asked(both, trains()) == {"u": "c"}, "the idle one is so much slower that it pays"
    assert asked(replace(both, seconds={"pi": 100.0, "desk": 220.0}), trains()) == {}, "the other one is idle"
    ends = trains("d", "desk", left_s=50.0, resumable=False)
    assert asked(replace(both, seconds={"pi": 100.0, "desk": 100.0}), trains(), ends) == {}, "the other one ends soon"


def test_the_lowest_priority_gives_way_then_where_it_is_done_first_then_who_has_longest_to_go() -> None:
    both = urgent(priority=9, seconds={"pi": 100.0, "desk": 50.0})
    assert asked(both, trains("a", priority=1), trains("b", "desk", priority=2)) == {"u": "a"}
    assert asked(both, trains("a"), trains("b", "desk")) == {"u": "b"}
    two = {"pi": replace(PI, slots=2)}
    assert asked(urgent(), trains("a"), trains("b", left_s=4000.0), hosts=two) == {"u": "b"}


def test_one_alone_must_make_room() -> None:
    two = {"pi": replace(PI, slots=4)}
    half = Held(Booking(2, 1.0))
    wide = urgent(needs=needs(min_cores=4))
    assert asked(wide, trains("a", held=half), trains("b", held=half), hosts=two) == {}
    assert asked(wide, trains("a", held=Held(Booking(4, 1.0))), hosts=two) == {"u": "a"}
    assert asked(urgent(needs=needs(min_cores=2)), trains("a", held=half), hosts=two) == {}, "there is room"


def test_each_urgent_job_takes_its_place_before_the_next_is_looked_at() -> None:
    everywhere = {"pi": 1000.0, "desk": 1000.0}
    first, second = urgent("u1", seconds=everywhere), urgent("u2", seconds=everywhere)
    assert asked([first, second], trains()) == {"u2": "c"}, "the first one has the idle host"
    assert asked([first, second], trains("a"), trains("b", "desk")) == {"u1": "a", "u2": "b"}
    one = {"pi": 100.0}
    assert asked([urgent("u1", seconds=one), urgent("u2", seconds=one)], trains()) == {"u1": "c"}
    given_way = urgent("u1", seconds=one, gets="a", asked_s=5.0)
    assert asked([given_way, urgent("u2", seconds=everywhere)], trains("a"), trains("b", "desk")) == {"u2": "b"}


def test_it_is_asked_for_and_the_place_kept_for_so_long_each() -> None:
    long_s = POLICY.give_way_s
    assert stands_until(1000.0, None, POLICY) == 1000.0 + long_s
    assert stands_until(1000.0, 1030.0, POLICY) == 1030.0 + long_s
    assert stands_until(1000.0, 9000.0, POLICY) == 1000.0 + 2 * long_s, "who stayed far longer keeps nothing"


SECONDS = st.floats(0.0, 1e5)
TRAINS = st.builds(
    Trains,
    claim_id=st.integers(0, 99).map(str),
    job_id=st.integers(0, 99).map(str),
    host=st.sampled_from(["pi", "desk", "away"]),
    held=st.builds(lambda cores, ram: Held(Booking(cores, ram)), st.integers(1, 4), st.floats(0.1, 8.0)),
    left_s=SECONDS,
    priority=st.integers(-1, 1),
    urgent=st.booleans(),
    resumable=st.booleans(),
    grants_left=st.integers(0, 3),
    asked_s=st.just(math.inf) | SECONDS,
)
URGENT = st.builds(
    Urgent,
    job_id=st.integers(100, 120).map(str),
    needs=st.builds(lambda cores, ram: needs(min_cores=cores, min_ram_gib=ram), st.integers(0, 4), st.floats(0.0, 8.0)),
    seconds=st.dictionaries(st.sampled_from(["pi", "desk", "away"]), SECONDS),
    priority=st.integers(-1, 1),
    behind=st.sets(st.sampled_from(["pi", "desk"])),
    asked_s=st.just(math.inf) | SECONDS,
    gets=st.none() | st.integers(0, 99).map(str),
)
SLOTS = st.fixed_dictionaries({"pi": st.integers(1, 4), "desk": st.integers(1, 4)})


@given(
    st.lists(URGENT, max_size=4, unique_by=lambda each: each.job_id),
    st.lists(TRAINS, max_size=6, unique_by=lambda each: each.claim_id),
    SLOTS,
)
def test_every_interruption_keeps_every_promise(
    waiting: list[Urgent], training: list[Trains], slots: dict[str, int]
) -> None:
    hosts = {name: replace(HOSTS[name], slots=count) for name, count in slots.items()}
    found = interruption.interruptions(waiting, hosts, training, POLICY)
    jobs, runs = {each.job_id: each for each in waiting}, {each.claim_id: each for each in training}
    assert len({each.claim_id for each in found}) == len({each.job_id for each in found}) == len(found)
    for each in found:
        job, run = jobs[each.job_id], runs[each.claim_id]
        assert run.resumable
        assert not run.urgent
        assert run.priority <= job.priority
        assert run.grants_left > 1
        assert min(run.asked_s, job.asked_s) >= POLICY.give_way_again_s
        assert run.host in hosts
        assert run.host not in job.behind
        assert each.claim_id != job.gets
        assert each.done_s + POLICY.move_s < each.waiting_s, "it is worth a move"
        assert each.done_s == POLICY.move_s + job.seconds[run.host]
    for first in found[:1]:  # before it nobody took a place
        if waiting[0].job_id != first.job_id:
            continue
        host, run = hosts[first.host], runs[first.claim_id]
        assert run.left_s > 2 * POLICY.move_s, "it does not end soon anyway"
        beside = [other.held for other in training if other.host == run.host and other is not run]
        assert len(beside) < booking.most_at_once(host)
        assert booking.lacks_room(waiting[0].needs, booking.beside(host, beside)) is None
