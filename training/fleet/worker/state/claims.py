"""PURE: asking the receiver for work."""

from __future__ import annotations

from training.fleet.wire.constants import Slug
from training.fleet.worker.state import events as t
from training.fleet.worker.state.heartbeats import interval_s
from training.fleet.worker.state.state import Phase, Turn

# Asking again would be refused again: the worker must be started differently, or enrolled anew.
HOPELESS = frozenset(
    {
        Slug.BAD_REQUEST,
        Slug.CERTIFICATE_IDENTITY,
        Slug.CERTIFICATE_REVOKED,
        Slug.HOST_MISMATCH,
        Slug.WRONG_ROLE,
    }
)


def ask(turn: Turn) -> None:
    """Send a claim. Its id is on the disk first and stays the same until it brought a job."""
    if turn.state.request_id is None:
        number = turn.state.requests + 1
        request_id = f"{turn.state.session_id}-{number}"
        turn.set(requests=number, request_id=request_id, request_is_fresh=True)
    request_id = turn.state.request_id or ""
    turn.persist(t.Saved(request_id=request_id, crashed=turn.state.crashed))
    turn.set(phase=Phase.ASKING)
    wait_s = turn.settings.wait_s
    turn.do(
        t.SendClaim(
            call=turn.begin_call(),
            request_id=request_id,
            wait_s=wait_s,
            crashed=turn.state.crashed,
            echo=turn.state.echo,
        )
    )


def answered(turn: Turn, answer: t.Event) -> None:
    """The claim was answered, one way or another."""
    fresh = turn.state.request_is_fresh
    turn.set(phase=Phase.IDLE, request_is_fresh=False)
    if isinstance(answer, t.ClaimAnswered):
        turn.set(crashed=(), echo=answer.echo or turn.state.echo)
    match answer:
        case t.ClaimAnswered(assignment=None):
            _no_job(turn, answer)
        case t.ClaimAnswered():
            _granted(turn, answer)
        case t.NotAnswered():
            turn.set(tries=turn.state.tries + 1)
            first = turn.state.tries == 1
            turn.say_unanswered(f"no work: {answer.detail}", answer, first=first)
            turn.again_later(turn.settings.poll_s, answer.retry_after_s)
        case t.Refused():
            _refused(turn, answer, fresh=fresh)


def _no_job(turn: Turn, answer: t.ClaimAnswered) -> None:
    """Ask again at once if the receiver kept us waiting, else after a pause with some chance in it."""
    turn.set(tries=0)
    waited_s = turn.now - turn.state.call_sent_at
    if waited_s >= turn.settings.wait_s / 2 > 0:
        turn.set(call_at=turn.now)
        return
    pause_s = turn.settings.poll_s * (0.5 + 0.5 * turn.chance())
    wanted_s = min(answer.retry_after_s or 0.0, turn.settings.poll_s)
    turn.set(call_at=turn.now + max(pause_s, wanted_s))


def _granted(turn: Turn, answer: t.ClaimAnswered) -> None:
    assignment = answer.assignment
    assert assignment is not None
    turn.set(tries=0, request_id=None)
    turn.persist(t.Saved(held=assignment))
    turn.take_on(
        assignment,
        renewed_at=turn.state.call_sent_at,
        lease_s=answer.lease_s,
        beat_at=turn.now + interval_s(turn, answer.lease_s),
    )
    turn.say(f"took {assignment.name} (attempt {assignment.attempt})")
    turn.set(phase=Phase.STARTING)
    turn.do(t.Spawn(assignment=assignment))


def _refused(turn: Turn, answer: t.Refused, *, fresh: bool) -> None:
    if answer.slug in (Slug.LEASE_SUPERSEDED, Slug.JOB_CANCELLED):
        # No earlier sending of a fresh request can have been granted: it is this session that is refused.
        if fresh:
            turn.leave(1, answer.detail)
        turn.set(request_id=None, tries=0, call_at=turn.now)
    elif answer.slug in HOPELESS:
        turn.leave(2, answer.detail)
    else:
        turn.say(f"the receiver refuses to give work: {answer.detail}", warning=True)
        turn.set(call_at=turn.now + turn.settings.retry_max_s * (0.5 + 0.5 * turn.chance()))
