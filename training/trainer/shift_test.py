"""Find when a host changed: a lasting shift of some measure, detected by ranks.

A host's record is cut into *stretches* (of a minute, or a whole recording that is shorter), each with the means of its
measures; the stretches of the host's reference come first. For each start tried, all stretches from there on are
compared with all stretches before, including the reference. The test is the rank-sum test (Mann and Whitney 1947):
exact where one side is short, else by its normal approximation.

Stretches of one recording that resemble those before them count for less. The statistic is divided by the root of 1 + 2
Σ r, over the correlations r of ranks some stretches apart (Newey and West 1987). The sum 1 + 2 Σ r is never taken
smaller than if the correlation of neighbours alone, raised by its standard error, decayed with distance. Starts are
tried ever further from the record's end, so that a short deviation that is over does not count. The p value of the best
start is multiplied by the number of starts tried, and corrected for the number of measures after Holm (1979).

A shift is reported only if it is large too: of a stretch before and one after it, the later one is higher (or lower) in
at least 70 % of the pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb, erfc, floor, sqrt
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from training.data.values import Floats, Ints

ERROR_RATE = 0.01  # of hosts that did not change: how many may be reported as changed
LEAST_PAIRS = 0.7  # of the pairs (before, after) that must be ordered alike
FEWEST = 3  # stretches on either side of a start that is tried
LONGER = 1.25  # times the last end of the record that was tried
EXACT = 12  # stretches on the shorter side, up to which the test is exact
MOST_ALIKE = 0.95  # of neighbours' correlation
FARTHEST = 40  # stretches apart that are looked at for correlation


@dataclass(frozen=True)
class StretchSeries:
    """One host's stretches in time order, each with the means of M measures; NaN where none was measured.

    ``usual`` (R, M) are the means in the stretches of its reference, ``values`` (N, M) those in all other stretches.
    ``recording`` (N,) numbers the recordings: stretches of two recordings are no neighbours.
    """

    usual: Floats
    values: Floats
    recording: Ints

    def __len__(self) -> int:
        return len(self.values)

    @property
    def measures(self) -> int:
        """The number of measures that at least one stretch of ``values`` has."""
        return int(np.isfinite(self.values).any(axis=0).sum())


class Shift(NamedTuple):
    """A measure that shifted at stretch ``start`` of ``values``, from the median ``before`` to the median ``after``."""

    measure: int
    start: int
    before: float
    after: float
    p: float  # corrected for the starts and the measures

    @property
    def rises(self) -> bool:
        return self.after > self.before


def find(series: StretchSeries, *, error_rate: float = ERROR_RATE) -> list[Shift]:
    """Return the measures that shifted lastingly, the surest first; an empty list also if too few stretches were
    recorded to tell."""
    measures = [
        one for one in (_measure(series, number) for number in range(series.values.shape[1])) if one is not None
    ]
    looked_at = len(measures)
    found = [_of(one) for one in measures if one.least() <= error_rate]  # no other can be reported, or prevent a report
    told = []
    for rank, (one, pairs) in enumerate(sorted(found, key=lambda each: each[0].p)):
        p = one.p * (looked_at - rank)  # Holm: the next one is corrected for those that are left
        if p > error_rate:
            break
        if max(pairs, 1 - pairs) >= LEAST_PAIRS:
            told.append(Shift(one.measure, one.start, one.before, one.after, p))
    return told


def can_tell(series: StretchSeries, *, error_rate: float = ERROR_RATE) -> bool:
    """Tell whether the largest possible change would be detected: every later stretch above every earlier one."""
    starts = _starts(len(series.usual), len(series))
    if not starts:
        return False
    pieces = np.concatenate([np.full(len(series.usual), -1), series.recording])
    return min(_plainest(pieces, start) for start in starts) * len(starts) * series.measures <= error_rate


def reference_needed(series: StretchSeries) -> int | None:
    """Return the smallest number of reference stretches with which a change of all ``values`` would be detected; None
    if no number tried is enough."""
    n, measures = len(series), series.measures
    for usual in range(FEWEST, 4 * max(n, EXACT)):
        pieces = np.concatenate([np.full(usual, -1), series.recording])
        if n >= FEWEST and _plainest(pieces, usual) * len(_starts(usual, n)) * measures <= ERROR_RATE:
            return usual
    return None


def _plainest(pieces: Ints, start: int) -> float:
    """Return the p value if every stretch from ``start`` on is above every one before, and neighbours are
    uncorrelated."""
    alike = max(0, int((pieces[1:] == pieces[:-1]).sum()) - 1)  # one pair may be of the two sides
    return _p(pieces.size - start, start, 1.0, pieces.size + 1, _decaying(0.0, alike, pieces.size))


def _starts(usual: int, values: int) -> list[int]:
    """Return the starts to try, ascending: positions among the reference's ``usual`` stretches and the ``values`` after
    them.

    No start lies inside the reference.
    """
    total, starts = usual + values, []
    length = float(FEWEST)
    while length < values:
        starts.append(total - int(length))
        length = max(length * LONGER, length + 1)
    if values >= FEWEST:
        starts.append(usual)
    return sorted({start for start in starts if start >= max(usual, FEWEST)})


class _Measure(NamedTuple):
    """A measure with enough values: the values in time order, those of the reference first, and their ranks."""

    number: int
    values: Floats
    ranks: Floats
    unlike: float
    before: int  # values of the reference
    there: Ints  # the stretches of the others
    starts: list[int]
    pieces: Ints

    def p(self, start: int, widening: float) -> float:
        return _p(self.ranks.size - start, start, _rising(self.ranks, start), self.unlike, widening)

    def least(self) -> float:
        """Return the lowest p value that the measure can have: that without correlation between neighbours."""
        return min(1.0, min(self.p(start, 1.0) for start in self.starts) * len(self.starts))


def _measure(series: StretchSeries, number: int) -> _Measure | None:
    usual, values = series.usual[:, number], series.values[:, number]
    there, before = np.isfinite(values), usual[np.isfinite(usual)]
    everything = np.concatenate([before, values[there]])
    starts = _starts(before.size, int(there.sum()))
    if not starts:
        return None
    pieces = np.concatenate([np.full(before.size, -1), series.recording[there]])
    ranks, unlike = rankdata(everything), _unlike(everything)
    return _Measure(number, everything, ranks, unlike, before.size, np.flatnonzero(there), starts, pieces)


def _of(one: _Measure) -> tuple[Shift, float]:
    """Return the likeliest shift of a measure, and the share of pairs in which the later stretch is higher."""
    ranks, starts, everything = one.ranks, one.starts, one.values
    # Beside a shift's true place its own stretches would seem to resemble each other on the wrong side.
    places = {start: _place(ranks, starts, start) for start in starts}
    widening = {place: _widening(ranks, one.pieces, place) for place in set(places.values())}
    p = {start: one.p(start, widening[places[start]]) for start in starts}
    tried = min(starts, key=p.__getitem__)
    start = places[tried]
    place = int(one.there[start - one.before])
    middle = (float(np.median(everything[:start])), float(np.median(everything[start:])))
    return Shift(one.number, place, *middle, min(1.0, p[tried] * len(starts))), _rising(ranks, start)


def _place(ranks: Floats, starts: Sequence[int], tried: int) -> int:
    """Return the likeliest start between the tried starts on either side of ``tried``."""
    near = starts.index(tried)
    between = range(starts[max(0, near - 1)], starts[min(near + 1, len(starts) - 1)] + 1)
    return max(between, key=lambda start: abs(_rising(ranks, start) - 0.5) * sqrt((ranks.size - start) * start))


def _rising(ranks: Floats, start: int) -> float:
    """Return the share of pairs, a stretch before and one from ``start`` on, in which the later one is higher; ties
    count half."""
    n = ranks.size - start
    return (float(ranks[start:].sum()) - n * (n + 1) / 2) / (n * start)


def _p(n: int, m: int, rising: float, unlike: float, widening: float) -> float:
    """Return the two-sided p value of the rank-sum test of n later and m earlier values.

    ``rising`` is the share of the n x m pairs in which the later value is higher.
    """
    beyond = abs(rising - 0.5) * n * m / sqrt(widening)
    if min(n, m) <= EXACT:
        return min(1.0, 2 * _tail(min(n, m), max(n, m), floor(n * m / 2 - beyond + 1e-9)))
    spread = sqrt(n * m / 12 * unlike)
    return 1.0 if spread <= 0 else erfc(max(0.0, beyond - 0.5) / spread / sqrt(2))


def _tail(n: int, m: int, most: int) -> float:
    """Return the probability that in at most ``most`` of the n x m pairs the later value is higher, if all orders are
    equally likely."""
    return float(_orders(n, m)[most]) / comb(n + m, n) if most >= 0 else 0.0


@lru_cache(maxsize=64)  # of some 20 KB each
def _orders(n: int, m: int) -> Floats:
    """Return how many orders of n and m values have at most 0, 1, … half of the n x m pairs one way.

    The counts are sums of a Gaussian binomial's terms: the product of (1 - q^(m + k)) / (1 - q^k) over k from 1 to n.
    Up to the middle the terms only grow, so that nothing cancels.
    """
    length = n * m // 2 + 1
    terms = np.zeros(length)
    terms[0] = 1.0
    for k in range(1, n + 1):
        terms[m + k :] -= terms[: max(0, length - m - k)].copy()
        whole = np.zeros(-(-length // k) * k)
        whole[:length] = terms
        terms = whole.reshape(-1, k).cumsum(axis=0).reshape(-1)[:length]
    return np.cumsum(terms)


def _unlike(values: Floats) -> float:
    """Return the number of values plus one, minus a correction for ties: the factor in the variance of the rank sum."""
    _, counts = np.unique(values, return_counts=True)
    ties = float((counts.astype(float) ** 3 - counts).sum())
    return values.size + 1 - ties / (values.size * (values.size - 1))


def _widening(ranks: Floats, pieces: Ints, start: int) -> float:
    """Return the factor by which correlation between stretches of one recording widens the variance of the rank sum.

    An estimate of a correlation r from n pairs is too low by about (1 + 3 r) / n (Kendall 1954), which is added.
    """
    side = np.arange(ranks.size) >= start
    off = ranks - np.where(side, ranks[start:].mean(), ranks[:start].mean())
    scale = float((off**2).mean())
    if scale <= 0:
        return 1.0
    decaying, total = 1.0, 1.0  # by the nearest alone, as if the others followed from it; and by each
    farthest = min(FARTHEST, ranks.size // 4)
    for apart in range(1, farthest + 1):
        pairs = (pieces[apart:] == pieces[:-apart]) & (side[apart:] == side[:-apart])
        count = int(pairs.sum())
        if not count:
            break
        r = float((off[apart:] * off[:-apart])[pairs].sum()) / (scale * count)
        r = min(r + (1 + 3 * max(r, 0.0)) / count, MOST_ALIKE)
        if apart == 1:
            decaying = _decaying(max(r, 0.0), count, ranks.size)
        total += 2 * r * count / ranks.size
    return max(total, decaying)


def _decaying(r: float, count: int, size: int) -> float:
    """Return the factor of `_widening` for a correlation ``r`` of ``count`` neighbouring pairs that decays with
    distance.

    ``r`` is raised by its standard error, because few pairs may give too low a value.
    """
    if not count:
        return 1.0
    nearest = min(r + sqrt((1 - r**2) / count), MOST_ALIKE)
    return 1.0 + 2 * nearest / (1 - nearest) * count / size
