"""Obstacles of pending jobs: no host fits, or all hosts that fit are silent; and for one job, what each host lacks or
waits for."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from training.fleet.database.writer import Database
from training.fleet.queue.kinds import kind_of
from training.fleet.queue.rows import attempt_of, job_of
from training.fleet.scheduling import booking
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.job import LIVE, NOT_IN_PLAN, FailedBy, Host, Job, JobStatus, Needs
from training.fleet.scheduling.orders import Out
from training.fleet.scheduling.quarantine import VRAM
from training.fleet.scheduling.workload import Workload
from training.fleet.service.output_views import job_row
from training.fleet.service.service import Service
from training.fleet.service.speeds import SpeedViews
from training.fleet.wire.views import ExplainReply, HostVerdict
from training.printable import clock_time, duration, one_line, some


class Outlook(NamedTuple):
    """The obstacle of the pending jobs of one requirement class; both fields are None if the jobs only wait for their
    turn."""

    obstacle: str | None = None  # no known host can run them
    waits_for: str | None = None  # who could is silent


def misfit_of(needs: Needs, host: Host, out: Mapping[str, Out]) -> str | None:
    """Return why a host gets no jobs with these needs: it cannot train them, or gets no jobs at all. Return None if it
    may get them."""
    misfit = rules.fits(needs, host)
    return out[host.name].sentence() if misfit is None and host.name in out else misfit


def outlook(needs: Needs, hosts: Mapping[Host, float | None], out: Mapping[str, Out]) -> Outlook:
    """Return the obstacle of pending jobs with these needs. ``hosts`` maps each host to the seconds for which it was
    silent; None: it is not silent."""
    if not hosts:
        return Outlook("no worker has asked for work yet; start one")
    reasons, silent = dict[str, list[str]](), []
    for host, unheard_s in hosts.items():
        misfit = misfit_of(needs, host, out)
        if misfit is not None:
            reasons.setdefault(misfit, []).append(host.name)
        elif unheard_s is None:
            return Outlook()
        else:
            silent.append((unheard_s, host.name))
    if not silent:
        by_host = "; ".join(f"{some(names)}: {why}" for why, names in reasons.items())
        return Outlook(rules.unmet(needs, hosts) or by_host)
    named = [f"{name}, not seen for {duration(unheard_s)}" for unheard_s, name in sorted(silent)]
    more = f" or {len(named) - 3} more" if len(named) > 3 else ""
    return Outlook(waits_for=f"waits for {' or '.join(named[:3])}{more}")


class Obstacles:
    """Finds the obstacles of pending and running jobs, given the hosts as they are now."""

    def __init__(self, database: Database, service: Service, durations: SpeedViews) -> None:
        self._db, self._service, self._clock, self._durations = database, service, service.clock, durations

    def out(self) -> dict[str, Out]:
        """Map each host that gets no jobs because of a quarantine, an order or its owner's conditions to that
        reason."""
        return self._service.taken_out(self._db)

    def unheard(self) -> dict[Host, float | None]:
        """Map each known host to the seconds for which it was silent; None if it was seen within a lease."""
        service = self._service
        return {service.host_of(known): service.silent_s(known) for known in service.known_hosts()}

    def of_classes(self) -> dict[tuple[int, str], Outlook]:
        """Map the number of each requirement class that has pending jobs, held ones not counted, to the obstacle of
        these jobs. Beside the number is the host that gets them only after another one tried them; usually empty."""
        hosts, out = self.unheard(), self.out()
        found, gates = {}, [row for row in self._db.all("gates", now=self._clock.now()) if row["unheard"]]
        for row in self._db.all("pending_classes"):
            needs = Needs.of(json.loads(row["needs"]))
            lacks = rules.lacks_data(needs, self._service.host_registry.datasets)
            for gate in ("", *(each["avoid_host"] for each in gates if each["class_id"] == row["class_id"])):
                others = {host: silent_s for host, silent_s in hosts.items() if host.name != gate}
                found[row["class_id"], gate] = Outlook(lacks) if lacks else outlook(needs, others, out)
        return found

    def asked(self, job: Job) -> str | None:
        """Return who must try a pending job before the word of one host alone fails it, and what that host said; None
        if nobody must."""
        host, now = job.avoid_host, self._clock.now()
        if host is None or job.failed_by is None:
            return None
        ends = [attempt_of(row) for row in self._db.all("attempts_of_job", job_id=job.job_id)]
        refused = job.failed_by is FailedBy.REFUSAL
        last = next(each for each in reversed(ends) if each.host == host and (each.refused or not refused))
        said = f"refused by {host} with exit {last.exit_code}" if refused else f"{job.ended_by} on {host} alone"
        if job.failed_by is FailedBy.MEMORY:
            said = f"ran out of {'GPU memory' if last.out_of_memory == VRAM else 'memory'} on {host}"
        others = self._service.other_hosts(job.needs, host, self._db)
        known = self._service.host_registry.known
        silent = {each: self._service.silent_s(known[each]) for each in others}
        told = [each if s is None else f"{each} (not seen for {duration(s)})" for each, s in silent.items()]
        asked = f"{some(told)} {'are' if others[1:] else 'is'} asked" if others else "another host is awaited"
        final = job.failed_by.lasts or None not in silent.values()
        until = f" until {clock_time(job.avoid_until or now, now)}" if final else ""
        return f"{said}; {asked}{until}: {one_line(last.error or 'no error was given', 300)}"

    def remark(self, job: Job) -> str | None:
        """Return a sentence if a running job takes long, or if its host would not get the job again; else None."""
        known = self._service.host_registry.known.get(job.worker_hostname or "")
        if job.status not in LIVE or known is None:
            return None
        misfit = rules.fits_for_good(job.needs, self._service.host_of(known))
        if misfit is None:
            return self._durations.overdue(job)
        return f"it continues on {known.name}, which would not get it again ({misfit}); requeue it to move it"

    def explain(self, job_id: str) -> ExplainReply:
        """Return for every known host whether the job fits it, and what a fitting host waits for; also name the hosts
        in ``[hosts]`` or in the job's lists that never asked for work."""
        row, out = job_row(self._db, job_id), self.out()
        job, kind = job_of(row), kind_of(row["class_id"], row["priority"])
        unheard = self.unheard()
        hosts = [self._verdict(job, host, out, unheard_s, kind) for host, unheard_s in unheard.items()]
        wanted = {*self._service.plan.hosts, *job.needs.allowed_hosts, *job.needs.denied_hosts}
        hosts += [
            HostVerdict(host=name, fits=False, reason=said)
            for name, said in self._service.host_registry.never_asked().items()
            if name in wanted
        ]
        return ExplainReply(
            job_id=job_id, name=job.name, status=job.status, summary=self._summary(job, hosts, [*unheard]), hosts=hosts
        )

    def _verdict(self, job: Job, host: Host, out: Mapping[str, Out], unheard_s: float | None, kind: str) -> HostVerdict:
        misfit = misfit_of(job.needs, host, out)
        if misfit is not None:
            return HostVerdict(host=host.name, fits=False, reason=misfit)
        wait_s, reason = self._wait(job, host, out, unheard_s, kind)
        return HostVerdict(host=host.name, fits=True, reason=reason, wait_s=wait_s)

    def _wait(
        self, job: Job, host: Host, out: Mapping[str, Out], unheard_s: float | None, kind: str
    ) -> tuple[float | None, str]:
        """Return the seconds that a fitting host must still wait before it may take the job (None: unknown), and for
        what; "ok" if for nothing."""
        if unheard_s is not None:
            return None, f"it fits, but was not seen for {duration(unheard_s)}"
        if job.status is not JobStatus.PENDING:
            return None, "ok"
        live = [*map(attempt_of, self._db.all("live_attempts_of_host", host=host.name))]
        if (full := rules.is_full(host, live)) is not None:
            return None, full
        ahead = self._service.queue.ahead
        learned = replace(job.needs, peak=ahead.kinds.learned.peak(Workload.of(job.spec).kind))
        if (lacking := booking.lacks_room(learned, self._service.as_booked(host, live))) is not None:
            return None, f"no room now: {lacking}"
        fleet = self._service.fleet(host.name, out)
        if (held := _held_back(job, host, fleet, self._service.policy, self._clock.now())) is not None:
            return held
        if job.held:
            return None, "it fits, and waits only because the job is held"
        if job.passed_over:
            return None, "it fits, and waits only because the job is not in the plan"
        return ahead.told(kind, host.name) or (None, "ok")

    def _held(self, job: Job) -> str:
        since = duration(max(0.0, self._clock.now() - (job.held_at or 0.0)))
        return f"it is held by {job.held_by}, {since} ago, and granted to no host until `cis490-jobs unhold`"

    def _summary(self, job: Job, hosts: list[HostVerdict], known: list[Host]) -> str:
        if job.status is not JobStatus.PENDING:
            why = f": {job.ended_by}" if job.ended_by else ""
            mark = f"; should it wait again, {self._held(job)}" if job.held else ""
            remark = self.remark(job)
            return f"the job is {job.status}{why}{mark}{f'; {remark}' if remark else ''}"
        if job.passed_over:
            return f"it is {NOT_IN_PLAN}{f'; {self._held(job)}' if job.held else ''}"
        return self._held(job) if job.held else self.asked(job) or self._waits(job, hosts, known)

    def _waits(self, job: Job, hosts: list[HostVerdict], known: list[Host]) -> str:
        """Return a sentence about what a pending job that is not held waits for."""
        fitting = [each for each in hosts if each.fits]
        if not fitting:
            lacks = rules.lacks_data(job.needs, self._service.host_registry.datasets)
            unmet = rules.unmet(job.needs, known) if known else None
            return lacks or (f"it {unmet}" if unmet else "no known host can run it")
        ready = [each.host for each in fitting if each.reason == "ok"]
        if ready:
            busy = [host for host in ready if self._db.all("live_attempts_of_host", host=host)]
            idle = [host for host in ready if host not in busy]
            to_ask = [f"for {', '.join(idle)} to ask for work"] if idle else []
            to_end = [f"for {', '.join(busy)} to end a job that is trained there"] if busy else []
            return f"it waits {' or '.join(to_ask + to_end)}, behind jobs of higher priority or age"
        return "it waits: " + "; ".join(f"{each.host}: {each.reason}" for each in fitting)


def _held_back(job: Job, host: Host, fleet: rules.Fleet, policy: rules.Policy, now: float) -> tuple[float, str] | None:
    """Return for how many seconds this host must leave the job to others, and why; None if it may take the job now."""
    needs = job.needs
    held = rules.hold(needs, host, fleet, policy)
    left = job.claimable_at + held.seconds - now
    unheard = job.ended_by is not None and job.avoid_host == host.name
    if job.avoid_until is not None and (unheard or rules.must_avoid(needs, job.avoid_host or "", host, fleet)):
        away = max(0.0, job.avoid_until - now)
        if unheard or away > max(left, 0):
            others = "failed here, another host goes first for"
            why = "was interrupted a moment ago," if job.avoid_host == rules.EVERY_HOST else others
            return away, f"the job {why} {away:.0f} s more"
    if left > 0:
        return left, f"{held.reason or 'the job failed a moment ago'}, {left:.0f} s more"
    return None
