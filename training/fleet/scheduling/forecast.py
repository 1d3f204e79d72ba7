"""The forecast: who trains what when, by playing the schedule on a simulated clock. Pure; chance comes in.

One play with the expected durations says who does what (:attr:`Forecast.stays`). Many plays with drawn ones say when
all is done, and how sure that is: errors are log-normal, and many jobs share them (:class:`Doubt`). A host that turns
out slower is so for all jobs of a family, and a family that nobody knows is longer everywhere; were every job wrong on
its own, the errors of a long plan would cancel out and the interval would be far too narrow.

In a play a slot takes its shares in order; one that has none left asks :meth:`Schedule.decide` as a real claim does,
takes from another or waits. The schedule is not made anew at each end, as it is in the fleet, but once for each play,
with the durations as drawn (:func:`_known_soon`). In a plan of more than a few thousand pairs of a kind and a host it
is the same for all plays, and one of many jobs is played in lots of a few equal jobs each; a host that waits asks 50
times at most.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from training.fleet.scheduling.durations import LEAST_S, Doubt, Prediction
from training.fleet.scheduling.schedule import Decline, Kind, Schedule, Share, Slot, Take, schedule

LOW, HIGH = 0.1, 0.9  # four of five ends lie between
DRAWS_MOST, DRAWS_LEAST = 100, 16
_ASKS_DRAWN = 20_000  # in all plays together
_JOBS_MOST = 2_500  # that are played one by one
_ROUNDS = 50  # of asks of hosts that wait, in a play
_PAIRS_MOST = 5_000  # of a kind and a slot: of more, a schedule for each play would take too long
_SURELY = 1.2816  # deviations from the middle within which nine of ten lie

Normal = Callable[[], float]  # draws a standard normal number


@dataclass(frozen=True, slots=True)
class Work:
    """A kind with its jobs, in the order in which they are granted."""

    kind: Kind
    jobs: tuple[str, ...]
    family: str = ""
    doubts: Mapping[str, Doubt] = field(default_factory=dict)  # host → of the time there; else the kind's spread
    medians: Mapping[str, float] = field(default_factory=dict)  # host → of the seconds; the kind's are means

    def doubt(self, host: str) -> Doubt:
        return self.doubts.get(host) or Doubt(here=self.kind.spread)

    def middle(self, host: str) -> float:
        """Return the median of the time there."""
        return self.medians.get(host, self.kind.seconds[host])


@dataclass(frozen=True, slots=True)
class Question:
    """All that a forecast is made of. Times in seconds."""

    works: Sequence[Work]
    slots: Sequence[Slot]
    training: Sequence[str | None] = ()  # the job that each slot trains now
    promised: Mapping[str, float] = field(default_factory=dict)  # as for schedule()
    first_come: bool = False  # the first of ``works`` of the highest priority goes to the first host that asks


@dataclass(frozen=True, slots=True)
class Stay:
    """A job's time on a slot. Seconds from now; four of five such jobs end between ``low_s`` and ``high_s``."""

    job: str
    host: str
    slot: int
    begin_s: float
    end_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class Waits:
    """A host that lets a job go to another at ``at_s``, and why."""

    host: str
    at_s: float
    job: str  # the first of its kind
    decline: Decline


@dataclass(frozen=True, slots=True)
class Forecast:
    """Each job that fits somewhere, in order of its begin; ``nowhere`` are those that fit no slot.

    ``end_s``, when all is done, is the middle of all plays: chance delays the last of many ends more than a single one.
    """

    stays: tuple[Stay, ...]
    end_s: float
    low_s: float
    high_s: float
    nowhere: tuple[str, ...] = ()
    waits: tuple[Waits, ...] = ()  # the first of each host
    draws: int = 0


