"""The bar every model has to clear: plain methods on the same features, split and threshold rule.

They have all that a model has: the references that train, validation windows once these have made their choice, each
host's level, a rule of incidents by their own calibration windows, and, where they score anomalies, features from the
mean of the host's own reference.

Deterministic, single runs of scikit-learn on capped numbers of rows: they are read beside the model, not instead of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.covariance import LedoitWolf
from sklearn.ensemble import IsolationForest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.neighbors import LocalOutlierFactor
from sklearn.preprocessing import QuantileTransformer, StandardScaler

from training.data.split import Split
from training.trainer.comparison import paired_gap
from training.trainer.evaluation.host_levels import HostLevels, ReferenceScores
from training.trainer.evaluation.incident_rates import called
from training.trainer.evaluation.metrics import Classes, Scored, by_class, evaluate, operating_point

Matrix = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Rows used at most, thinned evenly: more of them move the numbers by less than their intervals.
MAX_FIT_ROWS = 20_000  # of the logistic regression
MAX_ANOMALY_ROWS = 5_000  # of the others: neighbours are searched by brute force
MAX_JUDGED_ROWS = 20_000
CLIP = 10.0  # standard deviations: a channel that was constant in training must not drown the others
STRENGTHS = (0.01, 0.1)  # of the logistic regression (scikit-learn's C), chosen on the validation side
FEW = 4  # reference windows that count as much for a host's mean as that of all hosts does
_CALLED = ("words", "why", "stretches", "false", "caught", "delay_s", "open_share", "false_per_host_day")
_SHOWN = ("auroc", "auprc", "balanced_accuracy", "macro_f1", "tpr", "fpr")


class BaselineWindows(Protocol):
    """All windows that a model had, those of references that train among them (see `references.Joined`)."""

    @property
    def features(self) -> NDArray[Any]: ...
    @property
    def y(self) -> IntArray: ...
    @property
    def host(self) -> NDArray[np.str_]: ...
    @property
    def split(self) -> Split: ...


@dataclass(frozen=True, slots=True)
class OwnFeatures:
    """Features (M, F) of the reference windows that tell levels, and the host of each."""

    features: NDArray[Any]
    host: NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class _Data:
    """Standardised features of each side and the truth beside them; ``fit`` is what is learnt from in the end."""

    train: Matrix
    train_y: IntArray
    val: Matrix
    val_y: IntArray
    fit: Matrix
    fit_y: IntArray
    fit_host: NDArray[np.str_]
    cal: Matrix
    test: Matrix
    own: Matrix
    own_host: NDArray[np.str_]
    seed: int


def run_baselines(
    windows: BaselineWindows,
    own: OwnFeatures,
    *,
    test: Scored,
    cal: Scored,
    classes: Classes,
    target_fpr: float,
    stride_s: float,
    n_resamples: int = 1000,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Fit on the training side and judge on the test side: logistic_regression, isolation_forest, mahalanobis, lof.

    ``windows`` are *all* windows of the mode; ``test`` and ``cal`` are the model's own `Scored` (rows as in the split).
    Each name maps to {kind: supervised | anomaly, windows (judged), auroc, auprc, tpr, fpr, …: {value, ci95}}, or to
    {kind, note} with a sentence where it could not be had. ``rule`` is that of its thresholds by host, null without
    references. ``incidents`` are the figures of incidents under the rule that its calibration side chose, null without
    a threshold, or where windows were thinned and are no neighbours any more. ``stride_s`` is the usual time from
    window to window. ``gap`` is its AUROC minus the model's on the same draws of episodes, where the two can be
    compared.
    """
    split = windows.split
    answers = plain_answers(windows, own, test=test, cal=cal, classes=classes, seed=seed)
    cal_rows = split.cal[_thinned(np.arange(split.cal.size), MAX_JUDGED_ROWS)]
    whole = max(split.test.size, split.cal.size) <= MAX_JUDGED_ROWS

    def judge(one: Plain) -> dict[str, Any]:
        point = None
        if one.cal.y.size:
            point = operating_point(one.cal, target_fpr, classes=classes, references=one.references)
            point.refuse_test(one.test.rows)
        found = evaluate(one.test, classes=classes, operating_point=point, n_resamples=n_resamples, seed=seed).metrics
        hosts = None if point is None else point.hosts
        answer: dict[str, Any] = {"kind": one.kind, "windows": int(one.test.y.size)}
        answer |= {"rule": None if hosts is None else hosts.rule.value}
        answer |= {name: found[name] for name in _SHOWN}
        answer["incidents"] = None
        if point is not None and point.threshold is not None and whole:
            choice, figures = called(one.cal, one.test, point, classes, rows=cal_rows, nominal_s=stride_s, curve=False)
            choice.require_none_of(split)
            answer["incidents"] = {name: figures[name] for name in _CALLED}
        rival = test.take(_thinned(np.arange(test.y.size), MAX_JUDGED_ROWS))
        if by_class(one.test, classes) is by_class(rival, classes):
            draws = {"n_resamples": n_resamples, "seed": seed}
            answer["gap"] = paired_gap(one.test, rival, classes=classes, **draws)
        return answer

    return {name: judge(one) if isinstance(one, Plain) else dict(one) for name, one in answers.items()}


