"""The schedule: which host trains which jobs next, so that the plan is done soonest on unlike machines. Pure.

Jobs with equal needs, priority and expected durations are one :class:`Kind` with a count; the schedule is made over
kinds and slots, never over jobs. From the highest priority down, the kind that would suffer most from losing its best
slot gets it (sufferage; Maheswaran et al., "Dynamic matching and scheduling of a class of independent tasks onto
heterogeneous computing systems", 1999). A slot without a job of its own takes one from the slot that ends last, if
that job then ends sooner by a margin; otherwise it declines, and the decline says who will do the job, when, and
until when that is waited for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import add
from typing import TypeVar

T = TypeVar("T")
NEVER = math.inf
_LONGEST_S = 1e100  # that may be believed


_MOVES = 4  # tries for each slot to end sooner, after all is given out
_GAIN_LEAST = 0.999  # a move that gains less is none
_SWAPPED_MOST = 300  # shares; of more, a swap of two jobs changes little and the search for one takes long
_NEAR = 6  # slots of a kind that are looked at each time
_PARTS = 4  # a kind of many jobs is given out in about so many parts a slot
_DOUBT = 0.3  # power of a host's slowness by which it is distrusted, for each unit of spread (bench/makespan.py)
_GUESS = 1.0  # spread of a kind of which hardly anything is known: by a factor of e either way
_MARGIN_LEAST = 0.1  # of a job's time here, that stealing must gain


@dataclass(frozen=True, slots=True)
class Kind:
    """Jobs that wait and are equal for the schedule."""

    key: str
    count: int
    seconds: Mapping[str, float]  # host → expected duration there; a host that it does not fit is absent
    priority: int = 0  # the higher comes first
    spread: float = 0.0  # of the logarithm of these durations
    # host → if it trains on the GPUs there, and how many at once; where nothing is said, one on any place
    places: Mapping[str, tuple[bool, int]] = field(default_factory=dict)

    def time_on(self, slot: Slot) -> float:
        """Return how long one takes on this slot; :data:`NEVER` where it cannot be trained."""
        gpu, most = self.places.get(slot.host, (slot.gpu, NEVER))
        return self.seconds.get(slot.host, NEVER) if gpu == slot.gpu and slot.number < most else NEVER


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for one job at a time."""

    host: str
    ready_s: float = 0.0  # from now: when what it trains will have ended …
    late_s: float = 0.0  # … and when that is nearly sure
    number: int = 0  # among those of its sort on its host: what wants much of the host goes to the first ones …
    gpu: bool = False  # … and what trains on its GPUs to places of their own


BUSY_MOST = 16  # attempts of one host that a schedule knows of: those that end first


@dataclass(frozen=True, slots=True)
class Busy:
    """An attempt that trains on a host, or is delivered from there."""

    ready_s: float  # as for a slot
    late_s: float
    gpu: bool = False


def places(host: str, busy: Sequence[Busy], most: int = 1, on_gpu: int = 0) -> list[tuple[Slot, int | None]]:
    """List the places of a host that trains ``most`` jobs at once, ``on_gpu`` of them on its GPUs, each with the number
    of the attempt on it.

    The first of each sort is the one that is free last: where a job needs half of the host it begins when that is free.
    """
    order = sorted(range(len(busy)), key=lambda n: (busy[n].ready_s, busy[n].late_s, n))[:BUSY_MOST]
    if most == 1:
        found = [(Slot(host, busy[n].ready_s, busy[n].late_s), n) for n in order]
        return [*found] or [(Slot(host), None)]
    made: list[tuple[Slot, int | None]] = []
    held = {gpu: [n for n in reversed(order) if busy[n].gpu == gpu] for gpu in (True, False)}
    on_gpu = max(len(held[True]), min(on_gpu, most))
    for gpu, there in ((True, on_gpu), (False, max(len(held[False]), most - on_gpu))):
        here = [*held[gpu], *[None] * (there - len(held[gpu]))]
        for number, n in enumerate(here):
            ready_s, late_s = (0.0, 0.0) if n is None else (busy[n].ready_s, busy[n].late_s)
            made.append((Slot(host, ready_s, late_s, number, gpu), n))
    return made


