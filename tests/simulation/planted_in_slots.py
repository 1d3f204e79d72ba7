"""Planted bugs: several jobs on one host."""

from __future__ import annotations

from simulation.mutate import Mutant
from training.fleet.scheduling import job, policy
from training.fleet.worker.state import claims, slots, trainer
from training.fleet.worker.state_folder import prune

_SEES = "test_fleet_worker_slots:test_"

SLOT_BUGS = (
    Mutant(
        "a slot writes into another one's file",
        slots._Turn._pass_on,
        "self.actions.append(replace(action, slot=slot))",
        "self.actions.append(replace(action, slot=0))",
        seed=50,
    ),
    Mutant(
        "a host gets a job more than it has slots",
        policy.is_full,
        "if training < most and",
        "if training < most + 1 and",
        seed=59,
        also=Mutant(
            "a worker asks for a job more than it may train",
            slots._Turn._has_room,
            "len(training) >= self.slots.allowed",
            "len(training) > self.slots.allowed",
        ),
    ),
    Mutant("a reserve is ignored", job._less, "return max(0.0, free - kept) if kept else free", "return free", seed=65),
    Mutant(
        "each of several jobs that a crash found together is a suspect",
        slots._Turn._begin,
        "if len(lost) > 1:",
        "if False:",
        seed=68,
    ),
    Mutant(
        "memory that others used up counts as a want of more",
        trainer._had_company,
        "return beside_at is not None and",
        "return beside_at is not None and False and",
        seed=89,
    ),
    Mutant(
        "a job comes again while its last attempt is in hand",
        slots._Turn._must_wait,
        "if any(work.assignment.job_id == job_id for work in others.values()):",
        "if False:",
        seen_by=_SEES + "a_job_that_came_again_waits_for_its_last_attempt_here",
    ),
    Mutant(
        "the attempts in hand are pruned",
        prune,
        "if folder.name in kept:",
        "if False:",
        seed=113,
    ),
    Mutant(
        "what is delivered counts as what trains",
        slots.Slots.delivering.fget,
        "if one.work is not None and one.phase not in WITH_TRAINER",
        "if False",
        seen_by=_SEES + "what_is_packed_takes_no_slot_and_is_named",
    ),
    Mutant(
        "a claim that may have been granted is forgotten for want of room",
        claims.ask,
        "unanswered=True",
        "unanswered=False",
        seen_by=_SEES + "a_claim_without_an_answer_is_repeated_though_there_is_no_room_any_more",
    ),
    Mutant(
        "a job that has to be alone has company",
        slots._Turn._has_room,
        "return not full and not any(map(self._is_alone, training))",
        "return not full",
        seen_by=_SEES + "a_job_to_be_trained_alone_waits_for_the_others_and_keeps_others_out",
    ),
    Mutant(
        "finished work piles up",
        slots._Turn._has_room,
        "len(works) >= (1 + PENDING_SHARE) * self.slots.allowed",
        "False",
        seen_by=_SEES + "a_network_that_is_slow_lets_no_more_than_two_deliveries_a_slot_pile_up",
    ),
    Mutant(
        "a crash that was told of stays on the disk of another slot",
        slots._Turn._named,
        "slot != asking and one.work is None",
        "False and slot != asking and one.work is None",
        seen_by=_SEES + "a_crash_of_several_makes_none_a_suspect_and_each_is_tried_alone",
    ),
)
