"""Messages of the forecast endpoints. The request may suppose other hosts or another plan; the answer says which host
would train which job when."""

from typing import Annotated

from msgspec import Meta

from training.fleet.wire.constants import HOST_ID_PATTERN
from training.fleet.wire.message import Wire
from training.fleet.wire.plans import PlanRequest

FORETOLD_MAX = 2_000  # jobs in one answer
WITH_MAX = 50  # hosts that may be imagined
_Host = Annotated[str, Meta(pattern=HOST_ID_PATTERN)]
_Size = Annotated[float, Meta(ge=0, le=1e6)]


class ImaginedHost(Wire, forbid_unknown_fields=True):
    """A host that a forecast supposes but that does not exist. Null members are as on the host ``like``. Without
    ``like``, null cores and memory are enough for every job, and a null ``vram_gib`` means no GPU."""

    like: _Host | None = None  # with the capability of this host, and as fast
    vram_gib: _Size | None = None  # of its GPU; null: as ``like``, or none
    ram_gib: _Size | None = None
    cores: Annotated[int, Meta(ge=1, le=100_000)] | None = None


class ForecastRequest(Wire, forbid_unknown_fields=True):
    """``POST /v1/forecast``: forecast ``plan`` (null: the jobs that wait now), without some hosts and with imagined
    ones."""

    without: Annotated[list[_Host], Meta(max_length=1_000)] = []
    imagined: Annotated[dict[_Host, ImaginedHost], Meta(max_length=WITH_MAX)] = {}
    plan: PlanRequest | None = None


class ForetoldJob(Wire):
    """A job's predicted time on a host, in epoch seconds. With a probability of 80 % the job ends between ``low_at``
    and ``high_at``."""

    job_id: str
    name: str
    host: str
    slot: int  # of its host, from 0
    begins_at: float
    ends_at: float
    low_at: float
    high_at: float
    live: bool = False  # it trains there now; ``begins_at`` is when that began
    threads: int | None = None  # that its trainer computes with; null: that is decided when it begins


class DeclineView(Wire):
    """A job that a host leaves to another, which will finish it sooner. Times in epoch seconds."""

    name: str  # of the first such job
    at: float  # when the host would ask
    by: str  # who will do it, …
    ends_at: float
    here_until: float  # … and when it would be done here


class ForetoldHost(Wire):
    """A host in the forecast. A host with a ``note`` gets no further jobs in the forecast, and the note says why."""

    host: str
    jobs: int = 0
    done_at: float | None = None  # the end of its last job
    imagined: bool = False
    declined: DeclineView | None = None
    note: str | None = None


class ForecastReply(Wire):
    """The answer of the forecast endpoints. Times are in epoch seconds; ``done_at`` is null if the forecast has no job
    that a host could train."""

    now: float
    done_at: float | None
    done_low_at: float | None  # four of five such plans are done from here …
    done_high_at: float | None  # … to here
    jobs: list[ForetoldJob]  # the first two thousand, in order of their beginning
    count: int  # of all jobs that fit somewhere
    hosts: list[ForetoldHost]
    nowhere: dict[str, str] = {}  # job → why no host here can train it
    held: int = 0  # jobs that wait until they are unheld, and are left out
    left_out: int = 0  # jobs that wait behind the first 20,000, and are left out
    learned_from: int = 0  # completed attempts that the durations rest on
