"""No verdict is better than its interval allows, or says chance of what an exact test refuses."""

import re
from copy import deepcopy
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import test_training_report as shared
from hypothesis import given, settings
from hypothesis import strategies as st
from places import ROOT
from sklearn.metrics import roc_auc_score
from test_training_report import quiet_report
from trainer_builders import BINARY
from trainer_builders import scored as scored_windows

from training.data.rows import Rows
from training.data.split import SplitError, make_split
from training.trainer.evaluation.facts import LOUD
from training.trainer.evaluation.metrics import Classes, Scored, evaluate, operating_point
from training.trainer.evaluation.report import build_report
from training.trainer.evaluation.scored import Pace, pace
from training.trainer.evaluation.sides import order_notes, place_notes, sides_of
from training.trainer.evaluation.verdict import AS_GOOD, CLEARLY_BELOW, LITTLE, SUBJECTS, TOO_GOOD, WHY, Reliance
from training.trainer.evaluation.verdict import verdict as judge

PAGE = ROOT / "docs" / "evaluation.md"
ORDER = {"good": 0, "caution": 1, "poor": 2}


def verdict(made):
    """Every sentence, the four lines first."""
    return " ".join([*judge(made).lines, judge(made).more])


def level_of(made):
    return judge(made).level


def test_the_page_names_each_subject_that_lowers_the_level():
    shown = PAGE.read_text(encoding="utf-8").partition("<!-- rules -->\n")[2].partition("<!-- end of rules -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in shown.strip().splitlines()[2:]]
    lowers = {name: set(filled(row)) for row in rows for name in row[0].split(", ")}
    assert lowers == {
        about: levels
        for about, own in SUBJECTS.items()
        if (levels := {rule.level for rule in own.values()} - {Reliance.GOOD})
    }
    assert WHY.keys() == {(level, name) for name, levels in lowers.items() for level in levels}
    figures = [f"{100 * LITTLE:g} %", f"{LOUD:g} times", *(f"{one:g}" for one in (AS_GOOD, CLEARLY_BELOW, TOO_GOOD))]
    assert [one for one in figures if one not in shown] == []


def filled(row):
    return [level for level, cell in zip((Reliance.CAUTION, Reliance.POOR), row[1:], strict=True) if cell]


# -- of drawn figures --------------------------------------------------------------------------------------------------

shares = st.floats(0.0, 1.0).map(lambda x: round(x, 3))


@st.composite
def metrics(draw, *, missing=True):
    """A figure with an interval around it, with none, or without a value."""
    value = draw(shares)
    kind = draw(st.sampled_from(["ci", "ci", "ci", "none", *(["null"] if missing else [])]))
    if kind == "null":
        return {"value": None, "ci95": None, "reason": "a reason"}
    if kind == "none":
        return {"value": value, "ci95": None, "reason": "1 episode carries it"}
    reach = draw(st.sampled_from([0.01, 0.05, 0.2, 0.6]))
    low, high = value - draw(shares) * reach, value + draw(shares) * reach
    return {"value": value, "ci95": [round(max(0.0, low), 6), round(min(1.0, high), 6)]}


names = st.lists(st.sampled_from(["attic", "cellar", "h7"]), unique=True, max_size=2)


@st.composite
def reports(draw):
    made = quiet_report()
    test = made["metrics"]["test"]
    for name in ("auroc", "tpr", "fpr"):
        test[name] = draw(metrics())
    low, high = test["auroc"]["ci95"] or (0.0, 1.0)
    if low <= 0.5 <= high:
        p = draw(st.one_of(st.none(), st.sampled_from([0.001, 0.025, 0.026, 0.3])))
        test["auroc"]["chance"] = None if p is None else {"p": p, "ways": 252, "counted": True}
    if draw(st.booleans()):
        test["alerts_per_host_day"] = {"value": None, "ci95": None, "reason": "no clock"}
    made["split"] |= {"unseen_hosts": draw(names), "seen_hosts": draw(names.map(sorted))}
    made["operating_point"]["target_fpr"] = draw(st.sampled_from([0.01, 0.05, 0.1]))
    return made


def bounds(metric):
    return metric["ci95"] or (0.0, 1.0)


@settings(max_examples=150, deadline=None)
@given(made=reports())
def test_no_verdict_is_better_than_its_intervals_allow(made):
    said, level = verdict(made), level_of(made)
    test, target = made["metrics"]["test"], made["operating_point"]["target_fpr"]
    if level == "good":
        assert bounds(test["auroc"])[0] > 0.5
        for name, holds in (("tpr", lambda m: m[0] >= 0.3), ("fpr", lambda m: m[1] < 2 * target)):
            assert test[name]["value"] is None or holds(bounds(test[name])), name
    if "It keeps its promise" in said:
        assert test["fpr"]["ci95"][1] < 2 * target
        assert test["fpr"]["ci95"][0] <= target
    if "times the alarms it promised: do not" in said:
        assert test["fpr"]["ci95"][0] > target
    if "Worse than chance" in said:
        found = test["auroc"].get("chance")
        assert bounds(test["auroc"])[1] < 0.5 or found["p"] <= 0.025


@settings(max_examples=150, deadline=None)
@given(made=reports())
def test_chance_is_said_only_of_what_the_exact_test_lets_pass(made):
    said = verdict(made)
    found = made["metrics"]["test"]["auroc"].get("chance")
    if "Not distinguishable from chance" in said:
        assert found is None or found["p"] > 0.025
        low, high = made["metrics"]["test"]["auroc"]["ci95"]
        assert low <= 0.5 <= high


@settings(max_examples=150, deadline=None)
@given(made=reports())
def test_only_machines_of_the_split_are_named_and_only_numbers_with_a_unit(made):
    said = verdict(made)
    unseen, seen = made["split"]["unseen_hosts"], made["split"]["seen_hosts"]
    assert ("not seen" not in said) or unseen
    assert ("trained on" not in said) or seen
    if "on machines it has not seen" in said:
        assert not seen
    assert len(unseen) > 1 or not re.search("(machines|others) it has not seen", said)
    assert len(seen) > 1 or "machines it was trained on" not in said
    if made["metrics"]["test"]["alerts_per_host_day"]["value"] is None:
        assert not re.search(r"\d alarms a day", said)
    assert "None" not in said
    assert "nan" not in said.lower().split()


@settings(max_examples=150, deadline=None)
@given(made=reports(), name=st.sampled_from(["auroc", "tpr", "fpr"]), wider=shares)
def test_knowing_less_never_makes_it_better(made, name, wider):
    """With a wider interval, or with none, a good verdict may become careful; a careful one never good."""
    before = ORDER[level_of(made)]
    test = made["metrics"]["test"]
    ci95 = test[name]["ci95"]
    if ci95 is None or test[name]["value"] is None:
        return
    test[name]["ci95"] = [max(0.0, ci95[0] - wider), min(1.0, ci95[1] + wider)]
    if before == ORDER["caution"]:
        assert ORDER[level_of(made)] >= before
    test[name]["ci95"] = None
    assert level_of(made) != "good"


# -- of drawn data -----------------------------------------------------------------------------------------------------


@st.composite
def small_tests(draw):
    """A handful of recordings of one class each on up to three hosts, scored well, badly or not at all."""
    n = draw(st.integers(3, 4))
    labels = [0] * n + [1] * draw(st.integers(3, 4))
    strength = draw(st.sampled_from([0.0, 0.7, 2.0, 8.0]))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    windows = draw(st.integers(1, 3))
    score = rng.normal(size=len(labels)) + strength * np.array(labels)
    y, episode = np.repeat(labels, windows), np.repeat(np.arange(len(labels)), windows)
    return y, np.repeat(score, windows) + 0.01 * rng.normal(size=y.size), episode


@settings(max_examples=25, deadline=None)
@given(drawn=small_tests())
def test_small_tests_are_called_chance_only_where_all_permutations_agree(drawn):
    y, score, episode = drawn
    test = scored_windows(y, episode, score)
    found = evaluate(test, classes=BINARY, operating_point=None, n_resamples=200)
    made = quiet_report()
    made["metrics"]["test"]["auroc"] = found.metrics["auroc"]
    said = verdict(made)
    if "Not distinguishable from chance" not in said:
        return
    _, first = np.unique(episode, return_index=True)
    seen = roc_auc_score(y, score)
    sign = 1 if seen >= 0.5 else -1
    ways = sorted(set(permutations(y[first].tolist())))
    values = [roc_auc_score(np.array(way)[episode], score) for way in ways]
    assert np.mean([sign * (value - seen) >= -1e-9 for value in values]) > 0.025


@settings(max_examples=25, deadline=None)
@given(recipe=st.sampled_from(["host", "time", "sample"]), ahead=st.sampled_from([0.0, 1e6]), seed=st.integers(0, 50))
def test_where_a_test_stands_follows_from_its_rows(recipe, ahead, seed):
    """The recipe's name does not matter: the hosts of the test that also trained, and those that did not."""
    rng = np.random.default_rng(seed)
    episode = np.repeat(np.arange(24), 4)
    host = np.array(["a", "b", "c"])[episode % 3]
    y = (np.arange(24) // 3 % 2)[episode]
    t = 100.0 * episode + np.tile(np.arange(4), 24) + ahead * (host == "c")
    chosen = {"train_hosts": ["a", "b"]} if recipe == "host" else {}
    try:
        windows = Rows.of(episode=episode, host=host, t_start=t, t_end=t + 1, label=y)
        split = make_split(windows, recipe=recipe, seed=seed, **chosen)
    except SplitError:
        return
    sides = sides_of(split, windows, BINARY)
    before = set(host[np.r_[split.train, split.val, split.cal]].tolist())
    test = set(host[split.test].tolist())
    assert set(sides.seen) == test & before
    assert set(sides.unseen) == test - before
    if recipe == "time" and sides.unseen:
        assert any("clocks are ahead" in note for note in sides.notes())

    def scored(rows):
        return Scored.build(windows.take(rows), score=y[rows] + rng.normal(size=rows.size))

    point = operating_point(scored(split.cal), 0.25, classes=BINARY)
    evaluation = evaluate(scored(split.test), classes=BINARY, operating_point=point, n_resamples=200)
    run = {"quarantined": [], "baselines": {}, "choice": None, "incidents": None, "weighed_by": None, "notes": []}
    found = {"sides": sides, "classes": BINARY, "evaluation": evaluation, "operating_point": point}
    report = build_report(split=split, **run, **found)
    said = report["verdict"] + report["verdict_more"]
    assert ("not seen" not in said) or sides.unseen
    assert ("trained on" not in said) or sides.seen


def eight(y, host):
    """Eight recordings of a window each: two train, two stop, one calibrates and three test."""
    windows = Rows.of(episode=[f"e{n}" for n in range(8)], host=list(host), t_start=np.arange(8.0), label=y)
    rows = {"train": [0, 1], "val": [2, 3], "cal": [4], "test": [5, 6, 7]}
    made = make_split(windows, recipe="sample", supervised=False)
    return windows, replace(made, **{side: np.array(number) for side, number in rows.items()})


def test_a_host_that_only_calibrated_is_no_new_one_to_the_model():
    windows, split = eight([0, 1] * 4, "aabbccdd")
    sides = sides_of(split, windows, BINARY)
    assert (sides.seen, sides.unseen) == (["c"], ["d"])
    assert sides.notes() == ["The cal side has no window of malicious."]
    assert sides.never_trained == []


def test_a_class_that_only_calibrated_never_trained():
    many = Classes(("benign", "dos", "worm"), ("benign",))
    windows, split = eight([0, 1, 0, 1, 2, 0, 1, 2], "a" * 8)
    assert sides_of(split, windows, many).never_trained == ["worm"]
    stopped = replace(split, val=np.array([2, 4]), cal=np.array([3]))
    assert sides_of(stopped, windows, many).never_trained == []


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ("000111", "come after benign ones: how late a window comes has an AUROC of 1.00 alone"),
        ("111000", "come before benign ones: how late a window comes has an AUROC of 1.00 alone"),
        ("001011", ""),
        ("010010", ""),
        ("000000", ""),
    ],
)
def test_an_attack_that_always_comes_last_is_noted(kinds, said):
    """A channel that only drifted caught 77 % where each recording ended with the attack, and the report was silent."""
    y = np.tile([int(kind) for kind in kinds], 8)
    episode = np.repeat([f"e{number}" for number in range(8)], 6)
    t_start = np.arange(48.0)
    turn = np.random.default_rng(0).permutation(48)
    rows = Rows.of(episode=episode, host=["h"] * 48, t_start=t_start, label=y)
    notes = place_notes(rows.take(turn), BINARY)
    assert (said in notes[0]) if said else notes == []


