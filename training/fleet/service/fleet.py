"""The state that the service's calls share: the queue, the hosts under the plan, the clocks; and the search for a
caller's attempt.

The calls share one :class:`FleetState`. No HTTP and no SQL.
"""

import math
from collections.abc import Callable, Iterable

from training.fleet.database.writer import Database
from training.fleet.queue.durations import Learned
from training.fleet.queue.jobs import JobQueue
from training.fleet.queue.rows import jobs_by_host
from training.fleet.queue.unavailable import orders, quarantines
from training.fleet.scheduling import booking
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.hours import parse, union
from training.fleet.scheduling.job import LIVE, Attempt, Host, Job, JobStatus, Needs
from training.fleet.scheduling.orders import HostOrder, Out, Resting, Revoked
from training.fleet.scheduling.policy import Fleet, SilenceWatch
from training.fleet.scheduling.resources import HeldAttempt
from training.fleet.service.hosts import HostRegistry, KnownHost, Plan
from training.fleet.store.artifacts import ArtifactStore
from training.fleet.wire.attempts import HostTerms, TrainerUse
from training.fleet.wire.constants import SLOTS_MAX, ProblemType, Refusal
from training.fleet.wire.states import StateView
from training.strict_json import Json

# The keys of a host's table in [hosts] that state its owner's conditions, as its worker gets them.
_TERMS = (
    "pause_on_battery", "pause_when_used", "idle_s", "pause_above_cpu", "pause_above_gpu", "pause_above_celsius",
    "pause_max_s", "may_sleep",
)  # fmt: skip


