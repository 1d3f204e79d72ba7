"""Executing the state machine's actions: each by its part of the worker.

The daemon (worker.py) and the simulation hand in their own parts; the order is the same code in both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from training.fleet.worker.attempt import Attempt
from training.fleet.worker.outbox import Outbox
from training.fleet.worker.requests import Calls
from training.fleet.worker.state import events as t

log = logging.getLogger("training.fleet.worker")


_ORDERS: Mapping[type[t.Action], Callable[[Attempt], None]] = {
    t.StopTrainer: lambda attempt: attempt.stop(),
    t.KillTrainer: lambda attempt: attempt.kill(),
    t.PauseTrainer: lambda attempt: attempt.pause(),
    t.ResumeTrainer: lambda attempt: attempt.resume(),
}


class Actions:
    """The executor of one session's actions. Waits for nothing but a disk."""

    def __init__(
        self,
        requests: Calls,
        outbox: Outbox,
        *,
        attempt: Callable[[t.Assignment], Attempt],
        persist: Callable[[t.Saved], None],
        set_aside: Callable[[t.SetAside], None],
        wake_at: Callable[[float | None], None],
        say: Callable[[t.Say], None],
        leave: Callable[[t.Exit], None],
    ) -> None:
        """``attempt`` makes the attempt of an assignment."""
        self._requests, self._outbox = requests, outbox
        self._new_attempt = attempt
        self._attempt: Attempt | None = None
        self._persist, self._set_aside = persist, set_aside
        self._wake_at, self._say, self._leave = wake_at, say, leave

    def beginning(self, saved: t.Saved) -> t.Begin:
        """Make the first event from the last session's saved state and files."""
        try:
            backlog = self._outbox.recover()
        except OSError as error:
            log.warning("%s cannot be read: %s", self._outbox.folder, error)
            backlog = []
        held = saved.assignment
        found = t.Found() if held is None else self._new_attempt(held).found()
        others = (each for each in backlog if held is None or each.claim_id != held.claim_id)
        return t.Begin(saved, found, tuple(others))

    def perform(self, action: t.Action) -> None:
        """Carry one action out."""
        match action:
            case t.ForgetOutput():
                self._outbox.forget(action.claim_id)
            case t.Abort():
                self._requests.abort(action.call)
            case t.Spawn():
                self._attempt = self._new_attempt(action.assignment)
                self._attempt.spawn()
            case t.Pack():  # perhaps the work of an earlier session's trainer
                self._attempt = self._new_attempt(action.assignment)
                self._attempt.pack()
            case t.StopTrainer() | t.KillTrainer() | t.PauseTrainer() | t.ResumeTrainer():
                if self._attempt is not None:  # a delivery of an earlier session has no trainer
                    _ORDERS[type(action)](self._attempt)
            case t.Discard():
                attempt = self._attempt or self._new_attempt(action.assignment)
                attempt.discard(job_over=action.job_over, delivered=action.delivered)
                self._attempt = None
            case t.SetAside():
                self._set_aside(action)
            case t.Persist():
                self._persist(action.saved)
            case t.WakeAt():
                self._wake_at(action.at)
            case t.Say():
                self._say(action)
            case t.Exit():
                self._leave(action)
            case _:
                self._requests.send(action)
