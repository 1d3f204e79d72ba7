"""Bring the rows of a table to an even rate; each change is counted and noted, and unclear times are refused."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise

import numpy as np

from training.certain import certain
from training.data.errors import DataError
from training.data.ingest import even, times
from training.data.ingest.columns import Wanted, check_rounding_of, check_total
from training.data.ingest.ingested import UNKNOWN_HOST
from training.data.ingest.rows import SampleRows, check_begun_once, check_interleaved, name_of
from training.data.ingest.several import JOINED
from training.data.scratch import ROOM, SPAN_ROWS, edges_of, fill, release, spans
from training.data.values import AnyArray, Bools, Codes, Floats
from training.printable import some

ROUNDED = 0.01  # share by which the mean step may differ from the usual one
YEAR_S = 365 * 86_400.0
HOUR_S = 3600.0
MORE_IN_HOUR = 1.15  # times the samples that an hour has elsewhere
HOUR_MIN = 20  # samples of an hour that show its rate
KNOT = 64  # rows between two whose times are kept, where a clock is coarse
APART_MAX = 32  # recordings whose rows are looked for among those of one time
SHOWN = 3  # recordings in one sentence


def spread(rows: SampleRows, hz: float | None) -> SampleRows:
    """Return the sorted rows; if many share their time with others, and the user gave the rate ``hz``, those of one
    time are spread over the time until the next. If they are fewer than two on average, by a clock that is coarser than
    ``hz``, times are interpolated between every ``KNOT``-th row.

    A table of which every row stands twice is returned as it is. Raises DataError if the rows of one time seem to be of
    several recordings.
    """
    shared = None if hz is None else _shared(rows)
    if shared is None or _shared(_without_copies(rows)[0]) is None:
        return rows
    each, step = shared
    if each < 2 and abs(each / step / certain(hz, "it was said") - 1) > times.RATE_LEAVE:
        return rows
    for by in range(2, min(round(each), APART_MAX) + 1):
        check_interleaved(rows, rows.recording, by)
    t, group = rows.clock, rows.recording
    if each < 2:
        note = f"The clock goes in steps of {step:.3g} s: times between each {KNOT}th row were interpolated, by --hz."
        return replace(rows, t=_between_knots(t, group, even.PAUSE * step), notes=(*rows.notes, note))
    begins = np.flatnonzero(np.r_[True, (np.diff(t) != 0) | (np.diff(group) != 0)])
    counts = np.diff(np.r_[begins, t.size])
    place = np.arange(t.size) - np.repeat(begins, counts)
    full = np.where(counts * even.GAP < each, each, counts)  # of a time with fewer rows, some are lost
    note = f"About {each:g} rows share one time: spread over the {step:g} s until the next, by --hz."
    return replace(rows, t=t + place * step / np.repeat(full, counts), notes=(*rows.notes, note))


def _between_knots(t: Floats, group: Codes, pause: float) -> Floats:
    """Return sorted times interpolated between every ``KNOT``-th row; longer steps than ``pause`` stay."""
    found = t.copy()
    begins = np.flatnonzero(np.r_[True, (np.diff(t) > pause) | (np.diff(group) != 0)])
    for low, high in pairwise([*begins.tolist(), t.size]):
        last = high - low - 1
        knots = low + np.linspace(0, last, max(1, last // KNOT) + 1).astype(int)
        found[low:high] = np.interp(np.arange(low, high), knots, t[knots])
    return found


def _shared(rows: SampleRows) -> tuple[float, float] | None:
    """Return the usual number of rows of one time, and the step to the next time; None if few share theirs."""
    if rows.t is None or rows.window is not None:
        return None
    group = rows.recording
    rises = times.chosen_steps(rows.clock, times.rises, group)
    apart = np.concatenate([[True], *(steps != 0 for steps in times.steps_of(rows.clock, group)), [True]])
    same = int(np.count_nonzero(~apart))
    if not rises.size or same <= even.DOUBLES_MAX * group.size:
        return None
    if 2 * same < group.size - 1:
        return 1 + same / rises.size, float(rises[rises <= even.PAUSE * np.median(rises)].mean())
    edges = np.flatnonzero(apart)
    return float(np.median(np.diff(edges))), float(np.median(rises, overwrite_input=True))


def as_measured(rows: SampleRows, names: Sequence[str], wanted: Wanted) -> SampleRows:
    """Return the sorted rows with values of 32 bits, without repeated rows (if the table has times), and with running
    totals turned into growth per second.

    Merging rows may overwrite values of the given rows: use only the returned rows, whose values are a new array.
    Raises DataError.
    """
    totals = np.isin(names, wanted.counter)
    if totals.any() and rows.t is None:
        raise DataError("--counter needs a column of times: a rate is a change by the second.")
    rows = _once(rows, totals)
    group, size = rows.recording, rows.label.size
    values, notes = rows.room.empty((size, len(names)), np.float32, "F"), []
    for place, name in enumerate(names):
        column = rows.values[:size, place]
        if totals[place]:
            falls, steps = _falls(column, group)
            check_total(name, falls, steps)
            if falls:
                notes.append(f"{name} falls {_times(falls)}, where a total was reset: nothing grew there.")
            column = even.rates(column, rows.clock, group)
        else:  # a rate is a difference, and has no offset to lose its changes in
            check_rounding_of(name, column, rows.host.codes)
        with np.errstate(over="ignore"):  # what no 32-bit number holds becomes infinite, and is refused as that
            for here in spans(column, values):
                values[here, place] = column[here]
        release(rows.values)
        rows.room.progress("sorting", (place + 1) / len(names))
    return replace(rows, values=values, notes=(*rows.notes, *notes))


def _falls(total: AnyArray, group: Codes) -> tuple[int, int]:
    """Return the number of steps at which a running total falls, and of all steps, between known values of one
    group."""
    known = ~np.isnan(total)
    steps = np.diff(total[known])[np.diff(group[known]) == 0]
    return int((steps < 0).sum()), int(np.isfinite(steps).sum())


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _once(rows: SampleRows, totals: Bools) -> SampleRows:
    """Return the sorted rows; if they have times, remove exact copies, and merge a recording's rows of one time into
    one.

    Raises DataError if a recording's times start over in the file and overlap the earlier ones. Merging may overwrite
    values of the given rows.
    """
    if rows.t is None:
        return rows
    rows, copies = _without_copies(rows)
    rows, folded = _folded(rows, totals)
    if rows.place is not None and rows.window is None:
        two = f"two recordings share the id ({_apart(rows)}){local_times(rows)}."
        check_begun_once(rows, rows.recording, two)
    return replace(rows, notes=(*rows.notes, *copies, *folded))


def _without_copies(rows: SampleRows) -> tuple[SampleRows, list[str]]:
    group = rows.recording
    some = even.rows_of_doubles(rows.clock, group)
    if not some.size:
        return rows, []
    keep = np.ones(group.size, bool)
    keep[some] = even.first_of_copies(rows.values[some], rows.clock[some], group[some], rows.label[some])
    gone = keep.size - int(np.count_nonzero(keep))
    if not gone:
        return rows, []
    note = f"{gone:,} of {keep.size:,} rows were copies of others, in all columns: left out."
    return rows.at(np.flatnonzero(keep)), [note]


def _folded(rows: SampleRows, totals: Bools) -> tuple[SampleRows, list[str]]:
    group = rows.recording
    is_clock = rows.window is None and any((steps > 0).any() for steps in times.steps_of(rows.clock, group))
    if not is_clock:  # there is none, or windows say it, which is refused
        return rows, []
    found = even.fold_doubles(rows.clock, group, rows.label, rows.values, totals)
    if found.torn is not None:
        raise _two_rows(rows, found.torn)
    if not found.folded:
        return rows, []
    largest = " (of a running total the largest)" if totals.any() else ""
    more = "1 row" if found.folded == 1 else f"{found.folded:,} rows"
    return rows.at(np.flatnonzero(found.keep)), [f"At one time stood {more} more: the mean{largest} was taken."]


def local_times(rows: SampleRows) -> str:
    """Return words for an error: times without a zone may be local times when clocks were set back; "" for other
    times."""
    local = ", or are local times of the night when clocks are set back (bring UTC)"
    return local if rows.t_role.startswith(times.NO_ZONE) else ""


def check_night(rows: SampleRows, group: Codes) -> None:
    """Raise DataError if times without a zone seem to be local times of a night when clocks were set back.

    Two hours of samples then have the same times, so one hour has far more samples than others. Many rows of equal
    times were refused before; rows that interleave would be averaged.
    """
    if not rows.t_role.startswith(times.NO_ZONE):
        return
    by_span = [np.unique(np.floor(rows.clock[here] / HOUR_S)) for here in spans(rows.clock)]
    hours = np.unique(np.concatenate(by_span)).astype(int).tolist()
    nights = [hour for hour in hours if times.is_night_of_clocks(hour)]
    for night in nights:
        for low, high in edges_of(group):
            t = rows.clock[low:high]
            edges = np.searchsorted(t, HOUR_S * (night + np.arange(-1, 3)))
            before, count, after = np.diff(edges).tolist()
            if max(before, after) >= HOUR_MIN and count > MORE_IN_HOUR * HOUR_S / _step(t, *edges[1:3].tolist()):
                raise DataError(
                    f"From {times.shown(night * HOUR_S)} on {name_of(rows, low + int(edges[0]))} has more samples for "
                    "an hour than elsewhere, in a night when clocks may be set back: local times? Bring UTC, or times "
                    "that name their zone."
                )


def hour_left_out(rows: SampleRows, group: Codes, hz: float) -> tuple[str, ...]:
    """Return a note if a gap in times without a zone is the hour that clocks skip in spring; else an empty tuple."""
    if not rows.t_role.startswith(times.NO_ZONE):
        return ()
    for row in _jumps(rows, group, HOUR_S):
        before, after = float(rows.clock[row]), float(rows.clock[row + 1])
        if times.is_hour_left_out(before, after, 1 / hz):
            note = (
                f"No sample of {name_of(rows, row)} lies between {times.shown(before)} and {times.shown(after)}, the "
                "hour that clocks leave out in spring: local times? Bring UTC, or each time of summer is an hour off."
            )
            return (note,)
    return ()


def _jumps(rows: SampleRows, group: Codes, least: float) -> Iterator[int]:
    """Yield the numbers of the rows after which, in the same recording, more than ``least`` seconds pass."""
    for place, steps in enumerate(times.steps_of(rows.clock, group)):
        yield from (place * SPAN_ROWS + np.flatnonzero(steps > least)).tolist()


def _step(t: Floats, low: int, high: int) -> float:
    """Return the median step between times, without those from ``low`` until before ``high``."""
    beside = np.diff(t[[low - 1, high]]) if low > 0 and high < t.size else np.empty(0)
    steps = ROOM.empty((t.size,), float)
    size = fill(steps, chain(times.steps_of(t[:low]), times.steps_of(t[high:]), [beside]))
    return float(np.median(steps[:size], overwrite_input=True))


def _two_rows(rows: SampleRows, row: int) -> DataError:
    same = rows.clock[row - 1] == rows.clock[row] and rows.label[row - 1] != rows.label[row]
    why = "and differ in label" * bool(row and same) or "and such times are many or follow each other"
    return DataError(
        f"Two rows of {name_of(rows, row)} have the time {times.shown(float(rows.clock[row]))}, {why}: two recordings "
        f"share the id ({_apart(rows)}), the table holds a copy, or its times are rounded{_at_rate(rows)}"
        f"{local_times(rows)}."
    )


def _apart(rows: SampleRows) -> str:
    is_of_files = rows.path.stem == JOINED and rows.host.names.tolist() == [UNKNOWN_HOST]
    return "add a column 'episode'" + ", or say --host-from file if each has its own" * is_of_files


def _at_rate(rows: SampleRows) -> str:
    shared = _shared(rows)
    return "" if shared is None else f" (say their rate with --hz {shared[0] / shared[1]:.4g})"


def rounded_times(rows: SampleRows, group: Codes, hz: float) -> tuple[str, ...]:
    """Return a note that asks for ``--hz`` if the mean step differs from the usual one, as with rounded times; else an
    empty tuple."""
    usual = times.chosen_steps(rows.clock, lambda step: (step * hz > even.SHORT) & (step * hz < even.GAP), group)
    usual *= hz
    mean = float(usual.mean()) if usual.size else 1.0
    if abs(mean - 1) <= ROUNDED:
        return ()
    note = (
        f"The usual step of {1 / hz:.6g} s is that of {hz:.4g} Hz, but the mean one is that of {hz / mean:.4g} Hz: "
        "if times are rounded, say the true rate with --hz."
    )
    return (note,)


def check_years(rows: SampleRows, group: Codes) -> None:
    """Raise DataError if the times of a recording jump by more than a year, as when its clock was set while it ran."""
    for before in _jumps(rows, group, YEAR_S):
        after = before + 1
        raise DataError(
            f"The times of {name_of(rows, after)} jump from {times.shown(float(rows.clock[before]))} to "
            f"{times.shown(float(rows.clock[after]))}: was its clock set on the way? Leave the rows before out, or "
            "give them an episode of their own."
        )


def evenly(rows: SampleRows, group: Codes, hz: float, totals: Bools, *, said: bool) -> SampleRows:
    """Return the sorted rows at the rate ``hz``; recordings (``group``) that are faster or uneven are resampled.

    Raises DataError for a part that is slower than ``hz``, or far faster unless the user gave the rate (``said``).
    """
    recordings, uneven = edges_of(group), []
    for low, high in recordings:
        odd = times.other_rates(rows.clock[low:high], hz)
        _check_parts(rows, low, odd, hz, said=said)
        uneven.append(even.is_uneven(rows.clock[low:high], hz, changes=bool(odd)))
    if not any(uneven):
        return rows
    slots = [
        even.resampled(rows.clock[low:high], rows.label[low:high], hz) if is_uneven else None
        for (low, high), is_uneven in zip(recordings, uneven, strict=True)
    ]
    parts = list(zip(recordings, slots, strict=True))
    brought = []
    for (low, high), of in parts:
        if of is not None:
            own = 1 / even.own_step(rows.clock[low:high])
            brought.append(name_of(rows, low) + (f" ({own:.3g} Hz)" if own * even.FASTER > hz else ""))
    averaged, between = sum(of.averaged for of in slots if of), sum(of.after.size for of in slots if of)
    note = (
        f"{len(brought):,} of {len(recordings):,} recordings came unevenly or faster and were brought to {hz:g} Hz: "
        f"{some(brought, SHOWN)}; {averaged:,} samples are means of several, {between:,} lie half way "
        "between their neighbours, and gaps stay."
    )

    row = np.concatenate([np.arange(low, high) if of is None else of.row + low for (low, high), of in parts])
    t = np.concatenate([rows.clock[low:high] if of is None else of.t for (low, high), of in parts])
    if not row.size:
        raise DataError(
            f"The times of {rows.path} come so unevenly that none has a value at {hz:g} Hz: name the column of times "
            "with --time NAME."
        )
    values = rows.room.empty((row.size, rows.values.shape[1]), np.float32, "F")
    for place, is_rate in enumerate(totals.tolist()):
        column, at = rows.values[:, place], 0
        for (low, high), of in parts:
            mine = column[low:high] if of is None else of.values(column[low:high], is_rate=is_rate)
            values[at : at + mine.size, place] = mine
            at += mine.size
        release(values)
        rows.room.progress("resampling", (place + 1) / values.shape[1])
    return replace(rows.at(row, values), t=t, notes=(*rows.notes, note))


def _check_parts(rows: SampleRows, row: int, odd: Sequence[float], hz: float, *, said: bool) -> None:
    """Raise DataError if a rate in ``odd`` (of parts of a recording) is slower than ``hz``, or far faster unless the
    user gave ``hz``."""
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
