"""The only module that reads a clock. All other code is given a clock, so that tests and the simulation control
time."""

from __future__ import annotations

import time
from typing import Protocol

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """Three kinds of time; each rule states which kind it uses."""

    def now(self) -> float:
        """Wall time in epoch seconds (UTC). The system may set it forwards or back; only the receiver decides by it."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back and, if the system offers such a clock, include the time spent asleep."""
        ...

    def awake(self) -> float:
        """Seconds that never go back and, if the system offers such a clock, stop while the machine sleeps."""
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
