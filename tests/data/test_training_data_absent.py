"""Absent values are NaN from the table to the features, by stated rules; nothing else moves."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_changes import attack, recordings

from training.data.absent import (
    KNOWN_MIN,
    absent,
    channels_of,
    columns_of,
    is_settled,
    lacking_hosts,
    rare_channels,
    settled,
    without,
)
from training.data.channels import CHANNELS
from training.data.features import extract, feature_specs
from training.data.identity import find_kin, window_digests
from training.data.rows import Rows
from training.data.schema import ChannelSpec

CUT = ("--window-s", "8", "--stride-s", "4")


def windows(draw, count=3, channels=2, samples=8):
    shape = (count, channels, samples)
    X = np.random.default_rng(draw(st.integers(0, 99))).normal(size=shape).astype(np.float32)
    gone = np.array(draw(st.lists(st.booleans(), min_size=X.size, max_size=X.size))).reshape(shape)
    return X, gone


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_channel_is_known_throughout_a_window_or_absent(data):
    X, gone = windows(data.draw)
    held = settled(np.where(gone, np.nan, X))
    assert is_settled(held)
    assert settled(held) is held
    assert (absent(held) == (gone.mean(axis=2) > 1 - KNOWN_MIN)).all()
    kept = ~absent(held)
    assert (held == X)[~gone & kept[..., None]].all()  # what was measured stays what it was
    for n, c in np.argwhere(kept):
        there = np.flatnonzero(~gone[n, c])
        np.testing.assert_allclose(held[n, c], np.interp(np.arange(8), there, X[n, c, there]), rtol=1e-6, atol=1e-7)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_only_the_features_of_an_absent_channel_are_missing(data):
    specs = tuple(ChannelSpec(name=f"c{i}", unit="", kind="gauge", modes=("oracle", "realistic")) for i in range(3))
    X, gone = windows(data.draw, channels=3)
    lost = gone[:, :, 0]
    some = np.where(lost[..., None], np.nan, X)
    whole, found = extract(X, specs, 1.0), extract(some, specs, 1.0)
    needs = [[int(name[1:]) for name in channels_of(feature.name)] for feature in feature_specs(specs)]
    missing = np.stack([lost[:, channels].any(axis=1) for channels in needs], axis=1)
    assert (np.isnan(found) == missing).all()
    assert (found == whole)[~missing].all()
    names = [feature.name for feature in feature_specs(specs)]
    assert (without(X, ["c0", "c1", "c2"], ["c1"])[:, [0, 2]] == X[:, [0, 2]]).all()
    assert columns_of(names, "c1").tolist() == [place for place, channels in enumerate(needs) if 1 in channels]


def test_names_of_channels_do_not_read_as_correlations():
    assert all(channels_of(f"{name}.mean") == (name,) for name in CHANNELS)


def test_what_both_lack_makes_no_kin():
    """Bits of NaN would be the most telling samples of all, and every window a copy of every other."""
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.integers(0, 2, (40, 1, 8)), np.full((40, 1, 8), np.nan)], axis=1).astype(np.float32)
    ids = np.arange(40).astype(str)
    rows = Rows.of(episode=ids, host=ids, t_start=np.arange(40) * 9.0, t_end=np.arange(40) * 9.0 + 8, label=ids)
    assert find_kin(X, ["a", "b"], rows).strangers is None
    other = X.copy()
    other[:, 1].view(np.uint32)[:] |= 0x80000000  # another NaN
    assert (window_digests(other, ["a", "b"]) == window_digests(X, ["a", "b"])).all()


# -- tables ------------------------------------------------------------------------------------------------------------


def test_an_empty_cell_in_seven_loses_no_window(ingested):
    rows = recordings().with_columns(z=pl.col("x").reverse())
    every = ingested.taken(rows, *CUT)["windows"]
    holes = pl.when(pl.int_range(pl.len()) % 7 == 3).then(None).otherwise("x")
    found = ingested.taken(rows.with_columns(x=holes), *CUT)
    assert found["windows"] == every
    assert found["understood"]["missing"] > 0
    assert not np.isnan(ingested.load().tensors).any()


@pytest.mark.parametrize(("most", "kept"), [(("--max-missing", "0.3"), 1.0), ((), 0.5), (("--max-missing", "0"), 0.5)])
def test_windows_that_miss_too_much_are_left_out_and_counted(ingested, most, kept):
    rows = recordings().with_columns(z=pl.col("x").reverse())
    every = ingested.taken(rows, *CUT)["windows"]
    holes = attack(rows) & (pl.int_range(pl.len()) % 2 == 1)
    found = ingested.taken(rows.with_columns(z=pl.when(holes).then(None).otherwise("z")), *CUT, *most)
    assert found["windows"] == every * kept
    said = found["understood"]["left_out"]
    assert (kept == 1) == (not said)
    assert kept == 1 or "(32 of 32 of attack)" in said[0]
    assert kept < 1 or any("50 % of z is missing in windows of attack" in note for note in found["notes"])


def test_a_channel_that_a_host_lacks_is_absent_there_and_costs_no_window(ingested):
    rows = recordings().with_columns(temp=pl.when(pl.col("host") == "b").then(None).otherwise(pl.col("x").reverse()))
    whole = ingested.taken(rows.drop("temp"), *CUT)["windows"]
    found = ingested.taken(rows, *CUT)
    assert found["windows"] == whole
    assert any(note.startswith("The host b has no value of temp: absent there") for note in found["notes"])
    data = ingested.load()
    place = data.channel_names.index("temp")
    assert (np.isnan(data.tensors[:, place]).all(axis=1) == (data.rows.host == "b")).all()
    assert not np.isnan(data.tensors[:, 1 - place]).any()


def test_what_a_host_cannot_measure_does_not_thin_what_it_misses(ingested):
    rows = recordings().with_columns(temp=pl.when(pl.col("host") == "b").then(None).otherwise(pl.col("x").reverse()))
    every = ingested.taken(rows, *CUT)["windows"]
    holes = (pl.col("host") == "b") & (pl.int_range(pl.len()) % 2 == 1)  # half of the one channel that it has
    found = ingested.taken(rows.with_columns(x=pl.when(holes).then(None).otherwise("x")), *CUT, "--max-missing", "0.3")
    assert found["windows"] == every * 3 / 4


def test_a_host_lacks_what_half_of_its_windows_lack():
    X = np.zeros((7, 2, 4))
    X[[0, 2, 4], 0] = np.nan  # 2 of 4 windows of one host, 1 of 3 of the other
    assert lacking_hosts(X, np.array(list("baababa"))).tolist() == [[True, False], [False, False]]


def test_a_channel_without_any_value_is_named(ingested):
    X = np.random.default_rng(0).normal(size=(24, 2, 8))
    X[:, 1] = np.nan
    said = ingested.refused({"X": X, "y": np.arange(24) % 2, "channel": ["a", "b"]})
    assert "No window has a value of the channel 'b': leave it out with --ignore b" in said


# -- sensors slower than the others ------------------------------------------------------------------------------------


def each_fifth(name, host=""):
    slow = (pl.int_range(pl.len()) % 5 == 0) | ((pl.col("host") != host) if host else False)
    return pl.when(slow).then(name).alias(name)


def test_a_channel_too_slow_for_all_windows_is_refused_with_the_rate_that_keeps_it(ingested):
    rows = recordings().with_columns(temp=pl.col("x").reverse(), v=-pl.col("x"), w=pl.col("x").abs())
    slow = rows.with_columns(each_fifth("temp"))
    said = ingested.refused(slow, *CUT)
    assert "temp has a value each 5 s only" in said
    assert "say --hz 0.2 --window-s 20, or leave it out with --ignore temp" in said
    assert ingested.taken(slow, *CUT, "--ignore", "temp")["channels"]["oracle"] == 3
    ingested.taken(slow, "--hz", "0.2", "--window-s", "20", "--stride-s", "10")
    assert not np.isnan(ingested.load().tensors).any()


@pytest.mark.parametrize(("extra", "windows"), [((), 0), (("--max-missing", "0.5"), 16)])
def test_a_host_that_samples_a_channel_slower_is_named_with_its_step(ingested, extra, windows):
    rows = recordings().with_columns(net=pl.col("x").reverse(), v=-pl.col("x"))
    found = ingested.taken(rows.with_columns(each_fifth("net", "b")), *CUT, *extra)
    said = [note for note in found["understood"]["notes"] if note.startswith("net of the host b has a value each 5 s")]
    assert len(said) == 1
    assert said[0].endswith("say --hz 0.2 --window-s 20.")
    assert found["understood"]["hosts"].get("b", 0) == windows


def test_an_archive_whose_windows_hold_few_samples_of_a_channel_is_advised_no_rate(ingested):
    X = np.random.default_rng(0).normal(size=(40, 3, 8))
    X[:, 2, np.arange(8) % 4 != 0] = np.nan
    said = ingested.refused({"X": X, "y": np.arange(40) % 2, "host": np.repeat(["a", "b"], 20)})
    assert "has a value in 1 of 4 samples only" in said
    assert "--hz" not in said


def test_a_channel_with_values_in_few_windows_only_is_noted():
    gone = np.full((40, 2), 8)
    gone[:, 0] = 0
    gone[0, 1], gone[1, 1] = 0, 5
    (found,) = rare_channels(["a", "b"], np.repeat("h", 40), gone, 8)
    assert (found.channel, found.hosts, found.every) == ("b", (), 0)
    assert rare_channels(["a", "b"], np.repeat("h", 40), np.where(gone == 8, 4, gone), 8) == []


def test_a_sensor_that_ended_at_once_is_refused_without_advice_on_a_rate(ingested):
    rows = recordings().with_columns(temp=pl.when(pl.int_range(320) < 3).then(1.5), v=-pl.col("x"))
    said = ingested.refused(rows, *CUT)
    assert "temp has values in few windows, too few in all: bring more of its samples, or leave it out with" in said
    assert "--hz" not in said
