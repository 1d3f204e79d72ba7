"""Metrics of a model on the test side, with intervals, and how many alarms a day it raises.

`evaluate` takes scores as `Scored`, and a threshold chosen on calibration data as an `OperatingPoint`, and returns an
`Evaluation`. Intervals take whole episodes as their unit, not windows (see `intervals` and `rates`).
"""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from training.data.rows import Rows
from training.data.values import Bools, Floats, Ints, Json, JsonDict
from training.trainer.evaluation import curves
from training.trainer.evaluation.chance import chance_test
from training.trainer.evaluation.figures import missing, rounded, shown, shown_rate
from training.trainer.evaluation.intervals import CONFIDENCE, Measure, RankMeasure, Weights, bootstrap, clusters
from training.trainer.evaluation.ratios import (
    AlarmMeasure,
    CatchMeasure,
    ClassMeasure,
    ProbabilityMeasure,
    mean_of_present,
)
from training.trainer.evaluation.scored import BENIGN, MALICIOUS, Classes, Scored, pace
from training.trainer.evaluation.thresholds import OperatingPoint, operating_point

__all__ = ["Classes", "Evaluation", "OperatingPoint", "Scored", "evaluate", "operating_point"]

DAY_S = 86_400.0
RANKS = ("auroc", "auprc", "auroc_trained")
# What is caught when false alarms must be rare, since a day has many decisions: read off the test side.
RARE = {"tpr_at_1_percent_fpr": 0.01, "tpr_at_0.1_percent_fpr": 0.001}


class Evaluation(NamedTuple):
    """The figures of the test side that a report shows. JSON values, and never NaN, except in ``rows``."""

    metrics: dict[str, JsonDict]  # name -> {value, ci95} and, where value is null, reason
    per_host: dict[str, JsonDict]  # host -> counts, one_class, and metrics as above
    confusion: JsonDict | None  # {labels: [K], matrix: [K][K], rows = truth}
    curves: JsonDict  # roc, pr: [{label, points}]; calibration: claimed against observed
    intervals: JsonDict  # how every ci95 was made: {confidence, resamples, unit}
    rows: Rows  # that were judged


def evaluate(
    test: Scored,
    *,
    classes: Classes,
    operating_point: OperatingPoint | None,
    n_resamples: int = 1000,
    seed: int = 0,
    never_trained: Collection[str] = (),
) -> Evaluation:
    """Compute all metrics of the test side.

    Metrics: accuracy (of the likeliest class), accuracy_at_threshold, balanced_accuracy, macro_f1, auroc, auprc,
    prevalence, ece, brier, tpr, fpr, alerts_per_host_day, tpr_at_1_percent_fpr, tpr_at_0.1_percent_fpr. If a model with
    probabilities has more than two classes, or no benign one, auroc and auprc are the mean of each class against the
    rest. If each class is ranked against the rest, and the test holds classes that were ``never_trained``,
    auroc_trained and balanced_accuracy_trained are the means without these. A metric that cannot be computed is null
    with a reason. If, over all hosts, the interval of auroc or auroc_trained includes 0.5 or is missing, the metric's
    member ``chance`` is the result of the exact test (see `chance`), null if it cannot be made. Raises ValueError
    without windows.
    """
    if test.y.size == 0:
        raise ValueError("there are no test windows to judge")
    judge = _Judge(classes, operating_point, n_resamples, seed, frozenset(never_trained))
    metrics, measure = judge.metrics(test)
    judge.ask_chance(metrics, test)
    per_host = {}
    for name in sorted(set(test.rows.host.tolist())):
        here = test.take(np.flatnonzero(test.rows.host == name))
        per_host[name] = judge.counts(here) | judge.metrics(here)[0]
    confusion = None
    if measure is not None:
        confusion = {"labels": list(measure.names), "matrix": measure.confusion.tolist()}
    made = {"confidence": CONFIDENCE, "resamples": n_resamples, "unit": "episode"}
    return Evaluation(metrics, per_host, confusion, judge.curves(test), made, test.rows)


