"""Backups of a receiver's state, made while it works: the database, and the files of the store that belong to it, by
their content.

::

    <folder>/backup.json                         says that this is a folder of backups
    <folder>/content/ab/<sha256>                 files of the store and chunks of data sets, shared by all snapshots
    <folder>/snapshots/<moment>/training_jobs.db the database, as of one moment
    <folder>/snapshots/<moment>/contents.json    the files and data sets that belong to it, with their digests

The database comes first: a bundle is published before its row is committed, so everything that this copy names can
still be copied afterwards. If retention deletes a bundle while a backup is made, the note in its place is copied. A
snapshot gets its name only when all of it is durable, so that an incomplete one is never used. A restore works in the
opposite order: files first, then the database, so that at every moment the bundle that a row names is there. A restore
deletes no work: an old database is kept under another name, and an undamaged bundle that the backup lacks is kept.
Finished work that the copy of the database lacks is restored from its provenance.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from training.clock import Clock
from training.files import Fs, LocalFs, file_sha256, sync_ways
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.database.writer import OtherShape
from training.fleet.recovery.doctor import known_of
from training.fleet.recovery.doctor_store import StoredBundle
from training.fleet.recovery.files import Progress, holding, opened, plainly, put_database, stamp, steps, write_file
from training.fleet.recovery.owner import ROOT, User, acting_as, owner_of
from training.fleet.recovery.reconcile import Recovery, known_bundles, take_over
from training.fleet.service.state import DATABASE, Deployment, RecoveryError, note_backup
from training.fleet.store.artifacts import BUNDLE, PROVENANCE, REMOVED, REPORTS, ArtifactStore
from training.fleet.store.datasets import DatasetStore, Shelved
from training.fleet.store.errors import ChunksMissing, NoDataset, WrongDigest
from training.fleet.store.incoming import PART_SUFFIX
from training.fleet.store.provenance import BrokenSeal, unsealed
from training.fleet.store.store_id import another_database, read_mark
from training.fleet.wire.dataset_listing import CHUNK_BYTES, parse, together
from training.locking import LockedError, exclusive

MARK, CONTENT, SNAPSHOTS = "backup.json", "content", "snapshots"
CONTENTS = "contents.json"
FORMAT = b'{"format":4}\n'


class Contents(msgspec.Struct, kw_only=True):
    """The content of a snapshot's ``contents.json``: which files, data sets and jobs belong to its database."""

    made_at: float  # epoch seconds
    database_id: str
    database_sha256: str
    jobs: dict[str, int]  # status → number of jobs
    files: dict[str, str] = {}  # path in the store → SHA-256
    datasets: list[Shelved] = []
    lost: list[str] = []  # what the database names and neither store nor backup has whole

    @property
    def bundles(self) -> int:
        return sum(path.endswith(f"/{BUNDLE}") for path in self.files)


def snapshots(folder: Path) -> list[str]:
    """Return the names of the complete snapshots in a folder of backups, oldest first. Raises RecoveryError if the
    folder holds backups in another format."""
    mark, found = folder / MARK, folder / SNAPSHOTS
    if mark.exists() and mark.read_bytes() != FORMAT:
        raise RecoveryError(f"{folder} holds backups of another form; use the program that made them")
    names = [each.name for each in found.iterdir()] if found.is_dir() else []
    return sorted(name for name in names if not name.endswith(PART_SUFFIX))


def read_contents(folder: Path, name: str) -> Contents:
    """Return the contents of the snapshot ``name``. Raises RecoveryError when the contents cannot be read."""
    path = folder / SNAPSHOTS / name / CONTENTS
    try:
        return msgspec.json.decode(path.read_bytes(), type=Contents)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecoveryError(f"{path} cannot be read ({error}); choose another with --snapshot") from None


def content_path(folder: Path, sha256: str) -> Path:
    return folder / CONTENT / sha256[:2] / sha256


def have(fs: Fs, path: Path, sha256: str, read: Callable[[str], Iterable[bytes]], *, trust: bool) -> int | None:
    """Make sure that a file has this content, and return how many bytes were written, 0 if it had the content already.
    Return None if ``read`` does not give that content.

    With ``trust`` an existing file is not hashed.
    """
    if fs.size(path) is not None and (trust or file_sha256(path, fs) == sha256):
        return 0
    with contextlib.suppress(FileNotFoundError):
        return fs.size(path) if write_file(fs, path, read(sha256), sha256=sha256) else None
    return None


