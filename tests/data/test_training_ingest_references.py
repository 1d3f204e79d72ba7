"""References of hosts in files of windows and samples: set apart, and refused where they cannot be one."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from test_training_ingest import arrays, table

from training.data.dataset import load_validation
from training.families import Takes
from training.trainer.inputs import from_dataset

# Half of an episode on one host, a whole one on the other.
OF_ONE = np.array([n < 2 or 12 <= n < 16 for n in range(24)])


def test_an_archive_brings_references_apart_from_its_windows(ingested):
    quiet = np.where(OF_ONE, 0, np.arange(24) % 2)
    found = ingested.taken(arrays(reference=OF_ONE, y=quiet), "--hz", "4")
    data = ingested.load()
    assert (len(data), len(data.reference.X)) == (18, 6)
    assert data.reference.rows.host.tolist() == ["h0"] * 2 + ["h1"] * 4
    X = arrays()["X"].astype(np.float32)
    np.testing.assert_array_equal(data.reference.X, X[OF_ONE])
    np.testing.assert_array_equal(data.tensors, X[~OF_ONE])
    assert "Windows of references" in " ".join(found["notes"])
    assert "h0 2, h1 4" in " ".join(found["notes"])
    kept = load_validation(ingested.out / "validation_v1.parquet")
    assert (kept.episodes, kept.references) == (6, 1)  # of one episode only a part is a reference
    assert from_dataset(data, takes=Takes.FEATURES).reference.shape[0] == 6
    assert data.schema.normaliser == {"kind": "none"}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("numbers", [True, False])
def test_a_table_brings_them_in_a_column(ingested, tmp_path, suffix, *, numbers):
    own = np.tile(np.arange(40) < 10, 2)
    path = tmp_path / f"samples{suffix}"
    frame = table(reference=own.astype(int) if numbers else own)
    frame.write_csv(path) if suffix == ".csv" else frame.write_parquet(path)
    found = ingested.taken(path, "--window-s", "0.5", "--stride-s", "0.5")
    data = ingested.load()
    assert sorted(data.reference.rows.host.tolist()) == ["desk", "desk", "pi", "pi"]
    assert found["labels"] == {"benign": 4, "malicious": 8}
    assert data.rows.t_start[data.rows.host == "pi"].min() == 1.0  # no window holds rows of both kinds


def test_a_table_of_windows_brings_them_too(ingested):
    window = np.repeat(np.arange(16), 5)
    frame = table(reference=window % 8 == 0, window=window).with_columns(reference=pl.col("reference").cast(pl.String))
    ingested.taken(frame)
    assert sorted(ingested.load().reference.rows.host.tolist()) == ["desk", "pi"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"reference": OF_ONE}, "some is labelled malicious"),
        ({"reference": np.ones(24, dtype=bool), "y": np.zeros(24, dtype=int)}, "Everything is marked as reference"),
        ({"reference": np.full(24, 0.5)}, "holds '0.5'"),
        ({"reference": np.array(["left"] * 24)}, "holds 'left'"),
        ({"reference": OF_ONE[:5]}, "has the shape (5,)"),
    ],
)
def test_what_can_be_no_reference_is_refused(ingested, changes, sentence):
    assert sentence in ingested.refused(arrays(**changes))


def test_a_channel_called_reference_is_refused_with_the_way_out(ingested):
    rows = table(reference=np.random.default_rng(0).normal(size=80))
    assert "--ignore reference" in ingested.refused(rows, "--window-s", "1")
    ingested.taken(rows, "--window-s", "1", "--ignore", "reference")
