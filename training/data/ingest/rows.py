"""Read the rows of a table of samples column by column; refuse two recordings under one name, and wrong rates."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from training.certain import certain
from training.data.classes import BENIGN, MALICIOUS, USUAL, Benign, listed, quoted
from training.data.coded import Coded, numbered, occurring
from training.data.dataset import UNLABELLED
from training.data.doubts.spelling import tidy
from training.data.errors import DataError
from training.data.ingest import times
from training.data.ingest.cells import row_order
from training.data.ingest.columns import Wanted
from training.data.ingest.ingested import NOT_LABELLED, UNKNOWN_HOST, SaidClasses, name_labels, rate_of_step
from training.data.ingest.references import booleans, marked, marks_refused
from training.data.ingest.roles import Role, plain, plural_of
from training.data.ingest.tables import NAMES, Stored
from training.data.missing import NAN, judge_stand_ins, labelled, say_missing
from training.data.scratch import ROOM, WorkingMemory, columns, edges_of, looked_up, release, spans
from training.data.values import AnyArray, Bools, Codes, Floats, Floats32, Indices, Ints

COUNTED = "the rows counted at --hz"  # a role of times
WHOLE_MAX = 2**53  # beyond it not each whole number is a float
SHOWN = 8  # columns in one sentence
UNIT_BEHIND = r"\s*[+-]?\d[\d.,' ]*\s*(%|[A-Za-zµ°][A-Za-z/°]{0,6})\s*$"  # 5.3 %, 12 MB/s
ALSO_BENIGN = ("healthy", "good", "legit", "gutartig", "normal/attack")  # names of columns that are 1 where all is well
INTERLEAVED_MIN, INTERLEAVED_ROWS = 20, 4096  # rows that show it, and that are enough
RUN_MIN = 4.0  # rows in a row with rising times, on average, that shuffling does not make


class WindowCut(NamedTuple):
    """The options for cutting recordings into windows; ``hz`` None means that the rate is computed from the times.

    ``t_unit`` and ``time_format`` (of strptime) are None if the user did not give them. ``episode_s`` is the length of
    the episodes into which recordings are cut; None means by a rule, and only if no column names episodes and the
    samples have labels.
    """

    window_s: float | None = None
    stride_s: float | None = None  # None: half a window
    hz: float | None = None
    t_unit: str | None = None
    time_format: str | None = None
    episode_s: float | None = None
    window_samples: int | None = None  # where no ``window_s`` is said,
    usual_stride_s: float | None = None  # and no ``stride_s``
    day: str | None = None  # of the first row, where times have no date or no year
    points: bool = False  # labels mark single samples
    rows_are_windows: bool = False  # no recordings: each row is an example, without a time


class TableClasses(NamedTuple):
    """The names of all classes in the order of their numbers, the benign ones, and the label in the table of each class
    with another name."""

    names: tuple[str, ...]
    benign: Benign
    written: Mapping[str, str] = {}


@dataclass(frozen=True)
class SampleRows:
    """The S samples of a table, with their times ``t`` in seconds; None if the table has no times.

    ``values`` (S, C) may be larger than memory. ``label`` has the number of each row's class in ``labels``. If the rows
    had to be sorted, ``place`` has the number that each had among the used rows of the file; else None.
    """

    path: Path
    values: NDArray[np.floating[Any]]
    labels: TableClasses
    label: Codes
    host: Coded
    episode: Coded | None
    t: Floats | None
    t_role: str
    window: Coded | None = None
    place: Ints | None = None
    room: WorkingMemory = ROOM
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def clock(self) -> Floats:
        """The times ``t``, for callers that know that there are some."""
        return certain(self.t, "there are times")

    @property
    def recording(self) -> Codes:
        """A number for each row; rows of one recording (or window, if windows are given) have the same."""
        return numbered(self.host, *(ids for ids in (self.episode, self.window) if ids is not None))

    @property
    def ids(self) -> Coded:
        """The name of each row's recording: its episode, or its host if there are no episodes."""
        return self.host if self.episode is None else self.episode

    def at(self, rows: Indices, values: AnyArray | None = None) -> Self:
        """Return the rows with these numbers; ``values``, if given, replaces their values."""
        if values is None:
            values = self.room.empty((rows.size, self.values.shape[1]), self.values.dtype, "F")
            for place in range(values.shape[1]):
                for here in spans(rows, values):
                    values[here, place] = self.values[:, place][rows[here]]
                release(self.values)
        names = ("label", "host", "episode", "window", "t", "place")
        taken: dict[str, Any] = {
            name: column.take(rows) if isinstance(column, Coded) else looked_up(column, rows, self.room)
            for name in names
            if (column := getattr(self, name)) is not None
        }
        release(rows)
        return replace(self, values=values, **taken)


