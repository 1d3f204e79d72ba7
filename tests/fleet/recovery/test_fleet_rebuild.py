"""The database made anew from the store alone, and the drill: everything that can be lost is lost once, and named."""

from __future__ import annotations

import json
import shutil
import time
from types import SimpleNamespace

import pytest
from fakes import FakeClock
from receiver_running import Receiver, job_id
from recovery_builders import (
    JOBS,
    NAMES,
    PLAN,
    Unreadable,
    bundle_of,
    change,
    checks,
    cis490_jobs,
    claim,
    copied,
    deliver,
    flip,
    found,
    rows,
    tree,
)

from training.clock import SystemClock
from training.fleet.database.writer import DatabaseError
from training.fleet.queue.jobs import JobQueue
from training.fleet.receiver import program as receiver
from training.fleet.recovery.backup import Backup, Restore
from training.fleet.recovery.rebuild import rebuild
from training.fleet.recovery.reconcile import FinishedAttempt, Unusable, deliveries, in_order, sidecar
from training.fleet.service.state import Deployment, RecoveryError
from training.fleet.store.artifacts import Artifact, ArtifactStore
from training.fleet.store.provenance import sealed, unsealed
from training.locking import exclusive


def anew(state, *, force=False):
    return rebuild(state, PLAN, SystemClock(), force=force)


def lose_database(state):
    state.db.unlink()
    (state.models / "index.jsonl").unlink()


KNOWN = "SELECT name, status, artifact_id, attempt, generation, worker_hostname FROM jobs ORDER BY seq"


def test_completed_jobs_come_back_with_their_artifacts_and_the_others_wait(state):
    before = {row[0]: row for row in rows(state, KNOWN)}
    index = (state.models / "index.jsonl").read_text()
    lose_database(state)
    done = anew(state)
    assert (done.completed, done.pending) == (["done", "done-twice", "same-bytes"], 4)
    assert (done.unlisted, done.unusable, done.aside) == ([], [], None)
    after = {row[0]: row for row in rows(state, KNOWN)}
    assert list(after) == NAMES
    for name, row in after.items():
        assert row == (before[name] if name in done.completed else (name, "pending", None, 0, 1, None))
    assert found(state, deep=True) == []
    rebuilt = [json.loads(line) for line in (state.models / "index.jsonl").read_text().splitlines()]
    originally = [json.loads(line) for line in index.splitlines()]
    keys = ("artifact_id", "model", "mode", "size", "path")
    assert {tuple(row[key] for key in keys) for row in rebuilt} == {
        tuple(row[key] for key in keys) for row in originally
    }
    stored = {row["artifact_id"]: row["stored_at"] for row in originally}
    assert all(abs(row["stored_at"] - stored[row["artifact_id"]]) < 600 for row in rebuilt)


def test_a_database_of_another_shape_is_refused_and_a_rebuild_keeps_the_work(state):
    """Tables of another shape, made before the first release."""
    before = {row[0]: row for row in rows(state, KNOWN)}
    change(state, "PRAGMA user_version = 19", by_hand=True)
    theirs = state.db.read_bytes()
    with pytest.raises(DatabaseError, match=r"its version is 19, .*; run `cis490-jobs rebuild --force`"):
        JobQueue(state.db)
    assert state.db.read_bytes() == theirs
    done = anew(state, force=True)
    assert done.aside.read_bytes() == theirs
    assert (done.completed, done.pending) == (["done", "done-twice", "same-bytes"], 4)
    assert {row[0]: row for row in rows(state, KNOWN) if row[1] == "completed"} == {
        name: before[name] for name in done.completed
    }
    assert found(state, deep=True) == []


def test_the_history_that_is_known_is_told_with_its_times(state):
    granted = dict(rows(state, "SELECT claim_id, granted_at FROM attempts"))
    finished = "SELECT name, finished_at FROM jobs WHERE status = 'completed'"
    before = dict(rows(state, finished))
    lose_database(state)
    rebuild(state, PLAN, FakeClock(time.time() + 3000.0))
    for name, at in rows(state, finished):
        assert abs(at - before[name]) < 5, "when it was delivered, not when it was rebuilt"
    events = rows(
        state,
        "SELECT transition, to_status, attempt, detail FROM events "
        "WHERE job_id = (SELECT job_id FROM jobs WHERE name = 'done-twice') ORDER BY seq",
    )
    assert events == [
        ("insert", "pending", None, None),
        ("claim", "claimed", 1, "rebuilt"),
        ("complete", "completed", 1, None),
        ("requeue", "pending", None, None),
        ("claim", "claimed", 2, "rebuilt"),
        ("complete", "completed", 2, None),
    ]
    for claim_id, at in rows(state, "SELECT claim_id, granted_at FROM attempts"):
        assert granted[claim_id] == at
    ((record,),) = rows(state, "SELECT DISTINCT record FROM attempts")
    assert json.loads(record) == {"seconds": 3.0}


