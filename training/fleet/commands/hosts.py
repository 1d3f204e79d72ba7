"""``cis490-jobs release``: let hosts in again that were taken out."""

from __future__ import annotations

from typing import Annotated

import typer

from training.fleet.client import Refused
from training.fleet.commands.world import DONE, REFUSED, World
from training.fleet.printable import one_line, printable


def hook(app: typer.Typer) -> None:
    """Add this command to ``app``."""
    app.command()(release)


def release(
    ctx: typer.Context,
    hosts: Annotated[list[str], typer.Argument(metavar="HOST...", help="Host ids.")],
    receiver_url: Annotated[str | None, typer.Option(help="As for all commands.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> int:
    """Give hosts work again that were quarantined; `workers` says which, and why."""
    world: World = ctx.obj
    client, released, lines, code = world.client(receiver_url), [], [], DONE
    for host in hosts:
        try:
            answer = client.release(host)
            released.append(answer)
            why = one_line(answer.get("reason"), 300)
            lines.append(f"{printable(host)} gets work again; it had been taken out because {why}")
        except Refused as refusal:
            world.complain(refusal)
            code = REFUSED
    if released or as_json or world.as_json:
        world.show(as_json, {"hosts": released}, lambda: "\n".join(lines))
    return code
