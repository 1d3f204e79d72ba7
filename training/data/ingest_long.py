"""Windows from a table in long form: one row a sample, one column a channel (CSV or Parquet).

Columns with a meaning; every other one is a channel and must hold numbers (`columns` says which names are refused):

    t         seconds or dates, on one clock for all rows
    label     class of the row, by name or number (``y`` and ``phase`` are read as well)
    window    optional: rows of equal value are one window, as somebody cut it
    episode   optional: which rows belong to one recording (absent: each window, or each host, is one)
    host      optional: which machine recorded it

Ids may begin anew on every host: a recording is known by host and episode, a window by host, episode and window.
Without ``window`` the recordings are cut here: by ``window_s`` and ``stride_s``, never across a recording, a gap or a
change of label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from training.data import times
from training.data.classes import listed
from training.data.columns import LABEL_COLUMNS, Wanted, channel_names, check_rounding
from training.data.errors import DataError
from training.data.ingested import (
    UNKNOWN_HOST,
    Empty,
    Ingested,
    Labels,
    Said,
    channel_specs,
    following,
    measured,
    name_labels,
    unite,
)
from training.data.schema import Timing
from training.data.spelling import tidy

ROLES = {"window": "window", "episode": "recording", "host": "host"}
GAP = 1.5  # steps of the usual length that make a gap
SHORT = 0.5  # and that are no step of one recording
RUN_MIN = 4.0  # rows in a row with rising times, on average, that shuffling does not make


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How recordings become windows; ``hz`` None: read off the times. ``t_unit`` None: nobody said it."""

    window_s: float | None = None
    stride_s: float | None = None  # None: half a window
    hz: float | None = None
    t_unit: str | None = None


@dataclass(frozen=True, slots=True)
class _Rows:
    """The samples of a table, in the order of the file. ``t`` None: there is no clock."""

    path: Path
    values: NDArray[np.float32]
    labels: Labels
    host: NDArray[np.str_]
    episode: NDArray[np.str_] | None
    t: NDArray[np.float64] | None
    t_role: str


def read_long(path: Path, cut: Cut, *, said: Said, wanted: Wanted) -> Ingested:
    """Read and cut the table. Raises DataError."""
    table = _read_table(path)
    names = channel_names(table.columns, wanted, str(path))
    label_column = next((name for name in LABEL_COLUMNS if name in table.columns), None)
    if label_column is None:
        raise DataError(
            f"{path} has no column {' or '.join(LABEL_COLUMNS)}: its columns are {listed(table.columns)}."
        )
    _check_numbers(path, table, names)
    rows = _rows(path, table, label_column, names, cut, said, wanted)
    if "window" in table.columns:
        if cut.window_s is not None:
            raise DataError(f"{path} has a column 'window', so --window-s has nothing to cut.")
        windows = _given_windows(rows, tidy(_strings(table, "window"), "window"), cut)
    else:
        windows = _cut_windows(rows, cut)
    roles = {label_column: "class"} | ({"t": rows.t_role} if rows.t is not None else {}) | ROLES
    second = [name for name in LABEL_COLUMNS if name in table.columns and name != label_column]
    left_out = [f"column {name}: a second label" for name in second]
    left_out += [f"column {name}: --ignore" for name in wanted.ignore]
    return Ingested(
        X=windows.X,
        label=rows.labels.of_window[windows.first],
        episode=windows.episode,
        host=rows.host[windows.first],
        t_start=windows.t_start,
        channels=channel_specs(
            names,
            [name in wanted.oracle for name in names],
            counters=wanted.counter,
        ),
        label_names=rows.labels.names,
        benign=rows.labels.benign,
        sample_hz=windows.hz,
        stride_s=windows.stride_s,
        timing=windows.timing,
        source=f"{path.name}: {table.height:,} rows",
        roles={name: roles[name] for name in table.columns if name in roles},
        rate_why=windows.rate_why,
        clock="" if rows.t is None else "t",
        left_out=(*left_out, *windows.left_out),
        notes=_notes(table.columns),
        empty=windows.empty,
    )


