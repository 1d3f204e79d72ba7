"""Unfinished uploads: part files that are hashed while they are written, can be resumed, and have one writer each.

A part is named by the claim and the digest it was announced with, so a repeated upload finds what its predecessor left.
At most one writer owns a part: opening it ends the former writer's ownership, under that writer's lock. A connection
that stalls and continues after its successor began can write nothing. Plain synchronous code that reads and writes
files: call it off the event loop. Safe to call from several threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from training.certain import certain
from training.crashpoint import crashpoint
from training.files import Fs
from training.fleet.store.errors import (
    BadName,
    Fenced,
    Incomplete,
    OffsetMismatch,
    ShareFull,
    StoreError,
    TooManyParts,
    WrongDigest,
    disk_errors,
)
from training.fleet.store.reserve import DiskRoom

NAMING_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")  # of a claim or job
_SHA256 = re.compile(r"[0-9a-f]{64}")
PART_SUFFIX = ".part"
_UPLOAD = re.compile(r".+-(?:[0-9a-f]{64}|undeclared)\.part")  # other files pass through the folder, too
SHARE = 4  # a host's unfinished uploads take at most this fraction of the free space: one in
PARTS_MAX = 3  # of one claim: a bundle packed again may have other bytes


def check_sha256(text: str) -> str:
    """Return the digest ``text``, or raise BadName when it is not 64 lower-case hexadecimal digits."""
    if not _SHA256.fullmatch(text):
        raise BadName(f"{text[:80]!r} is not a SHA-256 in lower-case hexadecimal")
    return text


def part_name(claim_id: str, sha256: str | None) -> str:
    """Return the file name of an upload, made from claim and announced digest. Raises BadName."""
    if not NAMING_ID.fullmatch(claim_id):
        raise BadName(f"{claim_id[:80]!r} is not a claim id")
    return f"{claim_id}-{check_sha256(sha256) if sha256 else 'undeclared'}{PART_SUFFIX}"


def within_share(own_bytes: int, more_bytes: int, free_bytes: int) -> bool:
    """PURE: return True if a host with ``own_bytes`` of uploads may add ``more_bytes``: the host's uploads may take a
    quarter of the sum of ``free_bytes`` and ``own_bytes``."""
    return (own_bytes + more_bytes) * SHARE <= free_bytes + own_bytes


class PartFile:
    """A writer's ownership of a part file. Made by :meth:`Incoming.open`; it must always be closed."""

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
        self.size = offset  # with those that are being written

    def rehash_prefix(self) -> None:
        """Hash the stored bytes, which the former writer wrote and can no longer change."""
        if self.offset:
            with disk_errors("reading a stored prefix"):
                for block in self._fs.read(self._path):
                    self._hash.update(block)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append to the part. Raises Fenced if another writer owns it, StoreFull if the reserve or a share would be
        exceeded."""
        with self._lock:
            handle = self._own()
            self._incoming.grow(self._name, self, len(data))
            with self._room.writing(len(data)), disk_errors("writing an upload"):
                self._fs.write(handle, memoryview(data))
            self._hash.update(data)
            self.offset += len(data)
        crashpoint("store.part.written")

    def seal(self, *, sha256: str | None, size: int | None) -> str:
        """Sync the file and compare it with the announced digest and size; return its SHA-256.

        If bytes are missing, it raises Incomplete and keeps the part for the next try. WrongDigest and a failed sync
        delete the part, because pages that failed to reach the disk may look written afterwards.
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
            if (sha256 is not None and digest != sha256) or (size is not None and self.offset > size):
                self._throw_away()
                raise WrongDigest(f"{self.offset} bytes with SHA-256 {digest} arrived, announced was {sha256}")
            self._sealed = True
            return digest

    def move_to(self, target: Path, *, replacing: bool) -> None:
        """Give a sealed part its final name. The caller must ensure that no other part gets the same name meanwhile."""
        with self._lock:
            handle = self._own()
            certain(self._sealed, "only a sealed part may be published")
            with self._incoming.giving_up(self._name, self):
                self._handle = None
                self._fs.close(handle)  # Windows renames only what is closed
                rename = self._fs.replace if replacing else self._fs.rename_new
                rename(self._path, target)
                crashpoint("store.renamed")

    def drop(self) -> None:
        """Delete the part, unless another writer owns it now."""
        with self._lock:
            if self._handle is not None:
                self._throw_away()

    def close(self) -> None:
        """Close the file: this writer writes nothing more, and its bytes stay for the next writer. A second call does
        nothing."""
        with self._lock:
            handle, self._handle = self._handle, None
            if handle is not None:
                with self._incoming.giving_up(self._name, self), contextlib.suppress(OSError):
                    self._fs.close(handle)

    def _own(self) -> int:
        if self._handle is None:
            raise Fenced("another connection has taken this upload over")
        return self._handle

    def _throw_away(self) -> None:
        handle, self._handle = self._own(), None
        with self._incoming.giving_up(self._name, self), contextlib.suppress(OSError):
            self._fs.close(handle)
            self._fs.unlink(self._path)  # else the sweep removes it


