"""Put samples on an even grid, and choose the places of windows on it; all functions are pure.

Recorders sample when they get the processor, not exactly on time. Samples are first put on an even grid, where counters
become rates per second. Then windows are placed on the grid at a fixed stride. A window lies inside one episode, and
inside one span of time with the same class. No window contains a hole, which is a grid row in a long time without a
complete sample. A complete sample has a value of each channel that the episode ever measures.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from training.data.values import Bools, Floats, Floats32, Ints

ClassSpan = tuple[float, float, str | None]  # from, to, class


def gap_limit_s(sample_hz: float) -> float:
    """Return the most seconds that may pass between two complete samples without a hole: three sampling intervals, at
    least half a second."""
    return max(3.0 / sample_hz, 0.5)


class Grid(NamedTuple):
    """An episode on an even grid of G rows. ``start_s`` is the time of the grid's first edge, in seconds of the
    episode.

    ``values`` is float32 (G, C): row k covers the time from edge k to edge k + 1; counters are rates per second. A
    channel that the episode never measured is NaN. ``holes`` (G,) marks the rows that no window may contain.
    """

    start_s: float
    sample_hz: float
    values: Floats32
    holes: Bools


def to_grid(t: Floats, values: Floats, is_counter: Bools, sample_hz: float) -> Grid:
    """Return the grid of ``sample_hz`` rows a second for samples ``values`` (S, C), taken at the ascending times ``t``.

    Missing samples are bridged by straight lines between their neighbours. Where more time than ``gap_limit_s`` passes
    without a complete sample, also before the first and after the last, the rows are holes. A counter that falls has
    been reset: that step counts as no growth.
    """
    # A tenth of a step of leave: an even recording is not to lose its last row to jitter.
    count = max(0, int((t[-1] - t[0]) * sample_hz + 0.1)) if len(t) > 1 else 0
    edges = t[0] + 1.0 / sample_hz * np.arange(count + 1) if count else np.zeros(1)
    measured = np.asarray(np.isfinite(values).any(axis=0))
    complete = np.isfinite(values[:, measured]).all(axis=1) & measured.any()
    holes = _holes(edges, t[complete], gap_limit_s(sample_hz))
    grown = values.astype(float)
    for channel in np.flatnonzero(measured & is_counter).tolist():
        present = np.isfinite(values[:, channel])
        steps = np.maximum(np.diff(values[present, channel]), 0.0)  # a value that falls is a reset, and counts as none
        grown[present, channel] = np.concatenate([[0.0], np.cumsum(steps)])
    return Grid(float(edges[0]), sample_hz, on_edges(edges, t, grown, is_counter), holes)


def on_edges(edges: Floats, t: Floats, values: Floats, is_counter: Bools) -> Floats32:
    """Return the value (E - 1, C) of each channel between neighbouring ``edges`` (E,): a counter's growth per second, a
    gauge's level at the later edge.

    ``values`` (S, C) are samples at the times ``t``; a channel without any value is NaN.
    """
    result = np.full((len(edges) - 1, values.shape[1]), np.nan, np.float32)
    for channel in np.flatnonzero(np.isfinite(values).any(axis=0)).tolist() if len(result) else ():
        present = np.isfinite(values[:, channel])
        column, at = values[present, channel], t[present]
        if is_counter[channel]:
            result[:, channel] = np.diff(np.interp(edges, at, column)) / np.diff(edges)
        else:
            result[:, channel] = np.interp(edges[1:], at, column)
    return result


def _holes(edges: Floats, t: Floats, limit_s: float) -> Bools:
    """Return a mask of the grid rows that overlap a time longer than ``limit_s`` without a complete sample; ``t`` has
    the times of these samples."""
    if not len(t):
        return np.ones(len(edges) - 1, bool)
    return holes_between(edges, np.concatenate([[min(edges[0], t[0])], t, [max(edges[-1], t[-1])]]), limit_s)


def holes_between(edges: Floats, bounds: Floats, limit_s: float) -> Bools:
    """Return a mask of the grid rows that overlap a time longer than ``limit_s`` between two neighbours among the
    ascending ``bounds``."""
    holes = np.zeros(len(edges) - 1, bool)
    for i in np.flatnonzero(np.diff(bounds) > limit_s):
        holes |= (edges[1:] > bounds[i]) & (edges[:-1] < bounds[i + 1])
    return holes


def class_spans(label_t: Sequence[float], classes: Sequence[str | None], end_s: float) -> list[ClassSpan]:
    """Return the spans (from, to, class) of time with one class, in order; neighbouring phases of equal class are
    merged.

    The class None means that the class in this span is unknown.
    """
    spans: list[ClassSpan] = []
    for start, stop, name in zip(label_t, [*label_t[1:], end_s], classes, strict=True):
        if stop <= start:
            continue
        if spans and spans[-1][2] == name and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], stop, name)
        else:
            spans.append((start, stop, name))
    return spans


def placed_rows(grid: Grid, spans: Sequence[ClassSpan], window: int, stride: int) -> tuple[Ints, Ints]:
    """Return the first grid row of each window, and the number of the span in which the window lies.

    Windows have ``window`` rows and begin every ``stride`` rows. Windows with a hole are left out. Windows that are not
    inside one span of a known class, with a tolerance of half a row, are left out.
    """
    step = 1.0 / grid.sample_hz
    slack = step / 2  # labels and grid run on the same clock, but not on the same ticks
    blocked = np.concatenate([[0], np.cumsum(grid.holes)])
    rows = np.arange(0, len(grid.holes) - window + 1, stride)
    rows = rows[blocked[rows + window] == blocked[rows]]
    begin, end = (np.array([span[place] for span in spans], float) for place in (0, 1))
    known = np.array([span[2] is not None for span in spans], bool)
    start = grid.start_s + rows * step
    # Spans follow each other: the first that ends late enough is the only one that may have begun early enough.
    of = np.searchsorted(end + slack, start + window * step)
    inside = of < len(spans)
    rows, start, of = rows[inside], start[inside], of[inside]
    inside = known[of] & (begin[of] <= start + slack)
    return rows[inside], of[inside]
