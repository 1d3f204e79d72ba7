"""Two machines on one: a receiver in a network namespace, and a bare newcomer in another that pastes one line.

``python -m tests.support.two_namespaces`` (as root) tells what came of it as JSON, with progress on standard error:

1. the receiver is started with TLS, and data is pushed to it;
2. ``enroll`` prints a line, which is pasted on a machine of its own: it has the checkout and nothing else;
3. the worker that this installed fetches the data and trains a model, which the receiver keeps;
4. while it trains another, it is revoked: how long until the trainer is gone, and does it ever ask again?
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import places
from trainer_builders import make_data

from training.clock import SystemClock

PATIENCE_S = 150.0
STOPS_S = 5.0  # within which a revocation holds, the trainer's end included
QUIET_S = 8.0  # for which a revoked worker is watched
TOKEN = "sesame"
PLAN = """\
schema_version = 1
name = "two machines"

[defaults]
dataset = "processed"
split_recipe = "host"
train_hosts = ["alpha", "beta"]
n_resamples = 200

[trainers.endless]
command = ["python", "-c", "import time; print('endless', flush=True); time.sleep(4900)"]
outputs = ["{model}.bin"]

[[jobs]]
name = "gbt"
model = "gbt"
mode = "realistic"
priority = 90
hyper.n_estimators = 5

[[jobs]]
name = "endless"
model = "endless"
mode = "realistic"
priority = 10
"""


class Impossible(Exception):  # noqa: N818 - says why it cannot be tried here
    """This machine does not let two be made of it."""


def sh(*argv, **how):
    return subprocess.run([str(part) for part in argv], capture_output=True, text=True, **how)


@contextlib.contextmanager
def two_networks():
    """Two namespaces joined by a cable: their names, and the address of the first. Raises Impossible."""
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("ip") is None:
        raise Impossible("network namespaces need root and iproute2")
    number = random.SystemRandom().randrange(1, 250)
    here, there = f"cis490a{os.getpid()}", f"cis490b{os.getpid()}"
    try:
        for command in (
            f"netns add {here}",
            f"netns add {there}",
            f"link add veth0 netns {here} type veth peer name veth0 netns {there}",
            f"-n {here} addr add 10.213.{number}.1/24 dev veth0",
            f"-n {there} addr add 10.213.{number}.2/24 dev veth0",
            *(f"-n {name} link set {link} up" for name in (here, there) for link in ("lo", "veth0")),
        ):
            if (done := sh("ip", *command.split())).returncode != 0:
                raise Impossible(f"ip {command}: {done.stderr.strip()}")
        yield here, there, f"10.213.{number}.1"
    finally:
        for name in (here, there):
            sh("ip", "netns", "delete", name)


def until(what, seen, within_s=PATIENCE_S):
    """Seconds until ``seen``; AssertionError when it never is."""
    clock, pause = SystemClock(), threading.Event()
    begun = clock.monotonic()
    while not seen():
        took = clock.monotonic() - begun
        assert took < within_s, f"{what}: not within {within_s:.0f} s"
        pause.wait(0.05)
    return clock.monotonic() - begun


class Receiver:
    """The receiver's machine: its program, and commands beside it."""

    def __init__(self, namespace, address, folder):
        self.inside, self.folder = ("ip", "netns", "exec", namespace), folder
        self.url = f"https://{address}:8445"
        self.environment = {
            **os.environ,
            "CIS490_OPERATOR_TOKEN": TOKEN,
            "CIS490_TLS_DIR": str(folder / "tls"),
            "CIS490_RECEIVER_URL": self.url,
        }
        (folder / "plan.toml").write_text('schema_version = 1\nname = "nothing yet"\n')
        flags = {"manifest": "plan.toml", "db": "jobs.db", "models-dir": "models"}
        command = [*self.inside, sys.executable, "-m", "training.fleet.receiver", "--host", "0.0.0.0", "--tls"]
        command += ["--public-name", address]
        for flag, name in flags.items():
            command += [f"--{flag}", str(folder / name)]
        self.log = folder / "receiver.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=places.ROOT, env=self.environment, stdout=log, stderr=log)

    def jobs(self, *argv):
        """A command of cis490-jobs; what it printed."""
        command = [*self.inside, sys.executable, "-m", "training.fleet.cli", *argv]
        done = sh(*command, cwd=places.ROOT, env=self.environment)
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}\n{self.log.read_text()}"
        return done.stdout

    def job(self, name):
        return json.loads(self.jobs("show", name, "--json"))

    def status(self, name):
        return str(self.job(name)["job"]["status"])

    def answers(self):
        return "listening on" in self.log.read_text()


