"""Receiver, worker and trainers as real processes: what an owner sees, and what no crash may leave behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from places import CHILDREN
from process_fleet import PATIENCE_S, TOKEN, ProcessFleet, parent_of, until
from processes import is_running, state_of

from training.clock import SystemClock
from training.fleet.recovery.doctor import examine
from training.fleet.recovery.findings import Gravity
from training.fleet.service.state import Deployment

TRAINER = CHILDREN / "trainer.py"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="starts and signals POSIX processes")


class Fleet(ProcessFleet):
    """A receiver and its workers in a folder of their own."""

    hosts = ""  # the plan's words on them

    def plan(self, **behaviours):
        lines = ["schema_version = 1", 'name = "try"', "[trainers.fake]"]
        lines += [f'command = ["python", "{TRAINER}"]', self.hosts]
        for number, (name, behaviour) in enumerate(behaviours.items()):
            seed = list(behaviours.values())[:number].count(behaviour)  # equal ones are one job
            lines += ["[[jobs]]", f'name = "{name}"', 'model = "fake"', 'mode = "oracle"']
            lines += [f'hyper.behave = "{behaviour}"', f"seed = {seed}"]
        (self.folder / "plan.toml").write_text("\n".join(lines))

    def start_receiver(self, **policy):
        figures = [word for name, value in policy.items() for word in ("--policy", f"{name}={value}")]
        self.serve("-m", "training.fleet.receiver", "--db", "jobs.db", "--models-dir", "models", *figures)

    def start_worker(self, *flags, name="host", crash_at=""):
        command = ["-m", "training.fleet.worker", "--receiver-url", f"http://127.0.0.1:{self.port}"]
        command += ["--host-id", name, "--repo-root", str(self.folder)]
        command += ["--poll-s", "0.2", "--heartbeat-s", "0.3", *flags]
        return self.run(*command, log=f"{name}.log", crash=crash_at)

    def trainer_pid(self):
        """Of the trainer that says so in its log; waits for it."""

        def look():
            logs = sorted(self.folder.glob("artifacts/**/*.log"), key=lambda log: log.stat().st_mtime)
            return re.search(r"running as (\d+)", logs[-1].read_text()) if logs else None

        return int(until(look)[1])


@pytest.fixture
def fleet(tmp_path):
    one = Fleet(tmp_path)
    yield one
    one.close()
    if one.receiver is not None:  # however rudely that ended: every promise is kept
        state = Deployment.of(tmp_path, tmp_path / "jobs.db", tmp_path / "models")
        found = examine(state, SystemClock(), deep=True).findings
        assert [each.sentence for each in found if each.level is Gravity.FAULT] == []


def test_every_job_ends_as_it_should(fleet):
    behaviours = {"good": "well", "bad": "bad-data", "garbled": "binary"}
    # Three that die at once, and none that ends well between them, would have the host taken out: one after the other.
    fleet.hosts = "[hosts.host]\nslots = 1"
    behaviours |= {"better": "on-file", "shot": "shot", "forgetful": "forgets"}
    fleet.plan(**behaviours)
    (fleet.folder / "go").touch()
    fleet.start_receiver()
    worker = fleet.start_worker()
    until(lambda: fleet.status("good") == "completed" and fleet.status("bad") == "failed")
    until(lambda: all(fleet.job(name)["attempts"] for name in ("garbled", "shot", "forgetful")))
    until(lambda: all(fleet.job(n)["job"]["error"] for n in ("garbled", "shot", "forgetful")))

    good = fleet.job("good")
    assert good["attempts"][0]["record"]["timing"] == {"fit_s": 0.1}
    rows = [json.loads(line) for line in (fleet.folder / "models/index.jsonl").read_text().splitlines()]
    assert {row["artifact_id"] for row in rows} == {good["job"]["artifact_id"]}
    assert json.loads(fleet.client.log("good")["lines"][-1])["epoch"] == 3

    errors = {name: fleet.job(name)["job"]["error"].splitlines()[0] for name in ("bad", "garbled", "shot")}
    assert errors["bad"] == "exit status 65: error: the data set has another schema"
    assert errors["garbled"].startswith("exit status 1: RuntimeError: �broken")
    assert errors["shot"].startswith("killed by SIGKILL (possibly out of memory)")
    assert "left no fake_oracle.ckpt.json" in fleet.job("forgetful")["job"]["error"]
    assert TOKEN not in fleet.log("host")
    for stray in (signal.SIGUSR1, signal.SIGUSR2):  # mean nothing to either
        worker.send_signal(stray)
        fleet.receiver.send_signal(stray)
    asked = [sys.executable, "-W", "always", "-m", "training.fleet.cli", "status", "--receiver-url", fleet.url]
    shown = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert "good" in shown.stdout + shown.stderr
    assert "unclosed" not in shown.stderr
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE_S) == 0


def test_one_worker_trains_two_jobs_at_once_and_goes_on_after_it_was_killed(fleet):
    """Both trainers wait for one file: neither could end if it ran alone."""
    fleet.hosts = "[hosts.host]\nslots = 2"
    fleet.plan(one="on-file", two="on-file", three="on-file")
    fleet.start_receiver(backoff_s=0.1)
    worker = fleet.start_worker()

    def running():
        return [name for name in ("one", "two", "three") if fleet.status(name) == "running"]

    until(lambda: len(running()) == 2)
    (seen,) = fleet.client.workers()["workers"]
    assert sorted(seen["jobs"]) == sorted(running())
    assert [fleet.status(name) for name in ("one", "two", "three")].count("pending") == 1, "it has two slots"
    before = running()
    worker.kill()
    worker.wait()
    fleet.start_worker()
    until(lambda: [fleet.job(name)["attempts"][0]["end_reason"] for name in before] == ["host_lost"] * 2)
    (fleet.folder / "go").touch()
    until(lambda: all(fleet.status(name) == "completed" for name in ("one", "two", "three")))
    assert len(list((fleet.folder / "models").glob("**/*.tar.zst"))) == 3


ROTATION = """rotate = "hosts"
split_recipe = "host"
train_hosts = ["attic", "desk", "workshop"]
"""


def test_a_rotation_is_trained_by_a_worker_and_folded(fleet):
    fleet.plan(turns="well")
    plan = fleet.folder / "plan.toml"
    plan.write_text(f"{plan.read_text()}\n{ROTATION}")
    fleet.start_receiver()
    fleet.start_worker()
    hosts = ["attic", "desk", "workshop"]
    until(lambda: all(fleet.status(f"turns[host={host}]") == "completed" for host in hosts))
    (row,) = fleet.client.models()["rotations"]
    assert (row["name"], row["done"], row["jobs"], row["hosts"], row["notes"]) == ("turns", 3, 3, hosts, [])
    assert [each["auroc"] for each in row["by_host"]] == [0.85, 0.86, 0.82]
    assert (row["auroc"]["worst_host"], row["auroc"]["worst"]) == ("workshop", 0.82)
    assert row["auroc"]["mean"] == pytest.approx((0.85 + 0.86 + 0.82) / 3)


@pytest.mark.thorough
def test_trainer_that_writes_what_no_parser_takes_is_trained_once(fleet):
    fleet.plan(mumbler="mumbles")
    fleet.start_receiver()
    fleet.start_worker()
    (attempt,) = until(lambda: [a for a in fleet.job("mumbler")["attempts"] if a["ended_at"]])
    assert fleet.status("mumbler") == "completed"
    assert attempt["progress"]["note"] == "half a character: ?"
    assert "timing" not in attempt["record"], "it is none"
    assert "refused" not in fleet.log("host")


def test_a_host_on_which_everything_dies_is_taken_out_until_it_is_released(fleet):
    """Three jobs in a row that die at once speak against the host; after its release, against themselves."""
    fleet.hosts = "[hosts.host]\nslots = 1"
    fleet.plan(bad="fail", garbled="binary", forgetful="forgets")
    fleet.start_receiver(backoff_s=0.1)
    fleet.start_worker()
    until(lambda: fleet.client.health()["quarantined"])
    (seen,) = fleet.client.workers()["workers"]
    assert "3 different jobs in a row died within 60 s" in seen["quarantine"]
    until(lambda: fleet.status("bad") == "pending")  # perhaps it was granted once more beforehand: it dies again there
    bad = fleet.job("bad")["job"]
    assert bad["trainer_failures"] == 0, "it pays for nothing"
    assert "cis490-jobs release host" in bad["obstacle"]
    fleet.client.release("host")
    until(lambda: fleet.status("bad") == "failed")
    assert fleet.client.health()["quarantined"] == {}


def test_cancel_stops_even_a_deaf_trainer(fleet):
    fleet.plan(deaf="deaf")
    fleet.start_receiver()
    fleet.start_worker()
    pid = fleet.trainer_pid()
    until(lambda: fleet.status("deaf") == "running")
    fleet.client.cancel("deaf")
    until(lambda: not is_running(pid))
    assert fleet.status("deaf") == "cancelled"
    assert fleet.job("deaf")["attempts"][0]["end_reason"] == "cancelled"


@pytest.mark.thorough
def test_sigterm_hands_the_job_back_and_the_next_worker_goes_on(fleet):
    fleet.plan(long="hang")
    fleet.start_receiver()
    worker = fleet.start_worker()
    pid = fleet.trainer_pid()
    until(lambda: fleet.job("long")["job"]["progress"])
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30.0) == 0
    assert not is_running(pid)
    job = fleet.job("long")
    assert job["job"]["status"] == "pending"
    assert (job["attempts"][0]["end_reason"], job["attempts"][0]["error"]) == ("worker_shutdown", "worker shutdown")
    assert (job["job"]["trainer_failures"], job["job"]["host_losses"]) == (0, 0)
    assert list(fleet.folder.glob("artifacts/.worker/host/resume/*/resumable"))
    fleet.start_worker()
    until(lambda: fleet.job("long")["job"]["attempt"] == 2)


def goes_on_from(fleet, name):
    """The epochs from which all attempts at a job but the first went on, as their trainers printed.

    What the first printed dies with its worker where that is killed before a heartbeat brought it.
    """
    found = [fleet.client.log(name, attempt=each["attempt"]) for each in fleet.job(name)["attempts"][1:]]
    texts = ["\n".join(each["lines"]) for each in found]
    return [int(match[1]) for text in texts if (match := re.search(r"goes on from (\d+)", text))]


def epoch_of(fleet, name):
    return int((fleet.job(name)["job"]["progress"] or {}).get("epoch") or 0)


def test_a_job_that_is_handed_back_goes_on_on_another_host_where_it_was(fleet):
    fleet.plan(long="counts")
    fleet.start_receiver()
    first = fleet.start_worker(name="first")
    until(lambda: epoch_of(fleet, "long") > 3)
    first.send_signal(signal.SIGTERM)
    assert first.wait(30.0) == 0
    (kept,) = (fleet.folder / "states" / "jobs").iterdir()
    fleet.receiver.send_signal(signal.SIGTERM)
    fleet.receiver.wait()
    fleet.start_receiver()
    fleet.start_worker(name="second")
    begun = until(lambda: goes_on_from(fleet, "long"))
    reached = json.loads(kept.read_text())["stretches"][-1]["ends"]
    assert begun == [reached]
    assert reached > 3
    until(lambda: epoch_of(fleet, "long") > reached)
    (fleet.folder / "go").touch()
    until(lambda: fleet.status("long") == "completed")

    record = fleet.job("long")["attempts"][-1]["record"]  # the first host may have been given it again as it left
    (one, two) = record["stretches"]
    assert (one["host"], one["begins"], one["ends"]) == ("first", 0, reached)
    assert (two["host"], two["begins"]) == ("second", reached)
    assert two["ends"] > reached
    (provenance,) = (fleet.folder / "models").glob("**/provenance/*.json")
    assert json.loads(provenance.read_text())["record"]["stretches"] == record["stretches"]
    until(lambda: not kept.exists())


@pytest.mark.thorough
def test_a_crash_costs_no_more_than_since_the_last_state_that_was_brought(fleet):
    fleet.plan(long="counts")
    fleet.start_receiver(state_every_s=0.5)
    first = fleet.start_worker(name="first")
    jobs = fleet.folder / "states" / "jobs"
    (kept,) = until(lambda: list(jobs.iterdir()) if jobs.exists() else [])
    first.kill()
    first.wait()
    reached = json.loads(kept.read_text())["stretches"][-1]["ends"]
    fleet.client.requeue("long")
    fleet.start_worker(name="second")
    (begun,) = until(lambda: goes_on_from(fleet, "long"))
    assert begun >= reached >= 1
    fleet.client.cancel("long")
    until(lambda: not kept.exists())


def test_kill_9_of_the_worker_leaves_no_trainer_and_its_next_session_begins_anew(fleet):
    fleet.plan(deaf="deaf")
    fleet.start_receiver()
    worker = fleet.start_worker()
    pid = fleet.trainer_pid()
    until(lambda: fleet.status("deaf") == "running")
    worker.kill()
    worker.wait()
    until(lambda: not is_running(pid))
    fleet.start_worker()
    until(lambda: fleet.job("deaf")["job"]["attempt"] == 2)
    assert fleet.job("deaf")["attempts"][0]["end_reason"] == "host_lost"


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="finds them in /proc")
def test_worker_and_launcher_killed_in_one_breath_leave_nothing_for_long(fleet):
    fleet.plan(deaf="deaf")
    fleet.start_receiver()
    worker = fleet.start_worker()
    pid = fleet.trainer_pid()
    until(lambda: fleet.status("deaf") == "running")
    launcher = parent_of(pid)
    worker.send_signal(signal.SIGSTOP)
    threads = Path(f"/proc/{worker.pid}/task")  # a stop takes a moment to reach every one
    until(lambda: all(state_of(int(one.name)) == "T" for one in threads.iterdir()))
    os.kill(launcher, signal.SIGKILL)
    worker.kill()
    worker.wait()
    assert is_running(pid), "nobody was left to end it"
    fleet.start_worker()
    until(lambda: not is_running(pid))
    until(lambda: "ended 1 processes of an earlier session" in fleet.log("host"))


def test_receiver_may_be_away_while_a_job_runs(fleet):
    fleet.plan(long="hang")
    fleet.start_receiver()
    fleet.start_worker()
    pid = fleet.trainer_pid()
    until(lambda: fleet.status("long") == "running")
    fleet.kill_receiver()
    until(lambda: "a heartbeat was not answered" in fleet.log("host"))
    fleet.start_receiver()
    before = fleet.job("long")["job"]["heartbeat_at"]
    until(lambda: fleet.job("long")["job"]["heartbeat_at"] > before)
    assert is_running(pid)
    assert fleet.job("long")["job"]["attempt"] == 1


def test_finished_work_outlives_both_receiver_and_worker(fleet):
    fleet.plan(slow="on-file")
    fleet.start_receiver()
    worker = fleet.start_worker()
    until(lambda: fleet.status("slow") == "running")
    fleet.kill_receiver()
    (fleet.folder / "go").touch()
    until(lambda: "uploading" in fleet.log("host"))
    worker.kill()
    worker.wait()
    fleet.start_receiver()
    fleet.start_worker()
    until(lambda: fleet.status("slow") == "completed")
    assert fleet.job("slow")["job"]["attempt"] == 1
    assert "continues delivering slow" in fleet.log("host")


def test_worker_says_in_one_sentence_why_it_cannot_begin(fleet):
    first = fleet.start_worker()
    until(lambda: (fleet.folder / "artifacts/.worker/host/saved.json").exists())
    assert fleet.start_worker().wait(PATIENCE_S) == 2
    assert "another worker uses the state directory" in fleet.log("host")
    assert fleet.start_worker("--venv-python", "absent/python").wait(PATIENCE_S) == 2
    assert "make the virtual environment first" in fleet.log("host")
    assert "Traceback" not in fleet.log("host")
    first.send_signal(signal.SIGTERM)
    assert first.wait(PATIENCE_S) == 0, "it also leaves while nobody answers"


def test_missing_data_set_is_the_hosts_fault_and_said_so(fleet):
    plan = ["schema_version = 1", 'name = "try"', "[[jobs]]", 'name = "trees"', 'model = "gbt"']
    (fleet.folder / "plan.toml").write_text("\n".join([*plan, 'mode = "oracle"']))
    fleet.start_receiver()
    fleet.start_worker()
    attempt = until(lambda: [a for a in fleet.job("trees")["attempts"] if a["ended_at"]])[0]
    assert attempt["end_reason"] == "spawn_failed"
    assert "this host has no data set" in attempt["error"]
    assert "validation_v1.parquet is missing" in attempt["error"]
