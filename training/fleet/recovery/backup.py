"""Backups of a receiver's state, made while it works: the database, and each file of the store by its content.

::

    <folder>/backup.json                         says that this is a folder of backups
    <folder>/content/ab/<sha256>                 files of the store, shared by all snapshots
    <folder>/snapshots/<moment>/training_jobs.db the database, as of one moment
    <folder>/snapshots/<moment>/contents.json    the files that belong to it, with their digests
    <folder>/snapshots/<moment>/keys/…           the authority, if asked for
    <folder>/datasets/…                          the data sets and their names, as of the newest backup

The database comes first: a bundle is published before its row is committed, so everything that copy names can still be
copied afterwards, unless retention deletes it just then and leaves a note in its place. A snapshot gets its name only
when all of it is durable, so that an incomplete one is never used. A restore works in the opposite order: bundles
first, then the database, so that at every moment a row's bundle is there. Nothing is deleted: an old database is
renamed, an undamaged bundle that the backup lacks is kept, and finished work that the copy of the database lacks is
restored from its provenance.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from training.clock import Clock
from training.files import Fs, LocalFs, file_sha256, replace_whole, sync_ways
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.database.writer import OtherShape
from training.fleet.recovery.datasets import CopyResult, copy_datasets
from training.fleet.recovery.doctor import known_of
from training.fleet.recovery.doctor_store import StoredBundle
from training.fleet.recovery.files import PART, Progress, copy_file, holding, plainly, put_database, stamp
from training.fleet.recovery.owner import acting_as, owner_of, reader_of, reading
from training.fleet.recovery.reconcile import Recovery, known_bundles, take_over
from training.fleet.service.backed_up import note_backup
from training.fleet.service.state import DATABASE, Deployment, RecoveryError
from training.fleet.store.artifacts import BUNDLE, PROVENANCE, REMOVED, REPORTS, ArtifactStore, read_removed
from training.fleet.store.datasets import DatasetStore
from training.fleet.store.provenance import BrokenSeal, unsealed
from training.fleet.store.store_id import another_database, read_mark
from training.locking import LockedError, exclusive

MARK, CONTENT, SNAPSHOTS = "backup.json", "content", "snapshots"
CONTENTS, KEYS, DATASETS = "contents.json", "keys", "datasets"
FORMAT = b'{"format":3}\n'
KEY_FILES = ("ca.key", "ca.pem")  # the certificate last: it says that all is there


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``contents.json``."""

    made_at: float  # epoch seconds
    database_id: str
    database_sha256: str
    jobs: dict[str, int]  # status → number of jobs
    files: dict[str, str]  # path in the store → SHA-256
    lost: list[str]  # what the database names and neither store nor backup has whole
    keys: dict[str, str]  # file → SHA-256

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
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecoveryError(f"{path} cannot be read ({error}); choose another with --snapshot") from None


def content_path(folder: Path, sha256: str) -> Path:
    return folder / CONTENT / sha256[:2] / sha256


@dataclass
class _Taken:
    """Copies the files of one snapshot of a store. ``before``: the files of the previous snapshot; ``deep``: present
    copies are hashed again."""

    folder: Path
    store: Path
    fs: Fs
    deep: bool
    before: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    copied: int = 0
    bytes_copied: int = 0

    def named(self, path: str, sha256: str | None, what: str) -> None:
        """Copy a file with this content; a damaged file is never copied."""
        copy, there = content_path(self.folder, sha256 or "none"), self._in_store(path)
        if self.fs.size(copy) is None or (self.deep and file_sha256(copy, self.fs) != sha256):
            if not (there and sha256 and copy_file(self.fs, self.store / path, copy, sha256=sha256)):
                self.lost.append(f"{what} is {'damaged' if there else 'not'} in the store")
                return
            self.copied += path.endswith(f"/{BUNDLE}")
            self.bytes_copied += self.fs.size(copy) or 0
        self.files[path] = str(sha256)

    def sealed(self, path: str, what: str) -> None:
        """Copy a file that contains its own digest; if it is damaged or missing, use the last snapshot's."""
        try:
            body = b"".join(self.fs.read(self.store / path))
            unsealed(body)
            sha256: str | None = hashlib.sha256(body).hexdigest()
        except (FileNotFoundError, BrokenSeal):
            sha256 = self.before.get(path)
        self.named(path, sha256, what)

    def bundle(self, delivery: StoredBundle) -> None:
        """Copy a bundle, or the note that retention deleted it; and the bundle's other files."""
        artifact, what = delivery.artifact, delivery.what
        went = not self._in_store(artifact.path) and read_removed(self.fs, self.store, artifact) is not None
        if delivery.gone is None and not went:
            self.named(artifact.path, artifact.artifact_id, what)
        elif self._in_store(f"{artifact.place}/{REMOVED}"):
            self.sealed(f"{artifact.place}/{REMOVED}", f"the note of {what}")
        for path in self._below(f"{artifact.place}/{REPORTS}"):
            self.named(path, Path(path).stem, f"the report {Path(path).stem[:12]} of {what}")
        for path in self._below(f"{artifact.place}/{PROVENANCE}"):
            self.sealed(path, f"the provenance {Path(path).name} of {what}")

    def _below(self, folder: str) -> list[str]:
        """List the files of a folder in the store, and the last snapshot's files of that folder."""
        names = {f"{folder}/{name}" for name in self.fs.names(self.store / folder)}
        names |= {path for path in self.before if path.rpartition("/")[0] == folder}
        return sorted(path for path in names if path.endswith(".json"))

    def _in_store(self, path: str) -> bool:
        return self.fs.size(self.store / path) is not None


