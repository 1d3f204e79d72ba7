"""The dashboard's pages over HTTP; a page's module is imported when the page is first requested."""

from __future__ import annotations

import contextlib
import hashlib
import re
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from training.fleet.receiver.http import html
from training.fleet.receiver.http.bodies import proven_host, read_form, readable_job
from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.receiver.http.health import health_now
from training.fleet.receiver.http.problems import PLAIN
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.routes import PAGES, Route

if TYPE_CHECKING:
    from training.fleet.pages.page_request import PageRequest
    from training.fleet.pages.rendering import Frame

PROGRESS_S = 5  # a change without an event (progress, a host that asked) may wait so long
AGE_S = 20  # times such as "3 min ago" are rendered again
_FORM = re.compile(r'(?:W/)?"([0-9a-f]+)-(\d{1,15})-(\d{1,15})-(\d{1,15})"')
JOBS_MAX = 8  # looked up for one page, which says how many it takes
PARTS_MAX = 64  # of a list of names with commas
# A login that is refused so may be tried again.
_AGAIN = (ProblemType.OPERATOR_TOKEN, ProblemType.TOO_MANY_FAILURES)
_KEPT = "public, max-age=31536000, immutable"  # its digest is in its address


class PageTag(NamedTuple):
    """The state from which a page was made for one viewer.

    A browser sends its page's tag when it asks again; the page is rendered again only if :meth:`is_news_for` says so.
    The receiver does not store which pages its viewers have.
    """

    viewer: str  # a digest of the caller and of this program
    event: int  # the number of the last event
    version: int  # of the database
    at: int  # epoch seconds

    def __str__(self) -> str:
        return f'"{"-".join(map(str, self))}"'

    def is_news_for(self, shown: str) -> bool:
        """Return True if a page made now may differ from the one with the tag ``shown``: after an event at once, else
        after some seconds."""
        found = _FORM.fullmatch(shown)
        if found is None or found[1] != self.viewer or int(found[2]) != self.event:
            return True
        patience = AGE_S if int(found[3]) == self.version else PROGRESS_S
        return not 0 <= self.at - int(found[4]) < patience


async def page(module: str, row: Route, context: ReceiverContext, request: Request) -> Response:
    """Make a page of the dashboard for this caller, unless the browser already shows the same."""
    tag = await context.look(partial(_tag, context, request))
    shown = request.headers.get("If-None-Match", "")
    if not tag.is_news_for(shown):
        return Response(status_code=304, headers={**html.PAGE_HEADERS, "ETag": shown})
    asked = await _asked(row, context, request)

    def make(frame: Frame) -> str:
        text: str = import_module(f"training.fleet.pages.{module}").page(asked, frame)
        return text

    answer = await html.page(context, request, make, followed=True)
    answer.headers["ETag"] = str(tag)
    return answer


ENDPOINTS = {row.name: partial(page, module, row) for module, row in PAGES.items()}


def _tag(context: ReceiverContext, request: Request) -> PageTag:
    who = f"{context.settings.version} {request.state.principal!r}"
    return PageTag(
        hashlib.sha256(who.encode()).hexdigest()[:16],
        context.reader.number("newest_event"),
        context.reader.version(),
        int(context.clock.now()),
    )


async def _asked(row: Route, context: ReceiverContext, request: Request) -> PageRequest:
    from training.fleet.pages.page_request import PageRequest

    path = request.path_params
    named = [path["job_id"]] if "job_id" in path else request.query_params.getlist("jobs")
    if len(named) == 1 and not path:
        jobs = await _listed(context, request, named[0].strip(","))
    else:
        jobs = [await readable_job(context, request, ref) for ref in named[:JOBS_MAX] if ref]
    health = forecast = None
    if row.shown is not None and row.shown.outlook:
        health = await health_now(context)
        with contextlib.suppress(Refusal):  # others are being made: the page goes without
            forecast = await context.foretell(lambda forecasts: forecasts.now())
    return PageRequest(
        context.views,
        {**request.query_params, **path},
        jobs,
        proven_host(request),
        health,
        forecast,
    )


async def _listed(context: ReceiverContext, request: Request, text: str) -> list[str]:
    """Return the ids of the jobs in a list with commas. A name may hold commas: a part that names no job is read with
    the next one."""
    found, begun = list[str](), ""
    for part in text.split(",", PARTS_MAX):
        begun += part
        try:
            found.append(await readable_job(context, request, begun))
        except Refusal as refusal:
            if refusal.problem_type is not ProblemType.UNKNOWN_JOB:
                raise
            unknown, begun = refusal, f"{begun},"
        else:
            begun = ""
    if begun:
        raise unknown
    return found


async def static_file(_context: ReceiverContext, request: Request) -> Response:
    from training.fleet.pages.static import static_file as find

    found = find(request.path_params["file"])
    if found is None:
        raise Refusal(ProblemType.NOT_FOUND, "there is no such file, or it is another release's; load the page again")
    tag = f'"{found.digest[:32]}"'
    headers = {
        "X-Content-Type-Options": PLAIN["X-Content-Type-Options"],
        "Cache-Control": _KEPT,
        "ETag": tag,
        "Vary": "Accept-Encoding",
    }
    if request.headers.get("If-None-Match") == tag:
        return Response(status_code=304, headers=headers)
    if html.takes_gzip(request):
        return Response(found.compressed, headers={**headers, "Content-Encoding": "gzip"}, media_type=found.media)
    return Response(found.body, headers=headers, media_type=found.media)


# -- logging in with a browser that shows no certificate, and out again --------------------------------------------


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
    """Return the address to show after a login: ``to`` if it is a path of this receiver, else the front page."""
    inside = to.startswith("/") and not to.startswith("//") and to.isascii() and to.isprintable() and "\\" not in to
    return to if inside else "/"
