"""The worker's side of warm parents (warm.py): decide when to have one, and get launchers forked from it.

No trainer depends on a warm parent: if the parent fails, ends or grows, or its child does not start, the trainer is
started normally. Each failure is logged in one sentence. After three failures in a row this worker forks no more
trainers.
"""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from training.contract import THREAD_VARIABLES
from training.fleet.process.memory import memory_state, usable_kib

log = logging.getLogger(__name__)

MODULE = "training.fleet.process.warm"
GIB_KIB = 1024**2
NEEDS_KIB = 2 * GIB_KIB  # free memory below which no parent is started: it takes about a tenth of that
OWN_KIB_MAX = GIB_KIB // 2  # torch leaves about a third of that
IDLE_S = 600.0  # so long without a trainer, and the parent gives its memory back
READY_S = 120.0  # for importing, on a slow disk or a busy machine
FORK_S = 10.0
PARENTS_MOST = 2  # of unlike libraries or variables: for trees, and for networks
FAULTS_MAX = 3  # in a row

# Read when CUDA starts or by the trainer itself, so after the fork. All others must be the parent's own.
READ_LATE = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TMPDIR", "TMP", "TEMP"})


class Preload(NamedTuple):
    """The modules that a trainer may find imported already: ``modules`` in the parent, ``then`` after the fork.

    If importing ``then`` fails after the fork, the trainer is started normally. A failed import counts as a failure of
    the warm parent, not of the job's attempt.
    """

    modules: Sequence[str]
    then: Sequence[str] = ()


class ParentError(Exception):
    """A warm parent failed, or is unfit to be forked; the text says why."""


class _GoneError(ParentError):
    """A warm parent has ended as intended: no job needed it, or packages were installed or removed."""


class _Kind(NamedTuple):
    """The things that trainers must share to be forked from the same parent: interpreter, folder, libraries and
    variables."""

    python: str
    folder: str
    modules: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]


class Forked:
    """A launcher process that a warm parent forked, with the members of Popen that Launcher needs."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self._lock = threading.Lock()
        self._handle: int | None = None
        with suppress(OSError):  # it has ended already
            self._handle = os.pidfd_open(pid)

    def kill(self) -> None:
        with self._lock, suppress(OSError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def wait(self) -> None:
        """Close the handle of the launcher's process, without waiting: the parent reaps the launcher."""
        with self._lock:
            if self._handle is not None:
                os.close(self._handle)
                self._handle = None


