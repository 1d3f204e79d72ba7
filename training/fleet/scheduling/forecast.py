"""The forecast: which host will train which job when, and when all jobs are done. Pure.

The schedule is simulated once with expected durations, which gives each job its host and time. The interval of a
forecast end comes from the uncertainty of durations. Independent errors of attempts cancel out in a long plan; errors
that a family's jobs share, on one host or on all, do not. The interval assumes that other hosts would take over work
from a host that turns out slow. The error of the end of all jobs is that of all work together, or that of the most
uncertain single job if that is larger.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from training.fleet.scheduling.predictions import Prediction
from training.fleet.scheduling.schedule import JobKind, Slot, schedule
from training.frozen import frozen

_FOUR_OF_FIVE = 1.2816  # deviations from the middle within which four of five lie; nine of ten lie below
_READY_SPREAD_MOST = 1.0


@frozen
class WaitingKind:
    """A kind of pending jobs for the forecast: the jobs' ids in the order in which they are granted, and the
    predictions for each host that they fit."""

    kind: JobKind
    jobs: tuple[str, ...]
    family: str
    predictions: Mapping[str, Prediction]  # host → time there


@frozen
class Stay:
    """A job's forecast time on a slot. Times are seconds from now; four of five such jobs end between ``low_s`` and
    ``high_s``."""

    job: str
    host: str
    slot: int
    begin_s: float
    end_s: float
    low_s: float
    high_s: float


@frozen
class HostWait:
    """A host that will be idle from ``at_s`` on, because another host will have the job of ``stay`` done sooner."""

    host: str
    at_s: float
    stay: Stay  # the last of the kind that takes least time here
    here_s: float


@frozen
class Forecast:
    """A forecast: the stay of each job that is trained now or fits a host, in the order in which they begin;
    ``nowhere`` has the jobs that fit none."""

    stays: tuple[Stay, ...]
    end_s: float  # when all is done; four of five plans are between …
    low_s: float  # … these
    high_s: float
    nowhere: tuple[str, ...] = ()
    waits: tuple[HostWait, ...] = ()  # one of each such host


def forecast(works: Sequence[WaitingKind], slots: Sequence[Slot], *, first_come: bool = False) -> Forecast:
    """Simulate the schedule and return the forecast. With ``first_come``, jobs are granted by priority and then in the
    order of ``works``, as hosts become free."""
    free = [slot.ready_s for slot in slots]
    loads, all_work, longest, stays, last = [_Load() for _ in slots], _Load(), 0.0, list[Stay](), dict[int, Stay]()
    for n, slot in enumerate(slots):
        if slot.job is None:
            continue
        for load in (loads[n], all_work):
            load.add_own(slot.ready_s, _ready_spread(slot))
        longest = max(longest, slot.ready_s * _ready_spread(slot))
        stays.append(Stay(slot.job, slot.host, n, 0.0, slot.ready_s, *_range(slot.ready_s, loads[n].deviation)))
    given = [0] * len(works)
    for k, n in (_first_come if first_come else _in_turn)(works, slots, free):
        work, host = works[k], slots[n].host
        told = work.predictions[host]
        seconds = told.seconds * math.exp(told.own**2 / 2)
        for load in (loads[n], all_work):
            load.add(work.family, host, seconds, told)
        longest = max(longest, seconds * told.spread)
        begin_s, free[n] = free[n], free[n] + seconds
        last[k] = Stay(work.jobs[given[k]], host, n, begin_s, free[n], *_range(free[n], loads[n].deviation))
        stays.append(last[k])
        given[k] += 1
    stays.sort(key=lambda stay: (stay.begin_s, stay.slot))
    # The last of several slots that end together ends later than each is expected to.
    end_s = max((stay.end_s for stay in stays), default=0.0)
    end_s += longest * (1.0 - 1.0 / max(1, len({stay.slot for stay in stays}))) / 2
    deviation = max(all_work.deviation / max(all_work.seconds, 1e-9) * end_s, longest)
    nowhere = tuple(job for work, count in zip(works, given, strict=True) if not count for job in work.jobs)
    return Forecast(tuple(stays), end_s, *_range(end_s, deviation), nowhere, tuple(_waits(works, slots, free, last)))


def _in_turn(works: Sequence[WaitingKind], slots: Sequence[Slot], _: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Yield for each job the index of its kind and of its slot, slot by slot, in the order of the schedule."""
    known = {work.kind.key: k for k, work in enumerate(works)}
    for n, shares in enumerate(schedule([work.kind for work in works], slots).shares):
        for share in shares:
            yield from [(known[share.kind], n)] * share.count


