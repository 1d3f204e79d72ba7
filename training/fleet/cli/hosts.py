"""``cis490-jobs release, pause, drain, resume, accept, refuse``: control which hosts get jobs, and decide on their
unconfirmed work."""

from functools import partial
from typing import Annotated

import typer

from training.fleet.cli import complete
from training.fleet.cli.context import CommandContext
from training.fleet.cli.registration import as_command
from training.fleet.wire.constants import REFUSED
from training.printable import one_line, printable, some
from training.strict_json import Json

Hosts = Annotated[list[str], typer.Argument(metavar="HOST", help="Host ids.", autocompletion=complete.hosts)]


@as_command()
def release(context: CommandContext, hosts: Hosts) -> int:
    """Release hosts from quarantine; `cis490-jobs workers` shows which hosts are in quarantine, and why."""

    def line(host: str, answer: Json) -> str:
        why = one_line(answer["reason"], 300)
        return f"{printable(host)} gets work again; it had been taken out because {why}"

    return context.each(hosts, "hosts", context.client().release, line)


@as_command()
def pause(context: CommandContext, hosts: Hosts) -> int:
    """Pause hosts: they get no new jobs; their trainers are suspended at the next heartbeat, and their jobs are handed
    back if the pause lasts."""
    return context.each(hosts, "hosts", context.client().pause_host, _line)


@as_command()
def drain(
    context: CommandContext,
    hosts: Hosts,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for running jobs: hand them back.")] = False,
) -> int:
    """Drain hosts: they get no new jobs; their running jobs finish, unless --now is given."""
    client = context.client()
    return context.each(hosts, "hosts", lambda host: client.drain(host, now=now), _line)


@as_command()
def resume(context: CommandContext, hosts: Hosts) -> int:
    """Resume hosts that are paused or drained."""
    return context.each(hosts, "hosts", context.client().resume_host, _line)


AllOfThem = Annotated[bool, typer.Option("--all", help="Also every other host's work from before a restore.")]


@as_command()
def accept(context: CommandContext, hosts: Hosts, every: AllOfThem = False) -> int:
    """Complete jobs by hosts' unconfirmed work, which came under claims that this database did not grant."""
    return _decide(context, "accept", hosts, every)


@as_command()
def refuse(context: CommandContext, hosts: Hosts, every: AllOfThem = False) -> int:
    """Refuse hosts' unconfirmed work; their workers set it aside."""
    return _decide(context, "refuse", hosts, every)


def _decide(context: CommandContext, act: str, hosts: Hosts, every: bool) -> int:
    """Accept or refuse hosts' work; exit code 1 also if work that was accepted could not complete its job."""
    left: list[str] = []

    def line(_: str, answer: Json) -> str:
        left.extend(answer["left"])
        done = f"{act} {printable(answer['host'])}: {some([one_line(job, 60) for job in answer['jobs']])}"
        return "\n".join([done, *(f"  not completed: {one_line(each, 300)}" for each in answer["left"])])

    code = context.each(hosts, "hosts", partial(context.client().call, act, all=every), line)
    return REFUSED if left else code


_WILL = {
    "pause": ("it gets no jobs", "stops where it is, and is handed back if the pause lasts"),
    "drain": ("it gets no jobs", "runs to its end"),
    "hand_back": ("it gets no jobs", "stops and is handed back"),
}


def _line(_: str, answer: Json) -> str:
    """Return the line that says what an order (pause, drain, none) does to a host and its jobs, and which command ends
    the order."""
    name, order, jobs = printable(answer["host"]), answer["order"], answer["jobs"]
    if order is None:
        note = answer["note"]
        return f"{name} {f'still gets no jobs: it is {one_line(note, 300)}' if note else 'gets work again'}"
    gets, does = _WILL.get(str(order), ("it is under an order", "is concerned"))
    trains = f"; what it trains ({some([one_line(job, 60) for job in jobs])}) {does}" if jobs else ""
    return f"{name}: {gets} until `cis490-jobs resume {name}`{trains}"
