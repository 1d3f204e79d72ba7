"""Messages about saved states of trainers, and how a state is transferred.

A state travels in chunks, like a data set (:mod:`training.fleet.wire.dataset_listing`). A worker announces a state's
listing, uploads its chunks, and then has the receiver keep this state as the job's newest. Only the holder of the job's
live claim may upload or fetch a state.
"""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from training.fleet.wire.message import JsonObject, Wire
from training.strict_json import Json

STRETCHES_MAX = 200  # attempts that a state tells of
STATE_BYTES_MAX = 4 * 1024**3  # of one job's state


class Stretch(Wire):
    """The part of a training that one attempt did: the epochs (or trees) after ``begins``, up to ``ends``.

    A null bound means that the trainer does not count epochs or, in the last stretch, that it printed none.
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
    stretches: list[Stretch] = []


class StateDraftReply(Wire):
    """``PUT …/state/{id}``: the first missing chunks, at most 4,096, which must be uploaded before the state can be
    kept."""

    state_id: str
    missing: list[str]


class StateKeepRequest(Wire):
    """``POST …/state/{id}/keep``: keep an uploaded state. ``stretches`` says which attempt trained which part so far,
    the calling one last."""

    stretches: Annotated[list[Stretch], Meta(min_length=1, max_length=STRETCHES_MAX)]


def joined(earlier: Sequence[Json], own: Json) -> list[JsonObject]:
    """Join the stretches of earlier attempts with ``own``, the newest attempt's, so that each epoch belongs to one
    stretch; return the last 200.

    The earlier stretches count up to the epoch after which ``own`` begins. After a crash the resumed state may be older
    or newer than the last report; a trainer that started over begins at 0.
    """
    begins = own["begins"]
    kept: list[JsonObject] = []
    for each in earlier:
        # Of one that never told its first epoch: it began no earlier than the one before it is known to have come.
        first = _last_known(kept) if each["begins"] is None else each["begins"]
        if begins is None or first < begins:  # None: its trainer counts none, or has not said
            kept.append(dict(each))
    if kept and begins is not None:
        kept[-1]["ends"] = begins
    return [*kept, dict(own)][-STRETCHES_MAX:]


def _last_known(stretches: Sequence[Json]) -> int:
    """Return the last epoch that a training is known to have reached; 0 when none was reported."""
    points = (point for each in reversed(stretches) for point in (each["ends"], each["begins"]))
    return next((point for point in points if point is not None), 0)
