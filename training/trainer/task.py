"""The values that a model family gets for a training, and those that it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from scipy.stats import rankdata

from training.data.absent import PAIR, columns_of
from training.data.scratch import WIDE_ROWS, spans
from training.data.split import Split
from training.data.values import AnyArray, Bools, Floats, Floats32, Ints, JsonDict, Names
from training.hyper import HyperValues
from training.trainer.contract import Keeper, Progress, Stop


@dataclass(frozen=True, kw_only=True)
class MemoryLimits:
    """Limits on a training's memory: how much is kept in memory, and how much is read at a time.

    The size of the data decides (on a GPU also its total memory), not the free memory: equal inputs must be computed in
    equal ways. Limits in bytes count the windows as a family learns from them, in single precision.

    Training windows of up to ``held_bytes`` are kept in memory, and an epoch of a network takes them in random order.
    For a network on a GPU with the usual limits, half of the GPU's memory counts instead of ``held_bytes``. If a
    network's windows need more, neighbouring windows form *runs* of ``run``, which are shuffled. About as many windows
    of these runs as ``pool_bytes`` holds are a *pool*, whose windows are shuffled. On the CPU, trees read windows
    beyond ``held_bytes`` in pages of ``page_bytes``, which changes no tree.
    """

    held_bytes: int = 1 << 29
    pool_bytes: int = 1 << 28
    page_bytes: int = 1 << 26
    run: int = 256

    def holds(self, windows: int, bytes_each: int) -> bool:
        """Tell whether ``windows`` of ``bytes_each`` bytes take at most ``held_bytes``."""
        return windows * bytes_each <= self.held_bytes

    def to_dict(self) -> JsonDict:
        """Return JSON values for a run key; an empty dict for the usual limits, which are part of the code."""
        return {} if self == LIMITS else {"limits": asdict(self)}


LIMITS = MemoryLimits()


FOLDS = 4  # besides the val side, which is about as large as one of them
MANY = 100  # windows that say one temperature well enough
TEMPERATURES = np.round(np.geomspace(0.25, 16, 25), 4)
History = list[dict[str, float | int | None]]


@dataclass(frozen=True)
class GivenWindows:
    """Windows as a model gets them: ``X`` in its family's form, their features, and each one's host."""

    X: Floats32  # (N, F) features, or (N, C, T) samples
    features: Floats32  # (N, F)
    host: Names  # (N,)

    def take(self, rows: Ints) -> GivenWindows:
        return GivenWindows(self.X[rows], self.features[rows], self.host[rows])


@dataclass(frozen=True, kw_only=True)
class WindowsToExplain(GivenWindows):
    """Windows (n) whose scores are to be explained, and the usual value that replaces each of their values."""

    usual: Callable[[], Floats32]  # like X; trees never ask for it
    parts: Floats  # (F, C): how much of each feature is each channel's
    alarm: Bools  # (K,): the classes that raise an alarm; empty where there are none

    @property
    def rows(self) -> Ints:
        return np.arange(len(self.X))


@dataclass(frozen=True)
class Joined(GivenWindows):
    """All windows of the data set, followed by the reference windows that are used for training."""

    y: Ints  # (N,) class numbers
    recording: Names  # (N,) what is divided as one; "" for windows of references
    behaviour: Names  # (N,) of malicious-like windows; "" for benign ones
    split: Split


@dataclass(frozen=True, kw_only=True)
class Task(Joined):
    """One training: its windows, labels, split and options."""

    model: str
    names: tuple[str, ...]  # of the features, or of the channels
    feature_names: tuple[str, ...]
    ordinary: GivenWindows  # windows of all hosts' references
    classes: int
    is_benign: Bools  # (N,) windows of a benign class; none where no class is benign
    hyper: HyperValues
    seed: int
    threads: int
    device: str  # "cpu" or "cuda"
    limits: MemoryLimits = LIMITS
    progress: Progress
    stop: Stop
    keeper: Keeper

    def folds(self) -> list[Task]:
        """Return ``FOLDS`` tasks, each of which validates on other whole recordings of the train side; an empty list if
        the temperature is sure without them.

        The temperature is sure if thresholds for alarms are calibrated on windows of their own, or at least ``MANY``
        windows validate. With fewer than ``FOLDS`` recordings there are no folds either.
        """
        train = self.split.train
        _, first, of_window = np.unique(self.recording[train], return_index=True, return_inverse=True)
        if self.split.cal.size or self.split.val.size >= MANY or first.size < FOLDS:
            return []
        order = np.lexsort((np.random.default_rng(self.seed).permutation(first.size), self.y[train][first]))
        part = np.argsort(order) % FOLDS  # in turn within each class, so that each fold has most classes
        held = [train[part[of_window] == number] for number in range(FOLDS)]
        return [
            replace(self, split=replace(self.split, train=np.setdiff1d(self.split.learnt, val), val=val))
            for val in held
        ]

    @cached_property
    def spare(self) -> tuple[tuple[int, ...], ...]:
        """The places in ``X`` of each channel that some windows of the train and val sides lack and others have."""
        rows = self.split.learnt
        lacking = self.lacking(rows)
        some = np.flatnonzero((lacking > 0) & (lacking < rows.size))
        if self.X.ndim == 3:
            return tuple((int(place),) for place in some)
        alone = dict.fromkeys(self.names[place].rpartition(".")[0] for place in some.tolist())
        return tuple(tuple(columns_of(self.names, name).tolist()) for name in alone if PAIR not in name)

    def lacking(self, rows: Ints) -> Ints:
        """Count the windows among ``rows`` that lack each channel (C,), or each feature (F,)."""
        count = np.zeros(self.X.shape[1], int)
        for here in spans(rows, step=WIDE_ROWS):
            count += np.isnan(self.X[rows[here], :, 0] if self.X.ndim == 3 else self.X[rows[here]]).sum(axis=0)
        return count

    def number(self, key: str) -> float:
        return float(self.hyper[key])

    def whole(self, key: str) -> int:
        return int(self.hyper[key])


class Outputs(NamedTuple):
    """A model's outputs for n windows: class probabilities (n, K), or one anomaly score (n,)."""

    proba: Floats | None = None
    score: Floats | None = None


