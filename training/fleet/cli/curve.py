"""``cis490-jobs curve``: draw jobs' loss and metric by epoch, and what their trainers use, in the terminal."""

import csv
import math
import string
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from training.fleet.cli.context import CannotError, CommandContext
from training.fleet.cli.options import Jobs
from training.fleet.cli.registration import as_command
from training.fleet.wire.constants import USAGE
from training.fleet.wire.progress import laid_out
from training.fleet.wire.words import Json, day, duration, number, size
from training.printable import json_text, one_line, printable

WHOLE = 20_000  # epochs, more than which a receiver gives of no job
JOBS_MAX = len(string.ascii_lowercase)  # each has its letter
WIDTH, WIDTH_MAX = 80, 120  # where there is no terminal, and where there is a wide one
HEIGHT = 12
NAME_MAX = 40
COLOURS = ("cyan", "yellow", "magenta", "green", "red", "blue")
COLUMNS = (
    "job", "job_id", "attempt", "epoch", "loss", "metric", "seconds", "stage", "stage_epoch", "metric_name",
)  # fmt: skip

LEVELS = "▁▂▃▄▅▆▇█"
BESIDE = 24  # columns of a picture that its axes take

Points = Sequence[tuple[float, float]]
Marks = Sequence[tuple[float, str]]  # where stages begin, and their names


