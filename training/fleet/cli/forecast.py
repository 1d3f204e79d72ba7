"""``cis490-jobs forecast``: predict which host trains what and when, and when all is done; also with imagined hosts, or
another plan.

``--with NAME=SPEC`` imagines a host that the fleet does not have: SPEC is one or several of ``like:HOST``, ``gpu:GIB``,
``ram:GIB`` and ``cores:N``, joined by commas.
"""

import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.text import Text

from training.fleet.cli.context import CannotError, CommandContext
from training.fleet.cli.plan import INVALID, read_plan, sent_plan
from training.fleet.cli.registration import as_command
from training.fleet.cli.render import cell, reasons, table
from training.fleet.wire.constants import DONE, HOST_ID_PATTERN, USAGE
from training.fleet.wire.words import Json, declined, duration
from training.printable import clock_time, counted, one_line
from training.strict_json import JsonObject

SPEC = "NAME=SPEC, where SPEC is like:HOST, gpu:GIB, ram:GIB, cores:N, or several of them with commas between"
_KEYS = {"like": "like", "gpu": "vram_gib", "ram": "ram_gib", "cores": "cores"}
_SHOWN = 20  # jobs named below the picture
_HOST_MAX = 24  # characters of a host's name
_PICTURE_LEAST, _PICTURE_MOST = 10, 100


@as_command()
def forecast(
    context: CommandContext,
    without: Annotated[list[str] | None, typer.Option("--without", metavar="HOST", help="Leave this host out.")] = None,
    imagined: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="NAME=SPEC", help="Add an imagined host, such as new=gpu:24,cores:8."),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="Use this manifest, a file on this machine.")
    ] = None,
) -> int:
    """Predict which host trains which job when, and when all jobs are done, with intervals that should hold in four of
    five cases."""
    hosts: dict[str, JsonObject] = {}
    for each in imagined or ():
        name, can = spec_of(each)
        if name.lower() in map(str.lower, hosts):
            raise CannotError(f"--with {each}: {name} is given twice; join its parts by commas", USAGE)
        hosts[name] = can
    for name in without or ():
        _check_host(f"--without {name}", name)
    question: JsonObject | None = None
    if without or hosts or plan is not None:
        question = {"without": list(without or ()), "imagined": hosts}
    if plan is not None and question is not None:
        manifest = read_plan(context, plan)
        if manifest is None:
            return INVALID
        question["plan"] = sent_plan(manifest, plan)
    answer = context.client().forecast(question)
    context.show(answer, rendered)
    return DONE


def spec_of(text: str) -> tuple[str, JsonObject]:
    """Return the name and the capability of an imagined host, given as ``NAME=SPEC``. Raises CannotError with the
    mistake in it."""
    name, equals, spec = text.partition("=")
    found: JsonObject = {}
    for part in spec.split(",") if equals else ():
        key, colon, value = part.strip().partition(":")
        if key not in _KEYS or not colon or not value or _KEYS[key] in found:
            raise CannotError(f"--with {text}: expected {SPEC}", USAGE)
        if key == "like":
            found["like"] = value
            continue
        try:
            amount = int(value) if key == "cores" else float(value)
        except ValueError:
            amount = -1
        least, most = (1, 100_000) if key == "cores" else (0, 1_000_000)
        if not least <= amount <= most:
            kind = "a whole number" if key == "cores" else "a number"
            raise CannotError(f"--with {text}: {key} is {kind} from {least} to {most}, as in {key}:8", USAGE)
        found[_KEYS[key]] = amount
    if not name or not found:
        raise CannotError(f"--with {text}: expected {SPEC}", USAGE)
    for host in (name, found.get("like", name)):
        _check_host(f"--with {text}", host)
    return name, found


def _check_host(option: str, name: str) -> None:
    if re.search(HOST_ID_PATTERN, name) is None:
        like = "letters, digits, dots, dashes and underscores, 64 at most, the first a letter or digit"
        raise CannotError(f"{option}: {name or 'nothing'} is no host's name; use {like}", USAGE)


# ── for people ──────────────────────────────────────────────────────────────────────────────


def rendered(answer: Json) -> RenderableType:
    """Render a forecast: when all is done, a picture of the hosts' future, notes, and the next jobs."""
    jobs, now = answer["jobs"], answer["now"]
    parts: list[RenderableType] = [Text(sentence(answer), "bold")]
    if jobs:
        parts += [Text(), Gantt(jobs, now, answer["done_at"])]
    parts += [Text(), Text(f"computed at {clock(now, now)}", "dim"), *_notes(answer, now)]
    if jobs:
        parts += [Text(), _next(jobs, now)]
    return Group(*parts)


