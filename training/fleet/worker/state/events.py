"""The events and actions of the worker's state machine, as values.

**Events* have happened, *actions* must be done; :mod:`training.fleet.worker.state.step` turns the one into the
other. Every request has a number, ``call``; an answer to any but the last request of its kind is ignored. Events about
a trainer carry the ``claim_id`` they belong to, so that what comes late cannot be taken for something else.
Times are seconds of a clock that counts sleep.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from msgspec import Struct

from training.fleet.capability.owner import Sight
from training.fleet.process.ended import Ended
from training.fleet.process.usage import Used
from training.fleet.scheduling.resources import Booking
from training.fleet.wire.attempts import (
    ClaimReply,
    CompleteRequest,
    FailRequest,
    Grant,
    HeartbeatReply,
    HeartbeatRequest,
    OutputRequest,
    TrainerUse,
)
from training.fleet.worker.state.exit_code import Failure


class OnSilence(StrEnum):
    """The order for a trainer when its lease is nearly over and the receiver has been silent."""

    CONTINUE = "continue"  # a receiver that is merely down costs no night of training
    PAUSE = "pause"  # two copies never run at once


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The operator's choices and a worker's habits; durations in seconds."""

    heartbeat_s: float = 30.0
    poll_s: float = 15.0  # pause after an empty or failed claim when the receiver cannot wait
    wait_s: float = 30.0  # how long the receiver is asked to keep a claim open
    on_silence: OnSilence = OnSilence.CONTINUE
    silence_share: float = 0.8  # of the lease, without a confirmed renewal
    grace_s: float = 10.0  # between the polite signal and the kill
    kill_s: float = 8.0  # between the kill and giving up on hearing of the end; more than supervise.KILL_WAIT_S
    leave_s: float = 25.0  # between the first signal and the exit, whatever happens
    beat_lost_s: float = 60.0  # a heartbeat unanswered for so long is repeated
    retry_first_s: float = 1.0
    retry_max_s: float = 60.0
    faults_max: int = 5  # refused uploads of one bundle before the attempt is given up
    accept_database: str | None = None  # has taken the place of the one that granted what is undelivered
    max_silence_s: float = 1800.0  # a trainer that neither says nor computes anything for so long hangs; 0: for ever


Assignment = Grant  # a job that this worker holds a claim on


def booking_of(assignment: Assignment) -> Booking | None:
    """Return the part of this host that an assignment's trainer may use; None: nothing was booked."""
    return None if assignment.booked is None else Booking.of(assignment.booked.to_dict())


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A finished, packed training that the receiver has not accepted yet."""

    assignment: Assignment
    path: str
    sha256: str
    size: int
    record: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReport:
    """The end of an attempt without an artifact, until the receiver knows it."""

    assignment: Assignment
    failure: Failure
    usage: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The facts that survive a killed worker: the claim it sent, or the job it held, or how that ended."""

    request_id: str | None = None
    crashed: tuple[str, ...] = ()  # claims lost with a session and not reported yet
    held: Assignment | None = None
    delivery: Delivery | None = None
    report: FailureReport | None = None

    @property
    def assignment(self) -> Assignment | None:
        """About the current job."""
        known = self.delivery or self.report
        return known.assignment if known is not None else self.held


@dataclass(frozen=True, slots=True)
class Backlog:
    """Output of an ended attempt: of ``total`` lines the receiver may lack those from ``first`` on."""

    assignment: Assignment
    total: int
    first: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """The remains on disk of the job that an earlier session held: how its trainer ended, unless it was killed with
    its worker; how many lines it printed, and the last ones."""

    ended: Ended | None = None
    printed: int = 0
    last_words: tuple[str, ...] = ()
    beside: bool = False  # other trainers ran then


# ── events ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Begin:
    """The worker starts, with its saved state and its files."""

    saved: Saved = field(default_factory=Saved)
    found: Remains = field(default_factory=Remains)
    backlog: tuple[Backlog, ...] = ()  # other attempts' output
    others: tuple[tuple[int, Saved, Remains], ...] = ()  # of slots but the first: which, and what is theirs
    alone: tuple[str, ...] = ()  # jobs to be trained alone


class Tick(Struct, frozen=True):
    """The time of a WakeAt has come, or just passed by."""


class CallEnded(Struct, frozen=True):
    """The end of a call: what the receiver answered, or why there is no answer."""

    call: int


class ClaimAnswered(CallEnded, frozen=True):
    """A grant; or none, and the reason."""

    reply: ClaimReply


class HeartbeatAnswered(CallEnded, frozen=True):
    reply: HeartbeatReply


class Uploaded(CallEnded, frozen=True):
    artifact_id: str


class Completed(CallEnded, frozen=True):
    log_next: int = 0


class FailTaken(CallEnded, frozen=True):
    status: str = ""
    log_next: int = 0


class OutputTaken(CallEnded, frozen=True):
    """``log_next`` as in HeartbeatAnswered; the number of lines when there is nothing left to send."""

    log_next: int


class CallRefused(CallEnded, frozen=True):
    """The receiver's final refusal of a call."""

    problem_type: str  # one of ProblemType, or a newer receiver's
    detail: str = ""


class NotAnswered(CallEnded, frozen=True):
    """No answer, or one that says "later": the call may be repeated."""

    detail: str = ""
    retry_after_s: float | None = None
    stranger: bool = False  # another program answered


class DeliveryBroken(CallEnded, frozen=True):
    """The bundle cannot be read any more."""

    detail: str


