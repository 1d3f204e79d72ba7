"""Refusals on the wire: ``application/problem+json`` with a stable ``type``, for everything that can go wrong."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from training.fleet.database.writer import DatabaseError, DatabaseFull, WriterClosed
from training.fleet.store.errors import (
    BadName,
    Damaged,
    Fenced,
    Incomplete,
    NoDataset,
    NotStored,
    OffsetMismatch,
    OnlyName,
    PiecesMissing,
    ShareFull,
    StoreError,
    StoreFull,
    TooManyParts,
    WrongDigest,
)
from training.fleet.wire.messages import HEADER_OFFSET, HEADER_PROBLEM, Problem, Refusal, Slug

logger = logging.getLogger(__name__)
T = TypeVar("T")

MEDIA_TYPE = "application/problem+json"
# A browser takes no answer for a page, and keeps none.
PLAIN = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
# Seconds after which asking again can help, for the refusals that time may remove.
_RETRY_AFTER_S: Mapping[Slug, int] = {
    Slug.REQUEST_TIMEOUT: 1,
    Slug.SLOW_DOWN: 1,
    Slug.SHUTTING_DOWN: 2,
    Slug.UNAVAILABLE: 5,
    Slug.DISK_FULL: 30,
}
_STORE_SLUGS: Mapping[type[StoreError], Slug] = {
    BadName: Slug.BAD_REQUEST,
    OnlyName: Slug.WRONG_STATE,
    StoreFull: Slug.DISK_FULL,
    ShareFull: Slug.DISK_FULL,
    NotStored: Slug.NO_ARTIFACT,
    Damaged: Slug.NO_ARTIFACT,
    TooManyParts: Slug.SLOW_DOWN,
    Fenced: Slug.OFFSET_MISMATCH,
    OffsetMismatch: Slug.OFFSET_MISMATCH,
    NoDataset: Slug.UNKNOWN_DATASET,
    PiecesMissing: Slug.INCOMPLETE_DATASET,
    Incomplete: Slug.BAD_REQUEST,
    WrongDigest: Slug.WRONG_DIGEST,
}


def refusal_of(error: Exception) -> Refusal | None:
    """Turn a known failure below into a refusal; None for a bug of ours."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, StoreError):
        slug = _STORE_SLUGS.get(type(error), Slug.UNAVAILABLE)
        stored = getattr(error, "stored", None)
        return Refusal(slug, str(error), **({} if stored is None else {"stored": stored}))
    if isinstance(error, WriterClosed):
        return Refusal(Slug.SHUTTING_DOWN, str(error))
    if isinstance(error, DatabaseFull):
        return Refusal(Slug.DISK_FULL, str(error))
    if isinstance(error, DatabaseError):
        return Refusal(Slug.UNAVAILABLE, "the database cannot be used now; try again in a moment")
    return None


def body_of(refusal: Refusal) -> bytes:
    """The problem document."""
    problem = Problem(
        type=refusal.slug.value,
        title=HTTPStatus(refusal.slug.status).phrase,
        status=refusal.slug.status,
        detail=refusal.detail,
    )
    return msgspec.json.encode({**msgspec.structs.asdict(problem), **refusal.extra})


def headers_of(refusal: Refusal) -> dict[str, str]:
    """Return the headers of a refusal: problem type (for answers without a body), stored offset, when to retry."""
    headers = {HEADER_PROBLEM: refusal.slug.value}
    if refusal.slug in _RETRY_AFTER_S:
        seconds = refusal.extra.get("retry_after_s", _RETRY_AFTER_S[refusal.slug])
        headers["Retry-After"] = str(math.ceil(seconds))
    if "stored" in refusal.extra:
        headers[HEADER_OFFSET] = str(refusal.extra["stored"])
    return headers


def response_of(refusal: Refusal, extra_headers: Mapping[str, str] | None = None) -> Response:
    headers = {**headers_of(refusal), **PLAIN, **(extra_headers or {})}
    return Response(body_of(refusal), refusal.slug.status, headers, MEDIA_TYPE)


def raw_response(refusal: Refusal, more: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """The same as bytes for a connection that has not got as far as a request; it is closed afterwards."""
    status, body = HTTPStatus(refusal.slug.status), body_of(refusal)
    headers = {
        "Content-Type": MEDIA_TYPE,
        "Content-Length": str(len(body)),
        "Connection": "close",
        **headers_of(refusal),
    }
    lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"{name.decode('ascii')}: {value.decode('ascii')}" for name, value in more]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


def response_to(request: Request, error: Exception) -> Response:
    """Turn an endpoint's exception into an answer; a bug of ours leaves its traceback in the log."""
    refusal = refusal_of(error)
    if refusal is None:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        detail = "the receiver failed to answer; its log says why, trying again is safe"
        refusal = Refusal(Slug.INTERNAL, detail)
    elif refusal.slug.status >= 500:
        logger.warning("refused with %s: %s", refusal.slug.value, error)
    return response_of(refusal)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Exception handler for what the router refuses: unknown addresses and methods."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        detail = f"{request.method} is not offered here; see docs/protocol.md"
        allowed = {"Allow": ", ".join(_methods_here(request))}
        return response_of(Refusal(Slug.METHOD_NOT_ALLOWED, detail), allowed)
    if error.status_code == 404:
        detail = "there is nothing at this address; see docs/protocol.md"
        return response_of(Refusal(Slug.NOT_FOUND, detail))
    return response_of(Refusal(Slug.BAD_REQUEST, str(error.detail)))


def _methods_here(request: Request) -> list[str]:
    """List the methods of this path.

    The router tells the methods of the first route alone, and a path may have several.
    """
    scope = dict(request.scope)
    here = [r for r in request.app.routes if r.matches(scope)[0] is not Match.NONE]
    return sorted(set().union(*(each.methods for each in here if each.path == here[0].path)))


def decoded(body: bytes, kind: type[T]) -> T:
    """A JSON body as its struct; a wrong type is refused with its path (``$.host_id``)."""
    try:
        try:
            return msgspec.json.decode(body or b"{}", type=kind)
        except msgspec.ValidationError:
            return msgspec.convert(_whole_numbers(msgspec.json.decode(body or b"{}")), kind)
    except msgspec.ValidationError as error:
        raise Refusal(Slug.BAD_REQUEST, f"the body does not fit: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise Refusal(Slug.BAD_REQUEST, f"the body is not JSON: {error}") from None
    except RecursionError:
        raise Refusal(Slug.BAD_REQUEST, "the body is nested too deeply") from None


def _whole_numbers(value: Any) -> Any:
    """To JSON, and to the published schema, 2.0 is an integer, and some languages write it so."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _whole_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(each) for each in value]
    return value


def reply(message: Any, headers: Mapping[str, str] | None = None) -> Response:
    """A message of :mod:`training.fleet.wire.messages` as a 200."""
    shown = {**PLAIN, **(headers or {})}
    return Response(msgspec.json.encode(message), headers=shown, media_type="application/json")
