"""Intervals of small rates over episodes: Korn and Graubard's, which still reaches upwards where few episodes alarm.

The windows of an episode repeat each other, so a rate carries as much as the number of independent windows that would
vary as little as the episodes do. With that number the exact binomial interval (Clopper and Pearson) is taken. The
percentiles of a bootstrap cannot show an episode louder than those drawn, and lie wholly below the truth too often.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from training.trainer.evaluation.intervals import CONFIDENCE, FloatArray

TAIL = (1 - CONFIDENCE) / 2


def rate_interval(alarms: FloatArray, windows: FloatArray) -> tuple[float, float] | None:
    """The 95 % interval of sum(``alarms``) over sum(``windows``), both (E,) by episode; None for fewer than two.

    The episode that is farthest from the common rate counts twice in the variance: where few episodes alarm at all,
    those seen are seldom the loudest there are. Where none alarms, or all windows do, every episode counts as one.
    """
    there = windows > 0
    alarms, windows = alarms[there], windows[there]
    episodes, total = int(windows.size), float(windows.sum())
    if episodes < 2:
        return None
    rate = float(alarms.sum()) / total
    if rate in (0.0, 1.0):
        return exact_interval(rate * episodes, float(episodes))
    squared = np.square((alarms - rate * windows) / total)
    variance = episodes / (episodes - 1) * float(squared.sum() + squared.max())
    number = rate * (1 - rate) / variance if variance > 0 else total
    freedom = stats.norm.isf(TAIL) / stats.t.isf(TAIL, episodes - 1)
    number = min(number * float(freedom) ** 2, total)
    return exact_interval(rate * number, number)


def exact_interval(hits: float, number: float) -> tuple[float, float]:
    """Clopper and Pearson's interval for ``hits`` of ``number``, neither of them necessarily whole."""
    missed = number - hits
    low = float(stats.beta.ppf(TAIL, hits, missed + 1)) if hits > 0 else 0.0
    high = float(stats.beta.isf(TAIL, hits + 1, missed)) if missed > 0 else 1.0
    return low, high
