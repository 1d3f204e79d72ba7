"""PURE: the worker as a function, ``step(state, event, now) -> (state, actions)``.

Nothing here does I/O, reads a clock or draws a random number: ``now`` is an argument (seconds, on a clock that counts
sleep), ``chance`` too. The daemon and the simulation carry the same actions out. This file holds the table
and the dispatch; the phases live in claims.py, trainer.py and reports.py beside it, heartbeats in heartbeats.py.

======================  ==================================  ================================================
phase                   leaves it by                        to
======================  ==================================  ================================================
IDLE                    the time to ask has come            ASKING
ASKING                  a grant                             STARTING
..                      no job, refused, no answer          IDLE, for a while
STARTING                the trainer runs                    RUNNING (STOPPING, if it must not any more)
..                      it could not be started             FAILING
RUNNING                 exit status 0                       PACKING
..                      any other end                       FAILING
..                      cancelled, superseded: kill         STOPPING, and the work is dropped
..                      signal: stop politely               STOPPING, and the job is handed back
..                      it harms the host, hangs, or runs   STOPPING, and the attempt failed
                        for too long: stop politely
STOPPING                the trainer ended, or nobody can    IDLE (dropped), FAILING, or PACKING: it was done
                        end it
PACKING                 packed                              UPLOADING
..                      not packable                        FAILING
UPLOADING               stored                              COMPLETING
..                      refused for good                    FAILING
COMPLETING              receipt                             IDLE
..                      the artifact is not there           UPLOADING
FAILING                 taken, or refused                   IDLE
any                     the work is superseded, cancelled   IDLE (with a trainer: by way of STOPPING)
any                     a signal, and nothing left to do    GONE
any                     ``leave_s`` after the signal        GONE
======================  ==================================  ================================================

A worker that starts goes on where the last session was killed: at RUNNING, as if the trainer had just ended, if it had;
at UPLOADING or FAILING; else at IDLE.

Beside the phases run the heartbeats, from the grant until the receipt, and from then on the delivery of what the
attempt printed (output.py). The lease counts from the *sending* of the request that got or renewed it. Complete, fail
and upload are repeated for as long as the worker lives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from training.fleet.worker.state import claims as worker_claims
from training.fleet.worker.state import events as t
from training.fleet.worker.state import heartbeats as worker_beats
from training.fleet.worker.state import output as worker_backlog
from training.fleet.worker.state import reports as worker_reports
from training.fleet.worker.state import trainer as worker_trainer
from training.fleet.worker.state.state import (
    REPORTING,
    SHUTDOWN,
    WITH_TRAINER,
    Chance,
    Phase,
    State,
    Turn,
    Work,
    is_due,
)

__all__ = ["Chance", "Phase", "State", "Work", "step"]

Granted = TypeVar("Granted", t.Assignment, t.Backlog)
UNKNOWN_LEASE_S = 600.0  # of a delivery that an earlier session left; the first heartbeat brings the truth
CRASHES_TOLD = 10
BEATS_A_SESSION = 1_000_000  # more than a year of them


_ANSWERS: Mapping[Phase, tuple[type, ...]] = {
    Phase.ASKING: (t.ClaimAnswered,),
    Phase.UPLOADING: (t.Uploaded, t.DeliveryBroken),
    Phase.COMPLETING: (t.Completed,),
    Phase.FAILING: (t.FailTaken,),
}


def step(
    state: State, event: t.Event, now: float, settings: t.Settings, chance: Chance
) -> tuple[State, tuple[t.Action, ...]]:
    """Return the worker's next state and its actions when ``event`` happens at ``now``."""
    if state.phase is Phase.GONE:
        return state, ()
    turn = Turn(state, now, settings, chance)
    _take(turn, event)
    _catch_up(turn)
    return turn.state, tuple(_without_overtaken(turn.actions))


def _without_overtaken(actions: list[t.Action]) -> Iterator[t.Action]:
    """Leave out what would be written only to be written over in the same step."""
    for number, action in enumerate(actions):
        if isinstance(action, t.Persist):
            later = (other for other in actions[number + 1 :] if not isinstance(other, t.Discard | t.Say))
            if isinstance(next(later, None), t.Persist):
                continue
        yield action


def _take(turn: Turn, event: t.Event) -> None:
    match event:
        case t.Tick():
            pass  # whatever happens, _catch_up looks at the time
        case t.Begin():
            _begin(turn, event)
        case t.SignalReceived():
            _signal(turn)
        case t.Slept():
            worker_beats.slept(turn, event.seconds)
        case (
            t.Fetching()
            | t.Spawned()
            | t.SpawnFailed()
            | t.Printed()
            | t.Measured()
            | t.TrainerEnded()
            | t.Unbearable()
            | t.Packed()
            | t.PackFailed()
        ):
            if turn.state.work and turn.work.assignment.claim_id == event.claim_id:
                worker_trainer.news(turn, event)
        case t.BeatAnswered() | t.Refused() | t.NotAnswered() if _is_beat(turn, event.call):
            worker_beats.answered(turn, event)
        case t.OutputTaken() | t.Refused() | t.NotAnswered() if event.call == turn.state.output_call:
            worker_backlog.answered(turn, event)
        case t.OutputTaken():
            pass  # too late
        case _:
            _answered(turn, event)


def _is_beat(turn: Turn, call: int) -> bool:
    return turn.state.work is not None and turn.work.beat_call == call