class Fitted(Protocol):
    """A trained model. ``load`` of its family rebuilds the model from ``facts`` and ``sidecar``, without what a
    `Settling` model measured of hosts."""

    @property
    def history(self) -> History: ...

    @property
    def course(self) -> str:
        """Sentences for the report: how the search in the history led to the model that is kept."""

    def predict(self, windows: GivenWindows, rows: Ints) -> Outputs:
        """Return the outputs for these rows of the windows, in their order."""

    def usual(self) -> Floats32:
        """Return the medians of the training windows: of each feature (F,), or of each channel (C, 1)."""

    def carried(self, asked: WindowsToExplain) -> Floats:
        """Return (n, C): how much each channel raised the score of each window, in the family's units."""

    def sidecar(self) -> bytes:
        """Return the weights; equal bytes for equal weights."""

    def facts(self) -> JsonDict:
        """Return JSON values for the checkpoint: the normaliser, and what is needed to rebuild the model."""


@runtime_checkable
class Settling(Protocol):
    """A trained model that measures hosts from their own references, where they have some."""

    def settled(self, ordinary: GivenWindows) -> Fitted:
        """Return a copy that measures the hosts of these reference windows from them, and other hosts as before."""

    def own(self) -> JsonDict:
        """Return what the hosts are measured from, as JSON values for the checkpoint's facts, which ``load`` reads."""


@runtime_checkable
class Weighed(Protocol):
    """A trained model whose parts, or views, were weighted or chosen by labelled windows."""

    @property
    def chosen_by(self) -> Ints:
        """The rows of the data set that the choice used, none of them on the test side; empty if nothing was chosen, or
        if the model was loaded."""


def evenly(count: int, most: int) -> Ints:
    """Return at most ``most`` of the places 0 to ``count`` - 1, evenly spread and the same every time."""
    return np.linspace(0, count - 1, min(count, most)).astype(int)


def thinned(rows: AnyArray, most: int) -> AnyArray:
    """Return at most ``most`` of the rows, evenly spaced, so that each episode keeps about its share."""
    return rows[evenly(len(rows), most)]


def class_weights(y: Ints, classes: int) -> Floats:
    """Return (K,) class weights, proportional to 1 / sqrt(number of windows); their mean over ``y`` is 1. A class
    without windows has 0.

    With 1 malicious window in 100, full balance would let a few windows decide everything, and no balance would ignore
    them; the square root is a compromise.
    """
    counts = np.bincount(y, minlength=classes).astype(float)
    weights = np.where(counts > 0, 1 / np.sqrt(np.maximum(counts, 1)), 0.0)
    return weights * (y.size / (weights * counts).sum())


def softmax(logits: Floats) -> Floats:
    """Compute the softmax along the last axis."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def log_loss(y: Ints, proba: Floats, weights: Floats) -> float:
    """Return the mean of -log p(truth), weighted by class; p counts as at least 1e-7."""
    truth = np.clip(proba[..., np.arange(y.size), y], 1e-7, 1.0)
    each = weights[y]
    return float(-(np.log(truth) * each).sum() / max(each.sum(), 1e-12))


def tempered(y: Ints, logits: Floats, weights: Floats) -> tuple[float, float]:
    """Return (loss, temperature): the lowest log loss of softmax(logits / temperature) over ``TEMPERATURES``, and the
    temperature that has it.

    Without a temperature, an overconfident model looks worse while it still learns to separate the classes, and would
    be stopped too early. The best temperature also corrects the confidence of the trained model.
    """
    losses = {}

    def loss(number: int) -> float:
        if number not in losses:
            losses[number] = log_loss(y, softmax(logits / TEMPERATURES[number]), weights)
        return losses[number]

    # The loss falls towards the best temperature from both sides: halving finds it in a few steps.
    low, high = 0, TEMPERATURES.size - 1
    while low < high:
        middle = (low + high) // 2
        if loss(middle) <= loss(middle + 1):
            high = middle
        else:
            low = middle + 1
    return loss(low), float(TEMPERATURES[low])


def quick_metric(y: Ints, proba: Floats) -> float | None:
    """Return the metric of a progress line: AUROC for two classes, accuracy for more; None if undefined."""
    if y.size == 0:
        return None
    if proba.shape[1] > 2:
        return float((proba.argmax(axis=1) == y).mean())
    return auroc(y == 1, proba[:, 1])


def metric_name(classes: int) -> str:
    """Name what `quick_metric` measures."""
    return "validation accuracy" if classes > 2 else "validation AUROC"


def auroc(positive: Bools, score: Floats) -> float | None:
    """Return the area under the ROC curve, ties counted half; None with a single class."""
    ones = int(positive.sum())
    zeros = positive.size - ones
    if ones == 0 or zeros == 0:
        return None
    ranks = rankdata(score)
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))