def _notes(columns: Sequence[str]) -> tuple[str, ...]:
    notes = []
    if "host" not in columns:
        notes.append("There is no column host: all rows count as one machine's.")
    if "episode" not in columns and "window" not in columns:
        notes.append("There is no column episode: each host is one recording.")
    return tuple(notes)


class _Windows(NamedTuple):
    X: NDArray[np.float32]
    first: NDArray[np.int64]  # the row that each window begins with
    episode: NDArray[np.str_]
    t_start: NDArray[np.float64]
    hz: float
    stride_s: float
    timing: Timing
    rate_why: str
    left_out: tuple[str, ...] = ()
    empty: tuple[Empty, ...] = ()


# -- from a file to rows -----------------------------------------------------------------------------------------------


def _read_table(path: Path) -> pl.DataFrame:
    try:
        if path.suffix == ".parquet":
            return pl.read_parquet(path)
        return pl.read_csv(path, infer_schema_length=None)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from None
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} is not a table in long form ({reason}).") from None


def _check_numbers(path: Path, table: pl.DataFrame, names: Sequence[str]) -> None:
    if table.height == 0 or not names:
        raise DataError(f"{path} holds no samples: it needs rows, and a column for each channel.")
    for name in names:
        if not (table[name].dtype.is_numeric() or table[name].dtype == pl.Boolean):
            raise DataError(
                f"The column {name!r} of {path} is a channel but holds no numbers: leave it out with --ignore."
            )


def _rows(
    path: Path,
    table: pl.DataFrame,
    label_column: str,
    names: Sequence[str],
    cut: Cut,
    said: Said,
    wanted: Wanted,
) -> _Rows:
    host = np.full(table.height, UNKNOWN_HOST)
    if "host" in table.columns:
        host = tidy(_strings(table, "host"), "host")
    episode = None
    if "episode" in table.columns:
        episode = tidy(_strings(table, "episode"), "episode")
    t, role = None, ""
    if "t" in table.columns:
        t, role = times.from_column(table["t"], cut.t_unit, str(path))
        times.check_one_clock(t, host)
    elif cut.t_unit is not None:
        raise DataError(f"{path} has no column 't', so --t-unit has nothing to say.")
    values = table.select(pl.col(list(names)).cast(pl.Float64).fill_null(np.nan)).to_numpy()
    if wanted.counter:
        if t is None:
            raise DataError("--counter needs the column 't': a rate is a change by the second.")
        values = values.copy()
        window = _strings(table, "window") if "window" in table.columns else None
        group = _codes(host, *(ids for ids in (episode, window) if ids is not None))
        for name in wanted.counter:
            place = list(names).index(name)
            values[:, place] = rates(values[:, place], t, group)
    check_rounding(zip(names, values.T, strict=True), host)
    return _Rows(
        path,
        values.astype(np.float32),
        name_labels(_labels(table, label_column), said),
        host,
        episode,
        t,
        role,
    )


def _strings(table: pl.DataFrame, column: str) -> NDArray[np.str_]:
    if table[column].null_count():
        raise DataError(f"The column {column!r} has empty cells.")
    return table[column].cast(pl.String).to_numpy().astype(str)


def _labels(table: pl.DataFrame, column: str) -> NDArray[Any]:
    """Numbers stay numbers, so that 0 and 1 mean what they mean elsewhere."""
    if table[column].null_count():
        raise DataError(f"The column {column!r} has empty cells.")
    values = table[column].to_numpy()
    return values if values.dtype.kind in "fiub" else values.astype(str)


def _codes(*columns: NDArray[np.str_]) -> NDArray[np.int64]:
    """A number for each row, equal where the columns' values are: ascending by the first column, then the next."""
    code = np.zeros(columns[0].size, dtype=np.int64)
    for column in columns:
        found, place = np.unique(column, return_inverse=True)
        code = np.unique(code * found.size + place, return_inverse=True)[1]
    return code


