"""Views for people and their tools: pages of jobs, a job's history, its log, its obstacles.

Read-only. Runs on its own connection, parallel to the writer's; hosts and the plan come from the service. Has no rule
of its own: obstacles come from :mod:`training.fleet.scheduling.policy`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from training.fleet.database.writer import Database, Row
from training.fleet.queue.curves import POINTS_KEPT, Curves
from training.fleet.queue.kinds import kind_of
from training.fleet.queue.orders import orders
from training.fleet.queue.quarantine import quarantines
from training.fleet.queue.rows import attempt_of, job_of, jobs_by_host, set_aside_of, trained_of
from training.fleet.scheduling import booking
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.job import LIVE, Host, Job, JobStatus, Needs, Trained
from training.fleet.scheduling.orders import Out
from training.fleet.scheduling.policy import Fleet, Policy
from training.fleet.scheduling.trained import CompletedModel, unlike
from training.fleet.scheduling.workload import Workload
from training.fleet.service.incident_table import IncidentViews
from training.fleet.service.logs import Logs, Page
from training.fleet.service.models import Models, Reports, auroc_of
from training.fleet.service.service import Service
from training.fleet.service.speeds import SpeedViews
from training.fleet.service.unavailable import at_rest, taken_out
from training.fleet.store.logs import LogStore
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.views import (
    AttemptView,
    CurveAttempt,
    CurvePoint,
    CurveReply,
    EventView,
    ExplainReply,
    HostVerdict,
    JobDetail,
    JobsReply,
    JobView,
    LogReply,
    RemovedView,
    UsageSample,
    WorkersReply,
    WorkerView,
)
from training.printable import duration, one_line

PAGE_MAX = 1000  # jobs, or hosts, in one answer
WORKERS_PAGE = 200  # hosts in one answer, unless more are asked for
CURVE_POINTS = 500  # in one answer, unless told
CURVE_POINTS_LEAST = 10
HELD = "held"  # of jobs that wait: a filter beside the statuses
NAMES_MAX = 4  # of jobs that wait for the same


@dataclass(frozen=True, slots=True)
class JobFilter:
    """The jobs wanted of a list. Empty: all. ``status`` may be "held"; ``text`` is looked for in names."""

    status: str = ""
    model: str = ""
    mode: str = ""
    host: str = ""
    text: str = ""

    def check(self) -> None:
        """Refuse a status that no job can have."""
        if self.status and self.status not in {*JobStatus, HELD}:
            raise Refusal(ProblemType.BAD_REQUEST, f"status: expected one of {', '.join([*JobStatus, HELD])}")

    def parameters(self) -> dict[str, str]:
        return {**asdict(self), "text": pattern(self.text)}


@dataclass(frozen=True, slots=True)
class ListPlace:
    """A place in an ordered list, behind a job: its number of arrival and its key in the order. Zero: the beginning."""

    seq: int = 0
    number: float = 0
    word: str = ""


@dataclass(frozen=True, slots=True)
class Counted:
    """The number of jobs that are alike in what lists filter by."""

    model: str | None
    mode: str | None
    status: str
    host: str | None
    n: int


@dataclass(frozen=True, slots=True)
class Move:
    """One change of a job's state, from its event row."""

    seq: int
    at: float
    job_id: str
    name: str
    from_status: str | None
    to_status: str
    attempt: int | None
    host: str | None


@dataclass(frozen=True, slots=True)
class Event:
    """One event row with the name of its job."""

    seq: int
    at: float
    job_id: str
    name: str
    in_manifest: bool
    transition: str
    to_status: str
    host: str | None
    detail: str | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """The pending jobs that wait for the same thing. ``jobs``: the next few of them."""

    reason: str | None  # None: for their turn
    count: int
    jobs: tuple[dict[str, Any], ...]


