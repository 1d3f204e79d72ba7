"""The write of a plan's jobs in parts, each in a transaction of its own, so that other calls wait only for one part.

A new job carries the edition of the plan that brings it, and none is granted before that edition is in force. The last
part moves the edition. If a crash or a full disk interrupts a write, the old plan stays in force, with the changes of
known jobs written so far. The next write comes at the next start at the latest. The next write of a plan finishes an
interrupted one, or cancels the new jobs that its own plan does not name.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from training.certain import certain
from training.crashpoint import crashpoint
from training.fleet.database.writer import Database, Row
from training.fleet.queue.moves import JobMoves
from training.fleet.queue.plan_diff import (
    PART,
    PlanDraft,
    PlanJobs,
    Synced,
    class_key,
    columns_of,
    digest_of,
    in_parts,
    judged,
    name_of,
    texts_of,
)
from training.fleet.queue.rows import job_of, known_job
from training.fleet.queue.schedule_cache import Scheduler
from training.fleet.queue.state import INSERTED, QueueState, inserted
from training.fleet.scheduling.edits import LISTED_MAX, EditKind, JobChange, JobEdit, leaving
from training.fleet.scheduling.job import Job, JobStatus, Needs
from training.strict_json import Json

_COLUMNS = (
    "claimable_at", "class_id", "created_at", "edition", "job_id", "mode", "model", "name", "priority", "spec",
    "status",
)  # fmt: skip

ClassIds = dict[tuple[str, float, float], int]  # what a class follows from, with memory that was learned → its number


class PlanWrite:
    """The write of one plan. All methods must run on the writer's thread, each in a transaction."""

    def __init__(self, queue: PlanRows, draft: PlanDraft) -> None:
        """``draft`` compares the plan with the queue as it is; no other plan is written meanwhile."""
        self._queue, self._draft = queue, draft
        self._edition = queue.edition + 1
        self._changes: list[JobChange] = []
        self._in_words = 0
        self._class_ids: ClassIds = {}
        self._parts: deque[Callable[[], None]] = deque(
            [
                *(partial(self._insert, some) for some in in_parts(draft.new, queue.part)),
                *(partial(self._amend, some) for some in in_parts(draft.other, queue.part)),
                *(partial(self._remove, some) for some in in_parts(draft.gone, queue.part)),
            ]
        )
        queue.classes.recount()

    @property
    def is_long(self) -> bool:
        """Return True while more than one part is left, so that :meth:`finish` should not yet be called."""
        return len(self._parts) > 1

    def write_part(self) -> None:
        """Write the next part of the plan's jobs."""
        certain(self._edition == self._queue.edition + 1, "another plan was written meanwhile")
        self._parts.popleft()()
        crashpoint("queue.plan_part")

    def finish(self) -> Synced:
        """Write the parts that are left, put the plan into force, and return its changes."""
        while self._parts:
            self.write_part()
        queue, draft = self._queue, self._draft
        queue.db.run("move_edition", edition=self._edition)
        named = {name_of(spec): spec for spec in draft.specs} if draft.gone else {}
        left = [leaving(known_job(queue.db, job_id), named) for job_id in sorted(draft.gone)[:LISTED_MAX]]
        cancelled = [job_of(row) for row in queue.db.all("cancelled_in_plan")]
        queue.events.inserted(len(draft.new))
        queue.ahead.edited()
        counts = {"inserted": len(draft.new), "unchanged": draft.unchanged}
        return Synced.of(self._changes, left, len(draft.gone), cancelled, **counts)

    def _insert(self, jobs: Sequence[tuple[Json, str]]) -> None:
        db, at = self._queue.db, float(self._queue.clock.now())  # as its column has it: the checksum is of that
        db.add("jobs", _COLUMNS, [self._row(spec, text, at) for spec, text in jobs])
        db.add("events", INSERTED, [inserted(spec["job_id"], at) for spec, _ in jobs])

    def _row(self, spec: Json, text: str, at: float) -> tuple[Any, ...]:
        told, class_id = columns_of(spec), self._class_of(spec)
        said = (told["mode"], told["model"], told["name"], told["priority"], text, JobStatus.PENDING.value)
        return (at, class_id, at, self._edition, spec["job_id"], *said)

    def _amend(self, jobs: Sequence[tuple[Json, str]]) -> None:
        queue = self._queue
        known = texts_of(queue.db, [spec["job_id"] for spec, _ in jobs])
        amended: list[Json] = []
        returned: list[tuple[str, JobChange]] = []
        for spec, text in jobs:
            job_id = spec["job_id"]
            found, columns = self._judge(spec, text, known[job_id])
            self._changes.append(found)
            if columns is not None:
                amended.append(columns)
            if found.returns:
                returned.append((job_id, found))
        queue.db.many("amend_job", amended)
        queue.db.many("mark_in_manifest", [{"job_id": job_id} for job_id, _ in returned])
        for job_id, found in returned:
            if found.requeues:
                queue.moves.requeue(job_id, detail="the plan names it again")

    def _judge(self, spec: Json, text: str, row: Row) -> tuple[JobChange, Json | None]:
        """Compare a known job with the plan as it is now; return the change, and the new values of the job's row (None:
        they stay)."""
        job_id = spec["job_id"]
        in_words = self._in_words < LISTED_MAX
        found = judged(spec, text, row, lambda: known_job(self._queue.db, job_id), in_words=in_words)
        self._in_words += any(edit.kind is EditKind.JOB for edit in found.edits)
        if found.outcome is not JobEdit.UPDATED:
            return found, None
        class_id = self._class_of(spec, row["ram_above_gib"], row["vram_above_gib"])
        return found, {**columns_of(spec), "seq": row["seq"], "spec": text, "class_id": class_id}

    def _class_of(self, spec: Json, ram_above_gib: float = 0.0, vram_above_gib: float = 0.0) -> int:
        """Return the number of the job's class (equal needs, equal durations), which is added if it is new. The job
        needs more memory than ``ram_above_gib`` and ``vram_above_gib``, with which earlier attempts ran out."""
        like = class_key(spec), ram_above_gib, vram_above_gib
        if like not in self._class_ids:
            needs = replace(Needs.of(spec), ram_above_gib=ram_above_gib, vram_above_gib=vram_above_gib)
            self._class_ids[like] = self._queue.classes.of(needs, spec)
        return self._class_ids[like]

    def _remove(self, gone: Sequence[str]) -> None:
        """Mark jobs that the plan does not name. Jobs of a plan that never came into force are cancelled."""
        queue = self._queue
        queue.db.many("mark_removed", [{"job_id": job_id, "passed_over": queue.passes_over} for job_id in gone])
        for row in queue.db.all("half_written", ids=json.dumps(list(gone))):
            queue.moves.cancel(row["job_id"], by="the plan", as_removed=True)


