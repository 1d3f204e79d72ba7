"""The feature schema: everything that determines what a number in a processed data set means.

A model fits data of exactly one schema. Its identity is the SHA-256 of the schema's canonical JSON, once for the
whole file and once for each mode: a mode's schema is the same document with only the channels and features that the
mode may see, so a checkpoint of one mode refuses the data of the other.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from training import strict_json
from training.contract import Mode
from training.data.errors import DataError, SchemaMismatch

SCHEMA_VERSION = 1
ABSENT = "(absent)"
RATE_ROUNDED = 1e-5  # share by which a rate that was kept to six digits may differ from the true one


class Timing(StrEnum):
    """The choice of a data set's times that are in seconds; other times only count samples."""

    SECONDS = "seconds"  # all
    STARTS = "starts"  # when windows begin; their length is unknown
    NONE = "none"  # neither a clock nor a rate was given


class ChannelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A channel of the windows, in their order. ``unit`` is that of the physical quantity (rates: per second);
    the values in the windows are what the normaliser made of it, after ``transform`` (symlog: sign(v) log(1 + |v| /
    scale); none) has compressed it."""

    name: str
    unit: str
    kind: str
    modes: tuple[str, ...]
    transform: str = "none"
    scale: float = 1.0


class FeatureSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A column of the feature table. ``channel`` is one name, or two joined by ``~`` for a correlation."""

    name: str
    channel: str
    unit: str
    statistic: str
    modes: tuple[str, ...]


class FeatureSchema(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The meaning of every number of a data set; ``mode`` is None for the whole schema. ``label_map`` gives each class
    name its integer; the order means nothing.

    ``target`` is malicious, phase, or class (the owner said that no class is benign). ``benign`` has the owner's names
    of the classes that raise no alarm; if empty, it is not part of canonical JSON and hash, and the benign class is the
    one called ``benign``, or unknown. Read it with `classes.benign_of`. ``time`` says which times mean seconds; left
    out for all.

    ``optional`` names the channels that some hosts of the data set lack: what it was built from, not what its numbers
    mean. ``views``: if recordings of several views were combined, the view that defines a channel's meaning.

    ``normaliser`` says by which rule values were normalised, never with which hosts' figures: these lie beside the
    data, so that a new host can be scored under the same schema.
    """

    schema_version: int
    mode: str | None
    target: str
    label_map: dict[str, int]
    sample_hz: float
    window_s: float
    stride_s: float
    window_samples: int
    normaliser: dict[str, Any]
    channels: tuple[ChannelSpec, ...]
    features: tuple[FeatureSpec, ...]
    benign: tuple[str, ...] = ()
    time: Timing = Timing.SECONDS
    optional: tuple[str, ...] = ()
    views: dict[str, str] = {}

    def for_mode(self, mode: str) -> FeatureSchema:
        """The part of the schema that ``mode`` may see. Raises DataError if the mode sees no channel."""
        assert self.mode is None, "a mode is taken from the whole schema"
        if mode not in [str(m) for m in Mode]:
            raise DataError(f"There is no mode {mode!r}: it is realistic or oracle.")
        channels = tuple(c for c in self.channels if mode in c.modes)
        features = tuple(f for f in self.features if mode in f.modes)
        if not channels:
            raise DataError(f"This data set has no channel that the mode {mode} may see.")
        names = {c.name for c in channels}
        return msgspec.structs.replace(
            self,
            mode=mode,
            channels=channels,
            features=features,
            optional=tuple(name for name in self.optional if name in names),
            views={name: view for name, view in self.views.items() if name in names},
        )

    def canonical(self) -> bytes:
        """Canonical JSON: sorted keys, no spaces, UTF-8. Equal schemas have equal bytes."""
        return strict_json.canonical(msgspec.to_builtins(self)).encode()

    def hash(self) -> str:
        """The schema hash, 64 hexadecimal digits."""
        return hashlib.sha256(self.canonical()).hexdigest()

    @property
    def channel_names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.channels)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.features)


def read_schema(path: Path) -> FeatureSchema:
    """The whole schema from its file. Raises DataError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=FeatureSchema)
    except OSError as error:
        raise DataError(f"The feature schema {path} cannot be read ({error.strerror}).") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path} is not a feature schema ({error}).") from None


def require_same(expected: FeatureSchema, found: FeatureSchema) -> None:
    """Raise SchemaMismatch, naming the first field that differs, unless numbers mean the same under both."""
    expected, found = (msgspec.structs.replace(one, optional=()) for one in (expected, found))
    seconds = {name: getattr(expected, name) for name in ("sample_hz", "window_s", "stride_s")}
    if all(abs(getattr(found, name) - value) <= RATE_ROUNDED * abs(value) for name, value in seconds.items()):
        found = msgspec.structs.replace(found, **seconds)
    if expected.canonical() == found.canonical():
        return
    lacking = [c.name for c in expected.channels if c.name not in {o.name for o in found.channels}]
    if lacking:
        raise SchemaMismatch(f"The data were made under another schema: they lack the channels {', '.join(lacking)}.")
    known, own = expected.label_map, found.label_map
    if own != known and set(own) <= set(known):
        names = ",".join(sorted(known, key=known.__getitem__))
        raise SchemaMismatch(
            f"The data were made under another schema: their classes are {', '.join(own)}, where windows of your "
            f"own are to be ingested with --labels {names}."
        )
    where, want, have = first_difference(msgspec.to_builtins(expected), msgspec.to_builtins(found))
    raise SchemaMismatch(f"The data were made under another schema: {where} is {have!r} where {want!r} is expected.")


def first_difference(expected: Any, found: Any, path: str = "") -> tuple[str, Any, Any]:
    """Find where two plain values first differ, and return both values there. The values must differ."""
    pairs: list[tuple[str, Any, Any]] = []
    if isinstance(expected, dict) and isinstance(found, dict):
        dot = f"{path}." if path else ""
        pairs = [(f"{dot}{key}", expected.get(key, ABSENT), found.get(key, ABSENT)) for key in {**expected, **found}]
    elif isinstance(expected, list | tuple) and isinstance(found, list | tuple):
        both = enumerate(zip_longest(expected, found, fillvalue=ABSENT))
        pairs = [(f"{path}[{number}]", one, other) for number, (one, other) in both]
    for below, one, other in pairs:
        if one != other:
            return first_difference(one, other, below)
    return path, expected, found
