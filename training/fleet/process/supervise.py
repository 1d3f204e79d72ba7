"""Start trainers and end them, however badly they behave.

:meth:`LocalProcess.stop` ends a trainer: stop signal, grace period, kill the whole tree, limited wait. A trainer's
output goes to a file and never through a pipe. So a dead network cannot stall a trainer, and a grandchild that keeps a
pipe open cannot stall the worker. A launcher (launcher.py) is between worker and trainer, so that a killed worker
leaves no trainer running.

posix.py and windows.py have the parts that differ between systems, under the same names.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, cast

from training import strict_json
from training.contract import Exit
from training.files import plain_bytes
from training.fleet.process.ended import SIGKILL, Ended
from training.fleet.process.environment import trainer_environment
from training.fleet.process.memory import memory_state, usable_kib
from training.fleet.process.parents import Forked, Preload, WarmParents
from training.fleet.process.usage import Used, used_by

if sys.platform == "win32":
    from training.fleet.process import windows as system
else:
    from training.fleet.process import posix as system

log = logging.getLogger(__name__)

START_WAIT_S = 30.0  # a launcher on an overloaded machine or a sleeping disk may take a while
_RECORD_BYTES_MAX = 64 * 1024  # of the end that a launcher records
KILL_WAIT_S = 5.0  # for the report of a killed group; then the launcher counts as lost

# In a trainer's environment: where it may keep what a later attempt can go on from. Also marks the process as ours.
STATE_VARIABLE = "CIS490_STATE_DIR"

LAUNCHER = Path(__file__).with_name("launcher.py")


@dataclass(frozen=True)
class CommandSpec:
    """The command to start: arguments (never a shell line), folder, the whole environment, and the file for its output.

    ``end``: the file in which the launcher records how the trainer ended, for a later worker. An end that the worker
    ordered is recorded only with exit status 0. ``errors``: a file for the command's standard error, which otherwise
    goes to the output file. ``file_bytes``: the most bytes that any file which the command writes may have (not
    enforced on Windows). ``preload``: if given, the Python program may be forked from a process that has imported these
    modules.
    """

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    output: Path
    end: Path | None = None
    errors: Path | None = None
    file_bytes: int | None = None
    preload: Preload | None = None


class SpawnFailedError(Exception):
    """The trainer could not be started."""


class LauncherLostError(SpawnFailedError):
    """The launcher ended before it had started the trainer; another launcher may succeed."""


class LocalProcess:
    """Controls one trainer, which runs under one of our launchers. Only ``wait``, ``stop`` and ``wait_until_started``
    block.

    Several threads may use it.
    """

    def __init__(self, launcher: Launcher, folder: str | None = None, group: Path | None = None) -> None:
        """``folder``: the value of ``STATE_VARIABLE`` in the trainer's environment; ``group``: the folder of the
        trainer's control group."""
        self._launcher = launcher
        self._folder = folder
        self._group = group
        self._started = threading.Event()
        self._over = threading.Event()
        self._pid = 0
        self._memory = memory_state()
        self._failure: SpawnFailedError | None = None
        self._ended: Ended | None = None

    @property
    def pid(self) -> int:
        """Return the trainer's process id, on POSIX also its group's; 0 before it started."""
        return self._pid

    def poll(self) -> Ended | None:
        return self._ended

    def wait(self, timeout_s: float | None = None) -> Ended | None:
        """Wait for the trainer's end and return it; None when ``timeout_s`` passed first."""
        self._over.wait(timeout_s)
        return self._ended

    def terminate(self) -> None:
        """Ask the trainer to stop: SIGTERM to its group, Ctrl-Break on Windows. A paused trainer is resumed so that it
        gets the signal."""
        system.resume_tree(self._pid)
        self._order("terminate")

    def kill(self) -> None:
        """Have the trainer's whole process tree killed, without waiting for its end."""
        self._order("kill")
        if not system.LAUNCHER_IS_REUSABLE:
            self._launcher.destroy()

    def pause(self) -> None:
        """Suspend the trainer's whole process tree; its memory stays allocated."""
        self._order("pause")
        system.pause_tree(self._pid)

    def resume(self) -> None:
        self._order("resume")
        system.resume_tree(self._pid)

    def stop(self, grace_s: float) -> Ended:
        """Stop the trainer: stop signal, up to ``grace_s`` seconds, kill, a limited wait. Return the trainer's end; if
        its launcher does not answer, return ``Ended()``, which has neither code nor signal."""
        self.terminate()
        if (ended := self.wait(grace_s)) is not None:
            return ended
        self.kill()
        if (ended := self.wait(KILL_WAIT_S)) is not None:
            return ended
        self._launcher.destroy()  # it does not answer: the group is killed without it
        return self._finish(Ended())

    def wait_until_started(self) -> None:
        """Wait until the trainer runs, or has run. Raises SpawnFailedError if it could not be started, or the launcher
        does not answer within ``START_WAIT_S``."""
        if not self._started.wait(START_WAIT_S):
            self._launcher.destroy()
            raise SpawnFailedError(f"its launcher did not answer within {START_WAIT_S:.0f} s")
        if self._failure is not None:
            raise self._failure

    def take(self, report: Mapping[str, Any]) -> None:
        """Process a report of the launcher, on the thread that reads reports."""
        if "started" in report:
            self._pid = int(report["started"])
        elif "failed" in report:
            self._failure = SpawnFailedError(str(report["failed"]))
            self._finish(Ended())
        elif "ended" in report:
            self._finish(self._explained(_end_of(report)))
        self._started.set()

    def used(self) -> Used:
        """Return what the trainer's process tree uses, as far as visible; ``Used()`` before its start and after its
        end."""
        return used_by(self._pid, self._group) if self._pid and self._ended is None else Used()

    def _explained(self, ended: Ended) -> Ended:
        """Return the end, completed by the system's memory state if lack of memory may be its cause."""
        if ended.signal != SIGKILL and ended.code != Exit.OUT_OF_MEMORY:
            return ended
        kills = memory_state().kills - self._memory.kills
        free_kib = usable_kib(self._memory.free_kib)
        return replace(ended, oom_kills=max(0, kills), free_kib=free_kib)

    def lose(self) -> None:
        """Record that the launcher was lost, and kill the trainer if it runs, because it must not continue without a
        launcher."""
        if self._ended is None:
            if self._pid:
                self.end_without_launcher()
            else:
                self._failure = LauncherLostError("its launcher ended before it had started the trainer")
            self._finish(Ended())
        self._started.set()

    def end_without_launcher(self) -> None:
        """Kill the trainer's tree without its launcher, as far as it can be found by groups and environment."""
        system.kill_group(self._pid)
        system.end_group(self._group)
        if self._folder:
            system.end_leftovers(STATE_VARIABLE, Path(self._folder))

    def _order(self, word: str) -> None:
        if self._ended is None:
            self._launcher.send(word)

    def _finish(self, ended: Ended) -> Ended:
        if self._ended is None:
            self._ended = ended
            self._over.set()
        return self._ended


