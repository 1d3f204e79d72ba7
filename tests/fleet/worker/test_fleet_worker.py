"""The worker's shell: its command line, its disk, its requests, and what no receiver may do to it."""

from __future__ import annotations

import argparse
import errno
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from unittest.mock import Mock

import msgspec
import pytest
from builders import SHOWN
from msgspec import structs
from odd_values import variants
from places import CHILDREN, ROOT
from wire_builders import a_grant, filled, no_transfer

from training.contract import outputs
from training.fleet.capability import describe, probe
from training.fleet.capability.probe import Capability
from training.fleet.client.client import FleetClient, Refused, Unavailable
from training.fleet.client.transport import Response, TransportError
from training.fleet.process.ended import Ended
from training.fleet.process.environment import trainer_environment
from training.fleet.process.supervise import SpawnFailedError
from training.fleet.process.usage import Used
from training.fleet.scheduling.job import EndReason
from training.fleet.wire.attempts import CompleteReply, CompleteRequest, FailRequest, HeartbeatRequest
from training.fleet.wire.constants import HEADER_DATABASE, VERSION, ProblemType
from training.fleet.wire.views import JobDetail
from training.fleet.worker import daemon, saved_states, scratch, start_check
from training.fleet.worker.attempt import (
    DISK_FLOOR_BYTES,
    LOOK_S,
    MEASURE_S,
    TrainerAttempt,
    WorkerFolders,
    measured_at,
)
from training.fleet.worker.daemon import TrainerWorker, main
from training.fleet.worker.options import _tls_dir, detect, gib, installed_digests, options_of, parser, show_devices
from training.fleet.worker.outbox import Outbox
from training.fleet.worker.requests import Asker, Calls
from training.fleet.worker.scratch import VARIABLES
from training.fleet.worker.state import events as t
from training.fleet.worker.state.exit_code import Failure, MemoryKind
from training.fleet.worker.state_folder import (
    KEPT_ATTEMPTS,
    StateFolder,
    StateFolderError,
    folders_of,
    make_folders,
    prune,
)
from training.fleet.worker.tail import OutputTail
from training.fleet.worker.trainer_command import BadSpecError, TrainerInputs, trainer_command

INPUTS = TrainerInputs(Path("/venv/python"), Path("/d/v.parquet"), Path("/d/f.parquet"), Path("/d/tensors"))
PLANNED = {"CUDA_VISIBLE_DEVICES": "7"}
JOB = a_grant(job_id="ab" * 32, claim_id="claim123456", name="gbt", spec={"model": "gbt", "mode": "oracle"})


# ── the trainer's command ───────────────────────────────────────────────────────────────────


def command(**spec):
    whole = {"model": "gbt", "mode": "realistic"} | spec
    found = trainer_command(whole, INPUTS, out_dir=Path("/o"), reports_dir=Path("/r"))
    return [Path(part).as_posix() if part.startswith(os.sep) else part for part in found]


def test_command_is_the_contracts():
    hyper = {"target_fpr": 0.05, "epochs": 60, "bf16": True, "lr": 1e-05}
    hosts = ["host-a", "host-b"]
    seeds = {"seed": 7, "split_seed": 0}
    found = command(split_recipe="host", n_resamples=200, train_hosts=hosts, test_hosts=["c"], hyper=hyper, **seeds)
    assert found == [
        *("/venv/python", "-m", "training.trainer.run", "--model", "gbt", "--mode", "realistic"),
        *("--validation", "/d/v.parquet", "--summary", "/d/f.parquet"),
        *("--schema", "/d/feature_schema_v1.json", "--tensors", "/d/tensors"),
        *("--out-dir", "/o", "--reports-dir", "/r"),
        *("--split-recipe", "host", "--n-resamples", "200", "--seed", "7", "--split-seed", "0"),
        *("--train-hosts", "host-a", "--train-hosts", "host-b", "--test-hosts", "c"),
        *("--bf16", "true", "--epochs", "60", "--lr", "1e-05", "--target-fpr", "0.05"),
    ]


def test_self_supervised_model_has_its_own_program():
    found = command(model="transformer_ssl")
    assert found[:5] == ["/venv/python", "-m", "training.trainer.run_ssl", "--mode", "realistic"]
    assert "--model" not in found


def test_trainer_of_ones_own_gets_the_same_arguments():
    own = {"command": ["python", "own.py", "--fast"], "outputs": ["{model}_{mode}.onnx"]}
    found = command(model="own", trainer=own)
    assert found[:5] == ["/venv/python", "own.py", "--fast", "--model", "own"]
    assert outputs({"model": "own", "mode": "oracle", "trainer": own}) == ["own_oracle.onnx"]
    assert command(model="own", trainer={"command": ["./own"]})[0] == "./own"


@pytest.mark.parametrize(
    "spec",
    [
        {"model": "../../etc"},
        {"model": None},
        {"mode": "a/b"},
        {"hyper": {"out dir": 1}},
        {"hyper": {"x": "--out-dir"}},
        {"train_hosts": ["-h"]},
        {"test_hosts": ["-h"]},
        {"model": "own", "trainer": {"command": []}},
    ],
)
def test_spec_that_reaches_for_more_is_refused(spec):
    with pytest.raises(BadSpecError):
        command(**spec)


def test_negative_number_is_a_value():
    assert command(hyper={"shift": -1.5})[-2:] == ["--shift", "-1.5"]


# ── the command line ────────────────────────────────────────────────────────────────────────


def options(folder, *flags):
    return options_of(parser().parse_args(["--repo-root", str(folder), *flags]))


def test_a_calibration_that_failed_is_said_once_with_what_follows(tmp_path, monkeypatch, caplog):
    found = Capability("pi", calibration={"failed": "this host's speed could not be measured: no kernel image"})
    monkeypatch.setattr(probe, "detect", lambda **_: found)
    for _ in range(2):
        assert detect(options(tmp_path)) == found.to_dict() | {"protocol": VERSION}
    assert caplog.text.count("no kernel image; until it has trained it is taken for one of middle speed") == 1


def test_defaults_are_the_documented_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("FLEET_HOST_ID", "from-the-environment")
    found = options(tmp_path)
    assert found.receiver_url == "http://10.100.0.1:8445"
    assert found.host_id == "from-the-environment"
    assert found.places.inputs.python == Path(sys.executable)
    assert found.places.artifacts == tmp_path / "artifacts" / found.host_id
    assert found.places.reports == tmp_path / "reports/eval" / found.host_id
    assert found.places.inputs.validation == tmp_path / "data/processed/validation_v1.parquet"
    assert found.places.inputs.summary == tmp_path / "data/processed/features_window_v1.parquet"
    assert found.places.inputs.schema == tmp_path / "data/processed/feature_schema_v1.json"
    assert found.places.inputs.tensors == tmp_path / "data/processed/tensor_window_v1"
    assert (found.settings.poll_s, found.settings.heartbeat_s) == (15.0, 30.0)
    assert found.settings.on_silence is t.OnSilence.CONTINUE
    assert parser().parse_args([]).repo_root == ROOT
    short = "import sys; sys.argv[0] = 'cis490 worker'; from training.fleet.worker.options import HOME; print(HOME)"
    assert subprocess.check_output([sys.executable, "-c", short], cwd=ROOT, text=True) == ".\n", "where it runs"
    assert parser().parse_args([]).log_level == "INFO"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--host-id", "a b"], "cannot be a host id"),
        (["--repo-root", "/nonexistent"], "not a folder"),
        (["--artifacts-dir", "caf\udce9"], "no text in UTF-8"),
        (["--venv-python", "nowhere/python"], "make the virtual environment first"),
        (["--venv-python", "n" * 300], "cannot be used (File name too long)"),  # as where it may not be looked at
        (["--receiver-url", "10.0.0.1:8445"], "not a receiver's address"),
    ],
)
def test_wrong_flag_is_one_sentence_and_exit_2(tmp_path, capsys, flags, words):
    assert main(["--repo-root", str(tmp_path), "--host-id", "h", *flags]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon"])
def test_durations_are_checked(value):
    with pytest.raises(SystemExit) as caught:
        parser().parse_args(["--poll-s", value])
    assert caught.value.code == 2


def closed(folder, host_id=None):
    """A state folder whose lock is given back: it can still be read and written."""
    disk = StateFolder(folder, host_id=host_id)
    disk.close()
    return disk


# ── the disk ────────────────────────────────────────────────────────────────────────────────


def test_instance_stays_and_sessions_count(tmp_path):
    first, second = closed(tmp_path), closed(tmp_path)
    assert first.instance_id == second.instance_id
    assert first.session_id[:11] == "0000000001-"
    assert second.session_id[:11] == "0000000002-"


def test_second_worker_on_the_same_state_is_refused(tmp_path):
    first = StateFolder(tmp_path)
    with pytest.raises(StateFolderError, match="another worker uses the state directory"):
        StateFolder(tmp_path)
    first.close()
    StateFolder(tmp_path).close()


def test_state_folder_that_cannot_be_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StateFolderError, match="name another with --state-dir"):
        StateFolder(tmp_path / "file" / "state")


