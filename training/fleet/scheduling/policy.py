"""The rules by which jobs and hosts are judged. The functions take plain values and use no I/O, clock or random
numbers.

These rules decide which host may run a job (:func:`fits`), which host must let others go first (:func:`hold`), and
which of several jobs is best (:func:`rank`). Other rules decide what an ended attempt means for its job
(:func:`settle`), and whether a late message may revive an attempt (:func:`may_readopt`, :func:`may_adopt`).
:class:`SilenceWatch` decides when silence may count against a host.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from training.fleet.scheduling import booking
from training.fleet.scheduling.booking import UNTRIED_MOST, most_at_once
from training.fleet.scheduling.job import (
    AMOUNTS,
    CONSTRAINTS,
    Amount,
    Attempt,
    EndReason,
    FailedBy,
    Fault,
    Host,
    Job,
    JobStatus,
    Needs,
)
from training.frozen import frozen
from training.strict_json import Json


@frozen
class Policy:
    """The operator's settings; durations in seconds."""

    stale_after_s: float = 600.0  # the lease: how long an attempt lives without a heartbeat
    max_attempts: int = 3  # trainer failures before a job is failed
    max_host_losses: int = 20  # infrastructure losses before a job is failed
    max_grants: int = 200  # of one generation, counting planned ends: every job reaches an end
    prefer_cuda_grace_s: float = 300.0
    host_priority_grace_s: float = 10.0
    retry_elsewhere_grace_s: float = 60.0
    second_opinion_s: float = 3600.0  # for which other hosts are asked before one host's word alone fails a job
    backoff_s: float = 15.0  # after the first failure, doubled by each further one …
    backoff_max_s: float = 600.0  # … up to this
    max_readoptions: int = 3  # of one attempt
    fetch_max_s: float = 3600.0  # beyond max_run_s, in which a host may fetch data, wait, or deliver
    sweep_period_s: float = 10.0
    clock_step_s: float = 5.0  # wall and boot clock may disagree by this much between two sweeps
    # Quarantine of hosts and failing of suspect jobs (quarantine.py); 0 deaths or crashes switch the rule off.
    odd_deaths: int = 3  # different jobs that died at once, in a row: the host is quarantined …
    odd_death_s: float = 60.0  # … "at once" is within so long of the trainer's start
    suspect_crashes: int = 2  # different hosts that crashed during a job: it is failed …
    suspect_s: float = 300.0  # … if each did so within so long of its grant
    gone_s: float = 7 * 86400.0  # a host silent for so long is not just asleep
    short_run_s: float = 5.0  # a run that was interrupted sooner waits a moment: …
    short_pause_s: float = 1.0  # … this long, doubled by each further one in a row …
    short_pause_max_s: float = 60.0  # … up to this
    state_every_s: float = 600.0  # between two saved states that a host brings of a job it trains; 0: none
    reschedule_s: float = 10.0  # the schedule is made anew after so long, though nothing has happened


class Scheduling(StrEnum):
    """The order in which jobs of one priority are granted; ``scheduling`` in the manifest."""

    SOONEST = "soonest"  # each on the machine with which the plan is done soonest
    FIRST_COME = "first-come"  # the oldest to the first host that asks


@frozen
class Fleet:
    """The other hosts that scheduling considers when one host asks."""

    alive: tuple[Host, ...] = ()  # seen within a lease
    waiting: tuple[Host, ...] = ()  # idle, with an open request for work
    # seen within `gone_s`, and the plan's unseen ones at their best; None: unknown
    known: tuple[Host, ...] | None = None


NOBODY_ELSE = Fleet()
DELIVERING_SHARE = 2  # attempts that only deliver, for each that may train: beyond, the network is the bottleneck


# ── who fits ────────────────────────────────────────────────────────────────────────────────


def fits(needs: Needs, host: Host) -> str | None:
    """Return the obstacle, with its numbers, if a job does not fit a host; None if it fits."""
    return fits_alone(needs, host) or booking.lacks_room(needs, host)


