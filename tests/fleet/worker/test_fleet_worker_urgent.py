"""Giving way to an urgent job, at the worker: one trainer stops politely, its job goes back, and its slot asks on."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_fleet_worker_slots import Worker, a_job
from wire_builders import beat_answered

from training.fleet.process.ended import Ended, EndKind
from training.fleet.scheduling.job import EndReason
from training.fleet.worker.state import events as t
from training.fleet.worker.state.state import Phase
from training.fleet.worker.state_transfer import StateTransfer

WHY = "urgent: net[seed=3] goes first here"
STOPPED = Ended(EndKind.EXITED, code=75)


def told(worker: Worker, job: t.Assignment, *, resumable: bool = True, why: str | None = WHY) -> Worker:
    """Let the trainer have saved a state or not, and the receiver answer its next heartbeat."""
    worker.take(t.Measured(claim_id=job.claim_id, cpu_s=1.0, resumable=resumable))
    slot = worker.slots.holder(job.claim_id)
    assert slot is not None
    before = worker.slots.works[slot].beat_call
    if before is not None:
        worker.take(beat_answered(call=before))
    worker.take(t.Tick(), after_s=worker.settings.heartbeat_s)
    beat = next(each for each in worker.all(t.SendHeartbeat) if each.assignment == job)
    assert beat.resumable == resumable
    return worker.take(beat_answered(call=beat.call, hand_back=why))


def test_one_trainer_gives_way_and_the_others_go_on() -> None:
    one, two = a_job(1), a_job(2)
    worker = told(Worker(allowed=2).training(one, two), one)
    assert worker.one(t.StopTrainer).claim_id == one.claim_id
    assert worker.phase(two) is Phase.RUNNING
    worker.ended(one, STOPPED)
    report = worker.one(t.SendFail)
    assert (report.failure.reason, report.failure.error) == (EndReason.WORKER_SHUTDOWN, f"handed back: {WHY}")
    assert worker.one(t.SendClaim).delivering == (one.claim_id,), "its place is free before the report is through"


def test_it_is_asked_once_however_often_it_is_told() -> None:
    one = a_job(1)
    worker = told(Worker(allowed=1).training(one), one)
    worker.take(t.Tick(), after_s=worker.settings.heartbeat_s)
    again = worker.all(t.SendHeartbeat)
    if again:
        worker.take(beat_answered(call=again[0].call, hand_back=WHY))
    assert not worker.all(t.StopTrainer)


def test_one_that_cannot_go_on_elsewhere_runs_on_whatever_the_receiver_says() -> None:
    one = a_job(1)
    worker = told(Worker(allowed=1).training(one), one, resumable=False)
    assert not worker.all(t.StopTrainer)
    assert worker.phase(one) is Phase.RUNNING


def test_one_that_is_done_a_moment_before_delivers() -> None:
    one = a_job(1)
    worker = told(Worker(allowed=1).training(one), one)
    worker.ended(one, Ended(EndKind.EXITED, code=0))
    assert worker.phase(one) is Phase.PACKING


def test_a_trainer_can_go_on_elsewhere_once_it_has_saved_something(tmp_path: Path) -> None:
    def no_calls() -> None:
        pytest.fail("nothing is sent")

    transfer = StateTransfer(a_job(1), tmp_path / "state", "pi", no_calls)  # type: ignore[arg-type]
    assert not transfer.holds_a_state, "there is no folder yet"
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / ".incoming").mkdir()
    assert not transfer.holds_a_state
    (tmp_path / "state" / "gbt.state").write_bytes(b"trees")
    assert transfer.holds_a_state