class _Parent:
    """A running warm parent, as the worker controls it. ``fork`` and ``ask`` raise OSError or ParentError if the parent
    fails."""

    def __init__(self, kind: _Kind) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                self._popen = subprocess.Popen(
                    [kind.python, "-m", MODULE, str(theirs.fileno())],
                    cwd=kind.folder,
                    env=dict(kind.environment),
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
        except BaseException:
            self._control.close()
            raise

    @property
    def pid(self) -> int:
        return self._popen.pid

    def fork(self) -> Forked:
        """Order a fork of the parent, and return the launcher that the forked process becomes."""
        answer, (stdin, stdout) = self.ask({"fork": True}, FORK_S)
        return Forked(int(answer["forked"]), os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"))

    def ask(self, message: Mapping[str, Any], within_s: float) -> tuple[Mapping[str, Any], list[int]]:
        """Send a request to the parent; return its answer, and the open files that came with the answer."""
        self._control.settimeout(within_s)
        said, files = b"", list[int]()
        try:
            with suppress(BrokenPipeError):  # it may have said why
                self._control.send(json.dumps(message).encode())
            said, files, _, _ = socket.recv_fds(self._control, 65_536, 2)  # which ignores MSG_CMSG_CLOEXEC
            for each in files:
                os.set_inheritable(each, False)
        except TimeoutError:
            raise ParentError(f"it did not answer within {within_s:.0f} s") from None
        except ConnectionError:
            pass
        answer = json.loads(said) if said else {"unfit": "it has ended"}
        if "idle" in answer:
            raise _GoneError
        if "unfit" in answer:
            raise ParentError(answer["unfit"])
        return answer, files

    def kill(self) -> None:
        """Kill the parent's process, even while it imports; launchers that it forked continue."""
        self._popen.kill()

    def end(self) -> None:
        self.kill()
        self._control.close()
        self._popen.wait()


@dataclass
class WarmParents:
    """The warm parents of one worker. Several threads may use it.

    ``owner`` is the worker's state folder, or None. If ``owner`` is given, each parent has it in its environment, in
    the variable named ``state_variable``: by this a later worker finds the process.
    """

    owner: Path | None
    state_variable: str
    free_kib: Callable[[], int] = lambda: usable_kib(memory_state().free_kib)
    idle_s: float = IDLE_S
    own_kib_max: int = OWN_KIB_MAX
    _parents: dict[_Kind, _Parent] = field(default_factory=dict)  # the last used last
    _faults: int = 0
    _off: bool = sys.platform != "linux"  # elsewhere nothing shows a process's threads

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    @property
    def pids(self) -> list[int]:
        return [each.pid for each in self._parents.values()]

    def launcher(self, argv: Sequence[str], folder: Path, env: Mapping[str, str], preload: Preload) -> Forked | None:
        """Return a launcher, forked for a trainer with these arguments, folder and variables; None if the trainer must
        be started normally."""
        with self._lock:
            if self._off or list(argv[1:2]) != ["-m"]:
                return None
            kind = _Kind(argv[0], str(folder.absolute()), tuple(preload.modules), self._environment(env))
            try:
                try:
                    return self._forked(kind)
                except _GoneError:
                    self._forget(kind)
                    return self._forked(kind)
            except (ParentError, OSError, ValueError, KeyError) as error:
                self._forget(kind)
                self._fault(str(error))
            return None

    def came_up(self) -> None:
        """Set the count of failures to 0, because a forked trainer has started."""
        self._faults = 0

    def failed(self, why: str) -> None:
        """Count and log a failure, because a forked trainer did not start."""
        with self._lock:
            self._fault(why)

    def close(self) -> None:
        """End all warm parents. The parents are killed before the lock is taken, because a start that waits for an
        importing parent holds the lock."""
        self._off = True
        for parent in list(self._parents.values()):
            parent.kill()
        with self._lock:
            for kind in list(self._parents):
                self._forget(kind)

    def _forked(self, kind: _Kind) -> Forked | None:
        if kind not in self._parents:
            if self.free_kib() < NEEDS_KIB:
                return None
            parent = self._parents[kind] = _Parent(kind)
            if self._off:  # it was closed meanwhile
                raise ParentError("this worker ends")
            wanted = {"import": kind.modules, "idle_s": self.idle_s, "own_kib_max": self.own_kib_max}
            parent.ask(wanted, READY_S)
        forked = self._parents[kind].fork()
        self._parents[kind] = self._parents.pop(kind)
        for oldest in list(self._parents)[:-PARENTS_MOST]:
            self._forget(oldest)
        return forked

    def _forget(self, kind: _Kind) -> None:
        if (parent := self._parents.pop(kind, None)) is not None:
            parent.end()

    def _fault(self, why: str) -> None:
        if self._off:
            return
        self._faults += 1
        sentence = "a trainer starts afresh, because its warm parent failed: %s"
        if self._faults >= FAULTS_MAX:
            self._off = True
            sentence += f"; that was number {FAULTS_MAX}, so all do until this worker is started again"
        log.warning(sentence, why)

    def _environment(self, env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """Return a parent's variables: those of its trainers, without those that are read after the fork, and with one
        thread for each numerical library. ``state_variable`` names the worker's folder, if any, instead of a job's."""
        kept = {name: value for name, value in env.items() if name not in READ_LATE}
        kept.pop(self.state_variable, None)
        kept |= dict.fromkeys(THREAD_VARIABLES, "1")
        if self.owner is not None:
            kept[self.state_variable] = str(self.owner.absolute())
        return tuple(sorted(kept.items()))
