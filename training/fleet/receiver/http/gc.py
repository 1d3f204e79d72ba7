"""The endpoints and the periodic work of retention. The endpoints list what the plan's [retention] would delete and
why, and delete it at an operator's call; the periodic work deletes it every hour."""

from collections import Counter
from collections.abc import Sequence

from starlette.requests import Request

from training.fleet.receiver.http.bodies import acting
from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.receiver.http.plans import check_reader
from training.fleet.receiver.http.problems import Answer
from training.fleet.receiver.http.steps import carry_out
from training.fleet.scheduling.retention import Removal, RemovalKind
from training.fleet.service.audit import Act
from training.fleet.service.retention import RemovalProposal
from training.fleet.wire.views import GcReply, GcTotal, GoneView

SHOWN_MAX = 1_000
AT_ONCE = 500  # by one call: its answer must not take minutes


async def gc(context: ReceiverContext, request: Request) -> Answer:
    check_reader(request)
    return _answer(context, await context.look(context.retention.proposal))


async def gc_now(context: ReceiverContext, request: Request) -> Answer:
    """Delete what the plan's retention no longer keeps, at most ``AT_ONCE`` items by one call; the receiver itself does
    so every hour, without that limit."""
    who = acting(context, request)
    await context.act(request, lambda: None)  # one who was revoked meanwhile removes nothing
    gone = await let_go(context, AT_ONCE)
    if gone:
        removed = dict(Counter(str(each.kind) for each in gone).items())
        after = {**removed, "bytes": sum(each.size for each in gone)}
        await context.call(lambda: context.audit.write(who, Act.GC, "the plan's retention", after=after))
    return _answer(context, RemovalProposal(gone, []), more=len(gone) >= AT_ONCE)


def _answer(context: ReceiverContext, found: RemovalProposal, *, more: bool = False) -> GcReply:
    return GcReply(
        totals=_totals(found.removals),
        items=[_view(each) for each in found.removals[:SHOWN_MAX]],
        keeps_all=context.retention.rules.keeps_all,
        notes=found.notes,
        more=more,
    )


def _totals(removals: Sequence[Removal]) -> list[GcTotal]:
    sizes = {kind: [each.size for each in removals if each.kind is kind] for kind in RemovalKind}
    return [GcTotal(what=kind, count=len(found), bytes=sum(found)) for kind, found in sizes.items() if found]


def _view(each: Removal) -> GoneView:
    attempt = each.number if each.kind in (RemovalKind.LOG, RemovalKind.CURVE) else 0
    return GoneView.of(each, what=each.kind, attempt=attempt, bytes=each.size)


# -- as time passes ------------------------------------------------------------------------------------------------


async def keep_house(context: ReceiverContext) -> None:
    """Delete what the plan's [retention] no longer keeps, and old incidents; record earlier deletions that a restored
    database lacks."""
    await let_go(context)
    await context.call(context.incidents.forget_old)
    if await carry_out(context, None, context.retention.learn()):
        await context.repair_index()


async def let_go(context: ReceiverContext, most: int = 2**62) -> list[Removal]:
    """Delete at most ``most`` items that the plan's [retention] no longer keeps; return the deleted ones."""
    async with context.letting_go:
        gone = await carry_out(context, None, context.retention.collect(most))
    if any(each.kind is RemovalKind.BUNDLE for each in gone):
        context.delivery.index_stale = True
        await context.repair_index()
    return gone


async def forget_states(context: ReceiverContext) -> None:
    """Remove the saved states of jobs that are over."""
    await carry_out(context, None, context.saved_states.forget())
