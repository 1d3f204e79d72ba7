"""The rows of a table made even, with what is to be said of it: each touch is counted, and the unclear is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from training.data.errors import DataError
from training.data.ingest import even, times
from training.data.ingest.columns import Wanted, check_rounding_of, check_total
from training.data.ingest.rows import Rows, check_begun_once, edges_of, members_of, name_of
from training.data.scratch import Room, columns, release

ROUNDED = 0.01  # share by which the mean step may differ from the usual one
YEAR_S = 365 * 86_400.0
HOUR_S = 3600.0
MORE_IN_HOUR = 1.15  # times the samples that an hour has elsewhere
HOUR_MIN = 20  # samples of an hour that show its rate
SHOWN = 3  # recordings in one sentence
RESAMPLED_TIMES = 5  # the size of the samples that are resampled


def as_measured(rows: Rows, names: Sequence[str], wanted: Wanted, room: Room) -> Rows:
    """The rows once each, in 32 bits, with the growth by the second of channels that are totals. Raises DataError.

    They are sorted by recording and time, or, without a clock, by recording alone.
    """
    totals = np.isin(names, wanted.counter)
    if totals.any() and rows.t is None:
        raise DataError("--counter needs a column of times: a rate is a change by the second.")
    rows, left = _once(rows, totals)
    if rows.t is not None and rows.window is None:
        check_begun_once(
            rows, rows.recording, f"two recordings share the id (add a column 'episode'){local_times(rows)}."
        )
    group = rows.recording
    order = times.by_time(np.zeros(group.size) if rows.t is None else rows.t, group)
    if not isinstance(order, slice):
        rows, group = rows.take(order), group[order]
        left = order if left is None else left[order]
    values, notes = room.empty((group.size, len(names)), np.float32, "F"), []
    for place, (name, column) in enumerate(zip(names, columns(rows.values), strict=True)):
        measured = np.array(column if left is None else column[left])
        if totals[place]:
            assert rows.t is not None
            known = np.flatnonzero(~np.isnan(measured))
            steps = np.diff(measured[known])[np.diff(group[known]) == 0]
            check_total(name, steps)
            resets = int((steps < 0).sum())
            if resets:
                notes.append(f"{name} falls {_times(resets)}, where a total was reset: nothing grew there.")
            measured = even.rates(measured, rows.t, group)
        else:  # a rate is a difference, and has no offset to lose its changes in
            check_rounding_of(name, measured, rows.host.codes)
        with np.errstate(over="ignore"):  # what no 32-bit number holds becomes infinite, and is refused as that
            values[:, place] = measured
        release(values)
        room.progress("sorting", (place + 1) / len(names))
    return replace(rows, values=values, place=left, notes=(*rows.notes, *notes))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _once(rows: Rows, totals: NDArray[np.bool_]) -> tuple[Rows, NDArray[np.int64] | None]:
    """The rows without copies, and of several at one time in a recording one; also which rows these were.

    Raises DataError.
    """
    if rows.t is None:
        return rows, None
    said = []
    group, label = rows.recording, rows.label
    disorder = _out_of_order(rows.t, group)
    if disorder:
        said.append(f"{disorder:,} of {rows.t.size:,} rows stood behind later ones: sorted by time.")
    if not _has_doubles(rows.t, group):
        return replace(rows, notes=(*rows.notes, *said)), None
    left = None
    keep = even.first_of_copies(rows.values, rows.t, group, label)
    if not keep.all():
        said.append(f"{int((~keep).sum()):,} of {keep.size:,} rows were copies of others, in all columns: left out.")
        left = np.flatnonzero(keep)
        rows, group, label = rows.take(left), group[left], label[left]
    assert rows.t is not None
    if rows.window is None and _rises(rows.t, group):  # else there is no clock, or windows say it, which is refused
        folded = even.fold_doubles(rows.t, group, label, rows.values, totals, left)
        if folded.torn is not None:
            raise _two_rows(rows, folded.torn)
        if folded.folded:
            left = np.flatnonzero(folded.keep) if left is None else left[folded.keep]
            rows = rows.take(folded.keep)
            largest = " (of a running total the largest)" if totals.any() else ""
            more = "1 row" if folded.folded == 1 else f"{folded.folded:,} rows"
            said.append(f"At one time stood {more} more: the mean{largest} was taken.")
    return replace(rows, notes=(*rows.notes, *said)), left


def _has_doubles(t: NDArray[np.float64], group: NDArray[np.int32]) -> bool:
    """Tell whether two rows of one recording have one time."""
    order = times.by_time(t, group)
    t = t[order]
    same = t[1:] == t[:-1]
    del t
    group = group[order]
    return bool((same & (group[1:] == group[:-1])).any())


def _rises(t: NDArray[np.float64], group: NDArray[np.int32]) -> bool:
    order = times.by_time(t, group)
    return bool(((np.diff(t[order]) > 0) & (np.diff(group[order]) == 0)).any())


def _out_of_order(t: NDArray[np.float64], group: NDArray[np.int32]) -> int:
    """Count the rows that stand behind a later one of their recording."""
    return sum(int((t[rows] < np.maximum.accumulate(t[rows])).sum()) for rows in members_of(group))


def local_times(rows: Rows) -> str:
    """Words on what else dates without a zone may be, for an error."""
    local = ", or are local times of the night when clocks are set back (bring UTC)"
    return local if rows.t_role.startswith(times.NO_ZONE) else ""


def check_night(rows: Rows, group: NDArray[np.int32]) -> None:
    """Refuse local times of a night when clocks were set back: one hour has samples of two. Raises DataError.

    Rows of one time are refused before; others lie between each other, and would be averaged.
    """
    assert rows.t is not None
    if not rows.t_role.startswith(times.NO_ZONE):
        return
    hour = np.floor(rows.t / HOUR_S).astype(np.int64)
    for night in filter(times.is_night_of_clocks, np.unique(hour).tolist()):
        near = np.flatnonzero(np.abs(hour - night) <= 1)
        for one in np.unique(group[near]).tolist():
            members = near[group[near] == one]
            counts = np.bincount(hour[members] - night + 1, minlength=3)
            beside = max(counts[0], counts[2])
            if beside >= HOUR_MIN and counts[1] > MORE_IN_HOUR * HOUR_S / _step(
                rows.t[group == one], hour[group == one] == night
            ):
                raise DataError(
                    f"From {times.shown(night * HOUR_S)} on {name_of(rows, int(members[0]))} has more samples for an "
                    "hour than elsewhere, in a night when clocks may be set back: local times? Bring UTC, or times "
                    "that name their zone."
                )


def hour_left_out(rows: Rows, group: NDArray[np.int32], hz: float) -> tuple[str, ...]:
    """Note local times of a night when clocks were set forward: an hour without samples, and what seems a gap."""
    assert rows.t is not None
    if not rows.t_role.startswith(times.NO_ZONE):
        return ()
    wide = np.flatnonzero((np.diff(group) == 0) & (np.diff(rows.t) > HOUR_S))
    for row in wide.tolist():
        before, after = float(rows.t[row]), float(rows.t[row + 1])
        if times.is_hour_left_out(before, after, 1 / hz):
            note = (
                f"No sample of {name_of(rows, row)} lies between {times.shown(before)} and {times.shown(after)}, the "
                "hour that clocks leave out in spring: local times? Bring UTC, or each time of summer is an hour off."
            )
            return (note,)
    return ()


def _step(t: NDArray[np.float64], is_night: NDArray[np.bool_]) -> float:
    """The usual step outside of that hour."""
    t = np.sort(t[~is_night])
    return float(np.median(np.diff(t)))


def _two_rows(rows: Rows, row: int) -> DataError:
    assert rows.t is not None
    return DataError(
        f"Two rows of {name_of(rows, row)} have the time {rows.t[row]:.10g} and other values or labels, and so have "
        "many, or their neighbours: two recordings share the id (add a column 'episode'), the table holds a copy, or "
        f"its times are rounded{local_times(rows)}."
    )


def rounded_times(rows: Rows, group: NDArray[np.int32], hz: float) -> tuple[str, ...]:
    """Note times whose usual step is not their mean one: stamps of 15 and 16 ms are those of 64 Hz."""
    assert rows.t is not None
    steps = np.diff(rows.t)[np.diff(group) == 0] * hz
    usual = steps[(steps > even.SHORT) & (steps < even.GAP)]
    mean = float(usual.mean()) if usual.size else 1.0
    if abs(mean - 1) <= ROUNDED:
        return ()
    note = (
        f"The usual step of {1 / hz:.6g} s is that of {hz:.4g} Hz, but the mean one is that of {hz / mean:.4g} Hz: "
        "if times are rounded, say the true rate with --hz."
    )
    return (note,)


def check_years(rows: Rows, group: NDArray[np.int32]) -> None:
    """Refuse a recording whose times jump by years: its clock was set on the way. Raises DataError."""
    assert rows.t is not None
    jump = np.flatnonzero((np.diff(rows.t) > YEAR_S) & (np.diff(group) == 0))
    if jump.size:
        before, after = int(jump[0]), int(jump[0]) + 1
        raise DataError(
            f"The times of {name_of(rows, after)} jump from {times.shown(float(rows.t[before]))} to "
            f"{times.shown(float(rows.t[after]))}: was its clock set on the way? Leave the rows before out, or give "
            "them an episode of their own."
        )


def evenly(
    rows: Rows, group: NDArray[np.int32], hz: float, totals: NDArray[np.bool_], *, said: bool, room: Room
) -> Rows:
    """The sorted rows of each recording (``group``) at ``hz``: those that come faster or crowded are resampled.

    Raises DataError for a part that is slower, or, where the rate was not ``said``, far faster.
    """
    assert rows.t is not None
    taken: list[NDArray[np.int64]] = []
    t_of, resampled = [], []
    uneven = set()  # the first rows of recordings that are resampled
    averaged = between = 0
    recordings = edges_of(group)
    for low, high in recordings:
        t = rows.t[low:high]
        odd = times.other_rates(t, hz)
        _check_parts(rows, low, odd, hz, said=said)
        members = np.arange(low, high)
        if even.is_uneven(t, hz, changes=bool(odd)):
            nothing = np.empty((t.size, 0))
            found = even.resample(t, nothing, rows.label[low:high], hz, totals[:0])
            own = 1 / even.own_step(t)
            resampled.append(name_of(rows, low) + (f" ({own:.3g} Hz)" if own * even.FASTER > hz else ""))
            averaged, between = averaged + found.averaged, between + found.between
            members, t = members[found.row], found.t
            uneven.add(low)
        taken.append(members)
        t_of.append(t)
    if not resampled:
        return rows
    more = f" and {len(resampled) - SHOWN} more" if len(resampled) > SHOWN else ""
    note = (
        f"{len(resampled):,} of {len(recordings):,} recordings came unevenly or faster and were brought to {hz:g} Hz: "
        f"{', '.join(resampled[:SHOWN])}{more}; {averaged:,} samples are means of several, {between:,} lie half way "
        "between their neighbours, and gaps stay."
    )
    sizes = [members.size for members in taken]
    values = room.empty((sum(sizes), rows.values.shape[1]), np.float32, "F")
    some = room.rows(RESAMPLED_TIMES * 8 * len(rows.values))  # columns
    for first in range(0, values.shape[1], some):
        here = slice(first, first + some)
        at = 0
        for (low, high), size in zip(recordings, sizes, strict=True):
            part = rows.values[low:high, here]
            if low in uneven:
                part = even.resample(rows.t[low:high], np.array(part), rows.label[low:high], hz, totals[here]).values
            values[at : at + size, here] = part
            at += size
            release(values)
            release(rows.values)
        room.progress("resampling", min(1.0, (first + some) / values.shape[1]))
    rows = rows.take(np.concatenate(taken))
    return replace(rows, t=np.concatenate(t_of), values=values, notes=(*rows.notes, note))


def _check_parts(rows: Rows, row: int, odd: Sequence[float], hz: float, *, said: bool) -> None:
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
