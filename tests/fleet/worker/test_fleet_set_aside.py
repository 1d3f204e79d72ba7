"""Finished work that the receiver refuses for good is kept, named, and brought again by hand."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from builders import a_capability, a_job
from msgspec import structs
from receiver_running import Receiver, job_id
from recovery_builders import claim
from test_fleet_worker_state import JOB, Worker
from wire_builders import a_grant

from training.clock import SystemClock
from training.contract import spec_hash
from training.fleet.client.client import Cancelled, Refused, Superseded, file_sha256
from training.fleet.recovery.doctor import examine
from training.fleet.recovery.rebuild import rebuild
from training.fleet.service.state import Deployment
from training.fleet.wire.attempts import CompleteRequest, DeliverRequest
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.worker.daemon import main
from training.fleet.worker.set_aside import SetAside
from training.fleet.worker.state import events as t

FINAL = [ProblemType.LEASE_SUPERSEDED, ProblemType.JOB_CANCELLED, ProblemType.RESULT_CONFLICT, ProblemType.UNKNOWN_JOB]


# -- the worker sets it aside -------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem_type", [*FINAL, ProblemType.TOO_LARGE])
def test_the_final_word_on_finished_work_sets_it_aside_before_it_is_discarded(problem_type):
    for worker in (Worker().uploading(), Worker().completing()):
        worker.take(t.CallRefused(call=worker.call, problem_type=problem_type, detail="no"))
        kept = worker.wanted(t.KeepAside)
        assert kept.delivery.sha256 == "ab"
        assert "no" in kept.why
        discards = [n for n, one in enumerate(worker.actions) if isinstance(one, t.Discard)]
        assert all(worker.actions.index(kept) < n for n in discards)


def test_so_does_an_order_to_stop_and_a_cancel_while_it_is_packed():
    worker = Worker().uploading()
    worker.take(t.Tick(), after_s=31.0)
    worker.refuse_beat(ProblemType.JOB_CANCELLED)
    assert worker.wants(t.KeepAside)
    worker = Worker().running().ended()
    worker.take(t.Tick(), after_s=31.0)
    worker.refuse_beat(ProblemType.JOB_CANCELLED)
    worker.take(t.Packed(claim_id="claim", path="/b", sha256="ab", size=3))
    assert worker.wanted(t.KeepAside).delivery.path == "/b"
    assert worker.wants(t.Discard)


def test_what_was_delivered_or_failed_is_not():
    worker = Worker().completing()
    worker.take(t.Completed(call=worker.call))
    assert not worker.wants(t.KeepAside)
    worker = Worker().failing()
    worker.take(t.CallRefused(call=worker.call, problem_type=ProblemType.LEASE_SUPERSEDED, detail="no"))
    assert not worker.wants(t.KeepAside)


def put(aside, folder, number, size=10):
    bundle = folder / f"{number}.tar.zst"
    bundle.write_bytes(bytes([number]) * size)
    assignment = structs.replace(JOB, job_id=f"job{number}", claim_id=f"claim{number}", name=f"n{number}")
    delivery = t.Delivery(assignment=assignment, path=str(bundle), sha256=file_sha256(bundle), size=size)
    return aside.put(delivery, "no more", 1000.0 + number)


def test_it_lies_in_a_dated_folder_and_the_oldest_goes_when_it_is_full(tmp_path):
    aside = SetAside(tmp_path / "aside", bytes_max=25)
    assert put(aside, tmp_path, 1).name == "19700101T001641Z-job1-claim1"
    assert not (tmp_path / "1.tar.zst").exists()
    (one,) = aside.kept()
    assert (one.why, one.delivery.assignment.name) == ("no more", "n1")
    assert Path(one.delivery.path).read_bytes() == b"\x01" * 10
    put(aside, tmp_path, 2)
    put(aside, tmp_path, 3)
    assert [one.delivery.assignment.name for one in aside.kept()] == ["n2", "n3"]
    put(aside, tmp_path, 4, size=1000)
    assert [one.delivery.assignment.name for one in aside.kept()] == ["n4"], "never the newest"
    assert [one.folder for one in aside.named("n4")] == [aside.kept()[0].folder]
    assert aside.named("") == aside.named("n1") == []
    (tmp_path / "link").symlink_to(aside.folder)
    assert [one.delivery.assignment.name for one in SetAside(tmp_path / "link").kept()] == ["n4"]
    shutil.copytree(aside.kept()[0].folder, aside.folder / "19700101T002000Z-job5-claim5")
    assert len(aside.kept()) == 1, "a note that names the bundle of another folder"
    (aside.kept()[0].folder / "work.json").write_text("[")
    assert aside.kept() == []


# -- the receiver -------------------------------------------------------------------------------------------------


@pytest.fixture
def bundle(tmp_path):
    path = tmp_path / "b.tar.zst"
    path.write_bytes(b"finished" * 100)
    return path


def by_hand(client, bundle, claim_id, job, **other):
    how = {"spec_hash": spec_hash(job), "artifact_id": file_sha256(bundle), **other}
    return client.deliver(job_id(job), bundle, claim_id=claim_id, **how)


ONE = a_job("one")


def superseded(receiver):
    """A claim whose job was requeued under it, and waits."""
    pi = receiver.client("pi")
    grant = claim(pi)
    pi.requeue("one")
    return grant


def test_a_job_that_waits_is_completed_by_it(tmp_path, bundle):
    with Receiver(tmp_path, [ONE]) as receiver:
        grant = superseded(receiver)
        pi = receiver.client("pi")
        with pytest.raises(Refused):
            pi.upload_artifact(grant.job_id, bundle, claim_id=grant.claim_id)
        receipt = by_hand(pi, bundle, grant.claim_id, ONE, record={"seconds": 3.0})
        assert (receipt.status, receipt.attempt) == ("completed", 2)
        assert by_hand(pi, bundle, grant.claim_id, ONE) == receipt, "the answer may be lost"
        detail = pi.job("one")
        assert [each["end_reason"] for each in detail["attempts"]] == ["superseded", "completed"]
        assert detail["attempts"][1]["record"] == {"seconds": 3.0, "by_hand": grant.claim_id}
        assert [each["transition"] for each in detail["events"]][-1] == "deliver"
        pi.get_model("one", tmp_path / "got")
        assert (tmp_path / "got").read_bytes() == bundle.read_bytes()
    (sidecar,) = (tmp_path / "models").glob("*/*/provenance/*-2.json")
    assert json.loads(sidecar.read_text())["record"]["by_hand"] == grant.claim_id
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as database:
        assert database.execute("SELECT finished_at - claimed_at FROM jobs").fetchone() == (0.0,)
    state = Deployment(tmp_path / "jobs.db", tmp_path / "models", tmp_path / "tls")
    state.db.unlink()
    assert rebuild(state, [ONE | {"job_id": job_id(ONE)}], SystemClock()).completed == ["one"]


@pytest.fixture
def receiver(tmp_path):
    with Receiver(tmp_path, [ONE]) as made:
        yield made


def test_what_does_not_wait_or_is_not_the_same_or_not_theirs_is_refused(receiver, bundle):
    grant = superseded(receiver)
    pi, desk = receiver.client("pi"), receiver.client("desk")
    cases = [
        (pi, grant.claim_id, ONE, {"spec_hash": "0" * 64}, ProblemType.SPEC_MISMATCH),
        (desk, grant.claim_id, ONE, {}, ProblemType.LEASE_SUPERSEDED),
        (desk, "unknown", ONE, {}, ProblemType.WRONG_STATE),  # nobody knows that host
    ]
    for client, claim_id, job, other, problem_type in cases:
        with pytest.raises(Refused) as caught:
            by_hand(client, bundle, claim_id, job, **other)
        assert caught.value.problem_type == problem_type
    pi.cancel("one")
    with pytest.raises(Cancelled):
        by_hand(pi, bundle, grant.claim_id, ONE)
    pi.requeue("one")
    again = claim(desk)
    with pytest.raises(Refused, match=r"only one that waits .* stop the workers that would take it, requeue it"):
        by_hand(pi, bundle, grant.claim_id, ONE)
    desk.fail(again.job_id, error="e", reason="worker_shutdown")
    told = {"host_id": "pi", "claim_id": grant.claim_id, "artifact_id": "9" * 64, "spec_hash": spec_hash(ONE)}
    with pytest.raises(Refused) as caught:
        pi.call("deliver", job_id(ONE), **told)
    assert caught.value.problem_type == ProblemType.NO_ARTIFACT


def asked_about(receiver, bundle):
    """Ask to deliver by hand what a superseded attempt trained; returns what brings it."""
    grant, service = superseded(receiver), receiver.service
    request = DeliverRequest(
        host_id="pi", claim_id=grant.claim_id, artifact_id=file_sha256(bundle), spec_hash=spec_hash(ONE)
    )
    found = receiver.writer.submit(lambda: service.deliverable(grant.job_id, request)).result()
    return lambda: receiver.writer.submit(lambda: service.deliver(grant.job_id, request, found[1], 1))


def test_work_by_hand_is_refused_when_the_job_went_on_between_asking_and_bringing(receiver, bundle):
    """The provenance lies beside the bundle under the generation and the number that the attempt was to have."""
    bring, desk = asked_about(receiver, bundle), receiver.client("desk")
    desk.fail(claim(desk).job_id, error="e", reason="worker_shutdown")
    with pytest.raises(Refusal, match="has changed since"):
        bring().result()


def test_work_by_hand_is_no_result_of_the_generation_before_a_requeue():
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "b.tar.zst"
        bundle.write_bytes(b"finished")
        with Receiver(Path(folder), [ONE]) as receiver:
            bring = asked_about(receiver, bundle)
            receiver.client("pi").requeue("one")
            assert "has changed since" in str(bring().exception())


def test_one_result_of_a_job_is_taken_at_a_time(receiver, bundle):
    """Two with the same bytes write their provenance under one name, and only one of them is the attempt's."""
    grant, sequences = superseded(receiver), receiver.hub.delivery
    names = {"claim_id": grant.claim_id, "artifact_id": file_sha256(bundle)}
    deliver = partial(sequences.deliver, grant.job_id, DeliverRequest(host_id="pi", spec_hash="0" * 64, **names))
    complete = partial(sequences.complete, grant.job_id, CompleteRequest(**names))
    for first, other in product((deliver, complete), repeat=2):
        begun = first()
        next(begun)
        with pytest.raises(Refusal) as caught:
            next(other())
        assert caught.value.problem_type == ProblemType.SLOW_DOWN
        begun.close()
    next(deliver())


