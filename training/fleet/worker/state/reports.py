"""PURE: report a job's outcome: upload and complete, or fail. A report without an answer is repeated for as long as the
worker runs."""

from training.certain import certain
from training.contract import spec_hash
from training.fleet.scheduling.job import EndReason, JobStatus
from training.fleet.wire.attempts import CompleteRequest, FailRequest
from training.fleet.wire.constants import ProblemType
from training.fleet.worker.state import events as t
from training.fleet.worker.state import no_answer
from training.fleet.worker.state.exit_code import Failure
from training.fleet.worker.state.heartbeats import DROPS
from training.fleet.worker.state.state import NOT_LET_IN, Phase, StateStep

HOPELESS = frozenset({ProblemType.TOO_LARGE, ProblemType.SPEC_MISMATCH})  # another try would end alike


def send(transition: StateStep) -> None:
    """Send the request that belongs to the present phase: upload, complete, or fail."""
    work, call = transition.work, transition.begin_call()
    if transition.phase is Phase.UPLOADING:
        transition.do(t.Upload(call=call, delivery=certain(work.delivery, "work that is uploaded was packed")))
        return
    said, failure = transition.numbered(work.printed), work.failure
    if transition.phase is Phase.COMPLETING:
        assert work.delivery is not None
        sha256, record = work.delivery.sha256, work.delivery.record
        said |= {"spec_hash": spec_hash(work.assignment.spec), "database_id": work.assignment.database_id}
        message = CompleteRequest(artifact_id=sha256, record=record, **said)
        transition.do(t.SendComplete(call=call, delivery=work.delivery, message=message))
        return
    assert failure is not None
    ended = FailRequest(
        error=failure.error,
        reason=failure.reason,
        exit_code=failure.exit_code,
        out_of_memory=failure.out_of_memory,
        record=work.usage,
        **said,
    )
    transition.do(t.SendFail(call=call, assignment=work.assignment, message=ended))


def answered(transition: StateStep, answer: t.Event) -> None:
    """Handle the result of the upload, complete or fail that was sent: an answer, a refusal, or no answer."""
    match answer:
        case t.Uploaded():
            transition.deliver(Phase.COMPLETING)
        case t.Completed():
            transition.say(f"delivered {transition.work.assignment.name}")
            transition.set_work(first=answer.log_next)
            transition.finish(job_over=True, delivered=True)
        case t.Unconfirmed():
            _wait_for_operator(transition)
        case t.FailTaken():
            transition.set_work(first=answer.log_next)
            lacked_time = transition.work.failure is not None and transition.work.failure.goes_on
            transition.finish(job_over=answer.status == JobStatus.FAILED and not lacked_time)
        case t.NotAnswered():
            no_answer.report(transition, answer)
        case t.DeliveryBroken():
            transition.fail(Failure(EndReason.UPLOAD_FAILED, answer.detail))
        case t.CallRefused():
            _refused(transition, answer)


def _wait_for_operator(transition: StateStep) -> None:
    """Keep the finished work, and ask again every ``retry_max_s`` whether an operator has decided on it. Other jobs go
    on meanwhile."""
    if not transition.work.unconfirmed:
        why = "the receiver does not know its claim, and an operator there decides"
        transition.say(f"{transition.work.assignment.name} waits: {why}", warning=True)
    transition.set_work(unconfirmed=True, beat_at=None)
    transition.set(call_at=transition.now + transition.settings.retry_max_s, tries=0)
    if transition.state.leaving:
        transition.leave()  # it stays on the disk for the next session


def _refused(transition: StateStep, answer: t.CallRefused) -> None:
    if answer.problem_type in NOT_LET_IN:
        transition.set(tries=transition.state.tries + 1)
        if transition.state.tries == 1:
            kept = f"{transition.work.assignment.name} is kept until this host is enrolled again"
            transition.say(f"{kept}: {answer.detail}", warning=True)
        transition.again_later(transition.settings.retry_max_s)
        return
    if transition.phase is Phase.FAILING or answer.problem_type in DROPS:
        transition.say(f"{transition.work.assignment.name} is dropped: {answer.detail}", warning=True)
        transition.set_aside(answer.detail)
        transition.finish(job_over=answer.problem_type in DROPS - {ProblemType.LEASE_SUPERSEDED})
        return
    faults = transition.work.faults + 1
    transition.set_work(faults=faults)
    if faults >= transition.settings.faults_max or answer.problem_type in HOPELESS:
        transition.set_aside(f"{answer.problem_type}: {answer.detail}")
        transition.fail(Failure(EndReason.UPLOAD_FAILED, f"{answer.problem_type}: {answer.detail}"))
        return
    transition.say(f"the upload was refused: {answer.detail}; trying again", warning=True)
    transition.set(phase=Phase.UPLOADING, tries=faults)  # also when it was the complete that missed it
    transition.again_later(transition.settings.retry_first_s)
