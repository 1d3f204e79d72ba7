"""Small charts as inline SVG, drawn without a chart library; a report that shows them needs no script and no network.

Equal arguments give equal text. Colours are CSS classes (`s0`, `s1`, …; `grid`, `axis`), so that the page decides about
light and dark. Coordinates are rounded to tenths of a unit of the view box.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from markupsafe import Markup, escape

WIDTH, HEIGHT = 360.0, 280.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 12.0, 14.0, 40.0
COLOURS = 6  # classes s0 … s5 that the page styles

Point = Sequence[float]
Range = tuple[float, float]


class Series(NamedTuple):
    """A line of a chart: its label, its points [x, y], and the radius of the dot drawn on each point (``dots``; empty:
    no dots)."""

    label: str
    points: Sequence[Point]
    dots: Sequence[float] = ()


class Whisker(NamedTuple):
    """A row of a whisker chart: a value and its interval; a ``strong`` row is drawn bold and in colour."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    strong: bool = False


class _Frame(NamedTuple):
    """Holds the ranges of a chart's two axes, and converts data coordinates to coordinates of the view box."""

    x: Range
    y: Range

    def px(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * _share(value, self.x)

    def py(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * _share(value, self.y)


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    x: Range = (0.0, 1.0),
    y: Range = (0.0, 1.0),
    guide: Sequence[Point] = (),
    marks: Sequence[tuple[float, str]] = (),
) -> Markup:
    """Draw lines over axes, with a legend below if there are several lines; ``guide`` is a thin dashed reference line
    (chance, perfection). ``marks`` are places on x with names: a dashed line stands at each, which no
    line crosses, and the name above or below the lines that begin there."""
    frame = _Frame(x, y)
    parts = [_axes(frame, x_label, y_label)]
    if guide:
        parts.append(_polyline(frame, guide, "guide"))
    for at, name in marks:
        parts.append(_line(frame.px(at), HEIGHT - BOTTOM, frame.px(at), TOP, "guide"))
        begins = [next((frame.py(point[1]) for point in one.points if point[0] >= at), HEIGHT) for one in series]
        low = min(begins, default=HEIGHT) < (HEIGHT - BOTTOM + TOP) / 2  # away from a line that begins high there
        parts.append(
            _turned(frame.px(at) + 11, HEIGHT - BOTTOM - 3 if low else TOP, name, "tick" if low else "tick end")
        )
    for number, one in enumerate(series):
        colour = f"s{number % COLOURS}"
        for _, points in groupby(one.points, lambda point: sum(at < point[0] for at, _ in marks)):
            parts.append(_polyline(frame, [*points], f"line {colour}"))
        for point, radius in zip(one.points, one.dots, strict=False):
            parts.append(_dot(frame.px(point[0]), frame.py(point[1]), colour, radius))
    if len(series) > 1:
        parts.append(_legend([one.label for one in series]))
    height = HEIGHT + (16.0 * len(series) if len(series) > 1 else 0.0)
    return _svg(title, height, parts)


def whisker_chart(title: str, rows: Sequence[Whisker], *, guide: float) -> Markup:
    """Draw one row for each value, with its interval if it has one. All rows share a scale that ends at 1 and begins
    0.05 to 0.15 below the smallest value, bound or ``guide``, but not below 0."""
    row_height, label_width = 26.0, 138.0
    bounds = [v for row in rows for v in (row.value, row.low, row.high) if v is not None]
    lowest = min([*bounds, guide])
    x = (max(0.0, int(lowest * 10) / 10 - 0.05), 1.0)
    span = WIDTH - label_width - RIGHT - 40.0

    def px(value: float) -> float:
        return label_width + span * _share(value, x)

    bottom = TOP + row_height * len(rows)
    parts = []
    for tick in _ticks(x, 4):
        parts.append(_line(px(tick), TOP - 6, px(tick), bottom, "grid"))
        parts.append(_text(px(tick), bottom + 14, _number(tick), "tick middle"))
    parts.append(_line(px(guide), TOP - 6, px(guide), bottom, "guide"))
    for number, row in enumerate(rows):
        middle = TOP + row_height * (number + 0.5)
        colour = "s0" if row.strong else "muted"
        weight = " strong" if row.strong else ""
        parts.append(_text(label_width - 10, middle + 4, row.label, f"label end{weight}"))
        if row.low is not None and row.high is not None:
            parts.append(_line(px(row.low), middle, px(row.high), middle, f"whisker {colour}"))
        parts.append(_dot(px(row.value), middle, colour))
        parts.append(_text(WIDTH - 2, middle + 4, f"{row.value:.3f}", f"label end{weight}"))
    return _svg(title, bottom + 22, parts)


def nice_range(values: Sequence[float], *, floor: float | None = None) -> Range:
    """Return a range that is never empty and holds all values (at least one), with a margin at the upper end, though
    not above 1, where shares end, and at the lower end unless that is ``floor``. If no value is below ``floor``, the
    range begins exactly at ``floor``."""
    low, high = min(values), max(values)
    if floor is not None and low >= floor:
        low = floor
    room = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    return (low if low == floor else low - room, 1.0 if high <= 1.0 < high + room else high + room)


def _axes(frame: _Frame, x_label: str, y_label: str) -> Markup:
    parts = []
    floor, ceiling = HEIGHT - BOTTOM, TOP
    for tick in _ticks(frame.x, 5):
        at = frame.px(tick)
        parts.append(_line(at, floor, at, ceiling, "grid"))
        parts.append(_text(at, floor + 15, _number(tick), "tick middle"))
    for tick in _ticks(frame.y, 5):
        at = frame.py(tick)
        parts.append(_line(LEFT, at, WIDTH - RIGHT, at, "grid"))
        parts.append(_text(LEFT - 6, at + 4, _number(tick), "tick end"))
    parts.append(_line(LEFT, floor, WIDTH - RIGHT, floor, "axis"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x_label, "label middle"))
    parts.append(_turned(11, (TOP + HEIGHT - BOTTOM) / 2, y_label, "label middle"))
    return Markup("").join(parts)


def _turned(x: float, y: float, text: str, css: str) -> Markup:
    turned = Markup('<text class="{}" transform="translate({} {}) rotate(-90)">{}</text>')
    return turned.format(css, _unit(x), _unit(y), text)


def _ticks(span: Range, about: int) -> list[float]:
    """Return round numbers inside the range, both ends included, for an axis's ticks: roughly ``about`` of them,
    ascending."""
    low, high = span
    rough = (high - low) / about
    magnitude = 10.0 ** _floor_log10(rough)
    step = next(s * magnitude for s in (1.0, 2.0, 2.5, 5.0, 10.0) if s * magnitude >= rough * 0.999)
    first = -int(-low / step) if low < 0 else int(low / step + 0.999999)
    found = []
    while first * step <= high + step * 1e-9:
        found.append(first * step)
        first += 1
    return found


def _floor_log10(value: float) -> int:
    return int(f"{value:e}".split("e")[1])


def _number(value: float) -> str:
    return f"{value:.6g}"


def _share(value: float, span: Range) -> float:
    return (value - span[0]) / (span[1] - span[0])


def _legend(labels: Sequence[str]) -> Markup:
    parts = []
    for number, label in enumerate(labels):
        top = HEIGHT + 10 + 16.0 * number
        parts.append(_line(LEFT, top - 4, LEFT + 16, top - 4, f"line s{number % COLOURS}"))
        parts.append(_text(LEFT + 22, top, label, "label"))
    return Markup("").join(parts)


def _svg(title: str, height: float, parts: Sequence[Markup]) -> Markup:
    frame = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}"><title>{}</title>{}</svg>')
    return frame.format(_unit(WIDTH), _unit(height), title, title, Markup("").join(parts))


def _polyline(frame: _Frame, points: Sequence[Point], css: str) -> Markup:
    path = " ".join(f"{_unit(frame.px(p[0]))},{_unit(frame.py(p[1]))}" for p in points)
    return Markup('<polyline class="{}" points="{}"/>').format(css, path)


def _line(x1: float, y1: float, x2: float, y2: float, css: str) -> Markup:
    return Markup('<line class="{}" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(
        css, _unit(x1), _unit(y1), _unit(x2), _unit(y2)
    )


def _dot(x: float, y: float, colour: str, radius: float = 3.5) -> Markup:
    return Markup('<circle class="dot {}" cx="{}" cy="{}" r="{}"/>').format(colour, _unit(x), _unit(y), _unit(radius))


def _text(x: float, y: float, text: str, css: str) -> Markup:
    return Markup('<text class="{}" x="{}" y="{}">{}</text>').format(css, _unit(x), _unit(y), escape(text))


def _unit(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
