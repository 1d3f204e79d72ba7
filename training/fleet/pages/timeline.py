"""Prepare the picture of the last day and of the forecast: what each host trained and will train, and how many jobs
waited.

Pure: events and a forecast in, segments out.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from training.fleet.scheduling.job import LIVE
from training.fleet.service.job_views import Event
from training.fleet.wire.forecasts import DeclineView, ForecastReply, ForetoldJob

DAY_S = 86400.0
_PENDING = "pending"


class Segment(NamedTuple):
    """An attempt on a host, cut to the drawn day. Times in epoch seconds; ``end`` is the job's state after the attempt,
    or "running"."""

    name: str
    begin: float
    finish: float
    end: str

    @property
    def length(self) -> float:
        return self.finish - self.begin

    @property
    def look(self) -> str:
        """Return the CSS class with which the segment is drawn; attempts given back, lost and cancelled look alike."""
        return self.end if self.end in ("running", "completed", "failed") else "pending"


class Day(NamedTuple):
    """The drawn day: segments by host, and the number of waiting jobs from each time on, both in order of time."""

    begin: float
    finish: float
    hosts: Mapping[str, Sequence[Segment]]
    waiting: Sequence[tuple[float, int]]
    waiting_most: int  # at once

    def share(self, at: float) -> float:
        """Return where a time lies within the day, 0 to 1."""
        return min(max((at - self.begin) / (self.finish - self.begin), 0.0), 1.0)


class UpcomingTime(NamedTuple):
    """The forecast from now until the last of its jobs is done, drawn on a scale of its own, because that may take
    minutes or weeks."""

    begin: float
    finish: float
    done: tuple[float, float, float]  # the middle, and four of five are between
    hosts: Mapping[str, Sequence[ForetoldJob]]
    declined: Mapping[str, DeclineView]
    partly: bool  # some jobs fit nowhere, or are held

    def share(self, at: float) -> float:
        """Return where a time lies between now and the end of the forecast, 0 to 1."""
        return min(max((at - self.begin) / (self.finish - self.begin), 0.0), 1.0)


def ahead(told: ForecastReply | None) -> UpcomingTime | None:
    """Prepare a forecast for drawing. Return None without a forecast, or if it has no jobs or no expected end, or was
    not learned from any completed attempt."""
    if told is None or not told.learned_from or told.done_at is None or not told.jobs:
        return None
    hosts: dict[str, list[ForetoldJob]] = {}
    for job in told.jobs:
        hosts.setdefault(job.host, []).append(job)
    return UpcomingTime(
        told.now,
        max(told.now + 1.0, told.done_at, *(job.ends_at for job in told.jobs)),
        (told.done_at, told.done_low_at or told.done_at, told.done_high_at or told.done_at),
        hosts,
        {host.host: host.declined for host in told.hosts if host.declined is not None},
        bool(told.nowhere or told.held or told.left_out),
    )


def day(moves: Sequence[Event], live: Iterable[tuple[str, str, float]], pending: int, now: float) -> Day:
    """Prepare the day before ``now`` for drawing, from its events ``moves``, newest first. If ``moves`` lack earlier
    events of that day, the drawn time begins with the oldest of them.

    ``live``: host, job name and time of the grant of each attempt under way; ``pending``: the number of jobs that wait
    now.
    """
    begin = now - DAY_S
    within = [move for move in moves if move.at >= begin]
    # If the moves do not reach back over the whole day, it begins with the oldest.
    if within and len(within) == len(moves) and moves[-1].seq > 1:
        begin = within[-1].at
    hosts, ends, open_since = defaultdict[str, list[Segment]](list), [], dict[tuple[str, int | None], float]()
    for move in reversed(within):
        key = (move.job_id, move.attempt)
        goes, went = move.to_status in LIVE, move.from_status in LIVE
        if goes and not went and move.host:
            open_since[key] = move.at
        elif went and not goes and move.host:
            since = open_since.pop(key, begin)
            hosts[move.host].append(Segment(move.name, since, move.at, move.to_status))
        if (move.from_status == _PENDING) != (move.to_status == _PENDING):
            ends.append((move.at, 1 if move.to_status == _PENDING else -1))
    for host, name, granted_at in live:
        hosts[host].append(Segment(name, max(granted_at, begin), now, "running"))
    waiting = _steps(ends, pending, begin, now)
    return Day(begin, now, hosts, waiting, max(count for _, count in waiting))


def _steps(changes: Sequence[tuple[float, int]], pending: int, begin: float, now: float) -> list[tuple[float, int]]:
    """Return (time, number of waiting jobs from then on) in order of time, counted backwards from the jobs that wait
    now."""
    steps, count = [(now, pending)], pending
    for at, change in reversed(changes):
        steps.append((at, count))
        count = max(0, count - change)
    steps.append((begin, count))
    return steps[::-1]
