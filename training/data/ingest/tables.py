"""Read a user's table of samples: find the meaning of its columns, and return their cells as numbers or text."""

import re
import shlex
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import polars as pl
from psutil import virtual_memory

from training.data.coded import Coded
from training.data.errors import DataError
from training.data.ingest.cells import PARQUET, CellStore, closed_on_error, literal, open_cells, parquet_cells
from training.data.ingest.dialect import too_wide
from training.data.ingest.numerals import BLANK, NUMBER, Kind, Verdict, fits, kinds_of
from training.data.ingest.roles import Role, Roles, bounds_of, is_row_number, roles_of, twin_of
from training.data.scratch import ROOM, WorkingMemory, release
from training.data.values import Bools, Floats

BARE = "neither a name nor a cell"
RELOG = "(PDH-CSV"  # begins the name of the times that relog writes
ROW_BYTES, ALWAYS_BYTES = 10, 300 << 20  # of memory a row and at all, whatever it holds, as measured
CHANNELS_MAX = 1000  # of a table: each has seventeen features
CELL_BYTES = 512  # of a row's time, label or name, before it is a number
DAY = r"(19|20)\d{6}"  # a date without signs
DATES = ("VARCHAR", "DATE", "TIME", "TIME_NS")  # of which two columns may be one time
# The hosts 10.1 and 10.10, or 1 and 01, are two, and one as numbers.
NAMES = (Role.HOST, Role.EPISODE, Role.WINDOW, Role.KEY)


class Stored(NamedTuple):
    """A table whose cells are in ``store`` (DuckDB) until that is closed. Only the rows that ``keep`` marks are used;
    None means all.

    A column with a role has the role's name in ``columns``; ``roles`` has its name in the file.
    """

    path: Path
    roles: Roles
    layout: str
    store: CellStore
    kinds: Mapping[str, Verdict]  # by the name in the file
    columns: tuple[str, ...]  # all, in the order of the file
    room: WorkingMemory
    keep: Bools | None = None
    labels: Coded | None = None  # of the rows that are kept, where they are not the table's own
    left_out: tuple[str, ...] = ()  # columns that say nothing, one in each line of text

    @property
    def height(self) -> int:
        """The number of rows of the table that are used."""
        return self.store.rows if self.keep is None else int(np.count_nonzero(self.keep))

    @property
    def channels(self) -> tuple[str, ...]:
        """The names of the channels, sorted."""
        return tuple(sorted(name for name in self.columns if name not in {str(role) for role in self.roles.columns}))

    def called(self, role: Role) -> str:
        """Return the name in the file of the column with this role; the role's own name if the file has none."""
        return self.roles.columns.get(role, str(role))

    def named(self, column: str) -> str:
        """Return the name in the file of a column from ``columns``."""
        return self.called(Role(column)) if column in self.roles.columns else column

    def parts(self, role: Role) -> Iterator[pl.Series]:
        """Yield the cells of the column with this role, some of the used rows at a time."""
        name, at = self.called(role), 0
        for part in self.store.series(self.cell(role), self.room.rows(CELL_BYTES)):
            keep, at = None if self.keep is None else self.keep[at : at + part.len()], at + part.len()
            yield (part if keep is None else part.filter(pl.Series(keep))).alias(name)

    def cell(self, role: Role) -> str:
        """Return the SQL expression for the cells of a role; cells that may be a date or an id stay text as written."""
        name = self.called(role) if self.called(role) in self.kinds else str(role)
        kind, sql = self.kinds[name].kind, self.kinds[name].sql
        if role is Role.TIME and self.roles.clock:
            return _together([f"trim({self.kinds[one].sql}::VARCHAR)" for one in (name, *self.roles.clock)])
        if self.store.dialect is None:
            return f"{sql}::VARCHAR" if role in NAMES else sql
        if role not in NAMES and (kind is Kind.NUMBER or (kind is Kind.WHOLE and role is not Role.TIME)):
            return self.kinds[name].number
        if kind is Kind.WHOLE:
            return f"trim({sql}, {literal(BLANK)})"
        return f"CAST({sql} AS BOOLEAN)" if kind is Kind.BOOLEAN else sql

    def values(self) -> Floats:
        """Return the values (S, C) of all channels in the used rows; NaN for a cell without a number."""
        channels = self.channels
        cells = [f"coalesce({self.kinds[name].number}, 'nan'::DOUBLE)" for name in channels]
        values = self.room.empty((self.height, len(channels)), float, "F")
        at, step = 0, self.room.rows(64 * len(channels))
        for low, parts in self.store.parts(cells, step):
            keep = slice(None) if self.keep is None else self.keep[low : low + len(parts[0])]
            for place, part in enumerate(parts):
                kept = part[keep]
                values[at : at + kept.size, place] = kept
            at += kept.size
            release(values)
            self.room.progress("reading", min(1.0, (low + step) / self.store.rows))
        return values

    def odd_cells(self, name: str) -> tuple[int, int, str]:
        """Return the number of cells of a text column that are no numbers, and the row (from 0) and text of the first;
        zeros and "" for other columns."""
        column = self.store.column(name)
        if self.store.types[column] != "VARCHAR":
            return 0, 0, ""
        odd = f"WHERE NOT {fits(NUMBER)(column)}"
        ((count, row),) = self.store.ask("count(*), coalesce(min(rowid), 0)", odd)
        first = self.store.ask(column, f"{odd} AND rowid = {row}")
        return count, row, first[0][0] if first else ""

    def largest_whole(self) -> dict[str, int]:
        """Return the largest absolute value of each channel whose cells are whole numbers."""
        names = [name for name in self.channels if self.kinds[name].kind is Kind.WHOLE]
        most = ", ".join(f"coalesce(max(abs(TRY_CAST({self.kinds[name].sql} AS HUGEINT))), 0)" for name in names)
        return dict(zip(names, self.store.ask(most)[0], strict=True)) if names else {}

    def only(self, keep: Bools, labels: Coded | None = None) -> Self:
        """Return the table with only those of its used rows that ``keep`` marks; ``labels`` replaces their labels
        (None: the table's own)."""
        if self.keep is not None:
            whole = self.keep.copy()
            whole[whole] = keep
            keep = whole
        return self._replace(keep=keep, labels=labels)


