"""The rate limit of a caller: requests a second, with a reserve for bursts."""

from __future__ import annotations

from collections import OrderedDict

from training.clock import Clock
from training.fleet.wire.constants import ProblemType, Refusal

RATE_PER_S = 200.0  # hundreds of times a worker's need, a twentieth of a receiver's capacity
BURST = 1000.0
_CALLERS_MAX = 10_000


class Quota:
    """A bucket of tokens for each caller: a request takes one, time brings them back."""

    def __init__(self, clock: Clock, *, rate_per_s: float = RATE_PER_S, burst: float = BURST) -> None:
        self._clock = clock
        self._rate_per_s, self._burst = rate_per_s, burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when

    def take(self, caller: str) -> None:
        """Count a request of ``caller``. Raises Refusal with the seconds until the next token."""
        now = self._clock.monotonic()
        tokens, then = self._buckets.get(caller, (self._burst, now))
        tokens = min(self._burst, tokens + (now - then) * self._rate_per_s)
        enough = tokens >= 1.0
        self._buckets[caller] = (tokens - 1.0 if enough else tokens, now)
        self._buckets.move_to_end(caller)
        if len(self._buckets) > _CALLERS_MAX:
            self._buckets.popitem(last=False)
        if not enough:
            raise Refusal(
                ProblemType.SLOW_DOWN,
                f"{caller} sends more than {self._rate_per_s:g} requests a second; wait a little",
                retry_after_s=(1.0 - tokens) / self._rate_per_s,
            )
