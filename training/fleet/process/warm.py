"""The warm parent: a process that has imported what built-in trainers import, and from which trainers are forked.

Importing torch takes more than a second, forking a process that has it a hundredth of that. For each trainer the parent
forks a launcher (launcher.py), which forks the trainer. So a forked trainer has the same pipe, process tree, control
group and limits as one that was started normally. Several launchers share the memory of one parent. The trainer's
program itself is imported after the fork, so that it is never older than the file on the disk. If a package was
installed or removed since the parent began, the parent ends at the next order to fork.

A fork copies one thread and the memory of all. So the parent may have no further thread (besides ``FORK_SAFE``), and no
CUDA in use, when it forks. Before each fork the parent checks this, and ends if it finds a further thread or CUDA in
use. Some libraries start a thread when they are imported (Polars does); ``families.preloads`` must not name them.

The worker starts the parent as ``python -m training.fleet.process.warm FD`` (parents.py), in the folder and environment
of a trainer; ``FD`` is a socket of messages (``SOCK_SEQPACKET``). One JSON value each::

    {"import": [...], "idle_s": S, "own_kib_max": N}
        -> {"ready": KIB}     once they are imported: the memory that belongs to no file
    {"fork": true}
        -> {"forked": PID}    a launcher, with the ends of pipes to its standard input and from its standard output
    on any of them
        -> {"unfit": "why"}   the parent ends; the trainer must be started normally
    after ``idle_s`` without a launcher, and where packages have changed
        -> {"idle": true}     the parent ends
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any

from training.fleet.process import launcher
from training.leaving import leave

MESSAGE_BYTES = 65_536
PYTHONS_OWN: dict[str, Any] = {
    "SIGPIPE": signal.SIG_IGN,
    "SIGXFSZ": signal.SIG_IGN,
    "SIGINT": signal.default_int_handler,
}


class UnfitError(Exception):
    """This process must not be forked: it has further threads or CUDA in use, has grown too large, or could not import
    a module. Also raised for a trainer's command without ``-m``."""


class ForkedLauncher(launcher.PosixLauncher):
    """A launcher whose forked child runs the trainer's program itself, without exec, and which ends with its
    trainer."""

    ready = b"\0"  # there is no exec that would close the pipe of one that lives
    once = True

    def become(self, spec: dict[str, Any], fail: int) -> None:
        """Import the trainer's program and run it in this forked child, which ends as the program ends."""
        try:
            launcher.start_clean(spec)
            for number in self.own_pipes:
                os.close(number)
            program = prepare(spec)
            os.write(fail, self.ready)
            os.close(fail)
        except BaseException as error:  # noqa: BLE001 - every error must reach the launcher
            os.write(fail, launcher.in_words(error).encode(errors="replace"))
            os._exit(127)
        gc.enable()  # what was frozen stays so: a last look through it would copy it all
        leave(program.main())


def prepare(spec: dict[str, Any]) -> Any:
    """Make this process what ``python -m PROGRAM …`` would be just before the program runs; return the program's
    module."""
    for name, handler in PYTHONS_OWN.items():
        signal.signal(getattr(signal, name), handler)
    os.environ.clear()
    os.environ.update(spec["env"])
    tempfile.tempdir = None  # which an import may have set to the parent's
    _, flag, name, *arguments = spec["argv"]
    if flag != "-m":
        raise UnfitError(f"{flag} is not -m")
    program = importlib.import_module(name)
    sys.argv = [str(program.__file__), *arguments]
    sys.modules["__main__"] = program  # where a spawned process looks for what it has to import
    for each in spec["then"]:
        importlib.import_module(each)
    return program


def check(own_kib_max: int) -> None:
    """Raise UnfitError if this process has further threads, has CUDA in use, or has more than ``own_kib_max`` KiB of
    its own memory."""
    if threads := further_threads():
        raise UnfitError(f"it has further threads: {', '.join(threads)}")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise UnfitError("CUDA is in use in it")
    if (own_kib := own_memory_kib()) > own_kib_max:
        raise UnfitError(f"it has grown to {own_kib // 1024} MiB, and may have {own_kib_max // 1024}")


