"""Names for the shell to complete: of jobs, and of hosts. Whatever goes wrong, there is nothing to complete."""

from __future__ import annotations

from collections.abc import Callable

import typer

from training.fleet.client import ClientError, FleetClient
from training.fleet.commands.world import CannotError, World

_NAMES_MAX = 1000


def jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of jobs that begin so."""
    return _names(ctx, incomplete, lambda client: [each["name"] for each in client.jobs()["jobs"]])


def hosts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of hosts that begin so."""
    return _names(
        ctx, incomplete, lambda client: [each["hostname"] for each in client.workers()["workers"]]
    )


def _names(
    ctx: typer.Context, incomplete: str, ask: Callable[[FleetClient], list[str]]
) -> list[str]:
    root = ctx.find_root()
    world = root.obj if isinstance(root.obj, World) else World()
    try:
        names = ask(world.client(root.params.get("receiver_url")))
    except (CannotError, ClientError, OSError, KeyError, TypeError):
        return []
    plain = (name for name in names if isinstance(name, str) and name.isprintable())
    return sorted({name for name in plain if name.startswith(incomplete)})[:_NAMES_MAX]
