"""Make windows from a table in long form (text or Parquet): a row for each sample, a column for each channel.

The following columns have a meaning, and are found by their usual names or named by flags (`roles`). Every other column
is a channel and must contain numbers, except second labels, a time of day beside a date, and columns that --ignore
names (`columns` refuses some names of channels):

    time      seconds or dates, on one clock for all rows
    label     class of the row, by name or number
    window    optional: rows of equal value are one window, as they were cut before
    episode   optional: rows of equal value are one recording (absent: each window, or each host, is one)
    host      optional: machine that recorded the row
    reference optional: true or 1 if the row is of the host's reference (see `references`)

Ids may be used again on every host: host and episode identify a recording; host, episode and window identify a window.
Without the column window, recordings are cut by ``window_s`` and ``stride_s``, never across a recording, a gap or a
change of label.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import polars as pl
from numpy.lib.stride_tricks import sliding_window_view

from training.data.classes import listed
from training.data.coded import Coded, numbered
from training.data.dataset import UNLABELLED
from training.data.errors import DataError
from training.data.ingest import ingested, times
from training.data.ingest.columns import Wanted, channel_names, check_named
from training.data.ingest.even import GAP, SHORT
from training.data.ingest.even_rows import (
    as_measured,
    check_night,
    check_years,
    evenly,
    hour_left_out,
    rounded_times,
    spread,
)
from training.data.ingest.incident_log import (
    Labelled,
    label_samples,
    labels_of_rows,
    read_incidents,
    read_said,
    with_labels,
)
from training.data.ingest.recorders.recorded import WINDOW_SAMPLES, RecordedTable, with_specs
from training.data.ingest.references import MARK
from training.data.ingest.roles import Role, Roles, are_flows
from training.data.ingest.rows import (
    COUNTED,
    SampleRows,
    WindowCut,
    check_interleaved,
    check_labels_repeated,
    check_numbers,
    check_rates,
    clock_of,
    hosts_of,
    in_order,
    missing_roles,
    name_of,
    only_labelled,
    rate_of,
    read_rows,
    strings,
)
from training.data.ingest.series import check_series, widened
from training.data.ingest.several import HostFrom, files_of, hosts_by_name, one_table
from training.data.ingest.tables import Stored, left, read_table, stored
from training.data.normalise import compress
from training.data.schema import Timing
from training.data.scratch import ROOM, WorkingMemory, blocks, columns, edges_of, release, spans
from training.data.values import AnyArray, Bools, Codes, Floats, Floats32, Ints

T = TypeVar("T")
EPISODES_LEAST, EPISODES_MOST = 3, 10  # of a recording that is cut by the rule
EPISODE_WINDOWS = 8  # that an episode of it holds at least
MOVES = 2000  # to either side that are tried, to lay a cut beside incidents
EXAMPLES = (
    "Each row is a window of its values, and no sample of a recording: there are no references, no levels of hosts, "
    "and no figures by time."
)
NO_GROUP = (
    "There is no --group: rows of one attack or program may be on both sides of a split, so that the test says little "
    "of new ones."
)
ROUNDING = 1e-5  # of a window's length that was reckoned from a rate


class Log(NamedTuple):
    """The file that labels the samples; ``rest`` is the class of samples in no incident, or None. ``hosts`` has the
    names by which it may call the table's files, and the host of each."""

    path: Path
    rest: str | None = None
    hosts: Mapping[str, str | None] = {}


def read_long(
    paths: Sequence[Path],
    cut: WindowCut,
    *,
    said: ingested.SaidClasses,
    wanted: Wanted,
    roles: Mapping[Role, str],
    log: Log | None = None,
    columns: Sequence[str] = (),
    decimal: str | None = None,
    host_from: HostFrom | None = None,
    scoring: bool = False,
    room: WorkingMemory = ROOM,
) -> ingested.Ingested:
    """Read the table in ``paths`` (files, or folders of files) and return its windows; several files are joined first,
    where ``host_from`` tells which part of a file's path names its host.

    ``roles`` has the columns that flags name, and ``columns`` the names of all columns of a file without a header.
    ``decimal`` is the sign before decimals that the user gave, or None. With ``scoring``, a table needs no labels. The
    result does not depend on ``room``, the memory to use. Raises DataError.
    """
    files = files_of(paths)
    if log is not None:
        log = log._replace(hosts=hosts_by_name(files, host_from))
    with one_table(files, host_from, room, wanted.ignore) as plain:
        table = read_table(plain, roles, wanted.ignore, columns, room, decimal=decimal, level=wanted.level)
        with closing(table.store):
            windows = cut_table(table, cut, said=said, wanted=wanted, log=log, scoring=scoring)
    shown = files[0].name if len(files) == 1 else f"{len(files):,} files"
    return replace(windows, source=windows.source.replace(plain.name, shown, 1))


