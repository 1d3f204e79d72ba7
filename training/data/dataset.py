"""Write and read processed data sets: builds and ingests write them, trainers read them.

    <out>/validation_v1.parquet           a row per episode; which were quarantined and why
    <out>/features_window_v1.parquet      a row per window: identity, label, features
    <out>/feature_schema_v1.json          what every number means; its SHA-256 is the schema hash
    <out>/tensor_window_v1/               the same windows in the same order as an array

``write_processed`` writes a whole data set, and ``load_processed`` reads one; equal arguments give byte-identical
files, with the same versions of the libraries.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from msgspec.structs import replace as replace_struct

from training import strict_json
from training.certain import certain
from training.contract import FEATURES_FILE, HOSTS_FILE, SCHEMA_FILE, TENSORS_FOLDER, VALIDATION_FILE, Mode
from training.data import absent as absences
from training.data import tensors as tensor_files
from training.data.absent import absent, is_settled, lacking_hosts
from training.data.channels import CHANNELS
from training.data.classes import BENIGN, benign_of, stated
from training.data.coded import Coded
from training.data.errors import DataError
from training.data.features import SHAPED_MIN, extract, extract_blocks, feature_specs
from training.data.identity import Kinship, find_kin
from training.data.parquet_groups import write_groups
from training.data.rows import CodedRows, Rows
from training.data.schema import SCHEMA_VERSION, ChannelSpec, FeatureSchema, Timing, read_schema, require_same
from training.data.scratch import ROOM, blocks, fill
from training.data.summary import Understood, metadata
from training.data.summary import read as read_understood
from training.data.tensors import INDEX_COLUMNS, Placed, StoredIndex, TensorManifest, WindowIndex
from training.data.values import Floats32, Ints, JsonDict
from training.files import LocalFs
from training.printable import first_line

# Rows are written in groups, and not compressed. A group costs about a tenth of a second for a thousand columns, so
# there are not many; and it is held in memory, three times while it is written, so none is large.
GROUP_ROWS_LEAST, GROUPS_MOST = 256, 64
GROUP_BYTES_MOST = 1 << 26
REFERENCES_FILE = "baselines_v1.json"  # beside them where they were built from episodes; and what was read of each:
MEMORY_FOLDER = ".cache"
# A data set is made in the one, which gets the name of the other once it is whole: from then on it is the data set, and
# whoever opens it next puts it in place if its writer was killed. Names with a dot in front do not travel with it.
NEW_FOLDER, WHOLE_FOLDER = ".new", ".whole"
MEMORY_NAME = re.compile(r"[0-9a-f]{40}\.(npz|part)")
NOT_NORMALISED: JsonDict = {"kind": "none"}
REFERENCE = "baseline"  # the stored label of reference windows: they belong to no class
UNLABELLED = (
    "(unlabelled)"  # and of windows that nobody labelled, where all are: such a data set is scored, and no more
)

VALIDATION_SCHEMA: dict[str, Any] = {
    "episode_id": pl.String,
    "host": pl.String,
    "scenario": pl.String,
    "baseline": pl.Boolean,
    "started_at": pl.Float64,  # epoch seconds
    "duration_s": pl.Float64,
    "sample_hz": pl.Float64,
    "samples": pl.Int64,
    "gaps": pl.Int64,
    "longest_gap_s": pl.Float64,
    "nan_share": pl.Float64,
    "label_coverage": pl.Float64,
    "windows": pl.Int64,
    "ok": pl.Boolean,
    "reasons": pl.List(pl.String),
    "digest": pl.String,
    "undeclared": pl.List(pl.String),
}


@dataclass(frozen=True, kw_only=True)
class WindowSet:
    """N windows ``X``, float32 (N, C, T), and a row for each. Each channel of a window is known in all samples or
    absent from all."""

    X: Floats32
    rows: Rows


class ManyWindows(NamedTuple):
    """A :class:`WindowSet` in less memory, for many windows: each name in ``rows`` is stored only once."""

    X: Floats32
    rows: CodedRows


class Sampling(NamedTuple):
    """The channels of windows, their sampling rate, and their length and step in seconds.

    ``time`` says which times of the data set are really in seconds. ``normaliser`` describes in JSON how the numbers
    were normalised; by default not at all. ``optional`` and ``views`` are those of :class:`FeatureSchema`; ``optional``
    None means the channels that at least one host of these windows lacks.
    """

    channels: Sequence[ChannelSpec]
    sample_hz: float
    window_s: float
    stride_s: float
    time: Timing = Timing.SECONDS
    normaliser: JsonDict = NOT_NORMALISED
    optional: tuple[str, ...] | None = None
    views: Mapping[str, str] = {}


class Labelling(NamedTuple):
    """The classes: ``names`` in the order of their integers, and the ``benign`` ones, which raise no alarm."""

    target: str
    names: Sequence[str]
    benign: Sequence[str] = (BENIGN,)


def write_processed(
    out_dir: Path,
    windows: WindowSet | ManyWindows,
    sampling: Sampling,
    labelling: Labelling,
    *,
    validation_rows: Sequence[JsonDict],
    reference: WindowSet | None = None,
    understood: Understood | None = None,
    progress: Callable[[float], None] = lambda _share: None,
) -> FeatureSchema:
    """Write a data set into the folder ``out_dir``, in place of the old one, and return its schema.

    The realistic channels are put first. ``validation_rows`` have the columns of VALIDATION_SCHEMA; missing ones become
    null. ``reference`` has windows of the hosts' reference recordings, which show what is usual on a host, and belong
    to no class. ``understood`` is stored in the file of the validation rows; ``progress`` is called with the share of
    the features that is written. If the process is killed at any moment, the next call of this module finds either the
    old data set or the complete new one. Raises DataError for an infinite value, a channel that is only partly known in
    a window, a window without any value, or a repeated channel name. At least one window is needed, and labels are not
    checked.
    """
    channels = sampling.channels
    for part in (windows, reference):
        if part is not None:
            _check(part, channels)
    order = sorted(range(len(channels)), key=lambda i: Mode.REALISTIC not in channels[i].modes)
    optional = lacked(windows, [c.name for c in channels]) if sampling.optional is None else sampling.optional
    sampling = sampling._replace(channels=[channels[i] for i in order], optional=optional)
    with making(out_dir) as new:
        X = tensor_files.place_tensors(new / TENSORS_FOLDER, windows.X, order)
        kept = None
        if reference is not None:
            name = tensor_files.REFERENCE_TENSORS
            placed = tensor_files.place_tensors(new / TENSORS_FOLDER, reference.X, order, name=name)
            kept = (placed, WindowIndex(reference.rows))
        ordered = tuple(sampling.channels)
        parts = extract_blocks(X, ordered, sampling.sample_hz)
        index = WindowIndex(windows.rows)
        features = write_features(new, index, ordered, parts, progress, samples=X.shape[2])
        manifest = write_beside(
            new,
            (X, index),
            sampling,
            labelling,
            features_sha256=features,
            validation_rows=validation_rows,
            reference=kept,
            understood=understood,
        )
    return manifest.schema


@contextmanager
def making(out_dir: Path) -> Iterator[Path]:
    """Yield a new, empty folder into which the caller writes a data set. When the context ends without an error, the
    files in the new folder replace those of the data set in ``out_dir``."""
    new = out_dir / NEW_FOLDER
    shutil.rmtree(new, ignore_errors=True)  # of a writer that was killed
    new.mkdir(parents=True)
    try:
        yield new
        _put_in_place(new, out_dir)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _put_in_place(new: Path, out_dir: Path) -> None:
    """Replace the data set in ``out_dir`` by the complete one in the folder ``new``, safely even if the process is
    killed."""
    fs = LocalFs()
    for path in sorted(new.rglob("*")):
        fs.sync_folder(path) if path.is_dir() else fs.sync_file(path)
    fs.sync_folder(new)
    finish(out_dir)  # of a writer before
    fs.replace(new, out_dir / WHOLE_FOLDER)
    fs.sync_folder(out_dir)
    finish(out_dir)


def finish(out_dir: Path) -> None:
    """Move the files of a complete new data set, if ``out_dir`` has one, to their final places.

    The writer of a data set calls this function at the end; the readers of this module call it in case the writer was
    killed before. Several processes may call it at the same time. Raises DataError if the files cannot be moved.
    """
    whole, fs = out_dir / WHOLE_FOLDER, LocalFs()
    if not whole.is_dir():
        return
    manifest = whole / TENSORS_FOLDER / tensor_files.MANIFEST
    try:
        (out_dir / TENSORS_FOLDER).mkdir(exist_ok=True)
        with suppress(DataError):  # it is in place already, the last of all
            if tensor_files.read_manifest(manifest.parent).baseline_sha256 is None:
                for name in (tensor_files.REFERENCE_TENSORS, tensor_files.REFERENCE_INDEX):
                    fs.unlink(out_dir / TENSORS_FOLDER / name)
        files = [path for path in sorted(whole.rglob("*")) if path.is_file()]
        for path in sorted(files, key=manifest.__eq__):
            with suppress(FileNotFoundError):
                fs.replace(path, out_dir / path.relative_to(whole))
        for folder in (out_dir / TENSORS_FOLDER, out_dir):
            fs.sync_folder(folder)
    except OSError as error:
        raise DataError(
            f"{out_dir} holds a data set whose writer was killed before its files had their places, and they cannot be "
            f"moved now ({error.strerror}): open it once with an account that may write there."
        ) from None
    shutil.rmtree(whole, ignore_errors=True)


def write_beside(
    new: Path,
    windows: Placed,
    sampling: Sampling,
    labelling: Labelling,
    *,
    features_sha256: str,
    validation_rows: Sequence[JsonDict],
    reference: Placed | None = None,
    understood: Understood | None = None,
) -> TensorManifest:
    """Write schema, hosts, index, validation table and manifest beside the windows and features that are already in the
    folder ``new``; return the manifest.

    The realistic channels must be first, and ``optional`` must not be None; all else is as in :func:`write_processed`.
    """
    X, index = windows
    ordered = tuple(sampling.channels)
    schema = FeatureSchema(
        schema_version=SCHEMA_VERSION,
        mode=None,
        target=labelling.target,
        label_map={name: i for i, name in enumerate(labelling.names)},
        sample_hz=float(sampling.sample_hz),
        window_s=float(sampling.window_s),
        stride_s=float(sampling.stride_s),
        window_samples=X.shape[2],
        normaliser=sampling.normaliser,
        channels=ordered,
        features=feature_specs(ordered, X.shape[2]),
        benign=stated(labelling.benign),
        time=sampling.time,
        optional=certain(sampling.optional, "found before"),
        views=dict(sampling.views),
    )
    (new / SCHEMA_FILE).write_bytes(schema.canonical())
    (new / HOSTS_FILE).write_text(json.dumps({"hosts": index.hosts}) + "\n", encoding="utf-8")
    validation = pl.DataFrame(list(validation_rows), schema=VALIDATION_SCHEMA)
    validation.write_parquet(new / VALIDATION_FILE, compression="zstd", statistics=False, metadata=metadata(understood))
    return tensor_files.write_manifest(
        new / TENSORS_FOLDER,
        windows,
        schema,
        reference,
        features_sha256=features_sha256,
        validation_digest=validation_digest(validation, understood),
    )


def write_features(
    new: Path,
    index: WindowIndex,
    channels: tuple[ChannelSpec, ...],
    parts: Iterable[Floats32],
    progress: Callable[[float], None] = lambda _share: None,
    samples: int = SHAPED_MIN,
) -> str:
    """Write the feature table into the folder ``new``, some rows at a time, and return the SHA-256 of all features."""
    names = [feature.name for feature in feature_specs(channels, samples)]
    count = len(index)
    digest = tensor_files.begun_sha256(np.dtype(np.float32), (count, len(names)))
    # By columns, as the file has them: one copy of a group, however its rows come.
    usual = _group_rows(count, len(names))
    group = np.empty((min(2 * usual, count), len(names)), np.float32, order="F")

    def tables() -> Iterator[pl.DataFrame]:
        ends = group_ends(index.episode_ends(), usual)
        begin, at, end = 0, 0, next(ends)
        for F in parts:
            digest.update(np.ascontiguousarray(F).data)
            while len(F):
                taken = min(len(F), end - at)
                group[at - begin : at - begin + taken] = F[:taken]
                at, F = at + taken, F[taken:]
                if at == end:
                    columns = {name: group[: at - begin, i] for i, name in enumerate(names)}
                    yield index.part(begin, at).hstack(pl.DataFrame(columns))
                    begin, end = at, next(ends, count)
            progress(at / count)

    write_groups(new / FEATURES_FILE, tables())
    return digest.hexdigest()


def group_ends(episodes: Iterable[tuple[str, int]], usual: int) -> Iterator[int]:
    """Yield the row numbers at which groups of about ``usual`` rows, and at most twice as many, end.

    ``episodes`` has each episode's name and the number of the row after its last. Groups mostly end after episodes
    chosen by a hash of their names: so an added or removed episode changes its own group and few others, because the
    next chosen episode ends a group again. An episode longer than two usual groups is cut.
    """
    begin = before = 0
    for name, end in episodes:
        if end - begin > 2 * usual and before > begin:
            yield before
            begin = before
        while end - begin > 2 * usual:
            begin += 2 * usual
            yield begin
        if end - begin >= usual / 2 and _drawn(name) < 2 * (end - before) / usual:
            yield end
            begin = end
        before = end
    if before > begin:
        yield before


def _drawn(name: str) -> float:
    """Return a number from 0 to 1 that depends only on the name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64