class Newcomer:
    """The other machine, in a root of its own: what it says after the line was pasted."""

    def __init__(self, namespace, folder, line):
        self.namespace = namespace
        children = places.CHILDREN
        own = ["ip", "netns", "exec", namespace, "unshare", "--mount", "--pid", "--fork", "--kill-child"]
        setup = [children / "own_root.sh", folder, places.ROOT, sys.base_prefix, sys.prefix]
        source = (children / "pastes.py").read_text(encoding="utf-8")
        program = ["/opt/cis490/.venv/bin/python", "-c", source, line.strip().removeprefix("sudo ")]
        self.process = subprocess.Popen(
            [*own, *map(str, setup), *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pasted = self._told()

    def look(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._told()

    def _told(self):
        line = self.process.stdout.readline()
        assert line, "the newcomer's machine ended"
        return json.loads(line)

    def trainers(self):
        """The endless trainer's processes, as this machine sees them from outside."""
        found = sh("ip", "netns", "pids", self.namespace).stdout.split()
        return [pid for pid in found if "time.sleep(4900)" in _command(pid)]


def _command(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    return ""


def run(say=lambda _said: None):
    """The whole of it; what came of each step. Raises Impossible, or AssertionError when a step failed."""
    with contextlib.ExitStack() as stack:
        here, there, address = stack.enter_context(two_networks())
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="two-namespaces-")))
        (base / "receiver").mkdir()
        (base / "newcomer").mkdir()
        data = make_data(base / "elsewhere" / "processed")
        receiver = Receiver(here, address, base / "receiver")
        stack.callback(_end, receiver.process)
        until("the receiver listens", receiver.answers)
        receiver.jobs("dataset", "push", str(data))
        (base / "receiver" / "plan.toml").write_text(PLAN)
        receiver.jobs("reload")
        line = receiver.jobs("enroll", "bare")
        say(f"pasting on the other machine: {line.strip()}")
        newcomer = Newcomer(there, base / "newcomer", line)
        stack.callback(_end, newcomer.process)
        assert newcomer.pasted["code"] == 0, newcomer.pasted
        told = {"line": line, "pasted": newcomer.pasted}
        try:
            told |= _works_and_is_put_out(receiver, newcomer, say)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{newcomer.look()['log'][-3000:]}") from error
    return told


def _works_and_is_put_out(receiver, newcomer, say):
    trained_s = until("gbt is trained", lambda: receiver.status("gbt") == "completed")
    say(f"trained a model with data it did not have: {trained_s:.1f} s after joining")
    until("the second job runs", lambda: receiver.status("endless") == "running" and newcomer.trainers())
    say("revoking it while it trains")
    with _beside(lambda: receiver.jobs("revoke", "bare")):
        until("the receiver hears of it", lambda: "bare was revoked" in receiver.log.read_text())
        gone_s = until("the trainer is gone", lambda: not newcomer.trainers(), 60.0)
    say(f"the trainer was gone after {gone_s:.1f} s; watching for {QUIET_S:.0f} s more")
    threading.Event().wait(QUIET_S)
    gbt, endless = receiver.job("gbt"), receiver.job("endless")
    return {
        "trained_s": round(trained_s, 1),
        "artifact": gbt["job"]["artifact_id"],
        "dataset": gbt["spec"].get("dataset"),
        "trainer_gone_s": round(gone_s, 2),
        "status_after": endless["job"]["status"],
        "attempts_after": [attempt["end_reason"] for attempt in endless["attempts"]],
        "trainers_after": newcomer.trainers(),
        **newcomer.look(),
    }


@contextlib.contextmanager
def _beside(work):
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _end(process):
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def main():
    try:
        told = run(lambda said: print(said, file=sys.stderr, flush=True))
    except Impossible as error:
        print(f"cannot be tried here: {error}", file=sys.stderr)
        return 77
    print(json.dumps({name: value for name, value in told.items() if name not in ("log", "pasted")}, indent=1))
    return 0 if told["trainer_gone_s"] <= STOPS_S else 1


if __name__ == "__main__":
    sys.exit(main())
