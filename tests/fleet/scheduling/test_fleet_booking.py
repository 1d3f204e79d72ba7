"""Booking: nothing is booked twice, a reserve is kept, and a job that waits for room gets it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training import families
from training.families import FAMILIES
from training.fleet.scheduling import booking, threads
from training.fleet.scheduling.job import Host, Needs
from training.fleet.scheduling.policy import fits
from training.fleet.scheduling.resources import Booking, Gpu, HeldAttempt, Peak


def a_host(cores=4, ram=8.0, vram=(), free=None, **declared):
    can = {
        "cpu_cores": cores,
        "ram_total_gib": ram,
        "ram_available_gib": ram if free is None else free,
        "cuda_available": bool(vram),
        "cuda_devices": [{"vram_free_gib": gib, "vram_total_gib": gib} for gib in vram],
    }
    return Host.of("desk", can, declared)


def a_job(model="gbt", **asked):
    peak = Peak(asked.pop("held", None), asked.pop("held_vram", None))
    return replace(Needs.of({"model": model, **asked}), peak=peak)


def after(host, *jobs):
    """Grant these jobs as far as they fit, one after the other; none uses anything yet."""
    held = []
    for job in jobs:
        there = booking.beside(host, held)
        if fits(job, there) is None:
            held.append(HeldAttempt(booking.book(job, there)))
    return booking.beside(host, held), held


# ── what a job books ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("host", "job", "booked"),
    [
        (a_host(), a_job(), Booking(1, 2.0)),  # an equal share: a quarter of the memory, for one of four cores
        (a_host(), a_job(min_cores=2), Booking(2, 4.0)),
        (a_host(), a_job(threads=3), Booking(3, 6.0)),
        (a_host(), a_job(min_ram_gib=3.0), Booking(1, 3.0)),  # what it asks for
        (a_host(), a_job(held=5.0), Booking(1, 6.0)),  # a fifth more than it held
        (a_host(), a_job(held=1.0, min_ram_gib=3.0), Booking(1, 3.0)),
        (a_host(), a_job(held=50.0), Booking(1, 8.0)),  # it gets all there is
        (a_host(slots=2), a_job(), Booking(1, 4.0)),
        (a_host(vram=(8.0,)), a_job("cnn"), Booking(1, 2.0, 8.0)),  # nothing is known: a GPU of its own
        (a_host(vram=(8.0,), slots=2), a_job("cnn"), Booking(1, 4.0, 3.2)),
        (a_host(vram=(8.0, 8.0), slots=2), a_job("cnn"), Booking(1, 4.0, 8.0)),
        (a_host(vram=(8.0,)), a_job("cnn", min_vram_gib=3.0), Booking(1, 2.0, 3.0)),
        (a_host(vram=(8.0,)), a_job("cnn", held_vram=5.0), Booking(1, 2.0, 6.0)),
        (a_host(vram=(8.0,)), a_job("cnn", min_vram_gib=9.0), Booking(1, 2.0)),  # too small counts as none
        (a_host(vram=(8.0,)), a_job("gbt"), Booking(1, 2.0)),
        (a_host(vram=(8.0,), cuda=False), a_job("cnn"), Booking(1, 2.0)),
    ],
)
def test_what_a_job_is_booked_for(host, job, booked):
    assert booking.demand(job, host) == booked


@pytest.mark.parametrize(
    ("job", "least"),
    [({}, 1.0), ({"min_ram_gib": 3.0}, 4.0), ({"held": 2.0}, 3.4), ({"held": 7.0}, 7.3)],
    ids=["nobody asked", "the plan did", "jobs like it held some", "as much as is left"],
)
def test_only_memory_that_was_asked_for_must_be_there_at_the_start(job, least):
    there, _ = after(a_host(ram=8.0, slots=2, reserve_ram_gib=1.0))
    assert booking.book(a_job(**job), there).least_ram_gib == pytest.approx(least)


# ── what is left ────────────────────────────────────────────────────────────────────────────


def test_of_two_that_need_the_last_gib_one_gets_it():
    there, held = after(a_host(ram=4.0), a_job(held=2.5), a_job(held=0.8), a_job(held=0.8))
    assert [each.booking.ram_gib for each in held] == pytest.approx([3.0, 0.96])
    assert fits(a_job(held=0.8), there) == "1.0 GiB of memory wanted, and 0.0 left beside 2 jobs"


def test_what_others_take_is_off_what_is_left():
    host = a_host(ram=8.0, free=5.0)  # a browser has 1, our trainer 2 of the 3 that it is booked for
    there = booking.beside(host, [HeldAttempt(Booking(1, 3.0), ram_used_gib=2.0)])
    assert there.room.ram_gib == pytest.approx(4.0)


def test_a_trainer_that_uses_more_than_it_is_booked_for_takes_it_off_what_is_free():
    there = booking.beside(a_host(ram=8.0, free=1.0), [HeldAttempt(Booking(1, 3.0), ram_used_gib=7.0)])
    assert there.room.ram_gib == pytest.approx(1.0)


def test_a_reserve_is_off_what_is_free_and_a_cap_bounds_what_is_booked():
    held = [HeldAttempt(Booking(1, 2.0), ram_used_gib=2.0)]
    reserved = booking.beside(a_host(ram=16.0, free=6.0, reserve_ram_gib=5.0), held)
    capped = booking.beside(a_host(ram=16.0, free=14.0, max_ram_gib=3.0), held)
    assert (reserved.room.ram_gib, capped.room.ram_gib) == (pytest.approx(1.0), pytest.approx(1.0))


def test_a_reserve_is_off_each_gpu():
    assert a_host(vram=(8.0, 4.0), reserve_vram_gib=1.5).gpus == (Gpu(6.5, 6.5), Gpu(2.5, 2.5))


def test_jobs_share_a_gpu_when_its_memory_allows_and_cpu_jobs_run_beside():
    host = a_host(cores=8, ram=64.0, vram=(8.0, 8.0))
    cnn = a_job("cnn", held_vram=3.0)  # books 3.6
    there, held = after(host, *[cnn] * 5, a_job("gbt"))
    assert [each.booking.gpu for each in held] == [0, 1, 0, 1, None]
    assert fits(cnn, there) == "3.6 GiB of a GPU's memory wanted, and 0.8 left beside 5 jobs"
    assert fits(a_job("gbt"), there) is None


def test_no_job_is_booked_more_memory_than_its_gpu_has():
    _, held = after(a_host(vram=(24.0, 8.0), slots=2), a_job("cnn"), a_job("cnn"))
    assert [(each.booking.gpu, each.booking.vram_gib) for each in held] == [(0, 24.0), (1, 8.0)]


def test_on_an_empty_host_a_job_needs_only_what_it_asks_for():
    host = a_host(ram=8.0, free=1.0, vram=(8.0,))
    assert fits(a_job("cnn", held=7.0, held_vram=7.0), host) is None


def test_more_slots_than_cores_are_the_operators_word():
    _, held = after(a_host(cores=1, slots=3), *[a_job()] * 5)
    assert [each.booking.cores for each in held] == [1, 1, 1]


def test_an_attempt_that_comes_back_has_its_place_unless_another_one_took_it():
    host, was = a_host(vram=(8.0,)), Booking(2, 4.0, 6.0, gpu=0)
    assert booking.takes_back(was, host, [])
    assert booking.takes_back(was, host, [HeldAttempt(Booking(2, 4.0))])
    assert not booking.takes_back(was, host, [HeldAttempt(Booking(1, 1.0, 3.0, gpu=0))])
    assert not booking.takes_back(was, host, [HeldAttempt(Booking(3, 1.0))])
    assert not booking.takes_back(was, host, [HeldAttempt(Booking(1, 4.1))])


_GIB = st.floats(0.1, 20.0)
_JOBS = st.builds(
    a_job,
    st.sampled_from(["gbt", "cnn"]),
    min_cores=st.integers(0, 4),
    min_ram_gib=st.sampled_from([0.0, 0.5, 4.0]),
    min_vram_gib=st.sampled_from([0.0, 1.0, 5.0]),
    held=st.none() | _GIB,
    held_vram=st.none() | _GIB,
)
_HOSTS = st.builds(
    a_host,
    cores=st.integers(1, 8),
    ram=_GIB,
    vram=st.lists(_GIB, max_size=3).map(tuple),
    slots=st.sampled_from(["auto", 1, 2, 5]),
    reserve_ram_gib=st.sampled_from([0.0, 1.0]),
    reserve_vram_gib=st.sampled_from([0.0, 1.0]),
    reserve_cores=st.sampled_from([0, 1]),
)


@settings(max_examples=60)
@given(_HOSTS, st.lists(_JOBS, max_size=8), st.floats(0.0, 1.0))
def test_nothing_is_booked_twice_and_reserves_are_kept(host, jobs, used):
    held = []
    for job in jobs:
        taken = sum(each.ram_used_gib for each in held)
        live = replace(host, ram_available_gib=max(0.0, host.ram_available_gib - taken))
        there = booking.beside(live, held)
        if fits(job, there) is None:
            made = booking.book(job, there)
            held.append(HeldAttempt(made, used * made.ram_gib, used * made.vram_gib))
    if len(held) > 1:
        assert sum(each.booking.cores for each in held) <= max(host.cores, host.slots)
        assert sum(each.booking.ram_gib for each in held) <= host.ram_total_gib + 1e-5
    for n, gpu in enumerate(host.gpus):
        here = [each.booking.vram_gib for each in held if each.booking.gpu == n]
        assert len(here) < 2 or sum(here) <= gpu.total_gib + 1e-5
    if held and not host.withheld:
        assert host.reserve_ram_gib <= held[0].booking.least_ram_gib


@settings(max_examples=40)
@given(_HOSTS, _JOBS)
def test_the_schedule_counts_no_more_than_the_booking_grants(host, job):
    _, most = booking.at_once(job, host)
    _, held = after(host, *[job] * 20)
    if held:
        assert most <= max(1, min(len(held), booking.most_at_once(host)))


# ── who goes before ─────────────────────────────────────────────────────────────────────────


def test_a_job_that_waits_for_room_keeps_others_from_taking_it():
    host, _ = after(a_host(), a_job(min_cores=2, held=1.0))
    wide = a_job(min_cores=4, held=1.0)
    assert fits(wide, host) == "4 cores wanted, and 2 cores left beside 1 job"
    assert not booking.goes_before(a_job(held=1.0), wide, host)


def test_what_ours_hold_is_free_afterwards_and_what_others_hold_is_not():
    host = a_host(ram=8.0, free=4.0, vram=(8.0,))
    held = [HeldAttempt(Booking(1, 4.0, 6.0, gpu=0), ram_used_gib=3.0, vram_used_gib=5.0)]
    there = booking.afterwards(booking.beside(replace(host, gpus=(Gpu(1.0, 8.0),), vram_free_gib=1.0), held))
    assert (there.ram_available_gib, there.vram_free_gib, there.room) == (7.0, 6.0, None)


def test_a_job_that_waits_for_a_gpu_lets_others_train_on_the_cpu():
    host, _ = after(a_host(vram=(8.0,)), a_job("cnn", held=1.0))
    waits = a_job("cnn", held=1.0)
    assert booking.goes_before(a_job("gbt", held=1.0), waits, host)
    assert not booking.goes_before(a_job("mlp", held=1.0, held_vram=0.5), waits, host)


# ── threads ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def scaling(monkeypatch):
    found = {"gbt": 0.9, "gru": 0.1}
    shared = {model: replace(FAMILIES[model], parallel=part) for model, part in found.items()}
    monkeypatch.setattr(families, "FAMILIES", shared)
    monkeypatch.setattr(threads, "FAMILIES", shared)


@pytest.mark.usefixtures("scaling")
@pytest.mark.parametrize(
    ("job", "jobs", "before", "count"),
    [
        (a_job("gbt"), 9, 0, 1),  # one core each, while there are jobs for the others
        (a_job("gbt"), 2, 0, 4),
        (a_job("gbt"), 1, 0, 4),  # the fifth would gain less than half of a core
        (a_job("gru"), 1, 0, 1),
        (a_job("own"), 1, 0, 8),  # nobody knows how it scales
        (a_job("gbt"), 1, 2, 2),  # its saved state is for two
        (a_job("gbt", threads=3), 1, 2, 3),  # the plan says so
        (a_job("gbt", min_cores=4), 9, 0, 4),
    ],
)
def test_threads_follow_from_what_is_left(job, jobs, before, count):
    host = a_host(cores=8)
    assert threads.threads_for(job, booking.demand(job, host), host, jobs=jobs, before=before) == count


@pytest.mark.usefixtures("scaling")
def test_a_duration_with_several_threads_is_learned_as_if_with_one():
    assert threads.speedup("gbt", Booking(cores=1)) == 1.0
    assert threads.speedup("gbt", Booking(cores=4)) == pytest.approx(1 / (0.1 + 0.9 / 4))
    assert threads.speedup("gbt", Booking(cores=4, gpu=0)) == 1.0
