"""Bring inputs to one scale; the scale is fitted only on the windows that a network learns from, and stored inside the
network.

Both classes are modules with buffers, so that the sidecar always holds the numbers that the weights were learnt with.
Inputs that were constant in training become exactly zero, on every host; absent values stay NaN.
"""

import numpy as np
import torch
from torch import Tensor, nn

from training.data.values import AnyArray, Floats, Floats32, Ints, JsonDict
from training.trainer.task import evenly

KNOTS = 65
FIGURES = ("center", "scale", "mean", "gain")  # of a channel
MOST_FITTED = 20_000  # windows; more of them no longer move a quantile


class QuantileNormal(nn.Module):
    """Maps each feature (B, F) to a standard normal by its training quantiles, linearly in between.

    A value beyond all training values counts as the most extreme of them instead of dominating a sum.
    """

    kind = "quantile-normal"
    knots: Tensor  # (F, KNOTS) ascending
    scores: Tensor  # (F, KNOTS)

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("knots", torch.zeros(features, KNOTS))
        self.register_buffer("scores", torch.zeros(features, KNOTS))

    def fit(self, X: AnyArray, rows: Ints) -> None:
        sample = np.asarray(X[rows[evenly(rows.size, MOST_FITTED)]], float)
        absent = np.isnan(sample)
        sample[:, absent.all(axis=0)] = 0.0  # constant: whoever brings it later says nothing by it
        quantile = np.nanquantile if absent.any() else np.quantile
        level = np.linspace(0, 1, KNOTS)
        # The ends stand for the middle of the outermost n-th, as in a rank of n values.
        half = 0.5 / max(sample.shape[0], 2)
        normal = torch.special.ndtri(torch.from_numpy(np.clip(level, half, 1 - half))).numpy()
        knots = quantile(sample, level, axis=0).T.astype(np.float32)
        scores = np.stack([_mean_over_ties(knot, normal) for knot in knots])
        self.knots.copy_(torch.from_numpy(knots))
        self.scores.copy_(torch.from_numpy(scores.astype(np.float32)))

    def forward(self, x: Tensor) -> Tensor:
        absent = x.isnan()
        x = x.T.contiguous().clamp(self.knots[:, :1], self.knots[:, -1:])
        right = torch.searchsorted(self.knots, x).clamp(1, KNOTS - 1)
        low, high = self.knots.gather(1, right - 1), self.knots.gather(1, right)
        z_low, z_high = self.scores.gather(1, right - 1), self.scores.gather(1, right)
        gap = high - low
        share = torch.where(gap > 0, (x - low) / gap.where(gap > 0, torch.ones_like(gap)), 1.0)
        return torch.where(absent, torch.nan, (z_low + share * (z_high - z_low)).T.contiguous())

    @property
    def middle(self) -> Tensor:
        """(F,) the medians in training."""
        return self.knots[:, KNOTS // 2]

    def describe(self) -> JsonDict:
        return {"kind": self.kind, "knots": KNOTS, "fitted_on": "train", "held_in": "sidecar"}


def _mean_over_ties(knots: Floats32, normal: Floats) -> Floats:
    """Give equal knots one score, the mean of their scores, so that a value that many windows share has one score."""
    if knots[0] == knots[-1]:
        return np.zeros_like(normal)
    _, group = np.unique(knots, return_inverse=True)
    return (np.bincount(group, weights=normal) / np.bincount(group))[group]


class RobustAsinh(nn.Module):
    """Scales each channel of (B, C, T): minus the median, over a robust spread, tails compressed by asinh.

    The spread is the interquartile range over 1.349; if that is 0, the standard deviation, or 1 if that is 0 as well.
    As bytes per second span six decades between idle and busy, the scale is linear near usual values and logarithmic
    far from them. Finally each channel that varied gets mean 0 and variance 1 over the windows fitted on.
    """

    kind = "robust-asinh"
    center: Tensor  # (C, 1), in the channel's unit
    scale: Tensor  # (C, 1), in the channel's unit
    mean: Tensor  # (C, 1), after asinh
    gain: Tensor  # (C, 1), 0 for a channel that was constant in training

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name in FIGURES:
            self.register_buffer(name, torch.full((channels, 1), float(name == "scale")))

    def fit(self, X: AnyArray, rows: Ints) -> None:
        channels, samples = X.shape[1:]
        # About four million values a channel say all there is about its scale.
        most = max(256, min(MOST_FITTED, 4_000_000 // samples))
        fitted = rows[evenly(rows.size, most)]
        for channel in range(channels):
            values = np.asarray(X[fitted, channel], float).ravel()
            values = values[~np.isnan(values)]
            if not values.size:
                continue  # gain 0: whoever brings this channel later says nothing by it
            low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
            deviation = float(values.std())
            scale = (high - low) / 1.349 or deviation or 1.0
            squashed = np.arcsinh((values - middle) / scale)
            width = float(squashed.std())
            # A constant channel's deviation is rounding, not information.
            constant = values.min() == values.max() or width == 0
            figures = middle, scale, squashed.mean(), 0.0 if constant else 1.0 / width
            for name, value in zip(FIGURES, figures, strict=True):
                getattr(self, name)[channel] = float(value)

    def forward(self, x: Tensor) -> Tensor:
        return (torch.asinh((x - self.center) / self.scale) - self.mean) * self.gain

    @property
    def middle(self) -> Tensor:
        """(C, 1) the medians in training."""
        return self.center

    def describe(self) -> JsonDict:
        numbers = {name: getattr(self, name).flatten().tolist() for name in FIGURES}
        return {"kind": self.kind, "fitted_on": "train", "held_in": "sidecar", **numbers}
