"""The scratch folder of a target: in memory where the system offers that, as most targets wait for the disk."""

from __future__ import annotations

import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")  # noqa: S108 - the names made below it cannot be guessed


def folder(target: str) -> tempfile.TemporaryDirectory[str]:
    """An empty folder, which goes with the object."""
    where = _MEMORY if _MEMORY.is_dir() else None
    return tempfile.TemporaryDirectory(prefix=f"fuzz-{target}-", dir=where)