def fits_alone(needs: Needs, host: Host) -> str | None:
    """Decide like :func:`fits`, but ignore what other attempts have booked; memory that programs use now still counts
    as taken."""
    return lacks_data(needs, host.datasets) or fits_for_good(needs, host) or _by_size(needs, host)


def lacks_data(needs: Needs, here: Collection[str] | None) -> str | None:
    """Return the obstacle if the receiver does not have the job's data set; else None. ``here`` is None if the data
    sets are not known; then the result is None."""
    if not needs.dataset or here is None or needs.dataset in here:
        return None
    return f"its data set {needs.dataset[:12]} is not here: push it"


def fits_for_good(needs: Needs, host: Host) -> str | None:
    """Return a lasting obstacle, or None: the lists of hosts and models, an outdated trainer, the owner's reserve,
    cores, or too little memory, because the job ran out of as much before."""
    named = _by_name(needs, host) or _by_model(needs, host)
    return named or has_more_memory(needs, host) or host.withheld or _by_amount(needs, host, lasts=True)


def is_named(host: str, names: Collection[str]) -> bool:
    """Return True if ``host`` is one of ``names``, compared without case."""
    return host in names or host.lower() in map(str.lower, names)


def _by_name(needs: Needs, host: Host) -> str | None:
    if needs.denied_hosts and is_named(host.name, needs.denied_hosts):
        return "the host is in the job's denied_hosts"
    if needs.allowed_hosts and not is_named(host.name, needs.allowed_hosts):
        return f"the host is not in whitelist {_listed(needs.allowed_hosts)} (allowed_hosts)"
    return None


def _by_model(needs: Needs, host: Host) -> str | None:
    if needs.model in host.deny_jobs:
        return "the model is in the host's deny_jobs"
    if host.allow_jobs and needs.model not in host.allow_jobs:
        return f"the model is not in whitelist {_listed(host.allow_jobs)} (the host's allow_jobs)"
    if needs.model in host.outdated:
        return "the model has other flags there than in the plan; update the checkout there"
    return None


def _by_amount(needs: Needs, host: Host, *, lasts: bool) -> str | None:
    """Return the obstacle if the host has less of a resource than the job needs; else None. Only those resources of
    :data:`AMOUNTS` are compared whose ``lasts`` equals the argument."""
    for key, amount in AMOUNTS.items():
        here, wanted = getattr(host, amount.attribute), getattr(needs, key)
        if amount.lasts is lasts and here < wanted:
            called = amount.capability.removesuffix("_gib")
            gib = called != amount.capability
            return f"{called} {here:.1f} < {wanted:.1f} GiB ({key})" if gib else f"{called} {here} < {wanted} ({key})"
    return None


def _by_size(needs: Needs, host: Host) -> str | None:
    if host.short:
        return host.short
    if needs.require_cuda and not host.cuda:
        return "no CUDA device available, and the job has require_cuda"
    if needs.require_cuda and host.vram_free_gib < needs.min_vram_gib:
        return f"vram_free {host.vram_free_gib:.1f} < {needs.min_vram_gib:.1f} GiB (min_vram_gib)"
    return _by_amount(needs, host, lasts=False)


def has_more_memory(needs: Needs, host: Host) -> str | None:
    """Return the obstacle, or None: the host has at most as much memory as a host on which the job ran out of it."""
    if needs.vram_above_gib > 0 and not host.cuda:
        return "the job ran out of GPU memory, and here is no CUDA device"
    for kind, above, here in (
        ("GPU memory", needs.vram_above_gib, host.vram_total_gib),
        ("memory", needs.ram_above_gib, host.ram_total_gib),
    ):
        if above > 0 and here <= above:
            return f"the job ran out of {kind} with {above:.1f} GiB in all, and here are {here:.1f}"
    return None


