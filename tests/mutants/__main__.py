"""``python -m tests.mutants``: plant small bugs in the rules, run the nearest tests, record who noticed.

The map of who runs what is made once (``--map`` folder, minutes) and used until it is made anew with ``--remap``.
Exit 0 when at least 95 % were seen or are excused in ``excused.toml``, each with a reason. ``docs/guarantees.md`` shows
the figures of ``docs/mutants.json`` (``python -m tests.torture.page``).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import places  # noqa: F401 - puts the folders of tests on the module path

from mutants.areas import AREAS, ROOT
from mutants.figures import counted
from mutants.mutant import Mutant
from mutants.nearest import MAPS, Map
from mutants.runner import BUDGET_S, all_mutants, make_map, nearest, run, sample

SEEN_LEAST = 0.95
EXCUSED = Path(__file__).with_name("excused.toml")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__, allow_abbrev=False)
    parser.add_argument("--count", type=int, default=450, help="mutants drawn (default: 450)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--area", action="append", choices=list(AREAS), help="only this one; may be repeated")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default: 2)")
    parser.add_argument("--map", type=Path, default=ROOT / "build" / "mutants-map", help="the map's folder")
    parser.add_argument("--remap", action="store_true", help="make the map anew")
    parser.add_argument("--out", type=Path, help="the record (JSON)")
    parser.add_argument(
        "--again", type=Path, help="those alone that this record calls unseen and that are still planted"
    )
    parser.add_argument("--resume", action="store_true", help="go on with those that the record in --out lacks")
    parser.add_argument("--list", action="store_true", help="print the draw and its tests; run nothing")
    return parser


def main() -> int:
    """0 when at least 95 % of the mutants were seen or excused."""
    options = _parser().parse_args()
    if options.remap or not any(options.map.glob(MAPS)):
        make_map(options.map, options.jobs)
    known, every = Map(options.map), all_mutants()
    found = {area: each for area, each in every.items() if not options.area or area in options.area}
    if options.again:
        record = json.loads(options.again.read_text(encoding="utf-8"))
        chosen = _unseen(record, found)
        _note_gone(record, every)
    else:
        record = {"of": {area: len(each) for area, each in found.items()}, "mutants": {}}
        if options.resume and options.out and options.out.exists():
            record = json.loads(options.out.read_text(encoding="utf-8"))
        drawn = sample(found, options.count, options.seed)
        chosen = [each for each in drawn if each[1].key not in record["mutants"]]
    if options.list:
        for area, mutant in chosen:
            print(f"{area}: {mutant.path}:{mutant.line}: {mutant.key} ({len(nearest(mutant, known, {}))} tests)")
        return 0
    excused = tomllib.loads(EXCUSED.read_text(encoding="utf-8"))
    what = "again" if options.again else "run"
    earlier = record.get(what, {}).get("minutes", 0) if options.resume else 0
    begun = time.monotonic()
    for number, (area, mutant, verdict) in enumerate(run(chosen, known, options.jobs), 1):
        before = record["mutants"].get(mutant.key)
        first = before["first"] if before else verdict["seen"] is not None
        place = {"area": area, "line": mutant.line, "first": first}
        record["mutants"][mutant.key] = place | verdict
        said = verdict["seen"] or ("excused" if mutant.key in excused else "UNSEEN")
        print(f"[{number}/{len(chosen)}] {mutant.key} ({mutant.line}): {said} ({verdict['seconds']} s)", flush=True)
        if options.out:  # after each, so that whoever interrupts a run keeps what it found
            minutes = earlier + round((time.monotonic() - begun) / 60, 1)
            record[what] = _of_when() | {"minutes": round(minutes, 1), "asked_s": BUDGET_S}
            if not options.again:
                record["seed"] = options.seed
            text = json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False)
            options.out.write_text(text + "\n", encoding="utf-8")
    return _summary(record, excused)


def _unseen(record: dict[str, Any], found: dict[str, list[Mutant]]) -> list[tuple[str, Mutant]]:
    unseen = {key for key, each in record["mutants"].items() if each["seen"] is None}
    return [(area, each) for area, group in found.items() for each in group if each.key in unseen]


def _note_gone(record: dict[str, Any], every: dict[str, list[Mutant]]) -> None:
    """Mark what was not seen and is no longer planted, because the code has moved on."""
    planted = {each.key for group in every.values() for each in group}
    for key, each in record["mutants"].items():
        if each["seen"] is None and key not in planted:
            each["gone"] = True


def _of_when() -> dict[str, str]:
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return {"commit": commit, "date": time.strftime("%Y-%m-%d", time.gmtime())}


def _summary(record: dict[str, Any], excused: dict[str, str]) -> int:
    rows = counted(record, excused)
    for area, row in rows.items():
        print(f"{area:12} {row.seen:4} of {row.drawn:4} seen, {row.excused} cannot matter")
    total = rows["all"]
    print(f"{total.share:.1f} % seen or harmless, {100 * total.first / total.drawn:.1f} % at first")
    return int(total.share < 100 * SEEN_LEAST)


if __name__ == "__main__":
    raise SystemExit(main())
