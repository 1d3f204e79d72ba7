"""Samples as they come, made even: copies and doubles folded, fast recordings averaged, nothing bridged over a gap.

The rules, which depend on no order of rows and on no unit of time:

    copies     rows equal in time, label and every value are one row
    doubles    other rows of one time become their mean, of a running total the largest; only where they are rare
    resampled  a slot of the data set's step holds the mean of the samples in it, a rate weighted by the time it covers
    empty      a slot between two samples that are no gap apart lies half way between them; any other stays empty

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.data import scratch
from training.data.ingest.times import rising, steps
from training.data.scratch import PART_BYTES, edges_of, median, release, spans

Floats = NDArray[Any]
Rows = NDArray[np.integer[Any]]

GAP = 1.5  # steps of the usual length that make a gap
SHORT = 0.5  # and that are no step of one recording
FASTER = 0.9  # of the step: a shorter one is another rate
PAUSE = 3.0  # steps behind which a recorder may go on at another moment
DOUBLES_MAX = 0.05  # of a recording's times
ROUNDED = 6  # digits of a share of a step: the rest is rounding
DOUBLES_BESIDE = 3  # times in a row: two courses under one name


def rows_of_doubles(t: Floats, recording: Rows) -> Iterator[Rows]:
    """The rows, sorted by recording and time, that share both with another: whole runs of them, some at a time."""
    low = 0
    while low < t.size:
        high = _end_of_run(t, recording, min(low + scratch.SPAN_ROWS, t.size) - 1)
        at, of = t[low:high], recording[low:high]
        same = (at[1:] == at[:-1]) & (of[1:] == of[:-1])
        if same.any():
            yield low + np.flatnonzero(np.r_[False, same] | np.r_[same, False])
        release(t)
        release(recording)
        low = high


def _end_of_run(t: Floats, recording: Rows, row: int) -> int:
    """The row behind all that share their recording and time with this one."""
    for low in range(row + 1, t.size, scratch.SPAN_ROWS):
        high = min(low + scratch.SPAN_ROWS, t.size)
        others = np.flatnonzero((t[low:high] != t[row]) | (recording[low:high] != recording[row]))
        if others.size:
            return low + int(others[0])
    return int(t.size)


def first_of_copies(values: Floats, *keys: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark the rows but for copies of earlier ones: equal in all ``keys`` (S) and ``values`` (S, C), NaN included."""
    keep = np.ones(len(values), dtype=np.bool_)
    rows, run = _runs(*keys)
    keep[rows] = False
    for low, high in _whole_runs(run, max(1, PART_BYTES // (8 * (values.shape[1] + 1)))):
        some = rows[low:high]
        content = np.column_stack([run[low:high], values[some]]) + 0.0  # -0.0 is 0.0
        content[np.isnan(content)] = np.nan
        whole = content.view(np.dtype((np.void, content.itemsize * content.shape[1]))).reshape(-1)
        keep[some[np.unique(whole, return_index=True)[1]]] = True
    return keep


def _whole_runs(run: Rows, count: int) -> list[tuple[int, int]]:
    """Cut rows (sorted by their run) into parts of about ``count``, none inside of a run."""
    begins = np.flatnonzero(np.r_[True, np.diff(run) != 0]) if run.size else np.empty(0, dtype=np.int64)
    new = begins[np.r_[True, np.diff(begins // count) > 0]] if begins.size else begins
    return list(pairwise([*new.tolist(), run.size]))


class Folded(NamedTuple):
    """Rows to keep, how many others were ``folded`` into them, and ``torn``: a row that cannot be."""

    keep: NDArray[np.bool_]
    folded: int = 0
    torn: int | None = None


def fold_doubles(t: Floats, recording: Rows, label: NDArray[Any], values: Floats, totals: NDArray[np.bool_]) -> Folded:
    """Fold rows of one time in one recording (S), sorted by both, of values (S, C); some channels are ``totals``.

    The values of the rows to keep are changed in place. Many doubles, some in a row or of unlike labels are two
    recordings, or times that are rounded.
    """
    keep = np.ones(t.size, dtype=np.bool_)
    torn = _too_many(t, recording)
    if torn is not None:
        return Folded(keep, torn=torn)
    for rows in rows_of_doubles(t, recording):
        begins = _begins(t[rows], recording[rows])
        unlike = np.flatnonzero(label[rows] != np.repeat(label[rows[begins]], np.diff(np.r_[begins, rows.size])))
        if unlike.size:
            return Folded(np.ones_like(keep), torn=int(rows[unlike[0]]))
        for place in range(values.shape[1]):
            part = values[rows, place][:, None]
            folded = np.fmax.reduceat(part, begins) if totals[place] else _means(part, np.ones_like(part), begins)
            values[rows[begins], place] = folded[:, 0]
            release(values)
        keep[rows] = False
        keep[rows[begins]] = True
    return Folded(keep, int(np.count_nonzero(~keep)))


def _begins(t: Floats, recording: Rows) -> Rows:
    """The rows at which another time, or another recording, begins."""
    return np.flatnonzero(np.r_[True, (np.diff(t) != 0) | (np.diff(recording) != 0)])


def _too_many(t: Floats, recording: Rows) -> int | None:
    """A doubled row of a recording that has too many of them, or else too many in a row."""
    size = int(recording[-1]) + 1 if recording.size else 0
    all_of, double_of = np.zeros(size), np.zeros(size)
    for _, of, is_double in _times(t, recording):
        all_of += np.bincount(of, minlength=size)
        double_of += np.bincount(of, is_double, size)
    if not double_of.any():
        return None
    many = double_of > np.maximum(1, DOUBLES_MAX * all_of)
    for rows, of, is_double in _times(t, recording):
        found = np.flatnonzero(is_double & many[of])
        if found.size:
            return int(rows[found[0]])
    before = tuple(np.empty(0, dtype) for dtype in (np.int64, np.int64, np.bool_))
    for some in _times(t, recording):
        rows, of, is_double = (np.concatenate(pair) for pair in zip(before, some, strict=True))
        if rows.size >= DOUBLES_BESIDE:
            beside = np.lib.stride_tricks.sliding_window_view(is_double, DOUBLES_BESIDE).all(axis=1)
            found = np.flatnonzero(beside & (of[: beside.size] == of[DOUBLES_BESIDE - 1 :]))
            if found.size:
                return int(rows[found[0]])
        before = rows[1 - DOUBLES_BESIDE :], of[1 - DOUBLES_BESIDE :], is_double[1 - DOUBLES_BESIDE :]
    return None


def _times(t: Floats, recording: Rows) -> Iterator[tuple[Rows, Rows, NDArray[np.bool_]]]:
    """The different times of sorted rows, some at a time: their first rows, recordings, and whether others follow."""
    low = 0
    while low < t.size:
        high = _end_of_run(t, recording, min(low + scratch.SPAN_ROWS, t.size) - 1)
        at, of = t[low:high], recording[low:high]
        begins = _begins(at, of)
        yield low + begins, of[begins], np.diff(np.r_[begins, at.size]) > 1
        release(t)
        release(recording)
        low = high


def _runs(*keys: NDArray[Any]) -> tuple[Rows, Rows]:
    """The rows that are equal to others in all keys, the equal ones side by side in their order; and a number a run."""
    order = np.lexsort(keys)
    same = np.ones(max(0, order.size - 1), dtype=np.bool_)
    for key in keys:
        ordered = key[order]
        same &= ordered[1:] == ordered[:-1]
    beside = np.r_[False, same] | np.r_[same, False]
    if order.size < 2 or not beside.any():
        none = np.empty(0, dtype=np.int64)
        return none, none
    return order[beside], np.cumsum(np.r_[True, ~same])[beside]


class Even(NamedTuple):
    """Samples a step apart, but for gaps: each with the ``row`` it begins with."""

    row: Rows
    t: Floats
    values: Floats
    averaged: int  # samples that are means of several
    between: int  # samples that lie half way between two


def own_step(t: Floats) -> float:
    """The mean step of a recording but for its pauses; a median is that of the shorter ones where steps alternate."""
    most = PAUSE * median(lambda: steps(t))
    total, count = 0.0, 0
    for step in steps(t):
        usual = step[step <= most]
        total, count = total + float(usual.sum()), count + usual.size
    return total / count


def is_uneven(t: Floats, hz: float, *, changes: bool) -> bool:
    """Return True for a recording that has to be resampled; ``changes``: a part of it has another rate."""
    if t.size < 2:
        return False
    return bool(changes or own_step(t) * hz < FASTER or min(step.min() for step in steps(t) if step.size) * hz < SHORT)


def resample(t: Floats, values: Floats, label: NDArray[Any], hz: float, rates: NDArray[np.bool_]) -> Even:
    """One recording's samples, two or more, by slots of ``1 / hz`` seconds; ``rates`` are channels made of totals.

    A slot with less than half of the samples that its recording's own step would put there, or with two labels, stays
    empty. A recorder that pauses may continue at another moment of the slot: each stretch has slots of its own.
    """
    parts = list(resampled(t, values, label, hz, rates))
    row, at, means = (np.concatenate(column) for column in list(zip(*parts, strict=True))[:3])
    return Even(row, at, means, sum(part.averaged for part in parts), sum(part.between for part in parts))


def resampled(
    t: Floats, values: Floats, label: NDArray[Any], hz: float, rates: NDArray[np.bool_], rows: int | None = None
) -> Iterator[Even]:
    """The same, of about so many ``rows`` at a time."""
    own, size = min(own_step(t), 1 / hz), rows or scratch.SPAN_ROWS
    pauses = [here.start + np.flatnonzero(np.diff(t[here]) * hz > PAUSE) + 1 for here in spans(t, overlap=1)]
    for low, high in pairwise([0, *np.concatenate(pauses).tolist(), t.size]):
        here = slice(low, high)
        slots = _Slots(t[here], label[here], 1 / hz, own, rates)
        for first, end in slots.parts(size):
            yield slots.of(first, end, values[low + first : low + end], low)
        release(values)


class _Slots:
    """The slots of a stretch without pauses."""

    def __init__(self, t: Floats, label: NDArray[Any], step: float, own: float, rates: NDArray[np.bool_]) -> None:
        self._t, self._label, self._step, self._own, self._rates = t, label, step, own, rates
        self._origin = 0.0
        self._last: tuple[NDArray[Any], ...] | None = None  # row, slot, last time, label, means of the last slot
        if own > FASTER * step:  # the moment of a slot at which most samples come
            turned = sum(np.exp(2j * np.pi * (t[here] - t[0]) / step).sum() for here in spans(t))
            self._origin = round(float(np.angle(turned)) / (2 * np.pi), ROUNDED) * step

    def _slot(self, t: Floats) -> Rows:
        slot: Rows = np.floor((t - self._t[0] - self._origin + self._own / 2) / self._step).astype(np.int64)
        return slot

    def parts(self, size: int) -> Iterator[tuple[int, int]]:
        """Cut the rows into parts of about this size, none inside of a slot."""
        low = 0
        while low < self._t.size:
            high, last = min(low + size, self._t.size), self._slot(self._t[low : low + size][-1:])
            while high < self._t.size:
                beyond = np.flatnonzero(self._slot(self._t[high : high + size]) != last)
                high = high + int(beyond[0]) if beyond.size else min(high + size, self._t.size)
                if beyond.size:
                    break
            yield low, high
            low = high

    def of(self, low: int, high: int, values: Floats, begin: int) -> Even:
        """The samples of the rows of one part, the next one each time; ``begin`` is the stretch's first row."""
        t, label, step, own = self._t[low:high], self._label[low:high], self._step, self._own
        place = self._slot(t)
        begins = np.flatnonzero(np.r_[True, np.diff(place) != 0])
        counts = np.diff(np.r_[begins, t.size])
        before = own if low == 0 else float(t[0] - self._t[low - 1])
        since = np.r_[before, np.diff(t)]
        weight = np.ones(values.shape, dtype=np.float64)
        weight[:, self._rates] = np.where(since > GAP * own, own, since)[:, None]
        means = _means(values.astype(np.float64), weight, begins)
        same = np.r_[True, label[1:] == label[:-1]]
        same[begins] = True
        full = np.logical_and.reduceat(same, begins) & (2 * counts * own >= step * (1 - 1e-6))
        begins, slot, means, counts = begins[full], place[begins][full], means[full], counts[full]
        row, last, of = begins + low, t[begins + counts - 1], label[begins]
        first = t[begins]
        averaged = int((counts > 1).sum())
        known = self._last is not None
        if self._last is not None:  # the last slot of the part before
            row, slot = np.r_[self._last[0], row], np.r_[self._last[1], slot]
            first, last = np.r_[self._last[2], first], np.r_[self._last[2], last]
            of, means = np.r_[self._last[3], of], np.concatenate([self._last[4], means])
        if row.size:
            self._last = row[-1:], slot[-1:], last[-1:], of[-1:], means[-1:]
        near = (np.diff(slot) == 2) & (first[1:] - last[:-1] <= GAP * step)
        after = np.flatnonzero(near & (of[1:] == of[:-1])) + 1
        means = np.insert(means, after, (means[after - 1] + means[after]) / 2, axis=0)[int(known) :]
        row = np.insert(row, after, row[after - 1])[int(known) :]
        slot = np.insert(slot, after, slot[after - 1] + 1)[int(known) :]
        return Even(row + begin, self._t[0] + self._origin + slot * step, means, averaged, after.size)


def _means(values: Floats, weight: Floats, begins: Rows) -> Floats:
    """The weighted means of runs of rows (S, C) that begin at ``begins``, of what is known in each channel."""
    known = ~np.isnan(values)
    weight = np.where(known, weight, 0.0)
    total = np.add.reduceat(weight, begins, axis=0)
    summed = np.add.reduceat(np.where(known, values, 0.0) * weight, begins, axis=0)
    means: Floats = np.divide(summed, total, out=np.full(total.shape, np.nan), where=total > 0)
    return means


def rates(total: Floats, t: Floats, group: Rows) -> Floats:
    """A running total as its growth by the second; a total that falls was reset, which counts as no growth.

    Growth counts from one known value to the next, and is the later one's. What has nothing to grow from, a group's
    first value and the one behind a gap, takes the rate of the next value. Rows are sorted by group and time.
    """
    return np.concatenate([np.empty(0), *rates_in_parts(total, t, group)])


def rates_in_parts(total: Floats, t: Floats, group: Rows) -> Iterator[Floats]:
    """The same, some rows at a time."""
    low = 0
    for begin, end in edges_of(group):
        if end - low <= scratch.SPAN_ROWS and end < t.size:
            continue  # some groups together
        for first, last in ((low, begin), (begin, end)):
            part = total[first:last], t[first:last], group[first:last]
            if last - first > scratch.SPAN_ROWS:
                yield from _rates_of_one(*part[:2])
            elif last > first:
                yield _rates_of_some(*part)
        low = end


def _rates_of_some(total: Floats, t: Floats, group: Rows) -> Floats:
    place = np.flatnonzero(~np.isnan(total))
    known, of = t[place], group[place]
    gaps = np.cumsum(_wider(t, group, GAP))[place]
    first = np.r_[True, np.diff(of) != 0][: place.size]
    result: Floats = np.full(total.shape, np.nan)
    result[place] = _growth(known, total[place], gaps, first, _wider(known, of, PAUSE))
    return result


def _rates_of_one(total: Floats, t: Floats) -> Iterator[Floats]:
    """The rates of a long recording."""
    gap = GAP * median(lambda: rising(t))
    pause = PAUSE * median(lambda: (step[step > 0] for step in _steps_of_known(total, t)))
    last: tuple[float, float, int] | None = None  # known before: its time, value and the gaps before it
    gaps = 0
    for here in spans(total, t):
        at, values = t[here], total[here]
        before = at[0] if here.start == 0 else t[here.start - 1]
        gaps_of = gaps + np.cumsum(np.diff(at, prepend=before) > gap)
        gaps = int(gaps_of[-1])
        place = np.flatnonzero(~np.isnan(values))
        behind = _next_known(total, t, here.stop, gap, gaps)
        known = np.concatenate(
            [
                np.array([one for one in (last,) if one is not None]).reshape(-1, 3),
                np.column_stack([at[place], values[place], gaps_of[place]]),
                np.array([one for one in (behind,) if one is not None]).reshape(-1, 3),
            ]
        )
        first = np.arange(len(known)) == 0
        wide = np.diff(known[:, 0], prepend=known[:1, 0]) > pause
        growth = _growth(known[:, 0], known[:, 1], known[:, 2], first, wide)
        result: Floats = np.full(values.shape, np.nan)
        result[place] = growth[int(last is not None) :][: place.size]
        if place.size:
            last = float(at[place[-1]]), float(values[place[-1]]), int(gaps_of[place[-1]])
        yield result


def _steps_of_known(total: Floats, t: Floats) -> Iterator[Floats]:
    last = np.empty(0)
    for here in spans(total, t):
        known = np.r_[last, t[here][~np.isnan(total[here])]]
        yield np.diff(known)
        last = known[-1:]


def _next_known(total: Floats, t: Floats, row: int, gap: float, gaps: int) -> tuple[float, float, int] | None:
    """The first known value from this row on: its time, itself and the gaps before it."""
    for low in range(row, t.size, scratch.SPAN_ROWS):
        here = slice(low, min(low + scratch.SPAN_ROWS, t.size))
        place = np.flatnonzero(~np.isnan(total[here]))
        wide = np.diff(t[here], prepend=t[low - 1]) > gap
        if place.size:
            found = int(place[0])
            return float(t[low + found]), float(total[low + found]), gaps + int(wide[: found + 1].sum())
        gaps += int(wide.sum())
    return None


def _growth(t: Floats, total: Floats, gaps: NDArray[Any], first: NDArray[np.bool_], wide: NDArray[np.bool_]) -> Floats:
    """The rates of known values, of which some are a recording's ``first`` or come ``wide`` behind the last."""
    step, grown = np.diff(t), np.maximum(np.diff(total), 0.0)
    rate: Floats = np.r_[np.nan, np.divide(grown, step, out=np.full(step.size, np.nan), where=step > 0)][: t.size]
    rate[first] = np.nan
    gap = first | np.r_[False, np.diff(gaps) > 0][: t.size] | wide
    begins = np.flatnonzero(gap[:-1] & ~gap[1:])
    rate[begins] = rate[begins + 1]
    return rate


def _wider(t: Floats, group: Rows, usual: float) -> NDArray[np.bool_]:
    """Mark the times (S), sorted by group, behind steps of more than ``usual`` times their own group's median one."""
    found = np.zeros(t.size, dtype=np.bool_)
    step = np.diff(t)
    rows = np.flatnonzero((np.diff(group) == 0) & (step > 0))
    if rows.size:
        of = np.unique(group[rows], return_inverse=True)[1]
        counts = np.bincount(of)
        middle = np.cumsum(counts) - counts + counts // 2
        sizes = step[rows][np.lexsort((step[rows], of))]
        usual_step = (sizes[middle] + sizes[middle - (counts % 2 == 0)]) / 2
        found[rows + 1] = step[rows] > usual * usual_step[of]
    return found
