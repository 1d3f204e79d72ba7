"""The rows of a table made even, with what is to be said of it: each touch is counted, and the unclear is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.data.errors import DataError
from training.data.ingest import even, times
from training.data.ingest.cells import row_order
from training.data.ingest.columns import Wanted, check_rounding_of, check_total
from training.data.ingest.rows import SampleRows, check_begun_once, name_of, out_of_order, steps_inside
from training.data.scratch import WorkingMemory, edges_of, fill, median, put, release, sliced, spans

ROUNDED = 0.01  # share by which the mean step may differ from the usual one
YEAR_S = 365 * 86_400.0
HOUR_S = 3600.0
MORE_IN_HOUR = 1.15  # times the samples that an hour has elsewhere
HOUR_MIN = 20  # samples of an hour that show its rate
SHOWN = 3  # recordings in one sentence
RESAMPLED_TIMES = 5  # the size of the samples that are resampled


def as_measured(rows: SampleRows, names: Sequence[str], wanted: Wanted, room: WorkingMemory) -> SampleRows:
    """The rows once each, in 32 bits, with the growth by the second of channels that are totals. Raises DataError.

    They are sorted by recording and time, or, without a clock, by recording alone.
    """
    totals = np.isin(names, wanted.counter)
    if totals.any() and rows.t is None:
        raise DataError("--counter needs a column of times: a rate is a change by the second.")
    rows = _once(rows, totals, room)
    group, size = rows.recording, rows.label.size
    values, notes = room.empty((size, len(names)), np.float32, "F"), []
    for place, name in enumerate(names):
        column = rows.values[:size, place]
        if totals[place]:
            assert rows.t is not None
            falls, steps = _falls(column, group)
            check_total(name, falls, steps)
            if falls:
                notes.append(f"{name} falls {_times(falls)}, where a total was reset: nothing grew there.")
            parts = even.rates_in_parts(column, rows.t, group)
        else:  # a rate is a difference, and has no offset to lose its changes in
            check_rounding_of(name, column, rows.host.codes)
            parts = (column[here] for here in spans(column))
        with np.errstate(over="ignore"):  # what no 32-bit number holds becomes infinite, and is refused as that
            fill(values[:, place], parts)
        release(rows.values)
        room.progress("sorting", (place + 1) / len(names))
    return replace(rows, values=values, notes=(*rows.notes, *notes))


def _falls(total: NDArray[Any], group: NDArray[np.int32]) -> tuple[int, int]:
    """Count the steps of a running total down, and all of them: from one known value of a group to the next."""
    falls = count = 0
    last_of, last = np.empty(0, dtype=np.int32), np.empty(0)
    for here in spans(total, group):
        known = ~np.isnan(total[here])
        of, values = np.r_[last_of, group[here][known]], np.r_[last, total[here][known]]
        steps = np.diff(values)[np.diff(of) == 0]
        falls, count = falls + int((steps < 0).sum()), count + int(np.isfinite(steps).sum())
        last_of, last = of[-1:], values[-1:]
    return falls, count


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _once(rows: SampleRows, totals: NDArray[np.bool_], room: WorkingMemory) -> SampleRows:
    """The rows in their order without copies, and of several at one time in a recording one. Raises DataError.

    What the rows held, their values among it, is changed in place.
    """
    came, group = rows, rows.recording
    t, notes = rows.t, []
    in_order = not any(
        times.is_out_of_order(group[here] if t is None else t[here], group[here]) for here in spans(group, t, overlap=1)
    )
    if not in_order:
        disorder = 0 if t is None else out_of_order(t, group)
        if disorder:
            notes.append(f"{disorder:,} of {group.size:,} rows stood behind later ones: sorted by time.")
        place = row_order(t, group, room)
        rows = replace(rows.each(lambda column: room.at_rows(column, place)), place=place)
        for number in range(rows.values.shape[1]):
            rows.values[:, number] = room.at_rows(rows.values[:, number], place)
    if rows.t is not None:
        rows, more = _without_copies(rows, room)
        rows, folded = _folded(rows, totals, room)
        notes += [*more, *folded]
        if not in_order and rows.window is None:
            keep = None
            if rows.label.size < group.size and rows.place is not None:
                keep = np.zeros(group.size, dtype=np.bool_)
                for here in spans(rows.place):
                    keep[rows.place[here]] = True
            two = f"two recordings share the id (add a column 'episode'){local_times(rows)}."
            check_begun_once(came, group, keep, two)
    return replace(rows, notes=(*rows.notes, *notes))


def _without_copies(rows: SampleRows, room: WorkingMemory) -> tuple[SampleRows, list[str]]:
    assert rows.t is not None
    group = rows.recording
    keep = np.ones(group.size, dtype=np.bool_)
    for some in even.rows_of_doubles(rows.t, group):
        values = np.stack([rows.values[some, place] for place in range(rows.values.shape[1])], axis=1)
        keep[some] = even.first_of_copies(values, rows.t[some], group[some], rows.label[some])
        release(rows.values)
    gone = keep.size - int(np.count_nonzero(keep))
    if not gone:
        return rows, []
    note = f"{gone:,} of {keep.size:,} rows were copies of others, in all columns: left out."
    return _left(rows, keep, room), [note]


def _folded(rows: SampleRows, totals: NDArray[np.bool_], room: WorkingMemory) -> tuple[SampleRows, list[str]]:
    assert rows.t is not None
    group = rows.recording
    is_clock = rows.window is None and any((step > 0).any() for step in steps_inside(rows, group))
    if not is_clock:  # there is none, or windows say it, which is refused
        return rows, []
    found = even.fold_doubles(rows.t, group, rows.label, rows.values, totals)
    if found.torn is not None:
        raise _two_rows(rows, found.torn)
    if not found.folded:
        return rows, []
    largest = " (of a running total the largest)" if totals.any() else ""
    more = "1 row" if found.folded == 1 else f"{found.folded:,} rows"
    return _left(rows, found.keep, room), [f"At one time stood {more} more: the mean{largest} was taken."]


def _left(rows: SampleRows, keep: NDArray[np.bool_], room: WorkingMemory) -> SampleRows:
    """The rows that are kept; of the values they are the first."""
    for place in range(rows.values.shape[1]):
        put(rows.values[:, place], rows.values[: keep.size, place], keep)
    return rows.each(lambda column: room.taken(column, keep))


def local_times(rows: SampleRows) -> str:
    """Words on what else dates without a zone may be, for an error."""
    local = ", or are local times of the night when clocks are set back (bring UTC)"
    return local if rows.t_role.startswith(times.NO_ZONE) else ""


def check_night(rows: SampleRows, group: NDArray[np.int32]) -> None:
    """Refuse local times of a night when clocks were set back: one hour has samples of two. Raises DataError.

    Rows of one time are refused before; others lie between each other, and would be averaged.
    """
    assert rows.t is not None
    if not rows.t_role.startswith(times.NO_ZONE):
        return
    hours = {hour for here in spans(rows.t) for hour in np.unique(np.floor(rows.t[here] / HOUR_S)).tolist()}
    nights = [int(hour) for hour in sorted(hours) if times.is_night_of_clocks(int(hour))]
    for night in nights:
        for low, high in edges_of(group):
            t = rows.t[low:high]
            edges = np.searchsorted(t, HOUR_S * (night + np.arange(-1, 3)))
            before, count, after = np.diff(edges).tolist()
            if max(before, after) >= HOUR_MIN and count > MORE_IN_HOUR * HOUR_S / _step(t, *edges[1:3].tolist()):
                raise DataError(
                    f"From {times.shown(night * HOUR_S)} on {name_of(rows, low + int(edges[0]))} has more samples for "
                    "an hour than elsewhere, in a night when clocks may be set back: local times? Bring UTC, or times "
                    "that name their zone."
                )


def hour_left_out(rows: SampleRows, group: NDArray[np.int32], hz: float) -> tuple[str, ...]:
    """Note local times of a night when clocks were set forward: an hour without samples, and what seems a gap."""
    assert rows.t is not None
    if not rows.t_role.startswith(times.NO_ZONE):
        return ()
    for row in _jumps(rows, group, HOUR_S):
        before, after = float(rows.t[row]), float(rows.t[row + 1])
        if times.is_hour_left_out(before, after, 1 / hz):
            note = (
                f"No sample of {name_of(rows, row)} lies between {times.shown(before)} and {times.shown(after)}, the "
                "hour that clocks leave out in spring: local times? Bring UTC, or each time of summer is an hour off."
            )
            return (note,)
    return ()


def _jumps(rows: SampleRows, group: NDArray[np.int32], least: float) -> Iterator[int]:
    """The rows behind which more than so many seconds lie before their recording's next."""
    assert rows.t is not None
    for here in spans(rows.t, group, overlap=1):
        wide = (np.diff(group[here]) == 0) & (np.diff(rows.t[here]) > least)
        yield from (here.start + np.flatnonzero(wide)).tolist()