def forecast(question: Question, normal: Normal, draws: int | None = None) -> Forecast:
    """Answer a question; ``draws`` plays make the interval, by default as many as a second allows."""
    works, slots = question.works, question.slots
    made = schedule([work.kind for work in works], slots, question.promised)
    chance = _Chance(question, normal)
    expected = _Play(made, chance.expected()).run()
    if draws is None:
        draws = max(DRAWS_LEAST, min(DRAWS_MOST, _ASKS_DRAWN // (1 + len(expected.runs) + 10 * len(slots))))
    firsts = [*accumulate((len(work.jobs) for work in works), initial=0)]
    worlds = (chance.draw() for _ in range(draws))
    plays = [_Ends.of(_Play(_known_soon(made, world), world).run(), firsts) for world in worlds]
    stays = []
    for n, (slot, job) in enumerate(zip(slots, question.training, strict=False)):
        if job is not None:
            stays.append(_stay(job, slot.host, n, 0.0, slot.ready_s, [play.ready[n] for play in plays]))
    for run in expected.runs:
        job, drawn = works[run.k].jobs[run.nth], [play.jobs[firsts[run.k] + run.nth] for play in plays]
        stays.append(_stay(job, slots[run.slot].host, run.slot, run.begin_s, run.end_s, drawn))
    stays.sort(key=lambda stay: (stay.begin_s, stay.slot))
    busy = [n for n, job in enumerate(question.training) if job is not None]
    last = sorted(max([*(play.ready[n] for n in busy), *play.jobs], default=0.0) for play in plays)
    if not last:
        last = [max((stay.end_s for stay in stays), default=0.0)]
    middle_s, low_s, high_s = (quantile(last, share) for share in (0.5, LOW, HIGH))
    nowhere = tuple(job for work in works if work.kind.key in made.homeless for job in work.jobs)
    return Forecast(tuple(stays), middle_s, low_s, high_s, nowhere, tuple(expected.waits.values()), draws)


def _stay(job: str, host: str, slot: int, begin_s: float, end_s: float, drawn: list[float]) -> Stay:
    drawn.sort()
    low_s, high_s = (quantile(drawn, share) if drawn else end_s for share in (LOW, HIGH))
    return Stay(job, host, slot, begin_s, end_s, min(low_s, end_s), max(high_s, end_s))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which a share of what these were drawn from lies; they are in order, at least one."""
    place = min(max(share * (len(ordered) + 1) - 1, 0.0), len(ordered) - 1.0)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


# ── chance ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _World:
    """The truth of a play."""

    question: Question  # with the times that are so here, but for what is each attempt's own
    seconds: Sequence[Mapping[int, float]]  # of each kind: slot → time there
    own: Callable[[int, int], float]  # factor on that, for so many jobs of a kind one after the other
    ready: Sequence[float]  # factor on the time of what each slot does now


class _Chance:
    """Draws worlds: families, kinds and hosts as they may turn out to be."""

    def __init__(self, question: Question, normal: Normal) -> None:
        self._question, self._normal = question, normal
        self._own = list[float]()
        self._here = list[list[tuple[int, str, float, tuple[float, ...]]]]()
        for work in question.works:
            here = [(n, slot.host) for n, slot in enumerate(question.slots) if work.kind.time_on(slot) < math.inf]
            doubts = {host: work.doubt(host) for _, host in here}
            # A kind with one job shares its error with no other.
            self._own.append(max((_own(each, len(work.jobs)) for each in doubts.values()), default=0.0))
            shared = {host: _shared(doubt, len(work.jobs)) for host, doubt in doubts.items()}
            self._here.append([(n, host, work.middle(host), shared[host]) for n, host in here])
        self._ready = [_ready_spread(slot) for slot in question.slots]
        self._families = sorted({work.family for work in question.works})
        self._hosts = sorted({slot.host for slot in question.slots})

    def expected(self) -> _World:
        """Return the world in which each job takes its median, while decisions go by what is known."""
        medians = [{n: middle for n, _, middle, _ in here} for here in self._here]
        return _World(self._question, medians, lambda _k, _lot: 1.0, [1.0] * len(self._ready))

    def draw(self) -> _World:
        normal, own = self._normal, self._own
        everything = normal()
        families = {family: normal() for family in self._families}
        hosts = {host: normal() for host in self._hosts}
        pairs = {(host, family): normal() for host in self._hosts for family in self._families}
        works, seconds = list[Work](), list[dict[int, float]]()
        for work, here in zip(self._question.works, self._here, strict=True):
            shared, of_kind = families[work.family], normal()
            drawn, by_host = dict[int, float](), dict[str, float]()
            for n, host, middle, (kind, pair, of_host, family, every) in here:
                away = kind * of_kind + pair * pairs[host, work.family]
                away += of_host * hosts[host] + family * shared + every * everything
                drawn[n] = by_host[host] = middle * math.exp(away)
            seconds.append(drawn)
            works.append(replace(work, kind=replace(work.kind, seconds=by_host, spread=own[len(works)])))
        return _World(
            replace(self._question, works=works),
            seconds,
            lambda k, lot: math.exp(own[k] / math.sqrt(lot) * normal()),
            [math.exp(spread * normal()) for spread in self._ready],
        )


def _own(doubt: Doubt, jobs: int) -> float:
    return math.hypot(doubt.own, doubt.kind) if jobs == 1 else doubt.own


def _shared(doubt: Doubt, jobs: int) -> tuple[float, ...]:
    return (0.0 if jobs == 1 else doubt.kind), doubt.here, doubt.host, doubt.family, doubt.everything


def _known_soon(made: Schedule, world: _World) -> Schedule:
    """Return the schedule of a world: what idle slots begin at once goes by what is known now, the rest by the truth.

    In the fleet, too, a host's first attempts tell how it does, long before they have ended, and what follows is
    scheduled anew: were the first schedule played to its end, its errors would make nearly every plan too long.
    """
    question = world.question
    kinds = {work.kind.key: work.kind for work in question.works}
    if question.first_come:
        return made
    if len(kinds) * len(question.slots) > _PAIRS_MOST:
        return replace(made, kinds=kinds)  # slots take from others by the truth, at least
    left = {key: kind.count for key, kind in kinds.items()}
    first: dict[int, Share] = {}
    slots = list(question.slots)
    for n, (slot, shares) in enumerate(zip(made.slots, made.shares, strict=True)):
        if shares and slot.ready_s <= 0:
            key = shares[0].kind
            first[n] = Share(key, 1, 0.0, kinds[key].seconds[slot.host])
            left[key] -= 1
            slots[n] = replace(slot, ready_s=first[n].each_s, late_s=first[n].each_s)
    rest = schedule([replace(kind, count=left[key]) for key, kind in kinds.items()], slots, question.promised)
    joined = []
    for n, shares in enumerate(rest.shares):
        if n in first:
            again = sum(share.count for share in shares if share.kind == first[n].kind)
            shares = (replace(first[n], count=1 + again), *(share for share in shares if share.kind != first[n].kind))
        joined.append(shares)
    return Schedule(tuple(question.slots), tuple(joined), made.homeless, kinds)


def _ready_spread(slot: Slot) -> float:
    if slot.ready_s <= 0 or slot.late_s <= slot.ready_s:
        return 0.0
    return min(math.log(slot.late_s / slot.ready_s) / _SURELY, 1.0)


# ── a play ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Run:
    """A job as it was played: its kind, its place among the kind's jobs, and where and when."""

    k: int
    nth: int
    slot: int
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class _Ends:
    """All that is kept of a play whose durations were drawn: when each slot's present job ends, and each other job.

    A hundred whole plays would take megabytes, which a receiver on a small machine keeps for good.
    """

    ready: Sequence[float]
    jobs: Sequence[float]  # kind after kind; 0 for what no slot can do

    @classmethod
    def of(cls, play: _Play, firsts: Sequence[int]) -> _Ends:
        """Keep a play's ends; ``firsts``: the place of each kind's first job, and behind them the number of all."""
        jobs = array("d", bytes(8 * firsts[-1]))
        for run in play.runs:
            jobs[firsts[run.k] + run.nth] = run.end_s
        return cls(array("d", play.ready), jobs)


class _Play:
    """The slots take jobs until none is left that they could do."""

    def __init__(self, made: Schedule, world: _World) -> None:
        question = world.question
        slots, works = question.slots, question.works
        self._slots, self._works = slots, works
        self._kinds = made.kinds
        self._world = world
        self._in_turn: list[int] = []  # kinds in the order in which they are granted; empty: by the schedule
        if question.first_come:
            self._in_turn = sorted(range(len(works)), key=lambda k: -works[k].kind.priority)
        self._keys = [work.kind.key for work in works]
        self._known = {work.kind.key: k for k, work in enumerate(works)}
        self._shares = [{self._known[share.kind]: share.count for share in shares} for shares in made.shares]
        self._left = [sum(shares.get(k, 0) for shares in self._shares) for k in range(len(works))]
        self._given = [0] * len(works)
        self._times = [[work.kind.time_on(slot) for work in works] for slot in slots]
        self._slowest_first = [sorted(range(len(row)), key=row.__getitem__, reverse=True) for row in self._times]
        # The present job of each slot: its begin, and its expected duration.
        self._doing = [(0.0, Prediction(max(slot.ready_s, LEAST_S), _ready_spread(slot))) for slot in slots]
        self.ready = [slot.ready_s * late for slot, late in zip(slots, world.ready, strict=True)]
        self._events = [(at, n) for n, at in enumerate(self.ready)]
        self._idle: set[int] = set()
        self._round_s, self._next_round = made.end_s / _ROUNDS, 0.0
        self._lot_s = self._round_s if sum(self._left) > _JOBS_MOST else 0.0
        self._seen_until = 0.0
        self._seen_slots, self._placed = list(slots), list(made.shares)  # the schedule as it was when last looked at
        self.runs: list[_Run] = []
        self.waits: dict[str, Waits] = {}

    def run(self) -> _Play:
        heapq.heapify(self._events)
        while self._events and any(self._left):
            now, n = heapq.heappop(self._events)
            self._idle.add(n)
            self._ask(n, now)
            if now >= self._next_round:
                self._next_round = now + self._round_s
                for other in sorted(self._idle):
                    self._ask(other, now)
        return self

    def _ask(self, n: int, now: float) -> None:
        """Let a slot ask: its own next job, one of another's, or none for now."""
        if self._in_turn:
            self._take_first(n, now)
            return
        if self._shares[n]:
            self._take(n, n, next(iter(self._shares[n])), now)
            return
        host, times = self._slots[n].host, self._times[n]
        order = self._slowest_first[n]
        while order and not self._left[order[-1]]:
            order.pop()
        if not order or times[order[-1]] == math.inf:
            self._idle.discard(n)
            return
        seen = self._schedule(now)
        if host in self.waits and times[order[-1]] >= seen.end_s:
            return  # as before: whatever it took would end last of all
        said = seen.decide(host)
        if isinstance(said, Take):
            k = self._known[said.kind]
            if times[k] == math.inf:  # for another place of this host
                self._idle.discard(n)
                return
            self._take(n, self._holder(k, said.instead_of or host), k, now)
        elif isinstance(said, Decline) and host not in self.waits:
            self.waits[host] = Waits(host, now, self._first_of(self._known[said.kind]), said)

    def _take_first(self, n: int, now: float) -> None:
        """Let a slot take the first job that it can do, whatever the schedule gave to whom."""
        fits = (k for k in self._in_turn if self._left[k] and self._times[n][k] < math.inf)
        k = next(fits, None)
        if k is None:
            self._idle.discard(n)
            return
        self._take(n, next(m for m, shares in enumerate(self._shares) if k in shares), k, now)

    def _first_of(self, k: int) -> str:
        """Name the next job of this kind."""
        return self._works[k].jobs[self._given[k]]

    def _holder(self, k: int, host: str) -> int:
        """Return the slot of a host with jobs of this kind that has most to do."""
        own = (n for n, shares in enumerate(self._shares) if k in shares and self._slots[n].host == host)
        return max(own, key=lambda n: (sum(count * self._times[n][j] for j, count in self._shares[n].items()), n))

    def _take(self, n: int, of: int, k: int, now: float) -> None:
        """Begin a lot of this kind on slot ``n``, out of the share of slot ``of``."""
        lot = max(1, min(self._shares[of][k], int(self._lot_s / max(self._times[n][k], LEAST_S))))
        self._shares[of][k] -= lot
        if not self._shares[of][k]:
            del self._shares[of][k]
        if self._in_turn:
            pass  # nobody looks at the schedule
        elif n == of:
            first = self._placed[n][0]
            rest = Share(first.kind, first.count - lot, first.begin_s + lot * first.each_s, first.each_s)
            self._placed[n] = (*((rest,) if rest.count else ()), *self._placed[n][1:])
        else:
            self._seen_slots[of], self._placed[of] = self._of_slot(of, now)
        self._left[k] -= lot
        each_s = self._world.seconds[k][n] * self._world.own(k, lot)
        for nth in range(lot):
            begin_s = now + nth * each_s
            self.runs.append(_Run(k, self._given[k] + nth, n, begin_s, begin_s + each_s))
        self._given[k] += lot
        self._doing[n] = (now, Prediction(max(lot * self._times[n][k], LEAST_S), self._kinds[self._keys[k]].spread))
        self._idle.discard(n)
        heapq.heappush(self._events, (now + lot * each_s, n))

    def _schedule(self, now: float) -> Schedule:
        """Return what is left of the schedule now, from what is expected of each slot.

        Times in it may be a fiftieth of the plan old: to place all anew at each ask would cost most of a play.
        """
        if now >= self._seen_until:
            self._seen_until = now + self._round_s
            for n in range(len(self._slots)):
                self._seen_slots[n], self._placed[n] = self._of_slot(n, now)
        return Schedule(tuple(self._seen_slots), tuple(self._placed), (), self._kinds)

    def _of_slot(self, n: int, now: float) -> tuple[Slot, tuple[Share, ...]]:
        ready = late = 0.0
        if n not in self._idle:
            begun, expected = self._doing[n]
            ready = expected.left(now - begun)
            late = max(expected.seconds * math.exp(_SURELY * expected.spread) - (now - begun), 2 * ready)
        shares, begin_s = [], ready
        for k, count in self._shares[n].items():
            shares.append(Share(self._keys[k], count, begin_s, self._times[n][k]))
            begin_s = shares[-1].end_s
        return replace(self._slots[n], ready_s=ready, late_s=late), tuple(shares)
