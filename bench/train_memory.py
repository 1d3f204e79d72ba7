"""Training and scoring on more windows than a process may hold: memory mapped, read a part at a time.

    python bench/train_memory.py [--windows 1000000] [--models gbt,cnn] [--data FOLDER] [--json]

A million windows of 8 channels × 64 samples are 2 GB of samples and 0.6 GB of features. One short training each: 20
trees, or one epoch of a narrow network; then the model scores all windows. Counted is the memory that a process has of
its own (bench/watching.py): mapped pages of files are the system's to take back. The bar: 2 GiB, however many windows
there are. ``--data`` keeps the data set in a folder, or takes the one that is there.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from trainers import FAMILIES, Table, arguments, workplace
from watching import MIB, watched

EPISODE = 500  # windows
NARROW = ("--epochs", "1", "--batch-size", "256", "--hidden", "8")
SHORT = {
    "gbt": ("--n-estimators", "20"),
    "mlp": ("--epochs", "1", "--batch-size", "1024"),
    "cnn": (*NARROW, "--layers", "2"),
    "transformer": (*NARROW, "--layers", "1", "--heads", "2"),
    "transformer_ssl": (*NARROW, "--layers", "1", "--heads", "2"),
    "combined": ("--epochs", "20"),
}
BAR = 2 * 1024**3


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--windows", type=int, default=1_000_000)
    parser.add_argument("--channels", type=int, default=8)
    parser.add_argument("--samples", type=int, default=64, help="of each channel in a window")
    parser.add_argument("--models", default=",".join(FAMILIES), help="names with commas")
    parser.add_argument("--data", type=Path, help="folder of the data set, made where there is none (default: none)")
    parser.add_argument("--no-score", action="store_true", help="train alone")
    args = parser.parse_args()
    shape = (args.windows, args.channels, args.samples)
    size = 4 * math.prod(shape)
    columns = {"model": 16, "step": 6, "own MiB, peak": 13, "of the samples": 14, "CPU s": 8, "s": 8, "AUROC": 6}
    table = Table(
        f"{args.windows:,} windows, {args.channels} × {args.samples}, {size / MIB:,.0f} MiB of samples",
        columns,
        as_json=args.json,
    )
    missed = 0
    with workplace() as folder, data_set(args.data or folder / "data", shape) as data:
        for model in args.models.split(","):
            steps = [("train", training(model, data, folder / model))]
            if not args.no_score:
                checkpoint = folder / model / f"{model}_oracle.ckpt.json"
                score = ["training.trainer.score", str(checkpoint), str(data), "--out", str(folder / "scores.parquet")]
                steps.append(("score", score))
            for step, command in steps:
                took = watched(command, folder / f"{model}.log")
                peak = took.own
                missed += peak > BAR
                shown = f"{peak / MIB:,.0f} {'✓' if peak <= BAR else '–'}"
                auroc = tested(model, folder / model) if step == "train" else ""
                table.row(
                    model,
                    step,
                    shown,
                    f"{peak / size:.2f}",
                    f"{took.cpu_s:.0f}",
                    f"{took.seconds:.0f}",
                    auroc,
                    peak_bytes=peak,
                )
    table.end(bytes=size, missed=missed)
    return 1 if missed else 0


@contextmanager
def data_set(folder: Path, shape: tuple[int, int, int]) -> Iterator[Path]:
    """A data set of windows of this shape in a folder, made where there is none."""
    if not (folder / "tensor_window_v1" / "manifest.json").exists():
        build(folder, shape)
    yield folder


def build(folder: Path, shape: tuple[int, int, int]) -> None:
    """A data set in the product's files; the windows lie in a file all the while."""
    from training.data.dataset import Labelling, Sampling, WindowSet, write_processed
    from training.data.rows import Rows
    from training.data.schema import ChannelSpec

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "windows.npy"
    count, channels, samples = shape
    X = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    rng = np.random.default_rng(0)
    episode = np.arange(count) // EPISODE
    bad = (rng.random(episode[-1] + 1) < 0.3)[episode]
    swing = np.sin(np.arange(samples) / 3).astype(np.float32)
    for start in range(0, count, 20_000):
        part = rng.standard_normal((min(20_000, count - start), channels, samples), np.float32)
        part[:, 0] += 0.4 * bad[start : start + len(part), None] * swing
        X[start : start + len(part)] = part
    write_processed(
        folder,
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
                for n in range(channels)
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


def training(model: str, data: Path, out: Path) -> list[str]:
    """The command that trains a family shortly."""
    own = model == "transformer_ssl"
    command = ["training.trainer.run_ssl"] if own else ["training.trainer.run", "--model", model]
    command += ["--mode", "oracle", "--validation", str(data / "validation_v1.parquet")]
    command += ["--summary", str(data / "features_window_v1.parquet")]
    command += ["--tensors", str(data / "tensor_window_v1"), "--out-dir", str(out), "--reports-dir", str(out)]
    return [*command, "--n-resamples", "20", *SHORT.get(model, NARROW)]


def tested(model: str, out: Path) -> str:
    """The AUROC on the test side."""
    kind = "pretrain" if model == "transformer_ssl" else "train"
    report: dict[str, Any] = json.loads((out / f"{model}_oracle_{kind}.json").read_text())
    return f"{report['metrics']['test']['auroc']['value']:.3f}"


if __name__ == "__main__":
    sys.exit(main())
