"""Processes on Linux and macOS: sessions, process groups, signals. The same names as supervise_windows.py."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

LAUNCHER_IS_REUSABLE = True
LAUNCHER_CAN_PAUSE = True


def popen_options() -> dict[str, Any]:
    """The launcher leads its own session: Ctrl-C in the worker's terminal is the worker's to handle."""
    return {"start_new_session": True}


def cage(process: subprocess.Popen[bytes]) -> object:  # noqa: ARG001 - Windows needs it
    """Nothing to do: the launcher's dead man's pipe holds the trainer."""
    return None


def open_cage(handle: object) -> None:
    """Nothing to do."""


def kill_group(pid: int) -> None:
    """Kill the group that ``pid`` leads, when its launcher can no longer do it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def pause_tree(pid: int) -> None:
    """The launcher does it."""


def resume_tree(pid: int) -> None:
    """The launcher does it."""


def end_leftovers(variable: str, folder: Path) -> list[int]:
    """Kill every process whose environment says that it was started for ``folder`` or one in it; their numbers.

    Worker and launcher may be killed in one breath, by a tired kernel or a careless hand; then nobody was left to end
    the trainer. What its environment says cannot be mistaken for another process, as a remembered number can.
    """
    here = b"\0" + os.fsencode(f"{variable}={folder}")
    markers = (here + os.fsencode(os.sep), here + b"\0")
    ended = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environ = b"\0" + (entry / "environ").read_bytes() + b"\0"
            if any(marker in environ for marker in markers) and int(entry.name) != os.getpid():
                os.kill(int(entry.name), signal.SIGKILL)
                ended.append(int(entry.name))
    return ended