def unmet(needs: Needs, hosts: Collection[Host]) -> str | None:
    """Return the need that none of these hosts meets, such as "needs a GPU, and no host has one"; None if there is no
    such need. Hosts and models are not named, so that jobs with the same need have the same text."""
    if needs.require_cuda and not any(host.cuda for host in hosts):
        return "needs a GPU, and no host has one"
    amounts = AMOUNTS | ({"min_vram_gib": Amount("vram_free_gib")} if needs.require_cuda else {})
    for key, amount in amounts.items():
        wanted, most = getattr(needs, key), max(getattr(host, amount.attribute) for host in hosts)
        if most < wanted:
            words = str(CONSTRAINTS[key].metadata["words"]).format(wanted)
            return f"needs {words}, and no host has more than {most:.4g}{'' if amount.lasts else ' free'}"
    if not any(_takes(host, needs.model) for host in hosts):
        return "needs a host that may train this kind of model, and none may (allow_jobs, deny_jobs)"
    return None


def _takes(host: Host, model: str) -> bool:
    return model not in host.deny_jobs and (not host.allow_jobs or model in host.allow_jobs)


def _listed(names: Iterable[str]) -> str:
    return "[" + ", ".join(sorted(names)) + "]"


def _has_cuda_for(needs: Needs, host: Host) -> bool:
    """Return True if the host has a GPU with enough free memory for the job."""
    return host.cuda and host.vram_free_gib >= needs.min_vram_gib


def _may_get_cuda(needs: Needs, fleet: Fleet) -> bool:
    """Return True if waiting for a GPU makes sense: a known host that the job fits for good has one that is large
    enough, free now or not. Return True also if the hosts are not known."""
    if fleet.known is None:
        return True
    return any(
        peer.cuda
        and max(peer.vram_total_gib, peer.vram_free_gib) >= needs.min_vram_gib
        and fits_for_good(needs, peer) is None
        for peer in fleet.known
    )


def is_full(host: Host, held: Iterable[Attempt]) -> str | None:
    """Return why a host with these live attempts gets no further job; None if it may get one.

    Attempts that only pack or upload do not count, unless there are many, or the host is untried.
    """
    live = list(held)
    training, most = sum(each.heard_s is not None for each in live), most_at_once(host)
    if training < most and len(live) < (UNTRIED_MOST if host.untried else DELIVERING_SHARE * most + most):
        return None
    jobs = "1 job" if len(live) == 1 else f"{len(live)} jobs"
    if host.untried and host.cores > most:
        more = f"it gets more at once when {UNTRIED_MOST} of its models were verified, or the plan names it"
        return f"host {host.name} holds {jobs}, and is not in the plan: {more}"
    place = "slot" if host.slots else "core"
    places = f"1 {place}" if most == 1 else f"{most} {place}s"
    return f"host {host.name} holds {jobs} and has {places}: it gets another when one has ended"


# ── order among hosts ───────────────────────────────────────────────────────────────────────


@frozen
class Hold:
    """The time for which a host must leave a newly claimable job to other hosts, and the reason."""

    seconds: float = 0.0
    reason: str = ""


def hold(needs: Needs, host: Host, fleet: Fleet, policy: Policy) -> Hold:
    """Return for how long this host must leave new jobs with these needs (which fit it) to other hosts, and the
    reason."""
    holds = [Hold()]
    if needs.prefer_cuda and not _has_cuda_for(needs, host) and _may_get_cuda(needs, fleet):
        holds.append(Hold(policy.prefer_cuda_grace_s, "prefer_cuda: a CUDA host goes first"))
    better = [peer for peer in fleet.waiting if peer.priority > host.priority]
    for peer in better:
        if peer.name != host.name and fits(needs, peer) is None:
            reason = f"host {peer.name} (priority {peer.priority} > {host.priority}) is idle and goes first"
            holds.append(Hold(policy.host_priority_grace_s, reason))
            break
    return max(holds, key=lambda each: each.seconds)


def must_avoid(needs: Needs, avoid_host: str, host: Host, fleet: Fleet) -> bool:
    """Return True if ``host`` must leave a job that failed on ``avoid_host`` to another host: it is that host, and the
    job fits another alive one. All hosts must leave a job that avoids ``EVERY_HOST``."""
    if avoid_host != host.name:
        return avoid_host == EVERY_HOST
    return any(peer.name != host.name and fits(needs, peer) is None for peer in fleet.alive)


