"""A database of another shape is refused as it is; a step to a later version is taken whole or not at all."""

from __future__ import annotations

import os
import random
import sqlite3
from contextlib import closing

import pytest
from systems import open_to_others
from torture.scenes import GROW, STEP, contents, invent_step, migrating, version

from training.fleet.database import sqlite
from training.fleet.database.sqlite import SCHEMA_VERSION, SqliteDatabase
from training.fleet.database.writer import DatabaseError
from training.fleet.queue.jobs import JobQueue

REMEDY = "run `cis490-jobs rebuild --force`, which renames it and restores the completed jobs from the store"


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "training_jobs.db"
    with closing(JobQueue(path)) as queue:
        queue.sync_from_manifest([{"job_id": "id-one", "name": "one"}])
    return path


@pytest.fixture
def step(old, monkeypatch):
    """A later version, which this program knows from now on."""
    folder = old.with_name("sql")
    invent_step(folder)
    monkeypatch.setattr(sqlite, "_SQL", folder)
    monkeypatch.setattr(sqlite, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    sqlite._own_shape.cache_clear()
    monkeypatch.setattr(sqlite, "_own_shape", sqlite._own_shape.__wrapped__)


def sql(path, *statements):
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


# ── a step ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("step")
def test_a_step_keeps_every_row_and_makes_the_tables_of_a_new_file(old):
    before = contents(old, {"jobs", "events", "identity"})
    with closing(SqliteDatabase(old)) as database:
        assert database.foreign() == []
        assert database._pragma("foreign_keys")[0] == 1
        assert not any(each.broken for each in database.sealed())
    after = contents(old, {"jobs", "events", "identity"})
    assert [row.pop("mood") for row in after["jobs"]] == [""]
    assert after == before
    assert version(old) == SCHEMA_VERSION + 1
    assert not open_to_others(old)


@pytest.mark.usefixtures("step")
def test_those_who_only_look_take_no_step(old):
    before = old.read_bytes()
    with pytest.raises(DatabaseError, match="its version is 1, this program's is 2"):
        SqliteDatabase(old, read_only=True)
    assert old.read_bytes() == before


@pytest.mark.usefixtures("step")
@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (["PRAGMA foreign_keys = OFF", "UPDATE jobs SET class_id = 7"], "it names rows that do not exist"),
        (["DROP INDEX artifacts_by_job"], "it lacks the index artifacts_by_job"),
    ],
)
def test_a_step_that_leaves_what_cannot_be_is_undone(old, harm, why):
    sql(old, *harm)
    with pytest.raises(DatabaseError, match=why):
        SqliteDatabase(old)
    assert version(old) == SCHEMA_VERSION


@pytest.mark.skipif(os.name != "posix", reason="kills POSIX processes")
@pytest.mark.parametrize(
    "place", [*(f"database.schema:{n}" for n in range(1, STEP.count(";") + 1)), "database.migrated"]
)
def test_killed_at_any_statement_it_is_old_and_the_next_start_makes_it_new(place):
    migrating(place, random.Random(0))


# ── another shape ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (f"PRAGMA user_version = {SCHEMA_VERSION + 1}", "its version is 2, this program's is 1"),
        ("ALTER TABLE jobs DROP COLUMN error", "it lacks the column error of jobs"),
        ("DROP TABLE identity", "it lacks the column database_id of identity"),
        ("CREATE INDEX more ON jobs (name)", "it has the index more of jobs, which is not ours"),
    ],
)
def test_another_shape_is_refused_in_a_sentence_and_not_touched(old, statement, why):
    sql(old, GROW.replace("?", "10"), statement)
    before = old.read_bytes()
    for read_only in (False, True):
        with pytest.raises(DatabaseError) as caught:
            SqliteDatabase(old, read_only=read_only)
        assert str(caught.value) == (
            f"the database {old} has another shape than this program's and was left as it was ({why}); {REMEDY}"
        )
    assert old.read_bytes() == before
    assert [path.name for path in old.parent.iterdir()] == [old.name]
