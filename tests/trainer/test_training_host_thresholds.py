"""Thresholds by host: what a reference may do to one, how the rule is chosen, and that no test window comes into it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.rows import Rows
from training.trainer.evaluation.host_levels import (
    FEWEST,
    HostThresholds,
    LeftOut,
    LevelUse,
    Quantiles,
    ReferenceLevel,
    ReferenceScores,
    Scale,
    choose,
    host_thresholds,
)
from training.trainer.evaluation.metrics import Classes, Scored, evaluate, operating_point
from training.trainer.evaluation.thresholds import ChosenOnTestError, by_host, notes_on_hosts

TWO = Classes(("benign", "malicious"), ("benign",))
ODDS, PLAIN = Scale(odds=True), Scale(odds=False)
numbers = st.floats(-12, 12, allow_nan=False).map(lambda value: round(value, 3))


def scored(score, y, host, *, side="c", probability=False):
    """Windows of five an episode."""
    episode = np.array([f"{side}-{name}-{number // 5}" for number, name in enumerate(host.tolist())])
    t_start = np.arange(y.size) * 2.0
    rows = Rows.of(episode=episode, host=host, t_start=t_start, t_end=t_start + 4, label=y)
    if not probability:
        return Scored.build(rows, score=score)
    p = 1 / (1 + np.exp(-score))
    return Scored.build(rows, proba=np.stack((1 - p, p), axis=1), classes=TWO)


def fleet(shifts, *, seed=0, side="c", probability=False):
    """Hosts whose scores lie higher by a shift; malicious windows lie 4 above benign ones, references with these."""
    rng = np.random.default_rng(seed)
    names = list(shifts)
    host, y = np.repeat(names, 80), np.tile(np.repeat([0, 1], 40), len(names))
    own = np.repeat(names, 40)
    score = rng.normal(size=host.size) + 4 * y + np.array([shifts[name] for name in host.tolist()])
    usual = rng.normal(size=own.size) + np.array([shifts[name] for name in own.tolist()])
    reference = 1 / (1 + np.exp(-usual)) if probability else usual
    return scored(score, y, host, side=side, probability=probability), ReferenceScores(reference, own)


def pointed(cal, references=None):
    return operating_point(cal, 0.05, classes=TWO, references=references)


# -- what a reference may do -------------------------------------------------------------------------------------------


@given(calibrated=numbers, margin=numbers, usual=numbers, above=st.floats(0, 9), windows=st.integers(1, 999))
def test_rules_keep_their_words(calibrated, margin, usual, above, windows):
    for scale in (ODDS, PLAIN):
        level = ReferenceLevel(usual, usual + above, windows)
        each = {
            rule: HostThresholds(
                rule=rule,
                calibrated=scale.back(calibrated),
                margin=margin,
                levels={"known": level},
                log_odds=scale.odds,
                quantiles=Quantiles.promising(0.05),
            )
            for rule in LevelUse
        }
        start = {rule: hosts.of("known") for rule, hosts in each.items()}
        assert start[LevelUse.CALIBRATED] == scale.back(calibrated)
        assert start[LevelUse.ONLY_UP] == max(start[LevelUse.CALIBRATED], start[LevelUse.FOLLOWS])
        # Never above level and margin, and never below the reference's own threshold where that is lower.
        assert min(level.high, usual + margin) - 1e-9 <= level.start(margin) <= usual + margin
        for hosts in each.values():
            assert hosts.of("unknown") == scale.back(calibrated)
            assert hosts.each(np.array(["known", "unknown", "known"])).tolist() == [
                hosts.of(name) for name in ("known", "unknown", "known")
            ]


@given(st.integers(0, 99), numbers, st.sampled_from([True, False]))
def test_what_a_threshold_is_depends_on_no_order_and_no_names(seed, shift, probability):
    cal, own = fleet({"a": 0.0, "b": shift / 6, "c": 1.0}, seed=seed, probability=probability)
    found = host_thresholds(cal, own, 0.5, 0.05, classes=TWO)
    order = np.random.default_rng(seed).permutation(own.score.size)
    mixed = host_thresholds(
        cal.take(np.arange(cal.y.size)[::-1]),
        ReferenceScores(own.score[order], own.host[order]),
        0.5,
        0.05,
        classes=TWO,
    )
    assert (mixed.levels, mixed.margin, mixed.rule) == (found.levels, found.margin, found.rule)


def test_where_all_scores_lie_higher_thresholds_do():
    cal, own = fleet({"a": 0.0, "b": 2.0, "c": -1.0})
    point = pointed(cal, own)
    higher = pointed(cal.with_score(cal.score + 3), ReferenceScores(own.score + 3, own.host))
    for name in "abc":
        assert higher.hosts.of(name) == pytest.approx(point.hosts.of(name) + 3, abs=1e-6)


def test_odds_and_back():
    for value in (1e-9, 0.2, 0.5, 0.999, 1 - 1e-9):
        assert ODDS.back(float(ODDS.of(np.array([value]))[0])) == pytest.approx(value, rel=1e-6)
    assert np.isfinite(ODDS.of(np.array([0.0, 1.0]))).all()
    assert (ODDS.back(800.0), ODDS.back(-800.0)) == (1.0, 0.0)


@pytest.mark.parametrize("probability", [True, False])
def test_an_unseen_host_has_the_promised_alarms_by_its_own_reference(probability):
    """A loud host has everything alarm at the calibrated threshold, a quiet one nothing; neither with its reference."""
    cal, own = fleet({"a": 0.0, "b": 0.5, "c": -0.5}, probability=probability)
    for shift, (false, caught) in {4.0: (0.8, 1.0), -4.0: (0.0, 0.1)}.items():
        test, theirs = fleet({"new": shift}, seed=3, side="t", probability=probability)
        both = ReferenceScores(np.concatenate((own.score, theirs.score)), np.concatenate((own.host, theirs.host)))
        point = pointed(cal, both)
        assert point.hosts.rule is LevelUse.FOLLOWS
        found = by_host(test, point, both, TWO)["hosts"]["new"]
        assert found["fpr"] <= 0.1
        assert found["tpr"] >= 0.8
        assert (found["calibrated_fpr"] >= false) if false else (found["calibrated_tpr"] <= caught)
        metrics = evaluate(test, classes=TWO, operating_point=point, n_resamples=0).metrics
        assert metrics["fpr"]["value"] == found["fpr"]
        assert metrics["tpr"]["value"] == found["tpr"]


# -- references that are too short, missing, or of an attack -----------------------------------------------------------


def test_without_references_every_host_has_the_calibrated_threshold():
    cal, own = fleet({"a": 0.0, "b": 2.0})
    point = pointed(cal, ReferenceScores(own.score[:0], own.host[:0]))
    assert point.hosts is None
    assert point.threshold == pointed(cal).threshold
    said = notes_on_hosts(by_host(cal, point, ReferenceScores(own.score[:0], own.host[:0]), TWO))
    assert "No host has a reference recording" in said[0]


def test_a_reference_of_too_few_windows_tells_nothing_and_is_named():
    cal, own = fleet({"a": 0.0, "b": 0.5})
    short = ReferenceScores(np.append(own.score, [9.0] * (FEWEST - 1)), np.append(own.host, ["new"] * (FEWEST - 1)))
    point = pointed(cal, short)
    assert point.hosts.of("new") == point.threshold
    (doubt,) = short.doubts(point.threshold or 0.0)
    assert f"The reference of new has {FEWEST - 1} windows, and a level needs {FEWEST}" in doubt


def test_a_reference_of_an_attack_blinds_the_host_and_is_told():
    cal, own = fleet({"a": 0.0, "b": 0.5, "c": -0.5})
    test, theirs = fleet({"new": 0.0}, seed=3, side="t")
    caught = {}
    for attack in (0.0, 4.0):
        both = ReferenceScores(np.append(own.score, theirs.score + attack), np.append(own.host, theirs.host))
        point = pointed(cal, both)
        caught[attack] = by_host(test, point, both, TWO)
        doubts = both.doubts(point.threshold)
        assert doubts == [] if not attack else "if it was recorded during an attack" in doubts[0]
    assert caught[0.0]["all"]["tpr"] > 0.9
    assert caught[4.0]["all"]["tpr"] < 0.2
    said = " ".join(notes_on_hosts(caught[4.0]))
    assert "The reference of new would raise alarms in" in said
    rates = caught[4.0]["all"]
    assert f"{100 * rates['calibrated_tpr']:.1f} % caught instead of {100 * rates['tpr']:.1f} %" in said


# -- the choice --------------------------------------------------------------------------------------------------------


def left(up, follows, host="a"):
    rates = {LevelUse.CALIBRATED: up, LevelUse.ONLY_UP: up, LevelUse.FOLLOWS: follows}
    return LeftOut(host, 40, 40, rates, rates)


def test_thresholds_follow_where_that_costs_little_on_hosts_left_out():
    assert choose([left(0.01, 0.12)], 0.05)[0] is LevelUse.FOLLOWS  # as far as hosts left out can keep a promise
    assert choose([left(0.01, 0.13)], 0.05)[0] is LevelUse.ONLY_UP
    assert choose([left(0.20, 0.22)], 0.05)[0] is LevelUse.FOLLOWS  # hardly above
    assert choose([left(0.01, 0.2), left(0.01, 0.01, "b"), left(0.01, 0.0, "c")], 0.05)[0] is LevelUse.FOLLOWS
    rule, why = choose([], 0.05)
    assert rule is LevelUse.ONLY_UP
    assert "cannot be left out" in why


def test_references_that_say_nothing_of_their_hosts_may_only_raise():
    cal, own = fleet({"a": 0.0, "b": 0.0, "c": 0.0})
    wrong = {"a": -3.0, "b": 0.0, "c": 3.0}
    lies = ReferenceScores(own.score + np.array([wrong[name] for name in own.host.tolist()]), own.host)
    honest, misled = (host_thresholds(cal, each, 2.0, 0.05, classes=TWO) for each in (own, lies))
    assert (honest.rule, misled.rule) == (LevelUse.FOLLOWS, LevelUse.ONLY_UP)
    assert [one.host for one in misled.left_out] == ["a", "b", "c"]
    assert misled.left_out[0].fpr[LevelUse.FOLLOWS] > misled.left_out[0].fpr[LevelUse.CALIBRATED]


@pytest.mark.parametrize(("hosts", "least"), [(1, "50 %"), (3, "25 %"), (18, "5.3 %"), (19, None)])
def test_the_next_host_can_be_promised_no_less_than_hosts_allow(hosts, least):
    cal, _ = fleet({f"h{number}": 0.0 for number in range(hosts)})
    point = pointed(cal)
    assert point.to_dict()["least_elsewhere"] == round(1 / (hosts + 1), 6)
    said = " ".join(point.notes_elsewhere())
    assert (f"nothing below {least} false alarms" in said) == (least is not None)
    assert ("5 % would need 19 hosts" in said) == (least is not None)
    nameless = replace(cal, rows=replace(cal.rows, host=np.full(cal.y.size, "unknown")))
    assert pointed(nameless).least_elsewhere is None


def test_hosts_that_calibrated_without_references_leave_the_plain_quantile():
    cal, _ = fleet({"a": 0.0, "b": 0.5})
    _, theirs = fleet({"new": 6.0}, seed=3)
    found = host_thresholds(cal, theirs, 2.0, 0.05, classes=TWO)
    assert (found.rule, found.margin) == (LevelUse.ONLY_UP, 0.0)
    assert found.of("new") > 2.0


def test_a_level_that_windows_of_the_test_told_is_refused():
    cal, own = fleet({"a": 0.0, "b": 0.5})
    test, _ = fleet({"new": 3.0}, seed=4, side="t")
    marks = test.rows.marks
    assert np.unique(marks).size == test.y.size
    usual = ReferenceScores(np.append(own.score, test.score[:9]), np.append(own.host, test.rows.host[:9]))
    rest = np.char.add("r-", marks[9:18])  # other windows, recorded for that purpose
    point = pointed(cal, replace(usual, marks=rest))
    point.refuse_test(test.rows)
    planted = pointed(cal, replace(usual, marks=np.append(rest, marks[3:5])))
    planted.refuse_test(test.rows.take(np.arange(9, test.y.size)))  # of the same recordings, as a reference may be
    with pytest.raises(ChosenOnTestError, match="the level of new was set by windows of recording t-new-0 that test"):
        planted.refuse_test(test.rows)


def test_a_checkpoint_keeps_what_scoring_needs():
    cal, own = fleet({"a": 0.0, "b": 0.5, "c": -0.5}, probability=True)
    found = pointed(cal, own).hosts
    again = HostThresholds.recorded(found.to_dict(), found.calibrated)
    assert again == found
    theirs = again.elsewhere(ReferenceScores(np.full(40, 0.9), np.full(40, "new")))
    assert theirs.of("a") == found.of("a")
    assert theirs.of("new") > found.of("a")


def test_a_checkpoint_of_before_measures_hosts_by_the_quantiles_of_its_margin():
    cal, own = fleet({"a": 0.0, "b": 0.5})
    found = pointed(cal, own).hosts
    old = {**found.to_dict(), "quantiles": [0.75, 0.98]}
    new = ReferenceScores(np.arange(10.0), np.full(10, "new"))
    level = HostThresholds.recorded(old, found.calibrated).elsewhere(new).levels["new"]
    assert (level.usual, level.high) == (6.75, 8.82)
    level = HostThresholds.recorded(found.to_dict(), found.calibrated).elsewhere(new).levels["new"]
    assert (level.usual, level.high) == (7.65, 8.55)


def test_a_long_reference_sets_its_own_threshold_for_the_promise():
    """Whatever margin the other hosts need."""
    cal, own = fleet({"a": 0.0, "b": 0.5, "c": -0.5})
    rng = np.random.default_rng(5)
    usual, more = rng.normal(size=(2, 6_000))
    both = ReferenceScores(np.append(own.score, usual), np.append(own.host, np.full(6_000, "new")))
    found = pointed(cal, both).hosts
    far = replace(found, margin=9.0).levels["new"].start(9.0)
    assert 0.03 < float((more > far).mean()) < 0.06


def test_elsewhere_a_host_has_the_level_of_its_reference_there():
    """It may be recorded anew after a change: the one that the model was trained with is of a host that is no more."""
    cal, own = fleet({"a": 0.0, "b": 0.5, "c": -0.5})
    found = pointed(cal, own).hosts
    new = ReferenceScores(own.score[own.host == "a"] + 3, np.full(40, "a"))
    there = found.elsewhere(new)
    assert there.levels == {**found.levels, **new.levels(found.scale, found.quantiles)}
    assert there.of("a") == pytest.approx(found.of("a") + 3, abs=1e-6)
    assert there.of("b") == found.of("b")
