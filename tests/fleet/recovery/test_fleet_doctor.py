"""The doctor: a sound state is found sound, each broken promise is found by the question that is about it."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
from fakes import EPOCH, FakeClock
from receiver_running import Receiver
from recovery_builders import (
    JOBS,
    PLAN,
    Unreadable,
    bundle_of,
    change,
    checks,
    cis490_jobs,
    claim,
    deliver,
    flip,
    found,
    rows,
    state_in,
    tree,
)

from training.clock import SystemClock
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.database.writer import DatabaseLost
from training.fleet.queue.jobs import JobQueue
from training.fleet.recovery import doctor as doctors
from training.fleet.recovery import doctor_machine as machine
from training.fleet.recovery.doctor import examine
from training.fleet.recovery.doctor_rows import QUESTIONS, look_at_audit
from training.fleet.recovery.findings import HISTORY, SHOWN_MAX, DoctorReport, Finding, Gravity
from training.fleet.recovery.rebuild import rebuild
from training.fleet.scheduling.policy import Policy
from training.fleet.service.audit import PAGE_MAX, Act, AuditLog, page
from training.fleet.service.state import DATABASE, DEFAULT, Deployment
from training.fleet.store.artifacts import RESERVE_BYTES
from training.fleet.store.provenance import sealed, unsealed

# ── what is sound ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("first", [2, 3, 400])
def test_output_that_says_what_is_missing_of_it_is_sound(state, first):
    """A worker that could not keep some lines goes on behind them, and the receiver notes how many there were."""
    queue = JobQueue(state.db)
    (live,) = (each for each in queue.attempts.live_on("desk") if each.log_next == 1)
    queue.attempts.append_log(live, first, ["later", "last"])
    queue.close()
    assert examine(state, SystemClock()).findings == []


def test_holding_jobs_of_every_kind_for_a_while_is_sound(state):
    """A hold writes an event that ends nothing, long after the one that did."""
    later = FakeClock(time.time() + 3000.0)
    with closing(JobQueue(state.db, clock=later)) as queue:
        for (job,) in rows(state, "SELECT job_id FROM jobs"):
            assert queue.hold(job)
    assert examine(state, later).findings == []


def test_a_sound_state_is_found_sound_and_left_alone(sound):
    before = tree(sound.db.parent)
    report = examine(sound, SystemClock(), deep=True)
    assert report.findings == []
    assert report.looked_at == {"jobs": 7, "bundles": 3, "files of output": 1}
    assert tree(sound.db.parent) == before


def test_it_looks_while_a_receiver_works(tmp_path):
    folder, bundles = tmp_path / "state", tmp_path / "bundles"
    folder.mkdir()
    bundles.mkdir()
    with Receiver(folder, JOBS) as receiver:
        state = state_in(folder)
        client = receiver.client("desk")
        for body in (b"one", b"two"):
            deliver(client, claim(client), bundles, body)
            assert found(state, deep=True) == []
        half = claim(client)
        part = bundles / "half"
        part.write_bytes(b"half of it")
        client.upload_artifact(half.job_id, part)
        assert found(state) == []


# ── rows ────────────────────────────────────────────────────────────────────────────────────

JOB = "(SELECT job_id FROM jobs WHERE name = '{}')"
DONE, RUNS, WAITS, TWICE, FAILS = (JOB.format(name) for name in ("done", "runs", "waits", "done-twice", "fails"))
HELD = "ended_at = NULL, end_reason = NULL, host = 'x', session_id = 's', slot = 0"
NEWEST = "FROM events ORDER BY seq DESC LIMIT 1"
EVENT = "seq, at, job_id, transition, from_status, to_status, attempt, host, detail"
MARKED = "'pending', 'pending', NULL, NULL, 'ada'"
BROKEN = [
    ("live", [f"UPDATE attempts SET ended_at = 1, end_reason = 'host_lost' WHERE job_id = {RUNS}"]),
    ("claim", [f"UPDATE jobs SET claim_id = 'another' WHERE job_id = {RUNS}"]),
    ("claim", [f"UPDATE jobs SET worker_hostname = 'laptop' WHERE job_id = {RUNS}"]),
    ("numbers", [f"DELETE FROM attempts WHERE job_id = {TWICE} AND attempt = 1"]),
    ("numbers", [f"UPDATE jobs SET attempt = 7 WHERE job_id = {WAITS}"]),
    ("grants", [f"UPDATE jobs SET grants = 0 WHERE job_id = {RUNS}"]),
    ("counters", [f"UPDATE jobs SET trainer_failures = 1 WHERE job_id = {RUNS}"]),
    ("counters", [f"UPDATE jobs SET host_losses = 2 WHERE job_id = {WAITS}"]),
    ("counters", [f"UPDATE jobs SET trainer_failures = 1 WHERE job_id = {FAILS}",
                  f"UPDATE attempts SET pardoned = 1 WHERE job_id = {FAILS}"]),
    ("budgets", [f"UPDATE jobs SET trainer_failures = 3 WHERE job_id = {WAITS}"]),
    ("budgets", [f"UPDATE jobs SET grants = {Policy().max_grants} WHERE job_id = {WAITS}"]),
    ("reasons", [f"UPDATE jobs SET ended_by = NULL WHERE job_id = {FAILS}"]),
    ("moves", ["UPDATE events SET transition = 'retry' WHERE transition = 'complete'"]),
    ("moves", ["UPDATE events SET transition = 'whim' WHERE seq = 9"]),
    ("chain", [f"DELETE FROM events WHERE job_id = {DONE} AND transition = 'heartbeat'"]),
    ("event-numbers", ["DELETE FROM events WHERE seq = 9"]),
    ("event-numbers", ["DELETE FROM events WHERE seq = 1"]),
    ("replay", [f"UPDATE jobs SET status = 'pending', finished_at = NULL WHERE job_id = {FAILS}"]),
    ("held", [f"UPDATE jobs SET held_by = 'ada', held_at = 1 WHERE job_id = {WAITS}"]),
    ("held", [f"INSERT INTO events ({EVENT}) SELECT seq + 1, at, {WAITS}, 'hold', {MARKED} {NEWEST}"]),
    ("strangers", ["UPDATE events SET job_id = 'nobody' WHERE seq = 9"]),
    ("strangers", [f"UPDATE artifacts SET attempt = 9 WHERE job_id = {DONE}"]),
    ("strangers", [f"UPDATE log_chunks SET attempt = 9 WHERE job_id = {DONE}"]),
    ("granted", [f"UPDATE attempts SET granted = '{{}}' WHERE job_id = {DONE}"]),
    ("granted", [f"UPDATE attempts SET granted = 'torn' WHERE job_id = {DONE}"]),
    ("ungranted", [f"DELETE FROM events WHERE job_id = {DONE} AND transition = 'claim'"]),
    ("completed", [f"UPDATE jobs SET artifact_id = NULL WHERE job_id = {DONE}"]),
    ("completed", [f"UPDATE attempts SET end_reason = 'host_lost' WHERE job_id = {DONE}"]),
    ("uncompleted", [f"UPDATE jobs SET artifact_id = 'a' WHERE job_id = {WAITS}"]),
    ("twice", [f"UPDATE attempts SET generation = 2 WHERE job_id = {TWICE}"]),
    ("undelivered", [f"DELETE FROM artifacts WHERE job_id = {DONE}"]),
    ("slots", [f"UPDATE attempts SET {HELD} WHERE job_id IN ({DONE}, {RUNS})"]),
    ("output", [f"UPDATE attempts SET log_next = 5 WHERE job_id = {DONE}"]),
    ("output-gaps", [f"INSERT INTO log_chunks (job_id, attempt, first, count, text) VALUES ({DONE}, 1, 5, 1, 'x')"]),
    ("output-gaps", ["UPDATE log_chunks SET first = 1", "UPDATE attempts SET log_next = 2 WHERE log_next = 1"]),
    ("output-kept", ["UPDATE log_files SET gone = 'age'"]),
    ("strangers", ["UPDATE log_files SET attempt = 9"]),
    ("lines", [f"UPDATE log_chunks SET text = text || char(10) WHERE job_id = {DONE}"]),
    ("strangers", [f"INSERT INTO curve_points (job_id, attempt, epoch, loss) VALUES ({DONE}, 9, 1, 0.5)"]),
    ("strangers", [f"INSERT INTO usage_samples (job_id, attempt, seq, seconds) VALUES ({DONE}, 9, 1, 0.5)"]),
    ("curves", [f"INSERT INTO curve_points (job_id, attempt, epoch, loss, line) VALUES ({DONE}, 1, 1, 0.5, 99)"]),
    ("generations", [f"UPDATE jobs SET generation = 3 WHERE job_id = {WAITS}"]),
    ("arrivals", [f"UPDATE jobs SET seq = 100 WHERE job_id = {RUNS}"]),
    ("times", [f"UPDATE jobs SET created_at = created_at - 100 WHERE job_id = {WAITS}"]),
    ("times", [f"UPDATE attempts SET granted_at = granted_at - 100 WHERE job_id = {RUNS}"]),
    ("ends", [f"UPDATE attempts SET end_reason = 'interrupted' WHERE job_id = {FAILS}"]),
    ("witness", [f"UPDATE events SET host = 'laptop' WHERE job_id = {DONE} AND transition = 'claim'"]),
    ("unknown-hosts", ["DELETE FROM hosts WHERE host = 'pi'"]),
    ("workers", [f"UPDATE jobs SET worker_hostname = 'laptop' WHERE job_id = {FAILS}"]),
    ("workers", [f"UPDATE jobs SET error = 'another' WHERE job_id = {FAILS}"]),
    ("cancels", ["UPDATE jobs SET ended_by = 'nobody' WHERE status = 'cancelled'"]),
    ("avoids", [f"UPDATE jobs SET avoid_host = 'laptop', avoid_until = 1 WHERE job_id = {WAITS}"]),
    ("readoptions", [f"UPDATE attempts SET readoptions = 2 WHERE job_id = {RUNS}"]),
    ("deaths", [f"INSERT INTO deaths (host, job_id, attempt) VALUES ('laptop', {FAILS}, 1)"]),
    ("removals", ["INSERT INTO removals (at, what, subject, number, size, why) VALUES (1, 'log', 'x', 1, 1, 'old')"]),
    ("specs", [f"UPDATE jobs SET spec = '{{}}' WHERE job_id = {WAITS}"]),
    ("specs", [f"UPDATE jobs SET priority = 77 WHERE job_id = {WAITS}"]),
    ("trained", [f"UPDATE attempts SET data_digest = '{'0' * 64}' WHERE job_id = {DONE}"]),
    ("audit", ["UPDATE audit SET who = 'nobody' WHERE seq = 1"]),
    ("clock", [f"UPDATE events SET at = {time.time() + 1e6} WHERE seq = (SELECT max(seq) FROM events)"]),
    ("quarantine", ["INSERT INTO quarantines (host, since, cause, reason) VALUES ('pi', 1, 'deaths', 'three')"]),
    ("artifacts", [f"UPDATE artifacts SET artifact_id = '../x' WHERE job_id = {DONE}"]),
]  # fmt: skip


@pytest.mark.half
@pytest.mark.parametrize(("check", "statements"), BROKEN)
def test_every_promise_about_rows_is_asked_about(state, check, statements):
    change(state, *statements)
    findings = [each for each in found(state) if each.check == check]
    assert findings, f"no finding called {check}"
    for each in findings:
        assert "{" not in each.sentence
        assert "\n" not in each.sentence
        assert each.remedy
    heals(state, check, findings[0].remedy)


@pytest.mark.parametrize("touched", [None, 1, PAGE_MAX, PAGE_MAX + 1, 2 * PAGE_MAX + 1])
def test_every_page_of_the_audit_is_read(tmp_path, touched):
    with closing(SqliteDatabase(tmp_path / "jobs.db")) as database:
        audit = AuditLog(database, FakeClock())
        with database.transaction():
            for number in range(2 * PAGE_MAX + 1):
                audit.write("operator ada", Act.CANCEL, f"job {number}")
            database.connection.execute("UPDATE audit SET who = 'x' WHERE seq = ?", (touched,))
        assert [each.seq for each in page(database, 5, 2)] == [6, 7]
        assert len(page(database, 0, 2 * PAGE_MAX)) == PAGE_MAX
        broken = [each.problem.split()[1] for each in look_at_audit(database)]
    assert broken == ([] if touched is None else [str(touched)])


def heals(state, check, remedy):
    """Do what the doctor says, and check that nothing is left but what cannot be undone."""
    requeue = re.search("`cis490-jobs requeue (.+?)`", remedy)
    if requeue:
        ids = dict(rows(state, "SELECT name, job_id FROM jobs"))
        with closing(JobQueue(state.db)) as queue:
            queue.requeue(ids[requeue[1]])
    elif check == "held":
        assert "`cis490-jobs hold waits`, then `cis490-jobs unhold waits`" in remedy
        (job,) = rows(state, f"SELECT {WAITS}")
        with closing(JobQueue(state.db)) as queue:
            queue.hold(job[0])
            queue.unhold(job[0])
    elif "`cis490-jobs rebuild --force`" in remedy:
        rebuild(state, PLAN, SystemClock(), force=True)
    else:
        assert check in ("clock", "quarantine", "slots"), "these are about the world"
        return
    history = [each for each in found(state) if each.remedy == HISTORY]
    assert found(state) == history, "of what cannot be undone there is at most a record"
    assert not history or requeue


def test_remedies_act_on_the_state_that_was_looked_at(tmp_path):
    text = "`cis490-jobs restore FOLDER --force` brings it; `cis490-jobs requeue x` trains; rebuild"
    assert Deployment.of(DEFAULT).typed(text) == text
    here = tmp_path / "a state"
    typed = Deployment.of(here, models=Path("m")).typed(text)
    assert f"`cis490-jobs restore FOLDER --force --state-dir '{here}' --models-dir m`" in typed
    assert "`cis490-jobs requeue x` trains; rebuild" in typed, "the receiver is asked, not the disk"
    planned = Deployment.of(DEFAULT, manifest=Path("my plan.toml"))
    assert planned.typed("`cis490-jobs rebuild`") == "`cis490-jobs rebuild --manifest 'my plan.toml'`"
    assert planned.typed("`cis490-jobs doctor`") == "`cis490-jobs doctor`", "it reads no plan"
    assert Deployment.of(DEFAULT, DEFAULT / DATABASE, DEFAULT / "models").given == ()


def test_commands_say_their_remedies_with_the_flags_that_they_were_given(tmp_path):
    code, out, err = cis490_jobs("doctor", "--db", str(tmp_path / "my.db"), "--models-dir", str(tmp_path))
    assert code == 1
    said = " ".join((out + err).split())
    commands = re.findall("`(cis490-jobs (?:restore|rebuild|backup)[^`]*)`", said)
    assert commands
    assert all(f"--db {tmp_path / 'my.db'}" in each for each in commands)


@pytest.mark.skipif(os.name != "posix", reason="makes a pipe")
@pytest.mark.parametrize("make", ["mkfifo", "mkdir"])
@pytest.mark.parametrize("command", [["doctor"], ["backup", "b"], ["restore", "b", "--force"], ["rebuild", "--force"]])
def test_a_database_that_is_no_file_is_one_sentence(tmp_path, make, command):
    getattr(os, make)(tmp_path / "my.db")
    code, out, err = cis490_jobs(*command, "--db", str(tmp_path / "my.db"), "--models-dir", str(tmp_path))
    assert (code, out) == (1, "")
    said = "it is no plain file; name another place, or see what holds it"
    assert err.split() == f"cis490-jobs: {tmp_path / 'my.db'}: {said}".split()
    assert [each.name for each in tmp_path.iterdir()] == ["my.db"]


def test_the_remedy_of_a_quarantine_is_that_of_its_cause(state):
    insert = "INSERT INTO quarantines (host, since, cause, reason) VALUES ('pi', 1, '{}', 'no room')"
    change(state, insert.format("self_test"))
    (finding,) = found(state)
    assert finding.problem == "host pi gets no jobs: no room"
    assert finding.remedy == "it is released automatically when that is fixed"
    change(state, "UPDATE quarantines SET cause = 'deaths'")
    assert "cis490-jobs release pi" in found(state)[0].remedy


def test_every_question_is_tried():
    asked = {each.statement.removeprefix("doctor_").replace("_", "-") for each in QUESTIONS}
    assert asked <= {check for check, _ in BROKEN}


def test_a_row_that_names_nothing_is_found_by_the_database_itself(state):
    change(state, f"DELETE FROM jobs WHERE job_id = {DONE}")
    assert {"database", "strangers"} <= checks(state)


def test_a_damaged_database_and_one_that_is_gone(state):
    data = bytearray(state.db.read_bytes())
    data[len(data) // 2 :] = b"\xff" * (len(data) - len(data) // 2)
    state.db.write_bytes(data)
    for each in found(state):
        assert each.check == "database"
        assert "restart" not in each.sentence, "that mends no damage"
        assert "cis490-jobs rebuild --force" in each.remedy
    state.db.unlink()
    (finding,) = [each for each in found(state, notes=True) if each.check == "database"]
    assert "cis490-jobs restore" in finding.remedy
    assert "cis490-jobs rebuild" in finding.remedy


@pytest.mark.skipif(os.name != "posix", reason="Windows has no permission bits")
@pytest.mark.parametrize("closed", ["file", "folder"])
def test_who_may_not_read_is_told_who_may(state, closed, monkeypatch):
    """For root everything is readable, so the system's answers are made up."""
    if closed == "file":
        refused = sqlite3.OperationalError("unable to open database file")
        monkeypatch.setattr(sqlite3, "connect", Mock(side_effect=refused))
        monkeypatch.setattr(os, "access", lambda *_: False)
    else:
        monkeypatch.setattr(Path, "exists", Mock(side_effect=PermissionError(13, "denied", "x")))
    (finding, *_) = found(state)
    assert "as the receiver's user or root" in finding.remedy
    assert "restore" not in finding.sentence
    monkeypatch.setattr(os, "access", lambda *_: False)
    code, out, err = doctor(state)
    assert (code, err) == (1, ""), "the command says the same, not that its flags are wrong"
    assert "as the receiver's user or root" in " ".join(out.split())


