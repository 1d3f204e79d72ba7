"""PURE: a last look at the host before a trainer starts: is what it is booked for still there, and which GPU is it?

The receiver books by what the worker said a moment ago, perhaps half a minute. Meanwhile another program may have
taken it, or a neighbour more than it was booked for. A job that does not fit any more is handed back, which costs
nothing: it is granted again, here or elsewhere, where there is room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from training.fleet.scheduling.resources import Booking, HeldAttempt

VISIBLE = "CUDA_VISIBLE_DEVICES"
HIDDEN = "-1"  # an empty value would be none on Windows
# Of numerical libraries, for trainers of one's own: ours are told by a flag.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class NoRoomError(Exception):
    """The host has no room any more for a trainer that was to start; in one sentence."""


def check(booked: Booking, capability: Mapping[str, Any], others: Sequence[HeldAttempt]) -> None:
    """Raise NoRoomError where a trainer does not fit beside these ``others``, which run or are about to.

    Memory is looked at only beside others; that of its GPU always, as every program of the host may have taken it. A
    value missing from the capability counts as sufficient.
    """
    coming = sum(max(0.0, each.booking.ram_gib - each.ram_used_gib) for each in others)
    free = capability.get("ram_available_gib")
    if others and isinstance(free, int | float) and free - coming < booked.least_ram_gib:
        raise NoRoomError(_sentence("memory", booked.least_ram_gib, free - coming))
    if booked.gpu is None:
        return
    devices = capability.get("cuda_devices")
    if not isinstance(devices, list) or booked.gpu >= len(devices):
        raise NoRoomError(f"the GPU that it was to train on, number {booked.gpu}, is gone; it is tried again")
    on_it = [each for each in others if each.booking.gpu == booked.gpu]
    coming = sum(max(0.0, each.booking.vram_gib - each.vram_used_gib) for each in on_it)
    free = devices[booked.gpu].get("vram_free_gib")
    if isinstance(free, int | float) and free - coming < booked.least_vram_gib:
        raise NoRoomError(_sentence("GPU memory", booked.least_vram_gib, free - coming))


def _sentence(what: str, wanted: float, left: float) -> str:
    return (
        f"{what} vanished before it started: {wanted:.1f} GiB wanted, {max(0.0, left):.1f} left beside other trainers "
        "and programs; it is tried again where there is room"
    )


def variables(booked: Booking, capability: Mapping[str, Any], visible: str | None, *, own: bool) -> dict[str, str]:
    """Return the variables that limit a trainer beside others to its part: its GPU, and its threads if it is an ``own``
    one. ``visible`` is :data:`VISIBLE` of the worker."""
    threads = dict.fromkeys(THREADS, str(booked.cores)) if own else {}
    devices = capability.get("cuda_devices")
    names = names_of(devices if isinstance(devices, list) else [], visible)
    if booked.gpu is None:
        return {**threads, VISIBLE: HIDDEN} if names else threads
    return {**threads, VISIBLE: names[booked.gpu]} if booked.gpu < len(names) else threads


def names_of(devices: Sequence[Mapping[str, Any]], visible: str | None) -> list[str]:
    """Return the devices' names for :data:`VISIBLE`, in the order of ``devices``; none when the two do not fit."""
    if visible is None:
        return [str(number) for number in range(len(devices))]
    named = [name.strip() for name in visible.split(",")]
    return named if len(named) == len(devices) else []
