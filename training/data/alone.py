"""One writer of a data set at a time: two that lay files into one folder cut each other's short.

A folder made for nothing is removed with its lock. On POSIX the holder of the lock removes it, so that no other
writer's is removed; a writer that has opened a file that loses its name then takes the next (training.locking). Windows
removes no open file, so there it is done after the release.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from training.locking import LockedError, exclusive

LOCK = ".lock"  # a name with a dot in front does not travel with the data set


class FolderBusy(Exception):  # noqa: N818 - reads as what it is
    """Another process writes the data set. The text is one sentence."""


@contextlib.contextmanager
def alone(out_dir: Path) -> Iterator[None]:
    """Hold the data set's folder, which is made; FolderBusy while another process does, OSError when it cannot be.

    A folder that was made for nothing is removed again.
    """
    made, held = not out_dir.exists(), False
    try:
        with _folder_held(out_dir):
            held = True
            try:
                yield
            finally:
                if made and os.name == "posix":  # held still: see the heading
                    _remove_if_empty(out_dir)
    except LockedError as error:
        raise FolderBusy(
            f"a data set is being written into {out_dir} ({error.holder}): wait for that, or choose another --out-dir"
        ) from None
    finally:
        if made and held and os.name == "nt":
            _remove_if_empty(out_dir)


@contextlib.contextmanager
def _folder_held(out_dir: Path) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for last in (False, True):
            out_dir.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(exclusive(out_dir / LOCK))
                break
            except FileNotFoundError:  # the writer that made it for nothing has just removed it
                if last:
                    raise
        yield


def _remove_if_empty(out_dir: Path) -> None:
    with contextlib.suppress(OSError):
        if [each.name for each in out_dir.iterdir()] == [LOCK]:
            (out_dir / LOCK).unlink()
            out_dir.rmdir()
