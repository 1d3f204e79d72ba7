"""Shell completion of the names of jobs and hosts. After any error the list of completions is empty. Shells insert a
completion into the command line unchanged, and zsh evaluates it first: a name from a plan, or from a false receiver,
would run as a command. This module offers only names that every shell takes literally, and names with the brackets of a
matrix. zsh and fish quote brackets themselves; for bash this module quotes brackets."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import typer

from training.fleet.cli.context import CannotError, CommandContext, connect
from training.fleet.client.client import ClientError, FleetClient

_NAMES_MAX = 1000
_PLAIN = re.compile(r"\w[\w.,:@/+-]{0,127}(?:\[[\w.,:@/+=-]{1,127}\])?")
_BRACKETS = re.compile(r"[\[\]]")
_PATIENCE_S = 2.0  # seconds; a person pressed a key and waits


def jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return at most 1000 names of jobs that begin with ``incomplete``, without those that a shell could evaluate;
    empty after any error."""
    return _names(ctx, incomplete, lambda client: [each["name"] for each in client.jobs()["jobs"]])


def hosts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return at most 1000 names of hosts that begin with ``incomplete``, without those that a shell could evaluate;
    empty after any error."""
    return _names(ctx, incomplete, lambda client: [each["hostname"] for each in client.workers()["workers"]])


def _names(ctx: typer.Context, incomplete: str, ask: Callable[[FleetClient], list[str]]) -> list[str]:
    root = ctx.find_root()
    context = root.obj if isinstance(root.obj, CommandContext) else CommandContext()
    context = replace(context, url=root.params.get("receiver_url"))
    if context.connect is connect:
        context = replace(context, connect=partial(connect, patience_s=_PATIENCE_S))
    try:
        names = ask(context.client())
    except (CannotError, ClientError, OSError, KeyError, TypeError):
        return []
    plain = (name for name in names if isinstance(name, str) and _PLAIN.fullmatch(name))
    in_bash = context.environ.get("_CIS490_JOBS_COMPLETE") == "complete_bash"
    before = _before_the_break(context.environ) if in_bash else ""
    typed = before + ("" if before.endswith("=") and incomplete == "=" else incomplete)
    found = sorted({name for name in plain if name.startswith(typed)})[:_NAMES_MAX]
    return [_Quoted(_BRACKETS.sub(r"\\\g<0>", name.removeprefix(before))) for name in found] if in_bash else list(found)


class _Quoted(str):
    """A completion as bash takes it: quoted, and without the part up to the last typed ``=``. Its ``startswith`` is
    always True, because Typer drops completions that do not begin with the typed text."""

    __slots__ = ()

    def startswith(self, *_: object) -> bool:
        return True


def _before_the_break(environ: Mapping[str, str]) -> str:
    """Return the part of the name before the word that bash completes: bash splits words at every ``=``."""
    words = environ.get("COMP_WORDS", "").split("\n")
    last = int(environ.get("COMP_CWORD", "0"))
    first = last
    while first > 1 and (words[first - 1] == "=" or words[first : first + 1] == ["="]):
        first -= 1
    broken = "".join(words[first:last]) + ("=" if words[last : last + 1] == ["="] else "")
    return broken.replace("\\", "")
