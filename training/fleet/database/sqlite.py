"""The adapter that implements :class:`training.fleet.database.writer.Database` with SQLite: pragmas, transactions,
migrations, errors.

The database uses WAL, by default with ``synchronous=FULL``, because NORMAL keeps the file sound after a power cut but
may lose acknowledged commits. Every writing transaction is explicit and IMMEDIATE, because a transaction that begins by
reading may fail at its first write, without waiting for the lock.
"""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from training.crashpoint import crashpoint
from training.files import lacks_inodes, settle, to_free
from training.fleet.database import seals
from training.fleet.database.writer import DatabaseError, DatabaseFull, DatabaseLost, OtherShape, Row, statements

SCHEMA_VERSION = 1  # of schema_sqlite.sql; not released yet: it changes without a step in sql/migrations/
_MIN_SQLITE = (3, 37, 0)  # STRICT tables; RETURNING is older
_MANY_ROWS, _PAGES_OF_MANY = 1_000, -32 * 1024  # KiB, as SQLite counts below zero
_STATEMENTS, _READERS_STATEMENTS = 256, 32  # kept prepared: a claim's are many and hurry, a page's wait for nobody
_WAYS_BACK = "`cis490-jobs restore FOLDER --force` or `cis490-jobs rebuild --force`"
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
# Sentences on the database by the first part of an SQLite error's name, each with its remedy. Only a damaged file may
# be replaced by a backup.
_MEANINGS = (
    (
        "SQLITE_BUSY SQLITE_LOCKED",
        "is held by another program, or on a share without locks; it is sound: end that program, or use a local disk",
    ),
    ("SQLITE_READONLY", "cannot be written; it is sound: let this user write to it, its folder and its disk"),
    (
        "SQLITE_CANTOPEN",
        "cannot be opened; its folder must exist and let this user write, or name another file with --db",
    ),
    (
        "SQLITE_IOERR_SHM SQLITE_IOERR_LOCK SQLITE_IOERR_RDLOCK SQLITE_IOERR_UNLOCK SQLITE_PROTOCOL",
        "needs a file system with locks and shared memory; it is sound: keep it on a local disk, which --db names",
    ),
    ("SQLITE_IOERR", "failed with its disk; restart to recover, and look at the disk if that happens again"),
    (
        " ".join(_DAMAGED),
        f"is damaged, or is none; stop the receiver and bring it back with {_WAYS_BACK}, or --db names another",
    ),
)
_SQL = Path(__file__).with_name("sql")
_SCHEMA = "schema_sqlite.sql"


