"""The artifact store: bundles named by their content, and an index that can always be rebuilt.

::

    <root>/database.json                                  the id of the database that it belongs to
    <root>/index.jsonl                                    one line an artifact, derived from the database
    <root>/incoming/<claim>-<sha256>.part                 uploads on their way in
    <root>/logs/<job>/…                                   trainers' output (store/logs.py)
    <root>/<model>_<mode>/<sha256>/bundle.tar.zst         an artifact; its id is the SHA-256 of these bytes
    <root>/<model>_<mode>/<sha256>/provenance/<job>-<attempt>.json
    <root>/<model>_<mode>/<sha256>/reports/<sha256>.json  a trainer's report, named by its own bytes
    <root>/<model>_<mode>/<sha256>/removed.json           when and why retention took the bundle away

The order of steps must not change, because it makes a crash harmless: write and hash the part → sync it → compare
length and digest → rename → sync every folder on the way → (the caller commits) → append to the index. A crash between
any two steps leaves at worst an unnamed part or bundle, or an index that lacks a line, never a row whose bundle is
missing. All methods do synchronous file work; call them from any thread except the event loop's.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import msgspec

from training.crashpoint import crashpoint
from training.files import Fs, LocalFs, file_sha256, replace_whole, sync_ways
from training.fleet.store.errors import BadMark, BadName, DamagedArtifact, NotStored, disk_errors
from training.fleet.store.incoming import NAMING_ID, PART_SUFFIX, Incoming, PartFile, check_sha256, part_name
from training.fleet.store.index import IndexRow, StoreIndex
from training.fleet.store.logs import LogStore
from training.fleet.store.provenance import BrokenSeal, sealed, unsealed
from training.fleet.store.reserve import DiskRoom
from training.fleet.store.store_id import MARK, read_mark, write_mark
from training.frozen import frozen
from training.strict_json import Json

BUNDLE = "bundle.tar.zst"
INDEX = "index.jsonl"
INCOMING = "incoming"
PROVENANCE, REPORTS = "provenance", "reports"
REMOVED = "removed.json"
RESERVE_BYTES = 256 * 1024**2  # below this much free space no job is granted and no upload begun
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_KIND = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}_[a-z0-9][a-z0-9.-]{0,63}")


@frozen
class Artifact:
    """A bundle in the store, with its model, mode and id."""

    artifact_id: str  # SHA-256 of its bytes, hexadecimal
    model: str
    mode: str
    size: int  # bytes

    @property
    def path(self) -> str:
        """Return the bundle's path relative to the store's root, with forward slashes."""
        return f"{_kind(self.model, self.mode)}/{check_sha256(self.artifact_id)}/{BUNDLE}"

    @property
    def place(self) -> str:
        """Return the artifact's folder, relative to the store's root."""
        return self.path.rpartition("/")[0]

    @classmethod
    def at(cls, place: str) -> Artifact:
        """Return the artifact whose folder, relative to the store's root, is ``place``, with size 0 because its size is
        unknown."""
        kind, _, artifact_id = place.rpartition("/")
        model, _, mode = kind.rpartition("_")
        return cls(artifact_id, model, mode, 0)

    def index_row(self, job_id: str, attempt: int, stored_at: float, gone: tuple[float, str] | None = None) -> IndexRow:
        """Return the index line; the arguments must be of the attempt that delivered the artifact first. The argument
        ``gone`` is the time and the reason of the bundle's deletion, or None if the bundle is there."""
        row = IndexRow(**asdict(self), job_id=job_id, attempt=attempt, stored_at=stored_at, path=self.path)
        return row if gone is None else msgspec.structs.replace(row, removed_at=gone[0], removed_why=gone[1])


@frozen
class Removed:
    """A bundle that retention deleted, when, and why."""

    artifact: Artifact
    at: float
    why: str


