"""Register commands of ``cis490-jobs`` with the options that they share."""

import functools
from collections.abc import Callable
from dataclasses import replace
from inspect import Parameter, Signature, signature
from typing import Annotated

import typer

from training.fleet.cli.context import DEFAULT_URL, URL_VARIABLE, CommandContext

Url = Annotated[str | None, typer.Option(help=f"Receiver; default ${URL_VARIABLE}, the joined one, or {DEFAULT_URL}.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Ended = int | None  # the exit code; None is 0
Run = Callable[..., Ended]

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)


def group(name: str, words: str) -> typer.Typer:
    """Make a group of commands under one name, with the help text ``words``."""
    made = typer.Typer(help=words, rich_markup_mode=None)
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
        group.command(name)(run)
        return function

    return register
