"""A snapshot of the fleet as metrics: made at most every few seconds, from a few statements and from memory.

Ages are in seconds, sizes in bytes, times in epoch seconds.

Values that the receiver does not know are left out, never guessed. Text that came from elsewhere is made printable
here, and the number of hosts, models and names is bounded.
"""

import contextlib
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from training.clock import Clock
from training.fleet.database.writer import Database, Row
from training.fleet.queue.rows import jobs_by_host, set_aside_of
from training.fleet.receiver.metrics.counters import ATTEMPT_S, Histogram, Tally
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.job import FAULT_OF, EndReason, Host, Needs
from training.fleet.service.hosts import KnownHost
from training.fleet.service.service import Service
from training.fleet.service.state import backed_up_at
from training.fleet.service.views import Views
from training.fleet.store.artifacts import ArtifactStore
from training.fleet.store.datasets import DatasetStore
from training.fleet.store.errors import StoreError
from training.fleet.wire.identity import Role
from training.printable import printable

FRESH_S = 5.0  # asked again within this, the same snapshot is the answer
SIZES_S = 600.0  # the same of the store's sizes, which take longest to add up
HOSTS_MAX = 100  # hosts with series of their own, those heard last; `hosts` counts all
GPUS_MAX = 4  # of one host
NAMES_MAX = 20  # of operators and readers, certificates and tokens each
Samples = Iterable[tuple[tuple[str, ...], Any]]  # the values of the labels, and the figure
T = TypeVar("T")
OVER_S = 30 * 86400.0  # a certificate that ended longer ago concerns nobody any more
GIB = 1024**3
MODELS_MAX = 10  # models with a histogram of their own …
OTHER = "other"  # … and of all further ones
_ROWS = 5000  # read at once
_BY_TRANSITION = {
    "complete": EndReason.COMPLETED,
    "adopt": EndReason.COMPLETED,
    "deliver": EndReason.COMPLETED,
    "cancel": EndReason.CANCELLED,
    "requeue": EndReason.SUPERSEDED,
}


class Obstacle(StrEnum):
    """The reason why no host takes a waiting job now, from a closed list; a job counts under the first that applies."""

    HELD = "held"  # by an operator
    NOT_IN_PLAN = "not_in_plan"  # it left the plan
    DATASET = "dataset"  # its data set is not here
    NO_HOST = "no_host"  # no worker has ever asked for work
    UNFIT = "unfit"  # it fits none of the known hosts
    QUARANTINED = "quarantined"  # it fits, but only hosts that get no jobs until they are well or released
    RESTING = "resting"  # it fits, but only hosts that are paused, drained, or at rest for their owner
    SILENT = "silent"  # it fits, but only hosts that were not heard for a lease


class HostState(StrEnum):
    """The state of a host for the metric ``hosts``: the first in this order that applies."""

    QUARANTINED = "quarantined"
    RESTING = "resting"  # paused, drained, or at rest for its owner
    SILENT = "silent"
    BUSY = "busy"
    IDLE = "idle"


class Credential(NamedTuple):
    """A certificate or token that is not revoked. Times are epoch seconds."""

    role: str  # a :class:`Role`, or "receiver"
    name: str
    expires_at: float


