"""``cis490-jobs watch`` in a real terminal and into a pipe."""

import json
import os
import re
import subprocess
import sys
import uuid

import pytest
from builders import a_capability, a_job
from process_fleet import until
from programs import installed
from receiver_running import Receiver

# ── in a real terminal ──────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def receiver(tmp_path_factory):
    jobs = [a_job("gbt-oracle", priority=90), a_job("needs-gpu", require_cuda=True), a_job("later")]
    with Receiver(tmp_path_factory.mktemp("watched"), jobs) as made:
        yield made


@pytest.fixture
def tmux(tmp_path):
    program = installed("tmux", "tmux")
    name = f"cis490-{uuid.uuid4().hex[:8]}"

    def run(*words):
        environment = {**os.environ, "LC_ALL": "C.UTF-8", "HOME": str(tmp_path)}
        command = [program, "-L", name, "-f", "/dev/null", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    yield run
    subprocess.run([program, "-L", name, "kill-server"], capture_output=True, check=False)


def command(receiver, *words):
    return " ".join([sys.executable, "-m", "training.fleet.cli", *words, "--receiver-url", receiver.url])


def test_it_draws_in_place_follows_what_happens_and_quits(receiver, tmux):
    line = f"trap : INT; NO_COLOR=1 {command(receiver, 'watch')}; echo code=$?; read end"
    tmux("new-session", "-d", "-x", "80", "-y", "24", "-s", "w", line)

    def shown():
        return tmux("capture-pane", "-p", "-t", "w")

    until(lambda: "Ctrl-C quits" in shown(), "it draws")
    assert "3 jobs: 3 pending" in shown()
    desk = receiver.client("desk")
    grant = desk.claim(a_capability())
    desk.heartbeat(grant.job_id, progress={"event": "epoch", "epoch": 3, "epochs": 4, "eta_s": 80.0})
    until(lambda: "3 of 4" in shown(), "it follows")
    assert re.search(r"gbt-oracle +running +desk +75 %, 1 min 20 s", shown())
    tmux("resize-window", "-t", "w", "-x", "50", "-y", "10")
    until(lambda: max(map(len, shown().splitlines())) <= 50, "it fits")
    tmux("send-keys", "-t", "w", "C-c")
    until(lambda: "code=130" in shown(), "it quits, and the last picture stays")


def test_into_a_pipe_it_prints_at_each_change(receiver):
    words = [sys.executable, "-m", "training.fleet.cli", "watch", "--json", "--receiver-url", receiver.url]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        first = json.loads(process.stdout.readline())
        receiver.client("ada").hold("later")
        second = json.loads(process.stdout.readline())
        process.terminate()
    assert first["counts"] == second["counts"]
    assert [each["name"] for each in second["held"]] == ["later"]
