"""Represent samples of other recorders as rows with the names, units and kinds of this project's channels.

A quantity has the same name whichever recorder measured it, and counters become growth per second. Channels that a
recorder does not measure are missing.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from training.data import normalise
from training.data.channels import CHANNELS, SYSTEM_CHANNELS, Measure
from training.data.errors import DataError
from training.data.ingest.roles import Role
from training.data.schema import ChannelSpec
from training.data.values import Floats

TIMEOUT_S = 600
WINDOW_SAMPLES = 16  # of a window whose length is not said
ORDER = tuple(channel.name for channel in SYSTEM_CHANNELS)


class Recording(NamedTuple):
    """One host's samples: their times ``t`` (S) in seconds since 1970, and the values (S) of each channel, NaN if
    missing.

    A counter's values are its growth per second.
    """

    host: str
    t: Floats
    values: Mapping[str, Floats]


class RecordedTable(NamedTuple):
    """The rows of a recorder, and notes on how they were read; a column with a role has the role's name."""

    path: Path
    rows: pl.DataFrame
    layout: str  # how it is written
    channels: tuple[str, ...]  # those that are our own; others are a user's queries
    notes: tuple[str, ...] = ()


def recorded(source: Path, recordings: Sequence[Recording], layout: str, notes: Sequence[str] = ()) -> RecordedTable:
    """Return one table of the recordings of all hosts, without channels that no host has. Raises DataError if no
    channel is left."""
    present = {name for one in recordings for name, values in one.values.items() if np.isfinite(values).any()}
    ours = [name for name in ORDER if name in present]
    names = [*ours, *sorted(present - set(ours))]
    if not names:
        raise DataError(f"{source} holds none of the channels of a host: is it another program's?")
    parts = []
    for one in sorted(recordings, key=lambda one: (one.host, one.t[0] if one.t.size else 0.0)):
        columns = {name: one.values.get(name, np.full(one.t.size, np.nan)) for name in names}
        t = pl.Series(np.round(one.t * 1e6).astype(int)).cast(pl.Datetime("us", "UTC"))
        parts.append(pl.DataFrame({str(Role.TIME): t, str(Role.HOST): [one.host] * one.t.size, **columns}))
    rows = pl.concat(parts).with_columns(pl.col(names).fill_nan(None))
    return RecordedTable(path=source, rows=rows, layout=layout, channels=tuple(ours), notes=tuple(notes))


def rows_of(table: str) -> list[list[str]]:
    """Return the words of each line of ``table``."""
    return [line.split() for line in table.strip().splitlines()]


def in_our_units(table: str) -> dict[str, tuple[str, float]]:
    """Return, for each channel in ``table``, its place in a recorder's data, and the factor from the recorder's unit to
    the channel's (default 1)."""
    return {channel: (place, float(by[0] if by else 1)) for channel, place, *by in rows_of(table)}


def source_of(paths: Sequence[Path], several: str) -> Path:
    """Return the path of the one file that was read, or a path that reads like "3 files of sysstat"."""
    return paths[0] if len(paths) == 1 else Path(f"{len(paths)} {several}")


def content_of(path: Path) -> bytes:
    """Return the bytes of a recorder's file. Raises DataError if the file cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from None


def run(command: Sequence[str], path: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run ``command``, a recorder's own program that reads a file, and return the ended process. Raises DataError,
    which names the file ``path``, if that takes too long."""
    environment = {**os.environ, "TZ": "UTC", "LC_ALL": "C.UTF-8", **environment}
    try:
        return subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, env=environment, check=False)
    except subprocess.TimeoutExpired:
        raise DataError(f"Reading {path} took longer than {TIMEOUT_S} s.") from None


def with_specs(channels: Sequence[ChannelSpec], ours: Sequence[str]) -> tuple[ChannelSpec, ...]:
    """Return the schema's entries for a table's channels; channels named in ``ours`` get entries as in this project's
    recordings."""
    known = {name: CHANNELS[name] for name in ours}
    return tuple(
        normalise.spec_of(one.name, known[one.name].unit, known[one.name].kind, one.modes) if one.name in ours else one
        for one in channels
    )


def is_counter(name: str) -> bool:
    return CHANNELS[name].kind is Measure.COUNTER