EVERY_HOST = "*"  # no host's name: a job that was interrupted soon avoids all hosts for a moment


def rank(priority: int, claimable_at: float, seq: int) -> tuple[int, float, int]:
    """Return a job's sort key, smaller is better: by priority, then age, then the order of the manifest."""
    return (-priority, claimable_at, seq)


# ── ends of attempts ───────────────────────────────────────────────────────────────────────


@frozen
class Settlement:
    """The consequence of an ended attempt for its job: the transition, and the job's new counts and times."""

    transition: str
    status: JobStatus
    trainer_failures: int
    host_losses: int
    claimable_at: float
    ended_by: str | None = None
    failed_by: FailedBy | None = None
    avoid_host: str | None = None
    avoid_until: float | None = None
    short_runs: int = 0


class LastWord(NamedTuple):
    """The kind and the sentence that end a job, or would end it if no other host than ``host`` could try it."""

    failed_by: FailedBy
    ended_by: str
    host: str | None = None  # None: it ends the job


def settle(
    job: Job,
    ended: Attempt,
    *,
    now: float,
    policy: Policy,
    before: Sequence[Attempt] = (),
    others: Callable[[str], bool] = lambda _host: False,
    hopeless: str | None = None,
) -> Settlement:
    """Decide what happens to ``job`` when its live attempt ended; ``before`` has the job's earlier attempts of the same
    generation.

    The trainer's faults and the infrastructure's faults have separate limits; a planned hand-back counts against
    neither, and keeps the job's place in the queue. A job whose host was lost keeps its place if the attempt saved its
    state. What one host alone said or used up ends no job while ``others``, called with that host, returns True: then
    another host must try the job first. ``hopeless`` is the sentence of a job that ran out of memory where no host has
    more (:mod:`training.fleet.scheduling.quarantine`).
    """
    after = _tried_again(job, ended, now, policy)
    failures, losses = after.trainer_failures, after.host_losses
    counted = replace(job, trainer_failures=failures, host_losses=losses)
    word = verdict(counted, [*before, ended], policy, others, hopeless)
    if word is None:
        return after
    if word.host is None:
        return Settlement("exhaust", JobStatus.FAILED, failures, losses, now, word.ended_by, word.failed_by)
    # It keeps its place, so that the others soon say what they think of it.
    at = min(job.claimable_at, after.claimable_at) if word.host == ended.host else after.claimable_at
    if after.avoid_host == EVERY_HOST:  # the pause stays, though another host is to be avoided
        at = max(at, after.avoid_until or at)
    until = now + policy.second_opinion_s
    after = replace(after, claimable_at=at, avoid_host=word.host, avoid_until=until)
    return replace(after, ended_by=word.ended_by, failed_by=word.failed_by)


def verdict(
    job: Job,
    ends: Sequence[Attempt],
    policy: Policy,
    others: Callable[[str], bool],
    hopeless: str | None = None,
) -> LastWord | None:
    """Return what ends a job after these ends of its attempts, or the word of one host alone, which ends the job unless
    another host tries it; None if there is neither."""
    alone: LastWord | None = None
    reached = [(FailedBy.MEMORY, hopeless, {each.host for each in ends if each.out_of_memory})] if hopeless else []
    for failed_by, sentence, hosts in (*reached, *_limits_reached(job, ends, policy)):
        if len(hosts) != 1 or not others(*hosts):
            return LastWord(failed_by, sentence)
        alone = alone or LastWord(failed_by, sentence, hosts.pop())
    return alone


