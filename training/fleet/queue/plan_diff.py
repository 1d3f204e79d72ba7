"""The changes that a plan makes in the queue, as values: :meth:`JobQueue.sync` writes them, :func:`foresee` only reads.

Both judge changed jobs by :func:`judged` and sum up by :meth:`Synced.of`, so that a preview says what the reload will.
:class:`PlanDraft` compares jobs on any thread; plan_write.py then has little to write.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from training import strict_json
from training.fleet.database.writer import Database, Row
from training.fleet.queue.rows import job_of, known_job
from training.fleet.scheduling.edits import LISTED_MAX, Edit, EditKind, JobChange, JobEdit, change, leaving, standing
from training.fleet.scheduling.job import Job, JobStatus, Needs
from training.frozen import frozen
from training.strict_json import Json, JsonObject

T = TypeVar("T")

PART = 5_000  # jobs read or written at once: a third of a second; with fewer, each index is written more often
# None of these is part of what a job's class is made of.
_OF_NO_CLASS = frozenset(
    {"name", "job_id", "seed", "split_seed", "priority", "n_resamples", "max_run_s", "max_silence_s"}
)


class Synced(NamedTuple):
    """The changes that a plan makes in the queue: counts, edits, and how many of its jobs stay cancelled."""

    counts: dict[str, int]
    edits: list[Edit]
    cancelled: int  # jobs of the plan that stay so

    @classmethod
    def of(
        cls,
        changes: Iterable[JobChange],
        left: Sequence[Edit],
        removed: int,
        cancelled: Sequence[Job],
        *,
        inserted: int = 0,
        unchanged: int = 0,
    ) -> Synced:
        """Sum up the changes of all jobs of a plan. ``removed`` is the number of jobs that left the plan; ``left`` may
        contain the edits of only the first of these. ``cancelled`` has the plan's cancelled jobs.

        ``inserted`` and ``unchanged`` are numbers of jobs that are not among ``changes``.
        """
        counts = {JobEdit.INSERTED.value: inserted, JobEdit.UPDATED.value: 0, JobEdit.UNCHANGED.value: unchanged}
        edits: list[Edit] = []
        for each in changes:
            counts[each.outcome] += 1
            edits += each.edits
        told = {edit.job_id for edit in edits if edit.kind is EditKind.REVIVED}
        edits += [*left, *(standing(job) for job in cancelled if job.job_id not in told)]
        counts["removed"] = removed
        for kind, word in ((EditKind.RENAME, "renamed"), (EditKind.REVIVED, "revived")):
            counts[word] = sum(edit.kind is kind for edit in edits)
        return cls(counts, edits, len(cancelled))


class Foreseen(NamedTuple):
    """A job of a plan that is not in force: its job dict, the queue's job if there is one, and what would change."""

    spec: Json
    job: Job | None
    change: JobChange

    @property
    def status(self) -> JobStatus | None:
        """Return the job's status once the plan is taken over; None for a new job."""
        if self.job is None:
            return None
        return JobStatus.PENDING if self.change.requeues else self.job.status

    @property
    def waits(self) -> bool:
        """Return True when the job will wait for a host."""
        return self.job is None or (self.status is JobStatus.PENDING and not self.job.held)

    @property
    def needs(self) -> Needs:
        """Return the job's requirements under the plan; if an attempt ran out of memory, the requirements include more
        memory than that attempt's host has."""
        return Needs.of(self.spec) if self.job is None else replace(self.job, spec=dict(self.spec)).needs


def name_of(spec: Json) -> str:
    """Return the name of a job for its row: the job dict's name, or else its id."""
    return str(spec.get("name") or spec["job_id"])


def judged(
    spec: Json, text: str, row: Row | None, job: Job | Callable[[], Job] | None, *, in_words: bool = True
) -> JobChange:
    """Decide what a plan changes about a job, from the job's row (None: a new job). If ``job`` is a function, it is
    called only if something differs.

    Without ``in_words``, the edits of a job that stays in the plan under its name are not listed.
    """
    if row is None:
        return change(None, spec, same=False)
    same = (row["name"], row["spec"]) == (name_of(spec), text)
    if same and row["in_manifest"]:
        return JobChange(JobEdit.UNCHANGED)
    if row["in_manifest"] and not in_words and row["name"] == name_of(spec):
        return JobChange(JobEdit.UPDATED)
    return change(job() if callable(job) else job, spec, same=same)


def planned_ids(db: Database) -> frozenset[str]:
    """Return the ids of the present plan's jobs; this reads the whole table, so keep the result until the next
    reload."""
    return frozenset(row["job_id"] for row in db.all("plan_ids"))


