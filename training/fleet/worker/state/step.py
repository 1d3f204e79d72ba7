"""PURE: one slot of the worker as a function of its state, an event and the time; it returns a state and actions.

Nothing here does I/O, reads a clock or draws a random number: ``now`` (seconds, on a clock that counts sleep) and
``chance`` are arguments. The daemon and the simulation execute the same actions. This file has the table and the
dispatch; the phases are in claims.py, trainer.py and reports.py, heartbeats in heartbeats.py, a silent receiver in
no_answer.py, and halts for the host's owner in halts.py.

======================  ==================================  ================================================
phase                   leaves it by                        to
======================  ==================================  ================================================
IDLE                    the time to ask has come            ASKING
ASKING                  a grant                             STARTING (FAILING, if the host halts)
..                      no job, refused, no answer          IDLE, for a while
STARTING                the trainer runs                    RUNNING (STOPPING, if no longer allowed)
..                      it could not be started             FAILING
RUNNING                 exit status 0                       PACKING
..                      any other end                       FAILING
..                      cancelled, superseded: kill         STOPPING, and the work is dropped
..                      signal: stop politely               STOPPING, and the job is handed back
..                      a halt lasts: stop politely         STOPPING, and the job is handed back
..                      it harms the host, hangs, or runs   STOPPING, and the attempt failed
                        for too long: stop politely
STOPPING                the trainer ended, or cannot be     IDLE (dropped), FAILING, or PACKING: it was done
                        ended
PACKING                 packed                              UPLOADING
..                      not packable                        FAILING
UPLOADING               stored                              COMPLETING
..                      refused permanently                 FAILING
COMPLETING              receipt                             IDLE
..                      unconfirmed: an operator decides    COMPLETING, for a while
..                      the artifact is not there           UPLOADING
FAILING                 taken, or refused                   IDLE
any                     the work is superseded, cancelled   IDLE (with a trainer: by way of STOPPING)
any                     a signal, and nothing left to do    GONE
any                     ``leave_s`` after the signal        GONE
======================  ==================================  ================================================

A worker that starts continues where the last session was killed: at UPLOADING or FAILING if the outcome was saved, at
RUNNING if the trainer has ended meanwhile, else at IDLE.

Parallel to the phases, heartbeats are sent from the grant until the receipt or a failure; after the attempt, output.py
delivers the rest of what the trainer printed. The lease counts from the *sending* of the request that got or renewed
the lease. Complete, fail and upload are repeated until they are answered, for as long as the worker runs.
"""

from dataclasses import replace

from msgspec import structs

from training.fleet.worker.state import claims, halts, heartbeats, no_answer, output, reports, trainer
from training.fleet.worker.state import events as t
from training.fleet.worker.state.state import (
    REPORTING,
    SHUTDOWN,
    WITH_TRAINER,
    Chance,
    Phase,
    State,
    StateStep,
    Work,
    is_due,
)

__all__ = ["Chance", "Phase", "State", "Work", "step"]

UNKNOWN_LEASE_S = 600.0  # assumed for an earlier session's delivery, until the first heartbeat
CRASHES_TOLD = 10
BEATS_A_SESSION = 1_000_000  # more than a year of them


def step(
    state: State, event: t.Event, now: float, settings: t.WorkerSettings, chance: Chance
) -> tuple[State, tuple[t.WorkerAction, ...]]:
    """Return the next state of one slot's machine, and its actions, when ``event`` happens at ``now``."""
    if state.phase is Phase.GONE:
        return state, ()
    transition = StateStep(state, now, settings, chance)
    _take(transition, event)
    _catch_up(transition)
    return transition.state, tuple(transition.actions)


def _take(transition: StateStep, event: t.Event) -> None:
    if isinstance(event, t.News):
        if transition.state.work and transition.work.assignment.claim_id == event.claim_id:
            trainer.news(transition, event)
        return
    match event:
        case t.Tick():
            pass  # after every event, _catch_up looks at the time
        case t.Begin():
            _begin(transition, event)
        case t.SignalReceived():
            _signal(transition)
        case t.Seen():
            pass  # it is the whole worker's: see slots.py
        case t.Slept():
            heartbeats.slept(transition, event.seconds)
        case t.HeartbeatAnswered() | t.CallRefused() | t.NotAnswered() if _is_heartbeat(transition, event.call):
            heartbeats.answered(transition, event)
        case t.OutputTaken() | t.CallRefused() | t.NotAnswered() if event.call == transition.state.output_call:
            output.answered(transition, event)
        case t.OutputTaken():
            pass  # too late
        case _:
            _answered(transition, event)


def _is_heartbeat(transition: StateStep, call: int) -> bool:
    return transition.state.work is not None and transition.work.beat_call == call


def _answered(transition: StateStep, answer: t.CallEnded) -> None:
    """Handle the answer to the last request of its kind; ignore answers to earlier ones."""
    if answer.call != transition.state.call:
        return
    transition.set(call=None)
    if transition.phase is Phase.ASKING:
        claims.answered(transition, answer)
    elif transition.phase in REPORTING:
        reports.answered(transition, answer)


