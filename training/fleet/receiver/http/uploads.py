"""Bundles over HTTP: offset, upload, download. Bundles are streamed, never wholly in memory."""

import re
from collections.abc import AsyncIterator
from functools import partial
from typing import BinaryIO

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from training.fleet.receiver.http.bodies import BLOCK_BYTES, caller, query_number, resolved
from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.receiver.http.problems import Answer
from training.fleet.receiver.http.steps import carry_out
from training.fleet.receiver.security.access import acting_host
from training.fleet.service.delivery import Announced
from training.fleet.service.guards import whole_number
from training.fleet.store.errors import NotStored
from training.fleet.wire.constants import (
    HEADER_BY_HAND,
    HEADER_CLAIM_ID,
    HEADER_HOST_ID,
    HEADER_OFFSET,
    HEADER_SHA256,
    ProblemType,
    Refusal,
)
from training.fleet.wire.views import JobDetail
from training.fleet.wire.words import removed_sentence

_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{0,15})")
_SHA256 = re.compile(r"[0-9a-f]{64}")


async def probe(context: ReceiverContext, request: Request) -> Answer:
    """Answer ``HEAD``: with the offset of an upload if the request has a header of a claim, host or SHA-256; else with
    the headers of ``GET``."""
    if not any(each in request.headers for each in (HEADER_CLAIM_ID, HEADER_HOST_ID, HEADER_SHA256)):
        return await model(context, request)
    offset = await carry_out(context, request, context.delivery.probe(_announced(request)))
    return Response(headers={HEADER_OFFSET: str(offset)})


async def upload(context: ReceiverContext, request: Request) -> Answer:
    return await carry_out(context, request, context.delivery.upload(_announced(request)))


async def model(context: ReceiverContext, request: Request) -> Answer:
    """Answer with the bundle of a completed job or of a given attempt, or with a range of the bundle."""
    job_id = await resolved(context, request)
    detail = await context.look(lambda: context.views.job(job_id))
    job, name = detail.job, _wanted(detail, query_number(request, "attempt", 0))
    model, mode = job.model, job.mode
    artifact = await context.disk(lambda: context.store.find(name, model=model, mode=mode))
    if artifact is None:
        gone = await context.look(lambda: context.views.bundle_gone(model, mode, name))
        if gone is not None:
            raise NotStored(removed_sentence(job.to_dict(), gone.at, gone.why))
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
    # Open before the answer begins: retention may remove the bundle now, and whoever reads it reads on.
    file = await context.disk(lambda: context.store.open(artifact))
    return _Download(file, _read(context, file, first, last + 1), status, headers)


def _wanted(detail: JobDetail, attempt: int) -> str:
    """Return the artifact id of the job, or if ``attempt`` is not 0 of that attempt, whatever the job's status. Raises
    Refusal if there is none."""
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
    raise Refusal(ProblemType.NO_ARTIFACT, said + older)


class _Download(StreamingResponse):
    """A response with a bundle's bytes. The bundle's file is closed however the response ends, even if nothing was
    sent."""

    def __init__(self, file: BinaryIO, body: AsyncIterator[bytes], status: int, headers: dict[str, str]) -> None:
        super().__init__(body, status, headers, "application/zstd")
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.close()


async def _read(context: ReceiverContext, file: BinaryIO, start: int, end: int) -> AsyncIterator[bytes]:
    await context.disk(lambda: file.seek(start))
    while start < end:
        want = min(BLOCK_BYTES, end - start)
        piece = await context.disk(partial(file.read, want))
        if not piece:
            return  # the file has become shorter: a cut connection shows it to the client
        start += len(piece)
        yield piece


def _range(request: Request, size: int) -> tuple[int, int]:
    """Return the first and the last byte (inclusive) of the requested range; for anything except one plain range, those
    of the whole bundle."""
    match = _RANGE.fullmatch(request.headers.get("Range", ""))
    if match is None:
        return 0, size - 1
    first = int(match[1])
    last = min(int(match[2] or size), size - 1)
    return (first, last) if first <= last else (0, size - 1)


def _announced(request: Request) -> Announced:
    """Read the headers that announce an upload."""
    sha256 = request.headers.get(HEADER_SHA256)
    if sha256 is not None:
        sha256 = sha256.strip().lower()
        if not _SHA256.fullmatch(sha256):
            raise Refusal(ProblemType.BAD_REQUEST, f"{HEADER_SHA256}: expected 64 hexadecimal digits")
    return Announced(
        job_id=request.path_params["job_id"],
        claim_id=request.headers.get(HEADER_CLAIM_ID),
        host_id=acting_host(caller(request), request.headers.get(HEADER_HOST_ID)),
        sha256=sha256,
        offset=whole_number(HEADER_OFFSET, request.headers.get(HEADER_OFFSET), 0),
        length=whole_number("Content-Length", request.headers.get("Content-Length"), None),
        by_hand=request.headers.get(HEADER_BY_HAND) == "1",
    )