class News(Struct, frozen=True):
    """An event of a trainer."""

    claim_id: str


class Fetching(News, frozen=True):
    """The bytes of the job's data set present so far; the trainer starts after the last."""

    done: int
    size: int


class Spawned(News, frozen=True):
    """The trainer runs."""


class AttemptFailed(News, frozen=True):
    """The attempt fails like this."""

    failure: Failure


class SpawnFailed(AttemptFailed, frozen=True):
    """No trainer was started."""


class Printed(News, frozen=True):
    """Lines of the trainer's output, in order; they are in the outbox."""

    lines: tuple[str, ...]


class Measured(News, frozen=True):
    """The trainer lives, and its process tree uses so much of its host."""

    used: Used = Used()
    resumable: bool = False  # a state of it is there that can be brought


class TrainerEnded(News, frozen=True):
    ended: Ended


class Unbearable(AttemptFailed, frozen=True):
    """The trainer must be stopped because it harms this host (fills its disk, say)."""


class Packed(News, frozen=True):
    path: str
    sha256: str
    size: int
    record: dict[str, Any] = {}


class PackFailed(AttemptFailed, frozen=True):
    """There is no bundle."""


class SignalReceived(Struct, frozen=True):
    """A signal asks this worker to end."""


class Slept(Struct, frozen=True):
    """The machine was asleep and has woken up."""

    seconds: float


class Seen(Struct, frozen=True):
    """The machine was looked at, for its owner's conditions."""

    sight: Sight


Event = Begin | Tick | SignalReceived | Slept | Seen | CallEnded | News


# ── actions ─────────────────────────────────────────────────────────────────────────────────


class RememberAlone(Struct, frozen=True):
    """Keep on the disk which jobs have to be trained alone."""

    jobs: tuple[str, ...]


class Call(Struct, frozen=True, kw_only=True):
    """Send a request to the receiver."""

    call: int


class SendClaim(Call, frozen=True, kw_only=True):
    """Send a claim with these members of its message."""

    request_id: str
    wait_s: float
    crashed_claims: tuple[str, ...] = ()
    echo: str = ""
    slot: int = 0
    delivering: tuple[str, ...] = ()
    resting: str | None = None
    training: tuple[TrainerUse, ...] = ()


class SendHeartbeat(Call, frozen=True, kw_only=True):
    """Send a heartbeat with the outbox's lines from its log's first on, as many as fit; reports do the same."""

    assignment: Assignment
    message: HeartbeatRequest = HeartbeatRequest()


class Upload(Call, frozen=True, kw_only=True):
    delivery: Delivery


class SendComplete(Call, frozen=True, kw_only=True):
    delivery: Delivery
    message: CompleteRequest

    @property
    def assignment(self) -> Assignment:
        return self.delivery.assignment


class SendFail(Call, frozen=True, kw_only=True):
    assignment: Assignment
    message: FailRequest


class SendOutput(Call, frozen=True, kw_only=True):
    """Send lines of an ended attempt; this renews no lease."""

    assignment: Assignment
    message: OutputRequest


class ForgetOutput(Struct, frozen=True):
    """Forget this attempt's lines: the receiver has them, or never will."""

    claim_id: str


class Abort(Struct, frozen=True):
    """Abort this call: its answer is not needed any more."""

    call: int


class Spawn(Struct, frozen=True):
    assignment: Assignment


class TrainerOrder(Struct, frozen=True):
    """An order to the trainer of a claim."""

    claim_id: str


class StopTrainer(TrainerOrder, frozen=True):
    """Ask the trainer to stop."""


class KillTrainer(TrainerOrder, frozen=True):
    """End the trainer."""


class PauseTrainer(TrainerOrder, frozen=True):
    """Hold the trainer still."""


class ResumeTrainer(TrainerOrder, frozen=True):
    """Let the trainer continue."""


class KeepAwake(Struct, frozen=True):
    """Keep the machine from falling asleep automatically, or allow it."""

    on: bool


class Pack(Struct, frozen=True):
    assignment: Assignment


class Discard(Struct, frozen=True):
    """Discard an ended attempt's files; with ``job_over`` also those for later attempts at the job.

    ``delivered``: the receiver has the bundle.
    """

    assignment: Assignment
    job_over: bool = False
    delivered: bool = False


class KeepAside(Struct, frozen=True):
    """Keep finished work that was refused permanently, on the disk, before the Discard that follows."""

    delivery: Delivery
    why: str


class Persist(Struct, frozen=True, kw_only=True):
    """Save the state before the next action: after a crash of the process it is read again.

    A power cut may forget a ``request_id`` or a job just taken (the next session's claim then ends the
    forgotten attempt), but not a job's outcome: that may be a night of training.
    """

    saved: Saved
    slot: int = 0  # each has a file of its own


class WakeAt(Struct, frozen=True):
    """Send a Tick then, unless another event comes first. ``None``: wait for events only."""

    at: float | None


class Say(Struct, frozen=True):
    """Write a line to the operator's log."""

    text: str
    warning: bool = False


class EndProcess(Struct, frozen=True):
    """End the process. ``sentence`` is for people when the code is not 0."""

    code: int = 0
    sentence: str = ""


Action = (
    SendClaim | SendHeartbeat | Upload | SendComplete | SendFail | SendOutput | ForgetOutput | Abort
    | Spawn | TrainerOrder | KeepAwake | Pack | KeepAside | Discard
    | Persist | RememberAlone | WakeAt | Say | EndProcess
)  # fmt: skip
