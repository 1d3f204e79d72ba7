"""Absent values: NaN, wherever nothing was measured.

A host without a sensor, a cell that nobody filled, a channel that another view means otherwise: all of them are absent,
and none is an error. In a window a channel is either known throughout or absent throughout (`settled`): one of which at
least half of the samples are known keeps them, and what is missing lies on the straight line between its neighbours.
The features of an absent channel are NaN, trees know it as that, networks see a mask. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]

KNOWN_MIN = 0.5  # of a channel's samples in a window; with fewer it is absent there
PAIR = "~"  # between the two channels of a correlation


def absent(X: NDArray[Any]) -> Bools:
    """(N, C): which channels of settled windows ``X`` (N, C, T) are absent."""
    first: Bools = np.isnan(X[:, :, 0])
    return first


def is_settled(X: NDArray[Any]) -> bool:
    """Tell whether each channel of the windows (N, C, T) is known throughout or absent throughout."""
    unknown = np.isnan(X)
    return bool((unknown.any(axis=2) == unknown.all(axis=2)).all())


def settled(X: NDArray[np.float32]) -> NDArray[np.float32]:
    """The windows (N, C, T) with each channel known throughout, or absent; the same array where that is so."""
    known = ~np.isnan(X)
    share = known.mean(axis=2)
    if ((share == 0) | (share == 1)).all():
        return X
    result = X.copy()
    result[share < KNOWN_MIN] = np.nan
    partly = (share >= KNOWN_MIN) & (share < 1)
    result[partly] = _bridged(X[partly], known[partly])
    return result


def _bridged(rows: NDArray[np.float32], known: Bools) -> NDArray[np.float64]:
    """Rows (m, T) without gaps: straight lines between neighbours, and level ends. Each row knows some sample."""
    samples = rows.shape[1]
    place = np.broadcast_to(np.arange(samples), rows.shape)
    left = np.maximum.accumulate(np.where(known, place, -1), axis=1)
    right = np.minimum.accumulate(np.where(known, place, samples)[:, ::-1], axis=1)[:, ::-1]
    left, right = np.where(left < 0, right, left), np.where(right == samples, left, right)
    low = np.take_along_axis(rows, left, axis=1).astype(np.float64)
    high = np.take_along_axis(rows, right, axis=1).astype(np.float64)
    way = np.divide(place - left, right - left, out=np.zeros(rows.shape), where=right > left)
    return np.asarray(low + (high - low) * way)


def columns_of(features: Sequence[str], channel: str) -> NDArray[np.int64]:
    """The places of the features that need this channel, by their names: its statistics and its correlations."""
    return np.array([i for i, name in enumerate(features) if channel in channels_of(name)], dtype=np.int64)


def channels_of(feature: str) -> tuple[str, ...]:
    """The channels that a feature needs, by its name."""
    return tuple(feature.rpartition(".")[0].split(PAIR))


def without(X: NDArray[np.float32], names: Sequence[str], taken: Iterable[str]) -> NDArray[np.float32]:
    """The windows (N, C, T) of channels ``names`` with those ``taken`` away absent."""
    result = np.array(X, dtype=np.float32)
    result[:, [names.index(name) for name in taken]] = np.nan
    return result
