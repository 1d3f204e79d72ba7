"""Plain methods with which each model is compared, on the features of the same windows, with the same split and
threshold rule.

The plain methods get all that a model gets: the references used for training, each host's level and, once the
validation windows have chosen the settings, these windows for another fit. Each method's incident rule is chosen by its
own scores of the calibration windows. Anomaly methods get features relative to the centre of the host's own reference,
if it has one (see `anomaly.Centres`). Each method is made with scikit-learn, is deterministic, and learns from a
limited number of rows.
"""

import warnings
from collections.abc import Callable, Mapping
from itertools import product
from typing import NamedTuple

import numpy as np
from sklearn.covariance import LedoitWolf
from sklearn.ensemble import IsolationForest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.neighbors import LocalOutlierFactor
from sklearn.preprocessing import QuantileTransformer, StandardScaler

from training.data.values import AnyArray, Floats, Ints, Json, JsonDict
from training.trainer.anomaly import Centres
from training.trainer.comparison import paired_gap
from training.trainer.evaluation.host_levels import HostLevels, ReferenceScores
from training.trainer.evaluation.incident_rates import called
from training.trainer.evaluation.metrics import Classes, Scored, by_class, evaluate, operating_point
from training.trainer.task import GivenWindows, Joined, evenly, thinned

# Rows used at most, thinned evenly: more of them move the numbers by less than their intervals.
MAX_FIT_ROWS = 20_000  # of the logistic regression
MAX_ANOMALY_ROWS = 5_000  # of the others: neighbours are searched by brute force
MAX_JUDGED_ROWS = 20_000
CLIP = 10.0  # standard deviations: a channel that was constant in training must not drown the others
STRENGTHS = (0.01, 0.1)  # of the logistic regression (scikit-learn's C), chosen on the validation side
_CALLED = ("words", "why", "stretches", "false", "caught", "delay_s", "open_share", "false_per_host_day")
_SHOWN = ("auroc", "auprc", "balanced_accuracy", "macro_f1", "tpr", "fpr")


def run_baselines(
    windows: Joined,
    own: GivenWindows,
    *,
    test: Scored,
    cal: Scored,
    classes: Classes,
    target_fpr: float,
    stride_s: float,
    n_resamples: int = 1000,
    seed: int = 0,
) -> dict[str, JsonDict]:
    """Fit the plain methods on the training side and judge them on the test side: logistic_regression,
    isolation_forest, mahalanobis, lof.

    ``windows`` are *all* windows of the mode, ``own`` the reference windows that set levels; ``test`` and ``cal`` are
    the model's own `Scored` (rows as in the split). ``stride_s`` is the usual time in seconds from the start of a
    window to that of the next.

    Return for each name {kind: supervised | anomaly, windows (judged), auroc, auprc, tpr, fpr, …: {value, ci95}}, or
    {kind, note} with the reason if the method failed. ``rule`` is the rule for hosts' thresholds, null without
    references or a threshold. ``incidents`` are the figures of incidents under the rule chosen by the method's own
    calibration scores. ``incidents`` is null without a threshold, or if windows were thinned, and so are not
    consecutive. ``gap`` is the method's AUROC minus the model's on the same draws of episodes; the member is missing if
    the two AUROCs cannot be compared.
    """
    split = windows.split
    answers = plain_answers(windows, own, test=test, cal=cal, classes=classes, seed=seed)
    cal_rows = thinned(split.cal, MAX_JUDGED_ROWS)
    whole = max(split.test.size, split.cal.size) <= MAX_JUDGED_ROWS

    def judge(one: Plain) -> JsonDict:
        point = None
        if one.cal.y.size:
            point = operating_point(one.cal, target_fpr, classes=classes, references=one.references)
            point.refuse_test(one.test.rows)
        found = evaluate(one.test, classes=classes, operating_point=point, n_resamples=n_resamples, seed=seed).metrics
        hosts = None if point is None else point.hosts
        answer: JsonDict = {"kind": one.kind, "windows": int(one.test.y.size)}
        answer |= {"rule": None if hosts is None else hosts.rule.value}
        answer |= {name: found[name] for name in _SHOWN}
        answer["incidents"] = None
        if point is not None and point.threshold is not None and whole:
            choice, figures = called(one.cal, one.test, point, classes, rows=cal_rows, nominal_s=stride_s, curve=False)
            choice.require_none_of(split)
            answer["incidents"] = {name: figures[name] for name in _CALLED}
        rival = test.take(evenly(test.y.size, MAX_JUDGED_ROWS))
        if by_class(one.test, classes) is by_class(rival, classes):
            draws = {"n_resamples": n_resamples, "seed": seed}
            answer["gap"] = paired_gap(one.test, rival, classes=classes, **draws)
        return answer

    return {name: judge(one) if isinstance(one, Plain) else dict(one) for name, one in answers.items()}


