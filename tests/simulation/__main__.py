"""``python -m tests.simulation``: replay one simulated fleet with its timeline, or run many and sum them up."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # one name for these modules: `simulation`

import places  # noqa: F401 - puts the folders of tests on the module path

from simulation.planted_bugs import BUGS
from simulation.report import Report, run_many
from simulation.run import run_seed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__, allow_abbrev=False)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--seed", type=int, help="replay this fleet and print what happened, byte for byte the same")
    what.add_argument("--seeds", type=int, default=200, help="run so many fleets (default: 200)")
    what.add_argument(
        "--bugs", action="store_true", help="for every planted bug, look for the first fleet that sees it"
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _replay(seed: int, *, as_json: bool) -> int:
    verdict = run_seed(seed, keep_lines=not as_json)
    if as_json:
        found = {"seed": seed, "trace": verdict.trace_hash, "violation": verdict.violation}
        print(json.dumps(found))
    else:
        print("\n".join(verdict.lines))
        print(f"\nseed {seed}: {verdict.violation or 'no promise was broken'}; trace {verdict.trace_hash}")
    return 0 if verdict.violation is None else 1


def _many(first: int, count: int, jobs: int, *, as_json: bool) -> int:
    report = Report()
    progress = sys.stderr.isatty()
    for verdict in run_many(range(first, first + count), jobs):
        report.add(verdict)
        if verdict.violation is not None and not as_json:
            print(f"{verdict.violation}\n  replay: make sim SEED={verdict.seed}", file=sys.stderr, flush=True)
        if progress:
            print(f"\r{report.seeds:,} of {count:,} fleets", end="", file=sys.stderr, flush=True)
    if progress:
        print("\r", end="", file=sys.stderr)
    print(json.dumps(report.to_dict(), indent=1) if as_json else "\n".join(report.lines()))
    # A few seeds need not show every kind of fault; many must.
    return 0 if report.good or (count < 200 and not report.violations) else 1


def _bugs(first: int, *, as_json: bool) -> int:
    found: dict[str, int | None] = {}
    for bug in (bug for bug in BUGS if not bug.seen_by):  # the others are seen by a test
        with bug.planted():
            seen = (seed for seed in range(first, first + 500) if run_seed(seed).sees)
            found[bug.name] = next(seen, None)
        if not as_json:
            print(f"{bug.name:<60} {found[bug.name]}", flush=True)
    if as_json:
        print(json.dumps(found, indent=1))
    return 0 if None not in found.values() else 1


def main() -> int:
    options = _parser().parse_args()
    if options.seed is not None:
        return _replay(options.seed, as_json=options.json)
    if options.bugs:
        return _bugs(options.first, as_json=options.json)
    return _many(options.first, options.seeds, options.jobs, as_json=options.json)


if __name__ == "__main__":
    raise SystemExit(main())
