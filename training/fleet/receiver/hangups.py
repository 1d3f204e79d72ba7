"""Make SIGHUP mean "reload" from the program's first lines on. By default SIGHUP ends a program, and loading the
receiver's modules takes a second, on a small machine several."""

from __future__ import annotations

import signal
import threading

EARLY: list[int] = []  # signals that came before the event loop ran


def note_hangups() -> None:
    """Record each SIGHUP in ``EARLY``, so that the signal does not end the program, until the event loop handles
    SIGHUP."""
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is not None and threading.current_thread() is threading.main_thread():
        signal.signal(hangup, lambda number, _frame: EARLY.append(number))
