"""The events and actions of the worker's state machine, as values.

*Events* have happened, *actions* must be done; :func:`training.fleet.worker.state.step.step` returns the actions for an
event. Every request has a number, ``call``; an answer to any but the last request of its kind is ignored. Events about
a trainer carry the ``claim_id`` they belong to, so that a late event cannot be taken for one of another attempt. Times
are seconds of a clock that counts sleep.
"""

from dataclasses import field
from enum import StrEnum
from typing import dataclass_transform

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
from training.frozen import frozen, frozen_kw
from training.strict_json import JsonObject


class OnSilence(StrEnum):
    """The choice whether a trainer continues or pauses when its lease nearly ends and the receiver does not answer."""

    CONTINUE = "continue"  # a receiver that is merely down costs no night of training
    PAUSE = "pause"  # two copies never run at once


@frozen_kw
class WorkerSettings:
    """The operator's settings, and the worker's own timings; durations in seconds."""

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
    """Return which part of this host an assignment's trainer may use; None: nothing was booked."""
    return None if assignment.booked is None else Booking(**assignment.booked.to_dict())


@frozen_kw
class Delivery:
    """A finished, packed training that the receiver has not yet accepted."""

    assignment: Assignment
    path: str
    sha256: str
    size: int
    record: JsonObject = field(default_factory=dict)


@frozen_kw
class FailureReport:
    """The end of an attempt without an artifact, kept until the receiver knows it."""

    assignment: Assignment
    failure: Failure
    usage: JsonObject = field(default_factory=dict)


@frozen_kw
class Saved:
    """The facts that survive when the worker is killed: the claim it sent, or the job it held, or how the job ended."""

    request_id: str | None = None
    crashed: tuple[str, ...] = ()  # claims lost with a session and not reported yet
    held: Assignment | None = None
    delivery: Delivery | None = None
    report: FailureReport | None = None

    @property
    def assignment(self) -> Assignment | None:
        """The assignment whose delivery or failure report is still owed to the receiver, or else the one that this
        worker holds; None without any."""
        known = self.delivery or self.report
        return known.assignment if known is not None else self.held


@frozen
class Backlog:
    """Undelivered output of an ended attempt: of ``total`` lines the receiver may lack those from ``first``."""

    assignment: Assignment
    total: int
    first: int = 0


@frozen_kw
class Remains:
    """The remains on disk of the job that an earlier session held.

    The remains are how the job's trainer ended, the number of lines that it printed, and the last of these lines. No
    end is recorded (None) if the trainer was killed together with its worker, or on its worker's order.
    """

    ended: Ended | None = None
    printed: int = 0
    last_words: tuple[str, ...] = ()
    beside: bool = False  # other trainers ran then


# ── events ──────────────────────────────────────────────────────────────────────────────────


@frozen
class Begin:
    """Event: the worker starts, with its saved state and its files."""

    saved: Saved = field(default_factory=Saved)
    found: Remains = field(default_factory=Remains)
    backlog: tuple[Backlog, ...] = ()  # other attempts' output
    others: tuple[tuple[int, Saved, Remains], ...] = ()  # of slots but the first: which, and what is theirs
    alone: tuple[str, ...] = ()  # jobs to be trained alone


@dataclass_transform(frozen_default=True)
class Value(Struct, frozen=True):
    """Base of every event except Begin, and of every action: all are immutable."""


class Tick(Value):
    """Event: the time of a WakeAt has come, or no other event came for a while."""


class CallEnded(Value):
    """The end of a call: what the receiver answered, or why there is no answer."""

    call: int


class ClaimAnswered(CallEnded):
    """Event: the answer to a claim, with a job or the reason why there is none."""

    reply: ClaimReply


class HeartbeatAnswered(CallEnded):
    reply: HeartbeatReply


class Uploaded(CallEnded):
    artifact_id: str


class Completed(CallEnded):
    log_next: int = 0


class FailTaken(CallEnded):
    status: str = ""
    log_next: int = 0


class OutputTaken(CallEnded):
    """Event: the receiver stored output, or the outbox has no more of it; ``log_next`` is the number of the next line
    to send."""

    log_next: int


class CallRefused(CallEnded):
    """Event: the receiver refused a call, for the reason in ``problem_type``."""

    problem_type: str  # one of ProblemType, or a newer receiver's
    detail: str = ""


class NotAnswered(CallEnded):
    """Event: no answer came, or one that says "later"; the call may be repeated."""

    detail: str = ""
    retry_after_s: float | None = None
    stranger: bool = False  # another program answered


class Unconfirmed(CallEnded):
    """The receiver has stored the result, but its database does not know the claim; an operator there decides."""


class DeliveryBroken(CallEnded):
    """Event: the bundle cannot be read any more."""

    detail: str


class News(Value):
    """An event about the trainer of a claim."""

    claim_id: str


class Fetching(News):
    """Event: of the data set's files that were missing, ``done`` of ``size`` bytes are here; the trainer starts after
    the last."""

    done: int
    size: int