class Views:
    """Queries about the fleet, on the last committed state."""

    def __init__(
        self, database: Database, service: Service, files: LogStore | None = None, reports: Reports | None = None
    ) -> None:
        """``files`` hold the output that is not in the database any more, ``reports`` what trainers said of models."""
        self.models = Models(database, service.queue.clock, reports)
        self.incidents = IncidentViews(database, service.queue.clock)
        self._db = database
        self.logs = Logs(database, files)
        self._service = service
        self._clock = service.queue.clock
        self._curves = Curves(database)
        self.durations = SpeedViews(database, service)
        self._counted: tuple[int, list[Counted]] = -1, []  # as of an event: counting all jobs is a look at each

    @property
    def _policy(self) -> Policy:
        return self._service.policy

    def counts(self) -> dict[str, int]:
        found = Counter[str]()
        for each in self.counted():
            found[each.status] += each.n
        return {status.value: found[status] for status in JobStatus}

    def quarantined(self) -> dict[str, str]:
        """Map the hosts that get no jobs now to reason and remedy."""
        out = {host: held.sentence() for host, held in quarantines(self._db).items()}
        for known in self._service.known_hosts():
            if sentence := self._service.copied(known):
                out[known.name] = sentence
        return out

    def resting(self) -> dict[str, str]:
        """Map the hosts that an operator or their owner's conditions keep from jobs to the reason, and what ends it."""
        return {host: rest.sentence() for host, rest in at_rest(self._db, self._service.host_registry).items()}

    def _taken_out(self) -> dict[str, Out]:
        return taken_out(self._db, self._service.host_registry)

    def refused(self) -> dict[str, str]:
        """Map the hosts with a second installation to the remedy."""
        told = {known.name: self._service.refused(known) for known in self._service.known_hosts()}
        return {host: sentence for host, sentence in told.items() if sentence is not None}

    def jobs(self, wanted: JobFilter | None = None, *, after: int = 0, limit: int = PAGE_MAX) -> JobsReply:
        """Return a page of jobs in order of arrival. ``next_after`` is null on the last one."""
        wanted = wanted or JobFilter()
        wanted.check()
        most = max(1, min(limit, PAGE_MAX))
        if wanted == JobFilter():
            rows = self._db.all("jobs_page", after=after, most=most + 1)  # one more tells of a further page
        else:
            rows = self._found(wanted, "arrival", ListPlace(seq=after, number=after), most + 1)
        looks = self._looks()
        return JobsReply(
            jobs=[self._view(row, looks) for row in rows[:most]],
            counts=self.counts(),
            now=self._clock.now(),
            next_after=rows[most - 1]["seq"] if len(rows) > most else None,
            unlike=self._unlike() if wanted == JobFilter() and after == 0 else [],
        )

    def found(
        self, wanted: JobFilter, sort: str, after: ListPlace, most: int
    ) -> tuple[list[JobView], ListPlace | None]:
        """Return a page of the jobs that ``wanted`` lets through, in this order, and the place where the next page
        begins."""
        wanted.check()
        rows = self._found(wanted, sort, after, most + 1)
        looks = self._looks() if any(row["status"] == JobStatus.PENDING for row in rows) else {}
        last = rows[most - 1] if len(rows) > most else None
        place = None if last is None else ListPlace(last["seq"], last["number"], last["word"])
        return [self._view(row, looks) for row in rows[:most]], place

    def _found(self, wanted: JobFilter, sort: str, after: ListPlace, most: int) -> list[Row]:
        return self._db.all("jobs_found", **wanted.parameters(), sort=sort, **asdict(after), most=most)

    def counted(self, text: str = "") -> list[Counted]:
        """Count the jobs of each kind, of those alone whose name has ``text`` in it, where one is given."""
        if text:
            rows = self._db.all("jobs_counted_named", text=pattern(text))
            return [_counted(row) for row in rows]
        row = self._db.one("newest_event")
        head = row["seq"] if row is not None else 0
        if self._counted[0] != head:
            self._counted = head, [_counted(row) for row in self._db.all("jobs_counted")]
        return self._counted[1]

    def held(self, wanted: JobFilter | None = None) -> int:
        """Count the held jobs that would otherwise wait, among those that the other filters let through."""
        parameters = (wanted or JobFilter()).parameters()
        del parameters["status"]
        row = self._db.one("held_found", **parameters)
        return 0 if row is None else int(row["n"])

    def _unlike(self) -> list[str]:
        """Find differences among the plan's completed jobs that should agree."""
        kinds = self._db.one("kinds_trained_on")
        if kinds is None or max(kinds["data"], kinds["code"]) <= 1:
            return []
        return unlike(
            CompletedModel(row["name"], json.loads(row["spec"]), trained_of(row)) for row in self._db.all("trained_on")
        )

    def job(self, job_id: str) -> JobDetail:
        row = self._row(job_id)
        attempts = [attempt_of(each) for each in self._db.all("attempts_of_job", job_id=job_id)]
        progress = attempts[-1].progress if attempts else None
        last = attempts[-1] if attempts else None
        trained = last.trained if last else Trained()
        shown: dict[str, Any] = {
            "progress": json.dumps(progress),
            "paused": last is not None and last.paused,
            "data_digest": trained.data,
            "code_digest": trained.code,
            "training_commit": trained.commit,
            **self.models.figures_of(row),
            "removed_at": None,
            "removed_why": None,
        }
        removed = [_removed(each) for each in self._db.all("removals_of_job", job_id=job_id)]
        gone = self.bundle_gone(row["model"], row["mode"], row["artifact_id"]) if row["artifact_id"] else None
        if gone is not None:
            shown |= {"removed_at": gone.at, "removed_why": gone.why}
        view = self._view({**row, **shown}, self._looks())
        events = [EventView(**dict(each)) for each in self._db.all("events_of_job", job_id=job_id)]
        return JobDetail(
            job=view,
            spec=json.loads(row["spec"]),
            attempts=[
                AttemptView.of(each, trained=each.trained.known(), booked=each.booked.to_dict()) for each in attempts
            ],
            events=events,
            now=self._clock.now(),
            result=self.models.result(row),
            removed=removed,
            keep_state_s=self._service.plan.retention.states_s,
        )

    def log(self, job_id: str, *, attempt: int | None = None, after: int = 0) -> LogReply:
        """Return output lines of an attempt (by default the last) from line ``after`` on."""
        row = self._row(job_id)
        number = _attempt(row, attempt)
        return self._log(row, number, self.logs.page(job_id, number, after))

    def curve(self, job_id: str, *, attempt: int | None = None, points: int = CURVE_POINTS) -> CurveReply:
        """Return a job's curve, or one attempt's, in at most ``points`` epochs and as many samples of use.

        Thinned ones keep the lowest and highest of each series. Samples are those of ``attempt``, or of the last one.
        """
        row = self._row(job_id)
        most = max(CURVE_POINTS_LEAST, min(points, POINTS_KEPT))
        number = _attempt(row, attempt)
        attempts = {each["attempt"]: each for each in self._db.all("attempts_of_job", job_id=job_id)}
        spans = [each for each in self._curves.spans(job_id, attempt) if each["attempt"] in attempts]
        return CurveReply(
            job_id=job_id,
            name=row["name"],
            status=row["status"],
            attempts=[_in_curve(attempts[each["attempt"]], each) for each in spans],
            points=[CurvePoint(**dict(each)) for each in self._curves.of_job(job_id, attempt, most)],
            epochs=sum(each["n"] for each in spans),
            usage_attempt=number,
            usage=[UsageSample(**dict(each)) for each in self._curves.samples(job_id, number, most)],
            now=self._clock.now(),
            removed=self._gone("curve", job_id, number),
        )

    def live(self, most: int = PAGE_MAX) -> list[JobView]:
        """Return what runs now, longest first."""
        return [self._view(row, {}) for row in self._db.all("jobs_live", most=most)]

    def moves(self, most: int) -> list[Move]:
        """Return the last changes of state, newest first."""
        rows = self._db.all("moves_newest", most=most)
        return [Move(**{**dict(row), "name": row["name"] or row["job_id"]}) for row in rows]

    def waiting(self) -> list[Waiting]:
        """Group the pending jobs by what they wait for, the most numerous first."""
        looks, groups = self._looks(), dict[str | None, Waiting]()
        for row in self._db.all("waiting_by_class"):
            look = looks.get(row["class_id"], Outlook())
            reason = look.obstacle or look.waits_for
            first = self._db.all("waiting_first", class_id=row["class_id"], most=NAMES_MAX)
            before = groups.get(reason, Waiting(reason, 0, ()))
            groups[reason] = Waiting(reason, before.count + row["n"], (*before.jobs, *map(dict, first))[:NAMES_MAX])
        return sorted(groups.values(), key=lambda each: -each.count)

    def events(
        self, *, before: int | None = None, job_id: str = "", host: str = "", transition: str = "", limit: int
    ) -> list[Event]:
        """Return what happened, newest first, before a number; filters that are empty let all through."""
        page: dict[str, Any] = {"before": before or 2**62, "transition": transition, "most": limit}
        if job_id:
            rows = self._db.all("events_newest_of_job", job_id=job_id, host=host, **page)
        elif host:
            rows = self._db.all("events_newest_of_host", host=host, **page)
        else:
            rows = self._db.all("events_newest", **page)
        return [
            Event(
                **{key: row[key] for key in ("seq", "at", "job_id", "transition", "to_status", "host", "detail")},
                name=row["name"] or row["job_id"],
                in_manifest=bool(row["in_manifest"]),
            )
            for row in rows
        ]

    def log_end(self, job_id: str, attempt: int, most: int) -> LogReply:
        """Return the last ``most`` lines, at most, of an attempt's output."""
        return self._log(self._row(job_id), attempt, self.logs.end(job_id, attempt, most))

    def _log(self, row: Row, attempt: int, page: Page) -> LogReply:
        live = JobStatus(row["status"]) in LIVE and attempt == row["attempt"]
        about = self._db.one("attempt_of_job", job_id=row["job_id"], attempt=attempt)
        complete = about is not None and _is_complete(about)
        gone = None if page.lines else self._gone("log", row["job_id"], attempt)
        return LogReply.of(page, job_id=row["job_id"], attempt=attempt, live=live, complete=complete, removed=gone)

    def workers(self, *, after: str = "", limit: int = WORKERS_PAGE) -> WorkersReply:
        """Return a page of hosts by name, after ``after``. ``next_after`` is null on the last one."""
        most = max(1, min(limit, PAGE_MAX))
        hosts = [known for known in self._service.known_hosts() if known.name > after]
        out, resting, given = quarantines(self._db), self.resting(), orders(self._db)
        held = jobs_by_host(self._db.all("live_jobs_by_host"))
        doubts = self.durations.doubts(hosts[:most])
        aside = {
            row["host"]: [each["name"] or each["job_id"] for each in set_aside_of(row)]
            for row in self._db.all("hosts_aside")
        }
        return WorkersReply(
            workers=[
                WorkerView.of(
                    known,
                    hostname=known.name,
                    capability=dict(known.capability),
                    declared=_plain(self._service.plan.declared(known.name)),
                    alive=self._service.alive(known),
                    jobs=held.get(known.name, []),
                    conflict=self._service.copied(known) or self._service.refused(known),
                    obstacle=_outdated(self._service.host_of(known)),
                    quarantine=out[known.name].sentence() if known.name in out else None,
                    resting=resting.get(known.name),
                    order=given[known.name].order.value if known.name in given else None,
                    set_aside=aside.get(known.name, []),
                    doubt=doubts.get(known.name),
                )
                for known in hosts[:most]
            ],
            now=self._clock.now(),
            next_after=hosts[most - 1].name if len(hosts) > most else None,
        )

    def explain(self, job_id: str) -> ExplainReply:
        """Return for every known host whether the job fits it, and if so, what it waits for."""
        row, out = self._row(job_id), self._taken_out()
        job, kind = job_of(row), kind_of(row["class_id"], row["priority"])
        hosts = [self._verdict(job, host, out, unheard_s, kind) for host, unheard_s in self._unheard().items()]
        wanted = {*self._service.plan.hosts, *job.needs.allowed_hosts, *job.needs.denied_hosts}
        hosts += [
            HostVerdict(host=name, fits=False, reason=said)
            for name, said in self._service.host_registry.never_asked().items()
            if name in wanted
        ]
        return ExplainReply(
            job_id=job_id,
            name=job.name,
            status=job.status,
            summary=self._summary(job, hosts),
            hosts=hosts,
        )

    # ── inside ──────────────────────────────────────────────────────────────────────────────

    def _row(self, job_id: str) -> Row:
        row = self._db.one("job", job_id=job_id)
        if row is None:
            raise Refusal(ProblemType.UNKNOWN_JOB, f"no job has the id {job_id[:80]!r}")
        return row

    def bundle_gone(self, model: str, mode: str, artifact_id: str) -> RemovedView | None:
        """Return when and why retention took a bundle away; None when it did not."""
        return bundle_gone(self._db, model, mode, artifact_id)

    def _gone(self, what: str, job_id: str, attempt: int) -> RemovedView | None:
        return _gone(self._db, what, job_id, attempt)

    def _looks(self) -> dict[int, Outlook]:
        """Map each requirement class with waiting jobs to their obstacle."""
        hosts, out = self._unheard(), self._taken_out()
        found = {}
        for row in self._db.all("pending_classes"):
            needs = Needs.of(json.loads(row["needs"]))
            lacks = rules.lacks_data(needs, self._service.host_registry.datasets)
            found[row["class_id"]] = Outlook(lacks) if lacks else outlook(needs, hosts, out)
        return found

    def _unheard(self) -> dict[Host, float | None]:
        """List the known hosts, each with its silence if longer than a lease."""
        now = self._clock.now()
        return {
            self._service.host_of(known): None if self._service.alive(known) else now - known.last_seen
            for known in self._service.known_hosts()
        }

    def _view(self, row: Mapping[str, Any], looks: Mapping[int, Outlook]) -> JobView:
        job = job_of(row)
        pending = job.status is JobStatus.PENDING
        waits = pending and not job.held
        look = looks.get(row["class_id"], Outlook()) if waits else Outlook()
        return JobView.of(
            job,
            host=job.worker_hostname if not pending else None,
            progress=json.loads(row["progress"]) if row["progress"] and not pending else None,
            obstacle=look.obstacle,
            paused=self._paused(row, job) if job.status in LIVE and row["paused"] else None,
            note=look.waits_for if pending else self._remark(job),
            trained=trained_of(row).known() if job.status is JobStatus.COMPLETED else None,
            auroc=auroc_of(row) if job.status is JobStatus.COMPLETED else None,
            removed=None
            if row["removed_at"] is None
            else RemovedView(what="bundle", attempt=job.attempt, at=row["removed_at"], why=row["removed_why"]),
        )

    def _paused(self, row: Mapping[str, Any], job: Job) -> str:
        """Say why the trainer of a live job was paused at its last heartbeat."""
        out = at_rest(self._db, self._service.host_registry).get(row["worker_hostname"])
        return f"{job.worker_hostname} is {out.sentence()}" if out is not None else "its worker waits for the receiver"

    def _remark(self, job: Job) -> str | None:
        """Note of a live job that its host would not get it again, because the plan has changed, or that it is long."""
        known = self._service.host_registry.known.get(job.worker_hostname or "")
        if job.status not in LIVE or known is None:
            return None
        misfit = rules.fits_for_good(job.needs, self._service.host_of(known))
        if misfit is None:
            return self.durations.overdue(job)
        return f"it continues on {known.name}, which would not get it again ({misfit}); requeue it to move it"

    def _verdict(
        self,
        job: Job,
        host: Host,
        out: Mapping[str, Out],
        unheard_s: float | None,
        kind: str,
    ) -> HostVerdict:
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
        wait_s, reason = _waits(needs, job, host, self._service.fleet_beside(host.name, out), self._policy, now)
        if job.held and reason == "ok":
            reason = "nothing, but that the job is held"
        if wait_s is None and reason == "ok":
            wait_s, reason = self._service.queue.ahead.told(kind, host.name) or (None, "ok")
        return HostVerdict(host=host.name, fits=True, reason=reason, wait_s=wait_s)

    def _as_learned(self, job: Job) -> Needs:
        """Return what a job needs, with what jobs of its kind were seen to hold."""
        kind = Workload.of(job.spec).kind
        return replace(job.needs, peak=self._service.queue.ahead.kinds.learned.peak(kind))

    def _held(self, job: Job) -> str:
        since = duration(max(0.0, self._clock.now() - (job.held_at or 0.0)))
        return f"it is held by {job.held_by}, {since} ago, and granted to no host until `cis490-jobs unhold`"

    def _summary(self, job: Job, hosts: list[HostVerdict]) -> str:
        if job.status is not JobStatus.PENDING:
            why = f": {job.ended_by}" if job.ended_by else ""
            mark = f"; should it wait again, {self._held(job)}" if job.held else ""
            remark = self._remark(job)
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


