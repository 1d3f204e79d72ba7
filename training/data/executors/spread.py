"""Send tasks to an engine in chunks, and yield the results in order; chunks lost with a worker are sent again."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any

from training.data.executors import payload
from training.data.executors.engine import Engine, EngineError, TaskLost, WorkerLost

TRIES = 3  # of a chunk, before it is what ends its workers
AHEAD = 8  # chunks that are sent, for each that can be worked on: one that is late holds up none for long
ASK_S = 5.0  # of waiting, after which the engine is asked for trouble


class _Chunk:
    """A chunk of tasks that was sent to an engine; if its worker is lost, the chunk is sent again, at most ``TRIES``
    times in all."""

    future: Future[bytes]

    def __init__(self, engine: Engine, packed: bytes) -> None:
        self._engine, self._packed, self._tries = engine, packed, 0
        self._send()

    def _send(self, lost: TaskLost | None = None) -> None:
        if self._tries == TRIES:
            raise WorkerLost(self._engine.lost_often.format(lost))
        self._tries += 1
        try:
            self.future = self._engine.executor.submit(payload.unpickle, self._packed)
        except Exception as error:  # noqa: BLE001 - each engine has errors of its own
            raise self._engine.verdict(error) from None

    def outcome(self) -> bytes | None:
        """Return the chunk's packed results; None while there are none, or if the chunk was just sent again.

        Raises the engine's error if the engine refused the chunk, or lost it for the last time; an error that a task
        raised is among the packed results.
        """
        if not self.future.done():
            return None
        try:
            return self.future.result()
        except BaseException as error:  # noqa: BLE001 - one engine's cancelled tasks are no Exception
            raised = payload.absent(error) or self._engine.verdict(error)
        if not isinstance(raised, TaskLost):
            raise raised from None
        self._send(raised)
        return None


def spread(
    engine: Engine,
    function: Callable[[Any], Any],
    tasks: Sequence[Any],
    *,
    expect: tuple[payload.Fact, ...] = (),
    ask_s: float = ASK_S,
) -> Iterator[Any]:
    """Apply a function to tasks on the engine's workers, and yield the results in the order of the tasks.

    Raises EngineError, and the error that a task raised. It must be possible to pickle the tasks, the function and the
    results. A task that was sent again may run twice, even at the same time, if a worker that seemed lost still runs.
    Running a task twice must do no harm.
    """
    size = engine.chunk(len(tasks))
    left = iter([tasks[at : at + size] for at in range(0, len(tasks), size)])
    chunks: deque[_Chunk] = deque()
    try:
        while True:
            while len(chunks) < AHEAD * engine.width and (part := next(left, None)) is not None:
                chunks.append(_Chunk(engine, payload.packed(expect, function, part)))
            if not chunks:
                return
            yield from payload.unpacked(_first(engine, chunks, ask_s))
            chunks.popleft()
    finally:
        for chunk in chunks:
            chunk.future.cancel()


def _first(engine: Engine, chunks: Sequence[_Chunk], ask_s: float) -> bytes:
    """Wait for the packed results of the first chunk and return them; meanwhile send lost chunks again. Raises
    EngineError if the engine is in trouble."""
    while True:
        wait([chunks[0].future], ask_s)
        first, *_ = [chunk.outcome() for chunk in chunks]
        if first is not None:
            return first
        if (trouble := engine.trouble()) is not None:
            raise EngineError(trouble)
