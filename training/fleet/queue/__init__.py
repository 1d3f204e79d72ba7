"""The job queue: each call reads facts, decides, and writes its rows and an event row in one transaction."""

from typing import Any

from training.lazy import attribute


def __getattr__(name: str) -> Any:
    return attribute(__name__, "jobs", name)
