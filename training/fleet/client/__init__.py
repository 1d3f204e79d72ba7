"""The client: typed calls to the receiver, over the standard library's HTTP."""

from typing import Any

from training.lazy import attribute


def __getattr__(name: str) -> Any:
    return attribute(__name__, "client", name)
