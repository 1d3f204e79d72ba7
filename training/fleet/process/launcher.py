"""The process between a worker and its trainers: it kills the trainers when the worker dies; standard library only.

A trainer does not die with the worker that started it. So the worker starts this program, the launcher, holds the other
end of its standard input, and lets it start the trainers. When the launcher's standard input closes, for any reason, or
when the trainer ends, the trainer's whole tree is killed. So a worker that was killed with ``kill -9`` leaves no
trainer running, except the processes named below. The tree is

- on Linux everything below this process, daemons included: this process adopts what their parents leave behind
  (``PR_SET_CHILD_SUBREAPER``), so that the tree is empty when this process has no child any more. Where a control group
  can be made, the trainer starts in its own group, and ``cgroup.kill`` ends the whole group at once;
- on other POSIX systems the trainer's process group alone: a process that leaves the group is not killed;
- on Windows the members of the job object, which the worker holds (windows.py).

On any system three kinds of process may survive: one in the kernel's uninterruptible sleep, one of another user, and
one that a service manager was asked to start. If this program itself is killed on a POSIX system, the worker kills the
trainer's process group. On Linux the worker then kills the trainer's control group, too, and the processes that have
the job's state folder in their environment.

This program is started as ``python -I -S launcher.py``: without site-packages, and without this folder on the module
path. Commands arrive on standard input, reports leave on standard output, one JSON value a line::

    {"run": {"argv": [...], "cwd": "...", "env": {...}, "output": "...", "end": "...", "group": "FOLDER" or null,
             "errors": "FILE" or null, "file_bytes": N or null, "then": [...]}}
        -> {"started": PID}  or  {"failed": "why"}
        -> {"ended": CODE, "cpu_s": S, "max_rss_kib": K, "left": N}, some time after "started"
    "terminate" | "kill" | "pause" | "resume"
        -> nothing of its own

``CODE`` is the exit status, or minus the number of the signal; ``left``, absent when 0, is how many processes could not
be ended. On POSIX one launcher runs any number of trainers, one after the other: starting a trainer is a fork and an
exec of a small process without threads, about a millisecond. A launcher that was forked from a warm parent (warm.py,
which also reads ``then``) runs one trainer, and ends with that trainer. On Windows a launcher runs one trainer, because
the worker puts the launcher into a job object before the trainer exists.
"""

import contextlib
import json
import os
import signal
import sys
from typing import Any

READ_BYTES = 65_536
SUBREAPER, DUMPABLE = 36, 4  # PR_SET_CHILD_SUBREAPER and PR_SET_DUMPABLE of prctl(2)
SWEEP_TRIES = 1500  # looks at what is left of a tree, 2 ms apart: less than the worker waits for a killed trainer
APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND
OOM_SCORE = "500"  # when memory runs out the kernel should choose the trainer, not the worker


def report(message: dict[str, Any]) -> None:
    """Write ``message`` as one line of JSON to the worker. A closed pipe is no error, because the reader then sees the
    end of the file."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


def in_words(error: BaseException) -> str:
    """Return an error's text; an OSError's as ``No such file or directory: /opt/x`` rather than ``[Errno 2] …``."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def put_down(end: dict[str, Any], record: str | None) -> None:
    """Write a trainer's end to the file ``record``, if given, for the next worker if this one was killed meanwhile. The
    callers do not record an end that the worker ordered, unless its exit status is 0."""
    if record:
        with contextlib.suppress(OSError):
            with open(record + ".part", "w") as file:  # noqa: PTH123 - pathlib would double our start-up
                json.dump(end, file)
            os.replace(record + ".part", record)  # noqa: PTH105


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent ends, on systems that support it (Linux)."""
    control(SUBREAPER, 1)


def be_readable(readable: bool) -> None:
    """Let other programs of this user read this process's memory, environment and open files, or forbid it (Linux). A
    started program is readable, and a fork is what its parent was."""
    control(DUMPABLE, int(readable))


def control(option: int, value: int) -> None:
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def stay() -> None:
    """Ignore the signals by which processes are usually stopped, such as SIGTERM and SIGINT, so that the closing of the
    pipe ends this process."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)


def wake_at_ends() -> tuple[int, int]:
    """Return both ends of a pipe whose first end becomes readable when a child ends."""
    woken, waker = os.pipe()
    for end in (woken, waker):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return woken, waker


def go_first() -> None:
    """Ask the kernel to kill this process before others when memory runs out."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        file.write(OOM_SCORE)


def children_of(pid: int) -> list[int]:
    """Return the ids of a process's children, including zombies; none if ``/proc`` does not show them."""
    try:
        found = []
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:  # noqa: PTH123
                found += [int(number) for number in file.read().split()]
    except FileNotFoundError:  # a kernel built without these files, or the process has ended
        return [each for each in running() if parent_of(each) == pid]
    except OSError:
        return []
    return found