@pytest.mark.parametrize("statement", ["PRAGMA user_version = 99", "ALTER TABLE jobs DROP COLUMN error"])
def test_a_database_of_another_shape(state, statement):
    change(state, statement, by_hand=True)
    (log,) = (state.models / "logs").glob("*/*.log.gz")
    os.utime(log, (EPOCH, EPOCH))
    (finding,) = found(state, notes=True)
    assert "has another shape than this program's" in finding.problem
    assert finding.remedy.startswith("run `cis490-jobs rebuild --force`"), "and it needs the files of output"


def test_files_of_output_are_there_and_whole_and_others_are_named(state):
    (path,) = (state.models / "logs").glob("*/*.log.gz")
    stray = path.with_name("7-0-0123456789abcdef.log.gz")
    stray.write_bytes(b"x")
    os.utime(stray, (EPOCH, EPOCH))
    (note,) = (each for each in found(state, notes=True) if each.check == "output-strays")
    assert note.level is Gravity.NOTE
    assert f"{stray.parent.name}/{stray.name} is in the store and no row names it" in note.problem
    flip(path)
    assert found(state) == [], "its bytes are read with --deep alone"
    (damaged,) = found(state, deep=True)
    assert (damaged.check, "is damaged" in damaged.problem) == ("output-files", True)
    path.write_bytes(b"")
    assert "has 0 bytes instead of" in found(state)[0].problem
    path.unlink()
    (lost,) = found(state)
    assert lost.problem.startswith("the output of attempt 2 of job done-twice, lines 1–1, is not at ")