@dataclass
class Snapshot:
    """A snapshot that is being made. ``before``: the files of the snapshot before it."""

    name: str
    contents: Contents
    folder: Path  # of backups
    store: Path
    fs: Fs
    copied: int = 0  # bundles
    bytes_copied: int = 0
    dataset_bytes: int = 0  # copied of data sets
    before: dict[str, str] = field(default_factory=dict)
    seen: set[Path] = field(default_factory=set)  # whole copies

    def content(self, sha256: str, read: Callable[[str], Iterable[bytes]]) -> int | None:
        """Make sure that the backup holds the content with this SHA-256; return how many bytes were written, None if
        ``read`` does not give that content."""
        path = content_path(self.folder, sha256)
        fresh = have(self.fs, path, sha256, read, trust=True)
        if fresh is not None:
            self.seen.add(path)
        return fresh

    def named(self, path: str, sha256: str | None, what: str) -> None:
        """Copy the store's file ``path`` with this SHA-256, unless the backup has this content already. If neither the
        store nor the backup has it, list it as lost."""
        fs, place = self.fs, self.store / path
        fresh = self.content(sha256, lambda _: opened(fs, place)) if sha256 else None
        if fresh is None:
            self.contents.lost.append(f"{what} is {'not' if fs.size(place) is None else 'damaged'} in the store")
        else:
            self.contents.files[path] = str(sha256)
            self.copied += fresh > 0 and path.endswith(f"/{BUNDLE}")
            self.bytes_copied += fresh

    def sealed(self, path: str, what: str) -> None:
        """Copy a file that contains its own digest; if the file is damaged or missing, use the last snapshot's copy."""
        try:
            body = b"".join(self.fs.read(self.store / path))
            unsealed(body)
            sha256: str | None = hashlib.sha256(body).hexdigest()
        except (FileNotFoundError, BrokenSeal):
            sha256 = self.before.get(path)
        self.named(path, sha256, what)

    def bundle(self, delivery: StoredBundle) -> None:
        """Copy a bundle, or the note that retention deleted the bundle; and its reports and provenance files."""
        artifact, what = delivery.artifact, delivery.what
        note, size = f"{artifact.place}/{REMOVED}", self.fs.size
        noted = size(self.store / note) is not None
        if delivery.gone is None and not (noted and size(self.store / artifact.path) is None):
            self.named(artifact.path, artifact.artifact_id, what)
        elif noted:
            self.sealed(note, f"the note of {what}")
        for kind in (REPORTS, PROVENANCE):
            place = f"{artifact.place}/{kind}"
            names = {f"{place}/{name}" for name in self.fs.names(self.store / place)}
            names |= {path for path in self.before if path.rpartition("/")[0] == place}
            for path in sorted(each for each in names if each.endswith(".json")):
                if kind == REPORTS:
                    self.named(path, Path(path).stem, f"the report {Path(path).stem[:12]} of {what}")
                else:
                    self.sealed(path, f"the provenance {Path(path).name} of {what}")

    def dataset(self, store: DatasetStore, dataset: Shelved, owner: User | None) -> None:
        """Copy a data set, read with the rights of ``owner``; list it as lost if its listing, or a chunk that the
        backup lacks, is missing or damaged."""
        dataset_id = dataset.dataset_id

        def read(sha256: str) -> list[bytes]:
            with acting_as(owner):
                return [store.listing(sha256) if sha256 == dataset_id else store.piece(dataset_id, sha256)]

        try:
            for sha256 in (dataset_id, *(place.sha256 for place in parse(read(dataset_id)[0]).distinct())):
                self.dataset_bytes += self.content(sha256, read) or 0
            self.contents.datasets.append(dataset)
        except (NoDataset, ChunksMissing) as error:  # rotten, or removed meanwhile
            self.contents.lost.append(f"data set {dataset_id[:12]}: {error}")


