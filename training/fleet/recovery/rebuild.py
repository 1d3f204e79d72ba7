"""A new database from the store's provenance files and the manifest, when there is neither a database nor a backup."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.clock import Clock
from training.files import Fs, LocalFs
from training.fleet.database.writer import DatabaseError, Row
from training.fleet.manifest.load import default_describer
from training.fleet.manifest.types import ManifestError
from training.fleet.recovery.files import discard_database, place_database, plainly, with_rights_of_owner
from training.fleet.recovery.logs import take_back_logs
from training.fleet.recovery.reconcile import Recovery, Unusable, deliveries
from training.fleet.recovery.restore import UNTOUCHED, Progress, take_back
from training.fleet.service.catalogue import index_rows
from training.fleet.service.plan import load_plan
from training.fleet.service.references import KnownReferences
from training.fleet.service.state import Deployment, RecoveryError
from training.fleet.store.artifacts import ArtifactStore
from training.fleet.store.datasets import DatasetStore
from training.fleet.store.errors import StoreError
from training.fleet.wire.words import day

# Not in any provenance file.
FORGOTTEN = (
    "attempts that brought no result, their errors and their output",
    "failures and memory needs of unfinished jobs: their budgets start again",
    "quarantined hosts: they are tried again",
    "cancelled and held jobs, and requeues: cancel or hold again what shall not run",
    "certificates and tokens: enroll every host and operator again, and make new tokens",
    "the audit of who did what",
)


@dataclass
class Rebuilt:
    """The result of a rebuild."""

    completed: list[str] = field(default_factory=list)  # names of jobs
    unlisted: list[str] = field(default_factory=list)  # of these, not in the manifest
    removed: list[str] = field(default_factory=list)  # completed jobs whose model is gone: when, and why
    pending: int = 0
    unusable: list[Unusable] = field(default_factory=list)
    aside: Path | None = None  # the database that was there


def planned(manifest: Path, state: Deployment) -> list[dict[str, Any]]:
    """Read the manifest's jobs, but those with an unknown data set; RecoveryError when it has a mistake."""
    try:
        known = DatasetStore(state.datasets).catalogue()
        return load_plan(manifest, default_describer(), KnownReferences(known.ids, known.names, starting=True))[0]
    except ManifestError as error:
        raise RecoveryError(f"{error}; name the plan with --manifest") from None


def rebuild(
    state: Deployment,
    jobs: Iterable[Mapping[str, Any]],
    clock: Clock,
    *,
    force: bool = False,
    fs: Fs | None = None,
    progress: Progress = lambda *_: None,
) -> Rebuilt:
    """Make a database in which every job with a sound bundle and provenance is completed, and the others wait.

    ``jobs`` are the manifest's. A RecoveryError leaves the state unchanged.
    """
    fs = LocalFs() if fs is None else fs
    if not state.models.is_dir():
        raise RecoveryError(f"there is no store at {state.models}; name it with --models-dir")
    with plainly("the rebuild", UNTOUCHED), with_rights_of_owner(state), state.alone():
        if state.db.exists() and not force:
            raise RecoveryError(
                f"there is a database at {state.db} already; --force keeps it beside under another name"
            )
        unfinished = state.db.with_name(f"{state.db.name}.rebuilding")
        try:
            discard_database(unfinished)
            done = _fill(unfinished, state, jobs, clock, fs, progress)
            done.aside = place_database(unfinished, state.db, clock.now())
        except (DatabaseError, StoreError) as error:
            raise RecoveryError(f"{error}; {UNTOUCHED}") from error
        finally:
            discard_database(unfinished)
        fs.sync_folder(state.db.parent)
    return done


def _gone(row: Row) -> str:
    return f"{row['name']}: its model was removed on {day(row['at'])}: {row['why']}"


def _fill(
    path: Path,
    state: Deployment,
    jobs: Iterable[Mapping[str, Any]],
    clock: Clock,
    fs: Fs,
    progress: Callable[[str, int, int], object],
) -> Rebuilt:
    store, done = ArtifactStore(state.models, fs), Rebuilt()
    queue = Recovery(path, clock)
    try:
        if marked := store.marked():
            queue.be(marked)
        listed = [dict(job) for job in jobs]
        queue.sync_from_manifest(listed)

        def told(so_far: int, whole: int) -> None:
            progress("bundles", so_far, whole)

        names, done.unusable = take_back(queue, deliveries(store, fs, told))
        take_back_logs(queue, store.logs)
        done.completed = sorted(set(names))
        done.removed = [_gone(row) for row in queue.db.all("removed_models")]
        done.unlisted = sorted(set(names) - {str(job.get("name")) for job in listed})
        done.pending = queue.counts()["pending"]
        store.index.repair(index_rows(queue.db))
        store.mark(queue.database_id)
    finally:
        queue.close()
    return done
