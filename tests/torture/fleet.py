"""A receiver and workers as real processes in one folder, with short leases and all that a test does to them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torture.database_parts import memory_folder
from training.crashpoint import VARIABLE
from training.fleet.client.answers import ClientError
from training.fleet.client.client import FleetClient
from training.fleet.client.push import push, read_folder
from training.fleet.client.transport import HttpTransport
from training.fleet.wire.dataset_listing import Listing

PROGRAMS = Path(__file__).with_name("programs")
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 180.0
LOOK_S = 0.02
TOKEN = "only-for-this-test"
POLICY: Mapping[str, float] = {
    "stale_after_s": 600.0,
    "sweep_period_s": 0.6,
    "max_attempts": 50,
    "max_host_losses": 10_000,
    "max_grants": 10_000,
    "retry_elsewhere_grace_s": 0.0,
    "host_priority_grace_s": 0.0,
    "backoff_s": 0.05,
    "backoff_max_s": 0.1,
    "short_pause_s": 0.05,
    "short_pause_max_s": 0.1,
    "odd_deaths": 0,  # hundreds die at once here, and no host is to blame
    "suspect_crashes": 0,
}
SETTINGS: Mapping[str, float] = {
    "heartbeat_s": 0.3,
    "poll_s": 0.1,
    "wait_s": 2.0,
    "retry_first_s": 0.05,
    "retry_max_s": 0.3,
    "grace_s": 2.0,
    "beat_lost_s": 5.0,
}


def nap(seconds: float = LOOK_S) -> None:
    threading.Event().wait(seconds)


def until(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Return what the condition gives as soon as it is true; AssertionError when it never is."""
    end = time.monotonic() + patience_s
    while True:
        with contextlib.suppress(ClientError):
            if found := condition():
                return found
        assert time.monotonic() < end, f"it did not happen within {patience_s:.0f} s: {what}"
        nap()


