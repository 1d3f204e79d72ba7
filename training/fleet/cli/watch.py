"""``cis490-jobs status`` and ``watch``: show the fleet on one screen, once or redrawn every two seconds."""

import json
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from training.fleet.cli.context import CommandContext
from training.fleet.cli.registration import as_command
from training.fleet.cli.status import render_status, status_data
from training.fleet.client.client import FleetClient, Unavailable, Unreachable
from training.fleet.wire.words import Json, duration
from training.printable import one_line

POLL_S = 2.0


@as_command()
def status(
    context: CommandContext,
    watched: Annotated[bool, typer.Option("--watch", "-w", help="Redraw, as the command watch does.")] = False,
) -> None:
    """Show the fleet: running jobs and their progress, failures with reasons, and jobs that cannot run."""
    if watched:
        watch(context)
        return
    data, health = _look(context.client())
    context.show(data, lambda _: render_status(data, health))


@as_command(as_json=Annotated[bool, typer.Option("--json", help="Print a line of JSON at each change.")])
def watch(context: CommandContext) -> None:
    """Show the status, redrawn every two seconds, or without a terminal printed at each change; Ctrl-C quits."""
    client, console = context.client(), context.console()
    data, health = _look(client)  # an error of the first look ends the command
    if context.as_json or not console.is_terminal or console.is_dumb_terminal:
        _print(context, client)
    heard_at, trouble = context.monotonic(), ""

    def picture() -> RenderableType:
        silent = f"no answer for {duration(context.monotonic() - heard_at)}: {one_line(trouble, 200)}"
        head = Text(silent, "bold yellow") if trouble else Text("Ctrl-C quits", "dim")
        return context.typed(Group(head, render_status(data, health)))

    try:
        with Live(picture(), console=console, auto_refresh=False, screen=True) as live:
            while True:
                context.sleep(POLL_S)
                try:
                    data, health = _look(client)
                    heard_at, trouble = context.monotonic(), ""
                except (Unreachable, Unavailable) as error:
                    trouble = str(error)
                live.update(picture(), refresh=True)
    finally:
        context.show(None, lambda _: render_status(data, health))


def _print(context: CommandContext, client: FleetClient) -> None:
    """Print the status, or with ``--json`` a line of JSON, at each change, until the user quits."""
    before: Json | None = None
    while True:
        with suppress(Unreachable, Unavailable):
            data, health = _look(client)
            if {**data, "now": None} != before:
                before = {**data, "now": None}
                if context.as_json:
                    print(json.dumps(data), file=context.out, flush=True)
                else:
                    context.show(None, lambda _: Group(render_status(data, health), Text()))  # noqa: B023 - at once
        context.sleep(POLL_S)


def _look(client: FleetClient) -> tuple[Json, Json]:
    """Return the status data and the receiver's health. Of a queue longer than one page, only the first page of jobs in
    each status but completed is requested."""
    page, health = client.jobs(), client.health()
    jobs, whole = page["jobs"], page["next_after"] is None
    if not whole:
        jobs = [
            view
            for wanted in ("running", "claimed", "failed", "cancelled", "pending")
            for view in client.jobs(status=wanted)["jobs"]
        ]
    return status_data(jobs, page, health, whole=whole), health
