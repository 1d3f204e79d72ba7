"""The dashboard's endpoints: call a view, hand it to its page. Pages are imported when the first one is asked for."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from training.fleet.receiver.http import html, live
from training.fleet.receiver.http.bodies import proven_host, query_number, readable_job, resolved
from training.fleet.receiver.http.context import Context
from training.fleet.receiver.http.health import health_now
from training.fleet.receiver.http.incidents import readable
from training.fleet.receiver.http.problems import PLAIN
from training.fleet.receiver.http.results import refuse_hosts
from training.fleet.receiver.security import access
from training.fleet.wire.messages import ProblemType, Refusal
from training.fleet.wire.routes import HTML, ROUTES

if TYPE_CHECKING:
    from training.fleet.pages.rendering import Frame

COMPARED_MAX = 8  # names looked up; the page says how many it takes
ADDRESS_MAX = 2000
BROWSER_CHARS = 40
HOST_CHARS = 128
_KEPT = "public, max-age=31536000, immutable"  # its digest is in its address


async def fleet_page(context: Context, request: Request) -> Response:
    health = await health_now(context)
    foretold = None
    with contextlib.suppress(Refusal):  # others are being made: the page goes without
        foretold = await context.foretell(lambda forecasts: forecasts.now())

    def make(frame: Frame) -> str:
        from training.fleet.pages import fleet

        return fleet.page(
            context.views, health, frame, foretold, context.views.incidents.open(), context.views.incidents.changed()
        )

    return await html.page(context, request, make)


async def jobs_page(context: Context, request: Request) -> Response:
    asked = request.query_params

    def make(frame: Frame) -> str:
        from training.fleet.pages import jobs

        return jobs.page(context.views, jobs.Query.of(asked), frame)

    return await html.page(context, request, make)


async def job_page(context: Context, request: Request) -> Response:
    job_id = await resolved(context, request)
    attempt = query_number(request, "attempt", 0) or None

    def make(frame: Frame) -> str:
        from training.fleet.pages import job

        return job.page(context.views, job_id, frame, attempt=attempt)

    return await html.page(context, request, make)


async def compare_page(context: Context, request: Request) -> Response:
    named = request.query_params.getlist("jobs")
    refs = named[0].split(",") if len(named) == 1 else named
    job_ids = [await readable_job(context, request, ref) for ref in refs[:COMPARED_MAX] if ref]

    def make(frame: Frame) -> str:
        from training.fleet.pages import compare

        return compare.page(context.views, job_ids, frame)

    return await html.page(context, request, make)


async def models_page(context: Context, request: Request) -> Response:
    refuse_hosts(request)
    test, after = request.query_params.get("test"), request.query_params.get("after", "")

    def make(frame: Frame) -> str:
        from training.fleet.pages import models

        return models.page(context.views, frame, test=test, after=after)

    return await html.page(context, request, make)


async def incidents_page(context: Context, request: Request) -> Response:
    host = readable(request, request.query_params.get("host", "")[:HOST_CHARS])
    before = query_number(request, "before", 0)

    def make(frame: Frame) -> str:
        from training.fleet.pages import incidents

        found = context.views.incidents.incidents(host=host, before=before)
        return incidents.page(found, frame, host=host, before=before)

    return await html.page(context, request, make)


async def events_page(context: Context, request: Request) -> Response:
    """Show every job's events, so to operators alone where callers are proven."""
    if (host := proven_host(request)) is not None:
        raise Refusal(ProblemType.NOT_YOURS, f"host {host} may look at jobs that it has worked on, not at all events")
    asked = request.query_params
    before, since = query_number(request, "before", 0) or None, query_number(request, "since", 0)

    def make(frame: Frame) -> str:
        from training.fleet.pages import events

        query = events.Query(asked.get("job", ""), asked.get("host", ""), asked.get("kind", ""), before, since)
        return events.page(context.views, query, frame)

    return await html.page(context, request, make)


async def stream(context: Context, request: Request) -> Response:
    """Follow the page at ``?of=ADDRESS``, for whoever may look at it."""
    address = request.query_params.get("of", "/")
    pages = [(row, live.part_of(address, row.path)) for row in ROUTES if row.media == HTML]
    row, parts = next(((row, parts) for row, parts in pages if parts is not None), (None, None))
    if row is None or parts is None or len(address) > ADDRESS_MAX:
        raise Refusal(ProblemType.NOT_FOUND, "this address is no page that can be followed")
    access.check(row.access, request.state.principal)
    address, endpoint = _since(row.name, address, request), FOLLOWED[row.name]
    asked = live.request_for(request, address, parts)
    if proven_host(request) is not None:  # it may look at some jobs and not at others, whoever looks already
        await endpoint(context, asked)

    async def make() -> bytes:
        return live.middle(live.body_of(await endpoint(context, asked)))

    def check() -> None:
        context.authenticator.still(request, row.access)

    # Tabs of a browser share what it is called; without script nobody follows.
    who = f"{context.authenticator.address(request)} {request.query_params.get('browser', '')[:BROWSER_CHARS]}"
    headers = {**html.PAGE_HEADERS, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    principal = request.state.principal
    acts = principal is not None and principal.operator is not None  # who may act sees buttons
    frames = context.live.frames(f"{acts:d}{address}", make, who, check, await _pulse(context, asked, row.name))
    first = await anext(frames)  # a page that cannot be shown is refused before the stream begins
    return live.Stream(frames, first, headers)


def _since(name: str, address: str, request: Request) -> str:
    """Return the address of what a viewer sees who was away since an event: of events, all that happened meanwhile."""
    seen = request.headers.get("Last-Event-ID", "")
    if name != events_page.__name__ or not (seen.isascii() and seen.isdigit() and len(seen) <= 15):
        return address
    return f"{address}{'&' if '?' in address else '?'}since={seen}"


async def _pulse(context: Context, asked: Request, name: str) -> live.Pulse:
    """Return what a page depends on beside events: a job's on what its own host says, others on everybody's."""
    if name != job_page.__name__:
        return live.of_all
    job_id = await resolved(context, asked)
    return lambda: context.views.pulse(job_id)


async def static_file(_context: Context, request: Request) -> Response:
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


_LIVE = (fleet_page, jobs_page, job_page, compare_page, models_page, incidents_page, events_page)
FOLLOWED = {each.__name__: each for each in _LIVE}  # by the name in the route table
