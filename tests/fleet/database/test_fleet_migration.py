"""A database of an older release is brought up to date: whole or not at all, and equal to a new one."""

from __future__ import annotations

import gzip
import os
import random
import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from systems import open_to_others
from torture.scenes import GOLDEN, TABLES, contents, migrating, version

from training.fleet.database import sqlite
from training.fleet.database.sqlite import SCHEMA_VERSION, SqliteDatabase
from training.fleet.database.writer import DatabaseError
from training.fleet.queue.jobs import JobQueue
from training.fleet.scheduling.job import JobStatus

SQL = Path(sqlite.__file__).with_name("sql")
HELP = (
    "schema_sqlite.sql and the last file of sql/migrations/ belong together: "
    "what one of them gained or lost, the other must too (see the heading of the migration)"
)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "training_jobs.db"
    path.write_bytes(gzip.decompress(GOLDEN.read_bytes()))
    return path


# ── the same as new ─────────────────────────────────────────────────────────────────────────


def parts(sql: str) -> Counter[str]:
    """A CREATE statement as the bag of its columns and constraints, whatever their order, spacing and comments."""
    text = re.sub(r"--[^\n]*", "", sql)
    text = re.sub(r"\s+", " ", text)
    head, _, rest = text.partition("(")
    body, _, tail = rest.rpartition(")")
    found, depth, piece = Counter[str](), 0, ""
    for character in body + ",":
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            found[piece.replace(" ", "")] += 1
            piece = ""
        else:
            piece += character
    found[head.replace('"', "").strip()] += 1
    found[tail.strip()] += 1
    return found


def schema(path: Path) -> dict[str, Counter[str]]:
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
        return {name: parts(sql) for name, sql in rows}


def difference(fresh: dict[str, Counter[str]], other: dict[str, Counter[str]]) -> list[str]:
    said = []
    for name in sorted(fresh.keys() | other.keys()):
        new, migrated = fresh.get(name, Counter()), other.get(name, Counter())
        said += [f"{name}: a migrated one lacks {each!r}" for each in new - migrated]
        said += [f"{name}: only a migrated one has {each!r}" for each in migrated - new]
    return said


def test_a_migrated_database_has_the_tables_of_a_new_one(old: Path, tmp_path: Path) -> None:
    SqliteDatabase(old).close()
    SqliteDatabase(tmp_path / "new.db").close()
    found = difference(schema(tmp_path / "new.db"), schema(old))
    assert not found, "\n".join([HELP, *found])


def test_the_comparison_sees_every_kind_of_difference(tmp_path: Path) -> None:
    text = (SQL / "schema_sqlite.sql").read_text(encoding="utf-8")
    for number, (was, becomes) in enumerate(
        [
            ("slot        INTEGER,", ""),
            ("slot        INTEGER,", "slot TEXT,"),
            ("'spawn_failed'", "'spawn_failed', 'bored'"),
            ("DEFAULT 1 CHECK (generation >= 1)", "DEFAULT 2 CHECK (generation >= 1)"),
            ("CREATE INDEX artifacts_by_job ON artifacts (job_id);", ""),
            ("priority DESC, claimable_at, seq)\n  WHERE", "priority, claimable_at, seq)\n  WHERE"),
            ("WITHOUT ROWID", "STRICT"),
        ]
    ):
        assert text.count(was) >= 1, was
        one, other = tmp_path / f"{number}a.db", tmp_path / f"{number}b.db"
        for path, script in ((one, text), (other, text.replace(was, becomes, 1))):
            with closing(sqlite3.connect(path)) as connection:
                connection.executescript(script.replace("STRICT, STRICT", "STRICT"))
        assert difference(schema(one), schema(other)), was


def test_the_scripts_are_numbered_without_a_gap() -> None:
    numbers = sorted(int(path.name[:4]) for path in (SQL / "migrations").glob("*.sql"))
    assert numbers == list(range(2, SCHEMA_VERSION + 1))