class ArtifactStore:
    """A folder of bundles. One process owns it at a time.

    If fewer than ``reserve_bytes`` of disk space would stay free, the store takes no new upload, and no further block
    of one.
    """

    def __init__(self, root: Path, fs: Fs | None = None, *, reserve_bytes: int = RESERVE_BYTES) -> None:
        self.root = root
        self._fs: Fs = LocalFs() if fs is None else fs
        self.room = DiskRoom(root, self._fs, reserve_bytes)
        self._publishing = threading.Lock()
        with disk_errors(f"preparing {root}"):
            self._fs.mkdir(root / INCOMING)
            self._fs.sync_folder(root)
            self._fs.sync_folder(root.parent)
        self.incoming = Incoming(root / INCOMING, self._fs, self.room)
        self.index = StoreIndex(root / INDEX, root / INCOMING, self._fs)
        self.logs = LogStore(root, self._fs)

    # -- its database -------------------------------------------------------------------------------------------

    def marked(self) -> str | None:
        """Return the id of the database to which the store belongs; None if the store has no mark. Raises BadMark, and
        StoreUnavailable if the mark cannot be read."""
        return read_mark(self._fs, self.root)

    def mark(self, database_id: str) -> None:
        """Mark the store durably as belonging to this database."""
        with contextlib.suppress(BadMark):
            if self.marked() == database_id:
                return
        temporary = self.root / INCOMING / f"{MARK}{PART_SUFFIX}"
        write_mark(self._fs, self.root, temporary, database_id)

    # -- room ---------------------------------------------------------------------------------------------------

    def has_room(self, incoming_bytes: int = 0) -> bool:
        """Return True if the reserve of free space would still be free after ``incoming_bytes`` more."""
        return self.room.has(incoming_bytes)

    def disk_free_bytes(self) -> int:
        """Return the free space on the store's disk, including the reserve; raises StoreError."""
        with disk_errors("asking for free space"):
            return self._fs.free_bytes(self.root)

    # -- uploads ------------------------------------------------------------------------------------------------

    def offset(self, claim_id: str, sha256: str | None) -> int:
        """Return how many bytes of a claim's upload are stored, where the next writer resumes; 0 if no digest was
        declared."""
        return self.incoming.offset(part_name(claim_id, sha256)) if sha256 else 0

    def open_part(
        self, claim_id: str, sha256: str | None, *, offset: int = 0, host: str | None = None, coming: int = 0
    ) -> PartFile:
        """Take over an upload at ``offset`` (0 restarts it) and return its part; the former writer can write no more.

        The argument ``host`` is the sender, which announces ``coming`` bytes. A host's unfinished uploads must stay
        within the host's share of the free space; one upload at a time, of all hosts, may exceed the share. The stored
        prefix is hashed again. Raises OffsetMismatch, TooManyParts, StoreFull, ShareFull, StoreUnavailable, BadName.
        """
        name = part_name(claim_id, sha256)
        return self.incoming.open(name, offset, host=host, coming=coming)

    def publish(self, part: PartFile, sha256: str, *, model: str, mode: str) -> Artifact:
        """Make a sealed part (``sha256`` is what ``seal`` returned) the artifact with that id, durably.

        If an equal bundle exists, it is hashed again and kept; if its bytes are damaged, it is replaced. When the
        method returns, the bundle survives a power cut.
        """
        artifact = Artifact(sha256, model, mode, part.offset)
        target = self.root / artifact.path
        with self._publishing, disk_errors("publishing an artifact"):
            self._fs.mkdir(target.parent)
            there = self._fs.size(target) is not None
            if there and file_sha256(target, self._fs) == sha256:
                part.drop()
                self._make_durable(target)
            else:
                part.move_to(target, replacing=there)
                sync_ways(self._fs, [target], self.root)
            note = target.with_name(REMOVED)
            if self._fs.size(note) is not None:  # it is back
                self._fs.unlink(note)
                self._fs.sync_folder(note.parent)
        crashpoint("store.published")
        return artifact

    def confirm(self, artifact_id: str, *, model: str, mode: str) -> Artifact:
        """Hash a stored artifact again, and make it durable; called when a worker announces its upload once more.

        A crash after the rename may have interrupted its first publication. Raises NotStored or DamagedArtifact.
        """
        artifact = self.verify(artifact_id, model=model, mode=mode)
        with self._publishing, disk_errors("publishing an artifact"):
            self._make_durable(self.root / artifact.path)
        return artifact

    def put_aside(self, artifact: Artifact) -> None:
        """Rename a damaged bundle, so that it can be uploaded again; its bytes are kept for inspection."""
        target = self.root / artifact.path
        with self._publishing, disk_errors("renaming a damaged artifact"):
            self._fs.replace(target, target.with_name(f"{BUNDLE}.damaged"))
            sync_ways(self._fs, [target], self.root)

    # -- artifacts ----------------------------------------------------------------------------------------------

    def find(self, artifact_id: str, *, model: str, mode: str) -> Artifact | None:
        """Return an artifact without reading its bytes; None if it is not in the store."""
        with disk_errors("looking for an artifact"):
            size = self._fs.size(self.root / Artifact(artifact_id, model, mode, 0).path)
        return None if size is None else Artifact(artifact_id, model, mode, size)

    def verify(self, artifact_id: str, *, model: str, mode: str) -> Artifact:
        """Hash an artifact's bytes again and return it. Raises NotStored, or DamagedArtifact if the bytes do not match
        the artifact's id."""
        artifact = self.find(artifact_id, model=model, mode=mode)
        if artifact is None:
            raise NotStored(f"no artifact {artifact_id} is stored for {model} {mode}; upload it first")
        with disk_errors("reading an artifact"):
            digest = file_sha256(self.root / artifact.path, self._fs)
        if digest != artifact_id:
            raise DamagedArtifact(f"{artifact.path} holds bytes with SHA-256 {digest}; upload it again")
        return artifact

    def open(self, artifact: Artifact) -> BinaryIO:
        """Open an artifact's bundle for reading. Raises NotStored."""
        try:
            return (self.root / artifact.path).open("rb")
        except OSError as error:
            raise NotStored(f"{artifact.path} cannot be read: {error.strerror}") from error

    def artifacts(self) -> Iterator[Artifact]:
        """Yield every bundle in the store, even one that no row names.

        The folder's name does not show where the model ends and the mode begins: the part after the last underscore is
        taken for the mode.
        """
        for kind in self._fs.names(self.root):
            model, _, mode = kind.rpartition("_")
            if not (_NAME.fullmatch(model) and _NAME.fullmatch(mode)):
                continue
            for sha256 in self._fs.names(self.root / kind):
                try:
                    artifact = self.find(sha256, model=model, mode=mode)
                except BadName:
                    continue
                if artifact is not None:
                    yield artifact

    # -- retention ----------------------------------------------------------------------------------------------

    def note_removed(self, removed: Removed) -> None:
        """Write a durable note that a bundle will be deleted, with the facts that a rebuild needs."""
        artifact = removed.artifact
        body = {"artifact_id": artifact.artifact_id, "size": artifact.size, "at": removed.at, "why": removed.why}
        target = (self.root / artifact.path).with_name(REMOVED)
        with self._publishing, disk_errors("noting a removal"):
            self._write(target, f"{artifact.artifact_id}.{REMOVED}", sealed(body))

    def removed_note(self, artifact: Artifact) -> Removed | None:
        """Return the note that says when and why retention deletes a bundle; None if there is none, or a damaged
        one."""
        return read_removed(self._fs, self.root, artifact)

    def remove(self, artifact: Artifact) -> None:
        """Delete the bundle's name; programs that have the file open can still read it. The deletion is durable after
        :meth:`settle_removed`."""
        with self._publishing, disk_errors("removing an artifact"):
            self._fs.unlink(self.root / artifact.path)

    def settle_removed(self, artifact: Artifact) -> None:
        with disk_errors("removing an artifact"):
            self._fs.sync_folder((self.root / artifact.path).parent)

    def removed(self) -> Iterator[Removed]:
        """Yield the deleted bundles that have an undamaged note."""
        for kind in self._fs.names(self.root):
            for sha256 in self._fs.names(self.root / kind) if _KIND.fullmatch(kind) else ():
                try:
                    artifact = Artifact.at(f"{kind}/{sha256}")
                    there = self._fs.size(self.root / artifact.path) is not None
                except BadName:
                    continue
                if not there and (found := self.removed_note(artifact)) is not None:
                    yield found

    # -- provenance ---------------------------------------------------------------------------------------------

    def write_provenance(self, artifact: Artifact, *, job_id: str, attempt: int, record: Json) -> Path:
        """Write a durable file that says how an attempt produced this bundle; return the file's path. Call it before
        the commit that accepts the bundle.

        Writing the same attempt again replaces its file, so a repeated request is harmless.
        """
        if not NAMING_ID.fullmatch(job_id) or attempt < 0:
            raise BadName(f"{job_id[:80]!r} attempt {attempt} cannot name a provenance file")
        body = {**asdict(artifact), "job_id": job_id, "attempt": attempt, **record}
        name = f"{job_id}-{attempt}.json"
        target = (self.root / artifact.path).parent / PROVENANCE / name
        with self._publishing, disk_errors("writing a provenance file"):
            self._write(target, name, sealed(body))
        return target

    # -- reports ------------------------------------------------------------------------------------------------

    def write_report(self, artifact: Artifact, body: bytes) -> str:
        """Store a report durably beside its bundle; return its SHA-256, which names it. A stored report is rewritten
        only if it is damaged. Call it before writing the provenance that names the report. The report's content is not
        checked here.
        """
        digest = hashlib.sha256(body).hexdigest()
        target = self.root / report_path(artifact, digest)
        with self._publishing, disk_errors("writing a report"):
            if self._fs.size(target) == len(body) and file_sha256(target, self._fs) == digest:
                self._make_durable(target)
            else:
                self._write(target, target.name, body)
        return digest

    def report(self, artifact: Artifact, digest: str) -> bytes:
        """Return a report's bytes; raises NotStored, or DamagedArtifact when the bytes do not match ``digest``."""
        path = report_path(artifact, digest)
        try:
            body = b"".join(self._fs.read(self.root / path))
        except OSError as error:
            raise NotStored(f"the report {path} cannot be read: {error.strerror}") from error
        if hashlib.sha256(body).hexdigest() != digest:
            raise DamagedArtifact(
                f"the report {path} is not what was stored; `cis490-jobs get` fetches the bundle, which has it"
            )
        return body

    # -- files --------------------------------------------------------------------------------------------------

    def _write(self, target: Path, name: str, body: bytes) -> None:
        """Write a file durably, through a temporary file called ``name``."""
        self._fs.mkdir(target.parent)
        replace_whole(self._fs, self.root / INCOMING / f"{name}{PART_SUFFIX}", target, [body])
        sync_ways(self._fs, [target], self.root)

    def _make_durable(self, target: Path) -> None:
        self._fs.sync_file(target)
        sync_ways(self._fs, [target], self.root)


def report_path(artifact: Artifact, digest: str) -> str:
    """Return the path of a report relative to the store's root, with forward slashes."""
    return f"{artifact.path.rpartition('/')[0]}/{REPORTS}/{check_sha256(digest)}.json"


def read_removed(fs: Fs, root: Path, artifact: Artifact) -> Removed | None:
    """Return the note of a deleted bundle; None if there is none, or a damaged one."""
    try:
        said = unsealed(b"".join(fs.read((root / artifact.path).with_name(REMOVED))))
        if said["artifact_id"] != artifact.artifact_id:
            return None
        size = Artifact(artifact.artifact_id, artifact.model, artifact.mode, int(said["size"]))
        return Removed(size, float(said["at"]), str(said["why"]))
    except (OSError, BrokenSeal, KeyError, TypeError, ValueError):
        return None


def _kind(model: str, mode: str) -> str:
    for name in (model, mode):
        if not _NAME.fullmatch(name):
            raise BadName(f"{name[:80]!r} cannot name a folder of the store")
    return f"{model}_{mode}"
