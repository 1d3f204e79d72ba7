"""Recordings of many hosts from their episodes to scores: each step's time, and memory of its processes.

    python bench/beyond_memory.py [--sets day,week] [--recordings FOLDER] [--json]
    python bench/beyond_memory.py --sets month --steps build

``day``: ten hosts for 24 hours, about 0.4 million windows; ``week``: three for 168, 0.9 million; ``month``: ten for
184, three million (bench/large.py). They are built, built again by two Dask processes, pushed to a receiver, fetched as
a worker does, trained (``gbt`` 50 trees, ``cnn`` one epoch) from what was fetched, and all windows scored. Bars: a
build has 600 MiB resident in a process, a receiver 62 MiB, a trainer 2 GiB of its own; Dask's bytes are the same.
``--recordings`` keeps them in a folder, or takes what is there. The disk needs 20 KB a window.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import large
from receivers import receiver
from trainers import ONE_THREAD, ROOT, Table, arguments, workplace
from watching import MIB, Took, watched

SETS = {"day": (10, 24), "week": (3, 168), "month": (10, 184)}  # hosts, hours
STEPS = ("build", "dask", "push", "train")
MODELS = {"gbt": ("--n-estimators", "50"), "cnn": ("--epochs", "1")}
BUILD, RECEIVER, TRAINER = 600 * MIB, 62 * MIB, 2048 * MIB
TOKEN = "of-the-benchmark"
MODE = "realistic"


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--sets", default="day,week", help="names with commas: " + ", ".join(SETS))
    parser.add_argument("--steps", default=",".join(STEPS), help="names with commas: " + ", ".join(STEPS))
    parser.add_argument("--recordings", type=Path, help="folder to keep the recordings in (default: none)")
    args = parser.parse_args()
    os.environ |= {"CIS490_OPERATOR_TOKEN": TOKEN} | ONE_THREAD | {"POLARS_MAX_THREADS": "1"}
    columns = {"set": 6, "step": 34, "s": 6, "CPU s": 6, "own MiB": 8, "resident": 9, "bar": 12, "": 40}
    table = Table("from episodes to scores", columns, as_json=args.json)
    missed = 0
    for name in args.sets.split(","):
        with workplace() as folder:
            recordings = (args.recordings or folder) / name
            if not recordings.exists():
                hosts, hours = SETS[name]
                large.make(recordings, hosts=hosts, hours=hours)
            missed += Walk(table, name, recordings, folder).walk(args.steps.split(","))
    table.end(missed=missed)
    return 1 if missed else 0


class Walk:
    """One set of recordings on its way."""

    def __init__(self, table: Table, name: str, recordings: Path, folder: Path) -> None:
        self._table, self._name, self._recordings, self._folder = table, name, recordings, folder
        self._missed = 0

    def walk(self, steps: list[str]) -> int:
        """Do the steps, and return how many bars were missed."""
        data = self._folder / "data"
        self._build(data)
        if "dask" in steps:
            self._dask(data)
        used = data
        if "push" in steps:
            used = self._pushed_and_fetched(data)
        if "train" in steps:
            for model in MODELS:
                self._trained(model, used)
        return self._missed

    def _row(self, step: str, took: Took, *, bar: tuple[int, int] | None = None, words: str = "") -> None:
        """Show a step; ``bar`` is the figure to judge, and the most that it may be."""
        judged = ""
        if bar is not None:
            held = bar[0] <= bar[1]
            self._missed += not held
            judged = f"≤ {bar[1] // MIB:,} {'✓' if held else '–'}"
        self._table.row(self._name, step, *took.shown(), judged, words, own=took.own, resident=took.resident)

    def _build(self, data: Path) -> None:
        took = self._built(data)
        windows, seconds = json.loads(took.said)["windows"], took.seconds
        words = f"{windows:,} windows, {windows / seconds:,.0f} a second; all {took.together / MIB:,.0f} MiB"
        self._row("build, two processes", took, bar=(took.resident, BUILD), words=words)
        shutil.rmtree(data / ".cache", ignore_errors=True)

    def _built(self, out: Path, *more: str) -> Took:
        command = ["training.data.build", str(self._recordings), "--out-dir", str(out), "--json", "--jobs", "2", *more]
        return watched(command, self._folder / "build.log")

    def _dask(self, data: Path) -> None:
        again = self._folder / "again"
        with two_dask_workers(self._folder) as address:
            took = self._built(again, "--executor", f"dask:{address}")
        shutil.rmtree(again / ".cache", ignore_errors=True)
        unlike = [str(path) for path in files(data) if not same(data / path, again / path)]
        unlike += [str(path) for path in files(again) if not (data / path).exists()]
        self._missed += bool(unlike)
        words = f"not the same bytes: {', '.join(unlike)}" if unlike else f"{len(files(data))} files, the same bytes"
        self._row("… by two Dask workers (the program)", took, words=words)
        shutil.rmtree(again)

    def _pushed_and_fetched(self, data: Path) -> Path:
        cache = self._folder / "cache"
        with receiver(self._folder) as served:
            url = ("--receiver-url", f"http://127.0.0.1:{served.port}")
            served.forget_peak()
            took = watched(["training.fleet.cli", *url, "dataset", "push", str(data), "--json"], self._folder / "push")
            sent = json.loads(took.said)["sent"] / MIB
            self._receiver("push", took, served.peak_mib(), f"{sent:,.0f} MiB sent")
            served.forget_peak()
            fetch = ["training.fleet.worker.prefetch", data.name, *url, "--cache-dir", str(cache), "--cache-gib", "100"]
            took = watched([*fetch, "--within-s", "7200"], self._folder / "fetch")
            self._receiver("fetch, as a worker", took, served.peak_mib(), "")
        shutil.rmtree(self._folder / "datasets", ignore_errors=True)
        found = next(cache.glob("sets/*/tensor_window_v1")).parent
        shutil.rmtree(data)
        return found

    def _receiver(self, step: str, took: Took, peak_mib: float, words: str) -> None:
        self._row(f"{step} (the program)", took, words=words)
        there = int(peak_mib * MIB)
        receiver_took = Took(seconds=took.seconds, cpu_s=0.0, own=0, resident=there, together=there, said="")
        self._row("… the receiver meanwhile", receiver_took, bar=(there, RECEIVER))

    def _trained(self, model: str, data: Path) -> None:
        out = self._folder / model
        command = ["training.trainer.run", "--model", model, "--mode", MODE, *MODELS[model]]
        command += ["--validation", str(data / "validation_v1.parquet")]
        command += ["--summary", str(data / "features_window_v1.parquet")]
        command += ["--tensors", str(data / "tensor_window_v1"), "--out-dir", str(out), "--reports-dir", str(out)]
        took = watched(command, self._folder / f"{model}.log")
        report = json.loads((out / f"{model}_{MODE}_train.json").read_text())
        auroc = report["metrics"]["test"]["auroc"]["value"]
        self._row(f"{model} {' '.join(MODELS[model])}", took, bar=(took.own, TRAINER), words=f"AUROC {auroc:.3f}")
        score = ["training.trainer.score", str(out / f"{model}_{MODE}.ckpt.json"), str(data)]
        took = watched([*score, "--out", str(self._folder / "scores.parquet")], self._folder / f"{model}-score.log")
        self._row("… scores all windows", took, bar=(took.own, TRAINER))


@contextmanager
def two_dask_workers(folder: Path) -> Iterator[str]:
    """A scheduler with two processes of one thread on this machine, and its address."""
    from distributed import LocalCluster

    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["PYTHONPATH"] = path  # workers import the project
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        dashboard_address=None,
        local_directory=str(folder / "dask"),
        memory_limit=None,
    ) as cluster:
        yield cluster.scheduler_address


def files(folder: Path) -> list[Path]:
    """The files of a data set below its folder; what a build remembers, and its lock, are none."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not any(part.startswith(".") for part in path.parts))


def same(one: Path, other: Path) -> bool:
    """Compare two files byte by byte."""
    if not other.exists() or one.stat().st_size != other.stat().st_size:
        return False
    with one.open("rb") as first, other.open("rb") as second:
        while block := first.read(4 * MIB):
            if block != second.read(4 * MIB):
                return False
    return True


if __name__ == "__main__":
    sys.exit(main())
