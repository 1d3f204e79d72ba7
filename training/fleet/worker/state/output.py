"""PURE: bringing the output of attempts that are over, beside whatever else the worker does.

One message at a time, the oldest attempt first. Sending a line twice does no harm: the receiver counts them.
"""

from __future__ import annotations

from dataclasses import replace

from training.fleet.worker.state import events as t
from training.fleet.worker.state.state import NOT_LET_IN, Turn, is_due


def catch_up(turn: Turn) -> None:
    """Send what is due."""
    if turn.state.backlog and turn.state.output_call is None and is_due(turn.state.output_at, turn.now):
        oldest = turn.state.backlog[0]
        call = turn.new_call()
        turn.set(output_call=call)
        turn.do(t.SendOutput(call=call, backlog=oldest, first=oldest.first))


def next_wake(turn: Turn) -> float | None:
    waits = turn.state.backlog and turn.state.output_call is None
    return turn.state.output_at if waits else None


def answered(turn: Turn, answer: t.OutputTaken | t.Refused | t.NotAnswered) -> None:
    """The message in flight was answered, one way or another."""
    turn.set(output_call=None)
    oldest = turn.state.backlog[0]
    match answer:
        case t.OutputTaken() if answer.log_next >= oldest.total:
            _next(turn)
        case t.OutputTaken() if answer.log_next > oldest.first:
            on = replace(oldest, first=answer.log_next)
            turn.set(backlog=(on, *turn.state.backlog[1:]), output_at=turn.now, output_tries=0)
        case t.Refused() if answer.slug not in NOT_LET_IN:  # by an old receiver, say, which takes none
            turn.say(f"the output of {oldest.name} is not wanted: {answer.detail}")
            _next(turn)
        case _:
            tries = turn.state.output_tries + 1
            wait_s = turn.pause_s(turn.settings.retry_first_s, tries)
            asked_s = answer.retry_after_s if isinstance(answer, t.NotAnswered) else None
            turn.set(output_tries=tries, output_at=turn.now + max(wait_s, asked_s or 0.0))


def _next(turn: Turn) -> None:
    oldest, *others = turn.state.backlog
    turn.do(t.ForgetOutput(claim_id=oldest.claim_id))
    turn.set(backlog=tuple(others), output_at=turn.now, output_tries=0)
