"""Accuracy of the supervised families on public sets, beside XGBoost, logistic regression, MiniRocket and plain nets.

    python bench/train_public.py [--sets BasicMotions,JapaneseVowels,Watch] [--models gbt,mlp,…] [--seeds 3] [--json]
    python bench/train_public.py --npz FILE --train-hosts HOST[,HOST…]     anybody's windows, in ingest's format

BasicMotions, JapaneseVowels and smaller ones (`--sets`) lie in aeon with their own train and test sides; Watch lies in
seglearn: subjects 1 to 7 train, 8 to 10 test, windows of 100 samples, half overlapping. Ours are trained as users do:
`training.data.ingest`, then `training.trainer.run --split-recipe host`. The others get the same features or windows, of
the same sides. Mean and standard deviation over the seeds; fit seconds are CPU seconds at one thread (ours: of the
whole command, with reading, judging and baselines). tsai is left out: it installs a CUDA build of torch and does not
import beside another.
"""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from plain_nets import ON_FEATURES, ON_WINDOWS, Method
from trainers import (
    FAMILIES,
    Table,
    among_peers,
    arguments,
    ingest,
    mean_and_spread,
    train,
    workplace,
)

OURS = tuple(family for family in FAMILIES if family != "transformer_ssl")
SETS = ("BasicMotions", "JapaneseVowels", "Watch")
FEW = ("ACSF1", "GunPoint", "ItalyPowerDemand", "OSULeaf", "PickupGestureWiimoteZ")  # 50 to 200 windows train
LONGEST = 500  # samples that a series is shortened to
WATCH_TRAINS = tuple(f"subject{number:02}" for number in range(1, 8))
SCORES = ("accuracy", "macro_f1", "auroc")
# What each family must not stay behind: any of these by its mean accuracy.
RIVALS = {
    "gbt": ("XGBoost", "logistic"),
    "mlp": ("XGBoost", "logistic", "plain mlp"),
    **{name: (f"plain {name}",) for name in ("cnn", "gru", "lstm", "transformer")},
}


@dataclass(frozen=True, slots=True)
class Given:
    """A file for ingest, and the hosts that train; all others test."""

    name: str
    file: Path
    train_hosts: tuple[str, ...]
    said: tuple[str, ...] = ("--no-benign",)  # the public sets' classes are activities and speakers


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--sets", default=",".join(SETS), help=f"names with commas; also {', '.join(FEW)}")
    parser.add_argument("--models", default=",".join(OURS), help="of ours, names with commas")
    parser.add_argument("--others", default=",".join((*ON_FEATURES, *ON_WINDOWS)))
    parser.add_argument("--npz", type=Path, help="windows of your own instead of the public sets")
    parser.add_argument("--train-hosts", default="train", help="with --npz: names with commas")
    parser.add_argument("--benign", help="with --npz: as for training.data.ingest")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    among_peers()
    warnings.simplefilter("ignore")
    missed = 0
    with workplace() as folder:
        widths = {"set": 15, "method": 18, "accuracy": 13, "macro-F1": 13, "AUROC": 13}
        table = Table(
            f"public sets, {args.seeds} seeds, mean ± standard deviation",
            widths | {"fit CPU s": 10, "": 30},
            as_json=args.json,
        )
        if args.npz is not None:
            said = ("--benign", args.benign) if args.benign else ()
            hosts = tuple(args.train_hosts.split(","))
            sets = [Given(args.npz.stem, args.npz.resolve(), hosts, said)]
        else:
            sets = [public(name, folder) for name in args.sets.split(",")]
        for given in sets:
            ingest(given.file, folder / given.name, *given.said)
            found = {}
            for name in filter(None, args.others.split(",")):
                found[name] = other(name, given, folder / given.name, args.seeds)
                tell(table, given, name, found[name])
            for name in filter(None, args.models.split(",")):
                found[name] = our(name, given, folder / given.name, args.seeds)
                missed += not tell(table, given, name, found[name], found)
    table.end(missed=missed)
    return 1 if missed else 0


# -- the sets -------------------------------------------------------------------------------------------------------


def public(name: str, folder: Path) -> Given:
    """Write a set in ingest's format."""
    X, y, host, episode = watch() if name == "Watch" else from_aeon(name)
    numbers = np.unique(y, return_inverse=True)[1]
    file = folder / f"{name}.npz"
    np.savez(file, X=X.astype(np.float32), y=numbers, host=host, episode=episode)
    return Given(name, file, WATCH_TRAINS if name == "Watch" else ("train",))


