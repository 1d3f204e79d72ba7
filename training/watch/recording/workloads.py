"""Run one behaviour in a process of its own, which the recorder starts and kills.

``--intensity`` goes from 0 (almost no work) to 1 (as fast as possible).

    python -m training.watch.recording.workloads hash_grind --scratch DIR --seed 1 --intensity 0.5 --duration-s 5
"""

import argparse
import json
import os
import random
import sys
import threading
import time
from pathlib import Path

from training.clock import Clock, SystemClock
from training.streams import replace_unprintable
from training.watch.recording import behaviours_benign, behaviours_malicious
from training.watch.recording.behaviours import BEHAVIOURS as BEHAVIOURS
from training.watch.recording.behaviours import Context, fill_scratch
from training.watch.recording.loopback import FarEnd, open_far_end

# Importing these modules is what fills the list of behaviours; benign ones come first in it.
_ALL = (behaviours_benign, behaviours_malicious)
DEFAULT_SCRATCH_BYTES = 4 << 20


class Pacer:
    """Computes the pauses between a behaviour's steps, so that work takes about the share ``duty`` (at least 0.02) of
    the time, in bursts rather than evenly."""

    def __init__(self, duty: float, rng: random.Random, clock: Clock) -> None:
        self._duty, self._rng, self._clock = max(0.02, min(1.0, duty)), rng, clock
        self._begun = clock.monotonic()
        self._owed = 0.0

    def pause(self) -> float:
        """Return the seconds to sleep now, at most 1; often 0, as sleep accumulates and is taken at random moments, so
        that work comes in bursts."""
        busy = self._clock.monotonic() - self._begun
        self._owed += busy * (1 - self._duty) / self._duty
        if self._owed < 0.005 or self._rng.random() < 0.5:
            return 0.0
        pause, self._owed = min(self._owed, 1.0), max(0.0, self._owed - 1.0)
        return pause

    def resume(self) -> None:
        self._begun = self._clock.monotonic()


def run(name: str, ctx: Context, clock: Clock, duration_s: float) -> None:
    """Run a behaviour until its steps end, ``duration_s`` seconds have passed, or the process that started this one has
    ended.

    A recorder that is killed cannot kill its behaviours, so each behaviour checks between its steps whether its parent
    still runs.
    """
    chosen, parent = BEHAVIOURS[name], os.getppid()
    end = clock.monotonic() + duration_s
    pacer = Pacer(ctx.intensity, ctx.rng, clock)
    for _ in chosen.steps(ctx):
        if clock.monotonic() >= end or os.getppid() != parent:
            return
        if chosen.paced and (pause := pacer.pause()):
            time.sleep(pause)
        pacer.resume()


def dress(rng: random.Random) -> bytearray:
    """Start a random number of sleeping threads, and return a random amount of memory for the caller to keep.

    Threads and memory are random because otherwise a detector could recognise recorded behaviours by this program's
    threads and memory.
    """
    for _ in range(rng.choice((0, 0, 1, 2, 4, 7))):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    return bytearray(b"\1") * int(2 ** rng.uniform(10, 25))


def main(argv: list[str] | None = None) -> int:
    replace_unprintable()
    parser = argparse.ArgumentParser(prog="training.watch.recording.workloads", description=__doc__, allow_abbrev=False)
    parser.add_argument("behaviour", choices=sorted(BEHAVIOURS))
    parser.add_argument(
        "--scratch", type=Path, required=True, help="work folder; filled if it has no subfolder 'files'"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--intensity", type=float, default=0.5)
    parser.add_argument("--duration-s", type=float, default=3600.0)
    parser.add_argument("--far-end", help="ports of the loopback servers as JSON (default: start some)")
    args = parser.parse_args(argv)
    rng = random.Random(args.seed)
    args.scratch.mkdir(parents=True, exist_ok=True)
    if not (args.scratch / "files").is_dir():
        fill_scratch(args.scratch, rng, DEFAULT_SCRATCH_BYTES)
    far = FarEnd(**json.loads(args.far_end)) if args.far_end else open_far_end()
    context = Context(scratch=args.scratch, rng=rng, intensity=args.intensity, far=far)
    _held = dress(rng)
    run(args.behaviour, context, SystemClock(), args.duration_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
