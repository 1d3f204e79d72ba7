"""Shell completion of the names of jobs and hosts. Every error means an empty list.

Shells paste a completion into the line as it stands, and zsh evaluates it first: a name from a plan, or from a false
receiver, would run as a command. So only names are offered that every shell takes literally.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import typer

from training.fleet.cli.context import CannotError, CommandContext, connect
from training.fleet.client.client import ClientError, FleetClient

_NAMES_MAX = 1000
_PLAIN = re.compile(r"\w[\w.,:@/+-]{0,127}")
_PATIENCE_S = 2.0  # seconds; a person pressed a key and waits


def jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """List the names of jobs with this prefix."""
    return _names(ctx, incomplete, lambda client: [each["name"] for each in client.jobs()["jobs"]])


def hosts(ctx: typer.Context, incomplete: str) -> list[str]:
    """List the names of hosts with this prefix."""
    return _names(ctx, incomplete, lambda client: [each["hostname"] for each in client.workers()["workers"]])


def _names(ctx: typer.Context, incomplete: str, ask: Callable[[FleetClient], list[str]]) -> list[str]:
    root = ctx.find_root()
    context = root.obj if isinstance(root.obj, CommandContext) else CommandContext()
    if context.connect is connect:
        context = replace(context, connect=partial(connect, patience_s=_PATIENCE_S))
    try:
        names = ask(context.client(root.params.get("receiver_url")))
    except (CannotError, ClientError, OSError, KeyError, TypeError):
        return []
    plain = (name for name in names if isinstance(name, str) and _PLAIN.fullmatch(name))
    return sorted({name for name in plain if name.startswith(incomplete)})[:_NAMES_MAX]
