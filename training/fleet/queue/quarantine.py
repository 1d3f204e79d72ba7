"""The queue's writes on quarantined hosts, jobs that crash hosts, and memory. The rules are pure, elsewhere.

The middle of :class:`training.fleet.queue.jobs.JobQueue`. What is known lies in the database alone: a
change that was not committed is forgotten with everything else, and a restart finds the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from training.fleet.database.writer import Database
from training.fleet.queue.attempts import Ledger
from training.fleet.scheduling import quarantine as health
from training.fleet.scheduling.job import Attempt, EndReason, Job, JobStatus, Needs
from training.fleet.scheduling.policy import Policy
from training.fleet.scheduling.quarantine import Cause, Death, Quarantine, Weight


def quarantines(db: Database) -> dict[str, Quarantine]:
    """The hosts that get no jobs now, by name."""
    return {
        row["host"]: Quarantine(row["host"], row["since"], Cause(row["cause"]), row["reason"])
        for row in db.all("quarantines")
    }


class Healing(Ledger):
    """Deaths, quarantines, pardons; jobs that are given up or want more memory."""

    policy: Policy

    # ── hosts ───────────────────────────────────────────────────────────────────────────────

    def checked_in(self, host: str, capability: Mapping[str, object]) -> dict[str, Quarantine]:
        """A host asks for work and says how it is. Returns who is taken out now, perhaps this one."""
        out = quarantines(self.db)
        known, complaint = out.get(host), health.complaint(capability)
        if known is None and complaint is not None:
            out[host] = self.quarantine(host, Cause.SELF_TEST, complaint)
        elif known is not None and known.cause is Cause.SELF_TEST and complaint is None:
            self.release(host, "a healthy report")
            del out[host]
        return out

    def assess(self, claim_id: str) -> None:
        """An attempt ended: what does that say about its host? It may be taken out for it."""
        attempt = self.attempt(claim_id)
        assert attempt is not None
        assert attempt.end_reason is not None
        lived_s = attempt.lived_s or 0.0
        weight = health.assess(attempt.end_reason, lived_s, attempt.out_of_memory, self.policy, attempt.exit_code)
        if weight is Weight.WELL:
            self.db.run("forget_deaths", host=attempt.host)
        if weight is not Weight.AGAINST:
            return
        if attempt.host in quarantines(self.db):  # it held this one before
            self._refund([claim_id])
            return
        self.db.run("add_death", host=attempt.host, job_id=attempt.job_id, attempt=attempt.attempt)
        deaths, claims = self._deaths(attempt.host)
        reason = health.sick(deaths, self.policy)
        if reason is not None:
            self._refund(claims)
            self.db.run("forget_deaths", host=attempt.host)
            self.quarantine(attempt.host, Cause.DEATHS, reason)

    def quarantine(self, host: str, cause: Cause, reason: str) -> Quarantine:
        now = self.clock.now()
        self.db.run("add_quarantine", host=host, cause=cause, reason=reason, now=now)
        return Quarantine(host, now, cause, reason)

    def release(self, host: str, by: str) -> bool:
        """Let a host in again. False when it was not taken out."""
        return self.db.run("end_quarantine", host=host, ended_by=by, now=self.clock.now()) == 1

    def _deaths(self, host: str) -> tuple[list[Death], list[str]]:
        """Return the attempts that died at once on a host, in a row, and their claims."""
        rows = self.db.all("deaths", host=host)
        deaths = [
            Death(
                job_id=row["job_id"],
                name=row["name"],
                attempt=row["attempt"],
                reason=EndReason(row["end_reason"]),
                error=row["error"] or "",
                pardoned_before=bool(row["pardoned_before"]),
            )
            for row in rows
        ]
        return deaths, [row["claim_id"] for row in rows]

    def refund(self, claims: Iterable[str]) -> None:
        """These ends were nobody's fault: a machine and a copy of it took the jobs from each other."""
        known = [attempt for claim_id in claims if (attempt := self.attempt(claim_id)) is not None]
        self._refund(
            attempt.claim_id for attempt in known if attempt.end_reason is EndReason.HOST_LOST and not attempt.pardoned
        )

    def _refund(self, claims: Iterable[str]) -> None:
        """The host was to blame for these ends: no job pays for them, and none has failed by them."""
        died: dict[str, list[Attempt]] = {}
        for claim_id in claims:
            attempt = self.attempt(claim_id)
            assert attempt is not None
            self.db.run("pardon_attempt", claim_id=claim_id)
            died.setdefault(attempt.job_id, []).append(attempt)
        for job_id, attempts in died.items():
            job = self._require(job_id)
            now_counting = [each for each in attempts if each.generation == job.generation]
            if now_counting:
                self._give_back(job, now_counting)

    def _give_back(self, job: Job, died: list[Attempt]) -> None:
        last = max(self.attempts(job.job_id), key=lambda each: each.attempt)
        given = health.refund(job, died, last, self.policy)
        self.db.run(
            "give_back",
            job_id=job.job_id,
            trainer_failures=given.trainer_failures,
            host_losses=given.host_losses,
        )
        if given.waits and job.status in (JobStatus.PENDING, JobStatus.FAILED):
            self.db.run("pardon_job", job_id=job.job_id, now=self.clock.now())
            self._move("pardon", job, JobStatus.PENDING, None, detail=f"died on {died[0].host}")

    # ── jobs ────────────────────────────────────────────────────────────────────────────────

    def crashed(self, host: str, claim_id: str, last_seen: Mapping[str, float]) -> None:
        """A host says that it crashed with this attempt in hand: the job may be what crashes hosts."""
        if not self.db.run("note_crash", host=host, claim_id=claim_id):
            return
        attempt = self.attempt(claim_id)
        assert attempt is not None
        job = self._require(attempt.job_id)
        attempts = [each for each in self.attempts(job.job_id) if each.generation == job.generation]
        why = health.suspect_job(attempts, last_seen, self.clock.now(), self.policy)
        if why is not None and job.status is JobStatus.PENDING:
            self.db.run("give_up_job", job_id=job.job_id, ended_by=why, now=self.clock.now())
            self._move("exhaust", job, JobStatus.FAILED, None, detail="suspect_job")

    def widen(self, job: Job, needs: Needs) -> None:
        """From now on ``job`` goes only where there is more memory, as ``needs`` say."""
        self.db.run(
            "widen_job",
            job_id=job.job_id,
            ram_above_gib=needs.ram_above_gib,
            vram_above_gib=needs.vram_above_gib,
            class_id=self._class_of(needs),
        )

    def _class_of(self, needs: Needs) -> int:
        text = needs.canonical()
        row = self.db.one("class_of", needs=text) or self.db.one("add_class", needs=text)
        assert row is not None
        return int(row["class_id"])
