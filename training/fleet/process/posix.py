"""Processes on Linux and macOS: sessions, groups, control groups, signals. It defines the same functions as
windows.py."""

import contextlib
import hashlib
import itertools
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from training.fleet.process.cgroup import own_group
from training.fleet.process.usage import tree_of

LAUNCHER_IS_REUSABLE = True
REMOVE_TRIES = 200
ENVIRON_LOOKS = 10  # at the environment of a process that shows none


def popen_options() -> dict[str, Any]:
    """Return the options that start the launcher in its own session, so that only the worker gets Ctrl-C from its
    terminal."""
    return {"start_new_session": True}


_numbers = itertools.count(1)


def group_for(owner: Path) -> Path | None:
    """Return the folder of a control group that the launcher may make, for a trainer of the worker with state folder
    ``owner``.

    The folder is inside this process's own group, which is writable in a service with ``Delegate=yes``, a user's
    session and for most containers' root. Return None if that group is not writable or there is no cgroup v2; the
    launcher then uses no control group.
    """
    found = own_group()
    if found is None or not os.access(found[0], os.W_OK):
        return None
    return found[0] / f"{_group_name(owner)}-{os.getpid()}-{next(_numbers)}"


def _group_name(owner: Path) -> str:
    return "cis490-" + hashlib.sha256(os.fsencode(owner.absolute())).hexdigest()[:16]


def end_group(folder: Path | None) -> list[int]:
    """Kill every member of a trainer's control group, whose launcher can no longer do it, and remove the group; return
    the members' process ids. Before Linux 5.14 the members are returned but not killed."""
    if folder is None:
        return []
    members: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        members = [int(line) for line in (folder / "cgroup.procs").read_text("ascii").split()]
        (folder / "cgroup.kill").write_text("1")
    for _ in range(REMOVE_TRIES):  # the last member may need a moment
        with contextlib.suppress(OSError):
            folder.rmdir()
        if not folder.exists():
            break
        time.sleep(0.005)
    return members


def kill_descendants(pid: int) -> None:
    """Kill the descendants of a launcher that does not answer, before killing the launcher makes them orphans."""
    for process in tree_of(pid)[1:]:
        with contextlib.suppress(Exception):  # it may have ended meanwhile
            process.kill()


def job_object(process: subprocess.Popen[bytes]) -> object:  # noqa: ARG001 - Windows needs it
    """Return None: on POSIX the launcher's pipe ends the trainer with the worker."""
    return None


def open_job_object(handle: object) -> None:
    """Do nothing: only Windows has job objects."""


def kill_group(pid: int) -> None:
    """Kill the process group that ``pid`` leads, when its launcher can no longer do it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def pause_tree(pid: int) -> None:
    """Do nothing: on POSIX the launcher pauses the trainer."""


def resume_tree(pid: int) -> None:
    """Do nothing: on POSIX the launcher resumes the trainer."""


def end_leftovers(variable: str, folder: Path) -> list[int]:
    """Kill the processes that were started for the state folder ``folder`` or a folder in it; return their ids, sorted.
    Without ``/proc`` (macOS) no process is found.

    Worker and launcher may be killed together, by the kernel or a person; then the trainer continues. The trainer's
    control group is named after the worker's state folder, and its processes have the job's folder in their
    environment. Unlike a remembered process id, the name of a control group and a variable in a process's environment
    cannot mean another process.
    """
    here = b"\0" + os.fsencode(f"{variable}={folder}")
    markers = (here + os.fsencode(os.sep), here + b"\0")
    ended = []
    found = own_group()
    if found is not None:
        for place, groups, _ in os.walk(found[1]):
            for name in groups:
                if name.startswith(_group_name(folder) + "-"):
                    ended += end_group(Path(place, name))
    pids = {int(entry.name) for entry in Path("/proc").glob("[0-9]*")} - {os.getpid()}
    for _ in range(ENVIRON_LOOKS):
        begin = set()
        for pid in pids:
            with contextlib.suppress(OSError):
                environ = _environ(pid)
                if any(marker in b"\0" + environ + b"\0" for marker in markers):
                    os.kill(pid, signal.SIGKILL)
                    ended.append(pid)
                elif not environ and os.readlink(f"/proc/{pid}/exe"):  # noqa: PTH115 - the kernel's own have none
                    begin.add(pid)
        if not (pids := begin):
            break
        time.sleep(0.002)
    return sorted(set(ended))


def _environ(pid: int) -> bytes:
    """Return a process's environment; it is empty for the kernel's own threads, and while the kernel is still loading a
    program."""
    return Path(f"/proc/{pid}/environ").read_bytes()