def running() -> list[int]:
    """Return the ids of all processes that ``/proc`` shows."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    return []


def parent_of(pid: int) -> int:
    """Return the id of a process's parent; 0 if the process has ended or ``/proc`` does not show it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def signal_tree(parent: int, number: int) -> None:
    """Send signal ``number`` to every descendant of ``parent``, parents first; on systems other than Linux do nothing.
    A process that got a descendant's id meanwhile gets no signal."""
    for pid in children_of(parent):
        with contextlib.suppress(OSError, AttributeError):
            handle = os.pidfd_open(pid)
            try:
                if parent_of(pid) == parent:
                    signal.pidfd_send_signal(handle, number)
                    signal_tree(pid, number)
            finally:
                os.close(handle)


class Group:
    """The control group of one trainer. Without a folder, or where no group can be made, its methods do nothing."""

    def __init__(self, folder: str | None) -> None:
        self.folder = ""
        if folder:
            with contextlib.suppress(OSError):
                os.mkdir(folder)  # noqa: PTH102
                self.folder = folder

    def enter(self) -> None:
        """Put this process, and all processes that it will start, into the group."""
        self.write("cgroup.procs", "0")

    def kill(self) -> None:
        """Kill all members at once (Linux 5.14 and later; on older kernels the walk through the tree kills them)."""
        self.write("cgroup.kill", "1")

    def write(self, name: str, text: str) -> None:
        if self.folder:
            with contextlib.suppress(OSError), open(f"{self.folder}/{name}", "w") as file:  # noqa: PTH123
                file.write(text)

    def remove(self) -> None:
        """Remove the group; a group with a member that cannot be killed remains."""
        if self.folder:
            with contextlib.suppress(OSError):
                os.rmdir(self.folder)  # noqa: PTH106


class PosixLauncher:
    """Starts one trainer at a time, each as the leader of its own session and process group, and ends its tree."""

    ready = b""  # what the pipe of a child says when it is the trainer: an exec closes it without a word
    once = False  # whether it ends with its first trainer

    def __init__(self) -> None:
        self.child = 0
        self.starting: int | None = None  # the pipe of a child that is not yet the trainer …
        self.told = b""  # … and what it said so far
        self.asked = False  # whether we were ordered to end it
        self.record: str | None = None  # the file for its end
        self.group = Group(None)
        self.unread = b""
        self.own_pipes: tuple[int, ...] = ()
        self.over = False

    def serve(self) -> None:
        """Carry out commands until standard input ends; then kill the running trainer. With ``once``, end when the
        trainer has ended or could not be started."""
        import select

        be_readable(False)
        adopt_orphans()
        stay()
        self.own_pipes = woken, _ = wake_at_ends()
        while True:
            pipes = [0, woken] if self.starting is None else [0, woken, self.starting]
            ready, _, _ = select.select(pipes, [], [])
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, READ_BYTES)
            if self.starting in ready:
                self.hear_child()
            if 0 in ready and not self.read_commands():
                self.asked = True
                self.kill()
                self.starting = None
                self.reap(block=True)
                return
            self.reap()
            if self.over:
                return

    def read_commands(self) -> bool:
        """Carry out each complete line that has arrived; return False at the end of the input."""
        data = os.read(0, READ_BYTES)
        *lines, self.unread = (self.unread + data).split(b"\n")
        for line in lines:
            self.obey(json.loads(line))
        return bool(data)

    def obey(self, command: Any) -> None:
        if isinstance(command, dict):
            self.run(command["run"])
        elif command == "terminate":
            self.asked = True
            self.signal_group("SIGTERM")
            # A paused trainer would not hear the signal before it.
            signal_tree(os.getpid(), signal.SIGCONT)
            self.signal_group("SIGCONT")
        elif command == "kill":
            self.asked = True
            self.kill()
        elif command == "pause":
            self.signal_group("SIGSTOP")
            signal_tree(os.getpid(), signal.SIGSTOP)
        elif command == "resume":
            signal_tree(os.getpid(), signal.SIGCONT)
            self.signal_group("SIGCONT")

    def signal_group(self, name: str) -> None:
        """Send a signal to the trainer's process group. The group's id cannot belong to another group, because
        ``self.child`` is cleared as soon as the trainer is reaped."""
        if self.child:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.child, getattr(signal, name))

    def kill(self) -> None:
        """Kill the trainer's control group and process group; ``reap`` then kills the rest of its tree."""
        self.group.kill()
        self.signal_group("SIGKILL")

    def run(self, spec: dict[str, Any]) -> None:
        """Start the trainer that ``spec`` describes; if the start fails, the child reports the failure through a
        pipe."""
        if self.child:
            report({"failed": "a trainer is already running"})
            return
        self.group = Group(spec.get("group"))
        self.child, self.starting = self.fork(spec)
        self.asked, self.record, self.told = False, spec.get("end"), b""

    def fork(self, spec: dict[str, Any]) -> tuple[int, int]:
        """Fork a child that becomes the trainer. Return the child's id, and the pipe on which the child reports a
        failed start."""
        failed, fail = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(failed)
            self.group.enter()
            self.become(spec, fail)
        os.close(fail)
        return child, failed

    def become(self, spec: dict[str, Any], fail: int) -> None:
        """Turn the forked child into the trainer: a clean start, then exec. An error is written to the pipe ``fail``.
        Never returns."""
        try:
            start_clean(spec)
            os.execvpe(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606 - no shell is the point
        except BaseException as error:  # noqa: BLE001 - every error must reach the parent
            os.write(fail, in_words(error).encode(errors="replace"))
        finally:
            os._exit(127)

    def hear_child(self) -> None:
        """Read the pipe of the child; at its end report that the trainer runs, or why it does not."""
        assert self.starting is not None
        if data := os.read(self.starting, READ_BYTES):
            self.told += data
            return
        os.close(self.starting)
        self.starting = None
        if self.told == self.ready:
            report({"started": self.child})
            return
        self.kill()
        _, status = os.waitpid(self.child, 0)
        self.child = 0
        self.sweep()
        self.over = self.once
        words = self.told.decode(errors="replace")
        report({"failed": words or f"its child ended on the way ({os.waitstatus_to_exitcode(status)})"})

    def reap(self, *, block: bool = False) -> None:
        """Reap adopted orphans; and if the trainer has ended, end its remaining processes, then report. With ``block``,
        wait for the trainer's end."""
        while self.child and self.starting is None:
            flags = os.WEXITED | os.WNOWAIT | (0 if block else os.WNOHANG)
            ended = os.waitid(os.P_ALL, 0, flags)
            if ended is None:
                return
            if ended.si_pid == self.child:
                self.finish()
            else:
                os.waitpid(ended.si_pid, 0)

    def finish(self) -> None:
        """Kill the rest of an ended trainer's tree, reap the trainer and report its end. The group is killed first:
        until the trainer is reaped, the group's id cannot be reused."""
        self.kill()
        _, status, usage = os.wait4(self.child, 0)
        self.child = 0
        end = {
            "ended": os.waitstatus_to_exitcode(status),
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
            "max_rss_kib": usage.ru_maxrss,
        }
        if left := self.sweep():
            end["left"] = left
        if not self.asked or end["ended"] == 0:
            put_down(end, self.record)
        self.over = self.once
        report(end)

    def sweep(self) -> int:
        """Kill and reap the trainer's remaining processes; return the number of this process's children that could not
        be ended.

        By process id, only children of this process are killed: no other process reaps them, so their ids cannot be
        reused. When a child ends, this process adopts the child's own children (Linux), until none is left.
        """
        import time

        for _ in range(SWEEP_TRIES):
            self.group.kill()
            for pid in children_of(os.getpid()):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                self.group.remove()
                return 0
            time.sleep(0.002)
        return len(children_of(os.getpid()))


def start_clean(spec: dict[str, Any]) -> None:
    """Give this process its own session, no input, the output files, folder and file-size limit of ``spec``, no core
    dumps, and default signals. Its user's other programs may then read it, and the kernel kills it first when memory
    runs out."""
    os.setsid()
    be_readable(True)  # an unreadable process may not even write to its own files in /proc
    go_first()
    put_at(0, os.open(os.devnull, os.O_RDONLY))
    put_at(1, os.open(spec["output"], APPENDING, 0o644))
    if spec.get("errors"):
        put_at(2, os.open(spec["errors"], APPENDING, 0o644))
    else:
        os.dup2(1, 2)
    import resource

    # A crash leaves no memory image in the checkout, where a trainer works; one that wants it may raise the limit.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if spec.get("file_bytes"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (spec["file_bytes"], spec["file_bytes"]))
    os.chdir(spec["cwd"])
    signal.set_wakeup_fd(-1)
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)  # what is ignored stays ignored across exec


