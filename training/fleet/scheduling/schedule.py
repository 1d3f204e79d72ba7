"""The schedule: which host trains which jobs next, so that all jobs are done as soon as possible on unlike machines.
Pure.

Jobs with equal needs, priority and expected durations are one :class:`JobKind` with a count; the schedule is made over
kinds and slots, never over jobs. From the highest priority down, the kind that would suffer most from losing its best
slot gets it (sufferage; Maheswaran et al., "Dynamic matching and scheduling of a class of independent tasks onto
heterogeneous computing systems", 1999). Then jobs are moved and swapped to relieve the slot that ends last. A host
without a job of its own in the schedule takes another host's job if it would end that job sooner by a margin. When a
host waits instead, :class:`Decline` says which host will do the job, when, and how long to wait for that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from heapq import heappop, heapreplace
from operator import add

from training.frozen import frozen

NEVER = math.inf
_MOVES = 2  # tries for each slot to end sooner, after all is given out
_GAIN_LEAST = 0.999  # a move that gains less is none
_SWAPPED_MOST = 300  # shares; of more, a swap of two jobs changes little and the search for one takes long
_ONE_BY_ONE = 2_500  # pairs of a kind and a slot; of more, each slot is given something before all is compared again
_PARTS = 2  # a kind of many jobs is given out in about so many parts a slot
_DOUBT = 0.3  # power of a host's slowness by which it is distrusted, for each unit of spread (bench/makespan.py)
_GUESS = 1.0  # spread of a kind of which hardly anything is known: by a factor of e either way
_HARDLY_KNOWN, _FAR_BETTER = 0.75, 2.0  # such a spread, and so many times as long as on the best host
_MARGIN_LEAST = 0.1  # of a job's time here, that stealing must gain
_SHARING = 0.1  # of a job's time, that each place before its own on the same host costs at least: they share its cores
MANY_TIMES = 4.0  # as long as on another host: that a host does not do in its place
_WAIT_LEAST_S = 10.0  # for a better host: by less a wrong duration would give its jobs away
_OVERDUE_LEAST_S = 60.0  # what a host foretells is believed for so long, however little it is


@frozen
class JobKind:
    """A kind of the schedule: pending jobs with equal needs, priority and expected durations."""

    key: str
    count: int
    seconds: Mapping[str, float]  # host → expected duration there; a host that it does not fit is absent
    priority: int = 0  # the higher comes first
    spread: float = 0.0  # of the logarithm of these durations
    # host → if it trains on the GPUs there, and how many at once; where nothing is said, one on any place
    places: Mapping[str, tuple[bool, int]] = field(default_factory=dict)
    unheard: bool = False  # one host alone would have failed them: another one is to try them soon


@frozen
class Slot:
    """A place on a host that trains one job at a time."""

    host: str
    ready_s: float = 0.0  # from now: when what it trains will have ended …
    late_s: float = 0.0  # … and when that is nearly sure
    number: int = 0  # among those of its sort on its host: what wants much of the host goes to the first ones …
    gpu: bool = False  # … and what trains on its GPUs to places of their own
    job: str | None = None  # that it trains now, or delivers …
    held_s: float = 0.0  # … and for how long already


@frozen
class Share:
    """Consecutive jobs of one kind on a slot of a schedule."""

    kind: str
    count: int
    begin_s: float  # of the first, from now
    each_s: float

    @property
    def end_s(self) -> float:
        return self.begin_s + self.count * self.each_s


@frozen
class Take:
    """Decision that a host takes a job of this kind now. ``instead_of`` names the host to which the schedule had given
    the job; None: to this host."""

    kind: str
    instead_of: str | None = None


@frozen
class Decline:
    """Decision that a host waits, because another host will have the job done sooner. All times are seconds from
    now."""

    kind: str
    by: str  # who will do it …
    begin_s: float  # … beginning then …
    end_s: float  # … and ending then;
    here_s: float  # here it would take so long,
    open_s: float  # and from then on this host may take it;
    overdue_s: float = NEVER  # then that host's end has passed twice its length, if it takes no job meanwhile


@frozen
class Schedule:
    """The jobs of each slot, in order. A kind that no slot can train is on no slot."""

    slots: tuple[Slot, ...]
    shares: tuple[tuple[Share, ...], ...]
    kinds: Mapping[str, JobKind]

    @property
    def end_s(self) -> float:
        """Return the seconds from the schedule's computation until the last scheduled job ends; 0 without jobs."""
        return max((shares[-1].end_s for shares in self.shares if shares), default=0.0)

    def own(self, host: str) -> Iterator[tuple[int, int, Share]]:
        """Yield each share (consecutive jobs of one kind) of a host: slot number, position on that slot, share."""
        here = (n for n, slot in enumerate(self.slots) if slot.host == host)
        return ((n, m, share) for n in here for m, share in enumerate(self.shares[n]))

    def count(self, kind: str) -> int:
        """Count the jobs of a kind in the schedule."""
        return sum(share.count for shares in self.shares for share in shares if share.kind == kind)

    def decide(self, host: str, at_s: float = 0.0, without: Collection[str] = ()) -> Take | Decline | None:
        """Decide what a slot of ``host`` does that asks ``at_s`` seconds after the schedule was computed.

        The result is a job to take, or a job that a better host will do sooner; None if the schedule has no job that
        the host could train and may take. ``without`` has the kinds that the host may not take now.
        """
        shares = [share for _, _, share in self.own(host) if share.kind not in without]
        mine = [(-self.kinds[s.kind].priority, s.begin_s, s.kind) for s in shares]
        level, _, own = min(mine, default=(NEVER, NEVER, ""))
        if any(kind.unheard for kind in self.kinds.values()) and (take := self._unheard(host, level, without)):
            return take
        guess = level < NEVER and self.kinds[own].spread > _GUESS
        if level < NEVER and not guess and -level == max(kind.priority for kind in self.kinds.values()):
            return Take(own)
        others = self._of_others(host, without)
        if guess:  # Nobody knows what this host is like: the shortest tells, and costs least if it is slow
            alike = [each for each in others if each[2].spread > _GUESS and -each[2].priority == level]
            short = min(alike, key=lambda each: (each[3], each[0]), default=None)
            if short is not None and short[3] < self.kinds[own].seconds[host]:
                return Take(short[1].kind, instead_of=self.slots[short[0]].host)
        # Of a higher priority than its own, or any where it has none: from the slot that ends last, what is best here
        better = [
            (-kind.priority, -self.shares[n][-1].end_s, at_s + here_s - share.end_s, n, share.kind)
            for n, share, kind, here_s in others
            if -kind.priority < level and at_s + here_s * (1.0 + max(_MARGIN_LEAST, kind.spread / 2)) < share.end_s
        ]
        if better:
            _, _, _, n, key = min(better)
            return Take(key, instead_of=self.slots[n].host)
        if level < NEVER:
            return Take(own)
        if not others:
            return None
        # The job that costs least here, should the better host not come after all
        n, share, kind, here_s = min(others, key=lambda each: (-each[2].priority, each[3], each[0]))
        begin_s, slot = max(share.begin_s, at_s), self.slots[n]
        if share.begin_s <= at_s and here_s <= share.each_s:
            return Take(share.kind, instead_of=slot.host)  # that host could begin it now, and would be no faster
        open_s = max(here_s, slot.late_s + 2.0 * (share.begin_s + share.each_s - slot.ready_s) - at_s, _WAIT_LEAST_S)
        end_s = begin_s + share.each_s - at_s
        overdue_s = max(2.0 * end_s + slot.held_s, _OVERDUE_LEAST_S) * math.exp(kind.spread)
        return Decline(share.kind, slot.host, begin_s - at_s, end_s, here_s, open_s, overdue_s)

    def _unheard(self, host: str, level: float, without: Collection[str]) -> Take | None:
        """Return a job of this level or above that ``host`` tries before others because one host alone would have
        failed it; None if there is none. A job that takes more than ``MANY_TIMES`` as long on ``host`` as on the
        fastest host is not returned."""
        found = [
            (-kind.priority, slot.host != host, slot.host, share.kind)
            for slot, shares in zip(self.slots, self.shares, strict=True)
            for share in shares
            if (kind := self.kinds[share.kind]).unheard and share.kind not in without and -kind.priority <= level
            if kind.seconds.get(host, NEVER) <= MANY_TIMES * min(kind.seconds.values())
        ]
        if not found:
            return None
        _, elsewhere, by, key = min(found)
        return Take(key, instead_of=by if elsewhere else None)

    def _of_others(self, host: str, without: Collection[str]) -> list[tuple[int, Share, JobKind, float]]:
        """Return the shares of other hosts' slots that ``host`` could train: slot number, share, kind, and the seconds
        of one job on ``host``."""
        here = {key: (kind, kind.seconds[host]) for key, kind in self.kinds.items() if host in kind.seconds}
        return [
            (n, share, *here[share.kind])
            for n, shares in enumerate(self.shares)
            if self.slots[n].host != host
            for share in shares
            if share.kind in here and share.kind not in without
        ]

    def only(self, hosts: Collection[str]) -> Schedule:
        """Return the schedule with the slots of these hosts only. The jobs of other slots are then assigned to no
        host."""
        kept = [each for each in zip(self.slots, self.shares, strict=True) if each[0].host in hosts]
        return replace(self, slots=tuple(slot for slot, _ in kept), shares=tuple(shares for _, shares in kept))

    def took(self, host: str, kind: str, instead_of: str | None = None) -> Schedule:
        """Return the schedule without one job of this kind, which ``host`` took from its own share or from the host
        ``instead_of``.
        """
        found = [(share.begin_s, n, m) for n, m, share in self.own(instead_of or host) if share.kind == kind]
        if not found:
            return self
        _, n, m = min(found)
        left, taken = self.shares[n], self.shares[n][m]
        # Taken by the slot itself, it goes on when this job has ended; taken by another, the rest begins sooner.
        own_s, later_s = (0.0, -taken.each_s) if instead_of else (taken.each_s, 0.0)
        rest = [replace(taken, count=taken.count - 1, begin_s=taken.begin_s + own_s)] if taken.count > 1 else []
        behind = [replace(share, begin_s=share.begin_s + later_s) for share in left[m + 1 :]]
        shares = (*left[:m], *rest, *behind)
        return replace(self, shares=(*self.shares[:n], shares, *self.shares[n + 1 :]))


