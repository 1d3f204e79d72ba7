"""Windows from a table in long form: one row a sample, one column a channel (CSV or Parquet).

Columns with a meaning; every other one is a channel and must hold numbers:

    t         seconds, on one clock for all rows
    label     class of the row, by name or number (``y`` and ``phase`` are read as well)
    window    optional: rows of equal value are one window, as somebody cut it
    episode   optional: which rows belong to one recording (absent: each window, or each host, is one)
    host      optional: which machine recorded it

Without ``window`` the recordings are cut here: by ``window_s`` and ``stride_s``, never across an episode, a gap or a
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

from training.data.errors import DataError
from training.data.ingested import (
    UNKNOWN_HOST,
    Ingested,
    Said,
    channel_specs,
    measured,
    name_labels,
)

LABEL_COLUMNS = ("label", "y", "phase")
ROLES = {
    "t": "time in seconds",
    "window": "window",
    "episode": "recording",
    "host": "host",
    **dict.fromkeys(LABEL_COLUMNS, "class"),
}
MEANING = tuple(ROLES)
GAP = 1.5  # steps of the usual length that make a gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How recordings become windows; ``hz`` None: read off the times."""

    window_s: float | None = None
    stride_s: float | None = None  # None: half a window
    hz: float | None = None


def read_long(path: Path, cut: Cut, *, said: Said, oracle: Sequence[str] = ()) -> Ingested:
    """Read and cut the table. ``oracle`` names channels hidden from the realistic mode. Raises DataError."""
    table = _read_table(path)
    label_column = next((name for name in LABEL_COLUMNS if name in table.columns), None)
    if label_column is None:
        raise DataError(f"{path} has no column {' or '.join(LABEL_COLUMNS)}.")
    names = [name for name in table.columns if name not in MEANING]
    _check_channels(path, table, names, oracle)
    if "window" in table.columns:
        if cut.window_s is not None:
            raise DataError(f"{path} has a column 'window', so --window-s has nothing to cut.")
        windows = _given_windows(path, table, label_column, names, cut)
    else:
        windows = _cut_windows(path, table, label_column, names, cut)
    X, label, episode, host, t_start, hz, stride_s = windows
    labels = name_labels(label, said)
    return Ingested(
        X=X,
        label=labels.of_window,
        episode=episode,
        host=host,
        t_start=t_start,
        channels=channel_specs(names, [name in oracle for name in names]),
        label_names=labels.names,
        benign=labels.benign,
        sample_hz=hz,
        stride_s=stride_s,
        source=f"{path.name}: {table.height:,} rows",
        roles={name: ROLES[name] for name in table.columns if name in ROLES},
        clock="t" if "t" in table.columns else "",
    )


class _Windows(NamedTuple):
    X: NDArray[np.float32]
    label: NDArray[Any]  # as they stand in the table: numbers or names
    episode: NDArray[np.str_]
    host: NDArray[np.str_]
    t_start: NDArray[np.float64]
    hz: float
    stride_s: float


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


def _check_channels(
    path: Path, table: pl.DataFrame, names: Sequence[str], oracle: Sequence[str]
) -> None:
    if table.height == 0 or not names:
        raise DataError(f"{path} holds no samples: it needs rows, and a column for each channel.")
    for name in names:
        if not (table[name].dtype.is_numeric() or table[name].dtype == pl.Boolean):
            raise DataError(f"The column {name!r} of {path} is a channel but holds no numbers.")
    unknown = sorted(set(oracle) - set(names))
    if unknown:
        raise DataError(f"--oracle names {unknown[0]!r}, which is no channel of {path}.")


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


def _hosts(table: pl.DataFrame) -> NDArray[np.str_]:
    if "host" not in table.columns:
        return np.full(table.height, UNKNOWN_HOST)
    return _strings(table, "host")


def _values(table: pl.DataFrame, names: Sequence[str]) -> NDArray[np.float32]:
    return table.select(pl.col(list(names)).cast(pl.Float32).fill_null(np.nan)).to_numpy()


# -- windows as somebody cut them --------------------------------------------------------------------------------------


