"""Copies of a receiver's state, made while it works: the database, and each file of the store by its content.

::

    <folder>/backup.json                         says that this is a folder of backups
    <folder>/content/ab/<sha256>                 files of the store, shared by all snapshots
    <folder>/snapshots/<moment>/training_jobs.db the database, as of one moment
    <folder>/snapshots/<moment>/contents.json    the files that belong to it, with their digests
    <folder>/snapshots/<moment>/keys/…           the authority, if asked for
    <folder>/datasets/…                          the data sets and their names, as of the newest backup

The database comes first: a bundle is published before its row is committed, so everything that copy names can still be
copied afterwards, unless retention deletes it just then and leaves a note in its place. A snapshot gets its name when
all of it is durable, so that a half one is never taken for one.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from training.clock import Clock
from training.files import Fs, LocalFs, file_sha256
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.database.writer import DatabaseError
from training.fleet.recovery.datasets import CopyResult, copy_datasets
from training.fleet.recovery.doctor import KnownTables, known_of
from training.fleet.recovery.doctor_store import StoredBundle
from training.fleet.recovery.files import PART, copy_file, plainly, stamp, sync_ways, write_file
from training.fleet.recovery.owner import acting_as, owner_of, reading
from training.fleet.recovery.reconcile import sidecar
from training.fleet.service.backed_up import note_backup
from training.fleet.service.state import DATABASE, Deployment, RecoveryError
from training.fleet.store.artifacts import BUNDLE, PROVENANCE, REMOVED, REPORTS, read_removed
from training.fleet.store.datasets import DatasetStore
from training.locking import LockedError, exclusive

MARK, CONTENT, SNAPSHOTS, CONTENTS, KEYS, DATASETS = (
    "backup.json",
    "content",
    "snapshots",
    "contents.json",
    "keys",
    "datasets",
)
FORMAT = b'{"format":2}\n'
KEEP = 10
KEY_FILES = ("ca.key", "ca.pem")
Progress = Callable[[str, int, int], object]


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """``contents.json``."""

    made_at: float  # epoch seconds
    database_id: str
    database_sha256: str
    jobs: dict[str, int]  # status → number of jobs
    files: dict[str, str]  # path in the store → SHA-256
    lost: list[str]  # what the database names and neither store nor backup has whole
    keys: bool

    @property
    def bundles(self) -> int:
        return sum(path.endswith(f"/{BUNDLE}") for path in self.files)


@dataclass
class Made:
    """The result of a backup."""

    name: str
    contents: Contents
    copied: int  # bundles
    bytes_copied: int
    datasets: CopyResult = field(default_factory=CopyResult)


def snapshots(folder: Path) -> list[str]:
    """List the complete snapshots, oldest first. RecoveryError for a folder of another form."""
    mark, found = folder / MARK, folder / SNAPSHOTS
    if mark.exists() and mark.read_bytes() != FORMAT:
        raise RecoveryError(f"{folder} holds backups of another form; use the program that made them")
    names = [each.name for each in found.iterdir()] if found.is_dir() else []
    return sorted(name for name in names if not name.endswith(PART))


def read_contents(folder: Path, name: str) -> Contents:
    """Read a snapshot's contents; RecoveryError when it cannot be read."""
    path = folder / SNAPSHOTS / name / CONTENTS
    try:
        return msgspec.json.decode(path.read_bytes(), type=Contents)
    except OSError as error:
        raise RecoveryError(f"cannot read {path}: {error.strerror}; choose another with --snapshot") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise RecoveryError(f"{path} is damaged; choose another with --snapshot") from None


def content_path(folder: Path, sha256: str) -> Path:
    return folder / CONTENT / sha256[:2] / sha256


