"""A snapshot of the fleet in figures: made at most every few seconds, from a few statements and from memory.

Everything in it is what the receiver knows; what it does not know is left out, never filled in. Text that came from
elsewhere is made printable here, and the number of hosts, models and names is bounded.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from training.clock import Clock
from training.fleet.database.writer import Database
from training.fleet.queue.rows import jobs_by_host, set_aside_of
from training.fleet.receiver.metrics.attempt_ends import Ends
from training.fleet.receiver.metrics.counters import Histogram, Tally
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.job import EndReason, Host, Needs
from training.fleet.service.backed_up import backed_up_at
from training.fleet.service.hosts import KnownHost
from training.fleet.service.service import Service
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
OVER_S = 30 * 86400.0  # a certificate that ended longer ago concerns nobody any more
GIB = 1024**3


class Obstacle(StrEnum):
    """The reason why no host takes a waiting job as things are: a closed list; a job counts under the first."""

    HELD = "held"  # by an operator
    DATASET = "dataset"  # its data set is not here
    NO_HOST = "no_host"  # no worker has ever asked for work
    UNFIT = "unfit"  # it fits none of the known hosts
    QUARANTINED = "quarantined"  # it fits, but only hosts that get no jobs until they are well or released
    RESTING = "resting"  # it fits, but only hosts that are paused, drained, or at rest for their owner
    SILENT = "silent"  # it fits, but only hosts that were not heard for a lease


class HostState(StrEnum):
    """The state of a host; the first that holds."""

    QUARANTINED = "quarantined"
    RESTING = "resting"  # paused, drained, or at rest for its owner
    SILENT = "silent"
    BUSY = "busy"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """One host. Memory in bytes by kind (``total``, ``free``), as its worker reported it with its last claim."""

    name: str
    state: HostState
    seen_at: float
    attempts: int
    undelivered: int
    memory: Mapping[str, float]
    gpus: tuple[Mapping[str, float], ...]


@dataclass(frozen=True, slots=True)
class WatchFigures:
    """One watched host: its incidents that are open and not judged, and its watch that was seen last."""

    name: str
    open: int
    changed: bool  # unconfirmed
    heard_at: float
    silent: bool


@dataclass(frozen=True, slots=True)
class Credential:
    """A certificate or token that is not revoked. Times are epoch seconds."""

    role: str  # a :class:`Role`, or "receiver"
    name: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The figures of one moment. Ages in seconds, sizes in bytes, times in epoch seconds."""

    made_at: float
    jobs: Mapping[str, int]
    oldest_s: Mapping[str, float]  # by what the jobs need: cpu, cuda
    blocked: Mapping[Obstacle, int]
    ends: Mapping[EndReason, int]
    durations: Mapping[str, Histogram]
    states: Mapping[HostState, int]
    hosts: tuple[HostSnapshot, ...]
    watches: tuple[WatchFigures, ...]
    waiting_claims: int
    disks: Mapping[str, tuple[float, float]]  # what lies there → free, size
    database_bytes: int
    stored: Mapping[str, int]  # models, datasets
    granting: bool
    missing_datasets: int
    backed_up_at: float | None
    certificates: tuple[Credential, ...]
    tokens: tuple[Credential, ...]


@dataclass(frozen=True, slots=True)
class Sources:
    """The parts of a receiver that a snapshot is made of. ``credentials`` lists certificates, then tokens."""

    reader: Database
    service: Service
    views: Views
    store: ArtifactStore
    datasets: DatasetStore | None
    database: Path | None  # the file, if there is one
    credentials: Callable[[], tuple[Iterable[Credential], Iterable[Credential]]]
    clock: Clock


