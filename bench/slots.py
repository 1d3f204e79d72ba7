"""The demo's jobs on one host: one slot against `"auto"`, and as many bare trainers side by side.

    python bench/slots.py [--jobs 14] [--rounds 1] [--json]

Data and jobs are the demo's, one thread each, in its order. *one* and *auto* are the whole product, receiver
and worker as installed, from the start of the worker to the last model in the store; *bare* are the same trainers with
the same arguments, as many at once as the host has cores, started by a loop that waits for one to end. The bar: `auto`
reaches at least 0.9 of what bare trainers reach in the same run.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fleet_makespan import _wait as wait
from receivers import receiver
from trainers import Table, arguments

from training.checkout import ROOT
from training.fleet.manifest.load import load_manifest
from training.fleet.worker.trainer_command import TrainerInputs, trainer_command

DEMO = ROOT / "examples" / "demo_manifest.toml"
BAR = 0.9


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    cores = os.cpu_count() or 1
    table = Table(
        f"seconds for the demo's first {args.jobs} jobs",
        {"round": 6, "one slot": 9, "auto": 9, f"bare × {cores}": 10, "auto/bare": 10, "one/auto": 9},
        as_json=args.json,
    )
    rates = []
    with tempfile.TemporaryDirectory(prefix="cis490-bench-") as name:
        data = sample(Path(name) / "data")
        for number in range(args.rounds):
            folders = [Path(name) / f"{number}-{what}" for what in ("one", "auto", "bare")]
            for folder in folders:
                folder.mkdir()
            one_s, auto_s = (
                fleet(folder, data, demo(args.jobs, slots))
                for folder, slots in zip(folders[:2], ("1", '"auto"'), strict=True)
            )
            bare_s = bare(folders[2], data, demo(args.jobs, "1"), cores)
            rates.append(bare_s / auto_s)
            shown = (
                f"{one_s:.0f}",
                f"{auto_s:.0f}",
                f"{bare_s:.0f}",
                f"{bare_s / auto_s:.2f}",
                f"{one_s / auto_s:.2f}",
            )
            table.row(number + 1, *shown, one_s=one_s, auto_s=auto_s, bare_s=bare_s)
    middle = sorted(rates)[len(rates) // 2]
    table.say(f"auto reaches {middle:.2f} of bare trainers side by side (bar {BAR}) {'✓' if middle >= BAR else '–'}")
    table.end(ratio=middle, bar=BAR)
    return 0 if middle >= BAR else 1


def sample(folder: Path) -> Path:
    """Build the demo's data set, of the recorded sample."""
    build = ["training.data.build", str(ROOT / "examples" / "telemetry-sample"), "--out-dir", str(folder)]
    subprocess.run([sys.executable, "-m", *build], cwd=ROOT, check=True, capture_output=True)
    return folder


def demo(jobs: int, slots: str) -> str:
    """Write the demo's plan with its first jobs, for one host."""
    text = DEMO.read_text(encoding="utf-8")
    head, *entries = text.split("[[jobs]]")
    head = head.partition("[hosts.")[0] + f"[hosts.bench]\nslots = {slots}\n\n"
    return head + "".join(f"[[jobs]]{entry}" for entry in entries[:jobs])


def fleet(folder: Path, data: Path, plan: str) -> float:
    """Train a plan with receiver and worker; returns the seconds from the worker's first ask on."""
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(receiver(folder, plan=plan))
        begun = time.time()
        stack.enter_context(worker(folder, data, served.port))
        return wait(folder) - begun


@contextlib.contextmanager
def worker(folder: Path, data: Path, port: int) -> Iterator[subprocess.Popen[Any]]:
    """The worker of the host ``bench``, with everything of its own in ``folder``."""
    flags = ["--host-id", "bench", "--validation", str(data / "validation_v1.parquet")]
    flags += ["--summary", str(data / "features_window_v1.parquet"), "--tensors", str(data / "tensor_window_v1")]
    for name in ("artifacts", "reports", "state"):
        flags += [f"--{name}-dir", str(folder / name)]
    command = [sys.executable, "-m", "training.fleet.worker", *flags]
    command += ["--receiver-url", f"http://127.0.0.1:{port}"]
    with (folder / "worker.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


def commands(folder: Path, data: Path, plan: str) -> dict[str, list[str]]:
    """Make the commands of a plan's trainers as its worker does, by the names of the jobs; each has a folder."""
    (folder / "plan.toml").write_text(plan, encoding="utf-8")
    inputs = TrainerInputs(
        python=Path(sys.executable),
        validation=data / "validation_v1.parquet",
        summary=data / "features_window_v1.parquet",
        tensors=data / "tensor_window_v1",
    )
    made = {}
    for job in load_manifest(folder / "plan.toml").jobs:
        out = folder / job.name
        out.mkdir()
        made[job.name] = trainer_command(job.to_dict(), inputs, out_dir=out, reports_dir=out, threads=1)
    return made


def bare(folder: Path, data: Path, plan: str, at_once: int) -> float:
    """Train a plan by a loop."""
    made = commands(folder, data, plan)
    begun = time.time()
    side_by_side(list(made.values()), at_once)
    return time.time() - begun


def side_by_side(commands: Sequence[Sequence[str]], at_once: int) -> None:
    waiting, running = list(commands), list[subprocess.Popen[Any]]()
    while waiting or running:
        while waiting and len(running) < at_once:
            running.append(subprocess.Popen(waiting.pop(0), cwd=ROOT, stdout=subprocess.DEVNULL))
        time.sleep(0.05)
        for process in running:
            if process.poll():
                raise SystemExit(f"a bare trainer ended with {process.returncode}: {process.args!r}")
        running = [process for process in running if process.poll() is None]


if __name__ == "__main__":
    sys.exit(main())
