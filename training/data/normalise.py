"""Making hosts comparable: compressed scales, and each host measured against its own ordinary day.

Which host a window comes from is readable from its levels alone, far better than what happens in it. So each channel
is first compressed (a doubling counts the same at every level), then expressed as its distance from the host's own
baseline: recordings made beforehand, while the host did its ordinary work, chosen by nobody's labels and never among
the windows. A host without a baseline is measured against the fleet's median baseline, and is said to have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from training.data.schema import ChannelSpec

Array = NDArray[np.float32]

FLOOR = 0.25  # smallest spread, in compressed units: a channel that sleeps in the baseline must not explode
CLIP = 20.0
SECONDS_MIN = 20.0
# What counts as one of its kind: below this, differences are noise of the measurement.
SCALES = {"s/s": 0.01, "B": 65536.0, "B/s": 1024.0}

RULE: dict[str, Any] = {
    "type": "host_baseline",
    "centre": "median",
    "spread": "standard deviation, at least floor",
    "floor": FLOOR,
    "clip": CLIP,
    "without_baseline": "the median of all hosts' baselines",
}
NO_BASELINES: dict[str, Any] = {"type": "none", "clip": CLIP}


class HostBaseline(msgspec.Struct, frozen=True, kw_only=True):
    """A host's ordinary day, a figure a channel (in the schema's order) in compressed units."""

    episodes: int
    seconds: float
    centre: tuple[float, ...]
    spread: tuple[float, ...]


class Baselines(msgspec.Struct, frozen=True, kw_only=True):
    """``fleet`` is None when there was no baseline at all; then values are compressed only."""

    channels: tuple[str, ...]
    hosts: dict[str, HostBaseline]
    fleet: HostBaseline | None

    @property
    def rule(self) -> dict[str, Any]:
        return RULE if self.fleet is not None else NO_BASELINES

    def without(self, hosts: Sequence[str]) -> list[str]:
        """Which of these hosts have no baseline of their own."""
        return sorted(set(hosts) - set(self.hosts))


def scale_of(unit: str) -> float:
    return SCALES.get(unit, 1.0)


def compress(values: Array, channels: Sequence[ChannelSpec]) -> Array:
    """Symmetric logarithm of the channels (last axis) that ask for it: sign(v) log(1 + |v| / scale)."""
    result = np.array(values, dtype=np.float32)
    for i, channel in enumerate(channels):
        if channel.transform == "symlog":
            column = result[..., i] / np.float32(channel.scale)
            result[..., i] = np.sign(column) * np.log1p(np.abs(column))
    return result


def measure(
    recordings: Mapping[str, Sequence[Array]], channels: Sequence[ChannelSpec], sample_hz: float
) -> Baselines:
    """Baselines from each host's compressed baseline rows (each (G, C); holes already left out)."""
    hosts = {}
    for host in sorted(recordings):
        rows = np.concatenate(recordings[host]).astype(np.float64)
        if len(rows) < SECONDS_MIN * sample_hz:
            continue  # too little to know a day by; the host counts as one without a baseline
        hosts[host] = HostBaseline(
            episodes=len(recordings[host]),
            seconds=len(rows) / sample_hz,
            centre=tuple(_rounded(np.median(rows, axis=0))),
            spread=tuple(_rounded(np.maximum(rows.std(axis=0), FLOOR))),
        )
    return Baselines(channels=tuple(c.name for c in channels), hosts=hosts, fleet=_fleet(hosts))


def _rounded(values: NDArray[np.float64]) -> list[float]:
    return [round(float(v), 9) for v in values]


def _fleet(hosts: Mapping[str, HostBaseline]) -> HostBaseline | None:
    if not hosts:
        return None
    centre = np.median([h.centre for h in hosts.values()], axis=0)
    spread = np.median([h.spread for h in hosts.values()], axis=0)
    return HostBaseline(
        episodes=sum(h.episodes for h in hosts.values()),
        seconds=sum(h.seconds for h in hosts.values()),
        centre=tuple(_rounded(centre)),
        spread=tuple(_rounded(spread)),
    )


def apply(values: Array, host: str, baselines: Baselines) -> Array:
    """Compressed values (..., C) against the host's baseline, clipped to a range that no network chokes on."""
    baseline = baselines.hosts.get(host, baselines.fleet)
    if baseline is not None:
        centre = np.asarray(baseline.centre, dtype=np.float32)
        spread = np.asarray(baseline.spread, dtype=np.float32)
        values = np.asarray((values - centre) / spread, dtype=np.float32)
    return np.clip(values, -CLIP, CLIP).astype(np.float32)