def test_the_same_bytes_of_another_host_complete_nothing_twice(receiver, bundle):
    grant, desk = superseded(receiver), receiver.client("desk")
    again = claim(desk)
    artifact = desk.upload_artifact(again.job_id, bundle, claim_id=again.claim_id)
    desk.complete(again.job_id, artifact_id=artifact)
    with pytest.raises(Refused, match="is completed: only one that waits"):
        by_hand(receiver.client("pi"), bundle, grant.claim_id, ONE)


def test_work_by_hand_keeps_what_it_was_granted_whatever_the_plan_says_since(receiver, bundle):
    grant, service = superseded(receiver), receiver.service
    edited = ONE | {"job_id": job_id(ONE), "n_resamples": 7}
    receiver.writer.submit(lambda: service.reload([edited], service.plan)).result()
    pi = receiver.client("pi")
    by_hand(pi, bundle, grant.claim_id, ONE)
    first, made = pi.job("one")["attempts"]
    assert made["granted"] == first["granted"]
    assert made["granted"].get("n_resamples") != 7


def test_a_claim_that_an_older_copy_does_not_know_stays_unconfirmed(receiver, bundle):
    pi = receiver.client("pi")
    pi.fail(claim(pi).job_id, error="e", reason="worker_shutdown")
    assert by_hand(pi, bundle, "granted-later", ONE).status == "unconfirmed"
    assert (receiver.status("one"), by_hand(pi, bundle, "granted-later", ONE).attempt) == ("pending", 0)
    pi.call("accept", "pi")
    assert by_hand(pi, bundle, "granted-later", ONE).attempt == 2
    refused_after_a_requeue(receiver, bundle, "granted-later")


