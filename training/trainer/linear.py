"""A regularised linear model that boosting may start from, in NumPy and scikit-learn.

Where the classes differ by levels, trees need hundreds of steps to approximate one slanted line. Trees that start from
a linear model only add what that model misses.
"""

import json
import warnings
from dataclasses import dataclass
from typing import Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from training.data.values import Floats, Floats32, Ints
from training.trainer.task import evenly

STRENGTH = 0.1  # inverse of the penalty
ABSENT = -12.0  # the margin of a class that no window showed: there is no line to it
MOST_FITTED = 20_000  # windows
BLOCK = 16_384  # windows


@dataclass(frozen=True, slots=True)
class Linear:
    """Computes margins from features (n, F): a linear map of the features scaled by asinh. An absent feature counts as
    the mean of its scaled values.

    The first four arrays are (F,): they scale the features (see ``_standard``).
    """

    center: Floats
    scale: Floats
    mean: Floats
    gain: Floats  # 0 for a feature that was constant in training
    weights: Floats  # (F, 1) for two classes, else (F, K)
    bias: Floats  # (1,) or (K,); ABSENT for a class without a window

    def margins(self, X: Floats32, rows: Ints | None = None) -> Floats32:
        """Return the margins, for the windows at ``rows`` or for all: (n,) log odds for two classes, else (n, K)."""
        count = len(X) if rows is None else rows.size
        found = np.empty((count, self.bias.size), np.float32)
        for start in range(0, count, BLOCK):  # in double precision, but never all of it
            here = slice(start, start + BLOCK)
            part = X[here if rows is None else rows[here]].astype(float)
            found[start : start + BLOCK] = self._standard(part) @ self.weights + self.bias
        return found.squeeze(1) if found.shape[1] == 1 else found

    def contributions(self, X: Floats32) -> Floats:
        """Return (n, K, F): what each feature adds to each margin, K = 1 for two classes; the bias is not included."""
        return self._standard(X.astype(float))[:, None, :] * self.weights.T

    def _standard(self, values: Floats) -> Floats:
        standard = (np.arcsinh((values - self.center) / self.scale) - self.mean) * self.gain
        standard[np.isnan(standard)] = 0.0
        return standard

    def to_json(self) -> str:
        return json.dumps({name: getattr(self, name).tolist() for name in self.__slots__})

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**{name: np.asarray(value) for name, value in json.loads(text).items()})


def fit_linear(X: Floats32, y: Ints, weights: Floats, classes: int, rows: Ints | None = None) -> Linear:
    """Fit a logistic regression on robustly scaled features.

    ``y`` (n,) and the windows' ``weights`` (n,) belong to the windows at ``rows`` of ``X``, or to all. If one of more
    than two ``classes`` has no window, its margins rule it out.
    """
    chosen = evenly(y.size, MOST_FITTED)
    values = X[chosen if rows is None else rows[chosen]].astype(float)
    absent = np.isnan(values)
    values[:, absent.all(axis=0)] = 0.0  # constant: there is no slope to it
    if absent.any():  # each feature is scaled by the windows that have it
        quantile, std, mean_of, most, least = np.nanquantile, np.nanstd, np.nanmean, np.nanmax, np.nanmin
    else:
        quantile, std, mean_of, most, least = np.quantile, np.std, np.mean, np.max, np.min
    low, center, high = quantile(values, (0.25, 0.5, 0.75), axis=0)
    scale = (high - low) / 1.349
    scale = np.where(scale > 0, scale, std(values, axis=0))
    scale = np.where(scale > 0, scale, 1.0)
    squashed = np.arcsinh((values - center) / scale)
    mean, deviation = mean_of(squashed, axis=0), std(squashed, axis=0)
    varies = (most(values, axis=0) > least(values, axis=0)) & (deviation > 0)
    gain = np.where(varies, 1 / np.where(varies, deviation, 1.0), 0.0)
    with warnings.catch_warnings():
        # A start need not be an optimum.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(C=STRENGTH, max_iter=200)
        standard = np.where(absent, 0.0, (squashed - mean) * gain)
        model.fit(standard, y[chosen], sample_weight=weights[chosen])
    slopes, offsets = model.coef_.T.copy(), model.intercept_.copy()
    if classes > 2 and model.classes_.size < classes:
        if offsets.size == 1:  # of two classes only the second one has a line of its own
            slopes = np.concatenate((np.zeros_like(slopes), slopes), axis=1)
            offsets = np.concatenate((np.zeros(1), offsets))
        all_slopes, all_offsets = np.zeros((slopes.shape[0], classes)), np.full(classes, ABSENT)
        all_slopes[:, model.classes_], all_offsets[model.classes_] = slopes, offsets
        slopes, offsets = all_slopes, all_offsets
    return Linear(center, scale, mean, gain, slopes, offsets)
