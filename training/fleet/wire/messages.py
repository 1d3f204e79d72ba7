"""The wire: one typed struct per request and reply. Limits, headers and problem types are in constants.py.

Workers' bodies are decoded strictly (a wrong type is a 400 that names the path) and unknown fields are ignored, so
that older and newer programs understand each other. Durations travel, never absolute times: a worker must not
compare clocks with the receiver. ``docs/protocol.md`` is the same page for people.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from training.fleet.wire.constants import (
    ARTIFACT_BYTES_MAX,
    DATABASE_ID_PATTERN,
    DATASET_NAME_PATTERN,
    ERROR_CHARS_MAX,
    HEADER_BY_HAND,
    HEADER_CLAIM_ID,
    HEADER_DATABASE,
    HEADER_HOST_ID,
    HEADER_OFFSET,
    HEADER_OPERATOR_TOKEN,
    HEADER_PROBLEM,
    HEADER_SHA256,
    HOST_ID_PATTERN,
    ID_PATTERN,
    JSON_BODY_MAX,
    LOG_LINE_CHARS_MAX,
    LOG_LINES_MAX,
    SLOTS_MAX,
    VERSION,
    WAIT_S_MAX,
    Action,
    JobAct,
    ProblemType,
)
from training.fleet.wire.states import StateView
from training.fleet.wire.views import (
    AttemptView,
    CurveAttempt,
    CurvePoint,
    CurveReply,
    EventView,
    ExplainReply,
    GcReply,
    GcTotal,
    GoneView,
    HealthReply,
    HostVerdict,
    JobDetail,
    JobsReply,
    JobView,
    LogReply,
    ModelsReply,
    RemovedView,
    UsageSample,
    Wire,
    WorkersReply,
    WorkerView,
)

# Re-exported for the rest of the package.
__all__ = [
    "ARTIFACT_BYTES_MAX",
    "DATABASE_ID_PATTERN",
    "ERROR_CHARS_MAX",
    "HEADER_BY_HAND",
    "HEADER_CLAIM_ID",
    "HEADER_DATABASE",
    "HEADER_HOST_ID",
    "HEADER_OFFSET",
    "HEADER_OPERATOR_TOKEN",
    "HEADER_PROBLEM",
    "HEADER_SHA256",
    "HOST_ID_PATTERN",
    "ID_PATTERN",
    "JSON_BODY_MAX",
    "LOG_LINES_MAX",
    "LOG_LINE_CHARS_MAX",
    "VERSION",
    "WAIT_S_MAX",
    "Action",
    "AttemptView",
    "CurveAttempt",
    "CurvePoint",
    "CurveReply",
    "EventView",
    "ExplainReply",
    "GcReply",
    "GcTotal",
    "GoneView",
    "HealthReply",
    "HostVerdict",
    "JobDetail",
    "JobView",
    "JobsReply",
    "LogReply",
    "ModelsReply",
    "ProblemType",
    "RemovedView",
    "UsageSample",
    "WorkerView",
    "WorkersReply",
]


# The documented form of what is checked where its sentence says more (screening, enrolment), and numbers that every
# database can hold.
HostId = Annotated[str, Meta(extra_json_schema={"pattern": HOST_ID_PATTERN})]
Id = Annotated[str, Meta(extra_json_schema={"pattern": ID_PATTERN})]
RoleName = Annotated[str, Meta(extra_json_schema={"enum": ["host", "operator", "reader", "watcher"]})]
Slot = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Reason = Annotated[  # job.REPORTABLE; other spellings are understood
    str,
    Meta(
        extra_json_schema={
            "enum": [
                "interrupted",
                "spawn_failed",
                "trainer_failed",
                "upload_failed",
                "worker_shutdown",
            ]
        }
    ),
]
Echo = Annotated[str, Meta(max_length=64)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Slots = Annotated[int, Meta(ge=1, le=SLOTS_MAX)]
Minute = Annotated[int, Meta(ge=0, le=7 * 24 * 60)]  # of the week
PartOfPath = Annotated[str, Meta(pattern=ID_PATTERN.replace("$", r"\Z"))]  # a line break at its end is none
ExitCode = Annotated[int, Meta(ge=-(2**31), le=2**32 - 1)]  # exit codes of Windows are unsigned


class Refusal(Exception):  # noqa: N818 - a refusal is an answer, not a fault of the program
    """A refusal of the receiver in place of a reply. ``detail`` is one sentence with the cause and the remedy."""

    def __init__(self, problem_type: ProblemType, detail: str, **extra: Any) -> None:
        super().__init__(detail)
        self.problem_type = problem_type
        self.detail = detail
        self.extra = extra  # further members of the problem document


class SetAsideWork(Wire, frozen=True, kw_only=True):
    """A finished bundle that stays on a host because the receiver refused it for good."""

    job_id: str
    name: str = ""
    size: int = 0  # bytes of the bundle
    why: str = ""  # the receiver's reason


Gib = Annotated[float, Meta(ge=0, le=1e9)]


class TrainerUse(Wire, frozen=True, kw_only=True):
    """A trainer that runs on the host that claims, and what memory it holds at this moment."""

    claim_id: Id
    ram_gib: Gib = 0.0
    vram_gib: Gib = 0.0


class ClaimRequest(Wire, frozen=True, kw_only=True):
    """``POST /v1/job/claim``. ``request_id`` makes the call repeatable; ``wait_s`` asks the receiver to wait."""

    host_id: HostId
    capability: dict[str, Any] = field(default_factory=dict)
    instance_id: Id | None = None  # made once per installation
    session_id: Id | None = None  # made at each start of the worker
    slot: Slot = 0
    request_id: Id | None = None
    wait_s: float = 0.0  # 0 … WAIT_S_MAX
    # program → digest of its flags, as its --describe prints it
    trainer_digests: dict[str, str] = field(default_factory=dict)
    crashed_claims: list[str] = field(
        default_factory=list
    )  # the claims of earlier sessions that ended without reporting
    # the `echo` of the last answer to this session, "" before the first; null: the worker does not support it
    echo: Echo | None = None
    set_aside: list[SetAsideWork] = field(default_factory=list)  # finished, refused, kept there
    # the session's claims whose trainers have ended, and that it still delivers
    delivering: list[str] = field(default_factory=list)
    training: list[TrainerUse] = field(default_factory=list)  # the session's others
    # the condition of the host's owner for which it wants no job now: it tells that it lives, and gets none
    resting: str | None = None


class HostTerms(Wire, frozen=True, kw_only=True):
    """The wishes of a host's owner and operators, for its worker now. Null asks for nothing."""

    order: Literal["pause", "drain", "hand_back"] | None = None  # of an operator
    by: str | None = None  # who gave it
    # the owner's conditions: spans of minutes of the week in which it may train, by its own clock; null: always
    hours: list[tuple[Minute, Minute]] | None = None
    pause_on_battery: bool = False
    pause_when_used: bool = False  # by a person …
    idle_s: Seconds = 300.0  # … until nobody touched it for so long
    pause_above_cpu: float | None = None  # share of its cores that other programs use
    pause_above_gpu: float | None = None  # share of a GPU
    pause_above_celsius: float | None = None
    pause_max_s: Seconds = 600.0  # a trainer that is paused for longer is stopped, and its job handed back
    may_sleep: bool = False  # false: it is kept awake while it trains on mains power

    @property
    def observes(self) -> bool:
        """Return True when the owner has a condition that the machine must be looked at for."""
        limits = (self.pause_above_cpu, self.pause_above_gpu, self.pause_above_celsius)
        return bool(self.hours) or self.pause_on_battery or self.pause_when_used or any(x is not None for x in limits)


