"""Views of jobs: pages, counts, one job with its history, and events."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import NamedTuple

from training.fleet.database.writer import Database, Row
from training.fleet.queue.rows import attempt_of, job_of, trained_of
from training.fleet.scheduling.job import LIVE, NOT_IN_PLAN, Job, JobStatus
from training.fleet.scheduling.trained import CompletedModel, unlike
from training.fleet.service.models import Models, auroc_of
from training.fleet.service.obstacles import Obstacles, Outlook
from training.fleet.service.output_views import gone_of, job_row
from training.fleet.service.service import Service
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.views import AttemptView, EventView, JobDetail, JobsReply, JobView, RemovedView
from training.frozen import frozen
from training.strict_json import Json, JsonObject

PAGE_MAX = 1000  # jobs in one answer
HELD = "held"  # of jobs that wait: a filter beside the statuses
_SEEDS = ("seed", "split_seed")
NAMES_MAX = 4  # of jobs that wait for the same


@frozen
class JobFilter:
    """The filters of a job list; an empty filter matches all jobs. ``status`` may also be "held"; ``q`` is searched for
    in names; ``present``, if not empty, excludes cancelled jobs, and completed ones that left the plan."""

    status: str = ""
    model: str = ""
    mode: str = ""
    host: str = ""
    q: str = ""
    present: str = ""

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> JobFilter:
        """Read the filters from the parameters of an address, a form or a request; other parameters are ignored."""
        return cls(*(asked.get(each.name, "") for each in fields(cls)))

    def given(self) -> dict[str, str]:
        """Return the filters that are not empty, by their parameter names."""
        return {name: value for name, value in asdict(self).items() if value}

    def check(self) -> None:
        """Raise Refusal unless ``status`` is empty, a job's status, or "held"."""
        if self.status and self.status not in {*JobStatus, HELD}:
            raise Refusal(ProblemType.BAD_REQUEST, f"status: expected one of {', '.join([*JobStatus, HELD])}")

    def parameters(self) -> dict[str, str]:
        return {**asdict(self), "text": pattern(self.q)}


@frozen
class ListPlace:
    """A place in an ordered list of jobs, behind a certain job: that job's number of arrival and its sort key. Zero
    means the beginning of the list."""

    seq: int = 0
    number: float = 0
    word: str = ""


class Counted(NamedTuple):
    """The number of jobs that have the same model, mode, status and host, in the plan or not."""

    model: str | None
    mode: str | None
    status: str
    host: str | None
    n: int
    in_manifest: bool


class Event(NamedTuple):
    """A row of the events (the history of all jobs), with the name of its job."""

    seq: int
    at: float
    job_id: str
    name: str
    in_manifest: bool
    transition: str
    from_status: str | None
    to_status: str
    attempt: int | None
    host: str | None
    detail: str | None


@frozen
class Waiting:
    """The pending jobs that wait for the same reason: the reason, their number, and the first few of them."""

    reason: str | None  # None: for their turn
    count: int
    jobs: tuple[JsonObject, ...]


