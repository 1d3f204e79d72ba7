"""Grid and windows: rules of arrays, held against slow and simple statements of the same rules."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.windows import class_spans, gap_limit_s, to_grid

HZ = 8.0


def one_channel(t, values, *, counter, hz=HZ):
    return to_grid(np.asarray(t, dtype=float), np.asarray(values, dtype=float)[:, None], np.array([counter]), hz)


def test_a_steady_counter_is_a_constant_rate_whatever_the_jitter():
    rng = np.random.default_rng(0)
    t = np.arange(80) / HZ + rng.uniform(0, 0.05, 80)
    grid = one_channel(t, 300.0 * t, counter=True)
    np.testing.assert_allclose(grid.values[:-1, 0], 300.0, rtol=1e-4)
    assert not grid.holes.any()


def test_growth_is_neither_lost_nor_invented():
    rng = np.random.default_rng(1)
    t = np.cumsum(rng.uniform(0.05, 0.2, 100))
    counted = np.cumsum(rng.integers(0, 50, 100)).astype(float)
    grid = one_channel(t, counted, counter=True)
    last_edge = t[0] + len(grid.values) / HZ
    expected = np.interp(last_edge, t, counted) - counted[0]
    assert grid.values.sum() / HZ == pytest.approx(expected, rel=1e-5)


def test_a_reset_counts_as_no_growth():
    t = np.arange(17) / HZ
    counted = np.array([0, 10, 20, 30, 40, 50, 60, 70, 0, 10, 20, 30, 40, 50, 60, 70, 80], dtype=float)
    rates = one_channel(t, counted, counter=True).values[:, 0]
    assert rates.min() == 0
    np.testing.assert_allclose(np.delete(rates, 7), 80.0, rtol=1e-5)


def test_gauges_are_levels():
    t = np.arange(17) / HZ
    grid = one_channel(t, 5.0 + t, counter=False)
    np.testing.assert_allclose(grid.values[:, 0], (5.0 + t[1:]), rtol=1e-6)


def test_short_losses_are_bridged_and_long_ones_are_holes():
    t = np.arange(80) / HZ
    values = 100.0 * t
    short, long = values.copy(), values.copy()
    short[20:23] = np.nan  # 0.5 s between the neighbours: bridged
    long[20:26] = np.nan
    bridged = one_channel(t, short, counter=True)
    assert not bridged.holes.any()
    np.testing.assert_allclose(bridged.values, 100.0, rtol=1e-4)
    assert np.flatnonzero(one_channel(t, long, counter=True).holes).tolist() == list(range(19, 26))
    keep = np.r_[0:20, 26:80]
    gap = one_channel(t[keep], values[keep], counter=True)
    assert np.flatnonzero(gap.holes).tolist() == list(range(19, 26))
    assert np.isfinite(gap.values).all()


def test_nothing_but_missing_values_is_all_hole():
    grid = one_channel(np.arange(20) / HZ, np.full(20, np.nan), counter=False)
    assert grid.holes.all()
    assert np.isnan(grid.values).all()


def test_a_channel_that_was_never_measured_makes_no_hole():
    t = np.arange(20) / HZ
    values = np.stack([t, np.full(20, np.nan)], axis=1)
    grid = to_grid(t, values, np.array([False, True]), HZ)
    assert not grid.holes.any()
    assert np.isnan(grid.values[:, 1]).all()
    assert (grid.values[:, :1] == one_channel(t, t, counter=False).values).all()


@given(
    st.lists(st.floats(0.01, 3.0), min_size=1, max_size=60),
    st.lists(st.one_of(st.just(float("nan")), st.floats(-1e9, 1e9)), min_size=61, max_size=61),
    st.booleans(),
    st.sampled_from([1.0, 5.0, 8.0, 50.0]),
)
def test_the_grid_is_finite_where_anything_was_measured_and_every_long_silence_is_a_hole(steps, values, counter, hz):
    t = np.concatenate([[0.0], np.cumsum(steps)])
    values = np.array(values[: len(t)])
    grid = one_channel(t, values, counter=counter, hz=hz)
    assert (np.isnan(grid.values) == np.isnan(values).all()).all()
    heard = t[np.isfinite(values)]
    for row in range(len(grid.values)):
        begin, end = grid.start_s + row / hz, grid.start_s + (row + 1) / hz
        before, after = heard[heard <= begin + 1e-9], heard[heard >= end - 1e-9]
        inside = heard[(heard > begin) & (heard < end)]
        points = [*before[-1:], *inside, *after[:1]]
        silent = max(np.diff(points), default=0.0) if len(points) > 1 else np.inf
        if not grid.holes[row] and len(heard) and before.size and after.size:
            assert silent <= gap_limit_s(hz) + 1e-6


def test_phases_of_one_class_are_one_stretch():
    label_t, classes = [0.0, 5.0, 9.0, 9.0, 12.0], ["benign", "benign", None, "malicious", "benign"]
    spans = class_spans(label_t, classes, 12.0)
    assert spans == [(0.0, 9.0, "benign"), (9.0, 12.0, "malicious")], "what holds for no time is none"


@given(st.integers(2, 400))
def test_an_even_recording_has_as_many_rows_as_intervals(count):
    t = np.arange(count) / HZ
    assert len(one_channel(t, t, counter=False).values) == count - 1
