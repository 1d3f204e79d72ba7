"""Read request bodies: limited in size and time, JSON as a whole and bundles block by block."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import parse_qs

import msgspec
from starlette.requests import ClientDisconnect, Request

from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.receiver.http.problems import decoded
from training.fleet.receiver.security.access import acting_host
from training.fleet.service.audit import who
from training.fleet.service.guards import whole_number
from training.fleet.store.incoming import PartFile
from training.fleet.wire.constants import JSON_BODY_MAX, ProblemType, Refusal
from training.fleet.wire.identity import Principal

T = TypeVar("T")

FORM = "application/x-www-form-urlencoded"
FIELDS_MAX = 200  # of a form
BLOCK_BYTES = 1024 * 1024  # bytes that a disk thread takes at once


async def read_json(context: ReceiverContext, request: Request, kind: type[T], bytes_max: int = JSON_BODY_MAX) -> T:
    """Read a JSON body into a struct, bounded in size and time. If the body has no ``host_id``, the proven host's is
    put there; raises Refusal if the body names another host."""
    body = await _read(context, request, bytes_max)
    context.authenticator.recheck_revocation(request)
    return _as_caller(request, decoded(body, kind))


async def read_form(context: ReceiverContext, request: Request) -> dict[str, list[str]]:
    """Read the body that a page's form sends, bounded like JSON; return the values of each field."""
    if request.headers.get("Content-Type", "").partition(";")[0].strip() != FORM:
        raise Refusal(ProblemType.BAD_REQUEST, f"the Content-Type of a form is {FORM}")
    body = await _read(context, request, JSON_BODY_MAX)
    try:
        return parse_qs(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
    except ValueError:  # UnicodeDecodeError is one
        raise Refusal(ProblemType.BAD_REQUEST, "the form cannot be read; load its page again") from None


async def _read(context: ReceiverContext, request: Request, bytes_max: int) -> bytes:
    """Read a body, limited in size and time. Only a few bodies larger than ``JSON_BODY_MAX`` are read at the same
    time."""
    body, large = bytearray(), False
    try:
        async with asyncio.timeout(context.settings.body_s):
            async for data in request.stream():
                body += data
                if len(body) > bytes_max:
                    raise Refusal(ProblemType.TOO_LARGE, f"the body is larger than {bytes_max} bytes")
                if len(body) > JSON_BODY_MAX and not large:
                    large = await context.large_bodies.acquire()
    except TimeoutError:
        raise Refusal(ProblemType.REQUEST_TIMEOUT, "the body came too slowly; send it again") from None
    except ClientDisconnect:
        raise Refusal(ProblemType.BAD_REQUEST, "the body ended early; send it again") from None
    finally:
        if large:
            context.large_bodies.release()
    return bytes(body)


def caller(request: Request) -> Principal | None:
    """Return the authenticated caller; None on an endpoint that needs no authentication."""
    found: Principal | None = request.state.principal
    return found


def acting(context: ReceiverContext, request: Request) -> str:
    """Return the name under which the audit records the caller."""
    return who(caller(request), context.authenticator.address(request))


def proven_host(request: Request) -> str | None:
    """Return the caller's proven host id; None for an operator, a reader and a watched host, and on a receiver without
    TLS."""
    principal = caller(request)
    return None if principal is None or principal.operator is not None else principal.host_id


def _as_caller(request: Request, message: T) -> T:
    if not isinstance(message, msgspec.Struct) or "host_id" not in message.__struct_fields__:
        return message
    said = getattr(message, "host_id", None)
    host_id = acting_host(caller(request), said)
    if host_id == said:
        return message
    return msgspec.structs.replace(message, host_id=host_id)


async def read_bytes(context: ReceiverContext, request: Request, bytes_max: int) -> bytes:
    """Read the whole body of an upload, of ``bytes_max`` bytes at most."""
    body = bytearray()

    async def take(data: bytes) -> None:
        nonlocal body
        if len(body) + len(data) > bytes_max:
            raise Refusal(ProblemType.TOO_LARGE, f"this body may have at most {bytes_max} bytes")
        body += data

    await read_upload(context, request, take)
    return bytes(body)


@dataclass
class _Blocks:
    """A body on its way to the disk: a thread hashes and writes one block while the next arrives."""

    _context: ReceiverContext
    _part: PartFile
    _block: bytearray = field(default_factory=bytearray)
    _writing: asyncio.Task[None] | None = None

    async def add(self, data: bytes) -> None:
        self._block += data
        if len(self._block) >= BLOCK_BYTES:
            await self._settle()
            self._context.delivery.check_size(self._part.offset + len(self._block))
            block, self._block = self._block, bytearray()
            self._writing = asyncio.create_task(self._context.disk(lambda: self._part.write(block)))

    async def flush(self) -> None:
        """Write the bytes not yet written, even of an interrupted body, so that the next try can resume after them."""
        await self._settle()
        if self._block:
            block, self._block = self._block, bytearray()
            await self._context.disk(lambda: self._part.write(block))
        self._context.delivery.check_size(self._part.offset)

    async def _settle(self) -> None:
        if self._writing is not None:
            # Shielded: a cancelled block would leave a hole before the next one.
            await asyncio.shield(self._writing)
            self._writing = None


@dataclass
class _Pace:
    """The limit on slow bodies: a number of bytes must arrive in each window of time, except while the receiver writes
    to its disk."""

    _window_s: float
    _window_bytes: int
    _arrived = 0
    _busy = False

    async def run(self, request: Request, take: Callable[[bytes], Awaitable[None]]) -> None:
        """Pass the body to ``take`` as it arrives; raises TimeoutError if it arrives too slowly."""
        async with asyncio.timeout(None) as patience:
            self._look_later(patience)
            try:
                async for data in request.stream():
                    self._arrived += len(data)
                    self._busy = True
                    await take(data)
                    self._busy = False
            finally:
                self._timer.cancel()

    def _look_later(self, patience: asyncio.Timeout) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._window_s, self._look, patience)

    def _look(self, patience: asyncio.Timeout) -> None:
        if self._arrived < self._window_bytes and not self._busy:
            patience.reschedule(0.0)  # long past: now
        else:
            self._arrived = 0
            self._look_later(patience)