def refused_after_a_requeue(receiver, bundle, claim_id):
    pi = receiver.client("pi")
    pi.requeue("one")
    with pytest.raises(Superseded, match="that claim completed job one before"):
        by_hand(pi, bundle, claim_id, ONE)
    assert receiver.status("one") == "pending"


@pytest.mark.parametrize("aside", [False, True])
def test_a_claim_completes_its_job_once_whatever_an_operator_says_since(receiver, bundle, aside):
    pi = receiver.client("pi")
    if aside:
        grant = superseded(receiver)
        by_hand(pi, bundle, grant.claim_id, ONE)
    else:
        grant = claim(pi)
        pi.complete(grant.job_id, artifact_id=pi.upload_artifact(grant.job_id, bundle, claim_id=grant.claim_id))
    refused_after_a_requeue(receiver, bundle, grant.claim_id)


def test_workers_and_the_doctor_name_it(tmp_path):
    work = {"job_id": job_id(ONE), "name": "one", "size": 9, "why": "the job was requeued"}
    with Receiver(tmp_path, [ONE]) as receiver:
        pi = receiver.client("pi")
        grant = pi.claim(a_capability(), set_aside=[work])
        assert pi.workers()["workers"][0]["set_aside"] == ["one"]

        def found():
            state = Deployment(tmp_path / "jobs.db", tmp_path / "models", tmp_path / "tls")
            report = examine(state, SystemClock())
            return [(one.level, one.sentence) for one in report.findings if one.check == "set_aside"]

        ((level, sentence),) = found()
        assert (level, "work of job one that" in sentence) == ("note", True)
        pi.fail(grant.job_id, error="e", reason="worker_shutdown")
        ((level, sentence),) = found()
        assert level == "warning"
        assert f"--deliver {job_id(ONE)[:12]}" in sentence
        pi.claim(a_capability(), session_id="0000000002-a", instance_id="i")
        assert pi.workers()["workers"][0]["set_aside"] == []


