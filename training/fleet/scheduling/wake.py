"""PURE: the sleeping hosts to wake, because a job waits that no awake host would finish sooner.

A host is woken for a kind of job when it would have one done before the last of them ends on the hosts that are awake,
its start included; a kind that no host awake can train always is a reason. One host a kind at a time: while one that
was woken may still come, no other host is woken for the jobs that it can do. A host that does not come is tried a few
times, less and less often, and then not again until it contacts the receiver.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

START_S = 120.0  # from the packet to the first claim
AGAIN_S = 600.0  # until a host is tried again, doubled each time
TRIES_MAX = 5


@dataclass(frozen=True, slots=True)
class Sleeper:
    """A silent host that can be woken."""

    host: str
    tries: int = 0  # since it was last heard
    tried_s: float = math.inf  # seconds since the last try

    @property
    def comes(self) -> bool:
        """Return True while it may still come after the last try."""
        return self.tried_s < START_S

    @property
    def may_be_tried(self) -> bool:
        return self.tries < TRIES_MAX and (not self.tries or self.tried_s >= AGAIN_S * 2 ** (self.tries - 1))


@dataclass(frozen=True, slots=True)
class Waits:
    """Jobs of one kind that wait."""

    kind: str
    seconds: Mapping[str, float]  # sleeper → how long it would take for one; whom it does not fit is absent
    ends_s: float | None  # from now, until the last of them ends on the hosts awake; None: none of them can do it


def to_wake(waiting: Iterable[Waits], sleepers: Iterable[Sleeper]) -> dict[str, str]:
    """Choose whom to wake: host → the kind of job that is the reason."""
    known = {each.host: each for each in sleepers}
    chosen: dict[str, str] = {}
    for each in waiting:
        fitting = [(seconds, known[host]) for host, seconds in each.seconds.items() if host in known]
        if any(sleeper.comes or sleeper.host in chosen for _, sleeper in fitting):
            continue
        may = [(seconds, sleeper.host) for seconds, sleeper in fitting if sleeper.may_be_tried]
        if may:
            seconds, host = min(may)
            if each.ends_s is None or START_S + seconds < each.ends_s:
                chosen[host] = each.kind
    return chosen
