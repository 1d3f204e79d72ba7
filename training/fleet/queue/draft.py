"""A plan's jobs beside those of the queue, worked out on any thread: :meth:`JobQueue.sync` then has little to write.

What nobody knows yet is laid out as rows, with their checksums; what differs is left to the writer, who sees each job
as it is at that moment. A draft holds for the plan that it was compared with, and for the clock that it was made by.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from training import strict_json
from training.clock import Clock
from training.fleet.database.writer import Database, Ready, Row
from training.fleet.queue.classes import Classes
from training.fleet.queue.events import INSERTED, inserted
from training.fleet.queue.foresee import name_of
from training.fleet.scheduling.job import JobStatus, Needs

T = TypeVar("T")

_ASKED_AT_ONCE = 500  # jobs
_STEP_S = 1.0  # by so much a clock may drift from the other while a draft is made
_COLUMNS = (
    "claimable_at", "class_id", "created_at", "job_id", "mode", "model", "name", "priority", "spec", "status",
)  # fmt: skip
# None of these is part of what a job's class is made of.
_OF_NO_CLASS = frozenset({"name", "job_id", "seed", "priority", "n_resamples", "max_run_s", "max_silence_s"})


@dataclass(frozen=True, slots=True)
class PlanJobs:
    """The jobs of a plan: how many, and a digest of all that a plan may change of them."""

    count: int
    digest: str

    @classmethod
    def of(cls, digests: Collection[bytes]) -> PlanJobs:
        """Sum up the :func:`digest_of` of each."""
        found = hashlib.sha256()
        for digest in sorted(digests):
            found.update(digest)
        return cls(len(digests), found.hexdigest())


def digest_of(job_id: str, name: str, text: str) -> bytes:
    """Digest all that a plan may change of a job."""
    return hashlib.sha256(f"{job_id}\0{name}\0{text}".encode("utf-8", "replace")).digest()  # none has a NUL


@dataclass(frozen=True, slots=True)
class New:
    """A job that nobody knows yet."""

    spec: Mapping[str, Any]
    text: str
    of_class: str


class Draft:
    """The jobs of a plan, each judged by its row."""

    def __init__(self, jobs: Iterable[Mapping[str, Any]], db: Database, edition: int, clock: Clock) -> None:
        """``db`` is any connection to the queue's database, ``edition`` the plan's that it holds now."""
        self.specs = list(jobs)
        self.edition, self.at = edition, float(clock.now())  # as its column has it: the checksum is of that
        self._drift = self.at - clock.monotonic()
        self.new: dict[str, New] = {}
        self.other: list[tuple[Mapping[str, Any], str]] = []  # jobs that differ, or are back
        self.unchanged = 0
        self._digests: dict[str, bytes] = {}
        self.rows: tuple[Ready, ...] | None = None
        self._class_ids: dict[str, int] = {}
        known = {row["job_id"]: row for row in db.all("plan_texts")}
        planned = set(known)
        for some in in_parts([spec["job_id"] for spec in self.specs if spec["job_id"] not in planned]):
            known |= texts_of(db, some)
        for spec in self.specs:
            self._judge(spec, known.get(spec["job_id"]))
        self.gone = sorted(planned.difference(self._digests))

    def _judge(self, spec: Mapping[str, Any], row: Row | None) -> None:
        job_id, name, text = spec["job_id"], name_of(spec), strict_json.canonical(spec)
        self._digests[job_id] = digest_of(job_id, name, text)
        if row is None:
            self.new[job_id] = New(spec, text, class_key(spec))
        elif row["in_manifest"] and (row["name"], row["spec"]) == (name, text):
            self.unchanged += 1
        else:
            self.other.append((spec, text))

    @property
    def laid_out(self) -> bool:
        return self.rows is not None

    def holds(self, edition: int, clock: Clock) -> bool:
        """Return True while neither another plan was taken over nor the clock was set."""
        return self.edition == edition and abs(clock.now() - clock.monotonic() - self._drift) < _STEP_S

    def classify(self, classes: Classes) -> None:
        """Find the classes of the new jobs, and enter those that are new. To be called by the writer, in a moment."""
        classes.recount()
        for new in self.new.values():
            if new.of_class not in self._class_ids:
                self._class_ids[new.of_class] = classes.of(Needs.of(new.spec), new.spec)

    def lay_out(self, db: Database) -> None:
        """Lay the rows of the new jobs out, after :meth:`classify`. On any thread, by any connection."""
        jobs = db.ready("jobs", _COLUMNS, (self._row(job_id, new) for job_id, new in self.new.items()))
        events = db.ready("events", INSERTED, (inserted(job_id, self.at) for job_id in self.new))
        self.rows = jobs, events

    def _row(self, job_id: str, new: New) -> tuple[Any, ...]:
        told = columns_of(new.spec)
        said = (told["mode"], told["model"], told["name"], told["priority"], new.text, JobStatus.PENDING.value)
        return (self.at, self._class_ids[new.of_class], self.at, job_id, *said)

    def plan_jobs(self) -> PlanJobs:
        """Return what :meth:`JobQueue.plan_jobs` will, once it is written."""
        return PlanJobs.of(self._digests.values())


def in_parts(jobs: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split jobs into as many as are asked for at once."""
    return (jobs[n : n + _ASKED_AT_ONCE] for n in range(0, len(jobs), _ASKED_AT_ONCE))


def texts_of(db: Database, job_ids: Sequence[str]) -> dict[str, Row]:
    """Read what a reload compares of jobs, by their ids; of those that are there."""
    return {row["job_id"]: row for row in db.all("job_texts", ids=json.dumps(job_ids))}


def class_key(spec: Mapping[str, Any]) -> str:
    """Write what a job's class follows from, quickly: jobs for which it is equal are of one class."""
    return repr({key: value for key, value in spec.items() if key not in _OF_NO_CLASS})


def columns_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a job's row that follow from its job dict, beside its text and its class."""
    priority = int(spec.get("priority") or 0)
    listed = {"model": str(spec.get("model") or ""), "mode": str(spec.get("mode") or "")}
    return {"job_id": spec["job_id"], "name": name_of(spec), "priority": priority, **listed}