class JobViews:
    """Queries about jobs, on the last committed state."""

    def __init__(self, database: Database, service: Service, models: Models, obstacles: Obstacles) -> None:
        self._db, self._service, self._clock = database, service, service.clock
        self._models, self._obstacles = models, obstacles
        # As of an event and a plan: counting all jobs is a look at each.
        self._counted: tuple[tuple[int, int], list[Counted]] = (-1, -1), []

    def counts(self, *, in_manifest: bool = True) -> dict[str, int]:
        """Count the plan's jobs by status, or those that are not in the plan."""
        found = Counter[str]()
        for each in self.counted():
            found[each.status] += each.n if each.in_manifest is in_manifest else 0
        return {status.value: found[status] for status in JobStatus}

    def jobs(self, wanted: JobFilter | None = None, *, after: int = 0, limit: int = PAGE_MAX) -> JobsReply:
        """Return a page of the matching jobs in order of arrival, those after number ``after``. ``next_after`` is null
        on the last page."""
        wanted = wanted or JobFilter()
        jobs, place = self.found(wanted, "arrival", ListPlace(after, after), max(1, min(limit, PAGE_MAX)))
        return JobsReply(
            jobs=jobs,
            counts=self.counts(),
            now=self._clock.now(),
            unplanned=self.counts(in_manifest=False),
            next_after=None if place is None else place.seq,
            unlike=self._unlike() if wanted == JobFilter() and after == 0 else [],
        )

    def found(
        self, wanted: JobFilter, sort: str, after: ListPlace, most: int
    ) -> tuple[list[JobView], ListPlace | None]:
        """Return a page of the jobs that match ``wanted``, in the order ``sort``; and the place after which the next
        page begins, None on the last page."""
        wanted.check()
        asked = {**asdict(after), "most": most + 1}  # one more tells of a further page
        if wanted == JobFilter() and sort == "arrival":
            rows = self._db.all("jobs_page", **asked)
        else:
            rows = self._db.all("jobs_found", **wanted.parameters(), sort=sort, **asked)
        looks = self._obstacles.of_classes() if any(row["status"] == JobStatus.PENDING for row in rows) else {}
        last = rows[most - 1] if len(rows) > most else None
        place = None if last is None else ListPlace(last["seq"], last["number"], last["word"])
        return [self._view(row, looks) for row in rows[:most]], place

    def counted(self, text: str = "") -> list[Counted]:
        """Count all jobs by model, mode, status and host; with ``text``, only jobs whose name contains it."""
        if text:
            rows = self._db.all("jobs_counted_named", text=pattern(text))
            return [_counted(row) for row in rows]
        head = self._db.number("newest_event"), self._db.number("edition")
        if self._counted[0] != head:
            self._counted = head, [_counted(row) for row in self._db.all("jobs_counted")]
        return self._counted[1]

    def held(self, wanted: JobFilter | None = None) -> int:
        """Count the held jobs that would otherwise wait, among those that match the filters other than ``status``."""
        parameters = (wanted or JobFilter()).parameters()
        del parameters["status"], parameters["present"]
        return self._db.number("held_found", **parameters)

    def _unlike(self) -> list[str]:
        """Return sentences about differences in data or code among the plan's completed jobs that should share them."""
        kinds = self._db.one("kinds_trained_on")
        if kinds is None or max(kinds["data"], kinds["code"]) <= 1:
            return []
        return unlike(
            CompletedModel(row["name"], json.loads(row["spec"]), trained_of(row)) for row in self._db.all("trained_on")
        )

    def job(self, job_id: str) -> JobDetail:
        row = job_row(self._db, job_id)
        attempts = [attempt_of(each) for each in self._db.all("attempts_of_job", job_id=job_id)]
        events = [EventView(**dict(each)) for each in self._db.all("events_of_job", job_id=job_id)]
        return JobDetail(
            job=self._view(row, self._obstacles.of_classes()),
            spec=json.loads(row["spec"]),
            attempts=[
                AttemptView.of(each, trained=each.trained.known(), booked=each.booked.to_dict()) for each in attempts
            ],
            events=events,
            now=self._clock.now(),
            result=self._models.result(row),
            removed=[
                RemovedView.of(each, attempt=each["number"]) for each in self._db.all("removals_of_job", job_id=job_id)
            ],
            keep_state_s=self._service.plan.retention.states_s,
        )

    def live(self, most: int = PAGE_MAX) -> list[JobView]:
        """Return the live jobs, at most ``most``, those that were granted first at the beginning."""
        return [self._view(row, {}) for row in self._db.all("jobs_live", most=most)]

    def asked(self, most: int = PAGE_MAX) -> list[JobView]:
        """Return the pending jobs that another host must try before the word of one host fails them, at most
        ``most``."""
        return [self._view(row, {}) for row in self._db.all("jobs_asked", most=most)]

    def waiting(self) -> list[Waiting]:
        """Group the pending jobs that are not held by the reason why they wait, the largest group first."""
        looks, groups = self._obstacles.of_classes(), dict[str | None, Waiting]()
        for row in self._db.all("waiting_by_class"):
            key = {name: row[name] for name in ("class_id", "avoid_host")}
            look = looks.get((*key.values(),)) or looks.get((row["class_id"], ""), Outlook())
            reason = look.obstacle or look.waits_for
            first = self._db.all("waiting_first", **key, most=NAMES_MAX)
            before = groups.get(reason, Waiting(reason, 0, ()))
            groups[reason] = Waiting(reason, before.count + row["n"], (*before.jobs, *map(dict, first))[:NAMES_MAX])
        if gone := self._db.all("passed_over", most=NAMES_MAX):
            groups[NOT_IN_PLAN] = Waiting(NOT_IN_PLAN, gone[0]["n"], tuple(map(dict, gone)))
        return sorted(groups.values(), key=lambda each: -each.count)

    def events(
        self, *, before: int | None = None, job_id: str = "", host: str = "", transition: str = "", limit: int
    ) -> list[Event]:
        """Return the events with numbers below ``before``, newest first, at most ``limit``; an empty filter matches all
        events."""
        page: JsonObject = {"before": before or 2**62, "transition": transition, "most": limit}
        if job_id:
            rows = self._db.all("events_newest_of_job", job_id=job_id, host=host, **page)
        elif host:
            rows = self._db.all("events_newest_of_host", host=host, **page)
        else:
            rows = self._db.all("events_newest", **page)
        return [
            Event(**{**dict(row), "name": row["name"] or row["job_id"], "in_manifest": bool(row["in_manifest"])})
            for row in rows
        ]

    def _view(self, row: Json, looks: Mapping[tuple[int, str], Outlook]) -> JobView:
        job = job_of(row)
        pending = job.status is JobStatus.PENDING
        waits = pending and not job.held
        look = looks.get((row["class_id"], (job.ended_by and job.avoid_host) or ""), Outlook()) if waits else Outlook()
        look = Outlook(NOT_IN_PLAN) if pending and job.passed_over else look
        return JobView.of(
            job,
            host=job.worker_hostname if not pending else None,
            progress=json.loads(row["progress"]) if row["progress"] and not pending else None,
            obstacle=look.obstacle,
            paused=self._paused(row, job) if job.status in LIVE and row["paused"] else None,
            ended_by=None if pending else job.ended_by,
            note=self._obstacles.asked(job) or look.waits_for if pending else self._obstacles.remark(job),
            trained=trained_of(row).known() if job.status is JobStatus.COMPLETED else None,
            auroc=auroc_of(row) if job.status is JobStatus.COMPLETED else None,
            test=row["test"],
            settings=(job.spec.get("hyper") or {}) | {key: job.spec[key] for key in _SEEDS if key in job.spec},
            removed=gone_of(row),
        )

    def _paused(self, row: Json, job: Job) -> str:
        """Return why the trainer of a live job was paused at its last heartbeat."""
        out = self._service.at_rest(self._db).get(row["worker_hostname"])
        return f"{job.worker_hostname} is {out.sentence()}" if out is not None else "its worker waits for the receiver"


def pattern(text: str) -> str:
    """Return an SQL LIKE pattern that finds ``text`` anywhere in a name, ignoring the case of ASCII letters; an empty
    text gives an empty pattern, which matches all."""
    escaped = "".join(f"\\{c}" if c in "%_\\" else c for c in text)
    return f"%{escaped}%" if text else ""


def _counted(row: Row) -> Counted:
    """Convert a row of counts; a pending job gets no host, though its row may name the host of its last attempt."""
    waits = row["status"] == JobStatus.PENDING
    return Counted(
        row["model"], row["mode"], row["status"], None if waits else row["host"], row["n"], bool(row["in_manifest"])
    )
