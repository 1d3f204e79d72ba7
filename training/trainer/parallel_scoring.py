"""Scoring in parts, each on any worker: with the same blocks of windows as in one process, and so to the same bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from training.trainer.contract import limit_threads
from training.trainer.inputs import Inputs
from training.trainer.judging import Judged, judged_by, opened, settled_on
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
        return fitted.predict(inputs.given, rows)

    def all(self, windows: int, mapped: Mapped) -> Outputs:
        """The outputs of so many windows."""
        return _joined(list(mapped(self, range(0, windows, PART))))


@functools.lru_cache(1)
def _ready(checkpoint: Path, data: Path, threads: int) -> tuple[Fitted, Inputs]:
    """The model and the windows, kept by a worker from one part to the next."""

    limit_threads(threads)
    model, loaded = opened(checkpoint, data, threads=threads)
    return settled_on(model, loaded)


def judge_in_parts(checkpoint: Path, data: Path, mapped: Mapped, *, threads: int = 1) -> Judged:
    """Like `judging.judge`; ``mapped``, the map of an engine, has its workers score the windows. Raises ``BadData``."""
    model, loaded = opened(checkpoint, data, threads=threads)
    outputs = Scoring(checkpoint.absolute(), data.absolute(), threads).all(len(loaded), mapped)
    return judged_by(model, loaded, str(data), outputs=outputs)


def _joined(parts: Sequence[Outputs]) -> Outputs:

    def one(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else np.concatenate(values)

    return Outputs(proba=one("proba"), score=one("score"))
