"""Format a daemon's log: one line for each message, even if a message contains text from outside."""

import logging
import sys
from types import TracebackType

from training.printable import printable, printable_lines

HOURLY = {"hourly": True}  # `extra` of a line that a timer or a repeated request may log again
_KEPT_MAX = 1000
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


class Hourly(logging.Filter):
    """A filter that passes lines marked as HOURLY only if the same text was not logged within the last hour."""

    def __init__(self) -> None:
        super().__init__()
        self._logged: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if hasattr(record, "hourly"):
            if 0 <= record.created - self._logged.get(text, -3600.0) < 3600:
                return False
            if len(self._logged) >= _KEPT_MAX:
                self._logged.clear()
            self._logged[text] = record.created
        return True


def configure(level: str) -> None:
    """Send this program's log, from ``level`` up, to standard error, where systemd and people look."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    handler.addFilter(Hourly())
    logging.basicConfig(level=level, handlers=[handler])
