"""Answers to forecast requests: pass the facts about the queue and about real or imagined hosts to the pure forecast.

The receiver computes forecasts, so that page, command and API agree, and learned durations need not be sent. Forecasts
are computed on a thread of their own; :meth:`Forecasts.now` keeps its answer for a while.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import NamedTuple

import msgspec

from training.fleet.database.writer import Database
from training.fleet.queue.classes import Drafts, JobClass, RequirementClasses
from training.fleet.queue.kinds import Kinds, LiveAttempt, at_once, kind, places_of
from training.fleet.queue.plan_diff import name_of
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.forecast import Forecast, Stay, WaitingKind, forecast
from training.fleet.scheduling.job import AT_BEST, Host, Needs
from training.fleet.scheduling.orders import Out
from training.fleet.scheduling.schedule import Slot
from training.fleet.service.hosts import HostRegistry, KnownHost, Plan
from training.fleet.service.obstacles import outlook
from training.fleet.service.preview import Previews
from training.fleet.service.service import Service
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.forecasts import (
    FORETOLD_MAX,
    DeclineView,
    ForecastReply,
    ForecastRequest,
    ForetoldHost,
    ForetoldJob,
    ImaginedHost,
)
from training.fleet.wire.plans import PlanRequest
from training.printable import duration

ASKED_MOST = 20_000  # jobs of one forecast
KEPT_S = 10.0  # for which an answer is good, unless an operator changed the queue …
KEPT_PER_COST = 150.0  # … and longer for each second that it took: the page costs 0.7 % of a core at most
NOWHERE_MAX = 1_000  # jobs named with their reason
_LEFT_OUT = "left out"  # by the question


class _Asked(NamedTuple):
    """A pending job in a forecast."""

    job_id: str
    name: str
    job_class: JobClass
    priority: int
    in_manifest: bool = True
    not_on: str = ""  # the host that gets it only after another one tried it


_Job = _Asked | LiveAttempt


class _CachedForecast(NamedTuple):
    """A forecast's answer, and the facts that show whether it is still current."""

    head: int  # the newest event
    plan: Plan
    until: float  # it is good, by the clock that does not step
    answer: ForecastReply


@dataclass
class Forecasts:
    """The answers to forecast requests: which host trains which job when. ``reader`` is a separate connection, not the
    writer's."""

    service: Service
    reader: Database
    previews: Previews | None = None
    _kept: _CachedForecast | None = field(default=None, init=False)
    _one: Lock = field(default_factory=Lock, init=False)  # at a time: what was learned is one thread's

    def __post_init__(self) -> None:
        classes = RequirementClasses(self.reader)
        self._classes, self._kinds = classes, Kinds(self.reader, classes, self.service.learned(self.reader))

    def now(self) -> ForecastReply:
        """Return the forecast of the queue as it is. An earlier answer is returned again for a while, longer if it took
        longer to compute, unless an operator changed the queue or the plan."""
        clock = self.service.queue.clock
        plan, begun, kept = self.service.plan, clock.monotonic(), self._kept
        if (
            kept is not None
            and kept.plan is plan
            and begun < kept.until
            and self.reader.one("edited_since", after=kept.head) is None
        ):
            return kept.answer
        newest, answer = self.reader.number("newest_event"), self.answer(ForecastRequest())
        until = begun + KEPT_S + KEPT_PER_COST * (clock.monotonic() - begun)
        self._kept = _CachedForecast(newest, plan, until, answer)
        return answer

    def answer(self, request: ForecastRequest) -> ForecastReply:
        """Answer a forecast request. Raise Refusal for an unknown host, an imagined host with the name of one that
        takes part, or a plan that cannot be read."""
        with self._one:
            asked, held = self._waiting()
            registry = self.service.host_registry
            if request.plan is not None:
                registry, asked = self._planned(request.plan, asked)
            if len(asked) > ASKED_MOST:
                asked.sort(key=lambda each: -each.priority)
            notes = {each.name: note for each in registry.known.values() if (note := self._note(each)) is not None}
            out, now = self.service.taken_out(self.reader), self.service.queue.clock.now()
            answer = _ForecastAnswer(request, registry, self._kinds, notes, out, now).reply(
                asked[:ASKED_MOST], self._trained(asked, registry)
            )
            left_out, learned_from = len(asked[ASKED_MOST:]), self._kinds.learned.attempts
            return msgspec.structs.replace(answer, held=held, left_out=left_out, learned_from=learned_from)

    # ── facts ───────────────────────────────────────────────────────────────────────────────

    def _note(self, known: KnownHost) -> str | None:
        """Return why a host takes no part in the forecast; None if it takes part."""
        out = self.service.taken_out(self.reader).get(known.name)
        if out is not None:
            return out.sentence()
        if (silent_s := self.service.silent_s(known)) is not None:
            return f"not seen for {duration(silent_s)}"
        return self.service.copied(known) or self.service.refused(known)

    def _waiting(self) -> tuple[list[_Asked], int]:
        """Return the pending jobs that are not held, in the order in which they are granted, at most one more than a
        forecast takes; and the number of pending jobs that are held."""
        known = self._classes.known
        asked = [
            _Asked(
                row["job_id"],
                row["name"],
                known(row["class_id"], row["needs"]),
                *(row["priority"], row["in_manifest"]),
                row["not_on"],
            )
            for row in self.reader.all("jobs_waiting", most=ASKED_MOST + 1)
        ]
        return asked, self.reader.number("held_pending")

    def _planned(self, plan: PlanRequest, waiting: Sequence[_Asked]) -> tuple[HostRegistry, list[_Asked]]:
        """Return the hosts as they would be under this plan, and the jobs that would be pending under it."""
        if self.previews is None:
            raise Refusal(ProblemType.BAD_MANIFEST, "this receiver was started without a manifest")
        registry, planned = self.previews.foreseen(plan)
        not_on = {each.job_id: each.not_on for each in waiting}
        ids, drafts = {each.spec["job_id"] for each in planned}, Drafts(self._classes)
        asked = [each for each in waiting if each.job_id not in ids and not each.in_manifest]  # requeued outside it
        for each in planned:
            if each.waits:
                spec, priority = each.spec, int(each.spec.get("priority") or 0)
                of, tried = drafts.of(each.needs, spec), not_on.get(spec["job_id"], "")
                asked.append(_Asked(spec["job_id"], name_of(spec), of, priority, not_on=tried))
        return registry, asked

    def _trained(self, asked: Sequence[_Asked], registry: HostRegistry) -> list[tuple[LiveAttempt, Slot]]:
        """Return the live attempts, the earliest granted first, each with a slot that says when the attempt is expected
        to end."""
        live = sorted(self._kinds.live(), key=lambda each: each.granted_at)
        self._kinds.look((each.job_class for each in asked), live)
        found = []
        for each in live:
            left_s, late_s = self._kinds.left(each)
            # A pause may last until the job is handed back, and end at once.
            most_s = registry.plan.pause_max_s(each.host) if each.paused else 0.0
            ends_s = left_s + most_s / 2, late_s + most_s
            found.append((each, Slot(each.host, *ends_s, gpu=each.booked.gpu is not None, job=each.job_id)))
        return found


