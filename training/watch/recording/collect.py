"""Read the channels of a host, one sample at a time.

The view ``machine`` reads psutil and /proc: a whole host, without privileges, on every system that psutil supports. The
view ``container`` reads the control group and the network namespace in which the recorded work runs. Other work on the
same hardware hardly changes the samples of ``container``. Channels that a view cannot measure are absent or None.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

import psutil

from training.data.channels import TREE_CHANNELS, View
from training.watch.recording import cgroups, proc
from training.watch.recording.proc import Sample


class Collector(Protocol):
    """Reads the present values of a view's channels; ``sample`` is called several times a second."""

    view: View

    def sample(self) -> Sample: ...


class Accumulator:
    """A sum of a counter over processes, which never falls although processes end.

    The last value read from an ended process stays in the sum; what the process counted after that reading is lost.
    """

    def __init__(self) -> None:
        self._gone = 0.0
        self._alive: dict[int, float] = {}

    def update(self, values: dict[int, float]) -> float:
        for pid, last in self._alive.items():
            # A smaller value than before is a process id used again.
            if pid not in values or values[pid] < last:
                self._gone += last
        self._alive = values
        return self._gone + math.fsum(values.values())


class MachineCollector:
    """Reads the channels of the whole machine, without privileges."""

    view = View.MACHINE

    def sample(self) -> Sample:
        return {**self._cpu(), **self._memory(), **self._disk(), **self._network(), **self._kernel()}

    def _cpu(self) -> Sample:
        times = psutil.cpu_times()
        irq = [getattr(times, name) for name in ("irq", "softirq") if hasattr(times, name)]
        found = {
            "cpu_user": times.user,
            "cpu_system": times.system,
            "cpu_iowait": getattr(times, "iowait", None),
            "cpu_irq": sum(irq) if irq else getattr(times, "interrupt", None),
            "cpu_steal": getattr(times, "steal", None),
        }
        stats = psutil.cpu_stats()
        found["context_switches"] = float(stats.ctx_switches)
        found["interrupts"] = float(stats.interrupts)
        with suppress(OSError):
            found["load_1m"] = psutil.getloadavg()[0]
        return found

    def _memory(self) -> Sample:
        memory = psutil.virtual_memory()
        return {"memory_used": float(memory.used), "memory_cached": getattr(memory, "cached", None)}

    def _disk(self) -> Sample:
        disk = psutil.disk_io_counters(nowrap=True)
        if disk is None:
            return {}
        names = ("disk_read_bytes", "disk_write_bytes", "disk_reads", "disk_writes")
        values = (disk.read_bytes, disk.write_bytes, disk.read_count, disk.write_count)
        return dict(zip(names, map(float, values), strict=True))

    def _network(self) -> Sample:
        if found := proc.network():
            return dict(found)
        net = psutil.net_io_counters(nowrap=True)
        values = (net.bytes_recv, net.packets_recv, net.bytes_sent, net.packets_sent)
        return dict(zip(proc.NETWORK, map(float, values), strict=True))

    def _kernel(self) -> Sample:
        """Read the channels that only /proc has (forks, page faults, pressure, dirty memory, threads), and count the
        processes."""
        stat = proc.pairs(proc.read_text("/proc/stat"))
        vm = proc.pairs(proc.read_text("/proc/vmstat"))
        meminfo = dict(_meminfo(proc.read_text("/proc/meminfo")))
        found = {
            "forks": stat.get("processes"),
            "page_faults": vm.get("pgfault"),
            "page_faults_major": vm.get("pgmajfault"),
            "memory_dirty": meminfo.get("Dirty"),
            "memory_writeback": meminfo.get("Writeback"),
            **{
                f"pressure_{n}": proc.pressure_s(proc.read_text(f"/proc/pressure/{n}")) for n in ("cpu", "io", "memory")
            },
        }
        loadavg = proc.read_text("/proc/loadavg").split()
        if len(loadavg) == 5:
            found["threads"] = float(loadavg[3].partition("/")[2])
        found["processes"] = float(len(psutil.pids()))
        return found


def _meminfo(text: str) -> Iterable[tuple[str, float]]:
    for line in text.splitlines():
        key, _, value = line.partition(":")
        words = value.split()
        if words:
            yield key, float(words[0]) * (1024 if words[-1] == "kB" else 1)


class ContainerCollector:
    """Reads the channels of one control group and of this process's network namespace."""

    view = View.CONTAINER

    def __init__(self, group: cgroups.Cgroup) -> None:
        self._group = group
        self._seen: set[int] = set()
        self._forks = 0
        self._switches = Accumulator()

    def pids(self) -> list[int]:
        return self._group.pids()

    def sample(self) -> Sample:
        pids = self._group.pids()
        new = set(pids) - self._seen
        self._seen = set(pids)
        self._forks += len(new)
        switches = {pid: n for pid in pids if (n := proc.thread_switches(pid)) is not None}
        return {
            **cgroups.usage(self._group),
            **proc.network(),
            "processes": float(len(pids)),
            "forks": float(self._forks),
            "context_switches": self._switches.update(switches),
        }


class TreeCollector:
    """Reads the tree channels of the processes that the recorder started for the present phase, and of all their
    descendants. Counters keep what ended processes counted; levels are sums over running processes only.

    A deployed detector cannot know which processes these are. The function ``roots`` returns the ids of the started
    processes that still run (none while the host idles).
    """

    def __init__(self, roots: Callable[[], list[int]]) -> None:
        self._roots = roots
        self._known: dict[int, psutil.Process] = {}
        names = ("tree_cpu_user", "tree_cpu_system", "tree_context_switches", "tree_read_bytes", "tree_write_bytes")
        self._sums = {name: Accumulator() for name in names}

    def sample(self) -> Sample:
        self._known = {process.pid: process for process in self._members()}
        per_process = {name: dict[int, float]() for name in self._sums}
        levels = dict.fromkeys((c.name for c in TREE_CHANNELS if c.name not in self._sums), 0.0)
        for pid, process in self._known.items():
            # A process that ends while it is being read leaves what was read so far.
            with suppress(psutil.Error, OSError), process.oneshot():
                _read_process(process, pid, per_process, levels)
        totals = {name: total.update(per_process[name]) for name, total in self._sums.items()}
        return {**totals, **levels}

    def _members(self) -> Iterable[psutil.Process]:
        for pid in self._roots():
            with suppress(psutil.Error):
                root = self._known.get(pid) or psutil.Process(pid)
                yield root
                for child in root.children(recursive=True):
                    yield self._known.get(child.pid, child)


def _read_process(
    process: psutil.Process, pid: int, sums: dict[str, dict[int, float]], levels: dict[str, float]
) -> None:
    times = process.cpu_times()
    sums["tree_cpu_user"][pid] = times.user
    sums["tree_cpu_system"][pid] = times.system
    levels["tree_processes"] += 1
    levels["tree_threads"] += process.num_threads()
    levels["tree_rss"] += process.memory_info().rss
    sums["tree_context_switches"][pid] = float(sum(process.num_ctx_switches()))
    if hasattr(process, "num_fds"):
        levels["tree_fds"] += process.num_fds()
    if hasattr(process, "io_counters"):
        io = process.io_counters()
        sums["tree_read_bytes"][pid] = float(getattr(io, "read_chars", io.read_bytes))
        sums["tree_write_bytes"][pid] = float(getattr(io, "write_chars", io.write_bytes))
    sockets = proc.open_sockets(pid)
    levels["tree_sockets"] += float(len(process.net_connections())) if sockets is None else sockets
