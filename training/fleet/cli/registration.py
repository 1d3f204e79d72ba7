"""Register commands of ``cis490-jobs`` with the options that they share."""

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from training.fleet.cli.context import DEFAULT_URL, URL_VARIABLE, CommandContext

Url = Annotated[str | None, typer.Option(help=f"Receiver; default ${URL_VARIABLE}, the joined one, or {DEFAULT_URL}.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_TYPES = {"str": " TEXT", "path": " PATH", "int range": " N", "float range": " N"}
Ended = int | None  # the exit code; None is 0
Run = Callable[..., Ended]


def _format_options(command: Any, ctx: Any, formatter: Any) -> None:
    """Write arguments and options, with short words in place of Python's types."""
    for kind in ("argument", "option"):
        types = _TYPES if kind == "option" else {}
        rows = [
            (re.sub(r" <([\w \[\]]+)>", lambda found: types.get(found[1], ""), name), words)  # noqa: B023 - at once
            for each in command.get_params(ctx)
            if each.param_type_name == kind
            for name, words in [each.get_help_record(ctx)]
        ]
        if rows:
            with formatter.section(f"{kind.capitalize()}s"):
                formatter.write_dl(rows)


class _Command(TyperCommand):
    format_options = _format_options


class _Group(TyperGroup):
    """Lists its commands under the headings that they have, each with the whole first sentence of its help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _format_options(self, ctx, formatter)
        headings: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            heading = getattr(command, "rich_help_panel", None) or "Commands"
            headings.setdefault(heading, []).append((name, command.get_short_help_str(1000).removesuffix(".")))
        for heading, rows in headings.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


app = typer.Typer(cls=_Group, rich_markup_mode=None, pretty_exceptions_enable=False)


def group(name: str, words: str) -> typer.Typer:
    """Make a group of commands under one name, with the help text ``words``."""
    made = typer.Typer(cls=_Group, help=words, rich_markup_mode=None)
    app.add_typer(made, name=name)
    return made


def surroundings(ctx: typer.Context, receiver_url: str | None, as_json: bool) -> CommandContext:
    """Return the context of a command with these options, which may come before or after its name."""
    known: CommandContext = ctx.obj
    return replace(known, url=receiver_url or known.url, as_json=as_json or known.as_json)


def as_command(
    name: str | None = None, *, group: typer.Typer = app, calls: bool = True, as_json: object = AsJson
) -> Callable[[Run], Run]:
    """Return a decorator that registers a function, which takes its context and its own arguments, as a command.

    The command has ``--json`` and, if it ``calls`` a receiver, ``--receiver-url``: both are in the context.
    """

    def register(function: Run) -> Run:
        @functools.wraps(function)
        def run(
            ctx: typer.Context, receiver_url: str | None = None, as_json: bool = False, **given: object
        ) -> int | None:
            return function(surroundings(ctx, receiver_url, as_json), **given)

        shared = [Parameter("receiver_url", Parameter.KEYWORD_ONLY, default=None, annotation=Url)] if calls else []
        shared.append(Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=as_json))
        first = Parameter("ctx", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        _, *own = signature(function, eval_str=True).parameters.values()
        run.__signature__ = Signature([first, *own, *shared])  # type: ignore[attr-defined]
        group.command(name, cls=_Command)(run)
        return function

    return register