class Spawned(News):
    """Event: the trainer runs."""


class AttemptFailed(News):
    """An event with the failure for which an attempt ends or must be ended."""

    failure: Failure


class SpawnFailed(AttemptFailed):
    """Event: the trainer was not started."""


class Printed(News):
    """Event: lines of the trainer's output, in order; they are in the outbox."""

    lines: tuple[str, ...]


class Measured(News):
    """Event: what the running trainer's process tree used of its host at a measurement."""

    used: Used = Used()
    resumable: bool = False  # a state of it is there that can be brought


class TrainerEnded(News):
    ended: Ended


class Unbearable(AttemptFailed):
    """Event: the trainer must be stopped because it harms this host, for example fills its disk."""


class Packed(News):
    path: str
    sha256: str
    size: int
    record: JsonObject = {}


class PackFailed(AttemptFailed):
    """Event: the trainer's output could not be packed into a bundle."""


class SignalReceived(Value):
    """Event: a signal, or the revocation of this host's certificate, asks this worker to end."""


class Slept(Value):
    """Event: the machine was asleep and has woken up."""

    seconds: float


class Seen(Value):
    """Event: the machine was observed for its owner's conditions."""

    sight: Sight


Event = Begin | Tick | SignalReceived | Slept | Seen | CallEnded | News


# ── actions ─────────────────────────────────────────────────────────────────────────────────


class WorkerAction(Value):
    """An action that the state machine orders from the worker."""


class RememberAlone(WorkerAction):
    """Action: save on the disk which jobs must be trained alone."""

    jobs: tuple[str, ...]


class Call(WorkerAction, kw_only=True):
    """An action that sends a request to the receiver."""

    call: int


class SendClaim(Call, kw_only=True):
    """Action: send a claim; the fields are members of its message."""

    request_id: str
    wait_s: float
    crashed_claims: tuple[str, ...] = ()
    echo: str = ""
    slot: int = 0
    delivering: tuple[str, ...] = ()
    resting: str | None = None
    training: tuple[TrainerUse, ...] = ()


class SendHeartbeat(Call, kw_only=True):
    """Action: send a heartbeat, to whose log the outbox adds lines from the log's first number, as many as fit. The
    outbox adds lines to the messages of SendComplete, SendFail and SendOutput, too."""

    assignment: Assignment
    message: HeartbeatRequest = HeartbeatRequest()


class Upload(Call, kw_only=True):
    delivery: Delivery


class SendComplete(Call, kw_only=True):
    delivery: Delivery
    message: CompleteRequest

    @property
    def assignment(self) -> Assignment:
        return self.delivery.assignment


class SendFail(Call, kw_only=True):
    assignment: Assignment
    message: FailRequest


class SendOutput(Call, kw_only=True):
    """Action: send lines of an ended attempt; this renews no lease."""

    assignment: Assignment
    message: OutputRequest


class ForgetOutput(WorkerAction):
    """Action: delete this attempt's lines from the outbox: the receiver has them, or will never accept them."""

    claim_id: str


class Abort(WorkerAction):
    """Action: abort this call, because its answer is no longer needed."""

    call: int


class Spawn(WorkerAction):
    assignment: Assignment


class TrainerOrder(WorkerAction):
    """An order to the trainer of a claim."""

    claim_id: str


class StopTrainer(TrainerOrder):
    """Action: ask the trainer to stop, or end the fetch of its data set."""


class KillTrainer(TrainerOrder):
    """Action: kill the trainer."""


class PauseTrainer(TrainerOrder):
    """Action: pause the trainer."""


class ResumeTrainer(TrainerOrder):
    """Action: let the paused trainer continue."""


class KeepAwake(WorkerAction):
    """Action: keep the machine from falling asleep automatically, or allow it."""

    on: bool


class Pack(WorkerAction):
    assignment: Assignment


class Discard(WorkerAction):
    """Action: clear up an ended attempt's files; with ``job_over`` also the saved state for later attempts at the job.

    ``delivered``: the receiver has the bundle, so that the output need not stay.
    """

    assignment: Assignment
    job_over: bool = False
    delivered: bool = False


class KeepAside(WorkerAction):
    """Action: store finished work that was refused permanently or whose claim ended, before the Discard that
    follows."""

    delivery: Delivery
    why: str


class Persist(WorkerAction, kw_only=True):
    """Action: save the state before the next action, so that it can be read after a crash of the process.

    A power cut may forget a ``request_id`` or a job just taken; the next session's claim then ends the forgotten
    attempt. A job's outcome, which may have taken a night of training, survives a power cut.
    """

    saved: Saved
    slot: int = 0  # each has a file of its own


class WakeAt(WorkerAction):
    """Action: cause a Tick at time ``at``, unless another event comes first. ``None``: wait for events only."""

    at: float | None


class Say(WorkerAction):
    """Action: write a line to the operator's log."""

    text: str
    warning: bool = False


class EndProcess(WorkerAction):
    """Action: end the process. ``sentence`` is for people when the code is not 0."""

    code: int = 0
    sentence: str = ""
