"""Checkpoints: ``<model>_<mode>.ckpt.json`` and the weights beside it.

The JSON names its sidecar, the file of the weights, with size and SHA-256, and is written last: where the JSON exists,
both exist. The JSON holds a digest of its other members, so that a figure that was changed by hand is noticed. Neither
JSON nor sidecar holds a path, a time or the training machine's name, so equal runs give equal bytes.
"""

import hashlib
import json
import re
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from training import strict_json
from training.data.errors import SchemaMismatch
from training.data.schema import FeatureSchema, require_same
from training.data.split import Side
from training.data.values import Json, JsonDict
from training.families import FAMILIES
from training.files import write_whole
from training.trainer.contract import BadData
from training.trainer.evaluation.host_levels import HostLevels, HostThresholds
from training.trainer.incident_rule import JoinRule
from training.trainer.ranges import Range
from training.trainer.training_windows import SeenWindows

FORMAT = "cis490-checkpoint"
VERSION = 1
LARGEST_JSON = 64 << 20
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class CheckpointError(BadData):
    """The checkpoint cannot be used: for example, it is missing, damaged, changed, of another version, or made for
    other data."""


class _Sidecar(msgspec.Struct):
    file: str
    bytes: int
    sha256: str


class _RecordedSplit(msgspec.Struct):
    recipe: str
    train_hosts: list[str]
    seed: Annotated[int, msgspec.Meta(ge=0)]
    fingerprint: str
    split_seed: Annotated[int, msgspec.Meta(ge=0)] | None = None
    test_hosts: list[str] = []  # none: every host that did not train


class _TrainedOn(msgspec.Struct):
    data: str


class _Channels(msgspec.Struct):
    none: list[str]


class _Schema(msgspec.Struct):
    fields: FeatureSchema


class _Threshold(msgspec.Struct):
    threshold: float | None
    hosts: HostThresholds | None


class _Members(msgspec.Struct):
    """The members of a checkpoint that scoring and comparing need."""

    model: str
    mode: str
    facts: JsonDict
    hyper: JsonDict
    label_map: dict[str, int]
    split: _RecordedSplit
    sidecar: _Sidecar
    run_key: _TrainedOn
    levels: HostLevels | None
    threshold: _Threshold | None
    seen: SeenWindows
    ranges: dict[str, Range]
    channels: _Channels
    incidents: JoinRule | None
    schema: _Schema
    digest: str


class Checkpoint(NamedTuple):
    """A verified checkpoint: the JSON document, and the sidecar's verified bytes."""

    document: Json
    sidecar: bytes

    @property
    def model(self) -> str:
        return str(self.document["model"])

    @property
    def mode(self) -> str:
        return str(self.document["mode"])


def write(out_dir: Path, document: Json, sidecar: bytes, suffix: str) -> Path:
    """Write the sidecar, then the checkpoint, each atomically; return the checkpoint's path."""
    stem = f"{document['model']}_{document['mode']}"
    name = stem + suffix
    out_dir.mkdir(parents=True, exist_ok=True)
    named = {"file": name, "bytes": len(sidecar), "sha256": hashlib.sha256(sidecar).hexdigest()}
    whole = {"format": FORMAT, "version": VERSION, **document, "sidecar": named}
    whole["digest"] = digest_of(whole)
    text = json.dumps(whole, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(out_dir / name, sidecar)
    path = out_dir / f"{stem}.ckpt.json"
    write_whole(path, text.encode() + b"\n")
    return path


def read(path: Path) -> Checkpoint:
    """Read a checkpoint and its sidecar, and check the digests of both without loading a weight; raises
    ``CheckpointError``."""
    document = _read_json(path)
    try:
        members = msgspec.convert(document, _Members)
        _check(members)
    except ValueError as error:
        raise CheckpointError(
            f"{path} is damaged or of another form ({error}): fetch the bundle again, or train the model again"
        ) from None
    name = members.sidecar.file
    if not _FILE.fullmatch(name):
        raise CheckpointError(f"{path} names no plain file beside it as its sidecar: do not trust it")
    if members.digest != digest_of(document):
        raise CheckpointError(f"{path} was changed after it was written: fetch the bundle again, or train again")
    beside = path.parent / name
    try:
        sidecar = beside.read_bytes() if beside.stat().st_size == members.sidecar.bytes else b""
    except OSError as error:
        raise CheckpointError(f"{beside} cannot be read: {error.strerror}") from None
    if hashlib.sha256(sidecar).hexdigest() != members.sidecar.sha256:
        raise CheckpointError(f"{beside} is not the file that {path.name} was written with: fetch the bundle again")
    return Checkpoint(document, sidecar)


def digest_of(document: Json) -> str:
    """Return the SHA-256 of the canonical JSON of a checkpoint, without the member ``digest``."""
    text = strict_json.canonical({key: value for key, value in document.items() if key != "digest"})
    return hashlib.sha256(text.encode()).hexdigest()


def _check(members: _Members) -> None:
    """Raise ValueError if class numbers, window digests or a hyperparameter cannot come from a training."""
    if sorted(members.label_map.values()) != list(range(len(members.label_map))):
        raise ValueError("the classes are not numbered from 0 on")
    for side in Side:
        members.seen.digests(side)
    for one in FAMILIES[members.model].hyper if members.model in FAMILIES else ():
        if one.key not in members.hyper:
            raise ValueError(f"it has no {one.key}")
        try:
            one.parse(str(members.hyper[one.key]))
        except ArgumentTypeError as error:
            raise ValueError(f"{one.key}: {error}") from None


def _read_json(path: Path) -> JsonDict:
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise CheckpointError(f"{path} is too large for a checkpoint")
        document = strict_json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise CheckpointError(f"{path} is not a checkpoint: it holds no valid JSON") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of these trainers")
    if document.get("version") != VERSION:
        version = document.get("version")
        raise CheckpointError(f"{path} has version {version}: this program reads version {VERSION}")
    return document


def schema_of(checkpoint: Checkpoint) -> FeatureSchema:
    """Return the schema of the data that the model was trained on."""
    return msgspec.convert(checkpoint.document["schema"]["fields"], FeatureSchema)


def require_schema(checkpoint: Checkpoint, found: FeatureSchema) -> None:
    """Raise ``CheckpointError`` for data of another schema than the model's, naming the first field that differs."""
    try:
        require_same(schema_of(checkpoint), found)
    except SchemaMismatch as error:
        raise CheckpointError(
            f"this {checkpoint.model} was trained on other data in mode {checkpoint.mode}. {error}"
        ) from None
