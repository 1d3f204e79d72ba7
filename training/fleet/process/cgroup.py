"""The limits of this process's control groups. In a container the limits of control groups count, not the machine's
totals.

The functions read files below an injected ``root``. A limit that cannot be read counts as "no limit", which is right
outside Linux and where ``/proc`` is hidden.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# cgroup v1 writes "no limit" as the largest multiple of the page size below 2**63; no machine has an exbibyte.
_UNLIMITED_BYTES = 2**60


class CgroupLimits(NamedTuple):
    """The tightest limits of this process's control group and the groups above it; ``None`` where there is no limit."""

    cpus: float | None = None  # CPU seconds a second
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None  # limit less the unreclaimable part


class _Mount(NamedTuple):
    """A mounted cgroup hierarchy: its folder, the group that is mounted there, and its controllers."""

    folder: Path
    top: str
    controllers: frozenset[str]  # empty for the unified hierarchy


def cgroup_limits(root: Path = Path("/")) -> CgroupLimits:
    """Return the limits of this process's control groups. Never raises."""
    folders = [folder for _, levels in _hierarchies(root) for folder in levels]
    memory = [found for folder in folders for found in _memory(folder)]
    return CgroupLimits(
        cpus=min((found for folder in folders for found in _cpus(folder)), default=None),
        memory_total_bytes=min((limit for limit, _ in memory), default=None),
        memory_available_bytes=min((left for _, left in memory), default=None),
    )


def memory_folders(root: Path = Path("/")) -> list[Path]:
    """Return the folders of this process's control group and of those above it, in the hierarchies that count
    memory."""
    found = _hierarchies(root)
    wanted = (levels for mount, levels in found if not mount.controllers or "memory" in mount.controllers)
    return [folder for levels in wanted for folder in levels]


def own_group(root: Path = Path("/")) -> tuple[Path, Path] | None:
    """Return the folder of this process's group in the unified hierarchy (cgroup v2), and the hierarchy's top folder.
    None if no such hierarchy is mounted, or this process has no group in it."""
    found = _hierarchies(root)
    return next(((levels[0], mount.folder) for mount, levels in found if levels and not mount.controllers), None)


def _hierarchies(root: Path) -> Iterator[tuple[_Mount, list[Path]]]:
    """Yield each mounted hierarchy with the folders of this process's group and of the groups above it."""
    groups = dict(_groups(_text(root / "proc/self/cgroup")))
    for mount in _mounts(_text(root / "proc/self/mountinfo"), root):
        yield mount, list(_levels(mount, groups))


def _mounts(mountinfo: str, root: Path) -> Iterator[_Mount]:
    """Yield the cgroup hierarchies among the mounts (the fields are those of proc_pid_mountinfo(5))."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        options = frozenset(kind[2].split(",")) if kind[0] == "cgroup" else frozenset[str]()
        yield _Mount(folder=root / fields[4].lstrip("/"), top=fields[3], controllers=options)


def _groups(cgroup: str) -> Iterator[tuple[str, str]]:
    """Yield each controller with the path of this process's group; the unified hierarchy has the empty name."""
    for line in cgroup.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                yield controller, parts[2]


def _levels(mount: _Mount, groups: dict[str, str]) -> Iterator[Path]:
    """Yield the folders from this process's group up to the mount: a limit anywhere on the way holds."""
    names = mount.controllers & groups.keys() if mount.controllers else {""} & groups.keys()
    for name in sorted(names):
        # A container sees its own group mounted as the top, while its path may still be the host's.
        inside = groups[name].removeprefix(mount.top.rstrip("/")).strip("/")
        folder = mount.folder / inside
        if ".." in inside.split("/") or not folder.is_dir():
            folder = mount.folder
        while folder != mount.folder:
            yield folder
            folder = folder.parent
        yield mount.folder


def _cpus(folder: Path) -> Iterator[float]:
    quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    unified = _text(folder / "cpu.max").split()
    if len(unified) == 2:
        quota, period = unified
    if (allowed := _number(quota)) is not None and (span := _number(period)):
        yield allowed / span


def _memory(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield the group's (limit, still available) in bytes, if it has a limit. The inactive page cache counts as
    available: the kernel drops it on demand."""
    for limit_file, used_file, cache_key in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit = _number(_text(folder / limit_file))
        if limit is not None and limit < _UNLIMITED_BYTES:
            yield limit, max(limit - (group_memory(folder, used_file, cache_key) or 0), 0)


def group_memory(folder: Path, used_file: str = "memory.current", cache_key: str = "inactive_file") -> int | None:
    """Return the bytes of a group's memory without the page cache that the kernel can drop; None where memory is not
    counted."""
    used = _number(_text(folder / used_file))
    cache = dict(pair for line in _text(folder / "memory.stat").splitlines() if len(pair := line.split()) == 2)
    return None if used is None else max(used - (_number(cache.get(cache_key, "")) or 0), 0)


def _number(text: str) -> int | None:
    """Return a limit as a number; None for text that is no unsigned integer, such as ``max``, ``-1`` and an empty
    file."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
