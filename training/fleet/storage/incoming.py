"""Uploads on their way in: part files that are hashed while they are written, resumed, and fenced.

A part is named by the claim and the digest it was announced with, so a repeated upload finds what its predecessor
left. At most one writer owns a part: whoever opens it first shuts its predecessor out, under that writer's lock, so
a connection that stalls and wakes up after its successor can write nothing. Plain synchronous code that reads and
writes files: call it off the event loop. Safe to call from several threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

from training.crashpoint import crashpoint
from training.files import Fs
from training.fleet.storage.errors import (
    BadName,
    Fenced,
    Incomplete,
    OffsetMismatch,
    StoreError,
    TooManyParts,
    WrongDigest,
    disk_errors,
)
from training.fleet.storage.room import Room

_CLAIM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
PART_SUFFIX = ".part"
PARTS_MAX = 3  # of one claim: a bundle that was made anew may have other bytes than the one before


def check_sha256(text: str) -> str:
    """The digest itself, or BadName when it is not 64 lower-case hexadecimal digits."""
    if not _SHA256.fullmatch(text):
        raise BadName(f"{text[:80]!r} is not a SHA-256 in lower-case hexadecimal")
    return text


def part_name(claim_id: str, sha256: str | None) -> str:
    """The file name of an upload: one per claim and announced digest."""
    if not _CLAIM.fullmatch(claim_id):
        raise BadName(f"{claim_id[:80]!r} is not a claim id")
    return f"{claim_id}-{check_sha256(sha256) if sha256 else 'undeclared'}{PART_SUFFIX}"


class Part:
    """One writer's hold on one part file. Made by :meth:`Incoming.open`; close it in any case."""

    def __init__(self, incoming: Incoming, name: str, handle: int, offset: int) -> None:
        self._incoming = incoming
        self._fs = incoming.fs
        self._room = incoming.room
        self._name = name
        self._path = incoming.folder / name
        self._handle: int | None = handle
        self._lock = threading.Lock()
        self._hash = hashlib.sha256()
        self._sealed = False
        self.offset = offset  # bytes stored and hashed

    def rehash_prefix(self) -> None:
        """Hash what a predecessor left. Nobody else can write it any more."""
        if self.offset:
            with disk_errors("reading a stored prefix"):
                for chunk in self._fs.read(self._path):
                    self._hash.update(chunk)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append; Fenced when another writer owns the part, StoreFull when the reserve would not hold."""
        with self._lock:
            handle = self._own()
            with self._room.writing(len(data)), disk_errors("writing an upload"):
                self._fs.write(handle, memoryview(data))
            self._hash.update(data)
            self.offset += len(data)
        crashpoint("store.part.written")

    def seal(self, *, sha256: str | None, size: int | None) -> str:
        """Sync the file and hold it against what was announced; returns its SHA-256.

        Incomplete keeps the part for the next try; WrongDigest, and a sync that fails, throw it away: pages that
        failed to reach the disk may look written ever after.
        """
        with self._lock:
            handle = self._own()
            try:
                with disk_errors("syncing an upload"):
                    self._fs.fsync(handle)
            except StoreError:
                self._throw_away()
                raise
            crashpoint("store.part.synced")
            if size is not None and self.offset < size:
                raise Incomplete(self.offset, size)
            digest = self._hash.hexdigest()
            if (sha256 is not None and digest != sha256) or (
                size is not None and self.offset > size
            ):
                self._throw_away()
                raise WrongDigest(
                    f"{self.offset} bytes with SHA-256 {digest} arrived, announced was {sha256}"
                )
            self._sealed = True
            return digest

    def move_to(self, target: Path, *, replacing: bool) -> None:
        """Give a sealed part its final name. The caller lets no two parts race for one name."""
        with self._lock:
            handle = self._own()
            assert self._sealed, "only a sealed part may be published"
            with self._incoming.giving_up(self._name, self):
                self._handle = None
                self._fs.close(handle)  # Windows renames only what is closed
                rename = self._fs.replace if replacing else self._fs.rename_new
                rename(self._path, target)
                crashpoint("store.renamed")

    def drop(self) -> None:
        """Remove the part, unless another writer owns it by now."""
        with self._lock:
            if self._handle is not None:
                self._throw_away()

    def close(self) -> None:
        """Let go. What is stored stays for the next writer. Harmless when closed already."""
        with self._lock:
            handle, self._handle = self._handle, None
            if handle is not None:
                with self._incoming.giving_up(self._name, self), contextlib.suppress(OSError):
                    self._fs.close(handle)

    def fence(self) -> None:
        """Shut this writer out, for a successor: after this call it writes nothing more."""
        with self._lock:
            handle, self._handle = self._handle, None
            if handle is not None:
                with contextlib.suppress(OSError):
                    self._fs.close(handle)

    def _own(self) -> int:
        if self._handle is None:
            raise Fenced("another connection has taken this upload over")
        return self._handle

    def _throw_away(self) -> None:
        handle, self._handle = self._own(), None
        with self._incoming.giving_up(self._name, self), contextlib.suppress(OSError):
            self._fs.close(handle)
            self._fs.unlink(self._path)  # the sweep gets what cannot be removed now


class Incoming:
    """The folder of part files."""

    def __init__(self, folder: Path, fs: Fs, room: Room) -> None:
        self.folder = folder
        self.fs = fs
        self.room = room
        self._owners: dict[str, Part] = {}
        self._lock = threading.Lock()

    def offset(self, name: str) -> int:
        """Bytes stored of an upload; 0 when nothing is."""
        with disk_errors("looking at an upload"):
            return self.fs.size(self.folder / name) or 0

    def open(self, name: str, offset: int) -> Part:
        """Take an upload over from byte ``offset`` on; what is stored beyond is cut off, 0 starts anew.

        Raises OffsetMismatch when fewer bytes are stored, TooManyParts. Reads the stored prefix once.
        """
        path = self.folder / name
        while True:
            predecessor = self._owners.get(name)
            if predecessor is not None:
                predecessor.fence()  # outside our lock: it may be in the middle of a write
            with self._lock, disk_errors("opening an upload"):
                if self._owners.get(name) is not predecessor:
                    continue  # another successor was quicker; shut that one out
                stored = self.fs.size(path)
                if offset > (stored or 0):
                    raise OffsetMismatch(offset, stored or 0)
                fresh = stored is None
                if fresh:
                    self._make_way(name)
                handle = self.fs.create(path) if fresh else self.fs.reopen(path, offset)
                part = self._owners[name] = Part(self, name, handle, offset)
                break
        try:
            part.rehash_prefix()
        except StoreError:
            part.close()
            raise
        return part

    def _make_way(self, name: str) -> None:
        """Remove what a claim began longest ago and nobody writes, so that it never has more than PARTS_MAX parts."""
        claim = name.rpartition("-")[0]
        parts = [each for each in self.fs.names(self.folder) if each.rpartition("-")[0] == claim]
        if len(parts) < PARTS_MAX:
            return
        idle = [self.folder / each for each in parts if each not in self._owners]
        if not idle:
            raise TooManyParts(f"{len(parts)} uploads of this claim are under way; end one first")
        self.fs.unlink(min(idle, key=self.fs.modified_at))

    @contextlib.contextmanager
    def giving_up(self, name: str, part: Part) -> Iterator[None]:
        """Do something to a part's file and end the ownership with it, as one step."""
        with self._lock:
            try:
                yield
            finally:
                if self._owners.get(name) is part:
                    del self._owners[name]

    def claims(self) -> set[str]:
        """The claims that have a part here."""
        with disk_errors("looking at the uploads"):
            return {name.rpartition("-")[0] for name in self.fs.names(self.folder)}

    def forget(self, claims: Collection[str]) -> int:
        """Remove the parts of these claims that nobody writes; the bytes that became free."""
        freed = 0
        for name in self.fs.names(self.folder):
            path = self.folder / name
            with self._lock, contextlib.suppress(OSError):
                if name not in self._owners and name.rpartition("-")[0] in claims:
                    size = self.fs.size(path) or 0
                    self.fs.unlink(path)
                    freed += size
        return freed

    def sweep(self, older_than: float) -> int:
        """Remove the files that nobody writes and that were last written before ``older_than``; returns how many."""
        removed = 0
        for name in self.fs.names(self.folder):
            path = self.folder / name
            with self._lock, contextlib.suppress(OSError):
                if name not in self._owners and self.fs.modified_at(path) < older_than:
                    self.fs.unlink(path)
                    removed += 1
        return removed
