"""The promises about urgent jobs: who gives way, what that costs, who gets the place, and that it does get free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulation.grant_checkers import misfit
from simulation.memory import at_best
from simulation.move_checkers import MoveChecker
from simulation.witness import Facts, Observation, Witness
from simulation.world import World
from training.fleet.scheduling.policy import Policy
from training.fleet.worker.state import events as t
from training.fleet.worker.state_transfer import LAST_S

if TYPE_CHECKING:
    from simulation.host import Host
    from simulation.moves import Course
    from simulation.scenario import Scenario

SLACK_S = 5.0
MOST_LOST_S = 60.0  # of work, by an interruption
_ASKED = "SELECT claim_id, job_id, host, gives_way_to, gives_way_number FROM attempts WHERE gives_way_to IS NOT NULL"
_ORDERED = "SELECT host FROM host_orders WHERE ended_at IS NULL"


@dataclass
class Ask:
    """An attempt that was asked to give way."""

    claim: str
    job_id: str
    host: str
    urgent: str
    number: int  # of the urgent job's grants then
    at: float
    ended_at: float | None = None


class UrgentChecker(MoveChecker):
    """Knows who was asked, in true time."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        super().__init__(world)
        self.policy: Policy = scenario.policy
        self.scenario, self.hosts = scenario, scenario.hosts
        self.asks: dict[str, Ask] = {}  # by claim
        self.witness: Witness
        self.clock_is_true = True

    def restarted(self, witness: Witness) -> None:
        self.witness = witness

    def stepped(self) -> None:
        """The receiver's wall clock steps now, and what it stamped is wrong until it finds out, or for good."""
        self.clock_is_true = False

    def see(self, seen: Observation) -> None:
        for ask in self.asks.values():
            if ask.ended_at is None and ask.claim not in seen.after.live:
                ask.ended_at = seen.at
        if seen.call.name != "interrupt" or not seen.events:
            return
        for claim, job_id, host, urgent, number in self.witness.rows(_ASKED):
            known = self.asks.get(claim)
            if known is None or (known.urgent, known.number) != (urgent, number):
                ask = Ask(claim, job_id, host, urgent, number, seen.at)
                self.asked(seen, ask)
                self.asks[claim] = ask

    def asked(self, seen: Observation, ask: Ask) -> None:
        """Somebody was asked to give way."""

    def waits(self, seen: Observation, ask: Ask) -> Facts | None:
        """Return the urgent job if it waits still for the place."""
        before, after = (some.jobs[ask.urgent] for some in (seen.before, seen.after))
        still = before.status == after.status == "pending" and after.attempt == ask.number and not after.held_by
        return after if still else None