def test_what_was_saved_comes_back(tmp_path):
    disk = closed(tmp_path)
    assert disk.load() == t.Saved()
    delivery = t.Delivery(assignment=JOB, path="/b", sha256="ab", size=3, record={"train_s": 1.5})
    failure = Failure(EndReason.TRAINER_FAILED, "no memory", 137, MemoryKind.RAM, goes_on=True)
    report = t.FailureReport(assignment=JOB, failure=failure, usage={"cpu_s": 2.0})
    for saved in (
        t.Saved(request_id="r", crashed=("a", "b")),
        t.Saved(held=JOB),
        t.Saved(delivery=delivery),
        t.Saved(report=report),
        t.Saved(),
    ):
        disk.save(saved)
        assert disk.load() == saved
    (tmp_path / "saved.json").write_text('{"request_id": "r", "delivery": null, "new": 1}')
    assert disk.load() == t.Saved(request_id="r"), "of an older version, and of a newer one"
    for damaged in (b"", b"[]", b"\xff", b"[" * 99_999, b'{"request_id": "\\ud800"}', b'{"crashed": [7]}'):
        (tmp_path / "saved.json").write_bytes(damaged)
        assert disk.load() == t.Saved()
        assert (tmp_path / "saved.corrupt").read_bytes() == damaged
        assert not (tmp_path / "saved.json").exists()


def test_each_slot_has_a_file_of_its_own(tmp_path):
    disk = closed(tmp_path, "h")
    delivery = t.Delivery(assignment=JOB, path="/b", sha256="ab", size=3)
    disk.save(t.Saved(held=JOB))
    disk.save(t.Saved(delivery=delivery), 2)
    disk.save(t.Saved(request_id="r"), 11)
    (tmp_path / "saved-x.json").write_text("{}")
    assert disk.load() == t.Saved(held=JOB)
    assert disk.load_all() == {0: disk.load(), 2: t.Saved(delivery=delivery), 11: t.Saved(request_id="r")}
    disk.save(t.Saved(), 11)
    assert not (tmp_path / "saved-11.json").exists()
    with pytest.raises(StateFolderError, match="finished work of host h"):
        StateFolder(tmp_path, host_id="other")
    disk.begin_anew()
    assert disk.load_all() == {0: t.Saved()}


def test_a_member_of_a_wrong_type_is_set_aside(tmp_path):
    """It would be sent, opened or counted with otherwise."""
    failure = Failure(EndReason.TRAINER_FAILED, "no memory", 137, MemoryKind.RAM)
    delivery = t.Delivery(assignment=JOB, path="/b", sha256="ab", size=3)
    report = t.FailureReport(assignment=JOB, failure=failure)
    whole = msgspec.to_builtins(t.Saved(request_id="r", held=JOB, delivery=delivery, report=report))
    disk = closed(tmp_path)
    for place, value, document in variants(whole):
        (tmp_path / "saved.json").write_text(json.dumps(document))
        loaded = disk.load()
        assert msgspec.convert(msgspec.to_builtins(loaded), t.Saved) == loaded, (place, value)


def test_attempts_have_fresh_folders_of_their_own(tmp_path):
    folders = folders_of(tmp_path / "a", tmp_path / "r", JOB)
    make_folders(folders)
    assert folders.out == tmp_path / "a/gbt_oracle-abababababab/attempt-1-claim123"
    assert folders.reports == tmp_path / "r/gbt_oracle-abababababab/attempt-1-claim123"
    assert folders.bundle == folders.out / f"gbt_oracle-{JOB.job_id}.tar.zst", "two attempts of a job may be here"
    (folders.out / "stale").touch()
    make_folders(folders)
    assert list(folders.out.iterdir()) == []


def test_prune_keeps_the_newest_and_what_is_not_its_own(tmp_path):
    (tmp_path / "notes-of-mine" / "attempt").mkdir(parents=True)
    for number in range(KEPT_ATTEMPTS + 5):
        folder = tmp_path / f"gbt_oracle-{number:012d}" / f"attempt-{number}-abc"
        folder.mkdir(parents=True)
        folder.with_name(f"{folder.name}.log").touch()
        (folder / "gbt_oracle-x.tar.zst.part").touch()  # by a worker killed at packing
        os.utime(folder, (number, number))
    prune(tmp_path)
    left = sorted(int(path.name.split("-")[1]) for path in tmp_path.glob("gbt*/attempt-*-abc"))
    assert left == list(range(5, KEPT_ATTEMPTS + 5))
    assert len(list(tmp_path.glob("*/*.log"))) == KEPT_ATTEMPTS
    assert not (tmp_path / "gbt_oracle-000000000000").exists()
    assert (tmp_path / "notes-of-mine").exists()
    for place in tmp_path.glob("gbt*/attempt-*-abc"):  # delivered: what it made is gone, not its log
        shutil.rmtree(place)
    for log in tmp_path.glob("*/*.log"):
        os.utime(log, (int(log.parent.name.split("-")[1]),) * 2)
    (tmp_path / "mlp_oracle-1" / "attempt-1-abc").mkdir(parents=True)
    prune(tmp_path)
    logs = sorted(int(path.parent.name.split("-")[1]) for path in tmp_path.glob("*/*.log"))
    assert logs == list(range(6, KEPT_ATTEMPTS + 5))


def _saved_states(root, *numbers, granted_by="d" * 32):
    """One of 101 bytes and more for each number, which is also when it was written."""
    for number in numbers:
        folder = root / f"{number:064d}"
        saved_states.begin(folder, granted_by)
        (folder / "saved.ckpt").write_bytes(b"x" * 100)
        for path in (folder / "saved.ckpt", folder):
            os.utime(path, (number, number))


def _left(root):
    folders = [each for each in root.iterdir() if each.is_dir()]
    assert {each.stem for each in root.iterdir()} <= {each.name for each in folders}, "a note alone"
    return sorted(int(each.name) for each in folders)


