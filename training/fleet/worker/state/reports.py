"""PURE: handing in what became of a job: upload and complete, or fail. Repeated for as long as the worker lives."""

from __future__ import annotations

from training.fleet.scheduling.job import EndReason, JobStatus
from training.fleet.wire.constants import Slug
from training.fleet.worker.state import events as t
from training.fleet.worker.state.heartbeats import DROPS
from training.fleet.worker.state.outcome import Failure
from training.fleet.worker.state.state import NOT_LET_IN, Phase, Turn

HOPELESS = frozenset({Slug.TOO_LARGE, Slug.SPEC_MISMATCH})  # another try would end the same


def send(turn: Turn) -> None:
    """Send what the phase is about."""
    work, call = turn.work, turn.begin_call()
    if turn.phase is Phase.UPLOADING:
        assert work.delivery is not None
        turn.do(t.Upload(call=call, delivery=work.delivery))
        return
    seq = work.seq + 1
    turn.set_work(seq=seq)
    if turn.phase is Phase.COMPLETING:
        assert work.delivery is not None
        turn.do(
            t.SendComplete(
                call=call,
                delivery=work.delivery,
                seq=seq,
                progress=work.progress,
                first=work.first,
            )
        )
        return
    assert work.failure is not None
    turn.do(
        t.SendFail(
            call=call,
            assignment=work.assignment,
            failure=work.failure,
            record=work.usage,
            seq=seq,
            progress=work.progress,
            first=work.first,
        )
    )


def answered(turn: Turn, answer: t.Event) -> None:
    """The report was answered, one way or another."""
    match answer:
        case t.Uploaded():
            turn.set(phase=Phase.COMPLETING, call_at=turn.now, tries=0)
        case t.Completed():
            turn.say(f"delivered {turn.work.assignment.name}")
            turn.set_work(first=answer.log_next)
            turn.finish(job_over=True, delivered=True)
        case t.FailTaken():
            turn.set_work(first=answer.log_next)
            lacked_time = turn.work.failure is not None and turn.work.failure.goes_on
            turn.finish(job_over=answer.status == JobStatus.FAILED and not lacked_time)
        case t.NotAnswered():
            turn.set(tries=turn.state.tries + 1)
            turn.say_unanswered(_kept(turn, answer), answer, first=turn.state.tries == 1)
            turn.again_later(turn.settings.retry_first_s, answer.retry_after_s)
        case t.DeliveryBroken():
            turn.fail(Failure(EndReason.UPLOAD_FAILED, answer.detail))
        case t.Refused():
            _refused(turn, answer)


def _kept(turn: Turn, answer: t.NotAnswered) -> str:
    """Keep undelivered work for the database that granted it; no other one is asked for work meanwhile."""
    assignment = turn.work.assignment
    if answer.stranger and assignment.database_id is not None:
        waits = f"{assignment.name} is kept for the database {assignment.database_id}"
        return f"{waits}: {answer.detail}; trying again"
    return f"{turn.phase}: {answer.detail}; trying again"


def _refused(turn: Turn, answer: t.Refused) -> None:
    if answer.slug in NOT_LET_IN:
        turn.set(tries=turn.state.tries + 1)
        if turn.state.tries == 1:
            kept = f"{turn.work.assignment.name} is kept until this host is let in"
            turn.say(f"{kept}: {answer.detail}", warning=True)
        turn.again_later(turn.settings.retry_max_s)
        return
    if turn.phase is Phase.FAILING or answer.slug in DROPS:
        turn.say(f"{turn.work.assignment.name} is dropped: {answer.detail}", warning=True)
        turn.set_aside(answer.detail)
        turn.finish(job_over=answer.slug in DROPS - {Slug.LEASE_SUPERSEDED})
        return
    faults = turn.work.faults + 1
    turn.set_work(faults=faults)
    if faults >= turn.settings.faults_max or answer.slug in HOPELESS:
        turn.set_aside(f"{answer.slug}: {answer.detail}")
        turn.fail(Failure(EndReason.UPLOAD_FAILED, f"{answer.slug}: {answer.detail}"))
        return
    turn.say(f"the upload was refused: {answer.detail}; trying again", warning=True)
    turn.set(phase=Phase.UPLOADING, tries=faults)  # also when it was the complete that missed it
    turn.again_later(turn.settings.retry_first_s)