class PlanRows:
    """The rows of the plan's jobs and data sets in the queue's database."""

    def __init__(self, queue: QueueState, ahead: Scheduler, moves: JobMoves) -> None:
        self.db, self.clock, self.classes, self.events = queue.db, queue.clock, queue.classes, queue.events
        self.ahead, self.moves, self.part = ahead, moves, PART
        self.passes_over = 0  # 1: no host is granted a job that left the plan, until it is requeued or named again

    @property
    def edition(self) -> int:
        """Return the number of the plan in force; it rises by one with every plan that comes into force."""
        return self.db.number("edition")

    def sync(self, jobs: Iterable[Json]) -> Synced:
        """Make these jobs the plan, in one transaction. After :data:`LISTED_MAX` changed jobs, the result leaves out
        the edits of jobs that stay in the plan under their name."""
        with self.db.transaction():
            return self.write(self.draft(jobs)).finish()

    def draft(self, jobs: Iterable[Json], reader: Database | None = None) -> PlanDraft:
        """Compare these job dicts with the queue; on another thread than the writer's, pass a ``reader`` connection."""
        return PlanDraft(jobs, reader or self.db)

    def write(self, draft: PlanDraft) -> PlanWrite:
        """Begin to write a plan in parts, which the returned object does."""
        return PlanWrite(self, draft)

    def jobs(self) -> PlanJobs:
        """Return the number and a digest of the plan's jobs in the queue. A plan with an equal digest would change
        nothing."""
        rows = self.db.all("plan_texts")
        return PlanJobs.of([digest_of(row["job_id"], row["name"], row["spec"]) for row in rows])

    def datasets(self) -> dict[str, str]:
        """Map the plan's names of data sets to the ids that they meant when the plan came into force."""
        return {row["name"]: row["dataset_id"] for row in self.db.all("plan_datasets")}

    def keep_datasets(self, names: Mapping[str, str]) -> None:
        """Store, for each name of a data set in the plan, the id that it means."""
        with self.db.transaction():
            self.db.run("forget_plan_datasets")
            self.db.many("add_plan_dataset", [{"name": name, "dataset_id": each} for name, each in names.items()])

    def trained_on(self, dataset_id: str) -> list[Job]:
        """Return the jobs whose dict names this data set by its id, except those that have ended and left the plan."""
        jobs = map(job_of, self.db.all("jobs_that_matter"))
        return [job for job in jobs if job.spec.get("dataset") == dataset_id]