def test_saved_states_of_jobs_that_never_come_back_do_not_stay_for_ever(tmp_path):
    """An attempt that is over tidies up after the jobs that were completed elsewhere, too."""
    resume = tmp_path / "state" / "resume"
    _saved_states(resume, *range(saved_states.KEPT_MAX + 3))
    nothing = None
    places = WorkerFolders(tmp_path, nothing, tmp_path / "artifacts", tmp_path / "reports")
    mine = a_grant(job_id=f"{saved_states.KEPT_MAX + 2:064d}", claim_id="c" * 32, name="mine", attempt=1)
    folder = resume / mine.job_id
    attempt = TrainerAttempt(mine, places, folder, nothing, nothing, nothing, transfer=no_transfer(mine, folder))
    attempt.discard(job_over=False)
    assert _left(resume) == list(range(3, saved_states.KEPT_MAX + 3))
    attempt.discard(job_over=True)
    assert _left(resume) == list(range(3, saved_states.KEPT_MAX + 2))


def test_what_is_in_hand_is_not_tidied_away(tmp_path):
    root = tmp_path / "resume"
    _saved_states(root, *range(saved_states.KEPT_MAX + 2))
    held = structs.replace(JOB, job_id=f"{0:064d}", claim_id="d" * 32)
    saved_states.prune(root, in_use={saved_states.folder_of(root, held.job_id)})
    assert _left(root) == [0, *range(2, saved_states.KEPT_MAX + 2)]
    leftovers = saved_states.Leftovers(root, lambda: 1e9, lambda: {saved_states.folder_of(root, held.job_id)})
    leftovers.drop(FleetClient("http://receiver", "h", transport=SimpleNamespace(), tries=1))
    assert _left(root) == [0], "nor by age, and nobody is asked about it"
    folders = folders_of(tmp_path / "a", tmp_path / "r", held)
    make_folders(folders)
    os.utime(folders.out, (0, 0))
    for number in range(KEPT_ATTEMPTS + 1):
        other = tmp_path / "a" / f"gbt_oracle-{number:012d}" / f"attempt-{number}-abc"
        other.mkdir(parents=True)
        os.utime(other, (number + 1, number + 1))
    prune(tmp_path / "a", in_use=[held])
    assert folders.out.is_dir()
    prune(tmp_path / "a")
    assert not folders.out.exists()


def _devices(*free_gib):
    return [{"name": "gpu", "vram_free_gib": gib} for gib in free_gib]


@pytest.mark.parametrize(("slots", "env", "seen"), [(2, {}, {"0", "1"}), (1, {}, {None}), (2, PLANNED, {"7"})])
def test_a_trainer_beside_others_sees_the_gpu_that_it_is_booked_on_unless_the_plan_names_one(
    tmp_path, monkeypatch, slots, env, seen
):
    for name in (start_check.VISIBLE, *start_check.THREADS):
        monkeypatch.delenv(name, raising=False)
    receiver, runner = Receiver(), FakeRunner(None)
    worker = work(tmp_path, receiver, runner)
    worker._capability = lambda: {"cuda_devices": _devices(24.0, 24.0)}
    asked = []

    def claim(_):
        asked.append(1)
        if len(asked) > slots:
            return NOTHING
        number = str(len(asked))
        booked = {"cores": 2, "gpu": len(asked) - 1}
        granted = {"job_id": number * 64, "claim_id": number * 32, "env": env, "slots": slots, "booked": booked}
        return reply(**{**GRANT, **granted})

    receiver.routes["claim"] = claim
    stopper = threading.Thread(target=lambda: _stop_when(lambda: len(runner.processes) == slots, worker))
    stopper.start()
    assert worker.run() == 0
    stopper.join()
    assert {spec.env.get(start_check.VISIBLE) for spec in runner.specs} == seen
    assert {spec.env.get("OMP_NUM_THREADS") for spec in runner.specs} == ({"2"} if slots > 1 else {None})


def test_a_job_whose_gpu_is_taken_before_it_starts_is_handed_back(tmp_path):
    told = []

    def fail(body):
        told.append(body)
        worker.post(t.SignalReceived())
        return reply(job_id="j", status="pending")

    receiver, runner = Receiver(fail=fail), FakeRunner(None)
    booked = {"gpu": 0, "vram_gib": 6.0, "least_vram_gib": 6.0}
    receiver.routes["claim"] = once(reply(**{**GRANT, "booked": booked}), lambda: None)
    worker = work(tmp_path, receiver, runner)
    worker._capability = lambda: {"cuda_devices": _devices(2.0)}
    assert worker.run() == 0
    assert not runner.specs
    assert told[0]["reason"] == "interrupted"
    assert "GPU memory vanished before the start: 6.0 GiB wanted, 2.0 left" in told[0]["error"]


def _stop_when(condition, worker):
    while not condition():
        threading.Event().wait(0.01)
    worker.post(t.SignalReceived())


def test_saved_states_are_bounded_by_size_and_age_too(tmp_path, monkeypatch):
    _saved_states(tmp_path, 1, 2, 3)
    size = saved_states.SavedState.of(tmp_path / f"{1:064d}").bytes
    monkeypatch.setattr(saved_states, "BYTES_MAX", size)
    saved_states.prune(tmp_path)
    assert _left(tmp_path) == [2, 3], "the newest counts for nothing"
    saved_states.prune(tmp_path, 2 + saved_states.AGE_MAX_S)
    assert _left(tmp_path) == [2, 3]
    saved_states.prune(tmp_path, 3 + saved_states.AGE_MAX_S)
    assert _left(tmp_path) == [3]


def test_saved_states_of_jobs_that_were_over_elsewhere_go_while_there_is_no_work(tmp_path):
    """Asked of the database that granted the job, now and then, and on nobody else's word."""
    found = {"completed": 1, "cancelled": 2, "failed": 3, "pending": 4}
    _saved_states(tmp_path / "r", *found.values())
    by_id = {f"{number:064d}": status for status, number in found.items()}
    asked, told_by = [], ["e" * 32]

    class Told:
        def request(self, _method, path, *_, **_more):
            job_id = path.rpartition("/")[2]
            asked.append(job_id)
            shown = {HEADER_DATABASE.lower(): told_by[0]}
            if job_id not in by_id:
                return Response(404, shown, b'{"type": "unknown_job", "detail": "no such job"}')
            job = {"job_id": job_id, "status": by_id[job_id]}
            return Response(200, shown, json.dumps(filled(JobDetail, job=job)).encode())

    client = FleetClient("http://receiver", "h", transport=Told(), tries=1)
    now = [0.0]
    leftovers = saved_states.Leftovers(tmp_path / "r", lambda: now[0])
    leftovers.drop(client)
    assert _left(tmp_path / "r") == [1, 2, 3, 4], "another database answered"
    told_by[0], count = "d" * 32, len(asked)
    leftovers.drop(client)
    assert len(asked) == count, "not again so soon"
    now[0] = saved_states.ASK_EVERY_S
    _saved_states(tmp_path / "r", 5)  # nobody knows it
    _saved_states(tmp_path / "r", 6, granted_by=None)  # by an older worker
    by_id[f"{6:064d}"] = "completed"
    leftovers.drop(client)
    assert _left(tmp_path / "r") == [3, 4, 5, 6], "one that failed may be requeued"
    now[0] *= 2
    by_id[f"{7:064d}"] = "completed"
    saved_states.begin(tmp_path / "r" / f"{3:064d}", "e" * 32)  # a database that was lost since
    _saved_states(tmp_path / "r", 7)
    leftovers.drop(client)
    assert _left(tmp_path / "r") == [3, 4, 5, 6], "and it keeps the others from nothing"


