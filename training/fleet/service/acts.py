"""Operators' acts: cancel, requeue, hold or unhold jobs; release, pause, drain or resume a host; accept or refuse a
host's unconfirmed work. Each act is recorded in the audit.

Before an act on many jobs, :func:`forecast_of` computes what the act would do. The operator agrees to the number of
jobs that the act would change; if that number has changed when the act begins, nothing is done.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from training.certain import certain
from training.fleet.database.writer import Database, Row
from training.fleet.scheduling.job import LIVE, JobStatus
from training.fleet.scheduling.orders import OrderKind
from training.fleet.service import unconfirmed
from training.fleet.service.audit import Act, AuditLog
from training.fleet.service.job_views import JobFilter
from training.fleet.service.service import Service
from training.fleet.wire.attempts import MovedReply
from training.fleet.wire.constants import JobAct, Refusal
from training.fleet.wire.messages import HostOrderReply, ReleaseReply
from training.printable import counted, duration

JOBS_MAX = 10_000  # in one act
FOUND_MAX = 1_000_000  # jobs, from which those of one act are chosen
PORTION = 100  # jobs moved in one transaction: claims wait so long
_LIVE = "live"
_STATES = (_LIVE, "pending", "failed", "completed", "cancelled")


# Losses that no later act brings back, by the state in which the act finds a job.
_WORK = "the work under way is lost"
_FAILED = "failed jobs do not become failed again, only pending or cancelled"
_LOST = {
    JobAct.CANCEL: {_LIVE: _WORK, "failed": _FAILED},
    JobAct.REQUEUE: {_LIVE: _WORK, "failed": _FAILED, "completed": "completed jobs must be trained again"},
}


class Selection(NamedTuple):
    """The jobs that an operator chose for an act: those with the ids in ``job_ids``, or without ids, all that match the
    filter ``wanted``."""

    wanted: JobFilter = JobFilter()
    job_ids: tuple[str, ...] = ()


class Target(NamedTuple):
    """A selected job, with the fields that an act needs."""

    job_id: str
    name: str
    status: JobStatus
    claimed_at: float | None
    held_at: float | None
    in_manifest: bool

    @property
    def state(self) -> str:
        """Return the job's state as acts distinguish it: "live" for a granted or running job, else its status."""
        return _LIVE if self.status in LIVE else str(self.status)


class ActOutlook(NamedTuple):
    """The expected result of an act: the jobs that it would change, and the seconds of training that would be lost."""

    doing: JobAct
    targets: tuple[Target, ...]
    states: Mapping[str, int]  # of the targets; "live" is granted or running
    left_alone: int  # found, but it does not apply to them
    lost_s: float  # of work of live attempts
    whole: bool  # not more were found than one act takes


class Done(NamedTuple):
    """The result of an act: how many jobs it changed, and how many it skipped."""

    moved: int = 0
    skipped: int = 0  # others moved these jobs since they were counted


def applies(doing: JobAct, target: Target) -> bool:
    """Return True if the act changes a job in this state; an act on many jobs leaves the others as they are."""
    over = target.status in (JobStatus.COMPLETED, JobStatus.CANCELLED)
    if doing is JobAct.CANCEL:
        return not over and (target.status is not JobStatus.FAILED or not target.in_manifest)
    if doing is JobAct.HOLD:
        return target.held_at is None
    return doing is JobAct.REQUEUE or target.held_at is not None


def forecast_of(doing: JobAct, found: Sequence[Target], now: float) -> ActOutlook:
    """Compute what an act would do with these jobs; of those that it changes, only the first ``JOBS_MAX`` are
    considered."""
    fit = [each for each in found if applies(doing, each)]
    targets = tuple(fit[:JOBS_MAX])
    ends = doing in (JobAct.CANCEL, JobAct.REQUEUE)
    lost = [now - each.claimed_at for each in targets if ends and each.state == _LIVE and each.claimed_at is not None]
    return ActOutlook(
        doing,
        targets,
        Counter(each.state for each in targets),
        len(found) - len(fit),
        sum(max(0.0, each) for each in lost),
        len(fit) <= JOBS_MAX,
    )


def in_words(forecast: ActOutlook) -> str:
    """Return words about what an act would do and what would be lost: "cancel 3 running jobs; 2 h 10 of work is
    lost"."""
    parts = [f"{forecast.states[state]} {state_word(state)}" for state in _STATES if forecast.states.get(state)]
    number = len(forecast.targets)
    if len(parts) > 1:
        which = f"{counted(number, 'jobs')} ({', '.join(parts)})"
    else:
        which = f"{parts[0] if parts else 'no'} {'job' if number == 1 else 'jobs'}"
    lost = f"; {duration(forecast.lost_s)} of work is lost" if forecast.lost_s else ""
    return f"{forecast.doing} {which}{lost}"


