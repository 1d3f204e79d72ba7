"""``cis490-jobs audit``: list who did what to the fleet, and check that no row was changed."""

from typing import Annotated

import msgspec
import typer

from training.fleet.cli.context import CommandContext
from training.fleet.cli.registration import as_command
from training.fleet.cli.render import Lines, table
from training.fleet.client.client import FleetClient
from training.fleet.wire import words
from training.fleet.wire.audit_chain import first_broken
from training.fleet.wire.constants import DONE, REFUSED
from training.fleet.wire.messages import AuditEntry
from training.strict_json import JsonObject


@as_command(as_json=Annotated[bool, typer.Option("--json", help="Print JSON, with all rows.")])
def audit(
    context: CommandContext,
    last: Annotated[int, typer.Option(help="Show this many newest rows; all are checked.", min=1)] = 50,
) -> int:
    """List who changed what in the fleet and when, oldest first. Exit 1 if the record is broken."""
    rows, written = _everything(context.client())
    broken = first_broken(msgspec.convert(rows, list[AuditEntry]))
    if broken is None and len(rows) < written:
        broken = len(rows) + 1
    head = rows[-1]["digest"] if rows else None
    answer = {"entries": rows, "head": head, "first_broken": broken}
    context.show(answer, lambda _: _table(rows[-last:]) if rows else "no entries yet")
    if broken is not None:
        context.complain(
            f"row {broken} of {written} is missing or does not follow from the one before: the record was changed "
            "there or lacks rows; compare with a backup of the database"
        )
        return REFUSED
    if head is not None and not context.as_json:
        context.complain(f"{len(rows)} rows, each follows from the one before; the last is {head}")
    return DONE


def _everything(client: FleetClient) -> tuple[list[JsonObject], int]:
    """Return all rows of the record, oldest first, and the number of rows that the receiver says were written."""
    rows, written = list[JsonObject](), 0
    after: int | None = 0
    while after is not None:
        page = client.call("audit", after=after)
        rows += page["entries"]
        after, written = page["next_after"], page["written"]
    return rows, written


def _table(rows: list[JsonObject]) -> Lines:
    keys = ("who", "act", "subject", "before", "after")
    cells = ((words.moment(row["at"], "%Y-%m-%d %H:%M:%S UTC"), *(row[key] for key in keys)) for row in rows)
    return table("WHEN", "WHO", "ACT", "ON", "BEFORE", "AFTER", rows=cells)
