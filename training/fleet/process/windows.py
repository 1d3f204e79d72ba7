"""Processes on Windows: a job object that dies with the worker. It defines the same functions as posix.py.

Windows has no process groups that one could kill, and a child does not die with its parent. A *job object* with
KILL_ON_JOB_CLOSE contains and ends a trainer's tree: every process that a member starts is a member. When the last
handle to the object is closed (at any end of the worker), the system kills all members. A process can be put into a job
only after its start, and children that it started before are not in the job. So the launcher is put into the job while
it still waits for its first line; the trainer then starts inside the job.

A trainer is asked to stop by Ctrl-Break, because a new process group ignores Ctrl-C. Ctrl-Break only reaches processes
on the sender's console. So the launcher gets its own hidden console, which its trainer shares, and the launcher sends
Ctrl-Break. A service without a desktop works the same way.

No process can leave the job object, because ``BREAKAWAY_OK`` is not set. Processes that another service was asked to
start are not members, and are not killed: a task of the scheduler, a process made through WMI.

The module can be imported on every system, because only its functions use Windows names.
"""

import contextlib
import ctypes
import subprocess
from pathlib import Path
from typing import Any

from training.fleet.process.usage import tree_of

LAUNCHER_IS_REUSABLE = False  # one job object for each trainer

KILL_ON_JOB_CLOSE = 0x2000
EXTENDED_LIMIT_INFORMATION = 9
CREATE_NO_WINDOW = 0x0800_0000  # a hidden console, not none: Ctrl-Break needs one


class _BasicLimits(ctypes.Structure):
    _fields_ = (
        ("PerProcessUserTimeLimit", ctypes.c_int64),
        ("PerJobUserTimeLimit", ctypes.c_int64),
        ("LimitFlags", ctypes.c_uint32),
        ("MinimumWorkingSetSize", ctypes.c_size_t),
        ("MaximumWorkingSetSize", ctypes.c_size_t),
        ("ActiveProcessLimit", ctypes.c_uint32),
        ("Affinity", ctypes.c_size_t),
        ("PriorityClass", ctypes.c_uint32),
        ("SchedulingClass", ctypes.c_uint32),
    )


class _ExtendedLimits(ctypes.Structure):
    _fields_ = (
        ("BasicLimitInformation", _BasicLimits),
        ("IoInfo", ctypes.c_uint64 * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    )


def _kernel32() -> Any:
    """Return kernel32 after declaring its functions' types, because a handle is as wide as a pointer."""
    library = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    library.CreateJobObjectW.restype = ctypes.c_void_p
    library.CreateJobObjectW.argtypes = (ctypes.c_void_p, ctypes.c_wchar_p)
    library.SetInformationJobObject.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32)
    library.AssignProcessToJobObject.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    library.TerminateJobObject.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
    library.CloseHandle.argtypes = (ctypes.c_void_p,)
    return library


def group_for(owner: Path) -> Path | None:  # noqa: ARG001 - POSIX needs it
    """Return None: on Windows the job object, not a control group, contains the trainer's tree."""
    return None


def end_group(folder: Path | None) -> list[int]:  # noqa: ARG001 - POSIX needs it
    """Return an empty list: :func:`open_job_object` kills the members."""
    return []


def kill_descendants(pid: int) -> None:
    """Do nothing: :func:`open_job_object` kills the members."""


def popen_options() -> dict[str, Any]:
    """Return the options that give the launcher a hidden console and its own process group, without Ctrl-C from the
    worker's console."""
    group = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    return {"creationflags": CREATE_NO_WINDOW | group}


def job_object(process: subprocess.Popen[bytes]) -> object:
    """Put the launcher into a new job object and return the handle. Raises OSError."""
    kernel32 = _kernel32()
    job = kernel32.CreateJobObjectW(None, None)
    limits = _ExtendedLimits()
    limits.BasicLimitInformation.LimitFlags = KILL_ON_JOB_CLOSE
    size = ctypes.sizeof(limits)
    handle = process._handle  # type: ignore[attr-defined]  # noqa: SLF001 - Popen has no public name for it
    if not (
        job
        and kernel32.SetInformationJobObject(job, EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), size)
        and kernel32.AssignProcessToJobObject(job, int(handle))
    ):
        error = ctypes.WinError(ctypes.get_last_error())  # type: ignore[attr-defined]
        if job:
            kernel32.CloseHandle(job)
        raise error
    return int(job)


def open_job_object(handle: object) -> None:
    """Kill every member of the job object and close its handle. The worker calls this only once for a handle."""
    kernel32 = _kernel32()
    kernel32.TerminateJobObject(handle, 1)
    kernel32.CloseHandle(handle)


def kill_group(pid: int) -> None:
    """Do nothing: :func:`open_job_object` kills the members."""


def pause_tree(pid: int) -> None:
    """Suspend the trainer and its descendants one by one; Windows has no signal for that."""
    for process in tree_of(pid):
        with contextlib.suppress(Exception):  # it may have ended meanwhile
            process.suspend()


def resume_tree(pid: int) -> None:
    for process in tree_of(pid):
        with contextlib.suppress(Exception):
            process.resume()


def end_leftovers(variable: str, folder: Path) -> list[int]:  # noqa: ARG001 - POSIX needs them
    """Return an empty list: the job object died with the worker, and its members with it."""
    return []