# ── nothing is lost ─────────────────────────────────────────────────────────────────────────


def test_every_row_is_still_there_and_the_queue_goes_on(old: Path) -> None:
    before = contents(old, TABLES)
    assert len({job["status"] for job in before["jobs"]}) == len(JobStatus), "a job in every state"
    queue = JobQueue(old)
    after = contents(old, TABLES)
    for table, rows in before.items():
        assert len(after[table]) == len(rows)
        for was, row in zip(rows, after[table], strict=True):
            assert {name: row[name] for name in was if name in row} == was, table
    done = queue.get("id-done-twice")
    assert done is not None
    assert (done.status, done.generation, done.attempt) == (JobStatus.COMPLETED, 2, 2)
    assert queue.cancel("id-waits")
    job = queue.claim_next(worker_hostname="pi", capability={"cpu_cores": 4})
    assert job is None
    assert queue.requeue("id-failed")
    queue.close()
    assert version(old) == SCHEMA_VERSION


def test_a_copy_from_before_lies_beside_it(old: Path) -> None:
    before = contents(old, TABLES)
    SqliteDatabase(old).close()
    saved = old.with_name(f"{old.name}.v1")
    assert version(saved) == 1
    assert contents(saved, TABLES) == before
    assert not open_to_others(saved)
    SqliteDatabase(old).close()
    assert sorted(path.name for path in old.parent.iterdir()) == [old.name, saved.name]


def test_when_no_copy_can_be_laid_beside_nothing_is_changed(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_paths: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sqlite, "settle", full)
    with pytest.raises(DatabaseError, match="free some space and start again"):
        SqliteDatabase(old)
    assert version(old) == 1


# ── cut off half-way ────────────────────────────────────────────────────────────────────────


def places() -> list[str]:
    script = "".join(path.read_text() for path in sorted((SQL / "migrations").glob("*.sql")))
    statements, statement = 0, ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            statements, statement = statements + 1, ""
    schema = [f"database.schema:{n}" for n in range(1, statements + 1)]
    return ["database.copied", *schema, "database.migrated"]


@pytest.mark.skipif(os.name != "posix", reason="kills POSIX processes")
@pytest.mark.parametrize("place", places())
def test_killed_at_any_statement_it_is_old_and_the_next_start_makes_it_new(place: str) -> None:
    migrating(place, random.Random(0))


def test_rows_that_a_migration_would_leave_dangling_stop_it(old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("DELETE FROM jobs WHERE job_id = 'id-runs'")
        connection.commit()
    with pytest.raises(DatabaseError, match="names rows that do not exist"):
        SqliteDatabase(old)
    assert version(old) == 1


@pytest.mark.parametrize(
    ("drop", "lacks"),
    [("TABLE tokens", "no such table: tokens"), ("INDEX artifacts_by_job", "it lacks the index artifacts_by_job")],
)
def test_tables_that_never_were_of_that_version_stop_it(old: Path, drop: str, lacks: str) -> None:
    with closing(sqlite3.connect(old)) as connection:
        connection.execute(f"DROP {drop}")
    with pytest.raises(DatabaseError, match=rf"not one of version 1 .* {lacks}"):
        SqliteDatabase(old)
    assert version(old) == 1


# ── not ours ────────────────────────────────────────────────────────────────────────────────


def test_a_newer_file_is_refused_and_not_touched(old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    before = old.read_bytes()
    for read_only in (False, True):
        with pytest.raises(DatabaseError, match="use the program that wrote it"):
            SqliteDatabase(old, read_only=read_only)
    assert old.read_bytes() == before
    assert [path.name for path in old.parent.iterdir()] == [old.name]


def test_an_older_file_is_not_migrated_by_those_who_only_look(old: Path) -> None:
    before = old.read_bytes()
    with pytest.raises(DatabaseError, match="start the receiver once"):
        SqliteDatabase(old, read_only=True)
    assert old.read_bytes() == before
