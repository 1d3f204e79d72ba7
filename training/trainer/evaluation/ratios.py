"""Measures that are ratios of counts: sum each episode's contribution once, then weigh the episodes.

Each class but `CatchMeasure` holds an (E, …) table of sums. An object called with episode weights (R, E) returns R
values for each of its names (see `intervals.Measure`). NaN means that the divisor is 0 for these weights.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from training.data.values import Bools, Floats, Ints
from training.trainer.evaluation.intervals import Measure, Weights

ECE_BINS = 15
LEAST_VARIANCE = 1e-9  # of a window that a model is sure of


def episode_sums(values: Floats, episode: Ints, n_episodes: int) -> Floats:
    """Sum the columns of ``values`` (N, M) over the windows of each episode; return (E, M)."""
    columns = [np.bincount(episode, weights=column, minlength=n_episodes) for column in values.T]
    return np.stack(columns, axis=1)


def ratio(above: Floats, below: Floats) -> Floats:
    """Return the elementwise quotient, NaN where the divisor is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(below > 0, above / below, np.nan)


class ClassMeasure:
    """Computes balanced accuracy and macro-F1 of predicted classes; also holds the counts for their accuracy, and the
    confusion matrix."""

    def __init__(self, y: Ints, predicted: Ints, names: Sequence[str], episode: Ints, n_episodes: int) -> None:
        self.names = tuple(names)  # by number, of what it was asked to tell apart
        n_classes = len(names)
        cells = np.bincount(y * n_classes + predicted, minlength=n_classes**2)
        self.confusion = cells.reshape(n_classes, n_classes)  # counts; rows are the truth
        size = n_episodes * n_classes
        tables = [
            np.bincount((episode * n_classes + classes)[rows], minlength=size)
            for classes, rows in ((y, y == predicted), (y, ...), (predicted, ...))
        ]
        hits, truth, claimed = (table.reshape(n_episodes, n_classes) for table in tables)
        self._table = np.concatenate([hits, truth, claimed], axis=1).astype(float)

    def counts(self) -> dict[str, tuple[Floats, Floats]]:
        """Return the number of correct and of all windows (E,) of each episode, for the accuracy at the threshold."""
        hits, truth, _ = np.split(self._table, 3, axis=1)
        return {"accuracy_at_threshold": (hits.sum(axis=1), truth.sum(axis=1))}

    def among(self, classes: Sequence[int]) -> Measure:
        """Return a measure of the balanced accuracy over only these classes."""

        def measure(weights: Weights) -> dict[str, Floats]:
            hits, truth, _ = np.split(weights.astype(float) @ self._table, 3, axis=1)
            recall = ratio(hits[:, list(classes)], truth[:, list(classes)])
            return {"balanced_accuracy": mean_of_present(recall)}

        return measure

    def __call__(self, weights: Weights) -> dict[str, Floats]:
        hits, truth, claimed = np.split(weights.astype(float) @ self._table, 3, axis=1)
        recall = ratio(hits, truth)  # NaN for classes that are not there: left out of the means
        f1 = ratio(2 * hits, truth + claimed)
        return {"balanced_accuracy": mean_of_present(recall), "macro_f1": mean_of_present(f1)}


class AlarmMeasure:
    """Computes the share of malicious-like windows; also holds the counts for the alarm rates among them and among
    benign ones."""

    def __init__(self, malicious: Bools, alarm: Bools | None, episode: Ints, n_episodes: int) -> None:
        self._has_alarms = alarm is not None
        raised = np.zeros_like(malicious) if alarm is None else alarm
        columns = [malicious, ~malicious, malicious & raised, ~malicious & raised]
        self._table = episode_sums(np.stack(columns, axis=1).astype(float), episode, n_episodes)

    def counts(self) -> dict[str, tuple[Floats, Floats]]:
        """Return the alarms (E,) and windows (E,) of each episode for ``tpr`` and ``fpr``; an empty dict without a
        threshold."""
        malicious, benign, caught, false = self._table.T
        return {"tpr": (caught, malicious), "fpr": (false, benign)} if self._has_alarms else {}

    def __call__(self, weights: Weights) -> dict[str, Floats]:
        malicious, benign, _, _ = (weights.astype(float) @ self._table).T
        return {"prevalence": ratio(malicious, malicious + benign)}


