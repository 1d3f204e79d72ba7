"""Compare two rotations host by host: which family is better on hosts left out of training, and on how many of them.

Each pair of models that tested the same host with the same seed is compared on the windows that neither saw; the gaps
are averaged over hosts like a rotation's figures.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from training.contract import CHECKPOINT_ENDING
from training.data.values import Json, JsonDict
from training.rotation import fold
from training.trainer.checkpoint import read
from training.trainer.comparison import compare
from training.trainer.contract import BadData
from training.trainer.judging import judge

Turns = Mapping[tuple[str, int], Path]  # (tested host, seed) -> checkpoint


def compare_rotations(
    a: Path, b: Path, data: Path, *, n_resamples: int = 1000, seed: int = 0, threads: int = 1
) -> JsonDict:
    """Compare the rotations whose checkpoints are below two folders; return JSON values. Raises ``BadData``."""
    first, second = turns_in(a), turns_in(b)
    shared = sorted(first.keys() & second.keys())
    if not shared:
        raise BadData(f"no host and seed was tested by a model of both {a} and {b}: train both with the same rotation")
    rows = []
    for host, number in shared:
        pair = [judge(turns[host, number], data, threads=threads) for turns in (first, second)]
        rows.append((host, compare(*pair, n_resamples=n_resamples, seed=seed)))

    def by_host(*place: str | int) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for host, one in rows:
            figure: Any = one
            for key in place:
                figure = figure[key]
            if figure is not None and figure["value"] is not None:
                found.setdefault(host, []).append(figure["value"])
        return found

    aurocs = [by_host("models", place, "auroc") for place in (0, 1)]
    for host, found in rows:
        if any(one["auroc"]["value"] is None for one in found["models"]):
            raise BadData(f"there is no AUROC on {host}: its test side lacks a class")
    gaps = {host: [a - b for a, b in zip(one, aurocs[1][host], strict=True)] for host, one in aurocs[0].items()}
    rates = {name: fold(by_host("gaps", name)) for name in ("tpr", "fpr")}
    one, other, apart = ({} if each is None else asdict(each) for each in map(fold, (*aurocs, gaps)))
    return {
        "models": [{"name": str(path), "auroc": each} for path, each in ((a, one), (b, other))],
        "gap": apart,
        "gaps": {name: None if each is None else asdict(each) for name, each in rates.items()},
        "hosts": {
            host: {"a": mean(aurocs[0][host]), "b": mean(aurocs[1][host]), "gap": mean(own)}
            for host, own in gaps.items()
        },
        "ahead": sum(mean(each) > 0 for each in gaps.values()),
        "seeds": sorted({number for _, number in shared}),
        "unpaired": sorted(f"{host}, seed {number}" for host, number in first.keys() ^ second.keys()),
    }


def turns_in(folder: Path) -> Turns:
    """Find the checkpoints of one rotation below a folder. Raises ``BadData`` unless all can be read and belong to one
    rotation, each with its own host or seed, and there is one at least."""
    found: dict[tuple[str, int], Path] = {}
    kinds: dict[str, Path] = {}
    for path in sorted(folder.rglob(f"*{CHECKPOINT_ENDING}")):
        document = read(path).document
        split = document["split"]
        tested = split.get("test_hosts") or []
        if len(tested) != 1:
            raise BadData(f"{path} tested no single host, and is of no rotation: name its file instead of a folder")
        if tested[0] in split["train_hosts"]:
            raise BadData(
                f"{path} names {tested[0]} among the hosts that trained it, so it cannot be judged there: train again"
            )
        hosts = sorted({*split["train_hosts"], *tested})
        kinds.setdefault(repr((document["model"], document["mode"], document["hyper"], hosts)), path)
        if len(kinds) > 1:
            one, other = kinds.values()
            raise BadData(
                f"{one} and {other} differ in more than host and seed: give each rotation a folder of its own"
            )
        turn = (str(tested[0]), int(split["seed"]))
        if turn in found:
            raise BadData(f"{found[turn]} and {path} are of one host and seed: remove one")
        found[turn] = path
    if not found:
        raise BadData(f"there is no checkpoint below {folder}: `cis490-jobs get` brings those of a rotation")
    return found


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def in_words(found: Json) -> str:
    """Format the result as a table with a line for each host, the mean over hosts, and sentences."""
    wide = max(4, *map(len, found["hosts"]))
    lines = [f"{'host':{wide}}  first  second     gap"]
    for host, each in found["hosts"].items():
        lines.append(f"{host:{wide}}  {each['a']:.3f}   {each['b']:.3f}  {_signed(each['gap'])}")
    one, other = (each["auroc"]["mean"] for each in found["models"])
    lines.append(f"{'mean':{wide}}  {one:.3f}   {other:.3f}  {_signed(found['gap']['mean'])}")
    spread = found["gap"]["spread"]
    said = "" if spread is None else f"The gap's spread between hosts is {spread:.3f}, which is no interval. "
    hosts = len(found["hosts"])
    for name, what in (("tpr", "catches"), ("fpr", "raises falsely")):
        if (rate := found["gaps"][name]) is not None:
            lines.append(f"At their thresholds the first {what} {_points(rate['mean'])} of the windows on average.")
    lines.append(f"{said}The first is ahead on {found['ahead']} of {hosts} hosts, each unseen by its models.")
    if found["unpaired"]:
        lines.append(f"Left out, as only one of the two has them: {'; '.join(found['unpaired'])}.")
    return "\n".join(lines)


def _points(value: float) -> str:
    return f"{abs(100 * value):.1f} % {'more' if value >= 0 else 'less'}"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")
