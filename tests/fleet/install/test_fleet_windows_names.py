"""Windows' names absent (everything imports here) and POSIX' names absent (everything imports there).

The Windows half of supervision runs here against a kernel32 of the test's own: job objects that really kill.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import signal
import subprocess
import sys
from typing import ClassVar

import psutil
import pytest
from places import CHILDREN
from processes import PATIENCE_S, begun, is_running, printed, until

from training import locking
from training.fleet.process import supervise, windows
from training.fleet.process.ended import Ended
from training.fleet.process.supervise import LocalRunner, SpawnFailedError


@pytest.mark.thorough
def test_every_module_imports_without_the_names_of_posix():
    done = subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", str(CHILDREN / "without_posix.py"), "win32", "linux"],
        capture_output=True,
        text=True,
        cwd=CHILDREN.parents[1],
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for line, half in zip(done.stdout.splitlines(), ("windows", "posix"), strict=True):
        told = json.loads(line)
        assert told["modules"] > 100
        assert told["half"] == f"training.fleet.process.{half}"
        assert told["cores"] >= 1
        assert told["heavy"] == []


# -- the Windows half, with Windows' names present ----------------------------------------------------------------

pytestmark = pytest.mark.skipif(os.name != "posix", reason="stands in for Windows where it is not")


class Function:
    """A function of a DLL: its types may be declared."""

    def __init__(self, does):
        self.does = does
        self.restype = None
        self.argtypes = None

    def __call__(self, *arguments):
        assert self.argtypes is None or len(arguments) == len(self.argtypes)
        return self.does(*arguments)


class Kernel32:
    """Job objects: whoever a member starts is a member; ending the job kills them all."""

    def __init__(self):
        self.handles = itertools.count(0x7FF0_0000_0001)  # wider than 32 bits, as handles may be
        self.jobs = {}
        self.limits = {}
        self.ended = []
        self.refuse = ""
        self.CreateJobObjectW = Function(self._create)
        self.SetInformationJobObject = Function(self._limit)
        self.AssignProcessToJobObject = Function(self._assign)
        self.TerminateJobObject = Function(self._terminate)
        self.CloseHandle = Function(lambda handle: self._terminate(handle, 1))

    def _create(self, _security, _name):
        handle = next(self.handles)
        self.jobs[handle] = []
        return 0 if self.refuse == "create" else handle

    def _limit(self, job, kind, limits, size):
        assert kind == windows.EXTENDED_LIMIT_INFORMATION
        assert size == ctypes.sizeof(windows._ExtendedLimits)
        self.limits[job] = limits._obj.BasicLimitInformation.LimitFlags
        return 1

    def _assign(self, job, process):
        self.jobs[job].append(process)
        return 0 if self.refuse == "assign" else 1

    def _terminate(self, job, _code):
        for leader in self.jobs.pop(job, []):
            self.ended.append(job)
            for pid in psutil.pids():
                with contextlib.suppress(ProcessLookupError):
                    if os.getsid(pid) == leader:  # a member, also when who started it has ended
                        os.kill(pid, signal.SIGKILL)
        return 1


class WindowsPopen(subprocess.Popen[bytes]):
    """Takes Windows' options and has a handle, as Popen does there."""

    flags: ClassVar[list[int]] = []

    def __init__(self, argv, *, creationflags=0, **options):
        type(self).flags.append(creationflags)
        super().__init__(argv, start_new_session=True, **options)
        self._handle = self.pid


@pytest.fixture
def kernel32(monkeypatch):
    library = Kernel32()
    WindowsPopen.flags = []
    monkeypatch.setattr(ctypes, "WinDLL", lambda name, use_last_error: library, raising=False)
    monkeypatch.setattr(ctypes, "get_last_error", lambda: 5, raising=False)
    monkeypatch.setattr(ctypes, "WinError", lambda code: OSError(code, "Access is denied"), raising=False)
    monkeypatch.setattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0x200, raising=False)
    monkeypatch.setattr(supervise, "system", windows)
    monkeypatch.setattr(supervise, "LAUNCHER", CHILDREN / "windows_launcher.py")
    monkeypatch.setattr(supervise.subprocess, "Popen", WindowsPopen)
    return library


@pytest.fixture
def runner(kernel32):
    one = LocalRunner()
    yield one
    one.close()


@pytest.fixture
def start(runner, tmp_path):
    return lambda child, *arguments, **how: begun(runner, tmp_path, child, *arguments, **how)


def test_each_trainer_is_born_inside_a_job_object_that_dies_with_us(kernel32, start):
    assert start("silent", 3).wait(PATIENCE_S) == Ended(code=3)
    assert start("silent", 0).wait(PATIENCE_S) == Ended(code=0)
    assert set(kernel32.limits.values()) == {windows.KILL_ON_JOB_CLOSE}
    assert len(kernel32.limits) == 2, "one job object for each trainer"
    assert WindowsPopen.flags == [0x0800_0200] * 2, "a hidden console and a group of its own"
    until(lambda: len(set(kernel32.ended)) == 2)


def test_polite_stop_wakes_a_suspended_trainer(kernel32, start, tmp_path):
    process = start("exits_late", 0, says="ready")
    process.pause()
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    assert process.stop(PATIENCE_S).code == 75
    assert "state written" in printed(tmp_path)


def test_a_deaf_trainer_and_its_children_are_killed_by_the_job_object(kernel32, start, tmp_path):
    process = start("forks", says="\n")
    tree = [int(pid) for pid in printed(tmp_path).split()]
    assert process.stop(0.05).code is None
    until(lambda: not any(is_running(pid) for pid in tree))


@pytest.mark.parametrize("refuse", ["create", "assign"])
def test_without_a_job_object_nothing_is_started(kernel32, start, tmp_path, refuse):
    kernel32.refuse = refuse
    with pytest.raises(SpawnFailedError, match="Access is denied"):
        start("silent", 0)
    assert not (tmp_path / "output.log").exists()


def test_the_lock_uses_what_windows_has(tmp_path, monkeypatch):
    calls = []

    class Msvcrt:
        LK_NBLCK = 2

        @staticmethod
        def locking(handle, mode, count):
            if calls:
                raise OSError(13, "Permission denied")
            calls.append((mode, count))

    class Nt:
        """The os module, introducing itself as Windows'; pathlib goes on with the real one."""

        name = "nt"

        def __getattr__(self, name):
            return getattr(os, name)

    monkeypatch.setitem(sys.modules, "msvcrt", Msvcrt)
    monkeypatch.setattr(locking, "os", Nt())
    with locking.exclusive(tmp_path / "lock"):
        assert calls == [(2, 1)]
        with (
            pytest.raises(locking.LockedError, match=f"process {os.getpid()}, since 20"),
            locking.exclusive(tmp_path / "lock"),
        ):
            pass
    assert (tmp_path / "lock").read_bytes()[:1] == b"\0", "the byte that Windows locks is not read"
