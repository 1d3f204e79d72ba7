"""``cis490-jobs gc``: delete at once what the plan's [retention] no longer keeps."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from training.fleet.cli.context import CommandContext
from training.fleet.cli.registration import as_command
from training.fleet.cli.render import table
from training.fleet.wire.constants import DONE, REFUSED
from training.fleet.wire.words import Json, size
from training.printable import counted, one_line

SHOWN_MAX = 40  # lines for people; --json has up to 1,000
_THINGS = {"bundle": "models", "log": "logs", "curve": "curves", "events": "lots of events", "dataset": "data sets"}


@as_command()
def gc(
    context: CommandContext,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted and why; delete nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Delete now what the plan's [retention] no longer keeps; the receiver does this every hour."""
    client = context.client()
    found = client.gc()
    if dry_run or not found["totals"]:
        context.show(found, render)
        return DONE
    if not context.as_json:
        context.show(found, render)
    client.call("tokens")  # an operator's call: who may not remove is not asked
    if not (yes or context.confirm("Remove this? It cannot be taken back.", look="cis490-jobs gc --dry-run")):
        context.complain("nothing was removed")
        return REFUSED
    parts = [client.gc_now()]
    while parts[-1]["more"]:
        parts.append(client.gc_now())
    gone = _together(parts)
    context.show(gone, lambda _: Text(f"removed: {_sum(gone)}"))
    return DONE


def _together(parts: Sequence[Json]) -> Json:
    """Return one answer that adds up what several calls deleted."""
    totals: dict[str, dict[str, Any]] = {}
    for each in (total for part in parts for total in part["totals"]):
        of = totals.setdefault(str(each["what"]), {"what": each["what"], "count": 0, "bytes": 0})
        of["count"] += each["count"]
        of["bytes"] += each["bytes"]
    items = [item for part in parts for item in part["items"]]
    return {**parts[-1], "totals": list(totals.values()), "items": items}


def render(found: Json) -> RenderableType:
    """Render the first items that would be deleted, with size and reason, the number of others, and the totals; or a
    sentence if nothing would be deleted."""
    notes = [Text(f"note: {one_line(note, 300)}") for note in found["notes"]]
    if found["keeps_all"]:
        return Group(Text("the plan has no [retention]: everything is kept (its keys: `cis490 docs manifest`)"), *notes)
    items = found["items"]
    if not items:
        return Group(Text("nothing is deleted now: the plan's [retention] keeps all that is there"), *notes)
    rows = []
    for each in items[:SHOWN_MAX]:
        attempt = f", attempt {each['attempt']}" if each["attempt"] else ""
        what = {"bundle": "model", "dataset": "data set"}.get(each["what"], each["what"])
        large = "" if each["what"] == "events" else size(each["bytes"])
        rows.append((what, f"{one_line(each['name'], 140)}{attempt}", large, each["why"]))
    made = table("WHAT", "OF", "SIZE", "WHY", rows=rows, right=("SIZE",))
    count = sum(each["count"] for each in found["totals"])
    more = count - min(len(items), SHOWN_MAX)
    rest = [Text(f"  … and {more} more; --json lists the first thousand")] if more > 0 else []
    return Group(made, *rest, Text(f"together: {_sum(found)}", "bold"), *notes)


def _sum(found: Json) -> str:
    """Return the totals in words, as ``3 models (12 MiB), 40 logs (1 MiB)``."""
    said = [
        counted(each["count"], _THINGS.get(str(each["what"]), "things"))
        + (f" ({size(each['bytes'])})" if each["bytes"] else "")
        for each in found["totals"]
        if each["what"] != "events"
    ]
    said += [one_line(each["name"], 60) for each in found["items"] if each["what"] == "events"][:1]
    return ", ".join(said) or "nothing"
