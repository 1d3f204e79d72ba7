"""The promises of a plan that is to be done soonest: who waits for whom, how long at most, and who must not."""

from __future__ import annotations

import math
from typing import Any

from simulation.grant_checkers import PILE, LifeSigns, misfit, most_at_once, training
from simulation.memory import at_best
from simulation.scenario import Scenario
from simulation.witness import Checker, Facts, Observation, Witness
from simulation.world import World
from training.fleet.queue.choose import BEING_MADE
from training.fleet.scheduling.policy import Scheduling
from training.fleet.wire.messages import ClaimReply, DeclinedView

Kind = tuple[int, int]  # class and priority

_MAKING_MOST_S = 300.0  # until a schedule is made that a host waits for …
_ASKS_S = 60.0  # … who asks at least so often, or was away
_SLACK_S = 2.0  # a row is kept to the second


class ScheduleChecker(Checker):
    """The answer to a claim, and the jobs that its host might have had."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        super().__init__(world)
        self.policy = scenario.policy
        self.hosts = scenario.hosts
        self.soonest = scenario.scheduling is Scheduling.SOONEST
        self.witness: Witness
        self.clock_is_true = True  # nothing stepped since the receiver's last look

    def restarted(self, witness: Witness) -> None:
        self.witness = witness

    def stepped(self) -> None:
        """The receiver's wall clock steps now."""
        self.clock_is_true = False

    def see(self, seen: Observation) -> None:
        if seen.call.name == "tick":
            self.clock_is_true = True
        if seen.call.name == "claim" and seen.error is None and not seen.result.repeated:
            self.asked(seen, seen.call.message, seen.result)

    def asked(self, seen: Observation, request: Any, reply: ClaimReply) -> None:
        """A host asked, and this is the answer."""

    def stands_back(self, seen: Observation, request: Any) -> bool:
        """Return True when the host gets none whatever waits: it is out or full, or the receiver's disk is."""
        held = sum(live.host == request.host_id for live in seen.after.live.values())
        most = most_at_once(request.capability, self.hosts.get(request.host_id, {}))
        before = any(live.host == request.host_id for live in seen.before.live.values())
        full = training(self.witness, request.host_id) >= most or held >= PILE * most
        full = full or (before and most > 1)  # perhaps nothing fits beside
        return self.witness.receiver.disk.full or request.host_id in seen.after.out or full

    def might_have(self, facts: Facts, seen: Observation, request: Any) -> bool:
        """Return True when nothing stands between a job and the host that asks: no back-off, no grace, no gate."""
        now = self.witness.receiver.clock.now()
        avoided = facts.avoid_host == request.host_id and (facts.avoid_until or 0.0) > now
        spec = facts.wants()
        prefers = self.policy.prefer_cuda_grace_s if spec.get("prefer_cuda") else 0.0
        return (
            facts.status == "pending"
            and not facts.held_by
            and not avoided
            and facts.claimable_at + prefers + self.policy.host_priority_grace_s <= now
            and misfit(spec, request.host_id, request.capability, self.hosts.get(request.host_id, {})) is None
        )


