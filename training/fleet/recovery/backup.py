"""Copies of a receiver's state, made while it works.

::

    <folder>/backup.json                         says that this is a folder of backups
    <folder>/store/<kind>/<sha256>/…             bundles with provenance and reports, shared by all snapshots
    <folder>/store/logs/<job>/…                  trainers' output, shared as well
    <folder>/snapshots/<moment>/training_jobs.db the database, as of one moment
    <folder>/snapshots/<moment>/contents.json    what belongs to it, with sizes and digests
    <folder>/snapshots/<moment>/keys/…           the authority, if asked for
    <folder>/datasets/…                          the data sets and their names, as of the newest backup

The database comes first: a bundle is published before its row is committed, so whatever that copy names can still be
copied afterwards, unless retention takes it away just then, of which a note beside it tells. A snapshot gets its name
when all of it is durable, so that a half one is never taken for one. Bundles are copied and not linked: a bit that
flips in the store must not flip in its backup.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from training.clock import Clock
from training.files import Fs, LocalFs, file_sha256
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.database.writer import DatabaseError
from training.fleet.recovery.datasets import Copied, copy_datasets
from training.fleet.recovery.doctor import Known, known_of
from training.fleet.recovery.doctor_store import Delivery
from training.fleet.recovery.files import PART, copy_file, copy_reports, holds, plainly, stamp, sync_way, write_file
from training.fleet.recovery.logs import KnownLogs, copy_log
from training.fleet.recovery.owner import acting_as, owner_of, reading
from training.fleet.recovery.reconcile import sidecar
from training.fleet.service.backed_up import note_backup
from training.fleet.service.state import DATABASE, RecoveryError, State
from training.fleet.store.artifacts import PROVENANCE, REMOVED, Artifact, read_removed
from training.fleet.store.datasets import DatasetStore
from training.fleet.store.logs import LogFile
from training.locking import LockedError, exclusive

MARK, STORE, SNAPSHOTS, CONTENTS, KEYS, DATASETS = (
    "backup.json",
    "store",
    "snapshots",
    "contents.json",
    "keys",
    "datasets",
)
FORMAT = 1
KEEP = 10
KEY_FILES = ("ca.key", "ca.pem")
Progress = Callable[[str, int, int], object]


class StoredFile(msgspec.Struct, frozen=True):
    """A bundle that belongs to a snapshot; ``path`` is relative to the store."""

    path: str
    size: int
    sha256: str
    job: str  # the first that delivered it, for people


class StoredLogFile(msgspec.Struct, frozen=True):
    """A file of output that belongs to a snapshot."""

    job_id: str
    attempt: int
    first: int
    count: int
    raw_bytes: int
    bytes: int
    sha256: str
    job: str  # its name, for people

    def file(self) -> LogFile:
        return LogFile(self.job_id, self.attempt, self.first, self.count, self.raw_bytes, self.bytes, self.sha256)


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """``contents.json``."""

    format: int
    made_at: float  # epoch seconds
    database_sha256: str
    jobs: dict[str, int]  # status → number of jobs
    files: list[StoredFile]
    logs: list[StoredLogFile] = []
    lost: list[str] = []  # bundles in the database but not in the store
    removed: list[StoredFile] = []  # bundles that retention had taken away: provenance and a note alone
    keys: bool = False
    database_id: str | None = None  # None in backups of databases that had none


@dataclass
class Made:
    """The result of a backup."""

    name: str
    contents: Contents
    copied: int = 0  # bundles
    known: int = 0  # bundles that an earlier backup had brought
    bytes_copied: int = 0
    mended: list[str] = field(default_factory=list)  # good here, damaged or gone in the store
    datasets: Copied = field(default_factory=Copied)


def snapshots(folder: Path) -> list[str]:
    """List the complete snapshots, oldest first."""
    found = folder / SNAPSHOTS
    names = [each.name for each in found.iterdir()] if found.is_dir() else []
    return sorted(name for name in names if not name.endswith(PART))


def read_contents(folder: Path, name: str) -> Contents:
    """Read a snapshot's contents; RecoveryError when it cannot be read."""
    path = folder / SNAPSHOTS / name / CONTENTS
    try:
        contents = msgspec.json.decode(path.read_bytes(), type=Contents)
    except OSError as error:
        raise RecoveryError(f"cannot read {path}: {error.strerror}; choose another with --snapshot") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise RecoveryError(f"{path} is damaged; choose another with --snapshot") from None
    if contents.format != FORMAT:
        raise RecoveryError(f"{path} is of a newer version; use the program that made it")
    return contents