class _Judge(NamedTuple):
    """Computes the metrics for the whole test side or for one host."""

    classes: Classes
    point: OperatingPoint | None
    n_resamples: int
    seed: int
    never_trained: frozenset[str] = frozenset()

    def counts(self, scored: Scored) -> JsonDict:
        present = np.unique(scored.y)
        counts: JsonDict = {
            "windows": int(scored.y.size),
            "episodes": int(np.unique(scored.rows.recording).size),
            "one_class": self.classes.names[int(present[0])] if present.size == 1 else None,
        }
        if self.classes.benign:
            counts["benign"] = int(self.classes.is_benign(scored.y).sum())
            counts["malicious"] = counts["windows"] - counts["benign"]
        return counts

    def metrics(self, scored: Scored) -> tuple[dict[str, JsonDict], ClassMeasure | None]:
        """Return every metric with its interval, and the measure that holds the confusion matrix (None without
        predictions)."""
        episode, n_clusters = clusters(scored.rows.recording)
        measure = self._class_measure(scored, episode, n_clusters)
        measures = [rank_measure(scored, self.classes, episode)]
        trained = self._trained(scored)
        if trained is not None:
            measures.append(_renamed(rank_measure(scored, self.classes, episode, trained), "auroc"))
        if measure is not None:
            measures.append(measure)
            if trained is not None:
                measures.append(_renamed(measure.among(trained), "balanced_accuracy"))
        alarms = None
        if self.classes.benign:
            malicious = ~self.classes.is_benign(scored.y)
            alarms = AlarmMeasure(malicious, self._alarm(scored), episode, n_clusters)
            measures.append(alarms)
            n_benign = self._distinct(scored)
            supported = {name: rate for name, rate in RARE.items() if n_benign * rate >= 1}
            measures.append(CatchMeasure(scored.score, malicious, episode, supported))
        calibration = None
        if scored.proba is not None:
            predicted = self.classes.likeliest(scored.proba)
            calibration = ProbabilityMeasure(scored.y, scored.proba, predicted, episode, n_clusters)
            measures.append(calibration)
        estimates = bootstrap(
            measures, n_episodes=n_clusters, n_windows=scored.y.size, n_resamples=self.n_resamples, seed=self.seed
        )
        support = support_of(scored, self.classes)
        found = {name: shown(estimate, support.get(name, n_clusters)) for name, estimate in estimates.items()}
        for counted in (measure if self._alarm(scored) is not None else None, alarms, calibration):
            if counted is not None:
                found |= {name: shown_rate(*counts) for name, counts in counted.counts().items()}
        if calibration is not None:
            found["ece"]["perfect"] = rounded(calibration.perfect())
        found |= self._alerts(scored, found)
        return self._with_reasons(found, scored), measure

    def _alarm(self, scored: Scored) -> Bools | None:
        return None if self.point is None else self.point.alarms(scored)

    def _trained(self, scored: Scored) -> list[int] | None:
        """Return those classes of these windows that trained, if ranking is by class and some classes here did not
        train; else None."""
        there = [self.classes.names[k] for k in np.unique(scored.y)]
        if not by_class(scored, self.classes) or not self.never_trained & set(there):
            return None
        return [self.classes.names.index(name) for name in there if name not in self.never_trained]

    def ask_chance(self, metrics: dict[str, JsonDict], scored: Scored) -> None:
        """Add the exact test's result to each AUROC that has a value, and whose interval includes 0.5 or is missing."""
        for name, among in (("auroc", None), ("auroc_trained", self._trained(scored))):
            metric = metrics.get(name, missing(""))
            ci95 = metric["ci95"]
            if metric["value"] is None or (ci95 is not None and not ci95[0] <= 0.5 <= ci95[1]):
                continue
            pairs = rankings(scored, self.classes, among)
            truth = scored.y
            if not by_class(scored, self.classes):
                truth = (~self.classes.is_benign(scored.y)).astype(int)
            found = chance_test([s for s, _ in pairs], [k for _, k in pairs], truth, scored.rows.recording)
            metric["chance"] = None if found is None else found.to_dict()

    def _class_measure(self, scored: Scored, episode: Ints, n_episodes: int) -> ClassMeasure | None:
        """Return a measure of the predicted classes; None for an anomaly score without a threshold or a benign class.

        With probabilities, the likeliest class among those that the threshold allows is predicted. An anomaly score
        predicts benign or malicious by its threshold.
        """
        alarm = self._alarm(scored)
        if scored.proba is not None:
            predicted = self.classes.said(scored.proba, alarm)
            return ClassMeasure(scored.y, predicted, self.classes.names, episode, n_episodes)
        if alarm is None or not self.classes.benign:
            return None
        truth = (~self.classes.is_benign(scored.y)).astype(int)
        return ClassMeasure(truth, alarm.astype(int), self.classes.kinds(), episode, n_episodes)

    def _alerts(self, scored: Scored, found: Json) -> dict[str, JsonDict]:
        """Compute alarms a day on a host without attacks: the measured false-alarm rate times the windows of a day."""
        if "fpr" not in found:
            return {}
        step = pace(scored)
        if step is None:
            why = "the data do not say how far apart their windows are (no times, or no rate)"
            return {"alerts_per_host_day": missing(why)}
        rate, per_day = found["fpr"], DAY_S / step.every_s
        value, ci95 = rate["value"], rate["ci95"]
        return {
            "alerts_per_host_day": {
                "value": None if value is None else rounded(value * per_day),
                "ci95": None if ci95 is None else [rounded(bound * per_day) for bound in ci95],
                "decision_every_s": rounded(step.every_s),
                "of": step.of,
            }
        }

    def _with_reasons(self, found: dict[str, JsonDict], scored: Scored) -> dict[str, JsonDict]:
        one_class = self.counts(scored)["one_class"]
        n_benign = self._distinct(scored)
        words = self.classes.words()
        alone = "no class is benign"
        if one_class or self.classes.benign:
            all_benign = bool(self.classes.is_benign(scored.y).all())
            alone = f"the test windows are all {one_class or words[BENIGN if all_benign else MALICIOUS]}"
        no_alarm = {kind: f"the test has no window that is {words[kind]}" for kind in (BENIGN, MALICIOUS)}
        if not self.classes.benign or self.point is None or self.point.threshold is None:
            why = "there is no threshold" if self.classes.benign else "no class is benign"
            no_alarm = dict.fromkeys(no_alarm, why)
        no_classes = "an anomaly score without a threshold predicts no class"
        expected = dict.fromkeys(("balanced_accuracy", "macro_f1"), no_classes)
        expected |= dict.fromkeys(("accuracy", "ece", "brier"), "an anomaly score is no probability")
        expected |= {"prevalence": "no class is benign", "tpr": no_alarm[MALICIOUS]}
        expected |= dict.fromkeys(("accuracy_at_threshold", "fpr", "alerts_per_host_day"), no_alarm[BENIGN])
        expected |= {name: alone for name in ("auroc", "auprc", *found) if name in RANKS or name.endswith("_trained")}
        for name, rate in RARE.items():
            expected[name] = alone if self.classes.benign else "no class is benign"
            if self.classes.benign and n_benign * rate < 1:
                expected[name] = (
                    f"{n_benign} benign windows cannot show a rate of {100 * rate:g} %: {round(1 / rate):,} are needed"
                )
        complete = {}
        for name, reason in expected.items():
            metric = found.get(name, missing(reason))
            complete[name] = {"reason": reason} | metric if metric["value"] is None else metric
        return complete

    def _distinct(self, scored: Scored) -> int:
        """Count the benign windows; those with equal scores in one recording count once, as a copy is no further
        evidence."""
        is_benign = self.classes.is_benign(scored.y)
        recording = np.unique(scored.rows.recording[is_benign], return_inverse=True)[1]
        score = scored.score[is_benign]
        order = np.lexsort((score, recording))
        recording, score = recording[order], score[order]
        return int(np.count_nonzero((np.diff(recording) != 0) | (np.diff(score) != 0))) + bool(order.size)

    def curves(self, scored: Scored) -> JsonDict:
        if by_class(scored, self.classes) and scored.proba is not None:
            pairs = [(name, scored.proba[:, k], scored.y == k) for k, name in enumerate(self.classes.names)]
        else:
            pairs = [(self.classes.kinds()[1], scored.score, ~self.classes.is_benign(scored.y))]
        return {
            "roc": [{"label": n, "points": curves.roc(s, p)} for n, s, p in pairs],
            "pr": [{"label": n, "points": curves.precision_recall(s, p)} for n, s, p in pairs],
            "calibration": self._reliability(scored),
        }

    def _reliability(self, scored: Scored) -> list[JsonDict]:
        """Compare the claimed P(malicious-like) with the truth; if no class is benign, the likeliest class's
        probability.

        The list is empty for anomaly scores.
        """
        if scored.proba is None:
            return []
        if self.classes.benign:
            claimed = self.classes.alarm_score(scored.proba)
            return curves.reliability(claimed, ~self.classes.is_benign(scored.y))
        return curves.reliability(scored.proba.max(axis=1), self.classes.likeliest(scored.proba) == scored.y)


