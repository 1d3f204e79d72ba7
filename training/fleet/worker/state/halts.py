"""PURE: halt training for the host's owner, or by an operator's order. A halt does not count against the job. A halt
pauses the trainer, unless its patience is 0; heartbeats continue and report the halt. If the halt lasts longer than its
patience, the trainer is asked to stop, and its job is handed back for another host. With a patience of 0 the trainer is
stopped at once. A job that still waits for its data set or for other trainers is handed back at once. Under an owner's
condition, a worker without a job reports in its claim that it rests, and gets no job until the halt ends."""

from training.fleet.scheduling.job import EndReason
from training.fleet.wire.attempts import HostTerms
from training.fleet.worker.state import events as t
from training.fleet.worker.state.exit_code import Failure
from training.fleet.worker.state.owner import Owner
from training.fleet.worker.state.state import Halt, Phase, StateStep, Work, is_due

SOMEBODY = "the operator"


def halt(terms: HostTerms, owner: Owner) -> Halt | None:
    """Return the reason why this host trains nothing now, an operator's order or the owner's condition; None if it may
    train."""
    if terms.order == "hand_back":
        return Halt(f"drained by {terms.by or SOMEBODY}", 0.0, owner.reason)
    if owner.reason is not None:
        return Halt(owner.reason, terms.pause_max_s, owner.reason)
    if terms.order == "pause":
        return Halt(f"paused by {terms.by or SOMEBODY}", terms.pause_max_s)
    return None


def keeps_awake(terms: HostTerms, owner: Owner, *, trains: bool) -> bool:
    """Return True if the machine must stay awake: while it trains, unless its owner lets it sleep or it runs on
    battery."""
    return trains and not terms.may_sleep and not owner.on_battery


def handed_back(reason: str) -> Failure:
    """Return the Failure of an attempt whose job continues elsewhere or later: it counts against neither host nor
    job."""
    return Failure(EndReason.WORKER_SHUTDOWN, f"handed back: {reason}")


def catch_up(transition: StateStep) -> None:
    """Begin or end a halt of this slot, and stop the trainer when the halt has lasted longer than its patience."""
    halt, work = transition.state.halt, transition.state.work
    match transition.phase:
        case Phase.IDLE if halt is None and transition.state.rests:
            transition.set(rests=False)
            if transition.state.call_at is not None:
                transition.set(call_at=min(transition.state.call_at, transition.now))
        case Phase.ASKING if halt is not None and halt.owner is not None and not transition.state.rests:
            _ask_at_rest(transition)
        case Phase.STARTING if halt is not None and work is not None and work.failure is None:
            if work.assignment.dataset is not None and not work.dropped:
                transition.say(f"{work.assignment.name} is handed back: {halt.reason}")
                transition.set_work(failure=handed_back(halt.reason))
                transition.stop_fetching()
        case Phase.RUNNING if halt is not None:
            _halted(transition, halt)
        case Phase.RUNNING if work is not None and work.halted_at is not None:
            transition.say(f"{work.assignment.name} resumes")
            transition.set_work(halted_at=None, beat_at=transition.now)
            transition.let_go_on()
        case _:
            pass


def next_wake(transition: StateStep) -> float | None:
    """Return when the halt of a paused trainer will have lasted for its patience; None without such a trainer."""
    halt, work = transition.state.halt, transition.state.work
    if halt is None or work is None or transition.phase is not Phase.RUNNING or work.halted_at is None:
        return None
    return work.halted_at + halt.patience_s


def resting(transition: StateStep) -> str | None:
    """Return the owner's condition that halts this host, for the next heartbeat or claim; None if there is none."""
    halt = transition.state.halt
    return None if halt is None else halt.owner


def stood_s(work: Work, now: float) -> float:
    """Return for how many seconds a trainer has been paused in total, for any reason."""
    return work.stood_s + (0.0 if work.stood_at is None else max(0.0, now - work.stood_at))


def _halted(transition: StateStep, halt: Halt) -> None:
    if transition.work.halted_at is None:
        transition.set_work(halted_at=transition.now)
        if halt.patience_s > 0:
            transition.say(f"{transition.work.assignment.name} is paused: {halt.reason}")
            transition.set_work(beat_at=transition.now)
            transition.hold_still()
    if is_due(next_wake(transition), transition.now):
        _stop(transition, halt.reason)


def _stop(transition: StateStep, reason: str) -> None:
    """Ask a halted trainer to stop, so that its job is handed back."""
    failure = handed_back(reason)
    transition.say(f"stopping {transition.work.assignment.name}: it is {failure.error}")
    transition.set_work(failure=failure)
    transition.stop()


def _ask_at_rest(transition: StateStep) -> None:
    """Abort an open claim, so that it is sent again at once with the same id and the note that this host rests."""
    if transition.state.call is not None:
        transition.do(t.Abort(call=transition.state.call))
    transition.set(phase=Phase.IDLE, call=None, call_at=transition.now)
