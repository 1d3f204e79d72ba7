"""``cis490-jobs``: the command that shows the fleet and changes it."""

from typing import Any

from training.lazy import attribute


def __getattr__(name: str) -> Any:
    return attribute(__name__, "program", name)