def _group_rows(windows: int, features: int) -> int:
    """Return the usual number of rows in a row group of a feature table of this size."""
    rows = GROUP_ROWS_LEAST
    # Twice as many each time: for most added episodes the groups before stay as they are.
    while rows * GROUPS_MOST < windows and 4 * rows * 4 * features <= GROUP_BYTES_MOST:
        rows *= 2
    return rows


def other_data_set(out_dir: Path, *, built: bool) -> str | None:
    """Return the sentence that a data set of the other kind is replaced: an ingested one by a build (``built``), or the
    reverse; None without such a data set."""
    finish(out_dir)
    if not (out_dir / TENSORS_FOLDER / tensor_files.MANIFEST).exists():
        return None
    if (out_dir / REFERENCES_FILE).exists() is built:
        return None
    kind = "was brought in by training.data.ingest" if built else "training.data.build had made"
    return f"{out_dir} held a data set that {kind}: it was replaced, and nothing of it is left."


def remove_leftovers_of_build(out_dir: Path) -> None:
    """Remove files of an earlier build that an ingest into the same folder does not replace: the hosts' references, and
    the files of the memory folder that have a build's names."""
    (out_dir / REFERENCES_FILE).unlink(missing_ok=True)
    memory = out_dir / MEMORY_FOLDER
    for path in memory.iterdir() if memory.is_dir() else ():
        if MEMORY_NAME.fullmatch(path.name):
            path.unlink()
    with suppress(OSError):  # not empty: it holds files that are not a build's
        memory.rmdir()