@as_command()
def curve(
    context: CommandContext,
    jobs: Jobs,
    attempt: Annotated[int | None, typer.Option(help="Only this attempt.", min=1)] = None,
    log: Annotated[bool, typer.Option("--log", help="A logarithmic axis for the loss.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Every epoch, for a spreadsheet.")] = False,
) -> None:
    """Draw loss and metric by epoch, and what the trainer uses of its host; several jobs in one picture."""
    if as_csv and context.as_json:
        raise CannotError("--csv and --json are two forms; ask for one of them", USAGE)
    if len(jobs) > JOBS_MAX:
        raise CannotError(f"this command takes at most {JOBS_MAX} jobs; name fewer", USAGE)
    client = context.client()
    replies = [client.curve(job, attempt=attempt, points=WHOLE if as_csv else None) for job in jobs]
    if as_csv:
        writer = csv.writer(context.out, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(row for reply in replies for row in _rows(reply))
        return
    if context.as_json:
        print(json_text({"curves": replies}), file=context.out)
        return
    width = min(context.console().width, WIDTH_MAX) if context.out.isatty() else WIDTH
    lines = list(_drawn(replies, max(40, width), plain=not context.can_show(f"⣿{LEVELS}"), log=log))
    context.show(None, lambda _: Group(*lines))


def _rows(reply: Json) -> Iterator[list[object]]:
    for point in reply["points"]:
        said = {"job": reply["name"], "job_id": reply["job_id"], **point}
        yield [printable(said[key]) if isinstance(said[key], str) else said[key] for key in COLUMNS]


def _drawn(replies: Sequence[Json], width: int, *, plain: bool, log: bool) -> Iterator[Text]:
    curves, marks, metric = laid_out([reply["points"] for reply in replies])
    replies = [_placed(reply, points) for reply, points in zip(replies, curves, strict=True)]
    for name, title in (("loss", "loss"), ("metric", metric)):
        series = [_series(reply, name) for reply in replies]
        if any(series):
            yield from _panel(title, replies, series, marks, width, plain=plain, log=log and name == "loss")
            yield Text()
    for place, reply in enumerate(replies):
        yield from _notes(reply, "" if len(replies) == 1 else f"{_letter(place)}  ")
    for reply in replies:
        yield from _usage(reply, width, plain=plain, named=len(replies) > 1)


def _placed(reply: Json, points: Sequence[Json]) -> Json:
    """Return the reply with these points, and the places of attempts' first epochs among them as ``first``."""
    first = {point["attempt"]: point["epoch"] for point in reversed(points)}
    attempts = [{**each, "first": first.get(each["attempt"], each["first"])} for each in reply["attempts"]]
    return {**reply, "points": points, "attempts": attempts}


def _series(reply: Json, name: str) -> list[tuple[float, float]]:
    pairs = ((number(point["epoch"]), number(point[name])) for point in reply["points"])
    return [(epoch, value) for epoch, value in pairs if epoch is not None and value is not None]


def _panel(
    name: str, replies: Sequence[Json], curves: Sequence[Points], marks: Marks, width: int, *, plain: bool, log: bool
) -> Iterator[Text]:
    """Draw one series (loss or metric) of all jobs under a heading, with a line that names the stages and a summary
    line for each job. Several jobs are distinguished by letters and colours."""
    yield Text(f"{name} by epoch{' (logarithmic)' if log else ''}", "bold")
    shown = [[(x, math.log10(y) if log else y) for x, y in curve if y > 0 or not log] for curve in curves]
    if not any(shown):
        yield Text("no value is above 0")
        return
    alone = len(replies) == 1
    begun = [float(each["first"]) for each in replies[0]["attempts"][1:]] if alone else []
    seen = [mark for mark in marks if mark[0] < max(x for points in curves for x, _ in points)]
    yield from _picture(name, shown, begun + [at for at, _ in seen[1:]], width, plain=plain, log=log)
    if seen:
        yield Text("stages from epoch: " + ", ".join(f"{stage} {at + 0.5:.0f}" for at, stage in seen))
    for place, (reply, points) in enumerate(zip(replies, curves, strict=True)):
        mark = "" if alone else f"{_letter(place)}  {one_line(reply['name'], NAME_MAX)}: "
        yield Text(f"{mark}{_summary(points)}", "" if alone else COLOURS[place % len(COLOURS)])


def _picture(
    name: str, curves: Sequence[Points], bars: Sequence[float], width: int, *, plain: bool, log: bool
) -> Iterator[Text]:
    """Draw curves with their axes, and a bar at each place in ``bars``, where an attempt or a stage begins and curves
    are interrupted. ``plain``: in ASCII, without bars."""
    import plotille  # for this command alone

    def label(value: float, chars: int, delta: object = None, left: bool = False) -> str:
        del delta
        return f"{figure(value):{'<' if left else '>'}{chars}}"

    def level(low: float, high: float) -> str:
        del high
        return label(10**low if log else low, 10)

    plot = plotille.Figure()
    plot.width, plot.height, plot.origin, plot.linesep = max(10, width - BESIDE), HEIGHT, False, "\n"
    plot.x_label, plot.y_label, plot.with_colors = "epoch", name, len(curves) > 1
    plot.register_label_formatter(float, label)
    plot.y_ticks_fkt = level
    (left, right), (low, high) = (_range([point[axis] for curve in curves for point in curve]) for axis in (0, 1))
    plot.set_x_limits(left, right)
    plot.set_y_limits(low, high)
    for place, curve in enumerate(curves):
        if curve:
            sign = _letter(place) if plain or len(curves) > 1 else None
            for _, points in groupby(curve, lambda point: sum(bar < point[0] for bar in bars)):
                xs, ys = zip(*points, strict=True)
                plot.plot(xs, ys, COLOURS[place % len(COLOURS)], None if plain else "linear", None, sign)
    for x in () if plain else bars:
        plot.axvline((x - left) / (right - left))
    for line in plot.show().splitlines():
        drawn = Text.from_ansi(line.replace("\u2800", " "))
        drawn.rstrip()
        yield drawn


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of an axis that holds these values; if all are equal, with some room around them,
    but not above 1, where shares end."""
    low, high = min(values), max(values)
    room = 0.0 if high > low else abs(low) * 0.1 or 1.0
    return low - room, 1.0 if high <= 1.0 < high + room else high + room


def figure(value: float) -> str:
    """Write a number in few characters: ``0.412``, ``37``, ``1.2e-05``."""
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:.3g}"


def spark(values: Sequence[float], width: int) -> str:
    """Draw values from 0 to their highest in one row of at most ``width`` characters; a cell with several values shows
    the highest."""
    cells, top = min(width, len(values)), max(values, default=0.0)
    peaks = [max(values[len(values) * n // cells : len(values) * (n + 1) // cells]) for n in range(cells)]
    return "".join(LEVELS[round(peak / top * (len(LEVELS) - 1)) if top > 0 else 0] for peak in peaks)


def _letter(place: int) -> str:
    return string.ascii_lowercase[place]


def _summary(points: Points) -> str:
    if not points:
        return "none"
    lowest, highest = min(points, key=lambda point: point[1]), max(points, key=lambda point: point[1])
    last = points[-1]
    return (
        f"last {figure(last[1])} (epoch {last[0]:.0f}), lowest {figure(lowest[1])} ({lowest[0]:.0f}), "
        f"highest {figure(highest[1])} ({highest[0]:.0f})"
    )


def _notes(reply: Json, mark: str) -> Iterator[Text]:
    """Say what the drawing cannot show: which attempts are drawn, that epochs are left out, or that there are no
    data."""
    name, attempts = one_line(reply["name"], NAME_MAX), reply["attempts"]
    if not attempts:
        gone = reply["removed"]
        told = f"its curve was removed on {day(gone['at'])}: {gone['why']}" if gone else "has reported no epoch"
        yield Text(f"{mark}{name} is {printable(reply['status'])} and {one_line(told, 400)}")
        return
    ranges = [
        f"attempt {each['attempt']} on {printable(each['host'])} from epoch {each['first']}"
        + (f" ({printable(each['end_reason'])})" if each["end_reason"] else "")
        + (", whose last lines have not arrived" if each["end_reason"] and each["complete"] is False else "")
        for each in attempts
    ]
    thinned = ""
    if len(reply["points"]) < reply["epochs"]:
        thinned = f"; {len(reply['points'])} of {reply['epochs']:,} epochs are drawn, the extremes among them"
    yield Text(f"{mark}{name} is {printable(reply['status'])}: {', '.join(ranges)}{thinned}")


def _usage(reply: Json, width: int, *, plain: bool, named: bool) -> Iterator[Text]:
    """Draw the trainer's use of its host, one row for each measured resource, up to the last heartbeat."""
    kinds = (
        ("CPU", "cpu", lambda value: f"{value:.{1 if value >= 1 else 2}f} cores"),
        ("memory", "memory_bytes", size),
        ("GPU", "gpu", lambda value: f"{100 * value:.0f} %"),
        ("GPU memory", "gpu_memory_bytes", size),
    )
    samples = reply["usage"]
    said = False
    for title, key, words in kinds:
        values = [each[key] for each in samples if each[key] is not None]
        if not values:
            continue
        if not said:
            said = True
            whose = f" of {one_line(reply['name'], NAME_MAX)}" if named else ""
            of = f"attempt {reply['usage_attempt']}, {duration(samples[-1]['seconds'])} since its grant"
            yield Text()
            yield Text(f"use{whose} ({of})", "bold")
        drawn = "" if plain else spark(values, max(8, width - 50))
        yield Text(f"{title.ljust(10)} {drawn}  {words(values[-1])}, at most {words(max(values))}")
