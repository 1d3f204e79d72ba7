"""Open a table that is compressed, or in another format than text or Parquet, by making a plain copy of it first.

A format is found by a file's first bytes, and only where these say nothing by its ending. Copies lie in a temporary
folder until the table is read. Compressed files grow to at most ``RATIO_MAX`` times their size.
"""

import csv
import gzip
import io
import json
import re
import shlex
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from errno import ENOSPC
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from training.data.classes import quoted
from training.data.errors import DataError
from training.data.ingest.cells import PARQUET, changed, state_of
from training.data.ingest.dialect import MARKS, encoding_of
from training.data.ingest.foreign import HEAD_BYTES, check_foreign
from training.data.ingest.printed import LOOKED_AT, form_of
from training.data.scratch import WorkingMemory
from training.files import folder_of_large_files
from training.printable import first_line

RATIO_MAX = 200  # a table of text is packed to a tenth, and seldom to a fiftieth
PART_BYTES = 1 << 20
FED_BYTES = 1 << 12  # to the unpacker, which may return thousands of times as many
JSON_BYTES = 1 << 28  # that are read at once
# Parts of Java's formats of dates, as strptime has them; the longer ones first.
JAVA = {
    java: f"%{ours}"
    for java, ours in zip(
        ("yyyy", "yy", "MMM", "MM", "dd", "HH", "hh", "mm", "SSS", "ss", "a", "XXX", "Z"), "YybmdHIMfSpzz", strict=True
    )
}


@contextmanager
def opened(path: Path, room: WorkingMemory, ignored: Collection[str] = ()) -> Iterator[Path]:
    """Yield the path of a table as text or Parquet: ``path`` itself, or a copy that is deleted afterwards.
    Members of JSON records that are in ``ignored`` become empty columns.

    Raises DataError for a file that is no table, and with the name of ``path`` in place of the copy's for what the
    caller finds wrong with it; OSError if the file cannot be read.
    """
    with tempfile.TemporaryDirectory(dir=str(room.folder or folder_of_large_files())) as folder:
        plain = _plain(path, Path(folder), room.unpacked_max, ignored)
        try:
            yield plain
        except DataError as error:
            if plain == path:
                raise
            raise DataError(str(error).replace(str(plain), str(path))) from None


