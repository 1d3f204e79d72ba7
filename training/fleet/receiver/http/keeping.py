"""Keeping house: the receiver deletes what the plan does not keep every hour, or on an operator's command."""

from __future__ import annotations

from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.receiver.http.steps import carry_out
from training.fleet.scheduling.retention import Removal, RemovalKind


async def keep_house(context: ReceiverContext) -> None:
    """Delete what the plan's [retention] no longer keeps, and note deletions that an older copy of the database
    lacks."""
    if context.halted is not None:
        return
    await let_go(context)
    await context.call(context.incidents.forget_old)
    if await carry_out(context, None, context.retention.learn()):
        await context.repair_index()


async def let_go(context: ReceiverContext, most: int = 2**62) -> list[Removal]:
    """Delete at most so many; returns what went."""
    async with context.letting_go:
        gone = await carry_out(context, None, context.retention.collect(most))
    if any(each.kind is RemovalKind.BUNDLE for each in gone):
        context.delivery.index_stale = True
        await context.repair_index()
    return gone


async def forget_states(context: ReceiverContext) -> None:
    """Remove the saved states of jobs that are over."""
    if context.halted is None:
        await carry_out(context, None, context.saved_states.forget())
