"""PURE: requests without a useful answer: the network or receiver is down, the receiver is busy, or another program
answers.

The worker repeats every unanswered request for as long as it runs. Each pause is random, below a limit that doubles up
to ``retry_max_s``, for a heartbeat up to its interval. If the receiver asks for a longer pause, the worker waits that
long. The trainer continues meanwhile; if the settings demand it, the trainer pauses shortly before the lease ends.
"""

from training.fleet.worker.state import events as t
from training.fleet.worker.state.state import REPORTING, Phase, StateStep

BRIEF_S = 3.0  # for which a trainer may save its state though the lease is nearly over


def claim(transition: StateStep, answer: t.NotAnswered) -> None:
    """Repeat an unanswered claim later with the same request id, so that a job granted in a lost answer is not lost."""
    _repeat(transition, answer, f"no work: {answer.detail}", transition.settings.poll_s)


def report(transition: StateStep, answer: t.NotAnswered) -> None:
    """Keep undelivered work for the database that granted it, and send the report again later."""
    assignment = transition.work.assignment
    about = str(transition.phase)
    if answer.stranger and assignment.database_id is not None:
        about = f"{assignment.name} is kept for the database {assignment.database_id}"
    _repeat(transition, answer, f"{about}: {answer.detail}; trying again", transition.settings.retry_first_s)


def _repeat(transition: StateStep, answer: t.NotAnswered, text: str, first_s: float) -> None:
    transition.set(tries=transition.state.tries + 1)
    transition.say_unanswered(text, answer, first=transition.state.tries == 1)
    transition.again_later(first_s, answer.retry_after_s)


def heartbeat(transition: StateStep, answer: t.NotAnswered, interval_s: float) -> None:
    """Set when to repeat an unanswered heartbeat: sooner than the usual ``interval_s``, while the lease may still be
    saved. A longer pause that the receiver asked for is kept."""
    tries = transition.work.beat_tries + 1
    if transition.phase not in REPORTING or not answer.stranger:  # else the report says the same
        text = f"a heartbeat was not answered: {answer.detail}"
        transition.say_unanswered(text, answer, first=tries == 1)
    ceiling = min(interval_s, 2.0 ** min(tries, 16))
    wait_s = max(transition.chance() * ceiling, answer.retry_after_s or 0.0)
    transition.set_work(beat_tries=tries, beat_at=transition.now + wait_s)


def pause_at(transition: StateStep) -> float | None:
    """Return when a running trainer must pause because its lease is not confirmed; None if it need not."""
    if transition.phase is not Phase.RUNNING or transition.work.paused:
        return None
    return _unconfirmed_at(transition)


def stop_by(transition: StateStep) -> float | None:
    """Return when patience with a stopping trainer ends; None without such a trainer. Patience ends with the grace
    period, or earlier if trainers must pause before the lease ends. After a kill, return when the trainer is given
    up."""
    by, unconfirmed_at = transition.work.stop_by, _unconfirmed_at(transition)
    if by is None or unconfirmed_at is None or transition.work.killed:
        return by
    asked_at = by - transition.settings.grace_s
    return min(by, max(unconfirmed_at, asked_at + BRIEF_S))


def _unconfirmed_at(transition: StateStep) -> float | None:
    """Return when the lease is nearly over; None if the settings let trainers continue then."""
    if transition.settings.on_silence != t.OnSilence.PAUSE:
        return None
    return transition.work.renewed_at + transition.settings.silence_share * transition.work.lease_s
