"""The history of jobs: one event row for each move, and a count of how often each transition occurred."""

from __future__ import annotations

from collections import Counter

from training.clock import Clock
from training.crashpoint import crashpoint
from training.fleet.database.writer import Database
from training.fleet.scheduling.job import Attempt, Job, JobStatus, check_transition

INSERTED = "at", "job_id", "to_status", "transition"


def inserted(job_id: str, at: float) -> tuple[float, str, str, str]:
    """Return the values of the columns :data:`INSERTED` for the row which says that a plan brought a job."""
    return at, job_id, JobStatus.PENDING.value, "insert"


class Events:
    """The writer of event rows; refuses a move that the transition table does not know."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        # The number of times that each row of the transition table fired in this process. The rows that lead to pending
        # wake waiting claims; the simulation refuses a run in which a row never fired.
        self.fired: Counter[str] = Counter()

    def inserted(self, count: int) -> None:
        """Count that so many rows of :func:`inserted` were written."""
        if count:
            self.fired["insert"] += count
            crashpoint("transition", "insert")

    def repeated(self, transition: str, job: Job) -> None:
        """Count that a request was answered again; as nothing moved, no row is written."""
        check_transition(transition, job.status, job.status)
        self.fired[transition] += 1

    def moved(
        self,
        transition: str,
        job_id: str,
        source: JobStatus | None,
        target: JobStatus,
        attempt: Attempt | None = None,
        detail: str | None = None,
    ) -> None:
        """Write that this attempt moved a job from ``source`` to ``target``."""
        check_transition(transition, source, target)
        self.fired[transition] += 1
        crashpoint("transition", transition)
        self._db.run(
            "add_event",
            at=self._clock.now(),
            job_id=job_id,
            transition=transition,
            from_status=source,
            to_status=target,
            attempt=attempt and attempt.attempt,
            host=attempt and attempt.host,
            detail=detail,
        )
