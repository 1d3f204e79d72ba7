"""The schedule between two makings, and the bounds that were promised to hosts that wait. Pure.

A schedule is made anew when something that matters has changed, not at each ask: in between it is kept up with what
was taken from it. Times are the clock's that the caller reads, in seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from training.fleet.scheduling.schedule import Decline, Kind, Schedule, Slot, Steps, Take, scheduling, to_the_end


@dataclass(frozen=True, slots=True)
class Promise:
    """A host was declined a kind in favour of another host, and may have it from ``open_at`` on."""

    by: str
    open_at: float


class Rolling:
    """The schedule that is in force."""

    def __init__(self, promises: Mapping[tuple[str, str], Promise] | None = None) -> None:
        """``promises`` of before, by host and kind."""
        self.made: Schedule | None = None
        self.made_at = 0.0
        self.promises = dict(promises or {})
        self._taken: list[tuple[str, Take]] = []  # since the last making began

    def renew(self, kinds: Sequence[Kind], slots: Sequence[Slot], now: float) -> None:
        """Take the steps of :meth:`renewing` at once."""
        self.keep({kind.key for kind in kinds})
        to_the_end(self.renewing(kinds, slots, now))

    def renewing(self, kinds: Sequence[Kind], slots: Sequence[Slot], now: float) -> Steps[None]:
        """Make the schedule anew; what it had given out stays where it is unless that gains something.

        The one of before is in force until the last step. What is taken from that meanwhile is taken from the new one.
        """
        waiting, due = {kind.key for kind in kinds}, dict[str, float]()
        for (_, kind), told in self.promises.items():
            if kind in waiting:
                due[kind] = min(due.get(kind, told.open_at - now), told.open_at - now)
        self._taken = []
        made = yield from scheduling(kinds, slots, due, self.made)
        for host, take in self._taken:
            made = made.took(host, take.kind, take.instead_of)
        self.made, self.made_at = made, now

    def keep(self, waiting: Collection[str]) -> None:
        """Forget what was promised of kinds that do not wait now.

        Not a part of :meth:`renewing`: until its last step such a kind may wait again, and be promised anew.
        """
        self.promises = {key: told for key, told in self.promises.items() if key[1] in waiting}

    def knows(self, host: str) -> bool:
        """Return True when the host has a slot."""
        return self.made is not None and host in self.made.at

    def meant_for(self, host: str) -> int | None:
        """Count the jobs that the schedule has for this host; None where it does not know the host."""
        if self.made is None or host not in self.made.at:
            return None
        return sum(share.count for n in self.made.at[host] for share in self.made.shares[n])

    def only(self, hosts: Collection[str]) -> None:
        """Let nobody wait for another host than these."""
        if self.made is not None:
            self.made = self.made.only(hosts)

    def decide(self, host: str, now: float, without: Collection[str] = ()) -> Take | Decline | None:
        """Answer a slot of ``host``: a wait is never longer than was said of the same kind before.

        A kind that was promised is given by now whatever the schedule knows of it: who asks sees if it fits.
        """
        verdict = None if self.made is None else self.made.decide(host, now - self.made_at, without)
        if isinstance(verdict, Take):
            return verdict
        for kind, told in self.promised(host).items():
            if told.open_at <= now and kind not in without:
                return Take(kind, instead_of=self._holder(kind) or told.by)
        if verdict is None:
            return None
        before = self.promises.get((host, verdict.kind))
        open_at = now + verdict.open_s if before is None else min(before.open_at, now + verdict.open_s)
        self.promises[host, verdict.kind] = Promise(verdict.by, open_at)
        return replace(verdict, open_s=open_at - now)

    def promised(self, host: str) -> Mapping[str, Promise]:
        """Return what this host waits for: of each kind who will do it, and until when that is waited for."""
        return {kind: told for (name, kind), told in self.promises.items() if name == host}

    def took(self, host: str, take: Take) -> None:
        """Note that the host got the job that :meth:`decide` gave it."""
        if self.made is not None:
            self.made = self.made.took(host, take.kind, take.instead_of)
        self._taken.append((host, take))

    def waits_no_more(self, host: str) -> None:
        """Forget what the host was promised: it got a job, or is gone."""
        for kind in self.promised(host):
            del self.promises[host, kind]

    def _holder(self, kind: str) -> str | None:
        """Return the host that has a job of this kind in the schedule."""
        if self.made is None:
            return None
        for slot, shares in zip(self.made.slots, self.made.shares, strict=True):
            if any(share.kind == kind for share in shares):
                return slot.host
        return None
