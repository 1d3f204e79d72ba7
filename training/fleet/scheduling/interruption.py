"""PURE: interruptions: which running attempt is asked to give way to an urgent job that waits.

=====================  ==========================================================================================
for whom               An urgent job that no host would have done as soon by waiting, all that is known of durations
                       considered. Urgent jobs are looked at in their order: each takes its place, free now or later,
                       before the next one is looked at. Where a job of a higher priority waits that fits a host,
                       nobody there gives way: urgency never goes beyond a priority.
who gives way          One attempt whose end alone makes room, on a host that gets jobs: of a job that is not urgent,
                       nor of a higher priority, that can go on elsewhere from its state, and that has grants left.
when it pays           When the urgent job is done sooner than by waiting by more than a move costs (``move_s``). So
                       nobody gives way who ends soon anyway.
of several             One of the lowest priority; of these where the urgent job is done soonest; there the one that
                       has longest to go.
how often              One for each urgent job, and no job twice, within ``give_way_again_s``.
what is kept           The place of who was asked: within ``give_way_s`` it is to give way, and as long after that the
                       place is the urgent job's.
=====================  ==========================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from training.fleet.scheduling import booking
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.job import Host, Needs
from training.fleet.scheduling.policy import Policy
from training.fleet.scheduling.resources import Held

NEVER = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Trains:
    """An attempt that trains."""

    claim_id: str
    job_id: str
    host: str
    held: Held  # of its host
    left_s: float  # until it ends
    priority: int = 0
    urgent: bool = False
    resumable: bool = False  # its job can go on elsewhere from its state, and its worker hands it back when told
    grants_left: int = 0  # of its job, this one not counted
    asked_s: float = NEVER  # since its job was last asked to give way


@dataclass(frozen=True, slots=True, kw_only=True)
class Urgent:
    """An urgent job that waits."""

    job_id: str
    needs: Needs
    seconds: Mapping[str, float]  # host → how long it takes there; one that may not have it is absent
    priority: int = 0
    behind: Collection[str] = ()  # hosts for which a job of a higher priority waits
    asked_s: float = NEVER  # since somebody was last asked to give way to it
    gets: str | None = None  # the claim that gives way to it already


@dataclass(frozen=True, slots=True)
class Interruption:
    """An attempt that is asked to give way."""

    claim_id: str
    job_id: str  # the urgent job
    host: str
    done_s: float  # until that is done so …
    waiting_s: float  # … and by waiting


@dataclass(frozen=True, slots=True)
class _Place:
    """A part of a host, and until when it is taken."""

    held: Held
    until_s: float
    trains: Trains | None = None


@dataclass
class _Places:
    """The hosts, with what is taken of them."""

    hosts: Mapping[str, Host]  # at their best
    taken: dict[str, list[_Place]] = field(default_factory=dict)

    def opens_s(self, needs: Needs, name: str) -> float:
        """Return when a job finds room on a host, if nobody gives way."""
        places = sorted(self.taken.get(name, ()), key=lambda each: each.until_s)
        for n in range(len(places) + 1):
            if self._fits(needs, name, places[n:]):
                return places[n - 1].until_s if n else 0.0
        return NEVER

    def makes_room(self, trains: Trains, needs: Needs) -> bool:
        """Return True when a job fits once this attempt is gone."""
        return self._fits(needs, trains.host, [each for each in self.taken[trains.host] if each.trains != trains])

    def _fits(self, needs: Needs, name: str, places: Sequence[_Place]) -> bool:
        host = self.hosts[name]
        left = booking.beside(host, [each.held for each in places])
        return len(places) < booking.most_at_once(host) and rules.fits(needs, left) is None

    def take(self, job: Urgent, name: str, begins_s: float, gone: Trains | None = None) -> None:
        """Let an urgent job have a part of a host from then on, which an attempt may have left for it."""
        rest = [each for each in self.taken.get(name, ()) if each.until_s > begins_s and each.trains != gone]
        part = booking.book(job.needs, booking.beside(self.hosts[name], [each.held for each in rest]))
        self.taken[name] = [*rest, _Place(Held(part), begins_s + job.seconds.get(name, 0.0))]

    def by_waiting(self, job: Urgent) -> tuple[float, float, str]:
        """Return when a job is done if nobody gives way, when it begins, and where."""
        best = NEVER, NEVER, ""
        for seconds, name in sorted((seconds, name) for name, seconds in job.seconds.items() if name in self.hosts):
            if seconds >= best[0]:
                break  # on the others it takes longer still
            begins_s = self.opens_s(job.needs, name)
            best = min(best, (begins_s + seconds, begins_s, name))
        return best


def interruptions(
    waiting: Iterable[Urgent], hosts: Mapping[str, Host], training: Iterable[Trains], policy: Policy
) -> list[Interruption]:
    """Decide who is asked to give way now. ``hosts`` are those that get jobs, at their best; ``waiting`` in order."""
    places = _Places(hosts)
    for each in training:
        if each.host in hosts:
            places.taken.setdefault(each.host, []).append(_Place(each.held, each.left_s, each))
    found = []
    for job in waiting:
        known = [each.trains for some in places.taken.values() for each in some if each.trains is not None]
        given = next((each for each in known if each.claim_id == job.gets), None)
        if given is not None:
            places.take(job, given.host, policy.move_s, given)
            continue
        waiting_s, begins_s, by = places.by_waiting(job)
        may = [each for each in known if _may_give_way(each, job, policy)]
        worth = [each for each in may if _done_s(job, each, policy) + policy.move_s < waiting_s]
        worth.sort(key=lambda each: (each.priority, _done_s(job, each, policy), -each.left_s, each.claim_id))
        chosen = next((each for each in worth if places.makes_room(each, job.needs)), None)
        if chosen is not None:
            done_s = _done_s(job, chosen, policy)
            found.append(Interruption(chosen.claim_id, job.job_id, chosen.host, done_s, waiting_s))
            places.take(job, chosen.host, policy.move_s, chosen)
        elif by:
            places.take(job, by, begins_s)
    return found


def _done_s(job: Urgent, instead: Trains, policy: Policy) -> float:
    return policy.move_s + job.seconds[instead.host]


def _may_give_way(each: Trains, job: Urgent, policy: Policy) -> bool:
    return (
        each.resumable
        and not each.urgent
        and each.priority <= job.priority
        and each.grants_left > 1  # the move takes one, and the last is nobody's to take
        and min(each.asked_s, job.asked_s) >= policy.give_way_again_s
        and each.host in job.seconds
        and each.host not in job.behind
    )


def stands_until(asked_at: float, ended_at: float | None, policy: Policy) -> float:
    """Return until when an attempt that was asked gives way: its place is kept for the urgent job till then."""
    left_at = asked_at if ended_at is None else min(ended_at, asked_at + policy.give_way_s)
    return left_at + policy.give_way_s
