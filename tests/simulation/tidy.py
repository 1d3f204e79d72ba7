"""Fleets whose plan keeps the best model of each kind only: a tenth, so that other seeds mean what they did."""

from __future__ import annotations

_EVERY, _TIDY = 10, 9


def is_tidy(seed: int) -> bool:
    """Return True when this seed's plan lets models go."""
    return seed % _EVERY == _TIDY


def quality(job_id: str) -> float:
    """Return the validation figure that each attempt of a job reaches; some jobs have the same."""
    return int(job_id[:4], 16) % 5 / 5