class Ends:
    """Attempts that ended since this receiver's start, by reason, and how long completed ones took, by model.

    The ends are counted from the event rows, which are never changed. An attempt's own row cannot be used: a lost
    attempt that reports again becomes live, and a counter may not go down. Events before the start do not count,
    because old ones may be removed. Prometheus accepts a counter that begins at 0; one that begins a little lower than
    it ended would look like a burst.
    """

    def __init__(self, database: Database, seen: int) -> None:
        """Begin with the events after number ``seen``; :meth:`update` counts them."""
        self._db = database
        self._seen = seen
        self.reasons: Counter[EndReason] = Counter()
        self.durations: dict[str, Histogram] = {}

    def update(self) -> None:
        """Count the attempts that ended since the last update."""
        newest = self._db.number("newest_event")  # first: what is noted meanwhile is for the next look
        while rows := self._db.all("ended_since", after=self._seen, most=_ROWS):
            for row in rows:
                self._count(row)
            self._seen = int(rows[-1]["seq"])
        self._seen = max(self._seen, newest)  # events of other kinds are many, and need not be passed over again

    def expect(self, model: str) -> None:
        """Begin this model's histogram at 0: for Prometheus, a series that begins at 1 did not increase."""
        self._histogram(model)

    def _count(self, row: Row) -> None:
        reason = _BY_TRANSITION.get(row["transition"]) or EndReason(row["detail"])
        self.reasons[reason] += 1
        if reason is EndReason.COMPLETED and row["transition"] != "deliver":  # which takes no time
            self._histogram(row["model"]).observe(row["at"] - row["granted_at"])

    def _histogram(self, model: object) -> Histogram:
        name = printable(model)[:64]
        if name not in self.durations and len(self.durations) >= MODELS_MAX:
            name = OTHER
        return self.durations.setdefault(name, Histogram(ATTEMPT_S))


