"""Planted bugs: leases, orders, deliveries, signals, and what the worker's client makes of an answer."""

from __future__ import annotations

from simulation.mutate import Mutant
from training.fleet.client import answers, strangers
from training.fleet.client.client import FleetClient
from training.fleet.queue.attempts import Attempts
from training.fleet.service.endings import Endings
from training.fleet.service.output import keep_points
from training.fleet.service.uploads import Uploads
from training.fleet.wire.telemetry import Telemetry
from training.fleet.worker.outbox import Outbox
from training.fleet.worker.state import claims as worker_claims
from training.fleet.worker.state import heartbeats as worker_heartbeats
from training.fleet.worker.state import no_answer, step
from training.fleet.worker.state import reports as worker_reports
from training.fleet.worker.state import trainer as worker_trainer
from training.fleet.worker.state.state import StateStep

WORKER_BUGS = (
    # ── who is believed ─────────────────────────────────────────────────────────────────────
    Mutant("whoever answers is believed", strangers.stranger, "if shown is not None and", "if True or", seed=8),
    Mutant("another database is believed", strangers.stranger, "and wanted in (None, shown):", ":", seed=8),
    Mutant(
        "the database that granted is not noted",
        FleetClient._ask_once,
        "database_id=shown_by(came)",
        "database_id=None",
        seed=8,
    ),
    Mutant(
        "finished work is thrown away at the receiver's final word",
        StateStep.set_aside,
        "is not None",
        "is None",
        seen_by="test_fleet_set_aside:test_so_does_an_order_to_stop_and_a_cancel_while_it_is_packed",
    ),
    Mutant(
        "work that is brought by hand completes the generation before a requeue",
        Uploads.deliver,
        "(made.attempt, made.generation) != place",
        "made.attempt != again.attempt",
        seen_by="test_fleet_set_aside:test_work_by_hand_is_no_result_of_the_generation_before_a_requeue",
    ),
    Mutant(
        "work that is brought by hand is not counted as a grant", "deliver_job", "grants = grants + 1, ", "", seed=8
    ),
    # ── the worker ──────────────────────────────────────────────────────────────────────────
    Mutant(
        "the lease counts from the grant's arrival",
        worker_claims._granted,
        "renewed_at=transition.state.call_sent_at",
        "renewed_at=transition.now",
        seen_by="test_fleet_worker_state:test_claims_lease_counts_from_its_sending_too",
    ),
    Mutant(
        "the lease counts from the beat's answer",
        worker_heartbeats._renewed,
        "renewed_at=work.beat_sent_at",
        "renewed_at=transition.now",
        seen_by="test_fleet_worker_state:test_lease_counts_from_the_sending",
    ),
    Mutant(
        "no pause in silence",
        no_answer.pause_at,
        "return _unconfirmed_at(transition)",
        "return None and _unconfirmed_at(transition)",
        seed=18,
    ),
    Mutant(
        "a superseded worker goes on",
        worker_heartbeats.answered,
        "case t.CallRefused() if answer.problem_type in DROPS:",
        "case t.CallRefused() if False:",
        seed=2,
    ),
    Mutant(
        "a stop is not obeyed",
        worker_heartbeats.answered,
        "case t.HeartbeatAnswered() if answer.reply.action is Action.STOP:",
        "case t.HeartbeatAnswered() if False:",
        seed=12,
    ),
    Mutant(
        "a drop leaves the trainer running",
        StateStep.drop,
        "if self.phase in (Phase.RUNNING, Phase.STOPPING):",
        "if False:",
        seed=2,
    ),
    Mutant(
        "finished work is not on the disk",
        worker_trainer._packed,
        "transition.persist(t.Saved(delivery=delivery))",
        "pass",
        seed=0,
    ),
    Mutant(
        "a lost receipt ends the delivery",
        worker_reports.answered,
        "case t.NotAnswered():",
        "case t.NotAnswered() if transition.phase is Phase.COMPLETING:\n            transition.finish()\n"
        "        case t.NotAnswered():",
        seed=2,
    ),
    Mutant("a full disk is final", answers.verdict, "if status >= 500 or", "if status == 503 or", seed=148),
    Mutant(
        "a signal is not obeyed",
        step._signal,
        "transition.set(leave_by=transition.now + transition.settings.leave_s)",
        "pass",
        seed=8,
    ),
    Mutant(
        "a claim is asked anew after a lost answer",
        no_answer.claim,
        "transition.again_later(transition.settings.poll_s, answer.retry_after_s)",
        "transition.set(request_id=None)\n    transition.again_later(transition.settings.poll_s, answer.retry_after_s)",
        seed=0,
    ),
    # ── the outbox ──────────────────────────────────────────────────────────────────────────
    Mutant(
        "output that the end left behind is forgotten",
        StateStep.keep_output,
        "if backlog.first < backlog.total:",
        "if False:",
        seed=98,
    ),
    Mutant("a restart forgets undelivered output", step._begin, "for one in begin.backlog", "for one in ()", seed=45),
    Mutant(
        "a restart does not look how the trainer ended",
        step._begin,
        "if saved.held is not None and found.ended is None:",
        "if saved.held is not None:",
        seed=35,
    ),
    Mutant(
        "a lease lost while packing drops the work",
        worker_heartbeats.answered,
        "case t.CallRefused(problem_type=ProblemType.LEASE_SUPERSEDED) if transition.phase in FINISHED:",
        "case t.CallRefused(problem_type=ProblemType.LEASE_SUPERSEDED) if transition.phase == 'uploading':",
        seen_by="test_fleet_worker_state:test_lease_that_is_lost_while_packing_drops_nothing",
    ),
    Mutant(
        "how a job failed is not on the disk", StateStep.fail, "self.persist(t.Saved(report=report))", "pass", seed=196
    ),
    Mutant(
        "a report counts more lines as delivered than it took along",
        Telemetry.after,
        "return self.first + len(self.lines or ())",
        "return self.first + 2 * len(self.lines or ())",
        seed=461,
    ),
    Mutant(
        "what was printed unseen is not looked for", Outbox._catch_up, "source = Path(spool.source)", "return", seed=44
    ),
    Mutant(
        "the position of a look is not put down",
        Outbox._write,
        "_line([spool.position, spool.unwritten])",
        "_line([0, spool.unwritten])",
        seed=98,
    ),
    Mutant(
        "a trainer that hangs is left alone",
        worker_trainer._measured,
        "elif most_quiet_s and quiet_s >= most_quiet_s:",
        "elif False:",
        seen_by="test_fleet_worker_owner:test_a_trainer_that_neither_speaks_nor_computes_is_stopped",
    ),
    Mutant(
        "late output is taken for a sign of life of the claim",
        Endings.output,
        "return OutputReply(",
        "self._queue.readopt(*self._fleet.claimed(job_id, request.claim_id, request.host_id))\n    return OutputReply(",
        seed=0,
    ),
    Mutant(
        "epochs are kept only while the attempt lives",
        keep_points,
        "queue.curves.add(",
        "attempt.live and queue.curves.add(",
        seed=1,
    ),
    Mutant(
        "output is kept once more when it comes again",
        Attempts.append_log,
        "start = max(first, attempt.log_next)",
        "start = first",
        seed=0,
    ),
)
