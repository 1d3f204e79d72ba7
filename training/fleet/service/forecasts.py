"""Forecasts: the facts of the queue and the hosts, or of others that somebody asks about, put to the pure forecast.

Computed here and not where the command runs: page, command and API then say the same, and what was learned of
durations need not travel. It takes a second at most, on a thread of its own; for the question that nobody varies the
answer is kept for a moment.
"""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from training.fleet.database.writer import Database
from training.fleet.queue.ahead import PLACES_MOST
from training.fleet.queue.classes import Classes, Drafts, JobClass
from training.fleet.queue.declines import Declines
from training.fleet.queue.foresee import Foreseen, name_of
from training.fleet.queue.kinds import AtOnce, Kinds, Live, kind, kind_of, places_of
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.durations import Machine
from training.fleet.scheduling.forecast import Forecast, Question, Work, forecast
from training.fleet.scheduling.job import Host, JobStatus, Needs
from training.fleet.scheduling.orders import PAUSE_MAX_S, Out
from training.fleet.scheduling.resources import Booking
from training.fleet.scheduling.schedule import Busy, Slot
from training.fleet.service.hosts import HostRegistry, KnownHost, Plan
from training.fleet.service.out import taken_out
from training.fleet.service.preview import Previews
from training.fleet.service.service import Service
from training.fleet.service.views import outlook
from training.fleet.wire.forecasts import (
    FORETOLD_MAX,
    DeclineView,
    ForecastReply,
    ForecastRequest,
    ForetoldHost,
    ForetoldJob,
    ImaginedHost,
)
from training.fleet.wire.messages import ProblemType, Refusal
from training.printable import duration

ASKED_MOST = 20_000  # jobs of one forecast
KEPT_S = 30.0  # for which an answer is good, a third of that once something happened, …
KEPT_PER_COST = 150.0  # … and longer for each second that it took: the page costs 0.7 % of a core at most
EDITED_PER_COST = 10.0  # the same once an operator changed the queue, who looks at what that did
NOWHERE_MAX = 1_000  # jobs named with their reason
# An imagined host of which nothing is said has enough of all but GPUs.
_PLAIN: Mapping[str, Any] = {"cpu_cores": 100_000, "ram_total_gib": 1e6, "ram_available_gib": 1e6}


@dataclass(frozen=True, slots=True)
class _Asked:
    """A job that waits."""

    job_id: str
    name: str
    job_class: JobClass
    priority: int


@dataclass(frozen=True, slots=True)
class _Trains:
    """An attempt under way, and how long it goes on."""

    job: _Asked
    host: str
    granted_at: float
    left_s: float
    late_s: float
    booked: Booking

    @property
    def busy(self) -> Busy:
        return Busy(self.left_s, self.late_s, self.booked.gpu is not None)


@dataclass(frozen=True, slots=True)
class _Kept:
    """An answer, and what it was made of."""

    head: int  # the newest event
    plan: Plan
    begun: float  # by the clock that does not step
    cost_s: float
    answer: ForecastReply