def _begin(transition: StateStep, begin: t.Begin) -> None:
    """Handle the start with the last session's saved state: repeat a claim whose answer was lost, or deliver a finished
    or failed job. A job that was lost in training is noted; the next claim reports it, unless several jobs were lost at
    once."""
    accepted, now = transition.settings.accept_database, transition.now
    saved, found = _accepting(begin.saved, accepted), begin.found
    backlog = tuple(replace(one, assignment=_now_for(one.assignment, accepted)) for one in begin.backlog)
    transition.set(saved=begin.saved, crashed=saved.crashed, backlog=backlog, call_at=now, output_at=now)
    transition.persist(saved)
    if saved.request_id is not None:
        transition.set(request_id=saved.request_id, request_is_fresh=False, unanswered=True)
    assignment = saved.assignment
    if assignment is None:
        return
    if saved.held is not None and found.ended is None:
        transition.say(f"{assignment.name} was in training when the last session ended", warning=True)
        transition.keep_output(t.Backlog(assignment, found.printed))
        transition.set(crashed=(*saved.crashed, assignment.claim_id)[-CRASHES_TOLD:])
        return
    transition.say(f"continues delivering {assignment.name}")
    transition.take_on(assignment, renewed_at=transition.now, lease_s=UNKNOWN_LEASE_S, beat_at=transition.now)
    transition.set_work(beside_at=transition.now if found.beside else None)
    # Progress of this session must count as newer than an earlier one's, whose number is lost.
    transition.set_work(printed=found.printed, seq=_sessions(transition.state.session_id) * BEATS_A_SESSION)
    trainer.heed(transition, found.last_words)
    if saved.delivery is not None:
        transition.set_work(delivery=saved.delivery)
        transition.set(phase=Phase.UPLOADING)
    elif saved.report is not None:
        transition.set_work(failure=saved.report.failure, usage=saved.report.usage, beat_at=None)
        transition.set(phase=Phase.FAILING)
    elif found.ended is not None:
        transition.set(phase=Phase.RUNNING, call_at=None)
        trainer.news(transition, t.TrainerEnded(claim_id=assignment.claim_id, ended=found.ended))


def _accepting(saved: t.Saved, database_id: str | None) -> t.Saved:
    """Return the saved state with its work marked as granted by the database that the operator named; unchanged without
    one."""
    held, delivery, report = saved.held, saved.delivery, saved.report
    return replace(
        saved,
        held=held and _now_for(held, database_id),
        delivery=delivery and replace(delivery, assignment=_now_for(delivery.assignment, database_id)),
        report=report and replace(report, assignment=_now_for(report.assignment, database_id)),
    )


def _now_for(assignment: t.Assignment, database_id: str | None) -> t.Assignment:
    return assignment if database_id is None else structs.replace(assignment, database_id=database_id)


def _sessions(session_id: str) -> int:
    """Return how many sessions this worker has begun, the number at the beginning of a session id; 0 if there is
    none."""
    number = session_id.partition("-")[0]
    return int(number) if number.isascii() and number.isdigit() and len(number) <= 10 else 0


def _signal(transition: StateStep) -> None:
    """Handle a signal. The first signal stops the trainer and hands the job back, or ends a machine that has no job or
    waits for an operator; a further signal kills the trainer. Finished work is still delivered until ``leave_s`` has
    passed."""
    transition.set(signals=transition.state.signals + 1)
    if transition.state.signals > 1:
        if transition.phase in (Phase.RUNNING, Phase.STOPPING):
            transition.kill()
        return
    transition.set(leave_by=transition.now + transition.settings.leave_s)
    if transition.phase in (Phase.IDLE, Phase.ASKING) or transition.work.unconfirmed:
        transition.leave()  # should a grant be on its way: the next session asks again with the same request_id
    elif transition.phase is Phase.RUNNING:
        transition.say(f"stopping {transition.work.assignment.name}: the job is handed back")
        transition.stop()
    elif transition.phase is Phase.STARTING:
        transition.stop_fetching()


def _catch_up(transition: StateStep) -> None:
    """Do everything that is due at this time, and set the next wake-up."""
    if transition.phase is Phase.GONE:
        return
    if is_due(transition.state.leave_by, transition.now):
        if transition.phase in WITH_TRAINER:
            transition.order(t.KillTrainer)
            report = t.FailureReport(assignment=transition.work.assignment, failure=SHUTDOWN)
            transition.persist(t.Saved() if transition.work.dropped else t.Saved(report=report))
        transition.leave()  # undelivered work stays on the disk for the next session
        return
    halts.catch_up(transition)
    if transition.state.work is not None:
        trainer.catch_up(transition)
    if transition.state.work is not None:
        heartbeats.catch_up(transition)
    if transition.state.call is None and is_due(transition.state.call_at, transition.now):
        if transition.phase is Phase.IDLE and not transition.state.benched:
            claims.ask(transition)
        elif transition.phase in REPORTING:
            reports.send(transition)
    output.catch_up(transition)
    if transition.state.phase is not Phase.GONE:
        transition.do(t.WakeAt(at=_next_wake(transition)))


def _next_wake(transition: StateStep) -> float | None:
    times = [transition.state.leave_by, output.next_wake(transition), halts.next_wake(transition)]
    if transition.state.call is None and not (transition.phase is Phase.IDLE and transition.state.benched):
        times.append(transition.state.call_at)
    if transition.state.work is not None:
        times += [no_answer.stop_by(transition), *heartbeats.next_wake(transition)]
    return min((time for time in times if time is not None), default=None)
