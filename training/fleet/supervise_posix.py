"""Processes on Linux and macOS: sessions, process groups, signals. The same names as supervise_windows.py."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
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
