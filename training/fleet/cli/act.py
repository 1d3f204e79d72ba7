"""``cis490-jobs act``: cancel, requeue, hold or unhold all that filters let through, after the receiver's number."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from training.fleet.cli.context import CannotError, CommandContext
from training.fleet.wire.constants import DONE, REFUSED, USAGE
from training.fleet.wire.words import Json
from training.printable import counted, one_line


class What(StrEnum):
    """The acts that many jobs can undergo at once."""

    CANCEL = "cancel"
    REQUEUE = "requeue"
    HOLD = "hold"
    UNHOLD = "unhold"


_DONE = {"cancel": "cancelled", "requeue": "requeued", "hold": "held", "unhold": "unheld"}


def hook(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(act)


def act(
    ctx: typer.Context,
    what: Annotated[What, typer.Argument(help="What to do with them.")],
    status: Annotated[str, typer.Option(help="Only jobs with this status, or held.")] = "",
    model: Annotated[str, typer.Option(help="Only this model's.")] = "",
    mode: Annotated[str, typer.Option(help="Only of this mode.")] = "",
    host: Annotated[str, typer.Option(help="Only those that this host has or had last.")] = "",
    name: Annotated[str, typer.Option(help="Only with this text in their names.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show which jobs it would be, and do nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    receiver_url: Annotated[str | None, typer.Option(help="As for the other commands.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Act on all jobs that the filters let through: the receiver says how many, and then it is those or none."""
    context: CommandContext = ctx.obj
    given = {"status": status, "model": model, "mode": mode, "host": host, "q": name}
    wanted = {key: value for key, value in given.items() if value}
    if not wanted:
        raise CannotError("name at least one of --status, --model, --mode, --host, --name", USAGE)
    client = context.client(receiver_url)
    would = client.act(what, wanted)
    if not would["jobs"]:
        context.show(
            as_json, would, lambda: f"nothing to do: no job that these filters let through can be {_DONE[what]}"
        )
        return DONE
    if dry_run:
        context.show(as_json, would, lambda: "\n".join(_outlook(would)))
        return DONE
    if not yes:
        for line in _outlook(would):
            print(line, file=context.err)
        if not context.confirm("Do this?", look=f"cis490-jobs act {what} … --dry-run"):
            context.complain("nothing was done")
            return REFUSED
    done = client.act(what, wanted, would["mark"])
    context.show(as_json, done, lambda: _outcome(done))
    return DONE


def _outlook(would: Json) -> list[str]:
    said = one_line(would["says"], 400)
    lines = [f"{said[:1].upper()}{said[1:]}:", *(f"  {one_line(name, 100)}" for name in would["names"])]
    more = would["jobs"] - len(would["names"])
    lines += [f"  … and {more:,} more"] if more > 0 else []
    left = would["left_alone"]
    lines += [f"{counted(left, 'jobs')} of those found {'is' if left == 1 else 'are'} left alone."] if left else []
    lines += [one_line(would["for_good"], 400)] if would["for_good"] else []
    return lines + ([] if would["whole"] else ["More were found than one act takes; repeat it for the rest."])


def _outcome(done: Json) -> str:
    moved, changed = done["moved"], done["changed"]
    said = f"{counted(moved, 'jobs')} {'was' if moved == 1 else 'were'} {_DONE[done['what']]}"
    return f"{said}; {counted(changed, 'jobs')} had changed meanwhile, and were left alone" if changed else said