class Plain(NamedTuple):
    """The scores of a plain method: of test and calibration windows, and of references."""

    kind: str  # supervised or anomaly
    test: Scored
    cal: Scored
    references: ReferenceScores


def plain_answers(
    windows: Joined, own: GivenWindows, *, test: Scored, cal: Scored, classes: Classes, seed: int
) -> dict[str, Plain | Json]:
    """Fit the plain methods on the training side, and score; return for each its scores, or {kind, note} if it failed.

    At most ``MAX_JUDGED_ROWS`` test windows and as many calibration windows are scored, evenly drawn if there are more.
    """
    split, X, y = windows.split, windows.features, windows.y
    if test.y.size != split.test.size or cal.y.size != split.cal.size:
        raise ValueError("the scored windows must be those of the split, in its order")
    test, cal = (one.take(evenly(one.y.size, MAX_JUDGED_ROWS)) for one in (test, cal))
    both = thinned(np.sort(split.learnt), MAX_FIT_ROWS)
    scale = _fit_scaler(X[both])
    fit = scale(X[both])
    sides = {
        "test": (scale(X[thinned(split.test, MAX_JUDGED_ROWS)]), test.rows.host),
        "cal": (scale(X[thinned(split.cal, MAX_JUDGED_ROWS)]), cal.rows.host),
        "own": (scale(own.features), own.host),
    }

    def plain(kind: str, score: Mapping[str, Floats], proba: Mapping[str, Floats]) -> Plain:
        references = ReferenceScores(score["own"], own.host)
        levels = None
        if not proba:
            levels = HostLevels.trained(references, on=sorted(set(windows.host[both].tolist())))
            score = {name: levels.applied(score[name], host) for name, (_, host) in sides.items()}
        return Plain(
            kind,
            test.with_score(score["test"], proba.get("test")),
            cal.with_score(score["cal"], proba.get("cal")),
            references.measured(levels),
        )

    found: dict[str, Plain | Json] = {}
    train, val = (
        (scale(X[rows]), y[rows]) for rows in (thinned(split.train, MAX_FIT_ROWS), thinned(split.val, MAX_FIT_ROWS))
    )
    if np.unique(train[1]).size < 2:
        note = "the training side holds a single class"
        found["logistic_regression"] = {"kind": "supervised", "note": note}
    else:
        probabilities = _logistic_regression(train, val, (fit, y[both]), len(classes), seed)
        proba = {side: probabilities(values) for side, (values, _) in sides.items()}
        score = {side: classes.alarm_score(one) for side, one in proba.items()}
        found["logistic_regression"] = plain("supervised", score, proba)
    centres = Centres(np.zeros(fit.shape[1]), {}).settled(sides["own"][0], own.host)
    normal = (fit - centres.of(windows.host[both]))[classes.is_benign(y[both])]
    normal = thinned(normal, MAX_ANOMALY_ROWS)
    for name, method in ANOMALY_METHODS.items():
        if len(normal) < 2:
            found[name] = {"kind": "anomaly", "note": "no benign training windows to learn from"}
            continue
        fitted = method(normal, seed)
        score = {
            side: fitted(values - centres.of(host)) if len(values) else np.zeros(0)
            for side, (values, host) in sides.items()
        }
        found[name] = plain("anomaly", score, {})
    return found


