"""Linux control groups, version 1, version 2 or both: read what a container has used.

Version 1 keeps each controller in a tree of its own; version 2 has one tree. On "hybrid" machines both are mounted, and
the version 2 tree carries no controllers. CPU times are read from the version 2 ``cpu.stat`` if it exists, because it
is more exact; pressure is read from version 2 only.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from training.watch.recording.proc import Sample, number, pairs, pressure_s, read_text

V1_CONTROLLERS = ("cpu", "cpuacct", "memory", "blkio", "pids")


class Cgroup(NamedTuple):
    """The folders of one control group: a folder for each version 1 controller, and the version 2 folder (None without
    version 2)."""

    v1: Mapping[str, Path] = {}
    v2: Path | None = None

    def folders(self) -> list[Path]:
        folders = list(dict.fromkeys(self.v1.values()))
        return folders if self.v2 is None else [*folders, self.v2]

    def add(self, pid: int) -> None:
        """Move a process into the group; children that it starts later are then in the group too."""
        for folder in self.folders():
            (folder / "cgroup.procs").write_text(str(pid))

    def pids(self) -> list[int]:
        folder = self.v1.get("cpuacct") or self.v2
        text = "" if folder is None else read_text(folder / "cgroup.procs")
        return [int(pid) for pid in text.split()]


def mounts(text: str | None = None) -> tuple[dict[str, Path], Path | None]:
    """Return the version 1 mount point of each controller, and the version 2 mount point or None.

    The mount points are read from ``text``, or from /proc/self/mounts if ``text`` is None.
    """
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in (read_text("/proc/self/mounts") if text is None else text).splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2":
            v2 = Path(where)
        elif kind == "cgroup":
            v1.update((c, Path(where)) for c in V1_CONTROLLERS if c in options.split(","))
    return v1, v2


def own_cgroup() -> Cgroup | None:
    """Return the control group of this process; None if that group keeps no usage counts, like a machine's root
    group."""
    v1_mounts, v2_mount = mounts()
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        below = path.lstrip("/")
        if not controllers and v2_mount is not None:
            v2 = _existing(v2_mount, below)
        v1.update((c, _existing(v1_mounts[c], below)) for c in controllers.split(",") if c in v1_mounts)
    group = Cgroup(v1=v1, v2=v2)
    has_v1 = "cpu" in v1 and (v1["cpu"] / "cpu.cfs_quota_us").exists()
    has_v2 = v2 is not None and (v2 / "memory.current").exists()
    return group if has_v1 or has_v2 else None


def _existing(mount: Path, below: str) -> Path:
    # Inside a container the path is often the host's, while the mount already shows the container's own folder.
    return mount / below if (mount / below).is_dir() else mount


def is_bounded(group: Cgroup) -> bool:
    """Return True if the group has a limit on CPU time (or, in version 2, memory), so that it counts as a container.

    Desktops put every program into a group of its own, without limits; on a desktop, ``machine`` is the better view.
    """
    if group.v2 is not None:
        limits = (read_text(group.v2 / name).split() for name in ("cpu.max", "memory.max"))
        if any(limit and limit[0] != "max" for limit in limits):
            return True
    quota = read_text(group.v1["cpu"] / "cpu.cfs_quota_us").strip() if "cpu" in group.v1 else ""
    return quota.isdigit() and int(quota) > 0


def usage(group: Cgroup) -> Sample:
    """Return the present values, by channel, of those channels of a container that its control group counts."""
    return {**_cpu(group), **_pressure(group), **_memory(group), **_disk(group), **_tasks(group)}


def _cpu(group: Cgroup) -> Sample:
    found: Sample = {}
    if group.v2 is not None and (stat := pairs(read_text(group.v2 / "cpu.stat"))):
        found["cpu_user"] = stat["user_usec"] / 1e6
        found["cpu_system"] = stat["system_usec"] / 1e6
        if "throttled_usec" in stat:
            found["cpu_throttled"] = stat["throttled_usec"] / 1e6
    elif (folder := group.v1.get("cpuacct")) is not None:
        user, system = number(folder / "cpuacct.usage_user"), number(folder / "cpuacct.usage_sys")
        found["cpu_user"] = None if user is None else user / 1e9
        found["cpu_system"] = None if system is None else system / 1e9
    if (folder := group.v1.get("cpu")) is not None:
        stat = pairs(read_text(folder / "cpu.stat"))
        if "throttled_time" in stat:
            found["cpu_throttled"] = stat["throttled_time"] / 1e9
    return found


def _pressure(group: Cgroup) -> Sample:
    if group.v2 is None:
        return {}
    names = ("cpu", "io", "memory")
    return {f"pressure_{n}": pressure_s(read_text(group.v2 / f"{n}.pressure")) for n in names}


def _memory(group: Cgroup) -> Sample:
    folder = group.v1.get("memory")
    if folder is not None:
        stat = pairs(read_text(folder / "memory.stat"))
        keys = ("total_rss", "total_cache", "total_dirty", "total_writeback", "total_pgfault", "total_pgmajfault")
    elif group.v2 is not None:
        stat = pairs(read_text(group.v2 / "memory.stat"))
        keys = ("anon", "file", "file_dirty", "file_writeback", "pgfault", "pgmajfault")
    else:
        return {}
    names = ("memory_used", "memory_cached", "memory_dirty", "memory_writeback", "page_faults", "page_faults_major")
    return {name: stat.get(key) for name, key in zip(names, keys, strict=True)}


def _disk(group: Cgroup) -> Sample:
    folder = group.v1.get("blkio")
    if folder is not None:
        read_b, write_b = _blkio_sum(read_text(folder / "blkio.throttle.io_service_bytes"))
        read_n, write_n = _blkio_sum(read_text(folder / "blkio.throttle.io_serviced"))
    elif group.v2 is not None and (group.v2 / "io.stat").exists():
        fields = [f for line in read_text(group.v2 / "io.stat").splitlines() for f in line.split()[1:]]
        sums = dict.fromkeys(("rbytes", "wbytes", "rios", "wios"), 0.0)
        for key, _, value in (f.partition("=") for f in fields):
            if key in sums:
                sums[key] += float(value)
        read_b, write_b, read_n, write_n = sums.values()
    else:
        return {}
    return {"disk_read_bytes": read_b, "disk_write_bytes": write_b, "disk_reads": read_n, "disk_writes": write_n}


def _blkio_sum(text: str) -> tuple[float, float]:
    read = write = 0.0
    for line in text.splitlines():
        _, operation, *value = [*line.split(), "", ""][:4]
        if operation == "Read":
            read += float(value[0])
        elif operation == "Write":
            write += float(value[0])
    return read, write


def _tasks(group: Cgroup) -> Sample:
    folder = group.v1.get("pids") or group.v2
    return {} if folder is None else {"threads": number(folder / "pids.current")}
