"""From the end of one torch trainer to torch ready in the next, on one slot: python -m bench.turnaround [--jobs 12].

The trainer imports torch, notes when that was done, leaves a small checkpoint, and notes when it ended. Beside each
other in one run, in turn: fresh processes in a bare loop, the limit of all that start one; the fleet with its warm
parent, and with `--warm-start off` (receiver, worker, claim, bundle, upload and all); and HyperQueue, from the package
index into an environment of its own under the user's cache folder, which starts the same program with the same
interpreter.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from receivers import receiver

from training.checkout import ROOT

HYPERQUEUE = "hyperqueue==0.27.0"
PATIENCE_S = 900.0
# The clock is one for all processes of the machine.
PROGRAM = """import sys, time
import torch
ready = time.monotonic()


def main():
    if torch.cuda.is_available():  # as a trainer on a GPU: what was forked from must not have touched it
        torch.zeros(1, device="cuda").item()
    import json, pathlib
    folder = sys.argv[sys.argv.index("--out-dir") + 1]
    pathlib.Path(folder, "mlp_oracle.pt").write_bytes(b"weights")
    pathlib.Path(folder, "mlp_oracle.ckpt.json").write_text("{}")
    with open(MARKS, "a") as file:
        file.write(f"{ready!r} {time.monotonic()!r}\\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
"""
IN_HYPERQUEUE = """import sys
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig
folder, jobs, *command = sys.argv[1:]
with LocalCluster() as cluster:
    cluster.start_worker(WorkerConfig(cores=1))
    client = cluster.client()
    job = Job(default_workdir=folder)
    for n in range(int(jobs)):
        job.program([word.replace("{n}", str(n)) for word in command], stdout=None, stderr=None)
    client.wait_for_jobs([client.submit(job)])
"""


def program(folder: Path) -> Path:
    """Write the trainer, which notes its times in ``folder``."""
    file = folder / "run.py"
    file.write_text(PROGRAM.replace("MARKS", repr(str(folder / "marks"))))
    return file


def command(folder: Path) -> list[str]:
    return [sys.executable, str(program(folder)), "--out-dir", str(folder)]


def gaps(folder: Path, jobs: int, alive: Callable[[], bool]) -> list[float]:
    """Wait for the marks of all jobs; the milliseconds from each end to the next ready."""
    marks: list[tuple[float, ...]] = []
    by = time.monotonic() + PATIENCE_S
    while len(marks) < jobs:
        if not alive() or time.monotonic() > by:
            raise SystemExit(f"{folder.name}: only {len(marks)} of {jobs} trainers have ended")
        time.sleep(0.05)
        with contextlib.suppress(FileNotFoundError):
            marks = [tuple(map(float, line.split())) for line in (folder / "marks").read_text().splitlines()]
    return [(after[0] - before[1]) * 1e3 for before, after in itertools.pairwise(sorted(marks))]


def fresh(folder: Path, jobs: int) -> list[float]:
    """A bare loop."""
    for _ in range(jobs):
        subprocess.run(command(folder), check=True)
    return gaps(folder, jobs, lambda: True)


def checkout(folder: Path) -> Path:
    """A checkout whose trainer is the program above, and all else that of this one."""
    top, ours = folder / "checkout", ROOT / "training"
    (top / "training" / "trainer").mkdir(parents=True)
    for source, target in ((ours, top / "training"), (ours / "trainer", top / "training" / "trainer")):
        for entry in source.iterdir():
            if not (target / entry.name).exists() and entry.name != "__pycache__":
                (target / entry.name).symlink_to(entry)
    (top / "training" / "trainer" / "run.py").unlink()
    program(folder).rename(top / "training" / "trainer" / "run.py")
    return top


def fleet(folder: Path, jobs: int, warm_start: str) -> list[float]:
    """Receiver and worker as they are installed."""
    top = checkout(folder)
    data = folder / "data"
    (data / "tensors").mkdir(parents=True)
    for name in ("validation", "summary", "feature_schema_v1.json"):
        (data / name).touch()
    plan = 'schema_version = 1\nname = "bench"\n[hosts.bench]\nslots = 1\n[defaults]\nn_resamples = 0\n' + "".join(
        f'[[jobs]]\nname = "j{n}"\nmodel = "mlp"\nmode = "oracle"\nseed = {n}\n' for n in range(jobs)
    )
    flags = {
        "repo-root": top,
        "artifacts-dir": folder / "artifacts",
        "reports-dir": folder / "reports",
        "state-dir": folder / "state",
        "validation": data / "validation",
        "summary": data / "summary",
        "tensors": data / "tensors",
        "warm-start": warm_start,
    }
    with receiver(folder, plan=plan) as served, (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [
                *(sys.executable, "-m", "training.fleet.worker", "--host-id", "bench", "--log-level", "WARNING"),
                *("--receiver-url", f"http://127.0.0.1:{served.port}"),
                *(word for flag, value in flags.items() for word in (f"--{flag}", str(value))),
            ],
            stdout=log,
            stderr=log,
            cwd=ROOT,
        )
        try:
            return gaps(folder, jobs, lambda: worker.poll() is None)
        finally:
            worker.terminate()
            worker.wait(60)
            print((folder / "worker.log").read_text(), file=sys.stderr, end="")


def environment(package: str, program: str) -> Path:
    """A peer's own virtual environment, made at first use."""
    folder = Path.home() / ".cache" / "cis490-bench" / package.replace("==", "-")
    if not (folder / "lib").exists() or not list(folder.glob(f"lib/*/site-packages/{program}")):
        print(f"installing {package} into {folder} …", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "-q", package], check=True)
    return folder