def test_a_slot_of_a_session_may_hold_a_job(state):
    change(state, "UPDATE attempts SET session_id = 's', slot = 0 WHERE ended_at IS NULL")
    assert "slots" not in checks(state)


def test_many_of_a_kind_become_a_count():
    report = DoctorReport()
    report.add(Finding("live", f"job {n}", "look") for n in range(SHOWN_MAX + 5))
    assert len(report.findings) == SHOWN_MAX + 1
    assert report.findings[-1].problem == "there are 5 more of this kind"
    halves = DoctorReport()
    for first in (0, SHOWN_MAX - 1):
        halves.add(Finding("live", f"job {first + n}", "look") for n in range(SHOWN_MAX - 1))
    assert len(halves.findings) == SHOWN_MAX + 1
    assert halves.findings[-1].problem == f"there are {SHOWN_MAX - 2} more of this kind"


# ── the store ───────────────────────────────────────────────────────────────────────────────


def test_a_bundle_that_is_gone_cut_or_changed(state):
    bundle_of(state, "done").unlink()
    (gone,) = found(state)
    assert gone.check == "bundles"
    assert "of job same-bytes" in gone.problem, "the first that delivered it is named"
    twice = bundle_of(state, "done-twice")
    twice.write_bytes(twice.read_bytes()[:-1])
    assert [each.check for each in found(state)] == ["bundles", "bundles"]
    assert "has 5999 bytes instead of 6000" in found(state)[1].problem


