"""Bring samples to an even rate: merge rows of equal time, average fast recordings, and fill only gaps of at most 1.5
steps.

The rules do not depend on the order of rows or on the unit of time:

    copies     rows equal in recording, time, label and every value become one row
    doubles    other rows of one time become their mean, or the largest of a running total; refused unless they are rare
    resampled  a slot of the data set's step holds the mean of its samples; rates are weighted by the time they cover
    empty      an empty slot between two samples of one label, at most 1.5 steps apart, gets their mean; others stay

All functions are pure, except that :func:`fold_doubles` changes values in place.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from training.data.ingest import times
from training.data.scratch import PART_BYTES, release, spans
from training.data.values import AnyArray, Bools, Indices

Floats = AnyArray
Rows = Indices

GAP = 1.5  # steps of the usual length that make a gap
SHORT = 0.5  # and that are no step of one recording
FASTER = 0.9  # of the step: a shorter one is another rate
PAUSE = 3.0  # steps behind which a recorder may go on at another moment
DOUBLES_MAX = 0.05  # of a recording's times
ROUNDED = 6  # digits of a share of a step: the rest is rounding


def rows_of_doubles(t: Floats, recording: Rows) -> Rows:
    """Return the numbers of the rows whose recording and time equal those of another row; the rows are sorted by
    both."""
    found = np.zeros(t.size, bool)
    for here in spans(t, recording, overlap=1):
        same = ~_changes(t[here], recording[here])[1:]
        found[here][1:] |= same
        found[here][:-1] |= same
    return np.flatnonzero(found)


def _changes(*keys: AnyArray) -> Bools:
    """Return a mask of the first row, and of each row at which a key differs from the row before."""
    changes = np.ones(keys[0].size, bool)
    changes[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return changes


def first_of_copies(values: Floats, *keys: AnyArray) -> Bools:
    """Return a mask of all rows except copies of earlier rows.

    Copies are equal in all ``keys`` (S) and ``values`` (S, C); NaN equals NaN.
    """
    keep = np.ones(len(values), bool)
    if not keep.size:
        return keep
    order = np.lexsort(keys)
    begins = np.flatnonzero(_changes(*(key[order] for key in keys)))
    run = np.repeat(np.arange(begins.size), np.diff(np.r_[begins, order.size]))
    size = max(1, PART_BYTES // (8 * (values.shape[1] + 1)))
    for low, high in pairwise([*begins[np.r_[True, np.diff(begins // size) > 0]].tolist(), order.size]):
        some = order[low:high]  # whole runs, so that equal rows lie together
        content = np.column_stack([run[low:high], values[some]]) + 0.0  # -0.0 is 0.0
        content[np.isnan(content)] = np.nan
        whole = content.view(np.dtype((np.void, content.itemsize * content.shape[1]))).reshape(-1)
        keep[some] = False
        keep[some[np.unique(whole, return_index=True)[1]]] = True
    return keep


class Folded(NamedTuple):
    """The mask of rows to ``keep``, the number of rows merged into them, and ``torn``: the number of a row that cannot
    be merged, or None."""

    keep: Bools
    folded: int = 0
    torn: int | None = None


def fold_doubles(t: Floats, recording: Rows, label: AnyArray, values: Floats, totals: Bools) -> Folded:
    """Merge rows with the same recording and time into the first of them, and change ``values`` (S, C) in place.

    Rows are sorted by both; ``totals`` (C) marks the running totals. Nothing is merged, and ``torn`` is set, if times
    with several rows are many, three such times follow each other, or rows of one time differ in label.
    """
    keep = np.ones(t.size, bool)
    rows = rows_of_doubles(t, recording)
    if not rows.size:
        return Folded(keep)
    begins = np.flatnonzero(_changes(t[rows], recording[rows]))
    torn = _too_many(rows, begins, recording)
    if torn is not None:
        return Folded(keep, torn=torn)
    unlike = np.flatnonzero(label[rows] != np.repeat(label[rows[begins]], np.diff(np.r_[begins, rows.size])))
    if unlike.size:
        return Folded(keep, torn=int(rows[unlike[0]]))
    for place in range(values.shape[1]):
        part = values[rows, place]
        folded = np.fmax.reduceat(part, begins) if totals[place] else _means(part, np.ones_like(part), begins)
        values[rows[begins], place] = folded
        release(values)
    keep[rows] = False
    keep[rows[begins]] = True
    return Folded(keep, int(np.count_nonzero(~keep)))


def _too_many(rows: Rows, begins: Rows, recording: Rows) -> int | None:
    """Return the number of the first row with a repeated time in a recording with too many such times, or too many in a
    row; else None. ``rows`` are those of repeated times, which begin at the places ``begins`` among them."""
    first, counts = rows[begins], np.diff(np.r_[begins, rows.size])
    of, size = recording[first], int(recording[-1]) + 1
    doubles = np.bincount(of, minlength=size)
    own_times = sum(np.bincount(recording[here], minlength=size) for here in spans(recording))
    own_times = own_times - np.bincount(of, counts - 1, size)
    found = np.flatnonzero((doubles > np.maximum(1, DOUBLES_MAX * own_times))[of])
    if not found.size:
        joined = (first[1:] == first[:-1] + counts[:-1]) & (of[1:] == of[:-1])
        found = np.flatnonzero(joined[1:] & joined[:-1])  # three times in a row: two courses under one name
    return int(first[found[0]]) if found.size else None


def own_step(t: Floats) -> float:
    """Return the mean step of a recording, without its pauses; if long and short steps alternate, a median would be one
    of them."""
    most = PAUSE * np.median(times.chosen_steps(t, np.isfinite), overwrite_input=True)
    return float(times.chosen_steps(t, lambda steps: steps <= most).mean())


def is_uneven(t: Floats, hz: float, *, changes: bool) -> bool:
    """Return True if a recording must be resampled to ``hz``; ``changes`` is True if a part of it has another rate."""
    return t.size > 1 and bool(
        changes or own_step(t) * hz < FASTER or min(part.min() for part in times.steps_of(t)) * hz < SHORT
    )


class Slots(NamedTuple):
    """The evenly spaced samples of one resampled recording: ``row`` has the first source row of each sample, ``t`` its
    time."""

    row: Rows
    t: Floats
    averaged: int  # samples that are means of several
    after: Rows  # the samples behind those that lie half way between two
    begins: Rows  # rows of all slots
    full: Bools  # the slots that become samples
    weight: Floats  # of each row in a rate

    def values(self, column: Floats, *, is_rate: bool) -> Floats:
        """Return a channel's values in the resampled recording, from its values ``column`` (S) in the source rows.

        ``is_rate`` is True if the channel is the rate of a running total.
        """
        weight = self.weight if is_rate else np.ones(column.size)
        means = _means(column.astype(float), weight, self.begins)[self.full]
        half = (means[self.after - 1] + means[self.after]) / 2
        return np.insert(means, self.after, half)


def resampled(t: Floats, label: AnyArray, hz: float) -> Slots:
    """Return the slots of ``1 / hz`` seconds for one recording's samples, of which there must be at least two.

    A slot with less than half of the samples that the recording's own step would put there, or with two labels, counts
    as empty. After a pause a recorder may continue at another offset, so each part between pauses gets its own slots.
    """
    step, steps = 1 / hz, np.diff(t)
    own = min(own_step(t), step)
    first = np.flatnonzero(np.r_[True, steps * hz > PAUSE])  # of each stretch
    stretch = np.repeat(np.arange(first.size), np.diff(np.r_[first, t.size]))
    since_begin, origin = t - t[first][stretch], np.zeros(first.size)
    if own > FASTER * step:  # the moment of a slot at which most samples come
        turned = np.add.reduceat(np.exp(2j * np.pi * since_begin / step), first)
        origin = np.round(np.angle(turned) / (2 * np.pi), ROUNDED) * step
    slot = np.floor((since_begin - origin[stretch] + own / 2) / step).astype(int)
    since = np.r_[own, steps]
    since[first] = own
    begins = np.flatnonzero(_changes(stretch, slot))
    counts = np.diff(np.r_[begins, t.size])
    same = ~_changes(label)
    same[begins] = True
    full = np.logical_and.reduceat(same, begins) & (2 * counts * own >= step * (1 - 1e-6))
    row, counts = begins[full], counts[full]
    near = (np.diff(slot[row]) == 2) & (t[row[1:]] - t[(row + counts - 1)[:-1]] <= GAP * step)
    after = np.flatnonzero(near & ~_changes(stretch[row], label[row])[1:]) + 1
    slot = np.insert(slot[row], after, slot[row][after - 1] + 1)
    row = np.insert(row, after, row[after - 1])
    at = t[first][stretch[row]] + origin[stretch[row]] + slot * step
    weight = np.where(since > GAP * own, own, since)
    return Slots(row, at, int((counts > 1).sum()), after, begins, full, weight)


def _means(values: Floats, weight: Floats, begins: Rows) -> Floats:
    """Return the weighted means of the known values in runs of rows that begin at the rows ``begins``; NaN for a run
    without any."""
    known = ~np.isnan(values)
    weight = np.where(known, weight, 0.0)
    total = np.add.reduceat(weight, begins)
    summed = np.add.reduceat(np.where(known, values, 0.0) * weight, begins)
    return np.asarray(np.divide(summed, total, out=np.full(total.shape, np.nan), where=total > 0))


def rates(total: Floats, t: Floats, group: Rows) -> Floats:
    """Return a running total's growth per second (S); a total that falls was reset, and that step counts as no growth.

    Growth is computed between neighbouring known values of a group, and assigned to the later one. A group's first
    value, and the first after a gap, get the rate of the next value, unless that comes after a gap as well. Rows must
    be sorted by group and time.
    """
    place = np.flatnonzero(~np.isnan(total))
    known, of, values = t[place], group[place], total[place]
    step, grown = np.diff(known), np.maximum(np.diff(values), 0.0)
    rate = np.r_[np.nan, np.divide(grown, step, out=np.full(step.size, np.nan), where=step > 0)][: place.size]
    first = _changes(of)
    rate[first] = np.nan
    gap = first | _changes(np.cumsum(_wider(t, group, GAP))[place]) | _wider(known, of, PAUSE)
    begins = np.flatnonzero(gap[:-1] & ~gap[1:])
    rate[begins] = rate[begins + 1]
    result = np.full(total.shape, np.nan)
    result[place] = rate
    return result


def _wider(t: Floats, group: Rows, usual: float) -> Bools:
    """Return a mask of the times ``t`` (S), sorted by group, that come after a step longer than ``usual`` times the
    group's median step."""
    found = np.zeros(t.size, bool)
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