# ── the answer ──────────────────────────────────────────────────────────────────────────────


@dataclass
class _ForecastAnswer:
    """The computation of one forecast's answer."""

    request: ForecastRequest
    registry: HostRegistry
    kinds: Kinds
    notes: dict[str, str]  # of hosts that take no part: why
    out: Mapping[str, Out]
    now: float
    hosts: dict[str, Host] = field(default_factory=dict)  # that take part
    as_fast_as: dict[str, str] = field(default_factory=dict)  # an imagined host → the one that it is like

    def __post_init__(self) -> None:
        known = {name.lower(): name for name in self.registry.known}
        for name in self.request.without:
            if name.lower() not in known:
                raise Refusal(ProblemType.UNKNOWN_NAME, f"no host is called {name}; `cis490-jobs workers` lists them")
            self.notes[known[name.lower()]] = _LEFT_OUT
        for name, each in self.registry.known.items():
            if name not in self.notes:
                self.hosts[name] = self.registry.host(each)
        for name, imagined in self.request.imagined.items():
            if known.get(name.lower()) in self.hosts:
                raise Refusal(ProblemType.BAD_REQUEST, f"host {name} is there already; give the other one another name")
            self._imagine(name, imagined)

    def _imagine(self, name: str, imagined: ImaginedHost) -> None:
        model = None if imagined.like is None else self.registry.called(imagined.like)
        if imagined.like is not None and model is None:
            raise Refusal(ProblemType.UNKNOWN_NAME, f"no host is called {imagined.like}, so {name} cannot be like it")
        can = dict(AT_BEST if model is None else model.capability)
        if imagined.cores is not None:
            can["cpu_cores"] = imagined.cores
        if imagined.ram_gib is not None:
            can["ram_available_gib"] = can["ram_total_gib"] = imagined.ram_gib
        if imagined.vram_gib is not None:
            gib = imagined.vram_gib
            can["cuda_available"] = gib > 0
            can["cuda_devices"] = [{"vram_free_gib": gib, "vram_total_gib": gib}] if gib else []
        host = Host.of(name, can, self.registry.plan.declared(name))
        self.hosts[name] = replace(host, datasets=self.registry.datasets).at_best()
        self.as_fast_as[name] = name if model is None else model.name
        self.notes.pop(name, None)

    def reply(self, waiting: Sequence[_Asked], trained: Sequence[tuple[LiveAttempt, Slot]]) -> ForecastReply:
        left_out = {name for name, note in self.notes.items() if note == _LEFT_OUT}
        asked: list[_Job] = [*(each for each, _ in trained if each.host in left_out), *waiting]
        begun = {each.job_id: each for each, _ in trained if each.host not in left_out}
        busy: dict[str, list[Slot]] = {}
        for each, slot in trained:
            if each.host not in left_out:
                busy.setdefault(each.host, []).append(slot)
        works = self._works(asked, busy)
        hosts = [self.hosts.get(name) or Host(name) for name in sorted({*self.hosts, *busy})]
        slots = places_of(hosts, busy, (work.kind for work in works))
        first_come = self.registry.plan.scheduling is rules.Scheduling.FIRST_COME
        made = forecast(works, slots, first_come=first_come)
        by_id: dict[str, _Job] = {each.job_id: each for each in (*asked, *begun.values())}
        firsts = {slot.host: n for n, slot in reversed([*enumerate(slots)])}
        return ForecastReply(
            now=self.now,
            done_at=self.now + made.end_s if made.stays else None,
            done_low_at=self.now + made.low_s if made.stays else None,
            done_high_at=self.now + made.high_s if made.stays else None,
            jobs=[
                self._job(stay, by_id[stay.job], stay.slot - firsts[stay.host], begun.get(stay.job))
                for stay in made.stays[:FORETOLD_MAX]
            ],
            count=len(made.stays),
            hosts=self._hosts(made, by_id),
            nowhere=self._nowhere([by_id[job] for job in made.nowhere[:NOWHERE_MAX]]),
        )

    def _works(self, asked: Sequence[_Job], busy: Collection[str]) -> list[WaitingKind]:
        """Group the jobs by requirement class, priority and the host that must not have them, with the predicted
        duration on each host that fits."""
        groups: dict[tuple[int, int, str], list[_Job]] = {}
        for each in asked:
            groups.setdefault((each.job_class.class_id, each.priority, _not_on(each)), []).append(each)
        hosts = {name: host.at_best() if name in busy else host for name, host in self.hosts.items()}
        works = []
        for (_, priority, not_on), jobs in groups.items():
            of = jobs[0].job_class
            fits = [name for name, host in hosts.items() if name != not_on and rules.fits(of.needs, host) is None]
            found = self.kinds.predictions(of, (self.as_fast_as.get(name, name) for name in fits))
            told = {name: found[self.as_fast_as.get(name, name)] for name in fits}
            made = kind(of, priority, len(jobs), told, at_once(self.kinds.needs(of), hosts.values()), not_on)
            works.append(WaitingKind(made, tuple(each.job_id for each in jobs), self.kinds.work(of).family, told))
        return works

    def _job(self, stay: Stay, job: _Job, slot: int, attempt: LiveAttempt | None) -> ForetoldJob:
        return ForetoldJob(
            job_id=stay.job,
            name=job.name,
            host=stay.host,
            slot=slot,
            begins_at=self.now + stay.begin_s if attempt is None else attempt.granted_at,
            ends_at=self.now + stay.end_s,
            low_at=self.now + stay.low_s,
            high_at=self.now + stay.high_s,
            live=attempt is not None,
            threads=job.job_class.needs.threads or None if attempt is None else attempt.booked.cores,
        )

    def _hosts(self, made: Forecast, by_id: Mapping[str, _Job]) -> list[ForetoldHost]:
        ends: dict[str, list[float]] = {}
        for stay in made.stays:
            ends.setdefault(stay.host, []).append(self.now + stay.end_s)
        waits = {
            each.host: DeclineView(
                name=by_id[each.stay.job].name,
                at=self.now + each.at_s,
                by=each.stay.host,
                ends_at=self.now + each.stay.end_s,
                here_until=self.now + each.at_s + each.here_s,
            )
            for each in made.waits
        }
        return [
            ForetoldHost(
                host=name,
                jobs=len(ends.get(name, ())),
                done_at=max(ends.get(name, ()), default=None),
                imagined=name in self.request.imagined,
                declined=waits.get(name),
                note=self.notes.get(name),
            )
            for name in sorted({*self.hosts, *self.notes, *ends})
        ]

    def _nowhere(self, jobs: Sequence[_Job]) -> dict[str, str]:
        """Map the names of these jobs, which fit no host of the forecast, to the reason."""
        registry = self.registry
        silent: dict[Host, float | None] = dict.fromkeys(self.hosts.values())
        for name, note in self.notes.items():
            if note != _LEFT_OUT:
                known = registry.known[name]
                silent[registry.host(known)] = self.now - known.last_seen
        reasons = dict[tuple[Needs, str], str]()
        for needs, not_on in {(each.job_class.needs, _not_on(each)) for each in jobs}:
            others = {host: silent_s for host, silent_s in silent.items() if host.name != not_on}
            look, lacks = outlook(needs, others, self.out), rules.lacks_data(needs, registry.datasets)
            if registry.known and not silent:
                lacks = lacks or "every host is left out"
            reasons[needs, not_on] = lacks or look.obstacle or look.waits_for or "no host here can train it"
        return {each.name: reasons[each.job_class.needs, _not_on(each)] for each in jobs}


def _not_on(job: _Job) -> str:
    return job.not_on if isinstance(job, _Asked) else ""
