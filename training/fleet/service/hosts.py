"""The hosts as the receiver remembers them: capability, time of the last message, waiting claims."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from training.fleet.manifest.channels import NotifyChannel
from training.fleet.manifest.reader import closest
from training.fleet.scheduling.calibrations import Calibrations, calibrated
from training.fleet.scheduling.job import AT_BEST, Host, Needs
from training.fleet.scheduling.policy import Fleet, Scheduling, is_named
from training.fleet.scheduling.retention import Rules
from training.printable import counted

HIDES_CUDA = {"CUDA_VISIBLE_DEVICES": "-1"}  # an empty value would be none on Windows
RESTING_CHARS = 300  # of the words of a condition that are kept


@dataclass(frozen=True, slots=True)
class KnownHost:
    """A host as the receiver remembers it; every message of the host updates ``last_seen``."""

    name: str
    capability: Mapping[str, Any]
    first_seen: float
    last_seen: float
    instance_id: str | None = None
    session_id: str | None = None
    trainer_digests: Mapping[str, str] = field(default_factory=dict)
    conflict: str | None = None  # time of a request by a second installation with this id …
    conflict_at: float = 0.0  # … by the receiver's monotonic clock


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts of the manifest that the service uses."""

    # host → declared capability; model of ours → digest of its flags
    hosts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trainer_digests: Mapping[str, str] = field(default_factory=dict)
    trainers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # own trainers' models
    # data set → which models, on which hosts, train on it
    datasets: Mapping[str, frozenset[Needs]] = field(default_factory=dict)
    # name of a data set in the plan → its data set when the plan was read
    dataset_names: Mapping[str, str] = field(default_factory=dict)
    # warnings: valid in the file, but hardly meant; a sentence each
    notes: tuple[str, ...] = ()
    # every host that its jobs name → the first such job, and its key
    named_hosts: Mapping[str, str] = field(default_factory=dict)
    # data set, or an unknown name → the plan's reference, and its number of jobs
    dataset_jobs: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    channels: tuple[NotifyChannel, ...] = ()  # for notices
    retention: Rules = field(default_factory=Rules)
    scheduling: Scheduling = Scheduling.SOONEST
    bound_by: Mapping[str, str] = field(default_factory=dict)  # model → the sort of work that its trainer declares

    def missing(self, here: Collection[str] | None) -> dict[str, str]:
        """List the missing data sets of the plan, each with the number of its waiting jobs."""
        found = {}
        for each, (called, jobs) in sorted(self.dataset_jobs.items()):
            if here is not None and each not in here:
                held = counted(jobs, "jobs of the plan") if jobs > 1 else "1 job of the plan"
                found[called] = (
                    f"it is not here ({each[:12]}): push it; {held} must wait"
                    if each in self.datasets
                    else f"the name is unknown: push it and reload; until then {held} cannot be entered"
                )
        return found

    def declared(self, host: str) -> Mapping[str, Any] | None:
        """Return the host's declaration in ``[hosts]``, if any."""
        names = (name for name in self.hosts if is_named(host, (name,)))
        return self.hosts.get(next(names, host))

    def variables(self, host: str) -> dict[str, str] | None:
        """Return the variables for trainers on this host; if the GPU is hidden, they hide it from trainers too."""
        declared = self.declared(host) or {}
        if declared.get("cuda") is False:
            return {**(declared.get("env") or {}), **HIDES_CUDA}
        env: dict[str, str] | None = declared.get("env")
        return env


# The assumed capability of a machine never seen, unless the plan declares less.
_LARGEST_GPU = {"vram_free_gib": math.inf, "vram_total_gib": math.inf}
_UNSEEN = {**AT_BEST, "cuda_available": True, "cuda_devices": [_LARGEST_GPU]}


@dataclass(slots=True)
class _Heard:
    """A cached list of the hosts seen since a time; valid for any time from ``since`` to ``oldest``, until another host
    comes."""

    comings: int
    since: float
    oldest: float
    hosts: dict[str, Host]
    highest: float  # of their priorities, which the plan alone changes

    def holds(self, comings: int, since: float) -> bool:
        return comings == self.comings and self.since <= since <= self.oldest

    def but(self, without: Collection[str]) -> tuple[Host, ...]:
        """List the hosts except those named."""
        found = self.hosts.copy()
        for name in without:
            found.pop(name, None)
        return tuple(found.values())

    def changed(self, host: Host) -> None:
        if host.name in self.hosts:
            self.hosts[host.name] = host