def _end_of(report: Mapping[str, Any]) -> Ended:
    code = int(report["ended"])
    if not -(2**31) <= code < 2**32:
        raise ValueError("no program ends with such a status")
    status = {"signal": -code} if code < 0 else {"code": code}
    cpu_s, max_rss_kib = float(report.get("cpu_s", 0.0)), int(report.get("max_rss_kib", 0))
    return Ended(**status, cpu_s=cpu_s, max_rss_kib=max_rss_kib, left=int(report.get("left", 0)))


def _place(path: Path) -> str:
    return str(path.absolute())


def _fresh_launcher() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(LAUNCHER)],
        env=trainer_environment(os.environ),  # a trainer may read its parent's
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        **system.popen_options(),
    )


class Launcher:
    """A launcher process and the thread that reads its reports. The constructor raises OSError when the process cannot
    be started."""

    def __init__(self, forked: Forked | None = None) -> None:
        """Start a launcher process, or use ``forked``, one from a warm parent, which runs only one trainer."""
        self.reusable = system.LAUNCHER_IS_REUSABLE and forked is None
        self.process: LocalProcess | None = None  # the last trainer it was given
        self.alive = True  # whether it takes one; when this turns false, `process` is lost
        self._lock = threading.Lock()
        fresh = None if forked is not None else _fresh_launcher()
        self._popen = cast("Any", forked or fresh)
        self._stdin: IO[bytes] = self._popen.stdin
        self._stdout: IO[bytes] = self._popen.stdout
        try:
            self._job_object = None if fresh is None else system.job_object(fresh)
        except BaseException:  # one that nothing holds must not stay behind
            self._popen.kill()
            self._popen.wait()
            self._stdin.close()
            self._stdout.close()
            raise
        self._reader = threading.Thread(target=self._read, name="launcher", daemon=True)
        self._reader.start()

    @property
    def free(self) -> bool:
        """Return True if the launcher can take another trainer."""
        idle = self.process is None or self.process.poll() is not None
        return self.alive and idle and (self.reusable or self.process is None)

    def run(self, spec: CommandSpec, group: Path | None = None) -> LocalProcess:
        """Start a trainer under this launcher, in the control group ``group`` if that can be made; return its process
        when it runs. Raises SpawnFailedError."""
        order = {
            **vars(spec),
            "argv": [str(part) for part in spec.argv],
            "env": dict(spec.env),
            "group": group,
            "then": [] if spec.preload is None else list(spec.preload.then),
            "preload": None,
        }
        process = LocalProcess(self, spec.env.get(STATE_VARIABLE), group)
        with self._lock:
            if not self.alive:
                raise LauncherLostError("the launcher that was to start it has ended")
            self.process = process
        self.send({"run": order})
        process.wait_until_started()
        return process

    def send(self, command: Any) -> None:
        """Send a command to the launcher. If the launcher has ended, the reading thread notices and reports that."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._stdin.write(json.dumps(command, default=_place).encode() + b"\n")
            self._stdin.flush()

    def close(self) -> None:
        """Close the launcher's input, so that it kills its trainer and ends. A launcher that does not end is killed."""
        self._close_input()
        self._reader.join(KILL_WAIT_S)
        if self._reader.is_alive():
            self.destroy()
            self._reader.join(KILL_WAIT_S)

    def destroy(self) -> None:
        """Kill the launcher and, without its help, its trainer."""
        if self.process is not None and self.process.pid and self.process.poll() is None:
            system.kill_descendants(self._popen.pid)
            self.process.end_without_launcher()
        self._open_job_object()
        self._popen.kill()

    def _read(self) -> None:
        try:
            for line in self._stdout:
                if self.process is not None:
                    self.process.take(json.loads(line))
        except Exception as error:  # noqa: BLE001 - a line that is no report: the next one may be missed, too
            log.warning("a launcher is ended with its trainer, because its report cannot be read: %s", error)
            self.destroy()
        self._popen.wait()
        with self._lock:
            self.alive = False
        if self.process is not None:
            self.process.lose()
        self._open_job_object()
        self._close_input()
        self._stdout.close()

    def _open_job_object(self) -> None:
        with self._lock:
            job_object, self._job_object = self._job_object, None
        if job_object is not None:
            system.open_job_object(job_object)

    def _close_input(self) -> None:
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._stdin.close()


