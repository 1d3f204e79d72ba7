"""Store the cells of a table in DuckDB: columns c0 … cn, and rows, in the order of the file.

DuckDB parses the file, stores and counts the cells, and moves to disk what does not fit into memory. DuckDB does not
interpret text: the patterns in `numerals` decide which cells are numbers, so that every version of DuckDB gives the
same result. Names from the file never become part of a query.
"""

from __future__ import annotations

import glob
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from errno import ENOSPC
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from training.data.errors import DataError
from training.data.ingest.dialect import Dialect, as_utf8, dialect_of
from training.data.scratch import ROOM, SPAN_ROWS, WorkingMemory
from training.data.values import AnyArray, Codes, Floats, Ints
from training.files import folder_of_large_files
from training.printable import first_line

if TYPE_CHECKING:
    import duckdb

PARQUET = ".parquet"
# DuckDB's limit of memory, in all and for each column; with 256 KiB a column a table of 1,000 columns fails.
MEMORY_MIB, COLUMN_KIB = 56, 768
READ_BYTES = 8_000_000  # of a file at a time
SETTINGS: dict[str, str | int] = {
    "threads": 1,  # a second one takes as much memory again and, as it spills, saves no time
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "preserve_insertion_order": True,
    "force_compression": "uncompressed",  # compressing takes longer than writing
}
TORN = re.compile(r"Line: (\d+).*?Expected Number of Columns: (\d+) Found: (\d+)", re.DOTALL)
ZONED = "TIMESTAMP WITH TIME ZONE"


