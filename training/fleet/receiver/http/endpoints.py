"""The receiver's endpoints: each decodes a request, calls the service or the store, and encodes the answer. The
endpoints contain no rules of their own."""

import asyncio
import logging
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from urllib.parse import unquote

import msgspec
from starlette import routing
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from training.certain import certain
from training.fleet.receiver.http import (
    acts,
    datasets,
    enrolment,
    gc,
    html,
    incident_calls,
    notify,
    origins,
    pages,
    plans,
    uploads,
)
from training.fleet.receiver.http.bodies import acting, proven_host, query_number, read_json, resolved
from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.receiver.http.health import health_now
from training.fleet.receiver.http.problems import PLAIN, Answer, answerable, reply
from training.fleet.receiver.http.steps import carry_out
from training.fleet.service.acts import move
from training.fleet.service.acts import order as order_host
from training.fleet.service.acts import release as release_host
from training.fleet.service.audit import PAGE_MAX, Act, page
from training.fleet.service.guards import refuse_host, reported_reason
from training.fleet.service.host_views import WORKERS_PAGE
from training.fleet.service.job_views import JobFilter
from training.fleet.service.logs import Page
from training.fleet.service.models import PAGE as MODELS_PAGE
from training.fleet.service.output_views import CURVE_POINTS
from training.fleet.wire.attempts import (
    ClaimReply,
    ClaimRequest,
    CompleteRequest,
    DeliverRequest,
    FailRequest,
    HeartbeatRequest,
    MovedReply,
    OutputRequest,
)
from training.fleet.wire.constants import RESULT_BODY_MAX, WAIT_S_MAX
from training.fleet.wire.messages import AuditReply
from training.fleet.wire.routes import ROUTES, Route
from training.printable import printable_lines

logger = logging.getLogger(__name__)

_RETRY_LEAST_S = 1.0  # between two looks for one waiting claim without news
_SLASH = "\0"  # in no name: stands for a slash while a path is cut into segments
Endpoint = Callable[[ReceiverContext, Request], Awaitable[Answer]]
_NEIGHBOURS = (uploads, enrolment, datasets, notify, pages, plans, acts, gc, incident_calls)


def routes() -> list[routing.Route]:
    """Make Starlette's routes from the route table: one for each path, with the endpoints of its methods."""
    functions, rows = endpoints(), defaultdict[str, dict[str, Route]](dict)
    for row in ROUTES:
        rows[row.path][row.method] = row
    kinds = {path: NamingRoute if "{job_id}" in path else routing.Route for path in rows}
    return [kinds[path](path, _Guarded(each, functions), methods=[*each]) for path, each in rows.items()]


def endpoints() -> dict[str, Endpoint]:
    """Return the function of every operation by its name: a coroutine of that name in this package, or an entry of
    ``pages.ENDPOINTS`` or ``_ACTS``."""
    named = {row.name for row in ROUTES}
    return (
        pages.ENDPOINTS
        | _ACTS
        | {
            name: found
            for module in (sys.modules[__name__], *_NEIGHBOURS)
            for name, found in vars(module).items()
            if iscoroutinefunction(found) and found.__module__ == module.__name__ and name in named
        }
    )


# -- workers ----------------------------------------------------------------------------------------------------


async def claim(context: ReceiverContext, request: Request) -> Answer:
    """Grant a job to the claiming host. With ``wait_s``, keep the claim waiting until there is a job or the time, at
    most ``WAIT_S_MAX``, is over. A claim also waits for a job that may come within a second, as while the schedule is
    computed."""
    body = await read_json(context, request, ClaimRequest)
    news = context.room.news(body.host_id)
    answer = await _ask(context, request, body)
    soon = answer.retry_after_s is not None and answer.retry_after_s <= _RETRY_LEAST_S
    wait_s = max(min(body.wait_s, WAIT_S_MAX), _RETRY_LEAST_S if soon else 0.0)
    if answer.job_id is None and wait_s > 0 and not answer.ask_again:
        answer = await _wait_for_job(context, request, body, answer, news, wait_s)
    if answer.job_id is not None:
        again = " (again)" if answer.repeated else ""
        logger.info("%s: attempt %s to %s%s", answer.name, answer.attempt, body.host_id, again)
    return answer


