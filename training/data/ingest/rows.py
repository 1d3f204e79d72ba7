"""The rows of a table in long form, read column by column, and refused where one name stands for two recordings."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from training.data.classes import BENIGN, MALICIOUS, USUAL, listed, quoted
from training.data.errors import DataError
from training.data.ingest import times
from training.data.ingest.columns import Wanted
from training.data.ingest.ingested import UNKNOWN_HOST, Labels, Said, measured, name_labels
from training.data.ingest.roles import Role, plain, plural_of
from training.data.ingest.tables import NAMES, Table
from training.data.missing import NAN, judge_stand_ins, labelled, say_missing
from training.data.spelling import tidy

WHOLE_MAX = 2**53  # beyond it not each whole number is a float
SHOWN = 8  # columns in one sentence
ALSO_BENIGN = ("healthy", "good", "legit", "gutartig")  # names of columns that are 1 where all is well
INTERLEAVED_MIN, INTERLEAVED_ROWS = 20, 4096  # rows that show it, and that are enough
RUN_MIN = 4.0  # rows in a row with rising times, on average, that shuffling does not make


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The way in which recordings become windows; ``hz`` None: read off the times.

    ``t_unit`` and ``time_format`` (of strptime) are None where they are not given. ``episode_s`` is the length of the
    episodes into which recordings are cut; None: those of a table that names none are cut by a rule.
    """

    window_s: float | None = None
    stride_s: float | None = None  # None: half a window
    hz: float | None = None
    t_unit: str | None = None
    time_format: str | None = None
    episode_s: float | None = None
    window_samples: int | None = None  # where no ``window_s`` is said


@dataclass(frozen=True, slots=True)
class Rows:
    """The samples of a table, in the order of the file. ``t`` None: there is no clock."""

    path: Path
    values: NDArray[np.floating[Any]]
    labels: Labels
    host: NDArray[np.str_]
    episode: NDArray[np.str_] | None
    t: NDArray[np.float64] | None
    t_role: str
    window: NDArray[np.str_] | None = None
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def recording(self) -> NDArray[np.int64]:
        """A number for each row, equal in one recording (or window)."""
        return codes(self.host, *(ids for ids in (self.episode, self.window) if ids is not None))

    def take(self, keep: NDArray[Any]) -> Rows:
        """The rows that ``keep`` selects, by numbers or booleans."""
        return replace(
            self,
            values=self.values[keep],
            labels=self.labels._replace(of_window=self.labels.of_window[keep]),
            host=self.host[keep],
            episode=None if self.episode is None else self.episode[keep],
            window=None if self.window is None else self.window[keep],
            t=None if self.t is None else self.t[keep],
        )


def missing_roles(columns: Sequence[str], *, is_cut: bool) -> tuple[str, ...]:
    """Say what follows from a role that no column has, and which channels are called nearly like one."""
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


def check_numbers(path: Path, rows: pl.DataFrame, names: Sequence[str]) -> None:
    """Refuse channels that hold no numbers, all of them at once. Raises DataError."""
    if rows.height == 0 or not names:
        raise DataError(f"{path} holds no samples: it needs rows, and a column for each channel.")
    odd = [name for name in names if not (rows[name].dtype.is_numeric() or rows[name].dtype == pl.Boolean)]
    if not odd:
        return
    ways = f"leave {'it' if len(odd) == 1 else 'them'} out with --ignore {shlex.quote(','.join(map(quoted, odd)))}"
    roles = ", ".join(role.flag for role in Role)
    if len(odd) == 1:
        raise DataError(
            f"The column {odd[0]!r} of {path} is a channel but holds {_other_than_numbers(rows[odd[0]])}: {ways}, or "
            f"say what it is ({roles} {odd[0]})."
        )
    shown = "; ".join(f"{name!r} holds {_other_than_numbers(rows[name])}" for name in odd[:SHOWN])
    more = f"; and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""
    raise DataError(
        f"{len(odd)} columns of {path} are channels but hold other things than numbers: {shown}{more}: {ways}, or say "
        f"what one is ({roles})."
    )


def _other_than_numbers(column: pl.Series) -> str:
    """Describe what a column holds instead of numbers; of text, the first cell that is no number, as one spoils all."""
    odd = pl.Series(dtype=pl.Int64)
    if column.dtype == pl.String:
        odd = (column.is_not_null() & column.cast(pl.Float64, strict=False).is_null()).arg_true()
    if not odd.len() or odd.len() == column.len():
        return "no numbers"
    return (
        f"text in {odd.len():,} of {column.len():,} rows, the first {column[int(odd[0])]!r} in row {int(odd[0]) + 1} "
        "(leave a cell empty where nothing was measured)"
    )


def hosts_of(table: Table) -> NDArray[np.str_]:
    """The host of each row. Raises DataError."""
    if Role.HOST not in table.rows.columns:
        return np.full(table.rows.height, UNKNOWN_HOST)
    return tidy(strings(table, Role.HOST), "host")


