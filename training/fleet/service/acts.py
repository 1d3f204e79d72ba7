"""Acts on jobs, one or many: which they apply to, what is lost, and the act itself, with its audit.

Before an act on many, :func:`forecast_of` says what it would do; the act is bound to that answer by its mark, so that
nobody cancels other jobs than the ones that were counted.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from training.fleet.database.writer import Database, Row
from training.fleet.scheduling.job import LIVE, JobStatus
from training.fleet.scheduling.orders import Order
from training.fleet.service.audit import Act, AuditLog
from training.fleet.service.service import Service
from training.fleet.service.views import JobFilter
from training.fleet.wire.messages import HostOrderReply, MovedReply, Refusal, ReleaseReply
from training.printable import counted, duration

JOBS_MAX = 10_000  # in one act
PORTION = 100  # jobs moved in one transaction: claims wait so long
_LIVE = "live"
_STATES = (_LIVE, "pending", "failed", "completed", "cancelled")


class Doing(StrEnum):
    """The acts that many jobs can undergo at once."""

    CANCEL = "cancel"
    REQUEUE = "requeue"
    HOLD = "hold"
    UNHOLD = "unhold"


# The act that takes each back, as far as it can be.
INVERSE: Mapping[Doing, Doing] = {
    Doing.CANCEL: Doing.REQUEUE,
    Doing.REQUEUE: Doing.CANCEL,
    Doing.HOLD: Doing.UNHOLD,
    Doing.UNHOLD: Doing.HOLD,
}


# The loss that the inverse of an act does not bring back, by the state in which it found a job.
_WORK = "the work under way is lost"
_LOST: Mapping[Doing, Mapping[str, str]] = {
    Doing.CANCEL: {_LIVE: _WORK, "failed": "failed jobs wait again when they are requeued"},
    Doing.REQUEUE: {
        _LIVE: _WORK,
        "failed": "failed jobs are only cancelled by the way back, not failed",
        "completed": "completed jobs are completed again only by another training",
    },
}


@dataclass(frozen=True, slots=True)
class Acted:
    """The rows of the audit that an act left: what it did can be found by them, and taken back."""

    who: str
    doing: Doing
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Selection:
    """The jobs meant: these, or those that an act moved, or all that a filter lets through."""

    wanted: JobFilter = field(default_factory=JobFilter)
    job_ids: tuple[str, ...] = ()
    acted: Acted | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A job that was found, as far as an act needs it."""

    job_id: str
    name: str
    status: JobStatus
    claimed_at: float | None
    held: bool
    in_manifest: bool

    @property
    def state(self) -> str:
        """Return what an act makes a difference by; being granted and running are one."""
        return _LIVE if self.status in LIVE else str(self.status)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The outlook of an act: the jobs it would move, and the work that is lost."""

    doing: Doing
    targets: tuple[Target, ...]
    states: Mapping[str, int]  # of the targets; "live" is granted or running
    left_alone: int  # found, but it does not apply to them
    lost_s: float  # of work of live attempts
    whole: bool  # not more were found than one act takes

    @property
    def mark(self) -> str:
        """Return a digest of which jobs would be moved from which state."""
        lines = sorted(f"{each.job_id} {each.state}" for each in self.targets)
        return hashlib.sha256("\n".join([self.doing, *lines]).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Done:
    """The result of an act."""

    moved: int = 0
    changed: int = 0  # moved meanwhile by others, and left alone
    first: int = 0  # rows of the audit
    last: int = 0

    def and_then(self, other: Done) -> Done:
        first = self.first or other.first
        return Done(self.moved + other.moved, self.changed + other.changed, first, other.last or self.last)


def applies(doing: Doing, target: Target) -> bool:
    """Tell if an act on many moves this job; the others found are left alone."""
    over = target.status in (JobStatus.COMPLETED, JobStatus.CANCELLED)
    if doing is Doing.CANCEL:
        return not over and (target.status is not JobStatus.FAILED or not target.in_manifest)
    if doing is Doing.HOLD:
        return not over and not target.held
    return doing is Doing.REQUEUE or target.held


def forecast_of(doing: Doing, found: Sequence[Target], now: float) -> Forecast:
    """Say what an act would do with these jobs, at most ``JOBS_MAX`` of them."""
    targets = tuple(each for each in found[:JOBS_MAX] if applies(doing, each))
    ends = doing in (Doing.CANCEL, Doing.REQUEUE)
    lost = [now - each.claimed_at for each in targets if ends and each.state == _LIVE and each.claimed_at is not None]
    return Forecast(
        doing,
        targets,
        Counter(each.state for each in targets),
        len(found[:JOBS_MAX]) - len(targets),
        sum(max(0.0, each) for each in lost),
        len(found) <= JOBS_MAX,
    )


def in_words(forecast: Forecast) -> str:
    """Say what an act does, and what is lost: "cancel 3 running jobs; 2 h 10 of work is lost"."""
    parts = [f"{forecast.states[state]} {state_word(state)}" for state in _STATES if forecast.states.get(state)]
    number = len(forecast.targets)
    if len(parts) > 1:
        which = f"{counted(number, 'jobs')} ({', '.join(parts)})"
    else:
        which = f"{parts[0] if parts else 'no'} {'job' if number == 1 else 'jobs'}"
    lost = f"; {duration(forecast.lost_s)} of work is lost" if forecast.lost_s else ""
    return f"{forecast.doing} {which}{lost}"


def for_good(forecast: Forecast) -> str:
    """Say what of an act cannot be taken back; empty when its inverse leaves everything as it was."""
    lost = _LOST.get(forecast.doing, {})
    said = "; ".join(lost[state] for state in _STATES if state in lost and forecast.states.get(state))
    return f"This cannot be taken back whole: {said}." if said else ""


def state_word(state: str) -> str:
    """Return the word for a target's state."""
    return "running" if state == _LIVE else state