def schedule(
    kinds: Sequence[JobKind],
    slots: Sequence[Slot],
    before: Schedule | None = None,
    awaited: Mapping[str, float] | None = None,
) -> Schedule:
    """Return a schedule that assigns every job that some slot can train to a slot: by sufferage from the highest
    priority down, then by moves that relieve the slot that ends last.

    On a slot, kinds of higher priority come first. Within a priority, kinds that are ``awaited`` (kind → until when a
    host waits for it) come first, the others in the order of :meth:`_Level.rank`. The schedule ``before`` is kept as
    far as possible, unless a new one ends sooner, so that a small change moves few jobs.
    """
    timed = [*zip(kinds, _times(kinds, slots), strict=True)]
    made = _scheduled(timed, slots, None, awaited or {})
    if before is None:
        return made
    kept = _scheduled(timed, slots, before, awaited or {})
    return made if made.end_s < kept.end_s * _GAIN_LEAST else kept


def _scheduled(
    timed: Sequence[TimedKind], slots: Sequence[Slot], before: Schedule | None, awaited: Mapping[str, float]
) -> Schedule:
    ends = [slot.ready_s for slot in slots]
    given: list[list[Share]] = [[] for _ in slots]
    for priority in sorted({kind.priority for kind, _ in timed}, reverse=True):
        level = _Level([each for each in timed if each[0].priority == priority and each[0].count > 0], ends)
        if before is not None:
            level.keep(before, slots)
        level.assign()
        level.relieve()
        for n, counts in enumerate(level.counts):
            for k in sorted(counts, key=lambda k: (awaited.get(level.kinds[k].key, NEVER), level.rank(k, n))):
                begin_s = given[n][-1].end_s if given[n] else slots[n].ready_s
                given[n].append(Share(level.kinds[k].key, counts[k], begin_s, level.times[k][n]))
    return Schedule(tuple(slots), tuple(map(tuple, given)), {kind.key: kind for kind, _ in timed})