# -- the program --------------------------------------------------------------------------------------------------


def test_deliver_on_that_machine(tmp_path, bundle, capsys):
    aside = SetAside(tmp_path / "worker" / "set-aside")
    folder = tmp_path / "receiver"
    folder.mkdir()
    with Receiver(folder, [ONE]) as receiver:
        grant = superseded(receiver)
        assignment = a_grant(job_id=grant.job_id, claim_id=grant.claim_id, name="one", spec=grant.spec)
        delivery = t.Delivery(
            assignment=assignment, path=str(bundle), sha256=file_sha256(bundle), size=bundle.stat().st_size
        )
        aside.put(delivery, "requeued", 0.0)
        flags = ["--receiver-url", receiver.url, "--host-id", "pi"]
        flags += ["--state-dir", str(tmp_path / "worker"), "--repo-root", str(tmp_path), "--debuggable"]
        assert main([*flags, "--deliver", "two"]) == 2
        assert "nothing of 'two' is kept" in capsys.readouterr().err
        receiver.client().cancel("one")
        assert main([*flags, "--deliver", "one"]) == 1
        assert "with the workers that would take it stopped; the bundle is kept in" in capsys.readouterr().err
        receiver.client().requeue("one")
        unknown = structs.replace(assignment, claim_id="unknown", name="strange")
        copy = replace(delivery, assignment=unknown, path=shutil.copy(aside.kept()[0].delivery.path, tmp_path / "copy"))
        strange = aside.put(copy, "lost", 1.0)
        assert main([*flags, "--deliver", "strange"]) == 75
        assert "an operator there must accept it; the bundle is kept in" in capsys.readouterr().err
        shutil.rmtree(strange)
        assert main([*flags, "--deliver", grant.job_id[:12]]) == 0
        assert "one is completed with the model that was kept here" in capsys.readouterr().out
        assert aside.kept() == []
        assert receiver.client().job("one")["job"]["status"] == "completed"
    assert main([*flags, "--deliver", "one"]) == 2


def test_what_cannot_be_delivered_now_is_to_be_tried_again(tmp_path, bundle):
    aside = SetAside(tmp_path / "set-aside")
    sha256 = file_sha256(bundle)
    aside.put(t.Delivery(assignment=JOB, path=str(bundle), sha256=sha256, size=3), "requeued", 0.0)
    flags = ["--receiver-url", "http://127.0.0.1:9", "--host-id", "pi"]
    flags += ["--state-dir", str(tmp_path), "--repo-root", str(tmp_path), "--debuggable"]
    assert main([*flags, "--deliver", JOB.name]) == 75
    assert len(aside.kept()) == 1
