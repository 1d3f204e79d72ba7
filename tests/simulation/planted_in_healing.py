"""Planted bugs: sick hosts, jobs that crash hosts, memory that runs out, runs that end within moments."""

from __future__ import annotations

from simulation.mutate import Mutant
from training.fleet.queue.quarantine import Quarantines
from training.fleet.scheduling import policy, quarantine
from training.fleet.service.claims import Claims
from training.fleet.service.endings import Endings

HEALING_BUGS = (
    # ── sick hosts ──────────────────────────────────────────────────────────────────────────
    Mutant("a host that is taken out gets work", Claims._give, "if request.host_id in out:", "if False:", seed=44),
    Mutant("a sick host is not noticed", quarantine.sick, "if len(jobs) >= enough:", "if False:", seed=6),
    Mutant(
        "the same job thrice is enough",
        quarantine.sick,
        "jobs = {death.job_id for death in row if not death.pardoned_before}",
        "jobs = [death.job_id for death in row if not death.pardoned_before]",
        seed=4,
    ),
    Mutant("a job is believed for ever", quarantine.sick, "if not death.pardoned_before", "if death", seed=8),
    Mutant(
        "trainers that cannot start are nobody's fault",
        quarantine.sick,
        "if len(unstarted) == enough and",
        "if False and",
        seed=44,
    ),
    Mutant(
        "what goes well does not break the row", Quarantines.assess, "if weight is Weight.WELL:", "if False:", seed=292
    ),
    Mutant("jobs pay for what a sick host did", Quarantines.assess, "self._refund(claims)", "pass", seed=6),
    Mutant(
        "a pardon gives nothing back",
        quarantine.refund,
        "job.trainer_failures - faults.count(Fault.TRAINER)",
        "job.trainer_failures",
        seed=6,
    ),
    Mutant(
        "a job that a sick host failed stays failed",
        quarantine.refund,
        "or (own and not by_budget)",
        "or job.ended_by is not None",
        seed=7,
    ),
    Mutant(
        "a release does not let the host in",
        "end_quarantine",
        "WHERE host = :host AND ended_at IS NULL",
        "WHERE host = :host AND ended_at IS NOT NULL",
        seed=390,
    ),
    Mutant(
        "a host that is well again stays out",
        Quarantines.checked_in,
        'self.release(host, "a healthy report")',
        "return out",
        seed=19,
    ),
    # ── jobs that crash hosts ───────────────────────────────────────────────────────────────
    Mutant(
        "silence counts as a crash",
        quarantine.suspect_job,
        "if early and (each.crashed or (gone and not had_company(each)))",
        "if early",
        seed=154,
    ),
    Mutant("one host twice makes a suspect", quarantine.suspect_job, "and each.host not in hosts", "", seed=16),
    # ── memory ──────────────────────────────────────────────────────────────────────────────
    Mutant(
        "a job that ran out of memory is tried anywhere",
        Endings._widen,
        "self._queue.widen(job, needs)",
        "pass",
        seed=7,
    ),
    Mutant("as much memory as before is enough", policy.has_more_memory, "here <= above", "here < above", seed=0),
    Mutant(
        "a job is failed although somebody has more memory", quarantine.hopeless, "return None\n", "continue\n", seed=6
    ),
    Mutant(
        "a job waits though nobody has more memory",
        Endings._widen,
        "return quarantine.hopeless(needs, memory, hosts[host], hosts.values())",
        "return None",
        seed=0,
    ),
)
