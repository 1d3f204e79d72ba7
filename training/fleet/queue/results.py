"""The figures of completed attempts, from their trainers' reports: rows for lists; the reports themselves are in the
store."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from training.contract import digest, identity_of
from training.fleet.database.writer import Database
from training.fleet.scheduling.job import Job


@dataclass(frozen=True, slots=True)
class KeptReport:
    """A report stored beside a bundle, and its main figures."""

    report: str  # its SHA-256
    bytes: int
    figures: str  # JSON
    test: str | None = None  # models with the same one were judged on the same windows
    auroc: float | None = None
    auroc_low: float | None = None
    auroc_high: float | None = None


class Results:
    """Results in the queue's database."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def keep(self, job: Job, attempt: int, kept: KeptReport | None) -> None:
        """Store the result of an attempt, with the job as it was granted. A result that is stored already is not
        replaced."""
        if kept is not None:
            self._db.run("keep_result", job_id=job.job_id, attempt=attempt, twin=twin_of(job), **asdict(kept))


def twin_of(job: Job) -> str:
    """Return a key that is equal for two jobs which differ in their mode alone."""
    return digest({**identity_of(job.spec), "mode": None})[:16]
