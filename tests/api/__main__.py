"""``python -m tests.api --calls 100000 --target app --json FILE``: generated calls until there were so many.

Each round has a receiver and a seed of its own. Exit code 1 when an answer was not as documented.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from api.run import Result, Target, run
from training.clock import SystemClock

EXAMPLES = 10  # inputs an operation and round: short rounds, because a receiver that knows many hosts is slower


def server_errors(result: Result) -> int:
    return sum(n for each, n in result.statuses.items() if each.split()[-1][0] == "5")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.api", description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no round after so long")
    parser.add_argument("--target", choices=[*Target], default=Target.APP)
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--json", type=Path, help="where the result so far is written")
    args = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    clock = SystemClock()
    begun, total, rounds = clock.monotonic(), Result(), 0
    end = begun + args.minutes * 60
    while total.calls < args.calls and not total.failures and clock.monotonic() < end:
        before = total.calls

        def tell(calls: int, before: int = before) -> None:
            took = clock.monotonic() - begun
            print(f"\r{before + calls} of {args.calls} calls, {took:.0f} s", end="", flush=True)

        with tempfile.TemporaryDirectory() as folder:
            seed = args.seed + rounds
            kind = Target(args.target)
            total.add(run(Path(folder), EXAMPLES, seed, kind=kind, tell=tell))
        rounds += 1
        if args.json:  # whole after every round, for whoever stops it
            found = {
                "target": args.target,
                "calls": total.calls,
                "rounds": rounds,
                "first_seed": args.seed,
                "seconds": round(clock.monotonic() - begun, 1),
                "server_errors": server_errors(total),
                "checks": dict(sorted(total.checks.items())),
                "answers": dict(sorted(total.statuses.items())),
                "failures": total.failures,
            }
            part = args.json.with_suffix(".part")
            part.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            part.replace(args.json)
    print()
    for failure in total.failures:
        print(failure)
    print(
        f"{total.calls} calls, {server_errors(total)} server errors, {len(total.failures)} failures"
    )
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
