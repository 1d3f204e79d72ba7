"""Would chance do as well, and what may a small rate really be: against second opinions and simulated truth."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from trainer_builders import BINARY
from trainer_builders import scored as scored_windows

from training import hyper as flags
from training.trainer.evaluation import chance, intervals
from training.trainer.evaluation.chance import SIDE, chance_test
from training.trainer.evaluation.metrics import evaluate, operating_point
from training.trainer.evaluation.rates import exact_interval, rate_interval


def one_label_each(labels, scores, per_episode=4):
    """Windows of recordings that hold one class each."""
    y = np.repeat(labels, per_episode)
    episode = np.repeat([f"e{n:02}" for n in range(len(labels))], per_episode)
    score = np.repeat(np.asarray(scores, dtype=float), per_episode)
    return score + 0.01 * np.tile(np.arange(per_episode), len(labels)), y, episode


def test_a_perfect_model_on_five_episodes_a_class_is_one_of_252_ways():
    score, y, episode = one_label_each([0] * 5 + [1] * 5, range(10))
    found = chance_test([score], [1], y, episode)
    assert found.to_dict() == {"p": round(1 / 252, 6), "ways": 252, "counted": True}
    assert found.p <= SIDE
    turned = chance_test([-score], [1], y, episode)  # as far on the other side
    assert turned.p == found.p


@pytest.mark.parametrize(("of_each", "refused"), [(3, False), (4, True)])
def test_three_episodes_a_class_can_refuse_nothing(of_each, refused):
    score, y, episode = one_label_each([0] * of_each + [1] * of_each, range(2 * of_each))
    assert (chance_test([score], [1], y, episode).p <= SIDE) is refused


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_it_counts_what_all_permutations_count(data):
    """By hand: every permutation of the recordings' labels, and the pairs that each ranks rightly, counted exactly.

    Scikit-learn agrees but for rounding, and that decides on which side of one half a result of one half lies.
    """
    n = data.draw(st.integers(2, 5))
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=n, max_size=n))
    courses = [data.draw(st.lists(st.integers(0, 1), min_size=size, max_size=size)) for size in sizes]
    scores = [data.draw(st.lists(st.integers(0, 5), min_size=size, max_size=size)) for size in sizes]
    y, score = np.concatenate(courses), np.concatenate(scores).astype(float)
    episode = np.repeat([f"e{k}" for k in range(n)], sizes)
    found = chance_test([score], [1], y, episode)
    if len(set(y.tolist())) < 2:
        assert found is None
        return

    def auroc(labels):
        ups = [value for value, label in zip(score.tolist(), labels, strict=True) if label]
        downs = [value for value, label in zip(score.tolist(), labels, strict=True) if not label]
        won = sum((up > down) + (up == down) / 2 for up in ups for down in downs)
        return won / (len(ups) * len(downs)) if ups and downs else None

    def dealt(way):
        return [
            courses[k][place * len(courses[k]) // size]
            for k, size in zip(way, sizes, strict=True)
            for place in range(size)
        ]

    seen = auroc(y.tolist())
    assert seen == pytest.approx(roc_auc_score(y, score), abs=1e-9)
    ways = [auroc(dealt(way)) for way in permutations(range(n))]
    sign = 1 if seen >= 0.5 else -1
    as_far = [value is None or sign * (value - seen) >= -1e-9 for value in ways]
    if found is not None:  # a course may be the same as another one stretched
        assert found.p == pytest.approx(np.mean(as_far), abs=1e-9)


def test_many_ways_are_drawn_and_the_test_stays_exact():
    """Labels drawn by chance: a test at 2.5 % a side refuses in no more than about 5 % of draws."""
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(200):
        labels = rng.permutation(np.arange(24) % 2)
        score, y, episode = one_label_each(labels, rng.normal(size=24), 2)
        found = chance_test([score], [1], y, episode)
        assert not found.counted
        assert found.ways == chance.DRAWN + 1
        refused += found.p <= SIDE
    assert refused / 200 < 0.09


def test_several_classes_are_exchanged_together():
    rng = np.random.default_rng(0)
    labels = np.arange(9) % 3
    episode = np.repeat([f"e{n}" for n in range(9)], 3)
    y = np.repeat(labels, 3)
    proba = np.eye(3)[y] + 0.1 * rng.random((27, 3))
    found = chance_test([proba[:, k] for k in range(3)], [0, 1, 2], y, episode)
    assert found.ways == 1680
    assert found.p == pytest.approx(1 / 1680)


def test_what_cannot_be_asked_is_not_answered(monkeypatch):
    score, y, episode = one_label_each([0, 0, 0], range(3))
    assert chance_test([score], [1], y, episode) is None
    score, y, episode = one_label_each([0, 1, 1], range(3))
    monkeypatch.setattr(chance, "MOST_CELLS", 5)
    assert chance_test([score], [1], y, episode) is None


def test_a_report_asks_only_where_the_interval_leaves_the_question():
    score, y, episode = one_label_each([0, 1] * 4, [0, 5] * 4)
    few = scored_windows(y, episode, score)
    found = evaluate(few, classes=BINARY, operating_point=None, n_resamples=200)
    low, high = found.metrics["auroc"]["ci95"]
    assert low <= 0.5 <= high
    assert found.metrics["auroc"]["chance"]["p"] == pytest.approx(1 / 70, abs=1e-6)
    score, y, episode = one_label_each([0, 1] * 20, [0, 5] * 20)
    many = scored_windows(y, episode, score)
    assert "chance" not in evaluate(many, classes=BINARY, operating_point=None).metrics["auroc"]


def test_two_recordings_a_class_make_no_model_better():
    """Even when every resample agrees on the gap, its interval still knows how few episodes there were."""
    samples = np.ones(300)
    few = intervals.percentile_interval(intervals.Estimate(1.0, samples), 3, bounded=False)
    assert few == (pytest.approx(1 - 2 * (1 - 0.025 ** (1 / 3)), abs=1e-9), 1.0)
    assert few[0] < 0
    many = intervals.percentile_interval(intervals.Estimate(1.0, samples), 40, bounded=False)
    assert many[0] > 0.8
    equal = intervals.percentile_interval(intervals.Estimate(0.0, 0 * samples), 3, bounded=False)
    assert equal == (0.0, 0.0)


# -- rates -------------------------------------------------------------------------------------------------------------


def test_the_exact_interval_is_that_of_the_tables():
    assert exact_interval(0, 20) == (0.0, pytest.approx(0.1684, abs=1e-4))
    assert exact_interval(20, 20) == (pytest.approx(0.8316, abs=1e-4), 1.0)
    assert exact_interval(3, 40) == (pytest.approx(0.0157, abs=1e-4), pytest.approx(0.2039, abs=1e-4))


def test_windows_that_repeat_each_other_count_as_one():
    """Whole episodes that alarm or do not: so many windows carry no more than so many episodes, and less for few."""
    low, high = rate_interval(np.array([15.0] * 4 + [0.0] * 36), np.full(40, 15.0))
    alone = exact_interval(4, 40)
    assert low < alone[0] + 0.01
    assert high > alone[1]
    assert rate_interval(np.array([3.0]), np.array([10.0])) is None
    assert rate_interval(np.zeros(20), np.full(20, 15.0)) == exact_interval(0, 20)
    low, high = rate_interval(np.full(20, 3.0), np.full(20, 15.0))  # no episode differs from another
    assert 0.1 < low < 0.2 < high < 0.3


def test_few_episodes_widen_the_interval_by_the_t_of_one_fewer():
    """Four episodes, reckoned by hand: t of 3 degrees of freedom is 3.182, the normal's is 1.960."""
    squares = np.square((np.array([9.0, 1.0, 2.0, 0.0]) - 3) / 60)  # 12 of 60 windows alarm
    number = 0.2 * 0.8 / (4 / 3 * (squares.sum() + squares.max())) * (1.95996 / 3.18245) ** 2
    found = rate_interval(np.array([9.0, 1.0, 2.0, 0.0]), np.full(4, 15.0))
    assert found == pytest.approx(exact_interval(0.2 * number, number), rel=1e-4)


