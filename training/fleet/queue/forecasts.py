"""Forecasts that are kept to be held against what comes: of a job while it waits, and of each of its attempts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from training.fleet.database.writer import Database

KEPT_MOST = 20_000  # the newest
TOLD_MOST = 2_000  # at once


@dataclass(frozen=True, slots=True)
class Foretold:
    """The forecast of a job; ``attempt`` 0: while it waited. Times in epoch seconds."""

    job_id: str
    generation: int
    attempt: int
    at: float
    host: str
    ends_at: float
    low_at: float
    high_at: float


@dataclass(frozen=True, slots=True)
class Came:
    """A forecast beside what came."""

    told: Foretold
    name: str
    ended_at: float
    ended_on: str


def untold(db: Database, most: int = TOLD_MOST) -> dict[str, tuple[int, int]]:
    """List jobs that wait or are trained and of which nothing was foretold yet: id → generation and attempt."""
    waiting = {row["job_id"]: (row["generation"], 0) for row in db.all("untold_waiting", most=most)}
    live = {row["job_id"]: (row["generation"], row["attempt"]) for row in db.all("untold_live", most=most)}
    return waiting | live


def keep(db: Database, told: Iterable[Foretold]) -> None:
    """Keep forecasts, and forget the oldest."""
    with db.transaction():
        for each in told:
            db.run("foretell", **asdict(each))
        db.run("forget_forecasts", most=KEPT_MOST)


def reviewed(db: Database, most: int) -> list[Came]:
    """Return the forecasts of completed attempts, the newest end first."""
    found = []
    for row in db.all("forecasts_reviewed", most=most):
        times = {key: row[key] for key in ("at", "host", "ends_at", "low_at", "high_at")}
        told = Foretold(job_id=row["job_id"], generation=0, attempt=row["attempt"], **times)
        found.append(Came(told, row["name"], row["ended_at"], row["ended_on"]))
    return found
