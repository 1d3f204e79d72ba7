"""Start what a process group does not hold, print the numbers on one line; then end with 0, or hang if told so.

A child in a session of its own, and a daemon as the books have it: forked twice, in its own session, its environment
empty, its output elsewhere, its folder the root. Both are deaf to polite stops.
"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

HANGS = (
    "import os, signal, threading; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "os.write({}, b'%d ' % os.getpid()); os.close({}); threading.Event().wait()"
)

if sys.argv[1:2] == ["hang"]:  # before the numbers are out: who reads them may stop this at once
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
read, write = os.pipe()
os.set_inheritable(write, True)
argv = [sys.executable, "-I", "-S", "-c", HANGS.format(write, write)]
subprocess.Popen(argv, start_new_session=True, pass_fds=(write,))
if (middle := os.fork()) == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir("/")
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nowhere, number)
        os.execve(sys.executable, argv, {})
    os._exit(0)
os.waitpid(middle, 0)
os.close(write)
with os.fdopen(read, "rb") as pipe:
    numbers = pipe.read().decode()
print(numbers, flush=True)
if sys.argv[2:]:  # a file for them as well
    Path(sys.argv[2]).write_text(numbers)
if sys.argv[1:2] == ["hang"]:
    threading.Event().wait()
