"""Figures as JSON values: {value, ci95}, with a ``reason`` if a value has no interval."""

import numpy as np

from training.data.values import Floats, JsonDict
from training.trainer.evaluation.intervals import Estimate, percentile_interval, why_no_interval
from training.trainer.evaluation.rates import rate_interval

DIGITS = 6  # of every number in a report: below any meaning, above what a CPU's rounding can move


def rounded(value: float) -> float:
    return round(float(value), DIGITS)


def missing(reason: str) -> JsonDict:
    return {"value": None, "ci95": None, "reason": reason}


def shown(estimate: Estimate, n_support: int, *, bounded: bool = True) -> JsonDict:
    """Return an estimate as {value, ci95}, rounded; both are None if its value is not finite.

    If only the interval is missing, ``reason`` says why. For ``n_support`` and ``bounded`` see `percentile_interval`.
    """
    if not np.isfinite(estimate.value):
        return {"value": None, "ci95": None}
    too_few = why_no_interval(estimate.samples.size)
    interval = None if too_few else percentile_interval(estimate, n_support, bounded=bounded)
    return figure(estimate.value, interval, too_few or f"{n_support} episodes carry it: too few for an interval")


def shown_rate(alarms: Floats, windows: Floats, *, unit: str = "episode") -> JsonDict:
    """Return a rate as {value, ci95}, from ``alarms`` (E,) and ``windows`` (E,) of each ``unit``; both None without
    windows.

    See `rates` for the interval.
    """
    if not windows.sum():
        return {"value": None, "ci95": None}
    return figure(alarms.sum() / windows.sum(), rate_interval(alarms, windows), carried_by_one(unit))


def figure(value: float, interval: tuple[float, float] | None, reason: str) -> JsonDict:
    """Return {value, ci95}, rounded; without an interval ci95 is None and ``reason`` is added."""
    if interval is None:
        return {"value": rounded(value), "ci95": None, "reason": reason}
    return {"value": rounded(value), "ci95": [rounded(bound) for bound in interval]}


def carried_by_one(unit: str) -> str:
    return f"1 {unit} carries it: too few for an interval"