@dataclass
class Backup:
    """Makes snapshots in a folder of backups."""

    folder: Path
    fs: Fs = field(default_factory=LocalFs)
    progress: Progress = lambda *_: None

    def make(self, state: Deployment, clock: Clock, *, keep: int = 10) -> Snapshot:
        """Add a snapshot of ``state`` and return it; the receiver may be running. Only the newest ``keep`` snapshots
        stay, at least one.

        Raises RecoveryError; even then earlier snapshots are whole.
        """
        if self.folder.resolve().is_relative_to(state.models.resolve()):
            raise RecoveryError(f"{self.folder} is inside the store itself; choose another folder")
        if not state.db.exists():
            raise RecoveryError(f"there is no database at {state.db}; name its folder with --state-dir")
        with plainly(f"the backup into {self.folder}", "earlier backups are untouched"):
            live = SqliteDatabase(state.db, read_only=True)
            try:
                self._open()  # not before the database: a refusal leaves no folder
                with closing(live), exclusive(self.folder / f"{MARK}.lock"):
                    made = self._make(live, state, clock.now())
                    self._prune(keep)
            except LockedError:
                raise RecoveryError(f"another backup into {self.folder} is being made") from None
            with acting_as(owner_of(state.db)):
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
        others = set(self.fs.names(self.folder)) - {SNAPSHOTS, MARK + PART_SUFFIX}
        if others or self.fs.names(self.folder / SNAPSHOTS):
            raise RecoveryError(f"{self.folder} is not empty and holds no backups; choose a folder of its own")
        new = [each for each in (self.folder, *self.folder.parents) if not each.exists()] or [self.folder]
        self.fs.mkdir(self.folder / SNAPSHOTS)
        write_file(self.fs, mark, [FORMAT])
        sync_ways(self.fs, [mark], new[-1].parent)

    def _make(self, live: SqliteDatabase, state: Deployment, now: float) -> Snapshot:
        earlier, owner = snapshots(self.folder), owner_of(state.db)
        name = _after(stamp(now), max(earlier, default=""))
        unfinished = self.folder / SNAPSHOTS / (name + PART_SUFFIX)
        for left in (self.folder / SNAPSHOTS).glob(f"*{PART_SUFFIX}"):
            shutil.rmtree(left)
        self.fs.mkdir(unfinished)
        self.progress("database", 0, 1)
        live.copy_to(unfinished / DATABASE)
        with closing(SqliteDatabase(unfinished / DATABASE, read_only=True)) as copy:
            known, jobs = known_of(copy), {row["status"]: int(row["n"]) for row in copy.all("counts")}
        digest = file_sha256(unfinished / DATABASE, self.fs)
        contents = Contents(made_at=now, database_id=str(known.database_id), database_sha256=digest, jobs=jobs)
        taken = Snapshot(name, contents, self.folder, state.models, self.fs)
        with contextlib.suppress(RecoveryError):  # what is damaged there is copied again
            taken.before |= read_contents(self.folder, earlier[-1]).files if earlier else {}
        contents.lost += [f"what job {job} names as its bundle" for _, job in known.nameless]
        for log in known.logs.stored:  # first: their rows may let go of them
            taken.named(log.file.path, log.file.sha256, log.what)
        bundles = {each.artifact.path: each for each in reversed(known.deliveries)}
        for delivery in steps(self.progress, "bundles", bundles.values()):
            taken.bundle(delivery)
        store = DatasetStore(state.datasets, self.fs)
        with acting_as(owner):
            sets = store.sets()
        for shelved in steps(self.progress, "data sets", sets):
            taken.dataset(store, shelved, owner)
        write_file(self.fs, unfinished / CONTENTS, [msgspec.json.encode(contents) + b"\n"])
        sync_ways(self.fs, [*taken.seen, unfinished / CONTENTS], self.folder)
        self.fs.rename_new(unfinished, unfinished.with_name(name))
        self.fs.sync_folder(unfinished.parent)
        return taken

    def _prune(self, keep: int) -> None:
        """Remove all but the newest ``keep`` snapshots (at least one stays), but no content file that they named."""
        for name in snapshots(self.folder)[: -max(1, keep)]:
            path = self.folder / SNAPSHOTS / name
            self.fs.replace(path, path.with_name(name + PART_SUFFIX))
            shutil.rmtree(path.with_name(name + PART_SUFFIX))


def _after(moment: str, last: str) -> str:
    """Return a snapshot's name that sorts after ``last``, even if the clock went back or two snapshots are made in a
    second."""
    base, _, number = last.partition("-")
    return moment if moment > last else f"{base}-{int(number or 1) + 1:03}"


# -- restoring --------------------------------------------------------------------------------------------------


@dataclass
class Restored:
    """The result of a restore: what was restored, what was kept, and what is lost."""

    snapshot: str
    contents: Contents
    brought: int = 0  # bundles
    kept: int = 0  # present and sound bundles
    completed_since: list[str] = field(default_factory=list)  # jobs completed after the snapshot
    lost: list[str] = field(default_factory=list)
    aside: Path | None = None  # the old database
    datasets: int = 0
    dataset_bytes: int = 0  # of data sets, brought


