"""Let only one process at a time write a data set, because two would overwrite each other's files."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from training.contract import Exit
from training.locking import LockedError, exclusive
from training.streams import complain

LOCK = ".lock"  # a name with a dot in front does not travel with the data set


class FolderBusy(Exception):  # noqa: N818 - reads as what it is
    """Another process is writing the data set; the error's text is one sentence."""


@contextlib.contextmanager
def alone(out_dir: Path) -> Iterator[None]:
    """Create the data set's folder, and keep it locked for this process while the context lasts.

    Raises FolderBusy if another process holds the lock, OSError if the folder cannot be made. On POSIX, a folder that
    was made here and at the end holds only the lock file is removed.
    """
    made = not out_dir.exists()
    out_dir.mkdir(parents=True, exist_ok=True)
    try:
        with exclusive(out_dir / LOCK):
            try:
                yield
            finally:
                if made and os.name == "posix" and [each.name for each in out_dir.iterdir()] == [LOCK]:
                    (out_dir / LOCK).unlink()  # Windows removes no open file
                    out_dir.rmdir()
    except LockedError as error:
        raise FolderBusy(
            f"a data set is being written into {out_dir} ({error.holder}): wait for that, or choose another --out-dir"
        ) from None


def ended(error: Exception, out_dir: Path, before: str) -> int:
    """Print, on standard error, the text ``before``, a colon, and the error that ended a writer (for an OSError, with a
    remedy); return the exit code for this error."""
    said, code = str(error), getattr(error, "code", Exit.INTERRUPTED)
    if isinstance(error, OSError):
        said = f"{error.filename or out_dir}: {error.strerror}; choose another --out-dir, or make room"
        code = Exit.NO_ACCESS
    complain(f"{before}: {said}")
    return code