@dataclass
class Backup:
    """A folder of backups."""

    folder: Path
    fs: Fs = field(default_factory=LocalFs)
    progress: Progress = lambda *_: None

    def make(
        self, state: Deployment, clock: Clock, *, with_keys: bool = False, deep: bool = False, keep: int = 10
    ) -> Made:
        """Add a snapshot of ``state``, while a receiver may be running. ``deep`` re-hashes the files of earlier ones.

        Raises RecoveryError; earlier snapshots stay complete in any case.
        """
        if state.models.resolve() in [self.folder.resolve(), *self.folder.resolve().parents]:
            raise RecoveryError(f"{self.folder} is inside the store itself; choose another folder")
        owner = owner_of(state.db)
        with plainly(f"the backup into {self.folder}", "earlier backups are untouched"), _opened(state.db) as live:
            self._open()  # not before the database: a refusal leaves no folder
            try:
                with exclusive(self.folder / f"{MARK}.lock"):
                    made = self._make(live, state, clock.now(), with_keys, deep)
                    shelved = DatasetStore(state.datasets, reading(owner, self.fs))
                    made.datasets = copy_datasets(shelved, DatasetStore(self.folder / DATASETS, self.fs), self.progress)
                    self._prune(keep)
            except LockedError:
                raise RecoveryError(f"another backup into {self.folder} is being made") from None
            with acting_as(owner):
                note_backup(state.db, made.contents.made_at)
        return made

    def _open(self) -> None:
        """Prepare the backup folder: accept a folder marked as one, mark an empty folder, and refuse any other
        (RecoveryError)."""
        mark = self.folder / MARK
        snapshots(self.folder)  # refuses another form
        if self.fs.size(mark) is not None:
            return
        # Nothing is there, or what a first backup left that was cut off here.
        if self.fs.names(self.folder / SNAPSHOTS) or set(self.fs.names(self.folder)) - {SNAPSHOTS, mark.name + PART}:
            raise RecoveryError(f"{self.folder} is not empty and holds no backups; choose a folder of its own")
        new = [each for each in (self.folder, *self.folder.parents) if not each.exists()] or [self.folder]
        self.fs.mkdir(self.folder / SNAPSHOTS)
        replace_whole(self.fs, mark.with_name(mark.name + PART), mark, [FORMAT])
        sync_ways(self.fs, [mark], new[-1].parent)

    def _make(self, live: SqliteDatabase, state: Deployment, now: float, with_keys: bool, deep: bool) -> Made:
        earlier = snapshots(self.folder)
        name = _after(stamp(now), max(earlier, default=""))
        unfinished = self.folder / SNAPSHOTS / (name + PART)
        for left in (self.folder / SNAPSHOTS).glob(f"*{PART}"):
            shutil.rmtree(left)
        self.fs.mkdir(unfinished)
        self.progress("database", 0, 1)
        live.copy_to(unfinished / DATABASE)
        with _opened(unfinished / DATABASE) as copy:
            known, jobs = known_of(copy), {row["status"]: int(row["n"]) for row in copy.all("counts")}
        before: dict[str, str] = {}
        with contextlib.suppress(RecoveryError):  # what is damaged there is copied again
            before = read_contents(self.folder, earlier[-1]).files if earlier else {}
        taken = _Taken(self.folder, state.models, self.fs, deep, before)
        taken.lost += [f"what job {job} names as its bundle" for _, job in known.nameless]
        for log in known.logs.stored:  # first: their rows may let go of them
            taken.named(log.file.path, log.file.sha256, log.what)
        bundles = {each.artifact.path: each for each in reversed(known.deliveries)}
        for number, delivery in enumerate(bundles.values()):
            self.progress("bundles", number, len(bundles))
            taken.bundle(delivery)
        keys: dict[str, str] = {}
        if with_keys and all(self.fs.size(state.tls / each) is not None for each in KEY_FILES):
            # Not with root's rights: through a link, a restore would give the receiver's user other files.
            theirs = reading(owner_of(state.db), self.fs)
            copies = ((each, unfinished / KEYS / each) for each in KEY_FILES)
            keys = {each: str(copy_file(self.fs, state.tls / each, copy, source_fs=theirs)) for each, copy in copies}
        contents = Contents(
            made_at=now,
            database_id=str(known.database_id),
            database_sha256=file_sha256(unfinished / DATABASE, self.fs),
            jobs=jobs,
            files=taken.files,
            lost=taken.lost,
            keys=keys,
        )
        target = unfinished / CONTENTS
        replace_whole(self.fs, target.with_name(CONTENTS + PART), target, [msgspec.json.encode(contents) + b"\n"])
        paths = [content_path(self.folder, sha256) for sha256 in taken.files.values()]
        sync_ways(self.fs, [*paths, target, *(unfinished / KEYS / each for each in keys)], self.folder)
        self.fs.rename_new(unfinished, unfinished.with_name(name))
        self.fs.sync_folder(unfinished.parent)
        return Made(name, contents, taken.copied, taken.bytes_copied)

    def _prune(self, keep: int) -> None:
        """Remove the oldest snapshots, but keep the content files that they named."""
        for name in snapshots(self.folder)[: -max(1, keep)]:
            path = self.folder / SNAPSHOTS / name
            self.fs.replace(path, path.with_name(name + PART))
            shutil.rmtree(path.with_name(name + PART))


