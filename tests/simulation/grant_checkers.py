"""The promises about grants: to whom, once, and in which order."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from simulation.memory import at_best
from simulation.witness import Checker, Event, Facts, Observation, Witness
from training.fleet.scheduling.policy import Scheduling
from training.fleet.wire.attempts import ClaimReply

PILE = 3  # live attempts for each that may train: two may wait to be delivered


class OneGrantARequest(Checker):
    """A request of a worker is granted one job, however often it arrives."""

    def prepare(self) -> None:
        self._granted: dict[tuple[str, str], str] = {}

    def see(self, seen: Observation) -> None:
        reply = seen.result
        if seen.call.name != "claim" or not isinstance(reply, ClaimReply) or reply.claim_id is None:
            return
        key = (seen.call.message.host_id, seen.call.message.request_id)
        first = self._granted.setdefault(key, reply.claim_id)
        self.demand(first == reply.claim_id, f"request {key[1][:8]} was granted twice")
        self.demand(reply.claim_id in seen.after.live, f"request {key[1][:8]} was answered with a dead claim")


class OneJobASlot(Checker):
    """A slot of a session holds one job."""

    def see(self, seen: Observation) -> None:
        if seen.after.live is seen.before.live:
            return
        held = Counter((live.host, live.session_id, live.slot) for live in seen.after.live.values())
        for (host, _, slot), count in held.items():
            self.demand(count <= 1, f"slot {slot} of {host} holds {count} jobs")


class OneInstallation(Checker):
    """One living installation works under a host's id, and when a session is given work the one before has ended."""

    def prepare(self) -> None:
        self._last: dict[str, tuple[str, float]] = {}  # host → the installation heard last, and when

    def see(self, seen: Observation) -> None:
        request = seen.call.message
        if seen.call.name != "claim" or seen.error is not None or seen.result.repeated:
            return  # the same answer again moves nothing
        host, instance, session = request.host_id, request.instance_id, request.session_id
        granted = any(event.transition == "claim" for event in seen.events)
        if granted:
            known, heard_at = self._last.get(host, (instance, seen.at))
            others = [
                live
                for live in seen.after.live.values()
                if live.host == host and live.instance_id == instance and live.session_id != session
            ]
            self.demand(not others, f"the last session of {host} still holds a job")
            silent_s = seen.at - heard_at
            over = known == instance or silent_s >= self.policy.stale_after_s - 1.0
            self.demand(over, f"a second installation of {host} was given work after {silent_s:.0f} s")
        self._last[host] = (instance, seen.at)


class LifeSigns:
    """When the receiver last heard of each host, by whatever message: a refused one is a sign of life, too."""

    def __init__(self) -> None:
        self.heard: dict[str, float] = {}

    def see(self, seen: Observation) -> None:
        if seen.call.request is not None:
            self.heard[seen.call.request.sender.rstrip("′")] = seen.at  # a clone speaks in its model's name


def is_up_to_date(ahead):
    """Return True if at most one move or edit of a job has happened since the computation of the schedule in force
    began."""
    return ahead._made is not None and sum(ahead._moves()) - sum(ahead._made.moves) <= 1


