"""Several trainings as one run with one saved state; most follow one pattern: search for the length, then refit.

A *stage* is a part of the run, such as one training. A resumed run does not repeat the training of a stage that has
ended; the unfinished stage resumes from its own state.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from statistics import geometric_mean
from typing import TypeVar

import msgspec
import numpy as np

from training.certain import certain
from training.trainer.contract import Keeper, Progress
from training.trainer.task import History, Task

T = TypeVar("T")
SEARCHES = ("", "second ")  # the names of a family's searches, and of what follows them, begin so


class _RunState(msgspec.Struct):
    """The state of a run: the results of the finished stages, the state of the unfinished one, and how far the run was
    at its last progress line."""

    name: str = ""
    now: bytes | None = None
    ended: dict[str, bytes | None] = {}
    shown: float = 0.0


class Stages:
    """Saves the stages of a run in the outer keeper's state, and reports each to ``progress``. Each stage that runs,
    also one that is repeated after a restart, uses this object as its keeper.

    ``weights`` has each stage's part of the whole, in the order in which all of them are run.
    """

    def __init__(self, outer: Keeper, progress: Progress, weights: Sequence[float]) -> None:
        self._outer, self._progress, self._weights, self._place = outer, progress, weights, -1
        saved = outer.load()
        self._kept = _RunState() if saved is None else msgspec.msgpack.decode(saved, type=_RunState)
        progress.shown = max(progress.shown, self._kept.shown)
        self._name = ""
        self._snapshot: Callable[[], bytes] | None = None

    def run(self, name: str, work: Callable[[Keeper], T], *, curve: bool = True) -> T:
        """Run a stage whose result cannot be stored. A resumed run computes the result again from the stage's last
        state. ``curve`` as in `Progress.stage`."""
        with self._stage(name, curve=curve):
            result = work(self)
        if name not in self._kept.ended:
            self._kept.ended[name] = self.load() if self._snapshot is None else self._snapshot()
        self._snapshot = None
        return result

    def answer(self, name: str, work: Callable[[Keeper], bytes | None], *, curve: bool = True) -> bytes | None:
        """Run a stage whose result can be stored, unless it is stored already; return the result."""
        with self._stage(name, curve=curve):
            if name not in self._kept.ended:
                self._kept.ended[name] = work(self)
        self._snapshot = None
        return self._kept.ended[name]

    def load(self) -> bytes | None:
        """Return the saved state of the current stage; None if it has none."""
        own = self._kept.now if self._kept.name == self._name else None
        return self._kept.ended.get(self._name, own)

    def watch(self, snapshot: Callable[[], bytes]) -> None:
        self._snapshot = snapshot

    def tick(self) -> None:
        self._outer.tick()

    def _stage(self, name: str, *, curve: bool) -> AbstractContextManager[None]:
        self._name, self._snapshot = name, None
        self._outer.watch(self._pack)
        self._place += 1
        return self._progress.stage(name, self._place, self._weights, curve=curve)

    def _pack(self) -> bytes:
        kept = self._kept
        kept.shown = self._progress.shown
        if self._name not in kept.ended and self._snapshot is not None:
            kept = _RunState(self._name, self._snapshot(), kept.ended, kept.shown)
        return msgspec.msgpack.encode(kept)


class Search(msgspec.Struct, frozen=True):
    """The result of a search for the training's length (in epochs or rounds): the chosen length, and validation loss
    and best temperature there.

    ``model`` has the weights at that length if no refit follows.
    """

    length: int
    temperature: float
    loss: float
    history: History
    model: bytes = b""


def searched(stages: Stages, name: str, search: Callable[[Keeper], Search], *, curve: bool = True) -> Search:
    """Run a search for the training's length, unless the saved state of the run already has its result; return the
    result. Raises ValueError if a saved search is longer than its
    history."""
    kept = stages.answer(name, lambda keeper: msgspec.msgpack.encode(search(keeper)), curve=curve)
    found = msgspec.msgpack.decode(certain(kept, "a search ends with a result"), type=Search)
    if found.length > len(found.history):
        raise ValueError("the search found a length beyond its own history")
    return found


def cross_fitted(
    stages: Stages, folds: Iterable[Task], searches: Callable[[Task], Iterable[Callable[[Keeper], Search]]]
) -> list[list[float]]:
    """Run the searches that the function ``searches`` returns for each of a task's folds; return the temperatures of
    each fold's searches."""
    return [
        [
            searched(stages, f"{start}fold {number}", search, curve=False).temperature
            for start, search in zip(SEARCHES, searches(fold), strict=False)
        ]
        for number, fold in enumerate(folds, 1)
    ]


def mean_temperature(temperatures: Iterable[float]) -> float:
    """Return the geometric mean, with the four digits that temperatures have."""
    return round(geometric_mean(temperatures), 4)


def search_then_refit(
    stages: Stages, start: str, search: Callable[[Keeper], Search], refit: Callable[[Search, Keeper], bytes] | None
) -> tuple[Search, bytes]:
    """Search on the validation windows, then train for about as long with these included; without the function
    ``refit`` only search. ``start`` is one of ``SEARCHES``.

    Return the search's result and the trained model in bytes. Raises ValueError if a saved search is longer than its
    history.
    """
    found = searched(stages, f"{start}search", search)
    if refit is None:
        return found, found.model
    model = stages.answer(f"{start}refit", lambda keeper: refit(found, keeper))
    return found, certain(model, "a training ends with a model")


def best_epoch(history: History) -> int:
    """Return the number, from 1, of the epoch (or round) with the lowest validation loss; 0 for an empty history."""
    losses = [float(row["val_loss"] or 0.0) for row in history]
    return 1 + int(np.argmin(losses)) if losses else 0