def _attempt(row: Row, number: int | None) -> int:
    """Return the number of the attempt that is meant, by default the job's last; Refusal for one that never was."""
    last = int(row["attempt"])
    if number is not None and not 1 <= number <= last:
        known = f"the last one is {last}" if last else "it has not been granted yet"
        raise Refusal(ProblemType.NOT_FOUND, f"{one_line(row['name'], 60)} has no attempt {number}; {known}")
    return last if number is None else number


def bundle_gone(db: Database, model: str, mode: str, artifact_id: str) -> RemovedView | None:
    """Return when and why retention took a bundle away; None when it did not."""
    return _gone(db, "bundle", f"{model}_{mode}/{artifact_id}", 0)


def _gone(db: Database, what: str, subject: str, number: int) -> RemovedView | None:
    row = db.one("removal", what=what, subject=subject, number=number)
    return None if row is None else RemovedView(what=what, attempt=number, at=row["at"], why=row["why"])


def _removed(row: Row) -> RemovedView:
    return RemovedView(what=row["what"], attempt=row["number"], at=row["at"], why=row["why"])


def _in_curve(row: Row, span: Row) -> CurveAttempt:
    return CurveAttempt(
        attempt=row["attempt"],
        host=row["host"],
        granted_at=row["granted_at"],
        ended_at=row["ended_at"],
        end_reason=row["end_reason"],
        first=span["first"],
        last=span["last"],
        epochs=span["n"],
        complete=_is_complete(row),
    )


