"""What goes into the worker's state machine and what comes out of it, as values.

*Events* are what happened, *actions* what must be done; :mod:`training.fleet.worker_state` turns the one into the
other. Every request has a number, ``call``; an answer to any but the last request of its kind is ignored. Events about
a trainer carry the ``claim_id`` they belong to, so that what comes late cannot be taken for something else.
Times are seconds of a clock that counts sleep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from training.fleet.outcome import Ended, Failure
from training.fleet.words import Action as Order


class OnSilence(StrEnum):
    """What to do with a trainer when its lease is nearly over and the receiver has not been heard."""

    CONTINUE = "continue"  # a receiver that is merely down costs no night of training
    PAUSE = "pause"  # two copies never run at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The operator's choices and a worker's habits; durations in seconds."""

    heartbeat_s: float = 30.0
    poll_s: float = 15.0  # pause after an empty or failed claim when the receiver cannot wait
    wait_s: float = 30.0  # how long the receiver is asked to keep a claim open
    on_silence: OnSilence = OnSilence.CONTINUE
    silence_share: float = 0.8  # of the lease, without a confirmed renewal
    grace_s: float = 10.0  # between the polite signal and the kill
    kill_s: float = (
        8.0  # between the kill and giving up on hearing of the end; more than supervise.KILL_WAIT_S
    )
    leave_s: float = 25.0  # between the first signal and the exit, whatever happens
    beat_lost_s: float = 60.0  # a heartbeat unanswered for so long is repeated
    retry_first_s: float = 1.0
    retry_max_s: float = 60.0
    faults_max: int = 5  # refused uploads of one bundle before the attempt is given up
    lines_kept: int = 5_000  # output lines that wait for the receiver


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A job that this worker holds a claim on."""

    job_id: str
    claim_id: str
    name: str = ""
    attempt: int = 1
    spec: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> str:
        return str(self.spec.get("model") or "")

    @property
    def mode(self) -> str:
        return str(self.spec.get("mode") or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A finished, packed training that the receiver has not accepted yet."""

    assignment: Assignment
    path: str
    sha256: str
    size: int
    record: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What a worker must still know after it was killed: the claim it sent, the work it finished."""

    request_id: str | None = None
    delivery: Delivery | None = None


# ── events ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Begin:
    """The worker starts, with what it knew before."""

    saved: Saved = field(default_factory=Saved)


@dataclass(frozen=True, slots=True)
class Tick:
    """The time of a WakeAt has come, or just passed by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAnswered:
    """A grant; or none, and why. ``lease_s`` is what remained when the receiver answered."""

    call: int
    assignment: Assignment | None = None
    lease_s: float = 600.0
    reason: str = ""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatAnswered:
    call: int
    order: Order = Order.CONTINUE
    lease_s: float = 600.0
    log_next: int = 0  # number of the first line that the receiver does not have


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    call: int
    artifact_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailTaken:
    call: int
    status: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The receiver's final word on a call."""

    call: int
    slug: str  # one of words.Slug, or what a newer receiver says
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAnswered:
    """No answer, or one that says "later": the call may be repeated."""

    call: int
    detail: str = ""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryBroken:
    """The bundle cannot be read any more."""

    call: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawned:
    claim_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnFailed:
    """Nothing was started, and this is how the attempt fails."""

    claim_id: str
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """Lines of the trainer's output, in order."""

    claim_id: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerEnded:
    claim_id: str
    ended: Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbearable:
    """The trainer must be stopped for what it does to this host (fills its disk, say); it fails like this."""

    claim_id: str
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    claim_id: str
    path: str
    sha256: str
    size: int
    record: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackFailed:
    claim_id: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """Somebody wants this worker to end."""


@dataclass(frozen=True, slots=True)
class Slept:
    """The machine was asleep and has woken up."""

    seconds: float


Answer = (
    ClaimAnswered | BeatAnswered | Uploaded | Completed | FailTaken | Refused | NotAnswered | DeliveryBroken
)  # fmt: skip
Event = (
    Begin | Tick | SignalReceived | Slept | Answer
    | Spawned | SpawnFailed | Printed | TrainerEnded | Unbearable | Packed | PackFailed
)  # fmt: skip


# ── actions ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class SendClaim:
    call: int
    request_id: str
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBeat:
    """``first`` numbers the first of ``lines`` within the attempt, from 0."""

    call: int
    assignment: Assignment
    seq: int
    progress: Mapping[str, Any] | None = None
    first: int = 0
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    call: int
    delivery: Delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class SendComplete:
    call: int
    delivery: Delivery
    first: int = 0
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFail:
    call: int
    assignment: Assignment
    failure: Failure
    record: Mapping[str, Any] = field(default_factory=dict)
    first: int = 0
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """Nobody waits for the answer to this call any more."""

    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    assignment: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTrainer:
    """Ask it politely."""

    claim_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KillTrainer:
    claim_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseTrainer:
    claim_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeTrainer:
    claim_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    assignment: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """The attempt is over; with ``job_over`` no later attempt needs anything that was kept for it."""

    assignment: Assignment
    job_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Must be on the disk before the next action is begun: after a crash of the process it is read again.

    A power cut may forget a ``request_id`` (the next session's claim then ends the attempt that nobody knows of), but
    not a delivery: that is a night of training.
    """

    saved: Saved


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeAt:
    """Send a Tick then, unless another event comes first. ``None``: only an event can move anything."""

    at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """A line for the operator's log."""

    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """End the process. ``sentence`` is for people when the code is not 0."""

    code: int = 0
    sentence: str = ""


Action = (
    SendClaim | SendBeat | Upload | SendComplete | SendFail | Abort | Spawn | StopTrainer | KillTrainer
    | PauseTrainer | ResumeTrainer | Pack | Discard | Persist | WakeAt | Say | Exit
)  # fmt: skip
