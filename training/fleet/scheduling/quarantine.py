"""PURE: decide whether a host goes into quarantine, whether a job fails because it crashes hosts, and which failures
stop counting against a job.

Without these rules, a broken host could fail one job after the other, and a bad job could crash one host after the
other. By default, a host is at fault if, in a row, three different jobs die there soon after their start or are refused
by it alone, or three trainers cannot be started. By default, a job is at fault if two hosts crash in its first minutes.
The numbers are settings (:class:`policy.Policy`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from training.fleet.scheduling.job import Attempt, EndReason, FailedBy, Fault, Host, Job, Needs
from training.fleet.scheduling.policy import LastWord, Policy, fits_for_good, verdict
from training.frozen import frozen

RAM, VRAM = "ram", "vram"  # kinds of memory


class Cause(StrEnum):
    """The cause of a host's quarantine."""

    DEATHS = "deaths"  # ends by an operator's release
    SELF_TEST = "self_test"  # ends by a healthy report


@frozen
class Quarantine:
    """The quarantine of a host: the host gets no jobs, though its running ones continue."""

    host: str
    since: float
    cause: Cause
    reason: str

    def sentence(self) -> str:
        """Return words for an operator that continue "the host is …": why it is in quarantine, and the remedy."""
        return f"quarantined: {self.reason}; {self.remedy}"

    @property
    def remedy(self) -> str:
        if self.cause is Cause.SELF_TEST:
            return "it is released automatically when that is fixed"
        return f"look there, then `cis490-jobs release {self.host}`"


def complaint(capability: Mapping[str, object]) -> str | None:
    """Return the fault that an unhealthy host reports about itself; None if it is healthy, or reports nothing."""
    if capability.get("healthy") is not False:
        return None
    said = capability.get("unhealthy_because")
    return _headline(said) if isinstance(said, str) and said.strip() else "its self-test failed"


# ── a host's health ─────────────────────────────────────────────────────────────────────────


class Weight(StrEnum):
    """The effect of an attempt's end on the judgement of its host: for it, against it, or none."""

    AGAINST = "against"  # it died at once
    WELL = "well"  # trainers run here
    NOTHING = "nothing"


@frozen
class Death:
    """An attempt whose end counts against its host."""

    job_id: str
    name: str
    attempt: int
    reason: EndReason
    error: str
    pardoned_before: bool  # this job's death was counted once; if it dies again, the job is at fault


def assess(attempt: Attempt, policy: Policy, *, waits: bool = False) -> Weight:
    """Decide whether an attempt's end counts for or against its host; ``waits`` is True if its job is pending again.

    The loss of a host counts neither way, because the true running time is unknown. A refusal (the trainer says that
    its arguments or data are wrong) counts against the host if the job is pending again, for another host to confirm
    the refusal. Any other end counts for the host if the job was completed, or if the trainer ran for
    ``policy.odd_death_s``. An earlier end counts against the host if the trainer could not be started, or if it failed
    without a refusal and without running out of memory. All other early ends count neither way.
    """
    reason = attempt.end_reason
    if reason is EndReason.COMPLETED:
        return Weight.WELL
    if reason is EndReason.HOST_LOST:
        return Weight.NOTHING  # its true running time is unknown
    if attempt.refused and waits:
        return Weight.AGAINST
    if (attempt.lived_s or 0.0) >= policy.odd_death_s:
        return Weight.WELL
    if attempt.refused:
        return Weight.NOTHING
    odd = reason in (EndReason.SPAWN_FAILED, EndReason.TRAINER_FAILED) and attempt.out_of_memory is None
    return Weight.AGAINST if odd else Weight.NOTHING


def sick(row: Sequence[Death], policy: Policy) -> str | None:
    """Return why a host must be quarantined after these consecutive deaths, oldest first; None if it need not be."""
    enough = policy.odd_deaths
    if not enough or not row:
        return None
    last = f"the last was {row[-1].name}: {_headline(row[-1].error)}"
    unstarted = row[-enough:]
    if len(unstarted) == enough and all(d.reason is EndReason.SPAWN_FAILED for d in unstarted):
        return f"{enough} trainers in a row could not be started; {last}"
    jobs = {death.job_id for death in row if not death.pardoned_before}
    if len(jobs) >= enough:
        at_once = f"died within {policy.odd_death_s:.0f} s of their start"
        return f"{len(jobs)} different jobs in a row {at_once}, or were refused here alone; {last}"
    return None


def _headline(error: str) -> str:
    line = error.partition("\n")[0].strip()
    return line if len(line) <= 300 else line[:299] + "…"


