"""Reports over HTTP: kept beside their bundles before the job is completed, found again, never believed."""

import hashlib
import io
import json

import pytest
from builders import a_capability, a_job
from receiver_running import Receiver, Wire, job_id
from shown_fleet import a_report

from training.clock import SystemClock
from training.fleet.cli.context import CommandContext
from training.fleet.cli.program import main
from training.fleet.client.client import Refused
from training.fleet.recovery.backup import Backup, Restore
from training.fleet.recovery.doctor import examine
from training.fleet.recovery.rebuild import rebuild
from training.fleet.service.hosts import Plan
from training.fleet.service.retention import note_removed
from training.fleet.service.state import Deployment
from training.fleet.store.artifacts import Artifact, Removed
from training.fleet.wire import results
from training.fleet.wire.constants import REPORT_BYTES_MAX
from training.fleet.wire.words import name_of_test
from training.fleet.worker.reports import beside, keep, read

REPORT = json.dumps(a_report(0.937, 0.04, "caution"))


@pytest.fixture
def receiver(tmp_path):
    with Receiver(tmp_path, [a_job("one"), a_job("two", mode="oracle"), a_job("three", model="mlp")]) as found:
        yield found


def trained(receiver, report, body=b"bundle"):
    """Train the next job; returns its id."""
    client = receiver.client()
    grant = client.claim(a_capability())
    path = receiver.folder / "bundle"
    path.write_bytes(body + grant.job_id.encode())
    artifact = client.upload_artifact(grant.job_id, path)
    client.complete(grant.job_id, artifact_id=artifact, report=report)
    client.complete(grant.job_id, artifact_id=artifact, report=report, claim_id=grant.claim_id)  # the answer was lost
    return grant.job_id


def page_of(receiver, path):
    with Wire(receiver) as wire:
        status, _, body = wire.request("GET", path).answer()
    assert status == 200
    return body.decode()


def reports_in(folder):
    return sorted(folder.glob("models/*/*/reports/*.json"))


def test_a_report_is_kept_as_it_came_and_shown_in_short(receiver):
    job, bare = trained(receiver, REPORT), trained(receiver, None)
    client = receiver.client()
    (kept,) = reports_in(receiver.folder)
    assert kept.read_text() == REPORT
    assert kept.stem == hashlib.sha256(REPORT.encode()).hexdigest()
    assert client.call("report", job) == json.loads(REPORT)
    result = client.job(job)["result"]
    assert (result["auroc"]["value"], result["level"], result["bytes"]) == (0.937, "caution", len(REPORT))
    assert client.job(bare)["result"] is None
    with pytest.raises(Refused, match="no report of job two is kept here"):
        client.call("report", bare)
    found = client.models()
    assert [(each["name"], each["standing"]) for each in found["models"]] == [("one", "first")]
    assert (found["without"], [each["name"] for each in found["without_jobs"]]) == (1, ["two"])
    plan = [a_job("one"), a_job("two", model="mlp", mode="oracle")]  # another job is called so now
    receiver.writer.submit(lambda: receiver.service.reload(plan, Plan())).result()
    assert f'href="/jobs/{bare}">two</a>' in page_of(receiver, "/models")
    listed = {view["name"]: view["auroc"] for view in client.jobs()["jobs"] if view["artifact_id"]}
    assert listed["one"]["value"] == 0.937
    assert listed["two"] is None


def test_a_model_whose_test_is_not_known_is_named_apart_and_not_recommended(receiver):
    least = {"metrics": {"test": {"auroc": {"value": 0.12}}}, "verdict": ["It runs.", "It is slow."]}
    trained(receiver, json.dumps(least))
    trained(receiver, REPORT)
    client, out = receiver.client(), io.StringIO()
    assert [each["name"] for each in client.models()["tests"]][1] == "unknown test"
    context = CommandContext(connect=lambda *_: client, out=out, environ={})
    assert main(["models", "--test", "unknown", "--why"], context=context) == 0
    said = out.getvalue()
    assert "  It runs.\n  It is slow.\n" in said
    assert "Tested on unknown test. Other models were judged on other tests:\n  --test " in said
    assert ("Use " in said, "Caught" in said) == (False, False)


@pytest.mark.parametrize("report", ["no JSON", "[" * 100_000, '{"metrics": 1e400}', "é\u202e" * 1000])
def test_nonsense_completes_the_job_and_is_said_to_be_none(receiver, report):
    job = trained(receiver, report)
    assert receiver.client().job(job)["result"]["why"].startswith("not readable")
    assert reports_in(receiver.folder)[0].read_text() == report


def test_a_report_at_the_limit_is_taken_and_one_above_it_refused(receiver):
    most = '"' * REPORT_BYTES_MAX  # each is escaped on its way
    trained(receiver, most)
    with pytest.raises(Refused, match="a report may have at most 1048576 bytes"):
        trained(receiver, most + " ")
    with pytest.raises(Refused, match="the body is larger than"):
        receiver.client().complete(job_id({"name": "two"}), artifact_id="f" * 64, report=2 * most)