@pytest.mark.parametrize(
    ("name", "check"), [("bundle.tar.zst", "bundles"), ("-1.json", "provenance"), ("index.jsonl", "index")]
)
def test_what_cannot_be_read_is_told_and_the_rest_is_looked_at(state, name, check):
    (state.models / "incoming").mkdir(exist_ok=True)
    change(state, f"UPDATE jobs SET ended_by = NULL WHERE job_id = {FAILS}")
    report = examine(state, SystemClock(), fs=Unreadable(name))
    assert {each.check for each in report.findings} == {check, "reasons"}
    assert any("cannot be read" in each.problem for each in report.findings)


def test_what_goes_while_the_doctor_looks_is_no_finding(state):
    (state.models / "incoming").mkdir(exist_ok=True)
    (state.models / "incoming" / "x.part").touch()
    stray = state.models / "gbt_realistic" / ("a" * 64)
    stray.mkdir()
    (stray / "bundle.tar.zst").touch()
    (state.models / "gbt_realistic" / "notes").mkdir()
    assert examine(state, SystemClock(), fs=Unreadable(".part")).findings == []


def test_lines_of_the_index_that_may_be_still_to_come(state):
    """A receiver goes on while the doctor looks: what came after the rows were read is not strange."""
    index = state.models / "index.jsonl"
    whole = index.read_bytes()
    line = json.loads(whole.splitlines()[-1])
    for age_s, strange in ((0, False), (-30, False), (86_400, True)):
        new = {**line, "artifact_id": "9" * 64, "stored_at": time.time() - age_s}
        index.write_bytes(whole + json.dumps(new).encode() + b"\n")
        assert ("index" in checks(state)) is strange, age_s
    for again in (b"junk\n", whole.splitlines(keepends=True)[0]):
        index.write_bytes(whole + again)
        (finding,) = found(state)
        assert "has 1 lines that the database does not" in finding.problem


