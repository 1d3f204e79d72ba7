"""Real engines on this machine, each a small cluster of its own below a folder; gone when its block ends."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from dask import config as dask_config
from places import ROOT

PYTHON = Path(sys.executable)
# Workers find this checkout, whichever folder they start in; and do not fight over cores.
OWN = {
    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support'}",
    "POLARS_MAX_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
SLURM_CONF = """
ClusterName=small
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=bf_interval=1,sched_min_interval=100000
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobRequeue=0
KillWait=1
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=small Nodes={host} Default=YES MaxTime=INFINITE State=UP
PartitionName=down Nodes={host} MaxTime=INFINITE State=DOWN
"""


@dataclass
class Cluster:
    """An engine that runs: the name by which a program uses it, and its processes."""

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _start(folder, name, *command, **more):
    with (folder / f"{name}.out").open("wb") as said:
        return subprocess.Popen(
            [str(word) for word in command],
            cwd=folder, env={**os.environ, **OWN, **more}, stdout=said, stderr=said, start_new_session=True,
        )  # fmt: skip


def _stop(process):
    """End a process and what it started: its group, as it leads one."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def _until(process, said, words, tries=600):
    """Wait until a program has printed something, looking for it ten times a second."""
    for _ in range(tries):
        if words in said.read_text(errors="replace"):
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
            break
    raise AssertionError(f"no {words!r}: {said.read_text(errors='replace')[-2000:]}")


@contextlib.contextmanager
def dask(folder, *, nanny):
    """A scheduler, and two processes that work for it one task at a time; a ``nanny`` of each replaces lost ones."""
    address = f"tcp://127.0.0.1:{free_port()}"
    cluster = Cluster(f"dask:{address}")
    settings = dask_config.set({"distributed.comm.timeouts.connect": "3s"})  # of answers that a lost worker had
    module = "distributed.cli.dask_{}"
    try:
        scheduler = _start(
            folder, "scheduler", PYTHON, "-m", module.format("scheduler"), "--host", address, "--no-dashboard",
            "--no-show",
        )  # fmt: skip
        cluster.processes.append(scheduler)
        cluster.processes += [
            _start(
                folder, f"worker-{number}", PYTHON, "-m", module.format("worker"), address, "--nthreads", "1",
                "--no-dashboard", "--local-directory", str(folder), "--nanny" if nanny else "--no-nanny",
            )
            for number in range(2)
        ]  # fmt: skip
        _until(scheduler, folder / "scheduler.out", address)
        with settings:
            yield cluster
    finally:
        for process in reversed(cluster.processes):
            _stop(process)


@contextlib.contextmanager
def ray(folder):
    """One machine of Ray with two cores. Its parts wait 15 s for each other: on a busy machine it starts again."""
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120"}
    for last in (False, False, True):
        port = free_port()
        head = _start(
            folder, "ray", PYTHON.parent / "ray", "start", "--head", "--block", f"--port={port}", "--num-cpus=2",
            "--node-ip-address=127.0.0.1", "--min-worker-port=0", "--max-worker-port=0", "--include-dashboard=false",
            "--disable-usage-stats", f"--object-store-memory={100 << 20}", f"--temp-dir={folder / 'ray'}", **quiet,
        )  # fmt: skip
        try:
            _until(head, folder / "ray.out", "--block", tries=2400)
            break
        except AssertionError:
            _stop(head)
            if last:
                raise
    try:
        yield Cluster(f"ray:127.0.0.1:{port}", quiet, [head])
    finally:
        _stop(head)


@contextlib.contextmanager
def slurm(folder):
    """A controller and one machine with two cores; partitions ``small``, and ``down``, which is."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    folder.chmod(0o755)
    (folder / "key").write_bytes(secrets.token_bytes(1024))
    (folder / "key").chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    user = Path("/").owner() if os.getuid() == 0 else str(os.getuid())
    conf = folder / "slurm.conf"
    conf.write_text(SLURM_CONF.format(host=host, folder=folder, user=user, ports=(free_port(), free_port())))
    environment = {"SLURM_CONF": str(conf), **OWN}  # jobs have what who submits them has
    cluster = Cluster("slurm:small", environment)
    try:
        munged = _start(
            folder, "munged", "/usr/sbin/munged", "--foreground", "--force", f"--socket={folder}/munge.socket",
            f"--key-file={folder}/key", f"--pid-file={folder}/munge.pid", f"--seed-file={folder}/munge.seed",
        )  # fmt: skip
        cluster.processes.append(munged)
        for name in ("slurmctld", "slurmd"):
            program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
            assert program, f"{name} is missing: apt-get install slurm-wlm"
            cluster.processes.append(_start(folder, name, program, "-D", **environment))
        for _ in range(300):
            found = subprocess.run(
                ["sinfo", "--noheader", "--format=%t", "--partition=small"],
                env={**os.environ, **environment}, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if found.stdout.strip() == "idle":
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                munged.wait(0.2)
        else:
            logs = [f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in folder.glob("*.log")]
            raise AssertionError("\n".join([found.stdout, found.stderr, *logs]))
        yield cluster
    finally:
        for process in reversed(cluster.processes):
            _stop(process)
