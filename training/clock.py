"""The fleet's clocks. Code whose decisions depend on time is given a `Clock`, so that tests and the simulation control
time."""

import time
from typing import Protocol

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """A source of three kinds of time: wall, monotonic, and awake."""

    def now(self) -> float:
        """Return the wall time in epoch seconds (UTC). The system may set this clock forwards or back."""

    def monotonic(self) -> float:
        """Return seconds that never go back; on Linux they include the time that the machine sleeps."""

    def awake(self) -> float:
        """Return seconds that never go back; on Linux they stop while the machine sleeps."""


class SystemClock:
    """The machine's own clocks.

    On Linux ``monotonic`` is CLOCK_BOOTTIME, because Python's ``time.monotonic`` is CLOCK_MONOTONIC there and stands
    still during suspend (clock_gettime(2)). Where Python has no CLOCK_BOOTTIME (Windows, macOS), ``monotonic`` is
    ``time.monotonic``.
    """

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)

    def awake(self) -> float:
        return time.monotonic()
