"""The end of a program, without taking its interpreter apart."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import NoReturn

CANNOT_FLUSH = 120  # as the interpreter ends where its standard output cannot be written


def leave(code: int) -> NoReturn:
    """End this process with this exit code: what must still be done is done, and the system takes the memory back.

    The interpreter would go through all modules and objects once more. With torch that costs half a second of CPU, and
    in a fork it copies the memory that the processes share. As at its own end, threads that are no daemons are waited
    for, functions registered with ``atexit`` run, and the standard streams are flushed; a forked child of
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
