"""Limits on a training's memory: how much is kept in memory, and how much is read at a time.

The data's size alone decides, never the free memory: equal inputs must be computed in equal ways.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from training.data.values import JsonDict


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """Limits in bytes of the windows as a family learns from them, in single precision.

    Up to ``held_bytes`` training windows lie in memory, and an epoch of a network takes them in any order. If there are
    more, it takes *runs* of ``run`` neighbours in any order, and within a *pool* of as many runs as fit into
    ``pool_bytes`` the windows in any order; trees look at them in pages of ``page_bytes``, which changes no tree.
    """

    held_bytes: int = 1 << 29
    pool_bytes: int = 1 << 28
    page_bytes: int = 1 << 26
    run: int = 256

    def holds(self, windows: int, bytes_each: int) -> bool:
        """Tell whether so many windows are kept in memory."""
        return windows * bytes_each <= self.held_bytes

    def to_dict(self) -> JsonDict:
        """JSON values for a run key; empty for the usual limits, which are part of the code."""
        return {} if self == LIMITS else {"limits": asdict(self)}


LIMITS = MemoryLimits()
