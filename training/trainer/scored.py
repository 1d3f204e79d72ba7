"""Scored windows: what a model said, beside what is known of each window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
LabelMap = Mapping[str, int]  # class name -> class number, 0..K-1 without gaps

BENIGN = "benign"  # the class that raises no alarm, by its name in the label map


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores of N windows with what is needed to judge them. Arrays of length N unless said otherwise.

    ``score`` is finite, and higher means more malicious-like; ``proba`` (N, K) holds class
    probabilities, or is None for an anomaly score, which has no classes to be accurate about.
    ``t_start`` and ``t_end`` in seconds; NaN when unknown.
    """

    y: IntArray
    score: FloatArray
    episode: NDArray[np.str_]
    host: NDArray[np.str_]
    t_start: FloatArray
    t_end: FloatArray
    proba: FloatArray | None = None

    def __post_init__(self) -> None:
        """Refuse shapes that disagree and scores that are not finite: a NaN would silently rank somewhere."""
        columns = (self.score, self.episode, self.host, self.t_start, self.t_end)
        if self.y.ndim != 1 or any(column.shape != self.y.shape for column in columns):
            raise ValueError("every column of the scored windows must have one value a window")
        if not np.isfinite(self.score).all():
            raise ValueError("scores must be finite: the model answered NaN or infinity")
        if self.proba is not None:
            if self.proba.ndim != 2 or self.proba.shape[0] != self.y.size:
                raise ValueError("probabilities must have one row a window")
            if not np.isfinite(self.proba).all():
                raise ValueError("probabilities must be finite: the model answered NaN or infinity")

    @classmethod
    def build(
        cls,
        *,
        y: ArrayLike,
        episode: ArrayLike,
        host: ArrayLike,
        t_start: ArrayLike | None = None,
        t_end: ArrayLike | None = None,
        score: ArrayLike | None = None,
        proba: ArrayLike | None = None,
        label_map: LabelMap | None = None,
    ) -> Scored:
        """From plain arrays. With ``proba`` (N, K) and no ``score``, the score is 1 - P(benign) by ``label_map``.

        Where no class is benign the score is 1 - P(class 0): it only ever ranks, and nothing ranks by it then.
        """
        truth = np.asarray(y, dtype=np.int64)
        unknown = np.full(truth.shape, np.nan)
        probabilities = None if proba is None else np.asarray(proba, dtype=np.float64)
        if score is None:
            if probabilities is None:
                raise ValueError("scored windows need a score or probabilities")
            score = _alarm_score(probabilities, benign_class(label_map or {}) or 0)
        return cls(
            y=truth,
            score=np.asarray(score, dtype=np.float64),
            episode=np.asarray(episode).astype(str),
            host=np.asarray(host).astype(str),
            t_start=unknown if t_start is None else np.asarray(t_start, dtype=np.float64),
            t_end=unknown if t_end is None else np.asarray(t_end, dtype=np.float64),
            proba=probabilities,
        )

    def take(self, rows: IntArray) -> Scored:
        """The windows of the given row numbers."""
        return Scored(
            y=self.y[rows],
            score=self.score[rows],
            episode=self.episode[rows],
            host=self.host[rows],
            t_start=self.t_start[rows],
            t_end=self.t_end[rows],
            proba=None if self.proba is None else self.proba[rows],
        )

    def with_score(self, score: ArrayLike, proba: ArrayLike | None = None) -> Scored:
        """The same windows as another model scores them."""
        probabilities = None if proba is None else np.asarray(proba, dtype=np.float64)
        return replace(self, score=np.asarray(score, dtype=np.float64), proba=probabilities)


def _alarm_score(proba: FloatArray, benign: int) -> FloatArray:
    # Summing the others instead of 1 - P keeps the digits of probabilities close to zero.
    others = [k for k in range(proba.shape[1]) if k != benign]
    score: FloatArray = proba[:, others].sum(axis=1)
    return score


def benign_class(label_map: LabelMap) -> int | None:
    """The class that must raise no alarm: the one named benign, or the first of two; None where no class is."""
    if BENIGN in label_map:
        return label_map[BENIGN]
    return 0 if len(label_map) == 2 else None


def decision_interval_s(scored: Scored) -> float | None:
    """Seconds from one decision to the next: the median step between window starts of an episode, else their length."""
    known = np.isfinite(scored.t_start) & np.isfinite(scored.t_end)
    if not known.any():
        return None
    order = np.lexsort((scored.t_start[known], scored.episode[known]))
    start, episode = scored.t_start[known][order], scored.episode[known][order]
    steps = np.diff(start)[(episode[1:] == episode[:-1])]
    steps = steps[steps > 0]
    length = float(np.median(scored.t_end[known] - scored.t_start[known]))
    step = float(np.median(steps)) if steps.size else length
    return step if step > 0 else None
