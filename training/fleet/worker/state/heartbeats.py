"""PURE: heartbeats. Heartbeats renew the lease, carry progress and output, and bring the receiver's orders."""

from training.fleet.wire.attempts import HeartbeatReply, HeartbeatRequest
from training.fleet.wire.constants import Action, ProblemType
from training.fleet.worker.state import events as t
from training.fleet.worker.state import halts, no_answer
from training.fleet.worker.state.state import FINISHED, StateStep, is_due

BACKLOG_S = 1.0  # until the next heartbeat while more lines wait than one message holds

# The claim or the job is over: its result is useless.
DROPS = frozenset(
    {
        ProblemType.LEASE_SUPERSEDED,
        ProblemType.JOB_CANCELLED,
        ProblemType.RESULT_CONFLICT,
        ProblemType.UNKNOWN_JOB,
        ProblemType.CERTIFICATE_REVOKED,
    }
)


def interval_s(transition: StateStep, lease_s: float) -> float:
    """Return the seconds between heartbeats: those of the settings, or fewer so that several fit into a short lease."""
    return min(transition.settings.heartbeat_s, max(lease_s / 3, 1.0))


def catch_up(transition: StateStep) -> None:
    """Send the heartbeat that is due; pause a trainer whose lease is nearly over, if the settings demand it."""
    if is_due(no_answer.pause_at(transition), transition.now):
        transition.say("the receiver is silent and the lease nearly over: the trainer pauses", warning=True)
        transition.set_work(paused=True)
        transition.hold_still()
    work = transition.work
    if work.beat_call is not None and is_due(work.beat_sent_at + transition.settings.beat_lost_s, transition.now):
        transition.set_work(beat_call=None)
    if transition.work.beat_call is None and is_due(work.beat_at, transition.now):
        _send(transition)


def next_wake(transition: StateStep) -> list[float | None]:
    work = transition.work
    lost_at = work.beat_sent_at + transition.settings.beat_lost_s
    return [no_answer.pause_at(transition), work.beat_at if work.beat_call is None else lost_at]


def slept(transition: StateStep, seconds: float) -> None:
    """Send a heartbeat at once after a sleep of the machine, to check that the job still belongs to this worker."""
    if transition.state.work is not None and transition.work.beat_at is not None:
        transition.say(f"the machine slept for {seconds:.0f} s")
        transition.set_work(beat_at=transition.now, beat_call=None, beat_tries=0)


def _send(transition: StateStep) -> None:
    work = transition.work
    call = transition.new_call()
    beat_at = transition.now + interval_s(transition, work.lease_s)
    transition.set_work(beat_call=call, beat_sent_at=transition.now, beat_at=beat_at, beat_printed=work.printed)
    transition.set_work(used=work.used.sent())
    resting = halts.resting(transition)
    transition.set_work(beat_said=(work.halted_at is not None, resting))
    message = HeartbeatRequest(
        session_id=transition.state.session_id,
        echo=transition.state.echo,
        usage=work.used.sample(),
        resting=resting,
        paused=work.stood_at is not None,
        paused_s=round(halts.stood_s(work, transition.now), 3),
        resumable=work.resumable,
        **transition.numbered(),
    )
    transition.do(t.SendHeartbeat(call=call, assignment=work.assignment, message=message))


def answered(transition: StateStep, answer: t.HeartbeatAnswered | t.CallRefused | t.NotAnswered) -> None:
    """Handle the result of the heartbeat that was sent: a renewed lease or an order, a refusal, or no answer."""
    transition.set_work(beat_call=None)
    if isinstance(answer, t.HeartbeatAnswered):
        transition.set(echo=answer.reply.echo or transition.state.echo)
    match answer:
        case t.HeartbeatAnswered() if answer.reply.action is Action.STOP:
            transition.drop("the receiver ended this attempt: its job was cancelled, or it ran for far too long")
        case t.HeartbeatAnswered():
            _renewed(transition, answer.reply)
        case t.NotAnswered():
            no_answer.heartbeat(transition, answer, interval_s(transition, transition.work.lease_s))
        case t.CallRefused(problem_type=ProblemType.LEASE_SUPERSEDED) if transition.phase in FINISHED:
            # Finished work may still be adopted: the delivery will show it.
            transition.set_work(beat_at=None)
        case t.CallRefused() if answer.problem_type in DROPS:
            transition.drop(answer.detail)
        case t.CallRefused():
            transition.say(f"a heartbeat was refused: {answer.detail}", warning=True)


def _renewed(transition: StateStep, reply: HeartbeatReply) -> None:
    work = transition.work
    first = max(0, min(reply.log_next, work.printed))
    beat_at = work.beat_sent_at + interval_s(transition, reply.lease_s)
    if work.first < first < work.beat_printed:  # one message did not hold them all
        beat_at = min(beat_at, transition.now + BACKLOG_S)
    transition.set_work(renewed_at=work.beat_sent_at, lease_s=reply.lease_s, beat_at=beat_at, beat_tries=0, first=first)
    if (work.halted_at is not None, halts.resting(transition)) != work.beat_said:
        transition.set_work(beat_at=transition.now)  # it changed while that heartbeat was on its way
    if work.paused:
        transition.say(f"the receiver is back: {work.assignment.name} continues")
        transition.set_work(paused=False)
        transition.let_go_on()
    if reply.action is Action.DRAIN and not transition.state.draining:
        transition.say("draining: this job is finished, and no further one is taken")
        transition.set(draining=True)
