"""Data made to have the schema of others, so that their model can score them."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from table_changes import noise, recordings

from training.data.dataset import load_processed
from training.data.schema import read_schema, require_same

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


def test_a_class_that_is_not_benign_is_not_taken_for_the_benign_one(ingested, known):
    folder, rows = known
    odd = (rows.with_columns(label=pl.lit("odd")), *CUT, "--like", str(folder))
    assert "The classes here are odd" in ingested.refused(*odd, "--no-benign")
    assert ingested.taken(*odd, "--benign", "odd")["labels"].keys() == {"normal"}


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        (lambda rows: rows.drop("x", "v").with_columns(z=pl.Series(noise(320))), CUT, "None of these channels is one"),
        (lambda rows: rows, ("--window-s", "4"), "These windows have 4 samples, those of --like 8: say --window-s 8"),
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