def _tried_again(job: Job, ended: Attempt, now: float, policy: Policy) -> Settlement:
    """Return what the end of an attempt means for its job while no limit is reached."""
    assert ended.end_reason is not None
    reason, fault = ended.end_reason, ended.fault
    failures = job.trainer_failures + (fault is Fault.TRAINER)
    losses = job.host_losses + (fault is Fault.INFRASTRUCTURE)
    if reason is EndReason.INTERRUPTED and ended.lived_s is not None and ended.lived_s < policy.short_run_s:
        runs = job.short_runs + 1
        until = now + _doubled(policy.short_pause_s, runs, policy.short_pause_max_s)
        counts = ("hand_back", JobStatus.PENDING, failures, losses, job.claimable_at)
        return Settlement(*counts, avoid_host=EVERY_HOST, avoid_until=until, short_runs=runs)
    if reason is EndReason.HOST_LOST or fault is Fault.NOBODY:
        transition = "sweep" if reason is EndReason.HOST_LOST else "hand_back"
        at = job.claimable_at if fault is Fault.NOBODY or ended.resumable else now
        return Settlement(transition, JobStatus.PENDING, failures, losses, at)
    # The attempt died on a live host: the next waits, and prefers another host.
    at = now + backoff(failures + losses, policy)
    transition, until = "retry" if fault is Fault.TRAINER else "hand_back", at + policy.retry_elsewhere_grace_s
    return Settlement(transition, JobStatus.PENDING, failures, losses, at, avoid_host=ended.host, avoid_until=until)


def _limits_reached(job: Job, ends: Sequence[Attempt], policy: Policy) -> Iterator[tuple[FailedBy, str, set[str]]]:
    """Yield what ends a job after these ends, as a kind and as a sentence, with the hosts that said it or used the
    budget up."""
    refused, stands = [each for each in ends if each.refused], False
    for each in ends:
        if each.refused:
            stands = not each.pardoned
        elif (each.lived_s or 0.0) >= policy.odd_death_s:  # it can be trained
            stands = False
    if stands:
        meaning = "bad arguments" if refused[-1].exit_code == 2 else "bad data"
        sentence = f"trainer: exit code {refused[-1].exit_code} ({meaning}) is never retried"
        yield FailedBy.REFUSAL, sentence, {each.host for each in refused}
    most = policy.max_attempts
    if job.trainer_failures >= most:
        sentence = f"trainer: failed {most} of {most} times (max_attempts)"
        yield FailedBy.FAILURES, sentence, _at_fault(ends, Fault.TRAINER)
    most = policy.max_host_losses
    if job.host_losses >= most:
        sentence = f"infrastructure: lost {most} of {most} times (max_host_losses)"
        yield FailedBy.LOSSES, sentence, _at_fault(ends, Fault.INFRASTRUCTURE)
    if job.grants >= policy.max_grants:
        sentence = f"infrastructure: granted {job.grants} times without an end (max_grants)"
        yield FailedBy.GRANTS, sentence, {each.host for each in ends}


def _at_fault(ends: Iterable[Attempt], fault: Fault) -> set[str]:
    """Return the hosts of the ends that count towards this budget."""
    return {each.host for each in ends if each.fault is fault and not each.pardoned}


def backoff(failures: int, policy: Policy) -> float:
    """Return the seconds until a job that failed ``failures`` times may be tried again."""
    return _doubled(policy.backoff_s, failures, policy.backoff_max_s)


def _doubled(first_s: float, times: int, most_s: float) -> float:
    """Return the pause before the next try: ``first_s`` at first, doubled with each further try, at most ``most_s``."""
    return min(most_s, first_s * 2.0 ** min(times - 1, 30))


# ── running for too long ────────────────────────────────────────────────────────────────────


def heard_s(before_s: float | None, since_s: float, progress: Json | None, policy: Policy) -> float | None:
    """Return an attempt's training time after a heartbeat that came ``since_s`` after the one before; None if it no
    longer trains.

    The time between two heartbeats counts up to a third of a lease, in which a worker sends at least one: beyond that
    the host slept, the receiver was down, or the trainer was paused. While the trainer still fetches its data or waits
    for others, the result is 0.
    """
    if before_s is None:
        return None
    if (progress or {}).get("event") in ("fetch", "waiting"):  # for its data, or for others; nothing is trained yet
        return 0.0
    return before_s + min(max(0.0, since_s), policy.stale_after_s / 3)


