"""The endpoints of data sets: decode, call, encode. Operators push them, hosts fetch those they may have to train on.

A push announces the listing, brings the pieces that are missing, and publishes; each step may be repeated.
"""

from __future__ import annotations

import logging

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from training.fleet.receiver.http.bodies import acting, proven_host, read_json, read_upload
from training.fleet.receiver.http.context import Hub
from training.fleet.receiver.http.problems import reply
from training.fleet.service.audit import Act
from training.fleet.service.data_use import NameMoved, check_name_unused, check_unused, name_moved
from training.fleet.service.membership import check_fetch
from training.fleet.store.datasets import DatasetShelf, Shelved
from training.fleet.wire.dataset_listing import (
    BATCH_BYTES,
    BATCH_HEAD_BYTES,
    BATCH_PIECES,
    LISTING_BYTES_MAX,
    PIECE_BYTES,
    BadListing,
    batched,
)
from training.fleet.wire.messages import (
    HEADER_SHA256,
    Chunk,
    DatasetChunksReply,
    DatasetDraftReply,
    DatasetPublishReply,
    DatasetPublishRequest,
    DatasetRemoveReply,
    DatasetsReply,
    DatasetUnnameRequest,
    DatasetView,
    Refusal,
    Slug,
)
from training.fleet.wire.patches import HEADER_BYTES_MAX, read_patch

logger = logging.getLogger(__name__)


async def datasets(hub: Hub, _request: Request) -> Response:
    found = await hub.disk(_shelf(hub).sets)
    return reply(DatasetsReply(datasets=[_view(each) for each in found], now=hub.clock.now()))


# -- the operator -----------------------------------------------------------------------------------------------


async def announce_dataset(hub: Hub, request: Request) -> Response:
    """Take a listing; the answer names the pieces that have to come."""
    shelf, dataset_id = _shelf(hub), _id(request)
    document = await _body(hub, request, LISTING_BYTES_MAX)
    draft = await hub.disk(lambda: shelf.begin(dataset_id, document))
    return reply(
        DatasetDraftReply(
            dataset_id=dataset_id,
            size=draft.size,
            missing=list(draft.missing),
            published=draft.published,
        )
    )


async def bring_piece(hub: Hub, request: Request) -> Response:
    shelf, dataset_id, sha256 = _shelf(hub), _id(request), request.path_params["sha256"]
    data = await _body(hub, request, PIECE_BYTES)
    await hub.disk(lambda: shelf.put(dataset_id, [(sha256, data)]))
    return Response()


async def bring_pieces(hub: Hub, request: Request) -> Response:
    """Take many small pieces at once: a folder of ten thousand files would ask as often otherwise."""
    shelf, dataset_id = _shelf(hub), _id(request)
    body = await _body(hub, request, BATCH_BYTES + BATCH_PIECES * BATCH_HEAD_BYTES)
    try:
        pieces = batched(body)
    except BadListing as error:
        raise Refusal(Slug.WRONG_DIGEST, str(error)) from None
    await hub.disk(lambda: shelf.put(dataset_id, pieces))
    return Response()


async def chunks(hub: Hub, request: Request) -> Response:
    """The chunks of a file of a published data set, by which a changed form of it is pushed as patches."""
    shelf, dataset_id = _shelf(hub), _id(request)
    path = request.query_params.get("path", "")
    found = await hub.disk(lambda: shelf.chunks(dataset_id, path))
    return reply(DatasetChunksReply(chunks=[Chunk(sha256=s, length=n) for s, n in found]))


async def patch_piece(hub: Hub, request: Request) -> Response:
    """Take a piece as a patch of what another data set holds."""
    shelf, dataset_id, sha256 = _shelf(hub), _id(request), request.path_params["sha256"]
    body = await _body(hub, request, PIECE_BYTES + HEADER_BYTES_MAX)
    try:
        patch = read_patch(body)
    except BadListing as error:
        raise Refusal(Slug.WRONG_DIGEST, str(error)) from None
    await hub.disk(lambda: shelf.put_patched(dataset_id, sha256, patch))
    return Response()


