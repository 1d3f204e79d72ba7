"""The paths of the locks of database and store; every path to the same database or store leads to the same lock."""

import errno
from pathlib import Path


def lock_of(database: Path) -> Path:
    """Return the path of a database's lock, after following all symbolic links. Raises OSError for a database file with
    a second hard link."""
    real = database.resolve()
    if real.is_file() and real.stat().st_nlink > 1:
        words = "has a second name (a hard link), under which another could open it: remove one of them"
        raise OSError(errno.EMLINK, words, str(real))
    return real.with_name(f"{real.name}.lock")


def store_lock(root: Path) -> Path:
    """Return the path of a store's lock: inside the folder, so that every path to the store leads to it."""
    return root / "store.lock"
