"""Ingest windows from other sources: tables of samples, array archives, and the files of other recorders."""

from typing import Any

from training.lazy import attribute


def __getattr__(name: str) -> Any:
    return attribute(__name__, "program", name)
