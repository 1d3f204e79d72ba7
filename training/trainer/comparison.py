"""Compare models on windows that none of them saw: gaps paired by episode, and which model is first.

The windows that rank the models also give their figures, so the first model's figure is too high. For more than two
models the result says by about how much the first's figure is too high, and calls a model tied with the first unless a
paired test shows a difference. The program `training.trainer.compare` reads the arguments and calls this module.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

from training.data.values import Bools, Floats, Ints, JsonDict
from training.trainer.contract import BadData
from training.trainer.evaluation.figures import shown, shown_rate
from training.trainer.evaluation.intervals import Weights, bootstrap, clusters
from training.trainer.evaluation.metrics import by_class, evaluate, rank_measure, support_of
from training.trainer.evaluation.page import gap, share, show
from training.trainer.evaluation.ratios import AlarmMeasure, episode_sums, ratio
from training.trainer.evaluation.scored import Classes, Scored
from training.trainer.judging import Judged, sides, split_again
from training.trainer.training_windows import NEW, same_data

SAME_CHANNELS = (
    "Both modes see the same channels of these data, as none is for the oracle alone: the gap says nothing about "
    "what oracle channels are worth."
)

RATES = {
    "tpr": "caught",
    "fpr": "false alarms",
    "accuracy": "accuracy of the likeliest class",
    "accuracy_at_threshold": "at the threshold",
}


def compare(
    *models: Judged, n_resamples: int = 1000, seed: int = 0, other_data: bool = False, paths: Sequence[Path] = ()
) -> JsonDict:
    """Compute AUROC and accuracy of each model, and its rates at its threshold, if any, as {value, ci95}; compare the
    models; JSON values. Raises ``BadData`` where the models cannot be compared.

    For two models also their ``gap``, and ``gaps`` in caught windows (tpr) and false alarms (fpr) at their thresholds.
    Both members of ``gaps`` are null if one model has no threshold, or if no class is benign. For more than two models
    each one also has ``p`` (Holm), ``tied`` with the first and ``wins``, and ``standings`` has the ``first`` and its
    ``optimism`` (see `Standings`). Without ``other_data`` all models must have been trained on the data judged. With
    ``other_data``, recordings that a model is known to have used are left out. ``paths`` of the checkpoints distinguish
    models of equal names.
    """
    (rows, left_out, unknown), classes = _unseen_rows(models, other_data=other_data), models[0].classes
    if any(one.document["label_map"] != models[0].document["label_map"] or one.classes != classes for one in models):
        raise BadData("the models know different classes: there is nothing to compare")
    scored = [one.scored.take(rows) for one in models]
    alarms = [None if one.alarm is None or not classes.benign else one.alarm[rows] for one in models]
    draws: JsonDict = {"n_resamples": n_resamples, "seed": seed}
    said = []
    for one, name, mine, alarm in zip(models, names_of(models, paths), scored, alarms, strict=True):
        metrics = evaluate(mine, classes=classes, operating_point=None, **draws).metrics
        row = {"model": one.document["model"], "mode": one.document["mode"], "name": name}
        row |= {key: metrics[key] for key in ("auroc", "accuracy")}
        said.append(row if alarm is None else row | _rates(mine, alarm, classes))
    found = {
        "models": said,
        "windows": int(rows.size),
        "episodes": int(np.unique(scored[0].rows.recording).size),
        "hosts": sorted(set(scored[0].rows.host.tolist())),
        "left_out": left_out,
        "unknown": unknown,
        "notes": [SAME_CHANNELS] if _same_channels(models) else [],
    }
    if len(models) > 2:
        return found | {"standings": _standings(said, scored, classes, **draws)}
    try:
        gap = paired_gap(*scored, classes=classes, **draws)
    except ValueError as error:
        raise BadData(f"{error}") from None
    gaps = paired_rates(scored[0], *alarms, classes=classes, **draws)
    return found | {"gap": gap, "gaps": gaps, "same": models[0].document == models[1].document}


def _standings(models: list[JsonDict], scored: Sequence[Scored], classes: Classes, **draws: int) -> JsonDict:
    """Add ``p``, ``tied`` and ``wins`` to each model's entry; return which model is first, and its optimism."""
    if len({by_class(one, classes) for one in scored}) > 1:
        raise BadData("an AUROC over classes cannot be compared with one of alarms")
    if any(one["auroc"]["value"] is None for one in models):
        raise BadData("there is no AUROC on these windows: a class is missing")
    episode, n_clusters = clusters(scored[0].rows.recording)
    ranks = [rank_measure(one, classes, episode) for one in scored]

    def all_of_them(weights: Weights) -> dict[str, Floats]:
        return {str(number): rank(weights)["auroc"] for number, rank in enumerate(ranks)}

    drawn = [*bootstrap([all_of_them], n_episodes=n_clusters, n_windows=scored[0].y.size, **draws).values()]
    samples = np.stack([one.samples for one in drawn], axis=1)
    ranked = standings([one.value for one in drawn], samples, support_of(scored[0], classes)["auroc"])
    for number, one in enumerate(models):
        one["p"], one["tied"] = round(float(ranked.p[number]), 6), ranked.tied[number]
        one["wins"] = None if ranked.wins is None else round(float(ranked.wins[number]), 6)
    optimism = None if ranked.optimism is None else round(ranked.optimism, 6)
    return {"first": models[ranked.first]["name"], "optimism": optimism}


