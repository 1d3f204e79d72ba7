"""The shared parts of the receiver's benchmarks: a filled queue, real processes, plain connections, a peer.

The peer is jobd, a job broker for one's own GPU machines, from the package index; it gets an environment of its own
under the user's cache folder, made once.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import http.client
import json
import multiprocessing
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.checkout import ROOT
from training.contract import digest
from training.data.executors.on_processes import end_with_parent
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.queue.jobs import JobQueue

JOBD = "jobd==0.5.52"
MIB = 1024**2
MANIFEST = """schema_version = 1
name = "bench"
[[jobs]]
name = "nobody"
model = "gbt"
mode = "oracle"
priority = -1000
min_cores = 100000
"""
CAPABILITY = {
    "hostname": "bench",
    "os": "Linux",
    "arch": "x86_64",
    "cpu_cores": 50_000,  # as many jobs as it claims in a run: a host holds one a core
    "ram_total_gib": 50_000.0,  # half a GiB for each of them, as they ask for
    "ram_available_gib": 50_000.0,
    "cuda_available": False,
    "cuda_devices": [],
    "torch_version": "2.13.0+cpu",
    "python_version": "3.11.7",
    "training_commit": "0" * 40,
    "note": "x" * 1150,  # what a real one with several devices and paths amounts to: 1.5 KB in all
}


# -- a queue of a given size ------------------------------------------------------------------------------------


def a_job(number: int, **wishes: Any) -> dict[str, Any]:
    """A job dict as a manifest makes it; ``number`` makes it different from the others."""
    spec = {
        "name": f"job-{number}",
        "model": "gbt",
        "mode": "oracle",
        "priority": 50,
        "require_cuda": False,
        "prefer_cuda": False,
        "min_vram_gib": 0.0,
        "min_ram_gib": 0.5,
        "min_cores": 1,
        "allowed_hosts": [],
        "denied_hosts": [],
        "hyper": {"max_depth": 6},
        "split_recipe": "sample",
        "train_hosts": [],
        "seed": number,
        "n_resamples": 1000,
        **wishes,
    }
    return {**spec, "job_id": digest(["bench", number])}


def fill(path: Path, pending: int, *, blocked: int = 0, classes: int = 1) -> None:
    """A database with this many claimable jobs, behind ``blocked`` better ones that no host of the bench may run.

    The blocked ones need a GPU, of so many different sizes (``classes``).
    """
    database = SqliteDatabase(path, synchronous="OFF")
    queue = JobQueue(path, database=database)
    jobs = (a_job(n, priority=90, require_cuda=True, min_vram_gib=float(n % classes)) for n in range(blocked))
    queue.sync_from_manifest(jobs)
    queue.sync_from_manifest(a_job(blocked + n) for n in range(pending))
    # The receiver's own manifest does not name them; marked so beforehand, its start does not have to.
    database.connection.execute("UPDATE jobs SET in_manifest = 0")
    database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    queue.close()


# -- processes --------------------------------------------------------------------------------------------------


@dataclass
class Served:
    """A server under measurement."""

    pid: int
    port: int
    folder: Path
    started_s: float = 0.0  # from the start of the process to its first answer
    extra: dict[str, Any] = field(default_factory=dict)

    def cpu_s(self) -> float:
        """Processor time used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        """Resident memory now."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+)", text)
        assert match is not None
        return int(match[1]) / 1024

    def peak_mib(self) -> float:
        """The most it has been since :meth:`forget_peak`."""
        match = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())
        assert match is not None
        return int(match[1]) / 1024

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")


NOT_TAKEN_OUT = ("--policy", "odd_death_s=0", "--policy", "second_opinion_s=0")


@contextlib.contextmanager
def receiver(folder: Path, *, synchronous: str = "FULL", plan: str = MANIFEST) -> Iterator[Served]:
    """The receiver as it is installed, over ``folder/jobs.db``; with NORMAL only the durability is another.

    But for one rule: a host whose jobs end badly at once is taken out, and that is what a client here makes of them.
    """
    compileall.compile_dir(ROOT / "training", quiet=1)
    unit = (ROOT / "etc" / "cis490-trainer-receiver.service").read_text()
    environ = {**os.environ, **dict(re.findall(r"(?m)^Environment=(\w+)=(.*)$", unit))}
    (folder / "manifest.toml").write_text(plan)
    program = (
        "from training.fleet.database.sqlite import SqliteDatabase as S; "
        f"S.__init__.__kwdefaults__['synchronous'] = {synchronous!r}; "
        "from training.fleet.receiver import main; raise SystemExit(main())"
    )
    places = {"manifest": "manifest.toml", "db": "jobs.db", "models-dir": "models"}
    flags = [each for name, file in places.items() for each in (f"--{name}", str(folder / file))]
    with _started(
        [
            sys.executable,
            "-c",
            program,
            "--port",
            "0",
            "--log-level",
            "WARNING",
            *NOT_TAKEN_OUT,
            *flags,
        ],
        folder,
        "/v1/health",
        environ,
    ) as served:
        yield served


@contextlib.contextmanager
def jobd(folder: Path, pending: int) -> Iterator[Served]:
    """The peer's broker with this many queued jobs."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {
        **os.environ,
        "JOBD_ALLOW_NO_AUTH": "1",
        "JOBD_DB_URL": f"sqlite:///{folder}/jobd.db",
        "JOBD_LOGS_DIR": str(folder / "logs"),
        "JOBD_CONFIG_DIR": str(folder),
        "JOBD_PORT": str(port),
    }
    program = peer_environment() / "bin" / "jobd"
    with _started([str(program)], folder, "/health", environ, port) as served:
        host = {"free_vram_gb": 0, "unregistered_vram_gb": 0, "free_ram_gb": 12, "idle_cpus": 4}
        call = Caller(port)
        for n in range(8):
            call("POST", "/heartbeat", {"host": f"bench-{n}", "host_aliases": ["any"], **host})
        while pending:
            count = min(pending, 1000)
            job = {"cmd": ["true"], "cwd": "/tmp", "project": "bench", "count": count}
            call("POST", "/submit", job)
            pending -= count
        call.close()
        served.extra["host"] = host
        yield served


