"""Keep a program from failing at a character that its output cannot show, at a closed pipe, or at a signal that means
nothing to it."""

import atexit
import errno
import os
import signal
import sys
import threading
from types import TracebackType
from typing import IO, Any


def replace_unprintable(*streams: IO[Any]) -> None:
    """Make streams print a question mark for each character that their encoding lacks.

    A pipe on Windows can encode some 250 characters (its old code page). A program that prints an arrow into a Windows
    pipe would end with a UnicodeEncodeError. Without arguments, standard output and standard error are changed.

    Also, a reader that closes the pipe (``| head``) ends this program without a traceback from now on.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show
        atexit.register(_flush)
    for stream in streams or (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a text stream of the interpreter's own
            stream.reconfigure(errors="replace")


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error that nothing caught, unless it says that the reader has closed the pipe."""
    if isinstance(error, OSError) and has_seen_enough(error):
        write_no_more()
    else:
        sys.__excepthook__(kind, error, trace)


def _flush() -> None:
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:  # others than a closed pipe are the interpreter's to tell
        if isinstance(error, OSError) and has_seen_enough(error):
            write_no_more()


def complain(sentence: object, to: IO[str] | None = None) -> None:
    """Print a sentence on standard error or ``to``; on a terminal, wrap it at words."""
    to = to or sys.stderr
    if to.isatty():
        from shutil import get_terminal_size
        from textwrap import TextWrapper

        wrapper = TextWrapper(get_terminal_size().columns, break_long_words=False, break_on_hyphens=False)
        sentence = "\n".join(map(wrapper.fill, str(sentence).splitlines()))
    print(sentence, file=to)


def has_seen_enough(error: OSError) -> bool:
    """Tell whether an error means that a stream's reader has closed it (``| head``), which is no mistake."""
    unnamed = os.name == "nt" and error.errno == errno.EINVAL  # as Windows says it
    return isinstance(error, BrokenPipeError) or unnamed


def write_no_more() -> None:
    """Send all further standard output to the null device, so that the interpreter's last flush cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def ignore_strays() -> None:
    """Keep SIGUSR1 and SIGUSR2 from ending this program; by default they end it, although no person means that.

    SIGUSR1 and SIGUSR2 get a handler that does nothing, because an ignored signal would stay ignored in the programs
    that this one starts. Outside the main thread, nothing changes.
    """
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGUSR1", "SIGUSR2"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), lambda *_: None)