def missing_roles(columns: Sequence[str], *, is_cut: bool) -> tuple[str, ...]:
    """Return notes on roles (host, episode) that no column has, and on channels named like the plural of a role. With
    ``is_cut`` (recordings are cut into episodes) or a column of windows, there is no note on episodes."""
    notes = []
    if Role.HOST not in columns:
        notes.append("There is no column host: all rows count as one machine's.")
    if not is_cut and Role.EPISODE not in columns and Role.WINDOW not in columns:
        notes.append("There is no column episode: each host is one recording.")
    notes += [
        f"The column {name} is taken for a channel: say {role.flag} {name} if it is the {role}."
        for name in columns
        if (role := plural_of(name)) is not None
    ]
    return tuple(notes)


# -- from a file to rows -----------------------------------------------------------------------------------------------


def check_numbers(table: Stored) -> None:
    """Raise DataError if the table has no rows or no channels, or channels that are not numbers; the sentence names all
    of these."""
    path = table.path
    if table.height == 0 or not table.channels:
        raise DataError(f"{path} holds no samples: it needs rows, and a column for each channel.")
    odd = [name for name in table.channels if not table.kinds[name].is_number]
    if not odd:
        return
    ways = f"leave {'it' if len(odd) == 1 else 'them'} out with --ignore {shlex.quote(','.join(map(quoted, odd)))}"
    roles = ", ".join(role.flag for role in Role)
    if len(odd) == 1:
        raise DataError(
            f"The column {odd[0]!r} of {path} is a channel but holds {_other_than_numbers(table, odd[0])}: {ways}, or "
            f"say what it is ({roles} {odd[0]})."
        )
    shown = "; ".join(f"{name!r} holds {_other_than_numbers(table, name)}" for name in odd[:SHOWN])
    more = f"; and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""
    raise DataError(
        f"{len(odd)} columns of {path} are channels but hold other things than numbers: {shown}{more}: {ways}, or say "
        f"what one is ({roles})."
    )


def _other_than_numbers(table: Stored, name: str) -> str:
    """Return words for the content of a column that has other things than numbers, with the first such cell if it is
    text."""
    odd, row, first = table.odd_cells(name)
    if odd and odd == table.store.rows and re.match(UNIT_BEHIND, first):
        return f"numbers with a unit behind them, the first {first!r} (write it into the column's name)"
    if odd in (0, table.store.rows):
        return "no numbers"
    return (
        f"text in {odd:,} of {table.store.rows:,} rows, the first {first!r} in row {row + 1} "
        "(leave a cell empty where nothing was measured)"
    )


def hosts_of(table: Stored) -> Coded:
    """Return the host of each row; ``UNKNOWN_HOST`` for all if there is no column of hosts. Raises DataError."""
    if Role.HOST not in table.columns:
        return Coded(np.array([UNKNOWN_HOST]), np.broadcast_to(np.int32(0), (table.height,)))
    return _tidy(strings(table, Role.HOST), "host")


def _tidy(names: Coded, what: str) -> Coded:
    return names.renamed(tidy(names.names, what).tolist())


def clock_of(table: Stored, cut: WindowCut) -> tuple[Floats | None, str]:
    """Return the time of each row in seconds, and words on how it was read; None and "" if there is no column of times.
    Raises DataError."""
    if Role.TIME in table.columns:
        said = times.SaidTimes(unit=cut.t_unit, named=table.roles.unit, format=cut.time_format, day=cut.day)
        t, role = times.from_parts(lambda: table.parts(Role.TIME), said, str(table.path))
        if cut.day is None:
            return t, role
        if times.FROM_DAY not in role:
            raise DataError(f"The times of {table.path} have dates, so --day has no effect: leave it out.")
        return times.past_midnight(t, hosts_of(table).codes, role, str(table.path))
    if cut.t_unit is not None or cut.time_format is not None:
        flag = "--t-unit" if cut.t_unit is not None else "--time-format"
        raise DataError(f"{table.path} has no column of times, so {flag} has no effect (--time NAME names one).")
    return None, ""