@dataclass
class Restore:
    """Restores a snapshot from a folder of backups into a state folder."""

    folder: Path
    state: Deployment
    clock: Clock
    fs: Fs = field(default_factory=LocalFs)
    progress: Progress = lambda *_: None

    def __post_init__(self) -> None:
        """Choose whose rights are used to read the backup while acting as the receiver's user.

        Backups mostly belong to root. A backup folder that belongs to the receiver's user is read with that user's own
        rights, because it may contain links that the user made.
        """
        owner = owner_of(self.state.db)
        its_own = owner is not None and self.folder.is_dir() and self.folder.stat().st_uid == owner.uid
        self._reader = None if owner is None or its_own else ROOT

    def run(self, *, snapshot: str | None = None, force: bool = False) -> Restored:
        """Restore a snapshot, by default the newest, and return what was done. If this method raises RecoveryError, the
        old database stays in place, but files of the store may have been restored."""
        with holding("the restore", self.state, force=force):
            with acting_as(self._reader):
                done = self._begin(snapshot, force=force)
            self._files(done)
            self._datasets(done)
            done.aside = put_database(self.state, self.clock, partial(self._database, done))
        return done

    def _begin(self, snapshot: str | None, *, force: bool) -> Restored:
        names = snapshots(self.folder)
        if not names:
            raise RecoveryError(f"{self.folder} holds no finished backup; name one that `cis490-jobs backup` made")
        name = snapshot or names[-1]
        if name not in names:
            there = ", ".join(names[-5:])
            raise RecoveryError(f"in {self.folder} there is no backup called {name}; there are {there}")
        contents = read_contents(self.folder, name)
        if file_sha256(self.folder / SNAPSHOTS / name / DATABASE, self.fs) != contents.database_sha256:
            raise RecoveryError(f"{DATABASE} in the backup {name} is damaged; choose another with --snapshot")
        marked = None if force else read_mark(self.fs, self.state.models)
        if marked not in (None, contents.database_id):  # the bundles of two fleets do not mix
            other = another_database(self.state.models, str(marked), contents.database_id)
            words = "name the store of the backup with --models-dir, or restore it here with --force"
            raise RecoveryError(f"{other} in {self.folder}; {words}")
        return Restored(name, contents)

    def _files(self, done: Restored) -> None:
        """Restore the store's missing or damaged files from the backup; list as lost what the backup lacks."""
        done.lost += [f"{each} (when the backup was made)" for each in done.contents.lost]
        models, here = self.state.models, list[Path]()
        self.fs.mkdir(models)
        for path, sha256 in steps(self.progress, "files", done.contents.files.items()):
            target, is_bundle = models / path, path.endswith(f"/{BUNDLE}")
            note = target.with_name(REMOVED)
            if is_bundle:
                self.fs.unlink(note)  # if retention took it away, it is back
            if target == note and self.fs.size(target.with_name(BUNDLE)) is not None:
                continue
            fresh = have(self.fs, target, sha256, self._content, trust=False)
            if fresh is None:
                done.lost.append(f"{path} is damaged or gone in the backup, too")
                continue
            done.brought += is_bundle and fresh > 0
            done.kept += is_bundle and fresh == 0
            here.append(target)
        sync_ways(self.fs, here, models)

    def _content(self, sha256: str) -> Iterable[bytes]:
        return opened(self.fs, content_path(self.folder, sha256), self._reader)

    def _datasets(self, done: Restored) -> None:
        """Restore each data set's missing chunks and its names; list as lost what the backup lacks."""
        store = DatasetStore(self.state.datasets, self.fs)
        for shelved in steps(self.progress, "data sets", done.contents.datasets):
            dataset_id, about = shelved.dataset_id, shelved.about
            try:
                while missing := store.begin(dataset_id, b"".join(self._content(dataset_id))).missing:
                    for group in together(missing, lambda _: CHUNK_BYTES):
                        chunks = [(sha256, b"".join(self._content(sha256))) for sha256 in group]
                        store.put(dataset_id, chunks)
                        done.dataset_bytes += sum(len(data) for _, data in chunks)
                for name in shelved.names or (None,):
                    store.publish(dataset_id, name, about.pushed_at, about.hosts)
                done.datasets += 1
            except (FileNotFoundError, WrongDigest):
                done.lost.append(f"data set {dataset_id[:12]} is damaged or gone in the backup, too")

    def _database(self, done: Restored, unfinished: Path) -> None:
        """Write the snapshot's database to ``unfinished``, void its one-time codes, and add work that completed since,
        as the store proves it."""
        copy = self.folder / SNAPSHOTS / done.snapshot / DATABASE
        write_file(self.fs, unfinished, opened(self.fs, copy, self._reader))
        try:
            queue = Recovery(unfinished, self.clock)
        except OtherShape:
            why = f"the database of the backup {done.snapshot} has another shape than this program's"
            raise RecoveryError(
                f"{why}; restore it with the program that made it; the state here is untouched"
            ) from None
        store, since = ArtifactStore(self.state.models, self.fs), partial(self.progress, "what came since")
        with closing(queue):
            queue.void_codes()
            done.completed_since, _ = take_over(queue, store, self.fs, since, known_bundles(queue.db))
