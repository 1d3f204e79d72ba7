"""Restore finished work to a database from the store's provenance files.

The receiver writes a provenance file just before it completes the job. A bundle with a provenance file is finished
work of a claim that was valid a moment earlier. A database that lacks such finished work (a new one, or an older copy)
gets the work back. Later acts of an operator and later attempts are kept, as far as the database knows them.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from training import strict_json
from training.clock import Clock
from training.contract import spec_hash
from training.files import Fs, file_sha256
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.database.writer import Database
from training.fleet.queue.attempts import KeptReport
from training.fleet.queue.grants import Claimant
from training.fleet.queue.jobs import JobQueue
from training.fleet.queue.plan_diff import columns_of
from training.fleet.queue.rows import known_job
from training.fleet.recovery.logs import take_back_logs
from training.fleet.scheduling.job import LIVE, Attempt, EndReason, Host, Job, JobStatus, Needs
from training.fleet.scheduling.policy import may_adopt
from training.fleet.service.catalogue import index_rows, kept_of
from training.fleet.service.retention import note_removed
from training.fleet.store.artifacts import PROVENANCE, Artifact, ArtifactStore, Removed, report_path
from training.fleet.store.errors import BadName
from training.fleet.store.provenance import BrokenSeal, unsealed
from training.frozen import frozen
from training.strict_json import JsonObject

REBUILT = "rebuilt"  # in the detail of events reconstructed from a provenance file


class _Said(msgspec.Struct, frozen=True):
    """The fields read from a provenance file. Fields with a default may be missing; a file that lacks another field is
    refused."""

    artifact_id: str
    size: int
    job_id: str
    attempt: int
    claim_id: str
    name: str
    spec: JsonObject
    spec_hash: str
    generation: int
    host: str
    granted_at: float
    delivered_at: float
    instance_id: str | None = None
    record: JsonObject | None = None
    report: str | None = None  # SHA-256 of the report beside the bundle


@frozen
class FinishedAttempt:
    """A finished attempt, from its provenance."""

    artifact: Artifact
    said: _Said
    report: KeptReport | None = None  # where it is there, and whole
    removed: Removed | None = None  # retention took the bundle away

    @property
    def order(self) -> tuple[int, int]:
        return self.said.generation, self.said.attempt


def sidecar(artifact: Artifact, name: str, body: bytes) -> FinishedAttempt | str:
    """Return the finished attempt that a provenance file of this name and content proves, or a sentence that says what
    is wrong."""
    try:
        said = msgspec.convert(unsealed(body), _Said)
    except (BrokenSeal, msgspec.ValidationError):
        return "it is damaged"
    if name != f"{said.job_id}-{said.attempt}.json" or said.attempt < 1 or said.generation < 1:
        return "it does not say what its name says"
    if (said.artifact_id, said.size) != (artifact.artifact_id, artifact.size):
        return "it names another bundle"
    if said.spec.get("job_id") != said.job_id or spec_hash(said.spec) != said.spec_hash:
        return "its job is not the one it was written for"
    return FinishedAttempt(artifact, said)


@frozen
class Unusable:
    """A bundle or provenance file that cannot be restored, and why."""

    path: str
    why: str


def deliveries(
    store: ArtifactStore,
    fs: Fs,
    progress: Callable[[int, int], object] = lambda *_: None,
    known: Callable[[Artifact], bool] = lambda _: False,
) -> Iterator[FinishedAttempt | Unusable]:
    """Yield the finished attempts that the store proves, and what is unusable; each bundle for which ``known`` returns
    False is hashed."""
    artifacts = list(store.artifacts())
    whole, done = sum(each.size for each in artifacts), 0
    for artifact in artifacts:
        done += artifact.size
        if not known(artifact):
            try:
                sound = file_sha256(store.root / artifact.path, fs) == artifact.artifact_id
            except OSError as error:
                yield Unusable(artifact.path, f"it cannot be read: {error.strerror}")
                continue
            if not sound:
                yield Unusable(artifact.path, "its bytes are not those that were stored")
                continue
        yield from _sidecars(store.root, fs, artifact)
        progress(done, whole)
    for removed in store.removed():
        for found in _sidecars(store.root, fs, removed.artifact):
            yield replace(found, removed=removed) if isinstance(found, FinishedAttempt) else found


def _sidecars(root: Path, fs: Fs, artifact: Artifact) -> Iterator[FinishedAttempt | Unusable]:
    folder = (root / artifact.path).parent / PROVENANCE
    names = fs.names(folder)
    if not names:
        yield Unusable(artifact.path, "nothing says whose it is (no provenance)")
    for name in names:
        try:
            found = sidecar(artifact, name, b"".join(fs.read(folder / name)))
        except OSError as error:
            found = f"it cannot be read: {error.strerror}"
        place = f"{Path(artifact.path).parent.as_posix()}/{PROVENANCE}/{name}"
        yield Unusable(place, found) if isinstance(found, str) else replace(found, report=_report(root, fs, found))


def _report(root: Path, fs: Fs, delivery: FinishedAttempt) -> KeptReport | None:
    """Return the report that a provenance file names; None if it is missing or damaged. Without a report, the job has
    no figures, but counts as completed."""
    digest = delivery.said.report
    if digest is None:
        return None
    try:
        body = b"".join(fs.read(root / report_path(delivery.artifact, digest)))
    except (OSError, BadName):
        return None
    return kept_of(digest, body) if hashlib.sha256(body).hexdigest() == digest else None


def in_order(found: Iterable[FinishedAttempt]) -> list[FinishedAttempt]:
    """Return the last attempt of each job and generation, oldest delivery first: only the last attempt can have
    completed the job."""
    last: dict[tuple[str, int], FinishedAttempt] = {}
    for each in found:
        key = (each.said.job_id, each.said.generation)
        if key not in last or each.said.attempt > last[key].said.attempt:
            last[key] = each
    return sorted(last.values(), key=lambda each: (each.said.delivered_at, each.order))


class _Then:
    """A clock that shows ``moment``, the original time of the event being written; the real time while that is None."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.moment: float | None = None

    def now(self) -> float:
        return self._clock.now() if self.moment is None else self.moment

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def awake(self) -> float:
        return self._clock.awake()