def _counted(group: Codes) -> Floats:
    """Return the number of each row in its group, from 0."""
    order = np.argsort(group, kind="stable")
    counts = np.bincount(group)
    number = np.empty(group.size)
    number[order] = np.arange(group.size) - np.repeat(np.cumsum(counts) - counts, counts)
    return number


def read_rows(table: Stored, cut: WindowCut, said: SaidClasses, wanted: Wanted) -> SampleRows:
    """Return the rows of the table that are used, in the order of the file, with their values and classes, and close
    the table's store. Raises DataError."""
    host = hosts_of(table)
    episode, window = (
        _tidy(strings(table, role), str(role)) if role in table.columns else None
        for role in (Role.EPISODE, Role.WINDOW)
    )
    table.room.progress("reading times and names", 0.3)
    t, t_role = (None, "not used") if cut.rows_are_windows else clock_of(table, cut)
    if t is None and window is None and cut.hz is not None:
        t, t_role = _counted(host.codes) / cut.hz, COUNTED  # by host, so that its recordings do not overlap
    if t is not None:
        times.check_one_clock(t, host)
    table.room.progress("reading times and names", 0.8)
    label, labels = _classes(table, said)
    _check_sense(table.called(Role.LABEL), labels, said)
    table.room.progress("reading times and names", 1.0)
    for name, largest in table.largest_whole().items():
        if largest > WHOLE_MAX:  # 64-bit floats make one of several
            raise DataError(
                f"The channel {name!r} holds whole numbers of up to {largest:,}, of which the last digits would be "
                "lost: subtract a constant, bring rates, or leave it out with --ignore if it is an id."
            )
    values = table.values()
    left_out = []
    if wanted.missing:
        left_out = say_missing(wanted.missing, table.channels, list(values.T))
    notes = judge_stand_ins(zip(table.channels, columns(values), strict=True), wanted.level)
    if cut.rows_are_windows:
        number = np.arange(table.store.rows) + 1 if table.keep is None else np.flatnonzero(table.keep) + 1
        numbered_rows = np.char.add("row ", np.char.zfill(number.astype(str), len(str(number[-1]))))
        window = Coded(numbered_rows, np.arange(number.size, dtype=np.int32))
    if Role.REFERENCE in table.columns:
        label, names = marked(label, labels.names, labels.benign.names, _marks(table))
        labels = labels._replace(names=names)
    table.store.close()
    return SampleRows(
        path=table.path,
        values=values,
        labels=labels,
        label=label,
        host=host,
        episode=episode,
        t=t,
        t_role=t_role,
        window=window,
        room=table.room,
        left_out=tuple(left_out),
        notes=tuple(notes),
    )


def _marks(table: Stored) -> Bools:
    """Return a mask of the rows that are of a host's reference. Raises DataError."""
    name = table.called(Role.REFERENCE)
    if any(part.null_count() for part in table.parts(Role.REFERENCE)):
        raise DataError(f"The column {name!r} has empty cells: say in each row whether it is of a reference.")
    way_out = f"rename it or say --ignore {shlex.quote(quoted(name))} if it is none"
    refusal = marks_refused(f"column {name!r}", way_out)
    return np.concatenate([booleans(part.to_numpy(), refusal) for part in table.parts(Role.REFERENCE)])


def _check_sense(column: str, labels: TableClasses, said: SaidClasses) -> None:
    """Raise DataError if the label column has two values such as 0 and 1 and is named after the benign class.

    A flag that names the classes or the benign ones prevents the error.
    """
    word = plain(column).removeprefix("is")
    if said.benign or said.labels or said.no_benign or word not in (*USUAL, *ALSO_BENIGN):
        return
    if {name.casefold() for name in labels.names} in ({BENIGN, MALICIOUS}, {"true", "false"}):
        raise DataError(
            f"The column {column!r} is called after what is benign, so that 1 or true may be it: say --benign 1 (or "
            "true), or --benign 0 (or false) if it is the other way."
        )


