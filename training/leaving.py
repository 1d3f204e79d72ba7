"""End a program without the interpreter's slow clean-up."""

import atexit
import os
import sys
import threading
from typing import NoReturn

CANNOT_FLUSH = 120  # as the interpreter ends where its standard output cannot be written


def leave(code: int) -> NoReturn:
    """End this process with this exit code, after the usual final work; the operating system frees the memory. If
    standard output cannot be flushed, code 0 becomes 120.

    The interpreter's own end visits all modules and objects. With torch loaded, the interpreter's own end costs half a
    second of CPU, and in a forked process also copies shared memory. Before the end, the process waits for threads that
    are no daemons, runs the functions registered with ``atexit``, and flushes the standard streams. A forked child of
    ``multiprocessing`` ends in the same way.
    """
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()  # noqa: SLF001 - as `multiprocessing` does before it leaves a child
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # its reader is gone, the disk is full, or it was closed
            code = code or (CANNOT_FLUSH if stream is sys.stdout else 0)
    os._exit(code)
