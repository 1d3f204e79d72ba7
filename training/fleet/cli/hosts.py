"""``cis490-jobs release``: release hosts from quarantine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from training.fleet.cli import complete
from training.fleet.cli.context import CommandContext
from training.printable import one_line, printable


def hook(app: typer.Typer) -> None:
    """Add this command to ``app``."""
    app.command()(release)


def release(
    ctx: typer.Context,
    hosts: Annotated[list[str], typer.Argument(metavar="HOST...", help="Host ids.", autocompletion=complete.hosts)],
    receiver_url: Annotated[str | None, typer.Option(help="As for all commands.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Release hosts from quarantine; `workers` shows which are, and why."""
    context: CommandContext = ctx.obj
    client = context.client(receiver_url)

    def line(host: str, answer: Mapping[str, Any]) -> str:
        why = one_line(answer.get("reason"), 300)
        return f"{printable(host)} gets work again; it had been taken out because {why}"

    return context.each(hosts, "hosts", as_json, client.release, line)
