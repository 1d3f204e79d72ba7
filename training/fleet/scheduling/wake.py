"""PURE: choose which sleeping hosts to wake for pending jobs.

A host is woken for a kind of job if it would finish one, including its own start, before the awake hosts finish the
last. If no awake host can train the kind, the duration does not matter. Only one host per kind is woken at a time:
while a woken host may still come, no other is woken for the jobs that it can train. A host that does not come is woken
again a few times, less and less often, and then not until it contacts the receiver.
"""

import math
from collections.abc import Iterable, Mapping

from training.frozen import frozen

START_S = 120.0  # from the packet to the first claim
AGAIN_S = 600.0  # until a host is tried again, doubled each time
TRIES_MAX = 5


@frozen
class Sleeper:
    """A silent host that can be woken, and how often that was tried since it was last seen."""

    host: str
    tries: int = 0  # since it was last heard
    tried_s: float = math.inf  # seconds since the last try

    @property
    def comes(self) -> bool:
        """Return True while the host may still come after the last packet that was to wake it."""
        return self.tried_s < START_S

    @property
    def may_be_tried(self) -> bool:
        return self.tries < TRIES_MAX and (not self.tries or self.tried_s >= AGAIN_S * 2 ** (self.tries - 1))


@frozen
class Waits:
    """Pending jobs of one kind: the duration of one job on each sleeping host that it fits, and when the awake hosts
    end the last job."""

    kind: str
    seconds: Mapping[str, float]  # sleeper → how long it would take for one; whom it does not fit is absent
    ends_s: float | None  # from now, until the last of them ends on the hosts awake; None: none of them can do it


def to_wake(waiting: Iterable[Waits], sleepers: Iterable[Sleeper]) -> dict[str, str]:
    """Map each host to wake to the kind of job that is the reason."""
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