def bring_in(modules: Sequence[str]) -> None:
    """Import the modules. Raises UnfitError, which names the module, if one cannot be imported or starts a thread."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - an import may raise anything
            raise UnfitError(f"{name} cannot be imported: {launcher.in_words(error)}") from None
        if threads := further_threads():
            raise UnfitError(f"importing {name} started a thread: {', '.join(threads)}")


# The thread of jemalloc, which pyarrow brings and scikit-learn imports where it is installed. A fork is no harm to it:
# jemalloc holds its locks meanwhile, and the child goes on without the thread (jemalloc's issue 2125).
FORK_SAFE = frozenset({"jemalloc_bg_thd"})


def further_threads() -> list[str]:
    """Return the names of this process's threads that a fork could harm; unnamed threads have the program's name."""
    found = []
    for number in os.listdir("/proc/self/task"):  # noqa: PTH208 - as the launcher does without pathlib
        if int(number) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/self/task/{number}/comm") as file:  # noqa: PTH123
                found.append(file.read().strip())
    return sorted(name for name in found if name not in FORK_SAFE)


def dates_of_packages() -> list[int]:
    """Return the times (ns) at which the folders of installed packages were last changed."""
    found = []
    for folder in sys.path:
        if folder.endswith("-packages"):
            with contextlib.suppress(OSError):
                found.append(os.stat(folder).st_mtime_ns)  # noqa: PTH116
    return found


def own_memory_kib() -> int:
    """Return this process's memory that belongs to no file: pages that a fork copies when it writes to them."""
    with open("/proc/self/status", "rb") as file:  # noqa: PTH123
        for line in file:
            if line.startswith(b"RssAnon:"):
                return int(line.split()[1])
    return 0


class Parent:
    """Runs the main loop of a warm parent, and holds the ids of the launchers that it forked."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.launchers: set[int] = set()
        self.idle_s = 0.0
        self.own_kib_max = 0
        self.packages: list[int] = []

    def say(self, message: dict[str, Any], ends: Sequence[int] = ()) -> None:
        with contextlib.suppress(OSError):
            socket.send_fds(self.control, [json.dumps(message).encode()], ends)

    def serve(self) -> None:
        """Import the modules, then fork a launcher on each order. End when the worker ends, no trainer runs for
        ``idle_s`` seconds, packages have changed, or this process is unfit."""
        launcher.adopt_orphans()
        launcher.stay()
        launcher.go_first()
        try:
            self.prepare()
            woken, waker = launcher.wake_at_ends()
            while True:
                patience = None if self.launchers else self.idle_s
                watched: list[Any] = [self.control, woken]
                ready, _, _ = select.select(watched, [], [], patience)
                if woken in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(woken, MESSAGE_BYTES)
                self.reap()
                if self.control in ready:
                    if not self.obey((woken, waker)):
                        return
                elif not ready and not self.launchers:
                    self.say({"idle": True})
                    return
        except UnfitError as error:
            self.say({"unfit": str(error)})

    def prepare(self) -> None:
        """Import the modules that the worker names. Raises UnfitError."""
        order = json.loads(self.control.recv(MESSAGE_BYTES))
        self.idle_s, self.own_kib_max = order["idle_s"], order["own_kib_max"]
        self.packages = dates_of_packages()
        gc.disable()  # what is collected in the parent is copied in every child
        bring_in(order["import"])
        check(self.own_kib_max)
        gc.freeze()
        self.say({"ready": own_memory_kib()})

    def obey(self, pipes: tuple[int, ...]) -> bool:
        """Fork a launcher for the worker. Return False, without a fork, if the worker has ended or packages have
        changed. Raises UnfitError."""
        if not self.control.recv(MESSAGE_BYTES):
            return False
        if dates_of_packages() != self.packages:
            self.say({"idle": True})
            return False
        check(self.own_kib_max)
        self.fork(pipes)
        return True

    def fork(self, pipes: tuple[int, ...]) -> None:
        """Fork a launcher and pass the ends of its pipes to the worker; this process keeps none, so no other launcher
        inherits them."""
        its_in, our_in = os.pipe()
        our_out, its_out = os.pipe()
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of threads: looked at just now
            pid = os.fork()
        if pid == 0:
            self.control.close()
            signal.set_wakeup_fd(-1)
            for number in (*pipes, our_in, our_out):
                os.close(number)
            launcher.put_at(0, its_in)
            launcher.put_at(1, its_out)
            ForkedLauncher().serve()  # its child leaves by SystemExit
            os._exit(0)
        self.launchers.add(pid)
        self.say({"forked": pid}, (our_in, our_out))
        for number in (its_in, its_out, our_in, our_out):
            os.close(number)

    def reap(self) -> None:
        """Reap launchers that ended, and kill the processes that a killed launcher left behind."""
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                self.launchers.discard(pid)
        for pid in launcher.children_of(os.getpid()):
            if pid not in self.launchers:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    Parent(socket.socket(fileno=int(sys.argv[1]))).serve()
