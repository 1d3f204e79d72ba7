"""One process at a time: a lock file that the operating system releases however its holder ends."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)  # each where there is one


class LockedError(Exception):
    """Another process holds the lock."""


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold ``path`` for this process alone; LockedError when another one does. The file stays behind, empty.

    OSError when it cannot be made, or is a link: root would make an empty file wherever somebody let it point.
    """
    handle = _open(path)
    try:
        _lock(handle)
        yield
    finally:
        os.close(handle)


def lock_of(database: Path) -> Path:
    """The lock of a database, whatever links led to it. OSError for one with a second name of its own."""
    real = database.resolve()
    if real.is_file() and real.stat().st_nlink > 1:
        words = (
            "has a second name (a hard link), under which another could open it: remove one of them"
        )
        raise OSError(errno.EMLINK, words, str(real))
    return real.with_name(f"{real.name}.lock")


def store_lock(root: Path) -> Path:
    """The lock of a store: it lies within, so that every way to the folder leads to it."""
    return root / "store.lock"


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
    except OSError as error:
        if path.is_symlink():
            words = "is a link, and a lock must be a file of its own: remove it"
            raise OSError(error.errno, words, str(path)) from error
        raise


def _lock(handle: int) -> None:
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise LockedError(str(error)) from error
