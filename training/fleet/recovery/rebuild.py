"""Make a new database from the store's provenance files and the manifest, when database and backup are lost."""

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from training.clock import Clock
from training.files import Fs, LocalFs
from training.fleet.database.writer import Row
from training.fleet.manifest.load import default_describer
from training.fleet.manifest.types import ManifestError
from training.fleet.recovery.files import Progress, holding, put_database
from training.fleet.recovery.reconcile import Recovery, Unusable, take_over
from training.fleet.service.plan import load_plan
from training.fleet.service.references import KnownReferences
from training.fleet.service.state import Deployment, RecoveryError
from training.fleet.store.artifacts import ArtifactStore
from training.fleet.store.datasets import DatasetStore
from training.fleet.wire.words import Json, day
from training.strict_json import JsonObject

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
    """The result of a rebuild: which jobs are completed, how many wait, and what could not be used."""

    completed: list[str] = field(default_factory=list)  # names of jobs
    unlisted: list[str] = field(default_factory=list)  # of these, not in the manifest
    removed: list[str] = field(default_factory=list)  # completed jobs whose model is gone: when, and why
    pending: int = 0
    unusable: list[Unusable] = field(default_factory=list)
    aside: Path | None = None  # the database that was there


def planned(manifest: Path, state: Deployment) -> list[JsonObject]:
    """Return the job dicts of the manifest, except those with an unknown name of a data set. Raises RecoveryError if
    the manifest has a mistake."""
    try:
        known = DatasetStore(state.datasets).catalogue()
        return load_plan(manifest, default_describer(), KnownReferences(known.ids, known.names, starting=True))[0]
    except ManifestError as error:
        raise RecoveryError(f"{error}; name the plan with --manifest") from None


def rebuild(
    state: Deployment,
    jobs: Iterable[Json],
    clock: Clock,
    *,
    force: bool = False,
    fs: Fs = LocalFs(),  # noqa: B008 - it has no state
    progress: Progress = lambda *_: None,
) -> Rebuilt:
    """Make a database in which every job that the store proves finished is completed, and the other ``jobs`` wait. The
    proof is an undamaged provenance file beside an undamaged bundle, or beside the note of the bundle's removal.

    ``jobs`` are the manifest's. If this raises RecoveryError, the old database and all bundles are unchanged.
    """
    if not state.models.is_dir():
        raise RecoveryError(f"there is no store at {state.models}; name it with --models-dir")
    done = Rebuilt()
    with holding("the rebuild", state, force=force):
        listed = [dict(job) for job in jobs]
        done.aside = put_database(state, clock, lambda new: _fill(done, new, state, listed, clock, fs, progress))
    return done


def _gone(row: Row) -> str:
    return f"{row['name']}: its model was removed on {day(row['at'])}: {row['why']}"


def _fill(
    done: Rebuilt, path: Path, state: Deployment, listed: list[JsonObject], clock: Clock, fs: Fs, progress: Progress
) -> None:
    store = ArtifactStore(state.models, fs)
    if marked := store.marked():
        with closing(Recovery(path, clock)) as queue:  # one that is open stays the one that it was
            queue.be(marked)
    queue = Recovery(path, clock)
    try:
        queue.sync_from_manifest(listed)
        names, done.unusable = take_over(queue, store, fs, partial(progress, "bundles"))
        done.completed = sorted(set(names))
        done.removed = [_gone(row) for row in queue.db.all("removed_models")]
        done.unlisted = sorted(set(names) - {str(job.get("name")) for job in listed})
        done.pending = queue.counts()["pending"]
    finally:
        queue.close()
