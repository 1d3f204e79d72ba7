"""Points of the curves that a report draws, at most ``MAX_POINTS`` of each; JSON values only."""

import numpy as np
from sklearn.metrics import precision_recall_curve, roc_curve

from training.data.values import Bools, Floats, JsonDict

MAX_POINTS = 160
RELIABILITY_BINS = 10
_DIGITS = 4

Points = list[list[float]]


def roc(score: Floats, positive: Bools) -> Points:
    """Return points [false-positive rate, true-positive rate] from (0, 0) to (1, 1); empty if all or no windows are
    positive."""
    if positive.all() or not positive.any():
        return []
    false, hits, _ = roc_curve(positive, score, drop_intermediate=False)
    return _thinned(false, hits)


def precision_recall(score: Floats, positive: Bools) -> Points:
    """Return points [recall, precision] by rising recall; empty if all or no windows are positive."""
    if positive.all() or not positive.any():
        return []
    precision, recall, _ = precision_recall_curve(positive, score)
    return _thinned(recall[::-1], np.r_[precision[-2], precision[-2::-1]])


def reliability(claimed: Floats, true: Bools) -> list[JsonDict]:
    """Compare ``claimed`` probabilities (N,) with what was ``true`` (N,), in ten bins of equal width; empty bins are
    left out.

    Each bin has the mean probability ``claimed``, the share ``observed`` to be true, and its number of ``windows``.
    """
    bins = np.clip((claimed * RELIABILITY_BINS).astype(int), 0, RELIABILITY_BINS - 1)
    rows = []
    for number in np.unique(bins).tolist():
        inside = bins == number
        rows.append(
            {
                "claimed": round(float(claimed[inside].mean()), _DIGITS),
                "observed": round(float(true[inside].mean()), _DIGITS),
                "windows": int(inside.sum()),
            }
        )
    return rows


def _thinned(x: Floats, y: Floats) -> Points:
    """Remove points on straight lines; of more than ``MAX_POINTS`` left, keep those at equal distances along the
    curve."""
    if x.size > 2:
        dx, dy = np.diff(x), np.diff(y)
        straight = np.isclose(dx[1:] * dy[:-1], dx[:-1] * dy[1:], rtol=0, atol=1e-12)
        keep = np.r_[True, ~straight, True]
        x, y = x[keep], y[keep]
    if x.size > MAX_POINTS:
        length = np.r_[0.0, np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y)))]
        wanted = np.linspace(0.0, length[-1], MAX_POINTS)
        rows = np.unique(np.searchsorted(length, wanted).clip(0, x.size - 1))
        x, y = x[rows], y[rows]
    return [[round(float(a), _DIGITS), round(float(b), _DIGITS)] for a, b in zip(x, y, strict=True)]
