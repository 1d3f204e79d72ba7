"""The base of the queue: the database, the clock, the policy, and the rows that most parts of the queue write."""

from collections import Counter
from collections.abc import Callable
from functools import partial

from training.clock import Clock
from training.crashpoint import crashpoint
from training.fleet.database.writer import Database
from training.fleet.queue.attempts import Attempts
from training.fleet.queue.classes import RequirementClasses
from training.fleet.scheduling.job import Attempt, Job, JobStatus, check_transition
from training.fleet.scheduling.policy import Policy

INSERTED = "at", "job_id", "to_status", "transition"


def inserted(job_id: str, at: float) -> tuple[float, str, str, str]:
    """Return the values of the columns :data:`INSERTED` for the row which says that a plan brought a job."""
    return at, job_id, JobStatus.PENDING.value, "insert"


class Events:
    """The writer of event rows; a move that the transition table does not allow is a mistake of the program."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db, self._clock = db, clock
        # The number of times that each row of the transition table fired in this process. The rows that lead to pending
        # wake waiting claims; the simulation refuses a run in which a row never fired.
        self.fired: Counter[str] = Counter()

    def inserted(self, count: int) -> None:
        """Count that ``count`` rows of :func:`inserted` were written."""
        if count:
            self.fired["insert"] += count
            crashpoint("transition", "insert")

    def repeated(self, transition: str, job: Job) -> None:
        """Count that a request was answered again; because nothing moved, no row is written."""
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
        """Write an event row: this attempt (None: no attempt) moved a job from ``source`` to ``target``."""
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


class QueueState:
    """The base of the queue, which is passed to each of its parts."""

    def __init__(self, db: Database, clock: Clock, policy: Policy) -> None:
        self.db, self.clock, self.policy = db, clock, policy
        self.events, self.attempts, self.classes = Events(db, clock), Attempts(db, clock), RequirementClasses(db)
        # Return True if another host than the named one may try a job; the service, which knows the hosts, sets it.
        self.others: Callable[[str, str], bool] = lambda _job_id, _host: False


class QueuePart:
    """The base of the parts of the queue: rows of one kind, or calls on them."""

    def __init__(self, queue: QueueState) -> None:
        self._state, self._db, self._clock, self._policy = queue, queue.db, queue.clock, queue.policy
        self._events, self._attempts, self._classes = queue.events, queue.attempts, queue.classes

    def _others(self, job_id: str) -> Callable[[str], bool]:
        """Return the function that decides if another host than the named one may try this job."""
        return partial(self._state.others, job_id)
