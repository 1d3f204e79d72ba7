"""The receiver's disk: a store's files and a database that stop at any operation, fill up, and lose power."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import Any

from conformance.memory_fs import MemoryFs

from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.database.writer import DatabaseFull

ROOM = 10**12


class Crash(BaseException):
    """The receiver stops here. Not an Exception: no code may catch it and go on."""


class Fuse:
    """Counts down the receiver's calls of its surroundings, and stops it at the one that was drawn."""

    def __init__(self) -> None:
        self._left: int | None = None

    def light(self, calls: int) -> None:
        self._left = calls

    @property
    def burns(self) -> bool:
        return self._left is not None

    def put_out(self) -> None:
        self._left = None

    def burn(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self._left = None
                raise Crash


class SimDisk(MemoryFs):
    """The store's files. ``full`` is the operator's nightmare; ``fuse`` may stop the receiver before any change."""

    def __init__(self, fuse: Fuse) -> None:
        super().__init__()
        self.fuse = fuse
        self.full = False

    def _step(self) -> None:
        self.fuse.burn()

    def free_bytes(self, path: Path) -> int:
        return 0 if self.full else ROOM

    def write(self, handle: int, data: bytes | memoryview) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(handle, data)

    def close(self, handle: int) -> None:
        self._handles.pop(handle, None)  # a dead process's files were closed for it

    def process_dies(self) -> None:
        """The kernel closes what was open; everything written is still in its cache."""
        self._handles.clear()

    def power_fails(self, chance: random.Random) -> None:
        """Everything that was not synced survives or not, each on its own."""
        found = self.after_power_cut(chance)
        self._folders, self._durable, self._pending = found._folders, found._durable, []
        self._handles.clear()


class SimDatabase(SqliteDatabase):
    """SQLite in memory, as durable as a file that is synced: what is committed stays, the open transaction does not."""

    def __init__(self, fuse: Fuse) -> None:
        self._fuse: Fuse | None = None  # nothing fails while the schema is made
        super().__init__(":memory:", synchronous="OFF")
        self._fuse = fuse
        self.full = False

    def process_dies(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")
        self._depth = 0

    def _execute(self, sql: str, params: Any = (), *, many: bool = False) -> Any:
        if self._fuse is not None:
            self._fuse.burn()
            if self.full and sql == "COMMIT":  # where what was written reaches the disk
                raise DatabaseFull("the disk of the database is full; free some space")
        return super()._execute(sql, params, many=many)
