"""Choose a host's job: one of a kind that the schedule gives the host, or first come, first served; never read all
jobs.

One step in an index finds the oldest job of a class. With first come, first served, a class that does not fit the host
costs one comparison, and one that fits costs one step per gate. A property test checks that the result equals that of
reading all jobs.
"""

import json
from typing import NamedTuple

from training.certain import certain
from training.fleet.database.writer import Row
from training.fleet.queue.classes import JobClass
from training.fleet.queue.kinds import ABOVE_ALL, OPEN, Kinds, place_of
from training.fleet.queue.schedule_cache import Scheduler
from training.fleet.queue.state import QueuePart, QueueState
from training.fleet.scheduling import booking
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.job import Host, Needs
from training.fleet.scheduling.policy import Fleet, Hold, Policy
from training.fleet.scheduling.resources import Booking
from training.fleet.scheduling.schedule import Decline, Take
from training.fleet.scheduling.threads import threads_for
from training.printable import clock_time, left_to
from training.strict_json import Json

BEING_MADE = "the schedule of jobs and hosts is being computed; ask again in a moment"
RETRY_S = 1.0  # at least, between two asks without news

Rank = tuple[int, float, int]
Head = tuple[Rank, str]  # rank and id of a job


class Declined(NamedTuple):
    """A job that a host does not get now, because another host will have it done sooner. Times in epoch seconds."""

    job_id: str
    name: str
    by: str  # who will do it …
    begins_at: float
    ends_at: float
    here_until: float  # … and when it would be done here
    open_at: float  # from then on this host may have it

    def sentence(self, now: float) -> str:
        """Return a sentence about this job for a person who reads it at the time ``now``."""
        done, here, free = (clock_time(at, now) for at in (self.ends_at, self.here_until, self.open_at))
        return left_to(self.by, self.name, done=done, here=here, free=free)


class NoJob(NamedTuple):
    """The reason why a host was granted nothing; ``retry_after_s`` is set if the passing of time alone may change
    that."""

    reason: str
    retry_after_s: float | None = None
    declined: Declined | None = None


