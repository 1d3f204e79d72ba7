"""Explain why a job does not run: for every host, whether the job fits it, and what it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from training.fleet.database.writer import Database
from training.fleet.queue.kinds import kind_of
from training.fleet.queue.rows import attempt_of, job_of
from training.fleet.scheduling import booking
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.job import Host, Job, JobStatus, Needs
from training.fleet.scheduling.orders import Out
from training.fleet.scheduling.policy import Fleet, Policy
from training.fleet.scheduling.workload import Workload
from training.fleet.service.obstacles import Obstacles
from training.fleet.service.output_views import job_row
from training.fleet.service.service import Service
from training.fleet.wire.views import ExplainReply, HostVerdict
from training.printable import duration


class Explanations:
    """Explains jobs, on the last committed state."""

    def __init__(self, database: Database, service: Service, obstacles: Obstacles) -> None:
        self._db, self._service, self._clock, self._obstacles = database, service, service.clock, obstacles

    def explain(self, job_id: str) -> ExplainReply:
        """Return for every known host whether the job fits it, and if it does, what it waits for."""
        row, out = job_row(self._db, job_id), self._obstacles.out()
        job, kind = job_of(row), kind_of(row["class_id"], row["priority"])
        unheard = self._obstacles.unheard()
        hosts = [self._verdict(job, host, out, unheard_s, kind) for host, unheard_s in unheard.items()]
        wanted = {*self._service.plan.hosts, *job.needs.allowed_hosts, *job.needs.denied_hosts}
        hosts += [
            HostVerdict(host=name, fits=False, reason=said)
            for name, said in self._service.host_registry.never_asked().items()
            if name in wanted
        ]
        return ExplainReply(
            job_id=job_id, name=job.name, status=job.status, summary=self._summary(job, hosts), hosts=hosts
        )

    def _verdict(self, job: Job, host: Host, out: Mapping[str, Out], unheard_s: float | None, kind: str) -> HostVerdict:
        needs, now = job.needs, self._clock.now()
        misfit = rules.fits(needs, host)
        if misfit is not None:
            return HostVerdict(host=host.name, fits=False, reason=misfit)
        if host.name in out:
            return HostVerdict(host=host.name, fits=False, reason=out[host.name].sentence())
        if unheard_s is not None:
            silent = f"it fits, but was not seen for {duration(unheard_s)}"
            return HostVerdict(host=host.name, fits=True, reason=silent)
        if job.status is not JobStatus.PENDING:
            return HostVerdict(host=host.name, fits=True, reason="ok")
        live = [*map(attempt_of, self._db.all("live_attempts_of_host", host=host.name))]
        full = rules.is_full(host, live)
        if full is not None:
            return HostVerdict(host=host.name, fits=True, reason=full)
        lacking = booking.lacks_room(self._as_learned(job), self._service.as_booked(host, live))
        if lacking is not None:
            return HostVerdict(host=host.name, fits=True, reason=f"no room now: {lacking}")
        wait_s, reason = _wait(needs, job, host, self._service.fleet_beside(host.name, out), self._service.policy, now)
        if job.held and reason == "ok":
            reason = "nothing, but that the job is held"
        if wait_s is None and reason == "ok":
            wait_s, reason = self._service.queue.ahead.told(kind, host.name) or (None, "ok")
        return HostVerdict(host=host.name, fits=True, reason=reason, wait_s=wait_s)

    def _as_learned(self, job: Job) -> Needs:
        """Return what a job needs, including the memory that jobs of its kind were seen to hold."""
        kind = Workload.of(job.spec).kind
        return replace(job.needs, peak=self._service.queue.ahead.kinds.learned.peak(kind))

    def _held(self, job: Job) -> str:
        since = duration(max(0.0, self._clock.now() - (job.held_at or 0.0)))
        return f"it is held by {job.held_by}, {since} ago, and granted to no host until `cis490-jobs unhold`"

    def _summary(self, job: Job, hosts: list[HostVerdict]) -> str:
        if job.status is not JobStatus.PENDING:
            why = f": {job.ended_by}" if job.ended_by else ""
            mark = f"; should it wait again, {self._held(job)}" if job.held else ""
            remark = self._obstacles.remark(job)
            return f"the job is {job.status}{why}{mark}{f'; {remark}' if remark else ''}"
        return self._held(job) if job.held else self._waits(job, hosts)

    def _waits(self, job: Job, hosts: list[HostVerdict]) -> str:
        """Say what a job that is not held waits for."""
        fitting = [each for each in hosts if each.fits]
        if not fitting:
            lacks = rules.lacks_data(job.needs, self._service.host_registry.datasets)
            return lacks or "no known host can run it"
        ready = [each.host for each in fitting if each.reason == "ok"]
        if ready:
            busy = [host for host in ready if self._db.all("live_attempts_of_host", host=host)]
            idle = [host for host in ready if host not in busy]
            to_ask = [f"for {', '.join(idle)} to ask for work"] if idle else []
            to_end = [f"for {', '.join(busy)} to end a job that is trained there"] if busy else []
            return f"it waits {' or '.join(to_ask + to_end)}, behind jobs of higher priority or age"
        return "it waits: " + "; ".join(f"{each.host}: {each.reason}" for each in fitting)


def _wait(needs: Needs, job: Job, host: Host, fleet: Fleet, policy: Policy, now: float) -> tuple[float | None, str]:
    """Return what this fitting host waits for before it may take the job, with the seconds left."""
    held = rules.hold(needs, host, fleet, policy)
    left = job.claimable_at + held.seconds - now
    if job.avoid_until is not None and rules.must_avoid(needs, job.avoid_host or "", host, fleet):
        away = job.avoid_until - now
        if away > max(left, 0):
            return away, f"the job failed here, another host goes first for {away:.0f} s more"
    if left > 0:
        return left, f"{held.reason or 'the job failed a moment ago'}, {left:.0f} s more"
    return None, "ok"
