"""The data set that a host which trains will probably need next, as its worker is told with a heartbeat.

It is that of the first kind of job that the schedule in force has for the host, or of the job that comes first for a
host that is alone. Under ``scheduling = "first-come"`` nobody knows which of several hosts asks first: nothing is
named. A host that gets no jobs now is named nothing either. The worker says what it heard last, so that a lost answer,
or a receiver that began anew, names it once more.
"""

from __future__ import annotations

from collections.abc import Callable

from training.fleet.queue.classes import JobClass
from training.fleet.service.hosts import Plan
from training.fleet.wire.messages import HeartbeatRequest, HostTerms, NextData


def next_data(
    request: HeartbeatRequest, terms: HostTerms, plan: Plan, likely: Callable[[], JobClass | None]
) -> NextData | None:
    """Return what to name to a host; None when it knows, or there is nothing to name. ``likely`` finds its next job."""
    if request.next_data is None or request.resting is not None or terms.order is not None:
        return None
    of = likely()
    if of is None:
        return None
    called, _ = plan.dataset_jobs.get(str(of.needs.dataset), (None, 0))
    found = NextData(
        dataset_id=str(of.needs.dataset),
        name=called,
        model=str(of.work.get("model") or ""),
        mode=str(of.work.get("mode") or ""),
        own_trainer=bool(of.work.get("trainer")),
    )
    return None if found == request.next_data.named else found


def fetched_ahead(request: HeartbeatRequest) -> str | None:
    """Return the data set, in the plan's word for it, that the sender of a heartbeat says it fetches ahead."""
    heard = request.next_data
    if heard is None or heard.named is None or not heard.fetching:
        return None
    return heard.named.name or heard.named.dataset_id[:12]
