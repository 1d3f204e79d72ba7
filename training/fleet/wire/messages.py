"""The messages for operators and readers: typed structs of requests, replies and their parts. Limits, headers and
problem types are in constants.py.

JSON bodies are decoded strictly: a wrong type is a 400 that names the path. Unknown members are ignored, so that older
and newer programs understand each other; only plans, forecasts and listings with unknown members are refused. A
worker's deadlines travel as durations, because its clock may differ from the receiver's. ``docs/protocol.md`` describes
the same messages in words.
"""

from typing import Annotated, Literal

from msgspec import Meta

from training.fleet.wire.attempts import HostId, Name, RoleName
from training.fleet.wire.constants import DATASET_NAME_PATTERN, ActStatus, JobAct
from training.fleet.wire.message import JsonObject, Wire


class ActRequest(Wire):
    """``POST /v1/act``: an act on all jobs that match every given filter. A request without a filter matches no job."""

    what: JobAct
    status: Literal["", ActStatus] = ""  # empty: any
    model: Name = ""
    mode: Name = ""
    host: Name = ""
    q: Annotated[str, Meta(max_length=256)] = ""  # a part of the name
    jobs: Annotated[int, Meta(ge=0)] | None = None  # the number of jobs that is agreed to; null: only say what it does


class ActReply(Wire):
    """The answer to an act on many jobs: what it did or, in a preview, would do."""

    what: JobAct
    says: str  # "cancel 3 running jobs; 2 h 10 min of work is lost"
    jobs: int  # that it moves
    names: list[str]  # of the first 50
    left_alone: int  # found, and it does not apply to them
    lost_s: float  # of work of live attempts
    for_good: str  # a sentence about what cannot be taken back; empty: all can
    whole: bool  # false: more were found than one act takes
    moved: int | None = None  # null: it was only asked
    skipped: int = 0  # others moved these jobs meanwhile


class ReleaseReply(Wire):
    """``POST /v1/workers/{host}/release``: release a host from quarantine."""

    host: str
    reason: str  # the reason of the quarantine


class DecisionReply(Wire):
    """``POST /v1/workers/{host}/accept`` and ``/refuse``: the unconfirmed work on which the operator decided."""

    host: str
    jobs: list[str]  # the names of its jobs
    left: list[str]  # a sentence for each that could not be completed, whose work waits on


class HostOrderReply(Wire):
    """``POST /v1/workers/{host}/pause``, ``/drain`` and ``/resume``: the operator's order that the host has after the
    call."""

    host: str
    # pause, drain, or hand_back; null: none any more, and the rest tells of the one that ended
    order: str | None = None
    by: str  # who gave it …
    since: float  # … and when; a repetition keeps both
    was: str | None  # the order before
    jobs: list[str]  # names of the jobs that it holds
    note: str | None = None  # why it gets no jobs all the same


class EditView(Wire):
    """A change that a reload found (or, in a preview, would make)."""

    kind: str  # rename, job, host, trainer, channel, revived, stands, left
    name: str
    holds: str  # since when, or the consequence
    keys: list[str] = []
    job_id: str | None = None
    was: str | None = None  # the name before a rename
    since: float | None = None  # end of a job that stays completed


class ReloadReply(Wire):
    """``POST /v1/manifest/reload``: what the reload changed, in numbers. Every job of the plan counts as inserted,
    updated or unchanged."""

    inserted: int
    updated: int
    unchanged: int
    removed: int
    renamed: int = 0
    revived: int = 0  # named again after they had left the plan
    hosts: int = 0  # whose table says something else
    trainers: int = 0
    retention: int = 0  # 1 when [retention] says something else
    scheduling: int = 0  # 1 when scheduling says something else
    notify: int = 0  # channels that are new, gone, or say something else
    cancelled: int = 0  # jobs of the plan that stay cancelled until they are requeued
    edits: list[EditView] = []  # the first hundred
    # warnings: valid, but perhaps not meant; a sentence each
    notes: list[str] = []
    file: str | None = None
    saved_at: float | None = None  # when that file was last changed
    now: float | None = None

    @property
    def changed(self) -> bool:
        """Return True if the reload changed anything."""
        counts = (self.inserted, self.updated, self.removed, self.revived)
        return any((*counts, self.hosts, self.trainers, self.retention, self.scheduling, self.notify))


class AuthorityReply(Wire):
    """``GET /v1/authority``: the receiver's authority; the client must check its fingerprint."""

    ca: str  # PEM
    fingerprint: str  # sha256:…
    now: float  # the receiver's clock: a machine whose clock is far off cannot use a certificate


class InviteRequest(Wire):
    """``POST /v1/invitations``: make a one-time code for a host, an operator, a reader or a watched host."""

    name: HostId
    role: RoleName = "host"


class InviteReply(Wire):
    """The one-time code, which the receiver shows only in this response."""

    name: str
    role: str
    code: str
    expires_in_s: float
    fingerprint: str
    url: str  # the receiver's URL for the new machine
    note: str | None = None  # warnings, to be read before the code is used
    wheel: str | None = None  # file name of the program's wheel at /v1/wheel; null: there is none
    wheel_sha256: str | None = None


class JoinRequest(Wire):
    """``POST /v1/join``: get a certificate for a one-time code. The same request may be sent again while the code is
    valid; another request with the same code is refused."""

    name: HostId
    code: str
    csr: str  # PEM; only its key is used
    role: RoleName = "host"


class RenewRequest(Wire):
    """``POST /v1/renew``: a new certificate for the owner of the connection's certificate."""

    csr: str


class CertificateReply(Wire):
    name: str
    role: str
    certificate: str  # PEM
    ca: str  # PEM
    fingerprint: str  # of the certificate
    valid_s: float  # from now on


