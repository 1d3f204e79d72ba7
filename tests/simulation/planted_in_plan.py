"""Planted bugs: what a reload takes over, what undo undoes, what is kept of a grant."""

from __future__ import annotations

from simulation.mutate import Mutant
from training.fleet.queue.jobs import JobQueue
from training.fleet.service import catalogue
from training.fleet.service.service import Service

PLAN_BUGS = (
    Mutant(
        "a reload leaves finished jobs as they were",
        JobQueue._sync_one,
        'if (known["name"], known["spec"]) != (name, text):',
        'if known["status"] in ("pending", "claimed", "running") and known["spec"] != text:',
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
        JobQueue._sync_one,
        "if self._require(job_id).cancelled_as_removed:",
        "if False:",
        seed=2,
    ),
    Mutant(
        "a reload brings back what was cancelled by name",
        JobQueue._sync_one,
        "if self._require(job_id).cancelled_as_removed:",
        "if self._require(job_id).status is JobStatus.CANCELLED:",
        seed=0,
    ),
    Mutant(
        "nothing is kept of a grant",
        JobQueue._write_grant,
        "granted=granted(job),",
        "granted=None,",
    ),
    Mutant(
        "provenance says what the plan says",
        catalogue.provenance_of,
        "job = job.granted(attempt)",
        "pass",
        seed=8,
    ),
    Mutant(
        "a repeated claim is answered with the newest plan",
        Service._repeat,
        "Grant(job.granted(attempt), attempt)",
        "Grant(job, attempt)",
        seed=54,
    ),
)
