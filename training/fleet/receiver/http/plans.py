"""The endpoints of a plan before its reload: what it would change. Every rule is in the service."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request

from training.fleet.receiver.http.bodies import proven_host, read_json
from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.receiver.http.problems import Answer
from training.fleet.service.preview import Previews
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.plans import PLAN_BODY_MAX, PlanReply, PlanRequest


async def plan(context: ReceiverContext, request: Request) -> Answer:
    """Judge the receiver's own manifest."""
    check_reader(request)
    return await _preview(context, Previews.own)


async def plan_of(context: ReceiverContext, request: Request) -> Answer:
    """Judge a plan that was read elsewhere."""
    check_reader(request)
    body = await read_json(context, request, PlanRequest, PLAN_BODY_MAX)
    return await _preview(context, lambda previews: previews.given(body))


def check_reader(request: Request) -> None:
    """Refuse a proven host: the answer names jobs that it never worked on."""
    host_id = proven_host(request)
    if host_id is not None:
        raise Refusal(ProblemType.NOT_YOURS, f"host {host_id} sees its own jobs alone; ask as an operator")


async def _preview(context: ReceiverContext, look: Callable[[Previews], PlanReply]) -> Answer:
    return await context.preview(look)
