"""The feature schema: a document that says what the numbers in a processed data set mean.

A model accepts only data whose schema :func:`require_same` accepts. The schema hash is the SHA-256 of the canonical
JSON. A mode's schema is the same document with only the channels and features that the mode may see, and has a hash of
its own. A checkpoint of one mode refuses the data of the other.
"""

import hashlib
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self

import msgspec

from training import strict_json
from training.certain import certain
from training.contract import Mode
from training.data.errors import DataError, SchemaMismatch
from training.data.values import JsonDict

SCHEMA_VERSION = 1
ABSENT = "(absent)"
RATE_ROUNDED = 1e-5  # share by which a rate that was kept to six digits may differ from the true one


class Timing(StrEnum):
    """Says which times of a data set are in seconds; the other times only count samples."""

    SECONDS = "seconds"  # all
    STARTS = "starts"  # when windows begin; their length is unknown
    NONE = "none"  # neither a clock nor a rate was given


class ChannelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A channel of the windows. ``unit`` is the unit of the measured quantity, per second if it is a rate.

    The values in windows have been compressed by ``transform`` (``none``, or ``symlog``: sign(v) log(1 + |v| / scale)),
    and then normalised as the schema's ``normaliser`` says.
    """

    name: str
    unit: str
    kind: str
    modes: tuple[str, ...]
    transform: str = "none"
    scale: float = 1.0


class FeatureSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A column of the feature table; ``channel`` is a channel's name, or for a correlation two names joined by
    ``~``."""

    name: str
    channel: str
    unit: str
    statistic: str
    modes: tuple[str, ...]


class FeatureSchema(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The meaning of every number of a data set; ``mode`` is None for the whole schema, else the mode that may see this
    part.

    ``label_map`` gives each class name its integer; the order of the integers means nothing. ``target`` is
    ``malicious``, ``phase``, or ``class`` (the user declared that no class is benign). ``benign`` has the names of the
    classes that raise no alarm; use `classes.benign_of`, because the default (empty) means the class called ``benign``,
    or with the target ``class`` none. ``time`` says which times are in seconds. Fields of this class that have their
    default value are not part of the canonical JSON.

    ``optional`` names the channels that some hosts of the data set lack; it does not change the meaning of numbers.
    ``views`` has, for channels that mean two things in two views, the view that defines the meaning here; it may be
    empty if all recordings are of the same view.

    ``normaliser`` describes the rule by which values were normalised. The hosts' levels are not in the schema, but in a
    file beside the data: a new host can be scored under the same schema.
    """

    schema_version: int
    mode: str | None
    target: str
    label_map: dict[str, int]
    sample_hz: float
    window_s: float
    stride_s: float
    window_samples: int
    normaliser: JsonDict
    channels: tuple[ChannelSpec, ...]
    features: tuple[FeatureSpec, ...]
    benign: tuple[str, ...] = ()
    time: Timing = Timing.SECONDS
    optional: tuple[str, ...] = ()
    views: dict[str, str] = {}

    def for_mode(self, mode: str) -> Self:
        """Return the schema of ``mode``: this whole schema without the channels and features that the mode may not see.

        Raises DataError if the mode is unknown or sees no channel.
        """
        certain(self.mode is None, "a mode is taken from the whole schema")
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
        """Return the schema as canonical JSON (sorted keys, no spaces, UTF-8); equal schemas give equal bytes."""
        return strict_json.canonical(msgspec.to_builtins(self)).encode()

    def hash(self) -> str:
        """Return the schema hash: the SHA-256 of the canonical JSON, as 64 hexadecimal digits."""
        return hashlib.sha256(self.canonical()).hexdigest()

    @property
    def has_examples(self) -> bool:
        """Tell whether each window is one row of a table, and no stretch of time."""
        return self.window_samples == 1

    @property
    def channel_names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.channels)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.features)


def read_schema(path: Path) -> FeatureSchema:
    """Return the schema that the file ``path`` contains. Raises DataError if the file cannot be read, or contains no
    schema."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=FeatureSchema)
    except OSError as error:
        raise DataError(f"The feature schema {path} cannot be read ({error.strerror}).") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path} is not a feature schema ({error}).") from None


def require_same(expected: FeatureSchema, found: FeatureSchema) -> None:
    """Raise SchemaMismatch, with a difference, unless numbers mean the same under both schemas.

    ``optional``, and differences within rounding of the sampling rate and of the windows' length and step, do not
    count.
    """
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
    """Return the path in two different JSON values at which they first differ, and both values there."""
    pairs = []
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