@dataclass(frozen=True, slots=True)
class Plain:
    """The scores of a plain method: of windows of the test and calibration sides, and of references."""

    kind: str  # supervised or anomaly
    test: Scored
    cal: Scored
    references: ReferenceScores


def plain_answers(
    windows: BaselineWindows, own: OwnFeatures, *, test: Scored, cal: Scored, classes: Classes, seed: int = 0
) -> dict[str, Plain | Mapping[str, Any]]:
    """Fit the plain methods on the training side, and score; {kind, note} of one that could not be had.

    Sides of more than ``MAX_JUDGED_ROWS`` windows are thinned.
    """
    split, X, truth = windows.split, windows.features, np.asarray(windows.y, dtype=np.int64)
    if test.y.size != split.test.size or cal.y.size != split.cal.size:
        raise ValueError("the scored windows must be those of the split, in its order")
    test_rows = _thinned(np.arange(split.test.size), MAX_JUDGED_ROWS)
    cal_rows = _thinned(np.arange(split.cal.size), MAX_JUDGED_ROWS)
    test, cal = test.take(test_rows), cal.take(cal_rows)
    train, val = _thinned(split.train, MAX_FIT_ROWS), _thinned(split.val, MAX_FIT_ROWS)
    both = _thinned(np.sort(np.concatenate((split.train, split.val))), MAX_FIT_ROWS)
    scale = _fit_scaler(X[both])
    data = _Data(
        train=scale(X[train]),
        train_y=truth[train],
        val=scale(X[val]),
        val_y=truth[val],
        fit=scale(X[both]),
        fit_y=truth[both],
        fit_host=windows.host[both],
        cal=scale(X[split.cal[cal_rows]]),
        test=scale(X[split.test[test_rows]]),
        own=scale(own.features),
        own_host=own.host,
        seed=seed,
    )
    results: dict[str, Plain | Mapping[str, Any]] = {"logistic_regression": _supervised(data, test, cal, classes)}
    centred = _Centred.on(data.own, data.own_host)
    normal = centred.of(data.fit, data.fit_host)[classes.is_benign(data.fit_y)]
    normal = normal[_thinned(np.arange(normal.shape[0]), MAX_ANOMALY_ROWS)]
    sides = {"test": centred.of(data.test, test.rows.host), "cal": centred.of(data.cal, cal.rows.host)}
    sides["own"] = centred.of(data.own, data.own_host)
    for name, method in ANOMALY_METHODS.items():
        if normal.shape[0] < 2:
            results[name] = {"kind": "anomaly", "note": "no benign training windows to learn from"}
            continue
        score = method(normal, seed)
        said = {side: score(values) if values.shape[0] else np.zeros(0) for side, values in sides.items()}
        references = ReferenceScores(said["own"], data.own_host)
        levels = HostLevels.trained(references, on=sorted(set(data.fit_host.tolist())))
        results[name] = Plain(
            "anomaly",
            test.with_score(levels.applied(said["test"], test.rows.host)),
            cal.with_score(levels.applied(said["cal"], cal.rows.host)),
            references.measured(levels),
        )
    return results


@dataclass(frozen=True, slots=True)
class _Centred:
    """Features from the mean of each host's own reference, drawn towards that of all where it is short."""

    means: Mapping[str, Matrix]

    @classmethod
    def on(cls, own: Matrix, host: NDArray[np.str_]) -> _Centred:
        means = {}
        for name in set(host.tolist()):
            mine = own[host == name]
            means[name] = mine.mean(axis=0) * (len(mine) / (len(mine) + FEW))
        return cls(means)

    def of(self, values: Matrix, host: NDArray[np.str_]) -> Matrix:
        """The features (N, F) of windows of these hosts (N); of a host without a reference as they are."""
        found = values.copy()
        for name in set(host.tolist()) & set(self.means):
            found[host == name] -= self.means[name]
        return found


