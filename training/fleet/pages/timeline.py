"""Prepare the picture of the last hours, and the forecast: what each host trained and will train, and how many jobs
waited.

Pure: events and a forecast in, segments out.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import NamedTuple

from training.fleet.scheduling.job import LIVE
from training.fleet.service.job_views import Event
from training.fleet.wire.forecasts import DeclineView, ForecastReply, ForetoldJob
from training.strict_json import Json

DAY_S = 86400.0
MOVES_MAX = 2000  # events in the picture
_PENDING = "pending"


class Segment(NamedTuple):
    """An attempt on a host, cut to the drawn time. Times in epoch seconds; ``end`` is the job's state after the
    attempt, or "running"."""

    job_id: str
    attempt: int | None
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
    """The drawn time: segments by host, and the number of waiting jobs from each time on, both in order of time."""

    begin: float
    finish: float
    hosts: Mapping[str, Sequence[Segment]]
    waiting: Sequence[tuple[float, int]]
    waiting_most: int  # at once

    def share(self, at: float) -> float:
        """Return where a time lies within the drawn time, 0 to 1."""
        return min(max((at - self.begin) / (self.finish - self.begin), 0.0), 1.0)


class UpcomingTime(NamedTuple):
    """The forecast: when all jobs are done, and what each host trains until then."""

    begin: float
    done: tuple[float, float, float]  # the middle, and four of five are between
    hosts: Mapping[str, Sequence[ForetoldJob]]  # without those under way
    declined: Mapping[str, DeclineView]
    partly: bool  # some jobs fit nowhere, or are held


def ahead(told: ForecastReply | None) -> UpcomingTime | None:
    """Prepare a forecast for the page. Return None without a forecast, or if it has no jobs or no expected end, or was
    not learned from any completed attempt."""
    if told is None or not told.learned_from or told.done_at is None or not told.jobs:
        return None
    hosts: dict[str, list[ForetoldJob]] = {}
    for job in told.jobs:
        if not job.live:
            hosts.setdefault(job.host, []).append(job)
    return UpcomingTime(
        told.now,
        (told.done_at, told.done_low_at or told.done_at, told.done_high_at or told.done_at),
        hosts,
        {host.host: host.declined for host in told.hosts if host.declined is not None},
        bool(told.nowhere or told.held or told.left_out),
    )


def day(moves: Sequence[Event], live: Iterable[Json], pending: int, now: float) -> Day:
    """Prepare the time before ``now`` for drawing, from its newest ``MOVES_MAX`` events, newest first: as many
    whole hours, at most 24, as its attempts need. If earlier events of that time are lacking, it begins with the oldest
    of ``moves``.

    ``live``: the jobs under way; ``pending``: the number of jobs that wait now.
    """
    begin = now - DAY_S
    within = [move for move in moves if move.at >= begin]
    if len(within) == len(moves) >= MOVES_MAX:
        begin = within[-1].at
    hosts, ends, open_since = defaultdict[str, list[Segment]](list), [], dict[tuple[str, int | None], float]()
    for move in reversed(within):
        key = (move.job_id, move.attempt)
        goes, went = move.to_status in LIVE, move.from_status in LIVE
        if goes and not went and move.host:
            open_since[key] = move.at
        elif went and not goes and move.host:
            since = open_since.pop(key, begin)
            end = "failed" if move.transition == "retry" else move.to_status
            hosts[move.host].append(Segment(*key, move.name, since, move.at, end))
        if (move.from_status == _PENDING) != (move.to_status == _PENDING):
            ends.append((move.at, 1 if move.to_status == _PENDING else -1))
    for job in live:
        since = max(job["claimed_at"] or now, begin)
        hosts[job["host"]].append(Segment(job["job_id"], job["attempt"], job["name"], since, now, "running"))
    first = min((each.begin for found in hosts.values() for each in found), default=begin)
    begin = max(begin, now - 3600 * max(1, ceil((now - first) / 3600)))
    waiting = _steps(ends, pending, begin, now)
    return Day(begin, now, hosts, waiting, max(count for _, count in waiting))


def _steps(changes: Sequence[tuple[float, int]], pending: int, begin: float, now: float) -> list[tuple[float, int]]:
    """Return (time, number of waiting jobs from then on) in order of time, counted backwards from the jobs that wait
    now."""
    steps, count = [(now, pending)], pending
    for at, change in reversed([each for each in changes if each[0] >= begin]):
        steps.append((at, count))
        count = max(0, count - change)
    steps.append((begin, count))
    return steps[::-1]
