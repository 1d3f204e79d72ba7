"""Measure the scaling of each family with threads, and the part of its training that several share.

    python bench/threads.py [--windows 5000] [--models gbt,mlp,…] [--json]

The same job as in bench/train_all_jobs.py, with one thread and with two. What counts is the CPU time of the trainer's
first thread, which computes all that is not shared and half of what is, and sleeps while it waits for the other: so
other work on the machine bothers nobody, and one core will do. The part follows by Amdahl's law; it is the table of
training/fleet/scheduling/threads.py.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from train_all_jobs import make_windows
from trainers import FAMILIES, ONE_THREAD, ROOT, Table, arguments, ingest, own_python, workplace


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--windows", type=int, default=5_000)
    parser.add_argument("--models", default=",".join((*FAMILIES, "combined")), help="names with commas")
    args = parser.parse_args()
    columns = {"model": 16, "one thread": 10, "two threads": 11, "speedup": 8, "shared part": 11}
    table = Table(f"CPU seconds of the first thread, {args.windows:,} windows of 16 × 64", columns, as_json=args.json)
    with workplace() as folder:
        ingest(make_windows(folder / "windows.npz", args.windows), folder / "data")
        for model in args.models.split(","):
            one, two = (_first_thread_s(model, folder / "data", folder / f"{model}-{count}", count) for count in (1, 2))
            part = min(1.0, max(0.0, 2 * (1 - two / one)))
            table.row(model, f"{one:.1f}", f"{two:.1f}", f"{one / two:.2f}", f"{part:.2f}", part=part)
    table.end()
    return 0


def _first_thread_s(model: str, data: Path, out: Path, threads: int) -> float:
    """Train a model; return the CPU seconds of its first thread."""
    own = model == "transformer_ssl"
    command = [own_python(), "-m", "training.trainer.run_ssl" if own else "training.trainer.run"]
    command += (
        [] if own else ["--model", model, "--split-recipe", "host", *(f"--train-hosts=host{n}" for n in range(3))]
    )
    command += ["--mode", "oracle", "--validation", str(data / "validation_v1.parquet"), "--n-resamples", "0"]
    command += ["--summary", str(data / "features_window_v1.parquet"), "--tensors", str(data / "tensor_window_v1")]
    command += ["--out-dir", str(out), "--reports-dir", str(out), "--threads", str(threads)]
    environment = {k: v for k, v in os.environ.items() if k not in ONE_THREAD}
    environment["OMP_WAIT_POLICY"] = "passive"  # who waits sleeps
    used = 0.0
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            with contextlib.suppress(OSError, IndexError):
                facts = Path(f"/proc/{process.pid}/task/{process.pid}/stat").read_text().rpartition(") ")[2].split()
                used = (int(facts[11]) + int(facts[12])) / os.sysconf("SC_CLK_TCK")
            time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}\nended with {process.returncode}")
    return used


if __name__ == "__main__":
    sys.exit(main())