def _step(t: NDArray[np.float64], low: int, high: int) -> float:
    """The usual step without the rows of that hour."""
    beside = np.diff(t[[low - 1, high]]) if low > 0 and high < t.size else np.empty(0)
    return median(lambda: chain(times.steps(t[:low]), times.steps(t[high:]), [beside]))


def _two_rows(rows: SampleRows, row: int) -> DataError:
    assert rows.t is not None
    return DataError(
        f"Two rows of {name_of(rows, row)} have the time {rows.t[row]:.10g} and other values or labels, and so have "
        "many, or their neighbours: two recordings share the id (add a column 'episode'), the table holds a copy, or "
        f"its times are rounded{local_times(rows)}."
    )


def rounded_times(rows: SampleRows, group: NDArray[np.int32], hz: float) -> tuple[str, ...]:
    """Note times whose usual step is not their mean one: stamps of 15 and 16 ms are those of 64 Hz."""
    assert rows.t is not None
    total, count = 0.0, 0
    for steps in steps_inside(rows, group):
        usual = steps[(steps * hz > even.SHORT) & (steps * hz < even.GAP)] * hz
        total, count = total + float(usual.sum()), count + usual.size
    mean = total / count if count else 1.0
    if abs(mean - 1) <= ROUNDED:
        return ()
    note = (
        f"The usual step of {1 / hz:.6g} s is that of {hz:.4g} Hz, but the mean one is that of {hz / mean:.4g} Hz: "
        "if times are rounded, say the true rate with --hz."
    )
    return (note,)


