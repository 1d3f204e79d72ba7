"""``python -m training.trainer.compare A.ckpt.json B.ckpt.json DATA``: is one really better, or was it the draw?

Both models score the windows that neither of them saw: the test side of the split that their checkpoints name, made
again from ``DATA``, the data set that both were trained on, and checked against its fingerprint. Other data are
refused, and so are models that divided their common data in different ways; with ``--other-data`` they are judged
where neither has learnt. What oracle channels are worth is the gap between an oracle model and a realistic one. Two
folders are two rotations, compared host by host.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.streams import replace_unprintable
from training.trainer.contract import BadArguments, BadData, Progress, Stop, limit_threads, perform
from training.trainer.flags import FEWEST_RESAMPLES
from training.trainer.judging import Judged, judge, sides, split_again

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from training.trainer.evaluation.intervals import FloatArray, Weights
    from training.trainer.evaluation.scored import Classes, Scored

PROGRAM = "training.trainer.compare"
SAME_CHANNELS = (
    "Both modes see the same channels of these data, as none is for the oracle alone: the gap says nothing about "
    "what oracle channels are worth."
)


def main(argv: Sequence[str] | None = None) -> int:
    replace_unprintable()
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}",
        allow_abbrev=False,
        description="AUROC of two models on the windows that neither saw, and the gap with its 95 % interval.",
    )
    parser.add_argument(
        "a", type=Path, help="file <model>_<mode>.ckpt.json of a trained model, or a folder of a rotation's"
    )
    parser.add_argument("b", type=Path, help="such a file, or folder, to compare it with")
    parser.add_argument("data", type=Path, help="folder of the processed data set that both were trained on")
    parser.add_argument(
        "--n-resamples", type=_resamples, default=1000, help="number of bootstrap resamples (default 1000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the resamples (default 0)")
    parser.add_argument("--threads", type=_whole, default=1, help="number of CPU threads (default 1)")
    parser.add_argument(
        "--other-data", action="store_true",
        help="allow other data, or another split: judge every window here that neither model has learnt from",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    names = parser.parse_args(argv)
    limit_threads(names.threads)

    def work(_progress: Progress, _stop: Stop) -> None:
        if names.a.is_dir() and names.b.is_dir():
            from training.trainer import rotated

            if names.other_data:
                raise BadArguments("--other-data has no effect on two rotations: leave it out, or name two files")
            counts = {"n_resamples": names.n_resamples, "seed": names.seed, "threads": names.threads}
            folded = rotated.compare_rotations(names.a, names.b, names.data, **counts)
            print(json.dumps(folded, allow_nan=False) if names.json else rotated.in_words(folded))
            return
        found = compare(
            judge(names.a, names.data, threads=names.threads),
            judge(names.b, names.data, threads=names.threads),
            n_resamples=names.n_resamples,
            seed=names.seed,
            other_data=names.other_data,
            paths=(names.a, names.b),
        )
        print(json.dumps(found, allow_nan=False) if names.json else _in_words(found))

    return perform(work, out=sys.stderr)


def _whole(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text}")
    return value


def _resamples(text: str) -> int:
    value = _whole(text)
    if value < FEWEST_RESAMPLES:
        raise argparse.ArgumentTypeError(
            f"must be {FEWEST_RESAMPLES} or more, not {text}: fewer make no interval, and without one "
            "nothing can be said"
        )
    return value


def compare(
    a: Judged,
    b: Judged,
    *,
    n_resamples: int = 1000,
    seed: int = 0,
    other_data: bool = False,
    paths: Sequence[Path] = (),
) -> dict[str, Any]:
    """The AUROC of both and their gap, as {value, ci95}; JSON values. Raises ``BadData`` where that has no meaning.

    Both must have been trained on the data judged; ``other_data`` allows others, and leaves out what either has seen.
    ``paths`` of the checkpoints name models that would otherwise have one name.
    """
    import numpy as np

    from training.trainer.evaluation.metrics import evaluate

    judged_on = _unseen_rows(a, b, other_data=other_data)
    rows = judged_on.rows
    classes = a.classes
    if a.document["label_map"] != b.document["label_map"] or classes != b.classes:
        raise BadData("the two models know different classes: there is nothing to compare")
    scored = [one.scored.take(rows) for one in (a, b)]
    try:
        gap = paired_gap(scored[0], scored[1], classes=classes, n_resamples=n_resamples, seed=seed)
    except ValueError as error:
        raise BadData(f"{error}") from None
    judged = [
        evaluate(one, classes=classes, operating_point=None, n_resamples=n_resamples, seed=seed) for one in scored
    ]
    return {
        "models": [
            {
                "model": one.document["model"],
                "mode": one.document["mode"],
                "name": name,
                "auroc": result.metrics["auroc"],
            }
            for one, name, result in zip((a, b), names_of(a, b, paths), judged, strict=True)
        ],
        "gap": gap,
        "windows": int(rows.size),
        "episodes": int(np.unique(scored[0].rows.recording).size),
        "hosts": sorted(set(scored[0].rows.host.tolist())),
        "left_out": judged_on.left_out,
        "unknown": list(judged_on.unknown),
        "same": a.document == b.document,
        "notes": [SAME_CHANNELS] if _same_channels(a, b) else [],
    }


def names_of(a: Judged, b: Judged, paths: Sequence[Path]) -> tuple[str, str]:
    """The names of both; of one family and mode with the last part in which their files' paths differ."""
    if a.name != b.name or not paths:
        return a.name, b.name
    ways = [path.absolute().parts[::-1] for path in paths]
    for parts in zip(*ways, strict=False):
        if parts[0] != parts[1]:
            return f"{a.name} ({parts[0]})", f"{b.name} ({parts[1]})"
    return a.name, b.name