class DeclinedView(Wire, frozen=True, kw_only=True):
    """A job that this host does not get now, because another will have it done sooner. Times in epoch seconds."""

    job_id: str  # the oldest of those like it
    name: str
    by: str  # the host that will do it
    begins_at: float
    ends_at: float
    here_until: float  # when this host would have it done, begun now
    open_at: float  # from then on this host may have it


class BookedView(Wire, frozen=True, kw_only=True):
    """A booking: the part of its host that an attempt may use; memory in GiB."""

    cores: Annotated[int, Meta(ge=1)] = 1  # it computes with as many threads
    ram_gib: Gib = 0.0
    vram_gib: Gib = 0.0
    gpu: Annotated[int, Meta(ge=0)] | None = (
        None  # its place in the capability's list of CUDA devices; null: it trains on the CPU
    )
    least_ram_gib: Gib = 0.0  # that must be free when its trainer starts, beside what other trainers are booked for …
    least_vram_gib: Gib = 0.0  # … and of that GPU's memory; else the job is to be handed back


class ClaimReply(Wire, frozen=True, kw_only=True):
    """The grant; or, with ``job_id`` null, the reason for none and the time after which to ask again."""

    job_id: str | None = None
    name: str | None = None
    spec: dict[str, Any] | None = None  # the job dict; own trainers add `trainer`
    env: dict[str, str] | None = None  # the plan's environment variables for trainers on this host
    claim_id: str | None = None
    attempt: int | None = None
    lease_s: Seconds | None = None  # remaining, counted by the worker from the sending of its request
    repeated: bool = False  # the answer to a repeated request
    reason: str | None = None
    retry_after_s: Seconds | None = None
    declined: DeclinedView | None = None  # what it waits for instead
    echo: Echo | None = None  # to be brought back with the next request of this session
    ask_again: bool = False  # the receiver could not keep the claim waiting; pause, then ask again
    slots: Slots | None = None  # how many jobs this host may train at once; null: as said before, or one
    state: StateView | None = None  # the state to go on from, if the job was trained elsewhere before
    state_every_s: Seconds | None = None  # between two states that are brought of a long job; 0: none; null: never said
    terms: HostTerms | None = None  # null: as said before, or none
    booked: BookedView | None = None  # for the attempt