def _renamed(measure: Measure, name: str) -> Measure:
    """Return a measure of only the value ``name`` of ``measure``, under the name ``NAME_trained``."""
    return lambda weights: {f"{name}_trained": measure(weights)[name]}


def support_of(scored: Scored, classes: Classes) -> dict[str, int]:
    """Count the episodes that support each metric: those of the class, or of the kind (benign or malicious-like), that
    has the fewest episodes.

    With more than two ranked classes the count is at least 2, because one rare class does not void a mean. All episodes
    support a metric that is missing in the result.
    """
    carrying = [int(np.unique(scored.rows.recording[scored.y == k]).size) for k in np.unique(scored.y)]
    smallest = min(carrying)
    if by_class(scored, classes) and len(carrying) > 2:
        smallest = max(2, smallest)  # a mean over many classes is not void because one is rare
    means = ("balanced_accuracy", "macro_f1", "balanced_accuracy_trained")
    support = dict.fromkeys((*RANKS, *means), smallest)
    if classes.benign:
        is_benign = classes.is_benign(scored.y)
        kinds = [int(np.unique(scored.rows.recording[rows]).size) for rows in (is_benign, ~is_benign)]
        support |= dict.fromkeys(RARE, min(kinds))
        if not by_class(scored, classes):
            support |= dict.fromkeys(RANKS, min(kinds) or smallest)
    return support