def in_hyperqueue(folder: Path, jobs: int, words: list[str]) -> None:
    """Run a command so many times in HyperQueue's own cluster of one worker with one core; `{n}` is the number."""
    python = environment(HYPERQUEUE, "hyperqueue") / "bin" / "python"
    with (folder / "log").open("wb") as log:
        run = [str(python), "-c", IN_HYPERQUEUE, str(folder), str(jobs), *words]
        subprocess.run(run, check=True, stdout=log, stderr=log)


def hyperqueue(folder: Path, jobs: int) -> list[float]:
    """HyperQueue's own cluster."""
    in_hyperqueue(folder, jobs, command(folder))
    return gaps(folder, jobs, lambda: True)


WAYS: dict[str, Callable[[Path, int], list[float]]] = {
    "fresh processes in a bare loop": fresh,
    "fleet, warm parent": lambda folder, jobs: fleet(folder, jobs, "auto"),
    "fleet, --warm-start off": lambda folder, jobs: fleet(folder, jobs, "off"),
    "HyperQueue": hyperqueue,
}


def main() -> int:
    """Print a line for each way, with its ratio to the bare loop."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--jobs", type=int, default=12, help="of each way and round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--without", action="append", default=[], choices=list(WAYS), help="a way to leave out")
    options = parser.parse_args()
    found: dict[str, list[float]] = {way: [] for way in WAYS if way not in options.without}
    for _ in range(options.rounds):
        for way, found_gaps in found.items():
            with tempfile.TemporaryDirectory(prefix="cis490-bench-", ignore_cleanup_errors=True) as name:
                found_gaps += WAYS[way](Path(name), options.jobs)
    bare = statistics.median(found["fresh processes in a bare loop"])
    print(f"the last line of a torch trainer to torch ready in the next, one slot; load {os.getloadavg()[0]:.1f}")
    for way, values in found.items():
        middle = statistics.median(values)
        spread = f"({min(values):.0f} to {max(values):.0f})"
        print(f"  {way:<32}{middle:8.0f} ms {spread}, {middle / bare:.3f} of a bare loop")
    return 0


if __name__ == "__main__":
    sys.exit(main())