def _check(windows: WindowSet | ManyWindows, channels: Sequence[ChannelSpec]) -> None:
    names = [c.name for c in channels]
    if len(set(names)) != len(names):
        raise DataError(f"A channel's name occurs twice: {next(n for n in names if names.count(n) > 1)}.")
    for _, part in blocks(windows.X):
        if np.isinf(part).any() or not is_settled(part):
            raise DataError(
                "A window holds an infinite value, or a channel that only some samples lack: leave the window out, or "
                "fill the value by a rule."
            )
        if absent(part).all(axis=1).any():
            raise DataError("A window holds no value at all: leave it out.")


def lacked(windows: WindowSet | ManyWindows, names: Sequence[str]) -> tuple[str, ...]:
    lacks = lacking_hosts(windows.X, windows.rows.coded.host)
    return tuple(sorted(names[number] for number in np.flatnonzero(lacks.any(axis=0)).tolist()))


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """The part of a processed data set that one mode may see. All arrays, except those of ``reference``, have N rows,
    in the same order.

    ``schema`` is the mode's own; ``data_digest`` identifies the content of the whole data set. ``features`` is float32
    (N, F) or None; ``tensors`` is float32 (N, C, T), usually a read-only memory map. The labels of ``rows`` are class
    numbers as in ``label_map``, or -1 for windows without a label, which a model can score. Episodes that share samples
    or time (see :class:`Kinship`) have the same name in ``rows.recording``, which splits and resampling use. Windows of
    reference recordings are only in ``reference``, which may be empty.
    """

    schema: FeatureSchema
    data_digest: str
    features: Floats32 | None
    tensors: Floats32
    rows: Rows
    reference: WindowSet
    kinship: Kinship
    validation_digest: str | None  # of its validation table; None where there is no file

    @property
    def schema_hash(self) -> str:
        return self.schema.hash()

    @property
    def label_map(self) -> dict[str, int]:
        return self.schema.label_map

    @property
    def benign(self) -> tuple[str, ...]:
        """The names of the classes that raise no alarm; if this is empty, no class raises an alarm."""
        return benign_of(self.schema)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return self.schema.feature_names

    @property
    def channel_names(self) -> tuple[str, ...]:
        return self.schema.channel_names

    @property
    def y(self) -> Ints:
        return self.rows.label

    @property
    def is_labelled(self) -> bool:
        return bool((self.rows.label >= 0).all())

    def __len__(self) -> int:
        return len(self.rows)


