"""The plain methods beside every model: on the model's own split, deterministic, and never in the way of a report."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from trainer_builders import BINARY

from training.data.rows import Rows
from training.data.split import LeakError, Split, make_split
from training.trainer import baselines
from training.trainer.baselines import run_baselines
from training.trainer.evaluation.metrics import Classes, Scored
from training.trainer.task import GivenWindows, evenly

NAMES = {"logistic_regression", "isolation_forest", "mahalanobis", "lof"}


def data(n_episodes=60, per_episode=8, n_features=12, classes=2, shift=1.5, seed=0):
    """Features whose first column moves with the class."""
    rng = np.random.default_rng(seed)
    episode = np.repeat(np.arange(n_episodes), per_episode)
    y = (np.arange(n_episodes) // 3 % classes)[episode]
    X = rng.normal(size=(y.size, n_features)) + 0.3 * rng.normal(size=(n_episodes, n_features))[episode]
    X[:, 0] += shift * y
    hosts = np.array(["a", "b", "c"])[episode % 3]
    return X.astype(np.float32), y, np.array([f"e{n:03d}" for n in episode]), hosts


class Windows(NamedTuple):
    features: np.ndarray
    y: np.ndarray
    host: np.ndarray
    split: Split


def judged(X, y, episode, host, classes=BINARY, supervised=True, own=None, **options):
    windows = Rows.of(episode=episode, host=host, t_start=np.arange(y.size), label=y)
    split = make_split(windows, recipe="host", train_hosts=["a", "b"], supervised=supervised)

    def scored(rows):
        return Scored.build(windows.take(rows), score=np.zeros(rows.size))

    everything = Windows(X, y, host, split)
    found = run_baselines(
        everything,
        own or GivenWindows(X[:0], X[:0], host[:0]),
        test=scored(split.test),
        cal=scored(split.cal),
        classes=classes,
        target_fpr=0.05,
        stride_s=1.0,
        n_resamples=200,
        **options,
    )
    return found, split


def test_they_find_what_there_is_to_find_and_repeat_exactly():
    made = data()
    found, _ = judged(*made)
    assert set(found) == NAMES
    assert found["logistic_regression"]["kind"] == "supervised"
    assert found["logistic_regression"]["auroc"]["value"] > 0.75
    for name in NAMES:
        low, high = found[name]["auroc"]["ci95"]
        assert low <= found[name]["auroc"]["value"] <= high
        assert {"tpr", "fpr"} <= set(found[name])
    assert judged(*made)[0] == found


def test_each_is_compared_with_the_model_window_by_window():
    found, _ = judged(*data())
    for name in NAMES:  # the model here scores everything alike: its AUROC is 0.5
        assert found[name]["gap"]["value"] == pytest.approx(found[name]["auroc"]["value"] - 0.5, abs=2e-6)


def test_each_has_incidents_by_a_rule_that_its_own_calibration_side_chose(monkeypatch):
    found, _ = judged(*data(n_episodes=90))
    for name in NAMES:
        made = found[name]["incidents"]
        assert "above the threshold" in made["words"]
        assert made["stretches"] > 0
        assert made["caught"]["value"] <= 1
        assert made["false_per_host_day"]["value"] is not None
    assert found["logistic_regression"]["incidents"]["caught"]["value"] > 0.3
    bare, _ = judged(*data(n_episodes=90), classes=Classes(("benign", "grind"), ()))
    assert bare["logistic_regression"]["incidents"] is None
    monkeypatch.setattr(baselines, "MAX_JUDGED_ROWS", 60)
    assert judged(*data(n_episodes=90))[0]["lof"]["incidents"] is None, "thinned windows are no neighbours"


def test_a_rule_of_incidents_that_the_test_side_chose_is_refused(monkeypatch):
    chosen = baselines.called

    def planted(*sides, rows, **options):
        return chosen(*sides, rows=np.arange(10_000), **options)

    monkeypatch.setattr(baselines, "called", planted)
    with pytest.raises(LeakError, match="chosen by"):
        judged(*data())


def test_outliers_are_found_without_labels():
    X, y, episode, host = data(shift=0.0)
    X[y == 1] *= 4.0
    found, _ = judged(X, y, episode, host)
    for name in NAMES - {"logistic_regression"}:
        assert found[name]["auroc"]["value"] > 0.9, name


def test_nothing_is_learned_from_the_test_side():
    X, y, episode, host = data()
    before, split = judged(X, y, episode, host)
    changed = X.copy()
    changed[split.cal] = 0.0
    after, _ = judged(changed, y, episode, host)
    assert {name: after[name]["auroc"] for name in NAMES} == {name: before[name]["auroc"] for name in NAMES}
    scaled = X.copy()
    scaled[split.test] = scaled[split.test][::-1]  # other test windows, same model
    assert judged(scaled, y, episode, host)[0]["lof"]["auroc"] != before["lof"]["auroc"]


def test_values_that_are_missing_or_never_change_do_no_harm():
    X, y, episode, host = data()
    X[:, 3] = 7.0
    X[:, 4] = np.nan
    X[::5, 5] = np.inf
    found, _ = judged(X, y, episode, host)
    assert found["logistic_regression"]["auroc"]["value"] > 0.7
    assert all(found[name]["auroc"]["value"] is not None for name in NAMES)


def test_many_classes():
    names = Classes(("benign", "grind", "sweep"), ("benign",))
    X, y, episode, host = data(classes=3, n_episodes=90)
    X[:, 1] += 2.0 * (y == 2)
    found, _ = judged(X, y, episode, host, classes=names)
    assert found["logistic_regression"]["macro_f1"]["value"] > 0.5
    assert found["logistic_regression"]["auroc"]["value"] > 0.75
    assert found["mahalanobis"]["auroc"]["value"] > 0.5


def test_many_classes_without_benign_have_no_outliers():
    names = Classes(("walk", "run", "sit"), ())
    found, _ = judged(*data(classes=3, n_episodes=90), classes=names)
    assert found["logistic_regression"]["auroc"]["value"] is not None
    assert found["lof"] == {"kind": "anomaly", "note": "no benign training windows to learn from"}


def test_a_single_class_leaves_the_logistic_regression_out():
    X, _, episode, host = data()
    found, _ = judged(X, np.zeros(X.shape[0], dtype=int), episode, host, supervised=False)
    assert found["logistic_regression"]["note"] == "the training side holds a single class"
    assert found["lof"]["auroc"]["reason"] == "the test windows are all benign"
    assert found["lof"]["fpr"]["value"] is not None


def test_large_data_are_thinned_evenly(monkeypatch):
    monkeypatch.setattr(baselines, "MAX_FIT_ROWS", 150)
    monkeypatch.setattr(baselines, "MAX_ANOMALY_ROWS", 40)
    monkeypatch.setattr(baselines, "MAX_JUDGED_ROWS", 60)
    found, _ = judged(*data())
    assert found["logistic_regression"]["auroc"]["value"] > 0.6
    assert found["lof"]["windows"] == 60
    assert evenly(1000, 10).tolist() == [0, 111, 222, 333, 444, 555, 666, 777, 888, 999]


def test_windows_of_another_split_are_refused():
    X, y, episode, host = data()
    _, split = judged(X, y, episode, host)
    rows = split.test[:-1]
    wrong = Scored.build(Rows.of(label=y, episode=episode, host=host).take(rows), score=np.zeros(rows.size))
    none = GivenWindows(X[:0], X[:0], host[:0])
    with pytest.raises(ValueError, match="those of the split"):
        run_baselines(
            Windows(X, y, host, split), none, test=wrong, cal=wrong, classes=BINARY, target_fpr=0.05, stride_s=1.0
        )


def test_their_auroc_is_that_of_their_score():
    X, y, episode, host = data()
    found, split = judged(X, y, episode, host)
    both = np.sort(np.concatenate((split.train, split.val)))
    scale = baselines._fit_scaler(X[both])
    normal = scale(X[both])[y[both] == 0]
    score = baselines._mahalanobis(normal, 0)(scale(X[split.test]))
    expected = roc_auc_score(y[split.test], score)
    assert found["mahalanobis"]["auroc"]["value"] == pytest.approx(expected, abs=1e-6)


def test_a_detector_measures_hosts_from_their_own_references():
    """On a host far from all others every window is odd, unless features are centred on its reference."""
    X, y, episode, host = data(shift=0.0, n_episodes=90)
    X[y == 1] *= 2.0
    own = np.random.default_rng(5).normal(size=(60, X.shape[1])).astype(np.float32)
    place = np.array(["a", "b", "c"])[np.arange(60) % 3]
    for name, far in (("b", 6.0), ("c", -6.0)):
        X[host == name] += far
        own[place == name] += far
    bare, _ = judged(X, y, episode, host)
    found, _ = judged(X, y, episode, host, own=GivenWindows(own, own, place))
    for name in NAMES - {"logistic_regression"}:
        assert found[name]["fpr"]["value"] < 0.4 < bare[name]["fpr"]["value"], name
    assert {found[name]["rule"] for name in NAMES} <= {"only_up", "follows"}
    assert {bare[name]["rule"] for name in NAMES} == {None}


def test_the_logistic_regression_learns_from_validation_windows_as_well():
    X, y, episode, host = data(n_episodes=24, per_episode=4)
    _, split = judged(X, y, episode, host)
    flipped = y.copy()
    flipped[split.val] = 1 - flipped[split.val]
    before, after = (judged(X, labels, episode, host)[0]["logistic_regression"] for labels in (y, flipped))
    assert before["auroc"] != after["auroc"]
