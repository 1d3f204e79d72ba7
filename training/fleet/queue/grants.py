"""Grants: choose a job for a host that asks, and write the grant."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

from training.certain import certain
from training.fleet.queue.choose import Chooser, NoJob
from training.fleet.queue.rows import job_of
from training.fleet.queue.state import QueuePart, QueueState
from training.fleet.scheduling.job import Attempt, Host, Job, JobStatus
from training.fleet.scheduling.policy import Fleet, Policy
from training.fleet.scheduling.resources import Booking
from training.frozen import frozen


@frozen
class Claimant:
    """The facts about the worker that claims, besides its host's name. Without a session id, a claim ends no earlier
    attempt of the worker."""

    instance_id: str | None = None
    session_id: str | None = None
    slot: int | None = None
    request_id: str | None = None


class GrantedJob(NamedTuple):
    job: Job
    attempt: Attempt


class Grants(QueuePart):
    """The decision which job a host gets, and its write."""

    def __init__(self, queue: QueueState, chooser: Chooser, new_claim_id: Callable[[], str]) -> None:
        super().__init__(queue)
        self._chooser, self._new_claim_id = chooser, new_claim_id

    def grant(
        self, host: Host, claimant: Claimant, fleet: Fleet, *, policy: Policy | None = None, first_come: bool = False
    ) -> GrantedJob | NoJob:
        """Choose a job for this host and write the grant; return the granted job, or why there is none. The host's row
        must exist already."""
        with self._db.transaction():
            chosen = self._chooser.choose(host, fleet, policy or self._policy, first_come=first_come)
            if isinstance(chosen, NoJob):
                return chosen
            booked = self._chooser.book(chosen, host, fleet, first_come=first_come)
            return self.write(chosen, host, claimant, booked=booked)

    def write(
        self,
        job_id: str,
        host: Host,
        claimant: Claimant,
        granted: Callable[[Job], dict[str, Any]] = lambda job: job.spec,
        booked: Booking = Booking(),  # noqa: B008 - a frozen value
    ) -> GrantedJob:
        """Write the grant of this job to this host; ``granted`` returns the job dict that is stored with the
        attempt."""
        now, claim_id = self._clock.now(), self._new_claim_id()
        row = self._db.one("grant", job_id=job_id, claim_id=claim_id, host=host.name, now=now)
        job = job_of(certain(row, "the decision and its write are one transaction"))
        claim = Attempt(
            job_id=job_id,
            attempt=job.attempt,
            claim_id=claim_id,
            host=host.name,
            generation=job.generation,
            granted_at=now,
            granted=granted(job),
            booked=booked,
            **asdict(claimant),
        )
        attempt = self._attempts.add(claim)
        self._events.moved("claim", job_id, JobStatus.PENDING, job.status, attempt)
        return GrantedJob(job, attempt)