@dataclass(frozen=True, slots=True)
class Share:
    """Jobs of one kind, one after the other on a slot."""

    kind: str
    count: int
    begin_s: float  # of the first, from now
    each_s: float

    @property
    def end_s(self) -> float:
        return self.begin_s + self.count * self.each_s


@dataclass(frozen=True, slots=True)
class Take:
    """The asking slot takes a job of this kind now. ``instead_of`` names the host that the schedule had meant."""

    kind: str
    instead_of: str | None = None


@dataclass(frozen=True, slots=True)
class Decline:
    """Another host will have it done sooner. All times from now, in seconds."""

    kind: str
    by: str  # who will do it …
    begin_s: float  # … beginning then …
    end_s: float  # … and ending then;
    here_s: float  # here it would take so long,
    open_s: float  # and from then on this host may take it


@dataclass(frozen=True, slots=True)
class Schedule:
    """The shares of each slot, in order, and the kinds that no slot here can do."""

    slots: tuple[Slot, ...]
    shares: tuple[tuple[Share, ...], ...]
    homeless: tuple[str, ...] = ()
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    at: Mapping[str, Sequence[int]] = field(default_factory=dict, compare=False, repr=False)  # host → its slots

    def __post_init__(self) -> None:
        if not self.at:
            at: dict[str, list[int]] = {}
            for n, slot in enumerate(self.slots):
                at.setdefault(slot.host, []).append(n)
            object.__setattr__(self, "at", at)

    @property
    def end_s(self) -> float:
        """Return when all is done."""
        return max((shares[-1].end_s for shares in self.shares if shares), default=0.0)

    def decide(self, host: str, at_s: float = 0.0, without: Collection[str] = ()) -> Take | Decline | None:
        """Answer a slot of ``host`` that asks ``at_s`` after the schedule was made: a job, one to wait for, or None if
        it could do none that waits. ``without`` are kinds that it may not take now.
        """
        own = self._first_of(host, without)
        if own is not None:
            # A job of a higher priority goes first, unless the host that is to do it has it done sooner.
            higher = any(-kind.priority < own[0] for kind in self.kinds.values())
            above = [
                (-self.kinds[share.kind].priority, -share.end_s, n, share.kind)
                for n, share, here_s in (self._doable(host, without) if higher else ())
                if -self.kinds[share.kind].priority < own[0] and at_s + here_s <= max(share.end_s, at_s + share.each_s)
            ]
            if above:
                _, _, n, kind = min(above)
                return Take(kind, instead_of=self.slots[n].host)
            if self.kinds[own[2]].spread > _GUESS:
                # Nobody knows what this host is like: the shortest of such jobs tells, and costs least if it is slow.
                short = self._shorter_guess(host, self.kinds[own[2]], without)
                if short is not None:
                    return short
            return Take(own[2])
        doable = self._doable(host, without)
        better = [
            (-self.kinds[share.kind].priority, -self.shares[n][-1].end_s, at_s + here_s - share.end_s, n, share.kind)
            for n, share, here_s in doable
            if at_s + here_s * (1.0 + max(_MARGIN_LEAST, self.kinds[share.kind].spread / 2)) < share.end_s
        ]
        if better:  # of the highest priority, from the slot that ends last, the job that is best here
            _, _, _, n, kind = min(better)
            return Take(kind, instead_of=self.slots[n].host)
        if not doable:
            return None
        # The job that costs least here, should the better host not come after all.
        n, share, here_s = min(doable, key=lambda each: (-self.kinds[each[1].kind].priority, each[2], each[0]))
        begin_s = max(share.begin_s, at_s)
        end_s = begin_s + share.each_s
        late_s = self.slots[n].late_s + 2.0 * (share.begin_s - self.slots[n].ready_s)
        open_s = max(late_s, at_s) + max(0.0, here_s - share.each_s - (begin_s - at_s))
        # From open_s on waiting can no longer pay.
        times = (begin_s - at_s, end_s - at_s, here_s, open_s - at_s)
        if open_s <= at_s:
            return Take(share.kind, instead_of=self.slots[n].host)
        return Decline(share.kind, self.slots[n].host, *times)

    def _first_of(self, host: str, without: Collection[str] = ()) -> tuple[int, float, str] | None:
        """Return the host's own share that comes first: its priority, negated, when it begins, and its kind."""
        own = (
            (-self.kinds[share.kind].priority, share.begin_s, share.kind)
            for n in self.at.get(host, ())
            for share in self.shares[n]
            if share.kind not in without
        )
        return min(own, default=None)

    def _shorter_guess(self, host: str, own: Kind, without: Collection[str]) -> Take | None:
        """Return the shortest job here of which as little is known as of ``own``, if it is shorter, of another host."""
        shorter = {
            key: kind.seconds[host]
            for key, kind in self.kinds.items()
            if kind.spread > _GUESS
            and kind.priority == own.priority
            and kind.seconds.get(host, NEVER) < own.seconds[host]
            and key not in without
        }
        if not shorter:
            return None
        mine = self.at.get(host, ())
        meant = [
            (shorter[share.kind], n, share.kind)
            for n, shares in enumerate(self.shares)
            if n not in mine
            for share in shares
            if share.kind in shorter
        ]
        if not meant:
            return None
        _, n, kind = min(meant)
        return Take(kind, instead_of=self.slots[n].host)

    def _doable(self, host: str, without: Collection[str]) -> list[tuple[int, Share, float]]:
        """List the shares of other hosts' slots that this host could do, with the time that a job takes there."""
        here = {key: kind.seconds[host] for key, kind in self.kinds.items() if host in kind.seconds}
        own = self.at.get(host, ())
        return [
            (n, share, here[share.kind])
            for n, shares in enumerate(self.shares)
            if shares and n not in own
            for share in shares
            if share.kind in here and share.kind not in without
        ]

    def only(self, hosts: Collection[str]) -> Schedule:
        """Return the schedule without the slots of other hosts; what they had is meant for nobody."""
        if all(map(hosts.__contains__, self.at)):
            return self
        kept = [each for each in zip(self.slots, self.shares, strict=True) if each[0].host in hosts]
        return replace(self, slots=tuple(slot for slot, _ in kept), shares=tuple(shares for _, shares in kept), at={})

    def took(self, host: str, kind: str, instead_of: str | None = None) -> Schedule:
        """Return the schedule without a job of this kind, which ``host`` took, of its own or ``instead_of`` another's.

        Of a host's several slots it is the one that would have come to it first.
        """
        meant = instead_of or host
        found = [
            (share.begin_s, n, at)
            for n in self.at.get(meant, ())
            for at, share in enumerate(self.shares[n])
            if share.kind == kind
        ]
        if not found:
            return self
        begin_s, n, at = min(found)
        left = [*self.shares[n]]
        # Taken by the slot itself, it goes on when this job has ended; taken by another, this much sooner.
        later = replace(
            left[at], count=left[at].count - 1, begin_s=begin_s + (left[at].each_s if not instead_of else 0)
        )
        rest = [later] if later.count else []
        if instead_of:
            rest += [replace(share, begin_s=share.begin_s - left[at].each_s) for share in left[at + 1 :]]
        else:
            rest += left[at + 1 :]
        shares = (*self.shares[:n], (*left[:at], *rest), *self.shares[n + 1 :])
        return replace(self, shares=shares)


