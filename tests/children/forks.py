"""A tree of three processes that all ignore SIGTERM; prints their numbers on one line."""

import os
import signal
import threading

signal.signal(signal.SIGTERM, signal.SIG_IGN)
first = os.fork()
second = os.fork() if first else 0
if first and second:
    print(os.getpid(), first, second, flush=True)
threading.Event().wait()