def test_the_leaderboard_goes_on_page_by_page(receiver):
    for auroc in (0.8, 0.9, 0.7):
        trained(receiver, json.dumps(a_report(auroc, 0.01)))
    client = receiver.client()
    page, seen = client.models(limit=1), []
    while True:
        seen += [(each["result"]["auroc"]["value"], each["standing"]) for each in page["models"]]
        if page["next_after"] is None:
            break
        page = client.models(test=page["test"], after=page["next_after"], limit=1)
    assert seen == [(0.9, "first"), (0.8, "behind"), (0.7, "behind")]
    first = client.models(limit=2)["models"]
    assert results.ranking(first, 3).startswith("Of 3 models judged on the same test the first 2 are here: two is")
    assert results.ranking(first, 2).startswith("Of 2 models judged on the same test, two is")
    twins = {each["name"]: each["twin"] for each in client.models()["models"]}
    assert (twins["one"]["name"], twins["two"]["name"], twins["three"]) == ("two", "one", None)


def test_a_twin_that_was_judged_on_other_windows_is_said_to_be(receiver):
    for data in ("d" * 64, "e" * 64):
        trained(receiver, json.dumps(a_report(0.9, run_key={"data": data})))
    (one,) = receiver.client().models()["models"]
    assert (one["twin"]["name"], one["twin"]["same_test"]) == ("two" if one["name"] == "one" else "one", False)
    assert "on another test" in page_of(receiver, "/models")
    twin = {key: one["twin"][key] for key in ("name", "mode", "job_id")}
    plan = [{**a_job("x"), **twin}]
    receiver.writer.submit(lambda: receiver.service.reload(plan, Plan())).result()
    reply = receiver.client().models()
    assert [each["name"] for each in reply["models"]] == [twin["name"]], "it opens on the present plan"
    assert [each["name"] for each in reply["tests"]] == ["local data, by host, trained on lab-1"] * 2
    assert name_of_test({"split_recipe": "sample", "seed": 7}, {}) == "local data, by sample, seed 7"
    drawn = {"split_recipe": "sample", "seed": 7, "split_seed": 0, "dataset": "d" * 64}
    assert name_of_test(drawn, {"d" * 64: "processed"}) == "processed, by sample, split_seed 0"


def test_a_model_that_retention_removed_stays_in_the_list_and_is_not_offered(receiver):
    for name in ("one", "two"):
        trained(receiver, json.dumps(a_report(0.9)), body=name.encode())
    assert page_of(receiver, "/models").count("Download") == 2
    gone = receiver.queue.get(job_id({"name": "one"}))
    artifact = Artifact(str(gone.artifact_id), gone.model, gone.mode, 1)
    receiver.writer.submit(lambda: note_removed(receiver.queue.db, Removed(artifact, 0.0, "it is too old"))).result()
    found = {each["name"]: each["removed"] for each in receiver.client().models()["models"]}
    assert found["two"] is None
    assert (found["one"]["attempt"], found["one"]["why"]) == (1, "it is too old")
    page = page_of(receiver, "/models")
    assert page.count("Download") == 1
    assert "its model was removed on 1970-01-01. it is too old" in page


def test_reports_are_in_backup_restore_rebuild_and_doctor(tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    with Receiver(tmp_path / "here", [a_job("one"), a_job("two", mode="oracle")]) as receiver:
        job = trained(receiver, REPORT)
        trained(receiver, None)
        (kept,) = reports_in(receiver.folder)
        plan = receiver.plan
    here, clock = (
        Deployment(receiver.folder / "jobs.db", receiver.folder / "models", receiver.folder / "tls"),
        SystemClock(),
    )
    Backup(tmp_path / "backup").make(here, clock)
    there = Deployment(tmp_path / "there" / "jobs.db", tmp_path / "there" / "models", tmp_path / "there" / "tls")
    Restore(tmp_path / "backup", there, clock).run()
    (brought,) = reports_in(tmp_path / "there")
    assert brought.read_text() == REPORT
    assert examine(there, clock, deep=True).findings == []
    there.db.unlink()
    rebuild(there, plan, clock)
    with Receiver(tmp_path / "there", []) as again:
        assert again.client().job(job)["result"]["auroc"]["value"] == 0.937
    kept.write_text(REPORT.replace("0.937", "0.999"))
    assert [each.check for each in examine(here, clock, deep=True).findings] == ["reports"]
    kept.unlink()
    assert "is not at" in examine(here, clock).findings[0].problem
    Restore(tmp_path / "backup", here, clock).run(force=True)
    assert kept.read_text() == REPORT


def test_a_worker_keeps_what_it_will_send_beside_the_bundle(tmp_path):
    report, bundle = tmp_path / "gbt_oracle_train.json", tmp_path / "gbt.tar.zst"
    assert keep([report], bundle) == "the trainer left none"
    report.write_text(REPORT)
    assert keep([tmp_path / "other.json", report], bundle) is None
    assert read(bundle) == REPORT
    report.write_bytes(b" " * (REPORT_BYTES_MAX + 1))
    assert keep([report], bundle) == "it is larger than 1.0 MiB, the most that is kept beside a bundle"
    assert not beside(bundle).exists()
    report.write_bytes(b"\xff")
    assert keep([report], bundle) == "it is no text"
    report.write_bytes(b"\0" * REPORT_BYTES_MAX)  # each is six when it is sent
    assert keep([report], bundle) == "it is no text"
    assert read(bundle) is None