class OnlyWhoCanGivesWay(UrgentChecker):
    """Nobody gives way but to an urgent job that waits; who does can go on elsewhere, is not urgent, has no higher
    priority, is on a host that gets jobs, and is not asked twice within the stated time, nor is anybody for that job.
    """

    def __init__(self, world: World, scenario: Scenario) -> None:
        super().__init__(world, scenario)
        self._said: dict[str, tuple[int, bool]] = {}  # claim → number of its last heartbeat, and if it can go on
        self._capabilities: dict[str, dict[str, Any]] = {}
        self._since = 0.0  # from then on the clock has been true

    def stepped(self) -> None:
        super().stepped()
        self._since = self.world.now + 2 * self.policy.sweep_period_s

    def see(self, seen: Observation) -> None:
        message = seen.call.message
        if seen.call.name == "heartbeat" and seen.error is None:
            number, _ = self._said.get(message.claim_id, (0, False))
            if message.seq > number:
                self._said[message.claim_id] = message.seq, message.resumable
        if seen.call.name == "claim" and seen.error is None:
            self._capabilities[message.host_id] = message.capability
        super().see(seen)

    def asked(self, seen: Observation, ask: Ask) -> None:
        job, urgent = seen.after.jobs[ask.job_id], seen.after.jobs[ask.urgent]
        who = f"{job.job_id[:8]} is to give way to {urgent.job_id[:8]} on {ask.host}"
        self.world.tally["attempts that were asked to give way"] += 1
        self.demand(bool(urgent.wants().get("urgent")), f"{who}, which is not urgent")
        self.demand(urgent.status == "pending" and not urgent.held_by, f"{who}, which does not wait")
        self.demand(not job.wants().get("urgent"), f"{who}, and is urgent itself")
        self.demand(job.priority <= urgent.priority, f"{who}, and has a higher priority")
        self.demand(self._said.get(ask.claim, (0, False))[1], f"{who}, and cannot go on elsewhere")
        self.demand(job.grants + 1 < self.policy.max_grants, f"{who}, and has no grant left")
        ordered = {str(host) for (host,) in self.witness.rows(_ORDERED)}
        resting = self.witness.receiver.service.host_registry.resting
        self.demand(ask.host not in {*seen.after.out, *ordered, *resting}, f"{who}, which gets no jobs")
        self._none_above(seen, ask, urgent, who)
        least = self.policy.give_way_again_s - SLACK_S
        for other in self.asks.values():
            if other.at < self._since:
                continue
            if other.job_id == ask.job_id:
                self.demand(seen.at - other.at >= least, f"{who}, and was asked {seen.at - other.at:.0f} s ago")
            if other.urgent == ask.urgent:
                self.demand(
                    seen.at - other.at >= least, f"{who}, for which one was asked {seen.at - other.at:.0f} s ago"
                )

    def _none_above(self, seen: Observation, ask: Ask, urgent: Facts, who: str) -> None:
        """Hold that no job of a higher priority waits that the host could train."""
        can = at_best(self._capabilities[ask.host])
        for other in seen.after.jobs.values():
            if other.status == "pending" and not other.held_by and other.priority > urgent.priority:
                spec = {**other.wants(), "min_ram_gib": 0.0}
                fits = misfit(spec, ask.host, can, self.hosts.get(ask.host, {})) is None
                fits = fits and not other.wants().get("min_ram_gib")
                self.demand(not fits, f"{who}, where {other.job_id[:8]} of a higher priority waits")


@dataclass
class _Run:
    """A run of a trainer that is over."""

    claim: str
    course: Course
    progress: float
    polite: bool  # it listened when it was asked to stop
    arrived: bool = False  # its last state is at the receiver


class GivingWayCostsNothing(UrgentChecker):
    """What is handed back for an urgent job was asked for; it counts nothing, and goes on from where it was."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        super().__init__(world, scenario)
        self._runs: dict[str, _Run] = {}  # by claim
        self._left: dict[str, _Run] = {}  # by job: the run that gave way last
        self._machines: dict[str, set[str]] = {}  # by host id
        self._in_time = scenario.polite_s < scenario.settings.grace_s  # else trainers are killed before they have saved

    def lost_state(self) -> None:
        """The receiver's disk lost some of what it keeps."""
        self._left.clear()
        self._runs.clear()

    def see(self, seen: Observation) -> None:
        super().see(seen)
        message = seen.call.message
        if seen.call.name != "fail" or seen.error is not None or not message.error.startswith("handed back: urgent"):
            return
        before, after = (some.jobs[seen.call.job_id or ""] for some in (seen.before, seen.after))
        name, claim = after.job_id[:8], str(message.claim_id)
        self.demand(claim in self.asks, f"{name} is handed back, and nobody asked for that")
        if before.claim_id != claim:
            return  # said once more, or too late
        self.world.tally["attempts that gave way"] += 1
        counts = (after.trainer_failures, after.host_losses)
        self.demand(counts == (before.trainer_failures, before.host_losses), f"{name} gave way, and pays for it")
        self.demand(after.status == "pending", f"{name} gave way and is {after.status}")
        if claim in self._runs:
            self._left[after.job_id] = self._runs[claim]

    def ran(self, host: Host, assignment: t.Assignment, course: Course, work_s: float, *, well: bool) -> None:
        trainer = host.trainers.get(assignment.claim_id)
        polite = trainer is not None and not trainer.fate.deaf and self._in_time
        self._runs[assignment.claim_id] = _Run(assignment.claim_id, course, course.progress(work_s), polite)

    def brought(
        self,
        host: Host,
        assignment: t.Assignment,
        content: bytes,
        *,
        took_s: float,
        troubled: bool,
        kept: bool,
        changed: bool,
    ) -> None:
        if run := self._runs.get(assignment.claim_id):
            run.arrived = not troubled and not changed and took_s < LAST_S

    def fetched(self, host: Host, assignment: t.Assignment, *, troubled: bool) -> None:
        if troubled:
            self._left.pop(assignment.job_id, None)

    def resumed(self, host: Host, assignment: t.Assignment, course: Course, found: bytes | None) -> None:
        machines = self._machines.setdefault(host.name, set())
        machines.add(host.machine)
        left = self._left.pop(assignment.job_id, None)
        if left is None or not (left.polite and left.arrived) or len(machines) > 1:
            return
        if any(left.course.facts[name] != course.facts[name] for name in ("spec", "code")):
            return  # which it must not go on from
        lost_s = (left.progress - course.begins - course.part) * left.course.step_s
        self.world.tally["attempts that went on after they gave way"] += 1
        self.demand(lost_s <= MOST_LOST_S, f"{assignment.job_id[:8]} gave way and lost {lost_s:.0f} s of work")