async def _ask(context: ReceiverContext, request: Request, body: ClaimRequest, poll: int | None = None) -> ClaimReply:
    service = context.service
    with context.tally.claims.timing(context.clock):
        return await context.act(
            request, lambda: service.claim(body) if poll is None else service.claim_again(body, poll)
        )


async def _wait_for_job(
    context: ReceiverContext, request: Request, body: ClaimRequest, answer: ClaimReply, news: int, wait_s: float
) -> ClaimReply:
    """Ask the service again for a job at every wake, and after the last answer's ``retry_after_s``. The wait ends early
    if the client disconnects or the receiver stops."""
    end = context.clock.monotonic() + wait_s
    gone = asyncio.ensure_future(_disconnect(request))
    poll = context.service.host_registry.wait_begins(body.host_id, body.slot)
    try:
        while answer.job_id is None and not answer.ask_again and not context.room.closed:
            left = end - context.clock.monotonic()
            if left <= 0:
                break
            pause = left if answer.retry_after_s is None else min(left, answer.retry_after_s)
            await context.room.wait(body.host_id, news, max(pause, _RETRY_LEAST_S), gone)
            if gone.done():
                break
            news = context.room.news(body.host_id)
            answer = await _ask(context, request, body, poll)
    finally:
        context.service.host_registry.wait_ends(body.host_id)
        gone.cancel()
    return answer


async def _disconnect(request: Request) -> object:
    """Wait until the client has disconnected."""
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return message


async def heartbeat(context: ReceiverContext, request: Request) -> Answer:
    body = await read_json(context, request, HeartbeatRequest)
    job_id = request.path_params["job_id"]
    return await context.act(request, lambda: context.service.heartbeat(job_id, body))


async def complete(context: ReceiverContext, request: Request) -> Answer:
    body = await read_json(context, request, CompleteRequest, RESULT_BODY_MAX)
    steps = context.delivery.complete(request.path_params["job_id"], body)
    return await carry_out(context, request, steps)


async def deliver(context: ReceiverContext, request: Request) -> Answer:
    body = await read_json(context, request, DeliverRequest, RESULT_BODY_MAX)
    steps = context.delivery.deliver(request.path_params["job_id"], body)
    return await carry_out(context, request, steps)


async def fail(context: ReceiverContext, request: Request) -> Answer:
    body = await read_json(context, request, FailRequest)
    job_id = request.path_params["job_id"]
    answer = await context.act(request, lambda: context.service.fail(job_id, body))
    logger.info("job %s: %s, now %s", job_id[:12], reported_reason(body), answer.status)
    return answer


async def output(context: ReceiverContext, request: Request) -> Answer:
    body = await read_json(context, request, OutputRequest)
    job_id = request.path_params["job_id"]
    return await context.act(request, lambda: context.service.output(job_id, body))


# -- readers ----------------------------------------------------------------------------------------------------


async def jobs(context: ReceiverContext, request: Request) -> Answer:
    wanted = JobFilter.of(request.query_params)
    after, limit = query_number(request, "after", 0), query_number(request, "limit", 1000)
    return await context.look(lambda: context.views.jobs(wanted, after=after, limit=limit))


async def job(context: ReceiverContext, request: Request) -> Answer:
    job_id = await resolved(context, request)
    return await context.look(lambda: context.views.job(job_id))


job_by_name = job


async def log(context: ReceiverContext, request: Request) -> Answer:
    job_id = await resolved(context, request)
    after = query_number(request, "after", 0)
    attempt = query_number(request, "attempt", 0) or None
    return await context.look(lambda: context.views.log(job_id, attempt=attempt, after=after))


