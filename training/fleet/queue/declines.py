"""The rows of hosts that were declined a job in favour of a faster one: since when, for what, until when at most."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from training.clock import Clock
from training.fleet.database.writer import Database
from training.printable import clock_time, left_to

_SHORTER_S = 1.0  # by less a row is not written again


@dataclass(frozen=True, slots=True)
class Declined:
    """A job that a host does not get now, because another will have it done sooner. Times in epoch seconds."""

    job_id: str
    name: str
    by: str  # who will do it …
    begins_at: float
    ends_at: float
    here_until: float  # … and when it would be done here
    open_at: float  # from then on this host may have it

    def sentence(self, now: float) -> str:
        """Say it to somebody who reads it ``now``."""
        done, here, free = (clock_time(at, now) for at in (self.ends_at, self.here_until, self.open_at))
        return left_to(self.by, self.name, done=done, here=here, free=free)


class Declines:
    """Keeps one row for each kind of job that a host waits for, written when the wait begins and when it ends.

    What was promised outlives the receiver: a wait does not begin anew with it. Nothing is remembered here, because a
    commit may be lost.
    """

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db, self._clock = db, clock

    def open(self) -> dict[tuple[str, str], tuple[str, float]]:
        """Return who waits: host and kind → for whom, and until when (epoch seconds) at the latest."""
        rows = self._db.all("declines_open")
        return {(row["host"], row["kind"]): (row["by_host"], row["open_at"]) for row in rows}

    def note(self, host: str, kind: str, told: Declined) -> None:
        """Keep that a host was declined; while it waits for the same host only a wait that became shorter is."""
        row = self._db.one("decline", host=host, kind=kind)
        if row is not None and row["by_host"] == told.by:
            if told.open_at < row["open_at"] - _SHORTER_S:
                self._db.run("shorten_decline", host=host, kind=kind, open_at=told.open_at)
            return
        self._db.run("end_decline", host=host, kind=kind, now=self._clock.now())
        self._db.run(
            "add_decline",
            host=host,
            kind=kind,
            job_id=told.job_id,
            by_host=told.by,
            now=self._clock.now(),
            begins_at=told.begins_at,
            ends_at=told.ends_at,
            here_until=told.here_until,
            open_at=told.open_at,
        )

    def end(self, host: str) -> None:
        """Note that a host waits no more: it got a job."""
        self._db.run("end_declines_of", host=host, now=self._clock.now())

    def end_but(self, kinds: Collection[tuple[str, str]]) -> None:
        """Note that all waits are over but these: of the other kinds no job waits any more."""
        for host, kind in sorted(self.open().keys() - set(kinds)):
            self._db.run("end_decline", host=host, kind=kind, now=self._clock.now())