class Snapshots:
    """The latest snapshot. Used by the one thread that owns the reader's connection."""

    def __init__(self, sources: Sources, tally: Tally, last_event: int) -> None:
        """Count attempts that ended after the event of this number, the newest at the receiver's start."""
        self._from = sources
        self.tally = tally
        self._ends = Ends(sources.reader, last_event)
        self._last: Snapshot | None = None
        self._sizes: dict[str, int] = {}
        self._sizes_at = -math.inf
        self._last_at = -math.inf

    def latest(self) -> Snapshot:
        """Return the last snapshot while it is fresh, else a new one; raises DatabaseError and StoreError."""
        now = self._from.clock.monotonic()
        if self._last is None or now - self._last_at >= FRESH_S:
            self._ends.update()
            self._last = self._take()
            self._last_at = now
        return self._last

    def _take(self) -> Snapshot:
        source, now = self._from, self._from.clock.now()
        service, out, resting = source.service, source.views.quarantined(), source.views.resting()
        known = service.known_hosts()
        held = {host: len(names) for host, names in jobs_by_host(source.reader.all("live_jobs_by_host")).items()}
        states = {each.name: _state(each, service, out, resting, held) for each in known}
        oldest, blocked = self._waiting(now, known, out, resting)
        certificates, tokens = source.credentials()
        return Snapshot(
            made_at=now,
            jobs=source.views.counts(),
            oldest_s=oldest,
            blocked=blocked,
            ends={reason: self._ends.reasons[reason] for reason in EndReason},
            durations=self._ends.durations,
            states={state: list(states.values()).count(state) for state in HostState},
            hosts=tuple(self._hosts(known, states, held)),
            watches=tuple(self._watches()),
            waiting_claims=service.host_registry.waiting_claims(),
            disks=dict(self._disks()),
            database_bytes=_size(source.database) + _size(source.database, "-wal"),
            stored=self._stored(),
            granting=source.store.has_room(),
            missing_datasets=len(service.missing_datasets()),
            backed_up_at=None if source.database is None else backed_up_at(source.database),
            certificates=tuple(_shown(certificates, now)),
            tokens=tuple(_shown(tokens, now)),
        )

    def _waiting(
        self, now: float, known: Iterable[KnownHost], out: Mapping[str, str], resting: Mapping[str, str]
    ) -> tuple[dict[str, float], dict[Obstacle, int]]:
        """Return the longest wait by need, and the number of jobs behind each obstacle."""
        service = self._from.service
        hosts = [(service.host_of(each), service.alive(each)) for each in known]
        oldest = {"cpu": 0.0, "cuda": 0.0}
        held = self._from.reader.one("held_pending")
        blocked = dict.fromkeys(Obstacle, 0)
        blocked[Obstacle.HELD] = int(held["n"]) if held else 0
        for row in self._from.reader.all("waiting"):
            needs = Needs.of(json.loads(row["needs"]))
            self._ends.expect(needs.model)
            kind = "cuda" if needs.require_cuda else "cpu"
            oldest[kind] = max(oldest[kind], now - row["since"])
            obstacle = obstacle_of(needs, hosts, out, resting, service.host_registry.datasets)
            if obstacle is not None:
                blocked[obstacle] += int(row["n"])
        return oldest, blocked

    def _hosts(
        self, known: Iterable[KnownHost], states: Mapping[str, HostState], held: Mapping[str, int]
    ) -> Iterator[HostSnapshot]:
        aside = {row["host"]: len(set_aside_of(row)) for row in self._from.reader.all("hosts_aside")}
        shown: set[str] = set()
        for each in sorted(known, key=lambda known: -known.last_seen)[:HOSTS_MAX]:
            name = label(each.name)
            if name not in shown:
                shown.add(name)
                devices = each.capability.get("cuda_devices")
                yield HostSnapshot(
                    name=name,
                    state=states[each.name],
                    seen_at=each.last_seen,
                    attempts=held.get(each.name, 0),
                    undelivered=aside.get(each.name, 0),
                    memory=_bytes(each.capability, {"total": "ram_total_gib", "free": "ram_available_gib"}),
                    gpus=tuple(
                        _bytes(device, {"total": "vram_total_gib", "free": "vram_free_gib"})
                        for device in (devices if isinstance(devices, list) else [])[:GPUS_MAX]
                    ),
                )

    def _watches(self) -> Iterator[WatchFigures]:
        views = self._from.views.incidents
        open_, changed = views.open(), views.changed()
        shown: set[str] = set()
        for each in sorted(views.watches(), key=lambda watch: -watch.heard_at):
            name = label(each.host)
            if name not in shown and len(shown) < HOSTS_MAX:
                shown.add(name)
                count, _ = open_.get(each.host, (0, 0.0))
                yield WatchFigures(name, count, each.host in changed, each.heard_at, each.silent)

    def _disks(self) -> Iterator[tuple[str, tuple[float, float]]]:
        store, database, datasets = self._from.store, self._from.database, self._from.datasets
        places = {"models": store.root}
        if database is not None:
            places["database"] = database.parent
        if datasets is not None:
            places["datasets"] = datasets.root
        for kind, place in places.items():
            with contextlib.suppress(OSError):
                usage = shutil.disk_usage(place)
                yield kind, (store.disk_free_bytes() if kind == "models" else usage.free, usage.total)

    def _stored(self) -> dict[str, int]:
        now = self._from.clock.monotonic()
        if now - self._sizes_at >= SIZES_S:
            self._sizes, self._sizes_at = self._add_up(), now
        return self._sizes

    def _add_up(self) -> dict[str, int]:
        row = self._from.reader.one("stored")
        found = {"models": int(row["size"]) if row else 0}
        if self._from.datasets is not None:
            with contextlib.suppress(StoreError):
                found["datasets"] = sum(each.about.size for each in self._from.datasets.sets())
        return found


def obstacle_of(
    needs: Needs,
    hosts: Iterable[tuple[Host, bool]],
    out: Mapping[str, str],
    resting: Mapping[str, str],
    datasets: Any,
) -> Obstacle | None:
    """Return what keeps jobs with these needs from every host, or ``None``.

    ``hosts`` says of each whether it was seen within a lease, ``out`` and ``resting`` name those that get no jobs now.
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
    """Make text from elsewhere fit for a label: printable, in one line, of at most 64 characters."""
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


def _bytes(reported: object, keys: Mapping[str, str]) -> dict[str, float]:
    """Read sizes in GiB that a worker reported; a value that is no size is left out."""
    values = reported if isinstance(reported, Mapping) else {}
    found = {kind: values.get(key) for kind, key in keys.items()}
    return {
        kind: value * GIB
        for kind, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
    }


def _size(path: Path | None, suffix: str = "") -> int:
    with contextlib.suppress(OSError):
        return 0 if path is None else path.with_name(path.name + suffix).stat().st_size
    return 0


def _shown(given: Iterable[Credential], now: float) -> Iterator[Credential]:
    """Keep of each owner what ends last; not what ended long ago, and not more names than are bounded."""
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
