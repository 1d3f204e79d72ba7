"""A program with a ``main``, as our trainers have; it tells about the process that it runs in."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import tempfile
import threading
from pathlib import Path

WORDS = {"handlers": [signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGCHLD, signal.SIGHUP]}


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def main() -> int:
    """Do what the first argument says; the exit code is the second."""
    what, code = sys.argv[1], int(sys.argv[2])
    if what == "tell":
        told = {
            "argv": sys.argv,
            "cwd": str(Path.cwd()),
            "environ": dict(os.environ),
            "leads": os.getsid(0) == os.getpid() == os.getpgid(0),
            "files": [number for number in range(100) if is_open(number)],
            "handlers": [str(signal.getsignal(number)) for number in WORDS["handlers"]],
            "file_bytes": resource.getrlimit(resource.RLIMIT_FSIZE)[0],
            "core_bytes": resource.getrlimit(resource.RLIMIT_CORE)[0],
            "readable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),  # PR_GET_DUMPABLE
            "main": sys.modules["__main__"].__spec__ is not None,
            "path": sys.path[0] or str(Path.cwd()),
            "imported": "wave" in sys.modules,
            "temporary": tempfile.gettempdir(),
        }
        print(json.dumps(told))
    elif what == "fork on":
        if (pid := os.fork()) == 0:
            os.setsid()
            threading.Event().wait()
        print(pid)  # by the one that ends by itself: the other may be killed before it can say anything
    elif what == "raise":
        raise ValueError("on purpose")
    elif what == "wait":
        print("ready", flush=True)
        threading.Event().wait()
    else:
        print(what)
    return code


if __name__ == "__main__":
    sys.exit(main())
