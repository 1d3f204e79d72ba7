"""A fleet as the receiver's answers told it, for pages without it. PURE: answers in, the pages' questions out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from training.fleet.scheduling.job import JobStatus
from training.fleet.service.views import HELD, Counted, Event, JobFilter, Move, Place, Waiting
from training.fleet.wire.messages import (
    CurveReply,
    EventView,
    ExplainReply,
    HealthReply,
    JobDetail,
    JobView,
    LogReply,
    ModelsReply,
    ProblemType,
    Refusal,
    WorkersReply,
)
from training.fleet.wire.views import ModelView, ReportView

NAMES_MAX = 4
LIVE = (JobStatus.CLAIMED, JobStatus.RUNNING)


@dataclass(frozen=True)
class JobCopy:
    """One job with all that its page shows."""

    detail: JobDetail
    curve: CurveReply
    explained: ExplainReply | None = None  # of a pending one
    log: LogReply | None = None  # of the last attempt, where it is short
    report: ReportView | None = None


@dataclass(frozen=True)
class ResultCopies:
    """The results of the jobs, as :class:`ResultSource`."""

    jobs: Mapping[str, JobCopy]
    tests: Mapping[str, ModelsReply]  # with all models; the first is the most used test

    def report(self, job_id: str, attempt: int | None = None) -> ReportView | None:
        """Return the report of a job's last attempt."""
        return self.jobs[job_id].report if job_id in self.jobs and attempt is None else None

    def models(self, *, test: str | None = None, after: str = "", limit: int = 50) -> ModelsReply:
        """Return a page of the models; ``after`` is the number of those before it."""
        reply = self.tests.get(next(iter(self.tests)) if test is None else test)
        if reply is None:
            raise Refusal(ProblemType.NOT_FOUND, "no model was judged on this test")
        begin = int(after) if after.isdigit() else 0
        shown: list[ModelView] = reply.models[begin : begin + limit]
        more = str(begin + limit) if len(reply.models) > begin + limit else None
        kept = {name: getattr(reply, name) for name in ("test", "tests", "without", "without_jobs", "now")}
        rotations = [] if begin else reply.rotations
        return ModelsReply(**kept, models=shown, rotations=rotations, next_after=more)


@dataclass(frozen=True)
class Copied:
    """A fleet's answers, as :class:`Source`. Times are those of the moment at which they were asked for."""

    now: float
    health: HealthReply
    hosts: WorkersReply
    number: Mapping[str, int]  # of jobs by status
    jobs: Mapping[str, JobCopy]  # by id
    models: ResultCopies
    left_out: int = 0  # jobs without a page
    _events: list[tuple[EventView, JobView]] = field(default_factory=list)

    def __post_init__(self) -> None:
        told = [(event, each.detail.job) for each in self.jobs.values() for event in each.detail.events]
        self._events.extend(sorted(told, key=lambda pair: -pair[0].seq))

    def named(self, ref: str) -> str | None:
        """Find a job by its name in the plan, or its id."""
        by_name = [key for key, each in self.jobs.items() if each.detail.job.name == ref]
        planned = [key for key in by_name if self.jobs[key].detail.job.in_manifest]
        return next(iter([*planned, *by_name]), ref if ref in self.jobs else None)

    # ── as Source ───────────────────────────────────────────────────────────────────────────

    def counts(self) -> dict[str, int]:
        return {status.value: self.number.get(status.value, 0) for status in JobStatus}

    def job(self, job_id: str) -> JobDetail:
        return self.jobs[job_id].detail

    def curve(self, job_id: str, *, attempt: int | None = None, points: int = 500) -> CurveReply:
        _ = attempt, points  # it was asked for as pages draw it
        return self.jobs[job_id].curve

    def explain(self, job_id: str) -> ExplainReply:
        found = self.jobs[job_id].explained
        assert found is not None
        return found

    def log_end(self, job_id: str, attempt: int, most: int) -> LogReply:
        """Return the last lines; none where the output was too long to ask for."""
        log = self.jobs[job_id].log
        lines = log.lines[-most:] if log is not None and log.attempt == attempt else []
        following = log.next if log is not None else 0
        first = following - len(lines)
        return LogReply(job_id=job_id, attempt=attempt, first=first, lines=lines, next=following, live=False)

    def live(self) -> list[JobView]:
        running = [job for job in self._views() if job.status in LIVE]
        return sorted(running, key=lambda job: job.claimed_at or 0.0)

    def waiting(self) -> list[Waiting]:
        groups: dict[str | None, list[str]] = {}
        for job in self._views():
            if job.status == JobStatus.PENDING and not job.held_by:
                groups.setdefault(job.obstacle or job.note, []).append(job.name)
        found = [Waiting(reason, len(names), tuple(names[:NAMES_MAX])) for reason, names in groups.items()]
        return sorted(found, key=lambda each: -each.count)

    def moves(self, most: int) -> list[Move]:
        return [
            Move(
                **{
                    name: getattr(event, name)
                    for name in ("seq", "at", "job_id", "from_status", "to_status", "attempt")
                },
                name=job.name,
                host=event.host,
            )
            for event, job in self._events[:most]
        ]

    def workers(self, *, after: str = "", limit: int = 200) -> WorkersReply:
        _ = after, limit
        return self.hosts

    def found(self, wanted: JobFilter, sort: str, after: Place, most: int) -> tuple[list[JobView], Place | None]:
        """Return a page of jobs, last change first; a place is the number of jobs before it."""
        _ = sort
        jobs = [job for job in self._views() if _passes(job, wanted)]
        jobs.sort(key=lambda job: -(job.finished_at or job.claimed_at or job.created_at))
        shown = jobs[after.seq : after.seq + most]
        return shown, Place(after.seq + most) if len(jobs) > after.seq + most else None

    def counted(self, text: str = "") -> Sequence[Counted]:
        kinds = Counter((job.model, job.mode, job.status, job.host) for job in self._views() if text in job.name)
        return [Counted(*kind, n) for kind, n in kinds.items()]

    def held(self, wanted: JobFilter | None = None) -> int:
        others = replace(wanted or JobFilter(), status=HELD)
        return sum(_passes(job, others) for job in self._views())

    def events(
        self, *, before: int | None = None, job_id: str = "", host: str = "", transition: str = "", limit: int
    ) -> list[Event]:
        wanted = {"job_id": job_id, "host": host, "transition": transition}
        chosen = [
            (event, job)
            for event, job in self._events
            if (before is None or event.seq < before)
            and all(not value or getattr(event, name) == value for name, value in wanted.items())
        ]
        pick = attrgetter("seq", "at", "job_id")
        return [
            Event(*pick(event), job.name, job.in_manifest, event.transition, event.to_status, event.host, event.detail)
            for event, job in chosen[:limit]
        ]

    def _views(self) -> list[JobView]:
        return [each.detail.job for each in self.jobs.values()]


def _passes(job: JobView, wanted: JobFilter) -> bool:
    if wanted.status == HELD:
        return job.status == JobStatus.PENDING and bool(job.held_by) and _passes(job, replace(wanted, status=""))
    pairs = ((wanted.status, job.status), (wanted.model, job.model), (wanted.mode, job.mode), (wanted.host, job.host))
    return all(not want or want == has for want, has in pairs) and wanted.text in job.name