def read_table(
    path: Path,
    said: Mapping[Role, str],
    ignored: Collection[str],
    columns: Sequence[str] = (),
    room: WorkingMemory = ROOM,
    *,
    decimal: str | None = None,
    level: Collection[str] = (),
) -> Stored:
    """Return the table in a file without the columns ``ignored`` and those that say nothing: row numbers, and a column
    that stands twice. Columns in ``level`` are kept.

    ``said`` has the columns that flags name, ``columns`` the names of all columns of a file without a header, and
    ``decimal`` the sign before decimals. The caller must close the table's store. Raises DataError.
    """
    is_parquet = path.suffix.lower() == PARQUET
    if is_parquet and columns:
        raise DataError(f"{path} names its columns: leave --columns out.")
    if is_parquet and decimal is not None:
        raise DataError(f"{path} is a Parquet file, whose numbers have no decimal sign: leave --decimal out.")
    store = open_cells(path, columns, room)
    with closed_on_error(store):
        room.progress("looking at the columns", 0.6)
        names = left(store.names, ignored, path)
        judged = (name for name in names if name not in {*said.values(), *level})
        nothing = {name: why for name in judged if (why := _says_nothing(store, name, names))}
        names = [name for name in names if name not in nothing]
        if Role.TIME not in said and any(name.startswith(RELOG) for name in names):
            raise DataError(f"{path} is a log of Windows' performance monitor: read it with --perfmon {path}.")
        ids = roles_of(names, said, str(path)).columns
        if not {Role.TIME, Role.WINDOW} & ids.keys():
            _check_no_log(store, names, path)
        channels = len(names) - len(roles_of(names, said, str(path)).names)
        if channels > CHANNELS_MAX:  # before each is looked at
            raise too_wide(channels, CHANNELS_MAX, str(path))
        kinds, how = kinds_of(store, names, [ids[role] for role in NAMES if role in ids], decimal, ids.values())
        room.progress("looking at the columns", 1.0)
        layout = "" if store.dialect is None else store.dialect.sentence()
        layout = ", ".join(part for part in (layout, how) if part)
        table = _table(path, store, kinds, roles_of(names, said, str(path)), layout, room)
        return table._replace(left_out=tuple(f"column {name}: {why}" for name, why in nothing.items() if why != BARE))


def _check_no_log(store: CellStore, names: Sequence[str], path: Path) -> None:
    """Raise DataError if each row seems to be an incident: two columns are called after its ends, and hold dates."""
    bounds = bounds_of(names)
    first = store.ask(", ".join(f"{store.column(name)}::VARCHAR" for name in bounds), "LIMIT 1") if bounds else []
    if bounds and first and all(re.search(r"\d[-/.:]\d+[-/.:]\d", cell or "") for cell in first[0]):
        raise DataError(
            f"Each row of {path} has a begin and an end ({bounds[0]!r}, {bounds[1]!r}), as an incident has: give a "
            "table of samples, and this one with --labels-from, its columns named start, end, label and, if there are "
            f"several hosts, host; or say --time {shlex.quote(bounds[0])} if each row is a sample."
        )


def _says_nothing(store: CellStore, name: str, names: Sequence[str]) -> str:
    """Return why a column among ``names`` says nothing, in a few words; "" for every other column. A delimiter behind
    each line makes a column that is ``BARE``."""
    column = store.column(name)
    if not name and not store.ask("1", f"WHERE {column} IS NOT NULL LIMIT 1"):
        return BARE
    if is_row_number(name):
        number = f"TRY_CAST({column} AS HUGEINT)"
        ((first_number,),) = store.ask(f"min({number})")
        apart = f"WHERE {number} - rowid IS DISTINCT FROM {first_number} LIMIT 1"
        return "" if first_number is None or store.ask("1", apart) else "numbers the rows"
    first = twin_of(name, names)
    if first is None or store.ask("1", f"WHERE {column} IS DISTINCT FROM {store.column(first)} LIMIT 1"):
        return ""
    return f"stands twice, as {first}"


