"""A receiver and workers as real processes in one folder, with short leases and all that a test does to them."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from process_fleet import PATIENCE_S, ProcessFleet, parent_of, until
from processes import is_running

from torture.database_parts import memory_folder
from training.fleet.client.push import push, read_folder
from training.fleet.wire.dataset_listing import Listing

PROGRAMS = Path(__file__).with_name("programs")
ROOT = Path(__file__).resolve().parents[2]
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


def dies(process: subprocess.Popen[bytes], place: str) -> None:
    assert process.wait(60) == -signal.SIGKILL, f"it did not die at {place}"


class Fleet(ProcessFleet):
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
        super().__init__(folder or Path(tempfile.mkdtemp(prefix="fleet-", dir=memory_folder())))
        self._own = folder is None
        self.jobs: list[dict[str, Any]] = []
        self.retention: list[str] = []  # lines of the plan
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
        self.close()
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

    @property
    def _environment(self) -> dict[str, str]:
        return {"CIS490_TORTURE": json.dumps(self._given), "PYTHONPATH": str(ROOT)}

    def start_receiver(self, crash: str = "", *, wait: bool = True) -> subprocess.Popen[bytes]:
        self.write_plan()
        words = [str(PROGRAMS / "receiver.py"), "--db", "state/jobs.db", "--models-dir", "state/models"]
        return self.serve(*words, crash=crash, wait=wait, **self._environment)

    def start_worker(
        self, name: str = "host", crash: str = "", url: str = "", state: str = ""
    ) -> subprocess.Popen[bytes]:
        flags = ["--receiver-url", url or self.url, "--host-id", name, "--repo-root", "."]
        flags += ["--artifacts-dir", f"{state or name}/artifacts", "--reports-dir", f"{state or name}/reports"]
        return self.run(str(PROGRAMS / "worker.py"), *flags, log=f"{name}.log", crash=crash, **self._environment)

    # ── looking ─────────────────────────────────────────────────────────────────────────────

    def counts(self) -> dict[str, int]:
        found: dict[str, int] = self.client.jobs(limit=1)["counts"]
        return found

    def wait_for(self, name: str, *statuses: str) -> None:
        until(lambda: self.status(name) in statuses, f"{name} is {' or '.join(statuses)}")

    def ends(self, name: str) -> list[str]:
        """Return how the attempts at a job ended."""
        return [str(each["end_reason"]) for each in self.job(name)["attempts"]]

    def ended(self, name: str, *ends: str) -> None:
        """Hold that the attempts at a job ended so."""
        found = self.ends(name)
        assert found == [*ends], found

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
        return [pid for pid, words in processes() if "launcher.py" in words and parent_of(pid) == worker.pid]


def processes() -> Iterator[tuple[int, str]]:
    """Process ids and command lines; what has ended is left out."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if words and is_running(int(folder.name)):
                    yield int(folder.name), words


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
