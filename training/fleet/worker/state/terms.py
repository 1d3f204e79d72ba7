"""PURE: what a host's owner and operators ask of its worker at a moment, as the receiver says with each answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from training.fleet.scheduling.orders import Order

BY_CHARS_MAX = 64
PAUSE_MAX_S = 600.0  # where the receiver does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The order that a host is under, and its owner's conditions. Without any the host trains what it gets."""

    order: Order | None = None
    by: str = ""  # who gave the order
    pause_max_s: float = PAUSE_MAX_S  # a trainer that is paused for longer is stopped, and its job handed back

    @classmethod
    def of(cls, said: object) -> Terms:
        """Read the terms of an answer. Null, or what an older receiver sends, asks for nothing; so does nonsense."""
        told = said if isinstance(said, Mapping) else {}
        order = told.get("order")
        return cls(
            order=Order(order) if order in set(Order) else None,
            by=str(told.get("by") or "the operator")[:BY_CHARS_MAX],
            pause_max_s=_seconds(told.get("pause_max_s"), PAUSE_MAX_S),
        )


def _seconds(said: object, otherwise: float) -> float:
    good = isinstance(said, int | float) and not isinstance(said, bool) and 0 <= said <= 1e9
    return float(said) if good else otherwise  # type: ignore[arg-type]
