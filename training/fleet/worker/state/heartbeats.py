"""PURE: heartbeats. They renew the lease, carry progress and output, and bring the receiver's orders."""

from __future__ import annotations

from training.fleet.wire.constants import Action as Order
from training.fleet.wire.constants import Slug
from training.fleet.worker.state import events as t
from training.fleet.worker.state.state import FINISHED, REPORTING, Phase, Turn, is_due

BACKLOG_S = 1.0  # until the next heartbeat while more lines wait than one message holds

# The claim is gone, or the job is: whatever was made of it is of no use to anybody.
DROPS = frozenset(
    {
        Slug.LEASE_SUPERSEDED,
        Slug.JOB_CANCELLED,
        Slug.RESULT_CONFLICT,
        Slug.UNKNOWN_JOB,
        Slug.CERTIFICATE_REVOKED,
    }
)


def interval_s(turn: Turn, lease_s: float) -> float:
    """Several heartbeats fit into a lease, however short it is."""
    return min(turn.settings.heartbeat_s, max(lease_s / 3, 1.0))


def catch_up(turn: Turn) -> None:
    """Send the heartbeat that is due; pause a trainer whose lease is nearly over, if the fleet wants that."""
    if is_due(silence_at(turn), turn.now):
        turn.say("the receiver is silent and the lease nearly over: the trainer pauses", warning=True)
        turn.set_work(paused=True)
        turn.do(t.PauseTrainer(claim_id=turn.work.assignment.claim_id))
    work = turn.work
    if work.beat_call is not None and is_due(work.beat_sent_at + turn.settings.beat_lost_s, turn.now):
        turn.set_work(beat_call=None)
    if turn.work.beat_call is None and is_due(work.beat_at, turn.now):
        _send(turn)


def next_wake(turn: Turn) -> list[float | None]:
    work = turn.work
    lost_at = work.beat_sent_at + turn.settings.beat_lost_s
    return [silence_at(turn), work.beat_at if work.beat_call is None else lost_at]


def silence_at(turn: Turn) -> float | None:
    """Return when a running trainer has to pause because nothing confirmed that it is still ours."""
    wanted = turn.settings.on_silence == t.OnSilence.PAUSE
    if not wanted or turn.phase is not Phase.RUNNING or turn.work.paused:
        return None
    return turn.work.renewed_at + turn.settings.silence_share * turn.work.lease_s


def slept(turn: Turn, seconds: float) -> None:
    """Ask first, after a sleep, whether the job is still this worker's."""
    if turn.state.work is not None and turn.work.beat_at is not None:
        turn.say(f"the machine slept for {seconds:.0f} s")
        turn.set_work(beat_at=turn.now, beat_call=None, beat_tries=0)


def _send(turn: Turn) -> None:
    work = turn.work
    call, seq = turn.new_call(), work.seq + 1
    beat_at = turn.now + interval_s(turn, work.lease_s)
    turn.set_work(beat_call=call, beat_sent_at=turn.now, beat_at=beat_at, seq=seq)
    turn.set_work(beat_printed=work.printed)
    turn.do(
        t.SendBeat(
            call=call,
            assignment=work.assignment,
            seq=seq,
            progress=work.progress,
            first=work.first,
            echo=turn.state.echo,
        )
    )


def answered(turn: Turn, answer: t.BeatAnswered | t.Refused | t.NotAnswered) -> None:
    """The heartbeat in flight was answered, one way or another."""
    turn.set_work(beat_call=None)
    if isinstance(answer, t.BeatAnswered):
        turn.set(echo=answer.echo or turn.state.echo)
    match answer:
        case t.BeatAnswered(order=Order.STOP):
            turn.drop("the receiver ended this attempt: its job was cancelled, or it ran for far too long")
        case t.BeatAnswered():
            _renewed(turn, answer)
        case t.NotAnswered():
            _not_answered(turn, answer)
        case t.Refused(slug=Slug.LEASE_SUPERSEDED) if turn.phase in FINISHED:
            # Finished work may still be adopted: the delivery will tell.
            turn.set_work(beat_at=None)
        case t.Refused() if answer.slug in DROPS:
            turn.drop(answer.detail)
        case t.Refused():
            turn.say(f"a heartbeat was refused: {answer.detail}", warning=True)


def _not_answered(turn: Turn, answer: t.NotAnswered) -> None:
    tries = turn.work.beat_tries + 1
    if turn.phase not in REPORTING or not answer.stranger:  # else what is reported tells the same
        text = f"a heartbeat was not answered: {answer.detail}"
        turn.say_unanswered(text, answer, first=tries == 1)
    ceiling = min(interval_s(turn, turn.work.lease_s), 2.0 ** min(tries, 16))
    wait_s = max(turn.chance() * ceiling, answer.retry_after_s or 0.0)
    turn.set_work(beat_tries=tries, beat_at=turn.now + wait_s)


def _renewed(turn: Turn, answer: t.BeatAnswered) -> None:
    work = turn.work
    first = max(0, min(answer.log_next, work.printed))
    beat_at = work.beat_sent_at + interval_s(turn, answer.lease_s)
    if work.first < first < work.beat_printed:  # one message did not hold them all
        beat_at = min(beat_at, turn.now + BACKLOG_S)
    turn.set_work(
        renewed_at=work.beat_sent_at,
        lease_s=answer.lease_s,
        beat_at=beat_at,
        beat_tries=0,
        first=first,
    )
    if work.paused:
        turn.say(f"the receiver is back: {work.assignment.name} goes on")
        turn.set_work(paused=False)
        turn.do(t.ResumeTrainer(claim_id=work.assignment.claim_id))
    if answer.order is Order.DRAIN and not turn.state.draining:
        turn.say("draining: this job is finished, then no more are taken")
        turn.set(draining=True)