def _is_complete(row: Row) -> bool | None:
    """Say if an attempt has ended and all its output has arrived; None when the amount is unknown."""
    if row["ended_at"] is None:
        return False
    return None if row["log_total"] is None else bool(row["log_next"] >= row["log_total"])


def _waits(needs: Needs, job: Job, host: Host, fleet: Fleet, policy: Policy, now: float) -> tuple[float | None, str]:
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


@dataclass(frozen=True, slots=True)
class Outlook:
    """The obstacle before the pending jobs of a class, if there is one beside their turn."""

    obstacle: str | None = None  # no known host can run them
    waits_for: str | None = None  # who could is silent


def outlook(needs: Needs, hosts: Mapping[Host, float | None], out: Mapping[str, Out]) -> Outlook:
    """Judge the pending jobs with these needs; ``hosts`` says of each how long it was silent, None: it was not."""
    if not hosts:
        return Outlook("no worker has asked for work yet; start one")
    reasons, silent = [], []
    for host, unheard_s in hosts.items():
        misfit = rules.fits(needs, host)
        if misfit is not None or host.name in out:
            reasons.append(f"{host.name}: {misfit or out[host.name].sentence()}")
        elif unheard_s is None:
            return Outlook()
        else:
            silent.append((unheard_s, host.name))
    if not silent:
        return Outlook("; ".join(reasons))
    named = [f"{name}, not seen for {duration(unheard_s)}" for unheard_s, name in sorted(silent)]
    more = f" or {len(named) - 3} more" if len(named) > 3 else ""
    return Outlook(waits_for=f"waits for {' or '.join(named[:3])}{more}")


def _outdated(host: Host) -> str | None:
    if not host.outdated:
        return None
    models = ", ".join(sorted(host.outdated))
    return f"other trainer flags than the plan's for {models}; update the checkout on {host.name}"


def _plain(declared: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if declared is None else dict(declared)


def pattern(text: str) -> str:
    """Return a text as LIKE looks for it anywhere in a name, in any case of ASCII letters; '' lets all through."""
    escaped = "".join(f"\\{c}" if c in "%_\\" else c for c in text)
    return f"%{escaped}%" if text else ""


def _counted(row: Row) -> Counted:
    """A job that waits has no host, though its row may name its last one."""
    waits = row["status"] == JobStatus.PENDING
    return Counted(row["model"], row["mode"], row["status"], None if waits else row["host"], row["n"])
