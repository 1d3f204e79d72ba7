"""The kinds of pending jobs, the live attempts, and how long each takes on which host.

The schedule and the forecasts both use this module; forecasts may add hosts and jobs that are only supposed.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from training.fleet.database.writer import Database
from training.fleet.queue.classes import JobClass, RequirementClasses
from training.fleet.queue.durations import Learned
from training.fleet.queue.rows import booked_of
from training.fleet.scheduling import booking
from training.fleet.scheduling.calibrations import middle
from training.fleet.scheduling.durations import Speeds
from training.fleet.scheduling.job import Host, Needs
from training.fleet.scheduling.predictions import Prediction, remaining
from training.fleet.scheduling.resources import NOT_KNOWN, Booking, Gpu
from training.fleet.scheduling.schedule import JobKind, Slot
from training.fleet.scheduling.threads import speedup
from training.fleet.scheduling.workload import Workload
from training.frozen import frozen

ABOVE_ALL = 2**62  # above every priority
OPEN = ""  # the gate of the jobs that avoid no host
COUNTED_MOST = 20_000  # jobs of a kind; more are planned for as so many
LIVE_MOST = 5_000  # attempts that are looked at
PLACES_MOST = 150  # of all hosts that train several jobs at once, in one schedule: of many hosts each has fewer
BUSY_MOST = 16  # attempts of one host that a schedule knows of: those that end first
_OF_ROW = ("claim_id", "job_id", "name", "host", "priority", "granted_at", "heard_s", "held_s", "grants")


@frozen
class PendingKind:
    """A kind of the schedule: pending jobs of one class and priority that avoid the same host for now, or none."""

    job_class: JobClass
    priority: int
    count: int
    since: float  # when the oldest became claimable
    gate: str = OPEN  # the host where they failed …
    gate_s: float = 0.0  # … and for how long the first of them avoids it yet
    unheard: bool = False  # another host must try one of them first

    @property
    def key(self) -> str:
        return kind_of(self.job_class.class_id, self.priority, self.gate)


def kind_of(class_id: int, priority: int, gate: str = OPEN) -> str:
    """Return the name of the kind of jobs with this class and priority that avoid the host ``gate``; empty: they avoid
    none."""
    return f"{class_id}:{priority}:{gate}"


def place_of(key: str) -> tuple[int, int, str]:
    """Return the class number, the priority and the gate from a kind's name."""
    class_id, priority, gate = key.split(":", 2)
    return int(class_id), int(priority), gate


Places = Mapping[str, tuple[bool, int]]  # host → if it is on the GPUs there, and how many at once


def kind(
    of: JobClass,
    priority: int,
    count: int,
    told: Mapping[str, Prediction],
    places: Places | None = None,
    gate: str = OPEN,
    *,
    unheard: bool = False,
) -> JobKind:
    """Return a kind of the schedule; ``told`` has the prediction for each host that fits. Durations are the
    predictions' means, not medians."""
    spread = middle(each.spread for each in told.values()) if told else 0.0
    seconds = {host: each.mean for host, each in told.items()}
    key = kind_of(of.class_id, priority, gate)
    return JobKind(key, count, seconds, priority, spread, places or {}, unheard)


def at_once(needs: Needs, hosts: Iterable[Host]) -> Places:
    """Map each host to whether jobs with these needs train on its GPUs, and how many of them at once. Hosts of a single
    slot are left out."""
    found = {}
    for host in hosts:
        if booking.most_at_once(host) > 1:
            vram_gib = tuple(gpu.total_gib for gpu in host.gpus)
            found[host.name] = _at_once(
                needs, host.cores, host.slots, host.untried, host.ram_total_gib, host.cuda, vram_gib
            )
    return found


@lru_cache(50_000)
def _at_once(
    needs: Needs, cores: int, slots: int, untried: bool, ram_gib: float, cuda: bool, vram_gib: tuple[float, ...]
) -> tuple[bool, int]:
    gpus, most = tuple(Gpu(gib, gib) for gib in vram_gib), max(vram_gib, default=0.0)
    whole = Host("", cuda, ram_total_gib=ram_gib, vram_total_gib=most, cores=cores, gpus=gpus, slots=slots)
    whole = replace(whole, untried=untried)
    return booking.at_once(needs, whole.at_best())


