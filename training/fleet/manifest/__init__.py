"""The training manifest: read the TOML file, check it key by key, and turn it into jobs."""

from typing import Any

from training.lazy import attribute


def __getattr__(name: str) -> Any:
    return attribute(__name__, "load", name)
