"""Advice on how much memory the plan's jobs should ask for, from what trainers of their kind used."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from training.fleet.queue.durations import Learned
from training.fleet.wire.plans import ADVICE_MAX, TAKEN_MAX, MemoryAdvice

_SPARE = 1.2  # of the most that was held
_TOO_MUCH = 1.5  # of what is proposed
_SLIGHT_GIB = 0.25  # a difference that nobody should edit a plan for


def proposed_gib(asked_gib: float, held_gib: float) -> float | None:
    """Return the ``min_ram_gib`` to propose for jobs whose trainers held at most ``held_gib``; None if they ask for
    enough, and not far too much."""
    proposed = math.ceil(held_gib * _SPARE * 10) / 10
    fits = held_gib <= asked_gib <= proposed * _TOO_MUCH
    return None if fits or abs(asked_gib - proposed) < _SLIGHT_GIB else proposed


def advise(specs: Iterable[Mapping[str, Any]], learned: Learned) -> list[MemoryAdvice]:
    """Return advice for the jobs that ask for too little or far too much memory, grouped by kind and amount: at most
    ``ADVICE_MAX`` groups, the largest first."""
    kinds = learned.kinds()
    models = {of_kind.spec.get("model") for of_kind in kinds.values()}
    named: dict[Any, str] = {}  # of jobs alike, their kind
    found: dict[tuple[str, float], list[str]] = {}
    for spec in specs:
        if spec.get("model") not in models:
            continue
        alike = tuple(repr(spec.get(key)) for key in ("model", "mode", "dataset", "trainer", "hyper"))
        if alike not in named:
            named[alike] = learned.workload(spec).kind
        if (kind := named[alike]) in kinds:
            found.setdefault((kind, float(spec.get("min_ram_gib") or 0.0)), []).append(str(spec["name"]))
    made = []
    for (kind, asked), names in found.items():
        held = kinds[kind].ram_gib
        proposed = None if held is None else proposed_gib(asked, held)
        if held is None or proposed is None:
            continue
        made.append(
            MemoryAdvice(jobs=names[:TAKEN_MAX], count=len(names), asked_gib=asked, held_gib=held, propose_gib=proposed)
        )
    return sorted(made, key=lambda each: -each.count)[:ADVICE_MAX]