def places_of(hosts: Sequence[Host], busy: Mapping[str, Sequence[Slot]], kinds: Iterable[JobKind]) -> list[Slot]:
    """Return the slots of these hosts for a schedule; ``busy`` has the slots that train now.

    As many of a host's slots are on its GPUs as jobs may share the GPUs. If pending jobs train on the host's processor,
    one slot is left for them, unless jobs of higher priority fill all slots.
    """
    sharing: dict[str, int] = {}  # host → how many may share its GPUs …
    on_gpus: dict[str, list[JobKind]] = {}  # … which jobs these are …
    without: dict[str, int] = {}  # … and the highest priority of those that need none
    for each in kinds:
        for name, (gpu, count) in each.places.items():
            if name not in each.seconds:
                continue
            if gpu:
                sharing[name] = max(count, sharing.get(name, 0))
                on_gpus.setdefault(name, []).append(each)
            else:
                without[name] = max(each.priority, without.get(name, each.priority))
    found: list[Slot] = []
    for host in hosts:
        count = min(booking.most_at_once(host), max(2, PLACES_MOST // len(hosts)))
        on_gpu = sharing.get(host.name, 0)
        if on_gpu >= count and host.name in without:
            first = sum(each.count for each in on_gpus[host.name] if each.priority > without[host.name])
            on_gpu = max(count - 1, min(first, count))
        found += places(host.name, busy.get(host.name, ()), count, on_gpu)
    return found


def places(host: str, busy: Sequence[Slot], most: int = 1, on_gpu: int = 0) -> list[Slot]:
    """Return the slots of a host that trains ``most`` jobs at once, ``on_gpu`` of them on its GPUs. ``busy`` has the
    slots that train now. The first slot on the GPUs, and the first on the processor, becomes free last: a job that
    needs half of the host begins when that much is free."""
    ends = sorted(busy, key=lambda slot: (slot.ready_s, slot.late_s))[:BUSY_MOST]
    if most == 1:
        return ends or [Slot(host)]
    held = {gpu: [slot for slot in reversed(ends) if slot.gpu == gpu] for gpu in (True, False)}
    on_gpu = max(len(held[True]), min(on_gpu, most))
    made: list[Slot] = []
    for gpu, there in ((True, on_gpu), (False, most - on_gpu)):
        here = [*held[gpu], *[Slot(host, gpu=gpu)] * (there - len(held[gpu]))]
        made += [replace(slot, number=number) for number, slot in enumerate(here)]
    return made


class LiveAttempt(NamedTuple):
    """A live attempt. ``heard_s`` is the training time by its heartbeats; None: the training has ended and the bundle
    is being delivered."""

    claim_id: str
    job_id: str
    name: str
    host: str
    job_class: JobClass
    priority: int
    granted_at: float
    heard_s: float | None
    progress: Mapping[str, Any] | None
    afresh: bool  # no earlier attempt there may have begun it
    booked: Booking
    paused: bool = False  # its trainer stands still
    grants: int = 0  # of its job
    held_s: float = 0.0  # for which its host has had it


class Kinds:
    """The kinds of pending jobs that are not held, and the predictions of their durations, read through one connection.
    Only one thread may use it."""

    def __init__(self, db: Database, classes: RequirementClasses, learned: Learned) -> None:
        self._db, self._classes = db, classes
        self.learned = learned
        self._speeds = Speeds()  # as learned, and with what attempts under way say
        self._made_of: object = None
        self._works_of: object = None
        self._works: dict[int, Workload] = {}  # of classes
        self._told: dict[int, dict[str, Prediction]] = {}

    def waiting(self, now: float) -> Iterator[PendingKind]:
        """Return the kinds of pending jobs that are not held, those of a class together; ``now`` decides which jobs
        still avoid a host."""
        gates = {
            (row["class_id"], row["avoid_host"]): (row["avoid_host"], row["until"] - now, row["unheard"] > 0)
            for row in self._db.all("gates", now=now)
        }
        found: dict[str, PendingKind] = {}
        for row in self._db.all("waiting_kinds"):
            # A gate whose time is over is opened by the next ask.
            gate = gates.get((row["class_id"], row["avoid_host"]), (OPEN, 0.0, False))
            each, count = self._classes.at(row["class_id"]), min(row["n"], COUNTED_MOST)
            one = PendingKind(each, row["priority"], count, row["since"], *gate)
            if (same := found.get(one.key)) is not None:
                one = replace(one, count=count + same.count, since=min(one.since, same.since))
            found[one.key] = one
        return iter(found.values())

    def count(self, key: str) -> int:
        """Count the pending jobs of the kind with this name that are not held, at most ``COUNTED_MOST``."""
        class_id, priority, gate = place_of(key)
        at = {"class_id": class_id, "priority": priority, "avoid_host": gate, "most": COUNTED_MOST}
        return self._db.number("waiting_of_kind", **at)

    def live(self) -> list[LiveAttempt]:
        """Return the live attempts, at most ``LIVE_MOST``."""
        return [
            LiveAttempt(
                **{name: row[name] for name in _OF_ROW},
                job_class=self._classes.known(row["class_id"], row["needs"]),
                progress=json.loads(row["progress"]) if row["progress"] else None,
                afresh=bool(row["afresh"]),
                paused=bool(row["paused"]),
                booked=booked_of(row),
            )
            for row in self._db.all("attempts_live", most=LIVE_MOST)
        ]

    def look(self, waiting: Iterable[JobClass], live: Iterable[LiveAttempt]) -> None:
        """Bring the predictions up to date with newly learned durations and with live attempts' own estimates. An
        estimate counts only if no earlier attempt may have begun the training, and if it is more certain than the
        prediction for its kind.

        An attempt's estimate counts once the attempt has done a fiftieth of its work, and is read again each time that
        this share has about doubled.
        """
        learned, version = self.learned.speeds(), self.renew()
        learned.expect([self.work(each) for each in waiting])
        words = {}
        for each in live:
            if each.afresh and each.heard_s is not None:
                work = self.work(each.job_class)
                word = learned.word_of(work, each.host, each.heard_s * speedup(work.family, each.booked), each.progress)
                if word is not None:
                    words[each.job_id, round(math.log2(word.done))] = word
        if self._made_of != (version, words.keys()):
            self._made_of = version, words.keys()
            self._speeds, self._told = learned.with_words([*words.values()]), {}

    def renew(self) -> object:
        """Drop the cached workloads if something was learned since the last call; return the version of what was
        learned."""
        version = self.learned.version()
        if self._works_of != version:
            self._works_of, self._works = version, {}
        return version

    def work(self, of: JobClass) -> Workload:
        """Return the facts that determine how long jobs of a class take, including the size of the data set."""
        found = self._works.get(of.class_id)
        if found is None:
            found = self._works[of.class_id] = self.learned.workload(of.work)
        return found

    def needs(self, of: JobClass) -> Needs:
        """Return the needs of a class, including the most memory that jobs of its kind were seen to use."""
        peak = self.learned.peak(self.work(of).kind)
        return of.needs if peak is NOT_KNOWN else replace(of.needs, peak=peak)

    def predictions(self, of: JobClass, hosts: Iterable[str]) -> dict[str, Prediction]:
        """Map each of these hosts to the predicted duration of a job of the class there."""
        known = self._told.setdefault(of.class_id, {})
        return {
            host: known.get(host) or known.setdefault(host, self._speeds.predict(self.work(of), host)) for host in hosts
        }

    def left(self, live: LiveAttempt) -> tuple[float, float]:
        """Return the median seconds until a live attempt ends, and the seconds within which nine of ten such attempts
        end; both are 0 while it delivers its bundle."""
        if live.heard_s is None:
            return 0.0, 0.0
        # Its own word counts once: what is predicted here knows nothing of it.
        work = self.work(live.job_class)
        told = self.learned.speeds().predict(work, live.host)
        faster = speedup(work.family, live.booked)
        left_s, late_s = remaining(told, live.heard_s * faster, live.progress)
        return left_s / faster, late_s / faster
