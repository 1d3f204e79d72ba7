"""Models of tables whose rows are windows: examples, and no recordings."""

import numpy as np
import polars as pl
import pytest
from trainer_builders import SHORT, arguments, run, trained

from training.contract import Exit
from training.data import ingest
from training.trainer import drift, score
from training.trainer.evaluation.page import render

pytestmark = pytest.mark.usefixtures("one_anomaly_method")
HOSTS = ("--split-recipe", "host", *(f"--train-hosts=f{n}" for n in range(4)))


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """A data set of 900 rows of six families, of which most bad ones have a higher level."""
    folder = tmp_path_factory.mktemp("rows")
    random = np.random.default_rng(0)
    bad = random.random(900) < 0.4
    columns = {name: random.normal(size=900) + 2 * bad for name in ("threads", "handles", "dlls")}
    table = pl.DataFrame({**columns, "family": [f"f{n}" for n in random.integers(0, 6, 900)], "label": bad.astype(int)})
    table.write_csv(folder / "a.csv")
    told = ["--rows-are-windows", "--group", "family", "--out-dir", str(folder / "data"), "--json"]
    assert ingest.main([str(folder / "a.csv"), *told]) == 0
    return folder / "data"


@pytest.mark.parametrize("model", ["gbt", "mlp"])
def test_a_model_of_rows_is_judged_and_scores_without_times(model, examples, tmp_path, capsys):
    made = trained(model, examples, tmp_path, *HOSTS, mode="realistic")
    assert made.report["verdict"].startswith("Each window is one row of a table and no stretch of time")
    assert made.report["metrics"]["test"]["auroc"]["value"] > 0.9
    said = made.report["verdict"] + made.report["verdict_more"]
    assert "a day" not in said
    assert "stretches" not in said
    assert made.report["incidents"] is made.document["incidents"] is None
    assert "Stretches caught" in render(made.report)
    out, state = tmp_path / "scores.csv", tmp_path / "state"
    flags = ["--out", str(out), "--state", str(state), "--explain"]
    assert score.main([str(made.checkpoint), str(examples), *flags]) == Exit.DONE
    said = capsys.readouterr().err
    assert "incident" not in said
    assert "rate" not in said
    assert not state.exists()
    scores = pl.read_csv(out)
    assert drift.main([str(made.checkpoint), str(examples)]) == Exit.BAD_DATA
    assert "nothing changes without one" in capsys.readouterr().err
    assert scores.height == 900
    assert scores["t_start"].is_nan().all()
    assert scores["why_seconds"].is_null().all()
    assert scores["why"].is_not_null().any()


@pytest.mark.parametrize("model", ["cnn", "combined", "transformer_ssl"])
def test_models_of_sequences_refuse_rows(model, examples, tmp_path):
    ended = run(arguments(model, examples, tmp_path, *SHORT[model], *HOSTS, mode="realistic"))
    assert ended.code == Exit.BAD_DATA
    assert "rows of a table, one sample each" in ended.sentence


def test_rows_are_not_split_by_time(examples, tmp_path):
    ended = run(arguments("gbt", examples, tmp_path, "--split-recipe", "time", mode="realistic"))
    assert "needs a start time" in ended.sentence
