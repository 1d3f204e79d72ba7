"""Fleets whose memory gets tight: trainers hold some of it, and so do other programs of the machine, now and then.

In some fleets with slots, from a seed on, so that earlier ones go on meaning what they meant. What is drawn here has
chance of its own, by seed and name. Nobody runs out of it here: that is drawn elsewhere (:mod:`simulation.illness`).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

TIGHT_FROM = 60_000
_CHANGES_S = 600.0  # other programs take what they want for so long


def is_tight(seed: int, *, slots: bool) -> bool:
    """Return True when this seed's memory is tight; ``slots``: its hosts hold several jobs."""
    return slots and seed >= TIGHT_FROM


def machine(seed: int, name: str) -> dict[str, Any]:
    """Return what a machine has, in the words of its capability, all of it free."""
    chance = random.Random(f"{seed}/tight/{name}")
    ram, gpus = chance.choice([4.0, 8.0, 16.0]), chance.choice([0, 1, 1, 2])
    return {
        "cpu_cores": chance.choice([2, 4, 8]),
        "ram_available_gib": ram,
        "ram_total_gib": ram,
        "cuda_available": gpus > 0,
        "cuda_devices": [{"name": "gpu", "vram_free_gib": 8.0, "vram_total_gib": 8.0} for _ in range(gpus)],
    }


def declared(seed: int, name: str) -> dict[str, Any]:
    """Return what its owner keeps of a GPU."""
    chance = random.Random(f"{seed}/tight reserve/{name}")
    return {"reserve_vram_gib": chance.choice([0.5, 2.0])} if chance.random() < 0.4 else {}


def wishes(seed: int, job_id: str) -> dict[str, int]:
    """Return what a job asks for beside memory: of some, several cores or threads."""
    chance = random.Random(f"{seed}/wishes/{job_id}")
    wanted = {"min_cores": 2} if chance.random() < 0.3 else {}
    return wanted | ({"threads": chance.choice([1, 2, 3])} if chance.random() < 0.4 else {})


def peak(seed: int, job_id: str) -> tuple[float, float]:
    """Return what a job's trainer holds at most: memory, and that of a GPU where it trains on one."""
    chance = random.Random(f"{seed}/peak/{job_id}")
    return chance.choice([0.3, 1.0, 2.0, 3.5]), chance.choice([0.5, 2.0, 3.0, 6.0])


def taken(seed: int, name: str, now: float, gpu: int | None = None) -> float:
    """Return the share of a machine's memory, or of a GPU's, that other programs hold."""
    chance = random.Random(f"{seed}/taken/{name}/{gpu}/{int(now / _CHANGES_S)}")
    return chance.choice([0.0, 0.0, 0.1, 0.5])


Holding = tuple[float, float, int | None]  # a trainer's memory, its GPU's, and which that is


def free_now(
    seed: int, name: str, now: float, capability: Mapping[str, Any], held: Iterable[Holding], *, calm: bool
) -> dict[str, Any]:
    """Return the capability with what is free at this moment beside these trainers."""
    trainers = list(held)
    foreign = 0.0 if calm else taken(seed, name, now) * capability["ram_total_gib"]
    ram = capability["ram_total_gib"] - foreign - sum(each for each, _, _ in trainers)
    devices = []
    for n, device in enumerate(capability["cuda_devices"]):
        foreign = 0.0 if calm else taken(seed, name, now, n) * device["vram_total_gib"]
        here = sum(vram for _, vram, gpu in trainers if gpu == n)
        devices.append({**device, "vram_free_gib": max(0.0, device["vram_total_gib"] - foreign - here)})
    return {**capability, "ram_available_gib": max(0.0, ram), "cuda_devices": devices}


def at_best(capability: Mapping[str, Any]) -> dict[str, Any]:
    """Return a capability as if all of the memory were free; of machines that say no totals as it is."""
    devices = [
        {**each, "vram_free_gib": each.get("vram_total_gib", each["vram_free_gib"])}
        for each in capability.get("cuda_devices", [])
    ]
    ram = capability.get("ram_total_gib", capability.get("ram_available_gib", 0.0))
    return {**capability, "ram_available_gib": ram, "cuda_devices": devices}
