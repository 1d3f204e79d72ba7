"""The process between a worker and its trainers: a dead man's switch of the standard library alone.

A process group does not die with the worker that started it. So the worker starts this program once, holds the
other end of its standard input, and lets it start the trainers. When that pipe closes, for whatever reason, the
trainer's whole group is killed at once; a worker that was ended with ``kill -9`` leaves nothing behind.

It is started as ``python -I -S launcher.py``: without site-packages, and without this folder on the module path
(the folder holds a ``queue.py``). Commands arrive on standard input, reports leave on standard output, one JSON value
a line::

    {"run": {"argv": [...], "cwd": "...", "env": {...}, "output": "...", "end": "..."}}
        -> {"started": PID}  or  {"failed": "why"}
        -> {"ended": CODE, "cpu_s": S, "max_rss_kib": K}, some time after "started"
    "terminate" | "kill" | "pause" | "resume"
        -> nothing of its own

``CODE`` is the exit status, or minus the number of the signal. On POSIX one launcher runs any number of trainers, one
after the other: starting a trainer is a fork and an exec of a small process without threads, about a millisecond.
On Windows a launcher runs one trainer, because it is the launcher that the worker puts into a job object, before the
trainer exists.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import Any

READ_BYTES = 65_536
OOM_SCORE = "500"  # when memory runs out the kernel should choose the trainer, not the worker


def report(message: dict[str, Any]) -> None:
    """Write one line to the worker. Nobody listening any more is no reason to fail: end of file follows."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


def in_words(error: BaseException) -> str:
    """``No such file or directory: /opt/x`` rather than ``[Errno 2] …``."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error)


def put_down(end: dict[str, Any], record: str | None) -> None:
    """Write an end where a worker that was killed meanwhile will find it. Ends that we were told to bring about are
    not for the record: they say nothing of the trainer."""
    if record:
        with contextlib.suppress(OSError):
            with open(record + ".part", "w") as file:  # noqa: PTH123 - pathlib would double our start-up
                json.dump(end, file)
            os.replace(record + ".part", record)  # noqa: PTH105


class PosixLauncher:
    """Runs one trainer at a time, each the leader of its own session and process group."""

    def __init__(self) -> None:
        self.child = 0
        self.asked = False  # whether we were told to end it
        self.record: str | None = None  # the file for its end
        self.unread = b""

    def serve(self) -> None:
        """Obey until standard input ends; then kill what runs."""
        import select

        # Only the pipe decides about our end.
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        woken, waker = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready, _, _ = select.select([0, woken], [], [])
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, READ_BYTES)
                self.reap()
            if 0 in ready and not self.read_commands():
                self.asked = True
                self.signal_group("SIGKILL")
                self.reap(block=True)
                return

    def read_commands(self) -> bool:
        """Obey each complete line that has arrived; False at the end of the input."""
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
            self.signal_group("SIGCONT")  # a paused trainer would not hear the signal before it
        elif command == "kill":
            self.asked = True
            self.signal_group("SIGKILL")
        elif command == "pause":
            self.signal_group("SIGSTOP")
        elif command == "resume":
            self.signal_group("SIGCONT")

    def signal_group(self, name: str) -> None:
        """Safe against a number used again: the child is not reaped before ``self.child`` is cleared."""
        if self.child:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.child, getattr(signal, name))

    def run(self, spec: dict[str, Any]) -> None:
        """Fork and exec; a failure on the way comes back through a pipe that a successful exec closes."""
        if self.child:
            report({"failed": "a trainer is already running"})
            return
        failed, fail = os.pipe()
        child = os.fork()
        if child == 0:
            become_trainer(spec, fail)
        os.close(fail)
        with open(failed, "rb") as pipe:  # noqa: PTH123 - a descriptor, not a path
            why = pipe.read()
        if why:
            os.waitpid(child, 0)
            report({"failed": why.decode(errors="replace")})
        else:
            self.child, self.asked, self.record = child, False, spec.get("end")
            report({"started": child})

    def reap(self, *, block: bool = False) -> None:
        """If the trainer has ended: kill what it left in its group, then reap it and report."""
        if not self.child:
            return
        flags = os.WEXITED | os.WNOWAIT | (0 if block else os.WNOHANG)
        if os.waitid(os.P_PID, self.child, flags) is None:
            return
        self.signal_group("SIGKILL")  # data loaders and the like; the group's number is still ours
        _, status, usage = os.wait4(self.child, 0)
        self.child = 0
        end = {
            "ended": os.waitstatus_to_exitcode(status),
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
            "max_rss_kib": usage.ru_maxrss,
        }
        if not self.asked or end["ended"] == 0:
            put_down(end, self.record)
        report(end)


def become_trainer(spec: dict[str, Any], fail: int) -> None:
    """In the forked child: own session, no input, output to the file, default signals, then exec. Never returns."""
    try:
        os.setsid()
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
            file.write(OOM_SCORE)
        output = os.open(spec["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(spec["cwd"])
        signal.set_wakeup_fd(-1)
        for number in range(1, signal.NSIG):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)  # what is ignored stays ignored across exec
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606 - no shell is the point
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        os.write(fail, in_words(error).encode(errors="replace"))
    finally:
        os._exit(127)


def serve_windows() -> None:
    """Run the one trainer; Ctrl-Break asks it to stop. Killing is the job object's work, in the worker."""
    import subprocess
    import threading

    line = sys.stdin.readline()
    if not line:
        return
    spec = json.loads(line)["run"]
    try:
        with open(spec["output"], "ab") as output:  # noqa: PTH123 - pathlib would double our start-up
            child = subprocess.Popen(
                spec["argv"],
                cwd=spec["cwd"],
                env=spec["env"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
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