@dataclass
class _Taken:
    """The files of one snapshot, taken from a store. ``before``: those of the last one; ``deep`` hashes its copies."""

    folder: Path
    store: Path
    fs: Fs
    deep: bool
    before: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    copied: int = 0
    bytes_copied: int = 0

    def named(self, path: str, sha256: str, what: str) -> None:
        """Take a file that is named by its content; a damaged one is never copied."""
        source, target = self.store / path, content_path(self.folder, sha256)
        if not self._has(sha256):
            if self.fs.size(source) is None:
                self.lost.append(f"{what} is not in the store")
                return
            if copy_file(self.fs, source, target, sha256=sha256) is None:
                self.lost.append(f"{what} is damaged in the store")
                return
            self.copied += path.endswith(f"/{BUNDLE}")
            self.bytes_copied += self.fs.size(target) or 0
        self.files[path] = sha256

    def read(self, path: str, sound: Callable[[bytes], bool], what: str) -> None:
        """Take a small file; in place of a damaged or missing one that of the last snapshot."""
        there = self.fs.size(self.store / path) is not None
        body = b"".join(self.fs.read(self.store / path)) if there else b""
        if there and sound(body):
            self.named(path, hashlib.sha256(body).hexdigest(), what)
        elif path in self.before and self._has(self.before[path]):
            self.files[path] = self.before[path]
        else:
            self.lost.append(f"{what} is damaged")

    def names(self, folder: Path) -> Iterator[str]:
        """List the files of a folder in the store, and those that the last snapshot had of it."""
        there = {(folder / name).as_posix() for name in self.fs.names(self.store / folder)}
        there |= {path for path in self.before if Path(path).parent == folder}
        return (path for path in sorted(there) if path.endswith(".json"))

    def _has(self, sha256: str) -> bool:
        path = content_path(self.folder, sha256)
        return self.fs.size(path) is not None and (not self.deep or file_sha256(path, self.fs) == sha256)

    def bundle(self, delivery: StoredBundle) -> None:
        """Take a bundle, or the note that retention took it away; and its other files."""
        artifact, what = delivery.artifact, delivery.what
        folder = Path(artifact.path).parent
        note = (folder / REMOVED).as_posix()
        went = self.fs.size(self.store / artifact.path) is None and read_removed(self.fs, self.store, artifact)
        if delivery.gone is None and not went:
            self.named(artifact.path, artifact.artifact_id, what)
        elif self.fs.size(self.store / note) is not None:
            self.read(note, bool, f"the note of {what}")
        for path in self.names(folder / REPORTS):
            digest = Path(path).stem
            self.named(path, digest, f"the report {digest[:12]} of {what}")
        for path in self.names(folder / PROVENANCE):
            name = Path(path).name
            self.read(
                path,
                lambda body, name=name: not isinstance(sidecar(artifact, name, body), str),  # type: ignore[misc]
                f"the provenance {name} of {what}",
            )


