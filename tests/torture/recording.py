"""SQLite on a disk that is watched: every write, cut, sync and removal is noted, and the n-th of them can fail.

The queue's production code (``SqliteDatabase`` and all above it) runs on APSW, whose virtual file system may be
written in Python; :func:`watched` puts it in the place of the standard library's ``sqlite3.connect``. What is found
after a crash is read by the standard library's SQLite, as the receiver does.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import apsw

_names = itertools.count()


class Op(NamedTuple):
    """One thing done to a file: ``open``, ``write`` (at, data), ``cut`` (to the size ``at``), ``sync``, ``delete``."""

    kind: str
    file: str  # its name without the folder
    at: int = 0
    data: bytes = b""


class Failing:
    """Counts operations and fails the n-th, once or ``for_ever``, as a broken or a full disk does."""

    def __init__(self) -> None:
        self.seen = 0
        self.fail_at: int | None = None
        self.for_ever = False
        self.full = False  # the disk is full: writes fail, and nothing else does
        self.failed = 0

    def arm(self, n: int | None, *, for_ever: bool = False, full: bool = False) -> None:
        self.seen, self.fail_at, self.for_ever, self.full = 0, n, for_ever, full

    def step(self, kind: str) -> None:
        if self.full and kind not in ("write", "open"):
            return
        self.seen += 1
        if self.fail_at is None or self.seen < self.fail_at:
            return
        if self.seen == self.fail_at or self.for_ever:
            self.failed += 1
            raise _error(kind, full=self.full)


def _error(kind: str, *, full: bool) -> Exception:
    if full:
        return apsw.exception_for(apsw.SQLITE_FULL)
    codes = {
        "write": apsw.SQLITE_IOERR_WRITE,
        "sync": apsw.SQLITE_IOERR_FSYNC,
        "cut": apsw.SQLITE_IOERR_TRUNCATE,
        "delete": apsw.SQLITE_IOERR_DELETE,
        "open": apsw.SQLITE_CANTOPEN,
    }
    return apsw.exception_for(codes[kind])


class WatchedDisk(apsw.VFS):
    """The machine's disk, with a notebook."""

    def __init__(self) -> None:
        self.name = f"watched-{next(_names)}"
        self.ops: list[Op] = []
        self.failing = Failing()
        super().__init__(self.name, "")

    def note(self, op: Op) -> None:
        """Before it is done: an operation that fails is not noted, whatever it may have left."""
        self.failing.step(op.kind)
        self.ops.append(op)

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        file = Path(path).name if path else "unnamed"
        self.note(Op("open", file))
        return _WatchedFile(self, file, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self.note(Op("delete", Path(filename).name))
        super().xDelete(filename, syncdir)


class _WatchedFile(apsw.VFSFile):
    def __init__(self, disk: WatchedDisk, file: str, name: Any, flags: list[int]) -> None:
        self._disk, self._file = disk, file
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.note(Op("write", self._file, offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, size: int) -> None:
        self._disk.note(Op("cut", self._file, size))
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:
        self._disk.note(Op("sync", self._file))
        super().xSync(flags)


class _Row(dict[str, Any]):
    """By name, and by position like ``sqlite3.Row``, whose values it yields."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values())

    def __getitem__(self, key: Any) -> Any:
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)


class _Result:
    def __init__(self, rows: list[_Row], rowcount: int) -> None:
        self._rows, self.rowcount = rows, rowcount

    def fetchall(self) -> list[_Row]:
        return self._rows

    def fetchone(self) -> _Row | None:
        return self._rows[0] if self._rows else None


class _Connection:
    """As much of ``sqlite3.Connection`` as the adapter uses."""

    row_factory: Any = None

    def __init__(self, path: str, vfs: str) -> None:
        with _as_sqlite3():
            self._connection = apsw.Connection(path, vfs=vfs)

    def execute(self, sql: str, params: Any = ()) -> _Result:
        with _as_sqlite3():
            cursor = self._connection.cursor()
            cursor.execute(sql, dict(params) if isinstance(params, Mapping) else params)
            try:
                names = [column[0] for column in cursor.get_description()]
            except apsw.ExecutionCompleteError:
                names = []
            rows = [_Row(zip(names, values, strict=True)) for values in cursor]
            return _Result(rows, self._connection.changes())

    def executemany(self, sql: str, params: Iterable[Any]) -> _Result:
        return _Result([], sum(self.execute(sql, each).rowcount for each in params))

    def executescript(self, sql: str) -> None:
        with _as_sqlite3():
            self._connection.execute(sql)

    def create_function(self, name: str, narg: int, func: Callable[..., Any], *, deterministic: bool) -> None:
        self._connection.create_scalar_function(name, func, narg, deterministic=deterministic)

    def close(self) -> None:
        with contextlib.suppress(apsw.Error):  # the standard library's says nothing either
            self._connection.close()


@contextlib.contextmanager
def _as_sqlite3() -> Iterator[None]:
    """APSW's errors in the words of the standard library."""
    try:
        yield
    except apsw.Error as error:
        code = getattr(error, "extendedresult", 0) or getattr(error, "result", 0)
        name = apsw.mapping_extended_result_codes.get(code) or apsw.mapping_result_codes.get(code & 0xFF, "")
        integrity = isinstance(error, apsw.ConstraintError)
        kind = sqlite3.IntegrityError if integrity else sqlite3.OperationalError
        translated = kind(str(error))
        translated.sqlite_errorname = name
        translated.sqlite_errorcode = code
        raise translated from error


@contextlib.contextmanager
def watched(disk: WatchedDisk) -> Iterator[None]:
    """In this block the adapter opens its databases on ``disk``."""

    def connect(path: str, **_: Any) -> _Connection:
        return _Connection(path, disk.name)

    connector: Callable[..., Any] = connect
    with mock.patch.object(sqlite3, "connect", connector):
        yield
