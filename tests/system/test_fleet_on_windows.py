"""A worker on Windows, with nothing standing in for it: job objects, a hidden console, joining, training, revoking.

Runs where Python is Windows' own: on Windows, or under Wine with ``make windows``. Everywhere else the same code is
tested by test_fleet_windows_names.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from places import CHILDREN
from systems import is_wine

from training.files import LocalFs
from training.fleet.install.system import _behind
from training.fleet.process.supervise import CommandSpec, LocalRunner, SpawnFailedError

if os.name != "nt":
    pytest.skip("for Windows alone; see `make windows`", allow_module_level=True)

PATIENCE_S = 60.0
TOKEN = "sesame"


def until(look):
    for _ in range(int(PATIENCE_S / 0.05)):
        if found := look():
            return found
        threading.Event().wait(0.05)
    raise AssertionError("it did not happen")


def gone(*pids):
    return not any(psutil.pid_exists(pid) for pid in pids)


@pytest.fixture
def runner():
    made = LocalRunner()
    yield made
    made.close()


@pytest.fixture
def start(runner, tmp_path):
    def begin(child, *args):
        argv = [sys.executable, str(CHILDREN / f"{child}.py"), *map(str, args)]
        files = {"output": tmp_path / "output.log", "end": tmp_path / "end.json"}
        return runner.start(CommandSpec(argv, tmp_path, dict(os.environ), **files))

    return begin


@pytest.fixture
def said(tmp_path):
    def read():
        file = tmp_path / "output.log"
        return file.read_text("utf-8") if file.exists() else ""

    return read


def test_an_end_comes_back_and_is_put_down(start, tmp_path):
    assert start("silent", 3).wait(PATIENCE_S).code == 3
    assert json.loads((tmp_path / "end.json").read_text()) == {"ended": 3}


@pytest.mark.skipif(is_wine(), reason="Wine's C library hands no Ctrl-Break to a handler")
def test_a_polite_stop_is_ctrl_break(start, said):
    process = start("exits_late", 0.2)
    until(lambda: "ready" in said())
    assert process.stop(PATIENCE_S).code == 75
    assert "state written" in said()


def tree(printed):
    """Trainer and child, as they say themselves: what computes is a child of a virtual environment's python.exe."""
    return [int(line) for line in printed.splitlines(keepends=True) if line.endswith("\n")]


def test_a_stop_reaches_the_whole_tree(start, said):
    process = start("has_children")
    until(lambda: len(tree(said())) == 2)
    assert not any(map(gone, tree(said())))
    assert process.stop(0.5).signal is None
    until(lambda: gone(*tree(said())))


def test_a_grandchild_that_holds_the_output_delays_nobody_and_is_swept(start, said):
    assert start("leaks_stdout").wait(PATIENCE_S).code == 0
    until(lambda: gone(int(said())))


def test_a_paused_trainer_computes_nothing_until_it_is_resumed(start):
    process = start("computes")
    until(lambda: process.used().cpu_s > 0.2)
    process.pause()
    held = process.used().cpu_s
    threading.Event().wait(0.5)
    assert process.used().cpu_s <= held + 0.05
    process.resume()
    until(lambda: process.used().cpu_s > held + 0.1)
    assert process.stop(0.1) is not None


def test_what_cannot_be_started_says_so(runner, tmp_path):
    spec = CommandSpec(["no-such-program.exe"], tmp_path, dict(os.environ), tmp_path / "output.log")
    with pytest.raises(SpawnFailedError, match=r"no-such-program.exe could not be started"):
        runner.start(spec)