class GrantsFit(Checker):
    """A job goes to a host that may run it, not before its back-off, and never past a better one.

    Where the schedule decides, a better one is passed over only while another host can do it.
    """

    def prepare(self) -> None:
        self.clock_is_true = True  # nothing stepped since the receiver's last look
        self._asked: dict[str, tuple[float, dict[str, Any]]] = {}  # host → when last, with what …
        self._last: dict[str, dict[str, Any]] = {}  # … and with what the time before
        self._signs = LifeSigns()
        self._restarted_at = 0.0

    def restarted(self) -> None:
        self._restarted_at = self.world.now

    def lost(self, seen: Observation) -> None:
        self._heard(seen)  # which the receiver remembers, though no row tells of it

    def _heard(self, seen: Observation) -> None:
        self._signs.see(seen)
        if seen.call.name == "claim" and seen.error is None:
            request = seen.call.message
            if request.host_id in self._asked:
                self._last[request.host_id] = self._asked[request.host_id][1]
            self._asked[request.host_id] = (seen.at, request.capability)

    def stepped(self, seconds: float) -> None:
        self.clock_is_true = False

    def see(self, seen: Observation) -> None:
        self._heard(seen)
        if seen.call.name == "tick":
            self.clock_is_true = True
        for event in seen.events:
            if event.transition == "claim":
                self._grant(seen, event)

    def _grant(self, seen: Observation, event: Event) -> None:
        request = seen.call.message
        spec = seen.before.jobs[event.job_id].wants()
        obstacle = misfit(spec, request.host_id, request.capability, self.declared(request.host_id))
        self.demand(obstacle is None, f"granted to a host that does not fit: {obstacle}")
        most = most_at_once(request.capability, self.declared(request.host_id))
        held = sum(live.host == request.host_id for live in seen.after.live.values())
        trains = training(self.witness, request.host_id)
        self.demand(trains <= most, f"{trains} jobs train on a host for {most}")
        self.demand(held <= PILE * most, f"{held} jobs on a host for {most}")
        if not self.clock_is_true:
            return
        facts, now = seen.before.jobs[event.job_id], self.witness.receiver.clock.now()
        if facts.status != "pending":  # given back by this very call
            facts = seen.after.jobs[event.job_id]
        self.demand(facts.claimable_at <= now + 1e-6, "granted before its back-off was over")
        self.demand(facts.avoided(now) != "*", "granted before its pause was over")
        if spec.get("prefer_cuda") and not has_cuda(spec, request.capability):
            held_s = now - facts.claimable_at
            grace = self.policy.prefer_cuda_grace_s
            waited = held_s >= grace - 1e-6 or not self._somebody_has_cuda(spec, seen)
            self.demand(waited, f"granted past prefer_cuda after {held_s:.1f} s")
        ((edition,),) = self.witness.rows("SELECT edition FROM plan_in_force")
        self.demand(facts.edition <= edition, "granted before the plan that brings it is in force")
        for other in seen.before.jobs.values():
            waits = other.status == seen.after.jobs[other.job_id].status == "pending"
            if (
                waits
                and other.priority > facts.priority
                and not (other.held_by or other.passed_over)
                and other.edition <= edition
            ):
                self._passed_over(other, request, now, seen)

    def _away(self, seen: Observation) -> set[str]:
        """Return the hosts that are quarantined, under an operator's order, or at rest for their owners.

        Who rests is the receiver's word, which another checker compares with what the hosts say.
        """
        resting = self.witness.receiver.service.host_registry.resting
        return {*seen.before.out, *seen.after.out, *self.witness.ordered(), *resting}

    def _somebody_has_cuda(self, spec: dict[str, Any], seen: Observation) -> bool:
        """Look for a host with a GPU for this job that asked not long ago and may train."""
        return any(
            seen.at - at < self.policy.gone_s / 2
            and host not in self._away(seen)
            and self.declared(host).get("cuda") is not False
            and has_cuda(spec, at_best(capability))
            and misfit(spec, host, at_best(capability), self.declared(host)) is None
            for host, (at, capability) in self._asked.items()
        )

    def _another_can(self, spec: dict[str, Any], but: str, seen: Observation) -> bool:
        """Look for another host that was heard within a lease or trains, may train, and fits.

        A receiver that was away gives each host a lease from its return on.
        """
        trains = {live.host for live in seen.before.live.values()}
        return any(
            host != but
            and (
                host in trains or seen.at - max(self._restarted_at, self._signs.heard[host]) < self.policy.stale_after_s
            )
            and host not in self._away(seen)
            and misfit({**spec, "min_ram_gib": 0.0}, host, at_best(capability), self.declared(host)) is None
            for host, (_, capability) in self._asked.items()
        )

    def _passed_over(self, other: Facts, request: Any, now: float, seen: Observation) -> None:
        if training(self.witness, request.host_id) > 1:
            return  # it may have found no room beside what trains there
        spec = other.wants()
        declared = self.declared(request.host_id)
        graces = self.policy.prefer_cuda_grace_s + self.policy.host_priority_grace_s
        free = other.claimable_at + graces <= now and other.avoided(now) not in (request.host_id, "*")
        fits = misfit(spec, request.host_id, request.capability, declared) is None
        if self.scenario.scheduling is Scheduling.SOONEST:  # by a schedule that may not know of this job yet
            known = is_up_to_date(self.witness.receiver.queue.ahead)
            # The schedule may still go by the host's capability of the time before.
            known = (
                known
                and misfit(spec, request.host_id, self._last.get(request.host_id, request.capability), declared) is None
            )
            fits = fits and known and not self._another_can(spec, request.host_id, seen)
            free = free and not other.avoided(now)  # or it waits for a second try
        self.demand(not (free and fits), f"job {other.job_id[:8]} of higher priority was passed over")