def _given_windows(
    path: Path, table: pl.DataFrame, label_column: str, names: Sequence[str], cut: Cut
) -> _Windows:
    ids, first, of_row, counts = np.unique(
        _strings(table, "window"), return_index=True, return_inverse=True, return_counts=True
    )
    odd = np.flatnonzero(counts != counts[0])
    if odd.size:
        raise DataError(
            f"The window {str(ids[odd[0]])!r} of {path} has {counts[odd[0]]} samples where others "
            f"have {counts[0]}: all windows must have the same number."
        )
    t = _known_times(path, table) if "t" in table.columns else None
    rows = np.lexsort((np.arange(of_row.size) if t is None else t, of_row))
    label = _labels(table, label_column)
    if (label[rows].reshape(ids.size, -1) != label[first][:, None]).any():
        raise DataError(f"{path} has a window with more than one label.")
    X = _values(table, names)[rows].reshape(ids.size, int(counts[0]), len(names))
    hz = cut.hz or (1.0 if t is None else _rate(path, np.diff(t[rows].reshape(ids.size, -1))))
    episode = _strings(table, "episode")[first] if "episode" in table.columns else ids
    window_s = float(counts[0]) / hz
    return _Windows(
        np.ascontiguousarray(X.transpose(0, 2, 1)),
        label[first],
        episode,
        _hosts(table)[first],
        np.zeros(ids.size) if t is None else t[rows].reshape(ids.size, -1)[:, 0],
        hz,
        cut.stride_s or window_s,
    )


def _known_times(path: Path, table: pl.DataFrame) -> NDArray[np.float64]:
    try:
        t = table["t"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    except pl.exceptions.PolarsError:
        raise DataError(f"The column 't' of {path} must hold seconds.") from None
    if not np.isfinite(t).all():
        raise DataError(f"The column 't' of {path} has empty cells or values that are no times.")
    return np.asarray(t, dtype=np.float64)


def _rate(path: Path, steps: NDArray[np.float64]) -> float:
    usual = steps[steps > 0]
    if usual.size == 0:
        raise DataError(f"The times of {path} do not rise: give the sampling rate with --hz.")
    return measured(1 / float(np.median(usual)))


# -- recordings, cut here ----------------------------------------------------------------------------------------------


def _cut_windows(
    path: Path, table: pl.DataFrame, label_column: str, names: Sequence[str], cut: Cut
) -> _Windows:
    if "t" not in table.columns or cut.window_s is None:
        raise DataError(
            f"{path} has no column 'window', so it needs a column 't' in seconds and --window-s to be cut."
        )
    t, host, label = _known_times(path, table), _hosts(table), _labels(table, label_column)
    episode = _strings(table, "episode") if "episode" in table.columns else host
    rows = np.lexsort((t, episode))
    ids, starts = np.unique(episode[rows], return_index=True)
    recordings = np.split(rows, starts[1:])
    hz = cut.hz or _rate(path, np.concatenate([np.diff(t[members]) for members in recordings]))
    samples = round(cut.window_s * hz)
    stride = max(1, round((cut.stride_s or cut.window_s / 2) * hz))
    values = _values(table, names)
    parts, chosen = [], []
    for members in recordings:
        begins = window_starts(t[members], label[members], hz, samples, stride)
        if begins.size:
            series = sliding_window_view(values[members], samples, axis=0)
            parts.append(series[begins])
            chosen.append(members[begins])
    if not parts:
        raise DataError(
            f"{path} has no stretch of {cut.window_s:g} s without a gap or a change of label "
            f"in any of its {ids.size} recordings."
        )
    first = np.concatenate(chosen)
    X = np.concatenate(parts).astype(np.float32)
    return _Windows(X, label[first], episode[first], host[first], t[first], hz, stride / hz)


def window_starts(
    t: NDArray[np.float64], label: NDArray[Any], hz: float, samples: int, stride: int
) -> NDArray[np.int64]:
    """Rows at which windows of ``samples`` rows begin, ``stride`` apart inside each stretch without a break.

    A break is a gap in the times or a change of label; every stretch starts afresh.
    """
    broken = (np.diff(t) > GAP / hz) | (np.diff(t) <= 0) | (label[1:] != label[:-1])
    edges = np.r_[0, np.flatnonzero(broken) + 1, t.size]
    begins = [np.arange(low, high - samples + 1, stride) for low, high in pairwise(edges.tolist())]
    return np.concatenate([np.empty(0, dtype=np.int64), *begins])
