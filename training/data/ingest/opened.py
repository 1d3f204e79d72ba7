"""Open a table that is compressed, or in another format than text or Parquet, by making a plain copy of it first.

A format is found by a file's first bytes, and only where these say nothing by its ending. Copies lie in a temporary
folder until the table is read. Compressed files grow to at most ``RATIO_MAX`` times their size.
"""

import csv
import gzip
import json
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from training.data.errors import DataError
from training.data.ingest.cells import PARQUET
from training.data.ingest.dialect import MARKS, encoding_of
from training.data.ingest.printed import LOOKED_AT, form_of
from training.data.scratch import WorkingMemory
from training.files import folder_of_large_files
from training.printable import first_line

RATIO_MAX = 200  # a table of text is packed to a tenth, and seldom to a fiftieth
PART_BYTES = 1 << 20
FED_BYTES = 1 << 12  # to the unpacker, which may return thousands of times as many
JSON_BYTES = 1 << 28  # that are read at once
HEAD_BYTES = 512
# The first bytes of files that are no tables, and what makes a table of them.
FOREIGN = {
    b"\x89HDF": "an HDF5 file: write its columns with pandas' to_csv",
    b"MATLAB": "a MATLAB file: write its arrays into a .npz file, with scipy.io.loadmat and numpy.savez",
    b"\xd0\xcf\x11\xe0": "an old spreadsheet: save it as CSV",
    b"\xd4\xc3\xb2\xa1": "a capture of packets: make a table of it, with tshark -T fields -E header=y -E separator=,",
    b"\x0a\x0d\x0d\x0a": "a capture of packets: make a table of it, with tshark -T fields -E header=y -E separator=,",
    b"SQLite": "an SQLite database: write a table of it, with sqlite3 -csv -header",
    b"ARROW1": "a Feather file: write it as Parquet, with pandas' to_parquet",
}


@contextmanager
def opened(path: Path, room: WorkingMemory) -> Iterator[Path]:
    """Yield the path of a table as text or Parquet: ``path`` itself, or a copy that is deleted afterwards.

    Raises DataError for a file that is no table, and with the name of ``path`` in place of the copy's for what the
    caller finds wrong with it; OSError if the file cannot be read.
    """
    with tempfile.TemporaryDirectory(dir=str(room.folder or folder_of_large_files())) as folder:
        plain = _plain(path, Path(folder))
        try:
            yield plain
        except DataError as error:
            if plain == path:
                raise
            raise DataError(str(error).replace(str(plain), str(path))) from None


