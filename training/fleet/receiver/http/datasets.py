"""The endpoints of data sets and saved states; both are uploaded and fetched as a listing and its chunks.

Operators push data sets, hosts fetch those they may train on. A worker brings what its trainer saved, and the next
attempt of the job gets it. The sender announces the listing, uploads the missing chunks, and publishes the data set or
has the state kept; each step may be repeated.
"""

import logging
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response

from training.fleet.receiver.http.bodies import acting, caller, proven_host, read_bytes, read_json
from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.receiver.http.problems import Answer
from training.fleet.receiver.http.steps import carry_out
from training.fleet.receiver.security.access import acting_host
from training.fleet.service.audit import Act
from training.fleet.service.data_use import NameMoved, check_fetch, check_name_unused, check_unused, name_moved
from training.fleet.service.states import Calling, chunks_in
from training.fleet.store.datasets import Shelved
from training.fleet.wire import messages as wire
from training.fleet.wire.constants import HEADER_CLAIM_ID, HEADER_HOST_ID, HEADER_SHA256
from training.fleet.wire.dataset_listing import BATCH_BODY_BYTES_MAX, CHUNK_BYTES, LISTING_BYTES_MAX
from training.fleet.wire.states import StateKeepRequest

logger = logging.getLogger(__name__)


async def datasets(context: ReceiverContext, _request: Request) -> Answer:
    found = await context.disk(context.datasets.sets)
    return wire.DatasetsReply(datasets=[_view(each) for each in found], now=context.clock.now())


# -- the operator -----------------------------------------------------------------------------------------------


async def announce_dataset(context: ReceiverContext, request: Request) -> Answer:
    """Accept the listing of a data set; the answer names the chunks that are missing here, only the first ones if there
    are many."""
    dataset_id = _id(request)
    document = await read_bytes(context, request, LISTING_BYTES_MAX)
    draft = await context.disk(lambda: context.datasets.begin(dataset_id, document))
    return wire.DatasetDraftReply.of(draft, dataset_id=dataset_id, missing=list(draft.missing))


async def bring_piece(context: ReceiverContext, request: Request) -> Answer:
    """Store an uploaded chunk, or all chunks of a body with many small ones. One request for each of ten thousand small
    files would take long."""
    dataset_id, sha256 = _id(request), request.path_params.get("sha256")
    body = await read_bytes(context, request, BATCH_BODY_BYTES_MAX if sha256 is None else CHUNK_BYTES)
    pieces = chunks_in(body, sha256)
    await context.disk(lambda: context.datasets.put(dataset_id, pieces))
    return Response()


bring_pieces = bring_piece


async def publish_dataset(context: ReceiverContext, request: Request) -> Answer:
    dataset_id = _id(request)
    body = await read_json(context, request, wire.DatasetPublishRequest)
    now = context.clock.now()
    was = (await context.disk(context.datasets.catalogue)).names.get(body.name or "", dataset_id)
    shelved = await context.disk(lambda: context.datasets.publish(dataset_id, body.name, now, body.hosts))
    view, who = _view(shelved), acting(context, request)
    after = {"name": body.name, "size": view.size}

    def note() -> NameMoved:
        context.audit.write(who, Act.DATASET_PUSH, dataset_id, after=after)
        context.service.host_registry.datasets = context.datasets.catalogue().ids
        return name_moved(context.service, body.name, dataset_id)

    moved = await context.act(request, note)
    context.room.wake()  # jobs may have waited for it
    logger.info("data set %s (%s) is published", dataset_id[:12], body.name or "without a name")
    return wire.DatasetPublishReply.of(view, was=None if was == dataset_id else was, **asdict(moved))


async def remove_dataset(context: ReceiverContext, request: Request) -> Answer:
    """Delete a data set; raises Refusal if a job needs it, or the plan uses one of its names."""
    dataset_id = _id(request)
    names = [name for name, named in context.datasets.catalogue().names.items() if named == dataset_id]

    def check() -> None:
        check_unused(context.service, dataset_id)
        for name in names:
            check_name_unused(context.service, name)

    await context.act(request, check)
    freed = await context.disk(lambda: context.datasets.remove(dataset_id))
    who, before = acting(context, request), {"freed": freed}

    def noted() -> None:
        context.audit.write(who, Act.DATASET_REMOVE, dataset_id, before=before)
        context.service.host_registry.datasets = context.datasets.catalogue().ids

    await context.act(request, noted)
    logger.info("data set %s is removed, %d bytes are free", dataset_id[:12], freed)
    return wire.DatasetRemoveReply(dataset_id=dataset_id, freed=freed)