def test_recordings_of_one_class_each_have_no_telling_place():
    y = np.repeat(np.arange(8) % 2, 6)
    episode = np.repeat([f"e{number}" for number in range(8)], 6)
    rows = Rows.of(episode=episode, host=["h"] * 48, t_start=np.arange(48.0), label=y)
    assert place_notes(rows, BINARY) == []
    without = Classes(("benign", "malicious"), ())
    assert place_notes(replace(rows, label=np.tile([0, 0, 0, 1, 1, 1], 8)), without) == []


# -- sentences ---------------------------------------------------------------------------------------------------------


def test_a_model_that_keeps_its_promise_is_called_good():
    made = quiet_report()
    rival = (
        "It does better than a logistic regression (AUROC 0.900 against 0.800), but the test is too small to be sure."
    )
    assert judge(made) == (
        [
            "Catches 81 % of malicious-like windows and raises an alarm in 5.2 % of benign ones.",
            "On a host as busy as those tested it raises about 2,200 alarms a day.",
            rival,
        ],
        "It keeps its promise of 5 % false alarms on lab-c (a machine it has not seen).",
        "good",
        "",
    )


def test_what_is_poor_is_in_the_lines_and_the_worst_finding_is_the_reason():
    loud = called()
    loud["metrics"]["test"]["fpr"] = {"value": 0.2, "ci95": [0.12, 0.4]}
    found = judge(loud)
    assert "do not rely on it there" in found.lines[1]
    assert "calls falsely about 3 times a day" in found.more
    assert found[2:] == ("poor", "it raises far more false alarms than promised")
    loud["metrics"]["test"]["fpr"] = {"value": 0.05, "ci95": [0.01, 0.3]}
    assert "calls falsely about 3 times a day" in judge(loud).lines[1]
    assert judge(loud)[2:] == ("caution", "it may raise more false alarms than promised")


