"""``cis490-jobs doctor``: the state itself, on the receiver's machine, without the receiver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from training.clock import SystemClock
from training.fleet.cli_world import DONE, REFUSED, World
from training.fleet.findings import Finding, Level, Report
from training.fleet.printable import printable
from training.fleet.state import DEFAULT, State

StateDir = Annotated[Path, typer.Option(metavar="FOLDER", help="The receiver's.")]
Db = Annotated[Path | None, typer.Option(metavar="FILE", help="If it lies elsewhere.")]
ModelsDir = Annotated[Path | None, typer.Option(metavar="FOLDER", help="If it lies elsewhere.")]
AsJson = Annotated[bool, typer.Option("--json", help="For machines.")]
_STYLES = {Level.FAULT: "bold red", Level.WARNING: "yellow", Level.NOTE: "dim"}


def hook(app: typer.Typer) -> None:
    """Add these commands to ``app``."""
    app.command()(doctor)


def doctor(
    ctx: typer.Context,
    state_dir: StateDir = DEFAULT,
    db: Db = None,
    models_dir: ModelsDir = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read every stored byte, too.")] = False,
    as_json: AsJson = False,
) -> int:
    """Is every promise kept? Looks at database and store on the receiver's machine and changes nothing."""
    from training.fleet.doctor import examine  # what only these commands need is loaded for them

    world: World = ctx.obj
    with meter(world) as progress:
        report = examine(
            State.of(state_dir, db, models_dir), SystemClock(), deep=deep, progress=progress
        )
    world.show(as_json, report.to_dict(), lambda: render(report, deep=deep))
    return DONE if report.healthy else REFUSED


def render(report: Report, *, deep: bool) -> RenderableType:
    """Every finding with its remedy, and what was looked at."""
    lines = [_line(each) for each in report.findings]
    looked = " and ".join(f"{count} {what}" for what, count in report.looked_at.items())
    read = "every byte was read" if deep else "their bytes were not read: --deep does that"
    verdict = "all promises are kept" if report.healthy else f"{_bad(report)} things need you"
    return Group(*lines, Text(f"{verdict}; looked at {looked} ({read})"))


def _bad(report: Report) -> int:
    return sum(each.level is not Level.NOTE for each in report.findings)


def _line(finding: Finding) -> Text:
    text = Text(f"{finding.level.value}: ", _STYLES[finding.level])
    text.append(printable(finding.problem), "")
    text.append(f"\n  {printable(finding.remedy)}", "dim")
    return text


@contextmanager
def meter(world: World) -> Iterator[Callable[[str, int, int], object]]:
    """A bar with the time left, on a terminal; silence elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    console = Console(file=world.err, highlight=False)
    shown = world.err.isatty()
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, whole: bar.update(
            task, description=what, completed=done, total=whole or None
        )
