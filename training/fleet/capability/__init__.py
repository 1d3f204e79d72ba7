"""The capability of this host: probes of its hardware, and what its trainers say of themselves."""

from typing import Any

from training.lazy import attribute


def __getattr__(name: str) -> Any:
    return attribute(__name__, "probe", name)
