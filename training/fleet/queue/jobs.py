"""The job queue: a call reads facts, decides, and writes its changes, with an event row for each move of a job, in one
transaction.

:mod:`training.fleet.scheduling.policy` contains the rules: which host fits, which must wait, and what an attempt's end
means. Checks that need more than the row (slots, disk, store, observed time) are in :mod:`training.fleet.service`.
Start programs with ``python -m``: run by path from ``training/fleet``, this package's name would shadow the standard
library's ``queue``.
"""

import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from training.clock import Clock, SystemClock
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.database.writer import Database, id_of
from training.fleet.queue.choose import Chooser, eligible
from training.fleet.queue.curves import Curves
from training.fleet.queue.grants import Claimant, GrantedJob, Grants
from training.fleet.queue.host_rows import HostRows
from training.fleet.queue.logs import LogRows
from training.fleet.queue.moves import JobMoves
from training.fleet.queue.plan_write import PlanRows
from training.fleet.queue.rows import job_of
from training.fleet.queue.schedule_cache import Scheduler
from training.fleet.queue.state import QueueState
from training.fleet.queue.unavailable import Orders, Quarantines
from training.fleet.scheduling.job import LIVE, EndReason, Host, Job, JobStatus
from training.fleet.scheduling.policy import NOBODY_ELSE, Policy
from training.strict_json import Json

_UNBOUNDED = 2**62


class JobQueue(QueueState):
    """Jobs and hosts in one SQLite file (``training_jobs.db``), and the operations on them."""

    def __init__(
        self,
        path: str | Path,
        *,
        database: Database | None = None,
        clock: Clock | None = None,
        policy: Policy | None = None,
        new_claim_id: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        """Open or create the queue's database at ``path``, or use ``database``; raise DatabaseError, whose text is one
        sentence, if that fails."""
        super().__init__(database or SqliteDatabase(path), clock or SystemClock(), policy or Policy())
        self.curves, self.logs = Curves(self.db), LogRows(self.db, self.clock)
        self.quarantines, self.orders, self.ahead = Quarantines(self), Orders(self), Scheduler(self)
        self.grants = Grants(self, Chooser(self, self.ahead), new_claim_id)
        self.moves = moves = JobMoves(self)
        self.plan, self.hosts = PlanRows(self, self.ahead, moves), HostRows(self, self.quarantines)
        self.grant, self.workers, self.sync = self.grants.grant, self.hosts.all, self.plan.sync
        self.get, self.settle, self.accept = moves.get, moves.settle, moves.accept
        self.cancel, self.requeue, self.hold, self.unhold = moves.cancel, moves.requeue, moves.hold, moves.unhold

    @property
    def _conn(self) -> Any:
        """Return the database's ``sqlite3`` connection in autocommit mode, for code that reads the tables directly."""
        return self.db.connection  # type: ignore[attr-defined]

    @property
    def database_id(self) -> str:
        """Return the database's id, which was drawn at random when the database was first made. Every copy has the same
        id, and so has a rebuilt database."""
        return id_of(self.db)

    def close(self) -> None:
        self.db.close()

    def sync_from_manifest(self, jobs: Iterable[Json]) -> dict[str, int]:
        """Make the queue contain these job dicts, whatever the status of their jobs. Repeating the call changes
        nothing. Known jobs keep their status, except that a job which was cancelled as removed becomes pending again.

        Return the numbers of jobs that were ``inserted``, ``updated`` (anything but the identity changed),
        ``unchanged`` and ``removed`` (no longer named; they stay until cancelled). Also return how many of all these
        jobs were ``renamed`` and ``revived`` (named again).
        """
        return self.sync(jobs).counts

    def claim_next(
        self,
        *,
        worker_hostname: str,
        capability: Json,
        host_spec: Json | None = None,
        prefer_cuda_grace_s: float | None = None,
    ) -> Job | None:
        """Grant the best pending job that this host may run, and return the job; None if there is none. One transaction
        also records the host."""
        policy = self.policy
        if prefer_cuda_grace_s is not None:
            policy = replace(policy, prefer_cuda_grace_s=prefer_cuda_grace_s)
        with self.db.transaction():
            self.hosts.note(worker_hostname, capability, Claimant())
            host = Host.of(worker_hostname, capability, host_spec)
            outcome = self.grant(host, Claimant(), NOBODY_ELSE, policy=policy)
        return outcome.job if isinstance(outcome, GrantedJob) else None

    def heartbeat(self, job_id: str, hostname: str) -> bool:
        """Renew the lease if ``hostname`` holds the job's live attempt, and return whether it does. This simple form is
        for callers without a claim id."""
        with self.db.transaction():
            job = self._held_by(job_id, hostname)
            if job is None:
                return False
            attempt = self.attempts.live_of(job)
            self.moves.renew(job, attempt, seq=attempt.seq)
            return True

    def complete(self, job_id: str, hostname: str, *, artifact_id: str) -> bool:
        """Complete the job if ``hostname`` holds its live attempt; return True if it does, or if it completed the job
        with this artifact before. This simple form is for callers without a claim id."""
        with self.db.transaction():
            job = self.get(job_id)
            if job is not None and job.status is JobStatus.COMPLETED:
                same = job.worker_hostname == hostname and job.artifact_id == artifact_id
                if same:
                    self.events.repeated("complete_repeat", job)
                return same
            held = self._held_by(job_id, hostname)
            if held is None:
                return False
            self.accept(held, self.attempts.live_of(held), artifact_id)
            return True

    def fail(self, job_id: str, hostname: str, *, error: str = "", exit_code: int | None = None) -> bool:
        """End the live attempt that ``hostname`` holds as a failure of its trainer; return False if it holds none. This
        simple form is for callers without a claim id."""
        with self.db.transaction():
            job = self._held_by(job_id, hostname)
            if job is None:
                return False
            attempt = replace(self.attempts.live_of(job), exit_code=exit_code)
            self.settle(job, attempt, EndReason.TRAINER_FAILED, error=error)
            return True

    def sweep_stale(self, *, stale_after_s: float | None = None, max_attempts: int | None = None) -> int:
        """End every live attempt whose last heartbeat, or without one its grant, is older than ``stale_after_s``;
        return the number of ended attempts.

        The jobs become pending and claimable at once, or failed when max_host_losses or max_grants of the policy is
        used up. If one host alone used a budget up, and another host may try the job, the job stays pending for now.
        With ``max_attempts``, losses have no limit, and a job fails once it has been granted more often than
        ``max_attempts``. The caller must have checked that the silence was not the receiver's own.
        """
        lease = self.policy.stale_after_s if stale_after_s is None else stale_after_s
        before = self.clock.now() - lease
        policy = self.policy
        if max_attempts is not None:
            policy = replace(policy, max_host_losses=_UNBOUNDED, max_grants=max_attempts + 1)
        with self.db.transaction():
            stale = [job_of(row) for row in self.db.all("stale", before=before)]
            for job in stale:
                error = f"host {job.worker_hostname} was not seen for {lease:.0f} s"
                self.settle(job, self.attempts.live_of(job), EndReason.HOST_LOST, error=error, policy=policy)
        return len(stale)

    def counts(self) -> dict[str, int]:
        found = {row["status"]: int(row["n"]) for row in self.db.all("counts")}
        return {status.value: found.get(status, 0) for status in JobStatus}

    def _held_by(self, job_id: str, hostname: str) -> Job | None:
        job = self.get(job_id)
        held = job is not None and job.status in LIVE and job.worker_hostname == hostname
        return job if held else None


_eligible = eligible