def held_s(attempt: Attempt, since_s: float, policy: Policy) -> float:
    """Return for how long the host has had this attempt, after a heartbeat that came ``since_s`` after the one before.

    Whatever the host says, the time between two heartbeats counts up to a lease, beyond which an attempt is lost.
    """
    return attempt.held_s + min(max(0.0, since_s), policy.stale_after_s)


def overran(spec: Json, attempt: Attempt, policy: Policy) -> float | None:
    """Return the limit ``max_run_s`` if an attempt exceeded it so far that the receiver ends it, else None.

    Normally the worker ends an attempt at ``max_run_s``, because it knows the pauses and gives the trainer time to
    save. The receiver waits for a quarter of the limit more, at least for a third of a lease. Time in which the host
    says that it fetches, waits or delivers is not counted, up to ``fetch_max_s``.
    """
    limit = spec.get("max_run_s")
    if not isinstance(limit, int | float) or isinstance(limit, bool) or limit <= 0:
        return None
    most_s = limit + max(limit / 4, policy.stale_after_s / 3)
    trained = attempt.heard_s is not None and attempt.heard_s > most_s
    return limit if trained or attempt.held_s > most_s + policy.fetch_max_s else None


# ── late messages ───────────────────────────────────────────────────────────────────────────


def may_adopt(job: Job, attempt: Attempt) -> bool:
    """Return True if the finished work of a lost attempt may be accepted: its job is pending, and was neither granted
    nor requeued since."""
    return (
        job.status is JobStatus.PENDING
        and attempt.end_reason is EndReason.HOST_LOST
        and attempt.attempt == job.attempt
        and attempt.generation == job.generation
    )


def may_readopt(job: Job, attempt: Attempt, live: Iterable[Attempt], policy: Policy) -> bool:
    """Return True if a lost attempt may continue at its host's next heartbeat, which is allowed
    ``policy.max_readoptions`` times.

    ``live`` has the host's live attempts: if the same slot has another job, this heartbeat is only late.
    """
    went_on = attempt.session_id is not None and any(each.slot == attempt.slot for each in live)
    return may_adopt(job, attempt) and not went_on and attempt.readoptions < policy.max_readoptions


# ── silence ─────────────────────────────────────────────────────────────────────────────────


@frozen
class SilenceWatch:
    """A watch over the clocks, which decides if a host's silence counts: only silence that the receiver could observe
    does.

    After a start, a suspend or a step of the clock no attempt is ended for silence for one full lease: the silence may
    have been the receiver's own. ``wall`` and ``boot`` are the clocks at the last reading; ``no_sweep_before`` is the
    time on the boot clock before which no attempt is ended for silence.
    """

    wall: float
    boot: float
    no_sweep_before: float
    step_s: float = 0.0  # the wall clock's step found at this look; leases move along

    @classmethod
    def begin(cls, wall: float, boot: float, policy: Policy) -> SilenceWatch:
        return cls(wall, boot, boot + policy.stale_after_s)

    def look(self, wall: float, boot: float, policy: Policy) -> SilenceWatch:
        """Return the watch after another reading of both clocks."""
        step = self.step_until(wall, boot)
        stepped = abs(step) > policy.clock_step_s
        slept = boot - self.boot > 3 * policy.sweep_period_s
        no_sweep_before = boot + policy.stale_after_s if stepped or slept else self.no_sweep_before
        return replace(self, wall=wall, boot=boot, no_sweep_before=no_sweep_before, step_s=step if stepped else 0.0)

    def step_until(self, wall: float, boot: float) -> float:
        """Return by how many seconds the wall clock was set forward (or back: negative) since the last reading."""
        return (wall - self.wall) - (boot - self.boot)

    def watched_for(self, seconds: float, policy: Policy) -> bool:
        """Return True if the receiver has watched without a break for ``seconds``, or for a lease if that is
        shorter."""
        return self.boot >= self.no_sweep_before - max(0.0, policy.stale_after_s - seconds)

    @property
    def may_sweep(self) -> bool:
        return self.boot >= self.no_sweep_before