class Grant(ClaimReply, frozen=True, kw_only=True):
    """The answer to a claim that brings a job, as its client reads it."""

    job_id: PartOfPath
    name: str
    spec: dict[str, Any]
    claim_id: PartOfPath
    attempt: int
    lease_s: Seconds
    database_id: str | None = None  # the database that granted it, as the answer's header names it

    @property
    def model(self) -> str:
        return str(self.spec.get("model") or "")

    @property
    def mode(self) -> str:
        return str(self.spec.get("mode") or "")

    @property
    def dataset(self) -> str | None:
        """Return the id of the data set to fetch first; None for this host's own data."""
        named = self.spec.get("dataset")
        return named if isinstance(named, str) and named else None


class LogLines(Wire, frozen=True, kw_only=True):
    """Consecutive output lines; ``first`` numbers the first one within its attempt, from 0.

    ``total`` counts all lines of an attempt whose trainer has ended; null: it may print more, or nobody says.
    """

    first: Count = 0
    total: Count | None = None
    lines: list[str] = field(default_factory=list)


class Usage(Wire, frozen=True, kw_only=True):
    """The use that a trainer made of its host since the last heartbeat: means, and the most memory. Null: not known."""

    cpu: Annotated[float, Meta(ge=0, le=1e6)] | None = None  # cores
    memory_bytes: Count | None = None
    gpu: Annotated[float, Meta(ge=0, le=1)] | None = None  # share of the time in which its GPU worked
    gpu_memory_bytes: Count | None = None


class HeartbeatRequest(Wire, frozen=True, kw_only=True):
    """``POST /v1/job/{id}/heartbeat``. Progress with a ``seq`` not above the last one is ignored."""

    host_id: str | None = None
    claim_id: str | None = None
    session_id: Id | None = None
    echo: Echo | None = None  # of the last answer to this session
    seq: Count = 0
    progress: dict[str, Any] | None = None  # the trainer's last progress object
    usage: Usage | None = None
    resting: str | None = None  # as in a claim
    paused: bool = False  # the trainer stands still …
    paused_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0  # … and has for so long in all
    resumable: bool = False  # it has saved a state from which it can go on elsewhere
    log: LogLines | None = None


class HeartbeatReply(Wire, frozen=True, kw_only=True):
    action: Action
    lease_s: Seconds
    log_next: Count = 0  # number of the next line the receiver has not stored
    echo: Echo | None = None  # to be brought back with the next claim or heartbeat of this session
    slots: Slots | None = None  # as in a claim's answer
    terms: HostTerms | None = None  # as in a claim's answer


class OutputRequest(Wire, frozen=True, kw_only=True):
    """``POST /v1/job/{id}/log``: what an attempt printed, also when it is over. Without lines: a question."""

    host_id: str | None = None
    claim_id: str | None = None
    log: LogLines | None = None