def load_processed(summary: Path | None, tensors: Path, schema: Path | None, mode: str) -> Dataset:
    """Return the part of a processed data set that the mode ``mode`` may see.

    ``tensors`` is the tensor folder and ``summary`` the feature table, or None for a data set without features.
    ``schema`` is a schema file that must agree with the tensor folder's own schema, or None. Raises DataError, with one
    sentence, if files are missing or damaged, do not belong together, or were replaced meanwhile, or a feature is
    infinite.
    """
    finish(tensors.parent)
    manifest = tensor_files.read_manifest(tensors)
    whole = manifest.schema
    if schema is not None:
        require_same(whole, read_schema(schema))
    reduced = whole.for_mode(mode)
    everything, index = tensor_files.open_windows(tensors, manifest)
    features = None
    if summary is not None:
        places = {name: i for i, name in enumerate(whole.feature_names)}
        features = _read_features(summary, manifest, index, [places[name] for name in reduced.feature_names])
    # Realistic channels come first, so that this slice of the memory map copies nothing.
    width = len(reduced.channels)
    certain(whole.channel_names[:width] == reduced.channel_names, "realistic channels come first")
    reference = _no_windows(manifest.shape[1:])
    if (stored := tensor_files.open_reference(tensors, manifest)) is not None:
        reference = WindowSet(X=stored[0], rows=stored[1].coded().laid(np.zeros(len(stored[1]), int)))
    coded = index.coded()
    kinship = find_kin(everything, whole.channel_names, coded)
    number = whole.label_map | {UNLABELLED: -1}
    label = np.array([number[name] for name in coded.label.names.tolist()], int)[coded.label.codes]
    rows = coded.laid(label, kinship.recording, index.texts("window_id"))
    if not index.is_unchanged:
        raise DataError(f"{tensors} was rewritten while it was read: try again once that is done.")
    return Dataset(
        schema=reduced,
        data_digest=manifest.data_digest,
        features=features,
        tensors=everything[:, :width],
        rows=rows,
        reference=replace(reference, X=reference.X[:, :width]),
        kinship=kinship,
        validation_digest=manifest.validation_digest,
    )