class PlacesAreKept(UrgentChecker):
    """Within the stated time nobody else gets the place that was left for an urgent job, on a host with one place."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        super().__init__(world, scenario)
        self._true_since = 0.0

    def stepped(self) -> None:
        super().stepped()
        self._true_since = 1e18  # until the receiver has looked

    def see(self, seen: Observation) -> None:
        if seen.call.name == "tick" and seen.error is None and not self.clock_is_true:
            self.clock_is_true, self._true_since = True, seen.at
        for event in seen.events:
            if event.transition == "claim":
                self._granted(seen, event.job_id, str(event.host))
        super().see(seen)

    def _granted(self, seen: Observation, job_id: str, host: str) -> None:
        for ask in self.asks.values():
            if ask.host != host or ask.ended_at is None or ask.at < self._true_since:
                continue
            if ask.urgent == job_id and seen.before.jobs[job_id].attempt == ask.number:
                self.world.tally["urgent jobs that got a place that was left"] += 1
            elif self.hosts.get(host, {}).get("slots") == 1 and self._counts(seen, ask):
                self.demand(False, f"{job_id[:8]} got the place on {host} that was left for {ask.urgent[:8]}")

    def _counts(self, seen: Observation, ask: Ask) -> bool:
        """Return True when the place is the urgent job's, and nothing keeps it from that."""
        assert ask.ended_at is not None
        until = min(ask.ended_at, ask.at + self.policy.give_way_s) + self.policy.give_way_s
        urgent = self.waits(seen, ask)
        if urgent is None or not self.clock_is_true or seen.at > until - SLACK_S:
            return False
        spec, message = urgent.wants(), seen.call.message
        declared = self.hosts.get(ask.host, {})
        highest = max((each.get("priority", 0) for each in self.hosts.values()), default=0)
        may = not spec.get("prefer_cuda") and declared.get("priority", 0) >= highest
        return may and misfit(spec, ask.host, message.capability, declared) is None


class WhoIsAskedGivesWay(UrgentChecker):
    """In calm weather an attempt that was asked ends within the stated time, or its urgent job needs it no more."""

    def see(self, seen: Observation) -> None:
        super().see(seen)
        if seen.call.name != "interrupt":
            return
        settings, lease_s = self.scenario.settings, self.policy.stale_after_s
        beat_s = min(settings.heartbeat_s, lease_s / 3)
        within_s = beat_s + settings.grace_s + settings.kill_s + LAST_S + 2 * self.scenario.timeout_s + 30.0
        calm_since = self.scenario.stormy_s + lease_s
        for ask in self.asks.values():
            if ask.at < calm_since or ask.ended_at is not None or ask.claim not in seen.after.live:
                continue
            if self.waits(seen, ask) is None or self._delivers(ask.claim):
                continue
            late_s = seen.at - ask.at
            self.demand(late_s <= within_s, f"{ask.job_id[:8]} was asked to give way {late_s:.0f} s ago, and trains on")

    def _delivers(self, claim: str) -> bool:
        return self.witness.rows("SELECT heard_s FROM attempts WHERE claim_id = ?", claim)[0][0] is None