@pytest.mark.parametrize(
    ("keep_s", "left"), [(None, [1, 9]), (5, [9]), (0.5, []), (-1, [1, 9]), (True, [1, 9]), ("5", [1, 9])]
)
def test_the_plan_says_how_long_saved_states_of_waiting_jobs_stay(tmp_path, keep_s, left):
    _saved_states(tmp_path / "r", 1, 9)

    class Told:
        def request(self, *_, **_more):
            told = filled(JobDetail, job={"status": "pending"}, keep_state_s=keep_s)
            return Response(200, {HEADER_DATABASE.lower(): "d" * 32}, json.dumps(told).encode())

    client = FleetClient("http://receiver", "h", transport=Told(), tries=1)
    saved_states.Leftovers(tmp_path / "r", lambda: 10.0).drop(client)
    assert _left(tmp_path / "r") == left


def test_the_doctor_names_what_grows_here_with_its_size_and_bound(tmp_path, capsys):
    _saved_states(tmp_path / "s" / "resume", 1)
    aside = tmp_path / "s" / "set-aside" / "a"
    aside.mkdir(parents=True)
    (aside / "work.json").write_bytes(b"x" * 2048)
    (aside / "elsewhere").symlink_to("/etc")
    data = tmp_path / "s" / "datasets" / "sets" / ("d" * 64)
    data.mkdir(parents=True)
    (data / "x").write_bytes(b"x" * 3072)
    flags = ["--repo-root", str(tmp_path), "--host-id", "h", "--state-dir", "s", "--debuggable"]
    assert main([*flags, "--doctor"]) == 0
    said = capsys.readouterr().out
    assert "data set dddddddddddd: 3.0 KiB are here, whole\n" in said
    assert f"{tmp_path / 's/resume'}: 2, 132 B; bound: 5 jobs, 4.0 GiB besides the newest" in said
    assert f"{aside.parent}: 2, 2.0 KiB; bound: 50 trainings and 4.0 GiB" in said
    typed = f"`cis490-trainer-worker --receiver-url http://10.100.0.1:8445 --host-id h --state-dir {tmp_path / 's'} "
    assert f"{typed}--deliver JOB` makes room" in said
    assert said.endswith("this host is well\n")


# ── the loop, against a receiver made of a function ─────────────────────────────────────────


def reply(**fields):
    return Response(200, SHOWN, json.dumps(fields).encode())


def problem(status, problem_type):
    return Response(status, SHOWN, json.dumps({"type": problem_type, "detail": f"because {problem_type}"}).encode())


def beat(_):
    return reply(action="continue", lease_s=600.0, log_next=0)


class Receiver:
    """Answers requests by a script: ``routes`` maps the last part of a path to what it does, if not to accept."""

    def __init__(self, **routes):
        self.routes = {
            "heartbeat": beat,
            "upload": lambda _: reply(artifact_id="x", job_id="j", size=1),
            "complete": lambda _: reply(job_id="j", status="completed", artifact_id="x", attempt=1),
            "fail": lambda _: reply(job_id="j", status="pending"),
        } | routes
        self.seen = []

    def request(self, method, path, headers, body, timeout_s, sink=None):
        if method == "HEAD":
            return Response(200, {**SHOWN, "upload-offset": "0"})
        name = "upload" if method == "PUT" else path.rpartition("/")[2]
        if method == "PUT":
            while body.read(65536):
                pass
            document = dict(headers)
        else:
            document = json.loads(body)
        self.seen.append((name, document))
        return self.routes[name](document)

    def bodies(self, name):
        return [body for seen, body in self.seen if seen == name]


OWN = {"command": ["python", "own.py"], "outputs": ["w"]}
SPEC = {"model": "own", "mode": "oracle", "trainer": OWN}
GRANT = {"job_id": "ab" * 32, "name": "own", "claim_id": "c" * 32, "attempt": 1, "lease_s": 600.0, "spec": SPEC}


class FakeProcess:
    """A trainer that ends as it was told to, at once or when it is stopped."""

    pid = 1

    def __init__(self, ended):
        self.ended = ended
        self.over = threading.Event()
        if ended is not None:
            self.over.set()
        self.orders = []

    def __getattr__(self, order):  # kill, pause, resume
        return lambda: self.orders.append(order)

    def wait(self, timeout_s=None):
        self.over.wait(timeout_s)
        return self.ended

    def terminate(self):
        self.orders.append("terminate")
        self.ended = Ended(code=75)
        self.over.set()

    def stop(self, grace_s):
        self.terminate()
        assert self.ended is not None
        return self.ended


class FakeRunner:
    """Starts trainers that leave the file ``w`` and end with ``code``; None: they run until stopped. ``does`` is what
    else they do."""

    def __init__(self, code=0, output=b"", does=lambda _: None):
        self.code, self.output, self.does = code, output, does
        self.specs = []
        self.processes = []

    def start(self, spec):
        self.specs.append(spec)
        spec.output.write_bytes(self.output)
        (Path(spec.argv[spec.argv.index("--out-dir") + 1]) / "w").write_bytes(b"weights")
        self.does(spec)
        ended = None if self.code is None else Ended(code=self.code)
        self.processes.append(FakeProcess(ended))
        return self.processes[-1]

    def close(self):
        pass


def work(folder, receiver, runner, **more):
    """A worker of ``receiver``; its script must post a signal at the end."""

    def client(timeout_s):
        return FleetClient("http://receiver", "h", transport=receiver, timeout_s=timeout_s)

    found = options(folder, "--host-id", "h", "--poll-s", "0.01", "--heartbeat-s", "0.05")
    told = {"capability": lambda: {"os": "x"}, "self_test": lambda: None} | more
    return TrainerWorker(found, client=client, runner=runner, **told)


NOTHING = reply(job_id=None, reason="nothing")


def once(first, then, later=NOTHING):
    """``first`` to the first request, ``later`` to the others; and then something happens."""
    asked = []

    def claim(_):
        asked.append(1)
        if len(asked) == 1:
            return first
        then()
        return later

    return claim


def train_one(worker, receiver, **change):
    """Let the worker train one job, and end."""
    receiver.routes["claim"] = once(reply(**GRANT | change), lambda: worker.post(t.SignalReceived()))
    assert worker.run() == 0


def last(worker, answer):
    """``answer``, and the worker is told to end."""

    def respond(_):
        worker.post(t.SignalReceived())
        return answer

    return respond


@pytest.fixture
def receiver():
    return Receiver()


def test_a_job_from_claim_to_receipt(receiver, tmp_path):
    runner = FakeRunner(output=b'{"event": "epoch", "epoch": 1}\nbye')
    train_one(work(tmp_path, receiver, runner, trainer_digests=lambda: {"run": "d"}), receiver)
    claim = receiver.bodies("claim")[0]
    assert claim["host_id"] == "h"
    nothing = {"bytes": 0, "bytes_max": 20 * 1024**3, "sets": []}
    assert claim["capability"] == {"os": "x", "healthy": True, "unhealthy_because": None, "data_sets": nothing}
    assert claim["trainer_digests"] == {"run": "d"}
    assert claim["session_id"].startswith("0000000001-")
    assert claim["wait_s"] == 30.0
    (sent,) = receiver.bodies("upload")
    (complete,) = receiver.bodies("complete")
    assert sent["X-Content-SHA256"] == complete["artifact_id"]
    assert complete["claim_id"] == "c" * 32
    assert complete["record"]["bundle_bytes"] > 0
    assert complete["log"] == {"first": 0, "lines": ['{"event": "epoch", "epoch": 1}', "bye"], "total": 2}
    assert runner.specs[0].cwd == tmp_path
    assert "CIS490_STATE_DIR" in runner.specs[0].env
    assert not list(tmp_path.glob("artifacts/*/*.zst")), "the receiver has it"
    assert not list(tmp_path.glob("artifacts/h/*/attempt-1-*/*")), "nor does what it was packed from"
    assert len(list(tmp_path.glob("artifacts/h/*/*.log"))) == 1
    assert not list((tmp_path / "artifacts/.worker/h/resume").iterdir())


