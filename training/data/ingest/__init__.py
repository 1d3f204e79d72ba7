"""Windows from elsewhere: tables as people have them, archives, and what other recorders wrote."""

from __future__ import annotations

from typing import Any

from training.lazy import attribute


def __getattr__(name: str) -> Any:
    return attribute(__name__, "program", name)
