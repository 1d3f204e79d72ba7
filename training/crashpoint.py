"""Named places at which a test may kill this process abruptly, as a power cut would.

``CIS490_CRASH_AT=NAME`` kills the process the first time it passes the place of that name, ``NAME:7`` the seventh time,
``NAME:7:STOP`` suspends the process there instead (POSIX). Without the variable, passing a place costs only the check
that none is set. The places are listed in ``tests/torture/points.py``; a test checks that the list agrees with the
code.
"""

import os
import signal
import threading
from collections.abc import Mapping

VARIABLE = "CIS490_CRASH_AT"


def armed(environment: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Parse ``CIS490_CRASH_AT`` of ``environment`` into a dict of place → (passes left, signal); empty if the variable
    is not set. Raises ValueError if the count is no number."""
    wanted = environment.get(VARIABLE)
    if not wanted:
        return {}
    name, count, how = (*wanted.split(":"), "", "")[:3]
    end = getattr(signal, f"SIG{how or 'KILL'}", signal.SIGTERM)  # Windows: ends at once as well
    return {name: (int(count or 1), end)}


_armed = armed(os.environ)


def crashpoint(name: str, detail: str = "") -> None:
    """Kill or suspend the process here if a test asked for that. The place is ``name``, or ``name.detail`` where one
    line marks several places."""
    if not _armed:
        return
    place = f"{name}.{detail}" if detail else name
    if place not in _armed:
        return
    left, how = _armed[place]
    _armed[place] = (left - 1, how)
    if left == 1 and hasattr(signal, "pthread_kill"):
        # This very thread: when another one takes the signal to stop, this one goes on for a moment.
        signal.pthread_kill(threading.get_ident(), how)
    elif left == 1:
        os.kill(os.getpid(), how)
