"""Watched hosts over HTTP: what they tell, and what is known of their incidents."""

from __future__ import annotations

import logging
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from training.fleet.receiver.http import html
from training.fleet.receiver.http.bodies import acting, proven_host, query_number, read_form, read_json
from training.fleet.receiver.http.context import Context
from training.fleet.receiver.http.problems import reply
from training.fleet.wire.incidents import PAGE, JudgeRequest, WatchRequest
from training.fleet.wire.messages import ProblemType, Refusal

logger = logging.getLogger(__name__)


async def watch(context: Context, request: Request) -> Response:
    """Take what a watch tells of itself, and of an incident or a change."""
    body = await read_json(context, request, WatchRequest)
    told = await context.act(request, lambda: context.incidents.report(body))
    if told.number is not None and not told.known:
        logger.warning("host %s: %s %d", body.host_id, "incident" if body.incident else "change", told.number)
    return reply(told)


async def incidents(context: Context, request: Request) -> Response:
    asked = request.query_params
    host = readable(request, asked.get("host", ""))
    before, limit = query_number(request, "before", 0), query_number(request, "limit", PAGE)
    return reply(await context.look(lambda: context.views.incidents.incidents(host=host, before=before, limit=limit)))


async def judge(context: Context, request: Request) -> Response:
    """Keep what a person found of an incident."""
    body = await read_json(context, request, JudgeRequest)
    number, who = _number(request.path_params["number"]), acting(context, request)
    return reply(await context.act(request, lambda: context.incidents.judge(number, body.verdict, who)))


async def judge_on_page(context: Context, request: Request) -> Response:
    """Do the same for a form of the page, and show the page again."""
    form = {key: values[0] for key, values in (await read_form(context, request)).items()}
    number, verdict, who = _number(form.get("number", "")), form.get("verdict", ""), acting(context, request)
    if verdict not in ("confirmed", "false", "open"):
        raise Refusal(ProblemType.BAD_REQUEST, "verdict: expected confirmed, false or open; load the page again")
    judged = await context.act(request, lambda: context.incidents.judge(number, verdict, who))
    logger.info("incident %d: %s by %s", number, verdict, who)
    only = f"?{urlencode({'host': judged.host})}" if form.get("host") == judged.host else ""
    return html.elsewhere(f"/incidents{only}#incident-{number}", {})


def readable(request: Request, host: str) -> str:
    """Return the host whose incidents the caller may see: a training host its own alone, others all."""
    mine = proven_host(request)
    if mine is not None and host not in ("", mine):
        raise Refusal(ProblemType.NOT_YOURS, f"host {mine} may look at its own incidents, not at those of others")
    return mine or host


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise Refusal(ProblemType.UNKNOWN_NAME, "an incident has a number; `cis490-jobs incidents` lists them")
    return int(text)
