"""PURE: check the host once more before a trainer starts: whether its booking is still free, and which GPU it gets.

The receiver books by what the worker reported up to half a minute before. Since then another program, or another
trainer, may have taken memory. A job that no longer fits is handed back, which counts against neither host nor job: it
is granted again where there is room.
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
    """The host no longer has room for the trainer that was about to start."""


def check(booked: Booking, capability: Mapping[str, Any], others: Sequence[HeldAttempt]) -> None:
    """Raise NoRoomError if a trainer does not fit beside these ``others``, which run or are about to start.

    The host's memory is checked only if there are others; GPU memory always, because any program may have taken it. A
    value missing from the capability counts as sufficient.
    """
    coming = sum(max(0.0, each.booking.ram_gib - each.ram_used_gib) for each in others)
    free = capability.get("ram_available_gib")
    if others and free is not None and free - coming < booked.least_ram_gib:
        raise NoRoomError(_sentence("memory", booked.least_ram_gib, free - coming))
    if booked.gpu is None:
        return
    devices = capability.get("cuda_devices") or ()
    if booked.gpu >= len(devices):
        raise NoRoomError(f"the GPU that it was to train on, number {booked.gpu}, is gone; it is tried again")
    on_it = [each for each in others if each.booking.gpu == booked.gpu]
    coming = sum(max(0.0, each.booking.vram_gib - each.vram_used_gib) for each in on_it)
    free = devices[booked.gpu].get("vram_free_gib")
    if free is not None and free - coming < booked.least_vram_gib:
        raise NoRoomError(_sentence("GPU memory", booked.least_vram_gib, free - coming))


def _sentence(what: str, wanted: float, left: float) -> str:
    return (
        f"{what} vanished before it started: {wanted:.1f} GiB wanted, {max(0.0, left):.1f} left beside other trainers "
        "and programs; it is tried again where there is room"
    )


def variables(booked: Booking, capability: Mapping[str, Any], visible: str | None, *, own: bool) -> dict[str, str]:
    """Return the variables that limit a trainer beside others to its GPU, and a custom (``own``) trainer also to its
    threads. ``visible`` is :data:`VISIBLE` of the worker."""
    threads = dict.fromkeys(THREADS, str(booked.cores)) if own else {}
    names = names_of(capability.get("cuda_devices") or (), visible)
    if booked.gpu is None:
        return {**threads, VISIBLE: HIDDEN} if names else threads
    return {**threads, VISIBLE: names[booked.gpu]} if booked.gpu < len(names) else threads


def names_of(devices: Sequence[Mapping[str, Any]], visible: str | None) -> list[str]:
    """Return the devices' names for :data:`VISIBLE`, in the order of ``devices``; none if names and devices do not
    match."""
    if visible is None:
        return [str(number) for number in range(len(devices))]
    named = [name.strip() for name in visible.split(",")]
    return named if len(named) == len(devices) else []
