"""The database's id: random, kept by every copy and by the store, and asked before anything is believed."""

from __future__ import annotations

import re
from contextlib import closing

import pytest
from recovery_builders import a_state, change, checks, rows

from training.clock import SystemClock
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.database.writer import DatabaseError
from training.fleet.queue.jobs import JobQueue
from training.fleet.receiver.http.listening import StartError
from training.fleet.receiver.program import _check_mark, _own
from training.fleet.recovery.backup import Backup, Restore
from training.fleet.recovery.rebuild import rebuild
from training.fleet.service.state import Deployment, RecoveryError
from training.fleet.store.artifacts import ArtifactStore
from training.fleet.store.errors import BadMark

CLOCK = SystemClock()


def id_of(db):
    with closing(JobQueue(db)) as queue:
        return queue.database_id


@pytest.fixture
def state(tmp_path):
    return a_state(tmp_path / "state")


def test_every_new_database_is_one_of_its_own_and_stays_it(tmp_path):
    first, second = id_of(tmp_path / "a.db"), id_of(tmp_path / "b.db")
    assert first != second
    assert re.fullmatch("[0-9a-f]{32}", first)
    assert id_of(tmp_path / "a.db") == first


def test_a_database_that_lost_its_id_says_so(tmp_path):
    path = tmp_path / "jobs.db"
    with closing(SqliteDatabase(path)) as database:
        database.connection.execute("DELETE FROM identity")
    with closing(JobQueue(path)) as queue, pytest.raises(DatabaseError, match="restore FOLDER"):
        _ = queue.database_id


# ── backup, restore, rebuild ────────────────────────────────────────────────────────────────


def restored(folder, state, *, force=False):
    Restore(folder, state, CLOCK).run(force=force)


def test_a_restore_brings_the_id_and_marks_the_store(state, tmp_path):
    Backup(tmp_path / "backups").make(state, CLOCK)
    new = Deployment.of(tmp_path / "elsewhere")
    restored(tmp_path / "backups", new)
    assert id_of(new.db) == id_of(state.db) == ArtifactStore(new.models).marked()


def test_a_backup_of_another_database_comes_into_a_marked_store_only_by_force(state, tmp_path):
    Backup(tmp_path / "backups").make(state, CLOCK)
    other = Deployment.of(tmp_path / "other")
    ArtifactStore(other.models).mark("f" * 32)
    with pytest.raises(RecoveryError, match="belongs to the database ffffffffffff"):
        restored(tmp_path / "backups", other)
    assert not other.db.exists()
    restored(tmp_path / "backups", other, force=True)
    assert ArtifactStore(other.models).marked() == id_of(state.db)


def test_a_rebuild_makes_the_database_that_filled_the_store(state):
    before = id_of(state.db)
    state.db.unlink()
    rebuild(state, [], CLOCK)
    assert id_of(state.db) == before


def test_a_rebuild_marks_a_store_of_before(state):
    (state.models / "database.json").unlink()
    state.db.unlink()
    rebuild(state, [], CLOCK)
    assert ArtifactStore(state.models).marked() == id_of(state.db)


# ── the store ───────────────────────────────────────────────────────────────────────────────


def test_a_receiver_marks_a_store_and_opens_no_other_databases(tmp_path):
    store = ArtifactStore(tmp_path / "models")
    with closing(JobQueue(tmp_path / "a.db")) as ours, closing(JobQueue(tmp_path / "b.db")):
        _own(store, ours, tmp_path / "a.db")
        _own(store, ours, tmp_path / "a.db")
        assert store.marked() == ours.database_id
        with pytest.raises(StartError, match=r"belongs to the database .* remove .*database\.json"):
            _check_mark(tmp_path / "b.db", store)
        assert store.marked() == ours.database_id


def test_an_empty_store_is_not_taken_for_that_of_a_database_with_models(state, tmp_path):
    empty = ArtifactStore(tmp_path / "not-mounted")
    full = ArtifactStore(state.models)
    (state.models / "database.json").unlink()
    with closing(JobQueue(state.db)) as queue, closing(JobQueue(tmp_path / "new.db")) as new:
        with pytest.raises(StartError, match=r"knows \d+ models, and .*not-mounted holds none: mount"):
            _own(empty, queue, state.db)
        assert empty.marked() is None
        _own(full, queue, state.db)
        assert full.marked() == queue.database_id
        _own(empty, queue, state.db, new_store=True)
        _own(empty, queue, state.db)
        assert empty.marked() == queue.database_id
        _own(ArtifactStore(tmp_path / "first"), new, tmp_path / "new.db")


def test_a_mark_that_says_nothing_is_refused_with_its_remedy(tmp_path):
    store = ArtifactStore(tmp_path / "models")
    for text in ("", "[]", '{"database_id": 7}', '{"database_id": "x"}', "\xff"):
        (tmp_path / "models" / "database.json").write_text(text, encoding="latin-1")
        with pytest.raises(BadMark, match="remove that file and start again"):
            store.marked()
    store.mark("0" * 32)
    assert store.marked() == "0" * 32


def test_the_doctor_names_a_store_of_another_database(state):
    assert checks(state) == set()
    change(state, f"UPDATE identity SET database_id = '{'e' * 32}'")
    assert checks(state) == {"mark"}
    (state.models / "database.json").write_text("{")
    assert checks(state) == {"mark"}
    change(state, "DELETE FROM identity")
    assert rows(state, "SELECT count(*) FROM identity") == [(0,)]
    assert "database" in checks(state)