class RevokeRequest(Wire):
    """``POST /v1/revoke``: revoke every certificate and open code of a name in this role; for an operator, also the
    open codes of all other names."""

    name: HostId
    role: RoleName = "host"


class RevokeReply(Wire):
    name: str
    certificates: int
    jobs: int  # jobs of the host that are pending again


class CertificateView(Wire):
    name: str
    role: str
    fingerprint: str
    issued_at: float
    expires_at: float
    revoked_at: float | None


class CertificatesReply(Wire):
    certificates: list[CertificateView]
    now: float


class TokenRequest(Wire):
    """``POST /v1/tokens``: make an operator's or a reader's token."""

    name: HostId
    days: Annotated[float, Meta(extra_json_schema={"exclusiveMinimum": 0, "maximum": 366})] = 90.0
    role: Annotated[str, Meta(extra_json_schema={"enum": ["operator", "reader"]})] = "operator"


class TokenReply(Wire):
    """The token, which the receiver shows only in this response."""

    name: str
    token: str
    expires_at: float


class TokenView(Wire):
    name: str
    created_at: float
    expires_at: float
    revoked_at: float | None
    role: str = "operator"


class TokensReply(Wire):
    tokens: list[TokenView]
    now: float


class TokenRevokeRequest(Wire):
    """``POST /v1/tokens/revoke``: revoke the oldest valid token of a name, or with ``every`` all of them."""

    name: HostId
    every: bool = False


class TokenRevokeReply(Wire):
    name: str
    revoked: int


class AuditEntry(Wire):
    """A row of the audit: ``who`` did which act on which subject. ``before`` and ``after`` are JSON texts or null;
    ``digest`` covers the other members and the digest of the row before."""

    seq: int
    at: float
    who: str
    act: str
    subject: str
    before: str | None
    after: str | None
    digest: str


class AuditReply(Wire):
    """``GET /v1/audit``: a page of the audit's rows, oldest first; ``next_after`` is the value of ``after`` for the
    next page, null on the last one."""

    written: int  # rows in all; the record lacks its end if it holds fewer
    entries: list[AuditEntry]
    next_after: int | None
    now: float


class DatasetView(Wire):
    """A data set that workers can fetch."""

    dataset_id: str  # SHA-256 of its listing
    names: list[str]
    size: int  # bytes
    files: int
    pieces: int
    pushed_at: float


class DatasetPublishReply(DatasetView):
    """``POST /v1/dataset/{id}/publish``: the published data set, and the data set to which its name referred before."""

    was: str | None = None  # the data set that had the name before, if another one
    jobs_anew: int = 0  # jobs of the plan that the next reload makes because the name moved
    jobs_waiting: int = 0  # unfinished jobs that they replace: these still train on the old data


class DatasetsReply(Wire):
    datasets: list[DatasetView]
    now: float


class DatasetDraftReply(Wire):
    """``PUT /v1/dataset/{id}``: the first missing chunks. The client uploads these chunks and repeats the call, until
    no chunk is missing."""

    dataset_id: str
    size: int
    missing: list[str]  # the first of them, at most 4,096
    missing_bytes: int  # of all
    published: bool


class DatasetPublishRequest(Wire):
    name: Annotated[str, Meta(extra_json_schema={"pattern": DATASET_NAME_PATTERN})] | None = None
    # the hosts it was recorded on, if known: a reload warns of a plan whose `train_hosts` differ
    hosts: Annotated[list[Name], Meta(max_length=256)] = []


class DatasetUnnameRequest(Wire):
    name: Annotated[str, Meta(extra_json_schema={"pattern": DATASET_NAME_PATTERN})]


class DatasetRemoveReply(Wire):
    dataset_id: str
    freed: int  # bytes


class SpeedOnHost(Wire):
    """The expected time of a kind of job on a host: the median, and a range that holds in four of five cases."""

    host: str
    seconds: float
    low: float
    high: float
    seen: int  # attempts with the very same settings there
    basis: Literal["same", "here", "calibrated", "elsewhere", "guess"]


class SpeedsOfKind(Wire):
    """A kind of job, and how long it takes on each host. Jobs of a kind have the same model, mode, data set, trainer
    and, up to rounding, hyperparameters; they are expected to take equally long."""

    model: str
    mode: str
    dataset: str | None
    hyper: JsonObject
    jobs: int  # completed ones that it was learned from
    ram_gib: float | None  # the most that a trainer held; None: not known
    hosts: list[SpeedOnHost]  # the fastest first


class SpeedsReply(Wire):
    """``GET /v1/speeds``: how long jobs take, as learned from the newest completed attempts."""

    kinds: list[SpeedsOfKind]  # those last trained first
    attempts: int  # that it was learned from
    doubts: dict[str, str]  # host → why what it measured of its own speed is not to be trusted
    now: float


class ChannelView(Wire):
    """A channel for notices, and how far it has sent them. Times in epoch seconds."""

    channel: str
    kind: str
    waiting: int  # notices that it has not sent yet
    sent_at: float | None  # its last message that arrived
    tries: int  # failed ones of the message under way
    next_at: float | None  # when that is tried again
    error: str | None  # of the last try, or why none can succeed


class NotifyReply(Wire):
    """``GET /v1/notify``: the plan's channels for notices, and how far each has sent its notices."""

    channels: list[ChannelView]
    now: float


class NotifyTestRequest(Wire):
    """``POST /v1/notify/test``: send a test message on one channel of the plan, or on all."""

    channel: str | None = None


class NotifyTestView(Wire):
    channel: str
    kind: str
    error: str | None  # None: it arrived


class NotifyTestReply(Wire):
    results: list[NotifyTestView]


class Problem(Wire):
    """The body of a refusal: a problem document, ``application/problem+json`` (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