def _no_windows(shape: tuple[int, ...]) -> WindowSet:
    """Return an empty set of windows of the shape (C, T)."""
    return WindowSet(X=np.zeros((0, *shape), np.float32), rows=Rows.of(episode=[], host=[], label=[]))


def on_channels(data: Dataset, like: FeatureSchema) -> Dataset:
    """Return the data with the channels of the schema ``like``: those that the data lack become absent, those that
    ``like`` lacks are left out.

    The data are returned unchanged if both have the same channels, or none in common. The data are also returned
    unchanged if ``like`` lacks one of the data's channels that the recorder does not know, or a shared name has two
    meanings: different hardware cannot explain that.
    """
    own, known = set(data.channel_names), set(like.channel_names)
    same = [channel for channel in like.channels if channel in data.schema.channels]
    if own == known or not same or own - known - set(CHANNELS) or len(same) < len(own & known):
        return data
    places = [data.channel_names.index(name) if name in own else None for name in like.channel_names]
    X, schema = (
        absences.on_channels(data.tensors, places),
        replace_struct(data.schema, channels=like.channels, features=like.features),
    )
    features = extract(X, like.channels, schema.sample_hz)
    reference = replace(data.reference, X=absences.on_channels(data.reference.X, places))
    return replace(data, schema=schema, features=features, tensors=X, reference=reference)