class OutputReply(Wire, frozen=True, kw_only=True):
    log_next: int  # number of the next line the receiver has not stored


class CompleteRequest(Wire, frozen=True, kw_only=True):
    """``POST /v1/job/{id}/complete``. ``record`` is kept with the attempt: durations, host, versions."""

    artifact_id: str
    host_id: str | None = None
    claim_id: str | None = None
    spec_hash: str | None = None
    record: dict[str, Any] | None = None
    seq: Count = 0  # as in a heartbeat
    progress: dict[str, Any] | None = None
    log: LogLines | None = None
    report: str | None = None  # the trainer's report, a text of at most 1 MiB; it is kept as it is


class CompleteReply(Wire, frozen=True, kw_only=True):
    """The receipt. The worker may delete its copy."""

    job_id: str
    status: str
    artifact_id: str
    attempt: int


class DeliverRequest(Wire, frozen=True, kw_only=True):
    """``POST /v1/job/{id}/deliver``: finished work that had been set aside, offered again by hand."""

    host_id: HostId
    claim_id: Id  # the claim under which it was trained, live or not
    artifact_id: str
    spec_hash: str
    record: dict[str, Any] | None = None
    report: str | None = None


class FailRequest(Wire, frozen=True, kw_only=True):
    """``POST /v1/job/{id}/fail``: the attempt ended without an artifact, or the job is handed back."""

    error: str = ""
    reason: Reason = "trainer_failed"  # one of job.REPORTABLE; "worker shutdown" is understood
    host_id: str | None = None
    claim_id: str | None = None
    exit_code: ExitCode | None = None
    out_of_memory: str | None = None  # "ram" or "vram", when its lack ended the trainer
    record: dict[str, Any] | None = None
    seq: Count = 0  # as in a heartbeat
    progress: dict[str, Any] | None = None
    log: LogLines | None = None


class StatusReply(Wire, frozen=True, kw_only=True):
    """The job's status after a call that moved it."""

    job_id: str
    status: str


class MovedReply(StatusReply, frozen=True, kw_only=True):
    """The effect of an operator's call, and its job."""

    name: str
    near: int  # other jobs whose name or id begins with the given prefix
    in_manifest: bool  # false: the plan does not name the job any more
    held_by: str | None = None  # the operator who holds it; null: not held
    held_at: float | None = None


class UploadReply(Wire, frozen=True, kw_only=True):
    """``PUT /v1/model/{id}``: the bundle is stored, synced and hashed."""

    artifact_id: str
    job_id: str
    size: int


class ActRequest(Wire, frozen=True, kw_only=True):
    """``POST /v1/act``: an act on all jobs that match every given filter; without a filter it is on none."""

    what: JobAct
    status: Literal["", "pending", "claimed", "running", "completed", "failed", "cancelled", "held"] = ""
    model: Annotated[str, Meta(max_length=128)] = ""
    mode: Annotated[str, Meta(max_length=128)] = ""
    host: Annotated[str, Meta(max_length=128)] = ""
    q: Annotated[str, Meta(max_length=256)] = ""  # a part of the name
    jobs: Annotated[int, Meta(ge=0)] | None = None  # the number of jobs that is agreed to; null: only say what it does


class ActReply(Wire, frozen=True, kw_only=True):
    """The effect of an act on many jobs: expected, or done."""

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


class ReleaseReply(Wire, frozen=True, kw_only=True):
    """``POST /v1/workers/{host}/release``: release a host from quarantine."""

    host: str
    reason: str  # the reason of the quarantine


class HostOrderReply(Wire, frozen=True, kw_only=True):
    """``POST /v1/workers/{host}/pause``, ``/drain`` and ``/resume``: the order that a host is under now."""

    host: str
    order: str | None = (
        None  # pause, drain, or hand_back; null: none any more, and the rest tells of the one that ended
    )
    by: str  # who gave it …
    since: float  # … and when; a repetition keeps both
    was: str | None  # the order before
    jobs: list[str]  # names of the jobs that it holds
    note: str | None = None  # why it gets no jobs all the same


class EditView(Wire, frozen=True, kw_only=True):
    """A change that a reload found; see edits.Edit."""

    kind: str  # rename, job, host, trainer, channel, revived, stands, left
    name: str
    holds: str  # since when, or the consequence
    keys: list[str] = field(default_factory=list)
    job_id: str | None = None
    was: str | None = None  # the name before a rename
    since: float | None = None  # end of a job that stays completed


