"""The only module that reads a clock. Everything else is handed one, so that tests and the simulation own time."""

from __future__ import annotations

import time
from typing import Protocol

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """Three ways of telling time; which one to use is part of a rule, never a matter of taste."""

    def now(self) -> float:
        """Wall time in epoch seconds (UTC). It may step; the receiver alone decides by it."""
        ...

    def monotonic(self) -> float:
        """Seconds that never step and, where the system offers it, count the time spent asleep."""
        ...

    def awake(self) -> float:
        """Seconds that never step and stand still while the machine sleeps, where the system offers such a clock."""
        ...


class SystemClock:
    """The machine's own clocks.

    On Linux ``monotonic`` is CLOCK_BOOTTIME, because Python's ``time.monotonic`` is CLOCK_MONOTONIC there and stands
    still during suspend (clock_gettime(2)). On Windows and macOS ``time.monotonic`` is what there is.
    """

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)

    def awake(self) -> float:
        return time.monotonic()