def from_aeon(name: str) -> tuple[Any, Any, Any, Any]:
    """Both sides of a set; series of unequal length are stretched to the longest one's."""
    from aeon import datasets

    load = {
        "ACSF1": datasets.load_acsf1,
        "BasicMotions": datasets.load_basic_motions,
        "GunPoint": datasets.load_gunpoint,
        "ItalyPowerDemand": datasets.load_italy_power_demand,
        "JapaneseVowels": datasets.load_japanese_vowels,
        "OSULeaf": datasets.load_osuleaf,
        "PickupGestureWiimoteZ": datasets.load_pickup_gesture_wiimoteZ,
    }[name]
    (a, y_a), (b, y_b) = load(split="train"), load(split="test")
    series = [*a, *b]
    longest = min(max(one.shape[1] for one in series), LONGEST)
    X = np.stack([stretched(np.asarray(one), longest) for one in series])
    host = np.array(["train"] * len(a) + ["test"] * len(b))
    episode = np.array([f"series{number:04}" for number in range(len(series))])
    return X, np.concatenate((y_a, y_b)), host, episode


def stretched(series: Any, length: int) -> Any:
    if series.shape[1] == length:
        return series
    at = np.linspace(0, series.shape[1] - 1, length)
    return np.stack([np.interp(at, np.arange(series.shape[1]), row) for row in series])


def watch() -> tuple[Any, Any, Any, Any]:
    from seglearn.datasets import load_watch

    data = load_watch()
    X, y, host, episode = [], [], [], []
    for number, (series, label, subject) in enumerate(zip(data["X"], data["y"], data["subject"], strict=True)):
        for start in range(0, len(series) - 100 + 1, 50):
            X.append(np.asarray(series[start : start + 100], dtype=np.float32).T)
            y.append(int(label))
            host.append(f"subject{int(subject):02}")
            episode.append(f"series{number:04}")
    return np.stack(X), np.array(y), np.array(host), np.array(episode)


# -- the methods ----------------------------------------------------------------------------------------------------

Runs = list[dict[str, float | None]]


def our(model: str, given: Given, data: Path, seeds: int) -> Runs:
    runs: Runs = []
    for seed in range(seeds):
        hosts = [flag for host in given.train_hosts for flag in ("--train-hosts", host)]
        out = data.parent / f"{given.name}-{model}-{seed}"
        flags = ("--split-recipe", "host", "--seed", str(seed), "--n-resamples", "50")
        done = train(model, data, out, *flags, *hosts)
        runs.append({name: done.metric(name) for name in SCORES} | {"cpu_s": done.cpu_s})
    return runs


def other(name: str, given: Given, data: Path, seeds: int) -> Runs:
    from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

    from training.data.dataset import load_processed

    on_features = name in ON_FEATURES
    method: Method = ON_FEATURES[name] if on_features else ON_WINDOWS[name]
    read = load_processed(
        data / "features_window_v1.parquet",
        data / "tensor_window_v1",
        data / "feature_schema_v1.json",
        "oracle",
    )
    assert read.tensors is not None
    assert read.features is not None
    X = read.features if on_features else np.array(read.tensors)
    side = np.isin(read.rows.host, given.train_hosts)
    truth = read.rows.label[~side]
    runs: Runs = []
    if name == "MiniRocket":  # numba compiles at the first call
        method(X[side][:64], read.rows.label[side][:64], read.rows.episode[side][:64], X[~side][:4], 0)
    for seed in range(seeds):
        began = time.process_time()
        said = method(X[side], read.rows.label[side], read.rows.episode[side], X[~side], seed)
        seconds = time.process_time() - began
        proba = np.asarray(said, dtype=np.float64)
        proba /= proba.sum(axis=1, keepdims=True)
        asked = proba[:, 1] if proba.shape[1] == 2 else proba
        runs.append(
            {
                "accuracy": float(accuracy_score(truth, proba.argmax(axis=1))),
                "macro_f1": float(f1_score(truth, proba.argmax(axis=1), average="macro")),
                "auroc": float(roc_auc_score(truth, asked, multi_class="ovr")),
                "cpu_s": seconds,
            }
        )
    return runs


# -- telling --------------------------------------------------------------------------------------------------------


def tell(table: Table, given: Given, name: str, runs: Runs, all_found: dict[str, Runs] | None = None) -> bool:
    """A row; False when one of ours stays behind a rival."""
    beside = all_found or {}
    gaps = {rival: mean(runs) - mean(beside[rival]) for rival in RIVALS.get(name, ()) if rival in beside}
    behind = [f"{rival} {gap:+.3f}" for rival, gap in gaps.items() if gap < 0]
    words = "" if all_found is None else ", ".join(behind) or "✓"
    scores = [mean_and_spread([run[score] for run in runs]) for score in SCORES]
    seconds = np.mean([run["cpu_s"] for run in runs])
    table.row(given.name, name, *scores, f"{seconds:.1f}", words, runs=runs)
    return not behind


def mean(runs: Runs) -> float:
    return round(float(np.mean([run["accuracy"] for run in runs])), 4)


if __name__ == "__main__":
    sys.exit(main())
