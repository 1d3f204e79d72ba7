"""The database suite on every adapter, and what SQLite's own trouble looks like to people."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from builders import a_job
from conformance.database_suite import CHECKS, held, hosts, note

from training.fleet.database import writer as database
from training.fleet.database.sqlite import SqliteDatabase, fold_log
from training.fleet.database.writer import DatabaseError, DatabaseFull, DatabaseLost, Writer, statements
from training.fleet.queue.jobs import JobQueue
from training.fleet.scheduling.job import EndReason, FailedBy, JobStatus


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_conformance(check, tmp_path):
    with ExitStack() as opened:

        def connect():
            return opened.enter_context(closing(SqliteDatabase(tmp_path / "training_jobs.db")))

        check(connect(), connect)


@pytest.fixture
def db(tmp_path):
    database = SqliteDatabase(tmp_path / "training_jobs.db")
    yield database
    database.close()


# ── how it is set up ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("pragma", "value"), [("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1), ("trusted_schema", 0)]
)
def test_what_durability_rests_on(db, pragma, value):
    assert db.connection.execute(f"PRAGMA {pragma}").fetchone()[0] == value
    assert db.connection.isolation_level is None, "autocommit: transactions are explicit"


def test_every_table_is_strict_and_every_statement_is_known_to_it(db):
    tables = db.connection.execute("PRAGMA table_list").fetchall()
    ours = [row for row in tables if row["type"] == "table" and not row["name"].startswith("sqlite_")]
    assert len(ours) >= 7
    assert all(row["strict"] for row in ours)
    for sql in statements().values():
        db.connection.execute(f"EXPLAIN {sql}", Anything()).fetchall()


class Anything(dict[str, Any]):
    """Parameters of every name."""

    def __missing__(self, key):
        return None


def test_every_statement_says_why_and_is_used_somewhere():
    fleet = Path(database.__file__).parents[1]
    source = "".join(path.read_text(encoding="utf-8") for path in sorted(fleet.rglob("*.py")))
    assert [name for name in statements() if f'"{name}"' not in source] == []


def test_a_copy_that_cannot_be_made_leaves_nothing_behind(db, tmp_path):
    db.connection.close()
    with pytest.raises(DatabaseError, match="closed"):
        db.copy_to(tmp_path / "copy")
    assert not list(tmp_path.glob("copy*"))
    with pytest.raises(DatabaseError, match="closed"):
        db.foreign()


@pytest.mark.parametrize(
    ("table", "column", "values"),
    [("jobs", "status", JobStatus), ("jobs", "failed_by", FailedBy), ("attempts", "end_reason", EndReason)],
)
def test_closed_lists_are_the_same_in_code_and_schema(db, table, column, values):
    (sql,) = db.connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    listed = sql.split(f"CHECK ({column} IN")[1].split("))")[0]
    assert set(listed.split("'")[1::2]) == {each.value for each in values}


@pytest.fixture
def noted(db):
    note(db, "pi")


@pytest.mark.skipif(os.name != "posix", reason="Windows has no permission bits")
def test_nobody_else_may_read_what_it_holds(noted, tmp_path):
    found = {path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir()}
    assert found == dict.fromkeys(["training_jobs.db", "training_jobs.db-wal", "training_jobs.db-shm"], 0)  # fmt: skip


@pytest.fixture
def path(tmp_path):
    return tmp_path / "training_jobs.db"


@pytest.mark.skipif(os.name != "posix", reason="Windows has no permission bits")
def test_a_file_that_others_could_read_is_made_private(path):
    SqliteDatabase(path).close()
    path.chmod(0o644)
    SqliteDatabase(path, read_only=True).close()
    assert path.stat().st_mode & 0o777 == 0o644
    SqliteDatabase(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


# ── looking without touching, and copying ───────────────────────────────────────────────────


def test_one_may_look_beside_the_writer_and_sees_one_moment(db, noted, tmp_path):
    looking = SqliteDatabase(tmp_path / "training_jobs.db", read_only=True)
    with looking.snapshot():
        assert hosts(looking) == ["pi"]
        note(db, "desk")
        assert hosts(looking) == ["pi"]
    assert hosts(looking) == ["desk", "pi"]
    with pytest.raises(DatabaseError, match="readonly"):
        note(looking, "laptop")
    looking.close()


def test_looking_leaves_no_trace(tmp_path, path):
    SqliteDatabase(path).close()
    before = path.read_bytes()
    looking = SqliteDatabase(path, read_only=True)
    assert hosts(looking) == []
    assert looking.damage() == []
    looking.close()
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_looking_for_a_file_that_is_not_there_makes_none(tmp_path):
    with pytest.raises(DatabaseError, match="unable to open"):
        SqliteDatabase(tmp_path / "none.db", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_a_copy_is_whole_private_and_one_file(db, noted, tmp_path):
    target = tmp_path / "elsewhere" / "copy.db"
    target.parent.mkdir()
    target.write_bytes(b"what was there")
    db.copy_to(target)
    note(db, "desk")
    assert [path.name for path in target.parent.iterdir()] == ["copy.db"]
    if os.name == "posix":
        assert target.stat().st_mode & 0o077 == 0
    copy = SqliteDatabase(target)
    assert hosts(copy) == ["pi"]
    copy.close()


def test_a_damaged_database_is_never_copied_over_a_good_copy(tmp_path):
    path, target = tmp_path / "training_jobs.db", tmp_path / "copy.db"
    queue = JobQueue(path)
    queue.sync_from_manifest(a_job(f"job-{n}") for n in range(200))
    queue.close()
    database = SqliteDatabase(path, read_only=True)
    database.copy_to(target)
    database.close()
    good = target.read_bytes()
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - 50_000)  # of jobs, not of the tables themselves
        file.write(b"\xff" * 50_000)
    damaged = SqliteDatabase(path, read_only=True)
    assert damaged.damage()
    with pytest.raises(DatabaseError):
        damaged.copy_to(target)
    damaged.close()
    assert target.read_bytes() == good
    assert sorted(each.name for each in tmp_path.iterdir()) == ["copy.db", "training_jobs.db"]


# ── what goes wrong ─────────────────────────────────────────────────────────────────────────


def sentence(caught, path):
    """The message, which must be one line and name the file."""
    said = str(caught.value)
    assert "\n" not in said
    assert str(path) in said
    return said


def test_what_is_not_a_database_is_refused_and_left_alone(path):
    path.write_bytes(b"these are my holiday photographs" * 100)
    with pytest.raises(DatabaseError) as caught:
        JobQueue(path)
    assert "--db" in sentence(caught, path)
    assert path.read_bytes().startswith(b"these are my holiday")


def test_a_database_of_somebody_else_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE photographs (name TEXT)")
    with pytest.raises(DatabaseError) as caught:
        SqliteDatabase(path)
    assert "another program" in sentence(caught, path)
    with closing(sqlite3.connect(path)) as other:
        assert [row[0] for row in other.execute("SELECT name FROM sqlite_schema")] == ["photographs"]


def test_a_missing_folder_is_said_with_its_remedy(tmp_path):
    path = tmp_path / "no" / "such" / "training_jobs.db"
    with pytest.raises(DatabaseError) as caught:
        SqliteDatabase(path)
    assert "--db" in sentence(caught, path)


def test_an_interrupted_creation_is_begun_again(path):
    path.touch()
    SqliteDatabase(path).close()
    SqliteDatabase(path).close()


@contextmanager
def full_disk(db):
    """As if not another page could be had."""
    pages = db.connection.execute("PRAGMA page_count").fetchone()[0]
    db.connection.execute(f"PRAGMA max_page_count = {pages}")
    yield
    db.connection.execute("PRAGMA max_page_count = 1000000")


def much(db, name="big"):
    db.run("note_host", host=name, capability="x" * 100_000, now=0.0, set_aside=None, instance_id=None,
           session_id=None, trainer_digests=None)  # fmt: skip


def both(db):
    with db.transaction():
        note(db, "small")
        much(db)


def test_a_full_disk_is_told_as_such_and_mends_without_a_restart(db, noted):
    with full_disk(db):
        with pytest.raises(DatabaseFull, match="free some space"):
            both(db)
        assert hosts(db) == ["pi"]
    much(db)
    assert hosts(db) == ["big", "pi"]


def test_nobody_of_a_group_is_told_that_it_was_done_when_the_disk_was_full(db):
    writer = Writer(db)
    note(db, "pi")
    with full_disk(db):
        with held(writer):
            futures = [writer.submit(lambda: note(db, "small")), writer.submit(lambda: much(db))]
        assert [type(each.exception(30)) for each in futures] == [DatabaseFull, DatabaseFull]
        assert hosts(db) == ["pi"]
    writer.submit(lambda: much(db)).result(30)
    assert hosts(db) == ["big", "pi"]
    writer.close()


def test_a_lost_database_is_reported_once_and_to_all_who_wait(db):
    lost = []
    writer = Writer(db, on_lost=lost.append)

    def broken():
        raise DatabaseLost("the file is damaged")

    with held(writer):
        futures = [writer.submit(lambda: note(db, "pi")), writer.submit(broken)]
    assert [type(each.exception(30)) for each in futures] == [DatabaseLost, DatabaseLost]
    writer.close()
    assert [str(each) for each in lost] == ["the file is damaged"]
    assert hosts(db) == []


def test_a_damaged_file_is_a_lost_database(path):
    queue = JobQueue(path)
    queue.sync_from_manifest(a_job(f"job-{n}") for n in range(600))
    queue.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size - size // 4)  # what is read at the start stays whole: it still opens
        file.write(b"\xff" * (size // 4))
    damaged = JobQueue(path)
    with pytest.raises(DatabaseLost, match="cis490-jobs rebuild --force"):
        damaged.sync_from_manifest(a_job(f"job-{n}") for n in range(600))
    damaged.close()


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps an open file where it is")
@pytest.mark.parametrize("how", ["removed", "replaced", "overwritten", "emptied", "log removed"])
def test_nothing_is_acknowledged_in_a_file_that_another_program_took_away(tmp_path, how):
    path, away, other = tmp_path / "ada's.db", tmp_path / "away.db", tmp_path / "other.db"
    with closing(SqliteDatabase(other)) as theirs:
        note(theirs, "theirs")
    db = SqliteDatabase(path)
    os.utime(path, (2.0, 2.0))  # which changes nothing …
    with db.transaction():
        note(db, "ours")
    db.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # … and this is no other program's
    with db.transaction():
        note(db, "more of ours")
    path.replace(away)
    match how:
        case "log removed":
            away.replace(path)
            Path(f"{path}-wal").unlink()
        case "removed":
            away.unlink()
        case "replaced":
            shutil.copyfile(other, path)
        case _:
            away.replace(path)
            shutil.copyfile(other if how == "overwritten" else os.devnull, path)
            os.utime(path, (1.0, 1.0))  # a clock of milliseconds may not show that it was written
    for _ in range(2):
        with pytest.raises(DatabaseLost, match="while it was in use, so nothing more is granted"), db.transaction():
            note(db, "more")
    db.close()
    if how in ("replaced", "overwritten"):  # by a file that the log of ours must not damage
        with closing(SqliteDatabase(path)) as found:
            assert (hosts(found), found.damage()) == (["theirs"], [])
    kept = [away, Path(f"{path}.kept")] if how == "replaced" else [Path(f"{path}.kept" if how == "removed" else path)]
    for each in kept if how in ("removed", "replaced", "log removed") else ():  # what was acknowledged is in our file
        assert each.stat().st_mode & 0o077 == 0
        with closing(SqliteDatabase(each)) as found:
            assert (hosts(found), found.damage()) == (["more of ours", "ours"], [])


def test_a_reader_who_holds_back_the_log_is_no_other_program(tmp_path):
    db = SqliteDatabase(tmp_path / "jobs.db")
    with db.transaction():
        db.run("add_plan_dataset", name="long", dataset_id="a" * 400_000)
    with closing(SqliteDatabase(db.path, read_only=True)) as reader, reader.snapshot():
        reader.all("plan_datasets")
        with db.transaction():
            db.connection.execute("UPDATE plan_datasets SET dataset_id = ?", ("b" * 400_000,))  # the last pages again
        db.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")  # the file alone: a new header, without these pages
        with db.transaction():
            note(db, "ours")
    assert hosts(db) == ["ours"]
    db.close()


def test_nothing_is_acknowledged_in_a_file_that_went_during_the_transaction(db):
    with pytest.raises(DatabaseLost, match="another program removed"), db.transaction():
        Path(db.path).rename(f"{db.path}.away")


def test_only_a_damaged_file_is_to_be_replaced_by_a_backup(tmp_path, monkeypatch):
    sound = "BUSY_RECOVERY LOCKED READONLY_DIRECTORY CANTOPEN FULL IOERR_SHMMAP IOERR_LOCK IOERR_FSYNC"
    damaged, said = "CORRUPT_INDEX NOTADB", dict[str, str]()
    for name in f"{sound} {damaged}".split():
        error = sqlite3.OperationalError("as SQLite says it")
        error.sqlite_errorname = f"SQLITE_{name}"
        monkeypatch.setattr(sqlite3, "connect", Mock(side_effect=error))
        with pytest.raises(DatabaseError) as refused:
            SqliteDatabase(tmp_path / "jobs.db")
        said[name] = str(refused.value).rpartition(") ")[2]
    assert {name for name, words in said.items() if "--force" in words} == set(damaged.split())
    assert len({*said.values()}) == 7, "busy, read-only, not to be opened, full, without locks, failed, damaged"


def test_a_file_that_another_program_holds_is_not_called_damaged(db, tmp_path):
    with closing(sqlite3.connect(db.path, isolation_level=None)) as other:
        db.connection.execute("PRAGMA busy_timeout = 0")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseError, match="is held by another program") as refused, db.transaction():
            pass
        assert "--force" not in str(refused.value)
    with closing(SqliteDatabase(tmp_path / "training_jobs.db", read_only=True)) as looking:
        looking.connection.set_authorizer(lambda *_: sqlite3.SQLITE_DENY)
        with pytest.raises(DatabaseError, match="not authorized"):  # no damage, whatever it is
            looking.damage()


def test_a_folder_that_cannot_be_written_is_no_reason_for_a_restore(tmp_path, monkeypatch):
    (tmp_path / "jobs.db").write_bytes(b"no database" * 100)
    with pytest.raises(DatabaseError, match="restore"):
        SqliteDatabase(tmp_path / "jobs.db")
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and allowed(path, mode))
    with pytest.raises(DatabaseError, match=r"able to write in .*read-only") as refused:
        SqliteDatabase(tmp_path / "jobs.db")
    assert "restore" not in str(refused.value)


def test_a_library_that_is_too_old_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("sqlite3.sqlite_version_info", (3, 36, 9))
    with pytest.raises(DatabaseError, match="is too old, at least"):
        SqliteDatabase(tmp_path / "jobs.db")


def test_what_stands_in_the_log_is_folded_into_the_file(db, noted, tmp_path):
    alone = tmp_path / "copy" / "jobs.db"
    alone.parent.mkdir()
    for end in ("", "-wal"):
        Path(f"{alone}{end}").write_bytes(Path(f"{db.path}{end}").read_bytes())
    fold_log(alone)
    assert [each.name for each in alone.parent.iterdir() if each.stat().st_size] == ["jobs.db"]
    with closing(sqlite3.connect(alone)) as connection:
        assert connection.execute("SELECT host FROM hosts").fetchall() == [("pi",)]


def test_a_database_that_cannot_be_read_says_so_when_its_checksums_are_compared(db):
    with pytest.MonkeyPatch.context() as patched, closing(sqlite3.connect(":memory:")) as empty:
        patched.setattr(db, "connection", empty)
        empty.close()
        with pytest.raises(DatabaseError):
            db.sealed()


def test_what_is_not_ours_in_a_database_is_named(db):
    assert db.foreign() == []
    db.connection.execute("ALTER TABLE deaths ADD COLUMN more TEXT")
    assert db.foreign() == ["it has the column more of deaths, which is not ours"]


def test_a_table_that_is_replaced_takes_no_rows_of_others_along(monkeypatch):
    """Foreign keys are off while the tables are made: within a transaction that is not to be had."""
    seen = []

    def looking(connection, _script):
        seen.append(connection.execute("PRAGMA foreign_keys").fetchone()[0])

    monkeypatch.setattr("training.fleet.database.sqlite._run_script", looking)
    with pytest.raises(DatabaseError), closing(SqliteDatabase(":memory:")):
        pass
    assert seen[0] == 0


# ── many rows at once ───────────────────────────────────────────────────────────────────────

INSERTS = "at", "job_id", "to_status", "transition"


def add(db, count, *more):
    rows = [(1.5, f"id-{n}", "pending", "insert") for n in range(count)]
    db.add("events", INSERTS, [*rows, *more])


def add_event(db, job_id):
    event = dict.fromkeys(("from_status", "attempt", "host", "detail"))
    db.run("add_event", at=2.5, job_id=job_id, transition="insert", to_status="pending", **event)


def sound(db):
    return not [each for each in db.sealed() if each.broken or each.rows != each.counted]


def test_many_rows_have_their_checksums(db):
    add_event(db, "first")
    with db.transaction():
        add(db, 3)
    add_event(db, "last")
    rows = db.connection.execute("SELECT job_id, seal IS NULL FROM events ORDER BY seq").fetchall()
    assert [*map(tuple, rows)] == [(each, 0) for each in ["first", "id-0", "id-1", "id-2", "last"]]
    assert sound(db)


def added_in_vain(db):
    with db.transaction():
        add(db, 2)
        raise KeyError


def test_rows_that_are_not_added_leave_checksums_as_they_were(db):
    with pytest.raises(KeyError):
        added_in_vain(db)
    with pytest.raises(DatabaseError), db.transaction():
        add(db, 2, (None,) * 4)
    add_event(db, "only")
    assert db.connection.execute("SELECT count(*) FROM events").fetchone()[0] == 1
    assert sound(db)
    assert db._pragma("cache_size")[0] == SqliteDatabase(":memory:")._pragma("cache_size")[0]
