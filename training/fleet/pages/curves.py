"""Draw curves for pages as SVG; all but ROC curves also have a table of values."""

import json
from collections.abc import Callable, Sequence
from math import floor
from typing import NamedTuple

from markupsafe import Markup

from training.charts import Range, Series, line_chart, nice_range
from training.fleet.service.views import Views
from training.fleet.wire.progress import laid_out
from training.fleet.wire.views import ReportView, UsageSample
from training.printable import one_line
from training.strict_json import Json

POINTS_DRAWN = 150  # of each curve: as many as the eye tells apart at this size
ROWS_MAX = 24  # of the table behind a curve
GIB = 1 / 1024**3
Lines = Sequence[tuple[str, dict[int, float]]]  # label, and values by epoch or second
Use = tuple[float, float, Sequence[UsageSample]]  # of an attempt: its begin, its end, its samples
Marks = Sequence[tuple[float, str]]  # where stages begin, and their names
# A trainer's use of its host: title, unit, and lines (label, sample's member, factor).
USAGE = (
    ("Processor", "cores", (("CPU", "cpu", 1.0),)),
    ("Memory", "GiB", (("memory", "memory_bytes", GIB), ("GPU memory", "gpu_memory_bytes", GIB))),
    ("GPU at work", "% of the time", (("GPU", "gpu", 100.0),)),
)


class DrawnFigure(NamedTuple):
    """A drawn figure. ``rows`` is its table of at most ``ROWS_MAX`` rows: in each an epoch or a second, then each
    curve's value there."""

    title: str
    summary: str
    drawing: Markup
    names: Sequence[str]
    rows: Sequence[tuple[int, Sequence[str]]]
    data: str  # its lines as JSON, for the script that draws them again
    by: str


def _drawn(
    title: str,
    of: str,
    summary: str,
    lines: Lines,
    x_label: str,
    y_label: str,
    x: Range,
    y: Range,
    per: float = 1.0,
    marks: Marks = (),
) -> DrawnFigure:
    """Draw lines in one chart, with their x values divided by ``per``. The figure also has the lines as JSON for the
    script, and as a table."""
    series = [
        Series(name, [(at / per, value) for at, value in sorted(values.items())], [3.5] if len(values) == 1 else ())
        for name, values in lines
    ]
    drawing = line_chart(f"{title}{of}: {summary}", series, x_label=x_label, y_label=y_label, x=x, y=y, marks=marks)
    points = [(line.label, [[_rounded(each) for each in point] for point in line.points]) for line in series]
    data = json.dumps({"x": x_label, "y": y_label, "range": y, "marks": marks, "lines": points}, separators=(",", ":"))
    shown = _thinned(sorted({at for _, values in lines for at in values}))
    rows = [(at, [_number(values.get(at)) for _, values in lines]) for at in shown]
    by = "Epoch" if x_label == "epoch" else "Second"
    return DrawnFigure(title, summary, drawing, [name for name, _ in lines], rows, data, by)


def _rounded(value: float) -> float:
    short = float(f"{value:.6g}")
    return int(short) if short.is_integer() else short


def figures(views: Views, jobs: Sequence[tuple[str, str]]) -> list[DrawnFigure]:
    """Draw loss and metric by epoch, as the trainers of these jobs (id, name) reported them: a line for each job.
    Return the figures that have values."""
    curves, marks, metric = laid_out(
        [views.curve(job_id, points=POINTS_DRAWN).to_dict()["points"] for job_id, _ in jobs]
    )
    told = [(one_line(name, 40), curve) for (_, name), curve in zip(jobs, curves, strict=True)]
    drawn = [_figure(key, title, told, marks) for key, title in (("loss", "loss"), ("metric", metric))]
    return [figure for figure in drawn if figure is not None]


def roc(reports: Sequence[tuple[str, ReportView]]) -> Markup | None:
    """Draw the ROC curves of reports (name, report) in one chart; None if no report has a curve. If there are several
    reports, only the first curve of each is drawn. A single curve is drawn with the point of the threshold in use, if
    known."""
    drawn = []
    for name, report in reports:
        lines = report.roc if len(reports) == 1 else report.roc[:1]
        drawn += [Series(one_line(name or line.label or "model", 40), line.points) for line in lines]
    if not drawn:
        return None
    alone = reports[0][1].result
    caught, false = alone.caught.value, alone.false_alarms.value
    if len(drawn) == 1 and caught is not None and false is not None:
        drawn.append(Series("the threshold in use", [(false, caught)], dots=[4.0]))
    title = "ROC curve of " + ", ".join(one.label for one in drawn)
    chance = [(0, 0), (1, 1)]
    return line_chart(title, drawn, x_label="false-positive rate", y_label="true-positive rate", guide=chance)