def test_what_was_granted_comes_back_whatever_the_plan_says_since(state):
    kept = set(rows(state, "SELECT claim_id, granted FROM attempts"))
    lose_database(state)
    rebuild(state, [job | {"n_resamples": 5} for job in PLAN], SystemClock())
    back = set(rows(state, "SELECT claim_id, granted FROM attempts"))
    assert back <= kept
    assert len(back) == 4, "done, same-bytes, and done-twice twice"


def test_a_receiver_goes_on_with_it(state, tmp_path):
    lose_database(state)
    anew(state)
    bundles = tmp_path / "bundles"
    bundles.mkdir()
    with Receiver(state.db.parent, JOBS) as receiver:
        client, pi = receiver.client("desk"), receiver.client("pi")
        for host in (client, client, client, pi):
            deliver(host, claim(host), bundles, b"again")
        client.requeue("done-twice")
        grant = claim(client)
        assert grant.attempt == 3, "numbers go on where they were"
        deliver(client, grant, bundles, b"third")
        assert set(client.jobs()["counts"].items()) >= {("completed", 7), ("pending", 0)}
    assert found(state, deep=True) == []


def test_a_job_that_the_manifest_no_longer_names_comes_back(state):
    lose_database(state)
    assert rebuild(state, PLAN[:3], SystemClock()).unlisted == ["done", "done-twice", "same-bytes"]
    assert {row[1] for row in rows(state, KNOWN)} == {"pending", "completed"}
    assert rows(state, "SELECT DISTINCT in_manifest FROM jobs WHERE status = 'completed'") == [(0,)]


def test_gaps_in_the_numbering_are_known_for_what_they_are(state):
    folder = bundle_of(state, "done-twice").parent
    lose_database(state)
    for path in (state.models / "gbt_realistic").iterdir():
        if path != folder and job_id({"name": "done-twice"}) in " ".join(
            each.name for each in (path / "provenance").iterdir()
        ):
            shutil.rmtree(path)
    assert "done-twice" in anew(state).completed
    assert rows(state, "SELECT attempt, generation FROM jobs WHERE name = 'done-twice'") == [(2, 2)]
    assert found(state, deep=True) == []


def test_what_is_damaged_is_named_and_its_job_trained_again(state):
    flip(bundle_of(state, "done-twice"))
    (mine,) = (bundle_of(state, "done").parent / "provenance").glob(f"{job_id({'name': 'done'})}-*")
    said = unsealed(mine.read_bytes())
    mine.write_bytes(sealed({**said, "spec": {**said["spec"], "seed": 8}}))
    lose_database(state)
    done = anew(state)
    assert sorted(each.why for each in done.unusable) == [
        "its bytes are not those that were stored",
        "its job is not the one it was written for",
    ]
    status = {row[0]: row[1:5] for row in rows(state, KNOWN)}
    assert status["same-bytes"][0] == "completed", "the bytes are shared, the provenance is not"
    assert status["done"][0] == "pending"
    # Of the older generation there is a sound bundle, which is all that is known now.
    assert (status["done-twice"][0], status["done-twice"][3]) == ("completed", 1)


@pytest.mark.parametrize(
    "change_it",
    [
        lambda body: body[:-20],
        lambda body: json.dumps(unsealed(body)).encode(),
        lambda body: body.replace(b'"desk"', b'"desl"').replace(b'"pi"', b'"pj"'),
        lambda body: sealed(unsealed(body) | {"attempt": "1"}),
        lambda body: sealed(unsealed(body) | {"attempt": 2}),
        lambda body: sealed(unsealed(body) | {"generation": 0}),
        lambda body: sealed(unsealed(body) | {"size": 1}),
        lambda body: b"[" * 100_000,
        lambda body: b"\xff" * 10,
    ],
)
def test_no_provenance_file_can_do_harm(state, change_it):
    (path,) = (bundle_of(state, "done").parent / "provenance").glob(f"{job_id({'name': 'done'})}-*")
    path.write_bytes(change_it(path.read_bytes()))
    lose_database(state)
    done = anew(state)
    assert len(done.unusable) == 1
    assert done.completed == ["done-twice", "same-bytes"]
    assert [each for each in found(state) if each.check != "provenance"] == []


@pytest.mark.parametrize("name", ["bundle.tar.zst", "-1.json"])
def test_what_cannot_be_read_is_named_and_taken_for_nothing(state, name):
    found = list(deliveries(ArtifactStore(state.models), Unreadable(name)))
    unusable = [each for each in found if isinstance(each, Unusable)]
    assert unusable
    assert {each.why for each in unusable} == {"it cannot be read: Permission denied"}
    assert len(found) - len(unusable) == (0 if name == "bundle.tar.zst" else 1)