async def log_text(context: ReceiverContext, request: Request) -> Answer:
    """Stream the output lines of an attempt, by default the last one; one line in brackets replaces each range of lines
    that is not kept."""
    job_id = await resolved(context, request)
    attempt = query_number(request, "attempt", 0) or None
    begun = await context.look(lambda: context.views.log(job_id, attempt=attempt))

    async def text() -> AsyncIterator[bytes]:
        after, page = 0, Page(begun.first, begun.lines, begun.gap)
        while page.next > after:
            after = page.next
            told = [f"[… {page.gap} …]"] if page.gap else []
            told += [line for each in page.lines for line in printable_lines(each)]
            yield "".join(f"{line}\n" for line in told).encode("utf-8", "replace")
            page = await context.look(partial(context.views.logs.page, job_id, begun.attempt, after))

    return StreamingResponse(text(), headers=PLAIN, media_type="text/plain; charset=utf-8")


async def curve(context: ReceiverContext, request: Request) -> Answer:
    job_id = await resolved(context, request)
    attempt = query_number(request, "attempt", 0) or None
    points = query_number(request, "points", CURVE_POINTS)
    return await context.look(lambda: context.views.curve(job_id, attempt=attempt, points=points))


async def report(context: ReceiverContext, request: Request) -> Answer:
    """Answer with a report's bytes as an attachment, because its text comes from the trainer."""
    job_id = await resolved(context, request)
    attempt = query_number(request, "attempt", 0) or None
    body = await context.look(lambda: context.views.models.report_bytes(job_id, attempt))
    headers = {**PLAIN, "Content-Disposition": f'attachment; filename="report-{job_id[:12]}.json"'}
    return Response(body, headers=headers, media_type="application/json")


async def models(context: ReceiverContext, request: Request) -> Answer:
    """List the models judged on one test. A training host with a certificate is refused."""
    refuse_host(proven_host(request), "all models")
    asked, limit = request.query_params, query_number(request, "limit", MODELS_PAGE)
    test, after = asked.get("test"), asked.get("after", "")
    return await context.look(lambda: context.views.models.models(test=test, after=after, limit=limit))


async def explain(context: ReceiverContext, request: Request) -> Answer:
    job_id = await resolved(context, request)
    return await context.look(lambda: context.views.explain(job_id))


async def workers(context: ReceiverContext, request: Request) -> Answer:
    after, limit = (request.query_params.get("after", ""), query_number(request, "limit", WORKERS_PAGE))
    return await context.look(lambda: context.views.workers(after=after, limit=limit))


async def speeds(context: ReceiverContext, _request: Request) -> Answer:
    return await context.look(context.views.durations.speeds)


async def health(context: ReceiverContext, _request: Request) -> Answer:
    return await health_now(context)


async def metrics(context: ReceiverContext, request: Request) -> Answer:
    """Answer with the metrics for Prometheus, as plain text or OpenMetrics."""

    def take() -> tuple[bytes, str]:
        from training.fleet.receiver.http.figures import exposition  # at the first scrape, on the reader's thread

        return exposition(context).text(request.headers.get("Accept", ""))

    body, media = await context.look(take)
    return Response(body, headers={**PLAIN, "Content-Type": media})


async def openapi(context: ReceiverContext, _request: Request) -> Answer:
    """Return the OpenAPI description of this program's endpoints; the same bytes as docs/openapi.json."""
    from training.fleet.receiver.http.openapi import text  # asked for rarely, and not small

    return reply(msgspec.Raw((await context.disk(text)).encode()))


# -- the operator -----------------------------------------------------------------------------------------------


async def _moved(act: Act, context: ReceiverContext, request: Request) -> Answer:
    """Cancel, requeue, hold or unhold a job. A requeue makes a cancelled job pending again; after ``?removed=true``, so
    does a plan that names it again."""
    ref, who = request.path_params["job_id"], acting(context, request)
    as_removed = act is Act.CANCEL and request.query_params.get("removed") == "true"

    def decide() -> MovedReply:
        return move(context.service, context.audit, act, ref, who, as_removed=as_removed)

    answer = await context.act(request, decide)
    logger.info("job %s: %s by the operator", answer.job_id[:12], answer.status)
    return answer


