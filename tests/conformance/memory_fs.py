"""A disk in memory that can fail its n-th operation, fill up, and lose power between any two operations.

What survives a power cut follows a weak model on purpose: every unsynced write, cut and change of a name survives or
not on its own, in any combination, whatever the order in which they were made; a write may survive in part. What was
synced survives whole. A rename between folders is two changes of names. A sync of a file that fails has lost what it
was to bring to the disk, and the next one claims success all the same, as file systems do; that of a folder may be
tried again, because a journal that cannot be written stops the file system.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from training.files import BLOCK_BYTES


class PowerCut(BaseException):
    """The machine stops here. Not an Exception: no code may catch it and go on."""


@dataclass
class Inode:
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    unsynced: list[tuple[int, bytes | None]] = field(default_factory=list)  # (where, what | None: cut)
    modified_at: float = 0.0
    lost: bool = False  # a sync failed: what was written is in memory only, for good

    def write(self, at: int, what: bytes) -> None:
        self.data[at : at + len(what)] = what
        self.unsynced.append((at, what))

    def cut(self, size: int) -> None:
        del self.data[size:]
        self.unsynced.append((size, None))

    def sync(self) -> None:
        if not self.lost:
            self.synced = bytes(self.data)
        self.unsynced.clear()

    def survivor(self, chance: random.Random) -> bytes:
        data = bytearray(self.synced)
        for at, what in self.unsynced:
            if chance.random() < 0.5:
                continue
            if what is None:
                del data[at:]
            else:
                torn = what[: chance.randint(0, len(what))] if chance.random() < 0.3 else what
                data.extend(bytes(max(0, at - len(data))))  # a hole reads as zeros
                data[at : at + len(torn)] = torn
        return bytes(data)


Folder = dict[str, "Inode | None"]  # None: a folder, which has an entry of its own


class MemoryFs:
    """The disk. ``fail_at`` counts down changes and syncs; at 0 ``failure`` is raised, once or ``for_ever``."""

    def __init__(self, capacity: int = 10**9) -> None:
        self.capacity = capacity
        self.now = 0.0
        self.operations = 0
        self.fail_at: int | None = None
        self.for_ever = False
        self.failure: BaseException = OSError(errno.EIO, "Input/output error")
        self._folders: dict[Path, Folder] = {}
        self._durable: dict[Path, Folder] = {}
        self._pending: list[tuple[Path, str, Inode | None, bool]] = []  # folder, name, inode, there
        self._handles: dict[int, tuple[Inode, int]] = {}
        self._next_handle = itertools.count(3)

    def heal(self) -> None:
        self.fail_at, self.for_ever = None, False

    def _step(self) -> None:
        self.operations += 1
        if self.fail_at is None:
            return
        self.fail_at -= 1
        if self.fail_at == 0 or (self.for_ever and self.fail_at < 0):
            raise self.failure

    def _entry(self, folder: Path, name: str, inode: Inode | None, there: bool) -> None:
        if there:
            self._folders[folder][name] = inode
        else:
            del self._folders[folder][name]
        self._pending.append((folder, name, inode, there))

    def _file(self, path: Path) -> Inode:
        inode = self._folders.get(path.parent, {}).get(path.name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
        return inode

    # -- the protocol -------------------------------------------------------------------------------------------

    def mkdir(self, path: Path) -> None:
        for folder in [*reversed(path.parents), path]:
            if folder not in self._folders:
                self._step()
                self._folders[folder] = {}
                if folder != folder.parent:
                    self._entry(folder.parent, folder.name, None, True)

    def create(self, path: Path) -> int:
        self._step()
        if path.name in self._folders[path.parent]:
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        inode = Inode(modified_at=self.now)
        self._entry(path.parent, path.name, inode, True)
        return self._open(inode, 0)

    def reopen(self, path: Path, size: int) -> int:
        self._step()
        inode = self._file(path)
        if size != len(inode.data):
            inode.cut(size)
        return self._open(inode, size)

    def _open(self, inode: Inode, at: int) -> int:
        handle = next(self._next_handle)
        self._handles[handle] = (inode, at)
        return handle

    def write(self, handle: int, data: bytes | memoryview) -> None:
        self._step()
        inode, at = self._handles[handle]
        room = self.free_bytes(Path("/"))
        inode.write(at, bytes(data[: max(0, room)]))
        inode.modified_at = self.now
        self._handles[handle] = (inode, at + len(data))
        if len(data) > room:
            raise OSError(errno.ENOSPC, "No space left on device")

    def fsync(self, handle: int) -> None:
        self._sync(self._handles[handle][0])

    def _sync(self, inode: Inode) -> None:
        try:
            self._step()
        except OSError:
            inode.unsynced.clear()
            inode.lost = True
            raise
        inode.sync()

    def close(self, handle: int) -> None:
        del self._handles[handle]

    def read(self, path: Path) -> Iterator[bytes]:
        data = bytes(self._file(path).data)
        for at in range(0, len(data), BLOCK_BYTES):
            yield data[at : at + BLOCK_BYTES]

    def append(self, path: Path, data: bytes) -> None:
        if path.name not in self._folders[path.parent]:
            self.close(self.create(path))
        handle = self._open(self._file(path), len(self._file(path).data))
        try:
            self.write(handle, data)
            self.fsync(handle)
        finally:
            self.close(handle)

    def rename_new(self, source: Path, target: Path) -> None:
        if target.name in self._folders[target.parent]:
            raise FileExistsError(errno.EEXIST, "File exists", str(target))
        self.replace(source, target)

    def replace(self, source: Path, target: Path) -> None:
        self._step()
        inode = self._file(source)
        self._entry(target.parent, target.name, inode, True)
        self._entry(source.parent, source.name, inode, False)

    def sync_file(self, path: Path) -> None:
        self._sync(self._file(path))

    def sync_folder(self, path: Path) -> None:
        self._step()
        for change in self._pending:
            if change[0] == path:
                self._apply(self._durable, *change)
        self._pending = [change for change in self._pending if change[0] != path]

    def unlink(self, path: Path) -> None:
        if path.name in self._folders.get(path.parent, {}):
            self._step()
            self._entry(path.parent, path.name, self._file(path), False)

    def size(self, path: Path) -> int | None:
        inode = self._folders.get(path.parent, {}).get(path.name)
        return None if inode is None else len(inode.data)

    def modified_at(self, path: Path) -> float:
        return self._file(path).modified_at

    def names(self, path: Path) -> list[str]:
        return sorted(self._folders.get(path, {}))

    def free_bytes(self, path: Path) -> int:
        inodes = {id(i): i for entries in self._folders.values() for i in entries.values() if i}
        return self.capacity - sum(len(inode.data) for inode in inodes.values())

    # -- what a test does to the disk ---------------------------------------------------------------------------

    def rot(self, path: Path) -> None:
        """Flip a bit."""
        self._file(path).data[0] ^= 1

    @staticmethod
    def _apply(folders: dict[Path, Folder], folder: Path, name: str, inode: Inode | None, there: bool) -> None:
        entries = folders.setdefault(folder, {})
        if there:
            entries[name] = inode
        else:
            entries.pop(name, None)

    def after_power_cut(self, chance: random.Random) -> MemoryFs:
        """A disk as it may be found when the power is back."""
        entries = {folder: dict(names) for folder, names in self._durable.items()}
        for change in self._pending:
            if chance.random() < 0.5:
                self._apply(entries, *change)
        found = MemoryFs(self.capacity)
        copies: dict[int, Inode] = {}
        found._copy(entries, Path("/"), copies, chance)
        return found

    def _copy(self, entries: dict[Path, Folder], folder: Path, copies: dict[int, Inode], chance: random.Random) -> None:
        self._folders[folder] = {}
        for name, inode in entries.get(folder, {}).items():
            if inode is None:
                self._copy(entries, folder / name, copies, chance)
                self._folders[folder][name] = None
            else:
                if id(inode) not in copies:
                    data = inode.survivor(chance)
                    copies[id(inode)] = Inode(bytearray(data), synced=data)
                self._folders[folder][name] = copies[id(inode)]
        self._durable[folder] = dict(self._folders[folder])
