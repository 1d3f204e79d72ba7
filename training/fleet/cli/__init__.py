"""``cis490-jobs``: look at the fleet, and act on it."""

from __future__ import annotations

from typing import Any

from training.lazy import attribute


def __getattr__(name: str) -> Any:
    return attribute(__name__, "program", name)