def read_recorded(
    found: RecordedTable, cut: WindowCut, *, said: ingested.SaidClasses, wanted: Wanted, log: Log | None = None
) -> ingested.Ingested:
    """Return the windows of another recorder's samples; this project's channels in them are compressed as in own
    recordings.

    Without a log of incidents, all samples count as benign. Raises DataError.
    """
    rows, notes = found.rows.select(left(found.rows.columns, wanted.ignore, found.path)), found.notes
    roles = {Role.TIME: "its clock", Role.HOST: "its host"}
    if log is None:
        roles[Role.LABEL] = "no labels"
        rows = rows.with_columns(pl.lit(0).alias(str(Role.LABEL)))
        notes = (
            *notes,
            "The recorder carries no labels: every window counts as benign (--labels-from FILE brings some).",
        )
    ours = [name for name in found.channels if name in rows.columns]
    wanted = wanted._replace(level=tuple(dict.fromkeys((*wanted.level, *ours))))
    cut = cut._replace(window_samples=cut.window_samples or WINDOW_SAMPLES)
    held = stored(found.path, rows, Roles(columns=roles), found.layout)
    with closing(held.store):
        windows = cut_table(held, cut, said=said, wanted=wanted, log=log)
    channels = with_specs(windows.channels, ours)
    if log is None:
        windows = replace(windows, benign=windows.benign._replace(why="as nothing is labelled"))
    X = np.stack([compress(window.T, channels).T for window in windows.X])
    return replace(windows, X=X, channels=channels, notes=(*windows.notes, *notes))


def cut_table(
    table: Stored,
    cut: WindowCut,
    *,
    said: ingested.SaidClasses,
    wanted: Wanted,
    log: Log | None = None,
    scoring: bool = False,
) -> ingested.Ingested:
    """Return the windows of a table's rows: those that the table gives, or cut here. Raises DataError."""
    path, there = table.path, listed([table.named(name) for name in table.columns])
    by_log = Labelled()
    if cut.rows_are_windows:
        _check_examples(table)
    elif are_flows(table.store.names):
        raise DataError(
            f"Each row of {path} is a flow, and no sample of a recording: say --rows-are-windows if each is to be a "
            "separate example (and --group NAME for what a model must not know before), or count flows a second."
        )
    if log is not None:
        table, by_log, cut = _labelled(table, cut, log)
    elif Role.LABEL not in table.roles.columns:
        if not scoring:
            raise DataError(
                f"{path} has no column of labels: name it with --label NAME, or bring a log of incidents, or a label "
                "for each row, with --labels-from FILE (--like FOLDER needs none, and makes what a model of that data "
                f"set scores); its columns are {there}."
            )
        ingested.check_says_nothing(said, str(path))
        labels = Coded(np.array([UNLABELLED]), np.broadcast_to(np.int32(0), (table.height,)))
        by_log = Labelled(label=labels, notes=(ingested.FOR_SCORING,))
        table = with_labels(table, by_log, "no labels")
    is_cut = cut.rows_are_windows or Role.WINDOW in table.roles.columns
    if not is_cut and Role.TIME not in table.roles.columns and cut.hz is None:
        raise DataError(
            f"{path} has no column of times: name it with --time NAME; say --rows-are-windows if each row is a "
            "separate example and no sample of a recording; --hz if rows follow each other at one rate; or "
            f"--window-column NAME if they are cut into windows already. Its columns are {there}."
        )
    is_long = Role.KEY in table.columns
    names = channel_names(table.columns, table.roles, Wanted() if is_long else wanted, str(path))
    table, unlabelled = only_labelled(table, said.unlabelled)
    check_numbers(table)
    if not is_cut:
        check_series(table, wanted)
    elif is_long:
        raise DataError(f"{path} is cut into windows, in which --key can bring nothing side by side: leave it out.")
    key = strings(table, Role.KEY) if is_long else None
    rows = in_order(read_rows(table, cut, said, wanted))
    if key is not None:
        key = key.renamed([name.strip() for name in key.names.tolist()])
        rows, names = widened(rows, key if rows.place is None else key.take(rows.place), names)
        check_named(names, wanted, str(path))
    else:
        rows = spread(rows, cut.hz)
    rows = as_measured(rows, names, wanted)
    roles = table.roles
    if is_cut:
        for flag, length in (("--window-s", cut.window_s), ("--episode-s", cut.episode_s)):
            if length is not None:
                raise DataError(
                    f"{path} has a column {roles.columns[Role.WINDOW]!r} of windows, so {flag} has nothing to cut."
                )
        windows = _given_windows(rows, cut)
    else:
        rows, windows = _cut_windows(rows, cut, np.isin(names, wanted.counter))
    left_out = [f"column {name}: a second label" for name in roles.second_labels]
    left_out += [f"column {name}: --ignore" for name in wanted.ignore]
    left_out += [*table.left_out, *unlabelled, *by_log.left_out, *rows.left_out]
    shown = f" ({table.layout})" if table.layout else ""
    counted = ("There is no column of times: the rows of a host follow each other at --hz, without a gap.",)
    rows_are_counted = counted if rows.t_role == COUNTED else ()
    return replace(
        windows,
        channels=ingested.channel_specs(names, [name in wanted.oracle for name in names], counters=wanted.counter),
        source=f"{path.name}: {table.height:,} rows{shown}",
        roles=_meanings(table, rows.t_role),
        clock="" if Role.TIME not in table.columns else table.called(Role.TIME),
        left_out=(*left_out, *windows.left_out),
        notes=(
            *rows_are_counted,
            *_on_roles(table, cut, windows),
            *windows.notes,
            *by_log.notes,
            *rows.notes,
        ),
    )


