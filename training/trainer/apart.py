"""Scoring in parts, each on any worker: with the same blocks of windows as in one process, and so to the same bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from training.trainer.inputs import Inputs
    from training.trainer.task import Fitted, Outputs

# Whose versions may show in scores.
LIBRARIES = ("numpy", "polars", "scikit-learn", "scipy", "torch", "xgboost", "xgboost-cpu")
PART = 16_384  # windows: a multiple of every family's block, as a block's size can show in the last bits

Mapped = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]


@dataclass(frozen=True, slots=True)
class Scoring:
    """A part's scoring by a checkpoint, for any worker that sees it and the data; both are absolute paths."""

    checkpoint: Path
    data: Path
    threads: int

    def __call__(self, begin: int) -> Outputs:
        """Score the windows from this one on."""
        fitted, inputs = _ready(self.checkpoint, self.data, self.threads)
        rows = np.arange(begin, min(begin + PART, inputs.y.size))
        return predicted(fitted, inputs, rows)

    def all(self, windows: int, mapped: Mapped) -> Outputs:
        """The outputs of so many windows."""
        return _joined(list(mapped(self, range(0, windows, PART))))


@functools.lru_cache(1)
def _ready(checkpoint: Path, data: Path, threads: int) -> tuple[Fitted, Inputs]:
    """The model and the windows, kept by a worker from one part to the next."""
    from training.trainer.contract import limit_threads
    from training.trainer.judging import opened, settled_on

    limit_threads(threads)
    model, loaded = opened(checkpoint, data, threads=threads)
    return settled_on(model, loaded)


def predicted(fitted: Fitted, inputs: Inputs, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Outputs:
    """The outputs of a model for some windows."""
    return fitted.predict(inputs.X, rows, features=inputs.features, host=inputs.rows.host)


def _joined(parts: Sequence[Outputs]) -> Outputs:
    from training.trainer.task import Outputs

    def one(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else np.concatenate(values)

    return Outputs(proba=one("proba"), score=one("score"))
