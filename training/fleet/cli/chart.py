"""Charts of plain characters. Pure: points in, lines of text out.

One curve is drawn in dots of Braille, four rows and two columns a cell; several, or where the stream has no such signs,
in letters, so that they can be told apart without colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

Points = Sequence[tuple[float, float]]
Cell = tuple[str, int | None]  # a sign, and the number of the curve that it belongs to

BLANK: Cell = (" ", None)
SHARED = "*"  # a cell of several curves
BAR = "┊"
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of Braille, by row and column
LEVELS = "▁▂▃▄▅▆▇█"
MARGIN_MAX = 12


@dataclass(frozen=True)
class Panel:
    """A chart's area: the ranges of both axes, and its size in cells. With ``log`` the y axis is logarithmic."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: int
    height: int
    log: bool = False
    cells: list[list[Cell]] = field(default_factory=list)

    @classmethod
    def around(cls, curves: Sequence[Points], width: int, height: int, *, log: bool = False) -> Panel | None:
        """Make a panel that holds these curves; None without a point. A logarithm leaves out what is not above 0."""
        every = [(x, y) for curve in curves for x, y in curve if not log or y > 0]
        if not every:
            return None
        xs, ys = [x for x, _ in every], [y for _, y in every]
        made = cls(_wide(min(xs), max(xs)), _wide(min(ys), max(ys)), width, height, log)
        made.cells.extend([BLANK] * width for _ in range(height))
        return made

    def dots(self, curve: Points) -> None:
        """Draw one curve in Braille."""
        grid = [[0] * self.width for _ in range(self.height)]
        for column, row in self._path(curve, 2 * self.width, 4 * self.height):
            grid[row // 4][column // 2] |= DOTS[row % 4][column % 2]
        for cells, masks in zip(self.cells, grid, strict=True):
            cells[:] = [(chr(0x2800 + mask), 0) if mask else cell for cell, mask in zip(cells, masks, strict=True)]

    def letters(self, curves: Sequence[Points], signs: str) -> None:
        """Draw each curve in its sign of ``signs``, and what several share in an asterisk."""
        for number, curve in enumerate(curves):
            for column, row in self._path(curve, self.width, self.height):
                other = self.cells[row][column][1]
                alone = other is None or other == number
                self.cells[row][column] = (signs[number], number) if alone else (SHARED, -1)

    def bar(self, x: float, sign: str = BAR) -> None:
        """Mark a place of the x axis from top to bottom, behind what is drawn."""
        column = self._place(x, self.x, self.width)
        for cells in self.cells:
            if cells[column] == BLANK:
                cells[column] = (sign, None)

    def labels(self) -> list[str]:
        """Return the label of each row: the highest, middle and lowest value, all of one width."""
        shown = {0: self.y[1], self.height - 1: self.y[0]}
        if self.height >= 5:
            middle = (self.height - 1) / 2
            share = middle / (self.height - 1)
            shown[round(middle)] = self._value(1 - share)
        told = [figure(shown[row]) if row in shown else "" for row in range(self.height)]
        wide = max(map(len, told))
        return [label.rjust(wide) for label in told]

    def _value(self, share: float) -> float:
        low, high = self.y
        if self.log:
            return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        return low + share * (high - low)

    def _path(self, curve: Points, width: int, height: int) -> Iterator[tuple[int, int]]:
        """Walk over the places (column, row) of a curve, with straight lines between its points."""
        known = [(x, y) for x, y in curve if not self.log or y > 0]
        places = [(self._place(x, self.x, width), self._row(y, height)) for x, y in known]
        for before, place in zip([places[0], *places] if places else [], places, strict=False):
            yield from _line(before, place)

    def _row(self, y: float, height: int) -> int:
        if self.log:
            spread = (math.log(self.y[0]), math.log(self.y[1]))
            return height - 1 - self._place(math.log(y), spread, height)
        return height - 1 - self._place(y, self.y, height)

    @staticmethod
    def _place(value: float, spread: tuple[float, float], count: int) -> int:
        low, high = spread
        return max(0, min(count - 1, round((value - low) / (high - low) * (count - 1))))


def _wide(low: float, high: float) -> tuple[float, float]:
    """Make a range of one value wide enough to draw in."""
    if high > low:
        return low, high
    room = abs(low) * 0.1 or 1.0
    return low - room, high + room


def _line(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    for step in range(steps + 1):
        share = step / steps
        yield round(start[0] + share * (end[0] - start[0])), round(start[1] + share * (end[1] - start[1]))


def figure(value: float) -> str:
    """Write a number in few signs: ``0.412``, ``37``, ``1.2e-05``."""
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:.3g}"


def spark(values: Sequence[float], width: int, levels: str = LEVELS) -> str:
    """Draw values from 0 to their highest in one row of at most ``width`` signs; of several in a cell the highest."""
    if not values:
        return ""
    cells = min(width, len(values))
    top = max(values)
    peaks = [max(values[len(values) * n // cells : len(values) * (n + 1) // cells]) for n in range(cells)]
    return "".join(levels[round(peak / top * (len(levels) - 1)) if top > 0 else 0] for peak in peaks)
