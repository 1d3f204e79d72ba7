"""PURE: judge the owner's conditions by observations of the machine.

At each observation a condition holds or does not. Hours, the battery, and a person at the machine count at once. Loads
and the temperature fluctuate: they count after they held for :data:`SETTLE_S`, and end after they did not hold for
:data:`EASE_S`. A value that the system does not report is no reason to rest.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field
from types import MappingProxyType

from training.fleet.capability.owner import Sight
from training.fleet.scheduling.hours import holds, opens
from training.fleet.wire.attempts import HostTerms
from training.frozen import frozen_kw

LOOK_S = 5.0  # between two looks at the machine
SETTLE_S = 15.0  # three looks in a row
EASE_S = 60.0
_JUMPS = frozenset({"cpu", "gpu", "celsius"})


@frozen_kw
class Owner:
    """The owner's conditions so far: which count as reasons not to train, when others began to change, and whether the
    machine runs on battery."""

    reasons: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # those that count, in words
    since: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))  # when each began to change
    on_battery: bool | None = None

    @property
    def reason(self) -> str | None:
        """Return the first reason why this machine does not train now; None if there is none."""
        return next(iter(self.reasons.values()), None)


def look(before: Owner, terms: HostTerms, sight: Sight, now: float) -> Owner:
    """Return the conditions after another observation of the machine, at ``now``."""
    reasons: dict[str, str] = {}
    since: dict[str, float] = {}
    for name, complaint in _conditions(terms, sight):
        counted = before.reasons.get(name)
        if (complaint is not None) == (counted is not None):
            said = counted  # in the words of when it began: figures change at each look
        else:
            began = before.since.get(name, now)
            wait_s = 0.0 if name not in _JUMPS else SETTLE_S if counted is None else EASE_S
            said = complaint if now - began >= wait_s else counted
            if said is counted:
                since[name] = began
        if said is not None:
            reasons[name] = said
    on_battery = before.on_battery if sight.on_battery is None else sight.on_battery
    return Owner(reasons=reasons, since=since, on_battery=on_battery)


def told(before: Owner, terms: HostTerms) -> Owner:
    """Return the conditions after the receiver sent other terms: a condition that was removed is no reason any more."""
    asked = {name for name, _ in _conditions(terms, Sight())}
    reasons = {name: said for name, said in before.reasons.items() if name in asked}
    return Owner(reasons=reasons, since=before.since, on_battery=before.on_battery)


def _conditions(terms: HostTerms, sight: Sight) -> Iterator[tuple[str, str | None]]:
    """Yield each of the owner's conditions: its name, and in words how it holds, or None if it does not hold."""
    if terms.hours:
        shut = sight.minute is not None and not holds(terms.hours, sight.minute)
        yield "hours", f"outside its hours, until {opens(terms.hours, sight.minute or 0)}" if shut else None
    if terms.pause_on_battery:
        yield "battery", "on battery" if sight.on_battery else None
    if terms.pause_when_used:
        used = sight.idle_s is not None and sight.idle_s < terms.idle_s
        yield "used", "a person uses it" if used else None
    for name, seen, most, what, unit in (
        ("cpu", sight.cpu, terms.pause_above_cpu, "other programs use {} of its cores", "%"),
        ("gpu", sight.gpu, terms.pause_above_gpu, "other programs use {} of its GPU", "%"),
        ("celsius", sight.celsius, terms.pause_above_celsius, "it is {} hot", "°C"),
    ):
        if most is not None:
            scale = 100 if unit == "%" else 1
            over = seen is not None and seen > most
            figures = f"{(seen or 0.0) * scale:.0f} {unit}"
            yield name, f"{what.format(figures)}, more than {most * scale:.0f} {unit}" if over else None
