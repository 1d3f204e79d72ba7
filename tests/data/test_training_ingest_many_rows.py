"""Rows and windows beyond memory: what is worked on in spans is what it is in one piece."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_changes import noise, recordings

from training.data import scratch, tensors
from training.data.coded import Coded, numbered
from training.data.errors import DataError
from training.data.ingest import even, even_rows, rows, samples, times
from training.data.ingest.cells import row_order
from training.data.ingest.tables import read_table
from training.data.rows import Rows
from training.data.scratch import WorkingMemory, counted, edges_of, median
from training.data.tensors import StoredIndex, WindowIndex

SPANS = st.integers(1, 30)


def in_spans(of, work):
    """The result of ``work`` where so many rows are looked at at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scratch, "SPAN_ROWS", of)
        patch.setattr(times, "SPAN_ROWS", of)
        return work()


def same(one, other):
    return all(np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind == "f") for a, b in zip(one, other, strict=True))


@given(values=st.lists(st.floats(-1e300, 1e300) | st.sampled_from([0.0, -0.0, 1.5, 1e-310]), min_size=1), span=SPANS)
def test_a_median_needs_no_more_than_some_values_at_a_time(values, span):
    found = in_spans(
        span, lambda: median(lambda: (np.array(values[low : low + 7]) for low in range(0, len(values), 7)))
    )
    assert found == pytest.approx(np.median(values), rel=1e-15)


@given(group=st.lists(st.integers(0, 3), min_size=1).map(sorted), span=SPANS)
def test_groups_are_counted_and_bounded_alike_in_any_spans(group, span):
    group = np.array(group, dtype=np.int32)
    counts = np.bincount(group, minlength=3)
    assert in_spans(span, lambda: counted(group, 3)).tolist() == counts.tolist()
    edges = in_spans(span, lambda: edges_of(group))
    assert [high - low for low, high in edges] == counts[counts > 0].tolist()


@given(seed=st.integers(0, 999), count=st.integers(1, 60), timed=st.booleans())
@settings(deadline=None, max_examples=20)
def test_rows_are_sorted_by_group_and_time_equal_ones_as_they_came(seed, count, timed):
    rng = np.random.default_rng(seed)
    group, t = rng.integers(0, 3, count).astype(np.int32), rng.integers(0, 9, count).astype(np.float64)
    wanted = np.lexsort((t, group)) if timed else np.argsort(group, kind="stable")
    assert row_order(t if timed else None, group, WorkingMemory()).tolist() == wanted.tolist()


def course(seed):
    """Times, groups, and a total of a few recordings: with gaps, jitter, doubles, empty cells and resets."""
    rng = np.random.default_rng(seed)
    group = np.sort(rng.integers(0, 3, 60)).astype(np.int32)
    t = np.concatenate([np.cumsum(rng.choice([1, 1, 1, 1, 0.4, 2.2, 7], n)) for n in np.bincount(group) if n])
    total = np.cumsum(rng.integers(0, 5, 60)).astype(float)
    total[rng.random(60) < rng.choice([0, 0.3, 0.8])] = np.nan
    total[40:] -= rng.choice([0, 30])
    return rng, t, group, total


@given(seed=st.integers(0, 9999), span=SPANS)
@settings(deadline=None, max_examples=50)
def test_time_is_made_even_alike_in_any_spans(seed, span):
    rng, t, group, total = course(seed)
    label = rng.integers(0, 2, 60) * (rng.random() < 0.5)
    values = np.stack([total, rng.random(60)], axis=1)
    hz, is_rate = float(rng.choice([1, 0.5, 1.1])), np.array([True, False])
    one = edges_of(group)[0]
    mine = [column[slice(*one)] for column in (t, values, label)]

    def made():
        resampled = even.resample(*mine, hz, is_rate) if mine[0].size > 1 else ()
        steps = times.usual_steps(t, group, "abc", least=1)
        return [even.rates(total, t, group), *resampled, list(steps.values()), times.other_rates(mine[0], hz)]

    once, again = made(), in_spans(span, made)
    for a, b in zip(once, again, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-9)


@given(seed=st.integers(0, 9999), span=SPANS, more=st.integers(0, 12))
@settings(deadline=None)
def test_doubles_are_folded_and_disorder_counted_alike_in_any_spans(seed, span, more):
    rng, t, group, total = course(seed)
    again = np.r_[np.arange(60), rng.integers(1, 60, more)]
    order = again[np.lexsort((t[again], group[again]))]

    def folded():
        values = np.stack([total, total + 1], axis=1)[order]
        found = even.fold_doubles(t[order], group[order], np.zeros(order.size), values, np.array([True, False]))
        shuffled = again[np.random.default_rng(seed).permutation(again.size)]
        return found.keep, found.folded, found.torn or -1, values, rows.out_of_order(t[shuffled], group[shuffled])

    once = folded()
    assert same(once, in_spans(span, folded))
    shuffled = again[np.random.default_rng(seed).permutation(again.size)]
    late = [
        (t[shuffled[:n]][group[shuffled[:n]] == group[row]] > t[row]).any() for n, row in enumerate(shuffled.tolist())
    ]
    assert once[-1] == sum(late)


