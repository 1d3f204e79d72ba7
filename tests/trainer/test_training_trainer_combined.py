"""One score of two parts: weights chosen on the training side in folds, one checkpoint, one state, one progress."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainer_builders import SHORT, Memory, arguments, make_data, run, told_in_order, trained

from training.clock import SystemClock
from training.contract import Exit
from training.trainer import combined
from training.trainer.anomaly import shares_of
from training.trainer.combined import FIXED, Folds, Weights, choose
from training.trainer.contract import Interrupted, Progress
from training.trainer.stages import Search, Stages, search_then_refit

THREE = ("benign", "dig", "send")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"), classes=3, names=THREE)


@pytest.fixture(scope="module")
def made(data, tmp_path_factory):
    found = trained("combined", data, tmp_path_factory.mktemp("combined"), "--n-resamples", "0")
    lines = told_in_order(found.events)
    told = ["loss" in event for event in lines]
    told = told[told.index(True) :]  # the searches for the temperature come first
    assert told == sorted(told, reverse=True), "losses are those of the supervised part alone"
    assert not told[-1]
    return found


def test_the_report_says_who_chose_the_weights(made):
    report = made.report
    weights = report["combined"]
    assert weights["left_out"] == ["dig", "send"]
    assert weights["windows"] > 0
    assert weights["supervised"] >= 0
    assert weights["anomaly"] >= 0
    assert weights["why"] in report["notes"]


def test_a_choice_on_the_test_side_is_refused(data, tmp_path, monkeypatch):
    chosen = combined._chosen

    def planted(task, *others):
        honest, lead = chosen(task, *others)
        return replace(honest, rows=np.append(honest.rows, task.split.test[:2])), lead

    monkeypatch.setattr(combined, "_chosen", planted)
    ended = run(arguments("combined", data, tmp_path, *SHORT["combined"]))
    assert ended.code == Exit.BUG
    assert "weights of a model's parts, or its views, were chosen by 2 windows of the test side" in ended.sentence
    assert not (tmp_path / "reports").exists()


def test_one_behaviour_leaves_nothing_to_choose_by(tmp_path):
    weights = trained("combined", make_data(tmp_path / "data"), tmp_path, "--n-resamples", "0").report["combined"]
    assert "leaving one behaviour out needs two that train (here 1)" in weights["why"]
    assert (weights["start"], weights["supervised"], weights["anomaly"]) == FIXED


def test_a_part_of_itself_is_refused(data, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        run(arguments("combined", data, tmp_path, "--supervised", "combined"))
    assert ended.value.code == Exit.BAD_ARGUMENTS
    said = capsys.readouterr().err
    assert "'combined' is not one of gbt, mlp" in said
    assert said.count("\n") == 1


numbers = st.lists(st.floats(-30, 30), min_size=6, max_size=40)


@given(numbers, st.floats(-3, 3), st.floats(0, 3), st.floats(0, 3))
@settings(max_examples=50)
def test_more_surprise_never_lowers_an_alarm(values, start, own, unlike):
    weights = Weights(start, own, unlike, "")
    rising = np.sort(np.array(values))
    still = np.zeros(rising.size)
    assert (np.diff(weights.of(rising, still)) >= 0).all()
    assert (np.diff(weights.of(still, rising)) >= 0).all()
    assert (weights.of(rising[[0, 0]], rising[[0, 0]]) == weights.of(rising, rising)[0]).all()


@given(st.integers(0, 2**20))
@settings(max_examples=20)
def test_a_part_that_tells_nothing_weighs_less_than_one_that_tells(seed):
    rng = np.random.default_rng(seed)
    alarming = np.arange(200) % 2 == 0
    tells, noise = rng.normal(size=200) + 3.0 * alarming, rng.normal(size=200)
    even = np.full(200, 1.0)
    (_, first, second), _ = choose(tells, noise, alarming, even)
    assert first > second >= 0
    (_, first, second), loss = choose(noise, tells, alarming, even)
    assert second > first >= 0
    assert loss < choose(noise, noise, alarming, even)[1]


class Views:
    """The part of an anomaly detector that the choice asks for: views of one weight, or led by the first."""

    def __init__(self, lead=0.0):
        self._lead = lead

    def led(self, lead):
        return Views(lead)

    def weighed(self, surprises):
        return surprises @ np.array(list(shares_of(["a", "b", "c"], self._lead).values()))


@pytest.mark.parametrize(("telling", "lead"), [(0, 0.5), (1, 0.0)])
def test_the_channel_means_lead_where_they_tell_more_than_the_other_views(telling, lead):
    rng = np.random.default_rng(0)
    alarming, rows = np.arange(400) % 2 == 0, np.arange(400)
    surprises = np.abs(rng.normal(size=(400, 3)))
    surprises[:, telling] += 3.0 * alarming
    named = np.where(alarming, np.where(rows % 4 == 0, "dig", "send"), "")
    task = SimpleNamespace(is_benign=~alarming, behaviour=named, number=lambda _: 0.3)
    odds = rng.normal(size=400) + alarming
    found = [(rows, odds, surprises, False), (rows, odds - alarming, surprises, True)]
    weights, led = combined._chosen(task, found, ("dig", "send"), Views())
    assert led == lead
    assert ("the channel means are more than half" in weights.why) == (lead > 0)
    assert weights.rows.tolist() == rows.tolist()


def test_a_resumed_run_asks_no_stage_twice_and_gives_each_its_own_state():
    def halfway(keeper):
        keeper.watch(lambda: b"halfway")
        saved.append(outer.snapshot())
        raise Interrupted

    def trees(keeper):
        found = keeper.load()
        keeper.watch(lambda: b"trees")
        saved.append(outer.snapshot())
        return found

    def never(_):
        raise AssertionError("an answer that is kept is not asked for")

    outer, saved, progress = Memory(), [], Progress(io.StringIO(), SystemClock())
    stages = Stages(outer, progress, [1] * 5)
    assert stages.run("own", trees) is None
    assert stages.answer("fold 0", lambda _: b"1") == b"1"
    assert stages.answer("fold 1", lambda _: None) is None
    with pytest.raises(Interrupted):
        stages.answer("fold 2", halfway)

    for _ in range(2):  # as if the stage that is made again were interrupted as well
        outer = Memory(saved[-1])
        stages = Stages(outer, progress, [1] * 5)
        assert stages.run("own", trees) == b"trees"
    assert stages.answer("fold 0", never) == b"1"
    assert stages.answer("fold 1", never) is None
    assert stages.answer("fold 2", lambda keeper: keeper.load()) == b"halfway"
    assert stages.answer("fold 3", lambda keeper: keeper.load()) is None


def test_a_search_that_found_more_than_it_went_through_is_refused():
    found = Search(length=2, temperature=1.0, loss=0.5, history=[{"epoch": 1}])
    stages = Stages(Memory(), Progress(io.StringIO(), SystemClock()), [1, 1])
    with pytest.raises(ValueError, match="beyond its own history"):
        search_then_refit(stages, "gbt", lambda _: found, None)


def test_folds_hold_each_training_window_once_and_know_no_other_side():
    class Two:
        behaviour = np.array(["", "", "dig", "dig", "send", "send", "", "dig", "", "send", "", ""])
        recording = np.array([*"abcdefghijk", ""])
        host = np.array(["x", "y", "z"] * 4)

        split = SimpleNamespace(
            train=np.append(np.arange(8), 11), val=np.array([8]), test=np.array([9]), recipe="sample"
        )

    folds = Folds.of(Two)
    judged = np.sort(np.concatenate(folds.rows))
    assert judged.tolist() == list(range(8)), "windows of references judge nothing, other sides neither"
    for rows, gone in zip(folds.rows, folds.gone, strict=True):
        assert gone[rows].all()
    assert set(folds.behaviours) == {"dig", "send"}
    Two.split.recipe = "host"
    whole = Folds.of(Two)
    assert all(len(set(Two.host[rows])) == 1 for rows in whole.rows), "whole hosts where hosts are split"
