"""What a model is worth on the test side: numbers with intervals, and the price of its alarms.

Scores come in as `Scored`; the threshold comes from calibration data as an `OperatingPoint` and is never touched again;
`evaluate` turns both into an `Evaluation`. Intervals resample episodes, not windows (see `resample`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from training.trainer import curves
from training.trainer.measures import (
    AlarmMeasure,
    CatchMeasure,
    ClassMeasure,
    ProbabilityMeasure,
    mean_of_present,
)
from training.trainer.resample import (
    CONFIDENCE,
    Estimate,
    Measure,
    RankMeasure,
    Weights,
    bootstrap,
    clusters,
    percentile_interval,
)
from training.trainer.scored import (
    BENIGN,
    FloatArray,
    IntArray,
    LabelMap,
    Scored,
    benign_class,
    decision_interval_s,
)
from training.trainer.threshold import OperatingPoint, operating_point

__all__ = [
    "Evaluation",
    "LabelMap",
    "OperatingPoint",
    "Scored",
    "benign_class",
    "evaluate",
    "operating_point",
]

DAY_S = 86_400.0
# What is caught when false alarms must be rare, since a day has many decisions: read off the test side.
RARE = {"tpr_at_1_percent_fpr": 0.01, "tpr_at_0.1_percent_fpr": 0.001}
_DIGITS = 6  # of every number in a report: below any meaning, above what a CPU's rounding can move


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Everything that a report shows of the test side; JSON values only, never NaN."""

    metrics: dict[str, dict[str, Any]]  # name -> {value, ci95} and, where value is null, reason
    per_host: dict[str, dict[str, Any]]  # host -> counts, one_class, and metrics as above
    confusion: dict[str, Any] | None  # {labels: [K], matrix: [K][K], rows = truth}
    curves: dict[str, Any]  # roc, pr: [{label, points}]; calibration: claimed against observed
    intervals: dict[str, Any]  # how every ci95 was made: {confidence, resamples, unit}