def _rates(scored: Scored, alarm: Bools, classes: Classes) -> JsonDict:
    """Compute the shares of caught windows, of false alarms and of right answers at the model's own thresholds. An
    answer is a class, or, from a model without probabilities, whether a window is benign."""
    episode, n_clusters = clusters(scored.rows.recording)
    malicious = ~classes.is_benign(scored.y)
    counts = AlarmMeasure(malicious, alarm, episode, n_clusters).counts()
    right = alarm == malicious if scored.proba is None else classes.said(scored.proba, alarm) == scored.y
    hits, windows = episode_sums(np.stack((right, np.ones_like(right)), axis=1), episode, n_clusters).T
    counts["accuracy_at_threshold"] = hits, windows
    return {name: shown_rate(*each) for name, each in counts.items()}


def names_of(models: Sequence[Judged], paths: Sequence[Path]) -> list[str]:
    """Name the models by family and mode; where names are equal and ``paths`` are given, add the last part in which the
    files' paths differ."""
    names = [one.name for one in models]
    if not paths:
        return names
    ways = [path.absolute().parts[::-1] for path in paths]
    made = list(names)
    for number, name in enumerate(names):
        alike = [way for way, other in zip(ways, names, strict=True) if other == name]
        differ = (part for part in zip(*alike, strict=False) if len(set(part)) > 1)
        if (parts := next(differ, None)) is not None:
            made[number] = f"{name} ({parts[alike.index(ways[number])]})"
    return made


def _same_channels(models: Sequence[Judged]) -> bool:
    """Tell whether the models have different modes, but the data set has no channel for ``oracle`` alone."""
    return len({one.document["mode"] for one in models}) > 1 and all(one.inputs.hides_nothing for one in models)


JudgedOn = tuple[Ints, int, list[str]]  # windows; how many a model had seen; models of which that is unknown


def _unseen_rows(models: Sequence[Judged], *, other_data: bool) -> JudgedOn:
    strange = [one for one in models if not same_data(one.document, one.inputs)]
    if other_data:
        return _unseen_by_content(models)
    if strange:
        raise BadData(
            f"{strange[0].name} was trained on other data than these, and may have seen some of these windows: name "
            "the data set it was trained on, or say --other-data to compare on what neither saw, by content"
        )
    return _shared_test(models), 0, []


def _shared_test(models: Sequence[Judged]) -> Ints:
    """Return the row numbers of the test side that all models share, on the data set that all were trained on. Raises
    ``BadData``."""
    splits = [split_again(one) for one in models]
    for one, split in zip(models, splits, strict=True):
        if split.fingerprint != one.document["split"]["fingerprint"]:
            raise BadData(
                f"{one.name} was trained on these data, divided by other rules, so its own windows might be "
                "judged: train it again"
            )
    if not all(np.array_equal(splits[0].test, split.test) for split in splits[1:]):
        raise BadData(
            "the models were judged on different episodes: train them with the same split "
            "recipe, hosts and seed, or say --other-data to compare on what neither has learnt from"
        )
    return splits[0].test


def _unseen_by_content(models: Sequence[Judged]) -> JudgedOn:
    """Return the row numbers of the windows of recordings that no model is known to have used for training, stopping or
    calibration.

    Return also how many windows were left out, and the names of models of which it is unknown which windows they used.
    Raises ``BadData``.
    """
    recording = models[0].inputs.rows.recording
    used, unknown = np.zeros(recording.size, bool), []
    for one in models:
        side = sides(one)
        if side is None:
            unknown.append(one.name)
        else:
            used |= ~np.isin(side, (NEW, "test"))
    used = np.isin(recording, recording[used])
    rows = np.flatnonzero(~used)
    if not rows.size:
        raise BadData("the models have learnt from every recording here: nothing is left to judge them on")
    return rows, int(used.sum()), unknown