def _check_examples(table: Stored) -> None:
    """Raise DataError for columns that have no meaning where each row is a window."""
    for role in (Role.WINDOW, Role.REFERENCE):
        if role in table.roles.columns:
            raise DataError(
                f"{table.path} has {role.cells.partition(',')[0]} in {table.called(role)!r}, which --rows-are-windows "
                "cannot use: leave that column out with --ignore."
            )


def _labelled(table: Stored, cut: WindowCut, log: Log) -> tuple[Stored, Labelled, WindowCut]:
    """Return the rows to which the log gives a label, the labels of all rows, and the cut options with the table's time
    format. Raises DataError."""
    if Role.LABEL in table.roles.columns:
        raise DataError(
            f"{table.path} has labels of its own in {table.called(Role.LABEL)!r}: leave them out with --ignore, or "
            "leave --labels-from out."
        )
    if Role.WINDOW in table.roles.columns:
        raise DataError(f"{table.path} is cut into windows, which --labels-from cannot label: leave that column out.")
    content = read_said(log.path, log.hosts, table.room)
    if not content.is_log:
        if log.rest is not None:
            raise DataError(f"{log.path} has a label for each row, so --rest has no effect: leave it out.")
        labels = Labelled(label=labels_of_rows(log.path, content, table.height))
        return with_labels(table, labels, log.path.name), labels, cut
    if Role.TIME not in table.roles.columns:
        raise DataError(
            f"{log.path} has times, and {table.path} no column of times: name it with --time NAME, record with "
            "times (as vmstat -t does), or give a label for each row in place of incidents."
        )
    (t, role), form = _with_format(lambda form: clock_of(table, cut._replace(time_format=form)), cut.time_format)
    assert t is not None
    incidents, of_log = _with_format(
        lambda form: read_incidents(log.path, content, times.SaidTimes(unit=cut.t_unit, format=form)), cut.time_format
    )
    if cut.time_format not in (form, of_log):
        raise DataError(f"--time-format has no effect on the times of {table.path} and {log.path}: leave it out.")
    if incidents.host is not None and Role.HOST not in table.roles.columns:
        raise DataError(
            f"{log.path} names hosts ({listed(np.unique(incidents.host).tolist())}), and {table.path} has no column of "
            "hosts: name it with --host-column NAME, or leave that of the log out if all its incidents concern the one "
            "host of the table."
        )
    incidents.check_zone(role, str(table.path))
    by_log = label_samples(t, hosts_of(table), incidents, rest=log.rest)
    return with_labels(table, by_log, log.path.name), by_log, cut._replace(time_format=form)


