"""A checksum in each row of the tables ``SEALED``, by which changes by other programs are found.

Each connection that writes has temporary triggers, which write a row's checksum into its column ``seal`` and count the
rows of each table. The triggers are not stored in the file. By the checksums :func:`look` finds rows that another
program, a person or a failing disk has changed; by the counts it finds that rows are missing or too many.

A column that holds its default is not part of the checksum, so that a later version may add a column without changing
the checksums.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from sqlite3 import Connection
from typing import Any, NamedTuple

from training.certain import certain
from training.fleet.database.writer import Row, named

# Every table but the audit, whose rows are chained, `identity`, which the store repeats, and `seals` itself. These two
# always have the same rows.
SEALED = (
    "artifacts", "attempts", "certificates", "classes", "curve_points", "deaths", "events",
    "host_orders", "hosts", "incidents", "invitations", "jobs", "log_chunks", "log_files",
    "notice_cursor", "notices", "notify_channels", "plan_datasets", "plan_in_force", "quarantines", "removals",
    "restores", "results", "tokens", "unconfirmed", "usage_samples", "watches",
)  # fmt: skip
COUNTED = (*SEALED, "audit")
_DEFAULTS = {None: None, "0": 0, "1": 1, "''": ""}


Columns = Sequence[tuple[str, Any]]  # names and defaults, sorted


class Sealed(NamedTuple):
    """The result of checking one table: the keys of the rows that do not match their checksum, the number of rows, and
    the expected number."""

    table: str
    broken: Sequence[Sequence[Any]]  # keys of the rows that do not match their checksum
    rows: int
    counted: int | None  # number of rows that this program left; None: the count is gone


def seal(columns: Columns, values: Sequence[Any]) -> int:
    """Return a row's checksum, a signed integer: 64 bits of a SHA-256 over the names and values of the columns that do
    not hold their default."""
    said = [(name, value) for (name, default), value in zip(columns, values, strict=True) if value != default]
    found = hashlib.sha256(ascii(said).encode()).digest()
    return int.from_bytes(found[:8], "big", signed=True)


def learn(connection: Connection) -> Mapping[str, Columns]:
    """Register a checksum function for each table of ``SEALED`` on this connection; return the columns that checksums
    cover, by table."""
    found = {}
    for table in SEALED:
        columns = found[table] = [(column, default) for column, default, _ in _columns(connection, table)]
        connection.create_function(
            f"seal_of_{table}", -1, lambda *values, columns=columns: seal(columns, values), deterministic=True
        )
    return found


def added(
    connection: Connection, columns: Columns, table: str, given: Sequence[str], rows: Sequence[Sequence[Any]]
) -> Iterator[tuple[str, Sequence[Sequence[Any]]]]:
    """Yield the statements that add rows with their numbers and checksums, each with its sets of parameters; nothing if
    there are no rows.

    The names ``given`` must be sorted alphabetically, as ``columns`` are, and lack ``seq``; columns not given hold
    their defaults. The table's trigger for new rows is removed meanwhile, because running it for each row takes as long
    as adding the row.
    """
    if not rows:
        return
    sealed = [each for each in columns if each[0] in {*given, "seq"}]
    names = [column for column, _ in sealed]
    at = names.index("seq")
    certain(names == [*given[:at], "seq", *given[at:]], "columns are given in order")
    first = int(connection.execute(_templates()["row_next"].format(table=table)).fetchone()[0])
    numbered = [(*row[:at], number, *row[at:]) for number, row in enumerate(rows, first)]
    once: Sequence[Sequence[Any]] = [()]
    values = ", ".join("?" for _ in (*names, "seal"))
    filled = {"table": table, "columns": ", ".join(names), "values": values}
    yield _templates()["seal_left_out"].format(**filled), once
    yield _templates()["rows_added"].format(**filled), [(*row, seal(sealed, row)) for row in numbered]
    yield _templates()["rows_counted"].format(**filled), [(len(rows),)]
    yield _filled(connection, "seal_inserted", table), once


def keep(connection: Connection) -> None:
    """Make this connection write checksums and count rows from now on; call it after :func:`learn`."""
    made = [
        _filled(connection, statement, table)
        for table in SEALED
        for statement in ("seal_inserted", "seal_updated", "seal_deleted")
    ]
    made.append(_filled(connection, "chain_inserted", "audit"))
    connection.executescript(";\n".join(made))  # which keeps no statement prepared that runs once


def look(connection: Connection) -> Iterator[Sealed]:
    """Count the rows of every table, check the checksums of the tables in ``SEALED``, and yield each table's result;
    call :func:`learn` on the connection first."""
    for table in COUNTED:
        keys: list[Row] = []
        if table in SEALED:
            keys = connection.execute(_filled(connection, "seal_broken", table)).fetchall()
        count = connection.execute(_filled(connection, "seal_counted", table)).fetchone()
        yield Sealed(table, [tuple(key) for key in keys], *tuple(count))
    for table, counted in (("identity", 1), ("seals", len(COUNTED))):  # of which nothing is counted: it never changes
        count = connection.execute(_filled(connection, "unsealed_counted", table)).fetchone()
        yield Sealed(table, [], count["n"], counted)


def _columns(connection: Connection, table: str) -> list[tuple[str, Any, bool]]:
    """Return each column but the checksum: its name, its default, and whether it is part of the key; sorted by name."""
    rows = connection.execute(_templates()["seal_columns"], (table,)).fetchall()
    return sorted((row["name"], _DEFAULTS[row["dflt_value"]], row["pk"] > 0) for row in rows if row["name"] != "seal")


def _filled(connection: Connection, statement: str, table: str) -> str:
    columns = _columns(connection, table)
    names = [name for name, _, _ in columns]
    key = [name for name, _, part in columns if part]
    return _templates()[statement].format(
        table=table,
        columns=", ".join(names),
        new=", ".join(f"NEW.{name}" for name in names),
        key=", ".join(key),
        here=" AND ".join(f"{name} = NEW.{name}" for name in key),
    )


@cache
def _templates() -> Mapping[str, str]:
    text = Path(__file__).with_name("sql").joinpath("seals_sqlite.sql").read_text(encoding="utf-8")
    return dict(named(text))
