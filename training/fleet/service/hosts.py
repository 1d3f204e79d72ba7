"""The hosts as the receiver remembers them: their capability, the time of their last message, their waiting claims."""

import math
from collections.abc import Collection, Mapping
from dataclasses import field, replace

from training.fleet.manifest.channels import NotifyChannel
from training.fleet.manifest.reader import closest
from training.fleet.scheduling.booking import UNTRIED_MOST
from training.fleet.scheduling.calibrations import Calibrations, calibrated
from training.fleet.scheduling.job import AT_BEST, Host, Needs
from training.fleet.scheduling.orders import PAUSE_MAX_S
from training.fleet.scheduling.policy import Fleet, Scheduling, is_named
from training.fleet.scheduling.retention import Rules
from training.frozen import frozen
from training.printable import counted
from training.strict_json import Json

HIDES_CUDA = {"CUDA_VISIBLE_DEVICES": "-1"}  # an empty value would be none on Windows
RESTING_CHARS = 300  # of the words of a condition that are kept


@frozen
class KnownHost:
    """A host as the receiver remembers it; the host's claims and its calls about attempts update ``last_seen``."""

    name: str
    capability: Json
    first_seen: float
    last_seen: float
    instance_id: str | None = None
    session_id: str | None = None
    trainer_digests: Mapping[str, str] = field(default_factory=dict)
    conflict: str | None = None  # a sentence about the last refused request of another installation with this id …
    conflict_at: float = 0.0  # … and its time by the receiver's monotonic clock
    verified: int = 0  # of its models; more than matter are not counted


@frozen
class Plan:
    """The parts of the manifest that the service uses."""

    # host → declared capability; model of ours → digest of its flags
    hosts: Mapping[str, Json] = field(default_factory=dict)
    trainer_digests: Mapping[str, str] = field(default_factory=dict)
    trainers: Mapping[str, Json] = field(default_factory=dict)  # own trainers' models
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
        """Map each data set of the plan that is not in ``here``, by the plan's name for it, to a sentence with the
        remedy and the number of its jobs; empty if ``here`` is None."""
        found = {}
        for each, (called, jobs) in sorted(self.dataset_jobs.items()):
            if here is not None and each not in here:
                held = counted(jobs, "jobs of the plan")
                found[called] = (
                    f"it is not here ({each[:12]}): push it; {held} must wait"
                    if each in self.datasets
                    else f"the name is unknown: push it and reload; until then {held} cannot be entered"
                )
        return found

    def declared(self, host: str) -> Json | None:
        """Return the host's table in ``[hosts]``, ignoring the case of the name; None if it has none."""
        names = (name for name in self.hosts if is_named(host, (name,)))
        return self.hosts.get(next(names, host))

    def names(self, host: str) -> bool:
        """Return True if the plan names this host: in ``[hosts]``, or in a job's lists of hosts."""
        return self.declared(host) is not None or is_named(host, self.named_hosts)

    def pause_max_s(self, host: str) -> float:
        """Return for how many seconds a trainer may stay paused on this host."""
        most_s: float = (self.declared(host) or {}).get("pause_max_s", PAUSE_MAX_S)
        return most_s

    def variables(self, host: str) -> dict[str, str] | None:
        """Return the environment variables for trainers on this host; None if there are none. If the plan hides the
        host's GPU, the variables hide the GPU from trainers too."""
        declared = self.declared(host) or {}
        if declared.get("cuda") is False:
            return {**(declared.get("env") or {}), **HIDES_CUDA}
        env: dict[str, str] | None = declared.get("env")
        return env


# The assumed capability of a machine never seen, unless the plan declares less.
_LARGEST_GPU = {"vram_free_gib": math.inf, "vram_total_gib": math.inf}
_UNSEEN = {**AT_BEST, "cuda_available": True, "cuda_devices": [_LARGEST_GPU]}


