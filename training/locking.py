"""A lock file that one process at a time can hold; the operating system releases the lock however its holder ends."""

import contextlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)  # each where there is one
_NOTE_AT = 1  # Windows locks the first byte, and lets no other process read it
_NOTE_BYTES_MAX = 40


class LockedError(Exception):
    """The lock is held already, or the file system grants none; ``holder`` says which process holds it, and since when,
    if the file tells."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file ``path`` in a ``with`` block, and leave the file there afterwards. Raises LockedError if
    the lock is held already, by another process or this one, or the file system grants none.

    If the file is removed while we lock it, the file that then has the name is locked instead. Raises OSError if the
    file cannot be made or is a link: root would otherwise create a file wherever the link points.
    """
    handle = _held(path)
    try:
        _note(handle)
        yield
    finally:
        os.close(handle)


def _held(path: Path) -> int:
    """Lock the file that has this name, and return its open handle. Raises LockedError if the lock is held already,
    or the file system grants none."""
    while True:
        handle = _open(path)
        try:
            _lock(handle)
            if os.name == "nt":  # which removes no file that a process has open
                return handle
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), path.lstat()):
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


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
        raise LockedError(_holder(handle)) from error


def _note(handle: int) -> None:
    """Write this process's id into the lock file; the file's modification time shows since when the lock is held. If
    the disk is full, the lock is held without the id."""
    with contextlib.suppress(OSError):
        os.lseek(handle, _NOTE_AT, os.SEEK_SET)
        os.write(handle, f"{os.getpid():<{_NOTE_BYTES_MAX - 1}}\n".encode())


def _holder(handle: int) -> str:
    with contextlib.suppress(OSError, ValueError, OverflowError):
        os.lseek(handle, _NOTE_AT, os.SEEK_SET)
        pid = int(os.read(handle, _NOTE_BYTES_MAX))
        since = datetime.fromtimestamp(os.fstat(handle).st_mtime, UTC).astimezone()
        return f"process {pid}, since {since:%Y-%m-%d %H:%M:%S}"
    return "another process"
