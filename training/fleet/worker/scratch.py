"""The scratch space of trainers: a folder for the temporary files of each attempt, deleted when the attempt ends, with
the shared memory that its trainer left.

The folder is where large temporary files belong, and its path is short, because programs make sockets there.
Linux has one folder of shared memory for all programs. There only names that a library gives are deleted, if they were
made during the attempt, and no process has them in its memory.
"""

import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path

from training.files import folder_of_large_files, remove_tree
from training.frozen import frozen

log = logging.getLogger(__name__)

VARIABLES = ("TMPDIR", "TMP", "TEMP")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where the C library makes it
# Of Python, PyTorch, joblib, loky and NCCL; the number is the id of the process that made it.
_NAMES = re.compile(r"(?:torch_|joblib_memmapping_folder_|sem\.loky-)(\d+)[_-].*|(?:psm_|sem\.mp-|nccl-).*")


@frozen
class ScratchSpace:
    """Makes the scratch folders of one worker; ``worker`` begins their names, so that its next session finds them."""

    worker: str
    _found: list[set[str]] = field(default_factory=list)  # for each running attempt, what shared memory was there

    def clear(self) -> None:
        """Delete the folders of attempts that ended with a killed worker."""
        for folder in Path(folder_of_large_files()).glob(f"{self.worker}*"):
            if _is_ours(folder):
                remove_tree(folder)

    @contextmanager
    def lent(self) -> Iterator[dict[str, str]]:
        """Yield the environment variables that name a new folder; afterwards delete the folder, and shared memory that
        was left since. Where no folder can be made, there are no variables."""
        before = _segments()
        self._found.append(before)
        folder = None
        try:
            folder = Path(tempfile.mkdtemp(prefix=self.worker, dir=folder_of_large_files()))
        except OSError as error:
            log.warning("a trainer has no folder for temporary files of its own: %s", error)
        try:
            yield dict.fromkeys(VARIABLES, str(folder)) if folder is not None else {}
        finally:
            if folder is not None:
                remove_tree(folder)
            self._found.remove(before)
            # Memory that another running attempt may have made stays until that ends.
            left = (_segments() - before).intersection(*self._found)
            for name in left - _mapped(left):
                remove_tree(SHARED_MEMORY / name)


def _is_ours(path: Path) -> bool:
    with suppress(OSError):
        return sys.platform == "win32" or path.lstat().st_uid == os.getuid()
    return False


def _segments() -> set[str]:
    """Return the names that libraries gave to our shared memory, without those whose maker lives."""
    found = set[str]()
    if sys.platform == "linux":
        with suppress(OSError):
            for path in SHARED_MEMORY.iterdir():
                made = _NAMES.fullmatch(path.name)
                if made and _is_ours(path) and not (made[1] and Path("/proc", made[1]).exists()):
                    found.add(path.name)
    return found


def _mapped(names: set[str]) -> set[str]:
    """Return those of the names that some process has in its memory."""
    found = set[str]()
    for maps in Path("/proc").glob("[0-9]*/maps") if names else ():
        with suppress(OSError):
            text = maps.read_text(errors="replace")
            found |= {name for name in names if f"{SHARED_MEMORY}/{name}" in text}
    return found
