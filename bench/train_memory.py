"""Training on more windows than a process may hold: memory mapped, read batch by batch.

    python bench/train_memory.py [--windows 1000000] [--models gbt,cnn] [--json]

A million windows of 8 channels × 64 samples are 2 GB of samples and 0.6 GB of features. One short training each: 20
trees, and one epoch of a narrow network. Counted is the memory that a process has of its own (RssAnon): mapped pages
are the system's to take back. The bar: less than the samples alone would need.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from trainers import ROOT, Table, arguments, own_python, workplace

CHANNELS, SAMPLES, EPISODE = 8, 64, 500
SHORT = {"gbt": ("--n-estimators", "20"), "mlp": ("--epochs", "1", "--batch-size", "1024")}
NARROW = ("--epochs", "1", "--batch-size", "256", "--hidden", "8")
MIB = 1024**2


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--windows", type=int, default=1_000_000)
    parser.add_argument("--models", default="gbt,cnn", help="names with commas")
    args = parser.parse_args()
    size = args.windows * CHANNELS * SAMPLES * 4
    columns = {"model": 12, "own MiB, peak": 13, "of the samples": 14, "CPU s": 8, "AUROC": 6}
    table = Table(f"{args.windows:,} windows, {size / MIB:,.0f} MiB of samples", columns, as_json=args.json)
    missed = 0
    with workplace() as folder:
        build(folder, args.windows)
        for model in args.models.split(","):
            peak, cpu_s, auroc = watched(model, folder)
            missed += peak >= size
            mark = "✓" if peak < size else "–"
            share = f"{peak / size:.2f} {mark}"
            table.row(model, f"{peak / MIB:,.0f}", share, f"{cpu_s:.0f}", auroc, peak_bytes=peak)
    table.end(bytes=size, missed=missed)
    return 1 if missed else 0


def build(folder: Path, count: int) -> None:
    """A data set in the product's files; the windows lie in a file all the while."""
    from training.data.dataset import Labelling, Sampling, WindowSet, write_processed
    from training.data.rows import Rows
    from training.data.schema import ChannelSpec

    path = folder / "windows.npy"
    X = np.lib.format.open_memmap(path, "w+", np.float32, (count, CHANNELS, SAMPLES))
    rng = np.random.default_rng(0)
    episode = np.arange(count) // EPISODE
    bad = (rng.random(episode[-1] + 1) < 0.3)[episode]
    swing = np.sin(np.arange(SAMPLES) / 3).astype(np.float32)
    for start in range(0, count, 20_000):
        part = rng.standard_normal((min(20_000, count - start), CHANNELS, SAMPLES), np.float32)
        part[:, 0] += 0.4 * bad[start : start + len(part), None] * swing
        X[start : start + len(part)] = part
    write_processed(
        folder / "data",
        WindowSet(
            X=X,
            rows=Rows.of(
                episode=np.char.add("e", np.char.zfill(episode.astype(str), 5)),
                host=np.array(["one", "two", "three"])[episode % 3],
                t_start=episode * 1e5 + np.arange(count),
                t_end=episode * 1e5 + np.arange(count) + 1,
                label=np.where(bad, "malicious", "benign"),
            ),
        ),
        Sampling(
            channels=[
                ChannelSpec(name=f"c{n}", unit="1", kind="gauge", modes=("realistic", "oracle"))
                for n in range(CHANNELS)
            ],
            sample_hz=1.0,
            window_s=1.0,
            stride_s=1.0,
        ),
        Labelling(target="malicious", names=("benign", "malicious")),
        validation_rows=[
            {"episode_id": f"e{n:05}", "baseline": False, "ok": True, "reasons": []}
            for n in range(int(episode[-1]) + 1)
        ],
    )
    path.unlink()


def watched(model: str, folder: Path) -> tuple[int, float, str]:
    """Train; the peak of its own memory in bytes, CPU seconds, and the test AUROC."""
    import json

    data, out = folder / "data", folder / model
    command = [own_python(), "-m", "training.trainer.run", "--model", model, "--mode", "oracle"]
    command += ["--validation", str(data / "validation_v1.parquet")]
    command += ["--summary", str(data / "features_window_v1.parquet")]
    command += ["--tensors", str(data / "tensor_window_v1"), "--out-dir", str(out)]
    command += ["--reports-dir", str(out), "--n-resamples", "20", *SHORT.get(model, NARROW)]
    with (folder / f"{model}.log").open("w+") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        peak, cpu_s = 0, 0.0
        while process.poll() is None:
            peak = max(peak, own_bytes(process.pid))
            cpu_s = used_s(process.pid) or cpu_s
            time.sleep(0.1)
        if process.returncode:
            log.seek(0)
            raise SystemExit(f"{model} ended with {process.returncode}: {log.read()[-500:]}")
    report: dict[str, Any] = json.loads((out / f"{model}_oracle_train.json").read_text())
    return peak, cpu_s, f"{report['metrics']['test']['auroc']['value']:.3f}"


def own_bytes(pid: int) -> int:
    """Return the memory of a process that is not a file's."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def used_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / 100


if __name__ == "__main__":
    sys.exit(main())
