"""Wake sleeping hosts: collect the facts for the decision, and record it. Another module sends the packet."""

import math
from dataclasses import dataclass, field
from itertools import islice

from training.fleet.queue.kinds import PendingKind
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.job import JobStatus
from training.fleet.scheduling.wake import Sleeper, Waits, to_wake
from training.fleet.service.service import Service

KINDS_MAX = 200  # that are looked at


@dataclass
class Wakes:
    """The decision which sleeping hosts to wake. Call :meth:`due` on the writer's thread every few seconds."""

    service: Service
    _tries: dict[str, tuple[int, float]] = field(default_factory=dict)  # host → how often, and when last

    @property
    def any_can_be(self) -> bool:
        """Return True if the plan has the hardware address of any host."""
        return any(said.get("mac") for said in self.service.plan.hosts.values())

    def due(self) -> dict[str, str]:
        """Map each host to wake now to its hardware address; record the waking in the history of one job of each kind
        that is a reason."""
        macs = self._asleep()
        if not macs:
            return {}
        service, ahead, now = self.service, self.service.queue.ahead, self.service.queue.clock.monotonic()
        tried = {host: self._tries.get(host, (0, -math.inf)) for host in macs}
        sleepers = [Sleeper(host, tries, now - at) for host, (tries, at) in tried.items()]
        kinds = islice(ahead.kinds.waiting(service.queue.clock.now()), KINDS_MAX)
        waiting = {each.key: each for each in kinds}
        if not waiting:
            return {}
        awake = service.fleet(out=service.taken_out(service.queue.db)).alive
        ahead.renew(awake, service.policy)
        chosen = to_wake((self._waits(each, list(macs), now) for each in waiting.values()), sleepers)
        for host, kind in chosen.items():
            self._tries[host] = tried[host][0] + 1, now
            self._note(host, waiting[kind])
        return {host: macs[host] for host in chosen}

    def _asleep(self) -> dict[str, str]:
        """Map each host that was silent for a lease, may get jobs, and can be woken, to its hardware address."""
        service, found = self.service, dict[str, str]()
        if not self.any_can_be:
            return found
        out = service.taken_out(service.queue.db)
        for known in service.known_hosts():
            mac = (service.plan.declared(known.name) or {}).get("mac")
            if not mac or known.name in out:
                continue
            if service.alive(known):
                self._tries.pop(known.name, None)
            else:
                found[known.name] = mac
        return found

    def _waits(self, of: PendingKind, hosts: list[str], now: float) -> Waits:
        """Return how long a pending job of this kind would take on each sleeping host that fits, and when the last such
        job ends on awake ones."""
        registry, ahead = self.service.host_registry, self.service.queue.ahead
        asleep = [registry.host(registry.known[host]).at_best() for host in hosts if host != of.gate]
        fitting = [each.name for each in asleep if rules.fits(of.job_class.needs, each) is None]
        told = ahead.kinds.predictions(of.job_class, fitting)
        made, since_s = ahead.rolling.made, now - ahead.rolling.made_at
        shares = [share for each in (made.shares if made is not None else ()) for share in each]
        ends = [share.end_s - since_s for share in shares if share.kind == of.key]
        return Waits(of.key, {host: each.mean for host, each in told.items()}, max(ends, default=None))

    def _note(self, host: str, of: PendingKind) -> None:
        queue = self.service.queue
        at = {"class_id": of.job_class.class_id, "avoid_host": of.gate, "below": of.priority + 1}
        row = queue.db.one("head", host=host, **at)
        if row is not None:
            detail = f"{host} is asleep and would have it done sooner"
            queue.events.moved("wake", row["job_id"], JobStatus.PENDING, JobStatus.PENDING, detail=detail)
