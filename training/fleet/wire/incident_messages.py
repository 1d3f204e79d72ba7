"""Structs of watched hosts: a watch's reports on itself, its incidents and its changes, and their records.

Times of an incident or a change are epoch seconds of the *host's* clock: they say when it happened there, and order
nothing here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from training.fleet.wire.constants import HOST_ID_PATTERN
from training.fleet.wire.message import Wire

PAGE = 50
PAGE_MAX = 500  # incidents in one answer
WHY_MAX = 8  # channels
SPANS_MAX = 64
MOVED_MAX = 8  # channels of a change

_Host = Annotated[str, Meta(pattern=HOST_ID_PATTERN)]
_Moment = Annotated[float, Meta(ge=0, le=1e11)]
_Score = Annotated[float, Meta(ge=-1e12, le=1e12)]


class WhyView(Wire, frozen=True, kw_only=True):
    """A channel that carried alarms, and its share of what raised the score."""

    channel: Annotated[str, Meta(max_length=128)]
    share: Annotated[float, Meta(ge=0, le=1)]


class WatchedIncident(Wire, frozen=True, kw_only=True):
    """An incident as it stands: raised, or over. The later report of one says all that the earlier did."""

    id: Annotated[str, Meta(pattern="^[0-9a-f]{8,64}$")]  # the same incident always has it
    event: Literal["raised", "over"]
    rule: Annotated[str, Meta(max_length=200)] = ""  # in words
    began_at: _Moment
    raised_at: _Moment
    last_alarm_at: _Moment
    alarms: Annotated[int, Meta(ge=0, le=2**31 - 1)]  # windows above the threshold
    peak: _Score  # the highest score above the threshold
    threshold: _Score
    why: Annotated[list[WhyView], Meta(max_length=WHY_MAX)] = field(default_factory=list)
    # spans of time that carried the alarms: from, to
    seconds: Annotated[list[tuple[_Moment, _Moment]], Meta(max_length=SPANS_MAX)] = field(default_factory=list)


class MovedView(Wire, frozen=True, kw_only=True):
    """A channel that left its place: medians before and after, of the level or the spread that models see."""

    channel: Annotated[str, Meta(max_length=128)]
    measure: Literal["level", "spread"]
    before: _Score
    after: _Score


class WatchedChange(Wire, frozen=True, kw_only=True):
    """A change of the host: reported, or over because a person confirmed it there or named a new reference."""

    id: Annotated[str, Meta(pattern="^[0-9a-f]{8,64}$")]  # the same change always has it
    event: Literal["changed", "confirmed", "referenced"]
    since: _Moment | None = None
    told_at: _Moment | None = None  # when it was sure
    at_once: bool = False  # it was so from its first window on
    # The surest channels, and how many there are besides.
    channels: Annotated[list[MovedView], Meta(max_length=MOVED_MAX)] = field(default_factory=list)
    more_channels: Annotated[int, Meta(ge=0, le=10_000)] = 0


class WatchRequest(Wire, frozen=True, kw_only=True):
    """``POST /v1/watch``: the host is watched with this model; ``incident`` and ``change`` as they stand."""

    host_id: _Host
    model: Annotated[str, Meta(max_length=128)]
    checkpoint: Annotated[str, Meta(pattern="^[0-9a-f]{0,64}$")] = ""  # the model's digest; empty: it has none
    every_s: Annotated[float, Meta(ge=1, le=86_400)] = 900.0  # it means to be heard again within this time
    incident: WatchedIncident | None = None
    change: WatchedChange | None = None


class WatchReply(Wire, frozen=True, kw_only=True):
    """``number`` is the receiver's for the incident or the change; ``known``: it had been reported before."""

    number: int | None = None
    known: bool = False


class IncidentView(Wire, frozen=True, kw_only=True):
    """An incident of a watched host. ``told_at`` and ``heard_at`` are by the receiver's clock: first, and last."""

    number: int
    host: str
    id: str
    model: str
    checkpoint: str
    rule: str
    began_at: float
    raised_at: float
    last_alarm_at: float
    over: bool
    alarms: int
    peak: float
    threshold: float
    why: list[WhyView]
    seconds: list[tuple[float, float]]
    told_at: float
    heard_at: float
    verdict: str | None  # "confirmed" or "false", by a person; null: nobody has judged it
    judged_by: str | None
    judged_at: float | None


class ChangeView(Wire, frozen=True, kw_only=True):
    """A change of a watched host. ``told_at`` and ``heard_at`` are by the receiver's clock: first, and last."""

    number: int
    host: str
    id: str
    model: str
    checkpoint: str
    since: float | None
    noticed_at: float | None  # by the host's clock: when it was sure
    at_once: bool
    channels: list[MovedView]
    more_channels: int
    told_at: float
    heard_at: float
    ended: str | None  # "confirmed" on the host, "reference" (a new one), "later" (another change); null: it stands
    ended_at: float | None
    closed_by: str | None = None  # an operator who closed it here, whatever its host tells; null: nobody did
    closed_at: float | None = None


class WatchView(Wire, frozen=True, kw_only=True):
    """A watch that contacted the receiver. ``since``: without a break; ``silent``: silent for more than twice its
    interval."""

    host: str
    model: str
    checkpoint: str
    since: float
    heard_at: float
    every_s: float
    silent: bool


class IncidentsReply(Wire, frozen=True, kw_only=True):
    """``GET /v1/incidents``: the newest first; ``next_before`` leads to the older ones."""

    incidents: list[IncidentView]
    watches: list[WatchView]
    open: int  # incidents that are not over and that nobody has judged, of the hosts asked for
    changes: list[ChangeView]  # the newest; on the first page alone
    changed: int  # hosts, of those asked for, that have changed and of which nobody has confirmed it
    next_before: int | None
    now: float


class CloseChangeRequest(Wire, frozen=True, kw_only=True):
    """``POST /v1/changes/{number}/close``: it needs no attention any more; ``reopen`` takes that back."""

    reopen: bool = False


class JudgeRequest(Wire, frozen=True, kw_only=True):
    """``POST /v1/incidents/{number}/judge``: what a person found; ``open`` takes a verdict back."""

    verdict: Literal["confirmed", "false", "open"]