@dataclass
class Backup:
    """One folder of backups."""

    folder: Path
    fs: Fs = field(default_factory=LocalFs)

    def make(
        self,
        state: State,
        clock: Clock,
        *,
        with_keys: bool = False,
        deep: bool = False,
        keep: int = KEEP,
        progress: Progress = lambda *_: None,
    ) -> Made:
        """Add a snapshot of ``state``, beside a running receiver. ``deep`` re-hashes the bundles of earlier ones.

        Raises RecoveryError; earlier snapshots are whole in any case.
        """
        if state.models.resolve() in [self.folder.resolve(), *self.folder.resolve().parents]:
            raise RecoveryError(f"{self.folder} lies in the store itself; choose another folder")
        with plainly(f"the backup into {self.folder}", "earlier backups are untouched"):
            _live(state).close()  # before anything is made: a refusal leaves no folder
            self._open()
            try:
                with exclusive(self.folder / f"{MARK}.lock"):
                    made = self._make(state, clock, with_keys, deep, progress)
                    made.datasets = self._datasets(state, progress)
                    self._prune(keep)
                with acting_as(owner_of(state.db)):
                    note_backup(state.db, made.contents.made_at)
            except LockedError:
                raise RecoveryError(f"another backup into {self.folder} is being made") from None
        return made

    def _datasets(self, state: State, progress: Progress) -> Copied:
        shelved = DatasetStore(state.datasets, reading(owner_of(state.db), self.fs))
        return copy_datasets(shelved, DatasetStore(self.folder / DATASETS, self.fs), progress)

    def _open(self) -> None:
        """Make sure that this is a folder of backups, or may become one."""
        mark = self.folder / MARK
        if self.fs.size(mark) is not None:
            return
        begun = self.fs.names(self.folder / SNAPSHOTS)  # none of the first, which may have been cut off here
        if begun or set(self.fs.names(self.folder)) - {SNAPSHOTS, mark.name + PART}:
            raise RecoveryError(f"{self.folder} is not empty and holds no backups; choose a folder of its own")
        new = [each for each in (self.folder, *self.folder.parents) if not each.exists()]
        self.fs.mkdir(self.folder / SNAPSHOTS)
        write_file(self.fs, mark, msgspec.json.encode({"format": FORMAT}) + b"\n")
        self.fs.sync_folder(self.folder)
        for each in new or [self.folder]:
            self.fs.sync_folder(each.parent)

    def _make(self, state: State, clock: Clock, with_keys: bool, deep: bool, progress: Progress) -> Made:
        now = clock.now()
        name = self._name(stamp(now))
        unfinished = self.folder / SNAPSHOTS / (name + PART)
        for left in (self.folder / SNAPSHOTS).glob(f"*{PART}"):
            shutil.rmtree(left)
        self.fs.mkdir(unfinished)
        progress("database", 0, 1)
        known, jobs = _copy_database(state, unfinished / DATABASE)
        files: list[StoredFile] = []
        lost = [f"what job {job} names as its bundle" for _, job in known.nameless]
        contents = Contents(
            format=FORMAT,
            made_at=now,
            database_sha256=file_sha256(unfinished / DATABASE, self.fs),
            jobs=jobs,
            files=files,
            logs=[],
            lost=lost,
            keys=with_keys and self._keys(state, unfinished),
            database_id=known.database_id,
        )
        made = Made(name, contents)
        contents.logs.extend(
            self._logs(state, known.logs, deep, made, progress)
        )  # first: their rows may let go of them
        files.extend(self._bundles(state, known.deliveries, deep, made, progress))
        write_file(self.fs, unfinished / CONTENTS, msgspec.json.encode(contents) + b"\n")
        self.fs.sync_folder(unfinished)
        self.fs.rename_new(unfinished, unfinished.with_name(name))
        self.fs.sync_folder(unfinished.parent)
        return made

    def _name(self, moment: str) -> str:
        """Make a name after all others, also when the clock went back or two are made in a second."""
        last = max(snapshots(self.folder), default="")
        if moment > last:
            return moment
        base, _, number = last.partition("-")
        return f"{base}-{int(number or 1) + 1:03}"

    def _keys(self, state: State, unfinished: Path) -> bool:
        there = [name for name in KEY_FILES if self.fs.size(state.tls / name) is not None]
        # Not with root's rights: through a link, a restore would give the receiver's user other files.
        source_fs = reading(owner_of(state.db), self.fs)
        for name in there:
            copy_file(self.fs, state.tls / name, unfinished / KEYS / name, source_fs=source_fs)
        if there:
            self.fs.sync_folder(unfinished / KEYS)
        return len(there) == len(KEY_FILES)

    # -- output -------------------------------------------------------------------------------------------------

    def _logs(
        self, state: State, known: KnownLogs, deep: bool, made: Made, progress: Progress
    ) -> Iterator[StoredLogFile]:
        for done, log in enumerate(known.stored):
            progress("output", done, len(known.stored))
            outcome = copy_log(self.fs, state.models, self.folder / STORE, self.folder, log.file, deep=deep)
            if outcome not in ("known", "copied"):
                made.contents.lost.append(f"{log.what} {outcome}")
                continue
            made.bytes_copied += log.file.bytes if outcome == "copied" else 0
            yield StoredLogFile(**asdict(log.file), job=log.name)

    # -- bundles ------------------------------------------------------------------------------------------------

    def _bundles(
        self, state: State, deliveries: list[Delivery], deep: bool, made: Made, progress: Progress
    ) -> Iterator[StoredFile]:
        whole = sum({each.artifact.path: each.artifact.size for each in deliveries}.values())
        done, seen = 0, set[str]()
        for delivery in deliveries:
            artifact = delivery.artifact
            if artifact.path in seen:
                continue
            seen.add(artifact.path)
            file = StoredFile(artifact.path, artifact.size, artifact.artifact_id, delivery.name)
            if delivery.gone is not None or self._went(state, artifact):
                made.contents.removed.append(file)
                self._note(state, artifact)
            elif self._bundle(state, delivery, deep, made):
                yield file
            self._sidecars(state, delivery, deep, made)
            sync_way(self.fs, (self.folder / STORE / artifact.path).parent, self.folder)
            done += artifact.size
            progress("bundles", done, whole)

    def _bundle(self, state: State, delivery: Delivery, deep: bool, made: Made) -> bool:
        """Copy a bundle; True when the backup has it now, else its loss is noted."""
        artifact = delivery.artifact
        source, target = state.models / artifact.path, self.folder / STORE / artifact.path
        if holds(self.fs, target, artifact.size, artifact.artifact_id if deep else None):
            made.known += 1
            if not self._sound(source, target, artifact, deep):
                made.mended.append(delivery.what)
            return True
        if self.fs.size(source) is None:
            made.contents.lost.append(f"{delivery.what} is not in the store")
            return False
        if copy_file(self.fs, source, target, sha256=artifact.artifact_id) is None:
            made.contents.lost.append(f"{delivery.what} is damaged in the store")
            return False
        made.copied += 1
        made.bytes_copied += artifact.size
        return True

    def _went(self, state: State, artifact: Artifact) -> bool:
        """Return True when retention took a bundle away after the database was copied."""
        if self.fs.size(state.models / artifact.path) is not None:
            return False
        return read_removed(self.fs, state.models, artifact) is not None

    def _note(self, state: State, artifact: Artifact) -> None:
        """Copy the note of a removal."""
        source = (state.models / artifact.path).with_name(REMOVED)
        if self.fs.size(source) is not None:
            copy_file(self.fs, source, (self.folder / STORE / artifact.path).with_name(REMOVED))

    def _sound(self, source: Path, target: Path, artifact: Artifact, deep: bool) -> bool:
        """Return True when the store has what the backup has.

        It is read again with ``deep``, or when it was written to since.
        """
        if self.fs.size(source) != artifact.size:
            return False
        read = deep or self.fs.modified_at(source) > self.fs.modified_at(target)
        return not read or file_sha256(source, self.fs) == artifact.artifact_id

    def _sidecars(self, state: State, delivery: Delivery, deep: bool, made: Made) -> None:
        """Copy a bundle's provenance and reports, but never a damaged file over a good one."""
        folder = Path(delivery.artifact.path).parent / PROVENANCE
        for name in self.fs.names(state.models / folder):
            source, target = state.models / folder / name, self.folder / STORE / folder / name
            body = b"".join(self.fs.read(source))
            if isinstance(sidecar(delivery.artifact, name, body), str):
                made.contents.lost.append(f"the provenance {name} of {delivery.what} is damaged")
            elif self.fs.size(target) is None or b"".join(self.fs.read(target)) != body:
                copy_file(self.fs, source, target)
        here = self.folder / STORE / folder
        if self.fs.names(here):
            self.fs.sync_folder(here)
        made.contents.lost.extend(
            f"the report {name[:12]} of {delivery.what} is damaged"
            for name in copy_reports(self.fs, state.models, self.folder / STORE, delivery.artifact, deep=deep)
        )

    def _prune(self, keep: int) -> None:
        """Forget the oldest snapshots. Bundles stay: the store never removes one either."""
        for name in snapshots(self.folder)[: -max(1, keep)]:
            path = self.folder / SNAPSHOTS / name
            self.fs.replace(path, path.with_name(name + PART))
            shutil.rmtree(path.with_name(name + PART))


def _live(state: State) -> SqliteDatabase:
    """Open the database for reading; RecoveryError when that fails."""
    if not state.db.exists():
        raise RecoveryError(f"there is no database at {state.db}; name its folder with --state-dir")
    try:
        return SqliteDatabase(state.db, read_only=True)
    except DatabaseError as error:
        raise RecoveryError(f"{error}; no backup was made") from None


def _copy_database(state: State, target: Path) -> tuple[Known, dict[str, int]]:
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
