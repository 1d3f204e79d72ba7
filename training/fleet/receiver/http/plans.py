"""The endpoints of plans and forecasts: what a plan would change, and which host would train which job when."""

from starlette.requests import Request

from training.fleet.receiver.http.bodies import proven_host, read_json
from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.receiver.http.problems import Answer
from training.fleet.service.preview import Previews
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.forecasts import ForecastRequest
from training.fleet.wire.plans import PLAN_BODY_MAX, PlanRequest


async def plan(context: ReceiverContext, request: Request) -> Answer:
    """Answer what a reload of the receiver's own manifest would change."""
    check_reader(request)
    return await context.preview(request, Previews.own)


async def plan_of(context: ReceiverContext, request: Request) -> Answer:
    """Answer what a reload would change if the plan in the request were the receiver's."""
    check_reader(request)
    body = await read_json(context, request, PlanRequest, PLAN_BODY_MAX)
    return await context.preview(request, lambda previews: previews.given(body))


async def forecast(context: ReceiverContext, request: Request) -> Answer:
    """Answer which host will train which of the queue's jobs when, and when all are done."""
    check_reader(request)
    return await context.foretell(lambda forecasts: forecasts.now())


async def forecast_of(context: ReceiverContext, request: Request) -> Answer:
    """Answer which host would train which job when, with other hosts or for another plan."""
    check_reader(request)
    body = await read_json(context, request, ForecastRequest, PLAN_BODY_MAX)
    if body.plan is not None:  # where plans are judged, and again after a reload
        return await context.preview(request, lambda _: context.forecasts.answer(body))
    return await context.foretell(lambda forecasts: forecasts.answer(body))


def check_reader(request: Request) -> None:
    """Raise Refusal for a training host, because the answer names jobs that the host never worked on."""
    host_id = proven_host(request)
    if host_id is not None:
        raise Refusal(ProblemType.NOT_YOURS, f"host {host_id} sees its own jobs alone; ask as an operator")
