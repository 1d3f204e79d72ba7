"""Run a command of the product, and say what it took: time, and the memory of its processes.

Memory is looked at ten times a second. A process's *own* memory is what no file holds (``RssAnon``): pages of mapped
files, the data set's among them, are the system's to take back at any time.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from trainers import ROOT, own_python

MIB = 1024**2
LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """The cost of a command with all its processes; bytes at their peak."""

    seconds: float
    cpu_s: float
    own: int  # of one process, without files
    resident: int  # of one process, mapped files among it
    together: int  # resident, of all its processes at one moment
    said: str  # its standard output

    def shown(self) -> tuple[str, str, str, str]:
        """Seconds, CPU seconds, and the MiB that one process has of its own and resident, as text."""
        return f"{self.seconds:.0f}", f"{self.cpu_s:.0f}", f"{self.own / MIB:,.0f}", f"{self.resident / MIB:,.0f}"


def watched(module: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> Took:
    """Run a module of the product; what it prints as errors goes to ``log``. One that fails ends the benchmark."""
    with log.open("w+") as errors, log.with_suffix(".out").open("w+") as out:
        before, begun = children_s(), time.perf_counter()
        command = [own_python(), "-m", *module]
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=out, stderr=errors, env={**os.environ, **(environment or {})}
        )
        own = resident = together = 0
        while process.poll() is None:
            sizes = [_sizes(pid) for pid in _family(process.pid)]
            resident = max(resident, *(size for size, _ in sizes))
            own = max(own, *(anonymous for _, anonymous in sizes))
            together = max(together, sum(size for size, _ in sizes))
            time.sleep(LOOK_S)
        seconds, cpu_s = time.perf_counter() - begun, children_s() - before
        if process.returncode:
            sys.exit(f"{module[0]} {_end(process.returncode)} at {own / MIB:,.0f} MiB: {_last(errors) or _last(out)}")
        out.seek(0)
        said = out.read()
    return Took(seconds=seconds, cpu_s=cpu_s, own=own, resident=resident, together=together, said=said)


def _end(code: int) -> str:
    """The end of a process that failed, in words."""
    if code >= 0:
        return f"ended with {code}"
    why = ", which the kernel sends when memory runs out" if -code == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{why},"


def _last(file: IO[str]) -> str:
    file.seek(0)
    return file.read()[-500:].strip()


def children_s() -> float:
    """CPU seconds of all processes that this one started and that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _family(pid: int) -> list[int]:
    """A process and all its descendants."""
    try:
        children = [one for file in Path(f"/proc/{pid}/task").glob("*/children") for one in file.read_text().split()]
    except OSError:
        return [pid]
    return [pid, *(one for child in children for one in _family(int(child)))]


def _sizes(pid: int) -> tuple[int, int]:
    """Bytes that a process has in memory, and those of them that are no file's."""
    try:
        lines = dict(line.split(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return int(lines["VmRSS"].split()[0]) * 1024, int(lines["RssAnon"].split()[0]) * 1024
    except (OSError, KeyError):
        return 0, 0


def used_s(pid: int) -> float:
    """CPU seconds of a process that runs."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / 100
