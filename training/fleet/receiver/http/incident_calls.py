"""Watched hosts over HTTP: their reports, and the records of their incidents."""

import logging
from collections.abc import Mapping
from urllib.parse import urlencode

from starlette.requests import Request

from training.fleet.receiver.http import html
from training.fleet.receiver.http.bodies import acting, proven_host, query_number, read_form, read_json
from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.receiver.http.problems import Answer
from training.fleet.service.guards import incidents_for
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.incident_messages import PAGE, JudgeRequest, WatchRequest

logger = logging.getLogger(__name__)


async def watch(context: ReceiverContext, request: Request) -> Answer:
    """Accept a watch's report on itself, and on an incident if it reports one."""
    body = await read_json(context, request, WatchRequest)
    told = await context.act(request, lambda: context.incidents.report(body))
    if told.number is not None and not told.known:
        logger.warning("host %s: incident %d", body.host_id, told.number)
    return told


async def incidents(context: ReceiverContext, request: Request) -> Answer:
    asked = request.query_params
    host = incidents_for(proven_host(request), asked.get("host", ""))
    before, limit = query_number(request, "before", 0), query_number(request, "limit", PAGE)
    return await context.look(lambda: context.views.incidents.incidents(host=host, before=before, limit=limit))


async def judge(context: ReceiverContext, request: Request) -> Answer:
    """Store a person's verdict on an incident."""
    body = await read_json(context, request, JudgeRequest)
    number, who = _number(request.path_params["number"]), acting(context, request)
    return await context.act(request, lambda: context.incidents.judge(number, body.verdict, who))


async def judge_on_page(context: ReceiverContext, request: Request) -> Answer:
    """Store a verdict sent by the page's form, and show the page again."""
    form = {key: values[0] for key, values in (await read_form(context, request)).items()}
    who = acting(context, request)
    number, verdict = _number(form.get("number", "")), form.get("verdict", "")
    if verdict not in ("confirmed", "false", "closed", "open"):
        raise Refusal(
            ProblemType.BAD_REQUEST, "verdict: expected confirmed, false, closed or open; load the page again"
        )
    judged = await context.act(request, lambda: context.incidents.judge(number, verdict, who))
    logger.info("incident %d: %s by %s", number, verdict, who)
    return html.elsewhere(f"{_page(form, judged.host)}#incident-{number}", {})


def _page(form: Mapping[str, str], host: str) -> str:
    """Return the address of the page that a form came from: of one host, or of all hosts."""
    return f"/incidents?{urlencode({'host': host})}" if form.get("host") == host else "/incidents"


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise Refusal(ProblemType.UNKNOWN_NAME, "an incident has a number; `cis490-jobs incidents` lists them")
    return int(text)
