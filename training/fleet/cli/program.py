"""``cis490-jobs``: show the fleet, and change it.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage (of `plan`, `apply` and `forecast` also an invalid manifest), 75
receiver unreachable or not ready. `plan`, `wait` and `logs` have further exit codes. The operator's token comes from
``$CIS490_OPERATOR_TOKEN`` only: an argument would show in the process list.
"""

import errno
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Annotated, Any

import typer

from training.files import keep_others_out
from training.fleet.cli import (
    act,
    audit,
    browse,
    curve,
    datasets,
    enroll,
    forecast,
    gc,
    hosts,
    incident_commands,
    jobs,
    logs,
    notify,
    plan,
    recovery,
    report,
    speeds,
    standings,
    watch,
)
from training.fleet.cli.context import URL_VARIABLE, CannotError, CommandContext
from training.fleet.cli.models import BundleRefused
from training.fleet.cli.registration import AsJson, Url, app
from training.fleet.client.client import ClientError, Damaged, Stranger, Unavailable, Unreachable
from training.fleet.wire.constants import DONE, REFUSED, UNREACHABLE, USAGE
from training.installed import build_of, typed
from training.streams import has_seen_enough, replace_unprintable, write_no_more

NAME = "cis490-jobs"


def _version(asked: bool) -> None:
    if asked:
        print(build_of(typed(NAME)))
        raise typer.Exit


@app.callback()
def common(
    ctx: typer.Context,
    receiver_url: Url = None,
    as_json: AsJson = False,
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Show and change the training fleet.

    Changes, audit, certificates and tokens need an operator's certificate or $CIS490_OPERATOR_TOKEN.
    """
    ctx.obj = replace(ctx.obj or CommandContext(), url=receiver_url, as_json=as_json)


MODULES = (
    watch, jobs, act, audit, browse, curve, standings, report, enroll, forecast, gc, hosts, incident_commands, notify,
    plan, recovery, speeds, logs, datasets,
)  # fmt: skip
# Heading of the help → its commands.
HELP = {
    "Look": "status watch list show explain logs curve models workers upgrade speeds forecast wait open report get",
    "Change jobs and the plan": "plan apply reload cancel requeue hold unhold act gc",
    "Change hosts and data": "pause drain resume release accept refuse incidents judge dataset notify",
    "Let people and machines in": "enroll revoke certificates audit tokens",
    "Repair": "doctor backup restore rebuild",
}
_HEADINGS = {name: heading for heading, names in HELP.items() for name in names.split()}


def _name(registered: Any) -> str:
    return str(registered.name or registered.callback.__name__)


for _group in app.registered_groups:
    _group.rich_help_panel = _HEADINGS[_name(_group)]
for _command in app.registered_commands:
    _command.rich_help_panel = _HEADINGS[_name(_command)]
app.registered_commands.sort(key=lambda each: [*_HEADINGS].index(_name(each)))


_REMEDIES = {  # for a file that cannot be used
    errno.ENOSPC: "make room there, or name another folder",
    errno.EDQUOT: "make room there, or name another folder",
    errno.EROFS: "name a folder that can be written",
    errno.EACCES: "give this user the right to it, or name another folder",
    errno.EPERM: "give this user the right to it, or name another folder",
    errno.ENOENT: "look at its name",
}


def main(argv: Sequence[str] | None = None, *, context: CommandContext | None = None) -> int:
    """Run one command and return its exit code. Wrong usage, refusals, and failures of the network or a file are
    printed as one sentence on standard error."""
    context = context or CommandContext()
    replace_unprintable(context.out, context.err)
    context.callers.update(callers())
    keep_others_out()
    try:
        return _run(sys.argv[1:] if argv is None else list(argv), context)
    except typer.TyperException as error:  # wrong usage
        said = error.format_message().replace("Value error, ", "", 1).rstrip(".")  # a type's name
        context.complain(said if said.endswith("?") else f"{said}; see {typed(NAME)} --help")
        return USAGE
    except Damaged as error:
        context.complain(error)
        return REFUSED
    except Unreachable as error:
        running = "" if isinstance(error, Stranger) else "is it running there? "
        context.complain(f"{error}; {running}--receiver-url or ${URL_VARIABLE} names it")
        return UNREACHABLE
    except Unavailable as error:
        context.complain(error)
        return UNREACHABLE
    except CannotError as error:
        context.complain(error)
        return error.code
    except (ClientError, BundleRefused) as error:
        context.complain(error)
        return REFUSED
    except OSError as error:
        if has_seen_enough(error):
            write_no_more()
            return REFUSED
        remedy = _REMEDIES.get(error.errno or 0, "name another place, or see what holds it")
        context.complain(f"{error.filename or 'standard output'}: {error.strerror or error}; {remedy}")
        return REFUSED
    finally:
        while context.opened:
            context.opened.pop().close()


@cache
def command() -> Any:
    """Return the parser of all commands with their flags. The parser is built once, since building takes longer than
    most commands."""
    return typer.main.get_command(app)


def callers() -> set[str]:
    """Return the names of the commands that call a receiver and so take its address, ``--receiver-url``."""
    found: dict[str, Any] = command().commands
    groups = {name: list(getattr(each, "commands", {name: each}).values()) for name, each in found.items()}
    return {
        name
        for name, all_of_it in groups.items()
        if any(p.name == "receiver_url" for one in all_of_it for p in one.params)
    }


def _run(given: list[str], context: CommandContext) -> int:
    """Run one command and return its exit code; if the command's name is missing, print the help."""
    try:
        code = command().main(given, prog_name=typed(NAME), standalone_mode=False, obj=context)
    except typer.TyperException as error:
        asked: Any = getattr(error, "ctx", None)
        if asked is None or error.format_message() != "Missing command.":
            raise
        print(asked.get_help(), file=context.out)
        return DONE
    return code if isinstance(code, int) else DONE


if __name__ == "__main__":
    sys.exit(main())
