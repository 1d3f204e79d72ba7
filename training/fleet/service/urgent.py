"""Urgent jobs that wait: the facts by which it is decided who gives way to them, and the note of it.

The worker of who is asked hears of it with its next heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from training.fleet.database.writer import Row
from training.fleet.queue.classes import JobClass
from training.fleet.queue.interruptions import Asked
from training.fleet.queue.kinds import Live
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.durations import Machine
from training.fleet.scheduling.interruption import NEVER, Trains, Urgent, interruptions
from training.fleet.scheduling.job import Host, Needs
from training.fleet.scheduling.policy import Fleet
from training.fleet.scheduling.resources import Held
from training.fleet.service.out import taken_out
from training.fleet.service.service import Service

URGENT_MAX = 20  # jobs that are looked at


@dataclass(frozen=True, slots=True)
class _Waits:
    """An urgent job that may be granted now."""

    row: Row
    job_class: JobClass

    @property
    def rank(self) -> tuple[int, float, int]:
        return rules.rank(self.row["priority"], self.row["claimable_at"], self.row["seq"])


@dataclass(frozen=True, slots=True)
class UrgentJobs:
    """Asks attempts to give way. Call :meth:`due` on the writer's thread every few seconds."""

    service: Service

    def due(self) -> list[Asked]:
        """Ask whoever is to give way now; returns them."""
        waiting = sorted(self._waiting(), key=lambda each: each.rank)[:URGENT_MAX]
        if not waiting or not self.service.may_grant:
            return []
        service, queue, kinds = self.service, self.service.queue, self.service.queue.ahead.kinds
        fleet = service.fleet(out=taken_out(queue.db, service.host_registry))
        hosts = {host.name: host.at_best() for host in fleet.alive}
        machines = {host.name: Machine.of(host) for host in fleet.alive}
        training = [each for each in kinds.live() if each.host in hosts and each.heard_s is not None]
        kinds.look((each, machines[each.host]) for each in training)
        now, lately = queue.clock.now(), queue.interruptions.lately()
        since = {each.job_id: now - each.at for each in lately} | {each.urgent_id: now - each.at for each in lately}
        gets = {each.urgent_id: each.claim_id for each in lately if each.stands}
        classes = queue.classes.pending()
        asked = []
        for each in waiting:
            row, needs, fitting = each.row, kinds.needs(each.job_class), self._fitting(each, hosts, fleet, now)
            told = kinds.predictions(each.job_class, {name: machines[name] for name in fitting})
            asked.append(
                Urgent(
                    job_id=row["job_id"],
                    needs=needs,
                    seconds={name: told[name].mean for name in fitting},
                    priority=row["priority"],
                    behind=self._behind(row["priority"], classes, fitting),
                    asked_s=since.get(row["job_id"], NEVER),
                    gets=gets.get(row["job_id"]),
                )
            )
        numbers = {each.row["job_id"]: each.row["attempt"] for each in waiting}
        names = {each.claim_id: each.name for each in training}
        trains = [self._trains(each, machines[each.host], since) for each in training]
        decided = interruptions(asked, hosts, trains, service.policy)
        for one in decided:
            queue.interruptions.ask(one, names[one.claim_id], numbers[one.job_id])
        claims = {one.claim_id for one in decided}
        return [each for each in queue.interruptions.standing() if each.claim_id in claims]

    def _waiting(self) -> Iterator[_Waits]:
        queue = self.service.queue
        for each in queue.classes.pending():
            if each.needs.urgent:
                page = {"class_id": each.class_id, "now": queue.clock.now(), "most": URGENT_MAX}
                for row in queue.db.all("urgent_first", **page):
                    yield _Waits(row, each)

    def _fitting(self, of: _Waits, hosts: Mapping[str, Host], fleet: Fleet, now: float) -> dict[str, Host]:
        """Return the hosts that may have such a job, once there is room."""
        row, needs = of.row, of.job_class.needs
        avoided = row["avoid_host"] if row["avoid_until"] is not None and row["avoid_until"] > now else ""
        waited_s = now - row["claimable_at"]
        return {
            name: host
            for name, host in hosts.items()
            if name != avoided
            and rules.fits(needs, host) is None
            and rules.hold(needs, host, Fleet(known=fleet.known), self.service.policy).seconds <= waited_s
        }

    def _behind(self, priority: int, classes: list[JobClass], hosts: Mapping[str, Host]) -> frozenset[str]:
        """Return the hosts that are to have a job of a higher priority first."""
        above = list[Needs]()
        for each in classes:
            row = self.service.queue.db.one("best_of_class", class_id=each.class_id)
            if row is not None and row["priority"] > priority:
                above.append(each.needs)
        return frozenset(name for name, host in hosts.items() if any(rules.fits(one, host) is None for one in above))

    def _trains(self, live: Live, on: Machine, since: Mapping[str, float]) -> Trains:
        return Trains(
            claim_id=live.claim_id,
            job_id=live.job_id,
            host=live.host,
            held=Held(live.booked),
            left_s=self.service.queue.ahead.kinds.left(live, on)[0],
            priority=live.priority,
            urgent=live.job_class.needs.urgent,
            resumable=live.resumable,
            grants_left=self.service.policy.max_grants - live.grants,
            asked_s=since.get(live.job_id, NEVER),
        )
