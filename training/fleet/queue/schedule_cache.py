"""The schedule, kept up to date with the queue: pending jobs, live attempts and their ends, and predicted durations.

If a separate thread computes schedules (:meth:`Scheduler.make_beside`), a claim uses the schedule in force, and no call
waits long for that thread. Without such a thread, a claim computes the schedule that is due.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from training.fleet.database.writer import Database
from training.fleet.queue.classes import RequirementClasses
from training.fleet.queue.durations import Learned
from training.fleet.queue.kinds import Kinds, PendingKind, Places, at_once, kind, places_of
from training.fleet.queue.state import QueueState
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.job import TRANSITIONS, Host, JobStatus, Needs
from training.fleet.scheduling.predictions import Prediction
from training.fleet.scheduling.schedule import MANY_TIMES, Schedule, Slot, Take, schedule
from training.fleet.scheduling.schedule_state import Rolling
from training.printable import clock_time, duration

_PAUSE = 20.0  # after a computation, in units of the time that it took, if no job has come
_LATE_S = 30.0  # for which a host waits for the thread that makes schedules
_AGAIN_MOST = 50  # waiting hosts for which it is looked if they may take a job that was meant for another
_TO_PENDING = tuple(row.name for row in TRANSITIONS.values() if row.target is JobStatus.PENDING)


class Situation(NamedTuple):
    """The facts from which a schedule is computed: hosts, policy, time, the earlier schedule, hosts' waits, and the
    counts of moves until now."""

    hosts: tuple[Host, ...]
    policy: rules.Policy
    begun: float  # by the clock that does not step
    moves: tuple[int, int]
    before: Schedule | None
    awaited: dict[str, float]


class MadeSchedule(NamedTuple):
    """A computed schedule, and the seconds that its computation took."""

    schedule: Schedule
    cost_s: float


class Scheduler:
    """Keeps the schedule in force, and decides when a new one is due. Only the writer's thread may call its methods,
    except :meth:`make`, :meth:`is_due` and :meth:`told`."""

    def __init__(self, queue: QueueState) -> None:
        self._clock, self._events = queue.clock, queue.events
        # The service puts one here that knows more of data sets and hosts.
        self.kinds = Kinds(queue.db, queue.classes, Learned(queue.db))
        self.rolling = Rolling()
        self.stopwatch: Callable[[], float] = queue.clock.monotonic  # by which computations are measured, in seconds
        self._is_beside = False
        self._situation: Situation | None = None  # the last that began
        self._made: Situation | None = None  # the one in force was made so
        self._names: tuple[set[str], set[str]] = set(), set()  # hosts, and those with CUDA, of the last that began
        self._cost_s = 0.0
        self._begun = self._computed = self._edits = 0  # schedules; the number of the one in force
        self._others = False  # other hosts are there by now
        self._wanted = False  # a host has nothing in the schedule, though a job waits that it could do
        # host → how many schedules had begun before it began to wait for one, and when
        self._awaited: dict[str, tuple[int, float]] = {}

    # ── computing ──────────────────────────────────────────────────────────────────────────────

    def make_beside(self, reader: Database, learned: Learned) -> None:
        """Let a separate thread compute schedules by :meth:`make`; ``reader`` is the connection that it reads by."""
        self.kinds, self._is_beside = Kinds(reader, RequirementClasses(reader), learned), True

    def is_due(self, policy: rules.Policy) -> bool:
        """Return True if a new schedule should be computed, because of changes or of the present one's age. Any thread
        may call this."""
        situation, (pending, moves) = self._situation, self._moves()
        if situation is None or self._wanted or situation.moves[0] != pending:
            return True
        age_s, same = self._clock.monotonic() - situation.begun, situation.moves[1] == moves and not self._others
        return age_s >= (policy.reschedule_s if same else self._cost_s * _PAUSE)

    def begin(self, hosts: Sequence[Host], policy: rules.Policy) -> Situation:
        """Begin a new schedule for these hosts: return the facts from which :meth:`make` computes it."""
        now, rolling = self._clock.monotonic(), self.rolling
        rolling.begin()
        self._begun += 1
        self._wanted, self._others, self._names = False, False, _names(hosts)
        self._situation = Situation(tuple(hosts), policy, now, self._moves(), rolling.made, rolling.awaited())
        return self._situation

    def make(self, asked: Situation) -> MadeSchedule:
        """Compute a schedule for the jobs that are in the queue now. Only one thread at a time may call this."""
        begun, hosts = self.stopwatch(), asked.hosts
        self.kinds.renew()
        wall = self._clock.now()
        waiting = sorted(self.kinds.waiting(wall), key=lambda each: (-each.priority, each.since, each.key))
        if not waiting:  # then it does not matter who is there
            return MadeSchedule(schedule((), ()), self.stopwatch() - begun)
        names = {host.name for host in hosts}
        live = [each for each in self.kinds.live() if each.host in names]
        self.kinds.look((of.job_class for of in waiting), live)
        busy: dict[str, list[Slot]] = {}
        for each in live:
            ends_s, gpu = self.kinds.left(each), each.booked.gpu is not None
            slot = Slot(each.host, *ends_s, gpu=gpu, job=each.job_id, held_s=each.held_s)
            busy.setdefault(each.host, []).append(slot)
        at_best = [host.at_best() if host.name in busy else host for host in hosts]
        fitting: dict[Needs, tuple[list[Host], Places]] = {}
        kinds = []
        for of in waiting:
            needs = self.kinds.needs(of.job_class)
            if needs not in fitting:
                able = [host for host in at_best if rules.fits(of.job_class.needs, host) is None]
                fitting[needs] = able, at_once(needs, able)
            able, places = fitting[needs]
            told = self._predicted(of, able, asked)
            if told is not None:
                kinds.append(kind(of.job_class, of.priority, of.count, told, places, of.gate, unheard=of.unheard))
        slots = places_of(hosts, busy, kinds)
        made = schedule(kinds, slots, asked.before, asked.awaited)
        return MadeSchedule(made, self.stopwatch() - begun)

    def _predicted(self, of: PendingKind, hosts: Sequence[Host], asked: Situation) -> dict[str, Prediction] | None:
        """Map each host that may take a job of this kind to the job's predicted duration there.

        The host that these jobs avoid is left out if another host fits, or must try one of them first. Return None if
        the jobs should rather return to the avoided host, because every other host takes many times as long.
        """
        if of.job_class.needs.prefer_cuda:  # others may go first
            hosts = [host for host in hosts if of.since + _held_s(of, host, asked) <= self._clock.now()]
        told = self.kinds.predictions(of.job_class, (host.name for host in hosts))
        if of.gate in told and (of.unheard or len(told) > 1):
            again_s = told.pop(of.gate).mean + of.gate_s
            if not of.unheard and min(each.mean for each in told.values()) > MANY_TIMES * again_s:
                return None
        return told

    def follow(self, situation: Situation, made: MadeSchedule) -> None:
        """Put a computed schedule into force."""
        self.rolling.follow(made.schedule, situation.begun, self.kinds.count)
        self._cost_s, self._made, self._computed = made.cost_s if self._is_beside else 0.0, situation, self._begun

    def renew(self, hosts: Sequence[Host], policy: rules.Policy) -> None:
        """Compute the schedule for these hosts now, if it is due and no separate thread computes it."""
        self._others = self._names != _names(hosts)
        if not self._is_beside and self.is_due(policy):
            situation = self.begin(hosts, policy)
            self.follow(situation, self.make(situation))

    # ── asks ────────────────────────────────────────────────────────────────────────────────

    def current(self, host: Host, others: Sequence[Host], policy: rules.Policy) -> Rolling:
        """Return the schedule in force for a claim of ``host``, without the slots of hosts other than ``host`` and
        ``others``. Without a separate thread, a schedule that is due is computed first."""
        hosts = (host, *others)
        self.rolling.only({each.name for each in hosts})
        self.renew(hosts, policy)
        return self.rolling

    def awaits(self, host: str) -> bool:
        """Record that a host could train a pending job but has none in the schedule in force, so that a new schedule
        becomes due. Return True if the host must wait for the new schedule.

        The host waits for one schedule only, whose computation begins after the host asked, and at most ``_LATE_S``
        seconds. Without a separate thread no host waits.
        """
        if not self._is_beside:
            return False
        self._wanted, now = True, self._clock.monotonic()
        begun, since = self._awaited.setdefault(host, (self._begun, now))
        return self._computed <= begun and now - since < _LATE_S

    def answered(self, host: str) -> None:
        """Record that a host got a final answer, so that it no longer waits for a schedule."""
        self._awaited.pop(host, None)

    def called(self, hosts: Collection[str]) -> list[str]:
        """Return those of these waiting hosts that have a job in the schedule; if ``hosts`` are few, also those that
        would get another host's job."""
        made, at_s = self.rolling.made, self._clock.monotonic() - self.rolling.made_at
        if made is None:
            return []
        given = {slot.host for slot, shares in zip(made.slots, made.shares, strict=True) if shares}
        few = len(hosts) <= _AGAIN_MOST
        return [host for host in hosts if host in given or (few and isinstance(made.decide(host, at_s), Take))]

    def edited(self) -> None:
        """Record a change other than a job's move, such as a new plan, so that a new schedule becomes due."""
        self._edits += 1

    def _moves(self) -> tuple[int, int]:
        """Count the moves and edits that may have made a job pending, and all other moves."""
        fired = self._events.fired
        pending = sum(map(fired.__getitem__, _TO_PENDING))
        return pending + self._edits, sum([*fired.values()]) - pending

    def told(self, kind: str, host: str) -> tuple[float | None, str] | None:
        """Return the seconds that this host must wait for a job of a kind (None: unknown), and a sentence about that.
        Return None if the schedule does not make the host wait.

        Any thread may call this: it reads the schedule in force and computes none.
        """
        now, wall = self._clock.monotonic(), self._clock.now()
        made, made_at, waits = self.rolling.made, self.rolling.made_at, self.rolling.waits.get(host)
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
        if waits is None or waits.kind != kind:
            return None, sooner
        left_s = max(0.0, waits.opens - now)
        return left_s, f"{sooner}; free for this host in {duration(left_s)} at the latest"


def _names(hosts: Sequence[Host]) -> tuple[set[str], set[str]]:
    return {host.name for host in hosts}, {host.name for host in hosts if host.cuda}


def _held_s(of: PendingKind, host: Host, asked: Situation) -> float:
    fleet = rules.Fleet(alive=asked.hosts, known=asked.hosts)
    return rules.hold(of.job_class.needs, host, fleet, asked.policy).seconds