def test_the_lines_that_are_stored_are_told(state):
    change(state, f"UPDATE attempts SET log_next = 7 WHERE job_id = {FAILS}")
    change(
        state,
        "INSERT INTO log_chunks (job_id, attempt, first, count, text) VALUES "
        f"({FAILS}, 1, 2, 1, 'x'), ({FAILS}, 1, 3, 2, 'y')",
    )
    problems = {each.check: each.problem for each in found(state)}
    assert "5 lines of output are stored, and 7 are counted" in problems["output"]
    assert problems["lines"].endswith("from line 3 on has 1 lines and says 2")


def test_a_database_that_fails_while_it_is_looked_at_is_a_finding(state, monkeypatch):
    monkeypatch.setattr(doctors, "look_at_rows", Mock(side_effect=DatabaseLost("the disk is gone; look at it")))
    (finding,) = found(state)
    assert (finding.check, finding.problem, finding.remedy) == ("database", "the disk is gone", "look at it")


@pytest.mark.parametrize("content", [b"junk", b"{}", b"[]"])
def test_a_certificates_note_that_is_damaged_is_made_anew(tmp_path, content):
    (tmp_path / "server.json").write_bytes(content)
    assert [each.problem for each in machine.authority(tmp_path, EPOCH)] == [f"{tmp_path} lacks ca.key and ca.pem"]


