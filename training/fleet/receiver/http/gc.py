"""Retention over HTTP: what goes and why, and letting it go now. Every rule is in scheduling and service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from starlette.requests import Request

from training.fleet.receiver.http.bodies import acting
from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.receiver.http.keeping import let_go
from training.fleet.receiver.http.plans import check_reader
from training.fleet.receiver.http.problems import Answer
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
    """Delete what the plan's retention no longer keeps, as the receiver does every hour."""
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
    return [_total(kind, found) for kind in RemovalKind if (found := [each for each in removals if each.kind is kind])]


def _total(kind: RemovalKind, found: Iterable[Removal]) -> GcTotal:
    sizes = [each.size for each in found]
    return GcTotal(what=kind, count=len(sizes), bytes=sum(sizes))


def _view(each: Removal) -> GoneView:
    attempt = each.number if each.kind in (RemovalKind.LOG, RemovalKind.CURVE) else 0
    return GoneView(
        what=each.kind, name=each.name, subject=each.subject, attempt=attempt, bytes=each.size, why=each.why
    )
