"""Every number against a slow second opinion; every interval against what it claims."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    confusion_matrix,
    f1_score,
    roc_auc_score,
    roc_curve,
)
from trainer_builders import BINARY

from training.data.rows import Rows
from training.trainer.comparison import paired_gap
from training.trainer.evaluation import curves, intervals
from training.trainer.evaluation.intervals import Estimate, RankMeasure, draw_weights, percentile_interval
from training.trainer.evaluation.metrics import Classes, Scored, evaluate, operating_point
from training.trainer.evaluation.ratios import CatchMeasure, ClassMeasure, ProbabilityMeasure
from training.trainer.evaluation.scenarios import best_alone, by_scenario
from training.trainer.evaluation.scored import Pace, pace

MANY = Classes(("benign", "grind", "encrypt", "sweep"), ("benign",))


def scored(n_episodes=40, per_episode=10, classes=BINARY, strength=1.0, within=0.5, seed=0, hosts=("a", "b")):
    """Windows whose scores share a part per episode, as overlapping windows do."""
    rng = np.random.default_rng(seed)
    n_classes = len(classes)
    episode = np.repeat(np.arange(n_episodes), per_episode)
    y = (np.arange(n_episodes) % n_classes)[episode]
    logits = rng.normal(size=(n_episodes, n_classes))[episode]
    logits = (1 - within) * logits + within * rng.normal(size=logits.shape)
    logits[np.arange(y.size), y] += strength
    proba = np.exp(logits)
    t_start = 2.0 * np.tile(np.arange(per_episode), n_episodes)
    rows = Rows.of(
        label=y,
        episode=[f"e{n:03d}" for n in episode],
        host=[hosts[n % 4 // 2 % len(hosts)] for n in episode],
        t_start=t_start,
        t_end=t_start + 4.0,
    )
    return Scored.build(rows, proba=proba / proba.sum(axis=1, keepdims=True), classes=classes)


def rows_of(y, episode, **times):
    return Rows.of(label=y, episode=episode, host=["h"] * len(y), **times)


def judged(test, classes=BINARY, n_resamples=200, target=0.05):
    return evaluated(test, operating_point(test, target, classes=classes), classes, n_resamples)


def evaluated(test, point=None, classes=BINARY, n_resamples=200, **seed):
    return evaluate(test, classes=classes, operating_point=point, n_resamples=n_resamples, **seed)


# -- values ------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 60), levels=st.integers(1, 12), n_episodes=st.integers(1, 8))
def test_rank_measures_are_those_of_scikit_learn_with_weights(seed, n, levels, n_episodes):
    """Few levels make ties; zero weights make episodes vanish."""
    rng = np.random.default_rng(seed)
    score = rng.integers(levels, size=n).astype(float)
    positive = rng.random(n) < 0.4
    episode = rng.integers(n_episodes, size=n)
    weights = rng.integers(0, 4, size=(3, n_episodes)).astype(np.int32)
    found = RankMeasure(score, positive, episode)(weights)
    for row, per_episode in enumerate(weights):
        w = per_episode[episode]
        if w[positive].sum() == 0 or w[~positive].sum() == 0:
            assert np.isnan(found["auroc"][row])
            continue
        auroc = roc_auc_score(positive, score, sample_weight=w)
        assert found["auroc"][row] == pytest.approx(auroc, abs=1e-12)
        auprc = average_precision_score(positive, score, sample_weight=w)
        assert found["auprc"][row] == pytest.approx(auprc, abs=1e-12)


def test_binary_metrics_are_those_of_scikit_learn():
    test = scored()
    found = judged(test)
    predicted = (test.score > operating_point(test, 0.05, classes=BINARY).threshold).astype(int)  # not one half
    assert (predicted != test.proba.argmax(axis=1)).any()
    expected = {
        "accuracy": accuracy_score(test.y, test.proba.argmax(axis=1)),
        "accuracy_at_threshold": accuracy_score(test.y, predicted),
        "balanced_accuracy": balanced_accuracy_score(test.y, predicted),
        "macro_f1": f1_score(test.y, predicted, average="macro"),
        "auroc": roc_auc_score(test.y, test.score),
        "auprc": average_precision_score(test.y, test.score),
        "prevalence": test.y.mean(),
        "brier": 2 * brier_score_loss(test.y, test.proba[:, 1]),
    }
    for name, value in expected.items():
        assert found.metrics[name]["value"] == pytest.approx(value, abs=1e-6), name
    assert found.confusion["labels"] == ["benign", "malicious"]
    assert found.confusion["matrix"] == confusion_matrix(test.y, predicted).tolist()


def test_many_classes_are_judged_one_against_the_rest():
    test = scored(classes=MANY, n_episodes=48)
    found = judged(test, MANY)
    auroc = roc_auc_score(test.y, test.proba, multi_class="ovr", average="macro")
    assert found.metrics["auroc"]["value"] == pytest.approx(auroc, abs=1e-6)
    alarm = test.score > operating_point(test, 0.05, classes=MANY).threshold
    predicted = np.where(alarm, 1 + test.proba[:, 1:].argmax(axis=1), 0)
    f1 = f1_score(test.y, predicted, average="macro")
    assert found.metrics["macro_f1"]["value"] == pytest.approx(f1, abs=1e-6)
    assert found.confusion["labels"] == list(MANY.names)
    # One page, one operating point: what is called malicious-like in the table is what raises an alarm.
    benign = np.array(found.confusion["matrix"][0])
    assert benign[1:].sum() / benign.sum() == pytest.approx(found.metrics["fpr"]["value"], abs=1e-6)
    assert [curve["label"] for curve in found.curves["roc"]] == list(MANY.names)
    # An alarm is anything that is not benign, whatever it is taken for.
    assert test.score == pytest.approx(1 - test.proba[:, 0])
    assert found.metrics["fpr"]["value"] <= 0.05


def test_many_classes_without_a_benign_one_have_no_alarms():
    names = Classes(("walk", "run", "sit"), ())
    test = scored(classes=names, n_episodes=30)
    point = operating_point(test, 0.05, classes=names)
    assert point.threshold is None
    assert point.reason == "no class is benign"
    found = evaluated(test, point, names, 50)
    assert found.metrics["tpr"] == {"value": None, "ci95": None, "reason": "no class is benign"}
    assert found.metrics["auroc"]["value"] > 0.5


def test_without_a_threshold_the_likeliest_class_is_said():
    test = scored(classes=MANY, n_episodes=8)
    found = evaluated(test, None, MANY, 0)
    assert found.metrics["accuracy"]["value"] == accuracy_score(test.y, test.proba.argmax(axis=1))
    assert found.metrics["accuracy_at_threshold"]["reason"] == "there is no threshold"
    assert MANY.said(test.proba, np.zeros(test.y.size, bool)).max() == 0
    assert MANY.said(test.proba, np.ones(test.y.size, bool)).min() == 1


@pytest.mark.parametrize("episodes", [20, 60])
def test_a_model_whose_probabilities_are_right_shows_the_error_that_is_told(episodes):
    """Windows of an episode are alike in score and truth, which chance alone makes into a calibration error."""
    rng = np.random.default_rng(episodes)
    episode = np.repeat(np.arange(episodes), 15)
    drawn = []
    for _ in range(60):
        own, mine = rng.normal(size=(2, episodes))[:, episode], rng.normal(size=(2, episode.size))
        claimed = 1 / (1 + np.exp(-1.2 * (1.2 * own[0] + 0.3 * mine[0])))
        y = (norm.cdf(np.sqrt(0.9) * own[1] + np.sqrt(0.1) * mine[1]) < claimed).astype(np.int64)
        proba = np.stack((1 - claimed, claimed), axis=1)
        measure = ProbabilityMeasure(y, proba, proba.argmax(axis=1), episode, episodes)
        drawn.append((measure(np.ones((1, episodes), dtype=np.int32))["ece"][0], measure.perfect()))
    shown, told = np.mean(drawn, axis=0)
    assert told == pytest.approx(shown, rel=0.15)  # as if windows were independent, it would be half of it


def test_a_badly_calibrated_model_is_not_excused():
    test = scored(n_episodes=60)
    sure = replace(test, proba=np.where(test.proba > 0.5, 0.999, 0.001))
    ece = evaluated(sure, n_resamples=0).metrics["ece"]
    assert ece["value"] > 2 * ece["perfect"]


def test_alarms_by_scenario_and_by_behaviour():
    test = scored(n_episodes=8)
    recorded = {f"e{n:03d}": ("idle" if n % 4 else "backup") if n % 2 == 0 else f"attack{n % 4}" for n in range(8)}
    scenario = np.array([recorded[one] for one in test.rows.episode])
    benign = test.y == 0
    alarm = benign & (scenario == "backup") | (scenario == "attack1")
    found = by_scenario(test, alarm, scenario, np.where(benign, "", scenario), BINARY)
    assert [(one["name"], one["kind"], one["rate"]["value"]) for one in found] == [
        ("backup", "benign", 1.0),
        ("idle", "benign", 0.0),
        ("attack1", "malicious-like", 1.0),
        ("attack3", "malicious-like", 0.0),
    ]
    assert [(one["windows"], one["episodes"]) for one in found] == [(20, 2)] * 4
    unknown = by_scenario(test, alarm, np.full(80, ""), np.where(benign, "", "attack"), BINARY)
    assert [one["name"] for one in unknown] == ["benign", "attack"]


def test_the_feature_that_tells_the_classes_by_itself_is_named_in_either_direction():
    rng = np.random.default_rng(0)
    alarming = np.arange(40) % 2 == 1
    features = rng.normal(size=(40, 3)).astype(np.float32)
    features[:, 1] = ~alarming
    features[:5, 1] = np.nan
    assert best_alone(features, ["a", "b", "c"], alarming) == {"feature": "b", "auroc": 1.0}
    assert best_alone(np.full((40, 1), np.nan, np.float32), ["a"], alarming) is None


def test_calibration_error_by_hand():
    proba = np.array([[0.9, 0.1], [0.9, 0.1], [0.3, 0.7], [0.35, 0.65]])
    measure = ProbabilityMeasure(np.array([0, 1, 1, 1]), proba, proba.argmax(axis=1), np.zeros(4, dtype=int), 1)
    one = np.ones((1, 1), dtype=np.int32)
    # Bins [.867, .933): claimed .9, right half the time. [.667, .733): .7, right. [.6, .667): .65, right.
    expected = (2 * abs(0.5 - 0.9) + 0.3 + 0.35) / 4
    assert measure(one)["ece"][0] == pytest.approx(expected)


def test_absent_classes_do_not_count_as_failures():
    y, predicted = np.array([0, 0, 2, 2]), np.array([0, 0, 2, 0])
    measure = ClassMeasure(y, predicted, MANY.names, np.zeros(4, dtype=int), 1)
    found = measure(np.ones((1, 1), dtype=np.int32))
    assert found["balanced_accuracy"][0] == pytest.approx(0.75)
    assert found["macro_f1"][0] == pytest.approx(f1_score(y, predicted, average="macro"))


# -- intervals ---------------------------------------------------------------------------------------------------------


def test_copying_every_window_inside_its_episode_leaves_the_intervals():
    test = scored(seed=3)
    copied = test.take(np.repeat(np.arange(test.y.size), 10))
    point = operating_point(test, 0.1, classes=BINARY)
    once = evaluated(test, point)
    tenfold = evaluated(copied, point)
    for name, metric in once.metrics.items():
        assert tenfold.metrics[name]["value"] == pytest.approx(metric["value"], abs=2e-6), name
        assert tenfold.metrics[name]["ci95"] == pytest.approx(metric["ci95"], abs=2e-6), name
    windows = replace(test, rows=replace(test.rows, recording=np.arange(test.y.size).astype(str)))
    iid = evaluated(windows, point)
    assert width(once.metrics["auroc"]) > 1.5 * width(iid.metrics["auroc"])


def width(metric):
    low, high = metric["ci95"]
    return high - low


def test_intervals_cover_what_they_claim_to_on_chance():
    """Labels drawn per episode: 0.5 must lie in about 95 % of the intervals, even with few episodes."""
    missed = 0
    trials = 300
    rng = np.random.default_rng(5)
    for trial in range(trials):
        episode = np.repeat(np.arange(24), 6)
        y = rng.permutation(np.arange(24) % 2)[episode]
        score = rng.normal(size=24)[episode] + 0.3 * rng.normal(size=episode.size)
        measure = RankMeasure(score, y == 1, episode, auprc=False)
        samples = np.concatenate([measure(w)["auroc"] for w in draw_weights(24, 144, 400, trial)])
        low, high = percentile_interval(Estimate(0.5, samples), 12)
        missed += not low <= 0.5 <= high
    assert missed / trials < 0.09


@pytest.mark.parametrize(
    ("n_support", "tail"), [(2, 0.0), (5, 0.00095), (10, 0.00855), (100, 0.02306), (10_000, 0.02499)]
)
def test_tails_are_widened_for_few_episodes(n_support, tail):
    """Expanded percentile interval: the t quantile times sqrt(n / (n - 1)), read on the normal scale."""
    samples = np.linspace(0.0, 1.0, 200_001)
    low, high = percentile_interval(Estimate(0.5, samples), n_support)
    assert low == pytest.approx(tail, abs=2e-5)
    assert high == pytest.approx(1 - tail, abs=2e-5)


def test_very_many_episodes_share_clusters_without_changing_the_spread(monkeypatch):
    test = scored(n_episodes=2000, per_episode=2, seed=4)
    alone = evaluated(test, n_resamples=400)
    monkeypatch.setattr(intervals, "MAX_CLUSTERS", 400)
    index, count = intervals.clusters(test.rows.recording)
    assert (count, np.unique(index).size) == (400, 400)
    assert all(np.unique(index[test.rows.recording == name]).size == 1 for name in ("e000", "e1999"))
    grouped = evaluated(test, n_resamples=400)
    for name in ("auroc", "accuracy", "brier"):
        assert grouped.metrics[name]["value"] == alone.metrics[name]["value"]
        assert width(grouped.metrics[name]) == pytest.approx(width(alone.metrics[name]), rel=0.2)


def test_an_interval_needs_half_of_the_resamples():
    samples = np.r_[np.linspace(0.4, 0.6, 50), np.full(51, np.nan)]
    assert percentile_interval(Estimate(0.5, samples), 30) is None
    assert percentile_interval(Estimate(0.5, samples[:-1]), 30) is not None
    assert percentile_interval(Estimate(np.nan, samples[:-1]), 30) is None


def test_the_seed_decides_the_draws():
    test = scored()
    first, again, other = (evaluated(test, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.metrics["auroc"]["ci95"] != other.metrics["auroc"]["ci95"]
    assert first.metrics["auroc"]["value"] == other.metrics["auroc"]["value"]


def test_perfect_scores_do_not_claim_certainty():
    test = scored(strength=50.0)
    found = judged(test)
    assert found.metrics["auroc"]["value"] == 1.0
    low, high = found.metrics["auroc"]["ci95"]
    assert high == 1.0
    assert low == pytest.approx(0.025 ** (1 / 20), abs=1e-6)  # 20 episodes of each class


def test_draws_depend_on_the_episodes_alone_and_have_their_number():
    few, many = (np.concatenate(list(draw_weights(7, n, 50, seed=1))) for n in (7, 10_000_000))
    assert np.array_equal(few, many)
    assert (few.sum(axis=1) == 7).all()
    assert few.std() > 0


def test_one_episode_has_no_interval():
    test = scored(n_episodes=2, per_episode=40)
    found = judged(test)
    assert found.metrics["auroc"]["value"] is not None
    assert found.metrics["auroc"]["ci95"] is None
    assert found.metrics["auroc"]["reason"] == "1 episodes carry it: too few for an interval"


def test_a_paired_gap_is_narrower_than_its_parts_and_zero_for_equals():
    test = scored(seed=8)
    rng = np.random.default_rng(0)
    better = test.with_score(test.score + 0.3 * test.y + 0.01 * rng.normal(size=test.y.size))
    same = paired_gap(test, test, classes=BINARY, n_resamples=200)
    assert (same["value"], same["ci95"]) == (0.0, [0.0, 0.0])
    gap = paired_gap(better, test, classes=BINARY, n_resamples=300)
    assert gap["ci95"][0] > 0
    parts = [evaluated(s, n_resamples=300) for s in (better, test)]
    assert width(gap) < sum(width(part.metrics["auroc"]) for part in parts)
    many = scored(classes=MANY)
    assert paired_gap(many, many, classes=MANY, n_resamples=20)["value"] == 0.0
    with pytest.raises(ValueError, match="cannot be compared"):
        paired_gap(many, many.with_score(many.score), classes=MANY)
    with pytest.raises(ValueError, match="same windows"):
        paired_gap(test, test.take(np.arange(test.y.size - 1)), classes=BINARY)


# -- the operating point -----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 400), target=st.sampled_from([0.01, 0.05, 0.1, 0.25]), seed=st.integers(0, 99))
def test_threshold_is_the_conformal_quantile(n, target, seed):
    rng = np.random.default_rng(seed)
    score = rng.permutation(n).astype(float)
    episode = [str(k) for k in range(n)]
    cal = Scored.build(Rows.of(label=np.zeros(n), episode=episode, host=["a"] * n), score=score)
    point = operating_point(cal, target, classes=BINARY)
    wanted = int(np.ceil(round((n + 1) * (1 - target), 9)))
    if wanted > n:
        assert point.threshold is None
        assert point.interval is None
        assert f"{n} benign calibration windows" in point.reason
    else:
        assert point.threshold == sorted(score)[wanted - 1]
        assert (score > point.threshold).mean() <= target
        low, high = point.interval
        assert 0 <= low < target < high <= 1
        assert point.warning is None


@pytest.mark.parametrize(("windows", "holds"), [(18, False), (19, True)])
def test_nineteen_windows_carry_a_target_of_five_per_cent(windows, holds):
    cal = Scored.build(rows_of([0] * windows, ["e"] * windows), score=np.arange(windows))
    point = operating_point(cal, 0.05, classes=BINARY)
    assert (point.threshold is not None) is holds
    if holds:
        assert point.threshold == windows - 1
        assert point.warning == "calibrated on 1 episodes; 19 would be needed to hold a target of 5 %"
        assert point.interval[1] > 0.4
    else:
        assert point.reason == "18 benign calibration windows; a target of 5 % needs 19"
    assert json.dumps(point.to_dict(), allow_nan=False)


def test_beta_interval_covers_the_realised_rate():
    """The rate that 40 exchangeable scores really give must lie in the interval in about 95 % of calibrations."""
    rng = np.random.default_rng(2)
    n, target, inside, trials = 40, 0.1, 0, 600
    rows = rows_of([0] * n, range(n))
    for _ in range(trials):
        point = operating_point(Scored.build(rows, score=rng.random(n)), target, classes=BINARY)
        low, high = point.interval
        inside += low <= 1 - point.threshold <= high
    assert inside / trials == pytest.approx(0.95, abs=0.04)


def test_malicious_windows_never_move_the_threshold():
    cal = scored()
    point = operating_point(cal, 0.1, classes=BINARY)
    louder = cal.with_score(np.where(cal.y == 1, cal.score + 100, cal.score))
    assert operating_point(louder, 0.1, classes=BINARY) == point


def test_alarms_are_counted_strictly_above_the_threshold():
    rows = rows_of([0, 0, 1, 1], ["a", "b", "c", "d"], t_start=[0.0] * 4, t_end=[10.0] * 4)
    test = Scored.build(rows, score=[1.0, 2.0, 2.0, 3.0])
    point = operating_point(test.take(np.array([0, 1] * 20)), 0.05, classes=BINARY)
    assert point.threshold == 2.0
    found = evaluated(test, point)
    assert found.metrics["tpr"]["value"] == 0.5
    assert found.metrics["fpr"]["value"] == 0.0
    assert found.metrics["accuracy_at_threshold"]["value"] == 0.75
    assert found.metrics["accuracy"]["reason"] == "an anomaly score is no probability"
    assert found.metrics["ece"]["reason"] == "an anomaly score is no probability"
    assert found.confusion == {"labels": ["benign", "malicious"], "matrix": [[2, 0], [1, 1]]}
    assert found.metrics["fpr"]["ci95"][1] > 0.5  # none of two episodes proves little


def test_alarms_a_day_count_decisions_not_copies():
    test = scored()
    found = judged(test, target=0.2)
    assert pace(test) == Pace(2.0, "recording")
    per_day = found.metrics["fpr"]["value"] * 43_200
    assert found.metrics["alerts_per_host_day"]["value"] == pytest.approx(per_day)
    copied = test.take(np.repeat(np.arange(test.y.size), 3))
    assert pace(copied).every_s == 2.0
    own = test.take(np.arange(0, test.y.size, 10))  # one window an episode: the window's length is the step
    assert pace(own).every_s == 4.0


def test_what_is_caught_at_rare_false_alarms_is_the_roc_curve_there():
    test = scored(n_episodes=200, per_episode=12)
    rates = {"tpr_at_1_percent_fpr": 0.01, "tpr_at_0.1_percent_fpr": 0.001}
    false, caught, _ = roc_curve(test.y == 1, test.score, drop_intermediate=False)
    found = judged(test)
    for name, rate in rates.items():
        assert found.metrics[name]["value"] == pytest.approx(caught[false <= rate].max(), abs=1e-6)
        low, high = found.metrics[name]["ci95"]
        assert low <= found.metrics[name]["value"] <= high


def test_ties_with_benign_windows_are_not_caught():
    measure = CatchMeasure(
        np.array([0.0, 1.0, 1.0, 2.0]),
        np.array([False, False, True, True]),
        np.array([0, 1, 2, 3]),
        {"rare": 0.25, "half": 0.5},
    )
    weights = np.array([[1, 1, 1, 1], [1, 1, 3, 1], [0, 0, 1, 1]], dtype=np.int32)
    assert measure(weights)["rare"].tolist()[:2] == [0.5, 0.25]
    assert measure(weights)["half"].tolist()[:2] == [1.0, 1.0]
    assert np.isnan(measure(weights)["rare"][2])  # without benign windows there is no rate


def test_too_few_benign_windows_cannot_show_a_rare_event_and_copies_do_not_help():
    test = scored(n_episodes=20, per_episode=20)  # 200 benign windows
    for one in (test, test.take(np.repeat(np.arange(test.y.size), 10))):
        found = judged(one).metrics
        assert found["tpr_at_1_percent_fpr"]["value"] is not None
        assert found["tpr_at_0.1_percent_fpr"] == {
            "value": None,
            "ci95": None,
            "reason": "200 benign windows cannot show a rate of 0.1 %: 1,000 are needed",
        }


# -- what is missing ---------------------------------------------------------------------------------------------------


def test_a_host_of_one_class_is_reported_as_such():
    test = scored()
    is_benign = test.y == 0
    host = np.where(is_benign & (np.char.endswith(test.rows.recording, "0")), "quiet", "other")
    mixed = replace(test, rows=replace(test.rows, host=host))
    found = judged(mixed)
    quiet_host = found.per_host["quiet"]
    assert quiet_host["one_class"] == "benign"
    assert quiet_host["malicious"] == 0
    assert quiet_host["auroc"] == {"value": None, "ci95": None, "reason": "the test windows are all benign"}
    assert quiet_host["fpr"]["value"] is not None
    assert quiet_host["tpr"]["value"] is None
    assert found.per_host["other"]["one_class"] is None
    assert json.dumps([found.metrics, found.per_host, found.curves], allow_nan=False)
    alone = judged(test.take(np.flatnonzero(is_benign)))
    assert alone.metrics["auroc"]["reason"] == "the test windows are all benign"
    assert alone.curves["roc"][0]["points"] == []


@pytest.mark.parametrize(
    ("kept", "said"), [((0, 1), "benign (here: idle, work)"), ((2, 3), "malicious-like (here: grind, sweep)")]
)
def test_a_test_side_of_one_kind_is_not_said_to_be_without_a_benign_class(kept, said):
    """Two benign classes alone, or two attacks: no ranking, and not because no class is benign."""
    two = Classes(("idle", "work", "sweep", "grind"), ("idle", "work"))
    test = scored(classes=two, n_episodes=48)
    point = operating_point(test, 0.05, classes=two)
    one_kind = test.take(np.flatnonzero(np.isin(test.y, kept)))
    bare = one_kind.with_score(one_kind.score)
    found = evaluated(bare, point, two).metrics
    assert found["auroc"]["reason"] == f"the test windows are all {said}"
    assert found["auprc"]["reason"] == f"the test windows are all {said}"


def test_a_test_without_benign_windows_says_so_and_not_that_there_is_no_threshold():
    whole = scored()
    point = operating_point(whole, 0.05, classes=BINARY)
    loud = whole.take(np.flatnonzero(whole.y == 1))
    found = evaluated(loud, point).metrics
    assert found["fpr"]["reason"] == "the test has no window that is benign"
    assert found["alerts_per_host_day"]["reason"] == "the test has no window that is benign"
    assert found["tpr"]["value"] is not None
    without = evaluated(loud).metrics
    assert without["fpr"]["reason"] == "there is no threshold"


def test_an_anomaly_score_without_a_threshold_ranks_and_no_more():
    test = scored()
    bare = test.with_score(test.score)
    found = evaluated(bare, n_resamples=20)
    assert found.metrics["auroc"]["value"] is not None
    assert found.metrics["macro_f1"]["reason"] == "an anomaly score without a threshold predicts no class"
    assert found.metrics["fpr"]["reason"] == "there is no threshold"
    assert found.confusion is None
    assert found.curves["calibration"] == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_numbers_are_refused(bad):
    rows = rows_of([0, 1], ["a", "b"])
    with pytest.raises(ValueError, match="finite"):
        Scored.build(rows, score=[0.0, bad])
    with pytest.raises(ValueError, match="finite"):
        Scored.build(rows, score=[0.0, 1.0], proba=[[0.5, bad], [0.5, 0.5]])


def test_shapes_that_disagree_are_refused():
    with pytest.raises(ValueError, match="one value a window"):
        Rows.of(label=[0, 1], episode=["a"], host=["h", "h"])
    with pytest.raises(ValueError, match="one score"):
        Scored.build(rows_of([0, 1], ["a", "b"]), score=[0.0])
    with pytest.raises(ValueError, match="one row of probabilities"):
        Scored.build(rows_of([0], ["a"]), score=[0.0], proba=[[1.0], [0.0]])
    with pytest.raises(ValueError, match="need a score"):
        Scored.build(rows_of([0], ["a"]))
    nothing = scored().take(np.arange(0))
    with pytest.raises(ValueError, match="no test windows"):
        evaluated(nothing)
    with pytest.raises(ValueError, match=r"between 0 and 0\.5"):
        operating_point(scored(), 0.5, classes=BINARY)


def test_several_classes_may_be_benign():
    two = Classes(("idle", "sweep", "work", "grind"), ("idle", "work"))
    test = scored(classes=two, n_episodes=48)
    assert test.score == pytest.approx(test.proba[:, [1, 3]].sum(axis=1))
    point = operating_point(test, 0.05, classes=two)
    assert point.n_windows == np.isin(test.y, [0, 2]).sum()
    found = judged(test, two)
    alarm = test.score > point.threshold
    is_benign = np.isin(test.y, [0, 2])
    assert found.metrics["fpr"]["value"] == pytest.approx(alarm[is_benign].mean(), abs=1e-6)
    assert found.metrics["tpr"]["value"] == pytest.approx(alarm[~is_benign].mean(), abs=1e-6)
    assert two.words() == {"benign": "benign (here: idle, work)", "malicious": "malicious-like (here: grind, sweep)"}
    bare = judged(test.with_score(test.score), two)
    assert bare.confusion["labels"] == ["benign", "malicious-like"]
    with pytest.raises(ValueError, match="no class"):
        Classes(("a", "b"), ("c",))


# -- curves ------------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 9999), n=st.integers(2, 3000), levels=st.integers(1, 5000))
def test_curves_keep_their_area_when_thinned(seed, n, levels):
    rng = np.random.default_rng(seed)
    positive = np.r_[True, False, rng.random(n - 2) < 0.4]
    score = rng.integers(levels, size=n) + 0.3 * levels * positive
    points = np.array(curves.roc(score, positive))
    assert points.shape[0] <= curves.MAX_POINTS + 1
    assert points[0].tolist() == [0.0, 0.0]
    assert points[-1].tolist() == [1.0, 1.0]
    assert (np.diff(points, axis=0) >= 0).all()
    false, true, _ = roc_curve(positive, score)
    area = np.trapezoid(points[:, 1], points[:, 0])
    assert area == pytest.approx(np.trapezoid(true, false), abs=0.02)
    recall = np.array(curves.precision_recall(score, positive))[:, 0]
    assert (np.diff(recall) >= 0).all()
    assert recall[-1] == 1.0


def test_reliability_says_what_was_seen():
    proba = np.array([[0.95, 0.05], [0.92, 0.08], [0.2, 0.8]])
    rows = curves.reliability(1 - proba[:, 0], np.array([False, True, True]))
    assert rows == [{"claimed": 0.065, "observed": 0.5, "windows": 2}, {"claimed": 0.8, "observed": 1.0, "windows": 1}]