def foresee(db: Database, specs: Sequence[Json], planned: frozenset[str]) -> tuple[Synced, list[Foreseen]]:
    """Return what a reload with these job dicts would change; write nothing. ``planned`` has the ids of the present
    plan's jobs (:func:`planned_ids`)."""
    rows = [db.one("job", job_id=spec["job_id"]) for spec in specs]
    found = []
    for spec, row in zip(specs, rows, strict=True):
        job = None if row is None else job_of(row)
        found.append(Foreseen(spec, job, judged(spec, strict_json.canonical(spec), row, job)))
    gone = sorted(planned.difference(spec["job_id"] for spec in specs))
    named = {name_of(spec): spec for spec in specs}
    left = [leaving(known_job(db, job_id), named) for job_id in gone[:LISTED_MAX]]
    cancelled = [
        (row["seq"], replace(each.job, name=name_of(each.spec)))
        for each, row in zip(found, rows, strict=True)
        if each.job is not None and row is not None and each.status is JobStatus.CANCELLED
    ]
    in_order = [job for _, job in sorted(cancelled, key=lambda pair: pair[0])]
    return Synced.of((each.change for each in found), left, len(gone), in_order), found


@frozen
class PlanJobs:
    """Facts about a plan's jobs: their number, and a digest of all that a plan may change about them."""

    count: int
    digest: str

    @classmethod
    def of(cls, digests: Collection[bytes]) -> PlanJobs:
        """Sum up the digests (:func:`digest_of`) of all jobs of a plan."""
        found = hashlib.sha256()
        for digest in sorted(digests):
            found.update(digest)
        return cls(len(digests), found.hexdigest())


def digest_of(job_id: str, name: str, text: str) -> bytes:
    """Return a digest of all that a plan may change about a job."""
    return hashlib.sha256(f"{job_id}\0{name}\0{text}".encode("utf-8", "replace")).digest()  # none has a NUL


class PlanDraft:
    """The jobs of a plan, compared with the queue's rows: new, different, unchanged, or no longer named."""

    def __init__(self, jobs: Iterable[Json], db: Database) -> None:
        """``db`` is any connection to the queue's database."""
        self.specs = list(jobs)
        self.new: list[tuple[Json, str]] = []  # jobs that the queue does not know, each with its text
        self.other: list[tuple[Json, str]] = []  # jobs that differ, or are back
        self.unchanged = 0
        self._digests: dict[str, bytes] = {}
        known = {row["job_id"]: row for row in db.all("plan_texts")}
        planned = list(known)
        for some in in_parts([spec["job_id"] for spec in self.specs if spec["job_id"] not in known]):
            known |= texts_of(db, some)
        for spec in self.specs:
            self._judge(spec, known.get(spec["job_id"]))
        # In the order of the rows: in that of the ids, each part would write nearly every page of the table.
        self.gone = [job_id for job_id in planned if job_id not in self._digests]

    def _judge(self, spec: Json, row: Row | None) -> None:
        job_id, name, text = spec["job_id"], name_of(spec), strict_json.canonical(spec)
        self._digests[job_id] = digest_of(job_id, name, text)
        if row is None:
            self.new.append((spec, text))
        elif row["in_manifest"] and (row["name"], row["spec"]) == (name, text):
            self.unchanged += 1
        else:
            self.other.append((spec, text))

    def plan_jobs(self) -> PlanJobs:
        """Return the value that :meth:`PlanRows.jobs` will return once the plan is written."""
        return PlanJobs.of(self._digests.values())


def in_parts(jobs: Sequence[T], most: int = PART) -> Iterator[Sequence[T]]:
    """Split jobs into parts of at most ``most`` jobs."""
    return (jobs[n : n + most] for n in range(0, len(jobs), most))


def texts_of(db: Database, job_ids: Sequence[str]) -> dict[str, Row]:
    """Map each of these ids that exists to the columns by which a reload compares its job."""
    return {row["job_id"]: row for row in db.all("job_texts", ids=json.dumps(list(job_ids)))}


def class_key(spec: Json) -> str:
    """Return a key for a job's class that is quickly computed: jobs with equal keys are of one class, unless an attempt
    of one of them ran out of memory."""
    return repr({key: value for key, value in spec.items() if key not in _OF_NO_CLASS})


def columns_of(spec: Json) -> JsonObject:
    """Return the columns of a job's row that are computed from its job dict, besides its text and class."""
    priority = int(spec.get("priority") or 0)
    listed = {"model": str(spec.get("model") or ""), "mode": str(spec.get("mode") or "")}
    return {"job_id": spec["job_id"], "name": name_of(spec), "priority": priority, **listed}