def usage(views: Views, job_id: str, attempt: int | None = None) -> list[DrawnFigure]:
    """Draw what an attempt's trainer used of its host (CPU, memory, GPU) over time; by default for the last attempt.
    Resources with fewer than two samples are left out."""
    samples = views.curve(job_id, attempt=attempt, points=POINTS_DRAWN).usage
    return _in_use(lambda key, scale: _used(samples, key, scale), "since the grant")


def usage_of_host(attempts: Sequence[Use], begin: float, now: float) -> list[DrawnFigure]:
    """Draw what these attempts used together of their host, from ``begin`` to ``now``. Resources without a sample are
    left out."""
    return _in_use(lambda key, scale: _together(attempts, key, scale, begin, now), "from now")


def _in_use(values: Callable[[str, float], dict[int, float]], since: str) -> list[DrawnFigure]:
    """Draw each resource of which ``values`` has two values or more, by its sample's member and factor."""
    drawn = []
    for title, unit, keys in USAGE:
        lines = [(label, values(key, scale)) for label, key, scale in keys]
        known = [(label, found) for label, found in lines if len(found) > 1]
        if known:
            drawn.append(_of_time(title, unit, known, since))
    return drawn


def _together(attempts: Sequence[Use], key: str, scale: float, begin: float, now: float) -> dict[int, float]:
    """Return the use of one resource by seconds from now, which are negative, from the first sample on; empty without
    one. A sample holds back to the one before, and the last one to its attempt's end."""
    step, first = (now - begin) / POINTS_DRAWN, POINTS_DRAWN + 1
    found = [0.0] * (POINTS_DRAWN + 1)

    def place(at: float) -> int:
        return min(max(floor(round((at - begin) / step, 6)) + 1, 0), len(found))

    for since, finish, samples in attempts:
        ends = [*(since + each.seconds for each in samples[:-1]), finish]
        for sample, start, end in zip(samples, [since, *ends], ends, strict=False):
            value = getattr(sample, key)
            if value is None:
                continue
            first = min(first, place(start))
            for n in range(place(start), place(end)):
                # Each attempt's share of a GPU's time is that of all programs on it.
                found[n] = max(found[n], value * scale) if key == "gpu" else found[n] + value * scale
    return {round(begin + n * step - now): value for n, value in enumerate(found) if n >= first}


def _used(samples: Sequence[UsageSample], key: str, scale: float) -> dict[int, float]:
    """Return the known values of one resource by whole seconds since the grant, multiplied by ``scale``."""
    known = ((round(each.seconds), getattr(each, key)) for each in samples)
    return {second: value * scale for second, value in known if value is not None}


def _of_time(title: str, unit: str, lines: Lines, since: str) -> DrawnFigure:
    seconds = sorted({0, *(second for _, values in lines for second in values)})
    length = max(seconds[-1] - seconds[0], 1)
    per, word = (3600.0, "hours") if length >= 7200 else (60.0, "minutes") if length >= 120 else (1.0, "seconds")
    summary = "; ".join(
        f"{label}: {_number(sum(values.values()) / len(values))} on average, at most {_number(max(values.values()))}"
        for label, values in lines
    )
    most = nice_range([0.0, *(value for _, values in lines for value in values.values())], floor=0.0)
    along = (seconds[0] / per, (seconds[0] + length) / per)
    return _drawn(title, f", {unit}", summary, lines, f"{word} {since}", unit, along, most, per)


def _figure(key: str, title: str, curves: Sequence[tuple[str, Sequence[Json]]], marks: Marks) -> DrawnFigure | None:
    known = [
        (name, {point["epoch"]: point[key] for point in points if point[key] is not None}) for name, points in curves
    ]
    told = [(name, values) for name, values in known if values]
    if not told:
        return None
    summary = "; ".join(_summary(name if len(curves) > 1 else "", values) for name, values in told)
    epochs = [epoch for _, values in told for epoch in values]
    shown = [mark for mark in marks if mark[0] < max(epochs)]
    begin = min([*map(float, epochs), *(at for at, _ in shown)])
    along = (begin, max(*epochs, begin + 1))
    most = nice_range([value for _, values in told for value in values.values()])
    heading = title[:1].upper() + title[1:]
    return _drawn(heading, " by epoch", summary, told, "epoch", title, along, most, marks=shown)


def _summary(name: str, values: dict[int, float]) -> str:
    """Describe a curve by its first, lowest, highest and last value."""
    first, last = values[min(values)], values[max(values)]
    said = f"first {_number(first)}, lowest {_number(min(values.values()))}, "
    said += f"highest {_number(max(values.values()))}, last {_number(last)}"
    return f"{name}: {said}" if name else said


def _thinned(epochs: Sequence[int]) -> list[int]:
    """Return at most ``ROWS_MAX`` epochs for a table: evenly chosen, and the last."""
    if len(epochs) <= ROWS_MAX:
        return list(epochs)
    step = len(epochs) / (ROWS_MAX - 1)
    return [epochs[int(n * step)] for n in range(ROWS_MAX - 1)] + [epochs[-1]]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