def _with_format(read: Callable[[str | None], T], form: str | None) -> tuple[T, str | None]:
    """Return the result of ``read`` with the format that the user gave, or without a format if that fails; and the
    format that was used.

    A table and its log may use different formats. Raises DataError.
    """
    try:
        return read(form), form
    except DataError as error:
        if form is not None:
            with suppress(DataError):
                return read(None), None
        raise error from None


def _on_roles(table: Stored, cut: WindowCut, windows: ingested.Ingested) -> tuple[str, ...]:
    """Return notes on what the table's columns do not say."""
    if not cut.rows_are_windows:
        return missing_roles(table.columns, is_cut=bool(windows.notes))
    return (EXAMPLES,) if Role.HOST in table.columns else (EXAMPLES, NO_GROUP)


def _meanings(table: Stored, t_role: str) -> dict[str, str]:
    """Return the meanings of the columns with a role, by their names in the order of the table, and of a time of day
    beside a date."""
    roles = [Role(name) for name in table.columns if name in table.roles.columns]
    found = {table.called(role): t_role if role is Role.TIME else role.meaning for role in roles}
    return found | dict.fromkeys(table.roles.clock, "part of the time" if len(table.roles.clock) > 1 else "time of day")


def _windows(rows: SampleRows, first: Ints, **known: Any) -> ingested.Ingested:
    """Return windows that begin at the rows ``first``, with the other fields in ``known``; the caller adds the
    channels."""
    return ingested.Ingested(
        label=Coded(np.array(rows.labels.names), rows.label[first]).renamed(rows.labels.names),
        host=rows.host.take(first),
        channels=(),
        label_names=rows.labels.names,
        benign=rows.labels.benign,
        missing=_unknown(rows.values),
        **known,
    )


# -- windows that were cut before --------------------------------------------------------------------------------------


def _given_windows(rows: SampleRows, cut: WindowCut) -> ingested.Ingested:
    window = rows.window
    assert window is not None
    recording = numbered(rows.host, *(() if rows.episode is None else (rows.episode,)))
    group = rows.recording
    counts = np.bincount(group)
    first = np.cumsum(counts) - counts  # as the rows are sorted
    usual = int(np.bincount(counts).argmax())
    odd = np.flatnonzero(counts != usual)
    if odd.size:
        row = int(first[odd[0]])
        raise DataError(
            f"The window {window[row]!r} of {name_of(rows, row)} has {counts[odd[0]]} samples where others "
            f"have {usual}: all windows must have the same number."
        )
    samples = int(counts[0])
    if rows.t is None:
        place = np.arange(group.size) if rows.place is None else rows.place
        apart = np.flatnonzero(np.diff(place.reshape(-1, samples), axis=1).max(axis=1, initial=1) != 1)
        if apart.size:
            row = int(first[apart[0]])
            raise DataError(
                f"The rows of the window {window[row]!r} of {name_of(rows, row)} do not stand together, and "
                "without a column 't' only their place orders them: do two recordings share the id (add a column "
                "'episode'), or does the table hold a copy?"
            )
    label = rows.label.reshape(-1, samples)
    if (label != label[:, :1]).any():
        row = int(first[np.flatnonzero((label != label[:, :1]).any(axis=1))[0]])
        raise DataError(f"{rows.path} has a window with more than one label: {window[row]!r} of {name_of(rows, row)}.")
    episode = ingested.unite(
        rows.host.strings(first), (window if rows.episode is None else rows.episode).strings(first)
    )
    timing, why, hz = Timing.SECONDS, "--hz", cut.hz or 1.0
    if rows.t is None:
        unknown = "each row is a window" if cut.rows_are_windows else "neither t nor --hz"
        timing, why = (Timing.SECONDS, "--hz") if cut.hz else (Timing.NONE, unknown)
        stride_s = cut.stride_s or samples / hz
        t_start = ingested.following(episode, stride_s)
    else:
        hz = rate_of(rows, cut, group)
        why = "--hz" if cut.hz else "read off t"
        _check_inside(rows, samples, hz)
        check_rates(rows, group, hz, said=cut.hz is not None)
        t_start = rows.t[first]
        recordings = [str(number) for number in range(int(recording.max()) + 1)]
        steps = times.usual_steps(t_start, recording[first], recordings, least=1)
        usual_step = ingested.measured(float(np.median(list(steps.values())))) if steps else samples / hz
        if cut.stride_s is not None:
            raise DataError(
                f"{rows.path} has columns 'window' and 't': leave --stride-s out, by t it is {usual_step:g} s."
            )
        stride_s = usual_step
    X = rows.room.empty((first.size, rows.values.shape[1], samples), np.float32)
    _fill(X, 0, rows, 0, np.arange(0, group.size, samples))
    known = {"X": X, "t_start": t_start, "sample_hz": hz, "stride_s": stride_s, "timing": timing, "rate_why": why}
    return _windows(rows, first, episode=Coded.of(episode), **known)


