"""PURE: deliver the output of ended attempts, while other work continues.

Messages are sent one at a time, the oldest attempt's first. Sending a line twice does no harm, because lines are
numbered.
"""

from dataclasses import replace

from training.fleet.wire.attempts import LogLines, OutputRequest
from training.fleet.worker.state import events as t
from training.fleet.worker.state.state import NOT_LET_IN, StateStep, is_due


def catch_up(transition: StateStep) -> None:
    """Send the next message with the oldest ended attempt's output, if it is due and no other is on its way."""
    if (
        transition.state.backlog
        and transition.state.output_call is None
        and is_due(transition.state.output_at, transition.now)
    ):
        oldest = transition.state.backlog[0]
        call = transition.new_call()
        transition.set(output_call=call)
        log = LogLines(first=oldest.first, total=oldest.total)
        message = OutputRequest(claim_id=oldest.assignment.claim_id, log=log)
        transition.do(t.SendOutput(call=call, assignment=oldest.assignment, message=message))


def next_wake(transition: StateStep) -> float | None:
    waits = transition.state.backlog and transition.state.output_call is None
    return transition.state.output_at if waits else None


def answered(transition: StateStep, answer: t.OutputTaken | t.CallRefused | t.NotAnswered) -> None:
    """Handle the result of the last message of output. After an answer, send the lines that are left, or those of the
    next attempt; after a failure, the same lines again later. If the receiver refuses the output, not this host, the
    attempt's output is dropped."""
    transition.set(output_call=None)
    oldest = transition.state.backlog[0]
    match answer:
        case t.OutputTaken() if answer.log_next >= oldest.total:
            _next(transition)
        case t.OutputTaken() if answer.log_next > oldest.first:
            on = replace(oldest, first=answer.log_next)
            transition.set(backlog=(on, *transition.state.backlog[1:]), output_at=transition.now, output_tries=0)
        case t.CallRefused() if answer.problem_type not in NOT_LET_IN:  # as by an old receiver
            transition.say(f"the output of {oldest.assignment.name} is not wanted: {answer.detail}")
            _next(transition)
        case _:
            tries = transition.state.output_tries + 1
            wait_s = transition.pause_s(transition.settings.retry_first_s, tries)
            asked_s = answer.retry_after_s if isinstance(answer, t.NotAnswered) else None
            transition.set(output_tries=tries, output_at=transition.now + max(wait_s, asked_s or 0.0))


def _next(transition: StateStep) -> None:
    oldest, *others = transition.state.backlog
    transition.do(t.ForgetOutput(claim_id=oldest.assignment.claim_id))
    transition.set(backlog=tuple(others), output_at=transition.now, output_tries=0)