class CatchMeasure:
    """Computes, for each of ``rates``, the share of malicious-like windows caught if that share of the benign windows
    may raise an alarm.

    A malicious-like window counts as caught at a rate if at most that share of the benign windows drawn scores at least
    as high. NaN for a row that drew a single class.
    """

    def __init__(self, score: Floats, malicious: Bools, episode: Ints, rates: Mapping[str, float]) -> None:
        order = np.argsort(-score[~malicious], kind="stable")
        self._benign_episode = episode[~malicious][order]
        falling = -score[~malicious][order]
        self._as_high = np.searchsorted(falling, -score[malicious], side="right")
        self._loud_episode = episode[malicious]
        self._rates = rates

    def __call__(self, weights: Weights) -> dict[str, Floats]:
        loud = np.take(weights, self._loud_episode, axis=1)
        benign = np.cumsum(np.take(weights, self._benign_episode, axis=1), axis=1, dtype=np.int32)
        benign = np.concatenate([np.zeros_like(weights[:, :1]), benign], axis=1)
        beaten, total = np.take(benign, self._as_high, axis=1), benign[:, -1:]
        n_loud = loud.sum(axis=1, dtype=float)
        there = np.where(total[:, 0] > 0, n_loud, 0.0)
        return {
            name: ratio((loud * (beaten <= rate * total)).sum(axis=1, dtype=float), there)
            for name, rate in self._rates.items()
        }


class ProbabilityMeasure:
    """Computes two measures of how far probabilities can be trusted: expected calibration error (top label), Brier
    score (0 to 2); also holds the counts for the accuracy of the likeliest class."""

    def __init__(self, y: Ints, proba: Floats, predicted: Ints, episode: Ints, n_episodes: int) -> None:
        confidence = proba.max(axis=1)
        correct = predicted == y
        bins = np.minimum((confidence * ECE_BINS).astype(int), ECE_BINS - 1)
        cell = episode * ECE_BINS + bins
        gap = correct - confidence
        size = n_episodes * ECE_BINS
        self._gap = np.bincount(cell, weights=gap, minlength=size).reshape(n_episodes, ECE_BINS)
        self._confidence, self._off, self._cell = confidence, gap, cell
        truth = np.zeros_like(proba)
        truth[np.arange(y.size), y] = 1.0
        squared = np.square(proba - truth).sum(axis=1)
        columns = np.stack([np.ones(y.size), squared, correct], axis=1)
        self._table = episode_sums(columns, episode, n_episodes)

    def counts(self) -> dict[str, tuple[Floats, Floats]]:
        """Return the number of windows (E,) of each episode whose likeliest class is right, and of all."""
        windows, _, right = self._table.T
        return {"accuracy": (right, windows)}

    def perfect(self) -> float:
        """Return the calibration error that a model with correct probabilities would have here by chance.

        The error by chance is larger if the windows of an episode are alike. The correlation of an episode's windows is
        estimated from the model's own errors, after removing a trend over its confidence.
        """
        deviation = np.sqrt(np.maximum(self._confidence * (1 - self._confidence), LEAST_VARIANCE))
        line = np.stack((np.ones_like(self._confidence), self._confidence), axis=1)
        trend, *_ = np.linalg.lstsq(line, self._off, rcond=None)
        odd = (self._off - line @ trend) / deviation

        def of_cells(values: Floats) -> Floats:
            return np.bincount(self._cell, weights=values, minlength=self._gap.size).astype(float)

        count = of_cells(np.ones_like(odd))
        pairs = float((count * (count - 1)).sum())
        alike = float((of_cells(odd) ** 2 - of_cells(odd**2)).sum()) / pairs if pairs else 0.0
        own = of_cells(deviation**2)
        varied = own + min(max(alike, 0.0), 1.0) * (of_cells(deviation) ** 2 - own)
        by_bin = varied.reshape(self._gap.shape).sum(axis=0)
        return float(np.sqrt(by_bin * 2 / np.pi).sum() / self._off.size)  # the mean of |normal| is sqrt(2 / pi)

    def __call__(self, weights: Weights) -> dict[str, Floats]:
        drawn = weights.astype(float)
        n, squared, _ = (drawn @ self._table).T
        return {"ece": ratio(np.abs(drawn @ self._gap).sum(axis=1), n), "brier": ratio(squared, n)}


def mean_of_present(values: Floats) -> Floats:
    """Return (R,) the mean of each row (R, M) over its values that are not NaN; NaN if all are."""
    present = np.isfinite(values)
    return ratio(np.where(present, values, 0.0).sum(axis=1), present.sum(axis=1).astype(float))
