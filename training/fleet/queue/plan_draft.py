"""Compare a plan's jobs with those of the queue on any thread, so that plan_write.py has little to write."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from training import strict_json
from training.fleet.database.writer import Database, Row
from training.fleet.queue.plan_diff import name_of

T = TypeVar("T")

PART = 500  # jobs read or written at once: about a tenth of a second
# None of these is part of what a job's class is made of.
_OF_NO_CLASS = frozenset({"name", "job_id", "seed", "priority", "n_resamples", "max_run_s", "max_silence_s"})


@dataclass(frozen=True, slots=True)
class PlanJobs:
    """Facts about a plan's jobs: their number, and a digest of all that a plan may change about them."""

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
    """Digest all that a plan may change about a job."""
    return hashlib.sha256(f"{job_id}\0{name}\0{text}".encode("utf-8", "replace")).digest()  # none has a NUL


class PlanDraft:
    """The jobs of a plan, each compared with its row."""

    def __init__(self, jobs: Iterable[Mapping[str, Any]], db: Database) -> None:
        """``db`` is any connection to the queue's database."""
        self.specs = list(jobs)
        self.new: list[tuple[Mapping[str, Any], str]] = []  # jobs that the queue does not know, each with its text
        self.other: list[tuple[Mapping[str, Any], str]] = []  # jobs that differ, or are back
        self.unchanged = 0
        self._digests: dict[str, bytes] = {}
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
            self.new.append((spec, text))
        elif row["in_manifest"] and (row["name"], row["spec"]) == (name, text):
            self.unchanged += 1
        else:
            self.other.append((spec, text))

    def plan_jobs(self) -> PlanJobs:
        """Return what :meth:`JobQueue.plan_jobs` will return once the plan is written."""
        return PlanJobs.of(self._digests.values())


def in_parts(jobs: Sequence[T], most: int = PART) -> Iterator[Sequence[T]]:
    """Split jobs into parts that are read or written in one transaction."""
    return (jobs[n : n + most] for n in range(0, len(jobs), most))


def texts_of(db: Database, job_ids: Sequence[str]) -> dict[str, Row]:
    """Read, for these ids that exist, the texts by which a reload compares jobs."""
    return {row["job_id"]: row for row in db.all("job_texts", ids=json.dumps(list(job_ids)))}


def class_key(spec: Mapping[str, Any]) -> str:
    """Compute quickly a key for a job's class: jobs with equal keys are of one class."""
    return repr({key: value for key, value in spec.items() if key not in _OF_NO_CLASS})


def columns_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a job's row that are computed from its job dict, besides its text and class."""
    priority = int(spec.get("priority") or 0)
    listed = {"model": str(spec.get("model") or ""), "mode": str(spec.get("mode") or "")}
    return {"job_id": spec["job_id"], "name": name_of(spec), "priority": priority, **listed}
