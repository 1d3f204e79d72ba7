"""The writes on hosts that get no jobs, by quarantine or an operator's order, and on jobs that crash hosts.

The rules are in scheduling/quarantine.py and scheduling/orders.py. Quarantines, orders and deaths are stored only in
the database: a restart finds every committed change.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

from training.fleet.database.writer import Database
from training.fleet.queue.rows import known_job
from training.fleet.queue.state import QueuePart
from training.fleet.scheduling import quarantine as health
from training.fleet.scheduling.job import Attempt, EndReason, FailedBy, Job, JobStatus
from training.fleet.scheduling.orders import HostOrder, OrderKind
from training.fleet.scheduling.quarantine import Cause, Death, Quarantine, Weight


def quarantines(db: Database) -> dict[str, Quarantine]:
    """Map each host that is in quarantine now to its quarantine."""
    return {
        row["host"]: Quarantine(row["host"], row["since"], Cause(row["cause"]), row["reason"])
        for row in db.all("quarantines")
    }


class Quarantines(QueuePart):
    """Records deaths of attempts, quarantines and releases of hosts, and jobs that fail because they crash hosts."""

    # ── hosts ───────────────────────────────────────────────────────────────────────────────

    def checked_in(self, host: str, capability: Mapping[str, object]) -> dict[str, Quarantine]:
        """Quarantine a host that reports ill health with its claim; release it after a healthy report, if a report had
        quarantined it. Return all hosts in quarantine now, with their quarantines."""
        out = quarantines(self._db)
        known, complaint = out.get(host), health.complaint(capability)
        if known is None and complaint is not None:
            out[host] = self.put(host, Cause.SELF_TEST, complaint)
        elif known is not None and known.cause is Cause.SELF_TEST and complaint is None:
            self._end(host, "a healthy report")
            del out[host]
        return out

    def assess(self, attempt: Attempt) -> None:
        """Judge what the end of an attempt shows about its host; quarantine the host if too many ends in a row count
        against it."""
        refused = known_job(self._db, attempt.job_id) if attempt.refused else None
        waits = refused is not None and refused.status is JobStatus.PENDING
        weight = health.assess(attempt, self._policy, waits=waits)
        out = quarantines(self._db).get(attempt.host)
        if weight is Weight.WELL and (out is None or out.cause is Cause.SELF_TEST):
            self._db.run("forget_deaths", host=attempt.host)
        if refused is not None and not waits:
            self._agreed(refused, attempt.host)
        if weight is not Weight.AGAINST:
            return
        if out is not None:  # it held this one before
            self._refund([attempt.claim_id])
            return
        self._db.run("add_death", host=attempt.host, **attempt.key)
        deaths, claims = self._deaths(attempt.host)
        reason = health.sick(deaths, self._policy)
        if reason is not None:
            self.put(attempt.host, Cause.DEATHS, reason)
            self._refund(claims)

    def _agreed(self, job: Job, by: str) -> None:
        """If two hosts refused a job, stop counting these refusals against hosts, and release each host that is in
        quarantine only because of them."""
        alike = {each.attempt: each.host for each in self._attempts.of_generation(job) if each.refused}
        hosts = {*alike.values()}
        if len(hosts) < 2:
            return
        self._db.run("forget_refusals", job_id=job.job_id, attempts=json.dumps([*alike]))
        for host, held in quarantines(self._db).items():
            left = [replace(each, pardoned_before=False) for each in self._deaths(host)[0]]
            if host in hosts and held.cause is Cause.DEATHS and health.sick(left, self._policy) is None:
                self.release(host, f"{by}, which refused the same job")

    def put(self, host: str, cause: Cause, reason: str) -> Quarantine:
        """Quarantine this host and return the quarantine; the host gets no jobs from now on."""
        now = self._clock.now()
        self._db.run("add_quarantine", host=host, cause=cause, reason=reason, now=now)
        return Quarantine(host, now, cause, reason)

    def release(self, host: str, by: str) -> bool:
        """Release a host from quarantine, and count its deaths from 0; return False if it was not in quarantine."""
        self._db.run("forget_deaths", host=host)
        return self._end(host, by)

    def _end(self, host: str, by: str) -> bool:
        return self._db.run("end_quarantine", host=host, ended_by=by, now=self._clock.now()) == 1

    def _deaths(self, host: str) -> tuple[list[Death], list[str]]:
        """Return the latest consecutive attempts on a host whose ends count against it, and the claims of these
        attempts."""
        rows = self._db.all("deaths", host=host)
        deaths = [
            Death(
                **{name: row[name] for name in ("job_id", "name", "attempt")},
                reason=EndReason(row["end_reason"]),
                error=row["error"] or "",
                pardoned_before=bool(row["pardoned_before"]),
            )
            for row in rows
        ]
        return deaths, [row["claim_id"] for row in rows]

    def refund(self, claims: Iterable[str]) -> None:
        """Stop counting the losses of these claims' attempts against their jobs, because a machine and its copy took
        the jobs from each other. Unknown claims, and attempts that ended otherwise, are ignored.

        A claim may be listed twice, but its attempt was counted as lost only once.
        """
        each_once = dict.fromkeys(claims)
        known = [attempt for claim_id in each_once if (attempt := self._attempts.by_claim(claim_id)) is not None]
        self._refund(
            attempt.claim_id for attempt in known if attempt.end_reason is EndReason.HOST_LOST and not attempt.pardoned
        )

    def _refund(self, claims: Iterable[str]) -> None:
        """Stop counting the ends of these claims' attempts against their jobs, because the host caused them. A failed
        job becomes pending if its other ends do not fail it."""
        died: dict[str, list[Attempt]] = {}
        for claim_id in claims:
            attempt = self._attempts.by_claim(claim_id)
            assert attempt is not None
            self._db.run("pardon_attempt", claim_id=claim_id)
            died.setdefault(attempt.job_id, []).append(attempt)
        for job_id, attempts in died.items():
            job = known_job(self._db, job_id)
            now_counting = [each for each in attempts if each.generation == job.generation]
            if now_counting:
                self._give_back(job, now_counting)

    def _give_back(self, job: Job, died: list[Attempt]) -> None:
        ends = self._attempts.of_generation(job)
        given = health.refund(job, died, ends, self._policy, self._others(job.job_id))
        self._db.run(
            "give_back", job_id=job.job_id, trainer_failures=given.trainer_failures, host_losses=given.host_losses
        )
        if given.waits and job.status in (JobStatus.PENDING, JobStatus.FAILED):
            now, (kind, said, host) = self._clock.now(), given.alone or (None, None, "")
            until = now + self._policy.second_opinion_s if host else None
            words = {"ended_by": said, "failed_by": kind}
            self._db.run("pardon_job", job_id=job.job_id, now=now, avoid_host=host, avoid_until=until, **words)
            self._events.moved("pardon", job.job_id, job.status, JobStatus.PENDING, detail=f"died on {died[0].host}")

    def _had_company(self, attempt: Attempt) -> bool:
        """Return True if the attempt's host held another attempt at the same time."""
        between = {"since": attempt.granted_at, "until": attempt.ended_at}
        return self._db.one("had_company", host=attempt.host, claim_id=attempt.claim_id, **between) is not None

    # ── jobs ────────────────────────────────────────────────────────────────────────────────

    def crashed(self, host: str, claim_id: str, last_seen: Mapping[str, float]) -> None:
        """Record a host's report that it crashed during this attempt; fail the attempt's pending job if it is suspected
        to crash hosts."""
        if not self._db.run("note_crash", host=host, claim_id=claim_id):
            return
        attempt = self._attempts.by_claim(claim_id)
        assert attempt is not None
        job = known_job(self._db, attempt.job_id)
        why = health.suspect_job(
            self._attempts.of_generation(job), last_seen, self._clock.now(), self._policy, self._had_company
        )
        if why is not None and job.status is JobStatus.PENDING:
            said = {"ended_by": why, "failed_by": FailedBy.CRASHES}
            self._db.run("give_up_job", job_id=job.job_id, **said, now=self._clock.now())
            self._events.moved("exhaust", job.job_id, job.status, JobStatus.FAILED, detail="suspect_job")


def orders(db: Database) -> dict[str, HostOrder]:
    """Map each host that is under an operator's order to the order."""
    return {
        row["host"]: HostOrder(row["host"], OrderKind(row["kind"]), row["since"], row["by"])
        for row in db.all("host_orders")
    }


class Orders(QueuePart):
    """The writes of operators' orders. A host has at most one order: a new one replaces it."""

    def give(self, host: str, order: OrderKind, by: str) -> HostOrder:
        """Put a host under an order; giving the same order again changes nothing, not even its time."""
        known = orders(self._db).get(host)
        if known is not None and known.order is order:
            return known
        self.end(host, by)
        now = self._clock.now()
        self._db.run("add_host_order", host=host, kind=order, now=now, by=by)
        return HostOrder(host, order, now, by)

    def end(self, host: str, by: str) -> bool:
        """End a host's order; return False if the host had no order."""
        return self._db.run("end_host_order", host=host, ended_by=by, now=self._clock.now()) == 1
