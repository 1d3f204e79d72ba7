"""The facts that the schedule is made from: what waits, what runs and until when, and how long each host would take."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from training.clock import Clock
from training.fleet.database.writer import Database
from training.fleet.queue.classes import Classes, JobClass
from training.fleet.queue.declines import Declines
from training.fleet.queue.durations import Learned
from training.fleet.queue.events import Events
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.durations import Machine, Prediction, Speeds, Workload, remaining
from training.fleet.scheduling.job import Host, Needs
from training.fleet.scheduling.policy import Fleet, Policy
from training.fleet.scheduling.rolling import Promise, Rolling
from training.fleet.scheduling.schedule import Kind, Slot
from training.printable import clock_time, duration

LIVE_MOST = 5_000  # attempts that the schedule knows of …
BUSY_MOST = 16  # … and of one host: those that end first
_PAUSE = 20.0  # between two makings, in units of the time that one takes …
_PAUSE_IDLE = 2.0  # … and while a host would be left without a job


@dataclass(frozen=True, slots=True)
class Waiting:
    """Pending jobs of one class and priority: a kind of the schedule."""

    job_class: JobClass
    priority: int
    count: int
    since: float  # when the oldest became claimable

    @property
    def key(self) -> str:
        return kind_of(self.job_class.class_id, self.priority)


def kind_of(class_id: int, priority: int) -> str:
    """Return the name of the kind of jobs with this class and priority."""
    return f"{class_id}:{priority}"


def place_of(key: str) -> tuple[int, int]:
    """Return class and priority of a kind."""
    class_id, priority = key.split(":")
    return int(class_id), int(priority)


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a schedule is made from."""

    kinds: Sequence[Kind]
    slots: Sequence[Slot]


class Ahead:
    """Keeps the schedule in step with the queue."""

    def __init__(self, db: Database, clock: Clock, classes: Classes, events: Events) -> None:
        self._db, self._clock = db, clock
        self._classes, self._events = classes, events
        self.learned = Learned(db)  # the service puts one here that knows data sets and calibrations, too
        self.declines = Declines(db, clock)
        self.rolling = Rolling(self._promised())
        self._made_for: tuple[int, frozenset[tuple[str, bool]]] | None = None
        self._made_at = self._cost_s = 0.0
        self._told: dict[int, dict[Machine, Prediction]] = {}  # of each class: predictions …
        self._works: dict[int, Workload] = {}
        self._speeds = Speeds()
        self._told_of = 0, 0  # … by this version of what is learned

    def current(self, host: Host, fleet: Fleet, policy: Policy, *, or_idle: bool = False) -> Rolling:
        """Return the schedule for the ask of ``host``, made anew if it is due.

        Hosts in or out count at once; all else when a making costs little beside the time since the last. ``or_idle``:
        the host would get nothing by the last one.
        """
        hosts = (host, *fleet.alive)
        now, stamp = self._clock.monotonic(), sum(self._events.fired.values())
        names = frozenset((each.name, each.cuda) for each in hosts)
        pause_s = self._cost_s * (_PAUSE_IDLE if or_idle else _PAUSE)
        if self._made_for is None or self._made_for[1] != names:
            pause_s = 0.0
        elif self._made_for[0] == stamp and now - self._made_at < policy.reschedule_s:
            return self.rolling
        if now - self._made_at >= pause_s:
            facts = self.facts(hosts, policy)
            # A remembered promise may be of a commit that was lost; the rows tell.
            self.rolling.promises = {**self._promised(), **self.rolling.promises}
            self.rolling.renew(facts.kinds, facts.slots, now)
            self.declines.end_but(self.rolling.promises.keys())
            self._made_for, self._made_at = (stamp, names), now
            self._cost_s = self._clock.monotonic() - now
        return self.rolling

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

    def facts(self, hosts: Sequence[Host], policy: Policy) -> Facts:
        """Read what waits and what runs; ``hosts`` are those that count."""
        busy = self._busy({host.name: host for host in hosts})
        fleet = Fleet(alive=tuple(hosts), known=tuple(hosts))
        at_best = [host.at_best() if busy.get(host.name) else host for host in hosts]
        now = self._clock.now()
        kinds = [self._kind(each, at_best, fleet, policy, now) for each in self.waiting()]
        return Facts(kinds, [slot for host in hosts for slot in _slots(host, busy.get(host.name, ()))])

    def waiting(self) -> list[Waiting]:
        """Return the kinds of pending jobs that no host avoids, the oldest of the highest priority first."""
        rows = [
            Waiting(self._classes.known(row["class_id"], row["needs"]), row["priority"], row["n"], row["since"])
            for row in self._db.all("waiting_kinds")
        ]
        return sorted(rows, key=lambda each: (-each.priority, each.since, each.job_class.class_id))

    def predict(self, of: JobClass, host: Host) -> Prediction:
        """Say how long a job of this class takes there."""
        of_class = self._told.setdefault(of.class_id, {})
        on = Machine.of(host)
        if on not in of_class:
            work = self._works.get(of.class_id)
            if work is None:
                work = self._works[of.class_id] = self.learned.workload(of.work)
            of_class[on] = self._speeds.predict(work, on)
        return of_class[on]

    def _busy(self, hosts: Mapping[str, Host]) -> dict[str, list[tuple[float, float]]]:
        """For each host the expected ends of what it trains, in seconds from now, and when each is nearly sure."""
        if (known := self.learned.version()) != self._told_of:
            self._told, self._works, self._told_of = {}, {}, known
            self._speeds = self.learned.speeds()
        busy: dict[str, list[tuple[float, float]]] = {}
        for row in self._db.all("attempts_scheduled", most=LIVE_MOST):
            host = hosts.get(row["host"])
            if host is None:
                continue
            ends = 0.0, 0.0  # it trains no more, and delivers
            if row["heard_s"] is not None:
                told = self.predict(self._classes.known(row["class_id"], row["needs"]), host)
                progress = json.loads(row["progress"]) if row["progress"] else None
                ends = remaining(told, row["heard_s"], progress)
            busy.setdefault(host.name, []).append(ends)
        return {name: sorted(ends)[:BUSY_MOST] for name, ends in busy.items()}

    def _kind(self, of: Waiting, hosts: Iterable[Host], fleet: Fleet, policy: Policy, now: float) -> Kind:
        needs = of.job_class.needs
        told = {
            host.name: self.predict(of.job_class, host)
            for host in hosts
            if rules.fits(needs, host) is None and not _goes_later(needs, of, host, fleet, policy, now)
        }
        seconds = {name: each.mean for name, each in told.items()}
        spread = sorted(each.spread for each in told.values())[(len(told) - 1) // 2] if told else 0.0
        return Kind(of.key, of.count, seconds, of.priority, spread)


def _goes_later(needs: Needs, of: Waiting, host: Host, fleet: Fleet, policy: Policy, now: float) -> bool:
    """Return True while the host may take none of them, because prefer_cuda lets others go first."""
    if not needs.prefer_cuda:
        return False
    return of.since + rules.hold(needs, host, replace(fleet, waiting=()), policy).seconds > now


def _slots(host: Host, busy: Sequence[tuple[float, float]]) -> list[Slot]:
    """Return the places of a host: one for each job that it trains, or one that is free."""
    return [Slot(host.name, ready, late) for ready, late in busy] or [Slot(host.name)]
