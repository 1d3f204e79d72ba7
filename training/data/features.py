"""Compute the features of windows, which are the input of the tabular models.

Each channel gives its level (mean, quantiles, extremes), spread, trend, roughness (differences, lag-1 autocorrelation)
and the power of its variation in frequency bands. The first ``CORRELATED_MAX`` realistic channels also give their
correlations. A constant channel gives finite numbers (0 for spread, slope, autocorrelation and correlations). A feature
that needs an absent channel is NaN. Only ``_summarise`` changes its arguments: both of its arrays.
"""

from collections.abc import Iterator
from itertools import combinations, pairwise

import numpy as np

from training.certain import certain
from training.contract import Mode
from training.data.absent import PAIR, absent, is_settled
from training.data.schema import ChannelSpec, FeatureSpec
from training.data.scratch import ROOM, blocks, fill, release
from training.data.values import Floats, Floats32

SHAPED_MIN = 4  # samples of a window that have a shape to describe
QUANTILES = (0.10, 0.25, 0.50, 0.75, 0.90)
BANDS = 4
CORRELATED_MAX = 12  # all pairs of 64 channels would be 2,016 columns, nearly all of them noise
BLOCK_VALUES = 1 << 20
CACHED_VALUES = 1 << 18  # of a block at a time: what stays in the processor's caches is worked on faster
TINY = 1e-9

STATISTICS = (
    "mean",
    "std",
    "min",
    "max",
    "slope",
    *(f"q{round(q * 100)}" for q in QUANTILES),
    "diff_abs_mean",
    "diff_std",
    "lag1",
    *(f"band{b}" for b in range(BANDS)),
)


def feature_specs(channels: tuple[ChannelSpec, ...], samples: int = SHAPED_MIN) -> tuple[FeatureSpec, ...]:
    """Return the features that ``extract`` computes for these channels, in the order of its columns; of windows of one
    sample, its values.

    A mode may see a correlation if it may see both channels.
    """
    single = [
        FeatureSpec(
            name=f"{c.name}.{statistic}",
            channel=c.name,
            unit=_unit(c.unit, statistic),
            statistic=statistic,
            modes=c.modes,
        )
        for c in channels
        for statistic in (STATISTICS if samples > 1 else ("value",))
    ]
    paired = [
        FeatureSpec(
            name=f"{a.name}{PAIR}{b.name}.corr",
            channel=f"{a.name}{PAIR}{b.name}",
            unit="1",
            statistic="corr",
            modes=tuple(m for m in a.modes if m in b.modes),
        )
        for a, b in combinations(correlated(channels) if samples > 1 else (), 2)
    ]
    return (*single, *paired)


def correlated(channels: tuple[ChannelSpec, ...]) -> tuple[ChannelSpec, ...]:
    """Return the channels between which correlations are features: the first ``CORRELATED_MAX`` realistic ones, which
    both modes have."""
    return tuple(c for c in channels if Mode.REALISTIC in c.modes)[:CORRELATED_MAX]


def _unit(unit: str, statistic: str) -> str:
    if statistic == "lag1" or statistic.startswith("band"):
        return "1"
    return f"{unit}/s" if statistic == "slope" else unit


def extract(X: Floats32, channels: tuple[ChannelSpec, ...], sample_hz: float) -> Floats32:
    """Return the features, float32 (N, F), of windows ``X`` (N, C, T).

    Raises ValueError if a value is infinite, or a channel is only partly known in a window.
    """
    result = ROOM.empty((len(X), len(feature_specs(channels, X.shape[2]))), np.float32)
    fill(result, extract_blocks(X, channels, sample_hz))
    return result


