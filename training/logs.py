"""The log of a daemon: one line for each message, also with text from outside."""

from __future__ import annotations

import logging
import sys
from types import TracebackType

from training.printable import printable, printable_lines

_Info = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class OneLine(logging.Formatter):
    """Control characters are written out, so that no text can begin a line of its own or reach a terminal.

    A traceback has lines by nature; they are set off, so that none of them passes for an entry.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return printable(super().formatMessage(record))

    def formatException(self, ei: _Info) -> str:  # noqa: N802
        return "\n".join(f"  | {line}" for line in printable_lines(super().formatException(ei)))


def configure(level: str) -> None:
    """To standard error, where systemd and people look."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
