"""Turn errors into refusals, and encode refusals as ``application/problem+json`` with a stable ``type``; html.py shows
refusals to browsers as pages."""

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
from training.fleet.store.errors import StoreError
from training.fleet.wire.constants import (
    HEADER_OFFSET,
    HEADER_PROBLEM,
    JSON_BODY_MAX,
    UNCONFIRMED,
    ProblemType,
    Refusal,
)
from training.fleet.wire.message import Wire
from training.fleet.wire.messages import Problem
from training.logs import HOURLY

logger = logging.getLogger(__name__)
T = TypeVar("T")
Answer = Response | Wire  # of an endpoint: a message is answered as JSON

MEDIA_TYPE = "application/problem+json"
# A browser neither shows an answer as a page nor caches it.
PLAIN = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
# Seconds after which asking again can help, for the refusals that time may remove.
_RETRY_AFTER_S = {
    ProblemType.REQUEST_TIMEOUT: 1,
    ProblemType.SLOW_DOWN: 1,
    ProblemType.SHUTTING_DOWN: 2,
    ProblemType.UNAVAILABLE: 5,
    ProblemType.DISK_FULL: 30,
}


def refusal_of(error: Exception) -> Refusal | None:
    """Turn a known error of service, store or database into a refusal; return None for any other error, which is a
    bug."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, StoreError):
        stored = getattr(error, "stored", None)
        return Refusal(error.problem_type, str(error), **({} if stored is None else {"stored": stored}))
    if isinstance(error, WriterClosed):
        return Refusal(ProblemType.SHUTTING_DOWN, str(error))
    if isinstance(error, DatabaseFull):
        return Refusal(ProblemType.DISK_FULL, str(error))
    if isinstance(error, DatabaseError):
        return Refusal(
            ProblemType.UNAVAILABLE, "the database cannot be used now; the receiver's log says why; try again soon"
        )
    return None


def body_of(refusal: Refusal) -> bytes:
    """Encode a refusal as a problem document in JSON, with the refusal's further members."""
    problem = Problem(
        type=refusal.problem_type.value,
        title=HTTPStatus(refusal.problem_type.status).phrase,
        status=refusal.problem_type.status,
        detail=refusal.detail,
    )
    return msgspec.json.encode({**msgspec.structs.asdict(problem), **refusal.extra})


def headers_of(refusal: Refusal) -> dict[str, str]:
    """Return the headers of a refusal: problem type (for answers without a body), stored offset, and when to retry."""
    headers = {HEADER_PROBLEM: refusal.problem_type.value}
    if refusal.problem_type in _RETRY_AFTER_S:
        seconds = refusal.extra.get("retry_after_s", _RETRY_AFTER_S[refusal.problem_type])
        headers["Retry-After"] = str(math.ceil(seconds))
    if "stored" in refusal.extra:
        headers[HEADER_OFFSET] = str(refusal.extra["stored"])
    return headers


def response_of(refusal: Refusal, extra_headers: Mapping[str, str] | None = None) -> Response:
    headers = {**headers_of(refusal), **PLAIN, **(extra_headers or {})}
    return Response(body_of(refusal), refusal.problem_type.status, headers, MEDIA_TYPE)


def raw_response(refusal: Refusal, more: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """Encode a whole response for a connection without a complete request; the caller closes the connection
    afterwards."""
    status, body = HTTPStatus(refusal.problem_type.status), body_of(refusal)
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


def answerable(request: Request, error: Exception) -> Refusal:
    """Turn an endpoint's exception into a refusal; for a bug, log its traceback."""
    refusal = refusal_of(error)
    if refusal is None:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        detail = "the receiver failed to answer; its log says why, trying again is safe"
        refusal = Refusal(ProblemType.INTERNAL, detail)
    elif refusal.problem_type.status >= 500:
        logger.warning("refused with %s: %s", refusal.problem_type.value, error, extra=HOURLY)
    return refusal


def wants_page(request: Request) -> bool:
    """Return True if the request accepts ``text/html`` and its path is not below ``/v1/``, as when a browser displays
    the answer."""
    return "text/html" in request.headers.get("Accept", "") and not request.url.path.startswith("/v1/")


def unrouted(request: Request, error: Exception) -> tuple[Refusal, dict[str, str]]:
    """Turn the router's error (unknown path or method) into a refusal; return it with the headers of its answer."""
    assert isinstance(error, HTTPException)
    request.app.state.context.tally.answered("none", error.status_code)
    if error.status_code == 405:
        detail = f"{request.method} is not offered here; see docs/protocol.md"
        allowed = {"Allow": ", ".join(_methods_here(request))}
        return Refusal(ProblemType.METHOD_NOT_ALLOWED, detail), allowed
    if error.status_code == 404:
        return Refusal(ProblemType.NOT_FOUND, "there is no such endpoint; see docs/protocol.md"), {}
    return Refusal(ProblemType.BAD_REQUEST, str(error.detail)), {}


def _methods_here(request: Request) -> list[str]:
    """List the methods of this path.

    The router lists the methods of the first route alone, and a path may have several.
    """
    scope = dict(request.scope)
    here = [r for r in request.app.routes if r.matches(scope)[0] is not Match.NONE]
    return sorted(set().union(*(each.methods for each in here if each.path == here[0].path)))


def decoded(body: bytes, kind: type[T]) -> T:
    """Decode a JSON body into its struct; an empty body counts as ``{}``. Raises Refusal; for a wrong type, the text
    names the member (``$.host_id``)."""
    try:
        try:
            return msgspec.json.decode(body or b"{}", type=kind)
        except msgspec.ValidationError:
            if len(body) > JSON_BODY_MAX:
                raise  # its parts are not made one by one
            return msgspec.convert(_whole_numbers(msgspec.json.decode(body or b"{}")), kind)
    except msgspec.ValidationError as error:
        raise Refusal(ProblemType.BAD_REQUEST, f"the body does not fit: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise Refusal(ProblemType.BAD_REQUEST, f"the body is not JSON: {error}") from None
    except RecursionError:
        raise Refusal(ProblemType.BAD_REQUEST, "the body is nested too deeply") from None


def _whole_numbers(value: Any) -> Any:
    """Replace each whole float of magnitude below 2**53 in a JSON value, such as 2.0, by its integer, because some
    languages write integers so."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _whole_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(each) for each in value]
    return value


def reply(message: Any, headers: Mapping[str, str] | None = None) -> Response:
    """Make the answer 200 with a message as its JSON body; 202 for work that stays unconfirmed."""
    shown, status = {**PLAIN, **(headers or {})}, 202 if getattr(message, "status", "") == UNCONFIRMED else 200
    return Response(msgspec.json.encode(message), status, shown, "application/json")