def put_at(number: int, opened: int) -> None:
    """Move the open file ``opened`` to descriptor ``number``; close its first descriptor, which would stay open if no
    exec follows."""
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)


def serve_windows() -> None:
    """Run the one trainer of a launcher on Windows. On ``terminate`` it sends the trainer Ctrl-Break; on ``kill`` and
    at the end of the input it kills the trainer. The worker kills the trainer's whole tree through the job object."""
    import subprocess
    import threading

    line = sys.stdin.readline()
    if not line:
        return
    spec = json.loads(line)["run"]
    try:
        # pathlib would double our start-up
        with (
            open(spec["output"], "ab") as output,  # noqa: PTH123
            open(spec.get("errors") or os.devnull, "ab") as errors,  # noqa: PTH123
        ):
            child = subprocess.Popen(
                spec["argv"],
                cwd=spec["cwd"],
                env=spec["env"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors if spec.get("errors") else subprocess.STDOUT,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
    except OSError as error:
        report({"failed": in_words(error)})
        return
    report({"started": child.pid})
    asked = threading.Event()

    def listen() -> None:
        for word in sys.stdin:
            asked.set()
            if json.loads(word) == "terminate":
                with contextlib.suppress(OSError):
                    child.send_signal(getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM))
            elif json.loads(word) == "kill":
                child.kill()
        child.kill()
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    end = {"ended": child.wait()}
    if not asked.is_set() or end["ended"] == 0:
        put_down(end, spec.get("end"))
    report(end)
    os._exit(0)  # the listening thread still sits in a read that nothing else would end


if __name__ == "__main__":
    if os.name == "posix":
        PosixLauncher().serve()
    else:
        serve_windows()