def for_good(forecast: ActOutlook) -> str:
    """Return a sentence about what an act would do that cannot be undone; empty if another act can restore
    everything."""
    lost = _LOST.get(forecast.doing, {})
    said = "; ".join(lost[state] for state in _STATES if state in lost and forecast.states.get(state))
    return f"This cannot be taken back: {said}." if said else ""


def state_word(state: str) -> str:
    """Return the word that people read for a target's state: "running" for "live", else the state itself."""
    return "running" if state == _LIVE else state


def chosen(database: Database, selection: Selection) -> list[Target]:
    """Read the selected jobs from the database; leave out ids that no job has, and what a filter matches beyond
    ``FOUND_MAX``."""
    if selection.job_ids:
        rows = [row for each in selection.job_ids if (row := database.one("job", job_id=each)) is not None]
    else:
        selection.wanted.check()
        rows = database.all("jobs_chosen", **selection.wanted.parameters(), most=FOUND_MAX)
    return [Target(*(row[name] for name in Target._fields))._replace(status=JobStatus(row["status"])) for row in rows]


def portions(forecast: ActOutlook) -> Iterable[Sequence[Target]]:
    """Divide the jobs that an act would change into groups of at most ``PORTION``, one for each transaction."""
    return (forecast.targets[at : at + PORTION] for at in range(0, len(forecast.targets), PORTION))


def carry_out(service: Service, audit: AuditLog, doing: JobAct, targets: Sequence[Target], who: str) -> Done:
    """Apply the act to these jobs; skip those whose state has changed since they were selected, and those for which the
    service refuses the act. Call it in a transaction of the writer."""
    moved = 0
    for target in targets:
        now = chosen(service.queue.db, Selection(job_ids=(target.job_id,)))
        if now and now[0].state == target.state and applies(doing, now[0]):
            with suppress(Refusal):
                move(service, audit, Act(doing), target.job_id, who)
                moved += 1
    return Done(moved, len(targets) - moved)


def move(service: Service, audit: AuditLog, act: Act, ref: str, who: str, *, as_removed: bool = False) -> MovedReply:
    """Carry out one act on the job that ``ref`` names, record it in the audit, and return the reply. ``as_removed``
    concerns only cancelling: it cancels a job because the plan no longer names it."""
    by = who.removeprefix("operator ")
    before = certain(service.queue.get(service.resolve_to_change(ref)), "a job that was found exists")
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
    audit.write(who, act, answer.job_id, before=was, after=now)
    return answer


def release(service: Service, audit: AuditLog, host: str, who: str) -> ReleaseReply:
    """Release a host from quarantine, and record it in the audit."""
    answer = service.release(host, who)
    audit.write(who, Act.RELEASE, host, before={"quarantined": answer.reason})
    return answer


def order(service: Service, audit: AuditLog, act: Act, host: str, who: str, *, at_once: bool = False) -> HostOrderReply:
    """Pause, drain or resume a host, and record it in the audit; a drain with ``at_once`` stops the running trainers
    too."""
    by = who.removeprefix("operator ")
    if act is Act.RESUME:
        answer = service.resume_host(host, by)
    else:
        given = OrderKind.PAUSE if act is Act.PAUSE else OrderKind.HAND_BACK if at_once else OrderKind.DRAIN
        answer = service.order(host, given, by)
    audit.write(who, act, answer.host, before={"order": answer.was}, after={"order": answer.order})
    return answer


def decide(
    service: Service, audit: AuditLog, act: Act, host: str, who: str, *, every: bool = False, mark: str | None = None
) -> list[Row] | None:
    """Record in the audit that a host's unconfirmed work is accepted or refused, and return the work; with
    ``every`` also every host's from before a restore. Refused work is marked so at once; accepted work still
    has to be verified. Return None, without a change, if ``mark`` is given and is not the work's."""
    rows = unconfirmed.waiting(service.queue.db, host, before_restore=every)
    if mark not in (None, unconfirmed.mark_of(rows)):
        return None
    for each in sorted({row["host"] for row in rows}):
        audit.write(who, act, each, after={"jobs": [row["name"] for row in rows if row["host"] == each]})
    for row in rows if act is Act.REFUSE else ():
        unconfirmed.refuse(service, row)
    return rows
