"""Limit a caller's requests per second, with a reserve for bursts."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from training.clock import Clock
from training.fleet.wire.constants import ProblemType, Refusal

RATE_PER_S = 200.0  # hundreds of times a worker's need, a twentieth of a receiver's capacity
BURST = 1000.0
_CALLERS_MAX = 10_000


@dataclass
class Quota:
    """A token bucket for each caller: a request takes a token, and tokens return with time."""

    clock: Clock
    rate_per_s: float = RATE_PER_S
    burst: float = BURST
    _buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)  # tokens, and when

    def take(self, caller: str) -> None:
        """Count a request of ``caller``. Raises Refusal with the seconds until the next token."""
        now = self.clock.monotonic()
        tokens, then = self._buckets.get(caller, (self.burst, now))
        tokens = min(self.burst, tokens + (now - then) * self.rate_per_s)
        enough = tokens >= 1.0
        self._buckets[caller] = (tokens - 1.0 if enough else tokens, now)
        self._buckets.move_to_end(caller)
        if len(self._buckets) > _CALLERS_MAX:
            self._buckets.popitem(last=False)
        if not enough:
            raise Refusal(
                ProblemType.SLOW_DOWN,
                f"{caller} sends more than {self.rate_per_s:g} requests a second; wait a little",
                retry_after_s=(1.0 - tokens) / self.rate_per_s,
            )
