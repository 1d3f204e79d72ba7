"""A table of samples as people have it, read with the columns that mean something under the names of their roles."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from errno import ENOSPC
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray
from psutil import virtual_memory

from training.data.coded import Coded
from training.data.errors import DataError
from training.data.ingest.dialect import as_utf8, dialect_of
from training.data.ingest.roles import Role, Roles, roles_of
from training.data.ingest.text import Looked, Text, has_changed, looked_at
from training.data.scratch import ROOM, WorkingMemory, release

PARQUET = ".parquet"
RELOG = "(PDH-CSV"  # begins the name of the times that relog writes
TEXT = (".csv", ".tsv", ".txt")
ROW_BYTES, ALWAYS_BYTES = 10, 300 << 20  # of memory a row and at all, whatever it holds, as measured
PACKED_BYTES = 128  # of a row's time, label and names, before they are packed
COLUMN_BYTES = 16  # of a row of one column
NAMES = (Role.HOST, Role.EPISODE, Role.WINDOW)  # the hosts 10.1 and 10.10, or 1 and 01, are two, and one as numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTable:
    """Rows of samples. A column with a role has the role's name; ``roles`` holds what it is called in the file."""

    path: Path
    rows: pl.DataFrame
    roles: Roles
    layout: str = ""  # how it is written, as far as that is unusual


class RawChannel:
    """The values of a channel as they came: what is to be known of them before they are numbers."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.is_number = True
        self.rows = self.odd = self.odd_row = 0  # cells of text that are no numbers, and the row of the first
        self.first_odd = ""
        self.largest = 0  # of whole numbers

    def add(self, column: pl.Series, at: int) -> None:
        """Look at some more values, of which the first stands in the row ``at``."""
        self.rows += column.len()
        self.is_number &= column.dtype.is_numeric() or column.dtype == pl.Boolean
        if column.dtype.is_integer() and column.null_count() < column.len():
            ends = (int(column.min()), int(column.max()))  # type: ignore[arg-type]
            self.largest = max(self.largest, *map(abs, ends))
        if column.dtype == pl.String:
            odd = (column.is_not_null() & column.cast(pl.Float64, strict=False).is_null()).arg_true()
            if odd.len() and not self.odd:
                self.first_odd, self.odd_row = str(column[int(odd[0])]), at + int(odd[0])
            self.odd += odd.len()


class PackedColumns:
    """Some columns of a table, some rows at a time: in memory, or in a file without a name."""

    def __init__(self, room: WorkingMemory) -> None:
        """Hold nothing yet."""
        self._file, self._ends = room.file(), [0]

    def __del__(self) -> None:
        self._file.close()

    def add(self, rows: pl.DataFrame) -> None:
        """Take the next rows. Raises OSError where the disk has no room for them."""
        rows.write_ipc(packed := BytesIO(), compression="zstd")
        self._file.seek(self._ends[-1])
        try:
            self._file.write(packed.getbuffer())
        except OSError as error:
            raise OSError(error.errno, error.strerror, tempfile.gettempdir()) from None
        self._ends.append(self._file.tell())

    def parts(self, column: str) -> Iterator[pl.Series]:
        """The cells of one of the columns."""
        for low, high in pairwise(self._ends):
            self._file.seek(low)
            yield pl.read_ipc(BytesIO(self._file.read(high - low)), columns=[column])[column]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A table whose channels are numbers in an array that may be larger than memory; its other columns are packed.

    A column with a role has the role's name; ``roles`` holds what it is called in the file. ``values`` is float64
    (S, C), NaN where nothing was measured, of ``channels`` in the order of their names. Only the rows ``keep`` count.
    """

    path: Path
    roles: Roles
    layout: str
    columns: tuple[str, ...]  # all, in the order of the file
    channels: tuple[str, ...]
    values: NDArray[np.float64]
    held: Mapping[str, RawChannel]
    packed: PackedColumns  # the columns with a role, some rows at a time
    keep: NDArray[np.bool_] | None = None
    labels: Coded | None = None  # of the rows that are kept, where they are not the table's own

    @property
    def height(self) -> int:
        """The number of rows that count."""
        return len(self.values) if self.keep is None else int(np.count_nonzero(self.keep))

    def called(self, role: Role) -> str:
        """The column's name in the file."""
        return self.roles.columns.get(role, str(role))

    def named(self, column: str) -> str:
        """The name in the file of a column."""
        return self.called(Role(column)) if column in self.roles.columns else column

    def parts(self, role: Role) -> Iterator[pl.Series]:
        """The cells of a column with a role, some rows at a time."""
        at = 0
        for part in self.packed.parts(str(role)):
            keep, at = None if self.keep is None else self.keep[at : at + part.len()], at + part.len()
            yield (part if keep is None else part.filter(pl.Series(keep))).alias(self.called(role))

    def only(self, keep: NDArray[np.bool_], labels: Coded | None = None) -> Stored:
        """The table with only those of its rows that ``keep`` marks, and with other ``labels`` for these."""
        if self.keep is not None:
            whole = self.keep.copy()
            whole[whole] = keep
            keep = whole
        return replace(self, keep=keep, labels=labels)