@dataclass
class Forecasts:
    """Answers to "who trains what when?". ``reader`` is a connection of its own, beside the writer's."""

    service: Service
    reader: Database
    previews: Previews | None = None
    _kept: _Kept | None = field(default=None, init=False)
    _one: Lock = field(default_factory=Lock, init=False)  # at a time: what was learned is one thread's

    def __post_init__(self) -> None:
        classes = Classes(self.reader)
        self._classes, self._kinds = classes, Kinds(self.reader, classes, self.service.learned(self.reader))

    def now(self) -> ForecastReply:
        """Foretell the queue as it is; an answer of a moment ago may do, the older the more it cost."""
        clock = self.service.queue.clock
        head, plan, begun = self._head(), self.service.plan, clock.monotonic()
        if self._kept is not None and begun - self._kept.begun < self._good_for(self._kept, head, plan):
            return self._kept.answer
        answer = self.answer(ForecastRequest())
        self._kept = _Kept(head, plan, begun, clock.monotonic() - begun, answer)
        return answer

    def _good_for(self, kept: _Kept, head: int, plan: Plan) -> float:
        """Return the seconds for which an answer will do, by what happened since."""
        if kept.plan is not plan or (kept.head != head and self.reader.one("edited_since", after=kept.head)):
            return EDITED_PER_COST * kept.cost_s
        return (KEPT_S if kept.head == head else KEPT_S / 3) + KEPT_PER_COST * kept.cost_s

    def answer(self, request: ForecastRequest) -> ForecastReply:
        """Answer a question. Refusal: a host in it is unknown, or its plan has mistakes."""
        with self._one:
            answer = self._answered(request)
        gc.collect(1)  # plays hold themselves: let what comes next have their memory
        return answer

    def _answered(self, request: ForecastRequest) -> ForecastReply:
        registry, (asked, held) = self.service.host_registry, self._waiting()
        if request.plan is not None:
            if self.previews is None:
                raise Refusal(ProblemType.BAD_MANIFEST, "this receiver was started without a manifest")
            registry, planned = self.previews.foreseen(request.plan)
            ids = {each.spec["job_id"] for each in planned}
            asked = [each for each in asked if each.job_id not in ids]
            drafts = Drafts(self._classes)
            for foreseen in planned:
                if foreseen.status in (None, JobStatus.PENDING):
                    if foreseen.job is not None and foreseen.job.held:
                        continue
                    asked.append(_planned(foreseen, drafts))
        if len(asked) > ASKED_MOST:
            asked.sort(key=lambda each: -each.priority)
        return _Answer(
            request,
            Facts(
                registry=registry,
                asked=asked[:ASKED_MOST],
                live=self._live(asked[:ASKED_MOST], registry),
                kinds=self._kinds,
                notes={each.name: self._note(each) for each in registry.known.values()},
                now=self.service.queue.clock.now(),
                out=taken_out(self.reader, registry),
                promised=Declines(self.reader, self.service.queue.clock).open(),
            ),
            held=held,
            left_out=len(asked[ASKED_MOST:]),
            learned_from=self._kinds.learned.attempts,
        ).reply()

    # ── facts ───────────────────────────────────────────────────────────────────────────────

    def _head(self) -> int:
        row = self.reader.one("newest_event")
        return 0 if row is None else int(row["seq"])

    def _note(self, known: KnownHost) -> str | None:
        """Say why a host takes no part, if so."""
        out = taken_out(self.reader, self.service.host_registry).get(known.name)
        if out is not None:
            return out.sentence()
        if not self.service.alive(known):
            return f"not seen for {duration(self.service.queue.clock.now() - known.last_seen)}"
        return self.service.copied(known) or self.service.refused(known)

    def _waiting(self) -> tuple[list[_Asked], int]:
        """Read the jobs that wait, in the order in which they are granted, and count the held ones."""
        known = self._classes.known
        asked = [
            _Asked(row["job_id"], row["name"], known(row["class_id"], row["needs"]), row["priority"])
            for row in self.reader.all("jobs_waiting", most=ASKED_MOST + 1)
        ]
        held = self.reader.one("held_pending")
        return asked, 0 if held is None else int(held["n"])

    def _live(self, asked: Sequence[_Asked], registry: HostRegistry) -> list[_Trains]:
        live = sorted(self._kinds.live(), key=lambda each: each.granted_at)
        known = {name: Machine.of(registry.host(each)) for name, each in registry.known.items()}
        machines = [known.get(each.host) or Machine(each.host) for each in live]
        classes = {each.job_class.class_id: each.job_class for each in asked}
        self._kinds.look(classes.values(), zip(live, machines, strict=True))
        return [
            _Trains(
                _Asked(each.job_id, each.name, each.job_class, each.priority),
                each.host,
                each.granted_at,
                *self._left(each, on, registry),
                each.booked,
            )
            for each, on in zip(live, machines, strict=True)
        ]

    def _left(self, live: Live, on: Machine, registry: HostRegistry) -> tuple[float, float]:
        """Return the seconds until an attempt ends, and until that is nearly sure: a pause may last until it is handed
        back, and end at once."""
        left_s, late_s = self._kinds.left(live, on)
        most_s = (registry.plan.declared(live.host) or {}).get("pause_max_s", PAUSE_MAX_S) if live.paused else 0.0
        return left_s + most_s / 2, late_s + most_s


def _planned(each: Foreseen, drafts: Drafts) -> _Asked:
    spec = dict(each.spec)
    needs = Needs.of(spec) if each.job is None else replace(each.job, spec=spec).needs
    return _Asked(spec["job_id"], name_of(spec), drafts.of(needs, spec), int(spec.get("priority") or 0))


# ── the answer ──────────────────────────────────────────────────────────────────────────────


_Place = tuple[str, Slot, _Trains | None]  # host, slot, and what it trains


@dataclass(frozen=True, slots=True)
class Facts:
    """All that an answer is made of."""

    registry: HostRegistry
    asked: Sequence[_Asked]
    live: Sequence[_Trains]
    kinds: Kinds
    notes: Mapping[str, str | None]  # of every known host: why it takes no part, or None
    now: float
    out: Mapping[str, Out]
    promised: Mapping[tuple[str, str], tuple[str, float]]  # host and kind → for whom it waits, and until when


