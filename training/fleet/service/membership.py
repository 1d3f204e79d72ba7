"""The rights of a host on jobs under its proven identity, and the end of its attempts when it is revoked.

Like the service, these run inside one transaction of the writer.
"""

from __future__ import annotations

from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.job import EndReason, Host
from training.fleet.service.service import Service
from training.fleet.wire.constants import ProblemType, Refusal


def readable(service: Service, ref: str, host_id: str | None) -> str:
    """Resolve ``ref`` for a caller who may see the job: a proven host sees the jobs it has worked on."""
    job_id = service.resolve(ref)
    if host_id is not None and all(attempt.host != host_id for attempt in service.queue.attempts.of_job(job_id)):
        raise Refusal(ProblemType.NOT_YOURS, f"host {host_id} never worked on this job")
    return job_id


def check_fetch(service: Service, dataset_id: str, host_id: str) -> None:
    """Raise Refusal unless a training host may fetch this data set: one that it trains on, or that the plan's lists
    would let it train on. Its capability does not matter here."""
    host = Host.of(host_id, {}, service.plan.declared(host_id))
    if any(rules.fits(needs, host) is None for needs in service.plan.datasets.get(dataset_id, ())):
        return
    for attempt in service.queue.attempts.live_on(host_id):
        job = service.queue.get(attempt.job_id)
        if job is not None and job.spec.get("dataset") == dataset_id:
            return
    raise Refusal(
        ProblemType.NOT_YOURS, f"no job that host {host_id} may be given trains on data set {dataset_id[:12]}"
    )


def expel(service: Service, host_id: str) -> int:
    """End a revoked host's attempts, so that others get the jobs at once; returns their number."""
    attempts = service.queue.attempts.live_on(host_id)
    for attempt in attempts:
        job = service.queue.get(attempt.job_id)
        assert job is not None
        error = f"host {host_id} was revoked by the operator"
        service.queue.settle(job, attempt, EndReason.HOST_LOST, error=error)
    return len(attempts)