@frozen
class Refund:
    """The outcome of a refund: a job's remaining failures and losses, whether the job may be pending again, and the
    verdict on the job that is left."""

    trainer_failures: int
    host_losses: int
    waits: bool
    alone: LastWord | None = None


def refund(
    job: Job,
    died: Sequence[Attempt],
    ends: Sequence[Attempt],
    policy: Policy,
    others: Callable[[str], bool] = lambda _host: False,
) -> Refund:
    """Return the failures and losses of ``job`` without those of the attempts ``died``, and if the job may be pending
    again. ``ends`` has all attempts of the job's generation; those in ``died`` are pardoned there.

    A failed job may be pending again unless something else would have failed it as well.
    """
    faults = [each.fault for each in died]
    failures = max(0, job.trainer_failures - faults.count(Fault.TRAINER))
    losses = max(0, job.host_losses - faults.count(Fault.INFRASTRUCTURE))
    own = bool(ends) and ends[-1].claim_id not in {each.claim_id for each in died}
    own = own and job.avoid_host not in {each.host for each in died}
    if job.failed_by is not None and job.failed_by.lasts:  # who said it first may have been followed by a hand-back
        own = own and any((each.refused or each.out_of_memory) and not each.pardoned for each in ends)
    by_budget = job.failed_by in (FailedBy.FAILURES, FailedBy.LOSSES)
    left = replace(job, trainer_failures=failures, host_losses=losses)
    word = verdict(left, ends, policy, others)
    waits = (word is None or word.host is not None) and (by_budget or not own)
    return Refund(failures, losses, waits=waits, alone=word)


# ── a job that crashes hosts ────────────────────────────────────────────────────────────────


def suspect_job(
    attempts: Iterable[Attempt],
    last_seen: Mapping[str, float],
    now: float,
    policy: Policy,
    had_company: Callable[[Attempt], bool] = lambda _: False,
) -> str | None:
    """Return why a job with these attempts (of one generation) is suspected to crash hosts and must fail; None if it is
    not.

    A host counts only if its attempt was lost within ``policy.suspect_s`` of the grant and is not pardoned. For a host
    to count, its worker must also have reported a crash later, or the host must have been silent ever since, for more
    than ``policy.gone_s``. A shorter silence proves nothing: the host may sleep, or its network may be down. If
    ``had_company`` returns True, the host trained other jobs too; then only a reported crash counts.
    """
    hosts: list[str] = []
    for each in attempts:
        lost = each.end_reason is EndReason.HOST_LOST and not each.pardoned
        if not lost:
            continue
        assert each.ended_at is not None
        seen = last_seen.get(each.host, 0.0)
        gone = seen <= each.ended_at and now - each.ended_at > policy.gone_s
        early = each.lived_s is not None and 0 <= each.lived_s <= policy.suspect_s
        if early and (each.crashed or (gone and not had_company(each))) and each.host not in hosts:
            hosts.append(each.host)
    if not policy.suspect_crashes or len(hosts) < policy.suspect_crashes:
        return None
    named = ", ".join(hosts[:-1]) + f" and {hosts[-1]}" if len(hosts) > 1 else hosts[0]
    return (
        f"suspect_job: {named} crashed within {policy.suspect_s / 60:.0f} minutes of taking it on; "
        "look at what it does to a host, then requeue it"
    )


# ── memory ──────────────────────────────────────────────────────────────────────────────────


_HIDDEN_GIB = 0.1  # when the trainer found a GPU that the plan hides (`cuda = false`)


def wants_more(needs: Needs, ran_out_of: str, there: Host) -> Needs:
    """Return the needs of a job that ran out of memory on the host ``there``, raised to more memory than that host has
    in total."""
    if ran_out_of == VRAM:
        had = there.vram_total_gib or _HIDDEN_GIB
        return replace(needs, vram_above_gib=max(needs.vram_above_gib, had))
    return replace(needs, ram_above_gib=max(needs.ram_above_gib, there.ram_total_gib))


def hopeless(needs: Needs, ran_out_of: str, there: Host, hosts: Iterable[Host]) -> str | None:
    """Return a sentence if no known host can take a job with these raised needs any more; else None."""
    for host in hosts:
        if fits_for_good(needs, host) is None and (host.cuda or not needs.require_cuda):
            return None
    kind, had = ("GPU memory", there.vram_total_gib) if ran_out_of == VRAM else ("memory", there.ram_total_gib)
    return (
        f"out_of_memory: it ran out of {kind} on {there.name} ({had:.1f} GiB in all), and no known host that may run "
        "it has more; make the job smaller, or bring a larger host and requeue it"
    )
