"""PURE: ask the receiver for a job."""

import re

from msgspec import structs

from training.fleet.wire.attempts import ClaimReply
from training.fleet.wire.constants import ProblemType
from training.fleet.worker.state import events as t
from training.fleet.worker.state import halts, no_answer
from training.fleet.worker.state.heartbeats import interval_s
from training.fleet.worker.state.state import Phase, StateStep

WAIT_BESIDE_S = 10.0  # a worker that is told to stop waits so long for the answer to its claim

# Refused for good: the worker must be started differently, or enrolled again.
HOPELESS = frozenset(
    {
        ProblemType.BAD_REQUEST,
        ProblemType.CERTIFICATE_IDENTITY,
        ProblemType.CERTIFICATE_REVOKED,
        ProblemType.HOST_MISMATCH,
        ProblemType.WRONG_ROLE,
    }
)


def ask(transition: StateStep) -> None:
    """Send a claim, after its request id is saved. The request id stays the same until the claim brings a job, or the
    receiver refuses the id as superseded or cancelled."""
    if transition.state.request_id is None:
        number = transition.state.requests + 1
        request_id = f"{transition.state.session_id}-{number}"
        transition.set(requests=number, request_id=request_id, request_is_fresh=True)
    request_id = transition.state.request_id or ""
    transition.persist(t.Saved(request_id=request_id, crashed=transition.state.crashed))
    transition.set(phase=Phase.ASKING, unanswered=True, rests=transition.state.halt is not None)
    transition.do(
        t.SendClaim(
            call=transition.begin_call(),
            request_id=request_id,
            wait_s=_wait_s(transition),
            crashed_claims=transition.state.crashed,
            echo=transition.state.echo,
            resting=halts.resting(transition),
        )
    )


def _wait_s(transition: StateStep) -> float:
    """Return how many seconds the receiver may hold the claim open: 0 in a halt, and fewer beside other jobs, because a
    stop must then be noticed soon."""
    if transition.state.rests:
        return 0.0
    return min(transition.settings.wait_s, WAIT_BESIDE_S) if transition.state.beside else transition.settings.wait_s


def answered(transition: StateStep, answer: t.Event) -> None:
    """Handle the result of the claim: a job, no job, a refusal, or no answer."""
    fresh = transition.state.request_is_fresh
    transition.set(phase=Phase.IDLE, request_is_fresh=False)
    if isinstance(answer, t.ClaimAnswered | t.CallRefused):
        transition.set(unanswered=False)
    if isinstance(answer, t.ClaimAnswered):
        transition.set(crashed=(), echo=answer.reply.echo or transition.state.echo)
    match answer:
        case t.ClaimAnswered(reply=t.Assignment() as assignment):
            _granted(transition, assignment)
        case t.ClaimAnswered():
            _no_job(transition, answer.reply)
        case t.NotAnswered():
            no_answer.claim(transition, answer)
        case t.CallRefused():
            _refused(transition, answer, fresh=fresh)


def _no_job(transition: StateStep, reply: ClaimReply) -> None:
    """Ask again at once if the receiver held the claim open for at least half of the allowed time. If the receiver
    answered sooner, ask again after a random pause, or after the longer one that it asks for, up to ``poll_s``."""
    transition.set(tries=0)
    reason = reply.reason or ""
    idle = re.sub(r"\d+", "", reason)
    if reason and idle != transition.state.idle:  # with other figures it is the same reason
        transition.set(idle=idle)
        transition.say(f"no job now: {reason}")
    waited_s = transition.now - transition.state.call_sent_at
    if waited_s >= _wait_s(transition) / 2 > 0:
        transition.set(call_at=transition.now)
        return
    pause_s = transition.settings.poll_s * (0.5 + 0.5 * transition.chance())
    wanted_s = min(reply.retry_after_s or 0.0, transition.settings.poll_s)
    transition.set(call_at=transition.now + max(pause_s, wanted_s))


def _granted(transition: StateStep, grant: t.Assignment) -> None:
    assignment = structs.replace(grant, echo=None, slots=None, terms=None)  # these are the worker's, not the job's
    transition.set(tries=0, request_id=None, idle="")
    transition.persist(t.Saved(held=assignment))
    transition.take_on(
        assignment,
        renewed_at=transition.state.call_sent_at,
        lease_s=assignment.lease_s,
        beat_at=transition.now + interval_s(transition, assignment.lease_s),
    )
    halt = transition.state.halt
    if halt is not None:
        transition.fail(halts.handed_back(halt.reason))  # the receiver did not know yet that this host rests
        return
    transition.say(f"took {assignment.name} (attempt {assignment.attempt})")
    transition.set(phase=Phase.STARTING)
    transition.do(t.Spawn(assignment=assignment))


def _refused(transition: StateStep, answer: t.CallRefused, *, fresh: bool) -> None:
    if answer.problem_type in (ProblemType.LEASE_SUPERSEDED, ProblemType.JOB_CANCELLED):
        # A request sent once cannot have been granted before: this session is refused.
        if fresh:
            transition.leave(1, answer.detail)
        transition.set(request_id=None, tries=0, call_at=transition.now)
    elif answer.problem_type in HOPELESS:
        transition.leave(2, answer.detail)
    else:
        transition.say(f"the receiver refuses to give work: {answer.detail}", warning=True)
        transition.set(call_at=transition.now + transition.settings.retry_max_s * (0.5 + 0.5 * transition.chance()))
