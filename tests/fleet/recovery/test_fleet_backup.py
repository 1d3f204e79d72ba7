"""Backup and restore: made while the receiver works, whole or not at all, and every loss named."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from builders import a_capability
from fakes import FakeClock
from receiver_running import Receiver, job_id
from recovery_builders import (
    JOBS,
    bundle_of,
    change,
    cis490_jobs,
    claim,
    copied,
    deliver,
    flip,
    found,
    rows,
    state_in,
    tree,
)
from torture.scenes import backing_up

from training.clock import SystemClock
from training.files import LocalFs
from training.fleet.client.client import Superseded
from training.fleet.receiver.security.authority import Authority
from training.fleet.recovery.backup import Backup, Restore, content_path, read_contents, snapshots
from training.fleet.recovery.files import put_database
from training.fleet.service.state import Deployment, RecoveryError, backed_up_at, noted_beside
from training.fleet.store.provenance import sealed, unsealed
from training.locking import exclusive


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "backups"


def back_up(state, folder, **how):
    return Backup(folder).make(state, SystemClock(), **how)


def restore(folder, state, **how):
    return Restore(folder, state, SystemClock()).run(**how)


def jobs(state):
    return rows(state, "SELECT name, status, attempt, generation, artifact_id FROM jobs ORDER BY seq")


# ── there and back ──────────────────────────────────────────────────────────────────────────


def test_what_was_backed_up_comes_back_in_an_empty_place(state, folder, tmp_path):
    def all_but_the_note():
        noted = noted_beside(state.db).name
        return {path: what for path, what in tree(state.db.parent).items() if noted not in str(path)}

    before = all_but_the_note()
    made = back_up(state, folder)
    assert all_but_the_note() == before
    assert backed_up_at(state.db) == made.contents.made_at, "what the receiver's metrics say"
    assert (made.copied, made.contents.bundles, made.contents.lost) == (3, 3, [])
    new = state_in(tmp_path / "new")
    done = restore(folder, new)
    assert (done.brought, done.kept, done.lost, done.completed_since) == (3, 0, [], [])
    assert jobs(new) == jobs(state)
    assert tree(new.models) == tree(state.models)
    assert found(new, deep=True) == []
    assert sorted(path.name for path in new.db.parent.iterdir()) == ["jobs.db", "jobs.db.lock", "models"]  # fmt: skip


def test_a_second_one_copies_only_what_is_new(state, folder, tmp_path):
    first = back_up(state, folder)
    second = back_up(state, folder)
    assert (second.copied, second.contents.bundles, second.bytes_copied) == (0, 3, 0)
    assert snapshots(folder) == [first.name, second.name]
    assert second.name > first.name
    shutil.rmtree(folder / "snapshots" / second.name)
    assert restore(folder, state_in(tmp_path / "new")).snapshot == first.name


def test_it_is_made_while_the_receiver_works(tmp_path, folder):
    place, bundles = tmp_path / "state", tmp_path / "bundles"
    place.mkdir()
    bundles.mkdir()
    state = state_in(place)
    with Receiver(place, JOBS) as receiver:
        client = receiver.client("desk")
        deliver(client, claim(client), bundles, b"one")
        made = back_up(state, folder)
        deliver(client, claim(client), bundles, b"two")
    assert (made.copied, made.contents.jobs["completed"]) == (1, 1)
    new = state_in(tmp_path / "new")
    restore(folder, new)
    assert found(new, deep=True) == []


def test_only_so_many_databases_are_kept_and_every_bundle(state, folder):
    names = [back_up(state, folder, keep=2).name for _ in range(4)]
    assert snapshots(folder) == names[2:]
    assert len(list((folder / "content").rglob("?" * 64))) == len(read_contents(folder, names[-1]).files)


@pytest.mark.skipif(os.name != "posix", reason="Windows has no permission bits")
def test_nobody_else_may_read_a_backup(state, folder):
    Authority.open(state.tls, FakeClock())
    back_up(state, folder)
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert {path.name for path in files} >= {"training_jobs.db", "contents.json"}
    assert not list(folder.rglob("ca.key")), "whoever has it can act as any host"
    assert [path for path in files if path.stat().st_mode & 0o077] == []


# ── refusals ────────────────────────────────────────────────────────────────────────────────


def test_what_is_refused_changes_nothing(state, folder, tmp_path):
    other = tmp_path / "photographs"
    other.mkdir()
    (other / "cat.jpg").write_bytes(b"cat")
    refused = [
        ("choose a folder of its own", lambda: back_up(state, other)),
        ("is inside the store itself", lambda: back_up(state, state.models / "backup")),
        ("there is no database", lambda: back_up(state_in(tmp_path / "new"), folder)),
        ("holds no finished backup", lambda: restore(other, state_in(tmp_path / "new"))),
        ("holds no finished backup", lambda: restore(begun, state_in(tmp_path / "new"))),
    ]
    begun = tmp_path / "begun"
    Backup(begun)._open()
    for words, call in refused:
        with pytest.raises(RecoveryError, match=words):
            call()
    photograph = replace(state, db=other / "cat.jpg")
    with pytest.raises(RecoveryError, match="is damaged, or is none"):
        back_up(photograph, folder)
    assert not folder.exists(), "what is refused leaves no folder behind"
    back_up(state, folder)
    before = tree(state.db.parent)
    with pytest.raises(RecoveryError, match="--force keeps it beside"):
        restore(folder, state)
    with pytest.raises(RecoveryError, match="no backup called yesterday"):
        restore(folder, state, force=True, snapshot="yesterday")
    with exclusive(state.db.with_name("jobs.db.lock")), pytest.raises(RecoveryError, match="stop the receiver"):
        restore(folder, state, force=True)
    assert tree(state.db.parent) == before
    assert tree(other) == {"cat.jpg": b"cat"}


def test_a_damaged_database_gets_no_backup_and_leaves_the_last_one(state, folder):
    first = back_up(state, folder)
    data = bytearray(state.db.read_bytes())
    data[len(data) // 2 :] = b"\xff" * (len(data) - len(data) // 2)
    state.db.write_bytes(data)
    with pytest.raises(RecoveryError, match="earlier backups are untouched"):
        back_up(state, folder)
    assert snapshots(folder) == [first.name]


def test_a_damaged_backup_is_not_restored(state, folder, tmp_path):
    first, second = back_up(state, folder), back_up(state, folder)
    flip(folder / "snapshots" / second.name / "training_jobs.db")
    new = state_in(tmp_path / "new")
    with pytest.raises(RecoveryError, match="is damaged; choose another with --snapshot"):
        restore(folder, new)
    assert not new.db.exists()
    restore(folder, new, snapshot=first.name)
    assert jobs(new) == jobs(state)
    contents = folder / "snapshots" / second.name / "contents.json"
    contents.write_bytes(contents.read_bytes()[:-9])
    with pytest.raises(RecoveryError, match=r"cannot be read .*; choose another"):
        restore(folder, new, force=True)


def test_backups_of_another_form_are_refused(state, folder, tmp_path):
    contents = folder / "snapshots" / back_up(state, folder).name / "contents.json"
    contents.unlink()
    with pytest.raises(RecoveryError, match=r"cannot be read .*; choose another with --snapshot"):
        restore(folder, state_in(tmp_path / "new"))
    (folder / "backup.json").write_bytes(b'{"format":1}\n')
    for act in (lambda: back_up(state, folder), lambda: restore(folder, state_in(tmp_path / "new"))):
        with pytest.raises(RecoveryError, match="holds backups of another form; use the program that made them"):
            act()


@pytest.fixture
def backed_up(state, folder):
    back_up(state, folder)


def test_a_database_of_another_shape_is_not_restored(state, folder, backed_up, monkeypatch):
    monkeypatch.setattr("training.fleet.database.sqlite.SCHEMA_VERSION", 0)
    with pytest.raises(RecoveryError) as refused:
        restore(folder, state, force=True)
    assert "restore it with the program that made it" in str(refused.value)
    assert "rebuild" not in str(refused.value), "that would put the good database aside"


def test_two_backups_into_one_folder_at_once(state, folder, backed_up):
    with (
        exclusive(next(folder.glob("*.lock"))),
        pytest.raises(RecoveryError, match=r"another backup into .* is being made"),
    ):
        back_up(state, folder)


def test_a_store_whose_mark_is_damaged_gets_no_restore(backed_up, folder, tmp_path):
    new = state_in(tmp_path / "new")
    new.models.mkdir(parents=True)
    (new.models / "database.json").write_bytes(b"junk")
    with pytest.raises(RecoveryError, match=r"does not name the database .* untouched"):
        restore(folder, new)


def test_what_is_damaged_in_the_backup_too_is_named(state, folder, tmp_path):
    made = back_up(state, folder)
    bundle = bundle_of(state, "done-twice").relative_to(state.models)
    (note,) = (each for each in made.contents.files if each.startswith(f"{bundle.parent.as_posix()}/provenance/"))
    for path in (bundle.as_posix(), note):
        flip(content_path(folder, made.contents.files[path]))
    lost = restore(folder, state_in(tmp_path / "new")).lost
    assert lost == [f"{path} is damaged or gone in the backup, too" for path in (bundle.as_posix(), note)]


def test_a_database_is_put_in_place_whole_and_each_old_one_is_kept(tmp_path):
    state = state_in(tmp_path)
    with pytest.raises(OSError, match="could not be finished"):
        put_database(state, FakeClock(), lambda new: Path(f"{new}-wal").touch())
    assert list(tmp_path.iterdir()) == []
    kept = [put_database(state, FakeClock(), lambda new, n=n: new.write_bytes(b"%d" % n)) for n in range(4)]
    first = kept[1]
    assert kept == [None, first, Path(f"{first}-2"), Path(f"{first}-3")]
    assert [each.read_bytes() for each in (*kept[1:], state.db) if each] == [b"0", b"1", b"2", b"3"]


# ── losses ──────────────────────────────────────────────────────────────────────────────────


def test_what_the_store_has_lost_is_named_and_never_copied_over_what_is_good(state, folder, backed_up, tmp_path):
    flip(bundle_of(state, "done-twice"))
    bundle_of(state, "done").unlink()
    (sidecar,) = (bundle_of(state, "done-twice").parent / "provenance").iterdir()
    flip(sidecar)
    assert back_up(state, folder).contents.lost == []
    done = restore(folder, state, force=True)
    assert (done.brought, done.kept) == (2, 1)
    assert found(state, deep=True) == []
    shutil.rmtree(folder)
    flip(bundle_of(state, "done-twice"))
    bundle_of(state, "done").unlink()
    fresh = back_up(state, folder)
    assert sorted(each.split(" ", 5)[-1] for each in fresh.contents.lost) == [
        "is damaged in the store",
        "is not in the store",
    ]
    assert len(restore(folder, state_in(tmp_path / "new")).lost) == 2


def test_what_the_store_lost_since_the_last_snapshot_is_in_the_next(state, folder, backed_up):
    (sidecar,) = (bundle_of(state, "done-twice").parent / "provenance").iterdir()
    later = Path(shutil.copy(sidecar, sidecar.with_name("later.json")))
    path = later.relative_to(state.models).as_posix()
    assert path in back_up(state, folder).contents.files
    later.unlink()
    assert path in back_up(state, folder).contents.files


# ── since then ──────────────────────────────────────────────────────────────────────────────


def test_work_completed_since_is_taken_back_and_what_else_happened_is_forgotten(tmp_path, folder):
    place, bundles = tmp_path / "state", tmp_path / "bundles"
    place.mkdir()
    bundles.mkdir()
    state = state_in(place)
    with Receiver(place, JOBS) as receiver:
        client, pi = receiver.client("desk"), receiver.client("pi")
        deliver(client, claim(client), bundles, b"one")
        running = claim(client)  # "done": completed after the backup by the claim that lives now
        client.heartbeat(running.job_id)
        lost = claim(pi)  # "done-twice": fails after the backup, then a later attempt completes it
        columns = "code_sha256, role, name, created_at, expires_at"
        change(state, f"INSERT INTO invitations ({columns}) VALUES ('c', 'host', 'laptop', 1, 2)")
        back_up(state, folder)
        deliver(client, running, bundles, b"two")
        pi.fail(lost.job_id, error="it broke", exit_code=1)
        change(state, f"UPDATE jobs SET claimable_at = 0, avoid_host = '' WHERE job_id = '{lost.job_id}'")
        deliver(client, claim(client), bundles, b"three")
        fails = claim(pi)  # "fails": completed, requeued, and completed again
        deliver(pi, fails, bundles, b"four")
        client.requeue("fails")
        deliver(pi, claim(pi), bundles, b"five")
        client.cancel("runs")
    after = jobs(state)
    done = restore(folder, state, force=True)
    assert sorted(done.completed_since) == ["done", "done-twice", "fails", "fails"]
    assert [each.sentence for each in found(state, deep=True)] == []
    status = {name: status for name, status, *_ in jobs(state)}
    assert status == {**{name: status for name, status, *_ in after}, "runs": "pending"}
    assert [row for row in jobs(state) if row[0] != "runs"] == [row for row in after if row[0] != "runs"]  # fmt: skip
    assert rows(state, "SELECT count(*) FROM invitations") == [(0,)]
    assert jobs(Deployment(done.aside, state.models, state.tls)) == after


@pytest.mark.skipif(os.name != "posix", reason="kills POSIX processes")
def test_a_backup_that_is_killed_never_passes_for_one_and_the_next_is_whole():
    backing_up("database.copied", random.Random(0))


@pytest.mark.parametrize("readable", [True, False])
def test_what_a_killed_receiver_had_only_in_its_log_is_kept_beside(state, folder, backed_up, tmp_path, readable):
    killed = tmp_path / "killed"
    with closing(sqlite3.connect(state.db, isolation_level=None)) as connection:
        connection.execute("UPDATE jobs SET priority = 77 WHERE name = 'waits'")
        shutil.copytree(state.db.parent, killed)
    here = state_in(killed)
    assert (killed / "jobs.db-wal").stat().st_size > 0
    if not readable:
        here.db.write_bytes(b"")
    done = restore(folder, here, force=True)
    assert done.aside is not None
    assert rows(here, "SELECT count(*) FROM jobs WHERE priority = 77") == [(0,)]
    assert found(here, deep=True) == []
    if readable:
        aside = Deployment(done.aside, here.models, here.tls)
        assert rows(aside, "SELECT name FROM jobs WHERE priority = 77") == [("waits",)]
    else:
        assert Path(f"{done.aside}-wal").stat().st_size > 0


def test_a_worker_goes_on_after_a_restore(state, folder):
    (claim_id,) = rows(state, "SELECT claim_id FROM jobs WHERE name = 'runs'")[0]
    back_up(state, folder)
    shutil.rmtree(state.models)
    state.db.unlink()
    restore(folder, state)
    with Receiver(state.db.parent, JOBS) as receiver:
        runs = job_id({"name": "runs"})
        assert receiver.client("desk").heartbeat(runs, claim_id=claim_id, seq=9).action == "continue"
        with pytest.raises(Superseded):
            receiver.client("desk").heartbeat(runs, claim_id="unknown-to-the-copy", seq=9)
        assert receiver.client("pi").claim(a_capability()) is not None


def test_provenance_that_is_sound_here_is_not_missed_in_the_backup(state, folder, backed_up):
    for copy in (folder / "content").rglob("?" * 64):
        flip(copy)
    assert restore(folder, state, force=True).lost == []


def test_a_cancelled_job_stays_cancelled(state, folder, backed_up):
    bundle = bundle_of(state, "done-twice").parent
    (sidecar,) = (bundle / "provenance").iterdir()
    said = unsealed(sidecar.read_bytes())
    cancelled = job_id({"name": "is-cancelled"})
    spec = {**said["spec"], "job_id": cancelled, "name": "is-cancelled"}
    said |= {"job_id": cancelled, "attempt": 1, "generation": 1, "spec": spec, "claim_id": "late"}
    (bundle / "provenance" / f"{cancelled}-1.json").write_bytes(sealed(said))
    assert restore(folder, state, force=True).completed_since == []
    assert ("is-cancelled", "cancelled") in [row[:2] for row in jobs(state)]


# ── cut off ─────────────────────────────────────────────────────────────────────────────────


class CutError(Exception):
    """The power went."""


class FailingFs(LocalFs):
    """A disk in a machine whose power goes at the n-th write."""

    def __init__(self, nth):
        super().__init__()
        self.left = nth

    def __getattribute__(self, name):
        if name in ("write", "fsync", "replace", "rename_new", "sync_folder"):
            self.left -= 1
            if self.left == 0:
                raise CutError
        return super().__getattribute__(name)


def cuts(call):
    """Do it with the power going at ever later steps, until nothing is cut off any more; returns how many were."""
    for nth in range(1, 1000):
        try:
            call(FailingFs(nth))
        except CutError:
            continue
        return nth - 1
    raise AssertionError("it never ends")


def test_a_first_backup_that_was_cut_off_at_its_beginning_is_begun_again(state, folder):
    assert cuts(lambda fs: Backup(folder, fs)._open()) >= 4
    (folder / "backup.json").unlink()
    (folder / "snapshots" / "of others").mkdir()
    with pytest.raises(RecoveryError, match="holds no backups"):
        back_up(state, folder)
    (folder / "snapshots" / "of others").rmdir()
    assert snapshots(folder) == []
    made = back_up(state, folder)
    assert snapshots(folder) == [made.name]


def test_the_name_of_a_snapshot_is_flushed(state, folder):
    fs = mock.Mock(wraps=LocalFs())
    named = folder / "snapshots" / Backup(folder, fs).make(state, SystemClock()).name
    calls = fs.method_calls
    at = calls.index(mock.call.rename_new(named.with_name(f"{named.name}.part"), named))
    assert mock.call.sync_folder(named.parent) in calls[at:]


def test_a_backup_cut_off_at_any_step_is_never_taken_for_one(state, folder, tmp_path):
    shutil.rmtree(state.models / "incoming")
    first = back_up(state, folder)
    shutil.rmtree(folder / "content")
    wanted = jobs(state)

    def once(fs):
        try:
            Backup(folder, fs).make(state, SystemClock())
        finally:
            for name in snapshots(folder)[1:]:
                for sha256 in read_contents(folder, name).files.values():
                    assert content_path(folder, sha256).exists()
            assert snapshots(folder)[0] == first.name

    assert cuts(once) > 15
    new = state_in(tmp_path / "new")
    restore(folder, new)
    assert jobs(new) == wanted
    assert found(new, deep=True) == []
    assert not list(folder.rglob("*.part"))


def test_a_restore_cut_off_at_any_step_leaves_the_old_state_or_the_new(sound, folder, tmp_path):
    back_up(sound, folder)
    state = copied(sound, tmp_path / "state")
    change(state, "UPDATE jobs SET short_runs = 1 WHERE name = 'waits'")
    flip(bundle_of(state, "done"))
    old, new = jobs(state), jobs(sound)

    def once(fs):
        try:
            Restore(folder, state, SystemClock(), fs).run(force=True)
        finally:
            assert jobs(state) in (old, new)
            assert [each for each in found(state) if each.check != "index"] == []

    assert cuts(once) > 10
    assert jobs(state) == new
    assert found(state, deep=True) == []


# ── the commands ────────────────────────────────────────────────────────────────────────────


def test_the_commands(state, folder):
    where = ["--db", str(state.db), "--models-dir", str(state.models)]
    code, out, err = cis490_jobs("backup", str(folder), *where)
    assert (code, err) == (0, "")
    assert "7 jobs, 3 bundles, 3 of them new" in out
    code, _, err = cis490_jobs("restore", str(folder), *where)
    assert code == 1
    assert "--force" in err
    assert len(err.splitlines()) == 1
    bundle_of(state, "done").unlink()
    code, out, _ = cis490_jobs("backup", str(folder), *where)
    assert code == 0
    code, out, err = cis490_jobs("restore", str(folder), *where, "--force")
    assert (code, err) == (0, "")
    assert "1 bundle brought back; there already: 2" in out
    assert "all promises are kept" in out
    code, out, _ = cis490_jobs("restore", str(folder), *where, "--force", "--json")
    answer = json.loads(out)
    assert (code, answer["bundles_kept"], answer["doctor"]["healthy"]) == (0, 3, True)
