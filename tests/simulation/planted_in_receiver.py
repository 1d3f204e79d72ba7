"""Planted bugs: who may act, who is granted what, ends, budgets, orders, time."""

from __future__ import annotations

from simulation.mutate import Mutant
from training.fleet.queue.choose import _Asking
from training.fleet.queue.jobs import JobQueue
from training.fleet.scheduling import policy
from training.fleet.scheduling.copies import SessionLine
from training.fleet.scheduling.policy import SilenceWatch
from training.fleet.service.claims import Claims
from training.fleet.service.endings import Endings, delivering
from training.fleet.service.fleet import FleetState
from training.fleet.service.heartbeats import Heartbeats
from training.fleet.service.sessions import HostSessions

RECEIVER_BUGS = (
    # ── who may act ─────────────────────────────────────────────────────────────────────────
    Mutant(
        "accept any complete",
        Endings.complete,
        "if not attempt.live and not rules.may_adopt(job, attempt):",
        "if False:",
        seed=2,
        also=Mutant("", delivering, "raise ended(attempt)", "pass"),
    ),
    Mutant("a dead claim's heartbeat counts", Heartbeats.heartbeat, "raise ended(attempt)", "pass", seed=2),
    Mutant("accept any fail", Endings.fail, "if not attempt.live:", "if False:", seed=4),
    Mutant("accept any upload", delivering, "raise ended(attempt)", "pass", seed=2),
    Mutant(
        "the heartbeat of a claim renews every job of its host",
        "beat_job",
        "WHERE job_id = :job_id AND claim_id = :claim_id",
        "WHERE (job_id = :job_id AND claim_id = :claim_id) OR (status IN ('claimed', 'running') AND job_id > :job_id)",
        seed=1,
    ),
    Mutant(
        "adopt whatever ended",
        policy.may_adopt,
        "and attempt.end_reason is EndReason.HOST_LOST",
        "and not attempt.live",
        seed=33,
        also=Mutant(
            "",
            "readopt_attempt",
            "WHERE claim_id = :claim_id AND end_reason = 'host_lost'",
            "WHERE claim_id = :claim_id",
        ),
    ),
    Mutant(
        "adopt an attempt that is not the last",
        policy.may_adopt,
        "and attempt.attempt == job.attempt",
        "and True",
        seed=73,
    ),
    Mutant("adopt across a requeue", policy.may_adopt, "and attempt.generation == job.generation", "and True", seed=8),
    Mutant(
        "readopt for ever", policy.may_readopt, "and attempt.readoptions < policy.max_readoptions", "and True", seed=77
    ),
    Mutant("adopt from any state", policy.may_adopt, "job.status is JobStatus.PENDING", "True", seed=2),
    # ── granting ────────────────────────────────────────────────────────────────────────────
    Mutant("reuse the attempt's number", "grant", "attempt = attempt + 1", "attempt = max(attempt, 1)", seed=1),
    Mutant("skip an attempt's number", "grant", "attempt = attempt + 1", "attempt = attempt + 2", seed=0),
    Mutant(
        "a claim's repetition is a new claim",
        Claims._asked_before,
        "if request.request_id is None:",
        "if True:",
        seed=22,
    ),
    Mutant(
        "a repeated claim is told of a whole lease",
        Claims._repeat,
        "self._remaining_s(job)",
        "self._policy.stale_after_s",
        seed=0,
    ),
    Mutant("a repeated claim is answered though it ended", Claims._repeat, "if not attempt.live:", "if False:", seed=2),
    Mutant(
        "no guard of the installation",
        HostSessions.guard_identity,
        "if known.instance_id != request.instance_id:",
        "if False:",
        seed=432,
    ),
    Mutant(
        "an older session may claim",
        SessionLine.ask,
        "began_before = older(session, self.current)",
        "began_before = False",
        seed=79,
    ),
    Mutant(
        "a session that was succeeded takes over again", SessionLine.ask, "not (seen or began_before)", "True", seed=24
    ),
    Mutant("who asks twice is a copy", SessionLine.ask, "if echo == self.round:", "if echo is not None:", seed=2),
    Mutant(
        "a new session is a copy of the last one",
        SessionLine._open,
        "self.round, self.alive = new_round, set()",
        "self.round = new_round",
        seed=46,
    ),
    Mutant(
        "a claim found on a copied disk is not taken from who asked before",
        Claims._repeat_after_a_crash,
        "self._queue.attempts.hand_on(attempt, request.session_id)",
        "pass",
        seen_by="test_fleet_copies:two_with_one_request",
    ),
    Mutant(
        "a new session leaves the old one's claims",
        Claims._end_older_sessions,
        "if request.session_id is None or request.instance_id is None:",
        "if True:",
        seed=0,
    ),
    Mutant("every job fits every host", policy.fits, "return fits_alone", "return None  # fits_alone", seed=0),
    Mutant(
        "a host gets as many jobs as it asks for",
        Claims._give,
        "if full is not None:",
        "if False:",
        seen_by="test_fleet_service:test_a_host_of_two_cores_holds_two_jobs_and_is_told_why_not_three",
    ),
    Mutant("no grace for prefer_cuda", policy.hold, "if needs.prefer_cuda and", "if False and", seed=4),
    Mutant("low priority first", policy.rank, "return (-priority,", "return (priority,", seed=300),
    Mutant("no back-off", _Asking._head, "if wait_s <= 0:", "if True:", seed=4),
    # ── ends and budgets ────────────────────────────────────────────────────────────────────
    Mutant("no budget for trainers", policy._end_of_budget, "failures >= policy.max_attempts", "False", seed=11),
    Mutant("no budget for hosts", policy._end_of_budget, "losses >= policy.max_host_losses", "False", seed=2),
    Mutant("no budget of grants", policy._end_of_budget, "job.grants >= policy.max_grants", "False", seed=18),
    Mutant(
        "bad data is tried again",
        policy._end_of_budget,
        "exit_code in FINAL_EXITS",
        "False",
        seen_by="test_fleet_policy:test_bad_arguments_and_bad_data_are_never_retried",
    ),
    Mutant(
        "one budget for both",
        policy.settle,
        "losses = job.host_losses + (fault is Fault.INFRASTRUCTURE)",
        "losses = job.host_losses + (fault is not Fault.NOBODY)",
        seed=0,
    ),
    Mutant(
        "a hand-back costs",
        policy.settle,
        "losses = job.host_losses + (fault is Fault.INFRASTRUCTURE)",
        "losses = job.host_losses + (fault is not Fault.TRAINER)",
        seed=1,
    ),
    Mutant(
        "readoption keeps the loss",
        "readopt_job",
        "SELECT 1 - a.pardoned FROM",
        "SELECT 0 FROM",
        seed=14,
    ),
    Mutant("what was pardoned stays so when it lives again", "readopt_attempt", ", pardoned = 0", "", seed=16372),
    Mutant(
        "adoption keeps the loss",
        "adopt_job",
        "SELECT 1 - a.pardoned FROM",
        "SELECT 0 FROM",
        seed=40,
    ),
    Mutant("a requeue keeps the budgets", "requeue_job", "trainer_failures = 0, host_losses = 0, ", "", seed=17),
    Mutant(
        "a requeue keeps the generation",
        "requeue_job",
        "generation = generation + 1",
        "generation = generation",
        seed=43,
    ),
    # ── the operator ────────────────────────────────────────────────────────────────────────
    Mutant(
        "a cancel is dropped when a worker is at it",
        JobQueue.cancel,
        "if job is None or not",
        "if job is not None and job.status in LIVE:\n            return True\n        if job is None or not",
        seed=5,
    ),
    Mutant("a cancel leaves the attempt alive", JobQueue.cancel, "if attempt is not None:", "if False:", seed=5),
    Mutant(
        "a cancel goes back to pending",
        "cancel_job",
        "SET status = 'cancelled', claim_id = NULL, finished_at = :now",
        "SET status = 'pending', claim_id = NULL, finished_at = NULL",
        seed=0,
    ),
    Mutant(
        "a held job is granted",
        "head",
        "FROM waiting\nWHERE",
        "FROM jobs\nWHERE status = 'pending' AND",
        also=Mutant(
            "",
            "grant",
            "AND held_at IS NULL",
            "",
            also=Mutant("", "pending_classes", "FROM waiting WHERE", "FROM jobs WHERE status = 'pending' AND"),
        ),
        seed=2,
    ),
    Mutant(
        "a requeue forgets the hold",
        "requeue_job",
        "SET status = 'pending', claim_id = NULL",
        "SET status = 'pending', held_by = NULL, held_at = NULL, claim_id = NULL",
        seed=2,
    ),
    Mutant(
        "a job that comes back is held no more",
        "settle_job",
        "SET status = :status, claim_id = NULL",
        "SET status = :status, held_by = NULL, held_at = NULL, claim_id = NULL",
        seed=16,
    ),
    Mutant(
        "a reload lets go what is held",
        "amend_job",
        "SET name = :name",
        "SET held_by = NULL, held_at = NULL, name = :name",
        seed=2,
    ),
    Mutant(
        "a hold of a live job is forgotten",
        JobQueue.hold,
        "if job is None or job.held:",
        "if job is None or job.held or job.status in LIVE:",
        seed=3,
    ),
    Mutant("a requeue leaves the attempt alive", JobQueue.requeue, "if attempt is not None:", "if False:", seed=43),
    Mutant(
        "a reload forgets what it does not name",
        "mark_removed",
        "UPDATE jobs SET in_manifest = 0",
        "DELETE FROM jobs",
        seed=0,
    ),
    # ── events ──────────────────────────────────────────────────────────────────────────────
    Mutant(
        "a sweep writes no event",
        JobQueue.settle,
        "self.events.moved(settled.transition",
        "settled.transition == 'sweep' or self.events.moved(settled.transition",
        seed=0,
    ),
    # ── time ────────────────────────────────────────────────────────────────────────────────
    Mutant(
        "a lease is reckoned by a clock that just stepped",
        Claims._remaining_s,
        "if abs(step) > self._policy.clock_step_s:",
        "if False:",
        seen_by="test_fleet_service:test_nothing_is_promised_by_a_clock_that_stepped_a_moment_ago",
    ),
    Mutant("leases never end", FleetState.tick, "if watch.may_sweep else 0", "if False else 0", seed=4),
    Mutant("sweep without observed time", FleetState.tick, "if watch.may_sweep else 0", "if True else 0", seed=0),
    Mutant("sweep at once after a start", SilenceWatch.begin, "boot + policy.stale_after_s", "boot", seed=51),
    Mutant("sweep at once after a sleep", SilenceWatch.look, "if stepped or slept", "if stepped", seed=0),
    Mutant("sweep at once after a step of the clock", SilenceWatch.look, "if stepped or slept", "if slept", seed=2),
    Mutant("leases do not move with the clock", FleetState.tick, "if step:", "if False:", seed=32),
    Mutant(
        "half a lease is enough",
        JobQueue.sweep_stale,
        "before = self.clock.now() - lease",
        "before = self.clock.now() - lease / 2",
        seed=2,
    ),
)
