"""What a host's proven identity means for jobs: which it may look at, and what becomes of them when it is expelled.

Like the service, these run inside one transaction of the writer.
"""

from __future__ import annotations

from training.fleet.job import EndReason
from training.fleet.protocol import Refusal, Slug
from training.fleet.service import Service


def readable(service: Service, ref: str, host_id: str | None) -> str:
    """The id of the job that ``ref`` names, for one who may look: a proven host sees the jobs it has worked on."""
    job_id = service.resolve(ref)
    if host_id is not None and all(
        attempt.host != host_id for attempt in service.queue.attempts(job_id)
    ):
        raise Refusal(Slug.NOT_YOURS, f"host {host_id} never worked on this job")
    return job_id


def expel(service: Service, host_id: str) -> int:
    """End what a revoked host holds, so that others can have it at once; how many attempts that were."""
    attempts = service.queue.live_attempts(host_id)
    for attempt in attempts:
        job = service.queue.get(attempt.job_id)
        assert job is not None
        error = f"host {host_id} was revoked by the operator"
        service.queue.settle(job, attempt, EndReason.HOST_LOST, error=error)
    return len(attempts)