async def release(context: ReceiverContext, request: Request) -> Answer:
    """Release a host from quarantine; its waiting claim may get a job at once."""
    name, who = request.path_params["host_id"], acting(context, request)
    answer = await context.act(request, lambda: release_host(context.service, context.audit, name, who))
    context.room.wake()
    logger.info("host %s: released by the operator", name)
    return answer


async def _ordered(act: Act, context: ReceiverContext, request: Request) -> Answer:
    """Pause, drain or resume a host; with ``?now=true`` a drain stops the host's trainers.

    All waiting claims, of this host and of others, are decided again at once.
    """
    at_once = act is Act.DRAIN and request.query_params.get("now") == "true"
    name, who = request.path_params["host_id"], acting(context, request)
    answer = await context.act(
        request, lambda: order_host(context.service, context.audit, act, name, who, at_once=at_once)
    )
    context.room.wake()
    logger.info("host %s: %s by the operator", name, act)
    return answer


async def _decided(act: Act, context: ReceiverContext, request: Request) -> Answer:
    every = request.query_params.get("all") == "true"
    answer = await acts.decided(act, context, request, request.path_params["host_id"], every=every)
    return certain(answer, "only work with a mark is asked about again")


_ACTS = {
    **{act: partial(_moved, act) for act in (Act.CANCEL, Act.REQUEUE, Act.HOLD, Act.UNHOLD)},
    **{act: partial(_ordered, act) for act in (Act.PAUSE, Act.DRAIN, Act.RESUME)},
    **{act: partial(_decided, act) for act in (Act.ACCEPT, Act.REFUSE)},
}


async def reload(context: ReceiverContext, request: Request) -> Answer:
    return await context.reload(acting(context, request))


async def audit(context: ReceiverContext, request: Request) -> Answer:
    """List the rows of the audit, oldest first, page by page."""
    after, limit = query_number(request, "after", 0), query_number(request, "limit", PAGE_MAX)
    # In this order: a row that is added meanwhile is not missed.
    written, entries = await context.look(
        lambda: (context.reader.number("audit_written"), page(context.reader, after, limit))
    )
    more = entries[-1].seq if entries and len(entries) >= min(limit, PAGE_MAX) else None
    return AuditReply(written=written, entries=entries, next_after=more, now=context.clock.now())


# -- around every endpoint --------------------------------------------------------------------------------------


@dataclass
class _Guarded:
    """The endpoints of a path. A request's body is read only after its origin and its caller's access are checked."""

    rows: Mapping[str, Route]
    functions: Mapping[str, Endpoint]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        # HEAD goes with GET, as everywhere in HTTP; it has a row of its own where it means more.
        row = self.rows.get(request.method) or self.rows["GET"]
        context: ReceiverContext = request.app.state.context
        answer = await self._answered(row, context, request)
        context.tally.answered(row.name, answer.status_code)
        await answer(scope, receive, send)

    async def _answered(self, row: Route, context: ReceiverContext, request: Request) -> Response:
        try:
            origins.check(request.method, request.headers, context.own_names)
            context.authenticator.admit(request, row.access)
            found = await self.functions[row.name](context, request)
            return found if isinstance(found, Response) else reply(found)
        except Exception as error:  # noqa: BLE001 - every error becomes a problem document
            return await html.refused(context, request, answerable(request, error))


class NamingRoute(routing.Route):
    """A route that cuts a path into segments before it decodes them: a job's name may hold a slash, sent as ``%2F``."""

    def matches(self, scope: Scope) -> tuple[routing.Match, Scope]:
        raw = scope.get("raw_path", b"").decode("ascii", "replace")
        if "%2f" not in raw.lower():
            return super().matches(scope)
        path = "/".join(unquote(part).replace("/", _SLASH) for part in raw.split("/"))
        match, found = super().matches({**scope, "path": path})
        named = {key: value.replace(_SLASH, "/") for key, value in found.get("path_params", {}).items()}
        return match, {**found, "path_params": named}
