"""The figures of a record of mutants, by area: what ``docs/guarantees.md`` shows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mutants.areas import AREAS


@dataclass(slots=True)
class Row:
    """Mutants of one area, counted."""

    drawn: int = 0
    first: int = 0  # seen by the tests as they were at the draw
    seen: int = 0
    excused: int = 0  # unseen, and a reason says why it cannot matter
    gone: int = 0  # unseen at the draw, and its place is no longer in the code

    @property
    def share(self) -> float:
        """Per cent seen or excused of those that are still planted."""
        return 100 * (self.seen + self.excused) / max(1, self.drawn - self.gone)


def counted(record: Mapping[str, Any], excused: Collection[str]) -> dict[str, Row]:
    """A row for each area that was drawn from, and one of ``all``."""
    rows = {area: Row() for area in [*AREAS, "all"]}
    for key, each in record["mutants"].items():
        for row in (rows[each["area"]], rows["all"]):
            row.drawn += 1
            row.first += each["first"]
            row.seen += each["seen"] is not None
            row.gone += each.get("gone", False)
            row.excused += each["seen"] is None and not each.get("gone") and key in excused
    return {area: row for area, row in rows.items() if row.drawn}


def lines(record: Mapping[str, Any], excused: Collection[str]) -> Iterator[str]:
    """The figures as a Markdown table and a sentence of when they were taken."""
    rows = counted(record, excused)
    yield "| area | mutants | drawn | seen at the draw | seen now | cannot matter | gone | unseen |"
    yield "|---|---|---|---|---|---|---|---|"
    for area, row in rows.items():
        of = sum(record["of"].values()) if area == "all" else record["of"][area]
        unseen = row.drawn - row.seen - row.excused - row.gone
        yield (f"| {area} | {of:,} | {row.drawn} | {row.first} | {row.seen} | {row.excused} | {row.gone} | {unseen} |")
    total, run = rows["all"], record["run"]
    yield ""
    yield (
        f"The draw, seed {record['seed']}, {run['date']}, commit {run['commit']}: "
        f"{100 * total.first / total.drawn:.1f} % seen, in {run['minutes']} minutes, "
        f"by at most {run['asked_s']:g} s of tests each."
    )
    if "again" in record:
        run = record["again"]
        yield (
            f"After tests for the survivors, {run['date']}, commit {run['commit']}: {total.share:.1f} % of those "
            "whose place is still in the code seen, or unable to matter."
        )
