"""Tasks for engines, which their workers import: so nothing heavy is."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from training.data.errors import DataError


@dataclass(frozen=True)
class Noted:
    """Squares, each noted as a file; the second note of one fails."""

    folder: Path

    def __call__(self, number):
        (self.folder / str(number)).touch(exist_ok=False)
        return number * number


@dataclass(frozen=True)
class Killing:
    """Squares; at one of them the worker is killed, the first few times."""

    folder: Path
    at: int
    times: int

    def __call__(self, number):
        before = len(list(self.folder.glob("killed-*")))
        if number == self.at and before < self.times:
            (self.folder / f"killed-{before}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number * number


def bad_at_seven(number):
    if number == 7:
        raise DataError("number 7 is bad")
    return number
