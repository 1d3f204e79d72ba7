"""The rows of attempts: how each attempt was granted and ended, which bundle it delivered, and its output.

Rows of attempts are not deleted. Output moves on to files (queue/logs.py).
"""

import json
from dataclasses import asdict, replace
from enum import IntEnum

from training.certain import certain
from training.clock import Clock
from training.contract import digest, identity_of
from training.fleet.database.writer import Database
from training.fleet.queue.rows import attempt_of
from training.fleet.scheduling.job import Attempt, EndReason, Job, Trained
from training.frozen import frozen
from training.strict_json import Json

GAP = "[… {} lines of output are missing: the worker could not keep them until they were asked for …]"
_OF_A_GRANT = ["job_id", "attempt", "claim_id", "generation", "host", "instance_id", "session_id", "slot", "request_id"]
_OF_AN_END = ["claim_id", "error", "exit_code", "artifact_id", "lived_s", "out_of_memory"]


class DeliveryNews(IntEnum):
    """The result of recording a delivered bundle: known before, new, or stored again after retention had deleted it."""

    KNOWN = 0
    NEW = 1
    BACK = 2  # known, and in the store again, from where retention had taken it


@frozen
class KeptReport:
    """The row of a report that is stored beside a bundle: its digest and its main figures."""

    report: str  # its SHA-256
    bytes: int
    figures: str  # JSON
    test: str | None = None  # models with the same one were judged on the same windows
    auroc: float | None = None
    auroc_low: float | None = None
    auroc_high: float | None = None


