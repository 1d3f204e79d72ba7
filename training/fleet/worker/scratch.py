"""The scratch space of trainers: a folder for the temporary files of each attempt, deleted when the attempt ends, with
the shared memory that its trainer left.

The folder is where large temporary files belong, and its path is short, because programs make sockets there. Linux has
one folder of shared memory for all programs. An entry of ``/dev/shm`` is deleted only if it has a name that a library
gives and was made during the attempt. Before an entry of ``/dev/shm`` is deleted, the attempt's processes must have
been seen to use it, and no process may use it any more.
"""

import logging
import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from training.files import folder_of_large_files, remove_tree
from training.fleet.process.usage import tree_of
from training.frozen import frozen

log = logging.getLogger(__name__)

VARIABLES = ("TMPDIR", "TMP", "TEMP")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where the C library makes it
# Of Python, PyTorch, joblib, loky and NCCL; the number is the id of the process that made it.
_NAMES = re.compile(r"(?:torch_|joblib_memmapping_folder_|sem\.loky-)(\d+)[_-].*|(?:psm_|sem\.mp-|nccl-).*")


@frozen
class ScratchSpace:
    """Makes the scratch folders of one worker. The names of the folders begin with ``worker``, by which the worker's
    next session finds them."""

    worker: str

    def clear(self) -> None:
        """Delete all scratch folders of this worker, such as those that a killed session left. No trainer may run
        meanwhile."""
        for folder in Path(folder_of_large_files()).glob(f"{self.worker}*"):
            if _is_ours(folder):
                remove_tree(folder)

    @contextmanager
    def lent(self, used: Collection[str]) -> Iterator[dict[str, str]]:
        """Yield the environment variables that name a new folder; afterwards delete the folder, and shared memory that
        was made since, is among the ``used``, and is used by no process any more. Where no folder can be made, there
        are no variables."""
        before = _segments()
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
            left = (_segments() - before).intersection(used)
            for name in left - _mapped(each.name for each in Path("/proc").glob("[0-9]*")) if left else ():
                remove_tree(SHARED_MEMORY / name)


def shared_memory_of(pid: int) -> set[str]:
    """Return the names of the shared memory that a process and its descendants use; on systems other than Linux,
    none."""
    return _mapped(str(each.pid) for each in tree_of(pid)) if sys.platform == "linux" else set()


def _is_ours(path: Path) -> bool:
    with suppress(OSError):
        return sys.platform == "win32" or path.lstat().st_uid == os.getuid()
    return False


def _segments() -> set[str]:
    """Return the names that libraries gave to our shared memory, except names that hold the id of a live process."""
    found = set[str]()
    if sys.platform == "linux":
        with suppress(OSError):
            for path in SHARED_MEMORY.iterdir():
                made = _NAMES.fullmatch(path.name)
                if made and _is_ours(path) and not (made[1] and Path("/proc", made[1]).exists()):
                    found.add(path.name)
    return found


def _mapped(pids: Iterable[str]) -> set[str]:
    """Return the names of the shared memory that these processes have in their memory."""
    found = set[str]()
    for pid in pids:
        with suppress(OSError):
            text = Path("/proc", pid, "maps").read_text(errors="replace")
            found.update(re.findall(rf"{re.escape(str(SHARED_MEMORY))}/([^/\s]+)", text))
    return found
