"""The promises about hosts that are at rest: for their owner, or by an operator's order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.grant_checkers import LifeSigns
from simulation.steps import Call
from simulation.unlike import reported
from simulation.witness import Checker, Observation
from training.fleet.process.ended import Ended
from training.fleet.scheduling.wake import AGAIN_S, TRIES_MAX
from training.fleet.worker.state import events as t
from training.fleet.worker.state.owner import SETTLE_S

if TYPE_CHECKING:
    from simulation.host import Host
    from simulation.trainer import Trainer

_ORDERS = "SELECT host, kind FROM host_orders WHERE ended_at IS NULL"
SLACK_S = 5.0
_HOLDS = {  # what an owner does → the condition in the manifest
    "outside": "hours", "on_battery": "pause_on_battery", "used": "pause_when_used", "busy": "pause_above_cpu",
    "hot": "pause_above_celsius",
}  # fmt: skip


class RestingGetsNothing(Checker):
    """A host that is paused, drained, or said last that it rests for its owner is granted no job."""

    def prepare(self) -> None:
        self._ordered: dict[str, str] = {}
        self._resting: dict[str, str] = {}
        self._heard: set[int] = set()  # claims, each heard once however long it waits
        self._calls: list[Call] = []  # so that no other gets the number of one of them

    def restarted(self) -> None:
        self._resting.clear()
        self._ordered = dict(self.witness.rows(_ORDERS))

    def see(self, seen: Observation) -> None:
        for event in seen.events:
            if event.transition == "claim":
                host = str(event.host)
                self.demand(host not in self._ordered, f"{host}, under an order, is granted {event.job_id[:8]}")
        self._hear(seen)
        for event in seen.events:
            if event.transition == "claim":
                why = self._resting.get(str(event.host))
                self.demand(why is None, f"{event.host} rests ({why}) and is granted {event.job_id[:8]}")
        if seen.call.name in ("pause", "drain", "resume"):
            self._ordered = dict(self.witness.rows(_ORDERS))

    def lost(self, seen: Observation) -> None:
        self._hear(seen)

    def _hear(self, seen: Observation) -> None:
        call, message = seen.call, seen.call.message
        if call.name not in ("claim", "heartbeat"):
            return
        said = getattr(message, "resting", None)
        if said is None:  # even when it was refused: what does not count for the host proves nothing here
            if call.name == "heartbeat" or id(call) not in self._heard:
                self._resting.pop(str(message.host_id), None)
        elif seen.error is None and getattr(seen.result, "terms", None) is not None:
            self._resting[str(message.host_id)] = said
        if call.name == "claim":
            self._heard.add(id(call))
            self._calls.append(call)


class OwnersComeFirst(Checker):
    """While a condition of its owner holds, a machine's trainers stand still, or end, within a stated time.

    So they do by an operator's order that its worker has heard of; and none stands for longer than the plan says.
    """

    def prepare(self) -> None:
        self._stands: dict[str, float] = {}  # claim → since when …
        self._halted: dict[str, float] = {}  # … and since when for its owner or an operator
        self._began: dict[str, float] = {}  # claim → since when its trainer runs

    def moved(self, host: Host, trainer: Trainer) -> None:
        claim = trainer.assignment.claim_id
        self._began.setdefault(claim, self.world.now)
        if trainer.paused and not trainer.frozen and not trainer.over:
            self._stands.setdefault(claim, self.world.now)
        else:
            self._stands.pop(claim, None)
            self._halted.pop(claim, None)

    def event(self, host: Host, event: t.Event) -> None:
        if host.asleep or host.woke_lately:
            return
        declared, life = self.declared(host.name), host.life
        knows = host.state.terms.observes
        for what, since in life.since.items():
            within_s = 2 * life.look_s + SETTLE_S + SLACK_S
            if (
                knows
                and declared.get(_HOLDS[what])
                and self.world.now - max(since, host.terms_at, host.woke_at) > within_s
            ):
                self._none_runs(host, f"{what} for {self.world.now - since:.0f} s")
        limit_s = declared.get("pause_max_s", 600.0) + 2 * life.look_s + SLACK_S
        for claim, since in self._stands.items():
            trainer, work = host.trainers.get(claim), host.work_on(claim)
            if trainer is None or work is None:
                continue
            if work.halted_at is None:
                self._halted.pop(claim, None)
                continue
            halted = self._halted.setdefault(claim, self.world.now)
            if work.paused or trainer.asked:
                continue
            stood_s = self.world.now - max(since, halted, host.woke_at)
            self.demand(stood_s <= limit_s, f"{claim[:8]} is paused for {stood_s:.0f} s on {host.machine}")

    def _none_runs(self, host: Host, why: str) -> None:
        for trainer in host.trainers.values():
            # One whose data or saved state took long to fetch begins, and is paused at once.
            began = self.world.now - self._began.get(trainer.assignment.claim_id, self.world.now) > SLACK_S
            runs = began and trainer.running and not trainer.asked
            self.demand(not runs, f"a trainer runs on {host.machine}: {why}")


class PausedCountsForNobody(Checker):
    """The time for which a trainer stood still is no part of its training time, and makes nobody say that it hangs."""

    def prepare(self) -> None:
        settings = self.scenario.settings
        self._slack_s = SLACK_S + settings.grace_s + settings.kill_s  # one that is told to stop is woken to hear it
        self._began: dict[str, float] = {}
        self._stood_s: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._took_s: dict[str, float] = {}
        self._sound: set[str] = set()  # claims of trainers that do not hang

    def moved(self, host: Host, trainer: Trainer) -> None:
        claim, now = trainer.assignment.claim_id, self.world.now
        self._began.setdefault(claim, now)
        if not trainer.fate.hangs:
            self._sound.add(claim)
        if claim in self._since:
            self._stood_s[claim] = self._stood_s.get(claim, 0.0) + now - self._since.pop(claim)
        if trainer.paused and not trainer.frozen and not trainer.over:
            self._since[claim] = now

    def over(self, host: Host, trainer: Trainer, ended: Ended) -> None:
        claim = trainer.assignment.claim_id
        self.moved(host, trainer)
        if (
            trainer.assignment.dataset is None and trainer.assignment.state is None
        ):  # the time of a fetch counts, and this clock begins after it
            self._took_s[claim] = self.world.now - self._began[claim] - self._stood_s.get(claim, 0.0)

    def see(self, seen: Observation) -> None:
        message, name = seen.call.message, seen.call.name
        if name not in ("complete", "fail") or seen.error is not None:
            return
        claim = str(message.claim_id)
        said, took_s = (message.record or {}).get("train_s"), self._took_s.get(claim)
        if isinstance(said, float) and took_s is not None and self._stood_s.get(claim, 0.0) > self._slack_s:
            self.world.tally["trainers that were paused, and told how long they ran"] += 1
            told = f"{claim[:8]} ran for {took_s:.0f} s and is said to have trained for {said:.0f} s"
            most = {"train_s": took_s + self._slack_s}
            if name == "complete":
                most = reported(self.world.seed, claim, most)  # of what ended well, tales are told
            self.demand(said <= most["train_s"], told)
        if name == "fail" and "it hangs" in message.error and claim in self._sound:
            self.demand(False, f"{claim[:8]} is said to hang, and never did")


class WokenForAReason(Checker):
    """Only a host that was silent for a lease is woken, at most now and then, while a job waits that it could train."""

    def prepare(self) -> None:
        self._signs = LifeSigns()
        self._woken: dict[str, list[float]] = {}  # host → when, since it was heard last

    def restarted(self) -> None:
        self._woken.clear()  # the receiver remembers no try

    def lost(self, seen: Observation) -> None:
        self._signs.see(seen)

    def see(self, seen: Observation) -> None:
        self._signs.see(seen)
        for host in seen.result if seen.call.name == "wake" and seen.error is None else ():
            heard = self._signs.heard.get(host, 0.0)
            tries = [at for at in self._woken.get(host, []) if at >= heard]
            self.demand(bool(self.declared(host).get("mac")), f"{host} has no address and is woken")
            pending = [facts for facts in seen.after.jobs.values() if facts.status == "pending"]
            waits = [facts for facts in pending if not (facts.held_by or facts.passed_over)]
            self.demand(bool(waits), f"{host} is woken, and no job waits")
            since_s = seen.at - max(tries, default=-1e9)
            self.demand(since_s >= AGAIN_S - 1.0, f"{host} is woken again after {since_s:.0f} s")
            self.demand(len(tries) < TRIES_MAX, f"{host} is woken {len(tries) + 1} times in vain")
            self._woken[host] = [*tries, seen.at]


class NoInhibitorIsLeft(Checker):
    """A machine is kept awake while it trains on mains power, if its owner allows that, and at no other time."""

    def prepare(self) -> None:
        self._quiet_since: dict[str, float] = {}  # machine → since when no trainer runs
        self._runs_since: dict[str, float] = {}

    def moved(self, host: Host, trainer: Trainer) -> None:
        runs = any(each.running for each in host.trainers.values()) or trainer.running
        now, other = (self._runs_since, self._quiet_since) if runs else (self._quiet_since, self._runs_since)
        now.setdefault(host.machine, self.world.now)
        other.pop(host.machine, None)

    def ended(self, host: Host) -> None:
        self.demand(not host.kept_awake, f"{host.machine} is kept awake by a worker that has ended")
        self._runs_since.pop(host.machine, None)

    def event(self, host: Host, event: t.Event) -> None:
        if host.asleep or host.woke_lately:
            return
        now, settings = self.world.now, host.settings
        if host.kept_awake:
            quiet_s = now - self._quiet_since.get(host.machine, now)
            patience_s = settings.grace_s + settings.kill_s + settings.leave_s + SLACK_S
            self.demand(quiet_s <= patience_s, f"{host.machine} is kept awake for {quiet_s:.0f} s and trains nothing")
            battery_s = now - max(host.kept_at, host.life.since.get("on_battery", now))
            self.demand(battery_s <= 2 * host.life.look_s + SLACK_S, f"{host.machine} is kept awake on its battery")
        elif host.state.terms.may_sleep is False and not host.life.on_battery:
            runs_s = now - self._runs_since.get(host.machine, now)
            wanted = any(each.running and not each.asked for each in host.trainers.values())
            mains_s = now - host.life.mains_since
            long_s = 2 * host.life.look_s + SLACK_S
            sleepy = wanted and runs_s > long_s and mains_s > long_s and host.starts_nothing
            self.demand(not sleepy, f"{host.machine} may fall asleep while it trains")
