"""What a model is worth on the test side: numbers with intervals, and the price of its alarms.

Scores come in as `Scored`; the threshold comes from calibration data as an `OperatingPoint` and is never touched again;
`evaluate` turns both into an `Evaluation`. Intervals resample episodes, not windows (see `resample`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
        raise NotImplementedError

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
        """From plain arrays. With ``proba`` (N, K) and no ``score``, the score is 1 - P(benign) by ``label_map``."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """Where the alarm starts: a window whose score is *greater* than ``threshold`` raises one."""

    target_fpr: float
    threshold: float | None  # None: the calibration data cannot support one, see reason
    n_windows: int  # benign calibration windows
    n_episodes: int  # calibration episodes with a benign window: the effective number
    interval: tuple[float, float] | None  # 95 %: the rate of alarms such a calibration really gives
    warning: str | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Everything that a report shows of the test side; JSON values only, never NaN."""

    metrics: dict[str, dict[str, Any]]  # name -> {value, ci95} and, where value is null, reason
    per_host: dict[str, dict[str, Any]]  # host -> counts, one_class, and metrics as above
    confusion: dict[str, Any] | None  # {labels: [K], matrix: [K][K], rows = truth}
    curves: dict[str, Any] = field(default_factory=dict)  # roc, pr, calibration: lists of points


def operating_point(cal: Scored, target_fpr: float, *, label_map: LabelMap) -> OperatingPoint:
    """Choose the threshold on benign calibration windows so that a fraction ``target_fpr`` (0..0.5) exceeds it."""
    raise NotImplementedError


def evaluate(
    test: Scored,
    *,
    label_map: LabelMap,
    operating_point: OperatingPoint | None,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Evaluation:
    """Judge the test side.

    Metrics: accuracy, balanced_accuracy, macro_f1, auroc, auprc, prevalence, ece, brier, tpr, fpr, alerts_per_host_day;
    with more than two classes auroc and auprc are macro one-vs-rest.
    """
    raise NotImplementedError


def paired_gap(a: Scored, b: Scored, *, n_resamples: int = 1000, seed: int = 0) -> dict[str, Any]:
    """AUROC of ``a`` minus that of ``b`` on the same windows (oracle minus realistic), as {value, ci95}."""
    raise NotImplementedError
