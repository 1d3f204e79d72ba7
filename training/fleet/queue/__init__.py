"""The job queue: a call reads facts, decides, and writes its rows, with an event row for each move of a job, in one
transaction."""

from typing import Any

from training.lazy import attribute


def __getattr__(name: str) -> Any:
    return attribute(__name__, "jobs", name)
