"""SQLite behind :class:`training.fleet.database.Database`: pragmas, transactions, migrations, error translation.

WAL with ``synchronous=FULL``: NORMAL keeps the file sound after a power cut but loses acknowledged commits. Every
writing transaction is explicit and IMMEDIATE, because one that reads first and writes later may fail at once.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from training.crashpoint import crashpoint
from training.fleet.database import DatabaseError, DatabaseFull, DatabaseLost, Row, statements

SCHEMA_VERSION = 1
_MIN_SQLITE = (3, 37, 0)  # STRICT tables; RETURNING is older


class SqliteDatabase:
    """One connection, used by one thread at a time."""

    def __init__(self, path: str | Path, *, synchronous: str = "FULL") -> None:
        """Open or create the file.

        Raises DatabaseError in one sentence: not a database, of a newer version, unreadable, a library too old.
        """
        if sqlite3.sqlite_version_info < _MIN_SQLITE:
            raise DatabaseError(
                f"SQLite {sqlite3.sqlite_version} is too old, at least 3.37 is needed; use a newer Python"
            )
        self.path = str(path)
        self._lock = threading.RLock()
        self._depth = 0
        self._sql = statements()
        try:
            self.connection = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False, cached_statements=256
            )
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        try:
            self._prepare(synchronous)
        except sqlite3.Error as error:
            self.connection.close()
            raise self._unusable(error) from error
        except DatabaseError:
            self.connection.close()
            raise

    def _unusable(self, error: sqlite3.Error) -> DatabaseError:
        return DatabaseError(
            f"cannot use the database {self.path}: {error}; name another file with --db, or restore a backup"
        )

    def _prepare(self, synchronous: str) -> None:
        self.connection.row_factory = sqlite3.Row
        self._pragma("busy_timeout = 5000")
        self._check_owner()  # before anything is changed: it may not be ours
        self._pragma("journal_mode = WAL")
        self._pragma(f"synchronous = {synchronous}")
        self._pragma("foreign_keys = ON")
        self._pragma("trusted_schema = OFF")
        self._pragma("mmap_size = 0")
        self._migrate()

    def _pragma(self, pragma: str) -> Any:
        return self.connection.execute(f"PRAGMA {pragma}").fetchone()

    def _check_owner(self) -> None:
        version = self._pragma("user_version")[0]
        if version > SCHEMA_VERSION:
            raise DatabaseError(
                f"the database {self.path} is of version {version}, this program knows {SCHEMA_VERSION}; "
                "use the program that wrote it, or restore a backup"
            )
        if version == 0 and self._pragma("schema_version")[0] > 0:
            raise DatabaseError(
                f"the database {self.path} belongs to another program; name another file with --db"
            )

    def _migrate(self) -> None:
        if self._pragma("user_version")[0] == SCHEMA_VERSION:
            return
        sql = files("training.fleet") / "sql"
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            if self._pragma("user_version")[0] == 0:  # nobody else created it meanwhile
                _run_script(
                    self.connection, (sql / "schema_sqlite.sql").read_text(encoding="utf-8")
                )
                self.connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self.connection.execute("COMMIT")
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """BEGIN IMMEDIATE … COMMIT; inside another one, a savepoint. Any exception undoes it."""
        with self._lock:
            begin, commit, undo = _verbs(self._depth)
            self._execute(begin)
            self._depth += 1
            try:
                yield
            except BaseException:
                self._depth -= 1
                for verb in undo:
                    self._try(verb)
                raise
            self._depth -= 1
            try:
                self._execute(commit)
            except DatabaseError:
                for verb in undo:
                    self._try(verb)
                raise

    def all(self, statement: str, **params: Any) -> list[Row]:
        with self._lock:
            return self._execute(self._sql[statement], params)[0]

    def one(self, statement: str, **params: Any) -> Row | None:
        rows = self.all(statement, **params)
        return rows[0] if rows else None

    def run(self, statement: str, **params: Any) -> int:
        with self._lock:
            return self._execute(self._sql[statement], params)[1]

    def close(self) -> None:
        with self._lock:
            self.connection.close()

    def _execute(self, sql: str, params: Any = ()) -> tuple[list[Row], int]:
        """The rows and how many were changed. Drained to the end: an open statement keeps its lock, and a
        damaged page may be met at any step."""
        try:
            cursor = self.connection.execute(sql, params)
            return cursor.fetchall(), cursor.rowcount
        except sqlite3.Error as error:
            raise _translated(error, self.path) from error

    def _try(self, sql: str) -> None:
        """Undo as far as the connection still can; the error that led here is the one to report."""
        try:
            self.connection.execute(sql)
        except sqlite3.Error:
            return


def _verbs(depth: int) -> tuple[str, str, tuple[str, ...]]:
    if depth == 0:
        return "BEGIN IMMEDIATE", "COMMIT", ("ROLLBACK",)
    name = f"s{depth}"
    return f"SAVEPOINT {name}", f"RELEASE {name}", (f"ROLLBACK TO {name}", f"RELEASE {name}")


def _run_script(connection: sqlite3.Connection, script: str) -> None:
    """``executescript`` would commit the migration's transaction; this does not."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            crashpoint("database.schema")
            statement = ""


def _translated(error: sqlite3.Error, path: str) -> DatabaseError:
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith("SQLITE_FULL"):
        return DatabaseFull(
            f"the disk of {path} is full; free some space, nothing acknowledged was lost"
        )
    if name.startswith(("SQLITE_IOERR", "SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return DatabaseLost(f"the database {path} failed ({name}: {error}); restart to recover")
    return DatabaseError(f"database {path}: {error}")
