"""Bundles and data sets on the receiver's disk, named by their content."""

from __future__ import annotations

from typing import Any

from training.lazy import attribute


def __getattr__(name: str) -> Any:
    return attribute(__name__, "artifacts", name)
