"""Every column of every table is changed, every kind of row taken out, one at a time: the doctor must see it."""

from __future__ import annotations

import contextlib
import sqlite3
from contextlib import closing, contextmanager

import pytest
from fakes import FakeClock
from recovery_builders import change, copied, found, rows

from training.fleet.database.seals import COUNTED, keep, learn, seal
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.queue.jobs import JobQueue

INCIDENT = (
    "host, id, kind, checkpoint, model, raised_at, facts, told_at, heard_at, ended, ended_at, verdict, judged_by, "
    "judged_at"
)

SOME_OF_EACH = {
    "certificates": ("fingerprint, role, name, issued_at, expires_at, revoked_at", "'f', 'host', 'gone', 1, 2, 2"),
    "invitations": ("code_sha256, role, name, created_at, expires_at", "'c', 'host', 'new', 1, 2"),
    "tokens": ("token_sha256, name, created_at, expires_at", "'t', 'ci', 1, 2"),
    "plan_datasets": ("name, dataset_id", "'processed', 'd'"),
    "quarantines": ("host, since, cause, reason, ended_at, ended_by", "'pi', 1, 'deaths', 'three', 2, 'ada'"),
    "notices": ("at, kind, subject, sentence, event, job_id", "1, 'failure', 'gbt', 'it failed', 1, 'j'"),
    "notify_channels": ("name, sent", "'ops', 1"),
    "notice_cursor": ("one, events, quarantines", "1, 1, 0"),
    "removals": (
        "at, what, subject, number, size, why, done_at",
        "1, 'log', job_id, attempt, 9, 'old', 1 FROM attempts WHERE end_reason = 'trainer_failed'",
    ),
    "watches": ("host, checkpoint, model, since, heard_at, every_s", "'pi', '5f', 'gbt realistic', 1, 2, 900"),
    "incidents": (INCIDENT, "'pi', 'ab', 'alarms', '5f', 'gbt realistic', 2, '{}', 5, 6, 'over', 6, 'false', 'ada', 7"),
    "host_orders": ("host, kind, since, by, ended_at, ended_by", "'pi', 'pause', 1, 'ada', 2, 'ben'"),
    "unconfirmed": ("claim_id, job_id, host, artifact_id, size, at", "'c', job_id, 'pi', 'a', 9, 1 FROM jobs LIMIT 1"),
    "restores": ("at", "1"),
    "deaths": ("host, job_id, attempt", "host, job_id, attempt FROM attempts WHERE end_reason = 'trainer_failed'"),
}  # fmt: skip


@pytest.fixture(scope="module")
def sound(sound, tmp_path_factory):
    state = copied(sound, tmp_path_factory.mktemp("full") / "state")
    for table, (names, row) in SOME_OF_EACH.items():
        change(state, f"INSERT INTO {table} ({names}) SELECT {row}")
    assert found(state) == []
    return state


def columns():
    with closing(SqliteDatabase(":memory:")) as database:
        tables = [
            row["name"]
            for row in database.connection.execute("PRAGMA table_list").fetchall()
            if row["type"] == "table" and not row["name"].startswith("sqlite_")
        ]
        assert set(tables) == {*COUNTED, "identity", "seals"}
        return [
            (table, row["name"])
            for table in sorted(tables)
            for row in database.connection.execute(f"PRAGMA table_info({table})").fetchall()
        ]


def keys(state, table):
    return [name for name, part in rows(state, f"SELECT name, pk FROM pragma_table_info('{table}')") if part]


@contextmanager
def changed(state, table, column, *, by_hand=True):
    """Another value in one row, best in one that has any; undone afterwards. By hand, its checksum stays as it was."""
    before = {path: path.read_bytes() for path in state.db.parent.glob(f"{state.db.name}*")}
    with closing(sqlite3.connect(state.db, isolation_level=None)) as connection:
        connection.row_factory = sqlite3.Row
        if not by_hand:
            learn(connection)
            keep(connection)
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        (kind,) = (row[2] for row in connection.execute(f"PRAGMA table_info({table})") if row[1] == column)
        key = keys(state, table)
        *at, value = connection.execute(
            f"SELECT {', '.join(key)}, {column} FROM {table} ORDER BY {column} IS NULL, {key[0]} LIMIT 1"
        ).fetchone()
        other = f"{value or ''}x" if kind == "TEXT" else (value or 0) + 1000
        where = " AND ".join(f"{name} = ?" for name in key)
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (other, *at))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    try:
        yield
    finally:
        for path, data in before.items():
            path.write_bytes(data)


@pytest.mark.half
@pytest.mark.parametrize(("table", "column"), columns())
def test_every_column_is_looked_at(sound, table, column):
    with changed(sound, table, column):
        assert found(sound), f"nobody sees a change of {table}.{column}"


@pytest.mark.half
@pytest.mark.parametrize("table", ["identity", "seals", *COUNTED])
@pytest.mark.parametrize("which", ["", "DESC"])
def test_every_kind_of_row_is_missed(state, table, which):
    (key, *_) = keys(state, table)
    row = f"SELECT {key} FROM {table} ORDER BY {key} {which} LIMIT 1"
    change(state, f"DELETE FROM {table} WHERE {key} = ({row})", by_hand=True)
    assert found(state), f"nobody misses a row of {table}"


def test_a_row_that_somebody_put_in_is_seen(state):
    hosts = "INSERT INTO hosts (host, capability, first_seen, last_seen) VALUES ('x', '{}', 1, 2)"
    change(state, hosts, by_hand=True)
    (finding,) = (each for each in found(state) if each.check == "checksums")
    assert finding.problem == "row x of hosts does not match its checksum", "it has no checksum"


