"""Keep SIGHUP, which asks the receiver to reload, from ending the program while it starts and while it ends. By default
SIGHUP ends a program, and loading the receiver's modules takes a second or more."""

from __future__ import annotations

import signal

TYPE_CHECKING = False  # `typing` takes longer to import than all that happens before the first signal is safe
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

EARLY: list[int] = []  # signals that came before the event loop ran


def note_hangups() -> None:
    """Record each SIGHUP in ``EARLY``, so that the signal does not end the program, until the event loop handles
    SIGHUP."""
    on_hangup(lambda number, _frame: EARLY.append(number))


def ignore_hangups() -> None:
    """Ignore SIGHUP from here on: the interpreter would set back any other handler when it ends."""
    on_hangup(signal.SIG_IGN)


def on_hangup(handler: Callable[[int, Any], object] | signal.Handlers) -> None:
    """Handle SIGHUP by ``handler``, where there is such a signal; a thread other than the main one changes nothing."""
    if hasattr(signal, "SIGHUP"):
        try:  # noqa: SIM105 - contextlib would have to be imported
            signal.signal(signal.SIGHUP, handler)
        except ValueError:
            pass
