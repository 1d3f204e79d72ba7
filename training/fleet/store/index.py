"""``index.jsonl``: one line an artifact, appended after the artifact's commit, and rebuilt from the database when index
and database differ.

The receiver decides nothing by the index. The index shows people and scripts the store's content without the database.
"""

import hashlib
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from training.files import Fs, file_sha256, replace_whole
from training.fleet.store.errors import disk_errors
from training.fleet.store.incoming import PART_SUFFIX
from training.frozen import frozen


class IndexRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the index: the artifact, and the attempt that delivered it first."""

    artifact_id: str
    model: str
    mode: str
    job_id: str
    attempt: int
    size: int  # bytes
    stored_at: float  # epoch seconds
    path: str  # relative to the store's root
    removed_at: float | None = None  # when retention took the bundle away …
    removed_why: str | None = None  # … and why

    def line(self) -> bytes:
        """Return the row as a line of the file, newline included."""
        return msgspec.json.encode(self) + b"\n"


@frozen
class IndexRepair:
    """The result of a repair: what was changed to make the index equal to the database's rows."""

    cut_bytes: int  # of a last line that a crash had torn
    rebuilt: bool
    rows: int


class StoreIndex:
    """The file ``index.jsonl``; one thread writes it at a time."""

    def __init__(self, path: Path, temporary_folder: Path, fs: Fs) -> None:
        self._path = path
        self._temporary = temporary_folder / f"index{PART_SUFFIX}"
        self._fs = fs
        self._lock = threading.Lock()
        self._torn = False  # a failed append may have left half a line
        self.repairs = 0

    def append(self, row: IndexRow, repairs: int | None = None) -> bool:
        """Add a committed artifact's line by one synced write, after cutting off half a line that a failure left;
        return True. ``repairs``, if given, is the number of repairs before the commit. If another repair followed, the
        file may have the line already: then nothing is added, and False is returned."""
        with self._lock, disk_errors("appending to the index"):
            if repairs not in (None, self.repairs):
                return False
            if self._torn:
                self._cut_torn_line()
            self._torn = True
            self._fs.append(self._path, row.line())
            self._torn = False
            return True

    def repair(self, rows: Iterable[IndexRow]) -> IndexRepair:
        """Make the file equal to the database's ``rows``, which are in the order of their commits; return what was
        changed.

        An incomplete last line is cut off; a file with any other difference is replaced.
        """
        with self._lock, disk_errors("repairing the index"):
            self.repairs += 1
            cut = self._cut_torn_line()
            count, digest = 0, hashlib.sha256()

            def lines() -> Iterator[bytes]:
                nonlocal count
                for row in rows:
                    line = row.line()
                    digest.update(line)
                    count += 1
                    yield line

            def differs() -> bool:
                if self._fs.size(self._path) is None:
                    return count > 0
                return file_sha256(self._path, self._fs) != digest.hexdigest()

            rebuilt = replace_whole(self._fs, self._temporary, self._path, lines(), differs)
            if rebuilt:
                self._fs.sync_folder(self._path.parent)
            self._torn = False
        return IndexRepair(cut, rebuilt, count)

    def _cut_torn_line(self) -> int:
        """Cut the file after its last newline; return the number of bytes cut."""
        size = self._fs.size(self._path)
        if not size:
            return 0
        whole = position = 0
        for block in self._fs.read(self._path):
            newline = block.rfind(b"\n")
            if newline >= 0:
                whole = position + newline + 1
            position += len(block)
        if whole != size:
            handle = self._fs.reopen(self._path, whole)
            try:
                self._fs.fsync(handle)
            finally:
                self._fs.close(handle)
        return size - whole