def sentence(answer: Json) -> str:
    """Return the sentence that says when all jobs are done, with the 80 % interval; or that no job waits, or none can
    be trained."""
    now, done = answer["now"], answer["done_at"]
    count = answer["count"]
    if done is None:
        return "No job that waits can be trained now." if answer["nowhere"] else "No job waits for training."
    low, high = answer["done_low_at"], answer["done_high_at"]
    left = answer["left_out"]
    first = f"The first {counted(count, 'jobs')}" if left else counted(count, "jobs")
    verb = "is" if count == 1 else "are"
    more = f"; {left} more are not looked at" if left else ""
    learned = "" if answer["learned_from"] else " Nothing has been trained yet, so this is a guess."
    return (
        f"{first} {verb} done in about {duration(done - now)}, at {clock(done, now)} "
        f"(80 %: {clock(low, now)} to {clock(high, now)}){more}.{learned}"
    )


clock = partial(clock_time, here=True)


def _notes(answer: Json, now: float) -> Iterable[RenderableType]:
    for host in answer["hosts"]:
        if host["declined"]:
            yield cell(f"{host['host']} waits: {declined(host['declined'], now, clock)}", "dim", chars_max=500)
        if host["note"]:
            yield cell(f"{host['host']} takes no part: {host['note']}", "yellow", chars_max=500)
    if nowhere := answer["nowhere"]:
        yield from (Text("Trained nowhere", "yellow"), *reasons(nowhere.items()))
    if answer["held"]:
        yield Text(f"{counted(answer['held'], 'jobs')} held, and left out", "dim")


def _next(jobs: Sequence[Json], now: float) -> RenderableType:
    rows = []
    for job in jobs[:_SHOWN]:
        begins = "trains" if job["live"] else clock(job["begins_at"], now)
        between = Text(f"{clock(job['low_at'], now)} to {clock(job['high_at'], now)}", "dim")
        host = one_line(job["host"], _HOST_MAX)
        rows.append((one_line(job["name"], 60), host, begins, clock(job["ends_at"], now), between))
    made = table("JOB", "HOST", "BEGINS", "ENDS", "80 %", rows=rows)
    more = len(jobs) - _SHOWN
    return made if more <= 0 else Group(made, Text(f"… and {more} more: --json has them", "dim"))


class Gantt:
    """A picture of the hosts' future, one line for each slot of a host: jobs as blocks of alternating shade, running
    jobs in colour."""

    def __init__(self, jobs: Sequence[Json], now: float, done_at: float) -> None:
        self._jobs, self._now = jobs, now
        self._span = max([1.0, done_at - now, *(job["ends_at"] - now for job in jobs)])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        lines: dict[tuple[str, int], list[Json]] = {}
        for job in self._jobs:
            lines.setdefault((str(job["host"]), job["slot"]), []).append(job)
        names = {host: one_line(host, _HOST_MAX) for host, _ in lines}
        wide = min(max(map(cell_len, names.values())), options.max_width // 3)
        room = max(min(options.max_width - wide - 2, _PICTURE_MOST), _PICTURE_LEAST)
        for (host, slot), jobs in sorted(lines.items()):
            name = set_cell_size(names[host] if slot == 0 else "", wide)
            yield Text(name + "  ") + self._line(jobs, room, options.ascii_only)
        end = duration(self._span)
        yield Text(" " * (wide + 2) + "now" + end.rjust(room - 3), "dim")

    def _line(self, jobs: Sequence[Json], room: int, plain: bool) -> Text:
        live, odd, even, idle = ("#", "=", "-", ".") if plain else ("█", "▓", "▒", "·")
        marks, styles = [idle] * room, ["dim"] * room
        for n, job in enumerate(jobs):
            begin, end = (self._at(job[key], room) for key in ("begins_at", "ends_at"))
            mark, style = (live, "cyan") if job["live"] else ((odd, even)[n % 2], "")
            for at in range(min(begin, room - 1), max(min(end, room), min(begin, room - 1) + 1)):
                marks[at], styles[at] = mark, style
        line = Text()
        for mark, style in zip(marks, styles, strict=True):
            line.append(mark, style)
        return line

    def _at(self, when: float, room: int) -> int:
        share: float = max(0.0, when - self._now) / self._span
        return round(share * room)