class FleetState:
    """The queue, the store, the known hosts under the plan in force, and the watch that decides if silence may count
    against hosts."""

    def __init__(self, queue: JobQueue, store: ArtifactStore, plan: Plan | None) -> None:
        """Read the known hosts from the queue's tables; without a ``plan``, no host is declared."""
        self.queue, self.store = queue, store
        self.policy, self.clock = queue.policy, queue.clock
        self.watch = SilenceWatch.begin(self.clock.now(), self.clock.monotonic(), self.policy)
        self._last_watch = self.watch  # before the last look
        self._catch_up()
        known = [KnownHost(row.pop("hostname"), **row) for row in queue.workers()]
        self.host_registry = HostRegistry(known, plan if plan is not None else Plan())
        queue.others = lambda job_id, host: bool(self.other_hosts(self.job(job_id).needs, host, queue.db))
        self.data_bytes: Callable[[str], float | None] = lambda _dataset_id: None  # the size of a data set, if known
        self.put_out: Callable[[], Iterable[str]] = tuple  # the revoked hosts
        self.state_of: Callable[[str], StateView | None] = lambda _job_id: None  # a job's newest saved state

    @property
    def plan(self) -> Plan:
        return self.host_registry.plan

    def learned(self, reader: Database) -> Learned:
        """Return the durations and memory learned from the attempts that ``reader`` sees, with the sizes of data sets
        and the hosts' calibrations."""
        return Learned(
            reader,
            data_bytes=lambda dataset_id: self.data_bytes(dataset_id),
            calibrations=lambda: self.host_registry.calibrations,
        )

    def known_hosts(self) -> list[KnownHost]:
        """Return the hosts that the receiver remembers, sorted by name."""
        return sorted(self.host_registry.known.values(), key=lambda known: known.name)

    def alive(self, known: KnownHost) -> bool:
        """Return True if the host was seen within the last lease."""
        return known.last_seen >= self._alive_since()

    def silent_s(self, known: KnownHost) -> float | None:
        """Return for how many seconds a host was not seen; None if it was seen within a lease."""
        return None if self.alive(known) else self.clock.now() - known.last_seen

    def _alive_since(self) -> float:
        """Return the time since which a host must have been seen to count as alive.

        A step forward of the wall clock that is not handled yet is subtracted, so that hosts seen before the step stay
        alive.
        """
        return self._seen_within(self.policy.stale_after_s)

    def _seen_within(self, seconds: float) -> float:
        now = self.clock.now()
        return now - seconds - max(0.0, self.watch.step_until(now, self.clock.monotonic()))

    def other_hosts(self, needs: Needs, host: str, db: Database) -> list[str]:
        """Return the hosts that may try a job before the word of ``host`` alone fails it: those that the job fits, and
        that were seen within ``second_opinion_s``, wait for work, or hold jobs. Hosts that are revoked,
        in quarantine or under an operator's order are left out. If ``second_opinion_s`` is 0, there are none."""
        if not self.policy.second_opinion_s:
            return []
        since, out = (
            self._seen_within(self.policy.second_opinion_s),
            {host, *quarantines(db), *orders(db), *self.put_out()},
        )
        busy = {*self.host_registry.waiting_hosts(), *jobs_by_host(db)}  # a restart forgets when these were heard last
        there = [each for each in self.known_hosts() if each.last_seen >= since or each.name in busy]
        return [
            each.name
            for each in there
            if each.name not in out and rules.fits(needs, self.host_of(each).at_best()) is None
        ]

    def host_of(self, known: KnownHost) -> Host:
        """Return the host as a value for scheduling: its reported capability, limited by the manifest."""
        return self.host_registry.host(known)

    def at_rest(self, db: Database) -> dict[str, Out]:
        """Map each host that gets no jobs because it is revoked, of an operator's order or of its owner's conditions
        to the first of these reasons."""
        resting = {name: Resting(name, reason) for name, reason in self.host_registry.resting.copy().items()}
        return {**resting, **orders(db), **{name: Revoked(name) for name in self.put_out()}}

    def taken_out(self, db: Database) -> dict[str, Out]:
        """Map every host that gets no jobs because of a quarantine, or is :meth:`at_rest`, to that reason; a quarantine
        takes precedence."""
        return {**self.at_rest(db), **quarantines(db)}

    def fleet(self, but: str | None = None, out: Iterable[str] = ()) -> Fleet:
        """Return the hosts for scheduling, without ``but`` (the host that asks) and without ``out`` (hosts that get no
        jobs). Any thread may call this."""
        known_since, without = self.clock.now() - self.policy.gone_s, frozenset(out)
        if but is not None:
            without |= {but}
        return self.host_registry.fleet(
            heard_since=self._alive_since(), known_since=known_since, without=without, to=but
        )

    def terms(self, host: str) -> HostTerms:
        """Return the conditions that a host's owner and operators set for its worker at this moment."""
        return terms_of(self.plan.declared(host), orders(self.queue.db).get(host))

    def slots(self, known: KnownHost) -> int:
        """Return how many slots a host's worker may use, at most ``SLOTS_MAX``: how many jobs it may train at once."""
        return min(booking.most_at_once(self.host_of(known)), SLOTS_MAX)

    def tick(self) -> int:
        """Check the clocks, and end attempts that were silent for a lease of *observed* time; return the number of
        ended attempts. Also fail jobs for which no second opinion came in time.

        When the commit of this call fails, :meth:`forget_look` must follow.
        """
        watch = self.watch.look(self.clock.now(), self.clock.monotonic(), self.policy)
        step = watch.step_s
        if step:
            self.queue.hosts.shift_times(step)
            self.host_registry.shift(step, self.clock.now())
        # Not before the write: a step that was not written is found again.
        self._last_watch, self.watch = self.watch, watch
        if watch.watched_for(self.policy.second_opinion_s, self.policy):
            self.queue.moves.hear_no_more()
        return self.queue.sweep_stale() if watch.may_sweep else 0

    def forget_look(self) -> None:
        """Undo the last :meth:`tick` after its commit failed, so that the next one finds the same change of the clock
        again."""
        if self.watch.step_s:
            self.host_registry.shift(-self.watch.step_s, math.inf)
        self.watch = self._last_watch

    def _catch_up(self) -> None:
        """Shift the stored times back if the clock went back by more than ``clock_step_s`` while the receiver was down.

        A small board without a clock chip starts with the time of its last shutdown; without the shift, its leases and
        holds would seem to end far in the future. Stored times that are not ahead of the clock are not moved. Also
        forget the classes that no job has any more; before the first schedule nothing else names a class.
        """
        behind_s = self.queue.hosts.behind_s()
        if behind_s > self.policy.clock_step_s:
            self.queue.hosts.shift_times(-behind_s, since=self.clock.now())
        self.queue.db.run("forget_classes")

    def job(self, job_id: str) -> Job:
        job = self.queue.get(job_id)
        if job is None:
            raise Refusal(ProblemType.UNKNOWN_JOB, f"no job has the id {job_id[:80]!r}")
        return job

    def check_stored(self, job: Job, artifact_id: str, *, delivered: bool = True) -> None:
        """Raise Refusal if a job's bundle was not ``delivered``, or is not in the store."""
        if not (delivered and self.store.find(artifact_id, model=job.model, mode=job.mode)):
            raise Refusal(
                ProblemType.NO_ARTIFACT,
                f"artifact {artifact_id[:12]}… of job {job.name} is not in the store; upload it first",
            )

    def claimed(
        self, job_id: str, claim_id: str | None, host_id: str | None, *, or_completed: bool = False
    ) -> tuple[Job, Attempt]:
        """Return the job and the caller's attempt, live or not; raise Refusal if the caller has no such attempt. The
        attempt's host counts as seen.

        A caller that names no claim (the simple form) is served only if its host holds the live attempt (or, with
        ``or_completed``, has delivered the job).
        """
        job = self.job(job_id)
        if claim_id is None:
            wanted = LIVE | {JobStatus.COMPLETED} if or_completed else LIVE
            number = job.attempt if host_id and job.worker_hostname == host_id and job.status in wanted else None
            attempt = next((each for each in self.queue.attempts.of_job(job_id) if each.attempt == number), None)
        else:
            attempt = self.queue.attempts.by_claim(claim_id)
        if attempt is None or attempt.job_id != job_id or host_id not in (None, attempt.host):
            if job.status is JobStatus.CANCELLED:
                raise Refusal(ProblemType.JOB_CANCELLED, f"job {job.name} was cancelled; stop and drop the work")
            raise Refusal(
                ProblemType.LEASE_SUPERSEDED, f"the caller holds no live claim on job {job.name}; drop the work"
            )
        self.host_registry.heard(attempt.host, self.clock.now())
        return job, attempt


class Calls:
    """The base of the classes with the service's calls: each keeps the fleet's state."""

    def __init__(self, fleet: FleetState) -> None:
        self._fleet, self._queue, self._policy = fleet, fleet.queue, fleet.policy
        self._hosts, self._clock = fleet.host_registry, fleet.clock


def terms_of(declared: Json | None, order: HostOrder | None) -> HostTerms:
    """Return the terms for a host's worker: the operator's order, and the owner's conditions from ``declared``, the
    host's table in ``[hosts]``."""
    said = declared or {}
    hours = union(span for text in said.get("hours") or () for span in parse(text))
    return HostTerms(
        order=None if order is None else order.order.value,
        by=None if order is None else order.by,
        hours=list(hours) or None,
        **{key: said[key] for key in _TERMS if key in said},
    )


def held_of(held: Iterable[Attempt], uses: Iterable[TrainerUse] = ()) -> list[HeldAttempt]:
    """Return the booking and the present memory use of each attempt that trains. An attempt without a reported use
    counts as using none yet."""
    used = {each.claim_id: (each.ram_gib, each.vram_gib) for each in uses}
    return [HeldAttempt(each.booked, *used.get(each.claim_id, ())) for each in held if each.heard_s is not None]
