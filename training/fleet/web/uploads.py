"""Bundles over HTTP: asked for their offset, streamed in, streamed out. Never whole in memory."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from training.fleet.job import EndReason
from training.fleet.protocol import (
    HEADER_BY_HAND,
    HEADER_CLAIM_ID,
    HEADER_HOST_ID,
    HEADER_OFFSET,
    HEADER_SHA256,
    JobDetail,
    Refusal,
    Slug,
    UploadReply,
)
from training.fleet.queue import JobQueue
from training.fleet.screening import refuse_another
from training.fleet.service import UploadTicket
from training.fleet.storage.errors import Damaged, NotStored, OffsetMismatch
from training.fleet.storage.incoming import Part
from training.fleet.store import Artifact
from training.fleet.trust.access import acting_host
from training.fleet.trust.membership import readable
from training.fleet.web.bodies import (
    BLOCK_BYTES,
    Blocks,
    caller,
    check_size,
    ignore,
    proven_host,
    query_number,
    read_upload,
)
from training.fleet.web.hub import Hub
from training.fleet.web.problems import reply

logger = logging.getLogger(__name__)

BUNDLES_MAX = 3  # of one attempt

_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{0,15})")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Announced:
    """The headers of an upload."""

    job_id: str
    claim_id: str | None
    host_id: str | None
    sha256: str | None
    offset: int
    length: int | None  # of this body; None when it comes in chunks
    by_hand: bool = False

    @classmethod
    def of(cls, request: Request) -> Announced:
        sha256 = request.headers.get(HEADER_SHA256)
        if sha256 is not None:
            sha256 = sha256.strip().lower()
            if not _SHA256.fullmatch(sha256):
                raise Refusal(Slug.BAD_REQUEST, f"{HEADER_SHA256}: expected 64 hexadecimal digits")
        return cls(
            job_id=request.path_params["job_id"],
            claim_id=request.headers.get(HEADER_CLAIM_ID),
            host_id=acting_host(caller(request), request.headers.get(HEADER_HOST_ID)),
            sha256=sha256,
            offset=_number(request, HEADER_OFFSET) or 0,
            length=_number(request, "Content-Length"),
            by_hand=request.headers.get(HEADER_BY_HAND) == "1",
        )

    @property
    def size(self) -> int | None:
        """Bytes of the whole bundle, as far as announced."""
        return None if self.length is None else self.offset + self.length


async def probe(hub: Hub, request: Request) -> Response:
    """``HEAD`` by a worker: may it upload, and from which byte on? Without a claim it asks as ``GET`` does."""
    if not any(
        each in request.headers for each in (HEADER_CLAIM_ID, HEADER_HOST_ID, HEADER_SHA256)
    ):
        return await model(hub, request)
    said = Announced.of(request)
    ticket = await _leave(hub, request, said, said.sha256)
    artifact = await _stored(hub, ticket, said.sha256)
    if artifact is not None:
        offset = artifact.size
    else:
        offset = await hub.disk(lambda: hub.store.offset(ticket.claim_id, said.sha256))
    return Response(headers={HEADER_OFFSET: str(offset)})


async def upload(hub: Hub, request: Request) -> Response:
    """``PUT``: the claim is checked before the body is read, at its end, and in the transaction that accepts it."""
    said = Announced.of(request)
    ticket = await _leave(hub, request, said, said.sha256)
    check_size(hub, said.size)
    artifact = await _stored(hub, ticket, said.sha256)
    if artifact is not None and said.size == artifact.size:
        # Delivered before, and the answer was lost: hash what is there instead of taking it once more.
        await read_upload(hub, request, ignore)
        with hub.turn(ticket.claim_id):
            await _leave(hub, request, said, artifact.artifact_id)
            artifact = await _confirmed(hub, artifact)
            await _deliver(hub, request, ticket, artifact)
    else:
        await hub.disk(lambda: hub.store.check_room(said.length or 0))
        artifact = await _take(hub, request, said, ticket)
    return reply(
        UploadReply(artifact_id=artifact.artifact_id, job_id=ticket.job_id, size=artifact.size)
    )


async def _deliver(hub: Hub, request: Request, ticket: UploadTicket, artifact: Artifact) -> None:
    """Make a bundle that is durable in the store the attempt's."""
    done = hub.service.upload_done
    if await hub.act(request, lambda: done(ticket, artifact.artifact_id, artifact.size)):
        logger.info("stored %s (%d bytes)", artifact.path, artifact.size)
        await hub.indexed(artifact.artifact_id, job_id=ticket.job_id, attempt=ticket.attempt)


async def _confirmed(hub: Hub, artifact: Artifact) -> Artifact:
    """Hash what is there; rotten bytes are put aside, and the client is told to send them again."""
    name, model, mode = artifact.artifact_id, artifact.model, artifact.mode
    try:
        return await hub.hash(lambda: hub.store.confirm(name, model=model, mode=mode))
    except Damaged as damage:
        logger.error("%s; it was put aside", damage)
        await hub.disk(lambda: hub.store.put_aside(artifact))
        raise OffsetMismatch(artifact.size, 0) from damage


