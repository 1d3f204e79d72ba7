"""Uploads and completions as sequences of steps: hash, provenance, commit, index, answer.

A sequence does no I/O and knows no HTTP. A sequence yields the step that comes next and gets the step's outcome back,
as a value or as an exception. The HTTP layer takes the steps on its threads (receiver/http/steps.py), and the
simulation takes them one by one. The HTTP layer and the simulation run the same sequences, whose order of steps
makes a delivery safe.
"""

import contextlib
import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from training.clock import Clock
from training.crashpoint import crashpoint
from training.fleet.database.writer import Database, Row
from training.fleet.queue.attempts import DeliveryNews, KeptReport
from training.fleet.scheduling.job import Attempt, Job
from training.fleet.service import catalogue
from training.fleet.service.endings import UploadPermission
from training.fleet.service.service import Service
from training.fleet.store.artifacts import Artifact, ArtifactStore
from training.fleet.store.errors import DamagedArtifact, OffsetMismatch, StoreError
from training.fleet.store.incoming import PartFile
from training.fleet.wire.attempts import CompleteReply, CompleteRequest, DeliverRequest, UploadReply
from training.fleet.wire.constants import (
    ARTIFACT_BYTES_MAX,
    REPORT_BYTES_MAX,
    UNCONFIRMED,
    ProblemType,
    Refusal,
)
from training.frozen import frozen

logger = logging.getLogger(__name__)
T = TypeVar("T")


@frozen
class Step:
    """One step of a sequence: work to be done before the sequence continues."""

    work: Callable[[], Any]


@frozen
class Decide(Step):
    """Step: run a call of the service in a transaction of the writer; the transaction is durable when the sequence
    continues."""

    what: str  # for observers: ticket, upload, complete, deliver


class Look(Step):
    """Step: read the database on a connection of its own, parallel to the writer."""


class Disk(Step):
    """Step: read or write files."""


class Hash(Step):
    """Step: read a whole bundle, which may take minutes."""


@frozen
class Open(Step):
    """Step: open the file of an unfinished upload; the file is closed when the sequence ends for any reason."""

    hashes: bool = False  # re-hashes the stored bytes


class Body(NamedTuple):
    """Step: read the request's body into the file ``part``; without a ``part``, read the body and discard it."""

    part: PartFile | None


class Whole(NamedTuple):
    """Step: read the request's whole body, of at most ``bytes_max`` bytes."""

    bytes_max: int


Steps = Generator[Step | Body | Whole, Any, T]


class Announced(NamedTuple):
    """The facts that an upload request states: job, claim, host, the bundle's digest, the body's beginning and length,
    and whether it comes by hand."""

    job_id: str
    claim_id: str | None
    host_id: str | None
    sha256: str | None
    offset: int
    length: int | None  # of this body; None with chunked encoding
    by_hand: bool = False

    @property
    def size(self) -> int | None:
        """Return the size of the whole bundle in bytes; None if the request does not state the body's length."""
        return None if self.length is None else self.offset + self.length


