"""PURE: the wishes of a host's owner and operators at a moment, as the receiver says with each answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from training.fleet.scheduling.hours import WEEK, Span, union
from training.fleet.scheduling.orders import IDLE_S, PAUSE_MAX_S, Order

BY_CHARS_MAX = 64
SPANS_MAX = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The order that a host is under, and its owner's conditions. Without any the host trains what it gets."""

    order: Order | None = None
    by: str = ""  # who gave the order
    hours: tuple[Span, ...] = ()  # minutes of the week in which it may train; empty: always
    pause_on_battery: bool = False
    pause_when_used: bool = False  # by a person …
    idle_s: float = IDLE_S  # … until nobody touched it for so long
    pause_above_cpu: float | None = None  # share of the cores that other programs use
    pause_above_gpu: float | None = None
    pause_above_celsius: float | None = None
    pause_max_s: float = PAUSE_MAX_S  # a trainer that is paused for longer is stopped, and its job handed back
    may_sleep: bool = False  # else it is kept awake while it trains on mains power

    @classmethod
    def of(cls, said: object) -> Terms:
        """Read the terms of an answer. What makes no sense asks for nothing: it must not keep a host from work."""
        told: Mapping[str, Any] = said if isinstance(said, Mapping) else {}
        order = told.get("order")
        return cls(
            order=Order(order) if order in set(Order) else None,
            by=str(told.get("by") or "the operator")[:BY_CHARS_MAX],
            hours=_spans(told.get("hours")),
            pause_on_battery=told.get("pause_on_battery") is True,
            pause_when_used=told.get("pause_when_used") is True,
            idle_s=_number(told.get("idle_s"), IDLE_S),
            pause_above_cpu=_limit(told.get("pause_above_cpu")),
            pause_above_gpu=_limit(told.get("pause_above_gpu")),
            pause_above_celsius=_limit(told.get("pause_above_celsius")),
            pause_max_s=_number(told.get("pause_max_s"), PAUSE_MAX_S),
            may_sleep=told.get("may_sleep") is True,
        )

    @property
    def observes(self) -> bool:
        """Return True when the owner has a condition that the machine must be looked at for."""
        limits = (self.pause_above_cpu, self.pause_above_gpu, self.pause_above_celsius)
        return bool(self.hours) or self.pause_on_battery or self.pause_when_used or any(x is not None for x in limits)


def _number(said: object, otherwise: float) -> float:
    found = _limit(said)
    return otherwise if found is None else found


def _limit(said: object) -> float | None:
    good = isinstance(said, int | float) and not isinstance(said, bool) and 0 <= said <= 1e9
    return float(said) if good else None  # type: ignore[arg-type]


def _spans(said: object) -> tuple[Span, ...]:
    spans = said if isinstance(said, list | tuple) and len(said) <= SPANS_MAX else ()
    return union(
        (begin, end)
        for begin, end in (each for each in spans if isinstance(each, list | tuple) and len(each) == 2)
        if isinstance(begin, int) and isinstance(end, int) and 0 <= begin < end <= WEEK
    )
