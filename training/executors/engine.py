"""The part of an engine that work is spread by, and the errors that end it."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Protocol


class EngineError(Exception):
    """An engine that cannot be used, or was lost: one sentence with the remedy."""


class WorkerLost(EngineError):  # noqa: N818 - reads as what it is
    """Worker after worker was lost with the same tasks."""


class Engine(Protocol):
    """Workers behind a ``concurrent.futures.Executor``, which a lost one of them may have broken."""

    width: int  # tasks that it works on at once

    @property
    def executor(self) -> Executor: ...

    @property
    def lost_often(self) -> str:
        """The sentence when tasks were sent again for the last time."""
        ...

    def chunk(self, tasks: int) -> int:
        """The number of tasks, of so many in all, that are worth one way to a worker."""
        ...

    def verdict(self, error: BaseException) -> Exception | None:
        """None where a worker was lost with its tasks, which are to be sent again; otherwise the error to raise."""
        ...

    def renew(self) -> None:
        """Make the executor usable again after a worker was lost."""
        ...

    def trouble(self) -> str | None:
        """A sentence where no result will come any more. Asked about every `spread.ASK_S` seconds of waiting."""
        ...

    def close(self) -> None:
        """Let go of the engine, and end what it still works on."""
        ...
