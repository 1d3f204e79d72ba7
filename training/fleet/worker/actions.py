"""Execute the state machine's actions: pass each to the part of the worker that carries it out.

The daemon (daemon.py) and the simulation pass their own parts; the order of execution is the same code in both.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from training.fleet.worker.attempt import TrainerAttempt
from training.fleet.worker.outbox import Outbox
from training.fleet.worker.requests import Calls, Request
from training.fleet.worker.state import events as t

log = logging.getLogger("training.fleet.worker")


Own = t.Persist | t.KeepAside | t.RememberAlone | t.WakeAt | t.Say | t.KeepAwake | t.EndProcess
TIDY_EVERY = 32  # delivered attempts: looking through those that are kept takes longer than removing one


_ORDERS = {
    t.StopTrainer: "stop",
    t.KillTrainer: "kill",
    t.PauseTrainer: "pause",
    t.ResumeTrainer: "resume",
}


@dataclass
class Actions:
    """Executes the actions of one session of the worker; no call waits for anything except the disk.

    ``attempt`` makes the TrainerAttempt of an assignment; ``in_hand`` returns the assignments whose files are in use.
    ``own`` executes actions that concern the worker itself.
    """

    requests: Calls
    outbox: Outbox
    attempt: Callable[[t.Assignment], TrainerAttempt]
    in_hand: Callable[[], Collection[t.Assignment]] = tuple
    own: Callable[[Own], None] = lambda _: None
    _attempts: dict[str, TrainerAttempt] = field(default_factory=dict)  # by claim
    _discarded: int = 0

    def beginning(self, saved: Mapping[int, t.Saved], alone: tuple[str, ...] = ()) -> t.Begin:
        """Return the Begin event, made from the files of the last session. ``saved`` has each slot's saved state;
        ``alone`` the jobs to be trained alone."""
        try:
            backlog = self.outbox.recover()
        except Exception as error:  # noqa: BLE001 - whatever lies there, the worker must start
            log.warning("%s cannot be read: %s", self.outbox.folder, error)
            backlog = []
        held = {slot: each.assignment for slot, each in sorted(saved.items())}
        found = {slot: t.Remains() if each is None else self._found(each) for slot, each in held.items()}
        claims = {each.claim_id for each in held.values() if each is not None}
        return t.Begin(
            saved[0],
            found[0],
            tuple(each for each in backlog if each.assignment.claim_id not in claims),
            tuple((slot, saved[slot], each) for slot, each in found.items() if slot),
            alone,
        )

    def _found(self, assignment: t.Assignment) -> t.Remains:
        try:
            return self.attempt(assignment).found()
        except Exception as error:  # noqa: BLE001 - whatever its trainer left, the worker must start
            log.warning("what the trainer of %s left cannot be read: %s", assignment.name, error)
            return t.Remains()

    def _begun(self, assignment: t.Assignment) -> TrainerAttempt:
        return self._attempts.setdefault(assignment.claim_id, self.attempt(assignment))

    def perform(self, action: t.WorkerAction) -> None:
        """Execute one action: pass it to the outbox, the requests, a trainer's attempt, or ``own``."""
        match action:
            case t.ForgetOutput():
                self.outbox.forget(action.claim_id)
            case t.Abort():
                self.requests.abort(action.call)
            case t.Spawn():
                self._begun(action.assignment).spawn()
            case t.Pack():  # perhaps the work of an earlier session's trainer
                self._begun(action.assignment).pack()
            case t.TrainerOrder():
                # a delivery of an earlier session has no trainer, and one that waits for others none yet
                if attempt := self._attempts.get(action.claim_id):
                    getattr(attempt, _ORDERS[type(action)])()
            case t.Discard():
                attempt = self._begun(action.assignment)
                del self._attempts[action.assignment.claim_id]
                tidy = not action.delivered or self._discarded % TIDY_EVERY == 0
                self._discarded += 1
                in_use = self.in_hand()
                attempt.discard(job_over=action.job_over, delivered=action.delivered, in_use=in_use, tidy=tidy)
            case _ if isinstance(action, Own):
                self.own(action)
            case _ if isinstance(action, Request):
                self.requests.send(action)