class SqliteDatabase:
    """The database adapter for SQLite: one connection, used by one thread at a time."""

    def __init__(self, path: str | Path, *, synchronous: str = "FULL", read_only: bool = False) -> None:
        """Open or create the file. With ``read_only``, nothing is created or changed, and a receiver may be running.

        Raise DatabaseError, whose text is one sentence, if the file cannot be used as this program's database, or the
        SQLite library is too old.
        """
        if sqlite3.sqlite_version_info < _MIN_SQLITE:
            raise DatabaseError(
                f"SQLite {sqlite3.sqlite_version} is too old, at least 3.37 is needed; use a Python with a newer SQLite"
            )
        self.path = str(path)
        self._log_path = f"{path}-wal"
        self._lock = threading.RLock()
        self._depth = 0
        self._sql = statements()
        if not read_only:
            _make_private(self.path)
        try:
            self.connection = sqlite3.connect(
                _read_only_uri(path) if read_only else self.path,
                uri=read_only,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=_READERS_STATEMENTS if read_only else _STATEMENTS,
            )
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        self._place: _Place | None = None  # of the file, once it is written; in memory there is none …
        self._names: list[str] = []  # … and the id that it holds
        try:
            self._prepare(None if read_only else synchronous)
        except (sqlite3.Error, DatabaseError) as error:
            self.connection.close()
            if isinstance(error, DatabaseError):
                raise
            raise self._unusable(error) from error

    def _unusable(self, error: sqlite3.Error) -> DatabaseError:
        if os.path.exists(self.path) and not os.access(self.path, os.R_OK):  # noqa: PTH110 - a URI, too
            remedy = "run this as the receiver's user or root"
        elif (folder := Path(self.path).absolute().parent).is_dir() and not os.access(folder, os.W_OK):
            remedy = f"the user who runs this must be able to write in {folder}: is it mounted read-only?"
        else:
            return _translated(error, self.path)
        return DatabaseError(f"cannot use the database {self.path}: {error}; {remedy}")

    def _prepare(self, synchronous: str | None) -> None:
        """Set the connection's pragmas, check or create the tables, and begin checksums. For a read-only connection
        ``synchronous`` is None, and nothing is created or written."""
        self.connection.row_factory = sqlite3.Row
        self._pragma("busy_timeout = 5000")
        self._pragma("trusted_schema = OFF")
        self._check_owner()  # before anything is changed: it may not be ours
        if synchronous is None:
            self._pragma("query_only = ON")
            self._require_shape()
        else:
            self._pragma("journal_mode = WAL")
            self._pragma(f"synchronous = {synchronous}")
            self._pragma("foreign_keys = ON")
            self._pragma("mmap_size = 0")
            self._migrate()
            self._pragma("wal_checkpoint(PASSIVE)")  # from here on the file itself names its database
            self._pragma("shrink_memory")  # a first start has every page of the new file in memory
        self._columns = seals.learn(self.connection)
        if synchronous is not None:
            seals.keep(self.connection)
            self._place, self._names = _place_of(self.path), self._named_by(self.connection)
            self._log = _file_of(self._log_path)

    def _pragma(self, pragma: str) -> Any:
        return self.connection.execute(f"PRAGMA {pragma}").fetchone()

    def _check_owner(self) -> None:
        tables = self._pragma("schema_version")[0]  # first: making the tables sets both at once
        if self._pragma("user_version")[0] == 0 and tables > 0:
            raise DatabaseError(f"the database {self.path} belongs to another program; name another file with --db")

    def _migrate(self) -> None:
        """Create the tables, or run the migrations from the file's version to the present one, in one transaction. A
        file of the present or a later version is only checked."""
        if self._pragma("user_version")[0] >= SCHEMA_VERSION:
            self._require_shape()
            return
        self._pragma("foreign_keys = OFF")  # a table being replaced is missing for a moment
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            version = self._pragma("user_version")[0]  # another process may have taken them meanwhile
            for script in _scripts(version):
                _run_script(self.connection, script.read_text(encoding="utf-8"))
            self.connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            if version:
                self._require_shape()
            if self.connection.execute("PRAGMA foreign_key_check").fetchone():
                raise self._other_shape("it names rows that do not exist")
            crashpoint("database.migrated")
            self.connection.execute("COMMIT")
        except BaseException:
            self._try("ROLLBACK")  # SQLite has undone it already when the disk failed
            raise
        self._pragma("foreign_keys = ON")

    def _require_shape(self) -> None:
        """Raise OtherShape, a DatabaseError, unless the file has this program's schema version, columns, indexes and
        views."""
        version = self._pragma("user_version")[0]
        if version != SCHEMA_VERSION:
            raise self._other_shape(f"its version is {version}, this program's is {SCHEMA_VERSION}")
        for difference in self.foreign():
            raise self._other_shape(difference)

    def _other_shape(self, why: str) -> DatabaseError:
        return OtherShape(
            f"the database {self.path} has another shape than this program's and was left as it was ({why}); run "
            "`cis490-jobs rebuild --force`, which renames it and restores the completed jobs from the store"
        )

    def _check_place(self) -> None:
        """Raise DatabaseLost if another program removed or replaced the database file or its log, damaged the database
        file, or wrote another database into that file.

        Without this check, SQLite would continue to write into a file that no later start opens. The log must not be
        left beside a file to which it does not belong, because the next start would write it into that file.
        """
        if self._place is None:
            return
        there, log_is_ours = _place_of(self.path), _file_of(self._log_path) == self._log
        if there == self._place and log_is_ours:
            return
        remedy = f"put the right file there before the next start, or bring it back with {_WAYS_BACK}"
        if there is not None and there[:2] == self._place[:2]:
            names = self._names if there == self._place else self._names_alone()
            if names != self._names:
                what = "another database was written over"
                if names is not None:  # the log stays beside a damaged file: it may be all that is left
                    with contextlib.suppress(OSError):
                        os.truncate(self._log_path, 0)
            elif log_is_ours:
                self._place = there  # this program wrote its log into the file
                return
            else:
                what, remedy = "another program removed or replaced the log (-wal) of", "start the receiver again"
                self._try("PRAGMA wal_checkpoint(TRUNCATE)")  # what the open log holds goes into the file
        else:
            what = "another file is in the place of" if there else "another program removed"
            self._try("PRAGMA wal_checkpoint(TRUNCATE)")  # into the file that was moved away
            # Of a file that has no name any more, nothing else stays. SQLite would let everybody read the new file.
            _make_private(f"{self.path}.kept")
            self._try(f"VACUUM INTO '{str(self.path).replace(chr(39), 2 * chr(39))}.kept'")
            remedy = (
                f"put {self.path}.kept in its place, which has all that was written if the disk had room, "
                f"or bring it back with {_WAYS_BACK}"
            )
        raise DatabaseLost(
            f"{what} the database {self.path} while it was in use, so nothing more is granted or taken in; {remedy}"
        )

    def _names_alone(self) -> list[str] | None:
        """Return the database ids in the file alone, without its log: an empty list if it has no table for them, None
        if it is damaged. If the file cannot be read now, return the id of the database that was opened."""
        uri = f"{Path(self.path).absolute().as_uri()}?mode=ro&immutable=1"
        try:
            with closing(sqlite3.connect(uri, uri=True)) as alone:
                # While a reader holds back the log, only parts of it are written into the file. The file may then be
                # shorter than its header says, which SQLite takes for damage unless this is on.
                alone.execute("PRAGMA writable_schema = ON")
                return self._named_by(alone)
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            if name.startswith(_DAMAGED):
                return None
            return [] if name == "SQLITE_ERROR" else self._names  # the former: it has no such table

    def _named_by(self, connection: sqlite3.Connection) -> list[str]:
        return [row[0] for row in connection.execute(self._sql["database_id"]).fetchall()]

    def copy_to(self, target: Path) -> None:
        """Copy the committed state to the file ``target`` while others write. The copy is complete and durable, or is
        not made.

        An existing ``target`` is replaced. Raise OSError or DatabaseError if the copy fails.
        """
        unfinished = target.with_name(f"{target.name}.part")
        unfinished.unlink(missing_ok=True)
        _make_private(str(unfinished))
        try:
            with closing(sqlite3.connect(unfinished, isolation_level=None)) as copy:
                self.connection.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")  # one file, without companions
                found = copy.execute("PRAGMA integrity_check(1)").fetchone()[0]
        except sqlite3.Error as error:
            unfinished.unlink(missing_ok=True)
            raise _translated(error, self.path) from error
        if found != "ok":
            unfinished.unlink(missing_ok=True)
            raise DatabaseLost(f"the database {self.path} is damaged ({found}); nothing was copied")
        crashpoint("database.copied")
        settle(unfinished, target)

    def damage(self) -> list[str]:
        """Return what SQLite finds wrong with the file: up to 20 damaged pages or indexes, and up to 20 rows that refer
        to missing rows. An empty list means that SQLite finds nothing wrong."""
        try:
            pages = [row[0] for row in self.connection.execute("PRAGMA integrity_check(20)")]
            orphans = self.connection.execute("PRAGMA foreign_key_check").fetchmany(20)
        except sqlite3.Error as error:
            if not getattr(error, "sqlite_errorname", "").startswith(_DAMAGED):
                raise _translated(error, self.path) from error
            return [str(error)]
        found = [page for page in pages if page != "ok"]
        return found + [f"row {row[1]} of {row[0]} names a row of {row[2]} that does not exist" for row in orphans]

    def foreign(self) -> list[str]:
        """Return a clause (``it lacks the view x``) for each column, index and view in which the file differs from this
        program's schema."""
        try:
            wanted, there = _own_shape(), _shape(self.connection)
        except sqlite3.Error as error:
            raise _translated(error, self.path) from error
        return [f"it lacks {each}" for each in sorted(wanted - there)] + [
            f"it has {each}, which is not ours" for each in sorted(there - wanted)
        ]

    def sealed(self) -> list[seals.Sealed]:
        """Count the rows of every table, and check the checksums of those that have them; return a result for each
        table."""
        try:
            return list(seals.look(self.connection))
        except sqlite3.Error as error:
            raise _translated(error, self.path) from error

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let all reads in the ``with`` block see one state of the database, while others write. Use it only on a
        read-only connection."""
        self._execute("BEGIN")
        try:
            yield
        finally:
            self._try("ROLLBACK")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the ``with`` block in BEGIN IMMEDIATE … COMMIT; within another transaction, in a savepoint. Any exception
        in the block undoes its changes and is raised."""
        with self._lock:
            begin, commit, undo = _verbs(self._depth)
            outermost = self._depth == 0
            if outermost:
                self._check_place()
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
            if outermost:
                self._check_place()  # before anybody is answered

    def all(self, statement: str, **params: Any) -> list[Row]:
        with self._lock:
            return self._execute(self._sql[statement], params)[0]

    def one(self, statement: str, **params: Any) -> Row | None:
        rows = self.all(statement, **params)
        # SQLite's own rows compare a name with that of one column after the other, each time.
        return dict(zip(rows[0].keys(), rows[0], strict=True)) if rows else None

    def number(self, statement: str, **params: Any) -> int:
        rows = self.all(statement, **params)
        return int(next(iter(rows[0]))) if rows else 0  # SQLite's own row gives its values

    def run(self, statement: str, **params: Any) -> int:
        with self._lock:
            return self._execute(self._sql[statement], params)[1]

    def many(self, statement: str, params: Sequence[Mapping[str, Any]]) -> None:
        with self._lock, self._room_for(len(params)):
            self._execute(self._sql[statement], params, many=True)

    def add(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        with self._lock, self._room_for(len(rows)):
            for statement, values in seals.added(self.connection, self._columns[table], table, columns, rows):
                self._execute(statement, values, many=True)

    @contextmanager
    def _room_for(self, rows: int) -> Iterator[None]:
        """Use more memory for database pages in the ``with`` block if it writes many rows, because their ids are
        scattered over the indexes."""
        if rows <= _MANY_ROWS:
            yield
            return
        before = self._pragma("cache_size")[0]
        self._pragma(f"cache_size = {_PAGES_OF_MANY}")
        try:
            yield
        finally:
            self._pragma(f"cache_size = {before}")

    def version(self) -> int:
        with self._lock:
            return int(self.connection.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        with self._lock:
            self.connection.close()

    def _execute(self, sql: str, params: Any = (), *, many: bool = False) -> tuple[list[Row], int]:
        """Execute a statement; return its rows and the number of changed rows. With ``many``, execute it once with each
        of the ``params``.

        All rows are read at once, because an open statement keeps its lock, and any step may meet a damaged page.
        """
        try:
            cursor = self.connection.executemany(sql, params) if many else self.connection.execute(sql, params)
            return cursor.fetchall(), cursor.rowcount
        except sqlite3.Error as error:
            raise _translated(error, self.path) from error

    def _try(self, sql: str) -> None:
        """Execute a rollback, a checkpoint or a copy, and ignore SQLite's errors."""
        with contextlib.suppress(sqlite3.Error):
            self.connection.execute(sql)


def named_in(path: Path) -> str | None:
    """Return the database's id from a file, without changing the file; None if the file cannot be read or holds no
    id."""
    with contextlib.suppress(sqlite3.Error), closing(sqlite3.connect(_read_only_uri(path), uri=True)) as connection:
        for (database_id,) in connection.execute(statements()["database_id"]):
            return str(database_id)
    return None


_Place = tuple[int, int, int]  # a file's device and inode, and when it was last written


def _place_of(path: str) -> _Place | None:
    """Return the device, the inode and the time of the last write (ns) of the file with this name; None if there is no
    such file, as for a database in memory."""
    with contextlib.suppress(OSError):
        there = os.stat(path)  # noqa: PTH116 - a URI's path, too
        return there.st_dev, there.st_ino, there.st_mtime_ns
    return None


def _file_of(path: str) -> tuple[int, int] | None:
    """Return the device and inode of the file with this name; None if there is none."""
    return place[:2] if (place := _place_of(path)) else None


def fold_log(path: Path) -> None:
    """Try to write a database's write-ahead log into the database file; ignore SQLite's errors, for instance if the
    file cannot be read."""
    with contextlib.suppress(sqlite3.Error), closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


def _make_private(path: str) -> None:
    """Make the file accessible to its owner only, and create it if it is missing; SQLite gives its companion files the
    same rights.

    An existing file is not opened: closing a database's file would release this process's locks on it.
    """
    if path == ":memory:":
        return
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    with contextlib.suppress(OSError):  # SQLite says what is wrong with the place
        if Path(path).is_file():
            Path(path).chmod(Path(path).stat().st_mode & 0o700)
        else:
            os.close(os.open(path, flags, 0o600))


def _read_only_uri(path: str | Path) -> str:
    """Return a read-only URI of the file. If there is no write-ahead log, the file is not in use, and "immutable" keeps
    SQLite from making one."""
    wal = Path(f"{path}-wal")
    return f"{Path(path).absolute().as_uri()}?{'mode=ro' if wal.exists() else 'mode=ro&immutable=1'}"


def _shape(connection: sqlite3.Connection) -> set[str]:
    """Return phrases that name every table's columns, every index with its table, and every view."""
    listed = connection.execute("PRAGMA table_list").fetchall()
    ours = [(name, kind) for _, name, kind, *_ in listed if not name.startswith("sqlite_")]
    found = {f"the view {name}" for name, kind in ours if kind == "view"}
    for table in [name for name, kind in ours if kind != "view"]:
        columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
        found |= {f"the column {column[1]} of {table}" for column in columns}
        indexes = connection.execute(f"PRAGMA index_list({table})").fetchall()
        found |= {f"the index {index[1]} of {table}" for index in indexes}
    return found


@cache
def _own_shape() -> frozenset[str]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        _run_script(fresh, (_SQL / _SCHEMA).read_text(encoding="utf-8"))
        return frozenset(_shape(fresh))


def _scripts(version: int) -> list[Path]:
    """Return the scripts that bring a file of schema ``version`` (0: empty) up to date, in order.

    The first four digits of a migration's file name are the version that it leads to.
    """
    if version == 0:
        return [_SQL / _SCHEMA]
    return [step for step in sorted(_SQL.glob("migrations/*.sql")) if int(step.name[:4]) > version]


def _verbs(depth: int) -> tuple[str, str, tuple[str, ...]]:
    if depth == 0:
        return "BEGIN IMMEDIATE", "COMMIT", ("ROLLBACK",)
    name = f"s{depth}"
    return f"SAVEPOINT {name}", f"RELEASE {name}", (f"ROLLBACK TO {name}", f"RELEASE {name}")


def _run_script(connection: sqlite3.Connection, script: str) -> None:
    """Execute a script's statements one by one within the migration's transaction, which ``executescript`` would
    commit."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            crashpoint("database.schema")
            statement = ""


def _translated(error: sqlite3.Error, path: str) -> DatabaseError:
    """Convert an error of SQLite to a DatabaseError, whose text says what is wrong with the file at ``path`` and, if
    known, what helps."""
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_FULL" or (name.startswith("SQLITE_CANTOPEN") and lacks_inodes(Path(path))):
        return DatabaseFull(f"the disk of {path} is full; {to_free(Path(path))}, nothing acknowledged was lost")
    kind = DatabaseLost if name.startswith(("SQLITE_IOERR", *_DAMAGED)) else DatabaseError
    for beginnings, meaning in _MEANINGS:
        if name.startswith(tuple(beginnings.split())):
            return kind(f"the database {path} ({name}: {error}) {meaning}")
    return DatabaseError(f"database {path}: {error}")
