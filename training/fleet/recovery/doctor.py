"""Check that a live database and store keep all promises, on the receiver's machine, without changing anything."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from training.clock import Clock
from training.files import Fs
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.database.writer import Database, DatabaseError, Row
from training.fleet.queue.rows import set_aside_of
from training.fleet.recovery import doctor_machine as machine
from training.fleet.recovery.doctor_rows import look_at_rows
from training.fleet.recovery.doctor_seals import look_at_seals
from training.fleet.recovery.doctor_store import StoreCheck, StoredBundle
from training.fleet.recovery.files import Progress
from training.fleet.recovery.findings import BACKUP, DoctorReport, Finding, Gravity
from training.fleet.recovery.logs import KnownLogs, known_logs, look_at_logs
from training.fleet.recovery.sizes import grown_files, grown_rows
from training.fleet.recovery.unlinked import Unlinked, links, strange_root
from training.fleet.scheduling.job import JobStatus
from training.fleet.scheduling.policy import Policy
from training.fleet.scheduling.quarantine import Cause, Quarantine
from training.fleet.service.state import Deployment
from training.fleet.store.artifacts import Artifact
from training.fleet.store.errors import BadName, StoreError
from training.fleet.store.store_id import MARK, another_database, read_mark
from training.printable import printable


@dataclass
class KnownTables:
    """The facts from the database that the check of the store needs: bundles, claims, output files, and the database's
    id."""

    deliveries: list[StoredBundle] = field(default_factory=list)
    claims: frozenset[str] = frozenset()
    unconfirmed: frozenset[str] = frozenset()  # bundles on which an operator has to decide: their paths
    nameless: list[tuple[Artifact, str]] = field(default_factory=list)  # with the job's name
    database_id: str | None = None
    logs: KnownLogs = field(default_factory=KnownLogs)


def examine(
    state: Deployment,
    clock: Clock,
    *,
    deep: bool = False,
    fs: Fs | None = None,
    policy: Policy | None = None,
    progress: Progress = lambda *_: None,
) -> DoctorReport:
    """Run the checks and return the report; with ``deep``, hash all bundles, reports and files of output. The content
    of data sets is not checked. If the database cannot be read, checks that need its rows are left out. The receiver
    may be running meanwhile."""
    report, now = DoctorReport(), clock.now()
    roots = (state.db.parent, state.models, state.datasets, state.tls)
    fs = Unlinked(*roots) if fs is None else fs
    known = KnownTables()
    store = StoreCheck(state.models, fs, now)
    told = partial(progress, "bundles, every byte" if deep else "bundles")
    try:
        report.add(links(state))
        rows = _database(report, state, policy or Policy(), now, progress)
        known = rows or known
        report.grown[:0] = grown_files(state)
        if strange_root(state.models):
            return report
        there = state.models.is_dir()
        if rows is not None or not there:
            report.add(store.look(known.deliveries, known.claims, known.unconfirmed, deep=deep, progress=told))
        if there and known.database_id is not None:
            report.add(whose(fs, state, known.database_id))
        if there:
            if rows is not None:  # else no file of output is named, and a rebuild needs them all
                report.add(look_at_logs(state.models, fs, known.logs, deep=deep, old=store.old))
            report.add(machine.look_at_machine(state, fs, now))
    except OSError as error:
        report.add([unreadable(error)])
    report.looked_at["bundles"] = len({each.artifact.path for each in known.deliveries if each.gone is None})
    report.looked_at["files of output"] = len(known.logs.stored)
    return report


def unreadable(error: OSError) -> Finding:
    return Finding(
        "reading",
        f"{error.filename or 'something'} cannot be read: {error.strerror}",
        "run the doctor as the receiver's user or root",
    )


def whose(fs: Fs, state: Deployment, database_id: str) -> Iterator[Finding]:
    """Report a store that belongs to another database, because the receiver would refuse that store."""
    try:
        marked = read_mark(fs, state.models)
    except StoreError as error:
        problem, _, remedy = str(error).rpartition("; ")
        yield Finding("mark", problem, remedy)
        return
    if marked not in (None, database_id):
        yield Finding(
            "mark",
            another_database(state.models, str(marked), database_id),
            "name the one's database with --db or the other's store with --models-dir; if the two do belong "
            "together, remove "
            f"{state.models / MARK}",
        )


def quarantined(row: Row) -> Finding:
    """Return the finding that a host is in quarantine, because the host needs a repair."""
    quarantine = Quarantine(row["host"], row["since"], Cause(row["cause"]), row["reason"])
    problem = f"host {quarantine.host} gets no jobs: {quarantine.reason}"
    return Finding("quarantine", problem, quarantine.remedy, Gravity.WARNING)


def set_aside(database: Database) -> Iterator[Finding]:
    """Report finished work that was refused and is kept on a host: while its job waits, delivering the work saves a
    training."""
    for row in database.all("hosts_aside"):
        try:
            kept = set_aside_of(row)
        except ValueError:
            what = f"the list of bundles kept on host {row['host']} cannot be read"
            yield Finding("set_aside", what, "its next request for work reports it again")
            continue
        for each in kept:
            job = database.one("job", job_id=each["job_id"])
            waits = job is not None and job["status"] == JobStatus.PENDING
            name = printable(each["name"] or each["job_id"][:12])
            yield Finding(
                "set_aside",
                f"host {row['host']} has finished work of job {name} that was refused ({printable(each['why'])})",
                f"on {row['host']}: `cis490-trainer-worker --deliver {each['job_id'][:12]}`, with the flags of its "
                "service, completes the job by it"
                if waits
                else "the job does not wait for it; requeue the job to have it brought, or let it age there",
                Gravity.WARNING if waits else Gravity.NOTE,
            )


def _database(
    report: DoctorReport, state: Deployment, policy: Policy, now: float, progress: Progress
) -> KnownTables | None:
    """Check the database, add the findings to the report, and return the facts for the check of the store; None if it
    is missing or unreadable."""
    if strange_root(state.db):
        return None
    if not state.db.exists():
        elsewhere = f"name the right place with --state-dir or --db; if it was lost, {BACKUP}"
        report.add([Finding("database", f"there is no database at {state.db}", elsewhere)])
        return None
    try:
        database = SqliteDatabase(state.db, read_only=True)
    except DatabaseError as error:
        report.add([_unusable(error)])
        return None
    try:
        with database.snapshot():
            return _rows(report, database, policy, now, progress)
    except DatabaseError as error:
        if not report.findings:  # else the damage is reported already
            report.add([_unusable(error)])
        return None
    finally:
        database.close()


def _unusable(error: DatabaseError) -> Finding:
    problem, _, remedy = str(error).rpartition("; ")
    return Finding("database", problem, remedy) if problem else Finding("database", remedy, BACKUP)


def _rows(
    report: DoctorReport, database: SqliteDatabase, policy: Policy, now: float, progress: Progress
) -> KnownTables | None:
    progress("database", 0, 1)
    report.add(Finding("database", f"the database is damaged: {each}", BACKUP) for each in database.damage())
    report.add(look_at_rows(database, policy, partial(progress, "promises")))
    report.add(look_at_seals(database.sealed()))
    newest = database.one("newest_time")
    report.add(machine.clock(0.0 if newest is None else float(newest["at"] or 0.0), now))
    report.add(machine.certificates(database.all("certificates"), now))
    report.add(machine.tokens(database.all("tokens"), now))
    report.add(map(quarantined, database.all("quarantines")))
    report.add(set_aside(database))
    if database.one("database_id") is None:
        report.add([Finding("database", f"{database.path} does not say which one it is", BACKUP)])
    counts = {row["status"]: int(row["n"]) for row in database.all("counts")}
    report.looked_at["jobs"] = sum(counts.values())
    report.grown += grown_rows(database.all("doctor_grown")[0])
    known = known_of(database)
    report.add(
        Finding("artifacts", f"{each.artifact_id[:80]!r} of job {job} names no bundle", BACKUP)
        for each, job in known.nameless
    )
    return known


def known_of(database: Database) -> KnownTables:
    """Return which bundles and output files the database says are in the store, and which claims may have uploads
    there."""
    identity = database.one("database_id")
    known = KnownTables(
        claims=frozenset(row["claim_id"] for row in database.all("doctor_claims")),
        unconfirmed=frozenset(row["path"] for row in database.all("unconfirmed_bundles")),
        database_id=None if identity is None else str(identity["database_id"]),
        logs=known_logs(database),
    )
    for row in database.all("doctor_deliveries"):
        delivery = _delivery(row)
        try:
            _ = delivery.artifact.path
        except BadName:
            known.nameless.append((delivery.artifact, delivery.name))
        else:
            known.deliveries.append(delivery)
    return known


_GRANT = ("claim_id", "generation", "host", "instance_id", "granted_at")


def _delivery(row: Row) -> StoredBundle:
    return StoredBundle(
        Artifact(row["artifact_id"], row["model"], row["mode"], row["size"]),
        row["job_id"],
        row["attempt"],
        row["name"] or row["job_id"],
        bool(row["accepted"]),
        row["stored_at"],
        bool(row["current"]),
        None if row["removed_at"] is None else (row["removed_at"], row["removed_why"]),
        row["removed_done"] is not None,
        {key: row[key] for key in _GRANT},
        row["report"],
        row["report_bytes"] or 0,
        bool(row["in_manifest"]),
    )