def test_one_flipped_bit_is_found_by_looking_deep(state):
    flip(bundle_of(state, "done-twice"))
    assert found(state) == []
    (finding,) = found(state, deep=True)
    assert "is damaged" in finding.problem
    assert "done-twice" in finding.remedy


@pytest.mark.parametrize("how", ["gone", "damaged", "of another"])
def test_provenance(state, how):
    (path,) = (bundle_of(state, "done-twice").parent / "provenance").iterdir()
    if how == "gone":
        path.unlink()
    elif how == "damaged":
        path.write_bytes(b"{" + path.read_bytes())
    else:
        path.write_bytes(sealed(unsealed(path.read_bytes()) | {"attempt": 3}))
    (finding,) = found(state)
    assert finding.check == "provenance"
    assert finding.level is Gravity.FAULT
    assert "cis490-jobs requeue done-twice" in finding.remedy
    change(state, "UPDATE jobs SET attempt = 3 WHERE name = 'done-twice'")  # it went on
    assert "provenance" not in checks(state), "a note is enough: the job has gone on"
    assert "provenance" in {each.check for each in found(state, notes=True)}


@pytest.mark.parametrize("how", ["gone", "torn", "short", "doubled", "strange"])
def test_the_index(state, how):
    path = state.models / "index.jsonl"
    data, old = path.read_bytes(), time.time() - 1000
    change(state, f"UPDATE artifacts SET stored_at = {old}")
    data = b"".join(
        json.dumps({**json.loads(line), "stored_at": old}, separators=(",", ":")).encode() + b"\n"
        for line in data.splitlines()
    )
    path.write_bytes(data)
    assert found(state) == []
    lines = data.splitlines(keepends=True)
    new = {
        "gone": b"",
        "torn": data[:-5],
        "short": b"".join(lines[:-1]),
        "doubled": data + lines[-1],
        "strange": data.replace(b'"model":"gbt"', b'"model":"mlp"', 1),
    }[how]
    path.write_bytes(new)
    assert {each.check for each in found(state)} == {"index"}


