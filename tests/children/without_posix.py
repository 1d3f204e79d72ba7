"""Import every module of ours as on Windows: without the modules and names that only POSIX has.

The arguments (``win32``, ``linux``) say as what the platform introduces itself while our modules are imported, one
after the other; a line is printed for each. Foreign packages are imported before anything is hidden: they have Windows
builds of their own.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import time
from functools import cache
from importlib.machinery import SourceFileLoader
from types import ModuleType

MODULES = "fcntl resource termios tty pty pwd grp spwd syslog posix crypt nis"
KEPT_SIGNALS = "SIGABRT SIGFPE SIGILL SIGINT SIGSEGV SIGTERM SIG_DFL SIG_IGN"
POSIX_OS = """fork forkpty killpg setsid getsid getpgid setpgid getpgrp setpgrp getuid geteuid getgid getegid getgroups
  getgrouplist setuid setgid setgroups initgroups uname sysconf confstr statvfs fstatvfs sched_getaffinity
  sched_setaffinity sched_yield waitid wait wait3 wait4 WEXITED WNOWAIT WNOHANG WIFEXITED WEXITSTATUS P_PID P_ALL mkfifo
  mknod chown lchown fchown fchdir getloadavg nice getpriority setpriority pread pwrite preadv pwritev openpty ctermid
  sync posix_fallocate posix_fadvise posix_spawn posix_spawnp sendfile O_CLOEXEC O_NOFOLLOW O_DIRECTORY O_NONBLOCK
  O_SYNC O_DSYNC O_NOCTTY O_PATH O_TMPFILE memfd_create pidfd_open eventfd getxattr setxattr pipe2 copy_file_range
  splice chroot"""
POSIX_TIME = "clock_gettime clock_settime clock_getres CLOCK_BOOTTIME CLOCK_MONOTONIC CLOCK_REALTIME tzset"
POSIX_SIGNAL = "pthread_sigmask pthread_kill sigwait sigpending setitimer getitimer alarm pause siginterrupt"


def ours() -> list[str]:
    import training

    found = [name for _, name, _ in pkgutil.walk_packages(training.__path__, "training.")]
    return [name for name in found if not name.endswith("__main__")]


def drop(module: ModuleType, names: str) -> None:
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)


def hide() -> None:
    for name in MODULES.split():
        sys.modules[name] = None  # type: ignore[assignment]
    kept = KEPT_SIGNALS.split()
    drop(signal, " ".join(name for name in dir(signal) if name[:3] == "SIG" and name not in kept))
    drop(signal, POSIX_SIGNAL)
    drop(os, POSIX_OS)
    drop(time, POSIX_TIME)
    drop(socket, "AF_UNIX AF_NETLINK")
    drop(select, "poll epoll")


def forget() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "training"]:
        del sys.modules[name]


def main(platforms: list[str]) -> None:
    compiled = cache(SourceFileLoader.get_code)  # each file once, however often it is imported
    SourceFileLoader.get_code = lambda loader, name: compiled(loader, name)  # type: ignore[method-assign]
    names = ours()
    for name in names:
        importlib.import_module(name)
    hide()
    for platform in platforms:
        forget()
        sys.platform = platform
        print(json.dumps(imported(names)), flush=True)


def imported(names: list[str]) -> dict[str, object]:
    for name in names:
        importlib.import_module(name)
    supervise = importlib.import_module("training.fleet.process.supervise")
    clock = importlib.import_module("training.clock").SystemClock()
    capability = importlib.import_module("training.fleet.capability")
    cuda = importlib.import_module("training.fleet.capability.cuda")
    # torch itself takes seconds to say so.
    cuda.PROBE = """print('{"torch": null, "devices": []}')"""
    return {
        "modules": len(names),
        "half": supervise.system.__name__,
        "clock": clock.monotonic() > 0,
        "cores": capability.detect(hostname_override="pc").cpu_cores,
        "heavy": [name for name in ("fcntl", "resource", "pwd") if sys.modules.get(name)],
    }


if __name__ == "__main__":
    main(sys.argv[1:])
