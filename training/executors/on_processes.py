"""Processes of this machine, which end with the one that started them, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from training.contract import Exit

CHUNK = 4  # tasks on one way to a process


class Processes:
    """Processes that are started afresh ("spawn"), as Polars' threads survive no fork."""

    lost_often = (
        "one of its processes was ended, perhaps as memory ran out: run it again with fewer --jobs, and it goes on "
        "where it was."
    )

    def __init__(self, jobs: int) -> None:
        self.width = jobs
        self.executor = self._started()

    def chunk(self, tasks: int) -> int:
        return min(CHUNK, -(-tasks // self.width)) or 1

    def verdict(self, error: BaseException) -> Exception | None:
        if isinstance(error, BrokenProcessPool):
            return None
        return error if isinstance(error, Exception) else RuntimeError(str(error))

    def renew(self) -> None:
        """Start all processes anew: a pool that lost one ends the others."""
        self.executor.shutdown(wait=True, cancel_futures=True)
        self.executor = self._started()

    def trouble(self) -> str | None:
        return None

    def close(self) -> None:
        self.executor.shutdown(cancel_futures=True)

    def _started(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.width, mp_context=context, initializer=end_with_parent)


def end_with_parent() -> None:
    """End this process of a pool when its parent is gone.

    The pool's own pipes do not tell it: every process holds both of their ends, and waits for work for ever.
    """
    threading.Thread(target=_outlive, name="end with parent", daemon=True).start()


def _outlive() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(Exit.INTERRUPTED)