@dataclass
class _Answer:
    """One question on its way to the reply."""

    request: ForecastRequest
    facts: Facts
    held: int
    left_out: int
    learned_from: int
    hosts: dict[str, Host] = field(default_factory=dict)  # that take part
    machines: dict[str, Machine] = field(default_factory=dict)  # as fast as these
    notes: dict[str, str] = field(default_factory=dict)  # of those that take none
    _at_once: AtOnce = field(default_factory=AtOnce)

    def reply(self) -> ForecastReply:
        facts = self.facts
        self._choose_hosts()
        gone = {name.lower() for name in self.request.without}
        live = [each for each in facts.live if each.host.lower() not in gone]
        asked = [*(each.job for each in facts.live if each.host.lower() in gone), *facts.asked]
        busy: dict[str, list[_Trains]] = {}
        for each in live:
            busy.setdefault(each.host, []).append(each)
        works = self._works(asked, busy)
        slots = self._places(works, busy)
        training = [None if each is None else each.job.job_id for _, _, each in slots]
        first_come = facts.registry.plan.scheduling is rules.Scheduling.FIRST_COME
        question = Question(works, [slot for _, slot, _ in slots], training, first_come=first_come)
        made = forecast(question, random.Random(0).gauss)
        return self._told(made, asked, slots)

    def _places(self, works: Sequence[Work], busy: Mapping[str, Sequence[_Trains]]) -> list[_Place]:
        """List the places of the hosts that take part, and of those that only end what they train."""
        hosts = [self.hosts.get(name) or Host(name) for name in sorted({*self.hosts, *busy})]
        trains = {name: [each.busy for each in there] for name, there in busy.items()}
        most = max(2, PLACES_MOST // max(1, len(hosts)))
        found = places_of(hosts, trains, (work.kind for work in works), most)
        return [(slot.host, slot, None if n is None else busy[slot.host][n]) for slot, n in found]

    def _choose_hosts(self) -> None:
        registry = self.facts.registry
        known = {name.lower(): name for name in registry.known}
        for name in self.request.without:
            if name.lower() not in known:
                raise Refusal(ProblemType.UNKNOWN_NAME, f"no host is called {name}; `cis490-jobs workers` lists them")
        without = {name.lower() for name in self.request.without}
        for name, each in registry.known.items():
            note = "left out" if name.lower() in without else self.facts.notes.get(name)
            if note is None:
                self.hosts[name] = registry.host(each)
                self.machines[name] = Machine.of(self.hosts[name])
            else:
                self.notes[name] = note
        for name, imagined in self.request.imagined.items():
            if known.get(name.lower()) in self.hosts:
                raise Refusal(ProblemType.BAD_REQUEST, f"host {name} is there already; give the other one another name")
            self._imagine(name, imagined)

    def _imagine(self, name: str, imagined: ImaginedHost) -> None:
        registry = self.facts.registry
        model = None if imagined.like is None else registry.called(imagined.like)
        if imagined.like is not None and model is None:
            raise Refusal(ProblemType.UNKNOWN_NAME, f"no host is called {imagined.like}, that {name} is to be like")
        can = dict(_PLAIN if model is None else model.capability)
        if imagined.cores is not None:
            can["cpu_cores"] = imagined.cores
        if imagined.ram_gib is not None:
            can["ram_available_gib"] = can["ram_total_gib"] = imagined.ram_gib
        if imagined.vram_gib is not None:
            gib = imagined.vram_gib
            can["cuda_available"] = gib > 0
            can["cuda_devices"] = [{"vram_free_gib": gib, "vram_total_gib": gib}] if gib else []
        host = Host.of(name, can, registry.plan.declared(name))
        self.hosts[name] = replace(host, datasets=registry.datasets).at_best()
        self.machines[name] = Machine(name if model is None else model.name, host.cuda)
        self.notes.pop(name, None)

    def _works(self, asked: Sequence[_Asked], busy: Collection[str]) -> list[Work]:
        """Group the jobs into the kinds of the schedule."""
        groups: dict[tuple[int, int], list[_Asked]] = {}
        for each in asked:
            groups.setdefault((each.job_class.class_id, each.priority), []).append(each)
        hosts = {name: host.at_best() if name in busy else host for name, host in self.hosts.items()}
        works = []
        for (_, priority), jobs in groups.items():
            of = jobs[0].job_class
            fits = {name: self.machines[name] for name, host in hosts.items() if rules.fits(of.needs, host) is None}
            told = self.facts.kinds.predictions(of, fits)
            at_once = self._at_once.of(self.facts.kinds.needs(of), hosts.values())
            made = kind(of, priority, len(jobs), told, at_once)
            family, names = self.facts.kinds.work(of).family, tuple(each.job_id for each in jobs)
            medians = {name: each.seconds for name, each in told.items()}
            works.append(Work(made, names, family, self.facts.kinds.doubts(of, fits), medians))
        return works

    def _told(self, made: Forecast, asked: Sequence[_Asked], slots: Sequence[_Place]) -> ForecastReply:
        now, by_id = self.facts.now, {each.job_id: each for each in asked}
        begun = {each.job.job_id: each for _, _, each in slots if each is not None}
        jobs, done, count = list[ForetoldJob](), dict[str, float](), Counter[str]()
        firsts = {host: n for n, (host, _, _) in reversed([*enumerate(slots)])}
        for stay in made.stays:
            live = begun.get(stay.job) if stay.begin_s == 0.0 else None
            count[stay.host] += 1
            done[stay.host] = max(done.get(stay.host, 0.0), now + stay.end_s)
            if len(jobs) < FORETOLD_MAX:
                jobs.append(
                    ForetoldJob(
                        job_id=stay.job,
                        name=by_id[stay.job].name if live is None else live.job.name,
                        host=stay.host,
                        slot=stay.slot - firsts[stay.host],
                        begins_at=now + stay.begin_s if live is None else live.granted_at,
                        ends_at=now + stay.end_s,
                        low_at=now + stay.low_s,
                        high_at=now + stay.high_s,
                        live=live is not None,
                        threads=by_id[stay.job].job_class.needs.threads or None if live is None else live.booked.cores,
                    )
                )
        return ForecastReply(
            now=now,
            done_at=now + made.end_s if made.stays else None,
            done_low_at=now + made.low_s if made.stays else None,
            done_high_at=now + made.high_s if made.stays else None,
            jobs=jobs,
            count=len(made.stays),
            hosts=self._hosts_told(made, by_id, done, count),
            nowhere=self._nowhere(made.nowhere, by_id),
            held=self.held,
            left_out=self.left_out,
            learned_from=self.learned_from,
        )

    def _hosts_told(
        self, made: Forecast, by_id: Mapping[str, _Asked], done: Mapping[str, float], count: Mapping[str, int]
    ) -> list[ForetoldHost]:
        now = self.facts.now
        waits = {each.host: each for each in made.waits}
        told = []
        for name in sorted({*self.hosts, *self.notes, *count}):
            wait = waits.get(name)
            declined = None
            if wait is not None:
                at, said, of = now + wait.at_s, wait.decline, by_id[wait.job]
                open_at = at + said.open_s
                by, until = self.facts.promised.get((name, kind_of(of.job_class.class_id, of.priority)), ("", 0.0))
                if by == said.by:  # it waits for that already: what it was told holds
                    open_at = min(open_at, until)
                declined = DeclineView(
                    name=of.name,
                    at=at,
                    by=said.by,
                    begins_at=at + said.begin_s,
                    ends_at=at + said.end_s,
                    here_until=at + said.here_s,
                    open_at=open_at,
                )
            told.append(
                ForetoldHost(
                    host=name,
                    jobs=count.get(name, 0),
                    done_at=done.get(name),
                    imagined=name in self.request.imagined,
                    declined=declined,
                    note=self.notes.get(name),
                )
            )
        return told

    def _nowhere(self, jobs: Sequence[str], by_id: Mapping[str, _Asked]) -> dict[str, str]:
        """Say of the jobs that no host of the forecast can train why."""
        facts, reasons = self.facts, dict[Needs, str]()
        silent: dict[Host, float | None] = dict.fromkeys(self.hosts.values())
        for name in self.notes:
            if name.lower() not in {each.lower() for each in self.request.without}:
                known = facts.registry.known[name]
                silent[facts.registry.host(known)] = facts.now - known.last_seen
        told = {}
        for each in (by_id[job] for job in jobs[:NOWHERE_MAX]):
            if each.job_class.needs not in reasons:
                look = outlook(each.job_class.needs, silent, facts.out)
                lacks = rules.lacks_data(each.job_class.needs, facts.registry.datasets)
                if facts.registry.known and not silent:
                    lacks = lacks or "every host is left out"
                reasons[each.job_class.needs] = lacks or look.obstacle or look.waits_for or "no host here can train it"
            told[each.name] = reasons[each.job_class.needs]
        return told