class DeliverySteps:
    """The sequences of steps for uploads and completions, and the state that these sequences share. One instance per
    receiver."""

    def __init__(
        self,
        service: Service,
        store: ArtifactStore,
        reader: Database,
        clock: Clock,
        *,
        bytes_max: int = ARTIFACT_BYTES_MAX,
    ) -> None:
        """``reader`` is the database connection that answers :class:`Look`; ``bytes_max`` is the size of the largest
        bundle."""
        self.index_stale = False  # a line was not written: the next tick repairs the file
        self._service, self._store, self._reader, self._clock = service, store, reader, clock
        self._bytes_max = bytes_max
        self._alone_now: set[str] = set()  # claims, and jobs

    def check_size(self, size: int | None) -> None:
        """Raise Refusal if a bundle is larger than the receiver accepts; an unknown size (None) passes."""
        if size is not None and size > self._bytes_max:
            detail = f"a bundle may have at most {self._bytes_max} bytes"
            raise Refusal(ProblemType.TOO_LARGE, detail)

    # -- uploads ------------------------------------------------------------------------------------------------

    def probe(self, said: Announced) -> Steps[int]:
        """Return the offset at which an upload of this bundle may resume; its whole size if it is stored already."""
        permission: UploadPermission = yield self._leave(said, said.sha256)
        artifact = yield from self._stored(permission, said.sha256)
        if artifact is not None:
            return artifact.size
        offset: int = yield Disk(lambda: self._store.offset(permission.claim_id, said.sha256))
        return offset

    def upload(self, said: Announced) -> Steps[UploadReply]:
        """Receive an uploaded bundle. The claim is checked before the body is read, after the body, and in the
        transaction that accepts the bundle."""
        permission: UploadPermission = yield self._leave(said, said.sha256)
        self.check_size(said.size)
        artifact = yield from self._stored(permission, said.sha256)
        if artifact is not None and said.size == artifact.size:
            # Delivered before, and the answer was lost: hash the stored bundle instead of taking it again.
            yield Body(None)
            with self._alone(permission.alone):
                yield self._leave(said, artifact.artifact_id, artifact.size)
                artifact = yield from self._confirmed(artifact)
                yield from self._made_its_own(permission, artifact)
        else:
            artifact = yield from self._taken(said, permission)
        own = not permission.attempt and permission.claim_id == said.claim_id
        status = UNCONFIRMED if own else "stored"
        return UploadReply.of(artifact, job_id=permission.job_id, status=status)

    def _leave(self, said: Announced, sha256: str | None, size: int | None = None) -> Decide:
        """Return the step that checks if this bundle may be uploaded. Uploads take this step before the body is read,
        and again when the digest is known."""
        ask = self._service.upload_permission
        names = said.job_id, said.claim_id, said.host_id
        size = said.size if size is None else size
        return Decide(lambda: ask(*names, sha256=sha256, size=size, by_hand=said.by_hand), "ticket")

    def _stored(self, permission: UploadPermission, sha256: str | None) -> Steps[Artifact | None]:
        if sha256 is None:
            return None
        find = partial(self._store.find, sha256, model=permission.model, mode=permission.mode)
        artifact: Artifact | None = yield Disk(find)
        return artifact

    def _taken(self, said: Announced, permission: UploadPermission) -> Steps[Artifact]:
        """Read the body into the claim's part file, publish that file as an artifact, and assign the artifact to the
        attempt or the unconfirmed work."""
        part: PartFile = yield from self._opened(said, permission)
        yield Body(part)
        sha256: str = yield Disk(lambda: part.seal(sha256=said.sha256, size=said.size))
        with self._alone(permission.alone):  # from the count of the attempt's bundles to its next one
            try:
                yield self._leave(said, sha256, part.offset)
            except Refusal:
                yield Disk(part.drop)
                raise
            publish = partial(self._store.publish, part, sha256)
            artifact: Artifact = yield Hash(lambda: publish(model=permission.model, mode=permission.mode))
            yield from self._made_its_own(permission, artifact)
        return artifact

    def _opened(self, said: Announced, permission: UploadPermission) -> Steps[PartFile]:
        """Open the claim's part file. The store raises an error if the unfinished uploads of the claim's host would
        exceed the host's share of the disk."""
        unclaimed = yield Disk(self._store.incoming.unclaimed)
        if unclaimed:  # parts from before a restart: the database knows their hosts
            hosts = yield Decide(lambda: self._service.hosts_of(unclaimed), "ticket")
            self._store.incoming.learn(hosts)
        work = partial(
            self._store.open_part,
            permission.claim_id,
            said.sha256,
            offset=said.offset,
            host=permission.host,
            coming=said.length or 0,
        )
        if not said.offset:
            part: PartFile = yield Open(work)
            return part
        with self._alone(permission.claim_id):
            part = yield Open(work, hashes=True)
        return part

    def _made_its_own(self, permission: UploadPermission, artifact: Artifact) -> Steps[None]:
        """Record that the attempt, or unconfirmed work, delivered this bundle, which is durable in the store; add an
        attempt's new bundle to the index. Raise OffsetMismatch, upon which the client sends the bundle again, if
        ``upload_done`` returns None."""
        done, repairs = self._service.upload_done, self._store.index.repairs
        stored: DeliveryNews | None = yield Decide(
            lambda: done(permission, artifact.artifact_id, artifact.size), "upload" if permission.attempt else "by hand"
        )
        if stored is None:
            raise OffsetMismatch(artifact.size, 0)
        if stored is DeliveryNews.BACK:
            self.index_stale = True  # its line says that it was removed
        if stored is DeliveryNews.NEW:
            logger.info("stored %s (%d bytes)", artifact.path, artifact.size)
            yield from self._indexed(artifact.artifact_id, permission.job_id, permission.attempt, repairs)

    def _confirmed(self, artifact: Artifact) -> Steps[Artifact]:
        """Hash the stored bundle and return it. A damaged bundle is renamed, and the client must upload it again."""
        name, model, mode = artifact.artifact_id, artifact.model, artifact.mode
        try:
            found: Artifact = yield Hash(lambda: self._store.confirm(name, model=model, mode=mode))
        except DamagedArtifact as damage:
            logger.error("%s; it was renamed", damage)
            yield Disk(lambda: self._store.put_aside(artifact))
            raise OffsetMismatch(artifact.size, 0) from damage
        return found

    # -- completions --------------------------------------------------------------------------------------------

    def complete(self, job_id: str, request: CompleteRequest) -> Steps[CompleteReply]:
        """Hash the artifact again, write the provenance and the report, if one came, then let the service accept the
        completion. If the service can answer without the bundle, nothing is hashed or written to the store."""
        body, kept = report_bytes(request.report), None
        with self._alone(job_id):
            found = yield Decide(lambda: self._service.completable(job_id, request), "ticket")
            if isinstance(found, CompleteReply):
                return found
            if found is not None:
                job, attempt = found
                _, kept = yield from self._proven(job, attempt, body)
                crashpoint("receiver.provenance")
            answer: CompleteReply = yield Decide(lambda: self._service.complete(job_id, request, kept), "complete")
        logger.info("job %s: completed by %s", job_id[:12], answer.artifact_id[:12])
        return answer

    def deliver(self, job_id: str, request: DeliverRequest, *, accepted: bool = False) -> Steps[CompleteReply]:
        """Complete a pending job with a bundle that its host had kept: like :meth:`complete`, but without a live claim.
        Under an unknown claim the work stays unconfirmed, unless an operator ``accepted`` it.

        The new attempt gets the job's next attempt number, which also names its provenance file. Only one request per
        job runs at a time: a second one, from another host, would overwrite the first one's provenance and then be
        refused.
        """
        made, size, kept, body = None, 0, None, report_bytes(request.report)
        with self._alone(job_id):
            found = yield Decide(lambda: self._service.deliverable(job_id, request, accepted=accepted), "ticket")
            if isinstance(found, CompleteReply):
                return found
            if found is not None:
                job, made = found
                size, kept = yield from self._proven(job, made, body)
            deliver, repairs = partial(self._service.deliver, job_id, request), self._store.index.repairs
            answer, taken = yield Decide(lambda: deliver(made, size, kept, accepted=accepted), "deliver")
        if taken:
            logger.info("job %s: completed by %s, by hand", job_id[:12], answer.artifact_id[:12])
            yield from self._indexed(answer.artifact_id, job_id, answer.attempt, repairs)
        reply: CompleteReply = answer
        return reply

    def accept(self, rows: Iterable[Row]) -> Steps[list[str]]:
        """Complete the jobs of unconfirmed work that an operator accepted; return a sentence for each that could not
        be completed, whose work waits on."""
        left = []
        for row in rows:
            request = msgspec.json.decode(row["told"], type=DeliverRequest)
            try:
                yield from self.deliver(row["job_id"], request, accepted=True)
            except (Refusal, StoreError) as error:
                left.append(f"{row['name']}: {error}")
        return left

    def _proven(self, job: Job, attempt: Attempt, body: bytes | None) -> Steps[tuple[int, KeptReport | None]]:
        """Hash an attempt's bundle again, then store its provenance and its report, if one came. Return the bundle's
        size and the report's row."""
        now = self._clock.now()

        def lay_down() -> tuple[int, KeptReport | None]:
            artifact = self._store.verify(str(attempt.artifact_id), model=job.model, mode=job.mode)
            kept, digest = None, None
            if body is not None:
                digest = self._store.write_report(artifact, body)
                kept = catalogue.kept_of(digest, body)
            said = catalogue.provenance_of(job, attempt, now=now, report=digest)
            self._store.write_provenance(artifact, job_id=job.job_id, attempt=attempt.attempt, record=said)
            return artifact.size, kept

        with self._alone(attempt.claim_id):
            found: tuple[int, KeptReport | None] = yield Hash(lay_down)
        return found

    # -- inside -------------------------------------------------------------------------------------------------

    def _indexed(self, artifact_id: str, job_id: str, attempt: int, repairs: int) -> Steps[None]:
        """Append a new artifact's line to the index after the commit; ``repairs`` is the number of repairs of the index
        before the commit.

        If writing fails, or the index was repaired meanwhile, the next tick repairs the file.
        """
        first = partial(catalogue.first_delivery, self._reader, artifact_id)
        row = yield Look(lambda: first(job_id=job_id, attempt=attempt))
        if row is None:
            self.index_stale = True  # its line may say that it was removed
            return
        crashpoint("receiver.index.before")
        try:
            added: bool = yield Disk(lambda: self._store.index.append(row, repairs))
            self.index_stale = self.index_stale or not added
            crashpoint("receiver.index.after")
        except StoreError as error:
            logger.warning("the index lacks artifact %s for now: %s", artifact_id, error)
            self.index_stale = True

    @contextlib.contextmanager
    def _alone(self, whose: str) -> Iterator[None]:
        """Raise Refusal if the ``with`` block of another request with the same key (a claim, a job, or a host's key)
        runs. Without this limit, many small requests could cause hours of reading."""
        if whose in self._alone_now:
            detail = "another request is reading this bundle; ask again in a moment"
            raise Refusal(ProblemType.SLOW_DOWN, detail)
        self._alone_now.add(whose)
        try:
            yield
        finally:
            self._alone_now.discard(whose)


def report_bytes(report: str | None) -> bytes | None:
    """Return the bytes in which a report is stored, or None without a report; raise Refusal if it is too large."""
    body = None if report is None else report.encode("utf-8", "replace")
    if body is not None and len(body) > REPORT_BYTES_MAX:
        raise Refusal(ProblemType.TOO_LARGE, f"a report may have at most {REPORT_BYTES_MAX} bytes; leave it out")
    return body
