"""Behaviours that a model was not shown: what is left out, what is said of it, and one run of several trainings."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from test_training_report import quiet_report
from trainer_builders import StopAfter, arguments, ends_like, make_data, run, told_in_order

from training.contract import Exit
from training.data.rows import Rows
from training.data.split import LeakError, Side, make_split
from training.trainer import gbt, leave_one_behaviour_out, session
from training.trainer.evaluation.behaviours import (
    BENIGN,
    ShownModel,
    Unshown,
    behaviours_of,
    figures,
    places_of,
    refuse_shown,
    without,
)
from training.trainer.evaluation.page import render
from training.trainer.evaluation.scored import Classes, Scored
from training.trainer.evaluation.verdict import NEW, RULES, facts_of
from training.trainer.state_file import StateFile

pytestmark = pytest.mark.usefixtures("one_anomaly_method", "no_rival_models")

NAMES = ("benign", "grind", "sweep")
CLASSES = Classes(NAMES, ("benign",))
HOSTS = ("--train-hosts", "alpha", "--train-hosts", "beta", "--target-fpr", "0.2", "--n-resamples", "0")
FEW = {"gbt": ("--n-estimators", "12"), "mlp": ("--epochs", "2", "--batch-size", "64", "--members", "1")}
FEW["combined"] = ("--epochs", "3")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"), classes=3, names=NAMES, episodes=72, windows=4)


def asked(model, data, out, *more, recipe="behaviour"):
    return arguments(model, data, out, *FEW[model], "--split-recipe", recipe, *HOSTS, *more)


def report_of(out, model):
    return json.loads((out / "reports" / f"{model}_oracle_train.json").read_text())


@pytest.mark.parametrize(
    ("model", "step", "first"),
    [
        ("gbt", 97, "1 of 7: search"),
        ("mlp", 41, "1 of 5: search"),
        pytest.param("gbt", 11, "1 of 7: search", marks=pytest.mark.thorough),
        pytest.param("mlp", 11, "1 of 5: search", marks=pytest.mark.thorough),
        pytest.param("combined", 43, "1 of 13: supervised, search", marks=pytest.mark.thorough),
    ],
)
def test_a_run_without_each_behaviour_ends_equally_wherever_it_stops(model, step, first, data, tmp_path, monkeypatch):
    monkeypatch.setattr(gbt, "STRETCH", 5)
    safe_points = StopAfter(10_000)
    whole = run(asked(model, data, tmp_path / "a"), stop=safe_points)
    assert whole.code == Exit.DONE, whole.sentence
    monkeypatch.setattr(StateFile, "EVERY_S", 0.0)
    for point in range(7, 10_000 - safe_points.left, step):
        out = tmp_path / str(point)
        ends_like(tmp_path / "a", asked(model, data, out), (point, 3, point % 23), out)
    found = report_of(tmp_path / "a", model)
    assert [one["name"] for one in found["new_behaviours"]["each"]] == ["grind", "sweep"]
    assert found["new_behaviours"]["all"]["shown"] is not None
    assert found["verdict"].count("A behaviour it was not shown: AUROC") == 1
    assert "Behaviours it was not shown" in render(found)
    told = told_in_order(whole.events)
    own = next(number for number, event in enumerate(told) if event["event"] == "without")
    assert model == "combined" or all("loss" in event for event in told[:own])
    assert all("loss" not in event for event in told[own:]), "they would enter the curve of the model"
    assert told[0]["stage"] == first


def test_a_quick_family_measures_it_unasked_and_others_say_what_does(data, tmp_path):
    for model in ("gbt", "mlp"):
        for recipe in ("host", "behaviour"):
            assert run(asked(model, data, tmp_path / recipe, recipe=recipe)).code == Exit.DONE
    plain, asked_for = (report_of(tmp_path / recipe, "gbt") for recipe in ("host", "behaviour"))
    assert plain["new_behaviours"] == asked_for["new_behaviours"]
    assert plain["metrics"] == asked_for["metrics"], "the model that is kept was shown everything"
    said = report_of(tmp_path / "host", "mlp")
    assert said["new_behaviours"]["all"] is None
    assert (
        "New behaviours are not measured: it takes 2 more trainings, which the split recipe 'behaviour' makes."
        in said["verdict"]
    )
    assert "Not measured: it takes" in render(said)


def test_too_much_work_is_left_to_the_recipe(data, tmp_path, monkeypatch):
    monkeypatch.setattr(leave_one_behaviour_out, "MOST_WORK", 100)
    assert run(asked("gbt", data, tmp_path, recipe="host")).code == Exit.DONE
    assert "windows each, which the split recipe 'behaviour' makes" in report_of(tmp_path, "gbt")["verdict"]


def test_one_behaviour_says_nothing_and_is_refused_where_it_was_asked_for(tmp_path):
    data = make_data(tmp_path / "data")
    assert run(asked("gbt", data, tmp_path, recipe="host")).code == Exit.DONE
    assert "new_behaviours" not in report_of(tmp_path, "gbt")
    ended = run(asked("gbt", data, tmp_path))
    assert ended.code == Exit.BAD_DATA
    assert "needs two that train" in ended.sentence


def test_a_model_that_was_shown_what_it_is_judged_by_as_new_is_refused(data, tmp_path, monkeypatch):
    monkeypatch.setattr(session, "without", lambda split, *_: split)
    ended = run(asked("gbt", data, tmp_path))
    assert ended.code == Exit.BUG
    assert "judged as one that was not shown it" in ended.sentence
    assert not list(tmp_path.rglob("*.ckpt.json"))


def test_a_threshold_of_such_a_model_that_was_chosen_on_the_test_is_refused(data, tmp_path, monkeypatch):
    def on_test(split, *rest):
        left = without(split, *rest)
        return replace(left, cal=split.test[split.test % 3 == 0])  # benign windows of the host that tests

    monkeypatch.setattr(session, "without", on_test)
    monkeypatch.setattr(session, "refuse_shown", lambda *_: None)
    ended = run(asked("gbt", data, tmp_path))
    assert ended.code == Exit.BUG
    assert "was chosen on recording" in ended.sentence


# -- what is left out --------------------------------------------------------------------------------------------------


def rows_of(label, episode):
    hosts = np.array(["a", "b", "c"])[episode % 3]
    return Rows.of(label=label, episode=[f"e{n:02}" for n in episode], host=hosts)


@given(seed=st.integers(0, 2**32), name=st.sampled_from(["grind", "sweep"]))
def test_nothing_of_a_behaviour_is_on_a_side_that_learns_and_the_test_stays(seed, name):
    rng = np.random.default_rng(seed)
    episode = np.repeat(np.arange(24), 5)
    label = np.where(rng.random(120) < 0.4, 0, rng.integers(0, 3, size=24)[episode])
    label[rng.random(120) < 0.05] = 2
    rows = rows_of(label, episode)
    split = make_split(rows, recipe="behaviour", train_hosts=["a", "b"], seed=seed % 100, supervised=False)
    behaviour = behaviours_of(rows, CLASSES, {})
    left = without(split, rows, behaviour, name)
    refuse_shown(left, behaviour, name)
    assert (left.test == split.test).all()
    other = next(iter({"grind", "sweep"} - {name}))
    for side in (Side.TRAIN, Side.VAL, Side.CAL):
        gone = np.setdiff1d(split.side(side), left.side(side))
        assert set(left.side(side).tolist()) <= set(split.side(side).tolist())
        assert not (behaviour[gone] == other).any()
        for recording in np.unique(rows.recording[gone]):
            here = behaviour[rows.recording == recording]
            assert name in here
            if (behaviour[gone[rows.recording[gone] == recording]] == BENIGN).any():
                assert other not in here
    with pytest.raises(LeakError, match="was not shown it"):
        refuse_shown(replace(left, val=np.flatnonzero(behaviour == name)[:1]), behaviour, name)


def test_a_behaviour_is_the_scenario_where_recordings_tell_several_apart():
    rows = rows_of(np.array([0, 1, 1, 2]), np.array([0, 0, 1, 2]))
    named = {"e00": "beacon", "e01": "sweep", "e02": "beacon"}
    assert behaviours_of(rows, CLASSES, named).tolist() == ["", "beacon", "sweep", "beacon"]
    by_class = ["", "grind", "grind", "sweep"]
    assert behaviours_of(rows, CLASSES, {"e00": "beacon", "e01": "sweep"}).tolist() == by_class
    assert behaviours_of(rows, CLASSES, dict.fromkeys(named, "ingested")).tolist() == by_class
    assert set(behaviours_of(rows, Classes(NAMES, ()), named).tolist()) == {BENIGN}


# -- the figures -------------------------------------------------------------------------------------------------------


def test_figures_are_those_of_each_model_on_benign_windows_and_its_behaviour():
    rng = np.random.default_rng(3)
    episode = np.repeat(np.arange(30), 4)
    rows = rows_of((episode // 3) % 3, episode)
    behaviour = behaviours_of(rows, CLASSES, {})
    known = ShownModel(Scored(rows, rng.normal(size=120)), rng.random(120) < 0.3, CLASSES)
    models = []
    for name in ("grind", "sweep"):
        places = places_of(name, behaviour)
        score = rng.normal(size=places.size) + (behaviour[places] == name)
        models.append(Unshown(name, places, score, score > 1))
    found = figures(known, models, n_resamples=200, seed=0)
    expected = []
    for one, row in zip(models, found["each"], strict=True):
        mine = behaviour[one.places] == one.name
        expected.append((roc_auc_score(mine, one.score), one.alarm[mine], one.alarm[~mine]))
        assert row["auroc"]["value"] == pytest.approx(expected[-1][0], abs=1e-6)
        shown = roc_auc_score(mine, known.scored.score[one.places])
        assert row["shown"]["auroc"]["value"] == pytest.approx(shown, abs=1e-6)
        assert (row["windows"], row["episodes"]) == (mine.sum(), mine.sum() // 4)
        assert row["auroc"]["ci95"][0] < row["auroc"]["value"] < row["auroc"]["ci95"][1]
    total = found["all"]
    ranked, caught, false = zip(*expected, strict=True)
    assert total["auroc"]["value"] == pytest.approx(np.mean(ranked), abs=1e-6)
    assert total["tpr"]["value"] == pytest.approx(np.concatenate(caught).mean(), abs=1e-6)
    assert total["fpr"]["value"] == pytest.approx(np.concatenate(false).mean(), abs=1e-6)
    assert total["shown"]["fpr"]["value"] == pytest.approx(known.alarm[behaviour == BENIGN].mean(), abs=1e-6)


@pytest.mark.parametrize(
    ("value", "ci95", "level", "words"),
    [
        (0.1, [0.05, 0.2], "caution", "AUROC 0.65, caught only 10 %."),
        (0.6, [0.2, 0.8], "caution", "AUROC 0.65, caught 60 %, on too few recordings to be sure."),
        (0.6, None, "caution", "AUROC 0.65, caught 60 %, on too few recordings to be sure."),
        (0.6, [0.4, 0.8], "good", "AUROC 0.65, caught 60 %."),
        (None, None, "caution", "AUROC 0.65."),
    ],
)
def test_the_verdict_says_it_in_one_line_and_no_better_than_its_interval(value, ci95, level, words):
    rate = {"value": value, "ci95": ci95}
    made = {"new_behaviours": {"all": {"auroc": {"value": 0.65, "ci95": None}, "tpr": rate}, "why": None}}
    facts = facts_of(quiet_report() | made)
    rule = next(rule for rule in RULES if rule.about == NEW and rule.applies(facts))
    assert rule.level.name.lower() == level
    assert rule.says.format_map(vars(facts)) == f"A behaviour it was not shown: {words}"
