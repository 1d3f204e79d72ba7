"""Measure what shuffling by blocks changes: networks on the recorded sample, in any order and in pools of runs.

    python bench/train_blocks.py [--models mlp,cnn] [--seeds 0,1,2] [--pools 8] [--run 8] [--json]

More windows than are held in memory are shuffled by blocks (docs/decisions/0035). Here the sample is, though it would
fit: an epoch comes in ``--pools`` pools of runs of ``--run`` neighbouring windows, of recordings of about thirty. At
five million windows of 8 × 64 there are 16 pools of 500 runs, which is closer to any order than this. The bar: the mean
AUROC of the test side differs by no more than the seeds do.
"""

from __future__ import annotations

import io
import json
import statistics
import subprocess
import sys
from pathlib import Path

from trainers import ROOT, Table, arguments, mean_and_spread, own_python, workplace

from training import families
from training.clock import SystemClock
from training.trainer.arguments import parse
from training.trainer.contract import Progress, Stop, limit_threads
from training.trainer.task import LIMITS, MemoryLimits

NETWORKS = ("mlp", "cnn", "gru", "lstm", "transformer")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--models", default=",".join(NETWORKS), help="names with commas")
    parser.add_argument("--seeds", default="0,1,2", help="numbers with commas")
    parser.add_argument("--pools", type=int, default=8, help="of an epoch")
    parser.add_argument("--run", type=int, default=8, help="windows that stay together")
    args = parser.parse_args()
    limit_threads(1)
    columns = {"model": 16, "any order": 16, "by blocks": 16, "difference": 10, "seeds differ by": 15}
    table = Table("AUROC of the test side on the sample", columns, as_json=args.json)
    missed = 0
    with workplace() as folder:
        data = folder / "data"
        episodes = ROOT / "examples" / "telemetry-sample"
        build = [own_python(), "-m", "training.data.build", str(episodes), "--out-dir", str(data), "--jobs", "1"]
        subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
        for model in args.models.split(","):
            found: dict[str, list[float]] = {"any": [], "blocks": []}
            for seed in map(int, args.seeds.split(",")):
                for name, limits in (("any", LIMITS), ("blocks", blocks(model, data, args.pools, args.run))):
                    found[name].append(trained(model, data, folder / f"{model}-{name}-{seed}", seed, limits))
            gap = statistics.mean(found["blocks"]) - statistics.mean(found["any"])
            spread = max(max(each) - min(each) for each in found.values())
            missed += abs(gap) > spread
            shown = mean_and_spread(found["any"]), mean_and_spread(found["blocks"])
            table.row(model, *shown, f"{gap:+.3f}", f"{spread:.3f} {'✓' if abs(gap) <= spread else '–'}", **found)
    table.end(missed=missed)
    return 1 if missed else 0


def blocks(model: str, data: Path, pools: int, run: int) -> MemoryLimits:
    """Limits under which an epoch of the sample comes in so many pools."""
    manifest = json.loads((data / "tensor_window_v1" / "manifest.json").read_text())
    windows, channels, samples = manifest["shape"]
    width = len(manifest["schema"]["features"]) if model == "mlp" else channels * samples
    learnt = windows * 0.42  # what is left of all beside test, calibration and validation
    return MemoryLimits(held_bytes=0, pool_bytes=int(4 * width * learnt / pools), run=run)


def trained(model: str, data: Path, out: Path, seed: int, limits: MemoryLimits) -> float:
    """Train, and return the AUROC of the test side."""
    from training.trainer.session import train

    argv = ["--model", model, "--mode", "oracle", "--split-recipe", "sample", "--seed", str(seed)]
    argv += ["--validation", str(data / "validation_v1.parquet")]
    argv += ["--summary", str(data / "features_window_v1.parquet")]
    argv += ["--tensors", str(data / "tensor_window_v1"), "--n-resamples", "0"]
    argv += ["--out-dir", str(out), "--reports-dir", str(out)]
    args = parse(argv, program="training.trainer.run", models=families.RUN_MODELS)
    train(args, Progress(io.StringIO(), SystemClock()), Stop(), limits=limits)
    report = json.loads((out / f"{model}_oracle_train.json").read_text())
    return float(report["metrics"]["test"]["auroc"]["value"])


if __name__ == "__main__":
    sys.exit(main())