def _fill(X: Floats32, at: int, rows: SampleRows, low: int, begins: Ints) -> None:
    """Copy windows from ``rows`` into ``X``, from window ``at`` on; ``begins`` has the windows' first rows, counted
    from the row ``low``."""
    samples = X.shape[2]
    for start, some in blocks(begins, 8 * rows.room.rows(X[:1].nbytes)):
        part = rows.values[low + int(some[0]) : low + int(some[-1]) + samples]
        X[at + start : at + start + some.size] = sliding_window_view(part, samples, axis=0)[some - some[0]]
        release(X)
        release(rows.values)


def _unknown(values: Floats32, low: int = 0, high: int | None = None) -> int:
    """Return the number of NaN values in the rows from ``low`` until before ``high``."""
    return sum(int(np.count_nonzero(np.isnan(column[low:high]))) for column in columns(values))


def _check_inside(rows: SampleRows, samples: int, hz: float) -> None:
    """Raise DataError if a given window of ``samples`` rows has two rows with the same time, or a long gap inside."""
    assert rows.window is not None
    steps = np.diff(rows.clock.reshape(-1, samples), axis=1)
    equal = np.flatnonzero((steps == 0).any(axis=1))
    wide = np.flatnonzero((steps > times.UNLIKE / hz).any(axis=1))
    for found, what in ((equal, "two rows of one time"), (wide, "a gap inside")):
        if found.size:
            row = int(found[0]) * samples
            raise DataError(
                f"The window {rows.window[row]!r} of {name_of(rows, row)} has {what}: two recordings share the id "
                "(add a column 'episode'), or the table holds a copy."
            )


# -- recordings, cut here ----------------------------------------------------------------------------------------------


