"""Saved states of trainers, by the jobs they belong to: who may bring one, what it holds, and when it goes.

Like the service, these run inside one transaction of the writer, but for the pure ones.
"""

from __future__ import annotations

from collections.abc import Iterable

from training.fleet.scheduling.job import FINAL, Attempt, Job, JobStatus
from training.fleet.service.guards import ended
from training.fleet.service.service import Service
from training.fleet.store.states import KeptState
from training.fleet.wire.states import STRETCHES_MAX, StateKeepRequest, StateView, Stretch

OVER = FINAL - {JobStatus.FAILED}  # a failed job may be requeued, and go on


def holder(service: Service, job_id: str, claim_id: str | None, host_id: str | None) -> tuple[Job, Attempt]:
    """Return the job and the caller's live attempt at it. Raises Refusal for any other."""
    job, attempt = service.claimed(job_id, claim_id, host_id)
    if not attempt.live:
        raise ended(attempt)
    return job, attempt


def kept_by(
    attempt: Attempt, before: KeptState | None, said: StateKeepRequest, *, state_id: str, size: int, now: float
) -> KeptState:
    """Return the state as it is kept: with the stretches of all attempts that it holds. Pure.

    Earlier stretches count where this attempt began from the state that is known here.
    """
    earlier: tuple[Stretch, ...] = ()
    if before is not None and before.attempt == attempt.attempt:
        earlier = before.stretches[:-1]
    elif before is not None and before.state_id == said.begun_from:
        earlier = before.stretches
    own = Stretch(
        attempt=attempt.attempt,
        host=attempt.host,
        begins=earlier[-1].ends if earlier else None if said.epoch is None else 0,
        ends=said.epoch,
    )
    stretches = (*earlier, own)[-STRETCHES_MAX:]
    return KeptState(state_id, attempt.attempt, attempt.host, now, size, stretches)


def view(kept: KeptState) -> StateView:
    """Return what a claim tells of a state."""
    return StateView.of(kept, stretches=list(kept.stretches))


def over(service: Service, jobs: Iterable[str]) -> list[str]:
    """List those of these jobs that need no state any more: done, cancelled, or unknown here."""
    found = ((job_id, service.queue.get(job_id)) for job_id in jobs)
    return [job_id for job_id, job in found if job is None or job.status in OVER]
