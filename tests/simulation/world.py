"""Time, chance and the record of what happened. Nothing else in the simulation reads a clock or draws a number."""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable

EPOCH = 1_800_000_000.0  # what the receiver's wall clock shows when a simulation begins

AT_ONCE_MAX = 100_000  # events at one moment, of which a sound run has hundreds

Thunk = Callable[[], None]


class Violation(AssertionError):  # noqa: N818 - it is what a checker finds
    """A promise was broken. The message names the checker, the seed and the time."""


class Timer:
    """Something that will happen, unless it is cancelled first."""

    __slots__ = ("thunk",)

    def __init__(self, thunk: Thunk) -> None:
        self.thunk: Thunk | None = thunk

    def cancel(self) -> None:
        self.thunk = None


class World:
    """One seed's universe: a heap of things to come, streams of chance, and a hash of everything that was said."""

    def __init__(self, seed: int, *, keep_lines: bool = False) -> None:
        self.seed = seed
        self.now = 0.0  # seconds since the beginning; true time, which nobody inside can see
        self.faults: Counter[str] = Counter()  # how often each kind took effect
        self.tally: Counter[str] = Counter()  # other figures worth printing
        self.lines: list[str] = []
        self.copied: set[str] = set()  # hosts of whose disk there ever was a copy
        self.happened = 0
        self._keep_lines = keep_lines
        self._heap: list[tuple[float, int, Timer]] = []
        self._next = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self._streams: dict[str, random.Random] = {}

    # ── time ────────────────────────────────────────────────────────────────────────────────

    def at(self, when: float, thunk: Thunk) -> Timer:
        """Let ``thunk`` happen at ``when``, or now if that has passed; equal times keep their order."""
        timer = Timer(thunk)
        self._next += 1
        heapq.heappush(self._heap, (max(when, self.now), self._next, timer))
        return timer

    def after(self, delay_s: float, thunk: Thunk) -> Timer:
        return self.at(self.now + delay_s, thunk)

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let things happen up to ``until``, or until ``done``. Raises Violation when time stands still for ever."""
        at_once = 0
        while self._heap and not done():
            when, _, timer = self._heap[0]
            if when > until:
                break
            heapq.heappop(self._heap)
            if timer.thunk is not None:
                at_once = at_once + 1 if when == self.now else 0
                if at_once > AT_ONCE_MAX:
                    raise Violation(f"seed {self.seed}: {AT_ONCE_MAX} events at {when:.3f} s, and no end of them")
                self.now = when
                self.happened += 1
                timer.thunk()
        if not done():
            self.now = max(self.now, until)

    # ── chance ──────────────────────────────────────────────────────────────────────────────

    def chance(self, stream: str) -> random.Random:
        """A stream of its own for each purpose, so that more draws for one do not shift the others'."""
        found = self._streams.get(stream)
        if found is None:
            found = self._streams[stream] = random.Random(f"{self.seed}/{stream}")
        return found

    # ── the record ──────────────────────────────────────────────────────────────────────────

    def say(self, who: str, what: str) -> None:
        """One line of the timeline. Its hash is what two runs of a seed are compared by."""
        line = f"{clock_text(self.now)}  {who:<10} {what}"
        self._hash.update(line.encode())
        if self._keep_lines:
            self.lines.append(line)

    def fault(self, kind: str, who: str, what: str = "") -> None:
        self.faults[kind] += 1
        self.say(who, f"✗ {kind}{': ' if what else ''}{what}")

    @property
    def trace_hash(self) -> str:
        return self._hash.hexdigest()


def clock_text(seconds: float) -> str:
    """True time as ``d+hh:mm:ss.mmm``."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    days, hours = divmod(hours, 24)
    return f"{days}+{hours:02d}:{minutes:02d}:{rest:06.3f}"


class SimClock:
    """A machine's three clocks. The wall clock may step; sleeping stops ``awake`` only."""

    def __init__(self, world: World, boot_offset: float = 0.0) -> None:
        self._world = world
        self._boot_offset = boot_offset
        self.step_s = 0.0
        self.slept_s = 0.0

    def now(self) -> float:
        return EPOCH + self._world.now + self.step_s

    def monotonic(self) -> float:
        return self._world.now + self._boot_offset

    def awake(self) -> float:
        return self.monotonic() - self.slept_s