def in_words(found: JsonDict) -> str:
    names = [one["name"] for one in found["models"]]
    wide = max(len("gap"), *map(len, names))
    lines = []
    for name, one in zip(names, found["models"], strict=True):
        rates = "".join(f"  {words} {share(one[key])}" for key, words in RATES.items() if key in one)
        lines.append(f"{name:{wide}}  AUROC {show(one['auroc'])}{rates}")
    if "gap" in found:
        lines.append(f"{'gap':{wide}}        {gap(found['gap'])}")
        told = {"caught": found["gaps"]["tpr"], "false alarms": found["gaps"]["fpr"]}
        lines += [f"{'':{wide}}  {what} at the thresholds {gap(one)}" for what, one in told.items() if one is not None]
    who = "" if found["unknown"] else " that neither saw" if len(names) == 2 else " that none saw"
    lines.append(
        f"{found['windows']:,} windows of {found['episodes']} episodes{who}, of {', '.join(found['hosts'])}; "
        "95 % intervals."
    )
    lines += found["notes"]
    if found["left_out"]:
        lines.append(
            f"{found['left_out']:,} windows were left out: one of the models has seen part of their recordings."
        )
    if found["unknown"]:
        lines.append(
            f"Which is better is unknown: {' and '.join(found['unknown'])} may have been trained on these "
            "windows; a checkpoint stores no digests of so many windows as the model has seen."
        )
        return "\n".join(lines)
    if "standings" in found:
        first, optimism = names.index(found["standings"]["first"]), found["standings"]["optimism"]
        tied, wins = ([one[key] for one in found["models"]] for key in ("tied", "wins"))
        lines += standings_in_words(first, names, tied, wins, optimism)
    else:
        lines.append("Both are one and the same model." if found["same"] else _conclusion(found["gap"], names))
    return "\n".join(lines)


def _conclusion(gap: JsonDict, names: Sequence[str]) -> str:
    if gap["ci95"] is None:
        return f"Which is better is unknown: {gap.get('reason', 'a class is missing')}."
    low, high = gap["ci95"]
    if low <= 0 <= high:
        return "This test does not show which is better: the gap may as well be none."
    return f"{names[0] if low > 0 else names[1]} is better, and not by the draw of episodes alone."


def paired_gap(a: Scored, b: Scored, *, classes: Classes, n_resamples: int = 1000, seed: int = 0) -> JsonDict:
    """Compute the AUROC of ``a`` minus that of ``b``, as {value, ci95}: for example oracle minus realistic, or a plain
    method minus the model.

    Both models are resampled with the same episodes, so what makes an episode easy or hard for both cancels out: the
    interval is mostly much narrower than those of the two AUROCs suggest. Raises ValueError when the windows differ, or
    when one is judged by class and the other by its alarm score.
    """
    if not (np.array_equal(a.rows.recording, b.rows.recording) and np.array_equal(a.y, b.y)):
        raise ValueError("a paired comparison needs the same windows in the same order")
    if by_class(a, classes) is not by_class(b, classes):
        raise ValueError("an AUROC over classes cannot be compared with one of alarms")
    episode, n_clusters = clusters(a.rows.recording)
    first, second = (rank_measure(one, classes, episode) for one in (a, b))

    def gap(weights: Weights) -> Floats:
        return first(weights)["auroc"] - second(weights)["auroc"]

    sizes = {"n_episodes": n_clusters, "n_windows": a.y.size}
    return _drawn(gap, support_of(a, classes)["auroc"], **sizes, n_resamples=n_resamples, seed=seed)


def _drawn(gap: Callable[[Weights], Floats], support: int, **sizes: int) -> JsonDict:
    estimate = bootstrap([lambda weights: {"gap": gap(weights)}], **sizes)["gap"]
    return shown(estimate, support, bounded=False)


