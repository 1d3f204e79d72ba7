"""Data made to have the schema of others, so that their model can score them."""

import numpy as np
import polars as pl
import pytest
from table_changes import noise, recordings

from training.contract import FEATURES_FILE, SCHEMA_FILE, TENSORS_FOLDER, VALIDATION_FILE
from training.data.dataset import UNLABELLED, load_processed
from training.data.schema import read_schema, require_same
from training.trainer import judging, run, scoring

pytestmark = pytest.mark.half

CUT = ("--window-s", "8")


@pytest.fixture
def known(ingested, tmp_path):
    """The folder of a data set of two channels, and its table."""
    rows = recordings().with_columns(v=pl.Series(noise(320, 3)))
    ingested.taken(rows, *CUT)
    return ingested.out.rename(tmp_path / "known"), rows


def test_what_is_lacking_is_missing_and_what_is_beyond_left_out(ingested, known):
    folder, rows = known
    other = rows.drop("x").with_columns(z=pl.Series(noise(320, 4)))
    found = ingested.taken(other.select("v", "z", "t", "host", "episode", "label"), *CUT, "--like", str(folder))
    assert "Channels of --like that nothing measures here are missing: x." in found["notes"]
    assert "channels that --like has not: z" in found["understood"]["left_out"]
    data = ingested.load()
    whole = load_processed(None, folder / "tensor_window_v1", None, "oracle")
    assert data.channel_names == whole.channel_names == ("v", "x")
    assert np.isnan(data.tensors[:, 1]).all()
    assert np.array_equal(data.tensors[:, 0], whole.tensors[:, 0])
    require_same(*(read_schema(one / "feature_schema_v1.json") for one in (folder, ingested.out)))


@pytest.mark.parametrize("kind", ["table", "archive"])
def test_data_without_labels_can_be_scored_and_no_trainer_takes_them(ingested, tmp_path, capsys, kind):
    rows = recordings("ab", 4, samples=80)
    labelled = {
        "X": np.random.default_rng(0).normal(size=(40, 2, 8)),
        "y": np.arange(40) // 5 % 2,
        "episode": np.arange(40) // 5,
        "host": np.repeat(["a", "b"], 20),
        "t": np.arange(40.0) * 8,
    }
    source, cut = (rows, CUT) if kind == "table" else (labelled, ("--hz", "1"))
    ingested.taken(source, *cut)
    known = ingested.out.rename(tmp_path / "known")
    arguments = ["--model", "gbt", "--mode", "oracle", "--split-recipe", "host", "--train-hosts", "a"]

    def trained(folder):
        files = {"summary": FEATURES_FILE, "tensors": TENSORS_FOLDER, "schema": SCHEMA_FILE}
        named = [one for flag, name in files.items() for one in (f"--{flag}", str(folder / name))]
        named += [
            "--validation",
            str(folder / VALIDATION_FILE),
            "--out-dir",
            str(tmp_path),
            "--reports-dir",
            str(tmp_path),
        ]
        return run.main([*arguments, *named])

    assert trained(known) == 0
    source = rows.drop("label") if kind == "table" else {name: one for name, one in labelled.items() if name != "y"}
    assert "--like" in ingested.refused(source, *cut) or kind == "archive"
    like = ("--like", str(known)) if kind == "table" else ("--hz", "1", "--like", str(known))
    found = ingested.taken(source, *like)
    assert found["labels"] == {UNLABELLED: ingested.load().y.size}
    assert any("There are no labels" in note for note in found["notes"])
    assert not ingested.load().is_labelled
    assert ingested.validation["label_coverage"].to_list() == [0.0] * 8
    judged = [judging.judge(tmp_path / "gbt_oracle.ckpt.json", folder) for folder in (known, ingested.out)]
    scores = [pl.concat(scoring.parts(one, judging.sides(one))) for one in judged]
    windows = ["episode_id", "t_start", "score", "class"]
    both = scores[0].select(windows).join(scores[1], on=windows)  # windows cross changes of a label that nobody knows
    assert both.height == scores[0].height
    assert (scores[0].height == scores[1].height) == (kind == "archive")
    capsys.readouterr()
    assert trained(ingested.out) != 0
    assert "without labels, which a model can score" in capsys.readouterr().err
    assert "no labels, so --benign has no effect" in ingested.refused(source, *like, "--benign", "normal")


def test_what_is_only_scored_is_not_cut_into_episodes(ingested, tmp_path):
    rows = recordings("ab", 1, samples=400)
    assert ingested.taken(rows.drop("episode"), *CUT)["episodes"] > 2
    known = ingested.out.rename(tmp_path / "known")
    found = ingested.taken(rows.drop("episode", "label"), "--like", str(known))
    assert (found["episodes"], found["windows"]) == (2, 2 * 99)


