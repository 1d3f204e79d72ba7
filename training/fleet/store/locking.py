"""The lock of a database and that of a store, by whatever name each is reached."""

from __future__ import annotations

import errno
from pathlib import Path


def lock_of(database: Path) -> Path:
    """The lock of a database, whatever links led to it. OSError for one with a second name of its own."""
    real = database.resolve()
    if real.is_file() and real.stat().st_nlink > 1:
        words = "has a second name (a hard link), under which another could open it: remove one of them"
        raise OSError(errno.EMLINK, words, str(real))
    return real.with_name(f"{real.name}.lock")


def store_lock(root: Path) -> Path:
    """The lock of a store: it lies within, so that every way to the folder leads to it."""
    return root / "store.lock"