def _plain(given: Path, folder: Path, unpacked_max: float | None, ignored: Collection[str]) -> Path:
    path = given
    try:
        before = state_of(path)
        head = _head(path)
        if head.startswith(b"PK"):
            path = _unzipped(path, folder, unpacked_max)
        elif head.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
            unpacked = _zstd if head.startswith(b"\x28") else _gzip
            name = path.stem if path.suffix.lower() in (".gz", ".zst") else path.name
            path = _copied(unpacked(path), folder / f"table{_ending(name)}", path, unpacked_max)
        head = _head(path)
        check_foreign(head, str(given))
        found = _converter(path, head, ignored)(path, folder)
        if found != given and state_of(given) != before:
            raise changed(given)
    except (gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise DataError(f"{given} cannot be unpacked ({first_line(str(error))}): bring it whole.") from None
    except OSError as error:
        if error.errno == ENOSPC:
            raise  # of the disk that holds the copy
        raise DataError(f"{given} cannot be read ({error.strerror or error}).") from None
    except DataError as error:
        raise DataError(str(error).replace(str(path), str(given))) from None
    return found


def _ending(name: str) -> str:
    """Return the last ending of a name, which says how to read the file; the rest of an archive's names is not used."""
    return Path(name).suffix[:9]


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


def _converter(path: Path, head: bytes, ignored: Collection[str]) -> Callable[[Path, Path], Path]:
    """Return the function that writes the table in another form, or returns the path of text and Parquet as it is."""
    if head.startswith(b"PAR1"):
        return lambda path, folder: path if path.suffix.lower() == PARQUET else _parquet(path, folder)
    if head.startswith(b"\x93NUMPY"):
        return _from_npy
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if path.suffix.lower() in (".json", ".jsonl", ".ndjson") or first.startswith((b'{"', b"{\n", b"[{", b"[\n")):
        return partial(_from_json, ignored=ignored)
    is_arff = any(line.lower().startswith(b"@relation") for line in head.splitlines())
    return _from_arff if is_arff else _from_text


def _from_text(path: Path, folder: Path) -> Path:
    """Write a table of what a program prints as CSV, and text whose lines end with CR with LF; return the path of other
    text as it is."""
    head = _head(path)
    is_cr = b"\r" in head and b"\n" not in head
    with path.open(
        encoding=next((name for mark, name in MARKS.items() if head.startswith(mark)), "utf-8"), errors="replace"
    ) as file:
        form = form_of(list(islice(file, LOOKED_AT)))
    if form is None and not is_cr:
        return path
    copy = folder / f"{path.stem}.csv"
    ends = None if is_cr else ""
    with (
        path.open(encoding=encoding_of(path), newline=ends) as file,
        copy.open("w", encoding="utf-8", newline="") as out,
    ):
        if form is None:
            out.writelines(file)
        else:
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


def _copied(blocks: Iterable[bytes], copy: Path, path: Path, most: float | None) -> Path:
    """Write the unpacked content of ``path`` into ``copy``. Raises DataError if it has more bytes than ``most``, or
    grows beyond ``RATIO_MAX`` where that is None."""
    size = 0
    with copy.open("wb") as out:
        for block in blocks:
            size += out.write(block)
            check_unpacked(path, size, most)
    return copy


def check_unpacked(path: Path, size: int, most: float | None) -> None:
    """Raise DataError if a packed file becomes larger than ``most`` bytes, or ``RATIO_MAX`` where that is None."""
    if most is None and size > RATIO_MAX * max(path.stat().st_size, PART_BYTES):
        raise DataError(f"{path} unpacks to over {RATIO_MAX} times its size: say --max-gib GIB if that is right.")
    if most is not None and size > most:
        raise DataError(f"{path} unpacks to over {most / 2**30:g} GiB: say a higher --max-gib if that is right.")


def check_archive(path: Path, most: float | None) -> None:
    """Raise DataError for an archive of arrays that is no file, or whose arrays are larger than ``check_unpacked``
    permits."""
    with suppress(OSError, zipfile.BadZipFile):  # which the reader of arrays says
        state_of(path)
        with zipfile.ZipFile(path) as packed:
            check_unpacked(path, sum(one.file_size for one in packed.infolist()), most)


def _unzipped(path: Path, folder: Path, most: float | None) -> Path:
    with zipfile.ZipFile(path) as packed:
        inside = [one for one in packed.infolist() if not one.is_dir() and not one.filename.startswith("__MACOSX/")]
        if not {"[Content_Types].xml", "mimetype"}.isdisjoint(packed.namelist()):
            raise DataError(f"{path} is a spreadsheet: save it as CSV.")
        if len(inside) != 1:
            raise DataError(f"{path} holds {len(inside)} files: unpack it, and name the table.")
        if inside[0].flag_bits & 1:
            raise DataError(f"{path} is encrypted: unpack it with its password.")
        with packed.open(inside[0]) as source:
            blocks = iter(partial(source.read, PART_BYTES), b"")
            return _copied(blocks, folder / f"table{_ending(inside[0].filename)}", path, most)


def _parquet(path: Path, folder: Path) -> Path:
    """Return a copy of a Parquet file that has another ending."""
    return Path(shutil.copyfile(path, folder / f"table{PARQUET}"))


def _from_npy(path: Path, folder: Path) -> Path:
    """Write the table of an array as text or Parquet. Python objects are never unpickled; the array is no map of the
    file, as that ends the program where the file becomes shorter."""
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, MemoryError) as error:
        raise DataError(
            f"{path} is no array that can be read ({first_line(str(error))[:80]}): write plain numbers again, with "
            "numpy.save."
        ) from None
    fields = [array.dtype[name] for name in array.dtype.names or ()]
    if not array.dtype.itemsize or 0 in array.shape[1:] or any(field.kind not in "fiubUSM" for field in fields):
        raise DataError(f"{path} holds other things than numbers, text and dates: write these as columns, in CSV.")
    if array.dtype.names is None and (array.ndim not in (1, 2) or array.dtype.kind not in "fiub"):
        raise DataError(
            f"{path} holds an array of the shape {array.shape}: a table has a row a sample and a column a channel; for "
            "windows write X (windows, channels, samples) and y into a .npz file, with numpy.savez."
        )
    if array.dtype.names is None:  # --columns names them, and an array of one dimension labels the rows of another
        copy = folder / f"{path.stem}.csv"
        pl.from_numpy(np.ascontiguousarray(array)).write_csv(copy, include_header=False)
        return copy
    plain = {"S": "U", "M": "M8[us]"}
    columns = {name: np.ascontiguousarray(array[name]) for name in array.dtype.names}
    table = pl.DataFrame({name: held.astype(plain.get(held.dtype.kind, held.dtype)) for name, held in columns.items()})
    return _written(table, folder, path)


def _written(table: pl.DataFrame, folder: Path, path: Path) -> Path:
    copy = folder / f"{path.stem}{PARQUET}"
    table.write_parquet(copy)
    return copy


