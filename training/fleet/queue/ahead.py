"""The facts that the schedule is made from: what waits, what runs and until when, and how long each host would take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from training.clock import Clock
from training.fleet.database.writer import Database
from training.fleet.queue.classes import Classes
from training.fleet.queue.declines import Declines
from training.fleet.queue.durations import Learned
from training.fleet.queue.events import Events
from training.fleet.queue.kinds import AtOnce, Kinds, Waiting, kind, places_of
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.booking import most_at_once
from training.fleet.scheduling.durations import Machine
from training.fleet.scheduling.job import Host
from training.fleet.scheduling.policy import Fleet, Policy
from training.fleet.scheduling.predictions import Prediction
from training.fleet.scheduling.rolling import Promise, Rolling
from training.fleet.scheduling.schedule import BUSY_MOST, Busy, Steps, to_the_end
from training.printable import clock_time, duration

PLACES_MOST = 200  # of all hosts that train several jobs at once, in one schedule: of many hosts each has fewer
AT_ONCE = 400  # kinds × slots; of more a schedule is made in pieces, between calls …
PIECE = 5_000  # … of so many times compared, half a millisecond's
_FACT = 60  # what one prediction costs, in these units
_HOSTS_AT_ONCE = 100  # of which a kind's durations are predicted in one step
_ASKED = 4  # an ask makes a piece this much smaller
_PAUSE = 20.0  # between two makings, in units of the time that one takes …
_PAUSE_IDLE = 2.0  # … and while a host would be left without a job


@dataclass
class Making:
    """A schedule that is being made."""

    number: int
    steps: Steps[None]
    cost_s: float = 0.0


class Ahead:
    """Keeps the schedule in step with the queue."""

    def __init__(self, db: Database, clock: Clock, classes: Classes, events: Events) -> None:
        self._db, self._clock = db, clock
        self._classes, self._events = classes, events
        self.kinds = Kinds(db, classes, Learned(db))  # the service puts one here that knows more of data sets and hosts
        self.declines = Declines(db, clock)
        self._at_once = AtOnce()
        self.rolling = Rolling(self._promised())
        self.at_once, self.piece = AT_ONCE, PIECE
        self.stopwatch: Callable[[], float] = clock.monotonic  # by which makings are measured, in seconds
        self._made_for: tuple[int, tuple[set[str], set[str]]] | None = None  # moves; hosts, those with CUDA
        self._made_at = self._cost_s = 0.0
        self._making: Making | None = None
        self._was_large = False
        self._makings = self._edits = 0
        self._awaited: dict[str, int] = {}  # host → the making that it waits for

    def current(self, host: Host, fleet: Fleet, policy: Policy, *, or_idle: bool = False) -> Rolling:
        """Return the schedule for the ask of ``host``, made anew if it is due.

        Hosts in or out count at once, or of very many soon; all else when a making costs little beside the time since
        the last. ``or_idle``: the host would get nothing by the last one. While a new one is being made
        (:meth:`go_on`) the last one is in force, without hosts that are out.
        """
        self.renew((host, *fleet.alive), policy, or_idle=or_idle)
        return self.rolling

    def renew(self, hosts: Sequence[Host], policy: Policy, *, or_idle: bool = True) -> None:
        """Make the schedule for these hosts anew if it is due, or begin to: see :meth:`current`."""
        now, stamp = self._clock.monotonic(), self._moves()
        if self._making is not None:
            self.go_on(self.piece // _ASKED)
        alive = {each.name for each in hosts}
        self.rolling.only(alive)
        if self._making is not None:
            return
        names = (alive, {each.name for each in hosts if each.cuda})
        pause_s = self._cost_s * (_PAUSE_IDLE if or_idle else _PAUSE)
        if self._made_for is None or self._made_for[1] != names:
            pause_s = self._cost_s * _PAUSE_IDLE if self._was_large else 0.0
        elif self._made_for[0] == stamp and now - self._made_at < policy.reschedule_s:
            return
        if now - self._made_at >= pause_s:
            self._made_for, self._made_at = (stamp, names), now
            self._makings += 1
            self._making = Making(self._makings, self._steps(hosts, policy, now))
            self.go_on()

    def go_on(self, piece: int | None = None) -> bool:
        """Make a piece of the schedule that is being made; returns whether there is more to do."""
        piece = self.piece if piece is None else piece
        making, begun, done = self._making, self.stopwatch(), 0
        if making is None:
            return False
        try:
            while done <= piece:
                done += next(making.steps)
        except StopIteration:
            self._making, self._cost_s = None, making.cost_s + self.stopwatch() - begun
            return False
        except BaseException:
            self._making, self._made_for = None, None
            self._awaited.clear()
            raise
        making.cost_s += self.stopwatch() - begun
        return True

    @property
    def being_made(self) -> bool:
        """Return True while a schedule is being made."""
        return self._making is not None

    @property
    def is_up_to_date(self) -> bool:
        """Return True when the schedule in force knows of all moves of jobs but the last."""
        return self._making is None and self._made_for is not None and self._moves() - self._made_for[0] <= 1

    def edited(self) -> None:
        """Note a change that no move of a job tells of, as a plan that was taken over: it dates the schedule."""
        self._edits += 1

    def _moves(self) -> int:
        return sum(self._events.fired.values()) + self._edits

    @property
    def is_awaited(self) -> bool:
        """Return True when a host waits for a schedule."""
        return bool(self._awaited)

    def awaits(self, host: str) -> bool:
        """Return True when a host for which the schedule has nothing waits for the one being made, or, as it is new,
        for the next: for one, and not for that after it as well."""
        if self._making is not None:
            number = self._making.number
        elif self._was_large and not self.rolling.knows(host):
            number = self._makings + 1
        else:
            return False
        return self._awaited.setdefault(host, number) == number

    def answered(self, host: str) -> None:
        """Note that a host was given another answer than to wait for a schedule."""
        self._awaited.pop(host, None)

    def _steps(self, hosts: Sequence[Host], policy: Policy, now: float) -> Steps[None]:
        """Make the schedule of what is there now. Where nothing waits, who is there does not matter."""
        waiting: list[Waiting] = []
        self.kinds.renew()
        for each in self.kinds.waiting():
            waiting.append(each)
            self.kinds.work(each.job_class)  # a part of look() below, in pieces
            if len(waiting) * len(hosts) > self.at_once:
                yield 5 * _FACT + each.count // 2
        waiting.sort(key=lambda each: (-each.priority, each.since, each.job_class.class_id))
        # A remembered promise may be of a commit that was lost; the rows tell.
        self.rolling.promises = {**self._promised(), **self.rolling.promises}
        self.rolling.keep({each.key for each in waiting})
        self.declines.end_but(self.rolling.promises.keys())
        if not waiting:
            self.rolling.renew((), (), now)
            self._was_large = False
            return
        machines = {host.name: Machine.of(host) for host in hosts}
        live = [each for each in self.kinds.live() if each.host in machines]
        self.kinds.look((each.job_class for each in waiting), ((each, machines[each.host]) for each in live))
        trains = Counter(each.host for each in live)
        most = max(2, PLACES_MOST // max(1, len(hosts)))
        slots_there = sum(min(max(trains[host.name], min(most_at_once(host), most)), BUSY_MOST) for host in hosts)
        in_pieces = self._was_large = len(waiting) * slots_there > self.at_once
        busy: dict[str, list[Busy]] = {}
        for under_way in live:
            ends = self.kinds.left(under_way, machines[under_way.host])
            busy.setdefault(under_way.host, []).append(Busy(*ends, under_way.booked.gpu is not None))
            if in_pieces:
                yield _FACT
        fleet = Fleet(alive=tuple(hosts), known=tuple(hosts))
        at_best = [host.at_best() if host.name in busy else host for host in hosts]
        wall = self._clock.now()
        kinds = []
        for each in waiting:
            told: dict[str, Prediction] = {}
            at_once = self._at_once.of(self.kinds.needs(each.job_class), at_best)
            for n in range(0, len(at_best), _HOSTS_AT_ONCE):
                some = at_best[n : n + _HOSTS_AT_ONCE]
                may = {host.name: machines[host.name] for host in some if _may_take(each, host, fleet, policy, wall)}
                told |= self.kinds.predictions(each.job_class, may)
                if in_pieces:
                    yield len(some) * _FACT
            kinds.append(kind(each.job_class, each.priority, each.count, told, at_once))
        slots = [slot for slot, _ in places_of(hosts, busy, kinds, most)]
        steps = self.rolling.renewing(kinds, slots, now)
        if in_pieces:
            yield from steps
        else:
            to_the_end(steps)

    def told(self, kind: str, host: str) -> tuple[float | None, str] | None:
        """Tell what the schedule has for this host of a kind, and how long it waits at most; None: nothing.

        To be called from any thread: it reads what is in force, and makes nothing anew.
        """
        now, wall = self._clock.monotonic(), self._clock.now()
        made, made_at = self.rolling.made, self.rolling.made_at
        promised = self.rolling.promises.get((host, kind))
        if made is None or kind not in made.kinds:
            return None
        begins = {
            slot.host: made_at + share.begin_s - now
            for slot, shares in reversed([*zip(made.slots, made.shares, strict=True)])
            for share in reversed(shares)
            if share.kind == kind
        }
        if host in begins and begins[host] <= 0:
            return None
        if host in begins:
            return None, f"such jobs are scheduled here from {clock_time(wall + begins[host], wall)} on"
        if not begins:
            return None
        by = min(begins, key=lambda each: begins[each])
        from_when = clock_time(wall + max(0.0, begins[by]), wall)
        sooner = f"such jobs are scheduled for {by} from {from_when} on, which has them done sooner"
        if promised is None:
            return None, sooner
        left_s = max(0.0, promised.open_at - now)
        return left_s, f"{sooner}; free for this host in {duration(left_s)} at the latest"

    def waits_no_more(self, host: str) -> None:
        """Forget what a host was promised: it got a job."""
        self.rolling.waits_no_more(host)
        self.declines.end(host)

    def _promised(self) -> dict[tuple[str, str], Promise]:
        """Return what was promised, also before this process."""
        now, wall = self._clock.monotonic(), self._clock.now()
        return {key: Promise(by, now + open_at - wall) for key, (by, open_at) in self.declines.open().items()}


def _may_take(of: Waiting, host: Host, fleet: Fleet, policy: Policy, now: float) -> bool:
    """Return True when the host may take such a job: it fits, and prefer_cuda does not let others go first."""
    needs = of.job_class.needs
    if rules.fits(needs, host) is not None:
        return False
    return not needs.prefer_cuda or of.since + rules.hold(needs, host, fleet, policy).seconds <= now