async def publish_dataset(hub: Hub, request: Request) -> Response:
    shelf, dataset_id = _shelf(hub), _id(request)
    body = await read_json(hub, request, DatasetPublishRequest)
    now = hub.clock.now()
    was = (await hub.disk(shelf.catalogue)).names.get(body.name or "", dataset_id)
    shelved = await hub.disk(lambda: shelf.publish(dataset_id, body.name, now, body.hosts))
    view, who = _view(shelved), acting(hub, request)
    after = {"name": body.name, "size": view.size}

    def note() -> NameMoved:
        hub.audit.write(who, Act.DATASET_PUSH, dataset_id, after=after)
        hub.service.datasets_here(shelf.catalogue().ids)
        return name_moved(hub.service, body.name, dataset_id)

    moved = await hub.act(request, note)
    hub.room.wake()  # somebody may have waited for this
    logger.info("data set %s (%s) is published", dataset_id[:12], body.name or "without a name")
    return reply(
        DatasetPublishReply(
            **msgspec.structs.asdict(view),
            was=None if was == dataset_id else was,
            jobs_anew=moved.jobs_anew,
            jobs_waiting=moved.jobs_waiting,
        )
    )


async def remove_dataset(hub: Hub, request: Request) -> Response:
    """Forget a data set that no job needs."""
    shelf, dataset_id = _shelf(hub), _id(request)
    await hub.act(request, lambda: check_unused(hub.service, dataset_id))
    freed = await hub.disk(lambda: shelf.remove(dataset_id))
    who, before = acting(hub, request), {"freed": freed}

    def noted() -> None:
        hub.audit.write(who, Act.DATASET_REMOVE, dataset_id, before=before)
        hub.service.datasets_here(shelf.catalogue().ids)

    await hub.act(request, noted)
    logger.info("data set %s is removed, %d bytes are free", dataset_id[:12], freed)
    return reply(DatasetRemoveReply(dataset_id=dataset_id, freed=freed))


async def unname_dataset(hub: Hub, request: Request) -> Response:
    """Free one of several names of a data set, which stays."""
    shelf, dataset_id = _shelf(hub), _id(request)
    name = (await read_json(hub, request, DatasetUnnameRequest)).name
    await hub.act(request, lambda: check_name_unused(hub.service, name))
    shelved = await hub.disk(lambda: shelf.unname(dataset_id, name))
    who = acting(hub, request)
    await hub.act(
        request,
        lambda: hub.audit.write(who, Act.DATASET_REMOVE, dataset_id, before={"name": name}),
    )
    return reply(_view(shelved))


# -- hosts, and operators -----------------------------------------------------------------------------------------


async def dataset(hub: Hub, request: Request) -> Response:
    """The listing's bytes; their SHA-256 is the data set's id."""
    shelf, dataset_id = _shelf(hub), await _may_fetch(hub, request)
    document = await hub.disk(lambda: shelf.listing(dataset_id))
    return Response(document, media_type="application/json", headers={HEADER_SHA256: dataset_id})


async def piece(hub: Hub, request: Request) -> Response:
    shelf, dataset_id = _shelf(hub), await _may_fetch(hub, request)
    sha256 = request.path_params["sha256"]
    data = await hub.disk(lambda: shelf.piece(dataset_id, sha256))
    headers = {HEADER_SHA256: sha256, "X-Content-Type-Options": "nosniff"}
    return Response(data, media_type="application/octet-stream", headers=headers)


# -- inside -----------------------------------------------------------------------------------------------------


async def _may_fetch(hub: Hub, request: Request) -> str:
    """The data set's id, if the caller may have it."""
    dataset_id, host = _id(request), proven_host(request)
    if host is not None:
        await hub.act(request, lambda: check_fetch(hub.service, dataset_id, host))
    return dataset_id


async def _body(hub: Hub, request: Request, bytes_max: int) -> bytes:
    """The whole body, which may not have more bytes than this."""
    body = bytearray()

    async def take(data: bytes) -> None:
        nonlocal body
        if len(body) + len(data) > bytes_max:
            raise Refusal(Slug.TOO_LARGE, f"this body may have at most {bytes_max} bytes")
        body += data

    await read_upload(hub, request, take)
    return bytes(body)


def _id(request: Request) -> str:
    return str(request.path_params["dataset_id"])


def _shelf(hub: Hub) -> DatasetShelf:
    if hub.datasets is None:
        raise Refusal(Slug.UNKNOWN_DATASET, "this receiver keeps no data sets")
    return hub.datasets


def _view(shelved: Shelved) -> DatasetView:
    about = shelved.about
    return DatasetView(
        dataset_id=shelved.dataset_id,
        names=list(shelved.names),
        size=about.size,
        files=about.files,
        pieces=about.pieces,
        pushed_at=about.pushed_at,
    )
