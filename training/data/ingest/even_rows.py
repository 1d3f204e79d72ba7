"""The rows of a table made even, with what is to be said of it: each touch is counted, and the unclear is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from training.data.errors import DataError
from training.data.ingest import even, times
from training.data.ingest.columns import Wanted, check_rounding, check_total
from training.data.ingest.rows import Rows, name_of

ROUNDED = 0.01  # share by which the mean step may differ from the usual one
YEAR_S = 365 * 86_400.0
HOUR_S = 3600.0
MORE_IN_HOUR = 1.15  # times the samples that an hour has elsewhere
HOUR_MIN = 20  # samples of an hour that show its rate
SHOWN = 3  # recordings in one sentence


def as_measured(rows: Rows, names: Sequence[str], wanted: Wanted) -> Rows:
    """The rows once each, in 32 bits, with the growth by the second of channels that are totals. Raises DataError."""
    totals = np.isin(names, wanted.counter)
    rows = _once(rows, totals)
    notes: list[str] = []
    if wanted.counter:
        if rows.t is None:
            raise DataError("--counter needs a column of times: a rate is a change by the second.")
        values, group = rows.values.copy(), rows.recording
        order = np.lexsort((rows.t, group))
        for place in np.flatnonzero(totals).tolist():
            known = order[~np.isnan(values[order, place])]
            steps = np.diff(values[known, place])[np.diff(group[known]) == 0]
            check_total(names[place], steps)
            resets = int((steps < 0).sum())
            if resets:
                notes.append(f"{names[place]} falls {_times(resets)}, where a total was reset: nothing grew there.")
            values[:, place] = even.rates(values[:, place], rows.t, group)
        rows = replace(rows, values=values)
    levels = [(name, rows.values[:, place]) for place, name in enumerate(names) if not totals[place]]
    check_rounding(levels, rows.host)  # a rate is a difference, and has no offset to lose its changes in
    return replace(rows, values=rows.values.astype(np.float32), notes=(*rows.notes, *notes))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _once(rows: Rows, totals: NDArray[np.bool_]) -> Rows:
    """The rows without copies, and of several at one time in a recording one. Raises DataError."""
    if rows.t is None:
        return rows
    said = []
    group, label = rows.recording, np.unique(rows.labels.of_window, return_inverse=True)[1]
    disorder = _out_of_order(rows.t, group)
    if disorder:
        said.append(f"{disorder:,} of {rows.t.size:,} rows stood behind later ones: sorted by time.")
    keep = even.first_of_copies(rows.values, rows.t, group, label)
    if not keep.all():
        said.append(f"{int((~keep).sum()):,} of {keep.size:,} rows were copies of others, in all columns: left out.")
        rows, group, label = rows.take(keep), group[keep], label[keep]
    assert rows.t is not None
    if rows.window is None and _rises(rows.t, group):  # else there is no clock, or windows say it, which is refused
        folded = even.fold_doubles(rows.t, group, label, rows.values, totals)
        if folded.torn is not None:
            raise _two_rows(rows, folded.torn)
        if folded.folded:
            rows = replace(rows, values=folded.values).take(folded.keep)
            largest = " (of a running total the largest)" if totals.any() else ""
            more = "1 row" if folded.folded == 1 else f"{folded.folded:,} rows"
            said.append(f"At one time stood {more} more: the mean{largest} was taken.")
    return replace(rows, notes=(*rows.notes, *said))


def _rises(t: NDArray[np.float64], group: NDArray[np.int64]) -> bool:
    order = np.lexsort((t, group))
    return bool(((np.diff(t[order]) > 0) & (np.diff(group[order]) == 0)).any())


def _out_of_order(t: NDArray[np.float64], group: NDArray[np.int64]) -> int:
    """Count the rows that stand behind a later one of their recording."""
    order = np.argsort(group, kind="stable")
    count = 0
    for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        count += int((t[members] < np.maximum.accumulate(t[members])).sum())
    return count


def local_times(rows: Rows) -> str:
    """Words on what else dates without a zone may be, for an error."""
    local = ", or are local times of the night when clocks are set back (bring UTC)"
    return local if rows.t_role.startswith(times.NO_ZONE) else ""


def check_night(rows: Rows, group: NDArray[np.int64]) -> None:
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


def rounded_times(rows: Rows, group: NDArray[np.int64], hz: float) -> tuple[str, ...]:
    """Note times whose usual step is not their mean one: stamps of 15 and 16 ms are those of 64 Hz."""
    assert rows.t is not None
    order = np.lexsort((rows.t, group))
    steps = np.diff(rows.t[order])[np.diff(group[order]) == 0] * hz
    usual = steps[(steps > even.SHORT) & (steps < even.GAP)]
    mean = float(usual.mean()) if usual.size else 1.0
    if abs(mean - 1) <= ROUNDED:
        return ()
    note = (
        f"The usual step of {1 / hz:.6g} s is that of {hz:.4g} Hz, but the mean one is that of {hz / mean:.4g} Hz: "
        "if times are rounded, say the true rate with --hz."
    )
    return (note,)


def check_years(rows: Rows, group: NDArray[np.int64]) -> None:
    """Refuse a recording whose times jump by years: its clock was set on the way. Raises DataError."""
    assert rows.t is not None
    order = np.lexsort((rows.t, group))
    jump = np.flatnonzero((np.diff(rows.t[order]) > YEAR_S) & (np.diff(group[order]) == 0))
    if jump.size:
        before, after = (int(order[jump[0] + at]) for at in (0, 1))
        raise DataError(
            f"The times of {name_of(rows, after)} jump from {times.shown(float(rows.t[before]))} to "
            f"{times.shown(float(rows.t[after]))}: was its clock set on the way? Leave the rows before out, or give "
            "them an episode of their own."
        )


def evenly(rows: Rows, group: NDArray[np.int64], hz: float, totals: NDArray[np.bool_], *, said: bool) -> Rows:
    """The rows of each recording (``group``) at ``hz``: those that come faster or crowded are resampled.

    Raises DataError for a part that is slower, or, where the rate was not ``said``, far faster.
    """
    assert rows.t is not None
    order = np.lexsort((rows.t, group))
    taken, t_of, values_of, resampled = [], [], [], []
    averaged = between = 0
    recordings = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    for members in recordings:
        t, values = rows.t[members], rows.values[members]
        odd = times.other_rates(t, hz)
        _check_parts(rows, int(members[0]), odd, hz, said=said)
        if even.is_uneven(t, hz, changes=bool(odd)):
            found = even.resample(t, values, rows.labels.of_window[members], hz, totals)
            own = 1 / even.own_step(t)
            resampled.append(name_of(rows, int(members[0])) + (f" ({own:.3g} Hz)" if own * even.FASTER > hz else ""))
            averaged, between = averaged + found.averaged, between + found.between
            members, t, values = members[found.row], found.t, found.values.astype(np.float32)
        taken.append(members)
        t_of.append(t)
        values_of.append(values)
    if not resampled:
        return rows
    more = f" and {len(resampled) - SHOWN} more" if len(resampled) > SHOWN else ""
    note = (
        f"{len(resampled):,} of {len(recordings):,} recordings came unevenly or faster and were brought to {hz:g} Hz: "
        f"{', '.join(resampled[:SHOWN])}{more}; {averaged:,} samples are means of several, {between:,} lie half way "
        "between their neighbours, and gaps stay."
    )
    rows = rows.take(np.concatenate(taken))
    return replace(rows, t=np.concatenate(t_of), values=np.concatenate(values_of), notes=(*rows.notes, note))


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
