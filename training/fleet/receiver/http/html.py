"""Answers for browsers: HTML under a strict content security policy, rendered off the event loop.

Jinja2 and the pages are loaded when the first one is asked for: a receiver without open pages needs neither.
"""

from __future__ import annotations

import gc
import gzip
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.receiver.http.problems import PLAIN, headers_of, response_of, unrouted, wants_page
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.identity import Method, Principal

if TYPE_CHECKING:
    from training.fleet.pages.rendering import Frame

# A page loads its own style and scripts, and nothing else from anywhere; no text can become script.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types htmx"
)
PAGE_HEADERS = {
    **PLAIN,
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_LEVEL = 6


async def refused(
    context: ReceiverContext, request: Request, refusal: Refusal, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with a refusal: a page for a browser that asks for HTML outside ``/v1/``, a problem document for all
    others. A browser that visits a page without any proof is sent to the login, which leads back."""
    if not wants_page(request):
        return response_of(refusal, headers)
    # A page that asks again by script keeps what it shows, and says why.
    visits = request.method == "GET" and "HX-Request" not in request.headers
    if visits and refusal.problem_type is ProblemType.NO_CERTIFICATE:
        return elsewhere(f"/login?{urlencode({'to': _address(request)})}", headers_of(refusal))

    def make(frame: Frame) -> str:
        from training.fleet.pages import refusal as refusals

        return refusals.page(refusal, frame, request.method == "GET")

    answer = await page(context, request, make, refusal.problem_type.status)
    answer.headers.update({**headers_of(refusal), **(headers or {})})
    return answer


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer a request for an unknown path or method with a refusal."""
    return await refused(request.app.state.context, request, *unrouted(request, error))


async def page(
    context: ReceiverContext,
    request: Request,
    make: Callable[[Frame], str],
    status: int = 200,
    *,
    followed: bool = False,
) -> Response:
    """Render a page by ``make`` on the reader's thread, where ``make`` may query the database. ``followed``: the
    browser will ask for the page again every few seconds."""
    zipped, principal = takes_gzip(request), cast("Principal | None", getattr(request.state, "principal", None))

    address = _address(request)
    static = followed and request.query_params.get("static") == "1"

    def body() -> bytes:
        text = make(frame_of(context, principal, address, followed=followed, static=static)).encode()
        gc.collect(1)  # a template's context holds itself: let the next page have its memory
        return gzip.compress(text, _LEVEL, mtime=0) if zipped else text

    headers = {**PAGE_HEADERS, "Vary": "Accept-Encoding", **({"Content-Encoding": "gzip"} if zipped else {})}
    return Response(await context.look(body), status, headers, "text/html; charset=utf-8")


def _address(request: Request) -> str:
    path: str = request.scope.get("raw_path", b"/").partition(b"?")[0].decode("ascii", "replace")
    return f"{path}?{request.url.query}" if request.url.query else path


async def shown(
    context: ReceiverContext, request: Request, template: str, status: int = 200, **values: object
) -> Response:
    """Render a template with these values, which may come from other machines."""

    def make(frame: Frame) -> str:
        from training.fleet.pages.rendering import render

        return render(template, frame, **values)

    return await page(context, request, make, status)


def frame_of(
    context: ReceiverContext, principal: Principal | None, address: str, *, followed: bool = False, static: bool = False
) -> Frame:
    """Make the values of the frame that all pages share. The frame for an unauthenticated caller names neither caller
    nor version; that of a static site names the version."""
    from training.fleet.pages.rendering import Frame

    now, version = context.clock.now(), context.settings.version
    if static or principal is None:
        return Frame(now, version=version if static else "", address=address, static=static)
    return Frame(
        now,
        principal.operator or principal.reader or principal.host_id or "",
        version,
        address,
        may_act=principal.operator is not None,
        in_session=principal.method is Method.SESSION,
        followed=followed,
    )


def elsewhere(to: str, headers: Mapping[str, str]) -> Response:
    """Redirect the browser to another page of the receiver after a form was processed."""
    return Response(status_code=303, headers={**PAGE_HEADERS, "Location": to, **headers})


def takes_gzip(request: Request) -> bool:
    """Return True if the client accepts gzip. A weight that begins with 0 (``gzip;q=0``) counts as a no; no browser in
    use sends one."""
    return "gzip" in request.headers.get("Accept-Encoding", "") and "gzip;q=0" not in request.headers["Accept-Encoding"]
