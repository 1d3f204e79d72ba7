"""Run the steps of deliveries, saved states and retention on the receiver's threads; bodies come from the request."""

from typing import Any, TypeVar

from starlette.requests import Request

from training.fleet.receiver.http.bodies import read_blocks, read_bytes
from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.service.delivery import Body, Decide, Disk, Look, Open, Step, Steps, Whole
from training.fleet.store.incoming import PartFile

T = TypeVar("T")


async def carry_out(context: ReceiverContext, request: Request | None, steps: Steps[T]) -> T:
    """Run each step that the generator yields, send the step's outcome or error into it, and return its result.

    ``request`` is None for the receiver's own periodic work, which has no caller and no body.
    """
    opened: list[PartFile] = []
    outcome: Any = None
    error: BaseException | None = None
    try:
        while True:
            try:
                step = steps.send(outcome) if error is None else steps.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                outcome, error = await _take(context, request, step), None
            except BaseException as raised:  # noqa: BLE001 - the sequence decides on errors
                outcome, error = None, raised
            if isinstance(step, Open) and error is None:
                opened.append(outcome)
    finally:
        for part in opened:
            await context.disk(part.close)


async def _take(context: ReceiverContext, request: Request | None, step: Step | Body | Whole) -> Any:
    if isinstance(step, Whole):
        assert request is not None
        return await read_bytes(context, request, step.bytes_max)
    if isinstance(step, Body):
        assert request is not None
        return await read_blocks(context, request, step.part)
    if isinstance(step, Decide):
        return await (context.call(step.work) if request is None else context.act(request, step.work))
    if isinstance(step, Look):
        return await context.look(step.work)
    if isinstance(step, Disk) or (isinstance(step, Open) and not step.hashes):
        return await context.disk(step.work)
    return await context.hash(step.work)
