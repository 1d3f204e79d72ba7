"""The endpoints of the forecast. Every rule is in the service."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from training.fleet.receiver.http.bodies import read_json
from training.fleet.receiver.http.context import Context
from training.fleet.receiver.http.plans import check_reader
from training.fleet.receiver.http.problems import reply
from training.fleet.service.forecasts import Forecasts
from training.fleet.wire.forecasts import ForecastRequest
from training.fleet.wire.plans import PLAN_BODY_MAX


async def forecast(context: Context, request: Request) -> Response:
    """Foretell the queue as it is."""
    check_reader(request)
    return reply(await context.foretell(Forecasts.now))


async def forecast_of(context: Context, request: Request) -> Response:
    """Foretell it for other hosts or another plan."""
    check_reader(request)
    body = await read_json(context, request, ForecastRequest, PLAN_BODY_MAX)
    return reply(await context.foretell(lambda forecasts: forecasts.answer(body)))
