"""Planted bugs: leases, orders, deliveries, signals, and what the worker's client makes of an answer."""

from __future__ import annotations

from sim.mutate import Mutant
from training.fleet import client_answers as answers
from training.fleet import worker_beats, worker_claims, worker_reports, worker_state, worker_trainer
from training.fleet.worker_turn import Turn

WORKER_BUGS = (
    # ── the worker ──────────────────────────────────────────────────────────────────────────
    Mutant(
        "the lease counts from the grant's arrival",
        worker_claims._granted,
        "renewed_at=turn.state.call_sent_at",
        "renewed_at=turn.now",
        seed=324,
    ),
    Mutant(
        "the lease counts from the beat's answer",
        worker_beats._renewed,
        "renewed_at=work.beat_sent_at",
        "renewed_at=turn.now",
        seed=307,
    ),
    Mutant(
        "no pause in silence",
        worker_beats.silence_at,
        "return turn.work.renewed_at",
        "return None and turn.work.renewed_at",
        seed=9,
    ),
    Mutant(
        "a superseded worker goes on",
        worker_beats.answered,
        "case t.Refused() if answer.slug in DROPS:",
        "case t.Refused() if False:",
        seed=2,
    ),
    Mutant(
        "a stop is not obeyed",
        worker_beats.answered,
        'turn.drop("the job was cancelled")',
        "pass",
        seed=0,
    ),
    Mutant(
        "a drop leaves the trainer running",
        Turn.drop,
        "if self.phase in (Phase.RUNNING, Phase.STOPPING):",
        "if False:",
        seed=0,
    ),
    Mutant(
        "finished work is not on the disk",
        worker_trainer._packed,
        "turn.persist(t.Saved(delivery=delivery))",
        "pass",
        seed=0,
    ),
    Mutant(
        "a restart forgets finished work",
        worker_state._begin,
        "if saved.delivery is not None:",
        "if False:",
        seed=2,
    ),
    Mutant(
        "a lost receipt ends the delivery",
        worker_reports.answered,
        "case t.NotAnswered():",
        "case t.NotAnswered() if turn.phase is Phase.COMPLETING:\n            turn.finish()\n"
        "        case t.NotAnswered():",
        seed=4,
    ),
    Mutant(
        "a full disk is final",
        answers.verdict,
        "if status >= 500 or",
        "if status == 503 or",
        seed=20,
    ),
    Mutant(
        "a signal is not obeyed",
        worker_state._signal,
        "turn.set(leave_by=turn.now + turn.settings.leave_s)",
        "pass",
        seed=1,
    ),
    Mutant(
        "a claim is asked anew after a lost answer",
        worker_claims.answered,
        "turn.again_later(turn.settings.poll_s, answer.retry_after_s)",
        "turn.set(request_id=None)\n            turn.again_later(turn.settings.poll_s, answer.retry_after_s)",
        seed=0,
    ),
)
