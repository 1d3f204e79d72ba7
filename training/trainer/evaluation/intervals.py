"""Cluster bootstrap: intervals that resample whole episodes, because windows of one episode are not independent.

A *measure* is a function of episode weights (R, E); for each of its names it returns R values, one per row of weights.
With all weights 1 a measure gives the value itself, with randomly drawn counts the value's resamples: both come from
the same code. Resampling windows instead of episodes makes intervals two to three times too narrow on overlapping
windows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np
from scipy import stats

from training.data.values import Bools, Codes, Floats, Ints, Names
from training.hyper import FEWEST_RESAMPLES

Weights = Codes  # (R, E): how often each episode stands in each resample
Measure = Callable[[Weights], Mapping[str, Floats]]

CONFIDENCE = 0.95
MAX_CLUSTERS = 20_000  # more say nothing more about the spread, and cost
_BLOCK_CELLS = 1 << 18  # cells of (resamples, windows) worked on at a time: they should stay in the cache
_MIN_VALID = 0.5  # an interval needs at least this part of the resamples to have a value


class Estimate(NamedTuple):
    """A value with its resamples (R,); NaN where the drawn episodes left nothing to measure."""

    value: float
    samples: Floats  # (R,)


def clusters(episode: Names) -> tuple[Ints, int]:
    """Return the number (N,) of each window's cluster, and the number of clusters.

    A cluster is one episode. More than ``MAX_CLUSTERS`` episodes are joined at random into ``MAX_CLUSTERS`` clusters,
    which does not change the expected variance (random groups).
    """
    ids, index = np.unique(episode, return_inverse=True)
    if ids.size <= MAX_CLUSTERS:
        return index.astype(int), int(ids.size)
    shuffled = np.random.default_rng(0).permutation(ids.size) % MAX_CLUSTERS
    return shuffled[index], MAX_CLUSTERS


def bootstrap(
    measures: Sequence[Measure], *, n_episodes: int, n_windows: int, n_resamples: int, seed: int
) -> dict[str, Estimate]:
    """Compute each measure on the data and on ``n_resamples`` random draws of as many episodes, with replacement."""
    as_it_is = np.ones((1, n_episodes), np.int32)
    values = {name: float(v[0]) for measure in measures for name, v in measure(as_it_is).items()}
    blocks: dict[str, list[Floats]] = {name: [] for name in values}
    for weights in draw_weights(n_episodes, n_windows, n_resamples, seed):
        for measure in measures:
            for name, sample in measure(weights).items():
                blocks[name].append(sample)
    empty = np.empty(0)
    return {name: Estimate(value, np.concatenate([empty, *blocks[name]])) for name, value in values.items()}


def draw_weights(n_episodes: int, n_windows: int, n_resamples: int, seed: int) -> Iterator[Weights]:
    """Yield the episode weights of the draws in blocks; a draw's weights depend only on its number, the number of
    episodes and the seed."""
    rng = np.random.default_rng(seed)
    rows = max(1, _BLOCK_CELLS // max(1, n_windows, n_episodes))
    for first in range(0, n_resamples, rows):
        count = min(rows, n_resamples - first)
        drawn = rng.integers(n_episodes, size=(count, n_episodes))
        drawn += np.arange(count)[:, None] * n_episodes
        flat = np.bincount(drawn.ravel(), minlength=count * n_episodes)
        yield flat.reshape(count, n_episodes).astype(np.int32)


class RankMeasure:
    """Computes AUROC and AUPRC of one score, with weighted episodes; ties count one half.

    Everything that needs the order of the scores is done once, in the constructor. A resample then costs two cumulative
    sums: over the negatives and over the positives, in the order of their scores.
    """

    def __init__(self, score: Floats, positive: Bools, episode: Ints, *, auprc: bool = True) -> None:
        order = np.argsort(score, kind="stable")
        is_positive = positive[order]
        ups, downs = score[order][is_positive], score[order][~is_positive]
        self._up_episode = episode[order][is_positive]
        self._down_episode = episode[order][~is_positive]
        self._downs_below = np.searchsorted(downs, ups, side="left")
        self._downs_up_to = np.searchsorted(downs, ups, side="right")
        self._ups_below = np.searchsorted(ups, ups, side="left")
        self._tied = bool((self._downs_below != self._downs_up_to).any())
        self._auprc = auprc

    def __call__(self, weights: Weights) -> dict[str, Floats]:
        """Return AUROC and AUPRC (R,) for each row of weights (R, E); NaN for a row that drew a single class. AUPRC is
        left out if the object was made without ``auprc``."""
        up = np.take(weights, self._up_episode, axis=1)
        down = _cumulated(np.take(weights, self._down_episode, axis=1))
        n_up, n_down = up.sum(axis=1, dtype=float), down[:, -1].astype(float)
        below = np.take(down, self._downs_below, axis=1)
        up_to = np.take(down, self._downs_up_to, axis=1) if self._tied else below
        won = (_dot(up, below) + _dot(up, up_to)) / 2
        with np.errstate(invalid="ignore", divide="ignore"):
            result = {"auroc": won / (n_up * n_down)}
            if self._auprc:
                result["auprc"] = self._average_precision(up, below, n_up, n_down)
        return result

    def _average_precision(self, up: Weights, below: Weights, n_up: Floats, n_down: Floats) -> Floats:
        """Return (R,) the mean, over the positives, of the precision at their own score."""
        hits = n_up[:, None] - np.take(_cumulated(up), self._ups_below, axis=1)
        alarms = hits + (n_down[:, None] - below)
        precision = hits / np.maximum(alarms, 1.0)
        area = np.einsum("rn,rn->r", up, precision) / n_up
        return np.where(n_down > 0, area, np.nan)


def _cumulated(counts: Weights) -> Weights:
    """Return (R, N + 1): the sums of the first 0, 1, … N columns."""
    sums = np.zeros((counts.shape[0], counts.shape[1] + 1), np.int32)
    np.cumsum(counts, axis=1, out=sums[:, 1:])
    return sums


def _dot(left: Weights, right: Weights) -> Floats:
    return np.einsum("rn,rn->r", left, right, dtype=float)


def why_no_interval(n_resamples: int) -> str | None:
    """Return the reason why so few resamples give no interval; None if they are enough."""
    if n_resamples == 0:
        return "no interval was asked for (0 resamples)"
    if n_resamples < FEWEST_RESAMPLES:
        return f"{n_resamples} resamples are too few for an interval: {FEWEST_RESAMPLES} are needed"
    return None


def percentile_interval(estimate: Estimate, n_support: int, *, bounded: bool = True) -> tuple[float, float] | None:
    """Return the 95 % interval; None with fewer than two supporting episodes, without a value or resamples, or if most
    resamples have no value.

    ``n_support`` is the number of episodes that carry the estimate (those of the smaller class, for a rank measure).
    Percentiles of a bootstrap over n clusters are too narrow for small n, by about the factor between the normal and
    the t quantile. The interval is widened by about the factor between the normal and the t quantile (expanded
    percentile interval).

    ``bounded`` means that the value lies between 0 and 1 by nature. If the value and all resamples of a ``bounded``
    estimate equal 0, or all equal 1, one end of the interval is the exact binomial bound for ``n_support`` episodes. If
    all resamples of a difference (not ``bounded``) equal its value and it is not 0, the interval extends twice the
    exact binomial bound to both sides, within -1 to 1.
    """
    valid = estimate.samples[np.isfinite(estimate.samples)]
    enough = valid.size >= max(1, _MIN_VALID * estimate.samples.size)
    if not np.isfinite(estimate.value) or n_support < 2 or not enough:
        return None
    agreed = valid.min() == valid.max() == estimate.value
    slack = 1.0 - float(((1 - CONFIDENCE) / 2) ** (1 / n_support))
    if not bounded and agreed and estimate.value != 0.0:
        return max(-1.0, estimate.value - 2 * slack), min(1.0, estimate.value + 2 * slack)
    if bounded and agreed and estimate.value in (0.0, 1.0):
        return (0.0, slack) if estimate.value == 0.0 else (1.0 - slack, 1.0)
    tail = float(stats.norm.sf(sqrt(n_support / (n_support - 1)) * stats.t.isf((1 - CONFIDENCE) / 2, n_support - 1)))
    low, high = np.quantile(valid, [tail, 1 - tail])
    return float(low), float(high)