def stored(path: Path, rows: pl.DataFrame, roles: Roles, layout: str) -> Stored:
    """Return the table for rows in memory, whose columns with a role have the role's name; the caller must close its
    store."""
    with tempfile.TemporaryDirectory() as folder:
        rows.write_parquet(file := Path(folder) / f"rows{PARQUET}")
        store = parquet_cells(file, ROOM)
    with closed_on_error(store):
        return _table(path, store, kinds_of(store, store.names)[0], roles, layout, ROOM)


def _table(
    path: Path, store: CellStore, kinds: Mapping[str, Verdict], roles: Roles, layout: str, room: WorkingMemory
) -> Stored:
    check_fits(path, store.rows * ROW_BYTES + ALWAYS_BYTES, virtual_memory().available)
    if len(roles.clock) > 1:
        for name in (roles.columns[Role.TIME], *roles.clock):
            if kinds[name].kind is not Kind.WHOLE:
                raise DataError(
                    f"The column {name!r} of {path} is a part of the time, and holds other things than whole numbers: "
                    "fix it, or bring times in one column."
                )
    elif roles.clock:
        day, clock = roles.columns[Role.TIME], *roles.clock
        days = fits(DAY)(f"trim({kinds[day].sql}::VARCHAR)")
        is_plain = kinds[day].kind is Kind.WHOLE and not store.ask("1", f"WHERE NOT {days} LIMIT 1")
        unlike = [
            name for name in (day, clock) if kinds[name].is_number or store.types[store.column(name)] not in DATES
        ]
        if unlike and not (unlike == [day] and is_plain):
            raise DataError(
                f"The columns {day!r} and {clock!r} may both be the time: say which with --time NAME, and leave the "
                "other out with --ignore."
            )
    for name in roles.names:
        if name in kinds and store.types[store.column(name)].endswith(("]", ")")) and kinds[name].kind is Kind.OTHER:
            raise DataError(f"The column {name!r} holds lists or structs: bring one value in each row.")
    meant = {name: str(role) for role, name in roles.columns.items()}
    columns = (meant.get(name, name) for name in kinds if name not in roles.clock and name not in roles.second_labels)
    return Stored(path=path, roles=roles, layout=layout, store=store, kinds=kinds, columns=tuple(columns), room=room)


def _together(cells: Sequence[str]) -> str:
    """Return the SQL expression for a time in several columns: a date and a time of day, or year, month, day, …"""
    if len(cells) == 2:
        return f"regexp_replace({cells[0]}, '^(\\d{{4}})(\\d\\d)(\\d\\d)$', '\\1-\\2-\\3') || ' ' || {cells[1]}"
    year, month, day, *clock = [cells[0], *(f"lpad({cell}, 2, '0')" for cell in cells[1:])]
    hour, minute, second = (*clock, "'00'", "'00'", "'00'")[:3]
    return f"{year} || '-' || {month} || '-' || {day} || ' ' || {hour} || ':' || {minute} || ':' || {second}"


def read_plain(path: Path, is_used: Callable[[str], bool] = lambda _: True) -> pl.DataFrame:
    """Return a small table as a data frame. Columns of booleans, and of numbers that are not all whole, are converted
    if ``is_used`` is true of their names; other cells stay as they are written. Raises DataError."""
    store = open_cells(path)
    try:
        cast = {Kind.NUMBER: "TRY_CAST({} AS DOUBLE)", Kind.BOOLEAN: "CAST({} AS BOOLEAN)"}
        columns = {}
        kinds = kinds_of(store, [name for name in store.names if is_used(name)])[0]
        for name in store.names:
            found = kinds.get(name)
            cells = cast.get(found.kind, "{}").format(found.sql) if found else store.column(name)
            columns[name] = next(store.series(cells, max(1, store.rows)), pl.Series(dtype=pl.String))
        return pl.DataFrame(columns)
    finally:
        store.close()


def check_fits(path: Path, size: int, free: int) -> None:
    """Raise DataError if a table needs more bytes of memory (``size``) than are ``free``, because the system would end
    the program."""
    if size > free:
        needed, left_over = (f"{count / 2**30:,.1f} GiB" for count in (size, free))
        raise DataError(
            f"{path} needs about {needed} of memory, and {left_over} are free: bring fewer rows (a lower rate, or "
            "fewer hosts)."
        )


def left(names: Sequence[str], ignored: Collection[str], path: Path) -> list[str]:
    """Return the column names without the ``ignored`` ones. Raises DataError if one of ``ignored`` is no column."""
    unknown = [name for name in ignored if name not in names]
    if unknown:
        raise DataError(f"--ignore names {unknown[0]!r}, which is no column of {path}.")
    return [name for name in names if name not in ignored]