def test_of_quiet_episodes_one_counts_as_if_a_quarter_of_it_alarmed():
    squares = np.square((np.array([3.0, 1.0, 2.0, 0.0]) - 1.5) / 60)  # the farthest is 1.5 windows off, less than 3.75
    number = 0.1 * 0.9 / (4 / 3 * (squares.sum() + (3.75 / 60) ** 2)) * (1.95996 / 3.18245) ** 2
    found = rate_interval(np.array([3.0, 1.0, 2.0, 0.0]), np.full(4, 15.0))
    assert found == pytest.approx(exact_interval(0.1 * number, number), rel=1e-4)


@pytest.mark.parametrize(("episodes", "truth", "alike"), [(20, 0.05, 0.2), (40, 0.02, 0.2), (40, 0.1, 0.6)])
def test_small_rates_seldom_lie_above_their_interval(episodes, truth, alike):
    """Rates of episodes are drawn from a beta distribution: alarms come in bursts."""
    rng = np.random.default_rng(1)
    trials, above, below = 300, 0, 0
    windows = np.full(episodes, 15.0)
    a, b = truth * (1 / alike - 1), (1 - truth) * (1 / alike - 1)
    for _ in range(trials):
        low, high = rate_interval(rng.binomial(15, rng.beta(a, b, size=episodes)), windows)
        above += high < truth
        below += low > truth
    assert above / trials < 0.07
    assert below / trials < 0.03


# -- resamples ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "reason"),
    [
        (0, "no interval was asked for (0 resamples)"),
        (1, "1 resamples are too few for an interval: 200 are needed"),
        (199, "199 resamples are too few for an interval: 200 are needed"),
        (200, None),
    ],
)
def test_few_resamples_make_no_interval_and_say_so(n, reason):
    score, y, episode = one_label_each([0, 1] * 10, np.arange(20) % 7)
    test = scored_windows(y, episode, score)
    point = operating_point(test, 0.1, classes=BINARY)
    found = evaluate(test, classes=BINARY, operating_point=point, n_resamples=n).metrics["auroc"]
    assert (found["ci95"] is None) is (reason is not None)
    assert found.get("reason") == reason
    assert intervals.why_no_interval(n) == reason


def test_the_manifest_and_the_trainers_agree_on_the_fewest():
    from training.fleet.manifest import value_kinds

    assert value_kinds.N_RESAMPLES_MIN == flags.FEWEST_RESAMPLES


def test_of_drawn_ways_the_one_that_was_seen_is_one():
    y = np.arange(40) % 2
    found = chance_test([y + 0.01 * np.arange(40)], [1], y, np.arange(40))
    assert (found.p, found.ways, found.counted) == (1 / 5000, 5000, False)