def _first_come(
    works: Sequence[WaitingKind], slots: Sequence[Slot], free: Sequence[float]
) -> Iterator[tuple[int, int]]:
    """Yield for each job the index of its kind and of its slot: the slot that becomes free next takes the job of
    the highest priority that fits. The caller then sets ``free`` of that slot to the end of the job."""
    order = sorted(range(len(works)), key=lambda k: -works[k].kind.priority)
    left = [len(work.jobs) for work in works]
    asks = [(at, n) for n, at in enumerate(free)]
    heapq.heapify(asks)
    while asks:
        _, n = heapq.heappop(asks)
        k = next((k for k in order if left[k] and _time_on(slots[n], works[k].kind) < math.inf), None)
        if k is not None:
            left[k] -= 1
            yield k, n
            heapq.heappush(asks, (free[n], n))


def _time_on(slot: Slot, kind: JobKind) -> float:
    """Return the seconds that a job of this kind takes on a slot; infinity if the slot cannot train it."""
    gpu, most = kind.places.get(slot.host, (slot.gpu, math.inf))
    return kind.seconds.get(slot.host, math.inf) if gpu == slot.gpu and slot.number < most else math.inf


def _waits(
    works: Sequence[WaitingKind], slots: Sequence[Slot], free: Sequence[float], last: Mapping[int, Stay]
) -> Iterator[HostWait]:
    """Yield each host that will be idle although it could train a pending job, because another host finishes that job
    sooner."""
    done = dict[str, tuple[float, int]]()
    for n, slot in enumerate(slots):
        done[slot.host] = min(done.get(slot.host, (math.inf, n)), (free[n], n))
    for host, (at_s, n) in sorted(done.items()):
        waits = [
            (_time_on(slots[n], works[k].kind), k)
            for k, stay in last.items()
            if stay.begin_s >= at_s and stay.end_s > at_s and stay.host != host
        ]
        here_s, k = min(waits, default=(math.inf, 0))
        if here_s < math.inf:
            yield HostWait(host, at_s, last[k], here_s)


@dataclass(slots=True)
class _Load:
    """The work on one slot, or on all slots, and the uncertainty of its duration."""

    seconds: float = 0.0
    _own: float = 0.0  # sum of squares of independent deviations, in seconds
    _shared: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))

    def add_own(self, seconds: float, spread: float) -> None:
        self.seconds += seconds
        self._own += (seconds * spread) ** 2

    def add(self, family: str, host: str, seconds: float, told: Prediction) -> None:
        self.add_own(seconds, told.own)
        here = math.sqrt(max(told.spread**2 - told.own**2 - told.everywhere**2, 0.0))
        self._shared[family, host] += seconds * here
        self._shared[family, ""] += seconds * told.everywhere

    @property
    def deviation(self) -> float:
        return math.sqrt(self._own + sum(each**2 for each in self._shared.values()))


def _range(middle_s: float, deviation: float) -> tuple[float, float]:
    """Return the interval that contains a log-normal time with this median and deviation in four of five cases."""
    if middle_s <= 0:
        return middle_s, middle_s
    factor = math.exp(_FOUR_OF_FIVE * math.sqrt(math.log1p((deviation / middle_s) ** 2)))
    return middle_s / factor, middle_s * factor


def _ready_spread(slot: Slot) -> float:
    if slot.ready_s <= 0 or slot.late_s <= slot.ready_s:
        return 0.0
    return min(math.log(slot.late_s / slot.ready_s) / _FOUR_OF_FIVE, _READY_SPREAD_MOST)