Steps = Generator[int, None, T]  # after each step how much work it was: times that were compared


def to_the_end(steps: Steps[T]) -> T:
    """Take all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: T = end.value
            return made


def schedule(
    kinds: Sequence[Kind],
    slots: Sequence[Slot],
    promised: Mapping[str, float] | None = None,
    before: Schedule | None = None,
) -> Schedule:
    """Take the steps of :func:`scheduling` at once."""
    return to_the_end(scheduling(kinds, slots, promised, before))


def scheduling(
    kinds: Sequence[Kind],
    slots: Sequence[Slot],
    promised: Mapping[str, float] | None = None,
    before: Schedule | None = None,
) -> Steps[Schedule]:
    """Give every job to a slot: sufferage from the highest priority down, then moves that relieve the fullest slot.

    On its slot a kind of a higher priority comes first, then one that is ``promised`` (kind → until when somebody
    waits for it), then the longest: what is short fills the end. Of kinds that nobody knows the shortest comes first.
    The schedule of ``before`` stays, as far as it goes, unless a new one ends sooner, so that a small change of what
    is known moves few jobs.
    """
    rows: dict[str, list[float]] = {}
    for kind in kinds:
        rows[kind.key] = _believed(kind, slots)
        yield 2 * len(slots)
    made = yield from _scheduled(kinds, slots, promised or {}, rows, None)
    if before is None:
        return made
    kept = yield from _scheduled(kinds, slots, promised or {}, rows, before)
    return made if made.end_s < kept.end_s * _GAIN_LEAST else kept


def _scheduled(
    kinds: Sequence[Kind],
    slots: Sequence[Slot],
    due: Mapping[str, float],
    rows: Mapping[str, list[float]],
    before: Schedule | None,
) -> Steps[Schedule]:
    known = {kind.key: kind for kind in kinds}
    ends = [slot.ready_s for slot in slots]
    given: list[list[Share]] = [[] for _ in slots]
    homeless: list[str] = []
    for priority in sorted({kind.priority for kind in kinds}, reverse=True):
        level = _Level([kind for kind in kinds if kind.priority == priority and kind.count > 0], rows, ends)
        homeless += level.homeless
        if before is not None:
            yield from level.keep(before, slots)
        yield from level.assign()
        yield from level.relieve()
        for n, counts in enumerate(level.counts):
            shares = [Share(level.kinds[k].key, count, 0.0, level.times[k][n]) for k, count in counts.items()]
            given[n] += sorted(shares, key=lambda share: (due.get(share.kind, NEVER), _rank(share, known[share.kind])))
            yield 50 * len(shares)
    placed = tuple(_placed(shares, slot.ready_s) for shares, slot in zip(given, slots, strict=True))
    return Schedule(tuple(slots), placed, tuple(homeless), known)


def _rank(share: Share, kind: Kind) -> float:
    """Order what a slot does: the longest first; of what is a mere guess the shortest, because it tells of the rest."""
    return share.each_s if kind.spread > _GUESS else -share.each_s


def _placed(shares: Sequence[Share], begin_s: float) -> tuple[Share, ...]:
    """Put shares one after the other."""
    placed = []
    for share in shares:
        placed.append(replace(share, begin_s=begin_s))
        begin_s = placed[-1].end_s
    return tuple(placed)


# A kind's loss without its best slot, its time there, the kind (of equal ones the first), that slot, the next.
_Choice = tuple[float, float, int, int, int]


class _Level:
    """The jobs of one priority, being given to slots; ``ends``, shared by all levels, is when each slot is done."""

    def __init__(self, kinds: Sequence[Kind], rows: Mapping[str, list[float]], ends: list[float]) -> None:
        self.kinds = [kind for kind in kinds if min(rows[kind.key], default=NEVER) < NEVER]
        self.homeless = [kind.key for kind in kinds if min(rows[kind.key], default=NEVER) == NEVER]
        self.times = [rows[kind.key] for kind in self.kinds]
        self.left = [kind.count for kind in self.kinds]
        self.ends = ends
        self.counts: list[dict[int, int]] = [{} for _ in ends]  # of each slot: kind → jobs

    def keep(self, before: Schedule, slots: Sequence[Slot]) -> Steps[None]:
        """Give jobs to the slots that had them before."""
        known = {kind.key: k for k, kind in enumerate(self.kinds)}
        had: dict[str, list[tuple[Share, ...]]] = {}
        for slot, shares in zip(before.slots, before.shares, strict=True):
            had.setdefault(slot.host, []).append(shares)
        for at, slot in enumerate(slots):
            kept = had[slot.host].pop(0) if had.get(slot.host) else ()
            yield 20 * len(kept)
            for share in kept:
                k = known.get(share.kind, -1)
                if k >= 0 and self.times[k][at] < NEVER and self.left[k]:
                    self._move(k, at, min(share.count, self.left[k]))
                    self.left[k] -= min(share.count, self.left[k])

    def assign(self) -> Steps[None]:
        """Give every job to a slot: first those that would suffer most without their best one."""
        left = self.left
        # Parts are measured by the time in which these slots could do it all, each job where it is fastest.
        span = sum(min(row) * count for row, count in zip(self.times, left, strict=True)) / max(1, len(self.ends))
        near, choice = dict[int, _Near](), dict[int, _Choice]()
        for k in [k for k, count in enumerate(left) if count]:
            near[k] = _Near(k, self.times[k], self.ends)
            choice[k] = near[k].choice()
            yield 2 * len(self.ends)
        while choice:
            _, _, minus_k, at, _ = max(choice.values())
            k = -minus_k
            each_s = max(self.times[k][at], 1e-9)
            part = min(left[k], max(1, int(span / _PARTS / each_s)))
            self._move(k, at, part)
            left[k] -= part
            if not left[k]:
                del choice[k]
            stale = [each for each, (_, _, _, best, second) in choice.items() if at in (best, second)]
            for each in stale:
                choice[each] = near[each].choice()
            yield len(choice) + 20 * len(stale)

    def relieve(self) -> Steps[None]:
        """Move a job away from the slot that ends last, or swap it, while all then ends sooner."""
        swaps = sum(map(len, self.counts)) <= _SWAPPED_MOST
        for _ in range(_MOVES * len(self.ends)):
            full = max(range(len(self.ends)), key=self.ends.__getitem__, default=0)
            yield 3 * len(self.counts[full]) * (len(self.ends) + swaps * sum(map(len, self.counts))) if self.ends else 1
            if not self.ends or not (self._move_one(full) or (swaps and self._swap_one(full))):
                return

    def _move(self, k: int, at: int, count: int) -> None:
        self.counts[at][k] = self.counts[at].get(k, 0) + count
        if not self.counts[at][k]:
            del self.counts[at][k]
        self.ends[at] += count * self.times[k][at]

    def _move_one(self, full: int) -> bool:
        most, found = self.ends[full], None
        for k in self.counts[full]:
            row, rest = self.times[k], self.ends[full] - self.times[k][full]
            for at, end in enumerate(self.ends):
                if at != full and max(end + row[at], rest) < most * _GAIN_LEAST:
                    most, found = max(end + row[at], rest), (k, at)
        if found is None:
            return False
        self._move(found[0], full, -1)
        self._move(*found, 1)
        return True

    def _swap_one(self, full: int) -> bool:
        most, found = self.ends[full], None
        for k in self.counts[full]:
            for at, end in enumerate(self.ends):
                if at == full or self.times[k][at] == NEVER:
                    continue
                for other in self.counts[at]:
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


def _believed(kind: Kind, slots: Sequence[Slot]) -> list[float]:
    """Return the kind's time on each slot, longer where it is slower and not well known.

    Among many uncertain predictions the best looking one is too good to be true, and a job that is begun on a machine
    that turns out far slower ends last of all; where the same is wrong on a fast machine little is lost.
    """
    row = [*map(kind.time_on, slots)] if kind.places else [kind.seconds.get(slot.host, NEVER) for slot in slots]
    best = min(row, default=NEVER)
    if kind.spread <= 0 or best == NEVER or best <= 0:
        return row
    doubt = _DOUBT * kind.spread
    return [each if each == NEVER else _longer(each, each / best, doubt) for each in row]


def _longer(seconds: float, times: float, doubt: float) -> float:
    """Return a time that is longer by so many ``times``, to the power of ``doubt``; never so long as :data:`NEVER`."""
    try:
        longer: float = seconds * times**doubt
        return min(longer, _LONGEST_S)
    except OverflowError:  # by durations that make no sense, which workers may report
        return _LONGEST_S


class _Near:
    """The slots on which a kind's next job might end first: while slots only fill, few are to be looked at again."""

    def __init__(self, k: int, row: list[float], ends: list[float]) -> None:
        self._k, self._row, self._ends = k, row, ends
        self._look_at_all()

    def _look_at_all(self) -> None:
        then = list(map(add, self._ends, self._row))
        order = sorted(range(len(then)), key=then.__getitem__)
        self._slots = sorted(order[:_NEAR])  # in order, as of equal ends the first slot is chosen
        self._bound = then[order[_NEAR]] if len(order) > _NEAR else NEVER  # on no other slot does one end before

    def choice(self) -> _Choice:
        best, second, at, then = self._two()
        if second >= self._bound < NEVER:
            self._look_at_all()
            best, second, at, then = self._two()
        return second - best if second < NEVER else NEVER, self._row[at], -self._k, at, then

    def _two(self) -> tuple[float, float, int, int]:
        """Return the two earliest ends among these slots, and the slots."""
        row, ends = self._row, self._ends
        best = second = NEVER
        at = then = self._slots[0]
        for slot in self._slots:
            end = ends[slot] + row[slot]
            if end < best:
                second, then, best, at = best, at, end, slot
            elif end < second:
                second, then = end, slot
        return best, second, at, then