class CellStore:
    """A table stored in DuckDB, with columns called ``names``; the caller must close it.

    ``dialect`` is that of a text file; None means that the columns have types, as in Parquet.
    """

    def __init__(self, path: Path, names: Sequence[str], room: WorkingMemory, dialect: Dialect | None = None) -> None:
        """Make a store without cells, for a table with these columns."""
        import duckdb  # 70 MB that only a table needs

        self.path, self.names, self.dialect, self.rows = path, tuple(names), dialect, 0
        self.types: dict[str, str] = {}  # of DuckDB, by its names of the columns
        self.durations: dict[str, pl.Duration] = {}  # which DuckDB takes for whole numbers
        self._folder = tempfile.TemporaryDirectory(
            dir=str(room.folder or folder_of_large_files()), ignore_cleanup_errors=True
        )
        own = {"temp_directory": f"{self._folder.name}/spilled"}
        own["memory_limit"] = f"{MEMORY_MIB * 1024 + COLUMN_KIB * len(names)}KiB"
        # In a file: a table in memory keeps a part of each column there, and one of 5 GB does not fit.
        self._connection = duckdb.connect(f"{self._folder.name}/cells", config={**own, **SETTINGS})

    @property
    def folder(self) -> Path:
        """A folder for temporary files, which is deleted when the store is closed."""
        return Path(self._folder.name)

    def close(self) -> None:
        """Close the store, and free its memory and disk space."""
        self._connection.close()
        self._folder.cleanup()

    def column(self, name: str) -> str:
        """Return the name that this column has in queries: c0, c1, …"""
        return f"c{self.names.index(name)}"

    def first_row(self, source: str) -> list[str]:
        """Return the cells of the first row of a DuckDB table function; an empty cell is ""."""
        (row,) = self._execute(f"FROM {source} LIMIT 1").fetchall()
        return [cell or "" for cell in row]

    def take(self, columns: Mapping[str, AnyArray], order: Sequence[str]) -> None:
        """Store the cells of arrays, with the rows sorted by the columns ``order``; rows that are equal there keep
        their order."""
        self._connection.register("given", dict(columns))
        numbered = "(SELECT *, row_number() OVER () - 1 AS place FROM given)"
        self.load(numbered, f"ORDER BY {', '.join([*order, 'place'])}")

    def load(self, source: str, where: str = "") -> None:
        """Store the cells that a DuckDB table function reads; afterwards no query may read a file or change a
        setting."""
        self._execute(f"CREATE TABLE cells AS FROM {source} {where}")
        self._execute("SET enable_external_access = false")
        self._execute("SET lock_configuration = true")
        ((self.rows,),) = self.ask("count(*)")
        self.types = {column: kind for column, kind, *_ in self._execute("DESCRIBE cells").fetchall()}

    def ask(self, chosen: str, rest: str = "", *values: str) -> list[tuple[Any, ...]]:
        """Return all rows of the query ``SELECT chosen FROM cells rest``. Raises OSError if the disk is full,
        MemoryError if DuckDB may use no more memory, DataError if DuckDB cannot read the data."""
        return self._execute(f"SELECT {chosen} FROM cells {rest}", *values).fetchall()  # noqa: S608 - names are c0 … cn

    def parts(self, columns: Sequence[str], rows: int) -> Iterator[tuple[int, list[AnyArray]]]:
        """Yield the values of SQL expressions for ``rows`` rows at a time: the number of the first row, and an array
        for each expression."""
        chosen = ", ".join(f"{column} AS a{number}" for number, column in enumerate(columns))
        for low in range(0, self.rows, rows):
            some = f"SELECT {chosen} FROM cells WHERE rowid >= {low} AND rowid < {low + rows}"  # noqa: S608
            yield low, list(self._execute(some).fetchnumpy().values())

    def series(self, column: str, rows: int) -> Iterator[pl.Series]:
        """Yield the values of an SQL expression as series, with nulls, for ``rows`` rows at a time."""
        for _, (found,) in self.parts([column], rows):
            plain = np.ma.getdata(found)
            values = pl.Series(plain.tolist(), dtype=pl.String) if plain.dtype == object else pl.Series(plain)
            if column in self.durations:
                values = values.cast(self.durations[column])
            if self.types.get(column) == ZONED:
                values = values.dt.replace_time_zone("UTC")
            gone = np.flatnonzero(np.ma.getmaskarray(found))
            yield values.scatter(gone, None) if gone.size else values

    def _execute(self, query: str, *values: object) -> duckdb.DuckDBPyConnection:
        import duckdb

        try:
            return self._connection.execute(query, list(values))
        except duckdb.OutOfMemoryException:
            raise MemoryError from None
        except (duckdb.IOException, duckdb.InvalidInputException) as error:
            if "No space left" in str(error):
                raise OSError(ENOSPC, "No space left on device", self._folder.name) from None
            raise _unreadable(self.path, str(error)) from None


def row_order(t: Floats | None, group: Codes, room: WorkingMemory) -> Ints:
    """Return the row numbers sorted by ``group`` and then by time; without times, in each group in the given order."""
    keys = {"g": group} | ({} if t is None else {"t": t})
    with closing(CellStore(Path(), (), room)) as store:
        store.take(keys, list(keys))
        parts = (part for _, (part,) in store.parts(["place"], SPAN_ROWS))
        return room.joined(parts, group.size, int)


def _unreadable(path: Path, why: str) -> DataError:
    torn = TORN.search(why)
    if torn:
        line, usual, found = torn.groups()
        return DataError(
            f"{path} has lines of unlike numbers of columns: line {line} has {found} where most have {usual}: fix "
            "that line, or take it out."
        )
    if "quote" in why:
        return DataError(f"{path} has a quote that never ends: take it out, or double it where it belongs to a cell.")
    return DataError(f"{path} is not a table in long form ({first_line(why)}).")


def state_of(path: Path) -> tuple[int, int]:
    """Return the size and time of change of a file. Raises DataError for what is none, as a pipe ends after one
    reading and a device never; OSError."""
    found = path.stat()
    if not S_ISREG(found.st_mode):
        raise DataError(f"{path} is a folder, pipe or device: write a table into a file, and name that.")
    return found.st_size, found.st_mtime_ns


