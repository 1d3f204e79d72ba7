"""The facts about a job that determine how long it takes. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from training import strict_json
from training.frozen import frozen
from training.strict_json import Json, JsonObject

_SEEDS = frozenset({"seed", "random_state", "random_seed"})  # hyperparameters that change no duration
_SIZE_STEP = 1.25  # factor between two sizes that make different kinds


@frozen
class Workload:
    """The facts about a job that determine how long it takes. Jobs with equal workloads are of one kind."""

    family: str
    kind: str  # canonical; seeds left out
    sizes: tuple[tuple[str, float], ...] = ()  # name and logarithm

    @classmethod
    def of(cls, spec: Json, data_bytes: float | None = None) -> Workload:
        """Read the facts from a job dict, or from stored facts; ``data_bytes`` is the size of the job's data set, None
        if unknown."""
        family, hyper = str(spec.get("model") or ""), _hyper(spec)
        sizes = [(name, math.log(value)) for name, value in sorted(hyper.items()) if _is_size(name, value)]
        if data_bytes is not None and data_bytes > 0:
            sizes.append(("data size", math.log(data_bytes)))
        return cls(family, strict_json.canonical(work_facts(spec)), tuple(sizes))


def work_facts(spec: Json, *, coarse: bool = False) -> JsonObject:
    """Return the facts in a job dict that determine its kind; with ``coarse``, without hyperparameters.

    A hyperparameter from 1 on is rounded to the nearest power of 1.25. Seeds and numbers below 1 (a rate, a share) are
    left out, other values stay. The rounding keeps the kinds few in a search over many hyperparameters. Given its own
    result, the function returns it unchanged.
    """
    rounded = {name: _rounded(name, value) for name, value in _hyper(spec).items()}
    return {
        "model": str(spec.get("model") or ""),
        "mode": spec.get("mode"),
        "dataset": spec.get("dataset"),
        "trainer": spec.get("trainer"),
        "hyper": {} if coarse else {name: value for name, value in rounded.items() if value is not None},
    }


def _hyper(spec: Json) -> JsonObject:
    hyper = spec.get("hyper")
    return {str(key): value for key, value in hyper.items()} if isinstance(hyper, Mapping) else {}


def _is_size(name: str, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or name in _SEEDS:
        return False
    return 0 < value < math.inf


def _rounded(name: str, value: Any) -> Any:
    if name in _SEEDS or isinstance(value, bool) or not isinstance(value, int | float):
        return None if name in _SEEDS else value
    if not 1 <= value < math.inf:
        return None
    return float(f"{_SIZE_STEP ** round(math.log(value, _SIZE_STEP)):.3g}")
