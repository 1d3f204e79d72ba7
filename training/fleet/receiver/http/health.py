"""The receiver's health, for programs and for the page of the fleet."""

from __future__ import annotations

from training.fleet.receiver.http.context import Context
from training.fleet.wire.constants import LOOK_AGAIN_PROXIED_S, LOOK_AGAIN_S
from training.fleet.wire.messages import HealthReply

PLAN_NOTES_MAX = 20


async def health_now(context: Context) -> HealthReply:
    """Examine disk, hosts and plan."""
    counts: dict[str, int] = {}
    quarantined: dict[str, str] = {}
    resting: dict[str, str] = {}
    if context.halted is None:  # else there is no database to ask
        counts = await context.look(context.views.counts)
        quarantined = await context.look(context.views.quarantined)
        resting = await context.look(context.views.resting)
    room = await context.disk(context.store.has_room)
    granting = room and context.halted is None
    return HealthReply(
        status="ok" if granting else "degraded",
        version=context.settings.version,
        counts=counts,
        granting=granting,
        quarantined=quarantined,
        resting=resting,
        refused={} if context.halted is not None else await context.look(context.views.refused),
        missing_datasets=context.service.missing_datasets(),
        never_asked=context.service.host_registry.never_asked(),
        plan_notes=list(context.service.plan.notes[:PLAN_NOTES_MAX]),
        look_again_s=LOOK_AGAIN_PROXIED_S if context.settings.proxied else LOOK_AGAIN_S,
        detail=None if granting else context.halted or "the disk is low: free some space, until then no job is granted",
    )