def end_on_record(path: Path) -> Ended | None:
    """Return the end of a trainer from the file ``path``, in which its launcher recorded it (``CommandSpec.end``) while
    the worker may have been dead; None without a valid record."""
    try:
        return _end_of(strict_json.loads(plain_bytes(path, _RECORD_BYTES_MAX)))
    except (OSError, ValueError, KeyError, TypeError):
        return None


class LocalRunner:
    """The runner of trainers on this machine; on POSIX it uses a launcher again for the next trainer, unless a warm
    parent forked the launcher."""

    def __init__(self, owner: Path | None = None, *, warm: WarmParents | None = None) -> None:
        """``owner``: the worker's state folder, after which the control groups are named; without ``owner`` no control
        group is made.

        ``warm`` starts a trainer by fork if its command has a ``preload``, and if it can; without ``warm`` every
        trainer is started normally.
        """
        self._owner = owner
        self._warm = warm
        self._lock = threading.Lock()
        self._launchers: list[Launcher] = []
        self._closed = False

    def start(self, spec: CommandSpec) -> LocalProcess:
        """Start ``spec`` and return its process when it runs. Raises SpawnFailedError, which says why."""
        try:
            spec.output.parent.mkdir(parents=True, exist_ok=True)
            return self._forked(spec) or self._fresh(spec)
        except (OSError, SpawnFailedError) as error:
            raise SpawnFailedError(f"{spec.argv[0]} could not be started: {error}") from error

    def _fresh(self, spec: CommandSpec) -> LocalProcess:
        with self._lock:
            try:
                return self._free_launcher().run(spec, self._group())
            except LauncherLostError:  # a warm one may have died unnoticed
                _forget_a_start(spec)
                return self._free_launcher().run(spec, self._group())

    def _forked(self, spec: CommandSpec) -> LocalProcess | None:
        """Return a trainer forked from a process that has its modules; None if there is no such process, or the fork
        fails."""
        if self._warm is None or spec.preload is None:
            return None
        argv = [str(part) for part in spec.argv]
        forked = self._warm.launcher(argv, spec.cwd, spec.env, spec.preload)
        if forked is None:
            return None
        with self._lock:
            launcher = self._keep(Launcher(forked))
        try:
            process = launcher.run(spec, self._group())
        except SpawnFailedError as error:
            _forget_a_start(spec)
            self._warm.failed(str(error))
            return None
        self._warm.came_up()
        return process

    def close(self) -> None:
        """End every launcher and with it every trainer. Launchers are first closed without the lock, because a start
        that waits for its launcher holds the lock."""
        self._closed = True
        if self._warm is not None:
            self._warm.close()
        for launcher in list(self._launchers):
            launcher.close()
        with self._lock:
            for launcher in self._launchers:
                launcher.close()
            self._launchers.clear()

    def _group(self) -> Path | None:
        return None if self._owner is None else system.group_for(self._owner)

    def _free_launcher(self) -> Launcher:
        if self._closed:
            raise SpawnFailedError("the worker ends")
        free = (launcher for launcher in self._launchers if launcher.free)
        return next(free, None) or self._keep(Launcher())

    def _keep(self, launcher: Launcher) -> Launcher:
        """Add a launcher to those kept, drop those that have ended, and return the launcher."""
        self._launchers = [*(each for each in self._launchers if each.alive), launcher]
        return launcher


def _forget_a_start(spec: CommandSpec) -> None:
    """Kill a trainer that a launcher may have started without reporting it, and delete its output file and its
    record."""
    if folder := spec.env.get(STATE_VARIABLE):
        system.end_leftovers(STATE_VARIABLE, Path(folder))
    for file in (spec.output, spec.end):
        if file is not None:
            file.unlink(missing_ok=True)


def end_leftovers(folder: Path) -> list[int]:
    """Kill the trainers, and the warm parents with their forks, that an earlier worker with this state folder left.
    Return the process ids; none where ``/proc`` shows no processes.

    The caller holds the folder's lock, so that no other worker started them.
    """
    return system.end_leftovers(STATE_VARIABLE, folder)
