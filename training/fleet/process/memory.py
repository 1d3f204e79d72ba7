"""The system's memory before and after a trainer's run: free memory, and kills by the kernel for lack of memory.

The functions read files below an injected ``root``; a value from an unreadable file is 0, as are all values outside
Linux.
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

from training.fleet.process.cgroup import cgroup_limits, memory_folders

ROOT = Path("/")


class MemoryState(NamedTuple):
    """The machine's free memory (``free_kib``), and how many processes the kernel has killed for lack of memory
    (``kills``), on the machine or in our groups."""

    free_kib: int = 0
    kills: int = 0


def memory_state(root: Path = ROOT) -> MemoryState:
    """Return the present state, read from a few small files. Never raises."""
    free_kib = _field(root / "proc/meminfo", "MemAvailable:")
    # The machine's count has the groups' in it; in a container only one of the two may be readable.
    in_groups = max((_field(events, "oom_kill") for events in _event_files(root)), default=0)
    return MemoryState(free_kib, max(_field(root / "proc/vmstat", "oom_kill"), in_groups))


def usable_kib(free_kib: int, root: Path = ROOT) -> int:
    """Return ``free_kib``, or what our control groups still allow if that is less or ``free_kib`` is 0. For a trainer
    that ended, call this after its memory was freed."""
    group_bytes = cgroup_limits(root).memory_available_bytes
    if group_bytes is None:
        return free_kib
    return min(free_kib or group_bytes // 1024, group_bytes // 1024)


@cache
def _event_files(root: Path) -> tuple[Path, ...]:
    names = ("memory.events", "memory.oom_control")
    files = (folder / name for folder in memory_folders(root) for name in names)
    return tuple(path for path in files if path.exists())


def _field(path: Path, name: str) -> int:
    """Return the number after ``name`` on the line of the file that begins with ``name``; 0 when there is none."""
    try:
        for line in path.read_text(encoding="ascii", errors="replace").splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value.split()[0])
    except (OSError, ValueError, IndexError):
        pass
    return 0
