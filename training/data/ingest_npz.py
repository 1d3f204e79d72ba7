"""Windows from a NumPy archive: arrays X and y, and whatever else is known of them.

X        (N, C, T) numbers        the windows
y        (N)  numbers or names    their classes; 0 and 1 are benign and malicious-like
episode  (N)  optional            which windows belong to one recording; absent: each is its own
host     (N)  optional            which machine recorded it
channel  (C)  optional            names; absent: c0, c1, …
oracle   (C)  optional booleans   channels that the realistic mode must not see
t        (N)  optional            start of each window in seconds, on one clock for all
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.data.errors import DataError
from training.data.ingested import (
    UNKNOWN_HOST,
    Ingested,
    Said,
    channel_specs,
    measured,
    name_labels,
    own_episodes,
)

ROLES = {
    "X": "windows",
    "y": "class",
    "episode": "recording",
    "host": "host",
    "channel": "names of the channels",
    "oracle": "hidden from realistic",
    "t": "time in seconds",
}
KEYS = tuple(ROLES)


def read_npz(path: Path, *, hz: float, said: Said) -> Ingested:
    """Read the archive. ``hz`` is the sampling rate of X. Raises DataError."""
    found = _load(path)
    for key in ("X", "y"):
        if key not in found:
            raise DataError(f"{path} has no array {key!r}: it needs X (N, C, T) and y (N).")
    X = found["X"]
    if X.ndim != 3 or 0 in X.shape or X.dtype.kind not in "fiub":
        raise DataError(
            f"X must hold numbers in the shape (windows, channels, samples), "
            f"but it is {X.dtype} {X.shape}."
        )
    n, n_channels, _ = X.shape
    episode = _column(found, "episode", n)
    host = _column(found, "host", n)
    channel = _column(found, "channel", n_channels)
    oracle = _column(found, "oracle", n_channels)
    labels = name_labels(_required(found["y"], n), said)
    names_of_channels = (
        [f"c{number}" for number in range(n_channels)]
        if channel is None
        else channel.astype(str).tolist()
    )
    episodes = own_episodes(X, names_of_channels) if episode is None else episode.astype(str)
    t_start, stride_s, notes = _times(_column(found, "t", n), episodes, X.shape[2] / hz)
    unused = sorted(set(found) - set(KEYS))
    if unused:
        notes.append(f"Arrays that mean nothing here were ignored: {', '.join(unused)}.")
    hidden = np.zeros(n_channels, dtype=bool) if oracle is None else oracle.astype(bool)
    return Ingested(
        X=np.ascontiguousarray(X, dtype=np.float32),
        label=labels.of_window,
        episode=episodes,
        host=np.full(n, UNKNOWN_HOST) if host is None else host.astype(str),
        t_start=t_start,
        channels=channel_specs(names_of_channels, hidden.tolist()),
        label_names=labels.names,
        benign=labels.benign,
        sample_hz=hz,
        stride_s=stride_s,
        source=f"{path.name}: {n:,} windows",
        roles={key: ROLES[key] for key in KEYS if key in found},
        clock="t" if "t" in found else "",
        notes=tuple(notes),
    )


def _load(path: Path) -> Mapping[str, NDArray[Any]]:
    try:
        # Opened here, because NumPy forgets to close a file that it cannot read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from None
    except (ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} is not an archive of plain NumPy arrays ({reason}).") from None


def _column(found: Mapping[str, NDArray[Any]], key: str, n: int) -> NDArray[Any] | None:
    if key not in found:
        return None
    values = found[key]
    if values.shape != (n,):
        raise DataError(f"The array {key!r} has the shape {values.shape} where ({n},) is needed.")
    return values


def _required(y: NDArray[Any], n: int) -> NDArray[Any]:
    if y.shape != (n,):
        raise DataError(f"The array 'y' has the shape {y.shape} where ({n},) is needed.")
    return y


def _times(
    t: NDArray[Any] | None, episode: NDArray[np.str_], window_s: float
) -> tuple[NDArray[np.float64], float, list[str]]:
    """Start of each window, the usual step between them, and what had to be assumed.

    Without times the windows of an episode are taken to follow each other without overlap, and every episode to start
    at 0: a split by time then has nothing to go by and says so.
    """
    order = np.lexsort((np.arange(episode.size), episode))
    same = episode[order][1:] == episode[order][:-1]
    if t is None:
        run = np.arange(episode.size) - np.maximum.accumulate(
            np.where(np.r_[True, ~same], np.arange(episode.size), 0)
        )
        t_start = np.empty(episode.size)
        t_start[order] = run * window_s
        return t_start, window_s, ["There is no array t: a split by time is not possible."]
    t_start = t.astype(np.float64)
    if not np.isfinite(t_start).all():
        raise DataError("The array 't' holds values that are not finite numbers.")
    by_time = np.lexsort((t_start, episode))
    steps = np.diff(t_start[by_time])[episode[by_time][1:] == episode[by_time][:-1]]
    steps = steps[steps > 0]
    return t_start, measured(float(np.median(steps))) if steps.size else window_s, []
