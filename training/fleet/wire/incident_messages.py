"""Messages of watched hosts: a watch's reports about itself and its incidents, and the receiver's records.

Times of an incident are epoch seconds of the *host's* clock: they say when something happened there, and are not used
to order records here.
"""

from typing import Annotated, Literal

from msgspec import Meta

from training.fleet.wire.attempts import Name
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


class WhyView(Wire):
    """A channel that carried alarms, and its share of the rise in the score."""

    channel: Name
    share: Annotated[float, Meta(ge=0, le=1)]


class MovedView(Wire):
    """A channel that changed: whether its level or its spread did, as models see it, and the medians before and
    after."""

    channel: Name
    measure: Literal["level", "spread"]
    before: _Score
    after: _Score


class IncidentFacts(Wire):
    """The facts of an incident, by the host's clock: the alarms, or the channels that changed."""

    began_at: _Moment = 0.0  # 0 of a change: not known
    raised_at: _Moment = 0.0  # when it was sure
    rule: Annotated[str, Meta(max_length=200)] = ""  # in words
    last_alarm_at: _Moment = 0.0
    alarms: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0  # windows above the threshold
    peak: _Score = 0.0  # the highest score above the threshold
    threshold: _Score = 0.0
    why: Annotated[list[WhyView], Meta(max_length=WHY_MAX)] = []
    # spans of time that carried the alarms: from, to
    seconds: Annotated[list[tuple[_Moment, _Moment]], Meta(max_length=SPANS_MAX)] = []
    at_once: bool = False  # a change that was there from the first window on
    # The surest channels of a change, and how many there are besides.
    channels: Annotated[list[MovedView], Meta(max_length=MOVED_MAX)] = []
    more_channels: Annotated[int, Meta(ge=0, le=10_000)] = 0


class WatchedIncident(IncidentFacts):
    """An incident in its latest form. The receiver merges a later report of an incident with the earlier ones. Alarms
    are first raised, then over. A report ends a host's change if a person confirmed it there or named a new reference;
    another reported change ends it, too."""

    id: Annotated[str, Meta(pattern="^[0-9a-f]{8,64}$")]  # the same incident always has it
    event: Literal["raised", "over", "changed", "confirmed", "referenced"]

    @property
    def kind(self) -> str:
        return "alarms" if self.event in ("raised", "over") else "change"


class WatchRequest(Wire):
    """``POST /v1/watch``: a watch reports that this model watches the host, and ``incident`` in its latest form."""

    host_id: _Host
    model: Name
    checkpoint: Annotated[str, Meta(pattern="^[0-9a-f]{0,64}$")] = ""  # the model's digest; empty: it has none
    every_s: Annotated[float, Meta(ge=1, le=86_400)] = 900.0  # it means to be heard again within this time
    incident: WatchedIncident | None = None


class WatchReply(Wire):
    """The receiver's ``number`` for the reported incident (null: none was reported); ``known`` is true if the incident
    had been reported before."""

    number: int | None = None
    known: bool = False


class IncidentView(IncidentFacts):
    """An incident of a watched host. ``told_at`` and ``heard_at`` are the times of the first and the last report, by
    the receiver's clock."""

    number: int
    kind: str  # "alarms", or "change": of the host, against its reference
    host: str
    id: str
    model: str
    checkpoint: str
    told_at: float
    heard_at: float
    # "over"; of a change "confirmed" on the host, "reference" (a new one), "later" (another change); null: it stands
    ended: str | None
    ended_at: float | None
    verdict: str | None  # by a person: "confirmed" or "false" alarms, a "closed" change; null: no person has judged it
    judged_by: str | None
    judged_at: float | None


class WatchView(Wire):
    """A watch that has reported to the receiver. ``since``: when its unbroken reports began; ``silent``: no report came
    for twice its interval and a minute more."""

    host: str
    model: str
    checkpoint: str
    since: float
    heard_at: float
    every_s: float
    silent: bool


class IncidentsReply(Wire):
    """``GET /v1/incidents``: the incidents, newest first, and the watches; ``next_before`` is the value of ``before``
    for the next page, null on the last one."""

    incidents: list[IncidentView]
    watches: list[WatchView]
    open: int  # alarms that are not over and not judged, of the hosts asked for
    changed: int  # hosts, of those asked for, with a change that is neither confirmed nor closed
    next_before: int | None
    now: float


class JudgeRequest(Wire):
    """``POST /v1/incidents/{number}/judge``: a person's verdict on alarms, or ``closed`` for a change that its host
    cannot confirm; ``open`` removes a verdict."""

    verdict: Literal["confirmed", "false", "closed", "open"]