def _cut_windows(rows: SampleRows, cut: WindowCut, totals: Bools) -> tuple[SampleRows, ingested.Ingested]:
    if cut.window_s is None and cut.window_samples is None:
        cut = cut._replace(window_samples=WINDOW_SAMPLES)
        usual = f"Windows have {WINDOW_SAMPLES} samples, since nothing says their length: --window-s S sets it."
        rows = replace(rows, notes=(*rows.notes, usual))
    group = rows.recording
    check_interleaved(rows, group)
    check_night(rows, group)
    hz = rate_of(rows, cut, group)
    if not cut.points:
        check_labels_repeated(rows)
    check_years(rows, group)
    check_rates(rows, group, hz, said=cut.hz is not None, slower=True)
    rows = evenly(rows, group, hz, totals, said=cut.hz is not None)
    said = rows.label
    if cut.points:
        rows = replace(rows, label=np.array(said))
    benign = {rows.labels.names.index(name) for name in (*rows.labels.benign.names, MARK) if name in rows.labels.names}
    group = rows.recording
    rounded = (*hour_left_out(rows, group, hz), *(rounded_times(rows, group, hz) if cut.hz is None else ()))
    window_s = cut.window_s or float(cut.window_samples or 0) / hz
    samples = round(window_s * hz)
    if samples < 1:
        unit = "" if times.is_known(rows.t_role) else f", or say the unit of t with --t-unit {times.UNITS_SAID}"
        raise DataError(
            f"The samples of {rows.path} are {1 / hz:g} s apart by t, so that a window of {window_s:g} s holds none: "
            f"change --window-s{unit}."
        )
    if samples < ingested.SAMPLES_MIN:
        raise DataError(
            f"The samples of {rows.path} are {1 / hz:g} s apart, so that a window of {window_s:g} s holds {samples} "
            f"where {ingested.SAMPLES_MIN} are needed: say --window-s {ingested.SAMPLES_MIN / hz:g} or more."
        )
    stride = max(1, round((cut.stride_s or cut.usual_stride_s or window_s / 2) * hz))
    recordings = edges_of(group)
    begun = np.array([low for low, _ in recordings])
    names = ingested.unite(rows.host.strings(begun), rows.ids.strings(begun))
    by_name = dict(zip(names.tolist(), recordings, strict=True))
    apart = _Apart(samples / hz, 1 / hz, stride / hz if cut.points else 0.0, benign)
    episodes, notes = _episodes(rows, by_name, cut, apart)
    places = []  # the first row of an episode, and which begin windows
    episode = []
    empty = []
    counts = {}
    longest = 0  # stretch, in samples
    short, stretched = np.zeros((2, len(rows.labels.names)), int)
    for name, (low, high) in episodes.items():
        t, label = rows.clock[low:high], rows.label[low:high]
        unknown = _unknown(rows.values, low, high) / (t.size * rows.values.shape[1])
        counts[name] = ingested.Counts(t.size, *_gaps(t, hz), unknown)
        edges = stretch_edges(t, np.zeros_like(label) if cut.points else label, hz)
        of, lengths = label[edges[:-1]], np.diff(edges)
        longest = max(longest, int(lengths.max()))
        stretched += np.bincount(of, minlength=stretched.size)
        short += np.bincount(of, lengths < samples, short.size).astype(int)
        begins = starts_between(edges, samples, stride)
        if cut.points:
            classes = classes_of_points(label, begins, samples, benign)
            begins, classes = begins[classes >= 0], classes[classes >= 0]
            rows.label[low + begins] = classes  # no two windows begin at one row
        if begins.size:
            places.append((low, begins))
            episode.append(name)
        else:
            duration = float(t[-1] - t[0] + 1 / hz)
            empty.append(ingested.Empty(name, rows.host[low], float(t[0]), duration, t.size))
    if not places:
        raise DataError(
            f"{rows.path} has no stretch of {window_s:g} s without a gap or a change of label in any of its "
            f"{len(episodes)} recordings, the longest has {longest / hz:g} s: "
            f"{_ways_to_windows(rows, cut, longest, hz)}."
        )
    left_out = [
        f"{short[number]:,} of {stretched[number]:,} stretches of {of}: shorter than a window of {window_s:g} s"
        + ("" if cut.points or of in rows.labels.benign.names else " (--points labels each window that holds one)")
        for number, of in enumerate(rows.labels.names)
        if short[number]
    ]
    first = np.concatenate([low + begins for low, begins in places])
    seen = np.array([first, first + samples] if cut.points else list(zip(*episodes.values(), strict=True)))
    where = "in no window" if cut.points else "between two episodes (--episode-s S says another length)"
    lost, marked = _outside(said, recordings, seen, len(rows.labels.names))
    left_out += [
        f"{lost[number]:,} of {marked[number]:,} stretches of {of}: {where}"
        for number, of in enumerate(rows.labels.names)
        if lost[number] and number not in benign
    ]
    notes = (*notes, *_hosts_without_reference(rows, first))
    X = rows.room.empty((first.size, rows.values.shape[1], samples), np.float32)
    at = 0
    for low, begins in places:
        _fill(X, at, rows, low, begins)
        at += begins.size
        rows.room.progress("cutting", at / first.size)
    return rows, _windows(
        rows,
        first,
        X=X,
        episode=Coded.of(episode).take(np.repeat(np.arange(len(places)), [begins.size for _, begins in places])),
        t_start=rows.clock[first],
        sample_hz=hz,
        stride_s=stride / hz,
        rate_why="--hz" if cut.hz else "read off t",
        left_out=tuple(left_out),
        empty=tuple(empty),
        gaps=sum(_gaps(rows.clock[low:high], hz)[0] for low, high in recordings),
        notes=(*notes, *rounded),
        counts=counts,
    )


