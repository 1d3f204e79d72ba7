"""The schedule in force until the next one is computed, and how long each host has waited for a job. Pure.

A new schedule is computed after a relevant change or some time, not at each request. Each job that a host takes
meanwhile is removed from the schedule in force. Times are seconds of the caller's clock.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from training.fleet.scheduling.schedule import Decline, JobKind, Schedule, Slot, Take, schedule
from training.frozen import frozen

ASKS_S = 60.0  # a host that waits asks at least so often; one that was silent for longer begins its wait again


@frozen
class Patience:
    """A host's wait over several claims: for which kind of job and which other host, since when, until when, and the
    time of the last claim. The wait ends sooner when the other host is late (``overdue``)."""

    kind: str
    since: float
    until: float
    asked: float
    opens: float  # when it may have such a job after all, as it was told last
    by: str = ""  # whom it was told to wait for; empty: that host took a job since
    overdue: float = 0.0  # when that host is late


class Rolling:
    """The schedule in force, without the jobs that hosts have taken since, and the hosts' waits."""

    def __init__(self) -> None:
        self.made: Schedule | None = None
        self.made_at = 0.0
        self.waits: dict[str, Patience] = {}
        self._taken: list[tuple[str, Take]] = []  # since the last making began

    def renew(self, kinds: Sequence[JobKind], slots: Sequence[Slot], now: float) -> None:
        """Compute a schedule of these kinds and slots at once, and put the result into force."""
        self.begin()
        self.follow(schedule(kinds, slots, self.made, self.awaited()), now)

    def begin(self) -> None:
        """Record that the computation of a schedule begins, which may still contain the jobs that hosts take from now
        on."""
        self._taken = []

    def follow(self, made: Schedule, made_at: float, left: Callable[[str], int] | None = None) -> None:
        """Put a schedule that was computed elsewhere into force, without the jobs that hosts took since the computation
        began.

        The function ``left`` returns the number of jobs of a kind that are pending now. A job taken before the
        computation read the queue is not in the schedule, and not removed.
        """
        for host, take in self._taken:
            if left is None or made.count(take.kind) > left(take.kind):
                made = made.took(host, take.kind, take.instead_of)
        self.made, self.made_at = made, made_at
        self.waits = {host: each for host, each in self.waits.items() if made_at - each.asked <= ASKS_S}

    def awaited(self) -> dict[str, float]:
        """Map each kind of job for which a host waits to the time when the first such wait ends."""
        found: dict[str, float] = {}
        for each in self.waits.values():
            found[each.kind] = min(each.opens, found.get(each.kind, each.opens))
        return found

    def meant_for(self, host: str) -> int | None:
        """Count the jobs that the schedule gives to this host; None if the schedule has no slot of the host."""
        if self.made is None or all(slot.host != host for slot in self.made.slots):
            return None
        return sum(share.count for _, _, share in self.made.own(host))

    def only(self, hosts: Collection[str]) -> None:
        """Remove the slots of all hosts but these from the schedule in force."""
        if self.made is not None:
            self.made = self.made.only(hosts)

    def decide(self, host: str, now: float, without: Collection[str] = ()) -> Take | Decline | None:
        """Decide what a slot of ``host`` does: take a job, or wait for a limited time for a better host. Return None
        without a schedule, or if the schedule has no job that the host could train and may take.

        A wait ends when it has lasted as long as the job takes on ``host``, and as long as its first decision said
        (``Decline.open_s``). A wait ends sooner when the better host is overdue (``Decline.overdue_s``). That time
        starts again at zero when the better host takes a job, or another host becomes the better one. Predicted
        durations and reported progress may be wrong or false, so no host waits without end.
        """
        verdict = None if self.made is None else self.made.decide(host, now - self.made_at, without)
        if not isinstance(verdict, Decline):
            return verdict
        before = self.waits.get(host)
        if before is None or now - before.asked > ASKS_S:
            before = Patience(verdict.kind, now, now + verdict.open_s, now, now)
        overdue = before.overdue if before.by == verdict.by else now + verdict.overdue_s
        opens = min(max(before.until, before.since + verdict.here_s), overdue)
        self.waits[host] = replace(before, kind=verdict.kind, by=verdict.by, asked=now, opens=opens, overdue=overdue)
        return replace(verdict, open_s=opens - now) if opens > now else Take(verdict.kind, instead_of=verdict.by)

    def took(self, host: str, take: Take) -> None:
        """Record that the host got the job that :meth:`decide` gave it: remove the job from the schedule, and end the
        host's wait."""
        if self.made is not None:
            self.made = self.made.took(host, take.kind, take.instead_of)
        self._taken.append((host, take))
        self.waits.pop(host, None)
        self.waits = {name: replace(each, by="") if each.by == host else each for name, each in self.waits.items()}
