"""The edits that a reload finds: which keys of a job, host, trainer or notice channel changed, and from when each edit
holds. Pure.

A grant uses the newest plan, and an attempt keeps what it was granted. An edit of a job's keys holds for grants after
the reload. A job's new name holds at once, because no training depends on it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any

from training.contract import identity_of
from training.fleet.scheduling.job import LIVE, Job, JobStatus
from training.frozen import frozen

Table = Mapping[str, Any]
LISTED_MAX = 100  # edits in one answer
TABLES = ("hosts", "trainers", "retention", "notify")  # the manifest's tables beside the jobs, as a reload counts them
_COUNTS = {
    "inserted": "new",
    "updated": "edited",
    "renamed": "renamed",
    "revived": "in the plan again",
    "removed": "no longer named",
    "unchanged": "unchanged",
    **{table: f"edited in [{table}]" for table in TABLES},
}


class EditKind(StrEnum):
    """The kind of an edit. An answer lists edits in the order of these members."""

    RENAME = "rename"
    STANDS = "stands"  # a job of the plan is cancelled, and stays so
    REVIVED = "revived"  # a job that had left the plan is in it again
    LEFT = "left"  # a job is not in the plan any more
    HOST = "host"
    TRAINER = "trainer"
    CHANNEL = "channel"
    JOB = "job"


@frozen
class Edit:
    """A change of a job, host, trainer or channel that a reload found, and from when it holds."""

    kind: EditKind
    name: str  # of the job, host, trainer or channel, as the plan has it now
    holds: str  # since when, or the consequence
    keys: tuple[str, ...] = ()
    job_id: str | None = None
    was: str | None = None  # the name before a rename
    since: float | None = None  # end of a job that stays completed


class JobEdit(StrEnum):
    """The outcome of a reload for one job of the plan."""

    INSERTED = "inserted"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


@frozen
class JobChange:
    """The effect of a reload on one job of the plan: its outcome, and the edits to show."""

    outcome: JobEdit
    edits: tuple[Edit, ...] = ()
    returns: bool = False  # it had left the plan
    requeues: bool = False  # … and was cancelled for no other reason


def change(job: Job | None, spec: Table, *, same: bool) -> JobChange:
    """Return what a plan with this ``spec`` changes about ``job`` (None: a new job). ``same``: the job's name and spec
    are unchanged."""
    if job is None:
        return JobChange(JobEdit.INSERTED)
    edits = [] if same else job_edits(job, spec)
    requeues = not job.in_manifest and job.cancelled_as_removed
    if not job.in_manifest:
        after = replace(job, status=JobStatus.PENDING) if requeues else job
        edits.append(revival(after, str(spec.get("name") or job.job_id)))
    outcome = JobEdit.UNCHANGED if same else JobEdit.UPDATED
    return JobChange(outcome, tuple(edits), not job.in_manifest, requeues)


def job_edits(job: Job, spec: Table) -> list[Edit]:
    """Return the edits by which ``spec``, from the new plan, differs from ``job``: a new name, and other changed
    keys."""
    name, found = str(spec.get("name") or job.job_id), []
    if name != job.name:
        found.append(Edit(EditKind.RENAME, name, "at once", job_id=job.job_id, was=job.name))
    keys = tuple(key for key in changed(job.spec, spec) if key != "name")
    if keys:
        found.append(Edit(EditKind.JOB, name, _holds(job), keys, job.job_id))
    return found


def _holds(job: Job) -> str:
    if job.status is JobStatus.PENDING:
        return "at once"
    if job.status in LIVE:
        now = f"attempt {job.attempt} on {job.worker_hostname}"
        return f"from the next attempt; {now} continues with the job it was granted"
    return f"when it is requeued; it is {job.status} with what it was granted"


def revival(job: Job, name: str) -> Edit:
    """Return the edit for a ``job`` that had left the plan and is in it again."""
    if job.status in (JobStatus.FAILED, JobStatus.CANCELLED):
        holds = f"it stays {job.status} ({job.ended_by}): requeue it"
        return Edit(EditKind.REVIVED, name, holds, job_id=job.job_id, since=job.finished_at)
    holds = "it waits again" if job.status is JobStatus.PENDING else f"it is {job.status} already"
    return Edit(EditKind.REVIVED, name, holds, job_id=job.job_id)


def standing(job: Job) -> Edit:
    """Return the edit for a job of the plan that an operator cancelled, and that no reload brings back."""
    holds = f"it stays cancelled ({job.ended_by}): requeue it, or take it out of the plan"
    return Edit(EditKind.STANDS, job.name, holds, job_id=job.job_id, since=job.finished_at)


def leaving(job: Job, named: Mapping[str, Table]) -> Edit:
    """Return the edit for a ``job`` that left the plan; its status stays as it is. ``named`` maps names to the plan's
    jobs.

    If another job of the plan has the name of ``job`` now, the edit lists the fields of the id in which the two jobs
    differ.
    """
    if job.status in LIVE:
        holds = f"attempt {job.attempt} on {job.worker_hostname} continues"
    else:
        waits = {JobStatus.PENDING: "no host gets it until it is back", JobStatus.COMPLETED: "its model stays"}
        holds = waits.get(job.status, f"it stays {job.status}")
    other = named.get(job.name)
    if other is None:
        return Edit(EditKind.LEFT, job.name, holds, job_id=job.job_id)
    keys = changed(identity_of(job.spec), identity_of(other))
    differs = f", which differs in {', '.join(keys)}" if keys else ""
    return Edit(EditKind.LEFT, job.name, f"{holds}; another job is called so now{differs}", keys, job.job_id)


def host_edits(before: Mapping[str, Table], after: Mapping[str, Table], held: Mapping[str, list[str]]) -> list[Edit]:
    """Return the edits of hosts. ``held`` maps each host to the jobs that train there; its names are compared without
    case."""
    found, trains = [], {host.casefold(): jobs for host, jobs in held.items()}
    for name in sorted(before.keys() | after.keys()):
        keys = tuple(key for key in changed(before.get(name, {}), after.get(name, {})) if key != "name")
        if keys:
            jobs = ", ".join(trains.get(name.casefold(), ()))
            goes_on = f"; {jobs} continues there" if jobs else ""
            found.append(Edit(EditKind.HOST, name, f"from its next claim{goes_on}", keys))
    return found


def trainer_edits(before: Mapping[str, Table], after: Mapping[str, Table]) -> list[Edit]:
    """Return the edits of the custom trainers that are in both the old and the new plan."""
    found = []
    for name in sorted(before.keys() & after.keys()):
        keys = changed(before[name], after[name])
        if keys:
            anew = "; another command makes other jobs" if "command" in keys else ""
            found.append(Edit(EditKind.TRAINER, name, f"from the next attempt of each job{anew}", keys))
    return found


def channel_edits(before: Mapping[str, str], after: Mapping[str, str]) -> list[Edit]:
    """Return the edits of notice channels; of each channel only a digest of its table is compared."""
    new, gone = "new, and reports what happens from then on", "gone, and what it has not sent is forgotten"
    return [
        Edit(EditKind.CHANNEL, name, new if name not in before else "from its next message" if name in after else gone)
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def changed(before: Table, after: Table) -> tuple[str, ...]:
    """Return the keys whose values differ, sorted. An empty text, list or table counts as absent. Of two values that
    are tables, the differing keys are returned as ``key.member``."""
    found: list[str] = []
    for key in sorted(before.keys() | after.keys()):
        was, now = before.get(key), after.get(key)
        if was == now or not (_says(was) or _says(now)):
            continue
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            found += [f"{key}.{each}" for each in changed(was, now)]
        else:
            found.append(key)
    return tuple(found)


def _says(value: object) -> bool:
    """Return True if a value is given: 0 and false are given, an empty text, list or table is not."""
    return value is not None and value not in ("", [], {}, ())


def sentence(edit: Table) -> str:
    """Return an edit (a table of its members) as a sentence for people."""
    name, holds, keys = edit.get("name"), edit.get("holds"), edit.get("keys") or ()
    what = ", ".join(map(str, keys))
    match edit.get("kind"):
        case EditKind.RENAME:
            return f"{edit.get('was')} is called {name} now"
        case EditKind.REVIVED:
            return f"{name} is in the plan again: {holds}"
        case EditKind.LEFT:
            return f"{name} left the plan: {holds}"
        case EditKind.HOST:
            return f"[hosts.{name}] {what}: {holds}"
        case EditKind.TRAINER:
            return f"[trainers.{name}] {what}: {holds}"
        case EditKind.CHANNEL:
            return f"[notify.{name}]: {holds}"
        case _:
            return f"{name}, {what}: {holds}" if what else f"{name}: {holds}"


def counts(answer: Table) -> str:
    """Return the counts of a reload's reply as words for people: "2 new, 1 edited"; "none" if all are 0."""
    return ", ".join(f"{answer[key]} {word}" for key, word in _COUNTS.items() if answer.get(key)) or "none"


def first(edits: Iterable[Edit], most: int = LISTED_MAX) -> list[Edit]:
    """Return the first ``most`` edits in the order of :class:`EditKind`: renames, cancelled jobs, jobs in the plan
    again, jobs that left, other edits."""
    order = list(EditKind)
    return sorted(edits, key=lambda edit: order.index(edit.kind))[:most]
