"""A plan that is to be done soonest: who waits for whom, how long at most, and who must not."""

from __future__ import annotations

import math
from typing import Any

from simulation.grant_checkers import PILE, LifeSigns, misfit, most_at_once, training
from simulation.memory import at_best
from simulation.witness import Checker, Facts, Observation
from training.fleet.queue.choose import BEING_MADE, RETRY_S
from training.fleet.scheduling.policy import Scheduling
from training.fleet.scheduling.schedule_state import ASKS_S
from training.fleet.wire.attempts import ClaimReply, DeclinedView

_MAKING_MOST_S = 300.0  # until a schedule is made that a host waits for …
_ASKS_S = 60.0  # … who asks at least so often, or was away
_SLACK_S = 1.0


class ScheduleChecker(Checker):
    """The answer to a claim, and the jobs that its host might have had."""

    def prepare(self) -> None:
        self.clock_is_true = True  # nothing stepped since the receiver's last look

    def stepped(self, seconds: float) -> None:
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
        most = most_at_once(request.capability, self.declared(request.host_id))
        before = any(live.host == request.host_id for live in seen.before.live.values())
        full = training(self.witness, request.host_id) >= most or held >= PILE * most
        full = full or (before and most > 1)  # perhaps nothing fits beside
        return self.witness.receiver.disk.full or request.host_id in seen.after.out or full

    def might_have(self, facts: Facts, seen: Observation, request: Any) -> bool:
        """Return True when nothing stands between a job and the host that asks: no back-off, no grace, no gate."""
        now = self.witness.receiver.clock.now()
        spec = facts.wants()
        prefers = self.policy.prefer_cuda_grace_s if spec.get("prefer_cuda") else 0.0
        return (
            facts.status == "pending"
            and not facts.held_by
            and not facts.passed_over
            and not facts.avoided(now)  # it may wait for a second try there
            and facts.claimable_at + prefers + self.policy.host_priority_grace_s <= now
            and misfit(spec, request.host_id, request.capability, self.declared(request.host_id)) is None
            and facts.edition <= self.witness.rows("SELECT edition FROM plan_in_force")[0][0]
        )


class WaitsAreBounded(ScheduleChecker):
    """A host waits no longer than it was told first, or than the longest job that it was told of takes there."""

    def prepare(self) -> None:
        super().prepare()
        self._told: dict[str, tuple[float, float, float, float]] = {}  # host → since, until, longest job, asked last

    def restarted(self) -> None:
        self._told.clear()  # it begins to count afresh

    def asked(self, seen: Observation, request: Any, reply: ClaimReply) -> None:
        host, told, now = request.host_id, reply.declined, self.witness.receiver.clock.now()
        if told is None:
            if reply.claim_id is not None:  # with another answer it may go on with its wait
                self._told.pop(host, None)
            return
        times = (told.begins_at, told.ends_at, told.here_until, told.open_at)
        self.demand(all(map(math.isfinite, times)), f"{host} was told of the times {times}")
        self.demand(now - 1.0 <= told.begins_at <= told.ends_at, f"{host} was told of an end before the beginning")
        asks_s, open_s = -1.0 if reply.retry_after_s is None else reply.retry_after_s, told.open_at - now
        self.demand(RETRY_S <= asks_s <= max(RETRY_S, open_s) + 1e-3, f"{host} is to ask again after {asks_s:.0f} s")
        since, until, longest_s, last = self._told.get(host, (seen.at, seen.at + open_s, 0.0, seen.at))
        if seen.at - last > ASKS_S:
            since, until, longest_s = seen.at, seen.at + open_s, 0.0
        longest_s = max(longest_s, told.here_until - now)
        self._told[host] = since, until, longest_s, seen.at
        late_s = seen.at + open_s - max(until, since + longest_s)
        self.demand(late_s <= _SLACK_S, f"{host} is to wait {late_s:.0f} s longer than it was told")


class DeclinedForTheBetter(ScheduleChecker):
    """No host that might have a job goes without one, but for a host that lives, is let in, and can do it; or for the
    moment in which the schedule is being made."""

    def prepare(self) -> None:
        super().prepare()
        self._signs = LifeSigns()
        self._asked: dict[str, dict[str, Any]] = {}  # host → with what
        self._awaits: dict[str, tuple[float, float]] = {}  # host → since when it waits for a schedule, and asked last
        self._never_stepped = True  # what was stamped by a clock that stepped may be wrong for good

    def stepped(self, seconds: float) -> None:
        super().stepped(seconds)
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
        soonest = self.scenario.scheduling is Scheduling.SOONEST
        self.demand(told is None or soonest, f"{host} was declined in a plan of first come, first served")
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
        obstacle = misfit(spec, by, at_best(self._asked[by]), self.declared(by))
        self.demand(obstacle is None, f"{host} is to wait for {by}, which does not fit: {obstacle}")