async def _take(hub: Hub, request: Request, said: Announced, ticket: UploadTicket) -> Artifact:
    """Stream the body into the claim's part, then make it an artifact and the attempt's."""
    part = await _open(hub, said, ticket)
    try:
        blocks = Blocks(hub, part)
        try:
            await read_upload(hub, request, blocks.add)
        finally:
            await blocks.flush()
        sha256 = await hub.disk(lambda: part.seal(sha256=said.sha256, size=said.size))
        with hub.turn(ticket.claim_id):  # from the count of the attempt's bundles to its next one
            try:
                await _leave(hub, request, said, sha256)
            except Refusal:
                await hub.disk(part.drop)
                raise
            artifact = await hub.hash(
                lambda: hub.store.publish(part, sha256, model=ticket.model, mode=ticket.mode)
            )
            await _deliver(hub, request, ticket, artifact)
        return artifact
    finally:
        await hub.disk(part.close)


async def _open(hub: Hub, said: Announced, ticket: UploadTicket) -> Part:
    def work() -> Part:
        return hub.store.open_part(ticket.claim_id, said.sha256, offset=said.offset)

    if said.offset == 0:
        return await hub.disk(work)
    with hub.turn(ticket.claim_id):  # what is stored is read once more
        return await hub.hash(work)


async def model(hub: Hub, request: Request) -> Response:
    """``GET`` and ``HEAD`` by a reader: the bundle of a completed job, or of the attempt asked for; or a range."""
    ref = request.path_params["job_id"]
    job_id = await hub.act(request, lambda: readable(hub.service, ref, proven_host(request)))
    detail = await hub.look(lambda: hub.views.job(job_id))
    job, name = detail.job, _wanted(detail, query_number(request, "attempt", 0))
    model, mode = job.model, job.mode
    artifact = await hub.disk(lambda: hub.store.find(name, model=model, mode=mode))
    if artifact is None:
        raise NotStored(f"the bundle of job {job.name} is missing from the store; requeue the job")
    headers = {
        HEADER_SHA256: artifact.artifact_id,
        "ETag": f'"{artifact.artifact_id}"',
        "Accept-Ranges": "bytes",
        "Content-Disposition": f'attachment; filename="{model}_{mode}-{job_id}.tar.zst"',
        "X-Content-Type-Options": "nosniff",
    }
    first, last = _range(request, artifact.size)
    headers["Content-Length"] = str(last - first + 1)
    status = 200
    if last - first + 1 != artifact.size:
        status = 206
        headers["Content-Range"] = f"bytes {first}-{last}/{artifact.size}"
    if request.method == "HEAD":
        return Response(None, status, headers, "application/zstd")
    body = _read(hub, artifact, first, last + 1)
    return StreamingResponse(body, status, headers, "application/zstd")


def _wanted(detail: JobDetail, attempt: int) -> str:
    """The artifact of the job, or (not 0) of one of its attempts, whatever became of the job since."""
    job = detail.job
    left = {each.attempt: each.artifact_id for each in detail.attempts if each.artifact_id}
    found = left.get(attempt) if attempt else job.artifact_id
    if found is not None:
        return found
    older = f"; attempts with one: {', '.join(map(str, left))}" if left else ""
    said = (
        f"attempt {attempt} of job {job.name} left none"
        if attempt
        else (f"job {job.name} is {job.status}: it has no artifact yet")
    )
    raise Refusal(Slug.NO_ARTIFACT, said + older)


async def _read(hub: Hub, artifact: Artifact, start: int, end: int) -> AsyncIterator[bytes]:
    file = await hub.disk(lambda: hub.store.open(artifact))
    try:
        await hub.disk(lambda: file.seek(start))
        while start < end:
            want = min(BLOCK_BYTES, end - start)
            piece = await hub.disk(partial(file.read, want))
            if not piece:
                return  # shorter than it was: the connection is cut and the client notices
            start += len(piece)
            yield piece
    finally:
        file.close()  # at once: a client that hung up cancels whatever is awaited here


def _range(request: Request, size: int) -> tuple[int, int]:
    """First and last byte asked for. Anything but one plain range means the whole."""
    match = _RANGE.fullmatch(request.headers.get("Range", ""))
    if match is None:
        return 0, size - 1
    first = int(match[1])
    last = min(int(match[2] or size), size - 1)
    return (first, last) if first <= last else (0, size - 1)


async def _leave(hub: Hub, request: Request, said: Announced, sha256: str | None) -> UploadTicket:
    """Leave to bring this bundle, asked before the body and at its end, when its digest is known for certain."""

    def decide() -> UploadTicket:
        ticket = hub.service.upload_ticket(
            said.job_id, said.claim_id, said.host_id, by_hand=said.by_hand
        )
        if sha256 is not None and not ticket.by_hand:
            _check_wanted(hub.service.queue, ticket, sha256)
        return ticket

    return await hub.act(request, decide)


def _check_wanted(queue: JobQueue, ticket: UploadTicket, sha256: str) -> None:
    """Bundles of an attempt are equal when they are made again, so many different ones are a fault or malice."""
    attempt = queue.attempt(ticket.claim_id)
    assert attempt is not None
    if attempt.end_reason is EndReason.COMPLETED:
        refuse_another(attempt, sha256)
    delivered = queue.artifacts_of(attempt)
    if sha256 not in delivered and len(delivered) >= BUNDLES_MAX:
        raise Refusal(
            Slug.TOO_LARGE,
            f"this attempt brought {BUNDLES_MAX} different bundles already; complete the job by one of them",
        )


async def _stored(hub: Hub, ticket: UploadTicket, sha256: str | None) -> Artifact | None:
    if sha256 is None:
        return None
    return await hub.disk(lambda: hub.store.find(sha256, model=ticket.model, mode=ticket.mode))


def _number(request: Request, name: str) -> int | None:
    text = request.headers.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise Refusal(Slug.BAD_REQUEST, f"{name}: expected a number of bytes")
    return int(text)