@pytest.mark.parametrize(
    "odd",
    [
        Response(200, SHOWN, b""),
        Response(200, SHOWN, b"[]"),
        Response(200, SHOWN, b'{"job_id": "x"}'),
        Response(200, SHOWN, b'{"job_id": 7, "name": 1, "spec": 3, "claim_id": 1, "attempt": "a", "lease_s": "b"}'),
        reply(**GRANT | {"claim_id": "../../etc"}),
        reply(**GRANT | {"job_id": "a/../b"}),
        reply(**GRANT | {"lease_s": 1e300}),
        Response(200, SHOWN, b"[" * 100_000),
        Response(500, SHOWN, b"<html>"),
        Response(302, {**SHOWN, "location": "/"}, b""),
        Response(418, SHOWN, b'{"type": 3, "detail": {}}'),
        Response(503, {**SHOWN, "retry-after": "-1"}, b""),
    ],
)
def test_odd_answer_to_a_claim_does_no_harm(receiver, tmp_path, odd):
    worker = work(tmp_path, receiver, FakeRunner(), chance=lambda: 0.0)
    if odd.status in (302, 418):  # the client calls that a final refusal: the next claim comes in a minute
        receiver.routes["claim"] = last(worker, odd)
    else:
        receiver.routes["claim"] = once(odd, lambda: worker.post(t.SignalReceived()))
    assert worker.run() == 0
    assert all(name == "claim" for name, _ in receiver.seen)


@pytest.mark.parametrize(
    "odd",
    [
        Response(200, SHOWN, b'{"action": "dance", "lease_s": 600.0}'),
        Response(200, SHOWN, b'{"action": "continue", "lease_s": "long"}'),
        Response(200, SHOWN, b'{"action": "continue", "lease_s": -1, "log_next": null}'),
        Response(200, SHOWN, b'{"action": ["stop"], "lease_s": 1}'),
        problem(400, "bad_request"),
        problem(409, "something_new"),
        problem(507, "disk_full"),
    ],
)
def test_odd_answer_to_a_heartbeat_does_no_harm(tmp_path, odd):
    receiver = Receiver(claim=lambda _: reply(**GRANT))
    worker = work(tmp_path, receiver, FakeRunner(code=None))
    receiver.routes["heartbeat"] = once(odd, lambda: worker.post(t.SignalReceived()), odd)
    assert worker.run() == 0
    assert receiver.bodies("fail")[0]["reason"] == "worker_shutdown"


class Looked(FakeProcess):
    """A trainer that ends after so many looks at it."""

    def __init__(self, looks):
        super().__init__(None)
        self.looks = looks

    def wait(self, timeout_s=None):
        self.looks -= 1
        return None if self.looks >= 0 else Ended(code=0)

    def used(self):
        return Used(7.0, 2**30)


def an_attempt(folder, process, said):
    runner = SimpleNamespace(start=lambda _: process)
    inputs = TrainerInputs(folder, folder, folder, folder)
    places = WorkerFolders(folder, inputs, folder, folder / "reports")
    assignment = structs.replace(JOB, spec=SPEC)
    outbox, transfer = Outbox(folder / "outbox"), no_transfer(assignment, folder / "r")
    return TrainerAttempt(assignment, places, folder / "r", outbox, runner, said.append, transfer=transfer)


def test_a_trainer_is_measured_soon_and_then_regularly():
    assert [look for look in range(61) if measured_at(look, 20)] == [0, 4, 8, 16, 20, 40, 60]
    assert [look for look in range(5) if measured_at(look, 1)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("free", "harm"), [(DISK_FLOOR_BYTES, 0), (DISK_FLOOR_BYTES - 1, 1)])
def test_a_running_trainer_is_looked_at(tmp_path, monkeypatch, free, harm):
    """Its time is measured now and then, and it is stopped once when the disk is full."""
    at_once = SimpleNamespace(Thread=lambda target, **_: SimpleNamespace(start=target, is_alive=lambda: False))
    monkeypatch.setattr("training.fleet.worker.attempt.threading", at_once)
    monkeypatch.setattr("training.fleet.worker.attempt.free_bytes", lambda _: free)
    said = []
    attempt = an_attempt(tmp_path, FakeProcess(None), said)
    every = int(MEASURE_S / LOOK_S)
    early = sum(measured_at(look, every) for look in range(1, every))
    output = OutputTail(tmp_path / "output.log")
    attempt._watch(Looked(every + 2), output)
    assert [each for each in said if isinstance(each, t.Measured)] == [
        t.Measured(claim_id=JOB.claim_id, used=Used(7.0, 2**30))
    ] * (2 + early)
    assert [type(each) for each in said].count(t.Unbearable) == harm
    output.overflowing = True
    said.clear()
    attempt._watch(Looked(3), output)
    (unbearable,) = (each for each in said if isinstance(each, t.Unbearable))
    assert "more than a log file may hold" in unbearable.failure.error


def test_the_end_of_a_trainer_is_seen_while_a_driver_does_not_answer(tmp_path):
    said = []
    answers = threading.Event()
    process = Looked(9)
    process.used = lambda: Used(float(answers.wait()))
    an_attempt(tmp_path, process, said)._watch(process, OutputTail(tmp_path / "output.log"))
    assert said == [t.Measured(claim_id=JOB.claim_id, used=Used())] * 2, "for the limits of time"
    answers.set()


def test_a_trainer_is_paused_and_resumed(tmp_path):
    said = []
    process = FakeProcess(None)
    attempt = an_attempt(tmp_path, process, said)
    for order in (attempt.pause, attempt.resume, attempt.stop, attempt.kill):
        order()
    assert process.orders == [], "there is none yet"
    attempt._process = process
    attempt.pause()
    attempt.resume()
    assert process.orders == ["pause", "resume"]


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (None, t.NotAnswered(call=7, detail="AbortedError")),
        (
            Refused(409, ProblemType.RESULT_CONFLICT, "no", {}),
            t.CallRefused(call=7, problem_type=ProblemType.RESULT_CONFLICT, detail="no"),
        ),
        (
            Unavailable(503, ProblemType.SLOW_DOWN, "wait", {"retry_after_s": 7.0}),
            t.NotAnswered(call=7, detail="wait", retry_after_s=7.0),
        ),
    ],
    ids=["aborted before it began", "refused", "busy"],
)
def test_a_call_ends_in_one_event(error, answer):
    said = Queue()
    asked = []

    def about(database):
        asked.append(database)
        if error is not None:
            raise error

    client = SimpleNamespace(about=about)
    calls = Calls(client, client, {}, lambda *_: (0, ()), said.put)
    if error is None:
        calls.abort(7)
    calls.send(t.SendFail(call=7, assignment=JOB, message=FailRequest(error="e")))
    assert said.get(timeout=30) == answer
    assert len(asked) == (error is not None)


@pytest.mark.parametrize(("status", "kind"), [("completed", t.Completed), ("unconfirmed", t.Unconfirmed)])
def test_a_result_that_is_only_stored_is_no_receipt(status, kind):
    reply = CompleteReply(job_id="j", status=status, artifact_id="ab", attempt=0)
    client = SimpleNamespace(about=lambda _: SimpleNamespace(complete=lambda *_, **__: reply))
    calls = Calls(client, client, {}, lambda *_: (0, ()), lambda _: None)
    delivery = t.Delivery(assignment=JOB, path="/b", sha256="ab", size=3)
    found = calls.carry_out(t.SendComplete(call=7, delivery=delivery, message=CompleteRequest(artifact_id="ab")))
    assert isinstance(found, kind)