@dataclass
class Snapshots:
    """The latest values of the metrics that are not in ``tally``, by the metrics' names without their prefix. Only the
    thread that owns the reader's connection uses this object."""

    reader: Database
    service: Service
    views: Views
    store: ArtifactStore
    datasets: DatasetStore
    database: Path  # the file
    credentials: Callable[[], tuple[Iterable[Credential], Iterable[Credential]]]  # certificates, then tokens
    clock: Clock
    tally: Tally
    last_event: int  # the newest at the receiver's start: attempts that ended after it are counted
    _last: Mapping[str, Samples] = field(default_factory=dict)
    _sizes: dict[str, int] = field(default_factory=dict)
    _sizes_at = _last_at = -math.inf

    def __post_init__(self) -> None:
        self._ends = Ends(self.reader, self.last_event)

    def latest(self) -> Mapping[str, Samples]:
        """Return the last snapshot if it is less than ``FRESH_S`` old, else a new one; raises DatabaseError and
        StoreError."""
        now = self.clock.monotonic()
        if now - self._last_at >= FRESH_S:
            self._ends.update()
            self._last, self._last_at = dict(self._take()), now
        return self._last

    def _take(self) -> Iterator[tuple[str, Samples]]:
        now = self.clock.now()
        service, out, resting = self.service, self.views.quarantined(), self.views.resting()
        known = service.known_hosts()
        held = {host: len(names) for host, names in jobs_by_host(self.reader).items()}
        states = {each.name: _state(each, service, out, resting, held) for each in known}
        jobs = [self.views.counts(in_manifest=planned) for planned in (True, False)]
        yield "jobs", by_one({status: sum(each[status] for each in jobs) for status in jobs[0]})
        yield from self._waiting(now, known, out, resting)
        yield "attempts_total", [((end, FAULT_OF[end]), self._ends.reasons[end]) for end in EndReason]
        yield "attempt_duration_seconds", by_one(self._ends.durations)
        yield "hosts", [((state,), [*states.values()].count(state)) for state in HostState]
        yield "waiting_claims", [((), service.host_registry.waiting_claims())]
        yield from self._hosts(known, states, held)
        yield from self._watches()
        disks = dict(self._disks())
        yield "disk_free_bytes", by_one({kind: free for kind, (free, _) in disks.items()})
        yield "disk_size_bytes", by_one({kind: size for kind, (_, size) in disks.items()})
        yield "database_bytes", [((), _size(self.database) + _size(self.database, "-wal"))]
        yield "store_bytes", by_one(self._stored())
        yield "granting", [((), self.store.has_room())]
        yield "missing_datasets", [((), len(service.host_registry.missing_datasets()))]
        backed_up = backed_up_at(self.database)
        yield "backup_timestamp_seconds", [] if backed_up is None else [((), backed_up)]
        for kind, found in zip(("certificate", "token"), self.credentials(), strict=True):
            ends = [((each.role, each.name), each.expires_at) for each in _shown(found, now)]
            yield f"{kind}_expiry_timestamp_seconds", ends
        yield "snapshot_timestamp_seconds", [((), now)]

    def _waiting(
        self, now: float, known: Iterable[KnownHost], out: Mapping[str, str], resting: Mapping[str, str]
    ) -> Iterator[tuple[str, Samples]]:
        """Yield the longest wait of a pending, unheld job for each need (CPU or CUDA), and the number of pending jobs
        behind each obstacle."""
        hosts = [(self.service.host_of(each), self.service.alive(each)) for each in known]
        oldest = {"cpu": 0.0, "cuda": 0.0}
        blocked = dict.fromkeys(Obstacle, 0)
        blocked[Obstacle.HELD] = self.reader.number("held_pending")
        blocked[Obstacle.NOT_IN_PLAN] = self.reader.number("passed_over", most=1)
        for row in self.reader.all("waiting"):
            needs = Needs.of(json.loads(row["needs"]))
            self._ends.expect(needs.model)
            kind = "cuda" if needs.require_cuda else "cpu"
            oldest[kind] = max(oldest[kind], now - row["since"])
            obstacle = obstacle_of(needs, hosts, out, resting, self.service.host_registry.datasets)
            if obstacle is not None:
                blocked[obstacle] += int(row["n"])
        yield "oldest_pending_job_age_seconds", by_one(oldest)
        yield "blocked_jobs", by_one(blocked)

    def _hosts(
        self, known: Iterable[KnownHost], states: Mapping[str, HostState], held: Mapping[str, int]
    ) -> Iterator[tuple[str, Samples]]:
        """Yield the metrics of single hosts: when seen, attempts, quarantine, undelivered jobs, and memory as the
        worker reported it with its last claim."""
        aside = {row["host"]: len(set_aside_of(row)) for row in self.reader.all("hosts_aside")}
        hosts = _newest((each.last_seen, each.name, each) for each in known)
        gpus = [
            ((name, str(number)), gpu)
            for name, each in hosts
            for number, gpu in enumerate(_list(each.capability.get("cuda_devices"))[:GPUS_MAX])
        ]
        yield "host_seen_timestamp_seconds", by_one({name: each.last_seen for name, each in hosts})
        yield "host_attempts", by_one({name: held.get(each.name, 0) for name, each in hosts})
        yield "host_quarantined", by_one({name: states[each.name] is HostState.QUARANTINED for name, each in hosts})
        yield "host_undelivered_jobs", by_one({name: aside.get(each.name, 0) for name, each in hosts})
        memory = [
            one
            for name, each in hosts
            for one in _bytes((name,), each.capability, "ram_total_gib", "ram_available_gib")
        ]
        yield "host_memory_bytes", memory
        of_gpus = [one for labels, gpu in gpus for one in _bytes(labels, gpu, "vram_total_gib", "vram_free_gib")]
        yield "host_gpu_memory_bytes", of_gpus

    def _watches(self) -> Iterator[tuple[str, Samples]]:
        """Yield the metrics of watched hosts: open incidents, unconfirmed changes, when the host's watch reported last,
        and whether it is silent."""
        views = self.views.incidents
        open_, changed = views.open(), views.changed()
        watches = _newest((each.heard_at, each.host, each) for each in views.watches())
        yield "open_incidents", by_one({name: open_.get(each.host, (0, 0.0))[0] for name, each in watches})
        yield "host_changed", by_one({name: each.host in changed for name, each in watches})
        yield "watch_heard_timestamp_seconds", by_one({name: each.heard_at for name, each in watches})
        yield "watch_silent", by_one({name: each.silent for name, each in watches})

    def _disks(self) -> Iterator[tuple[str, tuple[float, float]]]:
        """Yield the free space and the size of the disk of models, of database and of data sets."""
        places = {"models": self.store.root, "database": self.database.parent, "datasets": self.datasets.root}
        for kind, place in places.items():
            with contextlib.suppress(OSError):
                usage = shutil.disk_usage(place)
                yield kind, (self.store.disk_free_bytes() if kind == "models" else usage.free, usage.total)

    def _stored(self) -> dict[str, int]:
        now = self.clock.monotonic()
        if now - self._sizes_at >= SIZES_S:
            self._sizes, self._sizes_at = self._add_up(), now
        return self._sizes

    def _add_up(self) -> dict[str, int]:
        row = self.reader.one("stored")
        found = {"models": int(row["size"]) if row else 0}
        with contextlib.suppress(StoreError):
            found["datasets"] = sum(each.about.size for each in self.datasets.sets())
        return found