def paired_rates(scored: Scored, a: Bools | None, b: Bools | None, *, classes: Classes, **draws: int) -> JsonDict:
    """Compute the alarm rates of ``a`` minus those of ``b`` on the same windows: ``tpr`` and ``fpr``, each {value,
    ci95}.

    Both rates are None if ``a`` or ``b`` is None. Each resample draws the same episodes for both, as in `paired_gap`.
    If all resamples give the same difference and it is not 0, see `percentile_interval` for the interval.
    """
    if a is None or b is None:
        return {"tpr": None, "fpr": None}
    benign = classes.is_benign(scored.y)
    episode, n_clusters = clusters(scored.rows.recording)
    found: JsonDict = {}
    for name, mine in (("tpr", ~benign), ("fpr", benign)):
        more = (a.astype(float) - b) * mine
        table = episode_sums(np.stack([more, mine], axis=1).astype(float), episode, n_clusters)

        def gap(weights: Weights, table: Floats = table) -> Floats:
            return ratio(*(weights.astype(float) @ table).T)

        sizes = {"n_episodes": n_clusters, "n_windows": n_clusters}
        support = int(np.unique(scored.rows.recording[mine]).size)
        found[name] = _drawn(gap, support, **sizes, **draws)
    return found


SURE = 0.05  # chance, over all comparisons together, of telling one apart that is not behind


class Standings(NamedTuple):
    """M models in their given order: the number of the ``first``, and each one's probability and tie with the first.

    ``p`` (M,) is the chance of so large a gap to the first if the models were equal, corrected by Holm; it is 1 for the
    first itself. ``wins`` (M,) are the shares of resamples in which each has the highest value. ``optimism`` is the
    average amount by which the highest value of a resample exceeds the same model's value on the whole test. The first
    model's value is about ``optimism`` too high, because this test chose the model. ``wins`` and ``optimism`` are None
    without resamples, or with fewer than two episodes that carry the value; then all models are tied.
    """

    first: int
    p: Floats
    tied: tuple[bool, ...]
    wins: Floats | None
    optimism: float | None


def standings(values: Sequence[float], samples: Floats, support: int) -> Standings:
    """Rank models by their ``values`` (M,) and paired resamples (R, M) of them.

    A gap divided by the standard deviation of its resamples is taken as Student's t with ``support`` - 1 degrees of
    freedom; ``support`` is the number of episodes that carry the value. The p values of all models but the first are
    corrected for their number by Holm's steps.
    """
    known = samples[np.isfinite(samples).all(axis=1)]
    whole = np.asarray(values, float)
    first = int(whole.argmax())
    p = np.ones(whole.size)
    if not len(known) or support < 2:
        return Standings(first, p, (True,) * whole.size, None, None)
    gaps = known[:, [first]] - known
    spread = gaps.std(axis=0, ddof=1) if len(known) > 1 else np.zeros(whole.size)
    gap = whole[first] - whole
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(gap > 0, gap / spread, 0.0)
    others = [number for number in range(whole.size) if number != first]
    p[others] = holm([float(2 * stats.t.sf(ratio[number], support - 1)) for number in others])
    best = known.argmax(axis=1)
    return Standings(
        first,
        p,
        tuple(bool(one > SURE) for one in p),
        np.bincount(best, minlength=whole.size) / len(known),
        float((known.max(axis=1) - whole[best]).mean()),
    )


def holm(chances: Sequence[float]) -> list[float]:
    """Return the probabilities corrected by Holm's step-down method, in the given order."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    made, most = [0.0] * len(chances), 0.0
    for place, number in enumerate(order):
        most = max(most, min(1.0, (len(chances) - place) * chances[number]))
        made[number] = most
    return made


def standings_in_words(
    first: int, names: Sequence[str], tied: Sequence[bool], wins: Sequence[float | None], optimism: float | None
) -> list[str]:
    """Describe the standings of models with these names; ``first`` is the number of the model with the highest
    value."""
    share = wins[first]
    if share is None or optimism is None:
        return [f"{names[first]} has the highest AUROC; too few episodes, or resamples, say how sure that is."]
    alike = [name for number, name in enumerate(names) if tied[number] and number != first]
    behind = [name for number, name in enumerate(names) if not tied[number]]
    lines = [f"{names[first]} has the highest AUROC, and is first in {100 * share:.0f} % of the resamples."]
    if alike:
        lines.append(f"Not distinguishable from it: {', '.join(alike)}.")
    if behind:
        lines.append(f"Behind it, by a paired test with Holm's correction: {', '.join(behind)}.")
    return [
        *lines,
        f"Chosen by this very test, its AUROC is {optimism:.3f} too high or more: only another test decides.",
    ]