class TableSource(Protocol):
    """A table: its columns that are read, the number of its rows, and how it is written if that is unusual."""

    names: tuple[str, ...]
    rows: int
    layout: str

    def frames(self, narrow: Sequence[str]) -> Iterator[tuple[int, pl.DataFrame]]:
        """Some rows of some columns, and the number of the first; those that are ``narrow`` come together."""
        ...


def read_table(
    path: Path,
    said: Mapping[Role, str],
    ignored: Collection[str],
    columns: Sequence[str] = (),
    room: WorkingMemory = ROOM,
    *,
    decimal: str | None = None,
) -> Stored:
    """Read the table without the columns ``ignored``, and find those that mean something.

    ``columns`` names those of a file that does not, ``decimal`` is the sign before decimals. Raises DataError.
    """

    def ids(names: Sequence[str]) -> list[str]:
        if Role.TIME not in said and any(name.startswith(RELOG) for name in names):
            raise DataError(f"{path} is a log of Windows' performance monitor: read it with --perfmon {path}.")
        found = roles_of(names, said, str(path)).columns
        return [found[role] for role in NAMES if role in found]

    with _opened(path, ignored, ids, columns, room, decimal) as source:
        return _stored(path, source, roles_of(source.names, said, str(path)), room)


def read_plain(path: Path) -> pl.DataFrame:
    """Read a small table as it is. Raises DataError."""
    with _opened(path, (), lambda _: (), (), ROOM) as source:
        frames = [frame for _, frame in source.frames(source.names)]
        return pl.concat(frames) if frames else pl.DataFrame(schema=source.names)


def stored(table: SampleTable, room: WorkingMemory = ROOM) -> Stored:
    """The same of a table in memory."""
    return _stored(table.path, _InMemory(table), table.roles, room)


@contextmanager
def _opened(
    path: Path,
    ignored: Collection[str],
    as_text: Callable[[Sequence[str]], Collection[str]],
    columns: Sequence[str],
    room: WorkingMemory,
    decimal: str | None = None,
) -> Iterator[TableSource]:
    """Look at the table in a file; ``as_text`` chooses, among its columns, those that stay as they are written.

    Raises DataError, also at the end, for a file that has changed.
    """
    try:
        before = path.stat()
        if path.suffix.lower() == PARQUET:
            if columns:
                raise DataError(f"{path} names its columns: leave --columns out.")
            if decimal is not None:
                raise DataError(f"{path} holds numbers and no text: leave --decimal out.")
            yield _Parquet(path, ignored, room)
        else:
            dialect = dialect_of(path, columns)
            with as_utf8(path, dialect, room) as file:
                text = Text(path=path, file=file, dialect=dialect, room=room, decimal=decimal)
                names = left(text.names, ignored, path)
                looked = looked_at(replace(text, as_text=as_text(names)), lambda all_: left(all_, ignored, path))
                yield _Frames(looked)
        after = path.stat()
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise has_changed(path)
    except OSError as error:
        if error.errno == ENOSPC:
            raise  # of the disk that holds what was read
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from None
    except UnicodeError:
        raise DataError(
            f"{path} is no text that can be read: unpack it first if it is compressed, or write it again as UTF-8."
        ) from None
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} is not a table in long form ({reason}).") from None


class _Frames:
    """A table of text: all columns of some rows at a time."""

    def __init__(self, looked: Looked) -> None:
        self.names, self.rows, self.layout = looked.names, looked.rows, looked.layout
        self._looked = looked

    def frames(self, narrow: Sequence[str]) -> Iterator[tuple[int, pl.DataFrame]]:  # noqa: ARG002 - a Source
        at = 0
        for part in self._looked.parts():
            yield at, part
            at += part.height


