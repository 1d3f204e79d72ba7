"""Parse trainers' progress lines: JSON objects with an ``event``, and the points of a curve in them.

Pure. A worker sends the latest progress and the output lines to the receiver; the receiver keeps the points that the
lines contain.
"""

import json
from collections.abc import Sequence
from itertools import groupby, zip_longest
from operator import itemgetter
from typing import NamedTuple

from training.fleet.wire.constants import LOG_LINE_CHARS_MAX
from training.printable import one_line
from training.strict_json import Json, JsonObject

PROGRESS_BYTES_MAX = 8192  # of its fields, as they are sent
PROGRESS_FIRST = (  # the known ones
    "event", "epoch", "epochs", "stage", "stage_epoch", "stage_epochs", "loss", "metric", "metric_name", "seconds",
    "eta_s", "message",
)  # fmt: skip
NAME_CHARS_MAX = 80  # of a stage or a metric
EPOCH_MAX = 2**53 - 1  # the largest whole number that every reader of JSON keeps


class Point(NamedTuple):
    """An epoch as a trainer reported it. A figure that the trainer did not report is None."""

    epoch: int
    loss: float | None = None
    metric: float | None = None
    seconds: float | None = None  # since the trainer began
    stage: str | None = None
    stage_epoch: int | None = None
    metric_name: str | None = None


def point_of(progress: Json | None) -> Point | None:
    """Return the point in a progress object; None unless it has a whole ``epoch`` number from 0, and a loss or a
    metric."""
    epoch = None if progress is None else _epoch(progress.get("epoch"))
    if progress is None or epoch is None:
        return None
    loss, metric, seconds = (_number(progress.get(name)) for name in ("loss", "metric", "seconds"))
    if loss is None and metric is None:
        return None
    stage, metric_name = (_text(progress.get(name)) for name in ("stage", "metric_name"))
    seconds = seconds if seconds is not None and seconds >= 0 else None
    return Point(epoch, loss, metric, seconds, stage, _epoch(progress.get("stage_epoch")), metric_name)


def point_in(line: str) -> Point | None:
    """Return the point in a line of output; None if the line has none."""
    return point_of(parse_progress(line)) if '"epoch"' in line else None


def laid_out(curves: Sequence[Sequence[Json]]) -> tuple[list[list[Json]], list[tuple[float, str]], str]:
    """Lay the stages of curves behind one another on a common axis, on which the n-th stages of all curves begin
    together.

    Return each curve's points with their places as ``epoch``; where stages begin, half an epoch before their first
    points, with their names (empty without stages); and the name of the metric.
    """
    parts = [[[*points] for _, points in groupby(curve, itemgetter("stage"))] for curve in curves]
    placed: list[list[Json]] = [[] for _ in curves]
    marks, begin = list[tuple[float, str]](), 0
    for stages in zip_longest(*parts, fillvalue=()):
        said = (str(points[0]["stage"] or "") for points in stages if points)
        names = dict.fromkeys(one_line(name.partition(": ")[2] or name, 40) for name in said)
        marks.append((begin + 0.5, " / ".join(filter(None, names))))
        for own, points in zip(placed, stages, strict=True):
            own += ({**point, "epoch": begin + _place(point)} for point in points)
        begin += max(_place(point) for points in stages for point in points)
    metrics = dict.fromkeys(point["metric_name"] for curve in curves for point in curve if point["metric_name"])
    return placed, marks if len(marks) > 1 else [], one_line(" / ".join(metrics), 60) or "metric"


def _place(point: Json) -> int:
    return int(point["epoch"] if point["stage_epoch"] is None else point["stage_epoch"])


def _epoch(value: object) -> int | None:
    number = _number(value)
    return None if number is None or number != int(number) or not 0 <= number <= EPOCH_MAX else int(number)


def _text(value: object) -> str | None:
    return value[:NAME_CHARS_MAX].encode(errors="replace").decode() if isinstance(value, str) and value else None


def _number(value: object) -> float | None:
    """Return a number between -1e300 and 1e300 as a float; None for anything else, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        return None
    return float(value)


def kept_line(line: str) -> str:
    """Cut a line to :data:`LOG_LINE_CHARS_MAX` characters. From a longer progress line, drop whole fields instead, if
    its event then fits."""
    if len(line) <= LOG_LINE_CHARS_MAX:
        return line
    fields, _ = taken(line, LOG_LINE_CHARS_MAX)
    short = json.dumps(fields, ensure_ascii=False).encode(errors="replace").decode()
    return (line if fields is None else short)[:LOG_LINE_CHARS_MAX]


def parse_progress(line: str) -> JsonObject | None:
    """Parse a line of output as progress; None if it is none. Only finite numbers, texts, truth values and nulls stay,
    in all at most :data:`PROGRESS_BYTES_MAX` bytes."""
    return taken(line)[0]


def taken(line: str, bytes_max: int = PROGRESS_BYTES_MAX) -> tuple[JsonObject | None, str]:
    """Parse a line of output as progress; return its fields (None if it is none) and a remark about omitted fields, or
    an empty text.

    Fields of at most ``bytes_max`` bytes in all are taken, the known ones first. If ``event`` does not fit, the fields
    are None and the remark says why.
    """
    if not line.startswith("{"):
        return None, ""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None, ""
    if not isinstance(value, dict) or not isinstance(value.get("event"), str):
        return None, ""
    fields = {
        key: field
        for key, field in value.items()
        if field is None or isinstance(field, bool | str) or (isinstance(field, int | float) and abs(field) < 1e300)
    }
    room, kept = bytes_max, set[str]()
    for key in sorted(fields, key=lambda key: key not in PROGRESS_FIRST):
        size = len(json.dumps({key: fields[key]}, ensure_ascii=False).encode(errors="replace"))
        if size <= room:
            room -= size
            kept.add(key)
    if "event" not in kept:
        return (None, f"a progress line whose event has more than {bytes_max:,} bytes is not taken")
    left = f"{len(fields) - len(kept)} of {len(fields)} fields are not taken: {bytes_max:,} bytes are"
    complaint = f"of the progress line before this one {left}" if len(kept) < len(fields) else ""
    return {key: field for key, field in fields.items() if key in kept}, complaint
