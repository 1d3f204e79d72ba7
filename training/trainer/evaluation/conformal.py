"""Split-conformal thresholds: the bound that n values allow to promise for the next value."""

from __future__ import annotations

from math import floor

import numpy as np
from scipy import stats

from training.data.values import Floats
from training.trainer.evaluation.intervals import CONFIDENCE


def conformal(values: Floats, target: float) -> float | None:
    """The ceil((n + 1)(1 - target))-th smallest of n values; None if that number exceeds n.

    At most a share ``target`` of further values of the same kind exceeds it.
    """
    allowed = allowed_alarms(values.size, target)
    return None if allowed < 1 else float(np.partition(values, values.size - allowed)[values.size - allowed])


def allowed_alarms(n: int, target: float) -> int:
    """Return floor((n + 1) target): the benign scores of n that may reach the threshold.

    The small term keeps 0.05 * 20 = 0.999… from losing one.
    """
    return floor((n + 1) * target + 1e-9)


def needed(target: float) -> int:
    n = max(1, floor(1 / target) - 2)
    while allowed_alarms(n, target) < 1:
        n += 1
    return n


def realised_spread(n: int, target: float) -> tuple[float, float]:
    """The rate above the chosen one of n exchangeable scores is Beta((n + 1) target, (n + 1)(1 - target))."""
    tails = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    low, high = stats.beta.ppf(tails, (n + 1) * target, (n + 1) * (1 - target))
    return float(low), float(high)
