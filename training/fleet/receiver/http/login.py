"""Logging in with a browser that shows no certificate, and out again."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from training.fleet.receiver.http import html
from training.fleet.receiver.http.bodies import read_form
from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.wire.constants import ProblemType, Refusal

_AGAIN = (ProblemType.OPERATOR_TOKEN, ProblemType.TOO_MANY_FAILURES)


async def login_page(context: ReceiverContext, request: Request) -> Response:
    return await _ask(context, request, way(request.query_params.get("to", "")))


async def login(context: ReceiverContext, request: Request) -> Response:
    form = await read_form(context, request)
    to = way(form.get("to", [""])[0])
    try:
        cookie = context.authenticator.log_in(request, form.get("token", [""])[0])
    except Refusal as refusal:
        if refusal.problem_type not in _AGAIN:
            raise
        return await _ask(context, request, to, refusal)
    return html.elsewhere(to, {"Set-Cookie": cookie})


async def logout(context: ReceiverContext, request: Request) -> Response:
    return html.elsewhere("/", {"Set-Cookie": context.authenticator.log_out(request)})


async def _ask(context: ReceiverContext, request: Request, to: str, refusal: Refusal | None = None) -> Response:
    status, detail = (200, None) if refusal is None else (refusal.problem_type.status, refusal.detail)
    return await html.shown(context, request, "login.html", status, to=to, mistake=detail)


def way(to: str) -> str:
    """Return where to go after a login: a page of this receiver, never an address elsewhere."""
    inside = to.startswith("/") and not to.startswith("//") and to.isascii() and to.isprintable() and "\\" not in to
    return to if inside else "/"
