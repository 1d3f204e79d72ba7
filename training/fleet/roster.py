"""The hosts as the receiver remembers them: what they can do, when they were heard, who of them waits for work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from training.fleet.job import Host, Needs
from training.fleet.policy import Fleet


@dataclass(frozen=True, slots=True)
class KnownHost:
    """A host as the receiver remembers it; ``last_seen`` moves with every message."""

    name: str
    capability: Mapping[str, Any]
    first_seen: float
    last_seen: float
    instance_id: str | None = None
    session_id: str | None = None
    trainer_digests: Mapping[str, str] = field(default_factory=dict)
    conflict: str | None = None  # a second installation with this id asked while this one lived


@dataclass(frozen=True, slots=True)
class Plan:
    """What a manifest means for the service."""

    # host → declared capability; program → digest of its flags; program → its models
    hosts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trainer_digests: Mapping[str, str] = field(default_factory=dict)
    trainer_models: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # data set → which models, on which hosts, train on it
    datasets: Mapping[str, frozenset[Needs]] = field(default_factory=dict)


class Roster:
    """Every host that ever asked. What the decision knows of each is worked out once and kept."""

    def __init__(self, known: list[KnownHost], plan: Plan) -> None:
        self.known = {each.name: each for each in known}
        self._plan = plan
        self._hosts: dict[str, Host] = {}
        self._waiting: dict[str, int] = {}  # host → its open polls

    @property
    def plan(self) -> Plan:
        return self._plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        self._plan = plan
        self._hosts.clear()

    def put(self, known: KnownHost) -> None:
        """Remember this of the host from now on."""
        before = self.known.get(known.name)
        self.known[known.name] = known
        if before is None or (before.capability, before.trainer_digests) != (
            known.capability,
            known.trainer_digests,
        ):
            self._hosts.pop(known.name, None)

    def heard(self, name: str, now: float) -> None:
        known = self.known.get(name)
        if known is not None:
            self.known[name] = replace(known, last_seen=now)

    def shift(self, step_s: float, latest: float) -> None:
        """The clock stepped, and what it stamped moves along."""
        self.known = {
            name: replace(known, last_seen=min(known.last_seen + step_s, latest))
            for name, known in self.known.items()
        }

    def host(self, known: KnownHost) -> Host:
        """What the decision knows of this host: detected, cut down to what the manifest declares."""
        host = self._hosts.get(known.name)
        if host is None:
            outdated: set[str] = set()
            for program, theirs in known.trainer_digests.items():
                if self.plan.trainer_digests.get(program, theirs) != theirs:
                    outdated |= self.plan.trainer_models.get(program, frozenset())
            declared = self.plan.hosts.get(known.name)
            host = Host.of(known.name, known.capability, declared, outdated)
            self._hosts[known.name] = host
        return host

    def fleet(self, *, heard_since: float, without: frozenset[str]) -> Fleet:
        """The hosts that may be counted on, as the decision wants them, but for those named."""
        alive = {
            known.name: self.host(known)
            for known in list(self.known.values())
            if known.last_seen >= heard_since and known.name not in without
        }
        waiting = tuple(host for name, host in alive.items() if name in self._waiting)
        return Fleet(tuple(alive.values()), waiting)

    def wait_begins(self, host: str) -> None:
        """An open request of ``host`` waits for work."""
        self._waiting[host] = self._waiting.get(host, 0) + 1

    def wait_ends(self, host: str) -> None:
        self._waiting[host] -= 1
        if not self._waiting[host]:
            del self._waiting[host]
