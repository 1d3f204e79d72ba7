"""Samples of other recorders, as rows under our channels' names, units and kinds.

A quantity has the same name whichever recorder measured it, and counters become growth per second, so that a model of
one recorder's data can score another's. What a recorder does not measure is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from training.data import normalise
from training.data.channels import CHANNELS, SYSTEM_CHANNELS, Measure
from training.data.errors import DataError
from training.data.ingest.roles import Role, Roles
from training.data.ingest.tables import SampleTable
from training.data.schema import ChannelSpec
from training.data.values import Floats

WINDOW_SAMPLES = 16  # of a window whose length is not said
ORDER = tuple(channel.name for channel in SYSTEM_CHANNELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One host's samples: ``t`` in seconds since 1970 (S), and values (S) by channel, NaN where there is none.

    A counter's values are its growth by the second.
    """

    host: str
    t: Floats
    values: Mapping[str, Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTable:
    """The table of a recorder's samples, and notes on how it was read."""

    table: SampleTable
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
    roles = Roles(columns={Role.TIME: "its clock", Role.HOST: "its host"})
    return RecordedTable(
        table=SampleTable(path=source, rows=rows, roles=roles, layout=layout), channels=tuple(ours), notes=tuple(notes)
    )


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