class ReloadReply(Wire, frozen=True, kw_only=True):
    """``POST /v1/manifest/reload``: every job of the plan is one of the first three."""

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
    edits: list[EditView] = field(default_factory=list)  # the first hundred
    # warnings: valid, but perhaps not meant; a sentence each
    notes: list[str] = field(default_factory=list)
    file: str | None = None
    saved_at: float | None = None  # when that file was last changed
    now: float | None = None

    @property
    def changed(self) -> bool:
        """Return True when anything differs from before."""
        counts = (self.inserted, self.updated, self.removed, self.revived)
        return any((*counts, self.hosts, self.trainers, self.retention, self.scheduling, self.notify))


class AuthorityReply(Wire, frozen=True, kw_only=True):
    """``GET /v1/authority``: the receiver's authority, to be trusted by its fingerprint."""

    ca: str  # PEM
    fingerprint: str  # sha256:…
    now: float  # the receiver's clock: a machine whose clock is far off cannot use a certificate


class InviteRequest(Wire, frozen=True, kw_only=True):
    """``POST /v1/invitations``: make a one-time code for a host, an operator or a reader."""

    name: HostId
    role: RoleName = "host"


class InviteReply(Wire, frozen=True, kw_only=True):
    """The one-time code, shown only in this response."""

    name: str
    role: str
    code: str
    expires_in_s: float
    fingerprint: str
    url: str  # the receiver's URL for the new machine
    note: str | None = None  # warnings, to be read before the code is used


class JoinRequest(Wire, frozen=True, kw_only=True):
    """``POST /v1/join``. The same request may be sent again; another one with the same code is refused."""

    name: HostId
    code: str
    csr: str  # PEM; only its key is used
    role: RoleName = "host"


class RenewRequest(Wire, frozen=True, kw_only=True):
    """``POST /v1/renew``: a new certificate for the owner of the connection's certificate."""

    csr: str


class CertificateReply(Wire, frozen=True, kw_only=True):
    name: str
    role: str
    certificate: str  # PEM
    ca: str  # PEM
    fingerprint: str  # of the certificate
    valid_s: float  # from now on


class RevokeRequest(Wire, frozen=True, kw_only=True):
    """``POST /v1/revoke``: every certificate and open code of a name."""

    name: HostId
    role: RoleName = "host"


class RevokeReply(Wire, frozen=True, kw_only=True):
    name: str
    certificates: int
    jobs: int  # jobs of the host that are pending again


class CertificateView(Wire, frozen=True, kw_only=True):
    name: str
    role: str
    fingerprint: str
    issued_at: float
    expires_at: float
    revoked_at: float | None


class CertificatesReply(Wire, frozen=True, kw_only=True):
    certificates: list[CertificateView]
    now: float


class TokenRequest(Wire, frozen=True, kw_only=True):
    """``POST /v1/tokens``: make an operator's or a reader's token."""

    name: HostId
    days: Annotated[float, Meta(extra_json_schema={"exclusiveMinimum": 0, "maximum": 366})] = 90.0
    role: Annotated[str, Meta(extra_json_schema={"enum": ["operator", "reader"]})] = "operator"


class TokenReply(Wire, frozen=True, kw_only=True):
    """The token, shown only in this response."""

    name: str
    token: str
    expires_at: float


class TokenView(Wire, frozen=True, kw_only=True):
    name: str
    created_at: float
    expires_at: float
    revoked_at: float | None
    role: str = "operator"


class TokensReply(Wire, frozen=True, kw_only=True):
    tokens: list[TokenView]
    now: float


class TokenRevokeRequest(Wire, frozen=True, kw_only=True):
    """``POST /v1/tokens/revoke``: the oldest valid token of a name, or all of them."""

    name: HostId
    every: bool = False


class TokenRevokeReply(Wire, frozen=True, kw_only=True):
    name: str
    revoked: int


class AuditEntry(Wire, frozen=True, kw_only=True):
    """An act of an operator or of a joining host. ``before`` and ``after`` are JSON texts, as the digest has them."""

    seq: int
    at: float
    who: str
    act: str
    subject: str
    before: str | None
    after: str | None
    digest: str


