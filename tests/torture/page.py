"""``python -m tests.torture.page``: the figures of docs/guarantees.md, from what the last long runs recorded."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import places  # noqa: F401 - puts the folders of tests on the module path

from torture.parts import PARTS, ROOT

PAGE = ROOT / "docs" / "guarantees.md"
RECORD = ROOT / "docs" / "guarantees.json"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def table(record: Mapping[str, Any]) -> str:
    """The recorded figures as a Markdown table, one row a part."""
    lines = ["| part | ended | took | tried | broken |", "|---|---|---|---|---|"]
    for part in PARTS:
        run = record.get(part.name)
        if run is None:
            lines.append(f"| {part.name} | not run yet | – | – | – |")
            continue
        figures = ", ".join(_figures(run["counts"]))
        done, of = len(run["done"]), run["tasks"]
        size = "" if run["full"] else " (quick)"
        size += "" if done == of else f" ({done} of {of} tasks)"
        ended, took = run["ended"].partition(" ")[0], f"{run['seconds'] / 60:.1f} min"
        lines.append(f"| {part.name}{size} | {ended} | {took} | {figures} | {len(run['broken'])} |")
    machines = sorted({f"{run['machine']}, Python {run['python']}" for run in record.values()})
    return "\n".join([*lines, "", f"Machine: {'; '.join(machines) or 'none yet'}."])


# Counts of one kind are named "kind what"; of each kind the page tells how many there are.
KINDS = {"at": "places", "fault": "kinds of faults", "row": "transitions"}


def _figures(counts: Mapping[str, int]) -> Iterator[str]:
    named = dict.fromkeys(KINDS, 0)
    for name, count in counts.items():
        kind, _, what = name.partition(" ")
        if what and kind in KINDS:
            if what != "anywhere":
                named[kind] += 1
        elif name == "fleet_minutes":
            yield f"{count // 60:,} fleet-hours"
        elif name.endswith("_ms_max"):
            yield f"{name.removesuffix('_ms_max').replace('_', ' ')} {count} ms"
        else:
            yield f"{count:,} {name.replace('_', ' ')}"
    for kind, found in named.items():
        if found:
            yield f"{found} {KINDS[kind]}"


def rendered(page: str) -> str:
    """The page with the record's table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(json.loads(RECORD.read_text(encoding='utf-8')))}\n{END}{after}"


def main() -> int:
    """Put the record's figures into the page."""
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