class HostRegistry:
    """The hosts that the receiver remembers, under the plan. The :class:`Host` that scheduling uses is cached for each
    host until the host, the plan or the receiver's data sets change."""

    def __init__(self, known: list[KnownHost], plan: Plan) -> None:
        self.known = {each.name: each for each in known}
        self._measured = {each.name: calibrated(each.capability.get("calibration")) for each in known}
        self._plan = plan
        self._calibrations: Calibrations | None = None  # replaced, never changed; None: to be made
        self._names = {name.lower() for name in self.known}
        self._declared = _at_their_best(plan)
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
        self._declared = _at_their_best(plan)
        if plan.bound_by != bound_before:
            self._calibrations = None

    @property
    def calibrations(self) -> Calibrations:
        """Return all hosts' calibrations; the same object until a calibration, or the plan's ``bound_by``, changes."""
        found = self._calibrations
        if found is None:
            found = self._calibrations = Calibrations(dict(self._measured), self._plan.bound_by)
        return found

    @property
    def datasets(self) -> frozenset[str] | None:
        """Return the ids of the data sets that the receiver has; None while they are not known."""
        return self._datasets

    @datasets.setter
    def datasets(self, here: frozenset[str] | None) -> None:
        self._datasets = here
        self._hosts.clear()

    def put(self, known: KnownHost) -> None:
        """Store this host, or replace the stored host of the same name."""
        before = self.known.get(known.name)
        self.known[known.name] = known
        self._names.add(known.name.lower())
        if before is None or (before.capability, before.trainer_digests) != (known.capability, known.trainer_digests):
            self._hosts.pop(known.name, None)
            self._calibrate(known.name, calibrated(known.capability.get("calibration")))

    def _calibrate(self, name: str, speeds: Mapping[str, float]) -> None:
        if speeds != self._measured.get(name, {}):
            self._measured[name] = speeds
            self._calibrations = None

    def forget(self, name: str) -> None:
        self.known.pop(name, None)
        self.resting.pop(name, None)
        self._names.discard(name.lower())
        self._hosts.pop(name, None)
        self._calibrate(name, {})

    def called(self, name: str) -> KnownHost | None:
        """Return the host with this name, ignoring case; None if no host has it."""
        found = self.known.get(name)
        if found is not None:
            return found
        return next((known for each, known in list(self.known.items()) if is_named(name, (each,))), None)

    def never_asked(self) -> dict[str, str]:
        """Map each host that the plan names, and that never asked for work, to a sentence with a remedy."""
        known = list(self.known)
        named = {**self.plan.named_hosts, **{name: f"[hosts.{name}]" for name in self.plan.hosts}}
        return {
            name: f"named in {named[name]}, but never asked for work; {_remedy(name, known)}"
            for name in sorted(named)
            if not is_named(name, known)
        }

    def missing_datasets(self) -> dict[str, str]:
        """Map each missing data set for which jobs of the plan wait, by the plan's name for it, to a sentence with the
        remedy."""
        return self.plan.missing(self._datasets)

    def heard(self, name: str, now: float) -> None:
        known = self.known.get(name)
        if known is not None:
            self.known[name] = replace(known, last_seen=now)

    def delivered(self, name: str) -> None:
        """Count a verified model of this host, up to ``UNTRIED_MOST``; an unknown host is ignored."""
        known = self.known.get(name)
        if known is not None and known.verified < UNTRIED_MOST:
            self.known[name] = replace(known, verified=known.verified + 1)
            self._hosts.pop(name, None)

    def rests(self, name: str, reason: str | None) -> None:
        """Store the owner's condition that keeps a host from training; with None, remove it. An unknown host is
        ignored."""
        if reason is None:
            self.resting.pop(name, None)
        elif name in self.known:
            self.resting[name] = reason[:RESTING_CHARS]

    def shift(self, step_s: float, latest: float) -> None:
        """Add ``step_s`` to the time at which each host was last seen, after the wall clock was set; the result is at
        most ``latest``."""
        self.known = {
            name: replace(known, last_seen=min(known.last_seen + step_s, latest)) for name, known in self.known.items()
        }

    def host(self, known: KnownHost) -> Host:
        """Return the host as a value for scheduling: its reported capability, limited by the manifest."""
        host = self._hosts.get(known.name)
        if host is None:
            ours, theirs = self.plan.trainer_digests, known.trainer_digests
            outdated = {model for model in ours if theirs and theirs.get(model) != ours[model]}
            declared = self.plan.declared(known.name)
            host = Host.of(known.name, known.capability, declared, outdated)
            untried = known.verified < UNTRIED_MOST and not self.plan.names(known.name)
            host = self._hosts[known.name] = replace(host, datasets=self._datasets, untried=untried)
        return host

    def fleet(self, *, heard_since: float, known_since: float, without: frozenset[str], to: str | None = None) -> Fleet:
        """Return the hosts for scheduling, except those in ``without``: the alive ones, the waiting ones, and the known
        ones (seen since ``known_since``, or never seen and in ``[hosts]``).

        Waiting hosts are returned only if their priority is higher than that of ``to``, the host that asks; without
        ``to``, all are. Any thread may call this.
        """
        asks = None if to is None else self.known.get(to)
        least = -math.inf if asks is None else self.host(asks).priority
        cached = self._hosts.get  # this is done for each ask of each of a thousand hosts
        there = [each for name, each in list(self.known.items()) if name not in without]
        alive = [cached(each.name) or self.host(each) for each in there if each.last_seen >= heard_since]
        known = [cached(each.name) or self.host(each) for each in there if each.last_seen >= known_since]
        waiting: list[Host] = []
        if least < max([0, *(host.priority for host in self._declared.values())]):
            waiting = [host for host in alive if host.priority > least and host.name in self._waiting]
        known += [host for name, host in self._declared.items() if name not in self._names]
        return Fleet(tuple(alive), tuple(waiting), tuple(known))

    def wait_begins(self, host: str, slot: int = 0) -> int:
        """Count one more open claim of ``host`` that waits for work on ``slot``; return the claim's number."""
        self._waiting[host] = self._waiting.get(host, 0) + 1
        self._polls += 1
        self._newest_poll.setdefault(host, {})[slot] = self._polls
        return self._polls

    def is_overtaken(self, host: str, poll: int, slot: int = 0) -> bool:
        """Return True if a newer claim for the same slot waits, so that the older claim's facts about the host are
        outdated."""
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


def _at_their_best(plan: Plan) -> dict[str, Host]:
    """Return the plan's hosts by lower-case name, each with the best capability that its declaration allows, for use
    until the host asks for work."""
    return {name.lower(): Host.of(name, _UNSEEN, said) for name, said in plan.hosts.items()}


def _remedy(name: str, known: Collection[str]) -> str:
    alike = closest(name, known)
    return f"did you mean {alike}?" if alike else "start its worker, or correct the name"
