"""Fleets with urgent jobs: every third one of those whose work moves, that is, of those that train several jobs a host.

What is drawn here has chance of its own, by seed, so that nothing else of a seed depends on it.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from training.fleet.scheduling.policy import Policy

_FROM, _EVERY, _URGENT = 83, 12, 11


def is_urgent(seed: int) -> bool:
    """Return True when jobs of this seed's plan are urgent."""
    return seed >= _FROM and seed % _EVERY == _URGENT


def policy(seed: int, drawn: Policy) -> Policy:
    """Return the policy with times of this fleet's pace: heartbeats come up to three times a lease."""
    if not is_urgent(seed):
        return drawn
    chance, lease_s = random.Random(f"{seed}/giving way"), drawn.stale_after_s
    return replace(
        drawn,
        move_s=lease_s * chance.choice([0.02, 0.1, 0.3]),
        max_grants=max(10, drawn.max_grants),
        give_way_s=lease_s * chance.choice([0.7, 1.5]),
        give_way_again_s=lease_s * chance.choice([2.0, 4.0]),
    )


def machines(seed: int) -> int | None:
    """Return how many machines there are at most; None: as many as were drawn."""
    return 3 if is_urgent(seed) else None


def slots(seed: int, machine: str) -> dict[str, Any]:
    """Return how many jobs a machine trains at once: so few that jobs wait."""
    return {"slots": random.Random(f"{seed}/few slots/{machine}").choice([1, 1, 2])} if is_urgent(seed) else {}


def marked(seed: int, jobs: list[dict[str, Any]], share: float) -> list[dict[str, Any]]:
    """Return the jobs, some of them urgent."""
    if not is_urgent(seed):
        return jobs
    chance = random.Random(f"{seed}/urgent")
    return [job | {"urgent": True} if chance.random() < share else job for job in jobs]


def plain(seed: int, job: dict[str, Any]) -> dict[str, Any]:
    """Return an urgent job that suits most machines and waits behind few, as one does for which others give way."""
    chance = random.Random(f"{seed}/plain/{job['name']}")
    asks = ("min_ram_gib", "min_vram_gib", "require_cuda", "prefer_cuda", "allowed_hosts")
    made = {key: value for key, value in job.items() if key not in asks or chance.random() < 0.05}
    return made | ({"priority": 100} if chance.random() < 0.7 else {})


def works_s(seed: int, job: dict[str, Any], drawn_s: float) -> float:
    """Return how long a job's trainer works: urgent jobs are short beside those that give way to them."""
    return drawn_s * (0.3 if job.get("urgent") else 3.0) if is_urgent(seed) else drawn_s


def moments(seed: int, stormy_s: float, lease_s: float, count: int) -> list[float]:
    """Return when urgent jobs come: in the storm, and in calm weather after it."""
    chance = random.Random(f"{seed}/urgent moments")
    calm = [stormy_s + lease_s * chance.uniform(1.0, 6.0) for _ in range(count // 2)]
    return sorted([*calm, *(stormy_s * chance.uniform(0.1, 1.0) for _ in range(count - len(calm)))])