@dataclass
class Backup:
    """One folder of backups."""

    folder: Path
    fs: Fs = field(default_factory=LocalFs)

    def make(
        self,
        state: Deployment,
        clock: Clock,
        *,
        with_keys: bool = False,
        deep: bool = False,
        keep: int = KEEP,
        progress: Progress = lambda *_: None,
    ) -> Made:
        """Add a snapshot of ``state``, beside a running receiver. ``deep`` re-hashes the files of earlier ones.

        Raises RecoveryError; earlier snapshots are whole in any case.
        """
        if state.models.resolve() in [self.folder.resolve(), *self.folder.resolve().parents]:
            raise RecoveryError(f"{self.folder} is inside the store itself; choose another folder")
        with plainly(f"the backup into {self.folder}", "earlier backups are untouched"):
            _live(state).close()  # before anything is made: a refusal leaves no folder
            self._open()
            try:
                with exclusive(self.folder / f"{MARK}.lock"):
                    made = self._make(state, clock, with_keys, deep, progress)
                    shelved = DatasetStore(state.datasets, reading(owner_of(state.db), self.fs))
                    made.datasets = copy_datasets(shelved, DatasetStore(self.folder / DATASETS, self.fs), progress)
                    self._prune(keep)
                with acting_as(owner_of(state.db)):
                    note_backup(state.db, made.contents.made_at)
            except LockedError:
                raise RecoveryError(f"another backup into {self.folder} is being made") from None
        return made

    def _open(self) -> None:
        """Make sure that this is a folder of backups, or may become one."""
        mark = self.folder / MARK
        snapshots(self.folder)  # refuses another form
        if self.fs.size(mark) is not None:
            return
        # Nothing is there, or what a first backup left that was cut off here.
        if self.fs.names(self.folder / SNAPSHOTS) or set(self.fs.names(self.folder)) - {SNAPSHOTS, mark.name + PART}:
            raise RecoveryError(f"{self.folder} is not empty and holds no backups; choose a folder of its own")
        new = [each for each in (self.folder, *self.folder.parents) if not each.exists()]
        self.fs.mkdir(self.folder / SNAPSHOTS)
        write_file(self.fs, mark, FORMAT)
        self.fs.sync_folder(self.folder)
        for each in new or [self.folder]:
            self.fs.sync_folder(each.parent)

    def _make(self, state: Deployment, clock: Clock, with_keys: bool, deep: bool, progress: Progress) -> Made:
        now, earlier = clock.now(), snapshots(self.folder)
        name = self._name(stamp(now), max(earlier, default=""))
        unfinished = self.folder / SNAPSHOTS / (name + PART)
        for left in (self.folder / SNAPSHOTS).glob(f"*{PART}"):
            shutil.rmtree(left)
        self.fs.mkdir(unfinished)
        progress("database", 0, 1)
        known, jobs = _copy_database(state, unfinished / DATABASE)
        taken = _Taken(self.folder, state.models, self.fs, deep, self._before(earlier))
        taken.lost += [f"what job {job} names as its bundle" for _, job in known.nameless]
        for log in known.logs.stored:  # first: their rows may let go of them
            taken.named(log.file.path, log.file.sha256, log.what)
        bundles = {each.artifact.path: each for each in reversed(known.deliveries)}
        for number, delivery in enumerate(bundles.values()):
            progress("bundles", number, len(bundles))
            taken.bundle(delivery)
        paths = [content_path(self.folder, sha256) for sha256 in taken.files.values()]
        sync_ways(self.fs, paths, self.folder)
        contents = Contents(
            made_at=now,
            database_id=str(known.database_id),
            database_sha256=file_sha256(unfinished / DATABASE, self.fs),
            jobs=jobs,
            files=taken.files,
            lost=taken.lost,
            keys=with_keys and self._keys(state, unfinished),
        )
        write_file(self.fs, unfinished / CONTENTS, msgspec.json.encode(contents) + b"\n")
        self.fs.sync_folder(unfinished)
        self.fs.rename_new(unfinished, unfinished.with_name(name))
        self.fs.sync_folder(unfinished.parent)
        return Made(name, contents, taken.copied, taken.bytes_copied)

    def _before(self, earlier: list[str]) -> dict[str, str]:
        try:
            return read_contents(self.folder, earlier[-1]).files if earlier else {}
        except RecoveryError:
            return {}

    @staticmethod
    def _name(moment: str, last: str) -> str:
        """Make a name after all others, also when the clock went back or two are made in a second."""
        if moment > last:
            return moment
        base, _, number = last.partition("-")
        return f"{base}-{int(number or 1) + 1:03}"

    def _keys(self, state: Deployment, unfinished: Path) -> bool:
        there = [name for name in KEY_FILES if self.fs.size(state.tls / name) is not None]
        # Not with root's rights: through a link, a restore would give the receiver's user other files.
        source_fs = reading(owner_of(state.db), self.fs)
        for name in there:
            copy_file(self.fs, state.tls / name, unfinished / KEYS / name, source_fs=source_fs)
        if there:
            self.fs.sync_folder(unfinished / KEYS)
        return len(there) == len(KEY_FILES)

    def _prune(self, keep: int) -> None:
        """Forget the oldest snapshots. Their files stay, as the work of a later restore."""
        for name in snapshots(self.folder)[: -max(1, keep)]:
            path = self.folder / SNAPSHOTS / name
            self.fs.replace(path, path.with_name(name + PART))
            shutil.rmtree(path.with_name(name + PART))


def _live(state: Deployment) -> SqliteDatabase:
    """Open the database for reading; RecoveryError when that fails."""
    if not state.db.exists():
        raise RecoveryError(f"there is no database at {state.db}; name its folder with --state-dir")
    try:
        return SqliteDatabase(state.db, read_only=True)
    except DatabaseError as error:
        raise RecoveryError(f"{error}; no backup was made") from None


def _copy_database(state: Deployment, target: Path) -> tuple[KnownTables, dict[str, int]]:
    """Copy the database, and read from the copy what belongs to it."""
    try:
        live = _live(state)
        try:
            live.copy_to(target)
        finally:
            live.close()
        copy = SqliteDatabase(target, read_only=True)
        try:
            return known_of(copy), {row["status"]: int(row["n"]) for row in copy.all("counts")}
        finally:
            copy.close()
    except DatabaseError as error:
        raise RecoveryError(f"{error}; no backup was made") from None