class HostRegistry:
    """All hosts that ever asked for work. Each one's view for scheduling is computed once and cached."""

    def __init__(self, known: list[KnownHost], plan: Plan) -> None:
        self.known = {each.name: each for each in known}
        self._measured = {each.name: calibrated(each.capability.get("calibration")) for each in known}
        self._plan = plan
        self._calibrations: Calibrations | None = None  # replaced, never changed; None: to be made
        self._comings = 0  # rises when a host comes, is back, or is forgotten
        self._alive = self._known = _Heard(-1, math.inf, -math.inf, {}, -math.inf)
        self._unseen: tuple[int, tuple[Host, ...]] = (-1, ())
        self._datasets: frozenset[str] | None = None
        self._hosts: dict[str, Host] = {}
        self._waiting: dict[str, int] = {}  # host → its open polls
        self._newest_poll: dict[str, dict[int, int]] = {}  # waiting host → slot → the number of its newest poll
        self._polls = 0  # so many have begun
        self.resting: dict[str, str] = {}  # host → the condition of its owner that keeps it from training

    @property
    def plan(self) -> Plan:
        return self._plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        bound_before, self._plan = self._plan.bound_by, plan
        self._hosts.clear()
        self._comings += 1
        if plan.bound_by != bound_before:
            self._calibrations = None

    @property
    def calibrations(self) -> Calibrations:
        """All hosts' calibrations; the same object until one changes."""
        found = self._calibrations
        if found is None:
            found = self._calibrations = Calibrations(dict(self._measured), self._plan.bound_by)
        return found

    @property
    def datasets(self) -> frozenset[str] | None:
        """The data sets that the receiver has; ``None`` before they are first read."""
        return self._datasets

    @datasets.setter
    def datasets(self, here: frozenset[str] | None) -> None:
        self._datasets = here
        self._hosts.clear()
        self._comings += 1

    def put(self, known: KnownHost) -> None:
        """Remember this host, or update it."""
        before = self.known.get(known.name)
        self.known[known.name] = known
        self._comes(before, known.last_seen)
        if before is None or (before.capability, before.trainer_digests) != (known.capability, known.trainer_digests):
            self._hosts.pop(known.name, None)
            for heard in (self._alive, self._known):
                heard.changed(self.host(known))
            self._calibrate(known.name, calibrated(known.capability.get("calibration")))

    def _calibrate(self, name: str, speeds: Mapping[str, float]) -> None:
        if speeds != self._measured.get(name, {}):
            self._measured[name] = speeds
            self._calibrations = None

    def _comes(self, before: KnownHost | None, last_seen: float) -> None:
        """Record that a host was seen; drop cached lists if the host was not in them, or the clock was set."""
        if before is None or before.last_seen < self._alive.since or last_seen < self._alive.oldest:
            self._comings += 1

    def forget(self, name: str) -> None:
        self.known.pop(name, None)
        self.resting.pop(name, None)
        self._comings += 1
        self._hosts.pop(name, None)
        self._calibrate(name, {})

    def called(self, name: str) -> KnownHost | None:
        """Find the host with this name, ignoring case."""
        found = self.known.get(name)
        if found is not None:
            return found
        return next((known for each, known in list(self.known.items()) if is_named(name, (each,))), None)

    def never_asked(self) -> dict[str, str]:
        """List the plan's hosts that never asked for work, each with a remedy."""
        known = list(self.known)
        named = {**self.plan.named_hosts, **{name: f"[hosts.{name}]" for name in self.plan.hosts}}
        return {
            name: f"named in {named[name]}, it has never asked for work; {_remedy(name, known)}"
            for name in sorted(named)
            if not is_named(name, known)
        }

    def missing_datasets(self) -> dict[str, str]:
        """List the missing data sets for which jobs of the plan wait, by the plan's names."""
        return self.plan.missing(self._datasets)

    def heard(self, name: str, now: float) -> None:
        known = self.known.get(name)
        if known is not None:
            self.known[name] = replace(known, last_seen=now)
            self._comes(known, now)

    def rests(self, name: str, reason: str | None) -> None:
        """Record the owner's condition that keeps a host from training; None: no condition does."""
        if reason is None:
            self.resting.pop(name, None)
        elif name in self.known:
            self.resting[name] = reason[:RESTING_CHARS]

    def shift(self, step_s: float, latest: float) -> None:
        """Shift all times after the wall clock was set."""
        self.known = {
            name: replace(known, last_seen=min(known.last_seen + step_s, latest)) for name, known in self.known.items()
        }
        self._comings += 1

    def host(self, known: KnownHost) -> Host:
        """Return the host as scheduling sees it: the detected capability, limited by the manifest."""
        host = self._hosts.get(known.name)
        if host is None:
            ours, theirs = self.plan.trainer_digests, known.trainer_digests
            outdated = {model for model in ours if theirs and theirs.get(model) != ours[model]}
            declared = self.plan.declared(known.name)
            host = Host.of(known.name, known.capability, declared, outdated)
            host = self._hosts[known.name] = replace(host, datasets=self._datasets)
        return host

    def fleet(self, *, heard_since: float, known_since: float, without: frozenset[str], to: str | None = None) -> Fleet:
        """List the hosts that are alive, for scheduling, except those named; of waiting hosts only those that go before
        the host ``to``, if given.

        As a thousand hosts ask often, the list is cached and computed again only after a change. So only the thread
        that receives the hosts' messages may call it; others call :meth:`looked_up`.
        """
        if not self._alive.holds(self._comings, heard_since):
            self._alive = self._heard(heard_since)
        if not self._known.holds(self._comings, known_since):
            self._known = self._heard(known_since)
        return self._fleet(self._alive, self._known, without, to)

    def looked_up(self, *, heard_since: float, known_since: float, without: frozenset[str], to: str) -> Fleet:
        """Return what :meth:`fleet` returns, computed from all hosts; for any thread."""
        return self._fleet(self._heard(heard_since), self._heard(known_since), without, to)

    def _fleet(self, alive: _Heard, known: _Heard, without: frozenset[str], to: str | None) -> Fleet:
        asks = None if to is None else self.known.get(to)
        least = -math.inf if asks is None else self.host(asks).priority
        living = alive.but(without)
        waiting: tuple[Host, ...] = ()
        if least < alive.highest:
            waiting = tuple(host for host in living if host.priority > least and host.name in self._waiting)
        return Fleet(living, waiting, (*known.but(without), *self._never_seen()))

    def _heard(self, since: float) -> _Heard:
        comings = self._comings
        heard = [each for each in list(self.known.values()) if each.last_seen >= since]
        hosts = {each.name: self.host(each) for each in heard}
        oldest = min((each.last_seen for each in heard), default=math.inf)
        highest = max((host.priority for host in hosts.values()), default=-math.inf)
        return _Heard(comings, since, oldest, hosts, highest)

    def _never_seen(self) -> tuple[Host, ...]:
        """Return the plan's hosts that never asked for work, with the best capability that the plan allows."""
        comings = self._comings
        if self._unseen[0] != comings:
            names = {name.lower() for name in list(self.known)}
            declared = {name: said for name, said in self.plan.hosts.items() if name.lower() not in names}
            self._unseen = comings, tuple(Host.of(name, _UNSEEN, said) for name, said in declared.items())
        return self._unseen[1]

    def wait_begins(self, host: str, slot: int = 0) -> int:
        """Count an open claim of ``host`` that waits for work; return its number."""
        self._waiting[host] = self._waiting.get(host, 0) + 1
        self._polls += 1
        self._newest_poll.setdefault(host, {})[slot] = self._polls
        return self._polls

    def is_overtaken(self, host: str, poll: int, slot: int = 0) -> bool:
        """Return True if a newer claim for the same slot waits: the older claim's facts about the host are outdated."""
        return self._newest_poll[host].get(slot, poll) > poll

    def waiting_claims(self) -> int:
        """Count the open claims that wait for work."""
        return sum(list(self._waiting.values()))

    def waiting_hosts(self) -> list[str]:
        """Return the hosts with an open claim that waits for work."""
        return list(self._waiting)

    def wait_ends(self, host: str) -> None:
        self._waiting[host] -= 1
        if not self._waiting[host]:
            del self._waiting[host], self._newest_poll[host]


def _remedy(name: str, known: Collection[str]) -> str:
    alike = closest(name, known)
    return f"did you mean {alike}?" if alike else "start its worker, or correct the name"
