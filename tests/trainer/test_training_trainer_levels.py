"""Anomaly scores from each host's own level."""

import numpy as np
import polars as pl
import pytest
from trainer_builders import SHORT, arguments, make_data, run, trained

from training.contract import Exit
from training.data.dataset import load_processed
from training.data.errors import DataError
from training.trainer import ssl
from training.trainer.comparison import compare
from training.trainer.evaluation.host_levels import FEWEST, NO_LEVELS, HostLevels, ReferenceScores
from training.trainer.judging import judge, sides
from training.trainer.scoring import remarks

pytestmark = pytest.mark.usefixtures("one_anomaly_method")

HOSTS = np.repeat(["calm", "loud", "short"], [20, 20, FEWEST - 1])
QUIET = np.concatenate([np.full(20, 1.0), np.full(20, 5.0), np.full(FEWEST - 1, 9.0)])


def test_scores_are_measured_from_the_level_of_their_own_host():
    levels = HostLevels.trained(ReferenceScores(QUIET, HOSTS), on=["calm"])
    told = levels.applied(np.array([1.0, 5.0, 2.0]), np.array(["calm", "loud", "calm"]))
    assert told.tolist() == [0.0, 0.0, 1.0]
    (said,) = levels.notes(HOSTS[:40])
    assert said == "Scores are measured from each host's own level, taken from its reference recordings."


def test_a_host_without_a_reference_has_the_usual_level_and_is_named():
    levels = HostLevels.trained(ReferenceScores(QUIET, HOSTS), on=["calm", "loud"])
    told = levels.applied(np.array([4.0, 4.0]), np.array(["short", "unheard"]))
    assert told.tolist() == [1.0, 1.0]  # the median of 1 and 5 is taken off
    assert "short, unheard has none" in levels.notes(np.array(["short", "unheard", "calm"]))[0]


def test_without_a_reference_where_it_trained_scores_stay_as_they_are():
    levels = HostLevels.trained(ReferenceScores(QUIET, HOSTS), on=["short"])
    told = levels.applied(np.array([4.0, 9.0]), np.array(["calm", "short"]))
    assert told.tolist() == [4.0, 9.0]
    assert levels.notes(HOSTS) == [NO_LEVELS]


def test_elsewhere_hosts_have_levels_of_their_own_and_the_usual_one_is_that_of_training():
    trained = HostLevels.trained(ReferenceScores(QUIET, HOSTS), on=["calm"])
    reference = ReferenceScores(np.full(10, 3.0), np.full(10, "new"))
    there = trained.elsewhere(reference)
    assert there.applied(np.array([3.0, 3.0]), np.array(["new", "other"])).tolist() == [0.0, 2.0]
    adapted = HostLevels({}, 1.0, own={"new": 1.0})
    assert adapted.elsewhere(reference).known == {"new": 3.0}, "a reference counts more than the level kept"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("levels"), reference=True)


def test_the_data_set_carries_the_references_apart(data):
    found = load_processed(None, data / "tensor_window_v1", None, "realistic")
    assert found.reference.X.shape == (36, 3, 20)
    assert sorted(set(found.reference.rows.host.tolist())) == ["alpha", "beta", "gamma"]
    without = make_data(data.parent / "none")
    other = load_processed(None, without / "tensor_window_v1", None, "realistic")
    assert other.reference.X.shape == (0, 3, 20)
    assert other.data_digest != found.data_digest
    assert len(other) == len(found)


def test_changed_references_are_refused(tmp_path):
    folder = make_data(tmp_path, reference=True) / "tensor_window_v1"
    pl.read_parquet(folder / "baseline.parquet").reverse().write_parquet(folder / "baseline.parquet")
    with pytest.raises(DataError, match="references"):
        load_processed(None, folder, None, "oracle")


def test_views_chosen_on_the_test_side_are_refused(data, tmp_path, monkeypatch):
    strange = ssl._strange
    monkeypatch.setattr(ssl, "_strange", lambda task: np.append(strange(task), task.split.test[:2]))
    ended = run(arguments("transformer_ssl", data, tmp_path, *SHORT["transformer_ssl"], "--epochs", "1"))
    assert ended.code == Exit.BUG
    assert "or its views, were chosen by 2 windows of the test side" in ended.sentence
    assert not (tmp_path / "reports").exists()


def test_a_trained_model_keeps_levels_and_scores_with_them(data, tmp_path):
    made = trained("transformer_ssl", data, tmp_path)
    path, levels, report = made.checkpoint, made.document["levels"], made.report
    assert set(levels["known"]) == {"alpha", "beta", "gamma"}
    assert levels["usual"] == sorted(levels["known"].values())[1]
    assert report["notes"][0].startswith("Scores are measured from each host's own level")
    assert report["course"].endswith("its weights are kept.")
    # Reading back applies the same levels: without them hosts would rank otherwise.
    again = judge(path, data)
    found = compare(again, again)["models"][0]["auroc"]["value"]
    assert found == report["metrics"]["test"]["auroc"]["value"]
    # A host without a reference is as unknown to whoever scores as to the report.
    bare = judge(path, make_data(tmp_path / "bare"))
    assert "alpha, beta, gamma has none" in " ".join(remarks(bare, sides(bare)))


def test_the_references_of_some_hosts_keep_their_marks():
    marks = np.array([f"{host}-{n}" for n, host in enumerate(HOSTS)])
    found = ReferenceScores(QUIET, HOSTS, marks).of(["loud"])
    assert found.marks.size == found.score.size > 0
    assert all(mark.startswith("loud-") for mark in found.marks)