def _fit_scaler(fit: AnyArray) -> Callable[[AnyArray], Floats]:
    """Return a function that standardises features by the training rows, fills missing values with medians and clips
    outliers."""
    known = np.where(np.isfinite(fit), fit, np.nan).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column without any value has no median
        median = np.nan_to_num(np.nanmedian(known, axis=0))
    scaler = StandardScaler().fit(np.where(np.isnan(known), median, known))

    def scale(values: AnyArray) -> Floats:
        filled = np.where(np.isfinite(values), values, median)
        if filled.shape[0] == 0:  # nothing is calibrated where no class is benign
            return filled.astype(float)
        scaled: Floats = np.clip(scaler.transform(filled), -CLIP, CLIP)
        return scaled

    return scale


# -- logistic regression -----------------------------------------------------------------------------------------------


Side = tuple[Floats, Ints]  # features and classes of windows
Score = Callable[[Floats], Floats]  # from features


def _logistic_regression(train: Side, val: Side, fit: Side, classes: int, seed: int) -> Callable[[Floats], Floats]:
    """Choose the form of the features and the regularisation on the validation side, then fit again on both sides.

    Features are used as they are, or mapped to a normal distribution by quantiles. Return a function that takes
    features (n, F) and returns the probabilities of all classes (n, K).
    """
    quantiles = QuantileTransformer(
        n_quantiles=min(200, len(train[0])), output_distribution="normal", subsample=None, random_state=seed
    ).fit(train[0])

    def plain(values: Floats) -> Floats:
        return values

    def quantile_normal(values: Floats) -> Floats:
        return np.clip(quantiles.transform(values), -3.0, 3.0)

    def loss(choice: tuple[Score, float]) -> float:
        transform, strength = choice
        return _validation_loss(_logistic(strength, transform(train[0]), train[1]), transform(val[0]), val[1])

    transform, strength = min(product((plain, quantile_normal), STRENGTHS), key=loss)
    model = _logistic(strength, transform(fit[0]), fit[1])

    def probabilities(values: Floats) -> Floats:
        proba = np.zeros((len(values), classes))
        if len(values):
            proba[:, model.classes_] = model.predict_proba(transform(values))
        return proba

    return probabilities


def _logistic(strength: float, values: Floats, y: Ints) -> LogisticRegression:
    model = LogisticRegression(C=strength, class_weight="balanced", max_iter=200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(values, y)


def _validation_loss(model: LogisticRegression, val: Floats, val_y: Ints) -> float:
    known = np.isin(val_y, model.classes_)
    if not known.any():
        return 0.0
    return float(log_loss(val_y[known], model.predict_proba(val[known]), labels=model.classes_))


# -- anomaly detectors: fitted on benign training windows, they answer a function from features to scores -------------


def _isolation_forest(normal: Floats, seed: int) -> Score:
    forest = IsolationForest(n_estimators=200, random_state=seed).fit(normal)
    return lambda values: -forest.score_samples(values)


def _mahalanobis(normal: Floats, seed: int) -> Score:
    del seed  # nothing about it is random
    return LedoitWolf().fit(normal).mahalanobis


def _lof(normal: Floats, seed: int) -> Score:
    del seed
    neighbours = min(20, normal.shape[0] - 1)
    factor = LocalOutlierFactor(n_neighbors=neighbours, novelty=True, algorithm="brute").fit(normal)
    return lambda values: -factor.score_samples(values)


ANOMALY_METHODS = {
    "isolation_forest": _isolation_forest,
    "mahalanobis": _mahalanobis,
    "lof": _lof,
}
