"""The GPU that a trainer gets, where a worker trains several jobs and has several GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"


def names_of(devices: Sequence[Mapping[str, Any]], visible: str | None) -> list[str]:
    """Return the devices' names for :data:`VISIBLE`, in the order of ``devices``; none when they do not fit together.

    ``devices`` are those of a capability, ``visible`` is the variable of this worker.
    """
    if visible is None:
        return [str(number) for number in range(len(devices))]
    named = [name.strip() for name in visible.split(",")]
    return named if len(named) == len(devices) else []


def choose(
    devices: Sequence[Mapping[str, Any]], names: Sequence[str], taken: Collection[str], min_vram_gib: float
) -> str | None:
    """Return the name of the GPU for a trainer that begins; None where there is no choice.

    Of those with as much free memory as the job asks for, the one that the fewest trainers have (``taken`` names one
    for each); of several, that with the most free memory.
    """
    if len(names) < 2:
        return None
    free = {name: _gib(device.get("vram_free_gib")) for name, device in zip(names, devices, strict=True)}
    count = Counter(taken)
    large = [name for name in names if free[name] >= min_vram_gib] or list(names)
    return min(large, key=lambda name: (count[name], -free[name], names.index(name)))


def _gib(said: object) -> float:
    return float(said) if isinstance(said, int | float) else 0.0