def strings(table: Stored, role: Role) -> Coded:
    """Return the cells of the column with this role, as text. Raises DataError if a cell is empty."""
    empty, first, at = 0, 0, 0
    for part in table.parts(role):
        if part.null_count() and not empty:
            first = at + int(part.is_null().arg_true()[0]) + 1
        empty += part.null_count()
        at += part.len()
    if empty:
        raise DataError(
            f"The column {table.called(role)!r} has {empty:,} empty cells, the first in row "
            f"{first}: fill them, or leave these rows out (a line of remarks or totals is no row)."
        )
    return Coded.of_series(part.cast(pl.String) for part in table.parts(role))


def _classes(table: Stored, said: SaidClasses) -> tuple[Codes, TableClasses]:
    """Return the class number of each row, and the classes. Raises DataError.

    Numeric labels are passed on as numbers, so that 0 and 1 can mean benign and malicious.
    """
    if table.labels is None and any(part.null_count() for part in table.parts(Role.LABEL)):
        raise DataError(
            f"The column {table.called(Role.LABEL)!r} has empty cells: fill them, or leave these rows out with "
            "--unlabelled nan."
        )
    values, codes = _labels(table)
    if values.tolist() == [UNLABELLED]:
        return codes, TableClasses((UNLABELLED,), NOT_LABELLED)
    if values.dtype.kind == "f" and np.isnan(values).any():
        name_labels(values[codes], said)  # which says how many
    there = occurring(codes, values.size)
    found = name_labels(values[there], said)
    number = {name: place for place, name in enumerate(found.names)}
    of_value = np.zeros(values.size, np.int32)
    of_value[there] = [number[name] for name in found.of_window.tolist()]
    written = {
        name: f"{value:g}" if isinstance(value, float) else str(value).lower()
        for name, value in zip(found.of_window.tolist(), values[there].tolist(), strict=True)
        if values.dtype.kind in "fiub"
    }
    return looked_up(of_value, codes, table.room), TableClasses(found.names, found.benign, written)


def _labels(table: Stored) -> tuple[AnyArray, Codes]:
    """Return the different labels, ascending, and each row's place among them; an empty cell counts as NaN."""
    if table.labels is not None:
        return table.labels.names, table.labels.codes
    first = next(table.parts(Role.LABEL))
    if first.dtype.is_numeric() or first.dtype == pl.Boolean:
        values = np.unique(np.concatenate([_filled(part.unique()) for part in table.parts(Role.LABEL)]))
        codes = (np.searchsorted(values, _filled(part)) for part in table.parts(Role.LABEL))
        return values, table.room.joined(codes, table.height, np.int32)
    words = (part.cast(pl.String).fill_null(NAN) for part in table.parts(Role.LABEL))
    coded = Coded.of_series(words)
    return coded.names, coded.codes


def _filled(numbers: pl.Series) -> AnyArray:
    return (numbers.cast(pl.Float64).fill_null(np.nan) if numbers.null_count() else numbers).to_numpy()


def only_labelled(table: Stored, unlabelled: Sequence[str]) -> tuple[Stored, list[str]]:
    """Return the table without the rows whose label is in ``unlabelled``, and a list with a line of text on them; the
    list is empty if ``unlabelled`` is.

    A given window with an unlabelled row is left out as a whole. Raises DataError.
    """
    if not unlabelled:
        return table, []
    values, codes = _labels(table)
    there = occurring(codes, values.size)
    is_class = np.zeros(values.size, bool)
    words = np.char.lower(values.astype(str)) if values.dtype.kind == "b" else values
    is_class[there] = labelled(words[there], unlabelled)
    keep = is_class[codes]
    if Role.WINDOW in table.columns:  # one that is labelled in part is none
        window = numbered(*(strings(table, role) for role in NAMES if role in table.columns))
        keep = (np.bincount(window, ~keep) == 0)[window]
    labels = None if table.labels is None else table.labels.take(keep)
    rest = table.only(keep, labels)
    said = f"{table.height - rest.height:,} of {table.height:,} rows: --unlabelled"
    if Role.HOST in table.columns:
        gone = sorted(_names_of_hosts(table) - _names_of_hosts(rest))
        said += f", all of {listed(gone)}" if gone else ""
    return rest, [said]


