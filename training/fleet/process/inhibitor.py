"""Keep the machine from falling asleep automatically while it trains.

On Linux ``systemd-inhibit`` holds logind's idle lock for as long as a program runs under it. The program under
``systemd-inhibit`` is ``cat``, whose input is a pipe of this process. When this process ends, in any way, the pipe
closes, ``cat`` ends, and the lock is released. On Windows the lock belongs to a thread and ends with that thread. A
person can still close the lid or choose to sleep.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

from training.fleet.process.environment import trainer_environment

COMMAND = (
    "systemd-inhibit", "--what=idle", "--mode=block", "--who=cis490-trainer-worker", "--why=a model is being trained",
    "cat",
)  # fmt: skip
RELEASE_WAIT_S = 5.0
_CONTINUOUS, _SYSTEM_REQUIRED = 0x80000000, 0x00000001


class Inhibitor:
    """Keeps the machine from falling asleep by itself between :meth:`hold` and :meth:`release`. Only one thread may use
    it, and must not end before the lock is released."""

    def __init__(self, take: Callable[[], _Child | _Thread] | None = None) -> None:
        """``take`` returns a lock of the system, or raises OSError, whose text is one sentence."""
        self._take = take or lock
        self._lock: _Child | _Thread | None = None

    def hold(self) -> str | None:
        """Get the lock, or keep it; return None if it is held, else why not. Call this from time to time, because the
        system may refuse the lock a moment later."""
        try:
            self._lock = self._lock or self._take()
        except OSError as error:
            return error.strerror or str(error)
        why = self._lock.refused()
        if why is not None:
            self.release()
        return why

    def release(self) -> None:
        """Release the lock, so that the machine may fall asleep again; does nothing without a lock."""
        held, self._lock = self._lock, None
        if held is not None:
            held.release()


class _Child:
    """A lock that a program holds until its input is closed."""

    def __init__(self, command: Sequence[str]) -> None:
        program = shutil.which(command[0])
        if program is None:
            raise OSError(None, f"there is no {command[0]} here")
        self._popen = subprocess.Popen(
            [program, *command[1:]],
            env=trainer_environment(os.environ),  # trainers run beside it
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def refused(self) -> str | None:
        """Return why the system did not grant the lock; None while the program that holds it runs."""
        code = self._popen.poll()
        return None if code is None else f"systemd-inhibit ended with {code}: logind refuses, or does not run"

    def release(self) -> None:
        assert self._popen.stdin is not None
        with contextlib.suppress(OSError):
            self._popen.stdin.close()
        try:
            self._popen.wait(RELEASE_WAIT_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()


class _Thread:
    """The lock on Windows, which is a state of the calling thread."""

    def __init__(self) -> None:
        if not _execution_state(_CONTINUOUS | _SYSTEM_REQUIRED):
            raise OSError(None, "Windows refuses to stay awake")

    def refused(self) -> str | None:
        return None

    def release(self) -> None:
        _execution_state(_CONTINUOUS)


def lock(command: Sequence[str] = COMMAND) -> _Child | _Thread:
    """Return a new lock of the system against falling asleep. Raises OSError if the system has no such lock, or if
    Windows refuses it; a refusal on Linux shows only later (:meth:`_Child.refused`)."""
    if sys.platform == "win32":
        return _Thread()
    return _Child(command)


def _execution_state(flags: int) -> int:
    if sys.platform == "win32":
        return int(ctypes.windll.kernel32.SetThreadExecutionState(flags))
    return 0
