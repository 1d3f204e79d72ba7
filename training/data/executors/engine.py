"""The interface of an engine: a ``concurrent.futures.Executor``, and the errors that it may raise."""

from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple


class EngineError(Exception):
    """An engine that cannot be used, or was lost: one sentence with the remedy."""


class WorkerLost(EngineError):  # noqa: N818 - reads as what it is
    """One worker after another was lost while it had the same tasks."""


class TaskLost(Exception):  # noqa: N818 - reads as what it is
    """A worker was lost with its tasks, which may be sent again; the text says how it ended."""


class Engine(NamedTuple):
    """Workers behind an executor. After a lost worker an executor must accept tasks again."""

    executor: Executor
    width: int  # tasks that it works on at once
    verdict: Callable[[BaseException], Exception]  # what an error means: TaskLost, or what to raise
    lost_often: str  # the sentence when tasks were sent again for the last time
    close: Callable[[], object]  # ends it, with what it still works on
    trouble: Callable[[], str | None] = lambda: None  # a sentence where no result will come any more
    chunk_least: int = 1  # tasks that are worth one way to a worker …
    chunk_most: int = 1  # … and that may wait for one another

    def chunk(self, tasks: int) -> int:
        """The number of tasks that are sent to a worker at once, of so many in all."""
        return max(self.chunk_least, min(self.chunk_most, -(-tasks // (4 * self.width))), 1)


def first_line(text: object) -> str:
    """Return the first line of an error's text."""
    return str(text).strip().partition("\n")[0]