def by_class(scored: Scored, classes: Classes) -> bool:
    """Tell whether AUROC compares each class with the rest, instead of malicious-like windows with benign ones."""
    return scored.proba is not None and (len(classes) > 2 or not classes.benign)


def rankings(scored: Scored, classes: Classes, among: Collection[int] | None = None) -> list[tuple[Floats, int]]:
    """Return the scores whose AUROC is computed, each with the class that it should rank highest.

    If classes are ranked (see `by_class`), each score is the probability of a class present, limited to ``among`` if
    given. If classes are not ranked, the only score is the alarm score, with class 1. An anomaly score without benign
    classes gives an empty list.
    """
    if not by_class(scored, classes):
        return [(scored.score, 1)] if classes.benign else []
    assert scored.proba is not None
    there = [k for k in np.unique(scored.y).tolist() if among is None or k in among]
    return [(scored.proba[:, k], k) for k in there]


def rank_measure(scored: Scored, classes: Classes, episode: Ints, among: Collection[int] | None = None) -> Measure:
    """Return the function that computes AUROC and AUPRC for given weights; for many classes their means over classes.

    The means are over the classes present, limited to ``among`` if given.
    """
    if not by_class(scored, classes):
        return RankMeasure(scored.score, ~classes.is_benign(scored.y), episode)
    ranks = [RankMeasure(score, scored.y == k, episode) for score, k in rankings(scored, classes, among)]

    def measure(weights: Weights) -> dict[str, Floats]:
        answers = [rank(weights) for rank in ranks]
        nothing = [np.full(weights.shape[0], np.nan)]
        return {
            name: mean_of_present(np.stack([answer[name] for answer in answers] or nothing, axis=1))
            for name in ("auroc", "auprc")
        }

    return measure