def _read_features(path: Path, manifest: TensorManifest, index: StoredIndex, columns: list[int]) -> Floats32:
    """Return the given columns of the feature table as an array (N, F), in memory or in a file.

    Raises DataError if the table is damaged or belongs to other windows.
    """
    names, count = manifest.schema.feature_names, len(index)
    digest = tensor_files.begun_sha256(np.dtype(np.float32), (count, len(names)))
    result = ROOM.empty((count, len(columns)), np.float32)

    def parts() -> Iterator[Floats32]:
        table = pl.scan_parquet(path, glob=False)
        schema = table.collect_schema()
        if schema.names() != [*INDEX_COLUMNS, *names]:
            raise DataError(f"The columns of {path} are not those of the feature schema: build the data set again.")
        numbers = all(schema[name].is_numeric() for name in names)
        group = _group_rows(count, len(names))
        step = max(1, ROOM.rows(4 * len(names)) // group) * group
        for low in range(0, max(count, 1), step):
            # One row more than there are windows shows a longer table.
            part = table.slice(low, step + (low + step >= count)).collect()
            if not part["window_id"].equals(index.part("window_id", low, low + step)):
                raise DataError(f"{path} and the tensors hold different windows: build the data set again.")
            part = part.select(names)
            # Straight into rows: of many features each further copy would be gigabytes.
            F = part.to_numpy(order="c").astype(np.float32, copy=False) if numbers else None
            del part
            if F is None or np.isinf(F).any():
                raise DataError(f"{path} holds an infinite value or text: build the data set again.")
            digest.update(np.ascontiguousarray(F).data)
            yield F[:, columns]

    try:
        fill(result, parts())
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"The feature table {path} cannot be read ({first_line(error)}).") from None
    if digest.hexdigest() != manifest.features_sha256:
        raise DataError(f"{path} does not belong to the tensors beside it: build the data set again.")
    return result


class Validation(NamedTuple):
    """The content of a validation table: the numbers of episodes and references, the good episodes, the quarantined
    ones with their reasons, and the scenarios."""

    episodes: int
    references: int
    quarantined: dict[str, tuple[str, ...]]
    good: frozenset[str]  # ids of the others
    digest: str
    scenarios: dict[str, str]  # by the ids of episodes that have one


def load_validation(path: Path) -> Validation:
    """Return the content of a ``validation_v1.parquet``. Raises DataError if the file cannot be read or is no
    validation table."""
    finish(path.parent)
    try:
        table = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"The validation table {path} cannot be read ({first_line(error)}).") from None
    for column in ("episode_id", "scenario", "baseline", "ok", "reasons"):
        if table.schema.get(column) != VALIDATION_SCHEMA[column]:
            raise DataError(
                f"{path} has no column {column!r} of type {VALIDATION_SCHEMA[column]}: build the data set again."
            )
    if any(table.select("episode_id", "ok").null_count().row(0)):
        raise DataError(f"{path} has rows without episode_id or ok: build the data set again.")
    bad = table.filter(~pl.col("ok"))
    told = table.select("episode_id", "scenario").drop_nulls()
    rows = zip(bad["episode_id"].to_list(), bad["reasons"].to_list(), strict=True)
    return Validation(
        episodes=table.height,
        references=int(table["baseline"].fill_null(False).sum()),
        quarantined={episode: tuple(reasons or ()) for episode, reasons in rows},
        good=frozenset(table.filter("ok")["episode_id"].to_list()),
        digest=validation_digest(table, read_understood(path)),
        scenarios=dict(told.iter_rows()),
    )


def validation_digest(table: pl.DataFrame, understood: Understood | None) -> str:
    """Return the SHA-256 of the part of a validation table that reports show: the episodes, which are references, the
    quarantined ones with their reasons, and ``understood``."""
    rows = table.select("episode_id", "baseline", "ok", "reasons").sort("episode_id")
    total = hashlib.sha256("\0".join(rows["episode_id"].to_list()).encode())
    for column in ("baseline", "ok"):
        total.update(rows[column].fill_null(False).to_numpy().tobytes())
    total.update(strict_json.canonical(rows.filter(~pl.col("ok"))["reasons"].to_list()).encode())
    total.update(strict_json.canonical(metadata(understood)).encode())
    return total.hexdigest()


def unwritten(windows: WindowSet, schema: FeatureSchema, reference: WindowSet | None = None) -> Dataset:
    """Return windows of a mode's ``schema`` as a data set without any file; the labels of the windows must be class
    numbers."""
    certain(schema.mode, "windows are of one mode")
    recording = Coded.of(windows.rows.recording)
    return Dataset(
        schema=schema,
        data_digest="",
        features=None,
        tensors=windows.X,
        rows=windows.rows,
        reference=reference or _no_windows(windows.X.shape[1:]),
        kinship=Kinship(of=recording, equal=(), sharing=0, overlapping=0, strangers=None, notes=()),
        validation_digest=None,
    )