def test_no_flipped_bit_of_a_provenance_file_changes_what_it_says(state):
    bundle = bundle_of(state, "done-twice")
    (path,) = (bundle.parent / "provenance").iterdir()
    artifact = Artifact(bundle.parent.name, "gbt", "realistic", bundle.stat().st_size)
    whole = path.read_bytes()
    told = sidecar(artifact, path.name, whole)
    assert isinstance(told, FinishedAttempt)
    seen = 0
    for position in range(8 * len(whole)):
        data = bytearray(whole)
        data[position // 8] ^= 1 << position % 8
        found = sidecar(artifact, path.name, bytes(data))
        assert isinstance(found, str) or found == told, position
        seen += isinstance(found, str)
    assert seen > 7 * len(whole), "all but those in the name of the seal itself"


def test_what_is_refused_changes_nothing(state, tmp_path):
    before = tree(state.db.parent)
    with pytest.raises(RecoveryError, match="--force keeps it beside"):
        anew(state)
    with exclusive(state.db.with_name("jobs.db.lock")), pytest.raises(RecoveryError, match="stop the receiver"):
        anew(state, force=True)
    with pytest.raises(RecoveryError, match="there is no store"):
        anew(Deployment(tmp_path / "x.db", tmp_path / "x", tmp_path / "tls"))
    assert {k: v for k, v in tree(state.db.parent).items() if not k.endswith(".lock")} == before
    assert anew(state, force=True).aside.read_bytes() == before["jobs.db"]


# ── the drill ───────────────────────────────────────────────────────────────────────────────


def test_the_drill(sound, tmp_path):
    """Lose the database; lose a bundle; flip a bit; lose both and restore: every loss is named."""
    backups, state = tmp_path / "backups", copied(sound, tmp_path / "state")
    Backup(backups).make(state, SystemClock())
    wanted = rows(state, KNOWN)

    lose_database(state)
    assert checks(state) == {"database"}
    anew(state)
    assert found(state, deep=True) == []
    assert len([row for row in rows(state, KNOWN) if row[1] == "completed"]) == 3

    bundle_of(state, "done-twice").unlink()
    (gone,) = found(state)
    assert "job done-twice" in gone.problem
    assert "is not at" in gone.problem

    flip(bundle_of(state, "done"))
    damaged = [each for each in found(state, deep=True) if "is damaged" in each.problem]
    assert len(damaged) == 1
    assert "cis490-jobs restore" in damaged[0].remedy

    shutil.rmtree(state.models)
    state.db.unlink()
    assert checks(state) == {"database", "store"}
    assert Restore(backups, state, SystemClock()).run().lost == []
    assert rows(state, KNOWN) == wanted
    assert found(state, deep=True) == []


# ── the command ─────────────────────────────────────────────────────────────────────────────

MANIFEST = """
schema_version = 1
name = "small"
[defaults]
split_recipe = "host"
train_hosts = ["lab-1"]
[[jobs]]
name = "another"
model = "gbt"
mode = "oracle"
"""


@pytest.mark.parametrize("left", [None, b""])
def test_a_receiver_does_not_begin_anew_beside_the_models_of_a_lost_database(
    state, tmp_path, left, capsys, monkeypatch
):
    monkeypatch.setattr(receiver.Server, "run", lambda *_: pytest.fail("it serves"))
    manifest = tmp_path / "plan.toml"
    manifest.write_text(MANIFEST, encoding="utf-8")
    state.db.unlink()
    if left is not None:
        state.db.write_bytes(left)
    before = tree(state.models)
    where = ["--db", str(state.db), "--models-dir", str(state.models), "--manifest", str(manifest)]
    assert receiver.main(["--port", "0", *where]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    typed = f" --db {state.db} --models-dir {state.models}"
    assert f"`cis490-jobs restore FOLDER{typed}`" in said
    assert f"`cis490-jobs rebuild{typed} --manifest {manifest}`" in said
    assert state.db.exists() == (left is not None)
    assert tree(state.models) == before


def test_the_command(state, tmp_path):
    manifest = tmp_path / "plan.toml"
    manifest.write_text(MANIFEST, encoding="utf-8")
    lose_database(state)
    where = ["--db", str(state.db), "--models-dir", str(state.models), "--manifest", str(manifest)]
    code, said, err = cis490_jobs("rebuild", *where)
    assert (code, err) == (0, "")
    assert "rebuilt: 3 jobs completed, 1 to train" in said
    assert "completed, though no longer in the manifest: done-twice" in said
    assert "not recoverable: cancelled and held jobs, and requeues" in said
    assert "all promises are kept" in said
    code, _, err = cis490_jobs("rebuild", *where)
    assert code == 1
    assert "--force" in err
    change(state, "UPDATE jobs SET priority = 3")
    manifest.write_text(MANIFEST.replace("gbt", "gbd"), encoding="utf-8")
    code, _, err = cis490_jobs("rebuild", *where, "--force")
    assert code == 1
    assert "--manifest" in err


@pytest.mark.parametrize("turned", [False, True])
def test_of_several_deliveries_of_a_job_the_last_attempts_counts(*, turned):
    """Each of a generation may lie in the store: an attempt whose host was lost may have brought its bundle."""

    def delivery(generation, attempt, delivered_at):
        said = SimpleNamespace(job_id="one", generation=generation, attempt=attempt, delivered_at=delivered_at)
        return SimpleNamespace(said=said, order=(generation, attempt))

    found = [delivery(1, 1, 50.0), delivery(1, 2, 60.0), delivery(2, 3, 70.0)]
    assert [each.order for each in in_order(found[::-1] if turned else found)] == [(1, 2), (2, 3)]