def rates(
    total: NDArray[np.float64], t: NDArray[np.float64], group: NDArray[np.int64]
) -> NDArray[np.float64]:
    """A running total as its growth by the second; a total that falls was reset, which counts as no growth.

    A group's first row has nothing to grow from and takes the rate of the second.
    """
    order = np.lexsort((t, group))
    step, grown = np.diff(t[order]), np.maximum(np.diff(total[order]), 0.0)
    first = np.r_[True, np.diff(group[order]) != 0]
    rate = np.r_[np.nan, np.divide(grown, step, out=np.full(step.size, np.nan), where=step > 0)]
    rate[first] = np.nan
    begins = np.flatnonzero(first[:-1] & ~first[1:])
    rate[begins] = rate[begins + 1]
    result: NDArray[np.float64] = np.empty_like(rate)
    result[order] = rate
    return result


# -- one recording, or several under one name --------------------------------------------------------------------------


def _check_recordings(rows: _Rows, group: NDArray[np.int64], what: str) -> None:
    """Refuse a group of rows that cannot come from one recording on one clock. Raises DataError."""
    assert rows.t is not None
    order = np.lexsort((rows.t, group))
    equal = (np.diff(rows.t[order]) == 0) & (np.diff(group[order]) == 0)
    rises = (np.diff(rows.t[order]) > 0) & (np.diff(group[order]) == 0)
    if equal.any() and rises.any():  # where none rises there is no clock, which is refused as that
        row = int(order[np.flatnonzero(equal)[0]])
        raise DataError(
            f"Two rows of {_name(rows, row)} have the time {rows.t[row]:.10g}: two recordings share the id "
            "(add a column 'episode'), the table holds a copy, or its times are rounded."
        )
    file_order = np.argsort(group, kind="stable")
    edges = np.flatnonzero(np.diff(group[file_order])) + 1
    for members in np.split(file_order, edges):
        t = rows.t[members]
        falls = np.flatnonzero(np.diff(t) < 0) + 1
        if not falls.size or t.size / (falls.size + 1) < RUN_MIN:
            continue  # in order, or shuffled
        spans = sorted((part.min(), part.max()) for part in np.split(t, falls))
        if any(b[0] < a[1] for a, b in pairwise(spans)):
            row = int(members[falls[0]])
            raise DataError(
                f"The times of {_name(rows, row)} begin anew at row {row + 1} and overlap: {what}"
            )


def _name(rows: _Rows, row: int) -> str:
    host = f"the host {str(rows.host[row])!r}"
    return host if rows.episode is None else f"the episode {str(rows.episode[row])!r} of {host}"


def _check_rates(rows: _Rows, group: NDArray[np.int64], hz: float, *, said: bool) -> None:
    assert rows.t is not None
    first = np.unique(group, return_index=True)[1].tolist()
    by_group = times.usual_steps(rows.t, group, [str(number) for number in range(len(first))])
    odd = {n: step for n, step in by_group.items() if abs(step * hz - 1) > times.RATE_LEAVE}
    hosts = {str(rows.host[first[int(n)]]) for n in odd}
    steps = {}
    for host in sorted(hosts):
        mine = [n for n in by_group if str(rows.host[first[int(n)]]) == host]
        if all(n in odd for n in mine):
            steps[f"The host {host!r}"] = by_group[mine[0]]
        else:
            steps |= {_capital(_name(rows, first[int(n)])): odd[n] for n in mine if n in odd}
    times.check_rates(steps, hz, said)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _rate(rows: _Rows, cut: Cut, group: NDArray[np.int64]) -> float:
    """The sampling rate of rows whose ``group`` is their recording (or window), checked against each."""
    assert rows.t is not None
    order = np.lexsort((rows.t, group))
    steps = np.diff(rows.t[order])[np.diff(group[order]) == 0]
    usual = steps[steps > 0]
    if usual.size == 0:
        if cut.hz:
            return cut.hz
        raise DataError(f"The times of {rows.path} do not rise: give the sampling rate with --hz.")
    times.check_step(float(np.median(usual)), cut.t_unit, f"The samples of {rows.path}")
    return cut.hz or measured(1 / float(np.median(usual)))


