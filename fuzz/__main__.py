"""``python -m fuzz TARGET --runs N`` or ``--minutes M``; ``--engine atheris`` for long runs, ``--json`` keeps a record.

Exit code 1 when an input raised: it is kept under ``fuzz/found/`` and its name is printed. ``python -m fuzz TARGET
FILE`` runs one such input again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import re
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from fuzz import TARGETS
from fuzz.mutate import CORPUS, inputs
from training.clock import SystemClock

FOUND = Path(__file__).parent / "found"
_PROGRESS_S = 5.0
_DONE = re.compile(r"Done (\d+) runs in (\d+) second")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("again", nargs="?", type=Path, help="one input to run again")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, help="stop after so long, whatever --runs says")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=["plain", "atheris"], default="plain")
    parser.add_argument("--json", type=Path, help="where the result is written")
    args = parser.parse_args()
    if args.again is not None:
        importlib.import_module(f"fuzz.fuzz_{args.target}").one_input(args.again.read_bytes())
        return 0
    clock = SystemClock()
    begun = clock.monotonic()
    result = _plain(args, clock) if args.engine == "plain" else _atheris(args)
    seconds = clock.monotonic() - begun
    result |= {"target": args.target, "engine": args.engine, "seed": args.seed}
    result |= {
        "seconds": round(seconds, 1),
        "runs_per_s": round(result["runs"] / max(seconds, 0.001)),
    }
    print(json.dumps(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if result["found"] else 0


def _plain(args: argparse.Namespace, clock: SystemClock) -> dict[str, Any]:
    target = importlib.import_module(f"fuzz.fuzz_{args.target}")
    begun = told = clock.monotonic()
    runs, found = 0, []
    for data in inputs(args.target, target.WORDS, args.seed):
        now = clock.monotonic()
        if runs >= args.runs or (args.minutes and now - begun > args.minutes * 60):
            break
        if now - told > _PROGRESS_S:
            told = now
            print(f"{runs} of {args.runs} inputs, {now - begun:.0f} s", file=sys.stderr, flush=True)
        try:
            target.one_input(data)
        except Exception:  # noqa: BLE001 - whatever it raises is what is looked for
            found.append(_keep(args.target, data))
            traceback.print_exc()
            break
        finally:
            runs += 1
    return {"runs": runs, "found": found}


def _keep(target: str, data: bytes) -> str:
    path = FOUND / f"{target}-{hashlib.sha256(data).hexdigest()[:12]}"
    FOUND.mkdir(exist_ok=True)
    path.write_bytes(data)
    print(f"kept: {path}", file=sys.stderr)
    return path.name


def _atheris(args: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own, which libFuzzer ends as it likes. What it learns beside the corpus is not kept."""
    FOUND.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fuzz-learned-") as learned:
        flags = [
            f"-runs={args.runs}",
            f"-seed={args.seed}",
            "-max_len=8192",
            "-print_final_stats=1",
            "-timeout=60",
        ]
        if args.minutes:
            flags.append(f"-max_total_time={round(args.minutes * 60)}")
        flags.append(f"-artifact_prefix={FOUND}/{args.target}-")
        command = [
            sys.executable,
            "-m",
            "fuzz.guided",
            args.target,
            *flags,
            learned,
            str(CORPUS / args.target),
        ]
        before = set(FOUND.iterdir())
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as process:
            assert process.stderr is not None
            runs = 0
            for line in process.stderr:
                if done := _DONE.search(line):
                    runs = int(done[1])
                if (
                    line.startswith(("#", "Done", "==", "INFO: seed", "Traceback", " "))
                    or "Error" in line
                ):
                    print(line, end="", file=sys.stderr, flush=True)
        found = sorted(path.name for path in set(FOUND.iterdir()) - before)
    if process.returncode and not found:
        found = [f"atheris ended with {process.returncode}"]
    return {"runs": runs, "found": found}


if __name__ == "__main__":
    sys.exit(main())