def _after(moment: str, last: str) -> str:
    """Make a name that sorts after all others, even if the clock went back or two snapshots are made in a second."""
    base, _, number = last.partition("-")
    return moment if moment > last else f"{base}-{int(number or 1) + 1:03}"


def _opened(db: Path) -> closing[SqliteDatabase]:
    """Open a database for reading. Raises RecoveryError and DatabaseError."""
    if not db.exists():
        raise RecoveryError(f"there is no database at {db}; name its folder with --state-dir")
    return closing(SqliteDatabase(db, read_only=True))


# -- restoring --------------------------------------------------------------------------------------------------


@dataclass
class Restored:
    """The result of a restore."""

    snapshot: str
    contents: Contents
    brought: int = 0  # bundles
    kept: int = 0  # present and sound bundles
    completed_since: list[str] = field(default_factory=list)  # jobs completed after the snapshot
    lost: list[str] = field(default_factory=list)
    aside: Path | None = None  # the old database
    datasets: CopyResult = field(default_factory=CopyResult)


@dataclass
class Restore:
    """Restores a folder of backups into a state folder."""

    folder: Path
    state: Deployment
    clock: Clock
    fs: Fs = field(default_factory=LocalFs)
    progress: Progress = lambda *_: None

    def __post_init__(self) -> None:
        self._reader = reader_of(self.folder, owner_of(self.state.db))
        self._from = reading(self._reader, self.fs)

    def run(self, *, snapshot: str | None = None, force: bool = False, with_keys: bool = False) -> Restored:
        """Restore. A RecoveryError leaves the old database in place.

        The one exception is an error that data sets were not copied: then the backup's database is already in place.
        Data sets come last, because jobs whose data set is missing only wait.
        """
        with holding("the restore", self.state, force=force):
            with acting_as(self._reader):
                done = self._begin(snapshot, force=force, with_keys=with_keys)
            self._files(done)
            done.aside = put_database(self.state, self.clock, partial(self._database, done))
            if with_keys:
                self._keys(done)
            shelved = DatasetStore(self.folder / DATASETS, self._from)
            done.datasets = copy_datasets(shelved, DatasetStore(self.state.datasets, self.fs), self.progress)
        return done

    def _begin(self, snapshot: str | None, *, force: bool, with_keys: bool) -> Restored:
        if self.fs.size(self.folder / MARK) is None:
            raise RecoveryError(f"{self.folder} holds no backups; name the folder that backup made")
        names = snapshots(self.folder)
        name = snapshot or max(names, default="")
        if name not in names:
            what = f"no backup called {name}; there are {', '.join(names[-5:])}" if names else "no finished backup"
            raise RecoveryError(f"in {self.folder} there is {what}")
        contents = read_contents(self.folder, name)
        keys = {f"{KEYS}/{each}": sha256 for each, sha256 in contents.keys.items() if with_keys}
        for path, sha256 in {DATABASE: contents.database_sha256, **keys}.items():
            if file_sha256(self.folder / SNAPSHOTS / name / path, self.fs) != sha256:
                older = names[: names.index(name)]
                hint = f"--snapshot {older[-1]} is the one before" if older else "there is no older one"
                raise RecoveryError(f"{path} in the backup {name} is damaged; {hint}")
        marked = None if force else read_mark(self.fs, self.state.models)
        if marked not in (None, contents.database_id):  # the bundles of two fleets do not mix
            other = another_database(self.state.models, str(marked), contents.database_id)
            words = "name the store of the backup with --models-dir, or restore it here with --force"
            raise RecoveryError(f"{other} in {self.folder}; {words}")
        if with_keys and not contents.keys:
            raise RecoveryError(f"the backup {name} holds no keys; it was made without --with-keys")
        if with_keys and not force and self._has_other_keys(contents):
            raise RecoveryError(f"{self.state.tls} holds another authority; --force keeps it beside under another name")
        return Restored(name, contents)

    def _files(self, done: Restored) -> None:
        """Restore missing or damaged files, each by its content."""
        done.lost += [f"{each} (when the backup was made)" for each in done.contents.lost]
        files, models, here = done.contents.files, self.state.models, list[Path]()
        self.fs.mkdir(models)
        for number, (path, sha256) in enumerate(files.items()):
            self.progress("files", number, len(files))
            target, is_bundle = models / path, path.endswith(f"/{BUNDLE}")
            note = target.with_name(REMOVED)
            if is_bundle and self.fs.size(note) is not None:  # retention took it away, and it is back
                self.fs.unlink(note)
            if target == note and self.fs.size(target.with_name(BUNDLE)) is not None:
                continue
            if self.fs.size(target) is not None and file_sha256(target, self.fs) == sha256:
                done.kept += is_bundle
            elif self._copy(content_path(self.folder, sha256), target, sha256):
                done.brought += is_bundle
            else:
                done.lost.append(f"{path} is damaged or gone in the backup, too")
                continue
            here.append(target)
        sync_ways(self.fs, here, models)

    def _copy(self, source: Path, target: Path, sha256: str) -> bool:
        """Copy a file of the backup; False if it is missing or damaged."""
        there = self._from.size(source) is not None
        return there and copy_file(self.fs, source, target, sha256=sha256, source_fs=self._from) is not None

    def _database(self, done: Restored, unfinished: Path) -> None:
        """Prepare the copy of the database, fully up to date."""
        copy = self.folder / SNAPSHOTS / done.snapshot / DATABASE
        copy_file(self.fs, copy, unfinished, source_fs=self._from)
        try:
            queue = Recovery(unfinished, self.clock)
        except OtherShape:
            why = f"the database of the backup {done.snapshot} has another shape than this program's"
            raise RecoveryError(
                f"{why}; restore it with the program that made it; the state here is untouched"
            ) from None
        store, since = ArtifactStore(self.state.models, self.fs), partial(self.progress, "what came since")
        try:
            queue.void_codes()
            done.completed_since, _ = take_over(queue, store, self.fs, since, known_bundles(queue.db))
        finally:
            queue.close()

    def _has_other_keys(self, contents: Contents) -> bool:
        there = {
            each: self.state.tls / each for each in contents.keys if self.fs.size(self.state.tls / each) is not None
        }
        return any(file_sha256(path, self.fs) != contents.keys[each] for each, path in there.items())

    def _keys(self, done: Restored) -> None:
        """Restore the authority. If the state has another authority, that one is renamed, and its certificate for the
        receiver is removed."""
        tls, copies = self.state.tls, self.folder / SNAPSHOTS / done.snapshot / KEYS
        if self._has_other_keys(done.contents):
            self.fs.replace(tls, tls.with_name(f"{tls.name}.before-{stamp(self.clock.now())}"))
        for each in done.contents.keys:
            copy_file(self.fs, copies / each, tls / each, source_fs=self._from)
        sync_ways(self.fs, [tls / each for each in done.contents.keys], tls.parent)
