"""``python -m tests.mutants``: plant small bugs in the rules, run the nearest tests, record who noticed.

The map of who runs what is made once (``--map`` folder, minutes) and used until it is made anew with ``--remap``.
Exit 0 when at least 95 % were seen or are excused in ``excused.toml``, each with a reason.
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

from mutants.areas import AREAS, ROOT
from mutants.nearest import Map
from mutants.runner import all_mutants, make_map, nearest, run, sample

SEEN_LEAST = 0.95
EXCUSED = Path(__file__).with_name("excused.toml")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--count", type=int, default=450, help="mutants drawn (default: 450)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument(
        "--area", action="append", choices=list(AREAS), help="only this one; may be repeated"
    )
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default: 2)")
    parser.add_argument(
        "--map", type=Path, default=ROOT / "build" / "mutants-map", help="the map's folder"
    )
    parser.add_argument("--remap", action="store_true", help="make the map anew")
    parser.add_argument("--out", type=Path, help="the record (JSON)")
    parser.add_argument(
        "--again",
        type=Path,
        help="those alone that this record calls unseen and that are still planted",
    )
    parser.add_argument(
        "--list", action="store_true", help="print the draw and its tests; run nothing"
    )
    return parser


def main() -> int:
    """0 when at least 95 % of the mutants were seen or excused."""
    options = _parser().parse_args()
    if options.remap or not any(options.map.glob("*.json")):
        make_map(options.map, options.jobs)
    known = Map(options.map)
    found = {
        area: each
        for area, each in all_mutants().items()
        if not options.area or area in options.area
    }
    chosen = sample(found, options.count, options.seed)
    record: dict[str, Any] = {
        "of": {area: len(each) for area, each in found.items()},
        "mutants": {},
    }
    if options.again:
        record = json.loads(options.again.read_text())
        unseen = {key for key, each in record["mutants"].items() if each["seen"] is None}
        chosen = [
            (area, each) for area, group in found.items() for each in group if each.key in unseen
        ]
        for key in unseen - {each.key for _, each in chosen}:  # the code has moved on
            del record["mutants"][key]
    if options.list:
        for area, mutant in chosen:
            print(
                f"{area}: {mutant.path}:{mutant.line}: {mutant.key} ({len(nearest(mutant, known, {}))} tests)"
            )
        return 0
    excused = tomllib.loads(EXCUSED.read_text(encoding="utf-8"))
    begun = time.monotonic()
    for number, (area, mutant, verdict) in enumerate(run(chosen, known, options.jobs), 1):
        record["mutants"][mutant.key] = {"area": area, "line": mutant.line, **verdict}
        said = verdict["seen"] or ("excused" if mutant.key in excused else "UNSEEN")
        print(
            f"[{number}/{len(chosen)}] {mutant.key} ({mutant.line}): {said} ({verdict['seconds']} s)",
            flush=True,
        )
        if options.out:
            _write(options.out, record, begun)
    return _summary(record, excused)


def _write(out: Path, record: dict[str, Any], begun: float) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    record |= {"commit": commit.stdout.strip(), "seconds": round(time.monotonic() - begun)}
    out.write_text(
        json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _summary(record: dict[str, Any], excused: dict[str, str]) -> int:
    total = seen = forgiven = 0
    for area in AREAS:
        mine = {key: each for key, each in record["mutants"].items() if each["area"] == area}
        saw = sum(each["seen"] is not None for each in mine.values())
        harmless = sum(each["seen"] is None and key in excused for key, each in mine.items())
        total, seen, forgiven = total + len(mine), seen + saw, forgiven + harmless
        if mine:
            print(f"{area:12} {saw:4} of {len(mine):4} seen, {harmless} cannot matter")
    share = 100 * (seen + forgiven) / max(1, total)
    print(f"{'all':12} {seen:4} of {total:4} seen, {forgiven} cannot matter: {share:.1f} %")
    return int(seen + forgiven < SEEN_LEAST * total)


if __name__ == "__main__":
    raise SystemExit(main())