def obstacle_of(
    needs: Needs, hosts: Iterable[tuple[Host, bool]], out: Mapping[str, str], resting: Mapping[str, str], datasets: Any
) -> Obstacle | None:
    """Return the obstacle that keeps jobs with these needs from every host; None if some host can take them.

    ``hosts`` has each host, and True if it was seen within a lease. ``out`` and ``resting`` name the hosts in
    quarantine, and those paused, drained or used by their owner.
    """
    hosts = list(hosts)
    if rules.lacks_data(needs, datasets):
        return Obstacle.DATASET
    if not hosts:
        return Obstacle.NO_HOST
    fitting = [(host, alive) for host, alive in hosts if rules.fits(needs, host) is None]
    if not fitting:
        return Obstacle.UNFIT
    sound = [(host, alive) for host, alive in fitting if host.name not in out]
    if not sound:
        return Obstacle.QUARANTINED
    awake = [alive for host, alive in sound if host.name not in resting]
    if not awake:
        return Obstacle.RESTING
    return None if any(awake) else Obstacle.SILENT


def label(text: object) -> str:
    """Make text from elsewhere safe as a label: printable, one line, at most 64 characters."""
    return printable(text)[:64]


def _state(
    known: KnownHost, service: Service, out: Mapping[str, str], resting: Mapping[str, str], held: Mapping[str, int]
) -> HostState:
    if known.name in out:
        return HostState.QUARANTINED
    if known.name in resting:
        return HostState.RESTING
    if not service.alive(known):
        return HostState.SILENT
    return HostState.BUSY if held.get(known.name) else HostState.IDLE


def by_one(found: Mapping[Any, Any]) -> Samples:
    """Return the entries of ``found`` as samples with one label, which is the key."""
    return [((str(key),), value) for key, value in found.items()]


def _newest(seen: Iterable[tuple[float, str, T]]) -> list[tuple[str, T]]:
    """Return for each label the entry seen last, the newest first, at most ``HOSTS_MAX``. ``seen`` has (time, name,
    entry)."""
    found: dict[str, T] = {}
    for _, name, each in sorted(seen, key=lambda one: -one[0]):
        found.setdefault(label(name), each)
    return [*found.items()][:HOSTS_MAX]


def _list(reported: object) -> list[Any]:
    return reported if isinstance(reported, list) else []


def _bytes(labels: tuple[str, ...], reported: object, total: str, free: str) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield total and free memory in bytes, from the GiB that a worker reported; values that are not sizes are left
    out."""
    values = reported if isinstance(reported, Mapping) else {}
    for kind, value in (("total", values.get(total)), ("free", values.get(free))):
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
            yield (*labels, kind), value * GIB


def _size(path: Path, suffix: str = "") -> int:
    with contextlib.suppress(OSError):
        return path.with_name(path.name + suffix).stat().st_size
    return 0


def _shown(given: Iterable[Credential], now: float) -> Iterator[Credential]:
    """Yield each owner's credential that ends last, unless it ended over 30 days ago; the number of names is
    limited."""
    last: dict[tuple[str, str], Credential] = {}
    for each in given:
        key = each.role, label(each.name)
        if each.expires_at > now - OVER_S and (key not in last or last[key].expires_at < each.expires_at):
            last[key] = Credential(*key, each.expires_at)
    left = {Role.HOST.value: HOSTS_MAX}
    for each in sorted(last.values(), key=lambda each: (each.role, -each.expires_at)):
        left[each.role] = left.get(each.role, NAMES_MAX // 2) - 1
        if left[each.role] >= 0:
            yield each
