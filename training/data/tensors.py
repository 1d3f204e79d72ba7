"""Write and read a folder with all windows as one array that can be memory-mapped.

tensor_window_v1/
  tensors.npy     float32 (N, C, T), C order; realistic channels come first, so each mode's windows are a plain view
  index.parquet   a row per window, in the same order: window_id, episode_id, host, t_start, t_end, label
  baseline.npy, baseline.parquet   the same for windows of the hosts' reference recordings, if there are any
  manifest.json   the whole feature schema, its hashes, the shapes of the arrays, and digests of files and features
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from training.contract import Mode
from training.data.coded import Coded
from training.data.errors import DataError
from training.data.rows import CodedRows, Rows
from training.data.schema import FeatureSchema
from training.data.scratch import ROOM, WIDE_ROWS, blocks, reserve, spans
from training.data.values import AnyArray, Floats32, Names
from training.files import write_whole
from training.printable import first_line

TENSORS, INDEX, MANIFEST = "tensors.npy", "index.parquet", "manifest.json"
REFERENCE_TENSORS, REFERENCE_INDEX = "baseline.npy", "baseline.parquet"
INDEX_SCHEMA = pl.Schema(
    {
        "window_id": pl.String,
        "episode_id": pl.String,
        "host": pl.String,
        "t_start": pl.Float64,
        "t_end": pl.Float64,
        "label": pl.String,
    }
)
INDEX_COLUMNS = tuple(INDEX_SCHEMA)
INDEX_ROWS = 1 << 18  # at a time


class WindowIndex:
    """The table with a row for each window: its id, episode, host, times and class. Parts of the table are made when
    they are needed."""

    def __init__(self, rows: Rows | CodedRows) -> None:
        """Number the windows of each episode from 0, in the order of ``rows``; the numbers become part of the windows'
        ids."""
        self._rows = rows.coded
        of = self._rows.episode.codes
        order, counts = np.argsort(of, kind="stable"), np.bincount(of)
        self._number = np.empty(of.size, np.int32)
        self._number[order] = np.arange(of.size) - np.repeat(np.cumsum(counts) - counts, counts)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def hosts(self) -> list[str]:
        """The names of the hosts, sorted."""
        names: list[str] = self._rows.host.names.tolist()
        return names

    def episode_ends(self) -> Iterator[tuple[str, int]]:
        """Yield each run of rows of one episode: the episode's name, and the number of the row after the run."""
        of = self._rows.episode
        for here in spans(of.codes, overlap=1):
            part = of.codes[here]
            last = np.flatnonzero(np.diff(part))
            yield from zip(of.names[part[last]].tolist(), (here.start + last + 1).tolist(), strict=True)
        if len(self):
            yield of[-1], len(self)

    def part(self, low: int, high: int) -> pl.DataFrame:
        """Return the rows from ``low`` until before ``high``."""
        return pl.DataFrame([self._column(name, slice(low, high)) for name in INDEX_COLUMNS])

    def _column(self, name: str, here: slice) -> pl.Series:
        rows = self._rows
        names = {"episode_id": rows.episode, "window_id": rows.episode, "host": rows.host, "label": rows.label}
        if name not in names:
            return pl.Series(name, (rows.t_start if name == "t_start" else rows.t_end)[here], dtype=pl.Float64)
        column = pl.Series(name, names[name].strings(here), dtype=pl.String)
        if name == "window_id":
            column = column + "-" + pl.Series(self._number[here]).cast(pl.String).str.zfill(4)
        return column

    def write(self, path: Path) -> str:
        """Write all rows into a Parquet file, and return the SHA-256 of their values."""
        parts = list(spans(self._number, step=WIDE_ROWS))
        source = register_io_source(
            lambda *_: (self.part(here.start, here.stop) for here in parts), schema=INDEX_SCHEMA
        )
        source.sink_parquet(path, compression="zstd", statistics=False, row_group_size=INDEX_ROWS)
        return _index_sha256(lambda name: (self._column(name, here) for here in parts))


Placed = tuple[Floats32, WindowIndex]  # windows where they are to lie, and the rows that go with them


class TensorManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``manifest.json``. ``data_digest`` covers schema, windows, index, features and references, so
    equal digests mean equal training data."""

    manifest_version: int
    schema_hash: str
    mode_hashes: dict[str, str]
    shape: tuple[int, int, int]
    tensor_sha256: str
    index_sha256: str
    features_sha256: str
    data_digest: str
    schema: FeatureSchema
    baseline_shape: tuple[int, int, int] | None = None
    baseline_sha256: tuple[str, str] | None = None  # of the windows, of their index
    validation_digest: str  # of the validation table


def place_tensors(folder: Path, X: Floats32, order: list[int], *, name: str = TENSORS) -> Floats32:
    """Write the windows ``X`` into a file, with the channels in the given ``order``; return them as a memory map.

    Windows are copied in blocks, so ``X`` may itself be a memory map larger than memory.
    """
    folder.mkdir(exist_ok=True)
    with (folder / name).open("wb") as file:
        _header(file, (X.shape[0], len(order), X.shape[2]))
        for _, part in blocks(X):
            file.write(np.ascontiguousarray(part[:, order], "<f4").data)
    return map_tensors(folder / name)


def begin_tensors(path: Path, shape: tuple[int, int, int]) -> int:
    """Make a file with a header and room for windows of this shape; return the position in bytes of the first window.

    Where the system can reserve space, raises OSError if the disk has no room for the windows.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        _header(file, shape)
        begin = file.tell()
        reserve(file, begin + 4 * math.prod(shape))
    return begin


def _header(file: IO[bytes], shape: tuple[int, ...]) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})


def map_tensors(path: Path) -> Floats32:
    """Return the windows in a file as a read-only memory map, without any check."""
    placed: Floats32 = np.load(path, mmap_mode="r")
    return placed


def write_manifest(
    folder: Path,
    windows: Placed,
    schema: FeatureSchema,
    reference: Placed | None,
    *,
    features_sha256: str,
    validation_digest: str,
) -> TensorManifest:
    """Write the index, the index of reference windows if there are any, and the manifest beside windows already in the
    folder; return the manifest.

    The manifest is written last: a folder with a manifest is complete.
    """
    X, index = windows
    parts = (schema.hash(), array_sha256(X), index.write(folder / INDEX), features_sha256)
    digests = None
    if reference is not None:
        digests = (array_sha256(reference[0]), reference[1].write(folder / REFERENCE_INDEX))
    manifest = TensorManifest(
        manifest_version=1,
        schema_hash=parts[0],
        mode_hashes={str(m): schema.for_mode(m).hash() for m in Mode if any(m in c.modes for c in schema.channels)},
        shape=_shape(X),
        tensor_sha256=parts[1],
        index_sha256=parts[2],
        features_sha256=parts[3],
        data_digest=hashlib.sha256("\n".join((*parts, *(digests or ()))).encode()).hexdigest(),
        schema=schema,
        baseline_shape=None if reference is None else _shape(reference[0]),
        baseline_sha256=digests,
        validation_digest=validation_digest,
    )
    write_whole(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
    return manifest


def read_manifest(folder: Path) -> TensorManifest:
    """Return the manifest in ``folder``. Raises DataError, with the remedy, if there is none or it cannot be read."""
    path = folder / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=TensorManifest)
    except OSError:
        raise DataError(
            f"There are no readable window tensors in {folder}: build or ingest the data set first."
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path} is not a tensor manifest ({error}): build the data set again.") from None


def open_windows(folder: Path, manifest: TensorManifest) -> tuple[Floats32, StoredIndex]:
    """Return the windows as a read-only memory map, and their index; the digests of both are checked first. Raises
    DataError if a file is missing, damaged, or not the one that the manifest describes."""
    return _opened(folder / TENSORS, folder / INDEX, manifest.shape, (manifest.tensor_sha256, manifest.index_sha256))


def open_reference(folder: Path, manifest: TensorManifest) -> tuple[Floats32, StoredIndex] | None:
    """Return the windows of the reference recordings and their index, checked like those of :func:`open_windows`; None
    if there are none. Raises DataError if a file is missing, damaged, or not the one that the manifest describes."""
    if manifest.baseline_shape is None or manifest.baseline_sha256 is None:
        return None
    paths = folder / REFERENCE_TENSORS, folder / REFERENCE_INDEX
    return _opened(*paths, manifest.baseline_shape, manifest.baseline_sha256)


