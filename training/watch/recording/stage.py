"""Start and stop the processes of the behaviours that are recorded."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from training.watch.recording import cgroups
from training.watch.recording.scenarios import Phase


class RecordError(Exception):
    """The episode cannot be recorded; nothing of it is kept."""


@dataclass
class Running:
    """A started behaviour: its name, its process, and the file with its standard error."""

    name: str
    process: subprocess.Popen[bytes]
    stderr: IO[bytes]


@dataclass
class Stage:
    """Starts and stops the behaviours of one episode; with ``group``, they run inside that control group."""

    scratch: Path
    group: cgroups.Cgroup | None = None
    far_end: subprocess.Popen[bytes] | None = None
    far_ports: str = ""
    background: list[Running] = field(default_factory=list)
    front: list[Running] = field(default_factory=list)
    ended: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def open(self) -> None:
        """Start the servers that behaviours contact, outside the container, as they represent other machines. Raises
        RecordError if the servers cannot be started."""
        self.far_end = subprocess.Popen(
            [sys.executable, "-m", "training.watch.recording.loopback"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.far_end.stdout is not None
        self.far_ports = self.far_end.stdout.readline().decode().strip()
        if not self.far_ports:
            raise RecordError("The servers that behaviours contact could not be started.")

    def start(self, phase: Phase, scratch: Path) -> Running:
        assert phase.behaviour is not None
        options = ("--scratch", scratch, "--seed", phase.seed, "--intensity", phase.intensity)
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "training.watch.recording.workloads", phase.behaviour),
                *(*map(str, options), "--far-end", self.far_ports),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
        if self.group is not None:
            self.group.add(process.pid)
        return Running(phase.behaviour, process, stderr)

    def roots(self) -> list[int]:
        return [r.process.pid for r in self.front if r.process.poll() is None]

    def check(self) -> None:
        """Raise RecordError if a behaviour has ended, because the label would then be wrong."""
        for running in (*self.background, *self.front):
            if (code := running.process.poll()) is not None:
                running.stderr.seek(0)
                last = running.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise RecordError(f"The behaviour {running.name} ended early (exit {code}): {last or 'silently'}.")

    def clear_front(self) -> None:
        """Kill the behaviours of the present phase without waiting for their end, as the next sample is due; ``close``
        waits."""
        for running in self.front:
            kill_tree(running.process)
            running.stderr.close()
            self.ended.append(running.process)
        self.front.clear()

    def close(self) -> None:
        self.front += self.background
        self.background = []
        self.clear_front()
        for process in self.ended:
            process.wait()
        if self.far_end is not None:
            kill_tree(self.far_end)
            self.far_end.communicate()
            self.far_end = None


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children; on POSIX, all processes of its group."""
    if os.name == "posix":
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return
    with suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.Error):
                child.kill()
    with suppress(OSError):
        process.kill()