def _thinned(rows: IntArray, limit: int) -> IntArray:
    """At most ``limit`` of the rows, evenly spaced, so that every episode keeps its share."""
    if rows.size <= limit:
        return rows
    return rows[np.linspace(0, rows.size - 1, limit).astype(np.int64)]


def _fit_scaler(fit: NDArray[Any]) -> Callable[[NDArray[Any]], Matrix]:
    """Standardise by the training rows; what is missing becomes their median, what is far off is clipped."""
    known = np.where(np.isfinite(fit), fit, np.nan).astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column without any value has no median
        median = np.nan_to_num(np.nanmedian(known, axis=0))
    scaler = StandardScaler().fit(np.where(np.isnan(known), median, known))

    def scale(values: NDArray[Any]) -> Matrix:
        filled = np.where(np.isfinite(values), values, median)
        if filled.shape[0] == 0:  # nothing is calibrated where no class is benign
            return filled.astype(np.float64)
        scaled: Matrix = np.clip(scaler.transform(filled), -CLIP, CLIP)
        return scaled

    return scale


# -- logistic regression -----------------------------------------------------------------------------------------------


def _supervised(data: _Data, test: Scored, cal: Scored, classes: Classes) -> Plain | Mapping[str, Any]:
    if np.unique(data.train_y).size < 2:
        return {"kind": "supervised", "note": "the training side holds a single class"}
    model, transform = _best_logistic(data)

    def probabilities(values: Matrix) -> Matrix:
        proba = np.zeros((values.shape[0], len(classes)))
        if values.shape[0]:
            proba[:, model.classes_] = model.predict_proba(transform(values))
        return proba

    def scored(values: Matrix, windows: Scored) -> Scored:
        proba = probabilities(values)
        return windows.with_score(classes.alarm_score(proba), proba)

    references = ReferenceScores(classes.alarm_score(probabilities(data.own)), data.own_host)
    return Plain("supervised", scored(data.test, test), scored(data.cal, cal), references)


def _best_logistic(data: _Data) -> tuple[LogisticRegression, Callable[[Matrix], Matrix]]:
    """The best on the validation side of plain and quantile-normal features at a few strengths, fitted on both."""
    quantiles = QuantileTransformer(
        n_quantiles=min(200, data.train.shape[0]), output_distribution="normal", subsample=None, random_state=data.seed
    ).fit(data.train)

    def plain(values: Matrix) -> Matrix:
        return values

    def quantile_normal(values: Matrix) -> Matrix:
        transformed: Matrix = np.clip(quantiles.transform(values), -3.0, 3.0)
        return transformed

    best: tuple[float, float, Callable[[Matrix], Matrix]] | None = None
    for transform in (plain, quantile_normal):
        fit, val = transform(data.train), transform(data.val)
        for strength in STRENGTHS:
            loss = _validation_loss(_logistic(strength, fit, data.train_y), val, data.val_y)
            if best is None or loss < best[0]:
                best = (loss, strength, transform)
    assert best is not None
    chosen = best[2]
    return _logistic(best[1], chosen(data.fit), data.fit_y), chosen


def _logistic(strength: float, values: Matrix, y: IntArray) -> LogisticRegression:
    model = LogisticRegression(C=strength, class_weight="balanced", max_iter=200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(values, y)


def _validation_loss(model: LogisticRegression, val: Matrix, val_y: IntArray) -> float:
    known = np.isin(val_y, model.classes_)
    if not known.any():
        return 0.0
    return float(log_loss(val_y[known], model.predict_proba(val[known]), labels=model.classes_))


# -- anomaly detectors: fitted on benign training windows, they answer a function from features to scores -------------

Score = Callable[[Matrix], Matrix]


def _isolation_forest(normal: Matrix, seed: int) -> Score:
    forest = IsolationForest(n_estimators=200, random_state=seed).fit(normal)
    return lambda values: -forest.score_samples(values)


def _mahalanobis(normal: Matrix, seed: int) -> Score:
    del seed  # nothing about it is random
    return LedoitWolf().fit(normal).mahalanobis


def _lof(normal: Matrix, seed: int) -> Score:
    del seed
    neighbours = min(20, normal.shape[0] - 1)
    factor = LocalOutlierFactor(n_neighbors=neighbours, novelty=True, algorithm="brute").fit(normal)
    return lambda values: -factor.score_samples(values)


ANOMALY_METHODS: dict[str, Callable[[Matrix, int], Score]] = {
    "isolation_forest": _isolation_forest,
    "mahalanobis": _mahalanobis,
    "lof": _lof,
}
