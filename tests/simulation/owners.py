"""Machines with owners who come and go, and operators who pause, drain and resume them: every sixth fleet.

What is drawn here has chance of its own, by seed and name, so that nothing else of a seed depends on it, and other
seeds go on meaning what they meant.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from simulation.faults import Fault
from training.fleet.worker.state import events as t
from training.fleet.worker.state.owner import LOOK_S, Sight

if TYPE_CHECKING:
    from simulation.host import Host

_FROM, _EVERY, _OWNED = 70, 18, frozenset({0, 2, 9})
INSIDE, OUTSIDE = 60, 13 * 60  # minutes of the week in and out of the hours below
HOURS = "mo 0:00-12:00"


def is_owned(seed: int) -> bool:
    """Return True when this seed's machines have owners: few enough that most seeds mean what they meant."""
    return seed >= _FROM and seed % _EVERY in _OWNED


def conditions(seed: int, machine: str, lease_s: float) -> dict[str, Any]:
    """Return what the manifest says of a machine's owner."""
    if not is_owned(seed):
        return {}
    chance = random.Random(f"{seed}/owner/{machine}")
    asked: dict[str, Any] = {
        "hours": (HOURS,),
        "pause_on_battery": True,
        "pause_when_used": True,
        "pause_above_cpu": 0.5,
        "pause_above_celsius": 80.0,
    }
    said = {key: value for key, value in asked.items() if chance.random() < 0.5}
    said["pause_max_s"] = lease_s * chance.choice([0.0, 0.1, 0.5, 4.0])
    if chance.random() < 0.2:
        said["may_sleep"] = True
    if chance.random() < 0.5:
        said["mac"] = "a0:b1:c2:d3:e4:f5"
    return said


class OwnerLife:
    """The owner of one machine, and the worker's looks at it."""

    def __init__(self, host: Host) -> None:
        self._world, self._host = host.world, host
        self._chance = host.world.chance(f"owner {host.machine}")
        self._lease_s = lease_s = host.scenario.policy.stale_after_s
        self.look_s = max(LOOK_S, lease_s / 60)
        self.outside = self.on_battery = self.used = self.busy = self.hot = False
        self.mains_since = host.world.now
        self.since: dict[str, float] = {}  # what holds → since when
        if is_owned(host.world.seed):
            self._next()

    def begin(self) -> None:
        """Start the worker's looks, with the program."""
        if is_owned(self._world.seed):
            self._host.soon(self._chance.random() * self.look_s, self._look)

    def sight(self) -> Sight:
        return Sight(
            minute=OUTSIDE if self.outside else INSIDE,
            on_battery=self.on_battery,
            idle_s=0.0 if self.used else 1e6,
            cpu=0.9 if self.busy else 0.1,
            celsius=95.0 if self.hot else 50.0,
        )

    def _look(self) -> None:
        host = self._host
        if host.state.terms.observes or host.state.works:
            host.take(t.Seen(self.sight()))
        if host.up:
            self._host.soon(self.look_s, self._look)

    def _next(self) -> None:
        self._world.after(self._chance.expovariate(1 / (2 * self._lease_s)), self._change)

    def _change(self) -> None:
        """Something begins or ends; in calm weather all of it ends."""
        if self._host.calm:
            for what in ("outside", "on_battery", "used", "busy", "hot"):
                self._set(what, on=False)
            return
        what = self._chance.choice(["outside", "on_battery", "used", "busy", "hot"])
        self._set(what, on=not getattr(self, what))
        self._next()

    def _set(self, what: str, *, on: bool) -> None:
        if getattr(self, what) == on:
            return
        setattr(self, what, on)
        if on:
            self.since[what] = self._world.now
            self._world.fault(Fault.OWNER, self._host.machine, what)
        else:
            self.since.pop(what, None)
            if what == "on_battery":
                self.mains_since = self._world.now