async def read_upload(context: ReceiverContext, request: Request, take: Callable[[bytes], Awaitable[None]]) -> None:
    pace = _Pace(context.settings.upload_window_s, context.settings.upload_window_bytes)
    how = "send it again, a bundle from the offset that HEAD gives"

    async def take_still(data: bytes) -> None:
        context.authenticator.recheck_revocation(request)  # it may come for hours
        await take(data)

    try:
        await pace.run(request, take_still)
    except TimeoutError:
        raise Refusal(ProblemType.REQUEST_TIMEOUT, f"the body came too slowly; {how}") from None
    except ClientDisconnect:
        raise Refusal(ProblemType.BAD_REQUEST, f"the body ended early; {how}") from None


async def read_blocks(context: ReceiverContext, request: Request, part: PartFile | None) -> None:
    """Write a body's blocks into ``part``. If ``part`` is None, the store has the bytes already, and the body is read
    and dropped."""
    if part is None:
        await read_upload(context, request, _ignore)
        return
    blocks = _Blocks(context, part)
    try:
        await read_upload(context, request, blocks.add)
    finally:
        await blocks.flush()


async def _ignore(_piece: bytes) -> None:
    pass


def query_number(request: Request, name: str, default: int) -> int:
    """Return the whole number in the query's field ``name``; the default if the field is absent. Raises Refusal if it
    is no whole number."""
    return whole_number(name, request.query_params.get(name), default)


async def resolved(context: ReceiverContext, request: Request) -> str:
    """Return the id of the job that the path names; raises Refusal if there is no such job, or the caller may not see
    it."""
    return await readable_job(context, request, request.path_params["job_id"])


async def readable_job(context: ReceiverContext, request: Request, ref: str) -> str:
    """Return the id of the job with this name, id or prefix of an id; raises Refusal if it is not one job, or the
    caller may not see it."""
    return await context.act(request, lambda: context.service.readable(ref, proven_host(request)))
