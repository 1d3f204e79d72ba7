"""``python -m tests.api --calls 100000 --target app --json FILE``: generated calls until there were so many.

Each round has a receiver and a seed of its own. Exit code 1 when an answer was not as documented.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import places  # noqa: F401 - puts the folders of tests on the module path

from api.run import Result, Target, run
from training.checkout import ROOT
from training.clock import SystemClock
from training.fleet.capability.probe import checkout_commit

EXAMPLES = 10  # inputs an operation and round: short rounds, because a receiver that knows many hosts is slower


def server_errors(result):
    return sum(n for each, n in result.statuses.items() if each.split()[-1][0] == "5")


def added(record, found):
    """The record with one more run, of which only the sum keeps each answer."""
    answers = Counter(record["answers"]) + Counter(found["answers"])
    run = {name: value for name, value in found.items() if name not in ("answers", "checks")}
    return {
        **record,
        "calls": record["calls"] + found["calls"],
        "server_errors": record["server_errors"] + found["server_errors"],
        "runs": [*record["runs"], run],
        "answers": dict(sorted(answers.items())),
    }


def written(path, document):
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.api", description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000, help="at least: a round, 1,550 or so, is not cut short")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no round after so long")
    parser.add_argument("--target", choices=[*Target], default=Target.APP)
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--json", type=Path, help="where the result so far is written")
    parser.add_argument("--record", type=Path, help="tests/api/record.json, to add the result to")
    args = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    clock = SystemClock()
    begun, total, rounds = clock.monotonic(), Result(), 0
    commit = (checkout_commit(ROOT) or "")[:7]
    end = begun + args.minutes * 60
    while total.calls < args.calls and not total.failures and clock.monotonic() < end:
        before = total.calls

        def tell(calls, before=before):
            took = clock.monotonic() - begun
            print(f"\r{before + calls} of {args.calls} calls, {took:.0f} s", end="", flush=True)

        with tempfile.TemporaryDirectory() as folder:
            seed = args.seed + rounds
            kind = Target(args.target)
            total.add(run(Path(folder), EXAMPLES, seed, kind=kind, tell=tell))
        rounds += 1
        found = {
            "of_commit": commit,
            "target": args.target,
            "first_seed": args.seed,
            "rounds": rounds,
            "calls": total.calls,
            "seconds": round(clock.monotonic() - begun, 1),
            "server_errors": server_errors(total),
            "failures": total.failures,
            "checks": dict(sorted(total.checks.items())),
            "answers": dict(sorted(total.statuses.items())),
        }
        if args.json:  # whole after every round, for whoever stops it
            written(args.json, found)
    if args.record and total.calls:
        written(args.record, added(json.loads(args.record.read_bytes()), found))
    print()
    for failure in total.failures:
        print(failure)
    print(f"{total.calls} calls, {server_errors(total)} server errors, {len(total.failures)} failures")
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