def changed(path: Path) -> DataError:
    """Return the error for a file that another program wrote to while it was read."""
    return DataError(f"{path} changed while it was read: wait for its recorder to end, or bring a copy.")


def open_cells(path: Path, columns: Sequence[str] = (), room: WorkingMemory = ROOM) -> CellStore:
    """Return the table in a text or Parquet file as a store; ``columns`` has the column names of a text file without a
    header. Raises DataError."""
    try:
        before = state_of(path)
        found = parquet_cells(path, room) if path.suffix.lower() == PARQUET else _text_cells(path, columns, room)
        after = state_of(path)
    except OSError as error:
        if error.errno == ENOSPC:
            raise  # of the disk that holds what was read
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from None
    except UnicodeError:
        raise DataError(
            f"{path} is no text that can be read: unpack it first if it is compressed, or write it again as UTF-8."
        ) from None
    except pl.exceptions.PolarsError as error:
        raise _unreadable(path, str(error) or type(error).__name__) from None
    if before != after:
        found.close()
        raise changed(path)
    return found


def _text_cells(path: Path, names: Sequence[str], room: WorkingMemory) -> CellStore:
    dialect = dialect_of(path, names)
    columns = [f"c{number}" for number in range(dialect.columns)]
    with closed_on_error(CellStore(path, dialect.names or columns, room, dialect)) as found:
        options = (
            f"{literal(glob.escape(str(as_utf8(path, dialect, found.folder).absolute())))}, auto_detect = false, "
            f"hive_partitioning = false, compression = 'none', delim = {literal(dialect.delimiter)}, "
            f"quote = {literal(dialect.quote)}, escape = {literal(dialect.quote)}, skip = {dialect.skip}, "
            f"buffer_size = {READ_BYTES}, columns = {{{', '.join(f'{column}: VARCHAR' for column in columns)}}}"
        )
        filled = f"WHERE coalesce({', '.join(columns)}) IS NOT NULL"  # an empty line is no row
        if not dialect.names:
            first = found.first_row(f"read_csv({options}, header = false)")
            named = _told_apart(first)
            stripped = [name.strip() for name in named]
            found.names = tuple(stripped if len(set(stripped)) == len(named) else named)
            pairs = ((column, name) for column, name in zip(columns, first, strict=True) if name)
            again = " AND ".join(f"{column} IS NOT DISTINCT FROM {literal(name)}" for column, name in pairs)
            filled += f" AND NOT ({again})" if again else ""  # of tables that were appended with their names
        options += f", header = {not dialect.names}"
        found.load(f"read_csv({options})", filled)
    return found


def parquet_cells(path: Path, room: WorkingMemory) -> CellStore:
    """Return the table in a Parquet file as a store. Raises DataError, OSError, PolarsError."""
    schema = pl.read_parquet_schema(path)
    if not schema:
        raise DataError(f"{path} holds no samples: it needs rows, and a column for each channel.")
    with closed_on_error(CellStore(path, list(schema), room)) as found:
        named = ", ".join(f"c{number}" for number in range(len(schema)))
        found.load(f"read_parquet({literal(glob.escape(str(path.absolute())))}, hive_partitioning = false) t({named})")
        found.durations = {found.column(name): kind for name, kind in schema.items() if isinstance(kind, pl.Duration)}
    return found


@contextmanager
def closed_on_error(store: CellStore) -> Iterator[CellStore]:
    """Yield the store, and close it only if the context ends with an error."""
    try:
        yield store
    except BaseException:
        store.close()
        raise


def _told_apart(names: Sequence[str]) -> list[str]:
    """Return the names; to each that occurred before, ``_duplicated_`` and a number are appended."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        found.append(f"{name}_duplicated_{seen[name] - 1}" if seen[name] else name)
        seen[name] += 1
    return found


def literal(text: str) -> str:
    """Return the text as an SQL literal, in quotes."""
    return "'" + text.replace("'", "''") + "'"
