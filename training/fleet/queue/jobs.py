"""The job queue: facts → decision → guarded write → event row, all in one transaction.

No rule lives here: who fits, who waits and what an end means is :mod:`training.fleet.scheduling.policy`'s. This
is the *bare* queue: ids are opaque strings to it and guards that need more than the row (slots, disk, store, observed
time) belong to :mod:`training.fleet.service`. Start programs with ``python -m``: run by path from ``training/fleet``,
this package's name would shadow the standard library's ``queue``.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from training import strict_json
from training.clock import Clock, SystemClock
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.database.writer import Database, id_of
from training.fleet.queue.attempts import Attempts, as_json
from training.fleet.queue.choose import Chooser, NoJob, eligible
from training.fleet.queue.classes import RequirementClasses
from training.fleet.queue.curves import Curves
from training.fleet.queue.events import Events
from training.fleet.queue.logs import LogRows
from training.fleet.queue.orders import Orders
from training.fleet.queue.plan_diff import Synced
from training.fleet.queue.plan_draft import (
    PART,
    PlanDraft,
    PlanJobs,
    columns_of,
    digest_of,
)
from training.fleet.queue.plan_write import PlanWrite
from training.fleet.queue.quarantine import Quarantines
from training.fleet.queue.results import Results
from training.fleet.queue.rows import attempt_of, job_of, jobs_by_host, known_job
from training.fleet.queue.schedule_cache import Ahead
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.job import (
    CANCELLED,
    CANCELLED_AS_REMOVED,
    LIVE,
    Attempt,
    EndReason,
    Host,
    Job,
    JobStatus,
    Needs,
    Trained,
)
from training.fleet.scheduling.policy import NOBODY_ELSE, Fleet, Policy
from training.fleet.scheduling.resources import Booking

_UNBOUNDED = 2**62
_LAST = "\U0010ffff"  # sorts after every text that begins like the one before it


@dataclass(frozen=True, slots=True)
class Claimant:
    """The claimant beyond the host's name; without a session every grant stands alone."""

    instance_id: str | None = None
    session_id: str | None = None
    slot: int | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class GrantedJob:
    job: Job
    attempt: Attempt


