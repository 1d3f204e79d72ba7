"""The worker: pull a job, train it, deliver the verified bundle."""

from __future__ import annotations

from typing import Any

from training.lazy import attribute


def __getattr__(name: str) -> Any:
    return attribute(__name__, "daemon", name)
