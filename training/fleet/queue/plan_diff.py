"""The changes that a plan makes in the queue, as values: :meth:`JobQueue.sync` writes them, :func:`foresee` only reads.

Both judge each job by :func:`judged` and are summed by :meth:`Synced.of`, so that a preview shows what the reload will
do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from training import strict_json
from training.fleet.database.writer import Database, Row
from training.fleet.queue.rows import job_of, known_job
from training.fleet.scheduling.edits import LISTED_MAX, Edit, EditKind, JobChange, JobEdit, change, leaving, standing
from training.fleet.scheduling.job import Job, JobStatus


@dataclass(frozen=True, slots=True)
class Synced:
    """The changes of a plan in the queue."""

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
        """Sum up the changes of all jobs. ``left`` may contain only the first of the ``removed`` jobs; ``cancelled``
        are those of the plan.

        Numbers of jobs that were ``inserted`` or ``unchanged``, without further detail.
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


@dataclass(frozen=True, slots=True)
class Foreseen:
    """A job of a plan that is not in force: its job dict, the queue's job if there is one, and what would change."""

    spec: Mapping[str, Any]
    job: Job | None
    change: JobChange

    @property
    def status(self) -> JobStatus | None:
        """Return the job's status once the plan is taken over; None for a new job."""
        if self.job is None:
            return None
        return JobStatus.PENDING if self.change.requeues else self.job.status


def name_of(spec: Mapping[str, Any]) -> str:
    """Return a job's name as its row has it."""
    return str(spec.get("name") or spec["job_id"])


def judged(
    spec: Mapping[str, Any], text: str, row: Row | None, job: Job | Callable[[], Job] | None, *, in_words: bool = True
) -> JobChange:
    """Decide what a plan changes about a job, from the job's row; a callable ``job`` is called only if something
    differs.

    Without ``in_words`` the changes of a job that keeps its name are not listed.
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
    """Read the ids of the last plan's jobs; this reads the whole table, so keep the result until the next reload."""
    return frozenset(row["job_id"] for row in db.all("plan_ids"))


def foresee(db: Database, specs: Sequence[Mapping[str, Any]], planned: frozenset[str]) -> tuple[Synced, list[Foreseen]]:
    """Return what a reload with these job dicts would change, compared with a plan with these ids; write nothing."""
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