def test_the_scenario_that_raises_the_false_alarms_is_named():
    made = quiet_report()
    calm = {"name": "idle", "kind": "benign", "rate": {"value": 0.0, "ci95": [0.0, 0.04]}}
    loud = {"name": "cloud_sync", "kind": "benign", "rate": {"value": 0.4, "ci95": [0.2, 0.6]}}
    caught = {"name": "sweep", "kind": "malicious-like", "rate": {"value": 0.9, "ci95": [0.7, 1.0]}}
    said = "Its false alarms come from 'cloud_sync' first: 40 % of the windows there."
    made["scenarios"] = [loud, calm, caught]
    assert said in verdict(made)
    made["scenarios"] = [loud, caught]  # alone it is all there is
    assert said not in verdict(made)
    loud["rate"]["ci95"] = [0.01, 0.6]
    made["scenarios"] = [loud, calm]
    assert said not in verdict(made)


def test_chance_ends_the_discussion():
    made = quiet_report(auroc=(0.53, [0.44, 0.62]))
    assert verdict(made).startswith(
        "Not distinguishable from chance here (AUROC 0.53, 95 % interval 0.44 to 0.62): do not use it."
    )
    assert "Catches" not in verdict(made)
    assert level_of(made) == "poor"
    worse = quiet_report(auroc=(0.3, [0.2, 0.4]))
    assert verdict(worse).startswith("Worse than chance (AUROC 0.30)")


