"""Bring data from other sources into a data set: tables of samples, NumPy archives, and other recorders' data."""

from typing import Any

from training.lazy import attribute


def __getattr__(name: str) -> Any:
    return attribute(__name__, "program", name)