def test_parts_that_nobody_will_go_on_with(state):
    incoming = state.models / "incoming"
    (claim_id,) = rows(state, f"SELECT claim_id FROM jobs WHERE job_id = {RUNS}")[0]
    mine, strange = incoming / f"{claim_id}-{'a' * 64}.part", incoming / f"c-{'a' * 64}.part"
    for path in (mine, strange):
        path.write_bytes(b"half")
    assert found(state) == [], "just written: its row may be on the way"
    hour, week = time.time() - 3600, time.time() - 9 * 86400
    os.utime(mine, (hour, hour))
    os.utime(strange, (hour, hour))
    (finding,) = found(state)
    assert "belongs to no attempt" in finding.problem
    os.utime(mine, (week, week))
    assert any("it removes such parts every hour" in each.remedy for each in found(state))


def test_what_nobody_names_is_a_note_and_what_was_put_aside_a_warning(state):
    change(state, f"DELETE FROM artifacts WHERE job_id = {TWICE} AND attempt = 1",
           f"DELETE FROM attempts WHERE job_id = {TWICE} AND attempt = 1")  # fmt: skip
    for path in (state.models / "gbt_realistic").glob("*/bundle.tar.zst"):
        os.utime(path, (1, 1))
    report = examine(state, SystemClock())
    assert [each.level for each in report.findings if each.check == "unnamed"] == [Gravity.NOTE]
    bundle = bundle_of(state, "done")
    bundle.rename(bundle.with_name("bundle.tar.zst.damaged"))
    assert {"aside", "bundles"} <= checks(state)


def test_a_store_that_is_not_there(state):
    state.models.rename(state.models.with_name("moved"))
    (finding,) = found(state)
    assert "--models-dir" in finding.remedy
    assert not state.models.exists()


# ── the machine ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(os.name != "posix", reason="Windows has no permission bits")
def test_files_that_others_may_read(state):
    state.tls.mkdir()
    (state.tls / "ca.pem").write_text("-")
    for path in (state.db, state.models / "index.jsonl", state.tls / "ca.key"):
        path.touch()
        path.chmod(0o640)
    assert [each.check for each in found(state)] == ["permissions"] * 3
    assert found(state)[0].remedy == f"chmod 600 {state.db}"


def test_room():
    path = Path("/srv")
    assert list(machine.room(2 * RESERVE_BYTES, path)) == []
    assert [each.level for each in machine.room(RESERVE_BYTES, path)] == [Gravity.WARNING]
    assert [each.level for each in machine.room(RESERVE_BYTES - 1, path)] == [Gravity.FAULT]