def rival(made, name, kind, auroc, gap):
    """The report with one plain method put beside the model."""
    metric = {"value": auroc, "ci95": [auroc - 0.04, auroc + 0.02]}
    made["baselines"][name] = {"kind": kind, "auroc": metric, "gap": {"value": 0.0, "ci95": gap}}
    return made


@pytest.mark.parametrize(
    ("auroc", "gap", "words", "level"),
    [
        (0.95, [0.01, 0.09], "A logistic regression does better ({}): prefer it.", "caution"),
        (0.95, [-0.01, 0.09], "does better ({}), but the test is too small", "caution"),
        (0.902, [-0.01, 0.01], "does as well ({}).", "good"),
        (0.8, [-0.12, -0.02], "It does better than a logistic regression ({}).", "good"),
        (0.8, [-0.12, 0.02], "({}), but the test is too small to be sure.", "good"),
    ],
)
def test_a_model_is_held_against_the_best_plain_one(auroc, gap, words, level):
    made = rival(quiet_report(), "logistic_regression", "supervised", auroc, gap)
    first, other = sorted((auroc, 0.9), reverse=True)  # the figure of what the sentence is about comes first
    assert words.format(f"AUROC {first:.3f} against {other:.3f}") in verdict(made)
    assert level_of(made) == level
    rival(made, "lof", "anomaly", 0.99, [0.02, 0.2])
    assert "local outlier" not in verdict(made)