def _opened(
    array: Path, index: Path, shape: tuple[int, int, int], digests: tuple[str, str]
) -> tuple[Floats32, StoredIndex]:
    path = index
    try:
        rows = StoredIndex(index)
        found = rows.digest()
        path = array
        X = np.load(array, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{path} cannot be read ({first_line(error)}): build the data set again.") from None
    if found != digests[1]:
        raise DataError(f"{index} is not the index that the manifest describes: build the data set again.")
    if X.shape != shape or X.dtype != np.float32:
        raise DataError(f"{array} holds {X.dtype} {X.shape} where float32 {shape} is expected.")
    if array_sha256(X) != digests[0]:
        raise DataError(f"{array} is damaged: its SHA-256 is not the manifest's. Build the data set again.")
    return X, rows


class StoredIndex:
    """The stored table with a row for each window of a data set; only a part of a large table is in memory at a
    time."""

    def __init__(self, path: Path) -> None:
        """Open the index file ``path``, and read its columns' types and number of rows. Raises OSError or PolarsError
        if the file cannot be read."""
        self._path, self._stamp = path, _stamp(path)
        rows = pl.scan_parquet(path, glob=False)
        self._schema = rows.collect_schema()
        self._size = int(rows.select(pl.len()).collect().item())
        self._rows = rows.collect().lazy() if self._size <= INDEX_ROWS else rows  # reading costs more than it holds

    def __len__(self) -> int:
        return self._size

    def part(self, name: str, low: int, high: int) -> pl.Series:
        """Return the column ``name`` of the rows from ``low`` until before ``high``."""
        return self._rows.select(name).slice(low, high - low).collect().to_series()

    def parts(self, name: str) -> Iterator[pl.Series]:
        """Return an iterator over the parts of a column, of ``INDEX_ROWS`` rows each."""
        return (self.part(name, low, low + INDEX_ROWS) for low in range(0, len(self), INDEX_ROWS))

    def coded(self) -> CodedRows:
        """Return all rows, with all columns except the windows' ids."""
        episode, host, label = (Coded.of_series(self.parts(name)) for name in ("episode_id", "host", "label"))
        t_start, t_end = (
            np.concatenate([np.empty(0), *(part.to_numpy() for part in self.parts(name))])
            for name in ("t_start", "t_end")
        )
        return CodedRows(episode=episode, host=host, label=label, t_start=t_start, t_end=t_end)

    def texts(self, name: str) -> Names:
        """Return a column of strings as an array, in memory or in a file; meant for ids, each of which occurs once."""
        width = max((cast("int", part.str.len_chars().max()) for part in self.parts(name) if len(part)), default=1)
        dtype = np.dtype((np.str_, max(1, width)))
        return ROOM.joined((np.array(part.to_list(), dtype) for part in self.parts(name)), len(self), dtype)

    def digest(self) -> str | None:
        """Return the SHA-256 of the values; None if a column is missing or of another type, or a value is null."""
        known = self._schema == INDEX_SCHEMA and not any(self._rows.null_count().collect().row(0))
        return _index_sha256(self.parts) if known else None

    @property
    def is_unchanged(self) -> bool:
        """True if the file has the same inode, size and modification time as when it was opened."""
        return _stamp(self._path) == self._stamp


def _stamp(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _shape(X: Floats32) -> tuple[int, int, int]:
    return (X.shape[0], X.shape[1], X.shape[2])


def array_sha256(array: AnyArray) -> str:
    """Return the SHA-256 of an array's dtype, shape and C-order bytes, read in blocks."""
    total = begun_sha256(array.dtype, array.shape)
    for _, part in blocks(array):
        total.update(np.ascontiguousarray(part).data)
    return total.hexdigest()


def begun_sha256(dtype: np.dtype[Any], shape: tuple[int, ...]) -> hashlib._Hash:
    """Return a SHA-256 object that has the dtype and shape of an array; the caller adds the array's bytes block by
    block."""
    return hashlib.sha256(f"{dtype.str}{shape}".encode())


def _index_sha256(parts: Callable[[str], Iterable[pl.Series]]) -> str:
    total = hashlib.sha256()
    for name, kind in INDEX_SCHEMA.items():
        is_text = kind == pl.String
        sizes = [(part.len(), int(part.str.len_bytes().sum()) if is_text else 8 * part.len()) for part in parts(name)]
        separators = max(0, sum(rows for rows, _ in sizes) - 1) if is_text else 0
        total.update(f"{name} {sum(size for _, size in sizes) + separators}\n".encode())
        for number, part in enumerate(parts(name)):
            if is_text:
                total.update(("\0" * bool(number) + "\0".join(part.to_list())).encode())
            else:
                total.update(part.to_numpy().astype("<f8").tobytes())
    return total.hexdigest()
