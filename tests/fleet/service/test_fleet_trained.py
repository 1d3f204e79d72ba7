"""The record of what a model was trained on: told by the worker, kept with the attempt, compared in a plan."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from builders import a_job
from hypothesis import given
from hypothesis import strategies as st
from service_running import Receiver
from wire_builders import a_grant, no_transfer, whole

from training.checkout import own_commit
from training.fleet.cli.render import render_job
from training.fleet.cli.status import render_status, status_data
from training.fleet.process.environment import planned
from training.fleet.process.supervise import SpawnFailedError
from training.fleet.scheduling.job import JobStatus, Trained
from training.fleet.scheduling.trained import CompletedModel, unlike
from training.fleet.service.hosts import Plan
from training.fleet.wire.views import HealthReply, JobDetail, JobsReply
from training.fleet.worker.attempt import TrainerAttempt, WorkerFolders
from training.fleet.worker.outbox import Outbox
from training.fleet.worker.trained_on import at_start, by_checkpoint, code_digest, note, noted
from training.fleet.worker.trainer_command import TrainerInputs

ONE, OTHER = "1" * 64, "2" * 64
COMMIT = "c" * 40
OWN = {"command": ["python", "own.py"], "outputs": ["w"]}


@pytest.fixture
def fleet():
    with closing(Receiver()) as made:
        yield made


def completed(fleet, name, record):
    fleet.deliver(fleet.granted(f"host-{name}"), name * 64, name, record=record)


def plan(fleet, *names):
    fleet.queue.sync_from_manifest(a_job(name, priority=-place) for place, name in enumerate(names))


def trained(data, code=ONE):
    return {"trained": {"data": data, "code": code, "commit": COMMIT}}


def text(renderable):
    from rich.console import Console

    console = Console(width=200)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_a_completion_tells_what_its_model_was_trained_on(fleet):
    plan(fleet, "a")
    completed(fleet, "a", trained(ONE, OTHER))
    told = {"data": ONE, "code": OTHER, "commit": COMMIT}
    (view,) = fleet.views.jobs().jobs
    assert view.status == JobStatus.COMPLETED
    assert view.trained == told
    detail = fleet.views.job(view.job_id)
    assert (detail.job.trained, detail.attempts[0].trained) == (told, told)
    shown = text(render_job(whole(JobDetail, job={"trained": told, "status": "completed"})))
    assert f"data {ONE[:12]}, code {OTHER[:12]}, commit {COMMIT[:12]}" in shown


@pytest.mark.parametrize("record", [None, {}, {"trained": 1}, {"trained": {"data": "x", "code": 3, "commit": ["c"]}}])
def test_what_nobody_told_is_not_known(fleet, record):
    plan(fleet, "a")
    completed(fleet, "a", record)
    (view,) = fleet.views.jobs().jobs
    assert view.trained is None
    assert fleet.views.jobs().unlike == []
    assert "data not known" in text(render_job(whole(JobDetail, job={"status": "completed"})))


def test_status_says_that_completed_jobs_were_trained_on_unlike_data(fleet):
    plan(fleet, "a", "b", "c")
    completed(fleet, "a", trained(ONE))
    completed(fleet, "b", trained(ONE))
    assert fleet.views.jobs().unlike == []
    completed(fleet, "c", trained(OTHER))
    (sentence,) = fleet.views.jobs().unlike
    assert "completed jobs of this plan were trained on 2 different data sets" in sentence
    assert f"{ONE[:12]}: a, b; {OTHER[:12]}: c" in sentence
    health = whole(HealthReply)
    data = status_data([], whole(JobsReply, unlike=[sentence]), health, whole=True)
    assert "2 different data sets" in text(render_status(data, health))
    plan(fleet, "a", "b")  # what left the plan is no longer compared
    assert fleet.views.jobs().unlike == []


def test_unlike_code_is_said_too(fleet):
    plan(fleet, "a", "b")
    completed(fleet, "a", trained(ONE, ONE))
    completed(fleet, "b", trained(ONE, OTHER))
    (sentence,) = fleet.views.jobs().unlike
    assert "2 different versions of code" in sentence


def test_only_what_should_be_alike_is_compared():
    pinned = [
        CompletedModel("a", {"dataset": "x"}, Trained(data=ONE, code=ONE)),
        CompletedModel("b", {"dataset": "y"}, Trained(data=OTHER, code=ONE)),
        CompletedModel("c", {"model": "own", "trainer": OWN}, Trained(data=None, code=OTHER)),
        CompletedModel("d", {"dataset": "x"}, Trained()),  # of a worker of before: not known, and not unlike
    ]
    assert unlike(pinned) == []


@given(st.dictionaries(st.text(max_size=3) | st.just("trained"), st.integers() | st.text() | st.none()))
def test_any_record_can_be_read(record):
    assert Trained.of(record) == Trained()


def test_completed_jobs_that_were_adopted_tell_it_as_well(fleet):
    plan(fleet, "a")
    fleet.granted()
    fleet.queue.sweep_stale(stale_after_s=-1)
    fleet.queue.moves.adopt(fleet.job("a"), fleet.attempt("a"), "a" * 64, trained(ONE))
    (view,) = fleet.views.jobs().jobs
    assert view.trained["data"] == ONE


# ── the worker's side ───────────────────────────────────────────────────────────────────────


def inputs(folder):
    return TrainerInputs(folder / "python", folder / "v", folder / "s", folder / "tensors")


def test_code_of_ones_own_is_the_files_that_the_command_names(tmp_path):
    (tmp_path / "own.py").write_text("one")
    before = code_digest(["python", "own.py", "--fast"], tmp_path)
    (tmp_path / "other.py").write_text("besides")
    assert code_digest(["python", "own.py", "--fast"], tmp_path) == before
    (tmp_path / "own.py").write_bytes(b"one\r\ntwo\r\n")
    on_windows = code_digest(["python", "own.py"], tmp_path)
    (tmp_path / "own.py").write_bytes(b"one\ntwo\n")
    assert code_digest(["python", "own.py"], tmp_path) == on_windows
    (tmp_path / "own.py").write_text("two")
    assert code_digest(["python", "own.py"], tmp_path) != before
    assert code_digest(["python", "/usr/bin/own"], tmp_path) == ""


def test_code_of_a_module_is_its_file_or_its_package(tmp_path):
    package = tmp_path / "mine" / "models"
    package.mkdir(parents=True)
    (package / "net.py").write_text("net")
    found = {code_digest(["python", "-m", name], tmp_path) for name in ("mine.models.net", "mine")}
    assert "" not in found
    before = code_digest(["python", "-m", "mine"], tmp_path)
    (package / "net.py").write_bytes(b"net\r\n")
    assert code_digest(["python", "-m", "mine"], tmp_path) != before


def test_a_trainer_of_ones_own_is_told_by_what_it_was_started_on(tmp_path):
    (tmp_path / "own.py").write_text("one")
    (tmp_path / "tensors").mkdir()
    (tmp_path / "tensors" / "manifest.json").write_text(json.dumps({"data_digest": ONE}))
    spec = {"model": "own", "trainer": OWN}
    found = at_start(spec, inputs(tmp_path), tmp_path)
    assert found == {"data": ONE, "code": code_digest(["own.py"], tmp_path), "commit": own_commit()}
    note(tmp_path / "note", found)
    assert noted(tmp_path / "note") == found
    (tmp_path / "tensors" / "manifest.json").write_text("[1")
    assert at_start({"dataset": OTHER, **spec}, inputs(tmp_path), tmp_path)["data"] == OTHER


def test_our_trainers_say_it_themselves(tmp_path):
    checkpoint = tmp_path / "gbt_oracle.ckpt.json"
    assert by_checkpoint(checkpoint) == {}
    checkpoint.write_text(json.dumps({"run_key": {"data": ONE, "code": OTHER, "cpu": {}}}))
    assert by_checkpoint(checkpoint) == {"data": ONE, "code": OTHER}


def test_a_worker_notes_what_it_starts_on_and_its_trainers_word_goes_before(tmp_path):
    class Nothing:
        def start(self, _):
            raise SpawnFailedError("no such interpreter")

    (tmp_path / "tensors").mkdir()
    (tmp_path / "tensors" / "manifest.json").write_text(json.dumps({"data_digest": ONE}))
    places = WorkerFolders(tmp_path, inputs(tmp_path), tmp_path / "artifacts", tmp_path / "reports")
    for path in (places.inputs.validation, places.inputs.summary, places.inputs.schema):
        path.touch()
    job = a_grant(job_id="a" * 64, claim_id="b" * 32, spec=a_job("one"))
    outbox = Outbox(tmp_path / "outbox")
    resume = tmp_path / "resume"
    transfer = no_transfer(job, resume)
    attempt = TrainerAttempt(job, places, resume, outbox, Nothing(), lambda _: None, transfer=transfer)
    with pytest.raises(SpawnFailedError):
        attempt._run()
    folders = attempt._folders
    assert attempt._trained(folders) == {"data": ONE, "commit": own_commit()}
    checkpoint = folders.out / f"{job.model}_{job.mode}.ckpt.json"
    checkpoint.write_text(json.dumps({"run_key": {"data": OTHER, "code": ONE}}))
    assert attempt._trained(folders) == {"data": OTHER, "code": ONE, "commit": own_commit()}


# ── a GPU that the plan hides ───────────────────────────────────────────────────────────────


def test_a_hidden_gpu_is_hidden_from_the_trainer_too(fleet):
    hidden = {"cuda": False, "env": {"CUDA_VISIBLE_DEVICES": "1", "HF_HOME": "/data"}}
    fleet.service.host_registry.plan = Plan(hosts={"dark": hidden, "light": {"cuda": True}})
    plan(fleet, "a", "b")
    dark, light = (fleet.ask(name) for name in ("dark", "light"))
    assert dark.env == {"CUDA_VISIBLE_DEVICES": "-1", "HF_HOME": "/data"}
    assert light.env is None
    assert planned(dark.spec or {}, dark.env or {})["CUDA_VISIBLE_DEVICES"] == "-1"


def test_a_job_that_was_trained_anew_on_other_data_is_compared_by_its_last_training(fleet):
    plan(fleet, "a")
    completed(fleet, "a", trained(ONE))
    fleet.service.requeue("a")
    completed(fleet, "a", trained(OTHER))
    (row,) = fleet.queue.db.all("kinds_trained_on")
    assert (row["data"], row["code"]) == (1, 1)