class JobQueue:
    """Jobs and hosts in one SQLite file (``training_jobs.db``), and what acts on it beside them."""

    def __init__(
        self,
        path: str | Path,
        *,
        database: Database | None = None,
        clock: Clock | None = None,
        policy: Policy | None = None,
        new_claim_id: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        """Open or create the queue at ``path``. Raises DatabaseError in one sentence when that fails."""
        self.db = database if database is not None else SqliteDatabase(path)
        self.clock = clock if clock is not None else SystemClock()
        self.policy = policy if policy is not None else Policy()
        self.events = Events(self.db, self.clock)
        self.attempts = Attempts(self.db, self.clock)
        self.curves = Curves(self.db)
        self.logs = LogRows(self.db, self.clock)
        self.results = Results(self.db)
        self.quarantines = Quarantines(self.db, self.clock, self.policy, self.attempts, self.events)
        self.orders = Orders(self.db, self.clock)
        self.classes = RequirementClasses(self.db)
        self.ahead = Ahead(self.db, self.clock, self.classes, self.events)
        self._chooser = Chooser(self.db, self.clock, self.classes, self.ahead)
        self._new_claim_id = new_claim_id
        self.plan_part = PART

    @property
    def _conn(self) -> Any:
        """The autocommit ``sqlite3`` connection underneath, for those who look at the table themselves."""
        return self.db.connection  # type: ignore[attr-defined]

    @property
    def database_id(self) -> str:
        """Return the database's id: random, made with it, and kept by every copy."""
        return id_of(self.db)

    def close(self) -> None:
        self.db.close()

    # ── the manifest ────────────────────────────────────────────────────────────────────────

    def sync_from_manifest(self, jobs: Iterable[Mapping[str, Any]]) -> dict[str, int]:
        """Make the queue hold these job dicts, for jobs of every status. Idempotent: known jobs keep their state.

        Returns how many were ``inserted``, ``updated`` (anything but the identity), ``unchanged``, ``removed`` (no
        longer named; they stay until cancelled); of these, how many were ``renamed``, and ``revived`` (named again).
        """
        return self.sync(jobs).counts

    def sync(self, jobs: Iterable[Mapping[str, Any]]) -> Synced:
        """:meth:`sync_from_manifest`, with each edit it found; of jobs that changed in other things than their names,
        the first :data:`LISTED_MAX`.
        """
        with self.db.transaction():
            return self.write_plan(self.draft(jobs)).finish()

    def draft(self, jobs: Iterable[Mapping[str, Any]], reader: Database | None = None) -> PlanDraft:
        """Compare these job dicts with the queue: on any thread, through a ``reader`` of its own."""
        return PlanDraft(jobs, reader or self.db)

    def write_plan(self, draft: PlanDraft) -> PlanWrite:
        """Begin to write a plan in parts."""
        return PlanWrite(self, draft)

    @property
    def edition(self) -> int:
        """Return the number of the plan in force; it rises with every plan."""
        row = self.db.one("edition")
        return 0 if row is None else int(row["edition"])

    def plan_jobs(self) -> PlanJobs:
        """Return what :meth:`sync` left: by an equal digest, the same jobs would change nothing."""
        rows = self.db.all("plan_texts")
        digests = [digest_of(row["job_id"], row["name"], row["spec"]) for row in rows]
        return PlanJobs.of(digests)

    def _insert(self, spec: Mapping[str, Any]) -> None:
        """Add a new job."""
        columns = {**columns_of(spec), "spec": strict_json.canonical(spec)}
        self.db.run("add_job", **columns, class_id=self.classes.of(Needs.of(spec), spec), now=self.clock.now())
        self.events.moved("insert", spec["job_id"], None, JobStatus.PENDING)

    # ── granting ────────────────────────────────────────────────────────────────────────────

    def claim_next(
        self,
        *,
        worker_hostname: str,
        capability: Mapping[str, Any],
        host_spec: Mapping[str, Any] | None = None,
        prefer_cuda_grace_s: float | None = None,
    ) -> Job | None:
        """Grant the best pending job that this host may run, or ``None``. Atomic; records the worker."""
        policy = self.policy
        if prefer_cuda_grace_s is not None:
            policy = replace(policy, prefer_cuda_grace_s=prefer_cuda_grace_s)
        with self.db.transaction():
            self.note_host(worker_hostname, capability, Claimant())
            host = Host.of(worker_hostname, capability, host_spec)
            outcome = self.grant(host, Claimant(), NOBODY_ELSE, policy=policy)
        return outcome.job if isinstance(outcome, GrantedJob) else None

    def grant(
        self,
        host: Host,
        claimant: Claimant,
        fleet: Fleet,
        *,
        policy: Policy | None = None,
        first_come: bool = False,
    ) -> GrantedJob | NoJob:
        """Decide for this host and write the grant. The caller has noted the host."""
        with self.db.transaction():
            chosen = self._chooser.choose(host, fleet, policy or self.policy, first_come=first_come)
            if isinstance(chosen, NoJob):
                return chosen
            booked = self._chooser.book(chosen, host, fleet, first_come=first_come)
            return self._write_grant(chosen, host, claimant, booked=booked)

    def _write_grant(
        self,
        job_id: str,
        host: Host,
        claimant: Claimant,
        granted: Callable[[Job], dict[str, Any]] = lambda job: job.spec,
        booked: Booking = Booking(),  # noqa: B008 - a frozen value
    ) -> GrantedJob:
        """``granted`` is the job dict that the attempt is kept with."""
        now, claim_id = self.clock.now(), self._new_claim_id()
        row = self.db.one("grant", job_id=job_id, claim_id=claim_id, host=host.name, now=now)
        assert row is not None, "the decision and its write are one transaction"
        job = job_of(row)
        claim = Attempt(
            job_id=job_id,
            attempt=job.attempt,
            claim_id=claim_id,
            host=host.name,
            generation=job.generation,
            granted_at=now,
            granted=granted(job),
            booked=booked,
            instance_id=claimant.instance_id,
            session_id=claimant.session_id,
            slot=claimant.slot,
            request_id=claimant.request_id,
        )
        attempt = self.attempts.add(claim)
        self.events.moved("claim", job_id, JobStatus.PENDING, job.status, attempt)
        return GrantedJob(job, attempt)

    # ── the life of an attempt ──────────────────────────────────────────────────────────────

    def heartbeat(self, job_id: str, hostname: str) -> bool:
        """The bare form: ``True`` when ``hostname`` holds the live attempt, whose lease is renewed."""
        with self.db.transaction():
            job = self._held_by(job_id, hostname)
            if job is None:
                return False
            attempt = self.attempts.live_of(job)
            self.renew(job, attempt, seq=attempt.seq)
            return True

    def renew(self, job: Job, attempt: Attempt, *, seq: int, progress: Mapping[str, Any] | None = None) -> None:
        """Renew the lease of a live attempt, and store how long it has trained by its heartbeats.

        A ``seq`` not above the last one does not move progress back.
        """
        with self.db.transaction():
            changed = self.db.run("beat_job", job_id=job.job_id, claim_id=attempt.claim_id, now=self.clock.now())
            assert changed == 1, "only a live attempt beats"
            self.attempts.note_progress(attempt, seq, progress)
            if job.status is not JobStatus.RUNNING:
                self.events.moved("heartbeat", job.job_id, job.status, JobStatus.RUNNING, attempt)

    def complete(self, job_id: str, hostname: str, *, artifact_id: str) -> bool:
        """The bare form: ``True`` when the holder of the live attempt delivered, also when repeated."""
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

    def accept(self, job: Job, attempt: Attempt, artifact_id: str, record: Mapping[str, Any] | None = None) -> Attempt:
        """Complete ``job`` by the artifact of its live attempt; returns that as it ended, as all do that end one."""
        params = {
            "job_id": job.job_id,
            "artifact_id": artifact_id,
            "now": self.clock.now(),
            "host": attempt.host,
        }
        with self.db.transaction():
            changed = self.db.run("complete_job", **params, claim_id=attempt.claim_id)
            assert changed == 1, "only a live attempt completes"
            ended = self.attempts.end(attempt, EndReason.COMPLETED, artifact_id=artifact_id, record=record)
            self.events.moved("complete", job.job_id, job.status, JobStatus.COMPLETED, attempt)
        return ended

    def adopt(self, job: Job, attempt: Attempt, artifact_id: str, record: Mapping[str, Any] | None = None) -> Attempt:
        """Complete ``job`` by its last attempt, though that had been given up (policy.may_adopt)."""
        now = self.clock.now()
        params = {"artifact_id": artifact_id, "now": now}
        with self.db.transaction():
            self.db.run("adopt_job", job_id=job.job_id, attempt=attempt.attempt, host=attempt.host, **params)
            row = self.db.one(
                "adopt_attempt",
                claim_id=attempt.claim_id,
                record=as_json(record),
                **Trained.of(record).to_dict(),
                **params,
            )
            assert row is not None, "only an attempt whose host was lost is adopted"
            self.events.moved("adopt", job.job_id, job.status, JobStatus.COMPLETED, attempt)
        return attempt_of(row)

    def deliver(self, job: Job, made: Attempt, size: int) -> None:
        """Complete a waiting ``job`` with work that its host kept; ``made`` is the attempt that this becomes."""
        now, artifact_id = self.clock.now(), str(made.artifact_id)
        with self.db.transaction():
            changed = self.db.run(
                "deliver_job",
                job_id=job.job_id,
                before=job.attempt,
                artifact_id=artifact_id,
                host=made.host,
                now=now,
            )
            assert changed == 1, "only a job that waits is completed so"
            self.attempts.add(made)
            self.attempts.add_artifact(made, artifact_id, job.model, job.mode, size)
            self.attempts.end(made, EndReason.COMPLETED, artifact_id=artifact_id, record=made.record)
            self.events.moved("deliver", job.job_id, job.status, JobStatus.COMPLETED, made)

    def readopt(self, job: Job, attempt: Attempt) -> tuple[Job, Attempt]:
        """Let the last attempt of ``job`` live again (policy.may_readopt)."""
        with self.db.transaction():
            job_row = self.db.one(
                "readopt_job",
                job_id=job.job_id,
                attempt=attempt.attempt,
                claim_id=attempt.claim_id,
                host=attempt.host,
                now=self.clock.now(),
            )
            row = self.db.one("readopt_attempt", claim_id=attempt.claim_id)
            assert job_row is not None, "only a job that waits is taken back"
            assert row is not None, "only an attempt whose host was lost lives again"
            self.events.moved("readopt", job.job_id, job.status, JobStatus.RUNNING, attempt)
            return job_of(job_row), attempt_of(row)

    def fail(self, job_id: str, hostname: str, *, error: str = "", exit_code: int | None = None) -> bool:
        """The bare form: the holder's trainer failed; ``False`` when ``hostname`` holds no live attempt."""
        with self.db.transaction():
            job = self._held_by(job_id, hostname)
            if job is None:
                return False
            self.settle(job, self.attempts.live_of(job), EndReason.TRAINER_FAILED, error=error, exit_code=exit_code)
            return True

    def settle(
        self,
        job: Job,
        attempt: Attempt,
        reason: EndReason,
        *,
        error: str | None = None,
        exit_code: int | None = None,
        record: Mapping[str, Any] | None = None,
        policy: Policy | None = None,
        lived_s: float | None = None,
        out_of_memory: str | None = None,
        hopeless: str | None = None,
    ) -> Attempt:
        """End the live attempt without an artifact and do with the job what the policy says.

        ``lived_s`` is how long it ran; by default as long as the receiver keeps it. ``hopeless`` is why the job cannot
        be tried again, even if its budgets are not used up.
        """
        if lived_s is None:
            lived_s = self._lived_s(job, until_heard=reason is EndReason.HOST_LOST)
        settled = rules.settle(
            job,
            reason,
            exit_code=exit_code,
            host=attempt.host,
            now=self.clock.now(),
            policy=policy or self.policy,
            lived_s=lived_s,
            hopeless=hopeless,
        )
        with self.db.transaction():
            self._write_settlement(job, attempt, settled, error)
            ended = self.attempts.end(
                attempt,
                reason,
                error=error,
                exit_code=exit_code,
                record=record,
                lived_s=lived_s,
                out_of_memory=out_of_memory,
            )
            self.events.moved(settled.transition, job.job_id, job.status, settled.status, attempt, detail=reason)
        return ended

    def _lived_s(self, job: Job, *, until_heard: bool) -> float | None:
        """Return how long the live attempt is known to have run."""
        until = job.heartbeat_at if until_heard else self.clock.now()
        return None if until is None or job.claimed_at is None else until - job.claimed_at

    def _write_settlement(self, job: Job, attempt: Attempt, settled: rules.Settlement, error: str | None) -> None:
        failed = settled.status is JobStatus.FAILED
        changed = self.db.run(
            "settle_job",
            job_id=job.job_id,
            claim_id=attempt.claim_id,
            status=settled.status,
            trainer_failures=settled.trainer_failures,
            host_losses=settled.host_losses,
            claimable_at=settled.claimable_at,
            avoid_host=settled.avoid_host or "",
            avoid_until=settled.avoid_until,
            short_runs=settled.short_runs,
            error=error,
            ended_by=settled.ended_by,
            finished_at=self.clock.now() if failed else None,
        )
        assert changed == 1, "only a live attempt is settled"

    def widen(self, job: Job, needs: Needs) -> None:
        """From now on ``job`` goes only where there is more memory, as ``needs`` say."""
        self.db.run(
            "widen_job",
            job_id=job.job_id,
            ram_above_gib=needs.ram_above_gib,
            vram_above_gib=needs.vram_above_gib,
            class_id=self.classes.of(needs, job.spec),
        )

    # ── the operator ────────────────────────────────────────────────────────────────────────

    def cancel(self, job_id: str, *, by: str = "operator", as_removed: bool = False) -> bool:
        """``True`` when the job was pending, claimed or running, or failed and no longer in the plan; it never returns
        to pending automatically.

        ``as_removed`` cancels only because the plan no longer names it: when a plan names it again, it waits again.
        """
        ended_by = f"{by}: {CANCELLED_AS_REMOVED if as_removed else CANCELLED}"
        with self.db.transaction():
            job = self.get(job_id)
            if job is None or not self.db.run("cancel_job", job_id=job_id, ended_by=ended_by, now=self.clock.now()):
                return False
            attempt = self.attempts.live_of(job) if job.status in LIVE else None
            if attempt is not None:
                self.attempts.end(attempt, EndReason.CANCELLED)
            name = "take_out" if job.status is JobStatus.FAILED else "cancel"
            self.events.moved(name, job.job_id, job.status, JobStatus.CANCELLED, attempt, detail=ended_by)
            return True

    def requeue(self, job_id: str, *, detail: str | None = None) -> bool:
        """Train it (again), from any status: budgets reset, a live attempt superseded, history kept."""
        with self.db.transaction():
            job = self.get(job_id)
            if job is None:
                return False
            attempt = self.attempts.live_of(job) if job.status in LIVE else None
            class_id = self.classes.of(Needs.of(job.spec), job.spec)
            self.db.run("requeue_job", job_id=job_id, now=self.clock.now(), class_id=class_id)
            if attempt is not None:
                self.attempts.end(attempt, EndReason.SUPERSEDED)
            self.events.moved("requeue", job.job_id, job.status, JobStatus.PENDING, attempt, detail)
            return True

    def hold(self, job_id: str, *, by: str = "operator") -> bool:
        """Keep it from being granted until :meth:`unhold`, in any status; ``False`` when it is held already.

        A mark independent of the status: a live attempt continues, and so does one that reports again after its host
        was lost.
        """
        with self.db.transaction():
            job = self.get(job_id)
            if job is None or job.held:
                return False
            self.events.moved("hold", job.job_id, job.status, job.status, detail=by)
            self.db.run("hold_job", job_id=job_id, by=by)
            return True

    def unhold(self, job_id: str, *, by: str = "operator") -> bool:
        """Let it be granted again; ``False`` when it is not held."""
        with self.db.transaction():
            job = self.get(job_id)
            if job is None or not self.db.run("unhold_job", job_id=job_id):
                return False
            self.events.moved("unhold", job.job_id, job.status, job.status, detail=by)
            return True

    # ── time ────────────────────────────────────────────────────────────────────────────────

    def sweep_stale(self, *, stale_after_s: float | None = None, max_attempts: int | None = None) -> int:
        """End every attempt that was not seen for ``stale_after_s``; returns how many were swept.

        Their jobs go back to pending, claimable at once; or to failed when a budget is used up: with
        ``max_attempts``, when the job has been granted more often than that, else the policy's max_host_losses.
        Acts at once; whether the silence may be held against the hosts is the caller's question.
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

    def shift_times(self, step_s: float) -> None:
        """The wall clock stepped by ``step_s``: leases and holds move along.

        Times stamped between the step and its discovery are correct already. It must not move again, so nothing is
        moved further ahead than it can be: heartbeats to now, holds to their longest.
        """
        now = self.clock.now()
        claimable_max = now + self.policy.backoff_max_s
        with self.db.transaction():
            self.db.run(
                "shift_jobs",
                step=step_s,
                now=now,
                claimable_max=claimable_max,
                avoid_max=claimable_max + self.policy.retry_elsewhere_grace_s,
            )
            self.db.run("shift_hosts", step=step_s, now=now)

    def newest_time(self) -> float:
        """The latest moment at which anything was noted, 0 in an empty queue."""
        row = self.db.one("newest_time")
        return 0.0 if row is None or row["at"] is None else float(row["at"])

    # ── looking ─────────────────────────────────────────────────────────────────────────────

    def get(self, job_id: str) -> Job | None:
        row = self.db.one("job", job_id=job_id)
        return None if row is None else job_of(row)

    def counts(self) -> dict[str, int]:
        found = {row["status"]: int(row["n"]) for row in self.db.all("counts")}
        return {status.value: found.get(status, 0) for status in JobStatus}

    def workers(self) -> list[dict[str, Any]]:
        """Every host that ever asked for work, whether or not it got any."""
        return [
            {
                "hostname": row["host"],
                "capability": json.loads(row["capability"]),
                "first_seen": row["first_seen"],
                "last_seen": row["last_seen"],
                "instance_id": row["instance_id"],
                "session_id": row["session_id"],
                "trainer_digests": json.loads(row["trainer_digests"] or "{}"),
            }
            for row in self.db.all("hosts")
        ]

    def held(self) -> dict[str, list[str]]:
        """Host → the names of the jobs that it holds now."""
        return jobs_by_host(self.db.all("live_jobs_by_host"))

    def note_host(
        self,
        hostname: str,
        capability: Mapping[str, Any],
        claimant: Claimant,
        trainer_digests: Mapping[str, str] | None = None,
        set_aside: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.db.run(
            "note_host",
            host=hostname,
            capability=json.dumps(dict(capability)),
            instance_id=claimant.instance_id,
            session_id=claimant.session_id,
            now=self.clock.now(),
            trainer_digests=as_json(trainer_digests or None),
            set_aside=json.dumps([dict(each) for each in set_aside]) if set_aside else None,
        )

    def forget_spare_hosts(self, kept: int) -> list[str]:
        """Forget the hosts that never got a job, except so many that were seen last; the names of those."""
        gone = [str(row["host"]) for row in self.db.all("spare_hosts", kept=kept)]
        with self.db.transaction():
            for host in gone:
                self.db.run("forget_host", host=host)
                self.quarantines.release(host, "the receiver forgot this host")
        return gone

    def named(self, ref: str) -> list[tuple[str, str]]:
        """Ids and names of the jobs that ``ref`` may mean: an id, a name, or a prefix of an id."""
        rows = self.db.all("job_names", ref=ref, ref_end=ref + _LAST) if ref else []
        return [(row["job_id"], row["name"]) for row in rows]

    def plan_datasets(self) -> dict[str, str]:
        """Return what the names of data sets stood for when the plan was taken over."""
        return {row["name"]: row["dataset_id"] for row in self.db.all("plan_datasets")}

    def keep_plan_datasets(self, names: Mapping[str, str]) -> None:
        with self.db.transaction():
            self.db.run("forget_plan_datasets")
            for name, dataset_id in names.items():
                self.db.run("add_plan_dataset", name=name, dataset_id=dataset_id)

    def trained_on(self, dataset_id: str) -> list[Job]:
        """The jobs that name this data set, except those that are finished and off the plan."""
        jobs = map(job_of, self.db.all("jobs_that_matter"))
        return [job for job in jobs if job.spec.get("dataset") == dataset_id]

    def near(self, ref: str, job_id: str) -> int:
        """Count the jobs but this one whose name or id begins with ``ref``."""
        row = self.db.one("jobs_near", ref=ref, ref_end=ref + _LAST, job_id=job_id)
        return 0 if row is None else int(row["n"])

    # ── inside ──────────────────────────────────────────────────────────────────────────────

    def _held_by(self, job_id: str, hostname: str) -> Job | None:
        job = self.get(job_id)
        held = job is not None and job.status in LIVE and job.worker_hostname == hostname
        return job if held else None

    def _require(self, job_id: str) -> Job:
        return known_job(self.db, job_id)


_eligible = eligible
