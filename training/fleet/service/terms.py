"""The terms under which a host trains: its owner's conditions from the plan, and an operator's order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.fleet.scheduling.hours import parse, union
from training.fleet.scheduling.orders import HostOrder
from training.fleet.wire.attempts import HostTerms

_AS_THEY_ARE = (
    "pause_on_battery", "pause_when_used", "idle_s", "pause_above_cpu", "pause_above_gpu", "pause_above_celsius",
    "pause_max_s", "may_sleep",
)  # fmt: skip


def terms_of(declared: Mapping[str, Any] | None, order: HostOrder | None) -> HostTerms:
    """Return the message for a host's worker; ``declared`` is its table in ``[hosts]``."""
    said = declared or {}
    hours = union(span for text in said.get("hours") or () for span in parse(text))
    return HostTerms(
        order=None if order is None else order.order.value,
        by=None if order is None else order.by,
        hours=list(hours) or None,
        **{key: said[key] for key in _AS_THEY_ARE if key in said},
    )