@pytest.mark.parametrize("flags", [(), ("--counter", "v"), ("--hz", "0.5"), ("--labels-from",), ("--episode-s", "16")])
def test_a_table_is_read_alike_in_any_spans(ingested, tmp_path, flags):
    table = recordings("ab", 3, samples=50).with_columns(v=pl.Series(noise(300, 3)).abs().cum_sum())
    late = table.filter(pl.col("episode") == "e4").with_columns(t=pl.col("t") + pl.Series(noise(50) / 9))
    table = pl.concat(
        [table.filter(pl.col("episode") != "e4"), late, table[:5], table[[70]].with_columns(x=pl.lit(0.5))]
    )
    if "--labels-from" in flags:
        log = table.group_by("episode").agg(start=pl.col("t").max() - 20, end=pl.col("t").max(), label=pl.lit("attack"))
        log.sort("start").drop("episode").write_csv(tmp_path / "log.csv")
        table, flags = table.drop("label"), ("--labels-from", str(tmp_path / "log.csv"), "--rest", "normal")
    table = table.sample(fraction=1, shuffle=True, seed=1)
    options = ("--window-s", "8", "--level", "v", *flags)

    def found():
        said = ingested.taken(table, *options)["understood"]
        return said, (ingested.out / "tensor_window_v1" / "manifest.json").read_bytes()

    assert in_spans(13, found) == found()


@given(
    steps=st.lists(st.sampled_from([1.0, 1.0, 0.2, 2.5]), min_size=1, max_size=40),
    label=st.lists(st.sampled_from([0, 0, 0, 1]), min_size=41, max_size=41),
    span=SPANS,
)
def test_a_stretch_ends_at_each_gap_and_change_in_any_spans(steps, label, span):
    t, of = np.cumsum([0.0, *steps]), np.array(label)[: len(steps) + 1]
    broken = [n + 1 for n, step in enumerate(steps) if step != 1 or of[n] != of[n + 1]]
    assert in_spans(span, lambda: samples.stretch_edges(t, of, 1.0)).tolist() == [0, *broken, t.size]


@given(columns=st.integers(1, 3), seed=st.integers(0, 99))
@settings(max_examples=5, deadline=None)
def test_recordings_of_many_names_are_numbered_in_their_order(columns, seed):
    """More combinations of names than 32 bits count."""
    names = np.char.zfill(np.arange(70_000).astype(str), 5)
    rng = np.random.default_rng(seed)
    codes = [rng.permutation(70_000).astype(np.int32) for _ in range(columns)]
    assert numbered(*(Coded(names, each) for each in codes)).tolist() == codes[0].tolist()


def test_references_too_short_are_named_alike_in_any_spans(ingested):
    own = pl.col("t") % 1000 < pl.when(pl.col("host") == "b").then(4).otherwise(10)
    table = recordings("abc", 1, samples=60).with_columns(reference=own)
    wanted = "No stretch of the reference of b is as long as a window"

    def found():
        return ingested.taken(table, "--window-s", "8")["understood"]["notes"]

    notes = in_spans(13, found)
    assert any(wanted in note for note in notes)
    assert notes == found()


@given(seed=st.integers(0, 9999), span=SPANS)
def test_resets_of_a_total_are_counted_alike_in_any_spans(seed, span):
    _, _, group, total = course(seed)
    known = [total[(group == number) & ~np.isnan(total)] for number in range(3)]
    steps = np.concatenate([np.diff(of) for of in known])
    assert in_spans(span, lambda: even_rows._falls(total, group)) == ((steps < 0).sum(), steps.size)


# Steps whose sums are exact: a rounded sum would take a step of 1.5 for a longer one.
@given(steps=st.lists(st.sampled_from([1.0, 1.5, 1.625, 9.0, 30.0])), span=SPANS)
def test_gaps_are_counted_and_measured_alike_in_any_spans(steps, span):
    gaps = [step for step in steps if step > 1.5]
    count, longest = in_spans(span, lambda: samples._gaps(np.cumsum([0.0, *steps]), 1.0))
    assert (count, longest) == (len(gaps), pytest.approx(max(gaps, default=0.0)))


def test_a_header_in_the_midst_is_named_by_its_row(tmp_path):
    lines = [f"{n},normal,{n % 7}" for n in range(90)]
    lines.insert(70, "t,label,x")
    (tmp_path / "a.csv").write_text("\n".join(["t,label,x", *lines]))
    with pytest.raises(DataError, match=r"Row 71 of .* repeats the names of the columns"):
        read_table(tmp_path / "a.csv", {}, ())


def test_times_that_begin_anew_are_refused_alike_in_any_spans(ingested):
    table = recordings("a", 2, samples=60).with_columns(
        episode=pl.lit("e"), t=pl.col("t") % 1000 + 0.25 * (pl.col("t") > 999)
    )
    sentence = ingested.refused(table, "--window-s", "8")
    assert "start over at row 61 and overlap" in sentence
    assert in_spans(7, lambda: ingested.refused(table, "--window-s", "8")) == sentence


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
    assert index.write(tmp_path / "b.parquet") == once == StoredIndex(tmp_path / "a.parquet").digest()
    assert pl.read_parquet(tmp_path / "b.parquet").equals(whole)
