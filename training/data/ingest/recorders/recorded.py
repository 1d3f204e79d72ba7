"""Samples of other recorders, as rows under our channels' names, units and kinds.

A quantity has the same name whichever recorder measured it, and counters become growth per second, so that a model of
one recorder's data can score another's. What a recorder does not measure is missing.
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
    """One host's samples: ``t`` in seconds since 1970 (S), and values (S) by channel, NaN where there is none.

    A counter's values are its growth by the second.
    """

    host: str
    t: Floats
    values: Mapping[str, Floats]


class RecordedTable(NamedTuple):
    """The rows of a recorder, and what is to be said of how they were read. A role's column has the role's name."""

    path: Path
    rows: pl.DataFrame
    layout: str  # how it is written
    channels: tuple[str, ...]  # those that are our own; others are a user's queries
    notes: tuple[str, ...] = ()


def recorded(source: Path, recordings: Sequence[Recording], layout: str, notes: Sequence[str] = ()) -> RecordedTable:
    """Put the recordings of all hosts into one table; channels that no host has are left out. Raises DataError."""
    present = {name for one in recordings for name, values in one.values.items() if np.isfinite(values).any()}
    ours = [name for name in ORDER if name in present]
    names = [*ours, *sorted(present - set(ours))]
    if not names:
        raise DataError(f"{source} holds none of the channels of a host: is it another program's?")
    parts = []
    for one in sorted(recordings, key=lambda one: (one.host, one.t[0] if one.t.size else 0.0)):
        columns = {name: one.values.get(name, np.full(one.t.size, np.nan)) for name in names}
        t = pl.Series(np.round(one.t * 1e6).astype(np.int64)).cast(pl.Datetime("us", "UTC"))
        parts.append(pl.DataFrame({str(Role.TIME): t, str(Role.HOST): [one.host] * one.t.size, **columns}))
    rows = pl.concat(parts).with_columns(pl.col(names).fill_nan(None))
    return RecordedTable(path=source, rows=rows, layout=layout, channels=tuple(ours), notes=tuple(notes))


def rows_of(table: str) -> list[list[str]]:
    """The words of each line of a table."""
    return [line.split() for line in table.strip().splitlines()]


def in_our_units(table: str) -> dict[str, tuple[str, float]]:
    """Channels by name: where a recorder has each, and what one of its unit is in ours, where that is not one."""
    return {channel: (place, float(by[0] if by else 1)) for channel, place, *by in rows_of(table)}


def source_of(paths: Sequence[Path], several: str) -> Path:
    """The one file that was read, or the words for ``several``."""
    return paths[0] if len(paths) == 1 else Path(f"{len(paths)} {several}")


def content_of(path: Path) -> bytes:
    """The bytes of a recorder's file. Raises DataError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from None


def run(command: Sequence[str], path: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Let a recorder's own program read its file. Raises DataError where that takes too long."""
    environment = {**os.environ, "TZ": "UTC", "LC_ALL": "C.UTF-8", **environment}
    try:
        return subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, env=environment, check=False)
    except subprocess.TimeoutExpired:
        raise DataError(f"Reading {path} took longer than {TIMEOUT_S} s.") from None


def spec_of(name: str, modes: Sequence[str]) -> ChannelSpec:
    """The schema's entry for one of our channels: compressed as in our recordings."""
    channel = CHANNELS[name]
    return ChannelSpec(
        name=name,
        unit=channel.rate_unit,
        kind=str(channel.kind),
        modes=tuple(modes),
        transform="symlog",
        scale=normalise.scale_of(channel.rate_unit),
    )


def with_specs(channels: Sequence[ChannelSpec], ours: Sequence[str]) -> tuple[ChannelSpec, ...]:
    """The schema's entries for a table's channels; those that are ``ours`` are as in our recordings."""
    return tuple(spec_of(one.name, one.modes) if one.name in ours else one for one in channels)


def is_counter(name: str) -> bool:
    return CHANNELS[name].kind is Measure.COUNTER
