"""Tasks spread over an engine: in chunks, with results in order; a task lost with its worker is sent again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from typing import Any

from training.data.executors import payload
from training.data.executors.engine import Engine, EngineError, TaskLost, WorkerLost

TRIES = 3  # of a chunk, before it is what ends its workers
AHEAD = 8  # chunks that are sent, for each that can be worked on: one that is late holds up none for long
ASK_S = 5.0  # of waiting, after which the engine is asked for trouble


@dataclass(slots=True)
class _Chunk:
    """Tasks that were sent, and how often."""

    packed: bytes
    future: Future[bytes]
    tries: int = 1


def spread(
    engine: Engine,
    function: Callable[[Any], Any],
    tasks: Sequence[Any],
    *,
    expect: str = "",
    ask_s: float = ASK_S,
) -> Iterator[Any]:
    """Map a function over tasks, with results in their order. Raises EngineError, and what a task raised.

    Tasks, function and results must be fit for pickle. Tasks that were sent again may be done twice, and even at the
    same time, where a worker that counts as lost is not: they must be such that this does no harm.
    """
    size = engine.chunk(len(tasks))
    left = iter([tasks[at : at + size] for at in range(0, len(tasks), size)])
    chunks: deque[_Chunk] = deque()
    try:
        while True:
            while len(chunks) < AHEAD * engine.width and (part := next(left, None)) is not None:
                packed = payload.packed(expect, function, part)
                chunks.append(_Chunk(packed, _submit(engine, packed)))
            if not chunks:
                return
            yield from payload.unpacked(_first(engine, chunks, ask_s))
            chunks.popleft()
    finally:
        for chunk in chunks:
            chunk.future.cancel()


def _first(engine: Engine, chunks: Sequence[_Chunk], ask_s: float) -> bytes:
    """Wait for the first chunk's outcome; lost ones of all are sent again meanwhile."""
    first = chunks[0]
    while True:
        wait([first.future], ask_s)
        for chunk in chunks:
            if chunk.future.done() and (lost := _lost(engine, chunk.future)):
                if chunk.tries == TRIES:
                    raise WorkerLost(engine.lost_often.format(lost))
                chunk.tries += 1
                chunk.future = _submit(engine, chunk.packed)
        if not first.future.done():
            if (trouble := engine.trouble()) is not None:
                raise EngineError(trouble)
        elif not _lost(engine, first.future):  # it may have been lost just now, again
            return first.future.result()


def _lost(engine: Engine, future: Future[bytes]) -> TaskLost | None:
    """Return how the worker was lost, or None; raises what ended the tasks otherwise."""
    try:
        error = future.exception()
    except CancelledError as cancelled:
        error = cancelled
    if error is None:
        return None
    raised = payload.absent(error) or engine.verdict(error)
    raised = payload.absent(raised) or raised
    if isinstance(raised, TaskLost):
        return raised
    raise raised from None


def _submit(engine: Engine, packed: bytes) -> Future[bytes]:
    try:
        return engine.executor.submit(payload.unpickle, packed)
    except Exception as error:  # noqa: BLE001 - each engine has errors of its own
        raise engine.verdict(error) from None
