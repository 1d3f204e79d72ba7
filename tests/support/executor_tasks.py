"""Tasks for engines, which their workers import, and a program that is run in this process."""

from __future__ import annotations

import contextlib
import io
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from training.data import build as building
from training.data import placing
from training.data.cut import Plan, Task, cut
from training.data.errors import DataError
from training.data.extract import Facts, remembered
from training.trainer import score as scoring


@dataclass(frozen=True)
class Noted:
    """Squares, each noted as a file; the second note of one fails."""

    folder: Path

    def __call__(self, number: int) -> int:
        (self.folder / str(number)).touch(exist_ok=False)
        return number * number


@dataclass(frozen=True)
class Killing:
    """Squares; at one of them the worker is killed, the first few times."""

    folder: Path
    at: int
    times: int

    def __call__(self, number: int) -> int:
        before = len(list(self.folder.glob("killed-*")))
        if number == self.at and before < self.times:
            (self.folder / f"killed-{before}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number * number


def _end_once(marks: Path) -> None:
    """Kill this process, unless one was killed before."""
    try:
        (marks / "killed").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class KilledReading:
    """Reads episodes; the first worker that does is killed when it has remembered one and answered nothing."""

    marks: Path

    def __call__(self, task: tuple[Path, float | None, Path]) -> Facts:
        found = remembered(task)
        _end_once(self.marks)
        return found

    @classmethod
    def put(cls, patch: pytest.MonkeyPatch, marks: Path) -> None:
        patch.setattr(building, "remembered", cls(marks))


@dataclass(frozen=True)
class KilledCutting:
    """Cuts episodes; the first worker that does is killed when some windows are in their places."""

    marks: Path
    plan: Plan

    def __call__(self, task: Task) -> None:
        cut(self.plan, task._replace(rows=task.rows[: task.rows.size // 2]))
        _end_once(self.marks)
        cut(self.plan, task)

    @classmethod
    def put(cls, patch: pytest.MonkeyPatch, marks: Path) -> None:
        patch.setattr(placing, "Cut", lambda plan: cls(marks, plan))


def bad_at_seven(number: int) -> int:
    if number == 7:
        raise DataError("number 7 is bad")
    return number


def score(*arguments: object) -> tuple[int, str]:
    """Score in this process: the exit code, and what was said but notes and summary."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = scoring.main([str(one) for one in arguments])
    return code, said.getvalue() if code else ""