def _same_channels(a: Judged, b: Judged) -> bool:
    """Two modes that see the same: the data set has no channel for the oracle alone."""
    return a.document["mode"] != b.document["mode"] and a.inputs.hides_nothing and b.inputs.hides_nothing


@dataclass(frozen=True, slots=True)
class _JudgedOn:
    """The windows that are judged; how many were not, as a model had seen them; and models of which that is unknown."""

    rows: NDArray[np.int64]
    left_out: int = 0
    unknown: tuple[str, ...] = ()


def _unseen_rows(a: Judged, b: Judged, *, other_data: bool) -> _JudgedOn:
    from training.trainer.seen import same_data

    strange = [one for one in (a, b) if not same_data(one.document, one.inputs)]
    if other_data:
        return _unseen_by_content(a, b)
    if strange:
        raise BadData(
            f"{strange[0].name} was trained on other data than these, and may have seen some of these windows: name "
            "the data set it was trained on, or say --other-data to compare on what neither saw, by content"
        )
    return _JudgedOn(_shared_test(a, b))


def _shared_test(a: Judged, b: Judged) -> NDArray[np.int64]:
    """The test side of both, which must be one: of the data set that both were trained on."""
    import numpy as np

    splits = [split_again(one) for one in (a, b)]
    for one, split in zip((a, b), splits, strict=True):
        if split.fingerprint != one.document["split"]["fingerprint"]:
            raise BadData(
                f"{one.name} was trained on these data, divided by other rules (of an earlier version), so its own "
                "windows might be judged: train it again"
            )
    if not np.array_equal(splits[0].test, splits[1].test):
        raise BadData(
            "the two models were judged on different episodes: train both with the same split "
            "recipe, train hosts and seed, or say --other-data to compare on what neither has learnt from"
        )
    return splits[0].test


def _unseen_by_content(a: Judged, b: Judged) -> _JudgedOn:
    """Windows, of any data, from recordings of which neither model has learnt, stopped or calibrated by any part."""
    import numpy as np

    from training.trainer.seen import NEW

    recording = a.inputs.rows.recording
    used, unknown = np.zeros(recording.size, dtype=bool), []
    for one in (a, b):
        side = sides(one)
        if side is None:
            unknown.append(one.name)
        else:
            used |= ~np.isin(side, (NEW, "test"))
    used = np.isin(recording, recording[used])
    rows = np.flatnonzero(~used)
    if not rows.size:
        raise BadData("one of the two models has learnt from every recording here: nothing is left to judge them on")
    return _JudgedOn(rows, int(used.sum()), tuple(unknown))


def _in_words(found: dict[str, Any]) -> str:
    from training.trainer.evaluation.page import gap, show

    names = [one["name"] for one in found["models"]]
    wide = max(len("gap"), *map(len, names))
    lines = [f"{name:{wide}}  AUROC {show(one['auroc'])}" for name, one in zip(names, found["models"], strict=True)]
    lines.append(f"{'gap':{wide}}        {gap(found['gap'])}")
    lines.append(
        f"{found['windows']:,} windows of {found['episodes']} episodes"
        f"{'' if found['unknown'] else ' that neither saw'}, of {', '.join(found['hosts'])}; 95 % intervals."
    )
    lines += found["notes"]
    if found["left_out"]:
        lines.append(f"{found['left_out']:,} windows were left out: one of the two has seen part of their recordings.")
    if found["unknown"]:
        lines.append(
            f"Which is better cannot be said: {' and '.join(found['unknown'])} may have been trained on these "
            "windows; the checkpoint does not keep what it has seen."
        )
        return "\n".join(lines)
    if found["same"]:
        return "\n".join([*lines, "Both are one and the same model."])
    return "\n".join([*lines, _conclusion(found["gap"], names)])


def _conclusion(gap: dict[str, Any], names: Sequence[str]) -> str:
    if gap["ci95"] is None:
        return f"Which is better cannot be said: {gap.get('reason', 'a class is missing')}."
    low, high = gap["ci95"]
    if low <= 0 <= high:
        return "Which is better cannot be told from this test: the gap may as well be none."
    return f"{names[0] if low > 0 else names[1]} is better, and not by the draw of episodes alone."


def paired_gap(a: Scored, b: Scored, *, classes: Classes, n_resamples: int = 1000, seed: int = 0) -> dict[str, Any]:
    """AUROC of ``a`` minus that of ``b``, as {value, ci95}: oracle minus realistic, or a rival minus the model.

    Both are resampled with the same episodes, so what makes an episode easy or hard for both cancels out: the
    interval is much narrower than those of the two AUROCs suggest. Raises ValueError when the windows differ, or when
    one is judged by class and the other by its alarm score.
    """
    import numpy as np

    from training.trainer.evaluation.intervals import bootstrap, clusters
    from training.trainer.evaluation.metrics import by_class, rank_measure, shown, support_of

    if not (np.array_equal(a.rows.recording, b.rows.recording) and np.array_equal(a.y, b.y)):
        raise ValueError("a paired comparison needs the same windows in the same order")
    if by_class(a, classes) is not by_class(b, classes):
        raise ValueError("an AUROC over classes cannot be compared with one of alarms")
    episode, n_clusters = clusters(a.rows.recording)
    first, second = (rank_measure(one, classes, episode) for one in (a, b))

    def gap(weights: Weights) -> dict[str, FloatArray]:
        return {"gap": first(weights)["auroc"] - second(weights)["auroc"]}

    sizes = {"n_episodes": n_clusters, "n_windows": a.y.size}
    estimate = bootstrap([gap], **sizes, n_resamples=n_resamples, seed=seed)["gap"]
    support = support_of(a, classes)["auroc"]
    return shown(estimate, support, bounded=False)


if __name__ == "__main__":
    sys.exit(main())