def clock_of(table: Table, cut: Cut) -> tuple[NDArray[np.float64] | None, str]:
    """The time of each row in seconds, and what it was read as; None where there is no clock. Raises DataError."""
    if Role.TIME in table.rows.columns:
        said = times.Said(unit=cut.t_unit, named=table.roles.unit, format=cut.time_format)
        return times.from_column(table.rows[Role.TIME].alias(table.called(Role.TIME)), said, str(table.path))
    if cut.t_unit is not None or cut.time_format is not None:
        flag = "--t-unit" if cut.t_unit is not None else "--time-format"
        raise DataError(f"{table.path} has no column of times, so {flag} has nothing to say (--time NAME names one).")
    return None, ""


def read_rows(table: Table, names: Sequence[str], cut: Cut, said: Said, wanted: Wanted) -> Rows:
    rows, host = table.rows, hosts_of(table)
    episode = tidy(strings(table, Role.EPISODE), "episode") if Role.EPISODE in rows.columns else None
    t, t_role = clock_of(table, cut)
    if t is not None:
        times.check_one_clock(t, host)
    values = np.empty((rows.height, len(names)), order="F")
    for place, name in enumerate(names):
        _check_whole(rows[name], name)
        values[:, place] = rows[name].cast(pl.Float64).fill_null(np.nan).to_numpy()
    left_out = []
    if wanted.missing:
        left_out = say_missing(wanted.missing, names, list(values.T))
    notes = judge_stand_ins(zip(names, values.T, strict=True), wanted.level)
    labels = name_labels(_labels(table), said)
    _check_sense(table.called(Role.LABEL), labels, said)
    return Rows(
        path=table.path,
        values=values,
        labels=labels,
        host=host,
        episode=episode,
        t=t,
        t_role=t_role,
        window=tidy(strings(table, Role.WINDOW), "window") if Role.WINDOW in rows.columns else None,
        left_out=tuple(left_out),
        notes=tuple(notes),
    )


def _check_whole(column: pl.Series, name: str) -> None:
    """Refuse whole numbers so large that 64-bit floats make one of several. Raises DataError."""
    if column.dtype.is_integer() and column.drop_nulls().len():
        largest = max(abs(int(column.min())), abs(int(column.max())))  # type: ignore[arg-type]
        if largest > WHOLE_MAX:
            raise DataError(
                f"The channel {name!r} holds whole numbers of up to {largest:,}, of which the last digits would be "
                "lost: subtract a constant, bring rates, or leave it out with --ignore if it is an id."
            )


def _check_sense(column: str, labels: Labels, said: Said) -> None:
    """Refuse a yes or no that no flag explains in a column that is called after the benign ones. Raises DataError."""
    word = plain(column).removeprefix("is")
    if said.benign or said.labels or said.no_benign or word not in (*USUAL, *ALSO_BENIGN):
        return
    if {name.casefold() for name in labels.names} in ({BENIGN, MALICIOUS}, {"true", "false"}):
        raise DataError(
            f"The column {column!r} is called after what is benign, so that 1 or true may be it: say --benign 1 (or "
            "true), or --benign 0 (or false) if it is the other way."
        )


def strings(table: Table, role: Role) -> NDArray[np.str_]:
    column = table.rows[role]
    if column.null_count():
        empty = column.is_null()
        raise DataError(
            f"The column {table.called(role)!r} has {empty.sum():,} empty cells, the first in row "
            f"{empty.arg_true()[0] + 1}: fill them, or leave these rows out (a line of remarks or totals is no row)."
        )
    return column.cast(pl.String).to_numpy().astype(str)


def _labels(table: Table) -> NDArray[Any]:
    """Numbers stay numbers, so that 0 and 1 mean what they mean elsewhere."""
    column = table.rows[Role.LABEL]
    if column.null_count():
        raise DataError(
            f"The column {table.called(Role.LABEL)!r} has empty cells: fill them, or leave these rows out with "
            "--unlabelled nan."
        )
    values = column.to_numpy()
    return values if values.dtype.kind in "fiub" else values.astype(str)


def only_labelled(table: Table, unlabelled: Sequence[str]) -> tuple[Table, list[str]]:
    """The rows whose label names a class, and what is to be said of the others. Raises DataError."""
    if not unlabelled:
        return table, []
    rows = table.rows
    y = rows[Role.LABEL]
    numeric = y.dtype.is_numeric()
    y = y.cast(pl.Float64).fill_null(np.nan) if numeric else y.cast(pl.String).fill_null(NAN)
    keep = pl.Series("keep", labelled(y.to_numpy(), unlabelled))
    if Role.WINDOW in rows.columns:  # one that is labelled in part is none
        ids = [str(role) for role in NAMES if role in rows.columns]
        keep = rows.select(ids).with_columns(keep).select(pl.col("keep").all().over(ids))["keep"]
    rest = rows.filter(keep)
    said = f"{rows.height - rest.height:,} of {rows.height:,} rows: --unlabelled"
    if Role.HOST in rows.columns:
        gone = sorted(set(rows[Role.HOST].drop_nulls()) - set(rest[Role.HOST].drop_nulls()), key=str)
        said += f", all of {listed([str(host) for host in gone])}" if gone else ""
    return replace(table, rows=rest), [said]


