"""PURE: check just before a trainer starts whether its booked memory and GPU are still free, and choose its environment
variables.

The receiver books memory by the worker's last report, which may be half a minute old. Since the worker's last report
another program, or another trainer, may have taken memory. The worker hands back a job that no longer fits, which
counts against neither host nor job. The receiver grants a handed-back job again where there is room.
"""

from collections.abc import Sequence

from training.fleet.scheduling.resources import Booking, HeldAttempt
from training.strict_json import Json

VISIBLE = "CUDA_VISIBLE_DEVICES"
HIDDEN = "-1"  # an empty value would be none on Windows
# Of numerical libraries, for trainers of one's own: ours are told by a flag.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class NoRoomError(Exception):
    """The host no longer has room for the trainer that was about to start."""


def check(booked: Booking, capability: Json, others: Sequence[HeldAttempt]) -> None:
    """Raise NoRoomError if a trainer with this booking no longer fits beside ``others``, which run or are about to
    start.

    Host memory is checked only if there are others and some of it must be free; the memory of a booked GPU is always
    checked, because any program may have taken it. Unknown free memory counts as sufficient; a booked GPU that is
    missing raises NoRoomError.
    """
    coming = sum(max(0.0, each.booking.ram_gib - each.ram_used_gib) for each in others)
    free = capability.get("ram_available_gib")
    if others and booked.least_ram_gib and free is not None and free - coming < booked.least_ram_gib:
        raise NoRoomError(_sentence("memory", booked.least_ram_gib, free - coming))
    if booked.gpu is None:
        return
    devices = capability.get("cuda_devices") or ()
    if booked.gpu >= len(devices):
        raise NoRoomError(f"GPU {booked.gpu}, on which the trainer was to run, is gone; the job is tried again")
    on_it = [each for each in others if each.booking.gpu == booked.gpu]
    coming = sum(max(0.0, each.booking.vram_gib - each.vram_used_gib) for each in on_it)
    free = devices[booked.gpu].get("vram_free_gib")
    if free is not None and free - coming < booked.least_vram_gib:
        raise NoRoomError(_sentence("GPU memory", booked.least_vram_gib, free - coming))


def _sentence(what: str, wanted: float, left: float) -> str:
    return (
        f"{what} vanished before the start: {wanted:.1f} GiB wanted, {max(0.0, left):.1f} left beside other trainers "
        "and programs; the job is tried again where there is room"
    )


def variables(booked: Booking, capability: Json, visible: str | None, *, own: bool) -> dict[str, str]:
    """Return the environment variables that limit a trainer to its booked GPU, or hide all GPUs if it booked none. For
    a custom (``own``) trainer, variables are added that limit the threads of numerical libraries to its booked cores.
    ``visible`` is the worker's own ``CUDA_VISIBLE_DEVICES``; if it does not match the devices, no variable for the GPU
    is set."""
    threads = dict.fromkeys(THREADS, str(booked.cores)) if own else {}
    names = names_of(capability.get("cuda_devices") or (), visible)
    if booked.gpu is None:
        return {**threads, VISIBLE: HIDDEN} if names else threads
    return {**threads, VISIBLE: names[booked.gpu]} if booked.gpu < len(names) else threads


def names_of(devices: Sequence[Json], visible: str | None) -> list[str]:
    """Return the devices' names for ``CUDA_VISIBLE_DEVICES``, in the order of ``devices``; empty if ``visible`` names
    another number of devices."""
    if visible is None:
        return [str(number) for number in range(len(devices))]
    named = [name.strip() for name in visible.split(",")]
    return named if len(named) == len(devices) else []