def _ways_to_windows(rows: SampleRows, cut: WindowCut, longest: int, hz: float) -> str:
    """Return words on the flags that give windows where no stretch is long enough; ``longest`` is in samples."""
    ways = [f"say --window-s {longest / hz:g} or less"] if longest >= ingested.SAMPLES_MIN else []
    steps = times.steps_of(rows.clock, rows.recording)
    ways += ["say a lower --hz, which bridges gaps"] if any((part > GAP / hz).any() for part in steps) else []
    ways += ["say --points if labels mark single samples"] if not cut.points and len(rows.labels.names) > 1 else []
    return ", or ".join(ways) or "bring longer recordings"


def _hosts_without_reference(rows: SampleRows, first: Ints) -> list[str]:
    """Return a list with one note on the hosts whose reference gave no window, as no part of it is long enough; else an
    empty list. ``first`` has the first rows of all windows."""
    if MARK not in rows.labels.names:
        return []
    mark = rows.labels.names.index(MARK)
    marked, given = (
        np.bincount(codes[label == mark], minlength=rows.host.names.size)
        for codes, label in ((rows.host.codes, rows.label), (rows.host.codes[first], rows.label[first]))
    )
    short = rows.host.names[(marked > 0) & (given == 0)].tolist()
    if not short:
        return []
    return [f"No stretch of the reference of {listed(short)} is as long as a window: no level is known of such a host."]


def _gaps(t: Floats, hz: float) -> tuple[int, float]:
    """Return the number of gaps between sorted times, and the length of the longest in seconds (0 without one)."""
    wide = times.chosen_steps(t, lambda steps: steps > GAP / hz)
    return wide.size, float(wide.max(initial=0.0))


def _outside(label: Codes, recordings: Sequence[tuple[int, int]], seen: Ints, classes: int) -> tuple[Ints, Ints]:
    """Return for each class the number of its stretches of which no row is in ``seen``, and that of all.

    A stretch is a run of one label in a recording; ``seen`` has the first rows of parts, and the rows after their last.
    """
    lost, count = np.zeros((2, classes), int)
    begins = np.r_[seen[0], label.size]
    for low, high in recordings:
        edges = low + np.r_[0, np.flatnonzero(np.diff(label[low:high])) + 1, high - low]
        of = label[edges[:-1]]
        count += np.bincount(of, minlength=classes)
        unseen = begins[np.searchsorted(seen[1], edges[:-1], side="right")] >= edges[1:]
        lost += np.bincount(of[unseen], minlength=classes)
    return lost, count


