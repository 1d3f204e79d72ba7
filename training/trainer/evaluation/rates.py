"""Intervals of small rates over episodes, after Korn and Graubard: they extend upwards even where few episodes alarm.

The windows of an episode repeat each other. An interval of a rate is computed as for fewer, independent windows: as
many as would make the rate vary as much as it varies between the episodes. For this number of independent windows the
exact binomial interval (Clopper and Pearson) is taken. The percentiles of a bootstrap cannot include an episode with
more alarms than those drawn, and too often lie wholly below the truth.
"""

import numpy as np
from scipy import stats

from training.data.values import Floats
from training.trainer.evaluation.intervals import CONFIDENCE

TAIL = (1 - CONFIDENCE) / 2
LOUD = 0.25  # of an episode's windows: as far from the common rate counts the farthest episode at the least


def rate_interval(alarms: Floats, windows: Floats) -> tuple[float, float] | None:
    """Return the 95 % interval of sum(``alarms``) over sum(``windows``), both (E,) by episode; None for fewer than two
    episodes with windows.

    The variance counts the episode that is farthest from the common rate twice, the second time with at least the
    distance ``LOUD``: if few episodes alarm, others probably exist that alarm more. If no window alarms, or all do,
    every episode counts as one window.
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
    loudest = max(float(squared.max()), (LOUD / episodes) ** 2)
    variance = episodes / (episodes - 1) * (float(squared.sum()) + loudest)
    number = rate * (1 - rate) / variance
    freedom = stats.norm.isf(TAIL) / stats.t.isf(TAIL, episodes - 1)
    number = min(number * float(freedom) ** 2, total)
    return exact_interval(rate * number, number)


def exact_interval(hits: float, number: float) -> tuple[float, float]:
    """Return Clopper and Pearson's 95 % interval of the rate for ``hits`` of ``number``; neither needs to be a whole
    number."""
    missed = number - hits
    low = float(stats.beta.ppf(TAIL, hits, missed + 1)) if hits > 0 else 0.0
    high = float(stats.beta.isf(TAIL, hits + 1, missed)) if missed > 0 else 1.0
    return low, high


def count_interval(events: Floats, exposure: Floats) -> tuple[float, float] | None:
    """Return the 95 % interval of a rate of events, sum(``events``) over sum(``exposure``), both (E,) by episode.

    The Poisson analogue of ``rate_interval``: Garwood's exact interval, for the number of independent events that would
    vary as much as the episodes do. None for fewer than two episodes with an exposure.
    """
    there = exposure > 0
    events, exposure = events[there], exposure[there]
    episodes, total, count = int(exposure.size), float(exposure.sum()), float(events.sum())
    if episodes < 2:
        return None
    if not count:
        return 0.0, float(stats.gamma.isf(TAIL, 1.0)) / total
    squared = np.square(events - count / total * exposure)
    variance = episodes / (episodes - 1) * float(squared.sum() + squared.max())
    freedom = stats.norm.isf(TAIL) / stats.t.isf(TAIL, episodes - 1)
    number = min(count**2 / variance * float(freedom) ** 2, count) if variance > 0 else count
    low, high = float(stats.gamma.ppf(TAIL, number)), float(stats.gamma.isf(TAIL, number + 1))
    return low * count / number / total, high * count / number / total
