"""A map over several processes, which end with the one that started them, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool as WorkerLost
from functools import partial
from typing import Any

from training.contract import Exit

__all__ = ["Mapper", "WorkerLost"]


class Mapper:
    """An ordered map over one process or several; started afresh ("spawn") as Polars' threads survive no fork."""

    def __init__(self, jobs: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=end_with_parent) if jobs > 1 else None

    def __enter__(self) -> Callable[..., Any]:
        return map if self._pool is None else partial(self._pool.map, chunksize=4)

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


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
