"""The rows of attempts that were asked to give way to urgent jobs. Who is asked is decided elsewhere.

What was asked outlives the receiver, so that no job is asked again too soon. It stands while the urgent job waits and
was granted to nobody since, and for no longer than the policy says.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.clock import Clock
from training.fleet.database.writer import Database
from training.fleet.queue.events import Events
from training.fleet.scheduling.interruption import Interruption, stands_until
from training.fleet.scheduling.job import JobStatus
from training.fleet.scheduling.policy import Policy


@dataclass(frozen=True, slots=True)
class Asked:
    """An attempt that was asked to give way. Times in epoch seconds."""

    claim_id: str
    job_id: str
    name: str
    host: str
    urgent_id: str  # the job that it gives way to
    urgent_name: str
    at: float
    stands: bool  # it is to end still, or its place is kept

    @property
    def request(self) -> str:
        """Tell the worker why it is to hand the job back."""
        return f"urgent: {self.urgent_name} goes first here"

    def sentence(self) -> str:
        return f"{self.name} gives way on {self.host}"


class Interruptions:
    """Attempts that give way, in the queue's database."""

    def __init__(self, db: Database, clock: Clock, events: Events, policy: Policy) -> None:
        self._db, self._clock, self._events, self._policy = db, clock, events, policy

    @property
    def _horizon_s(self) -> float:
        return max(self._policy.give_way_again_s, 2 * self._policy.give_way_s)

    def lately(self, reader: Database | None = None) -> list[Asked]:
        """Return those that count still, the oldest first."""
        now = self._clock.now()
        return [
            Asked(
                claim_id=row["claim_id"],
                job_id=row["job_id"],
                name=row["name"],
                host=row["host"],
                urgent_id=row["gives_way_to"],
                urgent_name=row["urgent_name"],
                at=row["gives_way_at"],
                stands=bool(row["open"]) and now <= stands_until(row["gives_way_at"], row["ended_at"], self._policy),
            )
            for row in (reader or self._db).all("gave_way", since=now - self._horizon_s)
        ]

    def standing(self, reader: Database | None = None) -> list[Asked]:
        """Return those that are to give way now, or whose places are kept."""
        return [each for each in self.lately(reader) if each.stands]

    def ask(self, decided: Interruption, name: str, number: int) -> None:
        """Note that the attempt at the job of this name gives way to an urgent one, which had ``number`` grants."""
        asked = {"claim_id": decided.claim_id, "job_id": decided.job_id, "number": number, "now": self._clock.now()}
        changed = self._db.run("ask_to_give_way", **asked)
        assert changed == 1, "only a live attempt gives way"
        detail = f"{name} gives way on {decided.host}"
        self._events.moved("give_way", decided.job_id, JobStatus.PENDING, JobStatus.PENDING, detail=detail)

    def shift(self, step_s: float) -> None:
        """Move the times along with a clock that stepped."""
        now = self._clock.now()
        self._db.run("shift_gave_way", step=step_s, now=now, since=now - step_s - self._horizon_s)