TimedKind = tuple[JobKind, list[float]]  # and its time on each slot


class _Level:
    """The jobs of one priority while they are assigned to slots. ``ends``, shared by all priorities, has the time when
    each slot is done."""

    def __init__(self, timed: Sequence[TimedKind], ends: list[float]) -> None:
        able = [each for each in timed if min(each[1], default=NEVER) < NEVER]
        self.kinds, self.times = [kind for kind, _ in able], [row for _, row in able]
        self.left, self.ends = [kind.count for kind in self.kinds], ends  # left: jobs that no slot has
        self.counts: list[dict[int, int]] = [{} for _ in ends]  # of each slot: kind → jobs

    def rank(self, k: int, n: int) -> tuple[bool, float]:
        """Return the sort key of a kind on a slot: longest jobs first, but among kinds with guessed times the shortest
        first.

        A short job with a guessed time soon shows how long the others take. A kind with uncertain times that probably
        suits another host far better comes last, when more is known about it.
        """
        each_s, spread = self.times[k][n], self.kinds[k].spread
        suits_another = spread > _HARDLY_KNOWN and each_s > _FAR_BETTER * min(self.times[k])
        return suits_another, each_s if spread > _GUESS else -each_s

    def keep(self, before: Schedule, slots: Sequence[Slot]) -> None:
        """Assign to each slot the jobs that it had in the schedule ``before``, as far as these are still pending and it
        can train them."""
        known = {kind.key: k for k, kind in enumerate(self.kinds)}
        had: dict[str, list[Sequence[Share]]] = {}
        for slot, shares in zip(before.slots, before.shares, strict=True):
            had.setdefault(slot.host, []).insert(0, shares)
        for at, slot in enumerate(slots):
            for share in had[slot.host].pop() if had.get(slot.host) else ():
                k = known.get(share.kind, -1)
                if k >= 0 and self.times[k][at] < NEVER and self.left[k]:
                    self._move(k, at, min(share.count, self.left[k]))

    def assign(self) -> None:
        """Assign every job to a slot, first the jobs that would lose most time without their best slot."""
        # Parts are measured by the time in which these slots could do it all, each kind spread over all that can do it.
        span = sum(
            count / (sum([1.0 / each for each in row if each]) or 1.0)
            for row, count in zip(self.times, self.left, strict=True)
        )
        while waiting := [k for k, count in enumerate(self.left) if count]:
            ranked = sorted(map(self._sufferage, waiting))
            at_once = 1 if len(waiting) * len(self.ends) <= _ONE_BY_ONE else len(self.ends)
            for _ in range(min(at_once, len(ranked))):
                # As slots fill, the losses change: of a kind it is looked at again when it would be the next.
                while (found := self._sufferage(ranked[0][2])) > ranked[0]:
                    heapreplace(ranked, found)
                _, each_s, k, at = found
                self._move(k, at, min(self.left[k], max(1, int(span / _PARTS / max(-each_s, 1e-9)))))
                if self.left[k]:
                    heapreplace(ranked, self._sufferage(k))
                else:
                    heappop(ranked)

    def _sufferage(self, k: int) -> tuple[float, float, int, int]:
        """Return how much later a kind's next job would end without its best slot, and its time on that slot, both
        negated; then the indexes of the kind and the slot."""
        then = [*map(add, self.ends, self.times[k])]
        best = min(then)
        at = then.index(best)
        then[at] = NEVER
        return best - min(then), -self.times[k][at], k, at

    def relieve(self) -> None:
        """Move jobs of a kind from the slot that ends last to another, or swap one job, and repeat this a limited
        number of times while the later of the two slots then ends sooner."""
        swaps = sum(map(len, self.counts)) <= _SWAPPED_MOST
        for _ in range(_MOVES * len(self.ends)):
            full = max(range(len(self.ends)), key=self.ends.__getitem__)
            if not (self._move_some(full) or (swaps and self._swap_one(full))):
                return

    def _move(self, k: int, at: int, count: int) -> None:
        """Add jobs of a kind to a slot; a negative count takes them away."""
        self.left[k] -= count
        self.counts[at][k] = self.counts[at].get(k, 0) + count
        if not self.counts[at][k]:
            del self.counts[at][k]
        self.ends[at] += count * self.times[k][at]

    def _move_some(self, full: int) -> bool:
        most, found = self.ends[full], None
        for k in self.counts[full]:
            row = self.times[k]
            then = [*map(add, self.ends, row)]
            end = max(min(then), self.ends[full] - row[full])
            if end < most * _GAIN_LEAST:
                # Of slots where all ends equally soon, take the fastest: if durations are wrong, it costs least.
                most, found = end, (k, min((each_s, n) for n, each_s in enumerate(row) if then[n] <= end)[1])
        if found is None:
            return False
        k, at = found
        # After so many both end together.
        even = (self.ends[full] - self.ends[at]) / (self.times[k][full] + self.times[k][at])
        count = max(1, min(self.counts[full][k], int(even)))
        self._move(k, full, -count)
        self._move(k, at, count)
        return True

    def _swap_one(self, full: int) -> bool:
        most, found = self.ends[full], None
        for k in self.counts[full]:
            for at, end in enumerate(self.ends):
                for other in self.counts[at] if at != full and self.times[k][at] < NEVER else ():
                    here = self.ends[full] - self.times[k][full] + self.times[other][full]
                    there = end - self.times[other][at] + self.times[k][at]
                    if max(here, there) < most * _GAIN_LEAST:
                        most, found = max(here, there), (k, at, other)
        if found is None:
            return False
        k, at, other = found
        for kind, slot, count in ((k, full, -1), (k, at, 1), (other, at, -1), (other, full, 1)):
            self._move(kind, slot, count)
        return True


def _times(kinds: Iterable[JobKind], slots: Sequence[Slot]) -> Iterator[list[float]]:
    """Yield for each kind its jobs' seconds on each slot; infinity on a slot that cannot train them. The seconds are
    raised for slower hosts if the kind is not well known, and for the later slots of a host, which share its cores.
    Among many uncertain predictions the lowest one is probably too low.
    """
    at: dict[str, list[tuple[int, Slot]]] = {}
    for n, slot in enumerate(slots):
        at.setdefault(slot.host, []).append((n, slot))
    for kind in kinds:
        best, doubt = min(kind.seconds.values(), default=NEVER), _DOUBT * kind.spread
        row = [NEVER] * len(slots)
        for host, seconds in kind.seconds.items():
            believed = seconds * (seconds / best) ** doubt
            gpu, most = kind.places.get(host, (None, NEVER))
            for n, slot in at.get(host, ()):
                if gpu is None or (gpu == slot.gpu and slot.number < most):
                    row[n] = believed * (1.0 + _SHARING * slot.number)
        yield row