def test_a_killed_worker_leaves_no_trainer(said, tmp_path):
    command = [sys.executable, str(CHILDREN / "worker_alone.py"), str(tmp_path), sys.executable]
    command += [str(CHILDREN / "has_children.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=CHILDREN.parents[1]) as worker:
        worker.stdout.readline()
        until(lambda: len(tree(said())) == 2)
        assert not any(map(gone, tree(said())))
        worker.kill()
    until(lambda: gone(*tree(said())))


def test_a_file_that_somebody_reads_is_replaced_when_he_has_done(tmp_path):
    new, old = tmp_path / "new", tmp_path / "old"
    new.write_text("new")
    old.write_text("old")
    reader, refused = old.open(), list[float]()

    def sleep(pause_s):
        refused.append(pause_s)
        reader.close()

    LocalFs(sleep).replace(new, old)
    assert old.read_text() == "new"
    assert len(refused) == 1


def test_the_python_behind_a_virtual_environment_is_looked_at():
    """It may be one person's own, which no service can read."""
    assert _behind(Path(sys.executable)) == Path(sys._base_executable).resolve()


# -- the whole way ----------------------------------------------------------------------------------------------------

PLAN = """\
schema_version = 1
[trainers.fake]
command = ["python", "{trainer}"]
outputs = ["{{model}}_{{mode}}.pt"]
[[jobs]]
name = "quick"
model = "fake"
mode = "oracle"
[[jobs]]
name = "endless"
model = "fake"
mode = "realistic"
hyper.behave = "on-file"
"""


class Machine:
    """Programs of one folder; ``run`` waits for one, ``start`` does not."""

    def __init__(self, folder):
        self.folder = folder
        self.env = os.environ | {"CIS490_OPERATOR_TOKEN": TOKEN, "CIS490_TLS_DIR": str(folder / "receiver-tls")}
        self.started = []

    def run(self, *command):
        done = subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, cwd=self.folder, env=self.env, check=False
        )
        assert done.returncode == 0, done.stderr.decode("cp1252")
        return done.stdout.decode("cp1252")

    def start(self, log, *command):
        with (self.folder / log).open("wb") as file:
            self.started.append(
                subprocess.Popen(
                    [sys.executable, "-m", *command],
                    cwd=self.folder,
                    env=self.env,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                )
            )

    def log(self, name):
        return (self.folder / name).read_text("cp1252")


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    yield made
    for process in reversed(made.started):
        process.kill()
        process.wait()


def test_joined_by_one_line_it_trains_until_it_is_revoked(machine, tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN.format(trainer=(CHILDREN / "trainer.py").as_posix()))
    where = ("--manifest", "plan.toml", "--db", "jobs.db", "--models-dir", "models")
    tls = ("--tls", "--tls-dir", "receiver-tls", "--public-name", "localhost")
    machine.start("receiver.log", "training.fleet.receiver", "--port", "0", *where, *tls)
    port = until(lambda: re.search(r"listening on https://[^:]+:(\d+)", machine.log("receiver.log")))[1]
    url = machine.env["CIS490_RECEIVER_URL"] = f"https://localhost:{port}"

    line = machine.run("training.fleet.cli", "enroll", "--windows", "pc")
    code, fingerprint = re.findall(r"-(?:Code|Fingerprint) '([^']+)'", line)
    joining = ("--host-id", "pc", "--code", code, "--fingerprint", fingerprint, "--tls-dir", "tls")
    machine.run("training.fleet.join", "--receiver-url", url, *joining)
    folders = ("--repo-root", str(tmp_path), "--venv-python", sys.executable, "--tls-dir", "tls")
    beats = ("--heartbeat-s", "0.5", "--poll-s", "0.5")
    here = ("training.fleet.worker", "--receiver-url", url, "--host-id", "pc")
    machine.start("worker.log", *here, *folders, *beats)

    def status(job):
        listed = json.loads(machine.run("training.fleet.cli", "list", "--json"))
        return next(str(each["status"]) for each in listed["jobs"] if each["name"] == job)

    until(lambda: status("quick") == "completed")
    machine.run("training.fleet.cli", "get", "quick", "--out", "fetched")
    assert (tmp_path / "fetched" / "fake_oracle.pt").stat().st_size > 1000
    until(lambda: status("endless") == "running")
    (worker,) = machine.started[1:]
    tree = [each.pid for each in psutil.Process(worker.pid).children(recursive=True)]
    assert tree
    machine.run("training.fleet.cli", "revoke", "pc")
    until(lambda: gone(*tree))
    assert worker.wait(PATIENCE_S) != 0
    assert "certificate was revoked" in machine.log("worker.log")