class WaitsAreBounded(ScheduleChecker):
    """A host waits no longer than it was told, whatever it is told later, and by whichever run of the receiver."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        super().__init__(world, scenario)
        self._told: dict[tuple[str, Kind], float] = {}  # host and kind → until when at most
        self._stepped = False

    def stepped(self) -> None:
        super().stepped()
        self._stepped = True

    def restarted(self, witness: Witness) -> None:
        super().restarted(witness)
        if self._stepped:  # rows tell the time by a clock that is another now
            self._told.clear()
        self._stepped = False

    def see(self, seen: Observation) -> None:
        if self._told and seen.after.jobs is not seen.before.jobs:
            waiting = {_kind(facts) for facts in seen.after.jobs.values() if _is_scheduled(facts)}
            self._told = {key: until for key, until in self._told.items() if key[1] in waiting}
        super().see(seen)

    def asked(self, seen: Observation, request: Any, reply: ClaimReply) -> None:
        host = request.host_id
        if reply.claim_id is not None:
            self._told = {key: until for key, until in self._told.items() if key[0] != host}
            return
        if self.clock_is_true and not reply.ask_again and not self.stands_back(seen, request):
            for (name, kind), until in self._told.items():
                if name == host and until < seen.at - _SLACK_S:
                    self._no_job_of(kind, seen, request, until)
        if reply.declined is not None:
            self._hear(seen, host, reply, reply.declined)

    def _no_job_of(self, kind: Kind, seen: Observation, request: Any, until: float) -> None:
        late_s = seen.at - until
        for facts in seen.after.jobs.values():
            open_ = _kind(facts) == kind and _is_scheduled(facts) and self.might_have(facts, seen, request)
            self.demand(not open_, f"{request.host_id} waits {late_s:.0f} s longer than it was told")

    def _hear(self, seen: Observation, host: str, reply: ClaimReply, told: DeclinedView) -> None:
        now = self.witness.receiver.clock.now()
        times = (told.begins_at, told.ends_at, told.here_until, told.open_at)
        self.demand(all(map(math.isfinite, times)), f"{host} was told of the times {times}")
        self.demand(now - 1.0 <= told.begins_at <= told.ends_at, f"{host} was told of an end before the beginning")
        asks_s = -1.0 if reply.retry_after_s is None else reply.retry_after_s
        self.demand(
            0.0 <= asks_s <= max(0.0, told.open_at - now) + 1e-3, f"{host} is to ask again after {asks_s:.0f} s"
        )
        until = seen.at + told.open_at - now
        kind = _kind(seen.after.jobs[told.job_id])
        before = self._told.get((host, kind), math.inf)
        self.demand(until <= before + _SLACK_S, f"{host} was told to wait {until - before:.0f} s longer than before")
        self._told[host, kind] = min(until, before)


class DeclinedForTheBetter(ScheduleChecker):
    """No host that might have a job goes without one, but for a host that lives, is let in, and can do it; or for the
    moment in which the schedule is being made."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        super().__init__(world, scenario)
        self._signs = LifeSigns()
        self._asked: dict[str, dict[str, Any]] = {}  # host → with what
        self._awaits: dict[str, tuple[float, float]] = {}  # host → since when it waits for a schedule, and asked last
        self._never_stepped = True  # what was stamped by a clock that stepped may be wrong for good

    def stepped(self) -> None:
        super().stepped()
        self._never_stepped = False

    def see(self, seen: Observation) -> None:
        self.lost(seen)
        super().see(seen)

    def lost(self, seen: Observation) -> None:
        self._signs.see(seen)
        if seen.call.name == "claim" and seen.error is None:
            self._asked[seen.call.message.host_id] = seen.call.message.capability

    def asked(self, seen: Observation, request: Any, reply: ClaimReply) -> None:
        host, told = request.host_id, reply.declined
        self.demand(told is None or self.soonest, f"{host} was declined in a plan of first come, first served")
        if reply.reason != BEING_MADE:
            self._awaits.pop(host, None)
        if reply.claim_id is not None or self.stands_back(seen, request) or not self.clock_is_true:
            return
        if told is not None:
            self._better(seen, host, told)
            return
        if reply.reason == BEING_MADE:
            since, last = self._awaits.get(host, (seen.at, seen.at))
            since = since if seen.at - last < _ASKS_S else seen.at
            self._awaits[host] = since, seen.at
            for_s = seen.at - since
            self.demand(for_s <= _MAKING_MOST_S, f"{host} waits for a schedule for {for_s:.0f} s")
            return
        for facts in seen.after.jobs.values():
            idle = not reply.ask_again and self.might_have(facts, seen, request)
            self.demand(not idle, f"{host} got none though it might have {facts.job_id[:8]}: {reply.reason}")

    def _better(self, seen: Observation, host: str, told: DeclinedView) -> None:
        by, spec = told.by, seen.after.jobs[told.job_id].wants()
        self.demand(by != host, f"{host} is to wait for itself")
        self.demand(by not in seen.after.out, f"{host} is to wait for {by}, which is taken out")
        trains = any(live.host == by for live in seen.after.live.values())
        silent_s = seen.at - self._signs.heard.get(by, -math.inf)
        alive = trains or silent_s <= self.policy.stale_after_s + self.policy.clock_step_s
        self.demand(alive or not self._never_stepped, f"{host} is to wait for {by}, silent for {silent_s:.0f} s")
        obstacle = misfit(spec, by, at_best(self._asked[by]), self.hosts.get(by, {}))
        self.demand(obstacle is None, f"{host} is to wait for {by}, which does not fit: {obstacle}")


class WaitsAreWritten(ScheduleChecker):
    """The rows of who waits say what was told, and no more: none of a host that got a job."""

    def asked(self, seen: Observation, request: Any, reply: ClaimReply) -> None:
        host, told = request.host_id, reply.declined
        waits = {kind: row for (name, kind), row in seen.after.waits.items() if name == host}
        if reply.claim_id is not None:
            self.demand(not waits, f"{host} got a job, and a row says that it waits")
        elif told is not None:
            now = self.witness.receiver.clock.now()
            class_id, priority = _kind(seen.after.jobs[told.job_id])
            by, open_at = waits.get(f"{class_id}:{priority}", ("nobody", math.inf))
            self.demand(by == told.by, f"{host} was told to wait for {told.by}, and a row says {by}")
            later_s = open_at - max(told.open_at, now)
            self.demand(not self.clock_is_true or later_s <= _SLACK_S, f"a row lets {host} wait {later_s:.0f} s longer")


def _kind(facts: Facts) -> Kind:
    return facts.class_id, facts.priority


def _is_scheduled(facts: Facts) -> bool:
    return facts.status == "pending" and not facts.held_by and not facts.avoid_host
