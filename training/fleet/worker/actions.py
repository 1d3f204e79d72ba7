"""Executing the state machine's actions: each by its part of the worker.

The daemon (worker.py) and the simulation hand in their own parts; the order is the same code in both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from training.fleet.worker.attempt import TrainerAttempt
from training.fleet.worker.outbox import Outbox
from training.fleet.worker.requests import Calls
from training.fleet.worker.state import events as t

log = logging.getLogger("training.fleet.worker")


Own = t.Persist | t.KeepAside | t.RememberAlone | t.WakeAt | t.Say | t.KeepAwake | t.EndProcess
TIDY_EVERY = 32  # delivered attempts: looking through those that are kept takes longer than removing one


_ORDERS: Mapping[type[t.Action], Callable[[TrainerAttempt], None]] = {
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
        attempt: Callable[[t.Assignment], TrainerAttempt],
        in_hand: Callable[[], Collection[t.Assignment]] = tuple,
        own: Callable[[Own], None] = lambda _: None,
    ) -> None:
        """``attempt`` makes the attempt of an assignment; ``in_hand`` lists the jobs whose files are in use.

        ``own`` carries out what concerns the worker itself.
        """
        self._requests, self._outbox = requests, outbox
        self._new_attempt = attempt
        self._attempts: dict[str, TrainerAttempt] = {}  # by claim
        self._in_hand, self._own = in_hand, own
        self._discarded = 0

    def beginning(
        self, saved: t.Saved, others: Mapping[int, t.Saved] | None = None, alone: tuple[str, ...] = ()
    ) -> t.Begin:
        """Make the first event from the last session's saved state and files; ``others`` is that of other slots."""
        try:
            backlog = self._outbox.recover()
        except OSError as error:
            log.warning("%s cannot be read: %s", self._outbox.folder, error)
            backlog = []
        known = {0: saved, **(others or {})}
        found = {slot: self._found(each) for slot, each in known.items()}
        held = {each.assignment.claim_id for each in known.values() if each.assignment is not None}
        return t.Begin(
            saved,
            found[0],
            tuple(each for each in backlog if each.claim_id not in held),
            tuple((slot, each, found[slot]) for slot, each in known.items() if slot),
            alone,
        )

    def _found(self, saved: t.Saved) -> t.Remains:
        held = saved.assignment
        return t.Remains() if held is None else self._new_attempt(held).found()

    def _begin_attempt(self, assignment: t.Assignment) -> TrainerAttempt:
        begun = self._attempts[assignment.claim_id] = self._new_attempt(assignment)
        return begun

    def perform(self, action: t.Action) -> None:
        """Carry one action out."""
        match action:
            case t.ForgetOutput():
                self._outbox.forget(action.claim_id)
            case t.Abort():
                self._requests.abort(action.call)
            case t.Spawn():
                self._begin_attempt(action.assignment).spawn()
            case t.Pack():  # perhaps the work of an earlier session's trainer
                self._begin_attempt(action.assignment).pack()
            case t.StopTrainer() | t.KillTrainer() | t.PauseTrainer() | t.ResumeTrainer():
                # a delivery of an earlier session has no trainer, and one that waits for others none yet
                if attempt := self._attempts.get(action.claim_id):
                    _ORDERS[type(action)](attempt)
            case t.Discard():
                attempt = self._attempts.pop(action.assignment.claim_id, None) or self._new_attempt(action.assignment)
                tidy = not action.delivered or self._discarded % TIDY_EVERY == 0
                self._discarded += 1
                in_use = self._in_hand()
                attempt.discard(job_over=action.job_over, delivered=action.delivered, in_use=in_use, tidy=tidy)
            case _ if isinstance(action, Own):
                self._own(action)
            case _:
                self._requests.send(action)
