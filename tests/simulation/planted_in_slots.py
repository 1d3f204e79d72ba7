"""Planted bugs: several jobs on one host."""

from __future__ import annotations

from simulation.mutate import Mutant
from training.fleet.scheduling import booking, job, policy, threads
from training.fleet.service.claims import Claims
from training.fleet.worker import start_check
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
        seen_by="test_fleet_policy:test_a_host_trains_no_more_jobs_than_it_has_slots",
        also=Mutant(
            "a worker asks for a job more than it may train",
            slots._Turn._has_room,
            "len(training) >= self.slots.allowed",
            "len(training) > self.slots.allowed",
        ),
    ),
    Mutant("a reserve is ignored", job._less, "return max(0.0, free - kept) if kept else free", "return free", seed=77),
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
        seed=104,
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
        "a host of one slot waits until its last bundle is delivered",
        slots._Turn._has_room,
        "if self.slots.told is None or",
        "if self.slots.told in (None, 1) or",
        seen_by=_SEES + "a_host_of_one_slot_takes_the_next_job_while_it_packs_and_uploads_the_last",
    ),
    Mutant(
        "an older receiver is asked while work is in hand",
        slots._Turn._asker,
        "if len(machines) == 1 and (self.slots.told is None or machines[0][1].work is None):",
        "if len(machines) == 1 and machines[0][1].work is None:",
        also=Mutant(
            "and there is room",
            slots._Turn._has_room,
            "return not works",
            "return not training",
        ),
        seen_by=_SEES + "an_older_receiver_that_names_no_number_is_asked_when_nothing_is_in_hand",
    ),
    Mutant(
        "a crash that was told of stays on the disk of another slot",
        slots._Turn._named,
        "slot != asking and one.work is None",
        "False and slot != asking and one.work is None",
        seen_by=_SEES + "a_crash_of_several_makes_none_a_suspect_and_each_is_tried_alone",
    ),
    Mutant(
        "cores that are booked count as free",
        booking.beside,
        "- sum(each.booking.cores for each in live)",
        "",
        seen_by="test_fleet_booking:test_a_job_that_waits_for_room_keeps_others_from_taking_it",
    ),
    Mutant(
        "memory that neighbours are booked for and have not taken yet is given away",
        booking._left,
        "coming = sum(max(0.0, most - used) for most, used in booked)",
        "coming = 0.0",
        seen_by="test_fleet_booking:test_what_others_take_is_off_what_is_left",
    ),
    Mutant(
        "memory is given away twice while it looks free",
        booking._left,
        "min(total - sum(most for most, _ in booked), free - coming)",
        "free",
        seen_by="test_fleet_booking:test_of_two_that_need_the_last_gib_one_gets_it",
    ),
    Mutant(
        "a GPU is booked twice",
        booking._gpu_for,
        "if left.gib + _EDGE_GIB >= (wanted.vram_gib if left.jobs else needs.min_vram_gib)",
        "if True",
        seen_by="test_fleet_booking:test_jobs_share_a_gpu_when_its_memory_allows_and_cpu_jobs_run_beside",
    ),
    Mutant(
        "an owner's reserve of a GPU is booked",
        job.Host.of,
        "gpus.append(Gpu(_less(free, keep_vram), _less(max(whole, free), keep_vram)))",
        "gpus.append(Gpu(free, max(whole, free)))",
        seen_by="test_fleet_booking:test_a_reserve_is_off_each_gpu",
    ),
    Mutant(
        "a worker does not look again whether there is memory",
        start_check.check,
        "if others and isinstance(free, int | float) and free - coming < booked.least_ram_gib:",
        "if False:",
        seen_by="test_fleet_room:test_memory_is_looked_at_again",
    ),
    Mutant(
        "a worker does not look again whether its GPU has memory",
        start_check.check,
        "if isinstance(free, int | float) and free - coming < booked.least_vram_gib:",
        "if False:",
        seen_by="test_fleet_room:test_the_memory_of_a_gpu_is_looked_at_again",
    ),
    Mutant(
        "an attempt that was given up for lost comes back to a place that is taken",
        booking.takes_back,
        "return (\n",
        "return True or (\n",
        seen_by="test_fleet_service:test_an_attempt_comes_back_only_where_its_place_is_still_there",
    ),
    Mutant(
        "a job that goes on after a silence is given to the same host again",
        Claims._goes_on,
        "(*request.delivering, *training)",
        "(*request.delivering,)",
        seen_by="test_fleet_service:test_what_goes_on_is_not_given_again_to_the_host_that_trains_it",
    ),
    Mutant(
        "narrow jobs pass a wide one that waits for room",
        booking.goes_before,
        "return fits and not uses_gpu(needs, host)",
        "return True",
        seen_by="test_fleet_service:test_a_job_that_waits_for_room_is_not_passed_by_those_behind_it",
    ),
    Mutant(
        "a restarted worker does not know any more who must train alone",
        slots._Turn.take,
        "alone=event.alone[-ALONE_KEPT:]",
        "alone=()",
        seen_by=_SEES + "a_job_to_be_trained_alone_is_known_after_a_restart",
    ),
    Mutant(
        "a job goes on with other threads, and its saved state is of no use",
        threads.threads_for,
        "if 0 < before <= free:",
        "if False:",
        seen_by="test_fleet_service:test_a_job_goes_on_with_as_many_threads_as_before",
    ),
)