def check_years(rows: SampleRows, group: NDArray[np.int32]) -> None:
    """Refuse a recording whose times jump by years: its clock was set on the way. Raises DataError."""
    assert rows.t is not None
    for before in _jumps(rows, group, YEAR_S):
        after = before + 1
        raise DataError(
            f"The times of {name_of(rows, after)} jump from {times.shown(float(rows.t[before]))} to "
            f"{times.shown(float(rows.t[after]))}: was its clock set on the way? Leave the rows before out, or give "
            "them an episode of their own."
        )


def evenly(
    rows: SampleRows, group: NDArray[np.int32], hz: float, totals: NDArray[np.bool_], *, said: bool, room: WorkingMemory
) -> SampleRows:
    """The sorted rows of each recording (``group``) at ``hz``: those that come faster or crowded are resampled.

    Raises DataError for a part that is slower, or, where the rate was not ``said``, far faster.
    """
    assert rows.t is not None
    recordings, uneven = edges_of(group), []
    for low, high in recordings:
        odd = times.other_rates(rows.t[low:high], hz)
        _check_parts(rows, low, odd, hz, said=said)
        uneven.append(even.is_uneven(rows.t[low:high], hz, changes=bool(odd)))
    if not any(uneven):
        return rows
    brought, averaged, between, size = [], 0, 0, 0
    for (low, high), is_uneven in zip(recordings, uneven, strict=True):
        if not is_uneven:
            size += high - low
            continue
        for part in _resampled(rows, low, high, hz, totals[:0]):
            averaged, between, size = averaged + part.averaged, between + part.between, size + part.row.size
        own = 1 / even.own_step(rows.t[low:high])
        brought.append(name_of(rows, low) + (f" ({own:.3g} Hz)" if own * even.FASTER > hz else ""))
    more = f" and {len(brought) - SHOWN} more" if len(brought) > SHOWN else ""
    note = (
        f"{len(brought):,} of {len(recordings):,} recordings came unevenly or faster and were brought to {hz:g} Hz: "
        f"{', '.join(brought[:SHOWN])}{more}; {averaged:,} samples are means of several, {between:,} lie half way "
        "between their neighbours, and gaps stay."
    )
    values, t = room.empty((size, rows.values.shape[1]), np.float32, "F"), room.empty((size,), np.float64)
    row, at = room.empty((size,), np.int64), 0
    for (low, high), is_uneven in zip(recordings, uneven, strict=True):
        parts = _resampled(rows, low, high, hz, totals) if is_uneven else _as_they_are(rows, low, high)
        for part in parts:
            here = slice(at, at + part.row.size)
            values[here], t[here], row[here] = part.values, part.t, part.row + low
            at = here.stop
            for array in (values, t, row, rows.values):
                release(array)
        room.progress("resampling", high / group.size)
    rows = rows.each(lambda column: room.at_rows(column, row))
    return replace(rows, t=t, values=values, notes=(*rows.notes, note))


def _resampled(rows: SampleRows, low: int, high: int, hz: float, totals: NDArray[np.bool_]) -> Iterator[even.Even]:
    """A recording's samples by slots; without ``totals`` also without values."""
    assert rows.t is not None
    values = rows.values[low:high, : totals.size]
    some = rows.room.rows(RESAMPLED_TIMES * 8 * (totals.size + 1))
    return even.resampled(rows.t[low:high], values, rows.label[low:high], hz, totals, some)


def _as_they_are(rows: SampleRows, low: int, high: int) -> Iterator[even.Even]:
    assert rows.t is not None
    step = rows.room.rows(8 * (rows.values.shape[1] + 1))
    for begin in range(low, high, step):
        end = min(begin + step, high)
        yield even.Even(np.arange(begin, end) - low, rows.t[begin:end], sliced(rows.values, begin, end), 0, 0)


def _check_parts(rows: SampleRows, row: int, odd: Sequence[float], hz: float, *, said: bool) -> None:
    """Refuse a recording with a part that is slower, or without the user's word far faster. Raises DataError."""
    if odd and min(odd) < hz:
        raise DataError(
            f"A part of the rows of {name_of(rows, row)} is sampled at {min(odd):.4g} Hz, the others at {hz:g} Hz: say "
            f"--hz {min(odd):.4g} to bring all to one rate, or ingest the parts apart."
        )
    if odd and not said and max(odd) > times.UNLIKE * hz:
        raise DataError(
            f"A part of the rows of {name_of(rows, row)} is sampled at {max(odd):.4g} Hz, the others at {hz:g} Hz: in "
            f"another unit of time? Else say --hz {hz:g}, and means are taken."
        )
