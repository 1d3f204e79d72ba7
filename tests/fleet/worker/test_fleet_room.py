"""A worker's last look before a trainer starts."""

from __future__ import annotations

import pytest

from training.fleet.scheduling.resources import Booking, HeldAttempt
from training.fleet.worker import start_check


def here(ram=8.0, *vram):
    return {"ram_available_gib": ram, "cuda_devices": [{"vram_free_gib": gib} for gib in vram]}


NEIGHBOUR = HeldAttempt(
    Booking(ram_gib=3.0, vram_gib=4.0, gpu=0), ram_used_gib=1.0, vram_used_gib=1.0
)  # 2 and 3 are to come


@pytest.mark.parametrize(
    ("booked", "there", "others", "lacks"),
    [
        (Booking(least_ram_gib=6.0), here(8.0), [NEIGHBOUR], None),
        (Booking(least_ram_gib=6.1), here(8.0), [NEIGHBOUR], "memory vanished before the start: 6.1 GiB wanted, 6.0"),
        (Booking(ram_gib=6.0), here(1.0), [NEIGHBOUR], None),  # of which nobody asked for any
        (Booking(least_ram_gib=9.0), here(8.0), [], None),  # it shares with nobody
        (Booking(least_ram_gib=9.0), {}, [NEIGHBOUR], None),  # nobody knows
        (Booking(gpu=0, least_vram_gib=5.0), here(8.0, 8.0), [NEIGHBOUR], None),
        (Booking(gpu=0, least_vram_gib=5.1), here(8.0, 8.0), [NEIGHBOUR], "GPU memory vanished before the start: 5.1"),
        (Booking(gpu=1, least_vram_gib=8.0), here(8.0, 8.0, 8.0), [NEIGHBOUR], None),  # the other one is on GPU 0
        (Booking(gpu=0, least_vram_gib=4.0), here(8.0, 3.0), [], "GPU memory vanished before the start: 4.0"),
        (Booking(gpu=1), here(8.0, 8.0), [], "GPU 1, on which"),
    ],
)
def test_what_is_booked_must_still_be_there(booked, there, others, lacks):
    if lacks is None:
        start_check.check(booked, there, others)
    else:
        with pytest.raises(start_check.NoRoomError, match=lacks):
            start_check.check(booked, there, others)


def lack(booked, there, *others):
    """Return what is lacking, or an empty text."""
    try:
        start_check.check(booked, there, others)
    except start_check.NoRoomError as error:
        return str(error).partition(" vanished")[0]
    return ""


def test_memory_is_looked_at_again():
    assert lack(Booking(least_ram_gib=6.1), here(8.0), NEIGHBOUR) == "memory"


def test_the_memory_of_a_gpu_is_looked_at_again():
    assert lack(Booking(gpu=0, least_vram_gib=4.0), here(8.0, 3.0)) == "GPU memory"


@pytest.mark.parametrize(
    ("booked", "devices", "visible", "seen"),
    [
        (Booking(gpu=1), 2, None, "1"),
        (Booking(gpu=1), 2, "2,GPU-ab", "GPU-ab"),
        (Booking(gpu=0), 1, "3", "3"),
        (Booking(gpu=0), 2, "3", None),  # these are not the devices that were probed
        (Booking(), 2, None, "-1"),  # it computes on the CPU beside those that use them
        (Booking(), 0, None, None),
    ],
)
def test_a_trainer_sees_its_gpu_alone(booked, devices, visible, seen):
    there = here(8.0, *[8.0] * devices)
    assert start_check.variables(booked, there, visible, own=False).get(start_check.VISIBLE) == seen


def test_trainers_of_ones_own_are_told_their_threads_by_variables():
    told = start_check.variables(Booking(cores=3), here(), None, own=True)
    assert told == dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "3")
