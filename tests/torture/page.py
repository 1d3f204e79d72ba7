"""``python -m tests.torture.page``: the figures of docs/guarantees.md, from what the last long runs recorded."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import places  # noqa: F401 - puts the folders of tests on the module path
from mutants import figures as mutants

from torture.parts import PARTS, ROOT

PAGE = ROOT / "docs" / "guarantees.md"
RECORD = ROOT / "docs" / "guarantees.json"
MUTANTS = ROOT / "docs" / "mutants.json"
EXCUSED = ROOT / "tests" / "mutants" / "excused.toml"


def table(record: Mapping[str, Any]) -> str:
    """The recorded figures as a Markdown table, one row a part."""
    lines = ["| part | broken | figures | took | of commit |", "|---|---|---|---|---|"]
    for part in PARTS:
        run = record.get(part.name)
        if run is None:
            lines.append(f"| {part.name} | – | not run yet | – | – |")
            continue
        figures = ", ".join(_figures(run["counts"]))
        done, of = len(run["done"]), run["tasks"]
        size = "" if run["full"] else " (quick)"
        size += "" if done == of else f" ({done} of {of} tasks)"
        took = f"{run['seconds'] / 60:.1f} min at load {run['load']}"
        lines.append(f"| {part.name}{size} | {len(run['broken'])} | {figures} | {took} | {run['commit']} |")
    machines = sorted({f"{run['machine']}, Python {run['python']}" for run in record.values()})
    return "\n".join([*lines, "", f"Machine: {'; '.join(machines) or 'none yet'}."])


# Counts of one kind are named "kind what"; of each kind the page tells how many there are, and the smallest.
KINDS = {"at": "places", "fault": "kinds of faults", "row": "rows of the transition table"}


def _figures(counts: Mapping[str, int]) -> Iterator[str]:
    named: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for name, count in counts.items():
        kind, _, what = name.partition(" ")
        if what and kind in KINDS:
            if what != "anywhere":
                named[kind].append(count)
        elif name == "fleet_minutes":
            yield f"{count // 60:,} fleet-hours"
        elif name.endswith("_ms_max"):
            yield f"{name.removesuffix('_ms_max').replace('_', ' ')} {count} ms"
        else:
            yield f"{count:,} {name.replace('_', ' ')}"
    for kind, found in named.items():
        if found:
            yield f"{len(found)} {KINDS[kind]}, each at least {min(found):,} times"


def tables() -> dict[str, str]:
    """Each table of the page, from its record, by the name of its marks."""
    of_parts = json.loads(RECORD.read_text(encoding="utf-8"))
    of_mutants = json.loads(MUTANTS.read_text(encoding="utf-8"))
    excused = tomllib.loads(EXCUSED.read_text(encoding="utf-8"))
    return {"figures": table(of_parts), "mutants": "\n".join(mutants.lines(of_mutants, excused))}


def rendered(page: str, tables: Mapping[str, str]) -> str:
    """The page with each table between its marks."""
    for name, text in tables.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n{text}\n{end}{after}"
    return page


def main() -> int:
    """Put the records' figures into the page."""
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(rendered(page, tables()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
