"""Print which share of an ingest or a build is done, and about how much time is left, for the person who waits."""

import sys
from collections.abc import Callable, Mapping

from training.clock import SystemClock

# Shares of the time that a large table takes, as measured.
STEPS = {
    "joining": 0.0,
    "looking at the columns": 0.35,
    "reading times and names": 0.20,
    "reading": 0.12,
    "sorting": 0.04,
    "resampling": 0.0,
    "cutting": 0.04,
    "judging": 0.11,
    "writing": 0.14,
}
AT_ONCE_S = 0.5  # what is done so soon was remembered, and tells nothing of the rest
QUIET_S = 3.0  # a table that takes no longer needs no such words


class Meter:
    """Reports progress at most every ``every_s`` seconds, and not in the first ``QUIET_S``; ``now`` returns seconds,
    ``tell`` prints a line."""

    def __init__(
        self, now: Callable[[], float], tell: Callable[[str], None], every_s: float, steps: Mapping[str, float] = STEPS
    ) -> None:
        """Start the clock; ``steps`` has the steps in order, each with its share of the whole time."""
        self._steps = steps
        self._now, self._tell, self._every_s = now, tell, every_s
        self._begun = now()
        self._next = self._begun + QUIET_S
        self._done = self._had = 0.0

    def __call__(self, what: str, share: float) -> None:
        """Record that ``share`` of the step ``what`` is done, and print a line if one is due; the printed share never
        falls."""
        names = list(self._steps)
        before = sum(self._steps[name] for name in names[: names.index(what)])
        self._done = max(self._done, before + self._steps[what] * share)
        at = self._now()
        if at - self._begun < AT_ONCE_S:
            self._had = self._done
        if at < self._next:
            return
        self._next = at + self._every_s
        left_s = (at - self._begun) * (1 - self._done) / max(self._done - self._had, 0.01)
        left = f"{left_s:.0f} s" if left_s < 90 else f"{left_s / 60:.0f} min"
        self._tell(f"{100 * self._done:3.0f} %  {what}, about {left} left")


def on_stderr(steps: Mapping[str, float] = STEPS) -> Meter:
    """Return a meter that rewrites one line if standard error is a terminal, and else prints a line for each report."""
    line = sys.stderr.isatty()

    def tell(words: str) -> None:
        print(f"\r{words:60}" if line else words, end="" if line else "\n", file=sys.stderr, flush=True)

    return Meter(SystemClock().monotonic, tell, 1.0 if line else 10.0, steps)
