"""The interface of an engine: a ``concurrent.futures.Executor``, and the errors that it may raise."""

from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple


class EngineError(Exception):
    """An engine cannot be used, was lost, or could not do a task; the text is one sentence with the reason."""


class WorkerLost(EngineError):  # noqa: N818 - reads as what it is
    """Several workers, one after another, were lost while they had the same tasks."""


class TaskLost(Exception):  # noqa: N818 - reads as what it is
    """A worker was lost with its tasks, which may be sent again; the text, if there is one, describes how the worker
    ended."""


class Engine(NamedTuple):
    """An engine: an executor that sends tasks to workers, and facts about it. After a worker is lost, the executor must
    still accept tasks."""

    executor: Executor
    width: int  # tasks that it works on at once
    verdict: Callable[[BaseException], Exception]  # what an error means: TaskLost, or what to raise
    lost_often: str  # the sentence when tasks were sent again for the last time
    close: Callable[[], object]  # ends it, with what it still works on
    trouble: Callable[[], str | None] = lambda: None  # a sentence where no result will come any more
    chunk_least: int = 1  # tasks that are worth one way to a worker …
    chunk_most: int = 1  # … and that may wait for one another

    def chunk(self, tasks: int) -> int:
        """Return how many of ``tasks`` tasks are sent to a worker at once."""
        return max(self.chunk_least, min(self.chunk_most, -(-tasks // (4 * self.width))), 1)