def _plain(path: Path, folder: Path) -> Path:
    try:
        head = _head(path)
        if head.startswith(b"PK\x03\x04"):
            path, head = _unzipped(path, folder), b""
        elif head.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
            unpacked = _zstd if head.startswith(b"\x28") else _gzip
            copy = folder / (path.stem if path.suffix.lower() in (".gz", ".zst") else path.name)
            path, head = _copied(unpacked(path), copy, path), b""
        head = head or _head(path)
    except (gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(f"{path} cannot be unpacked ({first_line(str(error))}): bring it whole.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from None
    for magic, what in FOREIGN.items():
        if head.startswith(magic):
            raise DataError(f"{path} is {what}.")
    convert = _converter(path, head)
    return convert(path, folder)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


def _converter(path: Path, head: bytes) -> Callable[[Path, Path], Path]:
    """Return the function that writes the table in another form, or returns the path of text and Parquet as it is."""
    if head.startswith(b"PAR1"):
        return lambda path, _: path
    if head.startswith(b"\x93NUMPY"):
        return _from_npy
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if path.suffix.lower() in (".json", ".jsonl", ".ndjson") or first.startswith((b'{"', b"{\n", b"[{", b"[\n")):
        return _from_json
    is_arff = any(line.lower().startswith(b"@relation") for line in head.splitlines())
    return _from_arff if is_arff else _from_text


def _from_text(path: Path, folder: Path) -> Path:
    """Write a table of what a program prints as CSV; return the path of other text as it is."""
    with path.open(
        encoding=next((name for mark, name in MARKS.items() if _head(path).startswith(mark)), "utf-8"), errors="replace"
    ) as file:
        form = form_of(list(islice(file, LOOKED_AT)), str(path))
    if form is None:
        return path
    copy = folder / f"{path.stem}.csv"
    with path.open(encoding=encoding_of(path), newline="") as file, copy.open("w", encoding="utf-8", newline="") as out:
        csv.writer(out, lineterminator="\n").writerows(form.rows(file))
    return copy


def _gzip(path: Path) -> Iterator[bytes]:
    with gzip.open(path, "rb") as source:
        yield from iter(partial(source.read, PART_BYTES), b"")


def _zstd(path: Path) -> Iterator[bytes]:
    """Yield the unpacked content. Raises EOFError for a file that was cut off, which the library's own reader does
    not."""
    import zstandard  # which a table in another form does not need

    unpacking, frame = zstandard.ZstdDecompressor(), None
    with path.open("rb") as source:
        while packed := source.read(FED_BYTES):
            while packed:  # one frame may follow another
                frame = unpacking.decompressobj() if frame is None or frame.eof else frame
                try:
                    yield frame.decompress(packed)
                except zstandard.ZstdError as error:
                    raise EOFError(str(error)) from None
                packed = frame.unused_data if frame.eof else b""
    if frame is None or not frame.eof:
        raise EOFError("it ends too early")


def _copied(blocks: Iterable[bytes], copy: Path, path: Path) -> Path:
    """Write the unpacked content of ``path`` into ``copy``. Raises DataError if it grows beyond ``RATIO_MAX``."""
    left = RATIO_MAX * max(path.stat().st_size, PART_BYTES)
    with copy.open("wb") as out:
        for block in blocks:
            left -= out.write(block)
            if left < 0:
                raise DataError(f"{path} unpacks to over {RATIO_MAX} times its size: unpack it, if that is right.")
    return copy


def _unzipped(path: Path, folder: Path) -> Path:
    with zipfile.ZipFile(path) as packed:
        names = [one for one in packed.namelist() if not one.endswith("/") and not one.startswith("__MACOSX/")]
        if "[Content_Types].xml" in names:
            raise DataError(f"{path} is a spreadsheet: save it as CSV.")
        if len(names) != 1:
            raise DataError(f"{path} holds {len(names)} files: unpack it, and name the table.")
        with packed.open(names[0]) as source:
            blocks = iter(partial(source.read, PART_BYTES), b"")
            return _copied(blocks, folder / Path(names[0]).name, path)


def _from_npy(path: Path, folder: Path) -> Path:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise DataError(
            f"{path} is no array that can be read ({first_line(str(error))}): write it again, with numpy.savez."
        ) from None
    if array.dtype.names is None and (array.ndim != 2 or array.dtype.kind not in "fiub"):
        raise DataError(
            f"{path} holds an array of the shape {array.shape}: a table has a row a sample and a column a channel; for "
            "windows write X (windows, channels, samples) and y into a .npz file, with numpy.savez."
        )
    if array.dtype.names is None:  # --columns names them
        copy = folder / f"{path.stem}.csv"
        pl.from_numpy(np.ascontiguousarray(array)).write_csv(copy, include_header=False)
        return copy
    table = pl.DataFrame({name: np.ascontiguousarray(array[name]) for name in array.dtype.names})
    return _written(table, folder, path)


def _written(table: pl.DataFrame, folder: Path, path: Path) -> Path:
    copy = folder / f"{path.stem}{PARQUET}"
    table.write_parquet(copy)
    return copy


def _from_json(path: Path, folder: Path) -> Path:
    """Write a table of JSON records: a list of objects, or an object a line."""
    size = path.stat().st_size
    if size > JSON_BYTES:
        raise DataError(f"{path} has {size >> 20:,} MiB, more than JSON may have: write it as CSV or Parquet.")
    text = path.read_text("utf-8-sig")
    try:
        rows: Any = json.loads(text)
    except ValueError:
        try:
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise DataError(f"{path} is not JSON ({error}).") from None
    if isinstance(rows, dict) and "sysstat" in rows:
        raise DataError(f"{path} is what sadf -j writes: read it with --sysstat {path}.")
    if isinstance(rows, dict) and "status" in rows:
        raise DataError(f"{path} is an answer of Prometheus: read it with --prometheus {path}.")
    rows = [rows] if isinstance(rows, dict) and all(map(_is_value, rows.values())) else rows
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path} is no list of records (pandas: orient='records'): bring one, or CSV.")
    names = list(dict.fromkeys(str(name) for row in rows for name in row))
    odd = next((name for row in rows for name, value in row.items() if not _is_value(value)), None)
    if odd is not None:
        raise DataError(f"The member {odd!r} of {path} holds lists or objects: bring one value in each.")
    try:
        table = pl.DataFrame({name: [row.get(name) for row in rows] for name in names}, strict=True)
    except (pl.exceptions.PolarsError, TypeError, OverflowError):
        table = pl.DataFrame({name: [_text(row.get(name)) for row in rows] for name in names})
    return _written(table, folder, path)


def _is_value(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _text(value: object) -> str | None:
    return None if value is None else value if isinstance(value, str) else json.dumps(value)


def _from_arff(path: Path, folder: Path) -> Path:
    """Write a table of an ARFF file, whose header names the columns, as CSV."""
    copy, names, is_data, rows = folder / f"{path.stem}.csv", list[str](), False, 0
    with path.open(encoding="utf-8", errors="replace") as file, copy.open("w", encoding="utf-8", newline="\n") as out:
        for line in file:
            words = line.strip()
            if not words or words.startswith("%"):
                continue
            if is_data:
                if words.startswith("{"):
                    raise DataError(f"{path} has sparse rows ({{1 2.5, …}}): write it as CSV.")
                rows += out.write(words.replace("'", '"') + "\n")
            elif words.lower().startswith("@attribute"):
                names.append(_attribute(words.split(None, 1)[1]))
            elif words.lower().startswith("@data"):
                is_data = True
                out.write(",".join('"' + name.replace('"', '""') + '"' for name in names) + "\n")
    if not rows:
        raise DataError(f"{path} has no rows behind @data: write it again, as CSV.")
    return copy


def _attribute(rest: str) -> str:
    """Return the name at the beginning of an attribute's declaration, which may stand in quotes."""
    return rest[1:].partition(rest[0])[0] if rest[:1] in "'\"" else rest.split()[0]
