"""``cis490-jobs act``: cancel, requeue, hold or unhold all jobs that match filters, after showing how many they are."""

from typing import Annotated

import typer

from training.contract import Mode
from training.fleet.cli.context import CannotError, CommandContext
from training.fleet.cli.registration import as_command
from training.fleet.wire.constants import DONE, REFUSED, USAGE, ActStatus, JobAct
from training.fleet.wire.words import Json
from training.printable import counted, one_line


@as_command()
def act(
    context: CommandContext,
    what: Annotated[JobAct, typer.Argument(help="What to do with the jobs.")],
    status: Annotated[ActStatus | None, typer.Option(help="Only jobs with this status, or held.")] = None,
    model: Annotated[str, typer.Option(help="Only jobs of this model.")] = "",
    mode: Annotated[Mode | None, typer.Option(help="Only jobs of this mode.")] = None,
    host: Annotated[str, typer.Option(help="Only jobs that this host has, or had last.")] = "",
    name: Annotated[str, typer.Option(help="Only jobs with this text in their names.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show which jobs match, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Cancel, requeue, hold or unhold all jobs that match the filters; without --yes, show their number and ask
    first."""
    given = {"status": status, "model": model, "mode": mode, "host": host, "q": name}
    wanted = {key: value for key, value in given.items() if value}
    if not wanted:
        raise CannotError("name at least one of --status, --model, --mode, --host, --name", USAGE)
    client = context.client()
    would = client.act(what, wanted)
    if not would["jobs"]:
        context.show(would, f"nothing to do: no job that matches these filters can be {what.done}")
        return DONE
    if dry_run:
        context.show(would, lambda _: "\n".join(_outlook(would)))
        return DONE
    if not yes:
        for line in _outlook(would):
            print(line, file=context.err)
        question = f"{what.capitalize()} {counted(would['jobs'], 'jobs')}?"
        if not context.confirm(question, look=f"cis490-jobs act {what} … --dry-run"):
            context.complain("nothing was done")
            return REFUSED
    done = client.act(what, wanted, would["jobs"])
    context.show(done, _outcome)
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
    moved, skipped = done["moved"], done["skipped"]
    said = f"{counted(moved, 'jobs')} {'was' if moved == 1 else 'were'} {JobAct(done['what']).done}"
    return f"{said}; {counted(skipped, 'jobs')} had changed meanwhile, and were left alone" if skipped else said