def extract_blocks(X: Floats32, channels: tuple[ChannelSpec, ...], sample_hz: float) -> Iterator[Floats32]:
    """Yield the features of windows ``X`` (N, C, T) in parts (n, F), so that memory stays bounded."""
    count, width, samples = X.shape
    certain(width == len(channels), "a channel a row of each window")
    if samples == 1:
        yield from (np.asarray(part[:, :, 0], np.float32) for _, part in blocks(X))
        return
    certain(samples >= SHAPED_MIN, "shorter windows have no shape")
    names = [c.name for c in channels]
    pairs = [(names.index(a.name), names.index(b.name)) for a, b in combinations(correlated(channels), 2)]
    step = max(1, BLOCK_VALUES // (width * samples))
    inner = max(1, CACHED_VALUES // (width * samples))
    for start in range(0, count, step):
        block = X[start : start + step]
        result = np.empty((len(block), width * len(STATISTICS) + len(pairs)), np.float32)
        for at in range(0, len(block), inner):
            _summarise(np.asarray(block[at : at + inner], float), pairs, sample_hz, result[at : at + inner])
        release(X)
        yield result


def _summarise(part: Floats, pairs: list[tuple[int, int]], sample_hz: float, result: Floats32) -> None:
    """Write the features of the windows ``part`` (n, C, T) into ``result`` (n, F); absent values in ``part`` become
    0."""
    lacks = None
    if not np.isfinite(part).all():
        if np.isinf(part).any() or not is_settled(part):
            raise ValueError("a window holds an infinite value or a partly known channel")
        lacks = absent(part)
        part[lacks] = 0.0
    single, paired = _per_channel(part, sample_hz), _correlations(part, pairs)
    if lacks is not None:
        single[lacks] = np.nan
        for number, (a, b) in enumerate(pairs):
            paired[lacks[:, a] | lacks[:, b], number] = np.nan
    width = single.shape[1] * single.shape[2]
    result[:, :width] = single.reshape(len(part), width)
    result[:, width:] = paired


def _per_channel(x: Floats, sample_hz: float) -> Floats:
    """Return the statistics (n, C, S) of each channel of windows (n, C, T), in the order of STATISTICS."""
    samples = x.shape[2]
    ordered = np.sort(x, axis=2)
    mean = x.mean(axis=2)
    centred = x - mean[..., None]
    squares = (centred**2).sum(axis=2)
    steps = np.diff(x, axis=2)
    time = (np.arange(samples) - (samples - 1) / 2) / sample_hz
    slope = (centred * time).sum(axis=2) / (time**2).sum()
    lag1 = (centred[..., 1:] * centred[..., :-1]).sum(axis=2)
    parts = [
        mean,
        np.sqrt(squares / samples),
        ordered[..., 0],
        ordered[..., -1],
        slope,
        *(_quantile(ordered, q) for q in QUANTILES),
        np.abs(steps).mean(axis=2),
        steps.std(axis=2),
        np.where(squares > TINY, lag1 / np.maximum(squares, TINY), 0.0),
        *_bands(centred),
    ]
    return np.stack(parts, axis=2)


def _quantile(ordered: Floats, q: float) -> Floats:
    """Return the quantile ``q`` of values sorted along the last axis, interpolated linearly."""
    place = q * (ordered.shape[2] - 1)
    low = int(place)
    high = min(low + 1, ordered.shape[2] - 1)
    share = place - low
    return np.asarray(ordered[..., low] * (1 - share) + ordered[..., high] * share)


def _bands(centred: Floats) -> list[Floats]:
    """Return, for each of ``BANDS`` frequency bands, log(1 + mean power) of each channel (n, C).

    The edges of the bands are spaced geometrically from the window's slowest oscillation to half the sampling rate.
    Bands that a very short window lacks are 0.
    """
    samples = centred.shape[2]
    power = np.abs(np.fft.rfft(centred, axis=2)[..., 1:]) ** 2 / samples
    edges = np.unique(np.geomspace(1, power.shape[2] + 1, BANDS + 1).round().astype(int)) - 1
    bands = [power[..., a:b].mean(axis=2) for a, b in pairwise(edges)]
    bands += [np.zeros_like(bands[0])] * (BANDS - len(bands))  # very short windows have fewer
    return [np.log1p(band) for band in bands]


def _correlations(x: Floats, pairs: list[tuple[int, int]]) -> Floats:
    if not pairs:
        return np.empty((len(x), 0))
    used = sorted({i for pair in pairs for i in pair})
    centred = x[:, used] - x[:, used].mean(axis=2, keepdims=True)
    norm = np.sqrt((centred**2).sum(axis=2, keepdims=True))
    scaled = np.where(norm > TINY, centred / np.maximum(norm, TINY), 0.0)
    table = scaled @ scaled.transpose(0, 2, 1)
    first = [used.index(a) for a, _ in pairs]
    second = [used.index(b) for _, b in pairs]
    return np.asarray(np.clip(table[:, first, second], -1.0, 1.0))