def test_a_class_that_is_not_benign_is_not_taken_for_the_benign_one(ingested, known):
    folder, rows = known
    odd = (rows.with_columns(label=pl.lit("odd")), *CUT, "--like", str(folder))
    assert "The classes here are odd" in ingested.refused(*odd, "--no-benign")
    assert ingested.taken(*odd, "--benign", "odd")["labels"].keys() == {"normal"}


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        (lambda rows: rows.drop("x", "v").with_columns(z=pl.Series(noise(320))), CUT, "None of these channels is one"),
        (
            lambda rows: rows,
            ("--window-s", "4"),
            "have 4 samples, those of --like 8: if they are cut here, say --window-s 8",
        ),
        (lambda rows: rows, (*CUT, "--stride-s", "2"), "say --stride-s 4"),
        (
            lambda rows: rows.with_columns(t=pl.col("t") * 2),
            ("--window-s", "16"),
            "come at 0.5 Hz, those of --like at 1",
        ),
        (lambda rows: rows.with_columns(label=pl.col("label").replace("attack", "odd")), CUT, "classes here are"),
        (
            lambda rows: rows.with_columns(v=pl.col("v").abs().cum_sum()),
            (*CUT, "--counter", "v"),
            "'v' is a counter in 1/s",
        ),
    ],
)
def test_what_means_something_else_is_refused(ingested, known, change, options, sentence):
    folder, rows = known
    assert sentence in ingested.refused(change(rows), *options, "--like", str(folder))


@pytest.mark.parametrize("name", ["V", "v.", "v (%)", "v_percent", "V [MB]"])
def test_a_channel_that_is_spelled_otherwise_is_no_missing_one(ingested, known, name):
    folder, rows = known
    other = rows.rename({"v": name})
    assert f"The channel {name!r} is spelled 'v' in --like" in ingested.refused(other, "--like", str(folder))
    ingested.taken(other, "--like", str(folder), "--ignore", name)


def test_channels_of_other_names_are_not_taken_for_misspelled(ingested, known):
    folder, rows = known
    other = rows.rename({"v": "v (out)"}).with_columns(X=pl.col("x") + 1, v_b=pl.col("x") ** 2)
    found = ingested.taken(other, "--like", str(folder))
    assert "channels that --like has not: X, v (out), v_b" in found["understood"]["left_out"]


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        (lambda label: label == "attack", "say --labels normal,attack if"),
        (lambda label: (label == "attack").cast(int), "say --labels normal,attack if"),
        (lambda label: label.str.to_titlecase(), "write 'attack' for 'Attack', 'normal' for 'Normal' into the column"),
    ],
)
def test_classes_of_other_names_are_refused_with_what_renames_them(ingested, known, change, advice):
    folder, rows = known
    other = rows.with_columns(label=change(pl.col("label")))
    assert advice in ingested.refused(other, "--like", str(folder))
    if "--labels" in advice:
        found = ingested.taken(other, "--like", str(folder), "--labels", "normal,attack")
        assert found["labels"] == ingested.taken(rows, "--like", str(folder))["labels"]


@pytest.mark.parametrize("kind", ["table", "archive"])
@pytest.mark.parametrize("said", ["-999", "x=-999"])
def test_what_was_declared_missing_is_missing_by_like_too(ingested, tmp_path, kind, said):
    rows = recordings().with_columns(v=pl.Series(noise(320, 3)))
    holes = rows.with_columns(x=pl.when(pl.int_range(320) % 40 == 7).then(-999.0).otherwise("x"))
    X = np.stack([holes[name].to_numpy().reshape(40, 8) for name in "vx"], axis=1)
    archive = {"X": X, "y": np.arange(40) % 2, "channel": np.array(["v", "x"]), "t": np.arange(40.0) * 8}
    source, cut = (holes, CUT) if kind == "table" else (archive, ("--hz", "1"))
    whole = rows if kind == "table" else archive | {"X": np.where(X == -999, 0.5, X)}
    ingested.taken(source, *cut, f"--missing={said}")
    digest = load_processed(None, ingested.out / TENSORS_FOLDER, None, "oracle").tensors.tobytes()
    folder = ingested.out.rename(tmp_path / "known")
    like = ("--like", str(folder)) if kind == "table" else (*cut, "--like", str(folder))
    found = ingested.taken(source, *like)
    assert "8 values of x: --missing, as in --like" in found["understood"]["left_out"]
    assert ingested.load().tensors.tobytes() == digest
    again = ingested.out.rename(tmp_path / "again")
    assert "stand_ins" in ingested.taken(whole, *like[:-1], str(again))["understood"]
    other = ingested.taken(whole, *cut)
    assert "stand_ins" not in other["understood"]
    assert other["schema_hash"] == found["schema_hash"]
