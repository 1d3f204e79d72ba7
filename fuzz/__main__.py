"""``python -m fuzz TARGET --runs N`` or ``--minutes M``; ``--engine atheris`` looks at the way each input takes.

``--record FILE`` adds the run to what was tried before, with a seed of its own, and ``--total N`` goes on until the
record has so many. Ctrl-C and SIGTERM end a run; what it did is kept.

Exit code 1 when an input raised: it is kept under ``fuzz/found/`` and its name is printed. 130 when a signal ended
the run. ``python -m fuzz TARGET FILE`` runs one such input again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import itertools
import json
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fuzz import TARGETS, record
from fuzz.mutate import CORPUS, inputs
from training.clock import SystemClock

FOUND = Path(__file__).parent / "found"
_SLICE = 256  # inputs between two looks at the clock
_PROGRESS_S = 5.0
_KEEP_S = 60.0
_STOPPED = 130
_RUNS = re.compile(r"(?:#|Done |stat::number_of_executed_units: )(\d+)")

Done = tuple[int, list[str]]  # inputs tried so far, and the names of those that raised


class _Stop:
    """Ends a run between two inputs: an interrupt within one would look like a fault of what is tried."""

    asked = False
    child: subprocess.Popen[str] | None = None

    def __call__(self, *_: object) -> None:
        self.asked = True
        if self.child is not None:
            self.child.terminate()


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    if args.again is not None:
        importlib.import_module(f"fuzz.fuzz_{args.target}").one_input(args.again.read_bytes())
        return 0
    stop = _Stop()
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    named = {"target": args.target, "engine": args.engine, "seed": args.seed, "commit": _commit()}
    run: dict[str, Any] = {**named, "runs": 0, "found": []}
    clock = SystemClock()
    begun = told = kept = clock.monotonic()
    for runs, found in (_plain if args.engine == "plain" else _atheris)(args, stop):
        now = clock.monotonic()
        seconds = max(now - begun, 0.001)
        run = {**named, "runs": runs, "found": found}
        run |= {"seconds": round(seconds, 1), "runs_per_s": round(runs / seconds)}
        if now - told > _PROGRESS_S:
            told = now
            print(f"{runs} of {args.runs} inputs, {seconds:.0f} s", file=sys.stderr, flush=True)
        if args.record and now - kept > _KEEP_S:
            kept = now
            record.keep(args.record, run)
        if stop.asked or (args.minutes and seconds > args.minutes * 60):
            break
    print(json.dumps(run))
    if args.record and run["runs"]:
        record.keep(args.record, run)
    return 1 if run["found"] else _STOPPED if stop.asked else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("again", nargs="?", type=Path, help="one input to run again")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--total", type=int, help="--runs less, by what --record has already")
    parser.add_argument("--minutes", type=float, help="stop after so long, whatever --runs says")
    parser.add_argument("--seed", type=int, help="1; with --record another one each time")
    parser.add_argument("--engine", choices=["plain", "atheris"], default="plain")
    parser.add_argument("--record", type=Path, help="where what was tried is added up")
    args = parser.parse_args(argv)
    if args.total is not None:
        if args.record is None:
            parser.error("--total counts on what --record holds; name it")
        args.runs = max(0, args.total - record.total(args.record, args.target))
    if args.seed is None:
        args.seed = secrets.randbelow(2**31) if args.record else 1
    return args


def _commit() -> str | None:
    """Return the commit that is tried; a seed makes the same inputs there."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=CORPUS, capture_output=True, text=True, check=False)
    except OSError:  # no git here
        return None
    return done.stdout.strip() or None


def _plain(args: argparse.Namespace, _stop: _Stop) -> Iterator[Done]:
    target = importlib.import_module(f"fuzz.fuzz_{args.target}")
    made, runs = inputs(args.target, target.WORDS, args.seed), 0
    while runs < args.runs:
        for data in itertools.islice(made, min(_SLICE, args.runs - runs)):
            runs += 1
            try:
                target.one_input(data)
            except Exception:  # noqa: BLE001 - whatever it raises is what is looked for
                traceback.print_exc()
                yield runs, [_keep(args.target, data)]
                return
        yield runs, []


def _keep(target: str, data: bytes) -> str:
    path = FOUND / f"{target}-{hashlib.sha256(data).hexdigest()[:12]}"
    FOUND.mkdir(exist_ok=True)
    path.write_bytes(data)
    print(f"kept: {path}", file=sys.stderr)
    return path.name


def _atheris(args: argparse.Namespace, stop: _Stop) -> Iterator[Done]:
    """In a process of its own, which libFuzzer ends as it likes. What it learns beside the corpus is not kept."""
    FOUND.mkdir(exist_ok=True)
    before = set(FOUND.iterdir())
    with tempfile.TemporaryDirectory(prefix="fuzz-learned-") as learned:
        command = [
            sys.executable,
            "-m",
            "fuzz.guided",
            args.target,
            f"-runs={args.runs}",
            f"-seed={args.seed}",
            "-max_len=8192",
            "-print_final_stats=1",
            "-timeout=60",
            f"-artifact_prefix={FOUND}/{args.target}-",
            *([f"-max_total_time={round(args.minutes * 60)}"] if args.minutes else []),
            learned,
            str(CORPUS / args.target),
        ]
        runs = 0
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as process:
            stop.child = process
            assert process.stderr is not None
            try:
                for line in process.stderr:
                    if said := _RUNS.match(line):
                        runs = int(said[1])
                        yield runs, []
                    elif line.startswith(("==", "Traceback", " ")) or "Error" in line:
                        print(line, end="", file=sys.stderr, flush=True)
            finally:
                process.terminate()
        found = sorted(path.name for path in set(FOUND.iterdir()) - before)
    if process.returncode and not found and not stop.asked:
        found = [f"atheris ended with {process.returncode}"]
    yield runs, found


if __name__ == "__main__":
    sys.exit(main())
