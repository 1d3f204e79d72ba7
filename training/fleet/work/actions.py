"""The carrying out of the state machine's actions: which part of a worker takes each, and what becomes of its attempt.

The daemon (worker.py) and the simulation hand in their own parts; the order is the same code in both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from training.fleet.work import types as t
from training.fleet.work.calls import Request
from training.fleet.work.outbox import Outbox

log = logging.getLogger("training.fleet.worker")


class Requests(Protocol):
    """The way to the receiver; answers come as events."""

    def send(self, request: Request) -> None: ...

    def abort(self, call: int) -> None: ...


class InHand(Protocol):
    """The trainer, the files and the bundle of one assignment; what comes of an order comes as an event."""

    def found(self) -> t.Found: ...

    def spawn(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def pack(self) -> None: ...

    def discard(self, *, job_over: bool) -> None: ...


class Actions:
    """One session's way from actions to what is done. Never waits for anything but a disk."""

    def __init__(
        self,
        requests: Requests,
        outbox: Outbox,
        *,
        attempt: Callable[[t.Assignment], InHand],
        persist: Callable[[t.Saved], None],
        set_aside: Callable[[t.SetAside], None],
        wake_at: Callable[[float | None], None],
        say: Callable[[t.Say], None],
        leave: Callable[[t.Exit], None],
    ) -> None:
        """``attempt`` makes the attempt of an assignment."""
        self._requests, self._outbox = requests, outbox
        self._new_attempt = attempt
        self._attempt: InHand | None = None
        self._persist, self._set_aside = persist, set_aside
        self._wake_at, self._say, self._leave = wake_at, say, leave

    def beginning(self, saved: t.Saved) -> t.Begin:
        """Tell of what the last session knew, and of what it left."""
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
            case t.Pack():  # perhaps what a trainer of an earlier session made
                self._attempt = self._new_attempt(action.assignment)
                self._attempt.pack()
            case t.StopTrainer() | t.KillTrainer() | t.PauseTrainer() | t.ResumeTrainer():
                if self._attempt is not None:  # a delivery of an earlier session has no trainer
                    self._order(self._attempt, action)
            case t.Discard():
                attempt = self._attempt or self._new_attempt(action.assignment)
                attempt.discard(job_over=action.job_over)
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

    @staticmethod
    def _order(
        attempt: InHand, action: t.StopTrainer | t.KillTrainer | t.PauseTrainer | t.ResumeTrainer
    ) -> None:
        match action:
            case t.StopTrainer():
                attempt.stop()
            case t.KillTrainer():
                attempt.kill()
            case t.PauseTrainer():
                attempt.pause()
            case t.ResumeTrainer():
                attempt.resume()