def test_an_anomaly_score_is_held_against_its_own_kind():
    made = quiet_report(ece=(None, None))
    rival(made, "logistic_regression", "supervised", 0.98, [0.01, 0.2])
    rival(made, "lof", "anomaly", 0.93, [0.01, 0.09])
    assert "The local outlier factor does better" in verdict(made)
    rival(made, "lof", "anomaly", 0.915, [0.01, 0.09])
    assert "does better" not in verdict(made)


def test_a_rival_at_chance_is_no_rival():
    made = quiet_report(auroc=(0.51, [0.40, 0.62]))
    made["baselines"]["logistic_regression"]["auroc"] = {"value": 0.56, "ci95": [0.45, 0.66]}
    assert "logistic" not in verdict(made)


def test_what_is_missing_is_said():
    made = quiet_report(tpr=(None, None), fpr=(None, None))
    made["operating_point"] |= {"threshold": None, "reason": "3 benign calibration windows; …"}
    assert "It has no alarm threshold: 3 benign calibration windows; …." in verdict(made)
    blind = quiet_report(auroc=(None, None))
    blind["metrics"]["test"]["auroc"]["reason"] = "the test windows are all benign"
    assert "is unknown: the test windows are all benign." in verdict(blind)
    warned = quiet_report()
    warned["operating_point"]["warning"] = "calibrated on 4 episodes"
    warned["quarantined"] = {"n": 2, "episodes": []}
    assert "The threshold is uncertain: calibrated on 4 episodes." in verdict(warned)
    assert "2 episodes failed validation and were left out." in verdict(warned)


def test_hosts_that_differ_are_named():
    made = quiet_report()
    other = deepcopy(made["per_host"]["lab-c"])
    made["per_host"]["pi"] = other | {"fpr": {"value": 0.2, "ci95": [0.1, 0.3]}, "one_class": None}
    made["per_host"]["lab-c"]["fpr"] = {"value": 0.01, "ci95": [0.0, 0.03]}
    assert "Worst on pi: 4.0 times the promised alarms." in verdict(made)
    made["per_host"]["barn"] = other | {"fpr": {"value": 0.1, "ci95": [0.06, 0.2]}}
    assert "Worst on pi: 4.0 times the promised alarms." in verdict(made)
    del made["per_host"]["barn"]
    made["per_host"]["pi"]["one_class"] = "benign"
    assert "pi recorded only benign windows, and so cannot" in verdict(made)
    made["per_host"]["desk"] = made["per_host"]["pi"]
    assert "desk and pi recorded only benign windows" in verdict(made)
    made["per_host"]["lab-c"]["one_class"] = "benign"
    assert "recorded only" not in verdict(made)


@pytest.mark.parametrize(
    ("name", "value", "ci95", "words", "level"),
    [
        ("auroc", 0.997, [0.99, 1.0], "An AUROC of 0.997 smells of leakage", "caution"),
        ("tpr", 0.12, [0.05, 0.2], "Catches only 12 % of malicious-like windows", "caution"),
        ("alerts_per_host_day", 0.0, [0.0, 20.0], "", "good"),
    ],
)
def test_one_figure_decides_a_sentence(name, value, ci95, words, level):
    made = quiet_report(**{name: (value, ci95)})
    assert words in verdict(made)
    assert level_of(made) == level
    assert ("a day" in verdict(made)) == bool(words), "no alarm at all is not counted by the day"


