"""The history of jobs: attempts, what they delivered, and one event row for each move.

The lower half of :class:`training.fleet.queue.jobs.JobQueue`. Nothing here is ever deleted, but
the head of an output that grows too long.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from training.clock import Clock
from training.crashpoint import crashpoint
from training.fleet.database.writer import Database, Row, id_of
from training.fleet.queue.rows import attempt_of, job_of
from training.fleet.scheduling.job import (
    Attempt,
    EndReason,
    Job,
    JobStatus,
    Trained,
    check_transition,
)

GAP = "[… {} lines of output are missing: the worker could not keep them until they were asked for …]"
LOG_LINES_KEPT = 5000  # of one attempt; older output is on the worker's disk


class Ledger:
    """Attempts and events in the queue's database."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self.db = db
        self.clock = clock
        # How often each row of the transition table fired in this process. The rows that lead to pending are what
        # waiting claims are woken by; the simulation refuses a run in which a row never fired.
        self.fired: Counter[str] = Counter()

    @property
    def database_id(self) -> str:
        """Return the database's id: random, made with it, and kept by every copy."""
        return id_of(self.db)

    # ── jobs ────────────────────────────────────────────────────────────────────────────────

    def get(self, job_id: str) -> Job | None:
        row = self.db.one("job", job_id=job_id)
        return None if row is None else job_of(row)

    def _require(self, job_id: str) -> Job:
        job = self.get(job_id)
        assert job is not None
        return job

    # ── attempts ────────────────────────────────────────────────────────────────────────────

    def attempt(self, claim_id: str) -> Attempt | None:
        row = self.db.one("attempt_by_claim", claim_id=claim_id)
        return None if row is None else attempt_of(row)

    def attempt_by_request(self, host: str, request_id: str) -> Attempt | None:
        row = self.db.one("attempt_by_request", host=host, request_id=request_id)
        return None if row is None else attempt_of(row)

    def attempts(self, job_id: str) -> list[Attempt]:
        return [attempt_of(row) for row in self.db.all("attempts_of_job", job_id=job_id)]

    def hand_on(self, attempt: Attempt, session_id: str | None) -> None:
        """From now on the live attempt is another session's of the same installation."""
        self.db.run("hand_on", claim_id=attempt.claim_id, session_id=session_id)

    def live_attempts(self, host: str) -> list[Attempt]:
        return [attempt_of(row) for row in self.db.all("live_attempts_of_host", host=host)]

    def _end(
        self,
        attempt: Attempt,
        reason: EndReason,
        *,
        error: str | None = None,
        exit_code: int | None = None,
        artifact_id: str | None = None,
        record: Mapping[str, Any] | None = None,
        lived_s: float | None = None,
        out_of_memory: str | None = None,
        crashed: bool = False,
    ) -> None:
        self.db.run(
            "end_attempt",
            claim_id=attempt.claim_id,
            now=self.clock.now(),
            reason=reason,
            error=error,
            exit_code=exit_code,
            artifact_id=artifact_id,
            record=as_json(record),
            lived_s=lived_s,
            out_of_memory=out_of_memory,
            crashed=int(crashed),
            **Trained.of(record).to_dict(),
        )

    # ── what they delivered ─────────────────────────────────────────────────────────────────

    def add_artifact(self, attempt: Attempt, artifact_id: str, model: str, mode: str, size: int) -> bool:
        """A bundle that this attempt delivered is in the store. False when that is known already."""
        added = self.db.run(
            "add_artifact",
            artifact_id=artifact_id,
            job_id=attempt.job_id,
            attempt=attempt.attempt,
            model=model,
            mode=mode,
            size=size,
            now=self.clock.now(),
        )
        return added == 1

    def artifact_of(self, attempt: Attempt, artifact_id: str) -> Row | None:
        """The delivery of this bundle by this attempt, if there was one."""
        return self.db.one("artifact_of", job_id=attempt.job_id, attempt=attempt.attempt, artifact_id=artifact_id)

    def artifacts_of(self, attempt: Attempt) -> set[str]:
        """The bundles that this attempt delivered."""
        rows = self.db.all("artifacts_of", job_id=attempt.job_id, attempt=attempt.attempt)
        return {row["artifact_id"] for row in rows}

    def note_progress(self, attempt: Attempt, seq: int, progress: Mapping[str, Any]) -> None:
        """Keep the last progress object of an attempt, live or not; an older one than the last is not taken."""
        said = {"seq": seq, "progress": as_json(progress), "heard_s": attempt.heard_s}
        self.db.run("beat_attempt", claim_id=attempt.claim_id, **said)

    def append_log(self, attempt: Attempt, first: int, lines: list[str]) -> int:
        """Store output lines once; returns the number of the next line that is not stored.

        A gap is not passed over: its last number holds a line that says how many are missing.
        """
        start = max(first, attempt.log_next)
        fresh = lines[start - first :]
        if not fresh:
            return attempt.log_next
        if missing := start - attempt.log_next:
            start, fresh = start - 1, [GAP.format(missing), *fresh]
        key = {"job_id": attempt.job_id, "attempt": attempt.attempt}
        after = start + len(fresh)
        with self.db.transaction():
            self.db.run("add_log", **key, first=start, count=len(fresh), text="\n".join(fresh))
            self.db.run("trim_log", **key, below=after - LOG_LINES_KEPT)
            self.db.run("move_log_next", claim_id=attempt.claim_id, log_next=after)
        return after

    # ── events ──────────────────────────────────────────────────────────────────────────────

    def repeated(self, transition: str, job: Job) -> None:
        """Note that a request was answered again: nothing moved, so nothing is written."""
        check_transition(transition, job.status, job.status)
        self.fired[transition] += 1

    def _move(
        self,
        transition: str,
        job: Job,
        target: JobStatus,
        attempt: Attempt | None,
        detail: str | None = None,
    ) -> None:
        number = None if attempt is None else attempt.attempt
        host = None if attempt is None else attempt.host
        self._event(transition, job.job_id, job.status, target, number, host, detail)

    def _event(
        self,
        transition: str,
        job_id: str,
        source: JobStatus | None,
        target: JobStatus,
        attempt: int | None = None,
        host: str | None = None,
        detail: str | None = None,
    ) -> None:
        check_transition(transition, source, target)
        self.fired[transition] += 1
        crashpoint("transition", transition)
        self.db.run(
            "add_event",
            at=self.clock.now(),
            job_id=job_id,
            transition=transition,
            from_status=source,
            to_status=target,
            attempt=attempt,
            host=host,
            detail=detail,
        )


def as_json(value: Mapping[str, Any] | None) -> str | None:
    """An optional record as it is stored."""
    return None if value is None else json.dumps(dict(value))
