"""Planted bugs: jobs that give way to urgent ones."""

from __future__ import annotations

from simulation.mutate import Mutant
from training.fleet.queue.choose import Chooser
from training.fleet.scheduling import interruption
from training.fleet.service.service import Service
from training.fleet.service.urgent import UrgentJobs
from training.fleet.worker.state import halts

_RULE = "test_fleet_interruption:test_"
_SERVICE = "test_fleet_urgent:test_"

URGENT_BUGS = (
    Mutant(
        "a job gives way that cannot go on elsewhere",
        interruption._may_give_way,
        "each.resumable",
        "True",
        seed=107,
    ),
    Mutant(
        "one urgent job gives way to another",
        interruption._may_give_way,
        "and not each.urgent",
        "and True",
        seed=143,
    ),
    Mutant(
        "a job of a higher priority gives way",
        interruption._may_give_way,
        "and each.priority <= job.priority",
        "and True",
        seed=95,
    ),
    Mutant(
        "a job gives way again and again",
        interruption._may_give_way,
        "min(each.asked_s, job.asked_s)",
        "job.asked_s",
        seed=215,
    ),
    Mutant(
        "an urgent job has one give way after the other",
        interruption._may_give_way,
        "min(each.asked_s, job.asked_s)",
        "each.asked_s",
        seed=215,
    ),
    Mutant(
        "a job gives way with its last grant",
        interruption._may_give_way,
        "and each.grants_left > 1",
        "and True",
        seen_by=_RULE + "nobody_gives_way_who_may_not",
    ),
    Mutant(
        "a place that was left for an urgent job is anybody's",
        Chooser.choose,
        "if each.host == host.name]",
        "if False]",
        seed=107,
    ),
    Mutant(
        "nobody is told to give way",
        Service._gives_way,
        "if attempt.gives_way_to is None or not self.may_grant:",
        "if True:",
        seed=107,
    ),
    Mutant(
        "a job is asked to give way on a host that gets none",
        UrgentJobs.due,
        "service.fleet(out=taken_out(queue.db, service.host_registry))",
        "service.fleet()",
        seen_by=_SERVICE + "a_host_that_gets_no_jobs_is_asked_for_nothing",
    ),
    Mutant(
        "a job gives way where one of a higher priority waits",
        UrgentJobs._behind,
        'row["priority"] > priority',
        "False",
        seen_by=_SERVICE + "nobody_gives_way_where_a_job_of_a_higher_priority_waits",
    ),
    Mutant(
        "a job that gave way pays for it",
        halts.handed_back,
        "EndReason.WORKER_SHUTDOWN",
        "EndReason.UPLOAD_FAILED",
        seed=107,
    ),
    Mutant(
        "a job gives way although an idle host is as fast",
        interruption.interruptions,
        "_done_s(job, each, policy) + policy.move_s < waiting_s",
        "True",
        seen_by=_RULE + "nobody_gives_way_where_waiting_is_as_good",
    ),
    Mutant(
        "two urgent jobs count on one place",
        interruption.interruptions,
        "places.take(job, by, begins_s)",
        "pass",
        seen_by=_RULE + "each_urgent_job_takes_its_place_before_the_next_is_looked_at",
    ),
)