def test_no_job_waits_for_the_requests_of_another():
    """A claim that the receiver keeps waiting, while a report is sent and answered."""
    said = Queue()
    answer = threading.Event()

    class Client:
        def ask(self, *_, **fields):
            asked.append((fields["slot"], fields["delivering"]))
            answer.wait()
            raise Unavailable(503, ProblemType.SLOW_DOWN, "wait", {})

        def about(self, *_):
            raise Unavailable(503, ProblemType.SLOW_DOWN, "wait", {})

    asked = []
    client = Client()
    tidied = Queue()
    asker = Asker("i", "s", dict, dict, housekeeping=tidied.put)
    calls = Calls(client, client, asker, lambda *_: (0, ()), said.put)
    calls.send(t.SendClaim(call=1, request_id="r", wait_s=30.0, slot=3, delivering=("c",)))
    calls.send(t.SendFail(call=2, assignment=JOB, message=FailRequest(error="e")))
    assert said.get(timeout=30) == t.NotAnswered(call=2, detail="wait")
    answer.set()
    assert said.get(timeout=30) == t.NotAnswered(call=1, detail="wait")
    assert asked == [(3, ("c",))]
    assert tidied.get(timeout=30) is client
    calls.send(t.SendHeartbeat(call=3, assignment=JOB, message=HeartbeatRequest()))
    assert tidied.get(timeout=30) is client, "also while it trains"


def test_a_worker_passes_a_pause_on_and_begins_though_its_disk_does_not(tmp_path, monkeypatch, caplog):
    refused = Mock(side_effect=OSError(errno.EIO, "Input/output error"))
    monkeypatch.setattr(Outbox, "recover", refused)
    monkeypatch.setattr("training.fleet.worker.datasets.DatasetCache.hold", refused)
    worker = work(tmp_path, Receiver(), FakeRunner())
    orders = []
    worker._actions._attempts["c"] = SimpleNamespace(
        pause=lambda: orders.append("pause"), resume=lambda: orders.append("resume")
    )
    worker._actions.perform(t.PauseTrainer(claim_id="c"))
    worker._actions.perform(t.ResumeTrainer(claim_id="c"))
    assert orders == ["pause", "resume"]
    worker._actions._attempts.clear()
    worker._calls.abort(1)
    worker._actions.perform(t.Abort(call=2))
    assert worker._calls._aborted == {1, 2}
    assert worker._actions.beginning({0: t.Saved()}).backlog == ()
    assert "cannot be read" in caplog.text
    worker._disk.close()


def test_trainers_that_cannot_tell_their_flags_are_left_out(monkeypatch):
    class Describer:
        def __init__(self):
            self.asked = 0

        def __call__(self, _):
            self.asked += 1
            if self.asked > 1:
                raise describe.DescribeError("it does not start")
            return SimpleNamespace(digests={"gbt": "d"})

    monkeypatch.setattr(describe, "ProcessDescriber", Describer)
    assert installed_digests() == {"gbt": "d"}


def test_a_damaged_certificate_ends_the_start_in_one_sentence(tmp_path):
    (tmp_path / "identity.json").write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"identity\.json cannot be read or is damaged; enroll"):
        _tls_dir("https://fleet.lan", tmp_path, "pi")
    assert _tls_dir("http://localhost", tmp_path, "pi") is None


def test_a_spec_that_reaches_for_more_was_never_begun(tmp_path):
    attempt = an_attempt(tmp_path, FakeProcess(None), [])
    attempt.assignment = structs.replace(JOB, spec={"model": "../x", "mode": "oracle"})
    assert attempt.found() == t.Remains()


@pytest.mark.parametrize("text", ["0", "nan", "-1", "2e6", "much"])
def test_a_size_that_cannot_be_meant_is_refused(text):
    assert gib("0.5") == 0.5
    with pytest.raises(argparse.ArgumentTypeError, match="is not a number of GiB"):
        gib(text)


def test_receiver_that_is_not_there_is_asked_again(receiver, tmp_path):
    worker = work(tmp_path, receiver, FakeRunner(), chance=lambda: 0.0)
    asked = []

    def claim(body):
        asked.append(body["request_id"])
        if len(asked) == 3:
            worker.post(t.SignalReceived())
        raise TransportError("connection refused")

    receiver.routes["claim"] = claim
    assert worker.run() == 0
    assert len(set(asked)) == 1
    assert StateFolder(tmp_path / "artifacts/.worker/h").load().request_id == asked[0]


