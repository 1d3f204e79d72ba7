"""``cis490-jobs incidents`` and ``judge``: list what watched hosts reported, and record what a person found out."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from training.fleet.cli.context import CommandContext
from training.fleet.cli.registration import as_command
from training.fleet.cli.render import cell, table
from training.fleet.wire import words
from training.fleet.wire.words import Json
from training.printable import one_line, printable

ENDS = {"over": "", "confirmed": "confirmed", "reference": "new reference", "later": "changed again"}
LOOK = "a change is confirmed on its host: watch --confirm-change; where its watch lost its state: judge NUMBER closed"
NO_WATCH = "no host is watched: `cis490 watch CKPT --receiver-url URL` starts a watch (`cis490 docs watch`)"


class IncidentVerdict(StrEnum):
    """The verdicts that a person may give on an incident."""

    CONFIRMED = "confirmed"
    FALSE = "false"
    CLOSED = "closed"
    OPEN = "open"  # none, again


@as_command()
def incidents(
    context: CommandContext,
    host: Annotated[str | None, typer.Option(help="Only this host.")] = None,
    limit: Annotated[int, typer.Option(help="At most this many incidents.", min=1, max=500)] = 50,
) -> None:
    """List the watched hosts, and the incidents and changes that they reported, the newest first."""
    answer = context.client().incidents(host=host, limit=limit)
    context.show(answer, rendered)


@as_command()
def judge(
    context: CommandContext,
    number: Annotated[
        int, typer.Argument(metavar="NUMBER", help="The incident's number, as `incidents` shows it.", min=1)
    ],
    verdict: Annotated[IncidentVerdict, typer.Argument(help="What you found out; `open` withdraws a verdict.")],
) -> None:
    """Record what you found out about an incident: alarms are confirmed or false, a change of the host is closed.

    Close a change here only if its watch cannot confirm it, because the watch lost its state or no longer runs. Closing
    a change does not alter when the watch raises alarms. The next change of the host is reported.
    """
    answer = context.client().judge(number, verdict=verdict.value)
    line = f"incident {answer['number']} on {printable(answer['host'])}: {answer['verdict'] or 'not judged'}"
    context.show(answer, line)


def rendered(answer: Json) -> RenderableType:
    """Render the watches and their incidents for people."""
    found, watches, now = answer["incidents"], answer["watches"], answer["now"]
    watched: list[RenderableType] = [
        Text(_watch(each, now), style="yellow" if each["silent"] else "dim") for each in watches
    ]
    if any(each["kind"] == "change" and _stands(each) for each in found):
        watched.append(Text(LOOK, style="dim"))
    if not found:
        return Group(*watched, Text("no incident was reported" if watches else NO_WATCH))
    heads = ("NUMBER", "HOST", "RAISED (UTC)", "LASTED", "MODEL", "SCORE", "WHY", "FOUND")
    more = [Text("older ones: --limit")] if answer["next_before"] else []
    return Group(*watched, table(*heads, rows=map(_row, found)), *more)


def _row(each: Json) -> Sequence[object]:
    change, length = each["kind"] == "change", cell(lasted(each), "" if each["ended"] else "yellow")
    score = f"{each['threshold'] + each['peak']:.2f} over {each['threshold']:.2f}"
    raised = words.moment(each["told_at" if change else "raised_at"], "%Y-%m-%d %H:%M:%S")
    why = words.changed(each) if change else words.carried(each["why"])
    found = ("" if change else score), why, cell(state_of(each), "yellow" if _stands(each) else "")
    return each["number"], each["host"], raised, "" if change else length, each["model"], *found


def state_of(one: Json) -> str:
    """Return a person's verdict on an incident or change. Without a verdict: ``look into it`` while it is open, how it
    ended for a change, and an empty text for an incident that is over."""
    if one["verdict"] == "closed":
        return f"closed by {one['judged_by']}"
    return one["verdict"] or ENDS.get(one["ended"], "look into it")


def _stands(one: Json) -> bool:
    return one["ended"] is None and not one["verdict"]


def lasted(one: Json) -> str:
    """Return how long an incident lasted, from its begin to its last alarm; with the word ``open`` if it has not
    ended."""
    length = words.duration(max(0.0, one["last_alarm_at"] - one["began_at"]))
    return length if one["ended"] else f"{length}, open"


def _watch(watch: Json, now: float) -> str:
    host, model = one_line(watch["host"], 64), one_line(watch["model"], 64)
    if watch["silent"]:
        return f"{host} ({model}) last reported {words.ago(watch['heard_at'], now)}: is its watch running?"
    return f"{host} is watched with {model}, last report {words.ago(watch['heard_at'], now)}"
