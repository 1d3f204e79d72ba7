"""The receiver's health, for programs and for the front page of the dashboard."""

from training.files import to_free
from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.wire.constants import LOOK_AGAIN_PROXIED_S, LOOK_AGAIN_S
from training.fleet.wire.views import HealthReply

PLAN_NOTES_MAX = 20


async def health_now(context: ReceiverContext) -> HealthReply:
    """Return the receiver's health: whether the disk has room to grant jobs, hosts that get no jobs, missing data sets
    and the plan's warnings."""
    views = context.views
    counts, quarantined, resting, refused = await context.look(
        lambda: (views.counts(), views.quarantined(), views.resting(), views.refused())
    )
    granting = await context.disk(context.store.has_room)
    remedy = "" if granting else to_free(context.store.root)
    return HealthReply(
        status="ok" if granting else "degraded",
        version=context.settings.version,
        counts=counts,
        granting=granting,
        quarantined=quarantined,
        resting=resting,
        refused=refused,
        missing_datasets=context.service.host_registry.missing_datasets(),
        never_asked=context.service.host_registry.never_asked(),
        plan_notes=list(context.service.plan.notes[:PLAN_NOTES_MAX]),
        look_again_s=LOOK_AGAIN_PROXIED_S if context.settings.proxied else LOOK_AGAIN_S,
        detail=f"the disk is low: {remedy}, until then no job is granted" if remedy else None,
    )