def evaluate(
    test: Scored,
    *,
    label_map: LabelMap,
    operating_point: OperatingPoint | None,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Evaluation:
    """Judge the test side.

    Metrics: accuracy, balanced_accuracy, macro_f1, auroc, auprc, prevalence, ece, brier, tpr, fpr, alerts_per_host_day,
    tpr_at_1_percent_fpr, tpr_at_0.1_percent_fpr;
    with more than two classes auroc and auprc are macro one-vs-rest. A metric that cannot be had is null with a reason.
    """
    if test.y.size == 0:
        raise ValueError("there are no test windows to judge")
    threshold = None if operating_point is None else operating_point.threshold
    judge = _Judge(label_map, threshold, n_resamples, seed)
    metrics, classes = judge.metrics(test)
    per_host = {}
    for name in sorted(set(test.host.tolist())):
        here = test.take(np.flatnonzero(test.host == name))
        per_host[name] = judge.counts(here) | judge.metrics(here)[0]
    confusion = None
    if classes is not None:
        matrix = classes.confusion.tolist()
        confusion = {"labels": judge.class_names(len(matrix)), "matrix": matrix}
    made = {"confidence": CONFIDENCE, "resamples": n_resamples, "unit": "episode"}
    return Evaluation(metrics, per_host, confusion, judge.curves(test), made)


@dataclass(frozen=True, slots=True)
class _Judge:
    """The same questions for the whole test side and for each of its hosts."""

    label_map: LabelMap
    threshold: float | None
    n_resamples: int
    seed: int

    @property
    def benign(self) -> int | None:
        return benign_class(self.label_map)

    def class_names(self, n_classes: int) -> list[str]:
        if n_classes == len(self.label_map):
            return sorted(self.label_map, key=lambda name: self.label_map[name])
        return [BENIGN, "malicious"]

    def counts(self, scored: Scored) -> dict[str, Any]:
        present = np.unique(scored.y)
        names = {number: name for name, number in self.label_map.items()}
        counts: dict[str, Any] = {
            "windows": int(scored.y.size),
            "episodes": int(np.unique(scored.episode).size),
            "one_class": names.get(int(present[0]), str(present[0])) if present.size == 1 else None,
        }
        if self.benign is not None:
            counts["benign"] = int((scored.y == self.benign).sum())
            counts["malicious"] = counts["windows"] - counts["benign"]
        return counts

    def metrics(self, scored: Scored) -> tuple[dict[str, dict[str, Any]], ClassMeasure | None]:
        """Every metric with its interval, and the measure that holds the confusion."""
        episode, n_clusters = clusters(scored.episode)
        classes = self._class_measure(scored, episode, n_clusters)
        measures = [rank_measure(scored, self.label_map, episode)]
        if classes is not None:
            measures.append(classes)
        if self.benign is not None:
            malicious = scored.y != self.benign
            alarm = None if self.threshold is None else scored.score > self.threshold
            measures.append(AlarmMeasure(malicious, alarm, episode, n_clusters))
            n_benign = _distinct(scored, self.benign)
            supported = {name: rate for name, rate in RARE.items() if n_benign * rate >= 1}
            measures.append(CatchMeasure(scored.score, malicious, episode, supported))
        if scored.proba is not None:
            measures.append(ProbabilityMeasure(scored.y, scored.proba, episode, n_clusters))
        estimates = bootstrap(
            measures,
            n_episodes=n_clusters,
            n_windows=scored.y.size,
            n_resamples=self.n_resamples,
            seed=self.seed,
        )
        support = support_of(scored, self.benign)
        found = {
            name: shown(estimate, support.get(name, n_clusters))
            for name, estimate in estimates.items()
        }
        found |= self._alerts(scored, found)
        return self._with_reasons(found, scored), classes

    def _class_measure(
        self, scored: Scored, episode: IntArray, n_episodes: int
    ) -> ClassMeasure | None:
        """Predicted classes are the likeliest ones; an anomaly score predicts benign or malicious by its threshold."""
        if scored.proba is not None:
            predicted = scored.proba.argmax(axis=1)
            n_classes = max(len(self.label_map), scored.proba.shape[1])
            return ClassMeasure(scored.y, predicted, n_classes, episode, n_episodes)
        if self.threshold is None or self.benign is None:
            return None
        truth = (scored.y != self.benign).astype(np.int64)
        alarm = (scored.score > self.threshold).astype(np.int64)
        return ClassMeasure(truth, alarm, 2, episode, n_episodes)

    def _alerts(self, scored: Scored, found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Alarms a day on a host that does nothing wrong: the realised FPR times the decisions of a day."""
        if "fpr" not in found:
            return {}
        step = decision_interval_s(scored)
        if step is None:
            return {"alerts_per_host_day": _missing("the windows carry no times")}
        rate, per_day = found["fpr"], DAY_S / step
        value, ci95 = rate["value"], rate["ci95"]
        return {
            "alerts_per_host_day": {
                "value": None if value is None else _rounded(value * per_day),
                "ci95": None if ci95 is None else [_rounded(bound * per_day) for bound in ci95],
                "decision_every_s": _rounded(step),
            }
        }

    def _with_reasons(
        self, found: dict[str, dict[str, Any]], scored: Scored
    ) -> dict[str, dict[str, Any]]:
        one_class = self.counts(scored)["one_class"]
        n_benign = _distinct(scored, self.benign)
        alone = f"the test windows are all {one_class}" if one_class else "too few resamples"
        no_alarm = (
            "there is no threshold" if self.benign is not None else "no class is named benign"
        )
        no_classes = "an anomaly score without a threshold predicts no class"
        expected = {
            "accuracy": no_classes,
            "balanced_accuracy": no_classes,
            "macro_f1": no_classes,
            "auroc": alone,
            "auprc": alone,
            "prevalence": "no class is named benign",
            "ece": "an anomaly score is no probability",
            "brier": "an anomaly score is no probability",
            "tpr": no_alarm,
            "fpr": no_alarm,
            "alerts_per_host_day": no_alarm,
        }
        for name, rate in RARE.items():
            expected[name] = alone if self.benign is not None else no_alarm
            if self.benign is not None and n_benign * rate < 1:
                expected[name] = (
                    f"{n_benign} benign windows cannot show a rate of {100 * rate:g} %: "
                    f"{round(1 / rate):,} are needed"
                )
        complete = {}
        for name, reason in expected.items():
            metric = found.get(name, _missing(reason))
            if metric["value"] is None and "reason" not in metric:
                metric = metric | {"reason": alone if one_class and name not in RARE else reason}
            complete[name] = metric
        return complete

    def curves(self, scored: Scored) -> dict[str, Any]:
        if by_class(scored, self.label_map) and scored.proba is not None:
            pairs = [
                (name, scored.proba[:, k], scored.y == k)
                for name, k in sorted(self.label_map.items(), key=lambda item: item[1])
            ]
        else:
            pairs = [("malicious", scored.score, scored.y != (self.benign or 0))]
        return {
            "roc": [{"label": n, "points": curves.roc(s, p)} for n, s, p in pairs],
            "pr": [{"label": n, "points": curves.precision_recall(s, p)} for n, s, p in pairs],
            "calibration": curves.reliability(scored.y, scored.proba, self.benign),
        }


def support_of(scored: Scored, benign: int | None) -> dict[str, int]:
    """How many episodes carry each metric: those of the smallest class for whatever compares classes."""
    carrying = {
        k: int(np.unique(scored.episode[scored.y == k]).size) for k in np.unique(scored.y).tolist()
    }
    smallest = min(carrying.values())
    if len(carrying) > 2:  # a mean over many classes is not void because one of them is rare
        smallest = max(2, smallest)
    support = dict.fromkeys(("auroc", "auprc", "balanced_accuracy", "macro_f1"), smallest)
    if benign is not None:
        loud = np.unique(scored.episode[scored.y != benign]).size
        support |= {"tpr": int(loud), "fpr": carrying.get(benign, 0)}
        support |= dict.fromkeys(RARE, min(int(loud), carrying.get(benign, 0)))
    return support


def _distinct(scored: Scored, benign: int | None) -> int:
    """Benign windows, a copy inside its own episode counted once: copies show no rarer event than the original."""
    quiet = scored.y == benign
    return len(set(zip(scored.episode[quiet].tolist(), scored.score[quiet].tolist(), strict=True)))


def by_class(scored: Scored, label_map: LabelMap) -> bool:
    """Whether ranking means one class against the rest, instead of malicious-like against benign."""
    return len(label_map) > 2 and scored.proba is not None


def rank_measure(scored: Scored, label_map: LabelMap, episode: IntArray) -> Measure:
    """AUROC and AUPRC; with many classes their mean over the classes that are there."""
    if not by_class(scored, label_map):
        return RankMeasure(scored.score, scored.y != (benign_class(label_map) or 0), episode)
    assert scored.proba is not None
    present = [k for k in np.unique(scored.y).tolist() if k < scored.proba.shape[1]]
    ranks = [RankMeasure(scored.proba[:, k], scored.y == k, episode) for k in present]

    def measure(weights: Weights) -> dict[str, FloatArray]:
        answers = [rank(weights) for rank in ranks]
        return {
            name: mean_of_present(np.stack([answer[name] for answer in answers], axis=1))
            for name in ("auroc", "auprc")
        }

    return measure


# -- numbers for JSON --------------------------------------------------------------------------------------------------


def _rounded(value: float) -> float:
    return round(float(value), _DIGITS)


def _missing(reason: str) -> dict[str, Any]:
    return {"value": None, "ci95": None, "reason": reason}


def shown(estimate: Estimate, n_support: int, *, bounded: bool = True) -> dict[str, Any]:
    """{value, ci95}, rounded; see `percentile_interval` for what ``n_support`` and ``bounded`` mean."""
    if not np.isfinite(estimate.value):
        return {"value": None, "ci95": None}
    interval = percentile_interval(estimate, n_support, bounded=bounded)
    shown: dict[str, Any] = {"value": _rounded(estimate.value), "ci95": None}
    if interval is not None:
        shown["ci95"] = [_rounded(bound) for bound in interval]
    elif estimate.samples.size:
        shown["reason"] = f"{n_support} episodes carry it: too few for an interval"
    return shown
