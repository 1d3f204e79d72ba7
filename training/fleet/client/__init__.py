"""Typed calls to the receiver, over the standard library alone."""

from __future__ import annotations

from typing import Any

from training.lazy import attribute


def __getattr__(name: str) -> Any:
    return attribute(__name__, "client", name)
