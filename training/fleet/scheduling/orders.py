"""PURE: hosts that get no jobs because of an operator's order or revocation, or of their owner's conditions.

A host may be under an order, at rest for its owner and in quarantine at the same time, and each of these ends
separately.
"""

from enum import StrEnum
from typing import Protocol

from training.frozen import frozen

PAUSE_MAX_S = 600.0  # for which a trainer stays paused before its job is handed back, where the plan does not say
IDLE_S = 300.0  # without a touch, after which nobody uses a machine


class OrderKind(StrEnum):
    """An operator's order for a host, which holds until an operator resumes the host or gives another order."""

    PAUSE = "pause"  # its trainers stop where they are, and go on when it is resumed, or soon enough
    DRAIN = "drain"  # its trainers run to their end
    HAND_BACK = "hand_back"  # its trainers stop politely, and their jobs go to other hosts


class Out(Protocol):
    """The reason why a host gets no jobs for now."""

    def sentence(self) -> str:
        """Return words that continue "the host is …": why it gets no jobs, and what ends that."""
        ...


_WORDS = {OrderKind.PAUSE: "paused", OrderKind.DRAIN: "drained", OrderKind.HAND_BACK: "drained at once"}


@frozen
class HostOrder:
    """An operator's order that is in force for a host since the time ``since``, in epoch seconds."""

    host: str
    order: OrderKind
    since: float
    by: str

    def sentence(self) -> str:
        return f"{_WORDS[self.order]} by {self.by}; `cis490-jobs resume {self.host}` ends that"


@frozen
class Resting:
    """A host that does not train now because of a condition of its owner, as its worker reports."""

    host: str
    reason: str  # in the worker's words

    def sentence(self) -> str:
        return f"at rest for its owner ({self.reason}); it resumes automatically"


@frozen
class Revoked:
    """A host whose certificate an operator revoked."""

    host: str

    def sentence(self) -> str:
        return f"revoked; `cis490-jobs enroll {self.host}` invites it again"