def offered(capability: dict[str, Any], declared: dict[str, Any]) -> dict[str, Any]:
    """Return what is left of a host when its owner's reserve is taken off."""
    left = dict(capability)
    for name, key in (("ram_available_gib", "reserve_ram_gib"), ("cpu_cores", "reserve_cores")):
        if declared.get(key):
            left[name] = max(0, capability.get(name, 0) - declared[key])
    if keep := declared.get("reserve_vram_gib"):
        devices = capability["cuda_devices"]
        left["cuda_devices"] = [{**each, "vram_free_gib": max(0.0, each["vram_free_gib"] - keep)} for each in devices]
    return left


def most_at_once(capability: dict[str, Any], declared: dict[str, Any]) -> int:
    """Return how many jobs a host may train at once."""
    slots = declared.get("slots")
    return slots if isinstance(slots, int) else max(1, int(offered(capability, declared).get("cpu_cores", 0)))


def training(witness: Witness, host: str) -> int:
    """Count a host's attempts that are not known to have ended training."""
    asking = "SELECT count(*) FROM attempts WHERE host = ? AND ended_at IS NULL AND heard_s IS NOT NULL"
    return int(witness.rows(asking, host)[0][0])


def has_cuda(spec: dict[str, Any], capability: dict[str, Any]) -> bool:
    vram = max((d["vram_free_gib"] for d in capability.get("cuda_devices", [])), default=0.0)
    return bool(capability.get("cuda_available")) and vram >= spec.get("min_vram_gib", 0.0)


def known_capabilities(witness: Witness) -> dict[str, dict[str, Any]]:
    """Return what each known host has, with all its memory free."""
    rows = witness.rows("SELECT host, capability FROM hosts")
    found = {host: at_best(json.loads(capability)) for host, capability in rows}
    # One whose first claim was undone by a full disk has no row yet, and is known all the same.
    return {known.name: at_best(known.capability) for known in witness.receiver.service.known_hosts()} | found


def misfit(spec: dict[str, Any], host: str, capability: dict[str, Any], declared: dict[str, Any]) -> str | None:
    """Say a second time, in the plainest words, which host may run which job."""
    whole, capability = capability, offered(capability, declared)
    for name, key in (("ram_available_gib", "reserve_ram_gib"), ("cpu_cores", "reserve_cores")):
        if declared.get(key) and not capability.get(name, 1):
            return "nothing is left by its owner"
    if host in spec.get("denied_hosts", []):
        return "denied host"
    if spec.get("allowed_hosts") and host not in spec["allowed_hosts"]:
        return "not an allowed host"
    if spec["model"] in declared.get("deny_jobs", []):
        return "denied model"
    if declared.get("allow_jobs") and spec["model"] not in declared["allow_jobs"]:
        return "not an allowed model"
    if spec.get("require_cuda") and not has_cuda(spec, capability):
        return "no CUDA"
    if capability.get("ram_available_gib", 0.0) < spec.get("min_ram_gib", 0.0):
        return "too little RAM"
    if capability.get("cpu_cores", 0) < spec.get("min_cores", 0):
        return "too few cores"
    ram, vram = spec.get("ram_above_gib", 0.0), spec.get("vram_above_gib", 0.0)
    best = offered(at_best(whole), declared)
    devices = best.get("cuda_devices", []) if best.get("cuda_available") else []
    if ram and best.get("ram_available_gib", 0.0) <= ram:
        return "no more RAM than where it ran out"
    if vram and max((d["vram_free_gib"] for d in devices), default=0.0) <= vram:
        return "no more VRAM than where it ran out"
    return None
