"""The locks of database and store, the same under every name of theirs."""

from __future__ import annotations

import errno
from pathlib import Path


def lock_of(database: Path) -> Path:
    """Find the lock of a database behind all symbolic links. OSError for a file with a second hard link."""
    real = database.resolve()
    if real.is_file() and real.stat().st_nlink > 1:
        words = "has a second name (a hard link), under which another could open it: remove one of them"
        raise OSError(errno.EMLINK, words, str(real))
    return real.with_name(f"{real.name}.lock")


def store_lock(root: Path) -> Path:
    """Find the lock of a store: inside the folder, so that every path to it leads there."""
    return root / "store.lock"