def _from_json(path: Path, folder: Path, ignored: Collection[str]) -> Path:
    """Write a table of JSON records: a list of objects, or an object a line. A member of an object inside a record
    becomes a column, as ``memory.free``; one in ``ignored`` has no values."""
    size = path.stat().st_size
    if size > JSON_BYTES:
        raise DataError(f"{path} has {size >> 20:,} MiB, more than JSON may have: write it as CSV or Parquet.")
    content = path.read_bytes()
    try:
        text = content.decode(json.detect_encoding(content)).removeprefix("\ufeff")
        rows: Any = _contents(text, path)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON ({error}).") from None
    if isinstance(rows, dict) and "sysstat" in rows:
        raise DataError(f"{path} is what sadf -j writes: read it with --sysstat {path}.")
    if isinstance(rows, dict) and "status" in rows:
        raise DataError(f"{path} is an answer of Prometheus: read it with --prometheus {path}.")
    rows = [rows] if isinstance(rows, dict) and all(map(_is_value, rows.values())) else rows
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path} is no list of records (pandas: orient='records'): bring one, or CSV.")
    rows = [_members(_flat(row, ignored), path) for row in rows]
    names = list(dict.fromkeys(name for row in rows for name in row))
    odd = [name for name in names if not all(_is_value(row.get(name)) for row in rows)]
    if odd:
        raise DataError(
            f"Members of records of {path} hold lists: bring one value in each, or leave them out with --ignore "
            f"{shlex.quote(','.join(map(quoted, odd)))}."
        )
    try:
        table = pl.DataFrame({name: [row.get(name) for row in rows] for name in names}, strict=True)
    except (pl.exceptions.PolarsError, TypeError, OverflowError):
        table = pl.DataFrame({name: [_text(row.get(name)) for row in rows] for name in names})
    return _written(table, folder, path)


def _contents(text: str, path: Path) -> Any:
    """Return the content of a text of JSON, or a list of the contents of its lines. Raises ValueError, DataError."""
    try:
        return _parsed(text, path)
    except json.JSONDecodeError as whole:
        rows, lines = [], text.split("\n")
        for line in lines:
            try:
                rows += [_parsed(line, path)] if line.strip() else []
            except json.JSONDecodeError as error:
                found, number = (error, lines.index(line) + 1) if rows else (whole, whole.lineno)
                raise ValueError(f"{found.msg} in line {number}, column {found.colno}") from None
        return rows


def _parsed(text: str, path: Path) -> Any:
    """Return the content of a text of JSON. Raises ValueError, DataError for an object with two members of one name."""

    return json.loads(text, object_pairs_hook=lambda pairs: _members(pairs, path))


def _members(pairs: Iterable[tuple[str, Any]], path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise DataError(f"A record of {path} has two members {name!r}: give each a name of its own.")
        found[name] = value
    return found


def _flat(row: Mapping[str, Any], ignored: Collection[str], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the members of a record, and those of objects in it with their own names behind a point."""
    for name, value in row.items():
        whole = before + name
        if isinstance(value, dict) and whole not in ignored:
            yield from _flat(value, ignored, f"{whole}.")
        else:
            yield whole, None if whole in ignored else value


def _is_value(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _text(value: object) -> str | None:
    return None if value is None else value if isinstance(value, str) else json.dumps(value)


def _from_arff(path: Path, folder: Path) -> Path:
    """Write a table of an ARFF file, whose header names the columns, as CSV."""
    copy, names, is_data, rows = folder / f"{path.stem}.csv", list[str](), False, 0
    dates: dict[int, str] = {}  # the format of each column of dates
    with path.open(encoding="utf-8", errors="replace") as file, copy.open("w", encoding="utf-8", newline="\n") as out:
        for line in file:
            words = line.strip()
            if not words or words.startswith("%"):
                continue
            if is_data:
                if words.startswith("{"):
                    raise DataError(f"{path} has sparse rows ({{1 2.5, …}}): write it as CSV.")
                words = words.replace("'", '"')
                rows += out.write((_dated(words, dates, path) if dates else words) + "\n")
            elif words.lower().startswith("@attribute"):
                name = _attribute(words.split(None, 1)[1])
                if form := re.search(r"(?i)\sdate\s+['\"](.*)['\"]$", words):
                    dates[len(names)] = _of_java(form[1])
                names.append(name)
            elif words.lower().startswith("@data"):
                is_data = True
                out.write(",".join('"' + name.replace('"', '""') + '"' for name in names) + "\n")
    if not rows:
        raise DataError(f"{path} has no rows behind @data: write it again, as CSV.")
    return copy


def _of_java(form: str) -> str:
    """Return a format of Java's dates as strptime has it."""
    for java, ours in JAVA.items():
        form = form.replace(java, ours)
    return form.replace('"', "").replace("'", "")


def _dated(line: str, dates: Mapping[int, str], path: Path) -> str:
    """Return a row of an ARFF file with its dates as ISO 8601 writes them. Raises DataError."""
    (row,) = csv.reader([line])
    for place, form in dates.items():
        if row[place] != "?":
            try:
                row[place] = datetime.strptime(row[place], form).isoformat(" ")  # noqa: DTZ007 - as it is written
            except ValueError:
                raise DataError(f"{path} has the date {row[place]!r}, unlike its declared format: fix it.") from None
    csv.writer(line_out := io.StringIO(), lineterminator="").writerow(row)
    return line_out.getvalue()


def _attribute(rest: str) -> str:
    """Return the name at the beginning of an attribute's declaration, which may stand in quotes."""
    return rest[1:].partition(rest[0])[0] if rest[:1] in "'\"" else rest.split()[0]
