"""The promises about booking: nothing of a host is promised twice, and its owner's reserve is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from simulation.grant_checkers import offered
from simulation.witness import Checker, Observation
from training.fleet.worker.state import events as t

if TYPE_CHECKING:
    from simulation.host import Host

_EDGE = 1e-3  # of sums that round


class Booked(NamedTuple):
    claim_id: str
    cores: int
    ram: float
    vram: float
    gpu: int | None


_TRAINING = "SELECT claim_id, booked FROM attempts WHERE host = ? AND ended_at IS NULL AND heard_s IS NOT NULL"


class BookingChecker(Checker):
    """Looks at what a host's attempts are booked for whenever it gets one more, or gets one back."""

    def prepare(self) -> None:
        self._capability: dict[str, dict[str, Any]] = {}  # host → as it said last

    def see(self, seen: Observation) -> None:
        if seen.call.name == "claim" and seen.error is None:
            self._capability[seen.call.message.host_id] = seen.call.message.capability
        for event in seen.events:
            if event.transition in ("claim", "readopt") and event.host in self._capability:
                self.booked(seen, event.host, self._capability[event.host], self._on(event.host))

    def _on(self, host: str) -> list[Booked]:
        rows = self.witness.rows(_TRAINING, host)
        told = [(claim_id, json.loads(text)) for claim_id, text in rows if text is not None]
        return [Booked(claim, of["cores"], of["ram_gib"], of["vram_gib"], of["gpu"]) for claim, of in told]

    def booked(self, seen: Observation, host: str, capability: dict[str, Any], held: list[Booked]) -> None:
        """A host got an attempt; ``held`` is all that trains there now."""


class NothingIsBookedTwice(BookingChecker):
    """The attempts of a host that train side by side are booked for no more than it has, and those on a GPU for no more
    than that has."""

    def booked(self, seen: Observation, host: str, capability: dict[str, Any], held: list[Booked]) -> None:
        if len(held) < 2:
            return
        self.world.tally["bookings beside others"] += 1
        declared = self.declared(host)
        has = offered(capability, dict(declared))
        slots = declared.get("slots")
        cores = max(has["cpu_cores"], slots if isinstance(slots, int) else 0)
        booked = sum(each.cores for each in held)
        self.demand(booked <= cores, f"{booked} cores of {host} are booked, which has {cores}")
        ram = capability.get("ram_total_gib", capability["ram_available_gib"]) - declared.get("reserve_ram_gib", 0.0)
        gib = sum(each.ram for each in held)
        self.demand(gib <= ram + _EDGE, f"{gib:.1f} GiB of {host} are booked, which offers {ram:.1f}")
        for n, device in enumerate(capability["cuda_devices"]):
            here = [each.vram for each in held if each.gpu == n]
            vram = device.get("vram_total_gib", device["vram_free_gib"]) - declared.get("reserve_vram_gib", 0.0)
            self.world.tally["trainers that share a GPU"] += len(here) > 1
            twice = len(here) > 1 and sum(here) > vram + _EDGE
            self.demand(not twice, f"{sum(here):.1f} GiB of GPU {n} of {host} are booked, which offers {vram:.1f}")


class ReservesAreKept(BookingChecker):
    """What is granted beside others leaves the owner's reserve of what is free at that moment, others having taken all
    that they are booked for."""

    def booked(self, seen: Observation, host: str, capability: dict[str, Any], held: list[Booked]) -> None:
        granted = seen.result.claim_id if seen.call.name == "claim" else None
        mine = next((each for each in held if each.claim_id == granted), None)
        others = [each for each in held if each is not mine]
        if mine is None or not others:
            return
        uses = {each.claim_id: each for each in seen.call.message.training}
        declared = self.declared(host)
        coming = sum(max(0.0, each.ram - _use(uses, each, "ram_gib")) for each in others)
        left = capability["ram_available_gib"] - coming - mine.ram
        keep = declared.get("reserve_ram_gib", 0.0)
        self.demand(left >= keep - _EDGE, f"{left:.1f} GiB of {host} are left of the {keep:.1f} that it keeps")
        beside = [each for each in others if each.gpu == mine.gpu]
        if mine.gpu is None or not beside:
            return
        coming = sum(max(0.0, each.vram - _use(uses, each, "vram_gib")) for each in beside)
        left = capability["cuda_devices"][mine.gpu]["vram_free_gib"] - coming - mine.vram
        keep = declared.get("reserve_vram_gib", 0.0)
        self.demand(left >= keep - _EDGE, f"{left:.1f} GiB of a GPU of {host} are left of the {keep:.1f} that it keeps")


def _use(uses: Mapping[str, Any], of: Booked, name: str) -> float:
    return float(getattr(uses[of.claim_id], name)) if of.claim_id in uses else 0.0


class StartsInRoom(Checker):
    """A trainer that starts beside others finds what it is booked for, whatever other programs took since the grant."""

    def begins(self, host: Host, assignment: t.Assignment) -> None:
        booked, own = assignment.booked, host.state.holder(assignment.claim_id)
        others = [
            work
            for slot, work in host.state.works.items()
            if slot != own and slot in host.state.training and slot not in host.state.waiting
        ]
        if booked is None:
            return
        free = host.present()
        least, coming = (
            booked.least_ram_gib,
            sum(_to_come(each.assignment, each.memory.ram, "ram") for each in others),
        )
        left = free["ram_available_gib"] - coming
        self.demand(
            not (others and least) or left >= least - _EDGE, f"a trainer began with {left:.1f} of {least:.1f} GiB"
        )
        gpu = booked.gpu
        if gpu is None:
            return
        coming = sum(
            _to_come(each.assignment, each.memory.vram, "vram")
            for each in others
            if each.assignment.booked is not None and each.assignment.booked.gpu == gpu
        )
        least, left = booked.least_vram_gib, free["cuda_devices"][gpu]["vram_free_gib"] - coming
        self.demand(left >= least - _EDGE, f"a trainer began with {left:.1f} of {least:.1f} GiB of its GPU")


def _to_come(of: t.Assignment, used: int, what: str) -> float:
    booked = 0.0 if of.booked is None else float(of.booked[f"{what}_gib"])
    return max(0.0, booked - used / 1024**3)
