"""Counters since this receiver's start, increased as things happen. The receiver always loads this module; it loads the
other modules of metrics at the first scrape."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from training.clock import Clock

CALL_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
ATTEMPT_S = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0)


class Histogram:
    """Durations in seconds, counted by upper bounds. One thread adds durations; another may read the counts."""

    __slots__ = ("_counts", "bounds", "total_s")

    def __init__(self, bounds: tuple[float, ...] = CALL_S) -> None:
        self.bounds = bounds
        self.total_s = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, seconds: float) -> None:
        """Count one duration; a negative one (the clock was set back) counts as 0."""
        seconds = max(0.0, seconds)
        self._counts[bisect_left(self.bounds, seconds)] += 1
        self.total_s += seconds

    @contextmanager
    def timing(self, clock: Clock) -> Iterator[None]:
        """Count the time that the body of this context takes, even if it raises."""
        begun = clock.monotonic()
        try:
            yield
        finally:
            self.observe(clock.monotonic() - begun)

    def cumulative(self) -> list[int]:
        """Return for each bound the number of durations up to it, and last the number of all durations."""
        found, most = [], 0
        for count in list(self._counts):
            most += count
            found.append(most)
        return found


@dataclass
class Tally:
    """The counters of one receiver. ``requests`` counts answers by operation and class of status (``2xx``).

    ``notifications`` counts tries to send a message, by channel and by whether it arrived.
    """

    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    notifications: Counter[tuple[str, str]] = field(default_factory=Counter)
    claims: Histogram = field(default_factory=Histogram)
    transactions: Histogram = field(default_factory=Histogram)

    def answered(self, operation: str, status: int) -> None:
        """Count an answer. ``operation`` is one of the route table's, or "none" for an address that is no endpoint."""
        self.requests[operation, f"{status // 100}xx"] += 1

    def notified(self, channel: str, error: str | None) -> None:
        """Count a try to send a message."""
        self.notifications[channel, "sent" if error is None else "failed"] += 1
