"""Join several tables, as a recorder writes them for each day or host, into one.

The columns are found by their names, in any order; a table without a column has no cells there. Text is joined as it is
written, so that the joined table is judged as a whole.
"""

import csv
import re
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path

import numpy as np
import polars as pl

from training.certain import certain
from training.data.errors import DataError
from training.data.ingest.cells import PARQUET, open_cells
from training.data.ingest.like import as_read
from training.data.ingest.opened import opened
from training.data.ingest.roles import Role
from training.data.ingest.tables import CELL_BYTES
from training.data.scratch import WorkingMemory
from training.data.values import AnyArray
from training.files import folder_of_large_files
from training.printable import first_line

# The endings of a file's name, which are no part of the host's name; that may have points of its own.
ENDINGS = re.compile(r"(\.(csv|tsv|txt|log|dat|data|parquet|jsonl?|ndjson|arff|npy))?(\.(gz|zst|zip))?$", re.IGNORECASE)


JOINED = "joined"  # the name of the table of several files


class HostFrom(StrEnum):
    """The part of a file's path that names the host of its rows."""

    FILE = "file"
    FOLDER = "folder"


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Return the files that ``paths`` name, sorted; a folder stands for all files in it and in its folders. Raises
    DataError for a folder without files."""
    found = []
    for path in paths:
        inside = [each for each in sorted(path.rglob("*")) if each.is_file() and not each.name.startswith(".")]
        if path.is_dir() and not inside:
            raise DataError(f"{path} holds no files: name tables, or a folder that holds some.")
        found += inside if path.is_dir() else [path]
    return sorted(found)


@contextmanager
def one_table(
    files: Sequence[Path], host_from: HostFrom | None, room: WorkingMemory, ignored: Collection[str] = ()
) -> Iterator[Path]:
    """Yield the path of the only file's table, or of all files' joined table, which is deleted afterwards.

    ``ignored`` has columns that are not used. In the text of a DataError, "the files" stands for the joined table's
    path. Raises DataError.
    """
    if len(files) == 1 and host_from is None:
        with opened(files[0], room, ignored) as plain:
            yield plain
        return
    with tempfile.TemporaryDirectory(dir=str(room.folder or folder_of_large_files())) as folder:
        table = joined(files, Path(folder), host_from, room, ignored)
        try:
            yield table
        except DataError as error:
            raise DataError(str(error).replace(str(table), "the files")) from None


def joined(
    files: Sequence[Path],
    folder: Path,
    host_from: HostFrom | None,
    room: WorkingMemory,
    ignored: Collection[str] = (),
) -> Path:
    """Write all rows of the tables into one in ``folder``, in the order of ``files``, and return its path.

    With ``host_from``, a column ``host`` has the name of each row's file, without its ending, or of its folder. Raises
    DataError for tables that have no column in common, and for text beside Parquet.
    """
    with ExitStack() as stack:
        plain = [stack.enter_context(opened(file, room, ignored)) for file in files]
        is_parquet = [path.suffix.lower() == PARQUET for path in plain]
        if any(is_parquet) and not all(is_parquet):
            raise DataError(f"{files[is_parquet.index(False)]} is text and others are Parquet: bring them apart.")
        hosts = _hosts(files, host_from)
        if all(is_parquet):
            _check_spelled(files, [list(pl.read_parquet_schema(path)) for path in plain])
            return _joined_parquet(plain, hosts, folder)
        return _joined_text(files, plain, hosts, folder, room)


def _check_spelled(files: Sequence[Path], columns: Sequence[Sequence[str]]) -> None:
    """Raise DataError if a file has a column that the first lacks, and whose name looks like another spelling of a
    column that the file lacks."""
    for file, names in zip(files, columns, strict=True):
        lacking = {as_read(name): name for name in columns[0] if name not in names}
        for name in names:
            other = lacking.get(as_read(name))
            if other is not None and name not in columns[0]:
                raise DataError(
                    f"{file} has the column {name!r}, and {files[0]} {other!r}: spell them alike if they are one "
                    "channel, else give them names of their own."
                )


def _hosts(files: Sequence[Path], host_from: HostFrom | None) -> list[str | None]:
    """Return the host of each file; None without ``host_from``. Raises DataError if the names of two files are one
    host's."""
    if host_from is None:
        return [None] * len(files)
    if host_from is HostFrom.FOLDER:
        return [file.absolute().parent.name for file in files]
    found: dict[str, Path] = {}
    for file in files:
        other = found.setdefault(ENDINGS.sub("", file.name), file)
        if other != file:
            raise DataError(f"{other} and {file} are called after one host: say --host-from folder, or rename one.")
    return list(found)


def hosts_by_name(files: Sequence[Path], host_from: HostFrom | None) -> dict[str, str | None]:
    """Return the name that labels of each file are kept under, which is its host's or its own without the ending, and
    its host. Raises DataError as :func:`joined` does."""
    pairs = zip(files, _hosts(files, host_from), strict=True)
    return {host or ENDINGS.sub("", file.name): host for file, host in pairs}


def _joined_parquet(plain: Sequence[Path], hosts: Sequence[str | None], folder: Path) -> Path:
    tables = [
        pl.scan_parquet(path) if host is None else pl.scan_parquet(path).with_columns(pl.lit(host).alias(Role.HOST))
        for path, host in zip(plain, hosts, strict=True)
    ]
    copy = folder / f"{JOINED}{PARQUET}"
    try:
        pl.concat(tables, how="diagonal_relaxed").sink_parquet(copy)
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"The tables cannot be joined, as a column holds unlike things in them ({first_line(str(error))}): write "
            "it alike, or bring them apart."
        ) from None
    return copy


def _joined_text(
    files: Sequence[Path], plain: Sequence[Path], hosts: Sequence[str | None], folder: Path, room: WorkingMemory
) -> Path:
    with ExitStack() as stack:
        stores = []
        for path in plain:
            stores.append(open_cells(path, (), room))
            stack.callback(stores[-1].close)
        names = list(dict.fromkeys(name for store in stores for name in store.names))
        if hosts[0] is not None and Role.HOST in names:
            raise DataError(f"The tables have a column {str(Role.HOST)!r}: leave --host-from out.")
        _check_spelled(files, [store.names for store in stores])
        for file, store in zip(files, stores, strict=True):
            if not {*store.names} & {*stores[0].names}:
                raise DataError(f"{file} has no column in common with {files[0]}: bring tables of one kind.")
        dialect = certain(stores[0].dialect, "it is a table of text")
        copy = folder / f"{JOINED}.csv"
        with copy.open("w", encoding="utf-8", newline="") as out:
            writer = csv.writer(out, delimiter=dialect.delimiter, lineterminator="\n")
            writer.writerow([*names, *([str(Role.HOST)] if hosts[0] is not None else [])])
            for number, (store, host) in enumerate(zip(stores, hosts, strict=True)):
                cells = [store.column(name) if name in store.names else "NULL" for name in names]
                for _, columns in store.parts(cells, room.rows(CELL_BYTES * len(cells))):
                    lists = [_cells(column) for column in columns]
                    writer.writerows([*row, host] if host is not None else row for row in zip(*lists, strict=True))
                room.progress("joining", (number + 1) / len(stores))
    return copy


def _cells(column: AnyArray) -> list[str]:
    gone = np.ma.getmaskarray(column)
    cells = np.ma.getdata(column).tolist()
    return ["" if is_gone else str(cell) for cell, is_gone in zip(cells, gone.tolist(), strict=True)]