class _Apart(NamedTuple):
    """The space between two episodes: a window's length, without labels other than ``benign`` where possible. The last
    window before it may end up to ``short_s`` earlier."""

    window_s: float
    step_s: float
    short_s: float
    benign: Collection[int]

    def cut(self, t: Floats, label: Codes, usual: float, length: float) -> float:
        """Return the time nearest to ``usual`` at which a cut leaves out the fewest samples that are not benign; the
        episodes beside it keep a window. ``t`` has the times of a recording."""
        reach = max(0, int((length / 2 - self.window_s) / self.step_s))
        far = reach * self.step_s + self.short_s + self.window_s
        low, high = np.searchsorted(t, (usual - far, usual + far))
        alarms = t[low:high][~np.isin(label[low:high], list(self.benign))]
        each = max(1, reach // MOVES)
        moves = each * np.array(sorted(range(-(reach // each), reach // each + 1), key=abs))
        cuts = usual + moves * self.step_s if alarms.size else np.array([usual])
        held = np.searchsorted(alarms, cuts + self.window_s) - np.searchsorted(alarms, cuts - self.short_s)
        return float(cuts[np.argmin(held)])


def _episodes(
    rows: SampleRows, recordings: Mapping[str, tuple[int, int]], cut: WindowCut, apart: _Apart
) -> tuple[dict[str, tuple[int, int]], tuple[str, ...]]:
    """Return the episodes, each as its first row and the row after its last, and notes.

    Long recordings are cut into episodes of ``cut.episode_s``, or by a rule if no column names episodes. If the samples
    have no labels and ``cut.episode_s`` is None, recordings stay whole, so that no samples are lost. Neighbouring
    windows of a recording are alike; so a window's length is left out between two episodes, to keep the sides of a
    split apart.
    """
    window_s = apart.window_s
    if cut.episode_s is not None and cut.episode_s < 2 * window_s * (1 - ROUNDING):
        raise DataError(
            f"--episode-s {cut.episode_s:g} is too short for windows of {window_s:.6g} s: between two episodes a "
            f"window's length is left out, and another has to fit in, so say {2 * window_s:.6g} or more."
        )
    if cut.episode_s is None and (rows.episode is not None or UNLABELLED in rows.labels.names):
        return dict(recordings), ()
    episodes = {}
    lengths = []
    left_out = 0
    for name, (low, high) in recordings.items():
        span = float(rows.clock[high - 1] - rows.clock[low])
        length = cut.episode_s or episode_length(span, window_s)
        if length is None or length > span:
            episodes[name] = (low, high)
            continue
        lengths.append(length)
        t = rows.clock[low:high]
        found = (np.unique((t[here] - t[0]) // length).astype(int).tolist() for here in spans(t))
        numbers = sorted({number for some in found for number in some})
        cuts = np.array([apart.cut(t, rows.label[low:high], t[0] + number * length, length) for number in numbers[1:]])
        begins = [low, *(low + np.searchsorted(t, cuts + window_s)).tolist()]
        ends = [*(low + np.searchsorted(t, cuts)).tolist(), high]
        parts = {number: (a, b) for number, a, b in zip(numbers, begins, ends, strict=True) if a < b}
        left_out += t.size - sum(b - a for a, b in parts.values())
        width = len(str(int((rows.clock[high - 1] - rows.clock[low]) // length) + 1))
        episodes |= {f"{name} part {each + 1:0{width}d}": rows_of for each, rows_of in parts.items()}
    if not lengths and cut.episode_s is not None:
        longest = max(float(rows.clock[high - 1] - rows.clock[low]) for low, high in recordings.values())
        return episodes, (f"--episode-s {cut.episode_s:g} cuts nothing: the longest recording has {longest:.6g} s.",)
    if not lengths:
        return episodes, ()
    least, most = f"{min(lengths):,.6g} s", f"{max(lengths):,.6g} s"
    how = least if least == most else f"{least} to {most}"
    why = "--episode-s" if cut.episode_s else "no column names episodes; --episode-s S says another length"
    note = (
        f"{len(lengths):,} of {len(recordings):,} recordings were cut into episodes of {how} ({why}); between two of "
        f"them a window's length is left out, {left_out:,} samples."
    )
    return episodes, (note,)


def episode_length(span_s: float, window_s: float) -> float | None:
    """Return the length in seconds of the episodes into which a recording of ``span_s`` is cut by the rule.

    The length is a tenth of the recording, or more, so that eight windows side by side and the gap before them fit.
    None means that the recording is too short for three episodes, and stays one episode.
    """
    count = min(EPISODES_MOST, int(span_s / ((EPISODE_WINDOWS + 1) * window_s)))
    return None if count < EPISODES_LEAST else span_s / count * (1 + 1e-9)  # the last sample belongs to the last one


def classes_of_points(label: Codes, begins: Ints, samples: int, benign: Collection[int]) -> Ints:
    """Return the class of each window that begins at ``begins``: that of its samples which are not ``benign``, or the
    benign one of all; -1 for a window with several such classes."""
    found, several = np.full(begins.size, -1), np.zeros(begins.size, int)
    for number in sorted(np.unique(label).tolist(), key=lambda number: number not in benign):
        counts = np.r_[0, np.cumsum(label == number)]
        held = counts[begins + samples] - counts[begins]
        found[held > 0 if number not in benign else held == samples] = number
        several += (held > 0) & (number not in benign)
    return np.where(several > 1, -1, found)


def stretch_edges(t: Floats, label: AnyArray, hz: float) -> Ints:
    """Return the first row of each part of the rows without a break, and the number of rows at the end.

    A break is a gap, a step that is too short, or a change of label.
    """
    edges = [np.zeros(1, int)]
    for here in spans(t, label, overlap=1):
        steps, of = np.diff(t[here]), label[here]
        broken = (steps > GAP / hz) | (steps < SHORT / hz) | (of[1:] != of[:-1])
        edges.append(here.start + 1 + np.flatnonzero(broken))
    return np.concatenate([*edges, [t.size]])


def starts_between(edges: Ints, samples: int, stride: int) -> Ints:
    begins = [np.arange(low, high - samples + 1, stride) for low, high in pairwise(edges.tolist())]
    return np.concatenate([np.empty(0, int), *begins])