def test_a_log_without_an_end(state):
    class Fs:
        def size(self, path):
            return 65 * 1024**2 if path.name.endswith("-wal") else None

        def free_bytes(self, _path):
            return 10**12

    (finding,) = machine.look_at_machine(state, Fs(), EPOCH)
    assert finding.check == "wal"


DAY = 86400.0


@pytest.mark.parametrize(
    ("ends", "revoked", "said"),
    [
        (6 * DAY, None, None),
        (3 * DAY, None, "ends in 3 days"),
        (-3 * DAY, None, "ended 3 days ago"),
        (-90 * DAY, None, None),
        (-3 * DAY, 1.0, None),
    ],
)
def test_certificates_that_end(ends, revoked, said):
    row = {"role": "host", "name": "pi", "revoked_at": revoked}
    findings = list(machine.certificates([{**row, "expires_at": EPOCH + ends}], EPOCH))
    assert [said in each.problem for each in findings if said] == ([True] if said else [])
    renewed = {**row, "expires_at": EPOCH + 20 * DAY, "revoked_at": None}
    assert list(machine.certificates([{**row, "expires_at": EPOCH + ends}, renewed], EPOCH)) == []


def test_tokens_that_end():
    row = {"name": "ada", "revoked_at": None, "role": None}
    near, far = {**row, "expires_at": EPOCH + DAY}, {**row, "expires_at": EPOCH + 8 * DAY}
    assert "24 h" in next(machine.tokens([near], EPOCH)).problem
    assert list(machine.tokens([near, far], EPOCH)) == []


def test_the_authority(tmp_path):
    from training.fleet.receiver.security.authority import Authority

    folder, clock = tmp_path / "tls", FakeClock()
    assert list(machine.authority(folder, clock.now())) == []
    Authority.open(folder, clock).renew_server(["127.0.0.1"])
    assert list(machine.authority(folder, clock.now())) == []
    assert list(machine.authority(folder, clock.now() + 330 * DAY)) == []
    (ending,) = machine.authority(folder, clock.now() + 350 * DAY)
    assert "ends in 15 days" in ending.problem
    assert {each.check for each in machine.authority(folder, clock.now() + 3600 * DAY)} == {
        "authority",
        "server-certificate",
    }
    (folder / "ca.key").unlink()
    (lacking,) = machine.authority(folder, clock.now())
    assert "lacks ca.key" in lacking.problem
    assert "your own copy" in lacking.remedy


# ── the command ─────────────────────────────────────────────────────────────────────────────


def doctor(state, *more):
    return cis490_jobs("doctor", "--db", str(state.db), "--models-dir", str(state.models), *more)


def test_the_command_says_what_it_looked_at(sound):
    code, out, err = doctor(sound, "--deep")
    assert (code, err) == (0, "")
    assert "7 jobs and 3 bundles" in out
    assert "every byte was read" in out


def test_the_command_names_every_finding_and_exits_with_1(state):
    bundle_of(state, "done").unlink()
    change(state, f"UPDATE jobs SET ended_by = NULL WHERE job_id = {FAILS}")
    code, out, _ = doctor(state)
    assert code == 1
    assert "job fails failed, and its row does not say what ended it" in out
    assert "cis490-jobs requeue fails" in out
    code, out, _ = doctor(state, "--json")
    answer = json.loads(out)
    assert code == 1
    assert not answer["healthy"]
    assert {each["check"] for each in answer["findings"]} == {"bundles", "reasons"}


def test_the_command_takes_the_receivers_figures(state):
    change(state, f"UPDATE jobs SET trainer_failures = 1 WHERE job_id = {WAITS}")
    budgets = '"check": "budgets"'
    assert budgets not in doctor(state, "--json")[1]
    assert budgets in doctor(state, "--json", "--policy", "max_attempts=1")[1]
    code, _, err = doctor(state, "--policy", "max_atempts=1")
    assert code == 2
    assert "did you mean max_attempts" in err


def test_the_command_finds_the_state_in_its_folder(sound, tmp_path):
    code, out, _ = cis490_jobs("doctor", "--state-dir", str(tmp_path / "none"))
    assert code == 1
    assert str(tmp_path / "none" / "training_jobs.db") in out.replace("\n", "")
    assert not (tmp_path / "none").exists()