def _names_of_hosts(table: Stored) -> set[str]:
    return {str(name) for part in table.parts(Role.HOST) for name in part.drop_nulls().unique()}


def check_labels_repeated(rows: SampleRows) -> None:
    """Raise DataError if a class has a single sample, because no window can then have this class."""
    counts = sum(np.bincount(rows.label[here], minlength=len(rows.labels.names)) for here in spans(rows.label))
    once = sorted(rows.labels.names[number] for number in np.flatnonzero(counts == 1).tolist())
    if once:
        label = rows.labels.written.get(once[0], once[0])
        raise DataError(
            f"The label {label!r} occurs once in {rows.path}: fix it if it is misspelled, leave its sample out with "
            f"--unlabelled={label}, or say --points if it marks the windows that hold it."
        )


# -- one recording, or several under one name --------------------------------------------------------------------------


def in_order(rows: SampleRows) -> SampleRows:
    """Return the rows sorted by recording and time, with a note if times were out of order; without times, sorted by
    recording alone."""
    t = rows.t
    if not times.is_out_of_order(rows.recording if t is None else t, rows.recording):
        return rows
    notes = rows.notes
    disorder = 0 if t is None else out_of_order(t, rows.recording)
    if disorder:
        notes = (*notes, f"{disorder:,} of {rows.label.size:,} rows stood behind later ones: sorted by time.")
    place = row_order(t, rows.recording, rows.room)
    return replace(rows.at(place), place=place, notes=notes)


def check_begun_once(rows: SampleRows, group: Codes, what: str) -> None:
    """Raise DataError, ending in ``what``, if the times of a group start over in the order of the file, and the parts
    overlap.

    The rows are sorted, and have their ``place`` in the file. Shuffled rows are accepted.
    """
    place = certain(rows.place, "the rows were sorted")
    for low, high in edges_of(group):
        order = np.argsort(place[low:high])
        release(place)
        t = rows.clock[low:high][order]
        fell = np.flatnonzero(np.diff(t) < 0) + 1
        if not fell.size or t.size < RUN_MIN * (fell.size + 1):
            continue  # in order, or shuffled
        begins = [0, *fell.tolist(), t.size]
        runs = sorted((float(t[a]), float(t[b - 1])) for a, b in pairwise(begins))
        if any(b[0] < a[1] for a, b in pairwise(runs)):
            begin = int(place[low + order[fell[0]]]) + 1
            raise DataError(f"The times of {name_of(rows, low)} start over at row {begin} and overlap: {what}")


def out_of_order(t: Floats, group: Codes) -> int:
    """Return the number of rows whose time is earlier than that of a previous row of their group."""
    latest, count = np.full(int(group.max(initial=-1)) + 1, -np.inf), 0
    for here in spans(t, group):
        order = np.argsort(group[here], kind="stable")
        of, at = group[here][order], t[here][order]
        first = np.diff(of, prepend=-1) != 0
        values, rank = np.unique(np.where(first, np.maximum(at, latest[of]), at), return_inverse=True)
        begin = np.cumsum(first) * values.size  # so that no group reaches into the next
        highest = values[np.maximum.accumulate(begin + rank) - begin]
        latest[of] = highest  # the last row of each group stays
        count += int((at < highest).sum())
    return count


# -- sorted rows -------------------------------------------------------------------------------------------------------


def check_interleaved(rows: SampleRows, group: Codes, by: int = 2) -> None:
    """Raise DataError if a host's sorted rows seem to alternate between ``by`` recordings, and there is no column of
    episodes.

    Rows seem to alternate if long and short steps of time do, or if in at least half of the channels that change,
    values ``by`` rows apart are much nearer than neighbouring ones.
    """
    if rows.t is None or rows.episode is not None:
        return
    for low, high in edges_of(group):
        some = slice(low, min(high, low + INTERLEAVED_ROWS))
        t, values = rows.t[some], np.array(rows.values[some])
        release(rows.values)
        if t.size >= INTERLEAVED_MIN and (_steps_alternate(t) or _values_alternate(values, by)):
            raise DataError(
                f"The rows of {name_of(rows, low)} seem to alternate between {by} recordings: add a column 'episode' "
                "that names the recording of each row (one name for all if it is a single recording)."
            )