def test_many_classes_are_named():
    made = shared.report(classes=Classes(("benign", "grind", "sweep"), ("benign",)))
    assert re.match(r"Names the right one of 3 classes in \d\d % of windows", made["verdict_more"])


@pytest.mark.parametrize(
    ("low", "ways", "words"),
    [
        (0.48, 252, "Better than chance (AUROC 1.00; by chance 1 test in 252 is as good), but on too few episodes"),
        (0.29, 20, "Too few episodes to tell any model from chance (AUROC 1.00"),  # which is not blamed
    ],
)
def test_a_perfect_model_on_few_episodes_is_not_called_chance(low, ways, words):
    made = quiet_report(auroc=(1.0, [low, 1.0]))
    made["metrics"]["test"]["auroc"]["chance"] = {"p": 1 / ways, "ways": ways, "counted": True}
    assert verdict(made).startswith(words)
    assert level_of(made) == "caution"


@pytest.mark.parametrize(
    ("fpr", "words", "level"),
    [
        ((0.129, [0.115, 0.143]), "somewhat more false alarms than promised: 13 % (12 to 14 %)", "caution"),
        ((0.0, None), "is unknown: too few benign episodes", "caution"),
        ((0.0, [0.0, 0.3]), "Too few benign episodes to say whether it keeps its promise", "caution"),
        ((0.05, [0.02, 0.15]), "It keeps its promise of 10 % false alarms on", "good"),
        ((0.2, [0.02, 0.4]), "seems to raise 2.0 times", "caution"),
        ((0.2, [0.12, 0.4]), "raises 2.0 times the alarms it promised: do not rely", "poor"),
        # The edges, to the digit: below twice the promise it is kept, from 1.5 times on it is broken.
        ((0.05, [0.02, 0.1999]), "It keeps its promise of 10 % false alarms on", "good"),
        ((0.05, [0.02, 0.2]), "Too few benign episodes to say whether it keeps", "caution"),
        ((0.15, [0.12, 0.4]), "raises 1.5 times the alarms it promised: do not rely", "poor"),
        ((0.1499, [0.12, 0.4]), "somewhat more false alarms than promised", "caution"),
        ((0.15, [0.1, 0.4]), "seems to raise 1.5 times", "caution"),
    ],
)
def test_a_promise_is_judged_by_its_interval(fpr, words, level):
    made = quiet_report(fpr=fpr)
    made["operating_point"]["target_fpr"] = 0.1
    assert words in verdict(made)
    assert level_of(made) == level


def test_the_owners_words_stand_beside_ours():
    made = quiet_report()
    made["classes"]["words"] = Classes(("attack", "normal"), ("normal",)).words()
    assert verdict(made).startswith(
        "Catches 81 % of malicious-like (here: attack) windows and raises an alarm in 5.2 % of "
        "benign (here: normal) ones."
    )


def test_a_class_that_never_trained_is_named_and_does_not_decide():
    made = quiet_report(auroc=(0.49, [0.4, 0.58]))
    made["metrics"]["test"]["auroc_trained"] = {"value": 0.93, "ci95": [0.88, 0.97]}
    made["split"]["never_trained"] = ["miner"]
    assert "chance" not in verdict(made)
    assert "No window of 'miner' trained: it cannot know what it never saw" in verdict(made)
    assert level_of(made) == "caution"


def test_without_a_benign_class_nothing_is_said_of_alarms():
    names = Classes(("run", "walk"), ())
    made = shared.report(classes=names)
    assert re.match(r"Names the right one of 2 classes in \d\d", made["verdict"])
    host = made["per_host"]["lab-c"]
    made["per_host"]["pi"] = host | {"one_class": "walk"}
    for word in ("alarm", "catch", "benign", "malicious"):
        assert word not in verdict(made).lower()


