"""The messages between a worker and the receiver about attempts: claims, heartbeats, output, deliveries, ends.

These messages are not in messages.py, so that a worker, which must use little memory, need not load the messages for
operators and readers.
"""

from typing import Annotated

from msgspec import Meta

from training.fleet.wire.constants import HOST_ID_PATTERN, ID_PATTERN, SLOTS_MAX, Action
from training.fleet.wire.message import JsonObject, Wire
from training.fleet.wire.states import StateView

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
            "enum": ["interrupted", "spawn_failed", "trainer_failed", "upload_failed", "worker_shutdown"]
        }
    ),
]
Order = Annotated[str, Meta(extra_json_schema={"enum": ["drain", "hand_back", "pause"]})]  # a worker ignores others
Name = Annotated[str, Meta(max_length=128)]  # of a model, a mode, a host or a channel
Echo = Annotated[str, Meta(max_length=64)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Slots = Annotated[int, Meta(ge=1, le=SLOTS_MAX)]
Minute = Annotated[int, Meta(ge=0, le=7 * 24 * 60)]  # of the week
PartOfPath = Annotated[str, Meta(pattern=ID_PATTERN.replace("$", r"\Z"))]  # a line break at its end is none
ExitCode = Annotated[int, Meta(ge=-(2**31), le=2**32 - 1)]  # exit codes of Windows are unsigned


class SetAsideWork(Wire):
    """A finished bundle that a host keeps because the receiver refused it permanently, or its claim ended."""

    job_id: str
    name: str = ""
    size: int = 0  # bytes of the bundle
    why: str = ""  # the receiver's reason


Gib = Annotated[float, Meta(ge=0, le=1e9)]


class TrainerUse(Wire):
    """A trainer that starts, runs or stops on the claiming host, and the memory that it holds now."""

    claim_id: Id
    ram_gib: Gib = 0.0
    vram_gib: Gib = 0.0


class ClaimRequest(Wire):
    """``POST /v1/job/claim``: ask for a job. If this ``request_id`` was granted a claim that is still live, the
    receiver repeats the grant. With ``wait_s`` the receiver may wait up to so many seconds for a job before it
    answers."""

    host_id: HostId
    capability: JsonObject = {}
    instance_id: Id | None = None  # made once per installation
    session_id: Id | None = None  # made at each start of the worker
    slot: Slot = 0
    request_id: Id | None = None
    wait_s: float = 0.0  # 0 … WAIT_S_MAX
    # program → digest of its flags, as its --describe prints it
    trainer_digests: dict[str, str] = {}
    crashed_claims: list[str] = []  # the claims of earlier sessions that ended without reporting
    # the `echo` of the last answer to this session, "" before the first
    echo: Echo | None = None
    set_aside: list[SetAsideWork] = []  # finished, refused, kept there
    # the session's claims whose trainers have ended, and that it still delivers
    delivering: list[str] = []
    training: list[TrainerUse] = []  # the session's others
    # the condition of the host's owner for which it wants no job now: it tells that it lives, and gets none
    resting: str | None = None


class HostTerms(Wire):
    """The conditions that a host's owner and operators set for its worker now. A null member sets no condition."""

    order: Order | None = None  # of an operator
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
        """Return True if a condition of the owner requires the worker to read the machine's state (load, battery, use,
        temperature, clock)."""
        limits = (self.pause_above_cpu, self.pause_above_gpu, self.pause_above_celsius)
        return bool(self.hours) or self.pause_on_battery or self.pause_when_used or any(x is not None for x in limits)


class DeclinedView(Wire):
    """A job that the claiming host does not get now, because another host will have it done sooner. Times in epoch
    seconds."""

    job_id: str  # the oldest of those like it
    name: str
    by: str  # the host that will do it
    begins_at: float
    ends_at: float
    here_until: float  # when this host would have it done, begun now
    open_at: float  # from then on this host may have it


class BookedView(Wire):
    """A booking: the part of its host that an attempt may use; memory in GiB."""

    cores: Annotated[int, Meta(ge=1)] = 1  # it computes with as many threads
    ram_gib: Gib = 0.0
    vram_gib: Gib = 0.0
    # its place in the capability's list of CUDA devices; null: it trains on the CPU
    gpu: Annotated[int, Meta(ge=0)] | None = None
    least_ram_gib: Gib = 0.0  # that must be free when its trainer starts, beside what other trainers are booked for …
    least_vram_gib: Gib = 0.0  # … and of that GPU's memory; else the job is to be handed back


class ClaimReply(Wire):
    """The answer to a claim: the grant of a job or, if ``job_id`` is null, the reason why there is none, and the
    seconds after which to ask again."""

    job_id: str | None = None
    name: str | None = None
    spec: JsonObject | None = None  # the job dict; own trainers add `trainer`
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


class Grant(ClaimReply):
    """The answer to a claim that grants a job, as the client decodes it."""

    job_id: PartOfPath
    name: str
    spec: JsonObject
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
        """Return the id of the data set that the worker must fetch before it trains; None if the job uses this host's
        own data."""
        named = self.spec.get("dataset")
        return named if isinstance(named, str) and named else None


class LogLines(Wire):
    """Consecutive output lines of an attempt; ``first`` is the number of the first of these lines, counted from 0.

    ``total`` counts all lines of an attempt whose trainer has ended; null: the trainer may print more, or the number is
    unknown.
    """

    first: Count = 0
    total: Count | None = None
    lines: list[str] = []


class Usage(Wire):
    """A trainer's use of its host since the last heartbeat: the mean use of CPU and GPU, and the highest use of memory.
    A null member is not known."""

    cpu: Annotated[float, Meta(ge=0, le=1e6)] | None = None  # cores
    memory_bytes: Count | None = None
    gpu: Annotated[float, Meta(ge=0, le=1)] | None = None  # share of the time in which its GPU worked
    gpu_memory_bytes: Count | None = None


class AttemptReport(Wire):
    """The members that all reports of a worker about an attempt have."""

    host_id: str | None = None
    claim_id: str | None = None
    log: LogLines | None = None


class ProgressReport(AttemptReport):
    """A report that has the trainer's progress. The receiver ignores progress whose ``seq`` is not above the highest
    that it has received from this attempt."""

    seq: Count = 0
    progress: JsonObject | None = None  # the trainer's last progress object


class HeartbeatRequest(ProgressReport):
    """``POST /v1/job/{id}/heartbeat``. The receiver ignores progress whose ``seq`` is not above the highest that it has
    received from this attempt."""

    session_id: Id | None = None
    echo: Echo | None = None  # of the last answer to this session
    usage: Usage | None = None
    resting: str | None = None  # as in a claim
    paused: bool = False  # the trainer stands still …
    paused_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0  # … and has for so long in all
    resumable: bool = False  # it has saved a state from which it can go on elsewhere


class HeartbeatReply(Wire):
    action: Action
    lease_s: Seconds
    log_next: Count = 0  # number of the next line the receiver has not stored
    echo: Echo | None = None  # to be brought back with the next claim or heartbeat of this session
    slots: Slots | None = None  # as in a claim's answer
    terms: HostTerms | None = None  # as in a claim's answer


class OutputRequest(AttemptReport):
    """``POST /v1/job/{id}/log``: lines that an attempt's trainer printed; the worker may send them after the attempt's
    end, too. A request without lines asks for the number of the first line that the receiver lacks."""


class OutputReply(Wire):
    log_next: int  # number of the next line the receiver has not stored


class CompleteRequest(ProgressReport):
    """``POST /v1/job/{id}/complete``: report that the job is trained and its bundle uploaded. The receiver keeps
    ``record`` with the attempt."""

    artifact_id: str
    spec_hash: str | None = None
    record: JsonObject | None = None
    report: str | None = None  # the trainer's report, a text of at most 1 MiB; it is kept as it is
    database_id: str | None = None  # of the database that granted the claim


class CompleteReply(Wire):
    """The receipt for a completed job: the worker may delete its copy of the bundle. If the status is ``unconfirmed``
    (202), the receiver does not know the claim: the worker keeps its copy and asks again."""

    job_id: str
    status: str  # completed, unconfirmed
    artifact_id: str
    attempt: int  # 0: unconfirmed work is of none


class DeliverRequest(Wire):
    """``POST /v1/job/{id}/deliver``: complete a pending job with a bundle that this host trained and kept, because a
    person ordered the delivery on this host."""

    host_id: HostId
    claim_id: Id  # the claim under which it was trained, live or not
    artifact_id: str
    spec_hash: str
    record: JsonObject | None = None
    report: str | None = None
    database_id: str | None = None  # as in CompleteRequest


class FailRequest(ProgressReport):
    """``POST /v1/job/{id}/fail``: report that the attempt ended without an artifact, or give the job back."""

    error: str = ""
    reason: Reason = "trainer_failed"  # one of job.REPORTABLE; "worker shutdown" is understood
    exit_code: ExitCode | None = None
    out_of_memory: str | None = None  # "ram" or "vram", when its lack ended the trainer
    record: JsonObject | None = None


class StatusReply(Wire):
    """The job's status after a call that changed it."""

    job_id: str
    status: str


class MovedReply(StatusReply):
    """The state of a job after an operator cancelled, requeued, held or unheld it."""

    name: str
    near: int  # other jobs whose name or id begins with the given prefix
    in_manifest: bool  # false: the plan does not name the job any more
    passed_over: bool = False  # … and no host is granted it before it is back, or requeued
    held_by: str | None = None  # the operator who holds it; null: not held
    held_at: float | None = None


class UploadReply(Wire):
    """``PUT /v1/model/{id}``: the receiver has stored the bundle, synced it to disk and checked its SHA-256."""

    artifact_id: str
    job_id: str
    size: int
    status: str = "stored"  # or unconfirmed (202): the receiver does not know the claim
