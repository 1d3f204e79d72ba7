"""Synchronous code that waits in simulated time: on a thread of its own, which runs only while the simulation waits.

So at each moment one thread runs, and a seed replays to the byte. The production code needs no second form of itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

HangUp = Callable[[], object]
Wish = Callable[[Callable[[Any], None]], HangUp]  # begins what is waited for, and returns how to give it up


class _Gone(BaseException):
    """Nobody waits for this strand any more. Not an Exception: no code may catch it and go on."""


class Strand(threading.Thread):
    """Runs ``work``; ``done`` gets its exception, or None, unless the strand was ended before."""

    def __init__(self, work: Callable[[], object], done: Callable[[Exception | None], object]) -> None:
        super().__init__(daemon=True)
        self._work, self._done = work, done
        self._mine, self._theirs = threading.Semaphore(0), threading.Semaphore(0)
        self._wish: Wish | None = None
        self._outcome: Any = None
        self._error: Exception | None = None
        self._hang_up: HangUp = lambda: None
        self._gone = False
        self.over = False
        self.trouble: list[str] = []  # what it met on its way, for whoever began it
        self.kept = False  # the receiver has said that it keeps what was brought

    @staticmethod
    def current() -> Strand:
        """Return the strand that calls this."""
        strand = threading.current_thread()
        assert isinstance(strand, Strand)
        return strand

    def begin(self) -> None:
        """Run it up to its first wait."""
        self.start()
        self._watch()

    def end(self) -> None:
        """Unwind it where it waits."""
        if not self.over:
            self._hang_up()
            self._gone = True
            self._go_on(None)

    def run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - whoever began it decides
            self._error = error
        except _Gone:
            pass
        self.over = True
        self._theirs.release()

    def wait(self, wish: Wish) -> Any:
        """Wait, on this strand, for what ``wish`` begins."""
        self._wish = wish
        self._theirs.release()
        self._mine.acquire()
        if self._gone:
            raise _Gone
        return self._outcome

    def _go_on(self, outcome: Any) -> None:
        self._outcome = outcome
        self._mine.release()
        self._watch()

    def _watch(self) -> None:
        self._theirs.acquire()
        if not self.over:
            self._hang_up = self._wish(self._go_on)
        else:
            self.join()
            if not self._gone:
                self._done(self._error)