class Chooser(QueuePart):
    """Chooses jobs for hosts that ask, and what is booked for each job."""

    def __init__(self, queue: QueueState, ahead: Scheduler) -> None:
        super().__init__(queue)
        self._queue, self._ahead = queue, ahead

    def choose(self, host: Host, fleet: Fleet, policy: Policy, *, first_come: bool = False) -> str | NoJob:
        """Return the id of the job that ``host`` should train now, or why there is none. Call it in the transaction
        that writes the grant.

        Normally the schedule decides. With ``first_come``, or if no other host is alive, the choice is the oldest job
        of the highest priority that the host may take.
        """
        if self._db.run("open_gates", now=self._clock.now()):
            self._ahead.edited()  # jobs that avoided a host were in no schedule
        asking = _Asking(self._queue, self._ahead.kinds, host, fleet, policy)
        # One host alone is done no sooner by any order.
        chosen = asking.first_come() if first_come or not fleet.alive else asking.by_time(self._ahead)
        if not (isinstance(chosen, NoJob) and chosen.reason == BEING_MADE):
            self._ahead.answered(host.name)
        return chosen

    def book(self, job_id: str, host: Host, fleet: Fleet, *, first_come: bool = False) -> Booking:
        """Return what the chosen job books of the host. Call it before the grant is written."""
        ahead = self._ahead
        job = certain(self._db.one("class_of_job", job_id=job_id), "it was just chosen")
        needs = ahead.kinds.needs(self._classes.at(job["class_id"]))
        meant = None if first_come or not fleet.alive else ahead.rolling.meant_for(host.name)
        if meant is None:  # its part of all
            hosts = 1 + len(fleet.alive)
            meant = -(-self._db.number("pending_up_to", most=max(1, host.cores) * hosts) // hosts) - 1
        before = self._db.one("booked_last", job_id=job_id) if job["attempt"] else None
        had = json.loads(before["booked"])["cores"] if before is not None else 0
        wanted = booking.demand(needs, host)
        slots = booking.most_at_once(host) - (0 if host.room is None else host.room.jobs)
        jobs = max(1, min(1 + meant, slots))
        return booking.book(needs, host, threads_for(needs, wanted, host, jobs=jobs, before=had))


class _Asking(QueuePart):
    """One host's request for a job, and the reasons why the host does not get other jobs."""

    def __init__(self, queue: QueueState, kinds: Kinds, host: Host, fleet: Fleet, policy: Policy) -> None:
        super().__init__(queue)
        self._kinds, self._host, self._fleet = kinds, host, fleet
        self._policy, self._now = policy, queue.clock.now()
        self._gates = self._closed_gates()
        self._waits: list[tuple[float, str]] = []  # how long until a job may be had, and why not now
        self._for_room: list[tuple[Rank, Needs, str]] = []  # jobs that come first and wait for room, and why

    def first_come(self, *, gates: bool = True) -> str | NoJob:
        """Return the id of the oldest job of the highest priority that the host may take, or why there is none. Without
        ``gates``, leave out jobs that avoid any host for now."""
        obstacle: str | None = None
        heads: list[tuple[Head, Needs]] = []
        for each in self._classes.pending():
            needs = self._needs(each)
            misfit = rules.fits(needs, self._host)
            if misfit is not None and not self._waits_for_room(needs):
                obstacle = obstacle or misfit
                continue
            held = rules.hold(needs, self._host, self._fleet, self._policy)
            open_head = self._head(each.class_id, OPEN, held)
            found = [] if open_head is None else [open_head]
            avoiding = self._avoiding(each, held)
            found += avoiding if gates else []
            if misfit is None:
                heads += [(head, needs) for head in found]
            else:
                self._for_room += [(rank, needs, misfit) for rank, _ in found]
        free = [head for head, needs in heads if self._may_go_before(needs, head[0])]
        return min(free)[1] if free else self._nothing(obstacle)

    def by_time(self, ahead: Scheduler) -> str | NoJob:
        """Return the id of the job that the schedule has for this host, or why there is none. If the schedule has none,
        and no new schedule is awaited, choose as :meth:`first_come` does, but no job that avoids a host."""
        rolling, passed_over = ahead.current(self._host, self._fleet.alive, self._policy), set[str]()
        while (verdict := rolling.decide(self._host.name, self._clock.monotonic(), passed_over)) is not None:
            if isinstance(verdict, Take):
                head = self._head_of_kind(verdict)
                if head is not None:
                    rolling.took(self._host.name, verdict)
                    return head[1]
            elif (row := self._first_of_kind(verdict.kind)) is not None:
                return self._declined(verdict, row)
            passed_over.add(verdict.kind)  # this host may have none of them at this moment, or none is left
        chosen = self.first_come(gates=False)
        # The schedule has nothing for this host; a job that came a moment ago it does not know yet.
        if not isinstance(chosen, NoJob) and ahead.awaits(self._host.name):
            return NoJob(BEING_MADE, RETRY_S)
        return chosen

    def _first_of_kind(self, kind: str) -> Row | None:
        """Return the row of the oldest pending job of a kind; None if none is left."""
        class_id, priority, gate = place_of(kind)
        row = self._db.one("head", class_id=class_id, avoid_host=gate, below=priority + 1, host=self._host.name)
        return None if row is None or row["priority"] < priority else row

    def _head_of_kind(self, take: Take) -> Head | None:
        """Return the rank and id of the oldest job of a kind, if this host may take the job now; else None. A job that
        was scheduled for this host but does not fit yet reserves room here."""
        class_id, priority, gate = place_of(take.kind)
        needs = self._needs(self._classes.at(class_id))
        misfit = rules.fits(needs, self._host)
        if misfit is not None and not self._waits_for_room(needs):
            return None
        if gate != OPEN and rules.must_avoid(needs, gate, self._host, self._fleet):
            return None
        held = rules.hold(needs, self._host, self._fleet, self._policy)
        head = self._head(class_id, gate, held, below=priority + 1, least=priority)
        if head is not None and misfit is not None and take.instead_of is None:
            self._for_room.append((head[0], needs, misfit))
        may = misfit is None and head is not None and self._may_go_before(needs, head[0])
        return head if may else None

    def _declined(self, verdict: Decline, row: Row) -> NoJob:
        told = Declined(
            job_id=row["job_id"],
            name=row["name"],
            by=verdict.by,
            begins_at=self._now + verdict.begin_s,
            ends_at=self._now + verdict.end_s,
            here_until=self._now + verdict.here_s,
            open_at=self._now + verdict.open_s,
        )
        class_id, _, _ = place_of(verdict.kind)
        held = rules.hold(self._needs(self._classes.at(class_id)), self._host, self._fleet, self._policy)
        waits = [row["claimable_at"] + held.seconds - self._now, *(wait_s for wait_s, _ in self._waits)]
        again_s = min([verdict.open_s, *(wait_s for wait_s in waits if wait_s > 0)])
        return NoJob(told.sentence(self._now), max(RETRY_S, again_s), told)

    def _needs(self, each: JobClass) -> Needs:
        """Return the needs of a class of jobs. On a host that trains other jobs, the needs include the memory that jobs
        of this kind were seen to use."""
        return each.needs if self._host.room is None else self._kinds.needs(each)

    def _waits_for_room(self, needs: Needs) -> bool:
        """Return True if trainers run on this host, and a job with these needs would fit once they have ended."""
        return self._host.room is not None and rules.fits(needs, booking.afterwards(self._host)) is None

    def _may_go_before(self, needs: Needs, rank: Rank) -> bool:
        """Return True if a job of this rank delays no better-ranked job that waits for room on this host."""
        return all(
            rank < other or booking.goes_before(needs, waiting, self._host) for other, waiting, _ in self._for_room
        )

    def _avoiding(self, each: JobClass, held: Hold) -> list[Head]:
        """Return the rank and id of the best job of each closed gate of a class that this host may pass. A closed gate
        groups the jobs that avoid the same host for now."""
        heads = []
        for gate, until, unheard in self._gates.get(each.class_id, ()):
            avoids = rules.must_avoid(each.needs, gate, self._host, self._fleet)
            if avoids or (unheard and gate == self._host.name):
                others = "it failed here, another host goes first"
                why = "it was interrupted a moment ago" if gate == rules.EVERY_HOST else others
                self._waits.append((max(RETRY_S, until - self._now), why))
            if avoids:
                continue
            head = self._head(each.class_id, gate, held)
            heads += [] if head is None else [head]
        return heads

    def _closed_gates(self) -> dict[int, list[tuple[str, float, bool]]]:
        """Map each class to the hosts that some of its jobs avoid for now. Each host comes with the time when the first
        such job may return there, and whether another host must try one before."""
        gates: dict[int, list[tuple[str, float, bool]]] = {}
        for row in self._db.all("gates", now=self._now):
            gates.setdefault(row["class_id"], []).append((row["avoid_host"], row["until"], row["unheard"] > 0))
        return gates

    def _head(
        self, class_id: int, gate: str, held: Hold, *, below: int = ABOVE_ALL, least: int = -ABOVE_ALL
    ) -> Head | None:
        """Return the rank and id of the best job of a class and gate, within these priorities, that was claimable for
        long enough; else None.

        Within a priority the oldest job comes first. If that job must still wait, the younger jobs of its class, gate
        and priority must wait too; the next lower priority is tried.
        """
        while True:
            row = self._db.one("head", class_id=class_id, avoid_host=gate, below=below, host=self._host.name)
            if row is None or row["priority"] < least:
                return None
            wait_s = row["claimable_at"] + held.seconds - self._now
            if wait_s <= 0:
                return rules.rank(row["priority"], row["claimable_at"], row["seq"]), row["job_id"]
            self._waits.append((wait_s, held.reason or "it failed a moment ago"))
            below = row["priority"]

    def _nothing(self, obstacle: str | None) -> NoJob:
        if self._waits:
            wait_s, reason = min(self._waits)
            return NoJob(f"the next job waits {wait_s:.0f} s more: {reason}", wait_s)
        if self._for_room:
            return NoJob(f"the next job waits for room here: {min(self._for_room, key=lambda each: each[0])[2]}")
        if obstacle is not None:
            return NoJob(f"none of the pending jobs fits this host: {obstacle}")
        causes = ["held by the operator"] if self._db.number("held_pending") else []
        causes += ["not in the plan"] if self._db.number("passed_over", most=1) else []
        return NoJob(f"every pending job is {' or '.join(causes)}" if causes else "no job is pending")


def eligible(
    *,
    spec: Json,
    hostname: str,
    capability: Json,
    host_spec: Json | None = None,
    prefer_cuda_grace_s: float = 300.0,
    job_age_s: float = 0.0,
) -> tuple[bool, str]:
    """Decide if this host may take this job now, as if no other host existed: return ``(True, "ok")``, or ``(False,
    reason)``.

    ``job_age_s`` is how long the job has been claimable; ``prefer_cuda`` keeps hosts without CUDA waiting until the job
    is old enough.
    """
    needs, host = Needs.of(spec), Host.of(hostname, capability, host_spec)
    misfit = rules.fits(needs, host)
    if misfit is not None:
        return False, misfit
    held = rules.hold(needs, host, rules.NOBODY_ELSE, Policy(prefer_cuda_grace_s=prefer_cuda_grace_s))
    if job_age_s < held.seconds:
        return False, f"{held.reason}, {held.seconds - job_age_s:.0f} s more"
    return True, "ok"
