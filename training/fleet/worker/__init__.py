"""The worker: claims jobs, runs their trainers, and delivers their bundles."""

from typing import Any

from training.lazy import attribute


def __getattr__(name: str) -> Any:
    return attribute(__name__, "daemon", name)