def _answered(turn: Turn, answer: t.Answer) -> None:
    """An answer to the request in flight; to any other it comes too late."""
    if answer.call != turn.state.call:
        return
    turn.set(call=None)
    if not isinstance(answer, (*_ANSWERS.get(turn.phase, ()), t.Refused, t.NotAnswered)):
        answer = t.NotAnswered(call=answer.call, detail="an answer to another question")
    if turn.phase is Phase.ASKING:
        worker_claims.answered(turn, answer)
    elif turn.phase in REPORTING:
        worker_reports.answered(turn, answer)


def _begin(turn: Turn, begin: t.Begin) -> None:
    """Ask first the claim whose answer was lost; deliver first what is finished, or failed."""
    saved, found = _accepting(begin.saved, turn.settings.accept_database), begin.found
    turn.set(saved=begin.saved, call_at=turn.now, output_at=turn.now)
    turn.set(backlog=tuple(_now_for(one, turn.settings.accept_database) for one in begin.backlog))
    turn.persist(saved)
    turn.set(crashed=saved.crashed)
    if saved.request_id is not None:
        turn.set(request_id=saved.request_id, request_is_fresh=False)
    assignment = saved.assignment
    if assignment is None:
        return
    if saved.held is not None and found.ended is None:
        turn.say(f"{assignment.name} was in training when the last session ended", warning=True)
        turn.keep_output(t.Backlog.of(assignment, found.printed))
        turn.set(crashed=(*saved.crashed, assignment.claim_id)[-CRASHES_TOLD:])
        return
    turn.say(f"goes on delivering {assignment.name}")
    turn.take_on(assignment, renewed_at=turn.now, lease_s=UNKNOWN_LEASE_S, beat_at=turn.now)
    turn.set_work(started_at=None)
    # Progress of this session is newer than any of an earlier one, whose count is not known any more.
    turn.set_work(printed=found.printed, seq=_sessions(turn.state.session_id) * BEATS_A_SESSION)
    if saved.delivery is not None:
        worker_trainer.heed(turn, found.last_words)
        turn.set_work(delivery=saved.delivery)
        turn.set(phase=Phase.UPLOADING)
    elif saved.report is not None:
        worker_trainer.heed(turn, found.last_words)
        turn.set_work(failure=saved.report.failure, usage=saved.report.usage)
        turn.set_work(beat_at=None)
        turn.set(phase=Phase.FAILING)
    elif found.ended is not None:
        turn.set(phase=Phase.RUNNING, call_at=None)
        worker_trainer.heed(turn, found.last_words)
        worker_trainer.news(turn, t.TrainerEnded(claim_id=assignment.claim_id, ended=found.ended))


def _accepting(saved: t.Saved, database_id: str | None) -> t.Saved:
    """Return the undelivered work as granted by the database to which the operator wants it delivered."""
    held, delivery, report = saved.held, saved.delivery, saved.report
    return replace(
        saved,
        held=held and _now_for(held, database_id),
        delivery=delivery and replace(delivery, assignment=_now_for(delivery.assignment, database_id)),
        report=report and replace(report, assignment=_now_for(report.assignment, database_id)),
    )


def _now_for(record: Granted, database_id: str | None) -> Granted:
    return record if database_id is None else replace(record, database_id=database_id)


def _sessions(session_id: str) -> int:
    """Count the sessions that this worker has begun, as far as its id tells."""
    number = session_id.partition("-")[0]
    return int(number) if number.isascii() and number.isdigit() and len(number) <= 10 else 0


def _signal(turn: Turn) -> None:
    """The first signal stops the trainer politely and hands the job back, a further one kills it."""
    turn.set(signals=turn.state.signals + 1)
    if turn.state.signals > 1:
        if turn.phase in (Phase.RUNNING, Phase.STOPPING):
            turn.kill()
        return
    turn.set(leave_by=turn.now + turn.settings.leave_s)
    if turn.phase in (Phase.IDLE, Phase.ASKING):
        turn.leave()  # should a grant be on its way: the next session asks again with the same request_id
    elif turn.phase is Phase.RUNNING:
        turn.say(f"stopping {turn.work.assignment.name}: the job is handed back")
        turn.stop()
    elif turn.phase is Phase.STARTING:
        turn.stop_fetching()


def _catch_up(turn: Turn) -> None:
    """Do what is due by now, and say when something will be."""
    if turn.phase is Phase.GONE:
        return
    if is_due(turn.state.leave_by, turn.now):
        if turn.phase in WITH_TRAINER:
            turn.do(t.KillTrainer(claim_id=turn.work.assignment.claim_id))
            report = t.Report(assignment=turn.work.assignment, failure=SHUTDOWN)
            turn.persist(t.Saved() if turn.work.dropped else t.Saved(report=report))
        turn.leave()  # what is not delivered lies on the disk for the next session
        return
    if turn.state.work is not None:
        worker_trainer.catch_up(turn)
    if turn.state.work is not None:
        worker_beats.catch_up(turn)
    if turn.state.call is None and is_due(turn.state.call_at, turn.now):
        if turn.phase is Phase.IDLE:
            worker_claims.ask(turn)
        elif turn.phase in REPORTING:
            worker_reports.send(turn)
    worker_backlog.catch_up(turn)
    if turn.state.phase is not Phase.GONE:
        turn.do(t.WakeAt(at=_next_wake(turn)))


def _next_wake(turn: Turn) -> float | None:
    times = [turn.state.leave_by, worker_backlog.next_wake(turn)]
    if turn.state.call is None:
        times.append(turn.state.call_at)
    if turn.state.work is not None:
        times += [turn.work.stop_by, *worker_beats.next_wake(turn)]
    return min((time for time in times if time is not None), default=None)
