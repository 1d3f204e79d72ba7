"""Calls into drivers and sensors, each on a thread of its own with a limit of time, because one may never answer: a GPU
may have fallen off its bus."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

log = logging.getLogger(__name__)

LIMIT_S = 10.0  # a driver that was not loaded yet takes seconds
_T = TypeVar("_T")


class DriverCalls:
    """Asks one driver, which the log names ``what``. While an answer is overdue, no other question is asked. Several
    threads may use it."""

    def __init__(self, what: str, limit_s: float = LIMIT_S) -> None:
        self._words = f"{what} has not answered within {limit_s:.0f} s"
        self._limit_s = limit_s
        self._overdue = set[Future[Any]]()  # each thread only adds or removes its own

    @property
    def silent(self) -> str | None:
        """Return a sentence while an answer is overdue, None otherwise."""
        return self._words if self._overdue else None

    def ask(self, question: Callable[[], _T]) -> _T | None:
        """Return the answer of ``question``; None if it does not come within the limit, or, at once, while an earlier
        answer is overdue. Raises what ``question`` raises within the limit."""
        if self.silent:
            return None
        answer: Future[_T] = Future()

        def call() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:  # noqa: BLE001 - it is raised where the answer is awaited
                answer.set_exception(error)

        threading.Thread(target=call, name="driver", daemon=True).start()
        if wait([answer], self._limit_s).done:
            return answer.result()
        self._overdue.add(answer)
        answer.add_done_callback(self._overdue.discard)
        log.warning("%s; it is asked again when it has", self._words)
        return None