def test_a_host_with_benign_windows_of_several_classes_is_still_benign_alone():
    made = quiet_report()
    host = made["per_host"]["lab-c"]
    made["per_host"]["pi"] = host | {"one_class": None, "benign": 30, "malicious": 0}
    assert "pi recorded only benign windows, and so cannot show both" in verdict(made)


@pytest.mark.parametrize(
    ("caught", "said"),
    [
        ((0.03, [0.0, 0.2]), True),
        ((0.03, [0.0, 0.8]), False),  # the test is too small to be sure
        ((0.6, [0.4, 0.7]), False),  # less, but not that much
        ((0.03, None), False),
        ((None, None), False),
    ],
)
def test_a_host_on_which_attacks_pass_unseen_is_named(caught, said):
    """Everything caught on one host and nothing on the other was **catches 51 %*, without a word on hosts."""
    made = quiet_report(tpr=(0.81, [0.6, 0.9]))
    host = made["per_host"]["lab-c"]
    made["per_host"]["lab-c"] = host | {"tpr": {"value": 0.99, "ci95": [0.75, 1.0]}}
    made["per_host"]["pi"] = host | {"tpr": {"value": caught[0], "ci95": caught[1]}}
    sentence = "Least on pi: it catches 3 % of the malicious-like windows there."
    assert (sentence in verdict(made)) == said
    assert not said or level_of(made) == "caution"


def test_without_a_clock_there_is_no_number_a_day():
    made = quiet_report()
    made["metrics"]["test"]["alerts_per_host_day"] = {"value": None, "ci95": None, "reason": "the data do not say"}
    assert "How many alarms a day that is, is unknown: the data do not say." in verdict(made)
    nameless = quiet_report()
    nameless["split"] |= {"unseen_hosts": [], "seen_hosts": ["unknown"]}
    assert "false alarms on this test." in verdict(nameless)


def called(caught=(0.8, [0.6, 0.9]), false=(3.0, [0.5, 9.0])):
    made = quiet_report()
    made["incidents"] = {
        "caught": {"value": caught[0], "ci95": caught[1]},
        "delay_s": {"value": 6.0, "ci95": [4.0, 8.0]},
        "false_per_host_day": {"value": false[0], "ci95": false[1], "benign_hours": 30.0, "smallest_rate": 2.95},
    }
    return made


@pytest.mark.parametrize(
    ("caught", "words", "level"),
    [
        (
            (0.8, [0.6, 0.9]),
            "Calls a person in 80 % of malicious-like stretches, 6 s after they begin (median).",
            "good",
        ),
        ((0.8, [0.2, 0.9]), "Calls a person in 80 % (95 % interval 20 to 90 %) of malicious-like stretches", "caution"),
        ((0.2, [0.1, 0.4]), "Calls a person in only 20 % of malicious-like stretches", "caution"),
        ((0.8, None), "on too few recordings to say how certain that is.", "caution"),
    ],
)
def test_how_many_attacks_call_a_person_is_said_first(caught, words, level):
    said = verdict(called(caught=caught))
    assert words in said
    assert said.index("Calls a person") < said.index("Catches 81 % of malicious-like windows")
    assert level_of(called(caught=caught)) == level


@pytest.mark.parametrize(
    ("false", "words", "level"),
    [
        (
            (3.0, [0.5, 9.0]),
            "calls falsely about 3 times a day (0.5 to 9).",
            "good",
        ),
        ((340.0, [100.0, 800.0]), "about 340 times a day (100 to 800): too often to look.", "caution"),
        ((3.0, None), "On a host as busy as those tested it raises about 2,200 alarms a day.", "good"),
    ],
)
def test_false_calls_are_those_of_a_host_as_busy_as_the_test(false, words, level):
    said = verdict(called(false=false))
    assert words in said
    assert ("30 h of benign data cannot show fewer than 3 false calls a day." in said) is (false[1] is not None)
    assert level_of(called(false=false)) == level


# -- pace --------------------------------------------------------------------------------------------------------------


def windows(starts, streams, *, length=8.0, host="h"):
    n = len(starts)
    starts = np.asarray(starts, dtype=float)
    columns = {"episode": streams, "recording": ["e"] * n, "host": [host] * n, "label": [0] * n}
    return Scored.build(Rows.of(**columns, t_start=starts, t_end=starts + length), score=[0.0] * n)