# -- windows as somebody cut them --------------------------------------------------------------------------------------


def _given_windows(rows: _Rows, window: NDArray[np.str_], cut: Cut) -> _Windows:
    known = (rows.host,) if rows.episode is None else (rows.host, rows.episode)
    recording, group = _codes(*known), _codes(*known, window)
    counts = np.bincount(group)
    order = np.lexsort((np.arange(group.size) if rows.t is None else rows.t, group))
    edges = np.r_[0, np.cumsum(counts)[:-1]]
    first = order[edges]
    usual = int(np.bincount(counts).argmax())
    odd = np.flatnonzero(counts != usual)
    if odd.size:
        row = int(first[odd[0]])
        raise DataError(
            f"The window {str(window[row])!r} of {_name(rows, row)} has {counts[odd[0]]} samples where others "
            f"have {usual}: all windows must have the same number."
        )
    samples = int(counts[0])
    if rows.t is None:
        apart = np.flatnonzero(
            np.diff(order.reshape(-1, samples), axis=1).max(axis=1, initial=1) != 1
        )
        if apart.size:
            row = int(first[apart[0]])
            raise DataError(
                f"The rows of the window {str(window[row])!r} of {_name(rows, row)} do not stand together, and without "
                "a column 't' only their place orders them: do two recordings share the id (add a column 'episode'), "
                "or does the table hold a copy?"
            )
    label = rows.labels.of_window[order].reshape(-1, samples)
    if (label != label[:, :1]).any():
        row = int(first[np.flatnonzero((label != label[:, :1]).any(axis=1))[0]])
        raise DataError(
            f"{rows.path} has a window with more than one label: {str(window[row])!r} of {_name(rows, row)}."
        )
    episode = unite(
        rows.host[first], window[first] if rows.episode is None else rows.episode[first]
    )
    timing, why, hz = Timing.SECONDS, "--hz", cut.hz or 1.0
    if rows.t is None:
        timing, why = (Timing.SECONDS, "--hz") if cut.hz else (Timing.NONE, "neither t nor --hz")
        t_start = following(episode, samples / hz)
        stride_s = cut.stride_s or samples / hz
    else:
        hz = _rate(rows, cut, group)
        why = "--hz" if cut.hz else "read off t"
        _check_inside(rows, window, order.reshape(-1, samples), hz)
        _check_rates(rows, group, hz, said=cut.hz is not None)
        t_start = rows.t[first]
        recordings = [str(number) for number in range(int(recording.max()) + 1)]
        steps = times.usual_steps(t_start, recording[first], recordings, least=1)
        usual_step = measured(float(np.median(list(steps.values())))) if steps else samples / hz
        stride_s = cut.stride_s or usual_step
    X = np.ascontiguousarray(
        rows.values[order].reshape(-1, samples, rows.values.shape[1]).transpose(0, 2, 1)
    )
    return _Windows(X, first, episode, t_start, hz, stride_s, timing, why)


def _check_inside(
    rows: _Rows, window: NDArray[np.str_], places: NDArray[np.int64], hz: float
) -> None:
    """Refuse a window whose rows are not the samples of one stretch. Raises DataError."""
    assert rows.t is not None
    steps = np.diff(rows.t[places], axis=1)
    equal = np.flatnonzero((steps == 0).any(axis=1))
    wide = np.flatnonzero((steps > times.UNLIKE / hz).any(axis=1))
    for found, what in ((equal, "two rows of one time"), (wide, "a gap inside")):
        if found.size:
            row = int(places[found[0], 0])
            raise DataError(
                f"The window {str(window[row])!r} of {_name(rows, row)} has {what}: two recordings share the id "
                "(add a column 'episode'), or the table holds a copy."
            )


