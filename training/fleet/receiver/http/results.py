"""Results over HTTP: reports as trainers wrote them, and models side by side."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from training.fleet.receiver.http.bodies import proven_host, query_number, resolved
from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.receiver.http.problems import PLAIN, Answer
from training.fleet.service.guards import refuse_host
from training.fleet.service.models import PAGE


async def report(context: ReceiverContext, request: Request) -> Answer:
    """Serve a report as an attachment: its text is its trainer's."""
    job_id = await resolved(context, request)
    attempt = query_number(request, "attempt", 0) or None
    body = await context.look(lambda: context.views.models.report_bytes(job_id, attempt))
    headers = {**PLAIN, "Content-Disposition": f'attachment; filename="report-{job_id[:12]}.json"'}
    return Response(body, headers=headers, media_type="application/json")


async def models(context: ReceiverContext, request: Request) -> Answer:
    """List models of every host, so to operators and readers alone where callers are proven."""
    refuse_host(proven_host(request), "all models")
    asked, limit = request.query_params, query_number(request, "limit", PAGE)
    test, after = asked.get("test"), asked.get("after", "")
    return await context.look(lambda: context.views.models.models(test=test, after=after, limit=limit))