def codes(*columns: NDArray[np.str_]) -> NDArray[np.int64]:
    """A number for each row, equal where the columns' values are: ascending by the first column, then the next."""
    code = np.zeros(columns[0].size, dtype=np.int64)
    for column in columns:
        found, place = np.unique(column, return_inverse=True)
        code = np.unique(code * found.size + place, return_inverse=True)[1]
    return code


def check_labels_repeated(rows: Rows) -> None:
    """Refuse a class of a single sample, which no window can be of. Raises DataError."""
    present, counts = np.unique(rows.labels.of_window, return_counts=True)
    once = present[counts == 1].tolist()
    if once:
        raise DataError(
            f"The label {once[0]!r} occurs once in {rows.path}: mend it if it is misspelled, or leave its sample out "
            f"with --unlabelled={once[0]}."
        )


# -- one recording, or several under one name --------------------------------------------------------------------------


def check_begun_once(rows: Rows, group: NDArray[np.int64], what: str) -> None:
    """Refuse a group of rows whose times begin anew and overlap. Raises DataError."""
    assert rows.t is not None
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
            raise DataError(f"The times of {name_of(rows, row)} begin anew at row {row + 1} and overlap: {what}")


def check_interleaved(rows: Rows, group: NDArray[np.int64]) -> None:
    """Refuse a host's rows that jump to and fro, as two recordings of it do where no column says which row is whose.

    Their steps alternate, or half of their channels are nearer to the last sample but one than to the last. Who names
    the episodes has said that they are one. Raises DataError.
    """
    if rows.t is None or rows.episode is not None:
        return
    order = np.lexsort((rows.t, group))
    for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        some = members[:INTERLEAVED_ROWS]
        if some.size >= INTERLEAVED_MIN and (_steps_alternate(rows.t[some]) or _values_alternate(rows.values[some])):
            raise DataError(
                f"The rows of {name_of(rows, int(some[0]))} jump to and fro between two courses: two recordings, one "
                "between the samples of the other? Add a column 'episode' that says whose each row is (one name for "
                "all, if it is one recording)."
            )


def _steps_alternate(t: NDArray[np.float64]) -> bool:
    """Every other step is long, evenly, and the others are short: rounding and delays do not alternate so."""
    steps = np.diff(t)
    quartiles = [np.quantile(steps[first::2], (0.1, 0.5, 0.9)) for first in (0, 1)]
    short, long = sorted(quartiles, key=lambda found: float(found[1]))
    tight = max(short[2] - short[0], long[2] - long[0]) <= 0.1 * (long[1] - short[1])
    return bool(tight and long[1] > 1.2 * short[1] and short[1] > 0)


def _values_alternate(values: NDArray[np.float32]) -> bool:
    moving = alternating = 0
    for column in values.T:
        known = column[np.isfinite(column)]
        if known.size < 3:
            continue
        near, far = (float(np.median(np.abs(known[by:] - known[:-by]))) for by in (1, 2))
        moving += near > 0
        alternating += far < 0.5 * near
    return bool(moving and 2 * alternating >= moving)


def name_of(rows: Rows, row: int) -> str:
    host = f"the host {str(rows.host[row])!r}"
    return host if rows.episode is None else f"the episode {str(rows.episode[row])!r} of {host}"


def check_rates(rows: Rows, group: NDArray[np.int64], hz: float, *, said: bool, slower: bool = False) -> None:
    """Refuse recordings of another rate, or only those that no mean brings to it (``slower``). Raises DataError."""
    assert rows.t is not None
    first = np.unique(group, return_index=True)[1].tolist()
    by_group = times.usual_steps(rows.t, group, [str(number) for number in range(len(first))])
    odd = {n: step for n, step in by_group.items() if abs(step * hz - 1) > times.RATE_LEAVE}
    hosts = {str(rows.host[first[int(n)]]) for n in odd}
    steps = {}
    for host in sorted(hosts):
        mine = [n for n in by_group if str(rows.host[first[int(n)]]) == host]
        if all(n in odd for n in mine):
            steps[f"the host {host!r}"] = by_group[mine[0]]
        else:
            steps |= {name_of(rows, first[int(n)]): odd[n] for n in mine if n in odd}
    times.check_rates(steps, hz, said=said, slower=slower)


def rate_of(rows: Rows, cut: Cut, group: NDArray[np.int64]) -> float:
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
