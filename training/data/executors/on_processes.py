"""Run tasks in processes on this machine, which end when the process that started them ends for any reason."""

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from training.contract import Exit
from training.data.executors.engine import Engine, TaskLost

CHUNK = 4  # tasks on one way to a process
LOST_OFTEN = (
    "processes were ended one after the other with the same tasks, perhaps as memory ran out: run it again with fewer "
    "--jobs, and it resumes where it was"
)


class Pool(Executor):
    """An executor with processes started by "spawn", as Polars' threads survive no fork; if a process is lost, the next
    task starts a new pool."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._pool = self._started()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        try:
            return self._pool.submit(fn, *args, **kwargs)
        except BrokenProcessPool:
            self.shutdown()
            self._pool = self._started()
            return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        self._pool.shutdown(wait, cancel_futures=cancel_futures)

    def _started(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._processes, mp_context=context, initializer=end_with_parent)


def open_engine(_address: str, jobs: int | None, _folder: Path) -> Engine:
    """Return an engine with ``jobs`` processes, or one for each core if ``jobs`` is None."""
    jobs = jobs or os.cpu_count() or 1
    pool = Pool(jobs)
    return Engine(pool, jobs, _verdict, LOST_OFTEN, pool.shutdown, chunk_most=CHUNK)


def _verdict(error: BaseException) -> Exception:
    if isinstance(error, BrokenProcessPool):
        return TaskLost()
    return error if isinstance(error, Exception) else RuntimeError(str(error))


def end_with_parent() -> None:
    """Start a thread that ends this process of the pool when its parent process has ended.

    The pool's own pipes do not show the parent's end: every process has both ends open, and would wait for work without
    end.
    """
    threading.Thread(target=_outlive, name="end with parent", daemon=True).start()


def _outlive() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(Exit.INTERRUPTED)
