"""The endpoints of the forecast. Every rule is in the service."""

from __future__ import annotations

from starlette.requests import Request

from training.fleet.receiver.http.bodies import read_json
from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.receiver.http.plans import check_reader
from training.fleet.receiver.http.problems import Answer
from training.fleet.wire.forecasts import ForecastRequest
from training.fleet.wire.plans import PLAN_BODY_MAX


async def forecast(context: ReceiverContext, request: Request) -> Answer:
    """Forecast the queue as it is."""
    check_reader(request)
    return await context.foretell(lambda forecasts: forecasts.now())


async def forecast_of(context: ReceiverContext, request: Request) -> Answer:
    """Forecast it for other hosts or another plan."""
    check_reader(request)
    body = await read_json(context, request, ForecastRequest, PLAN_BODY_MAX)
    if body.plan is not None:  # where plans are judged, so that no reload writes meanwhile
        return await context.preview(lambda _: context.forecasts.answer(body))
    return await context.foretell(lambda forecasts: forecasts.answer(body))