class Incoming:
    """The folder of part files; it gives each part one writer, and limits each host to its share of the free space."""

    def __init__(self, folder: Path, fs: Fs, room: DiskRoom) -> None:
        self.folder = folder
        self.fs = fs
        self.room = room
        self._owners: dict[str, PartFile] = {}
        self._hosts: dict[str, str] = {}  # claim → its host, of parts that are here
        self._beyond: str | None = None  # the last part that exceeds its host's share
        # The sizes of idle parts, by name; None once one of them may have changed. Used for
        # each block that is written, and a folder of many parts is slow to list.
        self._lying: dict[str, int] | None = None
        self._lock = threading.Lock()

    def offset(self, name: str) -> int:
        """Return the stored bytes of an upload; 0 without any."""
        with disk_errors("looking at an upload"):
            return self.fs.size(self.folder / name) or 0

    def open(self, name: str, offset: int, *, host: str | None = None, coming: int = 0) -> PartFile:
        """Take over an upload from byte ``offset``, cut off what follows, and return the part; 0 restarts the upload.

        ``coming`` is how many bytes its writer announces; ``host`` is the host that sends the upload, or None if no
        share applies. Raises OffsetMismatch when fewer bytes are stored, TooManyParts, ShareFull, StoreFull. Reads the
        stored prefix once.
        """
        path = self.folder / name
        while True:
            predecessor = self._owners.get(name)
            if predecessor is not None:
                predecessor.close()  # fenced off; outside our lock: it may be in the middle of a write
            with self._lock, disk_errors("opening an upload"):
                if self._owners.get(name) not in (None, predecessor):
                    continue  # another successor was quicker; fence that one off
                self._lying = None
                stored = self.fs.size(path)
                if offset > (stored or 0):
                    raise OffsetMismatch(offset, stored or 0)
                if host is not None:
                    self._hosts[_claim_of(name)] = host
                self._make_room(name, coming)
                fresh = stored is None
                if fresh:
                    self._make_way(name)
                handle = self.fs.create(path) if fresh else self.fs.reopen(path, offset)
                part = self._owners[name] = PartFile(self, name, handle, offset)
                break
        try:
            part.rehash_prefix()
        except StoreError:
            part.close()
            raise
        return part

    def grow(self, name: str, part: PartFile, more: int) -> None:
        """Count ``more`` bytes that will be written to the part. Raises ShareFull or StoreFull if there is no room."""
        with self._lock:
            self._make_room(name, more)
            part.size = part.offset + more

    def _make_room(self, name: str, more: int) -> None:
        """Let a part grow by ``more`` bytes, or raise ShareFull or StoreFull.

        One part at a time may exceed its host's share while it is being written. Without this exception, a bundle
        larger than a share could never arrive. For the part that exceeds a share, unused parts are deleted if that
        frees enough. The senders of deleted parts upload them again; otherwise many half uploads could block each other
        without end.
        """
        host, free = self._hosts.get(_claim_of(name)), self.room.free()
        if host is not None and not within_share(self._unfinished(host), more, free):
            if self._beyond != name and self._beyond in self._owners:
                raise ShareFull(
                    f"the unfinished uploads of host {host} may take a quarter of what is free here, and another large "
                    "upload goes beyond that now; this upload resumes after that one"
                )
            self._beyond = name
            idle = self._idle(name) if more > free else []
            if sum(size for _, size in idle) >= more - free:
                while idle and more > self.room.free():
                    self._remove(idle.pop(0)[0])
        self.room.check(more)

    def _unfinished(self, host: str) -> int:
        """Return the sum of the bytes of a host's parts."""
        if self._lying is None:
            idle = [name for name in self.fs.names(self.folder) if name not in self._owners]
            self._lying = {name: self.fs.size(self.folder / name) or 0 for name in idle}
        written = {name: part.size for name, part in self._owners.items()}
        parts = {**self._lying, **written}.items()
        return sum(size for name, size in parts if self._hosts.get(_claim_of(name)) == host)

    def _remove(self, path: Path) -> None:
        self._lying = None
        self.fs.unlink(path)

    def _idle(self, name: str) -> list[tuple[Path, int]]:
        """Return the other parts that no upload is writing, with their sizes; the least recently written first."""
        names = [each for each in self.fs.names(self.folder) if _UPLOAD.fullmatch(each)]
        paths = [self.folder / each for each in names if each not in self._owners and each != name]
        return [(each, self.fs.size(each) or 0) for each in sorted(paths, key=self.fs.modified_at)]

    def _make_way(self, name: str) -> None:
        """Delete a claim's least recently written unused part if the claim has PARTS_MAX parts. Raises TooManyParts if
        all of its parts are in use."""
        claim = _claim_of(name)
        parts = [each for each in self.fs.names(self.folder) if _claim_of(each) == claim]
        if len(parts) < PARTS_MAX:
            return
        idle = [self.folder / each for each in parts if each not in self._owners]
        if not idle:
            raise TooManyParts(f"{len(parts)} uploads of this claim are under way; end one first")
        self._remove(min(idle, key=self.fs.modified_at))

    @contextlib.contextmanager
    def giving_up(self, name: str, part: PartFile) -> Iterator[None]:
        """Run the body of this context on a part's file and end its writer's ownership, as one step."""
        with self._lock:
            try:
                yield
            finally:
                self._lying = None
                if self._owners.get(name) is part:
                    del self._owners[name]

    def claims(self) -> set[str]:
        """Return the claims that have a part here; beginnings of the names of other temporary files may be among
        them."""
        with disk_errors("looking at the uploads"):
            return {_claim_of(name) for name in self.fs.names(self.folder)}

    def unclaimed(self) -> set[str]:
        """Return the claims with a part here whose host is unknown; forget the hosts of claims without a part."""
        there = self.claims()
        with self._lock:
            self._hosts = {claim: host for claim, host in self._hosts.items() if claim in there}
            return there - self._hosts.keys()

    def learn(self, hosts: Mapping[str, str]) -> None:
        """Set the hosts of claims whose uploads began before this process; a host that is known already stays."""
        with self._lock:
            self._hosts = {**hosts, **self._hosts}

    def forget(self, claims: Collection[str]) -> int:
        """Delete the unused parts of these claims; return the number of freed bytes."""
        return sum(self._remove_idle(lambda path: _claim_of(path.name) in claims))

    def sweep(self, older_than: float) -> int:
        """Delete unused files last written before ``older_than`` (epoch s); return their number."""
        return len(self._remove_idle(lambda path: self.fs.modified_at(path) < older_than))

    def _remove_idle(self, chosen: Callable[[Path], bool]) -> list[int]:
        """Delete the unused files for which ``chosen`` returns True; return their sizes."""
        sizes = []
        for name in self.fs.names(self.folder):
            path = self.folder / name
            with self._lock, contextlib.suppress(OSError):
                if name not in self._owners and chosen(path):
                    size = self.fs.size(path) or 0
                    self._remove(path)
                    sizes.append(size)
        return sizes


def _claim_of(name: str) -> str:
    return name.rpartition("-")[0]