def _steps_alternate(t: Floats) -> bool:
    """Return True if long and short steps alternate evenly, which rounding and delays do not cause."""
    steps = np.diff(t)
    quartiles = [np.quantile(steps[first::2], (0.1, 0.5, 0.9)) for first in (0, 1)]
    short, long = sorted(quartiles, key=lambda found: float(found[1]))
    tight = max(short[2] - short[0], long[2] - long[0]) <= 0.1 * (long[1] - short[1])
    return bool(tight and long[1] > 1.2 * short[1] and short[1] > 0)


def _values_alternate(values: Floats32, by: int) -> bool:
    moving = alternating = 0
    for column in values.T:
        known = column[np.isfinite(column)]
        if known.size <= by:
            continue
        near, far = (float(np.median(np.abs(known[step:] - known[:-step]))) for step in (1, by))
        moving += near > 0
        alternating += far < 0.5 * near
    return bool(moving and 2 * alternating >= moving)


def name_of(rows: SampleRows, row: int) -> str:
    host = f"the host {rows.host[row]!r}"
    return host if rows.episode is None else f"the episode {rows.episode[row]!r} of {host}"


def check_rates(rows: SampleRows, group: Codes, hz: float, *, said: bool, slower: bool = False) -> None:
    """Raise DataError if recordings have another rate than the data set's ``hz``.

    With ``slower``, faster recordings are accepted, because they can be averaged; far faster ones only if the user gave
    the rate (``said``).
    """
    first = [low for low, _ in edges_of(group)]
    by_group = times.usual_steps(rows.clock, group, [str(number) for number in range(len(first))])
    odd = {n: step for n, step in by_group.items() if abs(step * hz - 1) > times.RATE_LEAVE}
    hosts = {rows.host[first[int(n)]] for n in odd}
    steps = {}
    for host in sorted(hosts):
        mine = [n for n in by_group if rows.host[first[int(n)]] == host]
        if all(n in odd for n in mine):
            steps[f"the host {host!r}"] = by_group[mine[0]]
        else:
            steps |= {name_of(rows, first[int(n)]): odd[n] for n in mine if n in odd}
    way = "bring all to one rate, or ingest them apart"
    if slower:
        steps = {n: step for n, step in steps.items() if step * hz > 1 or (not said and step * hz < 1 / times.UNLIKE)}
    if not steps:
        return
    if slower:
        way = f"say --hz {min(hz, 1 / max(steps.values())):.4g} to {way}"
        if max(*steps.values(), 1 / hz) > times.UNLIKE * min(*steps.values(), 1 / hz):
            way += " (in another unit of time? Then bring all to seconds)"
    step, *_ = steps.values()
    others = f"--hz says {hz:g}" if said else f"the usual rate is {hz:g}"
    more = f" and {len(steps) - 3} more" if len(steps) > 3 else ""
    raise DataError(f"Sampled at {1 / step:.4g} Hz, but {others}: {', '.join(list(steps)[:3])}{more}: {way}.")


def rate_of(rows: SampleRows, cut: WindowCut, group: Codes) -> float:
    """Return the sampling rate: ``cut.hz`` if given, else that of the median step inside the groups.

    ``group`` has the recording (or window) of each row. Raises DataError if the times do not rise and ``cut.hz`` is
    None, or if the step suggests a wrong unit.
    """
    steps = times.chosen_steps(rows.clock, times.rises, group)
    if not steps.size:
        if cut.hz:
            return cut.hz
        raise DataError(
            f"The times of {rows.path} do not rise: name the column that holds them with --time NAME, or bring windows "
            "(--window-column NAME) with their rate (--hz)."
        )
    usual = float(np.median(steps, overwrite_input=True))
    times.check_step(usual, rows.t_role, f"The samples of {rows.path}")
    return cut.hz or rate_of_step(usual)