# -- recordings, cut here ----------------------------------------------------------------------------------------------


def _cut_windows(rows: _Rows, cut: Cut) -> _Windows:
    if rows.t is None or cut.window_s is None:
        raise DataError(
            f"{rows.path} has no column 'window', so it needs a column 't' in seconds and --window-s to be cut."
        )
    ids = rows.host if rows.episode is None else rows.episode
    group = _codes(rows.host, ids)
    _check_recordings(rows, group, "two recordings share the id: add a column 'episode'.")
    hz = _rate(rows, cut, group)
    _check_rates(rows, group, hz, said=cut.hz is not None)
    samples = round(cut.window_s * hz)
    stride = max(1, round((cut.stride_s or cut.window_s / 2) * hz))
    order = np.lexsort((rows.t, group))
    recordings = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    label = rows.labels.of_window
    names = unite(rows.host[[m[0] for m in recordings]], ids[[m[0] for m in recordings]])
    parts, chosen, episode, empty = [], [], [], []
    short, stretched = dict.fromkeys(rows.labels.names, 0), dict.fromkeys(rows.labels.names, 0)
    for name, members in zip(names.tolist(), recordings, strict=True):
        t = rows.t[members]
        edges = stretch_edges(t, label[members], hz)
        for low, high in pairwise(edges.tolist()):
            of = str(label[members[low]])
            stretched[of] += 1
            short[of] += high - low < samples
        begins = starts_between(edges, samples, stride)
        if begins.size:
            series = sliding_window_view(rows.values[members], samples, axis=0)
            parts.append(series[begins])
            chosen.append(members[begins])
            episode.append(np.full(begins.size, name))
        else:
            duration = float(t[-1] - t[0] + 1 / hz)
            empty.append(Empty(name, str(rows.host[members[0]]), float(t[0]), duration, t.size))
    if not parts:
        raise DataError(
            f"{rows.path} has no stretch of {cut.window_s:g} s without a gap or a change of label "
            f"in any of its {len(recordings)} recordings."
        )
    left_out = [
        f"{short[of]:,} of {stretched[of]:,} stretches of {of}: shorter than a window of {cut.window_s:g} s"
        for of in rows.labels.names
        if short[of]
    ]
    first = np.concatenate(chosen)
    return _Windows(
        np.concatenate(parts).astype(np.float32),
        first,
        np.concatenate(episode),
        rows.t[first],
        hz,
        stride / hz,
        Timing.SECONDS,
        "--hz" if cut.hz else "read off t",
        tuple(left_out),
        tuple(empty),
    )


def window_starts(
    t: NDArray[np.float64], label: NDArray[Any], hz: float, samples: int, stride: int
) -> NDArray[np.int64]:
    """Rows at which windows of ``samples`` rows begin, ``stride`` apart inside each stretch without a break."""
    return starts_between(stretch_edges(t, label, hz), samples, stride)


def stretch_edges(t: NDArray[np.float64], label: NDArray[Any], hz: float) -> NDArray[np.int64]:
    """Where stretches without a break begin, and the end. A break is a gap, a step too short, or a change of label."""
    steps = np.diff(t)
    broken = (steps > GAP / hz) | (steps < SHORT / hz) | (label[1:] != label[:-1])
    edges: NDArray[np.int64] = np.r_[0, np.flatnonzero(broken) + 1, t.size]
    return edges


def starts_between(edges: NDArray[np.int64], samples: int, stride: int) -> NDArray[np.int64]:
    begins = [np.arange(low, high - samples + 1, stride) for low, high in pairwise(edges.tolist())]
    return np.concatenate([np.empty(0, dtype=np.int64), *begins])
