"""Two checkpoints on the windows that neither saw."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_builders import make_data, trained

from training.contract import Exit
from training.trainer import compare as command
from training.trainer import comparison
from training.trainer.comparison import compare, holm, names_of, standings
from training.trainer.contract import BadData
from training.trainer.judging import judge, split_again

pytestmark = pytest.mark.usefixtures("one_anomaly_method")


MODES = ("oracle", "realistic")


@pytest.fixture(scope="module")
def both(data, tmp_path_factory):
    """An oracle and a realistic model of small trees."""
    folder = tmp_path_factory.mktemp("compared")
    one, other = (trained("gbt", data, folder, "--target-fpr", "0.2", mode=mode) for mode in MODES)
    return one, other


def test_the_gap_is_that_of_the_two_reports(both, data):
    found = compare(*(judge(one.checkpoint, data) for one in both))
    reported = [one.report for one in both]
    values = [one["metrics"]["test"]["auroc"]["value"] for one in reported]
    assert [one["auroc"]["value"] for one in found["models"]] == values
    assert found["gap"]["value"] == pytest.approx(values[0] - values[1], abs=2e-6)
    assert found["windows"] == reported[0]["split"]["n"]["test"]["windows"]
    assert found["episodes"] == reported[0]["split"]["n"]["test"]["episodes"]
    assert {one["kind"] for one in reported[0]["scenarios"]} == {"benign", "malicious-like"}
    for name in ("accuracy", "accuracy_at_threshold"):
        assert [one[name] for one in found["models"]] == [one["metrics"]["test"][name] for one in reported]
    for name in ("tpr", "fpr"):
        one, other = (model[name]["value"] for model in found["models"])
        assert [one, other] == [each["metrics"]["test"][name]["value"] for each in reported]
        assert found["gaps"][name]["value"] == pytest.approx(one - other, abs=2e-6)
        low, high = found["gaps"][name]["ci95"]
        assert low <= found["gaps"][name]["value"] <= high


def test_a_model_is_no_better_than_itself(both, data, capsys):
    oracle = both[0].checkpoint
    assert command.main([str(oracle), str(oracle), str(data)]) == Exit.DONE
    assert capsys.readouterr().out.endswith("Both are one and the same model.\n")
    gap = compare(judge(oracle, data), judge(oracle, data))["gap"]
    assert gap == {"value": 0.0, "ci95": [0.0, 0.0]}


def test_the_command_says_it_in_words_and_in_json(both, data, capsys):
    asked = [str(one.checkpoint) for one in both] + [str(data)]
    assert command.main(asked) == Exit.DONE
    said = capsys.readouterr().out
    assert "gbt oracle" in said
    assert "gap" in said
    assert "episodes that neither saw" in said
    assert command.main([*asked, "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["gap"]["ci95"]


def test_of_several_models_none_is_the_best_alone(both, data, capsys):
    oracle, realistic = (str(one.checkpoint) for one in both)
    three = [oracle, realistic, oracle, str(data)]
    assert command.main([*three, "--json"]) == Exit.DONE
    found = json.loads(capsys.readouterr().out)
    first, _, same = found["models"]
    assert (first["p"], first["tied"], same["p"], same["tied"]) == (1.0, True, 1.0, True)
    assert sum(one["wins"] for one in found["models"]) == pytest.approx(1, abs=1e-5)
    assert found["standings"]["optimism"] >= 0
    assert command.main(three) == Exit.DONE
    said = capsys.readouterr().out
    assert "episodes that none saw" in said
    assert "Not distinguishable from it: " in said
    assert "only another test decides" in said
    assert command.main([str(both[0].out), *three]) == Exit.BAD_ARGUMENTS
    assert "two at a time" in capsys.readouterr().err


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_asks_more_of_each_chance_and_keeps_their_order(chances):
    found = holm(chances)
    for one, made in zip(chances, found, strict=True):
        assert min(1.0, one) <= made <= min(1.0, len(chances) * one) + 1e-12
    pairs = sorted(zip(chances, found, strict=True))
    assert [made for _, made in pairs] == sorted(made for _, made in pairs)
    assert found[chances.index(min(chances))] == min(1.0, len(chances) * min(chances))


def test_models_that_differ_by_luck_alone_are_rarely_told_apart_and_the_winner_flatters_itself():
    """Five equal models on 30 episodes: at most the share promised is told apart, and the winner is too high."""
    rng = np.random.default_rng(0)
    wrong, told, gained = 0, [], []
    for _ in range(150):
        episodes = rng.normal(size=(30, 1)) + rng.normal(size=(30, 5))
        draws = rng.integers(30, size=(300, 30))
        found = standings(episodes.mean(axis=0), episodes[draws].mean(axis=1), 30)
        wrong += not all(found.tied)
        told.append(found.optimism)
        gained.append(episodes.mean(axis=0).max())  # all are worth 0
    assert wrong <= 0.2 * 150  # the first was chosen by the same test, which Holm's steps do not know
    assert np.mean(told) == pytest.approx(np.mean(gained), rel=0.6)
    clear = standings([0.9, 0.5], np.array([[0.9, 0.5], [0.91, 0.49], [0.89, 0.51]]), 30)
    assert clear.tied == (True, False)
    assert standings([0.9, 0.5], np.zeros((0, 2)), 30).tied == (True, True)


def test_data_that_were_split_otherwise_are_refused(both, tmp_path, capsys):
    more = make_data(tmp_path / "more", episodes=42)
    assert command.main([*(str(one.checkpoint) for one in both), str(more)]) == Exit.BAD_DATA
    assert "may have seen some of these windows" in capsys.readouterr().err


def test_models_judged_on_different_episodes_are_refused(both, data, tmp_path):
    other = trained("gbt", data, tmp_path, "--split-recipe", "host", "--train-hosts", "alpha")
    paths = both[0].checkpoint, other.checkpoint
    judged = [judge(path, data) for path in paths]
    with pytest.raises(BadData, match="different episodes"):
        compare(*judged)
    found = compare(*judged, other_data=True, paths=paths)
    tests = [set(np.unique(one.inputs.rows.episode[split_again(one).test]).tolist()) for one in judged]
    assert found["episodes"] == len(tests[0] & tests[1])
    assert found["left_out"] + found["windows"] == len(judged[0].inputs.rows)
    assert [one["name"] for one in found["models"]] == [f"gbt oracle ({path.parents[1].name})" for path in paths]


def test_models_are_named_by_what_tells_them_apart():
    one, other = (SimpleNamespace(name=f"gbt {mode}") for mode in MODES)
    oracle, realistic = Path("/a/1/oracle"), Path("/a/1/realistic")
    assert names_of((one, other), (oracle, realistic)) == ["gbt oracle", "gbt realistic"]
    assert names_of((one, one), (Path("/a/1/x"), Path("/b/2/x"))) == ["gbt oracle (1)", "gbt oracle (2)"]
    assert names_of((one, one), ()) == names_of((one, one), (oracle, oracle)) == ["gbt oracle", "gbt oracle"]


@pytest.mark.parametrize(
    ("ci95", "words"),
    [
        ([0.01, 0.05], "first is better"),
        ([-0.05, -0.01], "second is better"),
        ([-0.01, 0.05], "does not show which is better"),
        (None, "is unknown: too few"),
    ],
)
def test_what_the_interval_lets_one_say(ci95, words):
    gap = {"value": 0.03, "ci95": ci95, "reason": "too few"}
    assert words in comparison._conclusion(gap, ["first", "second"])


def test_modes_that_see_the_same_are_said_to(tmp_path, capsys):
    data = make_data(tmp_path / "data", oracle=0)
    oracle, realistic = (trained("gbt", data, tmp_path, mode=mode) for mode in MODES)
    assert command.main([str(oracle.checkpoint), str(realistic.checkpoint), str(data)]) == Exit.DONE
    assert "the gap says nothing about what oracle channels are worth" in capsys.readouterr().out
    assert any("No channel of these data is for the oracle mode alone" in n for n in oracle.report["notes"])
    assert realistic.report["notes"] == []


@pytest.mark.parametrize("n", ["1", "3", "199", "0"])
def test_few_resamples_are_refused(n, capsys):
    with pytest.raises(SystemExit):
        command.main(["a", "b", "c", "--n-resamples", n])
    assert "must be from 200 to" in capsys.readouterr().err
