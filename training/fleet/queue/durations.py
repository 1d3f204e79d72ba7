"""The newest completed attempts, from whose rows :mod:`training.fleet.scheduling.durations` learns."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from training.fleet.database.writer import Database
from training.fleet.scheduling.durations import Machine, Speeds, Workload

LEARNED_FROM = 5_000  # attempts, the newest
_KIB_PER_GIB = 1024**2


@dataclass(frozen=True, slots=True)
class Trained:
    """A completed attempt: its work, its host, and what it took."""

    work: Workload
    spec: Mapping[str, Any]
    on: Machine
    seconds: float
    ram_gib: float | None  # at its peak; None: not known


def newest(db: Database, most: int = LEARNED_FROM) -> list[Trained]:
    """Read the newest completed attempts that trained from their beginning, oldest first."""
    rows = reversed(db.all("attempts_timed", most=most))
    found = []
    for row in rows:
        seconds = _positive(row["train_s"])
        if seconds is None:
            continue
        spec = json.loads(row["spec"])
        kib = _positive(row["max_rss_kib"])
        on = Machine(row["host"], bool(row["cuda"]))
        found.append(Trained(Workload.of(spec), spec, on, seconds, None if kib is None else kib / _KIB_PER_GIB))
    return found


def _positive(value: object) -> float | None:
    """Return a finite number above zero as it stands in a worker's record; anything else is not known."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        return None
    return float(value)


def learn(attempts: list[Trained]) -> Speeds:
    """Learn durations from attempts, oldest first."""
    speeds = Speeds()
    for each in attempts:
        speeds.learn(each.work, each.on, each.seconds)
    return speeds
