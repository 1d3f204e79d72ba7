"""A newcomer on a bare machine, the one that own_root.sh makes; prints the results as JSON.

Run as root by test_fleet_install.py. It installs a receiver and a worker on one machine, again, and removes both.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

CHECKOUT = Path("/opt/cis490")
PYTHON = CHECKOUT / ".venv/bin/python"
SCRIPT = CHECKOUT / "scripts/install-training-worker.sh"
URL = "http://127.0.0.1:8445"
PLAN = """
schema_version = 1
name = "for a machine with a GPU, which this is not"
[[jobs]]
name = "cnn-oracle"
model = "cnn"
mode = "oracle"
require_cuda = true
"""
WRITTEN = Path("/written")  # the upper layer of this machine's disk
USERADDS_OWN = (".pwd.lock", "subuid", "subgid")  # what useradd and userdel touch besides


def run(*argv: object) -> dict[str, Any]:
    done = subprocess.run([str(part) for part in argv], capture_output=True, text=True, cwd=CHECKOUT)
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr}


def run_as_nobody(*argv: object) -> dict[str, Any]:
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    return run(*nobody, *argv)


def workers() -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{URL}/v1/workers", timeout=10) as answer:
        found: list[dict[str, Any]] = json.load(answer)["workers"]
    return found


def wait_for_worker() -> dict[str, Any]:
    for _ in range(300):
        if found := workers():
            return found[0]
        threading.Event().wait(0.1)
    raise TimeoutError("the worker did not appear")


def contents(*skip: str) -> dict[str, str]:
    """Everything that was ever written on this machine and is still there, but for the checkout itself."""
    found = {}
    for folder, folders, files in os.walk(WRITTEN):
        if folder == str(WRITTEN):
            folders[:] = [name for name in folders if name not in ("opt", "work", "tmp")]
        folders[:] = [name for name in folders if name != "stub-systemd"]
        for name in folders:  # others may only be here because something in them was written
            if "cis490" in f"{folder}/{name}":
                found[f"{folder}/{name}/"] = ""
        for name in files:
            path = Path(folder, name)
            removed = stat.S_ISCHR(path.lstat().st_mode)  # how an overlay notes that
            if not (removed or name.endswith("-") or name in USERADDS_OWN):
                found[str(path)] = str(path.lstat().st_size)
    clean = {path.removeprefix(str(WRITTEN)): size for path, size in found.items()}
    return {path: size for path, size in clean.items() if not any(part in path for part in skip)}


def main() -> None:
    told: dict[str, Any] = {}
    try:
        go(told)
    finally:  # what came before a failure says more than its traceback
        logs = Path("/run/stub-systemd").glob("*.log")
        json.dump(told | {log.name: log.read_text() for log in logs}, sys.stdout)


def joins(told: dict[str, Any]) -> None:
    """The same with encryption: the receiver prints a line, and pasting it is all there is to do."""
    receiver = (PYTHON, "-m", "training.fleet.install", "receiver")
    before = Path("/etc/cis490/receiver.env").read_text()
    told["receiver_tls"] = run(*receiver, "--flags=--tls --public-name localhost")
    settings = Path("/etc/cis490/receiver.env").read_text()
    told["settings"] = sorted(set(settings.splitlines()) ^ set(before.splitlines()))
    os.environ["CIS490_OPERATOR_TOKEN"] = settings.split("CIS490_OPERATOR_TOKEN=")[1].split()[0]
    cli = (PYTHON, "-m", "training.fleet.cli")
    told["enroll"] = run(*cli, "enroll", "joined")
    line = told["enroll"]["out"].strip().removeprefix("sudo ")
    told["joined"] = run("sh", "-c", line)
    told["joined_again"] = run("sh", "-c", line)
    for _ in range(100):
        told["workers_tls"] = run(*cli, "workers", "--json")
        if '"joined"' in told["workers_tls"]["out"]:
            break
        threading.Event().wait(0.1)
    key = Path("/var/lib/cis490-worker/state/tls/client.pem")
    told["key"] = [oct(key.stat().st_mode & 0o777), key.owner()] if key.exists() else None
    told["leaves"] = run(SCRIPT, "uninstall")


def go(told: dict[str, Any]) -> None:
    Path("/var/lib/cis490").mkdir()  # somebody tried the receiver by hand, as root
    Path("/var/lib/cis490/training_jobs.db").touch()
    told["no_receiver"] = run(SCRIPT, "--receiver-url", URL, "--host-id", "newcomer")
    before = contents()
    Path("/etc/cis490").mkdir()
    Path("/etc/cis490/training_manifest.toml").write_text(PLAN)
    told["receiver"] = run(PYTHON, "-m", "training.fleet.install", "receiver")
    for _ in range(100):
        try:
            workers()
            break
        except OSError:
            threading.Event().wait(0.1)
    with_receiver = contents()
    told["dry"] = run(SCRIPT, "--receiver-url", URL, "--host-id", "newcomer", "--dry-run")
    line = (SCRIPT, "--receiver-url", URL, "--host-id", "newcomer")
    told["nobody_dry"] = run_as_nobody(*line, "--dry-run")
    told["nobody"] = run_as_nobody(*line)
    told["nobody_uninstall"] = run_as_nobody(SCRIPT, "uninstall")
    told["after_dry"] = sorted(contents().items() ^ with_receiver.items())
    told["first"] = run(SCRIPT, "--receiver-url", URL, "--host-id", "newcomer", "--flags=--poll-s 1")
    told["worker"] = wait_for_worker()
    calls = Path("/run/stub-systemd/calls")
    told["calls"] = calls.read_text().splitlines()
    calls.unlink()
    installed = contents("/var/lib/cis490")
    told["again"] = run(SCRIPT)
    told["calls_again"] = calls.read_text().splitlines()
    told["after_again"] = sorted(contents("/var/lib/cis490").items() ^ installed.items())
    told["unit"] = Path("/etc/systemd/system/cis490-trainer-worker.service").read_text()
    told["env"] = Path("/etc/cis490/worker.env").read_text()
    told["modes"] = {
        path: [oct(Path(path).stat().st_mode & 0o777), Path(path).owner()]
        for path in ("/etc/cis490/receiver.env", "/var/lib/cis490-worker", "/var/lib/cis490")
    }
    told["uninstall"] = run(SCRIPT, "uninstall")
    told["uninstall_again"] = run(SCRIPT, "--uninstall")
    told["left_of_worker"] = sorted(
        contents("/var/lib/cis490/").items()
        ^ {k: v for k, v in with_receiver.items() if "/var/lib/cis490/" not in k}.items()
    )
    joins(told)
    told["uninstall_receiver"] = run(PYTHON, "-m", "training.fleet.install", "receiver", "--uninstall")
    told["left"] = sorted(set(contents("/var/lib/cis490/", "/etc/passwd", "/etc/group", "shadow")) - set(before))


if __name__ == "__main__":
    main()
