"""Samples as they come, made even: copies and doubles folded, fast recordings averaged, nothing bridged over a gap.

The rules, which depend on no order of rows and on no unit of time:

    copies     rows equal in time, label and every value are one row
    doubles    other rows of one time become their mean, of a running total the largest; only where they are rare
    resampled  a slot of the data set's step holds the mean of the samples in it, a rate weighted by the time it covers
    empty      a slot between two samples that are no gap apart lies half way between them; any other stays empty

All functions are pure.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.data.ingest.times import by_time
from training.data.scratch import PART_BYTES, columns, release

Floats = NDArray[Any]
Rows = NDArray[np.integer[Any]]

GAP = 1.5  # steps of the usual length that make a gap
SHORT = 0.5  # and that are no step of one recording
FASTER = 0.9  # of the step: a shorter one is another rate
PAUSE = 3.0  # steps behind which a recorder may go on at another moment
DOUBLES_MAX = 0.05  # of a recording's times
ROUNDED = 6  # digits of a share of a step: the rest is rounding
DOUBLES_BESIDE = 3  # times in a row: two courses under one name


def first_of_copies(values: Floats, *keys: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark the rows but for copies of earlier ones: equal in all ``keys`` (S) and ``values`` (S, C), NaN included."""
    keep = np.ones(len(values), dtype=np.bool_)
    rows, run = _runs(*keys)
    keep[rows] = False
    for low, high in _whole_runs(run, max(1, PART_BYTES // (8 * (values.shape[1] + 1)))):
        some = rows[low:high]
        content = np.column_stack([run[low:high], values[some]]) + 0.0  # -0.0 is 0.0
        release(values)
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


def fold_doubles(
    t: Floats,
    recording: Rows,
    label: NDArray[Any],
    values: Floats,
    totals: NDArray[np.bool_],
    places: Rows | None = None,
) -> Folded:
    """Fold rows of one time in one recording (S), of values (S, C) of which some channels are running ``totals``.

    The values of the rows to keep are changed in place; ``places``: theirs among the values, where these are more.
    Many doubles, some in a row or of unlike labels are two recordings, or times that are rounded.
    """
    keep = np.ones(t.size, dtype=np.bool_)
    rows, run = _runs(t, recording)
    if not rows.size:
        return Folded(keep)
    begins = np.flatnonzero(np.r_[True, np.diff(run) != 0])
    first = rows[begins]
    torn = _too_many(t, recording, first)
    unlike = np.flatnonzero(label[rows] != label[np.repeat(first, np.diff(np.r_[begins, rows.size]))])
    if torn is not None or unlike.size:
        return Folded(keep, torn=torn if torn is not None else int(rows[unlike[0]]))
    for place, column in enumerate(columns(values)):
        part = column[rows if places is None else places[rows]][:, None]
        folded = np.fmax.reduceat(part, begins) if totals[place] else _means(part, np.ones_like(part), begins)
        column[first if places is None else places[first]] = folded[:, 0]
    keep[rows] = False
    keep[first] = True
    return Folded(keep, rows.size - first.size)


def _too_many(t: Floats, recording: Rows, doubled: Rows) -> int | None:
    """A doubled row of a recording that has too many of them, or too many in a row."""
    order = np.lexsort((t, recording))
    new = np.r_[True, (np.diff(t[order]) != 0) | (np.diff(recording[order]) != 0)]
    times = order[new]
    of, is_double = recording[times], np.isin(times, doubled)
    all_of, double_of = np.bincount(of), np.bincount(of, is_double)
    many = double_of > np.maximum(1, DOUBLES_MAX * all_of)
    found = np.flatnonzero(is_double & many[of])
    if not found.size and times.size >= DOUBLES_BESIDE:
        beside = np.lib.stride_tricks.sliding_window_view(is_double, DOUBLES_BESIDE).all(axis=1)
        found = np.flatnonzero(beside & (of[: beside.size] == of[DOUBLES_BESIDE - 1 :]))
    return int(times[found[0]]) if found.size else None


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
    steps = np.diff(t)
    return float(steps[steps <= PAUSE * np.median(steps)].mean())


def is_uneven(t: Floats, hz: float, *, changes: bool) -> bool:
    """Return True for a recording that has to be resampled; ``changes``: a part of it has another rate."""
    steps = np.diff(t)
    if not steps.size:
        return False
    return bool(changes or own_step(t) * hz < FASTER or steps.min() * hz < SHORT)


def resample(t: Floats, values: Floats, label: NDArray[Any], hz: float, rates: NDArray[np.bool_]) -> Even:
    """One recording's samples, two or more, by slots of ``1 / hz`` seconds; ``rates`` are channels made of totals.

    A slot with less than half of the samples that its recording's own step would put there, or with two labels, stays
    empty. A recorder that pauses may go on at another moment of the slot: each stretch has slots of its own.
    """
    own = min(own_step(t), 1 / hz)
    edges = np.r_[0, np.flatnonzero(np.diff(t) * hz > PAUSE) + 1, t.size]
    parts = []
    for low, high in pairwise(edges.tolist()):
        here = slice(low, high)
        part = _slots(t[here], values[here], label[here], 1 / hz, own, rates)
        parts.append(part._replace(row=part.row + low))
    row, at, means = (np.concatenate(column) for column in list(zip(*parts, strict=True))[:3])
    return Even(row, at, means, sum(part.averaged for part in parts), sum(part.between for part in parts))


def _slots(t: Floats, values: Floats, label: NDArray[Any], step: float, own: float, rates: NDArray[np.bool_]) -> Even:
    since = t - t[0]
    origin = 0.0
    if own > FASTER * step:  # the moment of a slot at which most samples come
        turns = float(np.angle(np.exp(2j * np.pi * since / step).mean())) / (2 * np.pi)
        origin = round(turns, ROUNDED) * step
    place = np.floor((since - origin + own / 2) / step).astype(np.int64)
    begins = np.flatnonzero(np.r_[True, np.diff(place) != 0])
    counts = np.diff(np.r_[begins, t.size])
    steps = np.diff(t)
    weight = np.ones_like(values, dtype=np.float64)
    weight[:, rates] = np.r_[own, np.where(steps > GAP * own, own, steps)][:, None]
    means = _means(values.astype(np.float64), weight, begins)
    same = np.r_[True, label[1:] == label[:-1]]
    same[begins] = True
    full = np.logical_and.reduceat(same, begins) & (2 * counts * own >= step * (1 - 1e-6))
    begins, slot, means, counts = begins[full], place[begins][full], means[full], counts[full]
    last = begins + counts - 1
    near = (np.diff(slot) == 2) & (t[begins[1:]] - t[last[:-1]] <= GAP * step)
    after = np.flatnonzero(near & (label[begins[1:]] == label[begins[:-1]])) + 1
    averaged = int((counts > 1).sum())
    means = np.insert(means, after, (means[after - 1] + means[after]) / 2, axis=0)
    begins, slot = np.insert(begins, after, begins[after - 1]), np.insert(slot, after, slot[after - 1] + 1)
    return Even(begins, t[0] + origin + slot * step, means, averaged, after.size)


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
    first value and the one behind a gap, takes the rate of the next value.
    """
    order = by_time(t, group)
    group, t_of = group[order], t[order]
    wide = _wider(t_of, group, GAP)
    gaps = np.cumsum(wide)
    place = np.flatnonzero(~np.isnan(total[order]))
    known, of = t_of[place], group[place]
    result: Floats = np.full(total.shape, np.nan)
    if place.size < 2:
        return result
    step, grown = np.diff(known), np.maximum(np.diff(total[order][place]), 0.0)
    first = np.r_[True, np.diff(of) != 0]
    rate = np.r_[np.nan, np.divide(grown, step, out=np.full(step.size, np.nan), where=step > 0)]
    rate[first] = np.nan
    gap = first | np.r_[False, np.diff(gaps[place]) > 0] | _wider(known, of, PAUSE)
    begins = np.flatnonzero(gap[:-1] & ~gap[1:])
    rate[begins] = rate[begins + 1]
    result[place if isinstance(order, slice) else order[place]] = rate
    return result


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
        median = (sizes[middle] + sizes[middle - (counts % 2 == 0)]) / 2
        found[rows + 1] = step[rows] > usual * median[of]
    return found
