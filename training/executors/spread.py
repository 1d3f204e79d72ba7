"""Tasks spread over an engine: in chunks, with results in order; what was lost with its worker is sent again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from typing import Any

from training.executors import sent
from training.executors.engine import Engine, EngineError, WorkerLost

TRIES = 3  # of a chunk, before it is what ends its workers
AHEAD = 8  # chunks that are sent, for each that can be worked on: one that is late holds up none for long
ASK_S = 5.0  # of waiting, after which the engine is asked for trouble


@dataclass(slots=True)
class _Chunk:
    """Tasks that were sent, and how often."""

    packed: bytes
    future: Future[bytes]
    tries: int = 1


class Spread:
    """A map over an engine, like the built-in one. Tasks, function and results must be fit for pickle.

    Tasks that were sent again may be done twice, and even at the same time, where a worker that counts as lost is not:
    they must be such that this does no harm.
    """

    def __init__(self, engine: Engine, expect: str = "", *, ask_s: float = ASK_S) -> None:
        self._engine, self._expect, self._ask_s = engine, expect, ask_s

    def map(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
        """Results in the order of the tasks. Raises EngineError, and what a task raised."""
        size = self._engine.chunk(len(tasks))
        left = iter([tasks[at : at + size] for at in range(0, len(tasks), size)])
        sent_on: deque[_Chunk] = deque()
        try:
            while True:
                while len(sent_on) < AHEAD * self._engine.width and (part := next(left, None)) is not None:
                    packed = sent.packed(self._expect, function, part)
                    sent_on.append(_Chunk(packed, self._submit(packed)))
                if not sent_on:
                    return
                yield from sent.unpacked(self._first(sent_on))
                sent_on.popleft()
        finally:
            for chunk in sent_on:
                chunk.future.cancel()

    def _first(self, chunks: Sequence[_Chunk]) -> bytes:
        """Wait for the first chunk's outcome; lost ones of all are sent again meanwhile."""
        first = chunks[0]
        while True:
            wait([first.future], self._ask_s)
            self._send_lost_again(chunks)
            if not first.future.done():
                if (trouble := self._engine.trouble()) is not None:
                    raise EngineError(trouble)
            elif not self._is_lost(first.future):  # it may have been lost just now, again
                return first.future.result()

    def _send_lost_again(self, chunks: Sequence[_Chunk]) -> None:
        lost = [chunk for chunk in chunks if chunk.future.done() and self._is_lost(chunk.future)]
        if not lost:
            return
        if any(chunk.tries == TRIES for chunk in lost):
            raise WorkerLost(self._engine.lost_often)
        self._engine.renew()
        for chunk in lost:
            chunk.tries += 1
            chunk.future = self._submit(chunk.packed)

    def _is_lost(self, future: Future[bytes]) -> bool:
        """Report whether the worker was lost; raises what ended the tasks otherwise."""
        try:
            error = future.exception()
        except CancelledError as cancelled:
            error = cancelled
        if error is None:
            return False
        if (said := sent.absent(error)) is not None:
            raise said from None
        verdict = self._engine.verdict(error)
        if verdict is None:
            return True
        raise verdict from None

    def _submit(self, packed: bytes) -> Future[bytes]:
        try:
            return self._engine.executor.submit(sent.unpickle, packed)
        except Exception as error:  # noqa: BLE001 - each engine has errors of its own
            verdict = self._engine.verdict(error)
            if verdict is not None:
                raise verdict from None
        self._engine.renew()
        return self._engine.executor.submit(sent.unpickle, packed)
