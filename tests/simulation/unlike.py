"""Fleets whose machines are unlike and whose trainers tell tales of time: every other one, those that grant soonest.

What is drawn here has chance of its own, by seed and name, so that nothing else of a seed depends on it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

_FASTEST, _SLOWEST = 1 / 16, 3.0  # of a machine, as factors of a job's time: almost fifty-fold
_WRONG = 5.0  # factor by which a duration is reported wrong, at most
_NONSENSE: tuple[object, ...] = (None, "nan", -1.0, 0, 1e300, True, [3.0], 1e-300)  # in a record, as JSON has it
_NO_FIGURES: tuple[object, ...] = (math.nan, -3.0, 1e300, math.inf, "soon", None, -1e300)  # in what a trainer prints


def is_unlike(seed: int) -> bool:
    """Return True when this seed's machines are unlike, and its plan is to be done soonest."""
    return seed % 2 == 1


def slowness(seed: int, machine: str) -> float:
    """Return the factor by which trainers take longer there."""
    if not is_unlike(seed):
        return 1.0
    chance = random.Random(f"{seed}/slowness/{machine}")
    return math.exp(chance.uniform(math.log(_FASTEST), math.log(_SLOWEST)))


def slowest(seed: int) -> float:
    """Return what :func:`slowness` is at most."""
    return _SLOWEST if is_unlike(seed) else 1.0


def making_s(seed: int) -> float | None:
    """Return how long a schedule takes to make at most; None: it is made at the ask, at once."""
    chance = random.Random(f"{seed}/making")
    return chance.choice([0.0, 0.05, 1.0, 20.0]) if seed % 10 in (5, 7) else None


def calibration(seed: int, machine: str) -> dict[str, Any]:
    """Return what the machine's capability says of its speed: often right, often wrong by far, sometimes nonsense."""
    if not is_unlike(seed):
        return {}
    chance = random.Random(f"{seed}/calibration/{machine}")
    wrong = chance.choice([1.0, 1.0, _WRONG ** chance.uniform(-1.0, 1.0), 10.0, 0.1])
    speed = wrong / slowness(seed, machine)
    told: dict[str, Any] = {"gflops": 100.0 * speed, "steps": 1000.0 * speed}
    if chance.random() < 0.2:
        told[chance.choice(["gflops", "steps"])] = chance.choice(_NONSENSE)
    return {"calibration": told}


def reported(seed: int, claim_id: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the worker's record of an attempt says of its duration."""
    told = dict(record)
    chance = random.Random(f"{seed}/record/{claim_id}")
    if not is_unlike(seed):
        return told
    if chance.random() < 0.2:
        told["train_s"] = chance.choice(_NONSENSE)
    elif isinstance(told.get("train_s"), float):
        told["train_s"] *= _WRONG ** chance.uniform(-1.0, 1.0)
    return told


def progress(seed: int, claim_id: str, epoch: int, epochs: int, elapsed_s: float) -> dict[str, Any]:
    """Return what a trainer says of its progress beside the epoch: as it is, wrong, or nonsense."""
    if not is_unlike(seed):
        return {}
    chance = random.Random(f"{seed}/progress/{claim_id}/{epoch}")
    left_s = elapsed_s * (epochs - epoch) / max(epoch, 1)
    told: dict[str, Any] = {"epochs": epochs, "seconds": elapsed_s, "eta_s": left_s * _WRONG ** chance.uniform(-1, 1)}
    for name in told:
        if chance.random() < 0.1:
            told[name] = chance.choice(_NO_FIGURES)
    return told
