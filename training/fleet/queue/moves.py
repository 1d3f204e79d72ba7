"""The changes of a job after the plan brought it; each writes the job's row and, if the job moves, an event row in one
transaction."""

from dataclasses import asdict, replace

from training.certain import certain
from training.fleet.queue.attempts import as_json
from training.fleet.queue.rows import attempt_of, job_of
from training.fleet.queue.state import QueuePart
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.job import (
    CANCELLED,
    CANCELLED_AS_REMOVED,
    LIVE,
    Attempt,
    EndReason,
    Job,
    JobStatus,
    Needs,
    Trained,
)
from training.strict_json import Json, JsonObject

_LAST = "\U0010ffff"  # sorts after every text that begins like the one before it


class JobMoves(QueuePart):
    """The moves of jobs that attempts and operators cause."""

    def get(self, job_id: str) -> Job | None:
        row = self._db.one("job", job_id=job_id)
        return None if row is None else job_of(row)

    def named(self, ref: str) -> list[tuple[str, str]]:
        """Return the ids and names of at most 20 jobs that ``ref`` may mean: an id, a name, or the beginning of an id.
        A name means a job that left the plan only if no job of the plan has that name."""
        rows = self._db.all("job_names", ref=ref, ref_end=ref + _LAST) if ref else []
        return [(row["job_id"], row["name"]) for row in rows]

    def near(self, ref: str, job_id: str) -> int:
        """Count the other jobs whose name or id begins with ``ref``."""
        return self._db.number("jobs_near", ref=ref, ref_end=ref + _LAST, job_id=job_id)

    def renew(self, job: Job, attempt: Attempt, *, seq: int, progress: Json | None = None) -> None:
        """Renew the lease of a live attempt, and store its training time by its heartbeats.

        If ``seq`` is not above the last heartbeat's, the stored progress is kept.
        """
        with self._db.transaction():
            changed = self._db.run("beat_job", job_id=job.job_id, claim_id=attempt.claim_id, now=self._clock.now())
            certain(changed == 1, "only a live attempt beats")
            self._attempts.note_progress(attempt, seq, progress)
            if job.status is not JobStatus.RUNNING:
                self._events.moved("heartbeat", job.job_id, job.status, JobStatus.RUNNING, attempt)

    def accept(self, job: Job, attempt: Attempt, artifact_id: str, record: JsonObject | None = None) -> Attempt:
        """Complete ``job`` with the artifact of its live attempt; return the ended attempt."""
        params = {"job_id": job.job_id, "artifact_id": artifact_id, "now": self._clock.now(), "host": attempt.host}
        with self._db.transaction():
            changed = self._db.run("complete_job", **params, claim_id=attempt.claim_id)
            certain(changed == 1, "only a live attempt completes")
            done = replace(attempt, artifact_id=artifact_id, record=record)
            ended = self._attempts.end(done, EndReason.COMPLETED)
            self._events.moved("complete", job.job_id, job.status, JobStatus.COMPLETED, attempt)
        return ended

    def adopt(self, job: Job, attempt: Attempt, artifact_id: str, record: Json | None = None) -> Attempt:
        """Complete ``job`` with the artifact of its last attempt, although that attempt was given up as lost
        (policy.may_adopt); return the attempt."""
        now = self._clock.now()
        params = {"artifact_id": artifact_id, "now": now}
        with self._db.transaction():
            self._db.run("adopt_job", job_id=job.job_id, attempt=attempt.attempt, host=attempt.host, **params)
            row = self._db.one(
                "adopt_attempt",
                claim_id=attempt.claim_id,
                record=as_json(record),
                **Trained.of(record).to_dict(),
                **params,
            )
            row = certain(row, "only an attempt whose host was lost is adopted")
            self._events.moved("adopt", job.job_id, job.status, JobStatus.COMPLETED, attempt)
        return attempt_of(row)

    def deliver(self, job: Job, made: Attempt, size: int) -> None:
        """Complete a pending ``job`` with a bundle that a host kept; ``made`` is the attempt that is added for this
        delivery."""
        now, artifact_id = self._clock.now(), str(made.artifact_id)
        with self._db.transaction():
            changed = self._db.run(
                "deliver_job", job_id=job.job_id, before=job.attempt, artifact_id=artifact_id, host=made.host, now=now
            )
            certain(changed == 1, "only a job that waits is completed so")
            self._attempts.add(made)
            self._attempts.add_artifact(made, artifact_id, job.model, job.mode, size)
            self._attempts.end(made, EndReason.COMPLETED)
            self._events.moved("deliver", job.job_id, job.status, JobStatus.COMPLETED, made)

    def readopt(self, job: Job, attempt: Attempt) -> tuple[Job, Attempt]:
        """Make the lost last attempt of ``job`` live again (policy.may_readopt); return the job and the attempt as they
        are then."""
        with self._db.transaction():
            job_row = self._db.one(
                "readopt_job",
                job_id=job.job_id,
                attempt=attempt.attempt,
                claim_id=attempt.claim_id,
                host=attempt.host,
                now=self._clock.now(),
            )
            row = self._db.one("readopt_attempt", claim_id=attempt.claim_id)
            job_row = certain(job_row, "only a job that waits is taken back")
            row = certain(row, "only an attempt whose host was lost lives again")
            self._events.moved("readopt", job.job_id, job.status, JobStatus.RUNNING, attempt)
            return job_of(job_row), attempt_of(row)

    def settle(
        self,
        job: Job,
        attempt: Attempt,
        reason: EndReason,
        *,
        error: str | None = None,
        policy: rules.Policy | None = None,
        hopeless: str | None = None,
    ) -> Attempt:
        """End the live attempt without an artifact, change the job as the policy decides, and return the ended attempt.

        ``attempt`` has the facts of its end: its exit code, its record, the memory that ran out, and how long it ran.
        The running time counts at most from the grant until now, or for a lost host, until its last heartbeat.
        ``hopeless``, if given, is a sentence that the job ran out of memory, and that no host has more.
        """
        lived_s = self._lived_s(job, until_heard=reason is EndReason.HOST_LOST)
        if attempt.lived_s is not None:
            lived_s = attempt.lived_s if lived_s is None else min(attempt.lived_s, max(0.0, lived_s))
        told = replace(attempt, error=error, lived_s=lived_s)
        settled = rules.settle(
            job,
            replace(told, end_reason=reason),
            now=self._clock.now(),
            policy=policy or self._policy,
            before=[each for each in self._attempts.of_generation(job) if each.attempt != attempt.attempt],
            others=self._others(job.job_id),
            hopeless=hopeless,
        )
        with self._db.transaction():
            self._write_settlement(job, attempt, settled, error)
            ended = self._attempts.end(told, reason)
            self._events.moved(settled.transition, job.job_id, job.status, settled.status, attempt, detail=reason)
        return ended

    def hear_no_more(self) -> None:
        """Fail the pending jobs whose failure one host alone caused, if no other host took them within the policy's
        ``second_opinion_s``. A job whose budget one host used up fails only if no other host may try it."""
        now = self._clock.now()
        for job in map(job_of, self._db.all("opinions_due", now=now)):
            host, said = job.avoid_host or "", {"ended_by": job.ended_by, "failed_by": job.failed_by}
            if (job.failed_by and job.failed_by.lasts) or not self._others(job.job_id)(host):
                self._db.run("give_up_job", job_id=job.job_id, **said, now=now)
                self._events.moved("exhaust", job.job_id, job.status, JobStatus.FAILED, detail=f"only {host} tried it")

    def _lived_s(self, job: Job, *, until_heard: bool) -> float | None:
        """Return for how many seconds the live attempt is known to have run; None if that is unknown."""
        until = job.heartbeat_at if until_heard else self._clock.now()
        return None if until is None or job.claimed_at is None else until - job.claimed_at

    def _write_settlement(self, job: Job, attempt: Attempt, settled: rules.Settlement, error: str | None) -> None:
        failed = settled.status is JobStatus.FAILED
        changed = self._db.run(
            "settle_job",
            job_id=job.job_id,
            claim_id=attempt.claim_id,
            **{**asdict(settled), "avoid_host": settled.avoid_host or ""},
            error=error,
            finished_at=self._clock.now() if failed else None,
        )
        certain(changed == 1, "only a live attempt is settled")

    def widen(self, job: Job, needs: Needs) -> None:
        """Restrict ``job`` to hosts with more memory than ``needs.ram_above_gib`` and ``needs.vram_above_gib``."""
        self._db.run(
            "widen_job",
            job_id=job.job_id,
            ram_above_gib=needs.ram_above_gib,
            vram_above_gib=needs.vram_above_gib,
            class_id=self._classes.of(needs, job.spec),
        )

    def cancel(self, job_id: str, *, by: str = "operator", as_removed: bool = False) -> bool:
        """Cancel a job until it is requeued, if it is pending, claimed or running, or failed and no longer in the plan.
        Return False for any other job.

        With ``as_removed`` the job also becomes pending again when a plan names it again.
        """
        ended_by = f"{by}: {CANCELLED_AS_REMOVED if as_removed else CANCELLED}"
        with self._db.transaction():
            job = self.get(job_id)
            if job is None or not self._db.run("cancel_job", job_id=job_id, ended_by=ended_by, now=self._clock.now()):
                return False
            attempt = self._attempts.live_of(job) if job.status in LIVE else None
            if attempt is not None:
                self._attempts.end(attempt, EndReason.CANCELLED)
            name = "take_out" if job.status is JobStatus.FAILED else "cancel"
            self._events.moved(name, job.job_id, job.status, JobStatus.CANCELLED, attempt, detail=ended_by)
            return True

    def requeue(self, job_id: str, *, detail: str | None = None) -> bool:
        """Make a job pending again, whatever its status: failure counts restart, a live attempt is superseded, the
        history is kept. Return False if there is no such job."""
        with self._db.transaction():
            job = self.get(job_id)
            if job is None:
                return False
            attempt = self._attempts.live_of(job) if job.status in LIVE else None
            class_id = self._classes.of(Needs.of(job.spec), job.spec)
            self._db.run("requeue_job", job_id=job_id, now=self._clock.now(), class_id=class_id)
            if attempt is not None:
                self._attempts.end(attempt, EndReason.SUPERSEDED)
            self._events.moved("requeue", job.job_id, job.status, JobStatus.PENDING, attempt, detail)
            return True

    def hold(self, job_id: str, *, by: str = "operator") -> bool:
        """Keep a job of any status from being granted until :meth:`unhold`; return False if the job is held already, or
        unknown.

        The hold is independent of the status: a live attempt continues, and so does one that reports again after its
        host was lost.
        """
        with self._db.transaction():
            job = self.get(job_id)
            if job is None or job.held:
                return False
            self._events.moved("hold", job.job_id, job.status, job.status, detail=by)
            self._db.run("hold_job", job_id=job_id, by=by)
            return True

    def unhold(self, job_id: str, *, by: str = "operator") -> bool:
        """Let a held job be granted again; return False if the job is not held."""
        with self._db.transaction():
            job = self.get(job_id)
            if job is None or not self._db.run("unhold_job", job_id=job_id):
                return False
            self._events.moved("unhold", job.job_id, job.status, job.status, detail=by)
            return True
