"""Windows of a recording that goes on are those of the whole recording, to the last bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.stream import WindowStream
from training.data.windows import placed_rows, to_grid

COUNTERS = np.array([True, False, True, False])
HZ, WINDOW, STRIDE = 8.0, 16, 8


def recorded(steps, lost, resets, seed):
    """Times and values of a recording whose counters reset, and whose samples miss some channels."""
    rng = np.random.default_rng(seed)
    t = np.cumsum([0.3, *steps])
    values = np.cumsum(rng.gamma(1.0, 1e5, size=(t.size, 4)), axis=0)
    values[:, 1] = rng.normal(size=t.size)
    for at in resets:
        values[at % t.size :, 0] -= values[at % t.size, 0]
    for at, channel in lost:
        if at % t.size:  # a channel that is missing at first is not known to exist
            values[at % t.size, channel] = np.nan
    values[:, 3] = np.nan  # never measured
    return t, values


def streamed(t, values):
    stream = WindowStream(COUNTERS, sample_hz=HZ, window=WINDOW, stride=STRIDE)
    cuts = [cut for at, each in zip(t, values, strict=True) for cut in stream.push(at, each)]
    return cuts + stream.end(), stream


def whole(t, values):
    grid = to_grid(t, values, COUNTERS, HZ)
    rows, _ = placed_rows(grid, [(-1.0, t[-1] + 9.0, "any")], WINDOW, STRIDE)
    return [(row, grid.start_s + row / HZ, grid.values[row : row + WINDOW]) for row in rows.tolist()]


late = st.sampled_from([0.125] * 60 + [0.11, 0.14, 0.3] * 4 + [0.6, 5.0, 40.0])  # most windows are whole


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(late, min_size=40, max_size=160),
    lost=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 2)), max_size=4),
    resets=st.lists(st.integers(1, 200), max_size=3),
    seed=st.integers(0, 9),
)
def test_windows_are_those_of_the_whole_recording(steps, lost, resets, seed):
    t, values = recorded(steps, lost, resets, seed)
    cuts, _ = streamed(t, values)
    expected = whole(t, values)
    assert [cut.row for cut in cuts] == [row for row, _, _ in expected]
    for cut, (_, start, grid) in zip(cuts, expected, strict=True):
        assert cut.start_s == pytest.approx(start, abs=1e-9)
        np.testing.assert_array_equal(cut.values, grid)


def test_a_last_sample_that_comes_a_little_early_ends_the_last_window():
    """By less than a tenth of a step: else clocks, and sums of steps, would take the last window away by chance."""
    for early, windows in ((0.0, 1), (0.09, 1), (0.11, 0)):
        t = np.arange(WINDOW + 1) / HZ
        t[-1] -= early / HZ
        values = np.cumsum(np.ones((t.size, 4)), axis=0)
        cuts, _ = streamed(t, values)
        assert [cut.row for cut in cuts] == [row for row, _, _ in whole(t, values)] == [0] * windows


def test_a_window_comes_as_soon_as_its_last_edge_is_measured_and_little_is_kept():
    stream = WindowStream(COUNTERS, sample_hz=HZ, window=WINDOW, stride=STRIDE)
    came = [n for n in range(400) if stream.push(n / HZ, np.full(4, float(n)))]
    assert came == list(range(WINDOW, 400, STRIDE))
    assert len(stream._t) <= WINDOW + STRIDE
    assert stream.blind_s == 0.0


def test_a_channel_that_stays_away_is_noticed():
    stream = WindowStream(COUNTERS, sample_hz=HZ, window=WINDOW, stride=STRIDE)
    for n in range(200):
        lost = np.array([1.0, 1.0, np.nan if n > 100 else 1.0, 1.0])
        stream.push(n / HZ, lost)
    assert stream.blind_s == 99 / HZ