class NoRunner(FakeRunner):
    """Cannot start anything, for the reason it is given."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def start(self, spec):
        raise self.error


@pytest.mark.parametrize(
    ("change", "runner", "reason", "words"),
    [
        ({}, FakeRunner(70, b"ValueError: no\n"), "trainer_failed", "status 70: ValueError: no"),
        ({}, NoRunner(SpawnFailedError("Permission denied")), "spawn_failed", "Permission denied"),
        ({}, NoRunner(OSError(errno.ENOSPC, "No space left")), "spawn_failed", "No space left"),
        ({}, NoRunner(ZeroDivisionError("odd")), "spawn_failed", "odd"),
        ({"trainer": OWN | {"outputs": ["absent"]}}, FakeRunner(), "trainer_failed", "left no absent"),
        ({"trainer": None, "model": "gbt"}, FakeRunner(), "spawn_failed", "has no data set"),
        ({"model": "a/b"}, FakeRunner(), "trainer_failed", "only a-z"),
    ],
)
def test_failure_on_this_host_is_told_in_words(receiver, tmp_path, change, runner, reason, words):
    train_one(work(tmp_path, receiver, runner), receiver, spec=SPEC | change)
    (failed,) = receiver.bodies("fail")
    assert failed["reason"] == reason
    assert words in failed["error"]
    assert not (tmp_path / "artifacts" / "a").exists()


def test_cancelled_job_ends_the_trainer_and_is_not_reported(tmp_path):
    receiver = Receiver(heartbeat=lambda _: problem(410, "job_cancelled"))
    runner = FakeRunner(code=None)
    train_one(work(tmp_path, receiver, runner), receiver)
    assert runner.processes[0].orders == ["terminate"], "stop() without grace"
    assert not receiver.bodies("fail")


def test_signal_while_a_job_runs_hands_it_back(tmp_path):
    receiver = Receiver(claim=lambda _: reply(**GRANT))
    worker = work(tmp_path, receiver, FakeRunner(code=None))

    def first_beat(body):
        worker.post(t.SignalReceived())
        return beat(body)

    receiver.routes["heartbeat"] = first_beat
    assert worker.run() == 0
    (failed,) = receiver.bodies("fail")
    assert (failed["reason"], failed["error"]) == (EndReason.WORKER_SHUTDOWN, "worker shutdown")


def test_a_host_tells_with_its_claim_that_its_disk_is_full(receiver, tmp_path, monkeypatch):
    """The receiver gives it nothing then, and shows why."""
    worker = work(tmp_path, receiver, FakeRunner(), chance=lambda: 0.0, self_test=None)
    receiver.routes["claim"] = last(worker, reply(job_id=None, reason="quarantined"))
    monkeypatch.setattr("training.fleet.worker.self_test.free_bytes", lambda _: 1024)
    assert worker.run() == 0
    told = receiver.bodies("claim")[0]["capability"]
    assert told["healthy"] is False
    assert "only 0 MiB are free" in told["unhealthy_because"]


@pytest.mark.parametrize(("free_bytes", "kept"), [(1024, False), (2**40, True)])
def test_what_an_ended_attempt_left_goes_when_the_disk_is_nearly_full(tmp_path, monkeypatch, free_bytes, kept):
    monkeypatch.setattr("training.fleet.worker.attempt.free_bytes", lambda _: free_bytes)
    runner = FakeRunner(code=1, output=b"no space left\n")
    receiver = Receiver(claim=lambda _: reply(**GRANT))
    worker = work(tmp_path, receiver, runner)
    receiver.routes["fail"] = last(worker, reply(job_id="j", status="pending"))
    assert worker.run() == 0
    (spec,) = runner.specs
    assert Path(spec.argv[spec.argv.index("--out-dir") + 1]).exists() == kept
    assert spec.output.exists(), "what it said stays in either case"


def test_disk_that_refuses_the_state_does_not_end_the_worker(receiver, tmp_path, monkeypatch, caplog):
    worker = work(tmp_path, receiver, FakeRunner())
    receiver.routes["claim"] = last(worker, NOTHING)

    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("training.fleet.worker.state_folder.write_whole", full)
    assert worker.run() == 0
    assert "No space left on device" in caplog.text


@pytest.mark.skipif(sys.platform == "win32", reason="folders of POSIX")
@pytest.mark.parametrize("code", [0, 75])
def test_folders_thousands_deep_end_neither_a_worker_nor_its_next_start(tmp_path, dig, caplog, code):
    def digs(spec):
        dig(Path(spec.argv[spec.argv.index("--out-dir") + 1]))
        if not (Path(spec.env["CIS490_STATE_DIR"]) / "deep").exists():
            dig(Path(spec.env["CIS490_STATE_DIR"]))

    for code_now, answered in ((code, "fail" if code else "complete"), (0, "complete")):
        receiver = Receiver()
        train_one(work(tmp_path, receiver, FakeRunner(code_now, does=digs)), receiver, state_every_s=0.1)
        assert len(receiver.bodies(answered)) == 1
    assert "the worker continues" not in caplog.text
    assert not list(tmp_path.glob("artifacts/.worker/h/resume/*"))
    assert not list(tmp_path.glob("artifacts/h/*/attempt-1-*/*"))


def put(place, spec):
    """Put a pipe or a link in the place of something that the worker looks at after the trainer."""
    state, out, reports = (
        Path(spec.env["CIS490_STATE_DIR"]),
        *(Path(spec.argv[spec.argv.index(flag) + 1]) for flag in ("--out-dir", "--reports-dir")),
    )
    match place:
        case "timing":
            os.mkfifo(reports / "own_oracle_timing.json")
        case "stretches" | "trained":
            pipe = spec.output.with_name(f"{spec.output.name}.{place}")
            pipe.unlink(missing_ok=True)
            os.mkfifo(pipe)
        case "file" | "link":
            state.rmdir()
            state.touch() if place == "file" else state.symlink_to(out)
        case "none":
            shutil.rmtree(out)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
@pytest.mark.parametrize("place", ["timing", "stretches", "trained", "file", "link", "none"])
def test_nothing_in_the_place_of_a_file_or_a_folder_holds_up_a_job(tmp_path, place):
    code, answered = (75, "fail") if place in ("file", "link") else (0, "fail" if place == "none" else "complete")
    receiver = Receiver()
    train_one(work(tmp_path, receiver, FakeRunner(code, does=lambda spec: put(place, spec))), receiver)
    assert [body.get("reason") for body in receiver.bodies(answered)] == [
        "trainer_failed" if place == "none" else "interrupted" if code else None
    ]
    receiver, runner = Receiver(), FakeRunner(0)
    train_one(work(tmp_path, receiver, runner), receiver, attempt=2)
    assert len(receiver.bodies("complete")) == 1
    assert not Path(runner.specs[0].env["CIS490_STATE_DIR"]).is_symlink()


def test_temporary_files_of_an_attempt_go_with_it_or_with_the_next_start(tmp_path, monkeypatch, caplog):
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (folder / "of-another").mkdir()
    given = []

    def scribbles(spec):
        (own,) = {spec.env[name] for name in VARIABLES}
        given.append(own)
        Path(own, "scratch").touch()
        Path(f"{own}-of-a-thread").mkdir()  # which did not end before its worker

    for session in range(3):
        receiver = Receiver()
        worker = work(tmp_path, receiver, FakeRunner(70, does=scribbles if session < 2 else given.append))
        (folder / f"{worker._scratch.worker}of-a-killed-one" / "d").mkdir(parents=True)
        if session == 2:
            monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: tmp_path.rmdir())  # which is an OSError
        train_one(worker, receiver)
        assert receiver.bodies("fail")[0]["reason"] == "trainer_failed"
        assert [each.name for each in folder.iterdir()] == ["of-another"]
    assert given[0] != given[1]
    assert given[2].env["TMPDIR"] == str(folder), "the worker's"
    assert "a trainer has no folder for temporary files of its own" in caplog.text


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a folder of shared memory")
def test_shared_memory_that_a_trainer_used_and_left_goes_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "SHARED_MEMORY", tmp_path)
    gone = 2**22 + 1  # above the highest process id
    left = {"psm_left", f"torch_{gone}_1_2", f"sem.loky-{gone}-x", "nccl-x", f"joblib_memmapping_folder_{gone}_x/data"}
    stays = {"psm_before", "psm_in_use", "of-a-person", "torch_1_1_2"}
    (tmp_path / "psm_before").write_bytes(b"1")
    with ExitStack() as here:

        def use(name, until):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(b"1")
            with (tmp_path / name).open("r+b") as file:
                until.enter_context(closing(mmap.mmap(file.fileno(), 1)))

        used = set()
        with scratch.ScratchSpace("cis-test-").lent(used):
            with ExitStack() as trainer:
                for name in left | stays:
                    use(name, here if name == "psm_in_use" else trainer)
                used |= scratch.shared_memory_of(os.getpid())
            (tmp_path / "psm_handed_over_between_two_other_programs").touch()
        assert {each.name for each in tmp_path.iterdir()} == stays | {"psm_handed_over_between_two_other_programs"}


def test_an_action_that_fails_ends_no_worker(receiver, tmp_path, monkeypatch, caplog):
    nested = Mock(side_effect=RecursionError("maximum recursion depth exceeded"))
    for method in ("discard", "found"):
        monkeypatch.setattr(TrainerAttempt, method, nested)
    monkeypatch.setattr(Outbox, "recover", nested)
    for session in range(2):
        train_one(work(tmp_path, receiver, FakeRunner(70)), receiver)
        assert caplog.text.count("Discard: maximum recursion depth exceeded; the worker continues") == session + 1


def test_a_thread_that_cannot_be_started_is_an_event(tmp_path, monkeypatch):
    """As where a trainer has started as many processes as the account may have."""

    none_left = Mock(side_effect=RuntimeError("can't start new thread"))
    for module in ("attempt", "requests"):
        monkeypatch.setattr(f"training.fleet.worker.{module}.threading", SimpleNamespace(Thread=none_left))
    said = []
    client = None
    Calls(client, client, {}, lambda *_: (0, ()), said.append).send(
        t.SendFail(call=7, assignment=JOB, message=FailRequest(error="e"))
    )
    attempt = an_attempt(tmp_path, FakeProcess(None), said)
    attempt.spawn()
    attempt.pack()
    assert [type(each) for each in said] == [t.NotAnswered, t.SpawnFailed, t.PackFailed]


def test_what_fails_in_housekeeping_costs_no_answer():
    said = []
    asker = Asker("i", "s", dict, dict, housekeeping=lambda _: 1 / 0)
    client = SimpleNamespace(ask=lambda *_, **__: None)
    calls = Calls(client, client, asker, lambda *_: (0, ()), said.append)
    calls._send(t.SendClaim(call=1, request_id="r", wait_s=0.0))
    assert [type(each) for each in said] == [t.ClaimAnswered]


def test_having_slept_is_noticed(tmp_path):
    class Clock:
        """The machine sleeps for an hour at the third look."""

        def __init__(self):
            self.looks = 0

        def now(self):
            return 0.0

        def awake(self):
            return 100.0

        def monotonic(self):
            self.looks += 1
            return 100.0 + 0.1 * self.looks if self.looks < 20 else 3700.0

    beats = []
    receiver = Receiver(claim=lambda _: reply(**GRANT))
    found = options(tmp_path, "--host-id", "h")  # a heartbeat every 30 s
    worker = TrainerWorker(
        found,
        capability=dict,
        client=lambda timeout_s: FleetClient("http://receiver", "h", transport=receiver),
        runner=FakeRunner(code=None),
        clock=Clock(),
    )

    def on_beat(body):
        beats.append(body["seq"])
        if len(beats) == 1:
            for _ in range(20):
                worker.post(t.Tick())
        else:
            worker.post(t.SignalReceived())
        return beat(body)

    receiver.routes["heartbeat"] = on_beat
    assert worker.run() == 0
    assert beats[:2] == [1, 2]


def test_session_that_was_replaced_says_so_and_ends(tmp_path, capsys):
    receiver = Receiver(claim=lambda _: problem(409, "lease_superseded"))
    assert work(tmp_path, receiver, FakeRunner()).run() == 1
    assert "because lease_superseded" in capsys.readouterr().err


# ── several workers on one machine ──────────────────────────────────────────────────────────


def test_workers_of_one_machine_have_folders_of_their_own(tmp_path):
    one, other = options(tmp_path, "--host-id", "gpu0"), options(tmp_path, "--host-id", "gpu1")
    assert one.places.artifacts == tmp_path / "artifacts" / "gpu0"
    assert one.places.reports == tmp_path / "reports/eval" / "gpu0"
    folders = {*one.own_folders.values(), one.state_dir, one.cache_dir}
    assert not folders & {*other.own_folders.values(), other.state_dir, other.cache_dir}


def test_short_jobs_of_one_worker_leave_the_running_one_of_another_alone(tmp_path):
    ours, theirs = (options(tmp_path, "--host-id", name).places for name in ("gpu0", "gpu1"))
    running = folders_of(ours.artifacts, ours.reports, JOB)
    make_folders(running)
    running.log.touch()
    os.utime(running.out, (1, 1))
    for number in range(KEPT_ATTEMPTS + 6):
        short = a_grant(job_id=f"{number:012d}", claim_id=f"{number:08d}", spec={"model": "a", "mode": "b"})
        make_folders(folders_of(theirs.artifacts, theirs.reports, short))
        prune(theirs.artifacts, theirs.reports)
    assert [running.out.is_dir(), running.reports.is_dir(), running.log.exists()] == [True] * 3


def test_finished_work_of_another_host_is_left_to_that_host(tmp_path):
    """A copied folder: what is refused to the copy would be moved away from the one that may deliver it."""
    desk = closed(tmp_path, "desk")
    desk.save(t.Saved(held=JOB))
    closed(tmp_path, "copy")  # what is lost with a start is lost anyway
    desk.save(t.Saved(delivery=t.Delivery(assignment=JOB, path="/b", sha256="ab", size=3)))
    said = rf"finished work of host desk \({JOB.name}\).* --host-id desk until.* --new-identity"
    with pytest.raises(StateFolderError, match=said):
        closed(tmp_path, "copy")
    assert closed(tmp_path, "Desk").load().delivery is not None
    closed(tmp_path).begin_anew()
    closed(tmp_path, "copy")


def test_a_new_identity_takes_nothing_of_the_old_one_along(tmp_path):
    disk = closed(tmp_path)
    before, session = disk.instance_id, disk.session_id
    disk.save(t.Saved(held=JOB))
    (tmp_path / "outbox").mkdir()
    assert disk.begin_anew() == disk.instance_id != before
    again = closed(tmp_path)
    assert again.instance_id == disk.instance_id
    assert (again.load(), again.session_id[:10]) == (t.Saved(), session[:10])
    assert not (tmp_path / "outbox").exists()


@pytest.mark.parametrize("flag", ["--artifacts-dir", "--reports-dir", "--cache-dir"])
def test_second_worker_in_a_folder_in_use_is_refused(tmp_path, flag):
    def worker(name):
        own = {
            each: str(tmp_path / each / name)
            for each in ("--artifacts-dir", "--reports-dir", "--cache-dir", "--state-dir")
        }
        own[flag] = str(tmp_path / "shared")
        flags = [part for pair in own.items() for part in pair]
        nobody = Receiver(claim=lambda _: NOTHING)
        return TrainerWorker(
            options(tmp_path, "--host-id", "h", *flags),
            capability=dict,
            client=lambda timeout_s: FleetClient("http://receiver", "h", transport=nobody),
        )

    first = worker("a")
    with pytest.raises(StateFolderError, match=f"another worker uses .*shared.* {flag}"):
        worker("b")
    for next_one in (first, None):  # once the first has ended, there is room for another
        one = next_one or worker("b")
        one.post(t.SignalReceived())
        assert one.run() == 0


def test_gpus_of_a_worker_are_those_of_its_probe_and_its_trainers():
    environment = {"CUDA_VISIBLE_DEVICES": "0"}
    show_devices(parser().parse_args([]).cuda_devices, environment)
    assert environment == {"CUDA_VISIBLE_DEVICES": "0"}
    show_devices(parser().parse_args(["--cuda-devices", "1"]).cuda_devices, environment)
    assert trainer_environment(environment)["CUDA_VISIBLE_DEVICES"] == "1"
    assert trainer_environment(environment)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize("text", ["", "gpu1", "0,", "0 1", "GPU-"])
def test_gpus_that_cannot_be_meant_are_refused(text, capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(["--cuda-devices", text])
    assert "names no GPUs" in capsys.readouterr().err


@pytest.mark.parametrize("task", [[], ["--doctor"], ["--deliver", "one"], ["--new-identity"]])
def test_no_task_of_a_worker_is_readable_when_it_begins(tmp_path, monkeypatch, task):
    done = []
    monkeypatch.setattr(daemon, "be_readable", done.append)
    monkeypatch.setattr(daemon, "options_of", lambda _: (done.append("options"), Path(tmp_path / "none").stat()))
    with pytest.raises(FileNotFoundError):
        main(task)
    assert done == [False, "options"]


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
@pytest.mark.parametrize(("flags", "readable"), [([], []), (["--debuggable"], ["environ", "maps"])])
def test_no_other_program_of_its_user_reads_a_worker_unless_that_is_wanted(tmp_path, flags, readable):
    places = {"--artifacts-dir": "models", "--reports-dir": "reports", "--state-dir": "state"}
    flags = [*flags, *(word for flag, name in places.items() for word in (flag, str(tmp_path / name)))]
    python, alone = sys.executable, [sys.executable, str(CHILDREN / "without_rights.py")]
    argv = [python, "-m", "training.fleet.worker", "--receiver-url", "http://127.0.0.1:9", "--host-id", "desk", *flags]
    with subprocess.Popen([*alone, *argv], cwd=ROOT, stderr=subprocess.PIPE, text=True) as worker:
        try:
            assert any("asks http" in line for line in worker.stderr)
            look = [python, str(CHILDREN / "reads_another.py"), str(worker.pid)]
            said = subprocess.run([*alone, *look], capture_output=True, text=True).stdout
        finally:
            worker.kill()
    assert said == f"[{readable}]\n"