class _Parquet:
    """A Parquet file: some rows of a column at a time, but for the narrow ones, of which all come together."""

    def __init__(self, path: Path, ignored: Collection[str], room: WorkingMemory) -> None:
        self.names = tuple(left(list(pl.read_parquet_schema(path)), ignored, path))
        self.rows = int(pl.scan_parquet(path).select(pl.len()).collect().item())
        self.layout = ""
        self._path, self._room = path, room

    def frames(self, narrow: Sequence[str]) -> Iterator[tuple[int, pl.DataFrame]]:
        step = self._room.rows(PACKED_BYTES)
        for at in range(0, self.rows, step) if narrow else ():
            yield at, pl.scan_parquet(self._path).select(narrow).slice(at, step).collect()
        others = [name for name in self.names if name not in narrow]
        step = self._room.rows(COLUMN_BYTES)
        for number, name in enumerate(others):
            for at in range(0, self.rows, step):
                yield at, pl.scan_parquet(self._path).select(name).slice(at, step).collect()
            self._room.progress("reading", (number + 1) / len(others))


class _InMemory:
    """A table that is in memory already."""

    def __init__(self, table: SampleTable) -> None:
        self.names, self.rows, self.layout = tuple(table.rows.columns), table.rows.height, table.layout
        self._rows = table.rows

    def frames(self, narrow: Sequence[str]) -> Iterator[tuple[int, pl.DataFrame]]:  # noqa: ARG002 - a Source
        yield 0, self._rows


def _stored(path: Path, source: TableSource, roles: Roles, room: WorkingMemory) -> Stored:
    """Put the columns of a table where each belongs. Raises DataError."""
    own = {str(role) for role in roles.columns}  # in memory the columns have the roles' names already
    meant = {name: str(role) for role, name in roles.columns.items()}
    columns = [
        meant.get(name, name) for name in source.names if name != roles.clock and name not in roles.second_labels
    ]
    channels = sorted(name for name in columns if name not in own)
    narrow = [name for name in source.names if name in roles.names or name in own]
    check_fits(path, source.rows * ROW_BYTES + ALWAYS_BYTES, virtual_memory().available)
    values = room.empty((source.rows, len(channels)), np.float64, "F")
    held = {name: RawChannel() for name in channels}
    packed = PackedColumns(room)
    for at, frame in source.frames(narrow):
        for name in frame.columns:
            if name in held:
                _fill(values[at : at + frame.height, channels.index(name)], frame[name], held[name], at)
        release(values)
        if frame.height and set(narrow) <= set(frame.columns):
            packed.add(_renamed(frame.select(narrow), roles, meant))
    return Stored(
        path=path,
        roles=roles,
        layout=source.layout,
        columns=tuple(columns),
        channels=tuple(channels),
        values=values,
        held=held,
        packed=packed,
    )


def _fill(place: NDArray[np.float64], column: pl.Series, held: RawChannel, at: int) -> None:
    held.add(column, at)
    if held.is_number:
        place[:] = column.cast(pl.Float64).fill_null(np.nan).to_numpy()


def check_fits(path: Path, size: int, free: int) -> None:
    """Refuse a table that needs so many bytes where fewer are free: the system would end the program.

    Raises DataError.
    """
    if size > free:
        needed, left_over = (f"{count / 2**30:,.1f} GiB" for count in (size, free))
        raise DataError(
            f"{path} needs about {needed} of memory, and {left_over} are free: bring fewer rows (a lower rate, or "
            "fewer hosts)."
        )


def left(names: Sequence[str], ignored: Collection[str], path: Path) -> list[str]:
    """The names of the columns that are not ignored. Raises DataError."""
    unknown = [name for name in ignored if name not in names]
    if unknown:
        raise DataError(f"--ignore names {unknown[0]!r}, which is no column of {path}.")
    return [name for name in names if name not in ignored]


def _renamed(rows: pl.DataFrame, roles: Roles, meant: Mapping[str, str]) -> pl.DataFrame:
    """The rows with each role's column under the role's name, without second labels. Raises DataError."""
    if roles.clock is not None:
        day, clock = roles.columns[Role.TIME], roles.clock
        if rows[day].dtype not in (pl.String, pl.Date) or rows[clock].dtype not in (pl.String, pl.Time):
            raise DataError(
                f"The columns {day!r} and {clock!r} may both be the time: say which with --time NAME, and leave the "
                "other out with --ignore."
            )
        both = pl.concat_str(pl.col(day).cast(pl.String), pl.col(clock).cast(pl.String), separator=" ")
        rows = rows.with_columns(both.alias(day)).drop(clock)
    nested = [name for name in roles.names if name in rows.columns and rows[name].dtype.is_nested()]
    if nested:
        raise DataError(f"The column {nested[0]!r} holds lists or structs: bring one value in each row.")
    return rows.select(
        pl.col(name).alias(meant.get(name, name)) for name in rows.columns if name not in roles.second_labels
    )