class AuditReply(Wire, frozen=True, kw_only=True):
    """``GET /v1/audit``: a page, oldest first; ``next_after`` leads to the next."""

    entries: list[AuditEntry]
    next_after: int | None
    now: float


class DatasetView(Wire, frozen=True, kw_only=True):
    """A data set that workers can fetch. Publishing answers with it."""

    dataset_id: str  # SHA-256 of its listing
    names: list[str]
    size: int  # bytes
    files: int
    pieces: int
    pushed_at: float


class DatasetPublishReply(DatasetView, frozen=True, kw_only=True):
    """``POST /v1/dataset/{id}/publish``: the published data set, and the one that had its name before."""

    was: str | None = None  # the data set that had the name before, if another one
    jobs_anew: int = 0  # jobs of the plan that the next reload makes because the name moved
    jobs_waiting: int = 0  # unfinished jobs that they replace: these still train on the old data


class DatasetsReply(Wire, frozen=True, kw_only=True):
    datasets: list[DatasetView]
    now: float


class DatasetDraftReply(Wire, frozen=True, kw_only=True):
    """``PUT /v1/dataset/{id}``: pieces to upload before it can be published; ask again when these are here."""

    dataset_id: str
    size: int
    missing: list[str]  # the first of them, at most 4,096
    missing_bytes: int  # of all
    published: bool


class DatasetPublishRequest(Wire, frozen=True, kw_only=True):
    name: Annotated[str, Meta(extra_json_schema={"pattern": DATASET_NAME_PATTERN})] | None = None
    # the hosts it was recorded on, if known: a reload warns of a plan whose `train_hosts` differ
    hosts: Annotated[list[Annotated[str, Meta(max_length=128)]], Meta(max_length=256)] = field(default_factory=list)


class DatasetUnnameRequest(Wire, frozen=True, kw_only=True):
    name: Annotated[str, Meta(extra_json_schema={"pattern": DATASET_NAME_PATTERN})]


class DatasetRemoveReply(Wire, frozen=True, kw_only=True):
    dataset_id: str
    freed: int  # bytes


class SpeedOnHost(Wire, frozen=True, kw_only=True):
    """The time that a kind of job is expected to take on a host: the median, and a range that holds four of five."""

    host: str
    seconds: float
    low: float
    high: float
    seen: int  # attempts with the very same settings there
    basis: Literal["same", "here", "calibrated", "elsewhere", "guess"]


class SpeedsOfKind(Wire, frozen=True, kw_only=True):
    """Jobs that differ in seed and name alone: they are expected to take equally long."""

    model: str
    mode: str
    dataset: str | None
    hyper: dict[str, Any]
    jobs: int  # completed ones that it was learned from
    ram_gib: float | None  # the most that a trainer held; None: not known
    hosts: list[SpeedOnHost]  # the fastest first


class SpeedsReply(Wire, frozen=True, kw_only=True):
    """``GET /v1/speeds``: how long jobs take, as learned from the newest completed attempts."""

    kinds: list[SpeedsOfKind]  # those last trained first
    attempts: int  # that it was learned from
    doubts: dict[str, str]  # host → why what it measured of its own speed is not to be trusted
    now: float


class ChannelView(Wire, frozen=True, kw_only=True):
    """A channel for notices, and how far it has got. Times in epoch seconds."""

    channel: str
    kind: str
    waiting: int  # notices that it has not sent yet
    sent_at: float | None  # its last message that arrived
    tries: int  # failed ones of the message under way
    next_at: float | None  # when that is tried again
    error: str | None  # of the last try, or why none can succeed


class NotifyReply(Wire, frozen=True, kw_only=True):
    """``GET /v1/notify``."""

    channels: list[ChannelView]
    now: float


class NotifyTestRequest(Wire, frozen=True, kw_only=True):
    """``POST /v1/notify/test``: send a test message on one channel of the plan, or on all."""

    channel: str | None = None


class NotifyTestView(Wire, frozen=True, kw_only=True):
    channel: str
    kind: str
    error: str | None  # None: it arrived


class NotifyTestReply(Wire, frozen=True, kw_only=True):
    results: list[NotifyTestView]


class Problem(Wire, frozen=True, kw_only=True):
    """``application/problem+json`` (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