@pytest.mark.parametrize(
    "row", ["identity (one, database_id) VALUES (2, hex(randomblob(16)))", "seals (tbl, n) VALUES ('x', 0)"]
)
def test_so_is_one_in_a_table_whose_rows_never_change(state, row):
    change(state, f"INSERT INTO {row}", by_hand=True)
    assert {each.check for each in found(state)} == {"counts"}


# ── what follows from something else ────────────────────────────────────────────────────────

NOBODY = "told once, by one message, and repeated nowhere"
DECIDED = "the policy decided it then; its settings may have changed since"
MOVES = "moves along when the clock steps"
LISTED = "who was let in stands here alone; the audit names the act, not the row"
TOLD_BY_WATCH = "as a watch told it; the watch keeps it no longer"
HOST = "as the host said last; its next request reports it again"


def each(names, why):
    return dict.fromkeys(names.split(), why)


# Without a checksum nobody can tell a change of these, and why.
UNTOLD = {
    "jobs": {
        "claimable_at": DECIDED,
        "short_runs": DECIDED,
        "claimed_at": MOVES,
        "edition": "of the plan that brought it, which only the plan in force is compared with",
        **each("in_manifest passed_over", "as the plan's file said at its last reload, and the doctor reads no plan"),
    },
    "attempts": {
        "session_id": "a session that begins anew takes attempts over",
        **each(
            "slot request_id exit_code seq progress record lived_s "
            "paused paused_s resumable booked heard_s held_s figure log_total out_of_memory crashed",
            NOBODY,
        ),
        "pardoned": "whoever was pardoned may have given back less than was counted",
    },
    "artifacts": {
        "seq": "the order of deliveries; the index is compared as a set",
        "stored_at": "index.jsonl says it as well, and is compared when it is two minutes old",
    },
    "hosts": each("capability instance_id session_id first_seen trainer_digests", HOST),
    "deaths": {"seq": "their order; an attempt is in it once"},
    "quarantines": each("seq host since cause reason ended_at ended_by", NOBODY),
    "notices": each("seq at kind subject sentence event job_id lasting over_at", NOBODY),
    "notify_channels": each("name sent fixed tries next_at sent_at error", NOBODY),
    "plan_in_force": each("one edition", NOBODY),
    "notice_cursor": each("one events quarantines", NOBODY),
    "removals": each("seq at size why newest done_at back_at", NOBODY),
    "watches": each("host checkpoint model since heard_at every_s", TOLD_BY_WATCH),
    "incidents": each("seq " + INCIDENT.replace(",", ""), TOLD_BY_WATCH),
    "host_orders": each("seq host kind since by ended_at ended_by", NOBODY),
    "curve_points": each(
        "epoch loss metric seconds stage stage_epoch metric_name", "a line of output tells it, and need not be kept"
    ),
    "usage_samples": each("seq seconds cpu memory_bytes gpu gpu_memory_bytes", NOBODY),
    "results": dict.fromkeys(
        ["job_id", "attempt", "figures", "test", "twin", "auroc", "auroc_low", "auroc_high"],
        "the report itself tells it",
    ),
    "log_files": {"raw_bytes": "as --deep reads it", "sha256": "as --deep reads it", "gone_at": NOBODY},
    "log_chunks": {"text": "as long as it has so many lines: the worker's copy is gone"},
    "certificates": each("fingerprint role name issued_at expires_at revoked_at", LISTED),
    "invitations": each("code_sha256 role name created_at expires_at used_by", LISTED),
    "tokens": each("token_sha256 name created_at expires_at revoked_at role", LISTED),
    "plan_datasets": each("name dataset_id", "as the plan was read last"),
    "unconfirmed": each(
        "claim_id job_id host artifact_id size at told from_before refused_at", "its worker says it again"
    ),
    "restores": each("seq at", NOBODY),
}


@pytest.mark.half
@pytest.mark.parametrize(("table", "column"), columns())
def test_without_checksums_what_follows_from_something_is_compared(sound, table, column):
    why = UNTOLD.get(table, {}).get(column)
    # The index is compared when it is two minutes old, so its age must not follow from the time that the tests take.
    ((made_at,),) = rows(sound, "SELECT max(at) FROM events")
    with changed(sound, table, column, by_hand=False):
        assert bool(found(sound, clock=FakeClock(now=made_at))) == (why is None), (
            f"{table}.{column}: {why or 'nobody sees it'}"
        )


# ── the checksum itself ─────────────────────────────────────────────────────────────────────


def test_a_checksum_is_the_same_on_every_machine():
    """Written down, because databases travel: text that one Python cannot show another can."""
    columns = [("at", None), ("detail", None), ("n", 0), ("name", "")]
    assert seal(columns, (1.5, "naïve ﬁ \U0001fae8\n", 0, "x")) == 5417418493805741743
    assert seal(columns, (1.5, None, 0, "x")) == seal([*columns, ("new", "")], (1.5, None, 0, "x", ""))
    assert seal(columns, (1.5, None, 0, "x")) != seal(columns, (1.5, "x", 0, ""))


def test_what_is_undone_leaves_no_trace_in_checksums_and_counts(tmp_path):
    with closing(JobQueue(tmp_path / "jobs.db")) as queue:
        queue.sync_from_manifest([{"job_id": "a", "name": "a", "model": "m"}])
        with contextlib.suppress(ZeroDivisionError), queue.db.transaction():
            queue.claim_next(worker_hostname="pi", capability={})
            raise ZeroDivisionError
        assert isinstance(queue.db, SqliteDatabase)
        for each in queue.db.sealed():
            assert (each.broken, each.rows) == ([], each.counted)
