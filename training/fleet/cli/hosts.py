"""``cis490-jobs release, pause, drain, resume``: control which hosts get jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from training.fleet.cli import complete
from training.fleet.cli.context import CommandContext
from training.fleet.cli.registration import as_command
from training.printable import one_line, printable, some

Hosts = Annotated[list[str], typer.Argument(metavar="HOST...", help="Host ids.", autocompletion=complete.hosts)]


@as_command()
def release(context: CommandContext, hosts: Hosts) -> int:
    """Release hosts from quarantine; `cis490-jobs workers` shows which hosts are in quarantine, and why."""

    def line(host: str, answer: Mapping[str, Any]) -> str:
        why = one_line(answer["reason"], 300)
        return f"{printable(host)} gets work again; it had been taken out because {why}"

    return context.each(hosts, "hosts", context.client().release, line)


@as_command()
def pause(context: CommandContext, hosts: Hosts) -> int:
    """Pause hosts: at the next heartbeat their trainers stop where they are; the hosts get no new jobs."""
    return context.each(hosts, "hosts", context.client().pause_host, _line)


@as_command()
def drain(
    context: CommandContext,
    hosts: Hosts,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for running jobs: hand them back.")] = False,
) -> int:
    """Drain hosts: their running jobs finish; the hosts get no new jobs."""
    client = context.client()
    return context.each(hosts, "hosts", lambda host: client.drain(host, now=now), _line)


@as_command()
def resume(context: CommandContext, hosts: Hosts) -> int:
    """Resume hosts that are paused or drained."""
    return context.each(hosts, "hosts", context.client().resume_host, _line)


_WILL = {
    "pause": ("it gets no jobs", "stops where it is, and is handed back if the pause lasts"),
    "drain": ("it gets no jobs", "runs to its end"),
    "hand_back": ("it gets no jobs", "stops and is handed back"),
}


def _line(_: str, answer: Mapping[str, Any]) -> str:
    """Return the line that says what an order (pause, drain, none) does to a host and its jobs, and which command ends
    the order."""
    name, order, jobs = printable(answer["host"]), answer["order"], answer["jobs"]
    if order is None:
        note = answer["note"]
        return f"{name} {f'still gets no jobs: it is {one_line(note, 300)}' if note else 'gets work again'}"
    gets, does = _WILL.get(str(order), ("it is under an order", "is concerned"))
    trains = f"; what it trains ({some([one_line(job, 60) for job in jobs])}) {does}" if jobs else ""
    return f"{name}: {gets} until `cis490-jobs resume {name}`{trains}"
