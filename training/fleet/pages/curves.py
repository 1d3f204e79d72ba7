"""Curves as pages show them: drawn by the receiver as SVG, with a table behind each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from training.charts import Series, line_chart, nice_range
from training.fleet.service.views import Views
from training.fleet.wire.messages import CurvePoint
from training.printable import one_line

POINTS_DRAWN = 150  # of each curve: as many as the eye tells apart at this size
ROWS_MAX = 24  # of the table behind a curve
FIGURES = (("loss", "Loss"), ("metric", "Metric"))


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawn figure; ``rows`` is its table: an epoch, then each curve's value."""

    title: str
    summary: str
    drawing: Markup
    names: Sequence[str]
    rows: Sequence[tuple[int, Sequence[str]]]


def figures(views: Views, jobs: Sequence[tuple[str, str]]) -> list[Figure]:
    """Draw what the trainers of these jobs (id, name) reported, one line a job; nothing where nothing was reported."""
    curves = [(one_line(name, 40), views.curve(job_id, points=POINTS_DRAWN).points) for job_id, name in jobs]
    drawn = [_figure(key, title, curves) for key, title in FIGURES]
    return [figure for figure in drawn if figure is not None]


def _figure(key: str, title: str, curves: Sequence[tuple[str, Sequence[CurvePoint]]]) -> Figure | None:
    all_told = [(name, {point.epoch: getattr(point, key) for point in points}) for name, points in curves]
    known = [(name, {n: value for n, value in values.items() if value is not None}) for name, values in all_told]
    told = [(name, values) for name, values in known if values]
    if not told:
        return None
    summary = "; ".join(_summary(name if len(curves) > 1 else "", values) for name, values in told)
    epochs = [epoch for _, values in told for epoch in values]
    drawing = line_chart(
        f"{title} by epoch: {summary}",
        [Series(name, sorted(values.items()), [3.5] if len(values) == 1 else ()) for name, values in told],
        x_label="epoch",
        y_label=title.lower(),
        x=(float(min(epochs)), float(max(max(epochs), min(epochs) + 1))),
        y=nice_range([value for _, values in told for value in values.values()]),
    )
    shown = _thinned(sorted(set(epochs)))
    rows = [(epoch, [_number(values.get(epoch)) for _, values in told]) for epoch in shown]
    return Figure(title, summary, drawing, [name for name, _ in told], rows)


def _summary(name: str, values: dict[int, float]) -> str:
    """Say first, lowest, highest and last value."""
    first, last = values[min(values)], values[max(values)]
    said = f"first {_number(first)}, lowest {_number(min(values.values()))}, "
    said += f"highest {_number(max(values.values()))}, last {_number(last)}"
    return f"{name}: {said}" if name else said


def _thinned(epochs: Sequence[int]) -> list[int]:
    """Choose epochs for a table: evenly, and the last."""
    if len(epochs) <= ROWS_MAX:
        return list(epochs)
    step = len(epochs) / (ROWS_MAX - 1)
    return [epochs[int(n * step)] for n in range(ROWS_MAX - 1)] + [epochs[-1]]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
