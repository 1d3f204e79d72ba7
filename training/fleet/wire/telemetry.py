"""The part of a worker's message about a running or ended attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.fleet.wire.attempts import LogLines


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """A message's number, the trainer's last progress, and output lines.

    ``first`` numbers the first line within the attempt, from 0; ``lines`` is None until they are read from the outbox.
    ``total`` counts all lines of an attempt whose trainer has ended.
    """

    seq: int = 0
    progress: Mapping[str, Any] | None = None
    first: int = 0
    lines: Sequence[str] | None = None
    total: int | None = None
    usage: Mapping[str, Any] | None = None  # of the host, with a heartbeat

    def after(self) -> int:
        """Number the line after the last one."""
        return self.first + len(self.lines or ())

    def log(self) -> LogLines | None:
        """Return the lines as requests carry them."""
        if not self.lines and self.total is None:
            return None
        return LogLines(first=self.first, total=self.total, lines=list(self.lines or ()))

    def members(self) -> dict[str, Any]:
        """Return the members of a request's body."""
        progress = None if self.progress is None else dict(self.progress)
        return {"seq": self.seq, "progress": progress, "log": self.log()}


NOTHING = Telemetry()
