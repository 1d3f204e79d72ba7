"""Wake hosts that sleep: collect the facts for the decision, and record it. The packet is sent elsewhere."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from training.fleet.queue.kinds import OPEN, PendingKind, kind_of
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.job import JobStatus
from training.fleet.scheduling.wake import Sleeper, Waits, to_wake
from training.fleet.service.service import Service
from training.fleet.service.unavailable import taken_out

KINDS_MAX = 200  # that are looked at


@dataclass(frozen=True, slots=True)
class Wake:
    """A host to be woken now."""

    host: str
    mac: str


@dataclass
class Wakes:
    """Decides which hosts to wake. Call :meth:`due` on the writer's thread every few seconds."""

    service: Service
    _tries: dict[str, tuple[int, float]] = field(default_factory=dict)  # host → how often, and when last

    @property
    def any_can_be(self) -> bool:
        """Return True if the plan has some host's hardware address."""
        return any(said.get("mac") for said in self.service.plan.hosts.values())

    def due(self) -> list[Wake]:
        """Return the hosts to wake now, and record that in the history of the jobs that are the reason."""
        macs = self._asleep()
        if not macs:
            return []
        service, ahead, now = self.service, self.service.queue.ahead, self.service.queue.clock.monotonic()
        sleepers = [Sleeper(host, *self._tried(host, now)) for host in macs]
        waiting = {
            each.key: each
            for _, each in zip(range(KINDS_MAX), ahead.kinds.waiting(service.queue.clock.now()), strict=False)
        }
        if not waiting:
            return []
        awake = service.fleet(out=taken_out(service.queue.db, service.host_registry)).alive
        ahead.renew(awake, service.policy)
        chosen = to_wake((self._waits(each, list(macs), now) for each in waiting.values()), sleepers)
        for host, kind in chosen.items():
            tries, _ = self._tries.get(host, (0, 0.0))
            self._tries[host] = tries + 1, now
            self._note(host, waiting[kind])
        return [Wake(host, macs[host]) for host in chosen]

    def _asleep(self) -> dict[str, str]:
        """Map the hosts that are silent for a lease, and can be woken, to their hardware address."""
        service, found = self.service, dict[str, str]()
        if not self.any_can_be:
            return found
        out = taken_out(service.queue.db, service.host_registry)
        for known in service.known_hosts():
            mac = (service.plan.declared(known.name) or {}).get("mac")
            if not mac or known.name in out:
                continue
            if service.alive(known):
                self._tries.pop(known.name, None)
            else:
                found[known.name] = mac
        return found

    def _tried(self, host: str, now: float) -> tuple[int, float]:
        tries, at = self._tries.get(host, (0, -math.inf))
        return tries, now - at

    def _waits(self, of: PendingKind, hosts: list[str], now: float) -> Waits:
        """Return how long waiting jobs would take on sleeping hosts, and when the last of them ends on awake ones."""
        registry, ahead = self.service.host_registry, self.service.queue.ahead
        asleep = [registry.host(registry.known[host]).at_best() for host in hosts]
        fitting = [host.name for host in asleep if rules.fits(of.job_class.needs, host) is None]
        told = ahead.kinds.predictions(of.job_class, fitting)
        made, since_s = ahead.rolling.made, now - ahead.rolling.made_at
        shares = [share for each in (made.shares if made is not None else ()) for share in each]
        ends = [share.end_s - since_s for share in shares if share.kind == kind_of(of.job_class.class_id, of.priority)]
        return Waits(of.key, {host: each.mean for host, each in told.items()}, max(ends, default=None))

    def _note(self, host: str, of: PendingKind) -> None:
        queue = self.service.queue
        row = queue.db.one("head", class_id=of.job_class.class_id, avoid_host=OPEN, below=of.priority + 1)
        if row is not None:
            detail = f"{host} is asleep and would have it done sooner"
            queue.events.moved("wake", row["job_id"], JobStatus.PENDING, JobStatus.PENDING, detail=detail)