class Recovery(JobQueue):
    """The queue during a restore or rebuild: restored events get their original times."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._then = _Then(clock)
        super().__init__(path, database=SqliteDatabase(path), clock=self._then, new_claim_id=lambda: self._claim_id)

    def be(self, database_id: str) -> None:
        """Give this database the id of the lost one, because workers still hold jobs that the lost one granted."""
        self.db.run("be_database", database_id=database_id)

    def take_back(self, delivery: FinishedAttempt) -> bool:
        """Complete the job of a delivery with that delivery; return False if its attempt is completed already, or if
        the job was cancelled or has moved on without that attempt."""
        said = delivery.said
        with self.db.transaction():
            job = self._job(said)
            attempt = self.attempts.by_claim(said.claim_id)
            if attempt is not None and attempt.end_reason is EndReason.COMPLETED:
                self._tell(delivery)
                return False
            if job.status is JobStatus.CANCELLED:
                return False
            self._then.moment = said.delivered_at
            try:
                taken = self._take(job, attempt, delivery)
            finally:
                self._then.moment = None
            if taken:
                self._tell(delivery)
            return taken

    def _tell(self, delivery: FinishedAttempt) -> None:
        """Record in the database that retention deleted this bundle, if the store says that."""
        if delivery.removed is not None:
            note_removed(self.db, delivery.removed)

    def _take(self, job: Job, attempt: Attempt | None, delivery: FinishedAttempt) -> bool:
        if attempt is not None:
            if not (attempt.live or may_adopt(job, attempt)):
                return False
            self._deliver(job, attempt, delivery)
            return True
        if delivery.order <= (job.generation, job.attempt) or not self._free(job, delivery):
            return False
        granted = self._grant_again(delivery)
        self._deliver(known_job(self.db, job.job_id), granted, delivery)
        return True

    def _job(self, said: _Said) -> Job:
        """Return the delivery's job; a job that the database lacks is added as no longer in the manifest."""
        job = self.get(said.job_id)
        if job is None:
            class_id = self.classes.of(Needs.of(said.spec), said.spec)
            text = strict_json.canonical(said.spec)
            self.db.run("add_job", **columns_of(said.spec), spec=text, class_id=class_id, now=self.clock.now())
            self.events.moved("insert", said.job_id, None, JobStatus.PENDING)
            self.db.run("mark_removed", job_id=said.job_id, passed_over=0)
            job = known_job(self.db, said.job_id)
        return job

    def _free(self, job: Job, delivery: FinishedAttempt) -> bool:
        """Make the job pending and unheld, for a grant that the database lacks; return False if the job has moved
        on."""
        if job.status in LIVE:
            error = "a later attempt was found in the store"
            self.settle(job, self.attempts.live_of(job), EndReason.HOST_LOST, error=error)
            job = known_job(self.db, job.job_id)
        newer = delivery.said.generation > job.generation
        if job.status is not JobStatus.PENDING and not newer:
            return False
        if newer:  # it was requeued an unknown number of times
            self.requeue(job.job_id)
        self.unhold(job.job_id, by=REBUILT)  # it was granted since, so it was not held any more
        return True

    def _grant_again(self, delivery: FinishedAttempt) -> Attempt:
        said = delivery.said
        self.db.run("rebuilt_number", job_id=said.job_id, attempt=said.attempt - 1, generation=said.generation)
        self._claim_id = said.claim_id
        moment, self._then.moment = self._then.moment, said.granted_at
        grant = self.grants.write(
            said.job_id, Host.of(said.host, {}), Claimant(instance_id=said.instance_id), lambda _: said.spec
        )
        self._then.moment = moment
        self.db.run("rebuilt_mark", job_id=said.job_id, attempt=said.attempt, detail=REBUILT)
        return grant.attempt

    def _deliver(self, job: Job, attempt: Attempt, delivery: FinishedAttempt) -> None:
        artifact, said = delivery.artifact, delivery.said
        self.attempts.add_artifact(attempt, artifact.artifact_id, artifact.model, artifact.mode, artifact.size)
        settle = self.accept if attempt.live else self.moves.adopt
        settle(job, attempt, artifact.artifact_id, said.record)
        if delivery.report is not None:
            self.attempts.keep_result(job.granted(attempt), attempt.attempt, delivery.report)

    def void_codes(self) -> int:
        """Void the one-time codes in an older copy, because they may have been used since; return their number."""
        return self.db.run("void_every_invitation")


def known_bundles(database: Database) -> Callable[[Artifact], bool]:
    """Return a function that tells whether this database names a bundle; such bundles need not be hashed again."""
    known = {row["artifact_id"] for row in database.all("artifacts")}
    return lambda artifact: artifact.artifact_id in known


def take_over(
    queue: Recovery,
    store: ArtifactStore,
    fs: Fs,
    progress: Callable[[int, int], object],
    known: Callable[[Artifact], bool] = lambda _: False,
) -> tuple[list[str], list[Unusable]]:
    """Complete the jobs whose completion the store proves and the database lacks, as :meth:`Recovery.take_back`
    decides. Also add rows for files of output, repair the store's index, and mark the store as this database's.

    Returns the names of the completed jobs, and what could not be used.
    """
    found = list(deliveries(store, fs, progress, known))
    sound = in_order(each for each in found if isinstance(each, FinishedAttempt))
    with queue.db.transaction():
        queue.db.run("add_restore", now=queue.clock.now())
        taken = [each.said.name for each in sound if queue.take_back(each)]
    take_back_logs(queue, store.logs)
    store.index.repair(index_rows(queue.db))
    store.mark(queue.database_id)
    return taken, [each for each in found if isinstance(each, Unusable)]
