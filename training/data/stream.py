"""Cut windows from a recording in progress: each window without a hole is returned as soon as no later sample can
change it.

If the recording has one class, and its first sample has a value of each channel, the windows equal, bit for bit, those
that ``placed_rows`` finds on the recording's whole grid (``to_grid``). A window that was returned before the first
sample of a channel lacks this channel; the grid of the whole recording may have a hole there. Only the samples that the
next window needs are kept.
"""

from typing import NamedTuple

import numpy as np

from training.data.values import Bools, Floats, Floats32
from training.data.windows import gap_limit_s, holes_between, on_edges


class GridWindow(NamedTuple):
    """A window: the number of its first grid row, its start in seconds of the recording, and its grid values (T, C)."""

    row: int
    start_s: float
    values: Floats32


class WindowStream:
    """Cuts windows of ``window`` grid rows, one every ``stride`` rows, from the samples that ``push`` gets;
    ``is_counter`` (C,) marks the counters."""

    def __init__(self, is_counter: Bools, *, sample_hz: float, window: int, stride: int) -> None:
        self._is_counter = is_counter
        self._step = 1.0 / sample_hz
        self._hz = sample_hz
        self._limit_s = gap_limit_s(sample_hz)
        self._window, self._stride = window, stride
        self._t: list[float] = []
        self._values: list[Floats] = []  # of counters their growth since the first sample
        self._counted = np.full(is_counter.size, np.nan)
        self._growth = np.zeros(is_counter.size)
        self._measured = np.zeros(is_counter.size, bool)
        self._begin: float | None = None
        self._row = 0
        self.skipped = 0  # windows that a hole touched

    def push(self, t: float, values: Floats) -> list[GridWindow]:
        """Take a sample (C,) at the time ``t``, later than the last one, with NaN for channels that were not measured;
        return the windows that are now final."""
        if self._begin is None:
            self._begin = t
        present = np.isfinite(values)
        counted = present & self._is_counter
        more = np.maximum(values - self._counted, 0.0)
        self._growth[counted & np.isfinite(more)] += more[counted & np.isfinite(more)]
        self._counted[counted] = values[counted]
        self._measured |= present
        self._t.append(t)
        self._values.append(np.where(counted, self._growth, np.where(present, values, np.nan)))
        return self._cut(at_the_end=False)

    def end(self) -> list[GridWindow]:
        """Return the remaining windows, which are final only because no further sample will come."""
        return self._cut(at_the_end=True) if self._t else []

    @property
    def blind_s(self) -> float:
        """The seconds from the last sample with all channels that were ever measured (without one, from the first
        sample that is still kept) to the latest sample."""
        complete = self._complete()
        return self._t[-1] - (self._t[int(np.flatnonzero(complete)[-1])] if complete.any() else self._t[0])

    def _complete(self) -> Bools:
        values = np.array(self._values)[:, self._measured]
        return np.asarray(np.isfinite(values).all(axis=1) & self._measured.any())

    def _edge(self, row: int) -> float:
        assert self._begin is not None
        return self._begin + self._step * row

    def _cut(self, *, at_the_end: bool) -> list[GridWindow]:
        if not at_the_end and self._t[-1] < self._edge(self._row + self._window):
            return []
        t, complete = np.array(self._t), self._complete()
        known = t[complete]
        latest = float(known[-1]) if known.size else float(t[0])
        rows = int((t[-1] - self._edge(0)) * self._hz + 0.1) if t.size > 1 or self._row else 0
        cuts: list[GridWindow] = []
        while True:
            first, last = self._edge(self._row), self._edge(self._row + self._window)
            ready = latest >= last or (at_the_end and rows >= self._row + self._window)
            if not ready and not (t[-1] - latest > self._limit_s and latest < last and first < t[-1]):
                break
            if ready and (values := self._grid(t, known, max(rows, self._row + self._window))) is not None:
                cuts.append(GridWindow(self._row, first, values))
            else:
                self.skipped += 1
            self._row += self._stride
        before = np.flatnonzero(complete & (t <= self._edge(self._row)))
        if before.size:
            del self._t[: int(before[-1])], self._values[: int(before[-1])]
        return cuts

    def _grid(self, t: Floats, known: Floats, rows: int) -> Floats32 | None:
        """Return the grid values (T, C) of the next window; None if the window overlaps a hole."""
        rows_here = np.arange(self._row, self._row + self._window + 1, dtype=float)
        edges: Floats = self._edge(0) + self._step * rows_here
        bounds = np.concatenate([[min(edges[0], known[0])], known, [max(self._edge(rows), known[-1])]])
        if holes_between(edges, bounds, self._limit_s).any():
            return None
        return on_edges(edges, t, np.array(self._values), self._is_counter)