def chosen(database: Database, selection: Selection) -> list[Target]:
    """Find the jobs meant, one more than an act takes if there are so many."""
    most = JOBS_MAX + 1
    if selection.acted is not None:
        acted = selection.acted
        rows = database.all("jobs_acted", who=acted.who, act=acted.doing, first=acted.first, last=acted.last, most=most)
    elif selection.job_ids:
        rows = [row for each in selection.job_ids if (row := database.one("job", job_id=each)) is not None]
    else:
        selection.wanted.check()
        rows = database.all("jobs_chosen", **selection.wanted.parameters(), most=most)
    return [_target(row) for row in rows]


def portions(forecast: Forecast) -> Iterable[Sequence[Target]]:
    """Cut an act into transactions."""
    return (forecast.targets[at : at + PORTION] for at in range(0, len(forecast.targets), PORTION))


def carry_out(service: Service, audit: AuditLog, doing: Doing, targets: Sequence[Target], who: str) -> Done:
    """Move these jobs, but those that are not what they were. In a transaction of the writer."""
    done = Done()
    for target in targets:
        now = chosen(service.queue.db, Selection(job_ids=(target.job_id,)))
        if not now or now[0].state != target.state or not applies(doing, now[0]):
            done = done.and_then(Done(changed=1))
            continue
        try:
            _, seq = move(service, audit, Act(doing), target.job_id, who)
        except Refusal:  # it may not be moved so after all
            done = done.and_then(Done(changed=1))
        else:
            done = done.and_then(Done(1, 0, seq, seq))
    return done


def move(
    service: Service, audit: AuditLog, act: Act, ref: str, who: str, *, as_removed: bool = False
) -> tuple[MovedReply, int]:
    """Do one of the acts with a job, and write it into the audit; returns the row's number, too."""
    by, before = who.removeprefix("operator "), service.queue.get(service.resolve_to_change(ref))
    assert before is not None
    if act is Act.CANCEL:
        answer = service.cancel(ref, by=by, as_removed=as_removed)
    elif act is Act.REQUEUE:
        answer = service.requeue(ref)
    elif act is Act.HOLD:
        answer = service.hold(ref, by=by)
    else:
        answer = service.unhold(ref, by=by)
    was: dict[str, object] = {"status": before.status}
    now: dict[str, object] = {"status": answer.status}
    if act in (Act.HOLD, Act.UNHOLD):
        was["held_by"], now["held_by"] = before.held_by, answer.held_by
    return answer, audit.write(who, act, answer.job_id, before=was, after=now)


def release(service: Service, audit: AuditLog, host: str, who: str) -> ReleaseReply:
    """Release a host from quarantine, and write it into the audit."""
    answer = service.release(host, who)
    audit.write(who, Act.RELEASE, host, before={"quarantined": answer.reason})
    return answer


def order(service: Service, audit: AuditLog, act: Act, host: str, who: str, *, at_once: bool = False) -> HostOrderReply:
    """Pause, drain or resume a host, and write it into the audit; ``at_once``: drained with what it trains."""
    by = who.removeprefix("operator ")
    if act is Act.RESUME:
        answer = service.resume_host(host, by)
    else:
        given = Order.PAUSE if act is Act.PAUSE else Order.HAND_BACK if at_once else Order.DRAIN
        answer = service.order(host, given, by)
    audit.write(who, act, answer.host, before={"order": answer.was}, after={"order": answer.order})
    return answer


def _target(row: Row) -> Target:
    return Target(
        row["job_id"],
        row["name"],
        JobStatus(row["status"]),
        row["claimed_at"],
        row["held_at"] is not None,
        bool(row["in_manifest"]),
    )
