"""Saved states of trainers on the wire: a claim's message about one, and how it is transferred.

A state travels in chunks, like a data set (:mod:`training.fleet.wire.dataset_listing`): announced by its listing,
brought chunk by chunk, and kept as the job's newest once all are there. Only the holder of the job's live claim brings
or gets it.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from training.fleet.wire.message import Wire
from training.fleet.wire.stretches import STRETCHES_MAX

STATE_BYTES_MAX = 4 * 1024**3  # of one job's state


class Stretch(Wire):
    """The part of a training that one attempt did: the epochs (or trees) after ``begins``, up to ``ends``.

    Null: its trainer counts none; or, for the last one, it ended and printed none.
    """

    attempt: int
    host: str
    begins: int | None = None
    ends: int | None = None


class StateView(Wire):
    """The newest saved state of a job, from which its next attempt resumes."""

    state_id: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]  # SHA-256 of its listing
    size: int  # bytes
    attempt: int  # that brought it
    host: str
    stretches: list[Stretch] = field(default_factory=list)


class StateDraftReply(Wire):
    """``PUT …/state/{id}``: the pieces to upload before it can be kept."""

    state_id: str
    missing: list[str]


class StateKeepRequest(Wire):
    """``POST …/state/{id}/keep``: who did what of the training so far, this attempt last."""

    stretches: Annotated[list[Stretch], Meta(min_length=1, max_length=STRETCHES_MAX)]