def test_recordings_side_by_side_all_decide():
    clock = 1.7e9 + np.arange(30)
    one = windows(clock, ["a"] * 30)
    three = windows(np.tile(clock, 3), np.repeat(["a", "b", "c"], 30))
    assert pace(one) == Pace(1.0, "host")
    assert pace(windows(np.tile(clock + 0.25, 2) + np.repeat([0, 0.5], 30), np.repeat(["a", "b"], 30))).every_s < 0.52
    assert pace(three).of == "host"
    assert pace(three).every_s == pytest.approx(1 / 3)


def test_a_clock_that_begins_anew_tells_the_pace_of_one_recording():
    three = windows(np.tile(np.arange(30.0), 3), np.repeat(["a", "b", "c"], 30))
    assert pace(three) == Pace(1.0, "recording")
    after = windows(np.arange(90.0), np.repeat(["a", "b", "c"], 30))
    assert pace(after) == Pace(1.0, "host")


def test_windows_without_recordings_belong_together_by_host():
    overlapping = windows(np.arange(60.0), [f"window-{n}" for n in range(60)])
    assert pace(overlapping) == Pace(1.0, "host")
    apart = windows(1000.0 * np.arange(60), [f"window-{n}" for n in range(60)])
    assert pace(apart) == Pace(8.0, "host")


def test_no_times_no_pace():
    assert pace(windows([np.nan] * 5, ["a"] * 5)) is None
    unknown = windows([0.0], ["a"], length=np.nan)
    assert pace(unknown) is None
    assert pace(windows(np.arange(9.0), ["a"] * 9, length=np.nan)) == Pace(1.0, "host")


@pytest.mark.parametrize("reason", ["no interval was asked for (0 resamples)", None])
def test_few_episodes_are_not_blamed_for_an_interval_that_nobody_asked_for(reason):
    made = quiet_report()
    made["metrics"]["test"]["auroc"] = {
        "value": 0.9,
        "ci95": None if reason else [0.4, 1.0],
        "chance": {"counted": False, "p": 0.001, "ways": 5000},
    } | ({"reason": reason} if reason else {})
    said = verdict(made)
    assert ("as good), but no interval was asked for (0 resamples)." in said) is (reason is not None)
    assert ("on too few episodes to say by how much" in said) is (reason is None)


def test_recordings_of_attacks_made_after_all_quiet_ones_are_noted():
    episode = np.repeat([f"e{number:02}" for number in range(16)], 3)
    host = np.repeat(["a", "b"], 24)
    t_start = 1000.0 * np.repeat(np.tile(np.arange(8), 2), 3) + np.tile([0.0, 1, 2], 16)
    y = np.repeat(np.tile([0, 0, 0, 0, 1, 1, 1, 1], 2), 3)
    rows = Rows.of(episode=episode, host=host, t_start=t_start, label=y)
    said = order_notes(rows, BINARY)
    assert "were made after those of benign ones on the same host (100 % of the pairs)" in said[0]
    assert "were made before" in order_notes(replace(rows, t_start=-t_start), BINARY)[0]
    turns = np.repeat(np.tile([0, 1], 8), 3)
    assert order_notes(replace(rows, label=turns), BINARY) == []
    # A clock that begins anew with each recording, and three recordings of a kind, show nothing.
    assert order_notes(replace(rows, t_start=np.tile([0.0, 1, 2], 16)), BINARY) == []
    few = np.isin(episode, ["e00", "e01", "e02", "e04", "e05", "e06"])
    assert order_notes(rows.take(few), BINARY) == []


def test_calibration_on_as_few_episodes_as_a_promise_needs_carries_no_warning():
    scores = np.linspace(0, 1, 19)
    enough = scored_windows([0] * 19, np.arange(19), scores)
    assert operating_point(enough, 0.05, classes=BINARY).warning is None
    twice = scored_windows([0] * 36, np.arange(36) // 2, np.linspace(0, 1, 36))
    warned = operating_point(twice, 0.05, classes=BINARY).warning
    assert warned == "calibrated on 18 episodes; 19 would be needed to hold a target of 5 %"
