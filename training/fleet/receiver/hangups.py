"""SIGHUP means reload, from the program's first lines on. By default it ends a program, and to load what the receiver
needs takes a second, on a small machine several.
"""

from __future__ import annotations

import signal
import threading

EARLY: list[int] = []  # signals that came before the event loop ran


def note_hangups() -> None:
    """Note each SIGHUP, instead of being ended by it, until the event loop collects them."""
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is not None and threading.current_thread() is threading.main_thread():
        signal.signal(hangup, lambda number, _frame: EARLY.append(number))
