"""A table of samples as people have it, read with the columns that mean something under the names of their roles."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from psutil import virtual_memory

from training.data.errors import DataError
from training.data.ingest.dialect import as_utf8, decimal_commas, dialect_of, plain_numbers, read_text, with_points
from training.data.ingest.roles import Role, Roles, roles_of

PARQUET = ".parquet"
TEXT = (".csv", ".tsv", ".txt")
MEMORY_TIMES = 3  # of a table's text: what reading, cutting and describing it takes, as measured with 60 columns
NAMES = (Role.HOST, Role.EPISODE, Role.WINDOW)  # the hosts 10.1 and 10.10, or 1 and 01, are two, and one as numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of samples. A column with a role has the role's name; ``roles`` holds what it is called in the file."""

    path: Path
    rows: pl.DataFrame
    roles: Roles
    layout: str = ""  # how it is written, as far as that is unusual

    def called(self, role: Role) -> str:
        """The column's name in the file."""
        return self.roles.columns.get(role, str(role))

    def named(self, column: str) -> str:
        """The name in the file of a column of ``rows``."""
        return self.called(Role(column)) if column in self.roles.columns else column


def read_table(path: Path, said: Mapping[Role, str], ignored: Collection[str], columns: Sequence[str] = ()) -> Table:
    """Read the table without the columns ``ignored``, and find those that mean something.

    ``columns`` names those of a file that does not. Raises DataError.
    """

    def ids(names: Sequence[str]) -> list[str]:
        found = roles_of(names, said, str(path)).columns
        return [found[role] for role in NAMES if role in found]

    rows, layout = read_plain(path, ignored, ids, columns)
    roles = roles_of(rows.columns, said, str(path))
    return Table(path=path, rows=_renamed(rows, roles), roles=roles, layout=layout)


def read_plain(
    path: Path,
    ignored: Collection[str] = (),
    as_text: Callable[[Sequence[str]], Collection[str]] = lambda _: (),
    columns: Sequence[str] = (),
) -> tuple[pl.DataFrame, str]:
    """Read the table as it is, without the columns ``ignored``; also how it is written, as far as that is unusual.

    ``as_text`` chooses, among the names of the columns, those that stay as they are written. Raises DataError.
    """
    try:
        before = path.stat()
        if path.suffix.lower() == PARQUET:
            if columns:
                raise DataError(f"{path} names its columns: leave --columns out.")
            rows, layout = pl.read_parquet(path), ""
            rows = rows.select(left(rows.columns, ignored, path))
        else:
            rows, layout = _read_text(path, ignored, as_text, columns)
        after = path.stat()
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise DataError(f"{path} changed while it was read: wait for its recorder to end, or bring a copy.")
        return rows, layout
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from None
    except UnicodeError:
        raise DataError(
            f"{path} is no text that can be read: unpack it first if it is compressed, or write it again as UTF-8."
        ) from None
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} is not a table in long form ({reason}).") from None


def _read_text(
    path: Path,
    ignored: Collection[str],
    as_text: Callable[[Sequence[str]], Collection[str]],
    columns: Sequence[str],
) -> tuple[pl.DataFrame, str]:
    dialect = dialect_of(path, columns)
    with as_utf8(path, dialect) as file:
        everything = read_text(file, dialect, rows=0).columns
        names = left(everything, ignored, path)
        check_fits(path, path.stat().st_size * len(names) // len(everything), virtual_memory().available)
        kept = as_text(names)
        rows = read_text(file, dialect, kept)
        names = [name for name in names if name in rows.columns]
        _check_header(path, rows)
        layout = [dialect.sentence()]
        measured = [name for name in names if name not in kept]
        if decimal_commas(rows, measured):
            rows = with_points(read_text(file, dialect, all_text=True), measured, dialect.delimiter, str(path))
            layout.append("decimal commas")
        rows = plain_numbers(rows, measured)
    return rows.select(names), ", ".join(part for part in layout if part)


def check_fits(path: Path, size: int, free: int) -> None:
    """Refuse a table of ``size`` bytes that would fill the ``free`` memory: the system would end the program.

    Raises DataError.
    """
    if size * MEMORY_TIMES > free:
        needed, left_over = (f"{count / 2**30:,.1f} GiB" for count in (size * MEMORY_TIMES, free))
        raise DataError(
            f"{path} needs about {needed} of memory, and {left_over} are free: "
            "leave columns out with --ignore, or bring fewer rows (a lower rate, or fewer hosts)."
        )


def left(names: Sequence[str], ignored: Collection[str], path: Path) -> list[str]:
    """The names of the columns that are not ignored. Raises DataError."""
    unknown = [name for name in ignored if name not in names]
    if unknown:
        raise DataError(f"--ignore names {unknown[0]!r}, which is no column of {path}.")
    return [name for name in names if name not in ignored]


def _check_header(path: Path, rows: pl.DataFrame) -> None:
    """Refuse files that were put one behind the other with their headers. Raises DataError."""
    texts = [name for name in rows.columns if rows[name].dtype == pl.String]
    if not texts:
        return
    again = rows.select(pl.all_horizontal(pl.col(name) == name for name in texts)).to_series().arg_true()
    if again.len():
        raise DataError(
            f"Row {int(again[0]) + 1} of {path} repeats the names of the columns: take that line out, and give each "
            "part an episode of its own if the parts are recordings."
        )


def _renamed(rows: pl.DataFrame, roles: Roles) -> pl.DataFrame:
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
    names = {name: str(role) for role, name in roles.columns.items()}
    return rows.select(
        pl.col(name).alias(names.get(name, name)) for name in rows.columns if name not in roles.second_labels
    )
