"""Format a daemon's log: one line for each message, even if a message contains text from outside."""

import logging
import sys
from types import TracebackType

from training.printable import printable, printable_lines

_Info = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class OneLine(logging.Formatter):
    """A formatter that writes control characters as escapes, so that no text can start a new log line or control a
    terminal.

    The lines of a traceback are indented, so that none of them looks like a log entry.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return printable(super().formatMessage(record))

    def formatException(self, ei: _Info) -> str:  # noqa: N802
        return "\n".join(f"  | {line}" for line in printable_lines(super().formatException(ei)))


def configure(level: str) -> None:
    """Send this program's log, from ``level`` up, to standard error, where systemd and people look."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