async def unname_dataset(context: ReceiverContext, request: Request) -> Answer:
    """Remove one of a data set's names; refused if a job of the plan uses the name, or the data set has no other."""
    dataset_id = _id(request)
    name = (await read_json(context, request, wire.DatasetUnnameRequest)).name
    await context.act(request, lambda: check_name_unused(context.service, name))
    shelved = await context.disk(lambda: context.datasets.unname(dataset_id, name))
    who = acting(context, request)
    await context.act(request, lambda: context.audit.write(who, Act.DATASET_REMOVE, dataset_id, before={"name": name}))
    return _view(shelved)


# -- hosts, and operators -----------------------------------------------------------------------------------------


async def dataset(context: ReceiverContext, request: Request) -> Answer:
    """Answer with the listing of a data set; the SHA-256 of its bytes is the data set's id."""
    dataset_id = await _may_fetch(context, request)
    document = await context.disk(lambda: context.datasets.listing(dataset_id))
    return Response(document, media_type="application/json", headers={HEADER_SHA256: dataset_id})


async def piece(context: ReceiverContext, request: Request) -> Answer:
    dataset_id = await _may_fetch(context, request)
    sha256 = request.path_params["sha256"]
    data = await context.disk(lambda: context.datasets.piece(dataset_id, sha256))
    return _chunk(data, sha256)


# -- saved states: only the holder of a live claim brings or gets one ---------------------------------------------


async def announce_state(context: ReceiverContext, request: Request) -> Answer:
    """Accept the listing of a saved state; the answer names the chunks that are missing here, only the first ones if
    there are many."""
    return await carry_out(context, request, context.saved_states.announce(*_asked(request)))


async def bring_state_piece(context: ReceiverContext, request: Request) -> Answer:
    """Store an uploaded chunk of a saved state, or all chunks of a body with many small ones."""
    sha256 = request.path_params.get("sha256")
    await carry_out(context, request, context.saved_states.bring(*_asked(request), sha256))
    return Response()


bring_state_pieces = bring_state_piece


async def keep_state(context: ReceiverContext, request: Request) -> Answer:
    """Make a saved state, whose chunks are all here, the job's newest; refused if its attempt has ended meanwhile."""
    body = await read_json(context, request, StateKeepRequest)
    return await carry_out(context, request, context.saved_states.keep(*_asked(request), body))


async def state(context: ReceiverContext, request: Request) -> Answer:
    """Answer with the listing of a saved state; the SHA-256 of its bytes is the state's id."""
    document = await carry_out(context, request, context.saved_states.listing(*_asked(request)))
    return Response(document, media_type="application/json", headers={HEADER_SHA256: request.path_params["state_id"]})


async def state_piece(context: ReceiverContext, request: Request) -> Answer:
    sha256 = request.path_params["sha256"]
    data = await carry_out(context, request, context.saved_states.piece(*_asked(request), sha256))
    return _chunk(data, sha256)


# -- inside -----------------------------------------------------------------------------------------------------


async def _may_fetch(context: ReceiverContext, request: Request) -> str:
    """Return the data set's id; raises Refusal if the caller is a training host that may not fetch this data set."""
    dataset_id, host = _id(request), proven_host(request)
    if host is not None:
        await context.act(request, lambda: check_fetch(context.service, dataset_id, host))
    return dataset_id


def _id(request: Request) -> str:
    return str(request.path_params["dataset_id"])


def _view(shelved: Shelved) -> wire.DatasetView:
    return wire.DatasetView.of(shelved.about, dataset_id=shelved.dataset_id, names=list(shelved.names))


def _chunk(data: bytes, sha256: str) -> Response:
    headers = {HEADER_SHA256: sha256, "X-Content-Type-Options": "nosniff"}
    return Response(data, media_type="application/octet-stream", headers=headers)


def _asked(request: Request) -> tuple[Calling, str]:
    """Return the calling claim and host for the job in the path, and the state's id."""
    named, host_id = request.path_params, acting_host(caller(request), request.headers.get(HEADER_HOST_ID))
    return Calling(named["job_id"], request.headers.get(HEADER_CLAIM_ID), host_id), named["state_id"]
