"""The endpoints of saved states: decode, take the steps, encode. Only the holder of a live claim brings or gets one.

A worker announces the listing of what its trainer saved, uploads the missing chunks, and has it kept; each step may be
repeated. The next attempt of the job gets it.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from training.fleet.receiver.http.bodies import caller, read_json
from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.receiver.http.problems import Answer
from training.fleet.receiver.http.steps import carry_out
from training.fleet.receiver.security.access import acting_host
from training.fleet.service.states import Calling
from training.fleet.wire.constants import HEADER_CLAIM_ID, HEADER_HOST_ID, HEADER_SHA256
from training.fleet.wire.states import StateKeepRequest


async def announce_state(context: ReceiverContext, request: Request) -> Answer:
    """Take a listing; the answer names missing chunks, the first when there are many."""
    return await carry_out(context, request, context.saved_states.announce(*_asked(request)))


async def bring_state_piece(context: ReceiverContext, request: Request) -> Answer:
    sha256 = request.path_params["sha256"]
    await carry_out(context, request, context.saved_states.bring(*_asked(request), sha256))
    return Response()


async def bring_state_pieces(context: ReceiverContext, request: Request) -> Answer:
    await carry_out(context, request, context.saved_states.bring(*_asked(request), None))
    return Response()


async def keep_state(context: ReceiverContext, request: Request) -> Answer:
    """Let a whole state be the job's newest, unless its attempt has ended meanwhile."""
    body = await read_json(context, request, StateKeepRequest)
    return await carry_out(context, request, context.saved_states.keep(*_asked(request), body))


async def state(context: ReceiverContext, request: Request) -> Answer:
    """Return the listing's bytes; their SHA-256 is the state's id."""
    document = await carry_out(context, request, context.saved_states.listing(*_asked(request)))
    return Response(document, media_type="application/json", headers={HEADER_SHA256: request.path_params["state_id"]})


async def state_piece(context: ReceiverContext, request: Request) -> Answer:
    sha256 = request.path_params["sha256"]
    data = await carry_out(context, request, context.saved_states.piece(*_asked(request), sha256))
    headers = {HEADER_SHA256: sha256, "X-Content-Type-Options": "nosniff"}
    return Response(data, media_type="application/octet-stream", headers=headers)


# -- inside -----------------------------------------------------------------------------------------------------


def _asked(request: Request) -> tuple[Calling, str]:
    """Return who calls, and the state's id."""
    named, host_id = request.path_params, acting_host(caller(request), request.headers.get(HEADER_HOST_ID))
    return Calling(named["job_id"], request.headers.get(HEADER_CLAIM_ID), host_id), named["state_id"]
