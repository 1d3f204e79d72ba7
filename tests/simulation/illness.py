"""The draws of a seed beside the weather: jobs that crash their host, jobs that want much memory, hosts that fall ill.

A stream of chance of its own, so that the rest of a seed's scenario does not depend on it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from simulation.faults import Fault
from simulation.trainer import Fate
from training.fleet.scheduling.policy import Policy

SICK_S = 1.0  # after which everything dies on a sick host


@dataclass(frozen=True)
class Illness:
    """The illnesses of one seed's fleet."""

    poison_s: Mapping[str, float] = field(default_factory=dict)  # job → when its host crashes
    appetite: Mapping[str, tuple[Fault, float]] = field(default_factory=dict)  # GiB that do not do
    sick_per_h: float = 0.0
    complaints_per_h: float = 0.0

    @classmethod
    def draw(
        cls, seed: int, policy: Policy, capabilities: list[dict[str, Any]], jobs: Iterable[str], hours: float
    ) -> tuple[Illness, Policy]:
        """Draw the illnesses, and the policy with its rules for them."""
        chance = random.Random(f"{seed}/illness")
        policy = replace(
            policy,
            odd_deaths=chance.choice([0, 2, 3, 3]),
            odd_death_s=chance.choice([5.0, 60.0]),
            suspect_crashes=chance.choice([0, 1, 2, 2]),
            suspect_s=chance.choice([0.2, 2.0]) * policy.stale_after_s,
            short_run_s=chance.choice([0.0, 5.0, 60.0]),
            short_pause_max_s=chance.choice([2.0, 60.0]),
        )
        poison, appetite = {}, {}
        for job_id in jobs:
            if chance.random() < 0.06:
                poison[job_id] = chance.random() * 1.5 * policy.suspect_s
            elif chance.random() < 0.15:
                there = chance.choice(capabilities)
                vram = max((d["vram_free_gib"] for d in there["cuda_devices"]), default=0.0)
                if vram and chance.random() < 0.5:
                    appetite[job_id] = (Fault.OUT_OF_VRAM, vram)
                else:
                    appetite[job_id] = (Fault.OUT_OF_RAM, there["ram_available_gib"])
        often = chance.choice([0.0, 3.0, 8.0])
        seldom = chance.choice([0.0, 1.0, 4.0])
        return cls(poison, appetite, often / hours, seldom / hours), policy

    def strike(self, fate: Fate, job_id: str, capability: dict[str, Any], sick: Fault | None) -> Fate:
        """Decide the fate of a trainer of this job on a machine of this kind, which may be sick."""
        if sick is not None:
            return replace(fate, work_s=SICK_S, ending=sick, hangs=False)
        if job_id in self.appetite:
            fault, gib = self.appetite[job_id]
            if has(fault, capability) <= gib and (fault is Fault.OUT_OF_RAM or has(fault, capability)):
                return replace(fate, ending=fault, hangs=False)
        return fate


def has(fault: Fault, capability: dict[str, Any]) -> float:
    """Return how much of the memory that runs out with ``fault`` a machine has, in GiB."""
    if fault is Fault.OUT_OF_RAM:
        return float(capability["ram_available_gib"])
    devices = capability["cuda_devices"]
    return max((float(device["vram_free_gib"]) for device in devices), default=0.0)
