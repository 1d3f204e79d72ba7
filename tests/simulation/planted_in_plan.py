"""Planted bugs: what a reload takes over, what undo undoes, what is kept of a grant."""

from __future__ import annotations

from simulation.mutate import Mutant
from training.fleet.queue import plan_diff
from training.fleet.queue.jobs import JobQueue
from training.fleet.queue.plan_write import PlanWrite
from training.fleet.scheduling import edits
from training.fleet.service import catalogue
from training.fleet.service.claims import Claims

PLAN_BUGS = (
    Mutant(
        "a reload leaves finished jobs as they were",
        plan_diff.judged,
        "    return change(job() if callable(job) else job, spec, same=same)",
        "    job = job() if callable(job) else job\n"
        "    return change(job, spec, same=same or job.status in ('completed', 'failed'))",
    ),
    Mutant("a reload keeps names", "amend_job", "SET name = :name, spec", "SET spec", seed=22),
    Mutant(
        "a job that left comes back unplanned",
        "mark_in_manifest",
        "SET in_manifest = 1",
        "SET in_manifest = in_manifest",
        seed=19,
    ),
    Mutant(
        "what was cancelled as it had left stays so",
        edits.change,
        "not job.in_manifest and job.cancelled_as_removed",
        "False",
        seed=2,
    ),
    Mutant(
        "a reload brings back what was cancelled by name",
        edits.change,
        "not job.in_manifest and job.cancelled_as_removed",
        "job.status is JobStatus.CANCELLED",
        seed=76,
    ),
    Mutant(
        "a half-written plan is granted",
        PlanWrite._row,
        "self._edition, spec",
        "self._edition - 1, spec",
        seen_by="test_fleet_queue:test_a_plan_that_is_written_in_parts_is_granted_as_a_whole",
    ),
    Mutant("nothing is kept of a grant", JobQueue._write_grant, "granted=granted(job),", "granted={},"),
    Mutant("provenance says what the plan says", catalogue.provenance_of, "job = job.granted(attempt)", "pass", seed=8),
    Mutant(
        "a repeated claim is answered with the newest plan",
        Claims._repeat,
        "GrantedJob(job.granted(attempt), attempt)",
        "GrantedJob(job, attempt)",
        seen_by="test_fleet_plan_edits:test_a_repeated_claim_is_answered_with_what_was_granted",
    ),
)
