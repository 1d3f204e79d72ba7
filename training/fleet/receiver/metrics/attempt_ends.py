"""Attempts that ended since this receiver's start, counted from the event rows, in which nothing is ever taken back.

An attempt's own row will not do: a lost one that reports again lives on, and a counter may not go down. Events before
the start do not count, because old ones may be removed: a counter that begins at 0 is right for Prometheus, one that
begins a little lower than it ended would look like a burst.
"""

from __future__ import annotations

from collections import Counter

from training.fleet.database.writer import Database, Row
from training.fleet.receiver.metrics.counters import ATTEMPT_S, Histogram, newest_event
from training.fleet.scheduling.job import EndReason
from training.printable import printable

MODELS_MAX = 10  # models with a histogram of their own …
OTHER = "other"  # … and of all further ones
_ROWS = 5000  # read at once
_BY_TRANSITION = {
    "complete": EndReason.COMPLETED,
    "adopt": EndReason.COMPLETED,
    "deliver": EndReason.COMPLETED,
    "cancel": EndReason.CANCELLED,
    "requeue": EndReason.SUPERSEDED,
}


class Ends:
    """Ends by reason, and how long completed attempts took, by model. Used by one thread."""

    def __init__(self, database: Database, seen: int) -> None:
        """Count the events after the number ``seen``."""
        self._db = database
        self._seen = seen
        self.reasons: Counter[EndReason] = Counter()
        self.durations: dict[str, Histogram] = {}

    def update(self) -> None:
        """Count what ended since the last look."""
        newest = newest_event(self._db)  # first: what is noted meanwhile is for the next look
        while rows := self._db.all("ended_since", after=self._seen, most=_ROWS):
            for row in rows:
                self._count(row)
            self._seen = int(rows[-1]["seq"])
        self._seen = max(self._seen, newest)  # events of other kinds are many, and need not be passed over again

    def expect(self, model: str) -> None:
        """Begin this model's histogram at 0: Prometheus takes a series that begins at 1 for one that was always so."""
        self._histogram(model)

    def _count(self, row: Row) -> None:
        reason = _BY_TRANSITION.get(row["transition"]) or EndReason(row["detail"])
        self.reasons[reason] += 1
        if reason is EndReason.COMPLETED and row["transition"] != "deliver":  # which takes no time
            self._histogram(row["model"]).observe(row["at"] - row["granted_at"])

    def _histogram(self, model: object) -> Histogram:
        name = printable(model)[:64]
        if name not in self.durations and len(self.durations) >= MODELS_MAX:
            name = OTHER
        return self.durations.setdefault(name, Histogram(ATTEMPT_S))
