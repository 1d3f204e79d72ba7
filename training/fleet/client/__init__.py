"""The client: typed calls to the receiver, using only the standard library."""

from typing import Any

from training.lazy import attribute


def __getattr__(name: str) -> Any:
    return attribute(__name__, "client", name)
