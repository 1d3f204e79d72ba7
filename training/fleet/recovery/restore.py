"""Restoring a backup.

Bundles first, then the database: at every moment a row's bundle is there. Nothing is deleted: an old database is
renamed, a sound bundle that the backup lacks stays, and finished work that the copy of the database lacks is restored
from its provenance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from training.clock import Clock
from training.files import Fs, LocalFs, file_sha256
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.database.writer import DatabaseError, OtherShape
from training.fleet.recovery.backup import (
    DATASETS,
    KEY_FILES,
    KEYS,
    MARK,
    SNAPSHOTS,
    Contents,
    content_path,
    read_contents,
    snapshots,
)
from training.fleet.recovery.datasets import CopyResult, copy_datasets
from training.fleet.recovery.files import (
    copy_file,
    discard_database,
    place_database,
    plainly,
    stamp,
    sync_ways,
    with_rights_of_owner,
)
from training.fleet.recovery.logs import take_back_logs
from training.fleet.recovery.owner import acting_as, owner_of, reader_of, reading
from training.fleet.recovery.reconcile import (
    FinishedAttempt,
    Reconciled,
    Recovery,
    Unusable,
    deliveries,
    in_order,
    known_bundles,
)
from training.fleet.service.catalogue import index_rows
from training.fleet.service.state import DATABASE, Deployment, RecoveryError
from training.fleet.store.artifacts import BUNDLE, REMOVED, ArtifactStore
from training.fleet.store.datasets import DatasetStore
from training.fleet.store.errors import StoreError
from training.fleet.store.store_id import another_database, read_mark

Progress = Callable[[str, int, int], object]
UNTOUCHED = "the state that was there is untouched"


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
    keys: bool = False
    datasets: CopyResult = field(default_factory=CopyResult)


@dataclass
class Restore:
    """A restore from a folder of backups into a state."""

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

        Only when it says that the data sets were not copied is the backup's in place: they come last, since without
        one of them nothing fails, and the jobs that name it wait.
        """
        with plainly("the restore", UNTOUCHED), with_rights_of_owner(self.state), self.state.alone():
            with acting_as(self._reader):
                done = self._begin(snapshot, force)
            if with_keys:
                self._check_keys(done, force)
            self._files(done)
            unfinished = self.state.db.with_name(f"{self.state.db.name}.restoring")
            try:
                self._database(done, unfinished)
                done.aside = place_database(unfinished, self.state.db, self.clock.now())
            except OtherShape:
                why = f"the database of the backup {done.snapshot} has another shape than this program's"
                raise RecoveryError(f"{why}; restore it with the program that made it; {UNTOUCHED}") from None
            except (DatabaseError, StoreError) as error:
                raise RecoveryError(f"{error}; {UNTOUCHED}") from error
            finally:
                discard_database(unfinished)
            self.fs.sync_folder(self.state.db.parent)
            if with_keys:
                self._keys(done)
            shelved = DatasetStore(self.folder / DATASETS, self._from)
            done.datasets = copy_datasets(shelved, DatasetStore(self.state.datasets, self.fs), self.progress)
        return done

    def _begin(self, snapshot: str | None, force: bool) -> Restored:
        if self.fs.size(self.folder / MARK) is None:
            raise RecoveryError(f"{self.folder} holds no backups; name the folder that backup made")
        names = snapshots(self.folder)
        if not names:
            raise RecoveryError(f"no backup in {self.folder} was ever finished")
        name = names[-1] if snapshot is None else snapshot
        if name not in names:
            raise RecoveryError(f"there is no backup called {name}; there are {', '.join(names[-5:])}")
        if self.state.db.exists() and not force:
            raise RecoveryError(
                f"there is a database at {self.state.db} already; --force keeps it beside under another name"
            )
        contents = read_contents(self.folder, name)
        if file_sha256(self.folder / SNAPSHOTS / name / DATABASE, self.fs) != contents.database_sha256:
            older = names[: names.index(name)]
            hint = f"--snapshot {older[-1]} is the one before" if older else "there is no older one"
            raise RecoveryError(f"the database in the backup {name} is damaged; {hint}")
        if not force:
            self._check_store(contents)
        return Restored(name, contents)

    def _check_store(self, contents: Contents) -> None:
        """Refuse to mix the bundles of two fleets."""
        try:
            marked = read_mark(self.fs, self.state.models)
        except StoreError as error:
            raise RecoveryError(f"{error}; {UNTOUCHED}") from error
        if marked and contents.database_id != marked:
            raise RecoveryError(
                f"{another_database(self.state.models, marked, contents.database_id)} in {self.folder}; name the "
                "store of the backup with --models-dir, or restore it here with --force"
            )

    def _files(self, done: Restored) -> None:
        """Bring back what is missing or damaged, each file by its content."""
        done.lost += [f"{each} (when the backup was made)" for each in done.contents.lost]
        files, models = done.contents.files, self.state.models
        self.fs.mkdir(models)
        for number, (path, sha256) in enumerate(files.items()):
            self.progress("files", number, len(files))
            target, is_bundle = models / path, path.endswith(f"/{BUNDLE}")
            note = target.with_name(REMOVED)
            if is_bundle and self.fs.size(note) is not None:  # retention took it away, and it is back
                self.fs.unlink(note)
            if target == note and self.fs.size(target.with_name(BUNDLE)) is not None:
                continue
            source = content_path(self.folder, sha256)
            if self.fs.size(target) is not None and file_sha256(target, self.fs) == sha256:
                done.kept += is_bundle
            elif self._from.size(source) is not None and self._copy(source, target, sha256) is not None:
                done.brought += is_bundle
            else:
                done.lost.append(f"{path} is damaged or gone in the backup, too")
        sync_ways(self.fs, [models / path for path in files], models)

    def _copy(self, source: Path, target: Path, sha256: str | None = None) -> str | None:
        return copy_file(self.fs, source, target, sha256=sha256, source_fs=self._from)

    # -- the database -------------------------------------------------------------------------------------------

    def _database(self, done: Restored, unfinished: Path) -> None:
        """Prepare the copy of the database, fully up to date."""
        discard_database(unfinished)
        self._copy(self.folder / SNAPSHOTS / done.snapshot / DATABASE, unfinished)
        queue = Recovery(unfinished, self.clock)
        try:
            queue.void_codes()
            store = ArtifactStore(self.state.models, self.fs)
            assert isinstance(queue.db, SqliteDatabase)
            known = known_bundles(queue.db)

            def told(so_far: int, whole: int) -> None:
                self.progress("what came since", so_far, whole)

            names, _ = take_back(queue, deliveries(store, self.fs, told, known))
            done.completed_since += names
            take_back_logs(queue, store.logs)
            store.index.repair(index_rows(queue.db))
            store.mark(queue.database_id)
        finally:
            queue.close()

    def _check_keys(self, done: Restored, force: bool) -> None:
        if not done.contents.keys:
            raise RecoveryError(f"the backup {done.snapshot} holds no keys; it was made without --with-keys")
        if self._other_keys(done.snapshot) and not force:
            raise RecoveryError(f"{self.state.tls} holds another authority; --force keeps it beside under another name")

    def _other_keys(self, name: str) -> list[str]:
        """List the authority's files that differ from the backup's."""
        source = self.folder / SNAPSHOTS / name / KEYS
        return [
            each
            for each in KEY_FILES
            if self.fs.size(self.state.tls / each) is not None
            and file_sha256(self.state.tls / each, self.fs) != file_sha256(source / each, self._from)
        ]

    def _keys(self, done: Restored) -> None:
        """Restore the authority. Another one is kept beside; its certificate for the receiver is removed."""
        tls, source = self.state.tls, self.folder / SNAPSHOTS / done.snapshot / KEYS
        if self._other_keys(done.snapshot):
            aside = tls.with_name(f"{tls.name}.before-{stamp(self.clock.now())}")
            self.fs.replace(tls, aside)
        for each in KEY_FILES:  # the certificate last: it says that all is there
            self._copy(source / each, tls / each)
        self.fs.sync_folder(tls)
        self.fs.sync_folder(tls.parent)
        done.keys = True


def take_back(queue: Recovery, found: Iterable[FinishedAttempt | Unusable]) -> tuple[list[str], list[Unusable]]:
    """Complete every job whose completion the store proves and the database lacks."""
    everything = list(found)
    sound = in_order(each for each in everything if isinstance(each, FinishedAttempt))
    with queue.db.transaction():
        taken = [each.said.name for each in sound if queue.take_back(each) is Reconciled.TAKEN]
    return taken, [each for each in everything if isinstance(each, Unusable)]
