"""The endpoints of saved states: decode, call, encode. Only the holder of a job's live claim brings or gets one.

A worker announces the listing of what its trainer saved, uploads the missing chunks, and has it kept; each step may be
repeated. The next attempt of the job gets it.
"""

from __future__ import annotations

import logging
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from training.fleet.receiver.http.bodies import caller, read_bytes, read_json
from training.fleet.receiver.http.context import Context
from training.fleet.receiver.http.problems import reply
from training.fleet.receiver.security.access import acting_host
from training.fleet.scheduling.job import Attempt, Job
from training.fleet.service.states import holder, kept_by, view
from training.fleet.store.errors import NoState
from training.fleet.store.states import StateStore
from training.fleet.wire.dataset_listing import (
    BATCH_BYTES,
    BATCH_CHUNKS,
    BATCH_HEAD_BYTES,
    CHUNK_BYTES,
    LISTING_BYTES_MAX,
    BadListing,
    batched,
)
from training.fleet.wire.messages import HEADER_CLAIM_ID, HEADER_HOST_ID, HEADER_SHA256, ProblemType, Refusal
from training.fleet.wire.states import StateDraftReply, StateKeepRequest

logger = logging.getLogger(__name__)


async def announce_state(context: Context, request: Request) -> Response:
    """Take a listing; the answer names missing chunks, the first when there are many."""
    store, state_id = _store(context), _id(request)
    await _holder(context, request)
    document = await read_bytes(context, request, LISTING_BYTES_MAX)
    draft = await context.disk(lambda: store.begin(state_id, document))
    return reply(StateDraftReply(state_id=state_id, missing=list(draft.missing)))


async def bring_state_piece(context: Context, request: Request) -> Response:
    store, state_id, sha256 = _store(context), _id(request), request.path_params["sha256"]
    await _holder(context, request)
    data = await read_bytes(context, request, CHUNK_BYTES)
    await context.disk(lambda: store.put(state_id, [(sha256, data)]))
    return Response()


async def bring_state_pieces(context: Context, request: Request) -> Response:
    store, state_id = _store(context), _id(request)
    await _holder(context, request)
    body = await read_bytes(context, request, BATCH_BYTES + BATCH_CHUNKS * BATCH_HEAD_BYTES)
    try:
        pieces = batched(body)
    except BadListing as error:
        raise Refusal(ProblemType.WRONG_DIGEST, str(error)) from None
    await context.disk(lambda: store.put(state_id, pieces))
    return Response()


async def keep_state(context: Context, request: Request) -> Response:
    """Let a whole state be the job's newest, unless its attempt has ended meanwhile."""
    store, state_id = _store(context), _id(request)
    body = await read_json(context, request, StateKeepRequest)
    size = await context.disk(partial(store.size_of, state_id))
    job, attempt = await _holder(context, request)
    made = kept_by(attempt, store.of(job.job_id), body, state_id=state_id, size=size, now=context.clock.now())
    await context.disk(lambda: store.keep(job.job_id, made))
    logger.info(
        "%s: a saved state of %d bytes is kept, of attempt %s on %s", job.name, size, attempt.attempt, made.host
    )
    return reply(view(made))


async def state(context: Context, request: Request) -> Response:
    """Return the listing's bytes; their SHA-256 is the state's id."""
    store, (job, _) = _store(context), await _holder(context, request)
    _check_newest(store, job, _id(request))
    document = await context.disk(lambda: store.listing(job.job_id))
    return Response(document, media_type="application/json", headers={HEADER_SHA256: _id(request)})


async def state_piece(context: Context, request: Request) -> Response:
    store, (job, _) = _store(context), await _holder(context, request)
    _check_newest(store, job, _id(request))
    sha256 = request.path_params["sha256"]
    data = await context.disk(lambda: store.piece(job.job_id, sha256))
    headers = {HEADER_SHA256: sha256, "X-Content-Type-Options": "nosniff"}
    return Response(data, media_type="application/octet-stream", headers=headers)


# -- inside -----------------------------------------------------------------------------------------------------


async def _holder(context: Context, request: Request) -> tuple[Job, Attempt]:
    """Return the job and the caller's live attempt at it, or refuse."""
    job_id, claim_id = request.path_params["job_id"], request.headers.get(HEADER_CLAIM_ID)
    host_id = acting_host(caller(request), request.headers.get(HEADER_HOST_ID))
    return await context.act(request, lambda: holder(context.service, job_id, claim_id, host_id))


def _check_newest(store: StateStore, job: Job, state_id: str) -> None:
    kept = store.of(job.job_id)
    if kept is None or kept.state_id != state_id:
        raise NoState(f"this is not the saved state of job {job.name}; it begins anew")


def _id(request: Request) -> str:
    return str(request.path_params["state_id"])


def _store(context: Context) -> StateStore:
    if context.states is None:
        raise Refusal(ProblemType.UNKNOWN_STATE, "this receiver keeps no saved states")
    return context.states