class Fleet:
    """Between ``with``. ``policy`` and ``settings`` are added to the ones above."""

    def __init__(
        self,
        *,
        policy: Mapping[str, float] | None = None,
        settings: Mapping[str, Any] | None = None,
        folder: Path | None = None,
        reserve_bytes: int = 1024**2,
        timeout_s: float = 10.0,
        outputs: tuple[str, ...] = ("{model}_{mode}.pt", "{model}_{mode}.ckpt.json"),
    ) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="fleet-", dir=memory_folder()))
        self._own = folder is None
        self.port = 0
        self.url = ""
        self.jobs: list[dict[str, Any]] = []
        self.retention: list[str] = []  # lines of the plan
        self.receiver: subprocess.Popen[bytes] | None = None
        self.started: list[subprocess.Popen[bytes]] = []
        self._transport = HttpTransport("http://127.0.0.1:1")
        self.client = FleetClient("http://127.0.0.1:1", transport=self._transport)
        self._outputs = outputs
        self._given = {
            "policy": {**POLICY, **(policy or {})},
            "settings": {**SETTINGS, **(settings or {})},
            "reserve_bytes": reserve_bytes,
            "disk_wanted_bytes": 1024**2,
            "disk_floor_bytes": 1024**2 // 2,
            "look_s": 0.05,
            "timeout_s": timeout_s,
            "witness": str(self.folder / "witness.jsonl"),
        }

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self._transport.close()
        if self._own:
            shutil.rmtree(self.folder, ignore_errors=True)

    # ── the plan ────────────────────────────────────────────────────────────────────────────

    def add(self, *, reload: bool = True, **hyper: Any) -> str:
        """One job more, with these flags for its trainer; its name."""
        name = f"job-{len(self.jobs)}"
        self.jobs.append({"name": name, "seed": len(self.jobs), "hyper": hyper})
        self.write_plan()
        if reload:
            until(lambda: self.client.reload() is not None, "a reload")
        return name

    def write_plan(self) -> None:
        lines = ["schema_version = 1", 'name = "torture"', "[trainers.fake]"]
        lines += [f"command = {json.dumps(['python', '-S', str(PROGRAMS / 'trainer.py')])}"]
        lines += [f"outputs = {json.dumps(list(self._outputs))}"]
        lines += ["[retention]", *self.retention]
        for job in self.jobs:
            lines += ["[[jobs]]", f'name = "{job["name"]}"', 'model = "fake"', 'mode = "oracle"']
            lines += [f"seed = {job['seed']}"]
            lines += [f"hyper.{key} = {json.dumps(value)}" for key, value in job["hyper"].items()]
        part = self.folder / "plan.toml.part"
        part.write_text("\n".join(lines))
        part.replace(self.folder / "plan.toml")

    # ── processes ───────────────────────────────────────────────────────────────────────────

    def start(self, program: str, *flags: str, log: str, crash: str = "") -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "CIS490_OPERATOR_TOKEN": TOKEN,
            "CIS490_TORTURE": json.dumps(self._given),
            "PYTHONPATH": str(ROOT),
            VARIABLE: crash,
        }
        with (self.folder / log).open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / f"{program}.py"), *flags],
                cwd=self.folder,
                env=environment,
                stdout=file,
                stderr=file,
            )
        self.started = [each for each in self.started if each.returncode is None] + [process]
        return process

    def start_receiver(self, crash: str = "", *, wait: bool = True) -> subprocess.Popen[bytes]:
        """Start it on the address it had; wait until it serves, unless it is to die."""
        self.write_plan()
        flags = ["--port", str(self.port), "--manifest", "plan.toml"]
        flags += ["--db", "state/jobs.db", "--models-dir", "state/models"]
        log = self.folder / "receiver.log"
        seen = log.stat().st_size if log.exists() else 0
        self.receiver = process = self.start("receiver", *flags, log=log.name, crash=crash)

        def serving() -> re.Match[str] | None:
            assert process.poll() is None, log.read_text()[seen:][-2000:]
            return re.search(r"listening on (http://127.0.0.1:(\d+))", log.read_text()[seen:])

        if wait:
            found = until(serving, "the receiver serves")
            self._connect(found[1], int(found[2]))
        return process

    def _connect(self, url: str, port: int) -> None:
        self._transport.close()
        self.url, self.port, self._transport = url, port, HttpTransport(url)
        self.client = FleetClient(url, operator_token=TOKEN, tries=1, transport=self._transport, timeout_s=20.0)

    def start_worker(
        self, name: str = "host", crash: str = "", url: str = "", state: str = ""
    ) -> subprocess.Popen[bytes]:
        flags = ["--receiver-url", url or self.url, "--host-id", name, "--repo-root", "."]
        flags += ["--artifacts-dir", f"{state or name}/artifacts", "--reports-dir", f"{state or name}/reports"]
        return self.start("worker", *flags, log=f"{name}.log", crash=crash)

    def kill_receiver(self) -> None:
        assert self.receiver is not None
        self.receiver.kill()
        self.receiver.wait()

    # ── looking ─────────────────────────────────────────────────────────────────────────────

    def job(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.job(name)
        return found

    def status(self, name: str) -> str:
        return str(self.job(name)["job"]["status"])

    def counts(self) -> dict[str, int]:
        found: dict[str, int] = self.client.jobs(limit=1)["counts"]
        return found

    def wait_for(self, name: str, *statuses: str) -> None:
        until(lambda: self.status(name) in statuses, f"{name} is {' or '.join(statuses)}")

    def all_over(self, patience_s: float = PATIENCE_S) -> None:
        """Every job has ended."""

        def over() -> bool:
            counts = self.counts()
            return counts["pending"] + counts["claimed"] + counts["running"] == 0

        until(over, "every job ends", patience_s)

    def trainers(self) -> list[int]:
        """Processes of trainers and launchers that run in this folder."""
        return [pid for pid, words in processes() if str(self.folder) in words or ("launcher.py" in words
                and _parent_folder(pid) == str(self.folder))]  # fmt: skip

    def launchers_of(self, worker: subprocess.Popen[bytes]) -> list[int]:
        return [pid for pid, words in processes() if "launcher.py" in words and _parent(pid) == worker.pid]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")


def processes() -> Iterator[tuple[int, str]]:
    """Process ids and command lines; what has ended is left out."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                if words and state not in "ZX":
                    yield int(folder.name), words


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _parent_folder(pid: int) -> str:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/cwd").readlink())
    return ""


class FleetWithData(Fleet):
    """Its plan names a data set, which :meth:`publish` brings to the receiver."""

    def write_plan(self) -> None:
        super().write_plan()
        with (self.folder / "plan.toml").open("a") as plan:
            plan.write('\n[defaults]\ndataset = "processed"\n')

    def publish(self, files: Iterable[bytes]) -> Listing:
        data = self.folder / "elsewhere"
        data.mkdir()
        for number, content in enumerate(files):
            (data / f"file-{number}").write_bytes(content)
        listing = read_folder(data, lambda *_: None)
        push(self.client.datasets, data, listing, "processed", lambda *_: None)
        return listing