def peer_environment() -> Path:
    """The peer's own virtual environment, made at first use."""
    folder = Path.home() / ".cache" / "cis490-bench" / JOBD.replace("==", "-")
    if not (folder / "bin" / "jobd").exists():
        print(f"installing {JOBD} into {folder} …", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        command = [
            str(folder / "bin" / "pip"),
            "install",
            "-q",
            f"jobd[worker]=={JOBD.split('==')[1]}",
        ]
        subprocess.run(command, check=True)
    return folder


@contextlib.contextmanager
def _started(
    command: list[str],
    folder: Path,
    probe: str,
    environ: Mapping[str, str] | None = None,
    port: int = 0,
) -> Iterator[Served]:
    begun = time.perf_counter()
    log = (folder / "log").open("w+b")
    process = subprocess.Popen(command, stdout=log, stderr=log, env=environ or os.environ, cwd=folder)
    try:
        while True:
            if process.poll() is not None:
                log.seek(0)
                raise SystemExit(f"{command[0]} ended: {log.read().decode()[-2000:]}")
            port = port or _listening(process.pid)
            if port and _answers(port, probe):
                break
            time.sleep(0.005)
        yield Served(process.pid, port, folder, time.perf_counter() - begun)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


def _listening(pid: int) -> int:
    """The port on which a process listens, by its open sockets; 0 while there is none."""
    with contextlib.suppress(OSError):
        mine = {str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()}
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
                return int(fields[1].rpartition(":")[2], 16)
    return 0


def _answers(port: int, probe: str) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", probe)
        answered = connection.getresponse().status < 500
        connection.close()
        return answered
    return False


# -- clients ----------------------------------------------------------------------------------------------------


class Caller:
    """One kept-alive connection, with as little between the caller and the server as the standard library allows."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def __call__(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        content = None if body is None else json.dumps(body)
        self._connection.request(method, path, content, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{method} {path}: {answer.status} {text[:300]!r}")
        return json.loads(text)

    def close(self) -> None:
        self._connection.close()


Step = Callable[[Caller, int], object]


def latencies_ms(port: int, step: Step, count: int, client: int = 0) -> list[float]:
    """Measure each of ``count`` steps of one client."""
    call, times = Caller(port), []
    for _ in range(count):
        begun = time.perf_counter()
        step(call, client)
        times.append((time.perf_counter() - begun) * 1e3)
    call.close()
    return times


def rate(served: Served, step: Step, clients: int, seconds: float) -> tuple[float, float]:
    """Steps a second of so many clients, each in a process of its own, and the server's CPU ms for one."""
    context = multiprocessing.get_context("fork")
    ready, go = context.Barrier(clients + 1), context.Event()
    counts = context.SimpleQueue()

    def work(client: int) -> None:
        end_with_parent()
        call = Caller(served.port)
        try:
            step(call, client)
        except BaseException:
            ready.abort()  # or the others would wait for ever
            raise
        ready.wait()
        go.wait()
        done, end = 0, time.perf_counter() + seconds
        try:
            while time.perf_counter() < end:
                step(call, client)
                done += 1
        except BaseException:
            done = -1
            raise
        finally:
            counts.put(done)

    processes = [context.Process(target=work, args=(n,)) for n in range(clients)]
    for process in processes:
        process.start()
    ready.wait()
    before, begun = served.cpu_s(), time.perf_counter()
    go.set()
    each = [counts.get() for _ in processes]
    elapsed, cpu = time.perf_counter() - begun, served.cpu_s() - before
    if min(each) < 0:
        raise SystemExit("a client failed; what it said stands above")
    done = sum(each)
    for process in processes:
        process.join()
    return done / elapsed, cpu / max(1, done) * 1e3


def p50(times: list[float]) -> float:
    return statistics.median(times)


def p99(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]


# -- reporting --------------------------------------------------------------------------------------------------


class Report:
    """Lines for people as they come, and all of them as JSON at the end when asked for."""

    def __init__(self, title: str, as_json: bool) -> None:
        self._as_json = as_json
        self.rows: list[dict[str, Any]] = []
        self.note(f"{title} — load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")

    def note(self, text: str) -> None:
        print(text, file=sys.stderr if self._as_json else sys.stdout, flush=True)

    def row(self, what: str, value: float, unit: str, bar: str = "", **more: Any) -> None:
        """``bar`` is the limit or the peer it is compared with, in words."""
        self.rows.append({"what": what, "value": round(value, 3), "unit": unit, "bar": bar, **more})
        details = "  ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in more.items())
        self.note(f"  {what:<62} {value:>10.2f} {unit:<10} {bar:<34} {details}".rstrip())

    def end(self) -> None:
        if self._as_json:
            print(json.dumps({"load": os.getloadavg()[0], "rows": self.rows}, indent=2))


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="machine-readable, on standard output")
    parser.add_argument("--no-jobd", action="store_true", help="skip the peer")
    return parser


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cis490-bench-") as folder:
        yield Path(folder)
