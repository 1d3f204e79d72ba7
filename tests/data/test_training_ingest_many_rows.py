"""The rows of a table: sorted, counted, and refused where they cannot be one recording."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_changes import recordings

from training.data import tensors
from training.data.coded import Coded, numbered
from training.data.ingest import rows, samples, times
from training.data.ingest.cells import row_order
from training.data.ingest.even import rows_of_doubles
from training.data.rows import Rows
from training.data.scratch import WorkingMemory, edges_of
from training.data.tensors import StoredIndex, WindowIndex


@given(seed=st.integers(0, 999), count=st.integers(1, 60), timed=st.booleans())
@settings(deadline=None, max_examples=20)
def test_rows_are_sorted_by_group_and_time_equal_ones_as_they_came(seed, count, timed):
    rng = np.random.default_rng(seed)
    group, t = rng.integers(0, 3, count).astype(np.int32), rng.integers(0, 9, count).astype(np.float64)
    wanted = np.lexsort((t, group)) if timed else np.argsort(group, kind="stable")
    assert row_order(t if timed else None, group, WorkingMemory()).tolist() == wanted.tolist()


@given(seed=st.integers(0, 9999), more=st.integers(0, 12))
@settings(deadline=None)
def test_rows_behind_later_ones_of_their_group_are_counted(seed, more):
    rng = np.random.default_rng(seed)
    group, t = rng.integers(0, 3, 40 + more).astype(np.int32), rng.integers(0, 30, 40 + more).astype(float)
    late = [(t[:n][group[:n] == group[n]] > t[n]).any() for n in range(t.size)]
    assert rows.out_of_order(t, group) == sum(late)


@given(
    steps=st.lists(st.sampled_from([1.0, 1.0, 0.2, 2.5]), min_size=1, max_size=40),
    label=st.lists(st.sampled_from([0, 0, 0, 1]), min_size=41, max_size=41),
)
def test_a_stretch_ends_at_each_gap_and_change(steps, label):
    t, of = np.cumsum([0.0, *steps]), np.array(label)[: len(steps) + 1]
    broken = [n + 1 for n, step in enumerate(steps) if step != 1 or of[n] != of[n + 1]]
    assert samples.stretch_edges(t, of, 1.0).tolist() == [0, *broken, t.size]


def test_many_rows_are_compared_as_if_at_once():
    rng = np.random.default_rng(5)
    t, group = np.cumsum(rng.integers(0, 3, 300_000)).astype(float), (np.arange(300_000) >= 131_072).astype(np.int32)
    new, steps = np.diff(group) != 0, np.diff(t)
    same = (steps == 0) & ~new
    np.testing.assert_array_equal(np.concatenate([*times.steps_of(t, group)]), np.where(new, np.nan, steps))
    assert edges_of(group) == [(0, 131_072), (131_072, 300_000)]
    assert samples.stretch_edges(t, group, 1.0).tolist() == [0, *np.flatnonzero((steps != 1) | new) + 1, t.size]
    assert rows_of_doubles(t, group).tolist() == np.flatnonzero(np.r_[False, same] | np.r_[same, False]).tolist()


@given(columns=st.integers(1, 3), seed=st.integers(0, 99))
@settings(max_examples=5, deadline=None)
def test_recordings_of_many_names_are_numbered_in_their_order(columns, seed):
    """More combinations of names than 32 bits count."""
    names = np.char.zfill(np.arange(70_000).astype(str), 5)
    rng = np.random.default_rng(seed)
    codes = [rng.permutation(70_000).astype(np.int32) for _ in range(columns)]
    assert numbered(*(Coded(names, each) for each in codes)).tolist() == codes[0].tolist()


def test_references_too_short_are_named(ingested):
    own = pl.col("t") % 1000 < pl.when(pl.col("host") == "b").then(4).otherwise(10)
    table = recordings("abc", 1, samples=60).with_columns(reference=own)
    notes = ingested.taken(table, "--window-s", "8")["understood"]["notes"]
    assert any("No stretch of the reference of b is as long as a window" in note for note in notes)


# Steps whose sums are exact: a rounded sum would take a step of 1.5 for a longer one.
@given(steps=st.lists(st.sampled_from([1.0, 1.5, 1.625, 9.0, 30.0])))
def test_gaps_are_counted_and_measured(steps):
    gaps = [step for step in steps if step > 1.5]
    count, longest = samples._gaps(np.cumsum([0.0, *steps]), 1.0)
    assert (count, longest) == (len(gaps), pytest.approx(max(gaps, default=0.0)))


def test_a_window_of_too_few_samples_is_refused_with_its_flag(ingested):
    sentence = ingested.refused(recordings("ab", 2, hz=0.1), "--window-s", "30")
    assert "10 s apart, so that a window of 30 s holds 3 where 4 are needed: say --window-s 40 or more" in sentence


def test_an_index_is_made_alike_in_any_parts(tmp_path, monkeypatch):
    episode = np.random.default_rng(0).choice(["a", "b", "cc"], 30)
    index = WindowIndex(Rows.of(episode=episode, host=["h"] * 30, label=["ä"] * 30, t_start=np.arange(30.0)))
    once = index.write(tmp_path / "a.parquet")
    whole = pl.read_parquet(tmp_path / "a.parquet")
    assert whole["window_id"].to_list() == [f"{e}-{(episode[:n] == e).sum():04}" for n, e in enumerate(episode)]
    monkeypatch.setattr(tensors, "INDEX_ROWS", 7)
    monkeypatch.setattr(tensors, "WIDE_ROWS", 4)
    assert index.write(tmp_path / "b.parquet") == once == StoredIndex(tmp_path / "a.parquet").digest()
    assert pl.read_parquet(tmp_path / "b.parquet").equals(whole)