class Attempts:
    """The rows of attempts in the queue's database, and the writes on them."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db, self._clock = db, clock
        self.appended_bytes = 0  # of output, by this process

    def by_claim(self, claim_id: str) -> Attempt | None:
        row = self._db.one("attempt_by_claim", claim_id=claim_id)
        return None if row is None else attempt_of(row)

    def by_request(self, host: str, request_id: str) -> Attempt | None:
        row = self._db.one("attempt_by_request", host=host, request_id=request_id)
        return None if row is None else attempt_of(row)

    def of_job(self, job_id: str) -> list[Attempt]:
        return [attempt_of(row) for row in self._db.all("attempts_of_job", job_id=job_id)]

    def of_generation(self, job: Job) -> list[Attempt]:
        """Return the attempts of a job's present generation: those since its last requeue, or all if it was never
        requeued."""
        return [each for each in self.of_job(job.job_id) if each.generation == job.generation]

    def live_on(self, host: str) -> list[Attempt]:
        return [attempt_of(row) for row in self._db.all("live_attempts_of_host", host=host)]

    def live_of(self, job: Job) -> Attempt:
        claim_id = certain(job.claim_id, "the job has a live claim")
        return certain(self.by_claim(claim_id), "a claim has its attempt")

    def add(self, granted: Attempt) -> Attempt:
        """Write the row of a granted attempt, and return the attempt."""
        said = {name: getattr(granted, name) for name in _OF_A_GRANT}
        row = self._db.one(
            "add_attempt",
            **said,
            now=granted.granted_at,
            granted=as_json(granted.granted),
            booked=as_json(granted.booked.to_dict()),
        )
        return attempt_of(certain(row, "a claim id is new"))

    def hand_on(self, attempt: Attempt, session_id: str | None) -> None:
        """Assign the live attempt to another session of the same installation."""
        self._db.run("hand_on", claim_id=attempt.claim_id, session_id=session_id)

    def train_no_more(self, attempt: Attempt) -> Attempt:
        """Record that a live attempt is delivering its bundle: later heartbeats add nothing to its training time."""
        if attempt.heard_s is not None:
            self._db.run("train_no_more", claim_id=attempt.claim_id)
        return replace(attempt, heard_s=None)

    def end(self, attempt: Attempt, reason: EndReason) -> Attempt:
        """End a live attempt for this reason. ``attempt`` has the other facts of the end: error, exit code, artifact,
        record, running time, memory that ran out. Return the ended attempt."""
        said = {name: getattr(attempt, name) for name in _OF_AN_END}
        said |= {"now": self._clock.now(), "reason": reason, "record": as_json(attempt.record)}
        row = self._db.one("end_attempt", **said, **Trained.of(attempt.record).to_dict())
        return attempt_of(certain(row, "an attempt ends once"))

    # ── what they delivered ─────────────────────────────────────────────────────────────────

    def add_artifact(self, attempt: Attempt, artifact_id: str, model: str, mode: str, size: int) -> DeliveryNews:
        """Record that a bundle which this attempt delivered is in the store; return if the delivery is known, new, or a
        return after a removal."""
        subject = f"{model}_{mode}/{artifact_id}"
        back = self._db.run("removal_back", what="bundle", subject=subject, now=self._clock.now())
        added = self._db.run(
            "add_artifact",
            artifact_id=artifact_id,
            **attempt.key,
            model=model,
            mode=mode,
            size=size,
            now=self._clock.now(),
        )
        if added:
            return DeliveryNews.NEW
        return DeliveryNews.BACK if back else DeliveryNews.KNOWN

    def artifacts_of(self, attempt: Attempt) -> set[str]:
        """Return the digests of the bundles that this attempt delivered."""
        rows = self._db.all("artifacts_of", **attempt.key)
        return {row["artifact_id"] for row in rows}

    def keep_result(self, job: Job, attempt: int, kept: KeptReport | None) -> None:
        """Store the figures of an attempt's report, unless figures are stored already, or ``kept`` is None. ``job`` is
        the job as it was granted; from it follows a digest that is equal for jobs which differ only in the mode."""
        if kept is not None:
            twin = digest({**identity_of(job.spec), "mode": None})[:16]  # equal but for the mode
            self._db.run("keep_result", job_id=job.job_id, attempt=attempt, twin=twin, **asdict(kept))

    def note_progress(self, attempt: Attempt, seq: int, progress: Json | None) -> None:
        """Store an attempt's training time by its heartbeats; store its progress only if ``seq`` is above the last
        heartbeat's. The attempt may have ended."""
        said = {"seq": seq, "progress": as_json(progress), "heard_s": attempt.heard_s, "held_s": attempt.held_s}
        said |= {"paused": int(attempt.paused), "paused_s": attempt.paused_s, "resumable": int(attempt.resumable)}
        self._db.run("beat_attempt", claim_id=attempt.claim_id, **said)

    def note_total(self, attempt: Attempt, total: int) -> None:
        """Store how many output lines an attempt printed in all, because its trainer has ended."""
        self._db.run("note_log_total", claim_id=attempt.claim_id, total=total)

    def correct_total(self, attempt: Attempt, least: int) -> None:
        """Delete an attempt's total of output lines if it is below ``least``, the number of lines that have arrived."""
        self._db.run("correct_log_total", claim_id=attempt.claim_id, least=least)

    def restore_output(self, attempt: Attempt, log_next: int) -> None:
        """Store, in a restored database, how many output lines of an attempt are in the store's files."""
        self._db.run("move_log_next", claim_id=attempt.claim_id, log_next=log_next)

    def append_log(self, attempt: Attempt, first: int, lines: list[str]) -> int:
        """Store those output lines that are not stored yet; return the number of the next line that is not stored.

        If lines are missing before the new ones, a line with the last missing number says how many.
        """
        start = max(first, attempt.log_next)
        fresh = lines[start - first :]
        if not fresh:
            return attempt.log_next
        if missing := start - attempt.log_next:
            start, fresh = start - 1, [GAP.format(missing), *fresh]
        after = start + len(fresh)
        with self._db.transaction():
            text = "\n".join(fresh)
            self._db.run("add_log", **attempt.key, first=start, count=len(fresh), text=text)
            self._db.run("move_log_next", claim_id=attempt.claim_id, log_next=after)
        self.appended_bytes += len(text)
        return after


def as_json(value: Json | None) -> str | None:
    """Encode an optional record as the JSON text that the database stores."""
    return None if value is None else json.dumps(dict(value))
