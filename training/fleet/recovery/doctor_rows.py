"""Check the receiver's tables: for each promise about them, a query finds the rows that break the promise.

The queries are the ``doctor_`` statements of ``sql/recovery.sql``; this module has the findings and remedies. The
queries share no code with the queue, so that they can find its bugs.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass

from training.fleet.database.writer import Database
from training.fleet.queue.attempts import GAP
from training.fleet.recovery.doctor_specs import look_at_records, look_at_specs
from training.fleet.recovery.findings import BACKUP, HISTORY, Finding, Gravity
from training.fleet.scheduling.job import KEEPS_STATUS, MARKS, TRANSITIONS
from training.fleet.scheduling.policy import Policy
from training.fleet.service.audit import PAGE_MAX, page
from training.fleet.wire.audit_chain import first_broken
from training.fleet.wire.words import Json, typed
from training.strict_json import JsonObject

Fields = Json


def _again(row: Fields) -> str:
    return f"`cis490-jobs requeue {typed(row)}` trains it again, or restore a backup"


@dataclass(frozen=True)
class Question:
    """A promise about the tables: the query for rows that break it, and the problem and remedy to report."""

    statement: str
    problem: str  # of a row that breaks it; its columns by name
    remedy: str | Callable[[Fields], str] = BACKUP
    level: Gravity = Gravity.FAULT

    def findings(self, database: Database, params: Fields) -> Iterator[Finding]:
        for row in database.all(self.statement, **params):
            fields = _readable(row)
            remedy = self.remedy if isinstance(self.remedy, str) else self.remedy(fields)
            check = self.statement.removeprefix("doctor_").replace("_", "-")
            yield Finding(check, self.problem.format(**fields), remedy, self.level)


def _readable(row: Fields) -> JsonObject:
    """Return a row's values for a sentence, with ids cut to twelve characters, enough for people and for the command
    line."""
    fields = {key: "none" if value is None else value for key, value in dict(row).items()}
    for key in ("job_id", "artifact_id", "delivered"):
        if key in fields:
            fields[key] = str(fields[key])[:12]
    fields.setdefault("name", fields.get("job_id"))
    return fields


QUESTIONS = (
    Question("doctor_live", "job {name} is {status} and has {live} live attempts"),
    Question("doctor_claim", "job {name} is held by a claim that is not its live attempt {attempt}"),
    Question("doctor_numbers", "job {name} was granted {attempt} times and {known} attempts are known"),
    Question("doctor_grants", "job {name} counts {grants} grants of its generation and had {known}", _again),
    Question(
        "doctor_counters",
        "job {name} counts {trainer_failures} trainer failures and {host_losses} losses, but had {failed} and {lost}",
        _again,
    ),
    Question(
        "doctor_budgets",
        "job {name} waits although a budget is used up ({trainer_failures} trainer failures, {host_losses} losses, "
        "{grants} grants)",
        lambda row: f"give the doctor the --policy that the receiver has; if that is no reason, {_again(row)}",
        Gravity.WARNING,  # the operator may have lowered a budget while it waited
    ),
    Question("doctor_reasons", "job {name} failed, and its row does not say what ended it", _again),
    Question(
        "doctor_chain",
        "event {seq} of job {job_id} begins at {from_status}, but the one before led to {before}",
        HISTORY,
    ),
    Question(
        "doctor_replay",
        "job {name} is {status}, but its events lead to {to_status}",
        "a row was changed by hand or lost: " + BACKUP,
    ),
    Question(
        "doctor_held",
        "job {name} is held by {held_by} as its row says, and by {said} as its events say",
        lambda row: (
            f"`cis490-jobs hold {typed(row)}`, then `cis490-jobs unhold {typed(row)}`, which removes both; "
            f"hold it again if it shall be held"
        ),
    ),
    Question("doctor_strangers", "{what} ({attempt}) names job {job_id}, but this job or attempt does not exist"),
    Question(
        "doctor_granted", "what attempt {attempt} of job {job_id} was granted is not a job dict of that job", HISTORY
    ),
    Question("doctor_ungranted", "attempt {attempt} of job {job_id} on {host} has no event", HISTORY),
    Question(
        "doctor_completed",
        "job {name} is completed by {artifact_id}, but its last attempt ended as {end_reason} with {delivered}",
        _again,
    ),
    Question("doctor_uncompleted", "job {name} is {status} and has an artifact", _again),
    Question("doctor_twice", "generation {generation} of job {job_id} was completed {n} times"),
    Question(
        "doctor_undelivered",
        "attempt {attempt} of job {job_id} was completed by {artifact_id}, which it never delivered",
    ),
    Question(
        "doctor_slots",
        "slot {slot} of host {host} holds {n} jobs",
        "restart the worker there: its next session ends what the last one held",
    ),
    Question(
        "doctor_output",
        "of attempt {attempt} of job {job_id} {stored} lines of output are stored, and {log_next} are counted",
        HISTORY,
    ),
    Question(
        "doctor_output_gaps",
        "the output of attempt {attempt} of job {job_id} continues at line {first} after line {before}",
        HISTORY,
    ),
    Question(
        "doctor_output_kept",
        "the output of attempt {attempt} of job {job_id} from line {first} on is marked both as kept and as not kept",
        HISTORY,
    ),
    Question(
        "doctor_lines",
        "output of attempt {attempt} of job {job_id} from line {first} on has {lines} lines and says {count}",
        HISTORY,
    ),
    Question(
        "doctor_curves",
        "epoch {epoch} of attempt {attempt} of job {job_id} came with line {line}, but {log_next} lines are counted",
        HISTORY,
    ),
    Question("doctor_generations", "job {name} is in generation {generation}, and its events lead to {begun}"),
    Question("doctor_arrivals", "job {name} is not numbered in the order of arrival"),
    Question("doctor_times", "job {job_id} {what} at another time than its event says", HISTORY),
    Question(
        "doctor_ends", "attempt {attempt} of job {job_id} ended as {end_reason}, and its event says {noted}", HISTORY
    ),
    Question("doctor_witness", "event {seq} of job {job_id} is of {noted}, and its attempt of {host}", HISTORY),
    Question("doctor_unknown_hosts", "host {host} was granted jobs, and nothing says that it ever asked"),
    Question("doctor_workers", "host or error of job {name} are not those of its attempt {attempt}", _again),
    Question("doctor_cancels", "job {name} was cancelled by {ended_by}, and its event says {detail}"),
    Question("doctor_avoids", "job {name} avoids {avoid_host}, which never had it", _again),
    Question(
        "doctor_readoptions",
        "attempt {attempt} of job {job_id} was taken up again {readoptions} times, and its events say {noted}",
        HISTORY,
    ),
    Question("doctor_removals", "a row says that retention deleted a {what} ({subject}, {number}) that never existed"),
    Question("doctor_deaths", "attempt {attempt} of job {job_id} did not die on {host}, which it counts against"),
)

MOMENT_S = 60.0  # what one transaction writes has one time, unless the clock steps just then


def look_at_rows(
    database: Database, policy: Policy, progress: Callable[[int, int], object] = lambda *_: None
) -> Iterator[Finding]:
    """Report the rows that break a promise; of the audit, only the first. The caller must hold a snapshot, so that all
    queries see the same state."""
    limits = ("max_attempts", "max_host_losses", "max_grants")
    params = {key: value for key, value in asdict(policy).items() if key in limits}
    params |= {"gap": GAP, "moment": MOMENT_S}
    for number, question in enumerate(QUESTIONS):
        progress(number, len(QUESTIONS))
        yield from question.findings(database, params)
    yield from look_at_specs(database.all("doctor_specs"))
    yield from look_at_records(database.all("doctor_records"))
    yield from moves(database.all("doctor_moves"))
    yield from event_numbers(database.one("doctor_event_numbers"))
    yield from look_at_audit(database)


def moves(rows: Iterable[Fields]) -> Iterator[Finding]:
    """Report events whose transition and statuses are not in the table of allowed transitions."""
    for row in rows:
        known = TRANSITIONS.get(row["transition"])
        legal = (
            known is not None
            and known.name not in KEEPS_STATUS
            and row["from_status"] in known.sources
            and row["to_status"] == (row["from_status"] if known.name in MARKS else known.target)
        )
        if not legal:
            yield Finding(
                "moves",
                f"{row['n']} events, the first of them {row['seq']}, say {row['transition']} from "
                f"{row['from_status']} to {row['to_status']}, which is no move of a job",
                "if the database was written by another version, use that one; else " + HISTORY,
            )


def event_numbers(row: Fields | None) -> Iterator[Finding]:
    """Report a gap in the numbers of events, which begin at 1, or after the last event that retention deleted."""
    if row is None or not row["n"]:
        return
    if (row["least"], row["most"]) != (row["gone"] + 1, row["gone"] + row["n"]):
        yield Finding(
            "event-numbers", f"{row['n']} events are numbered {row['least']} to {row['most']}: some are gone", BACKUP
        )


def look_at_audit(database: Database) -> Iterator[Finding]:
    """Report the first row of the audit that does not follow from the row before it by its digest."""
    after, digest = 0, None
    while True:
        rows = page(database, after, PAGE_MAX)
        broken = first_broken(rows) if digest is None else first_broken(rows, digest)
        if broken is not None:
            yield Finding(
                "audit",
                f"row {broken} of the audit does not follow from the one before",
                f"the record was changed there or lacks rows; compare with a backup; {BACKUP}",
            )
            return
        if len(rows) < PAGE_MAX:
            return
        after, digest = rows[-1].seq, rows[-1].digest
