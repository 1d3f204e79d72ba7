"""The main data types of the fleet, and the one table of legal transitions.

Nothing here does I/O or reads a clock. A *job* is one model to be trained, an *attempt* is one grant of a job to one
worker, a *host* is a machine. The table :data:`TRANSITIONS` is written here. The database repeats the statuses as CHECK
constraints, and ``docs/job-lifecycle.md`` draws the transitions as arrows; a test checks that both agree with the
table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from training import strict_json
from training.contract import FINAL_EXITS
from training.fleet.scheduling.resources import NOT_KNOWN, Booking, Gpu, Peak, Room
from training.frozen import frozen, frozen_kw
from training.strict_json import Json, JsonObject

RESERVES = ("reserve_cores", "reserve_ram_gib", "reserve_vram_gib")
SLOTS_AUTO = "auto"  # as many jobs at once as the host's resources bear


class JobStatus(StrEnum):
    """The status of a job; each value is also its plain string."""

    PENDING = "pending"  # waiting for a host
    CLAIMED = "claimed"  # granted; no heartbeat yet
    RUNNING = "running"  # granted; the worker has sent a heartbeat
    COMPLETED = "completed"  # one verified artifact was accepted
    FAILED = "failed"  # a budget is used up, or retrying cannot help
    CANCELLED = "cancelled"  # an operator decided


LIVE = frozenset({JobStatus.CLAIMED, JobStatus.RUNNING})
FINAL = frozenset({JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED})


class EndReason(StrEnum):
    """The reason why an attempt ended. The list is fixed, because retry rules and dashboards depend on it."""

    COMPLETED = "completed"
    TRAINER_FAILED = "trainer_failed"  # the program's own fault: counts towards max_attempts
    INTERRUPTED = "interrupted"  # the trainer stopped resumably without being asked (exit 75)
    WORKER_SHUTDOWN = "worker_shutdown"  # the worker handed the job back
    HOST_LOST = "host_lost"  # no heartbeat for a lease, or the worker restarted without it
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"  # the operator requeued the job under the attempt
    UPLOAD_FAILED = "upload_failed"
    SPAWN_FAILED = "spawn_failed"


class FailedBy(StrEnum):
    """The kind of cause that fails a job; ``Job.ended_by`` has the cause in words."""

    REFUSAL = "refusal"  # a trainer said that trying again cannot help
    MEMORY = "memory"  # a host ran out of it, and none has more
    FAILURES = "failures"  # of its trainers: their budget is used up
    LOSSES = "losses"  # of its hosts
    GRANTS = "grants"
    CRASHES = "crashes"  # hosts crashed while they trained it

    @property
    def lasts(self) -> bool:
        """Return True if the cause, reported by one host alone, still fails the job when no other host took the job in
        ``second_opinion_s``."""
        return self in (FailedBy.REFUSAL, FailedBy.MEMORY)


class Fault(StrEnum):
    """The party that is at fault when an attempt ends; trainer and infrastructure each have a limit of faults for each
    job."""

    NOBODY = "nobody"
    TRAINER = "trainer"
    INFRASTRUCTURE = "infrastructure"


FAULT_OF = {
    **dict.fromkeys(EndReason, Fault.NOBODY),
    EndReason.TRAINER_FAILED: Fault.TRAINER,
    EndReason.HOST_LOST: Fault.INFRASTRUCTURE,
    EndReason.UPLOAD_FAILED: Fault.INFRASTRUCTURE,
    EndReason.SPAWN_FAILED: Fault.INFRASTRUCTURE,
}

# The reasons that a worker may report through `fail`; the others are the receiver's own conclusions.
REPORTABLE = frozenset(
    {
        EndReason.TRAINER_FAILED,
        EndReason.INTERRUPTED,
        EndReason.WORKER_SHUTDOWN,
        EndReason.UPLOAD_FAILED,
        EndReason.SPAWN_FAILED,
    }
)

# The reason of a cancel, after the operator's name.
CANCELLED = "cancelled"
NOT_IN_PLAN = "not in the plan; `cis490-jobs cancel --removed`, or put it back"
CANCELLED_AS_REMOVED = "cancelled, because the plan no longer named it"


@dataclass(frozen=True)
class Transition:
    """One row of the table of transitions: ``sources`` → ``target`` by ``cause``. The source ``None`` means a job that
    the queue does not know yet."""

    name: str
    sources: frozenset[JobStatus | None]
    target: JobStatus
    cause: str


def _row(name: str, sources: Iterable[JobStatus | None], target: JobStatus, cause: str) -> Transition:
    return Transition(name, frozenset(sources), target, cause)


_S = JobStatus
TRANSITIONS: Mapping[str, Transition] = {
    row.name: row
    for row in (
        _row("insert", [None], _S.PENDING, "a reload added a job"),
        _row("claim", [_S.PENDING], _S.CLAIMED, "a fitting host claimed"),
        _row("claim_repeat", LIVE, _S.CLAIMED, "the same request again: the same answer"),
        _row("heartbeat", LIVE, _S.RUNNING, "a heartbeat of the live attempt"),
        _row("complete", LIVE, _S.COMPLETED, "the live attempt delivered a verified artifact"),
        _row("complete_repeat", [_S.COMPLETED], _S.COMPLETED, "the same receipt again"),
        _row("adopt", [_S.PENDING], _S.COMPLETED, "a lost host delivered after all"),
        _row("deliver", [_S.PENDING], _S.COMPLETED, "a bundle that was kept on its host was delivered by hand"),
        _row("readopt", [_S.PENDING], _S.RUNNING, "a heartbeat of a lost host"),
        _row("retry", LIVE, _S.PENDING, "the trainer failed, attempts are left"),
        _row("hand_back", LIVE, _S.PENDING, "the worker gave the job back, or lost it"),
        _row("sweep", LIVE, _S.PENDING, "no heartbeat for a lease"),
        _row("exhaust", [_S.PENDING, *LIVE], _S.FAILED, "a budget is used up, or retrying cannot help"),
        _row("pardon", [_S.PENDING, _S.FAILED], _S.PENDING, "the host on which it died was quarantined"),
        _row("cancel", [_S.PENDING, *LIVE], _S.CANCELLED, "the operator cancelled"),
        _row("take_out", [_S.FAILED], _S.CANCELLED, "the operator cancelled, and the plan no longer names it"),
        _row("requeue", JobStatus, _S.PENDING, "the operator requeued it"),
        _row("hold", JobStatus, _S.PENDING, "the operator held it"),
        _row("unhold", JobStatus, _S.PENDING, "the operator unheld it"),
        _row("wake", [_S.PENDING], _S.PENDING, "a sleeping host was woken for it"),
    )
}
# Marks beside the status, which they leave as it is: a pending job stays pending, a running one running.
MARKS = frozenset({"hold", "unhold"})
# A repeated claim is answered while its attempt lives and moves nothing: a running job stays running.
KEEPS_STATUS = frozenset({"claim_repeat", "complete_repeat"})


def check_transition(name: str, source: JobStatus | None, target: JobStatus) -> None:
    """Raise AssertionError unless the table allows the move ``source`` → ``target`` in its row ``name``; a violation is
    a programmer's mistake."""
    row = TRANSITIONS[name]
    legal_target = source if name in KEEPS_STATUS | MARKS else row.target
    if source not in row.sources or target != legal_target:
        raise AssertionError(f"{name} may not start from {source} and lead to {target}")


@frozen
class Amount:
    """A host's resource of which a job may need a minimum."""

    capability: str  # the key of a capability dict …
    of_host: str = ""  # … and the attribute of a host, where that is called otherwise
    lasts: bool = False  # it stays as it is when everything else on the host has ended

    @property
    def attribute(self) -> str:
        return self.of_host or self.capability


def _asks(default: Any, words: str = "", *, least: float = 0, most: float = 0, amount: Amount | None = None) -> Any:
    """Return the field for a key of a job: ``words`` describe the requirement, ``least`` and ``most`` bound a number,
    ``amount`` is the resource."""
    return field(default=default, metadata={"words": words, "least": least, "most": most, "amount": amount})


GIB_MAX, CORES_MAX = 1_000_000, 100_000


@frozen_kw
class Constraints:
    """The keys of a job that decide on which hosts it may be trained, one per line.

    The manifest's check, the comparison of amounts (:data:`AMOUNTS`), the classes of jobs, and sentences about
    requirements are computed from this table.
    """

    model: str = field(default="", metadata={"required": True})  # which hosts may allow or deny
    require_cuda: bool = _asks(default=False, words="a GPU")
    prefer_cuda: bool = _asks(default=False, words="a GPU if possible")
    min_vram_gib: float = _asks(0.0, "{:g} GiB of VRAM", most=GIB_MAX)  # of the GPU that it trains on, if it does
    min_ram_gib: float = _asks(0.0, "{:g} GiB of RAM", most=GIB_MAX, amount=Amount("ram_available_gib"))
    min_cores: int = _asks(0, "{:g} cores", most=CORES_MAX, amount=Amount("cpu_cores", "cores", lasts=True))
    threads: int | None = _asks(None, "{:g} threads", least=1, most=CORES_MAX)  # None: by what its host has left
    allowed_hosts: tuple[str, ...] = _asks((), "only on {}")  # empty: all
    denied_hosts: tuple[str, ...] = _asks((), "not on {}")  # these win
    dataset: str | None = None  # its id; None: each host's local data


CONSTRAINTS = {each.name: each for each in fields(Constraints)}
AMOUNTS = {name: each.metadata["amount"] for name, each in CONSTRAINTS.items() if each.metadata.get("amount")}
# The capability of a host that has the most of every amount; it says nothing of GPUs.
AT_BEST = {each.capability: CONSTRAINTS[name].metadata["most"] for name, each in AMOUNTS.items()}


def constraints_in_words(spec: Json) -> str:
    """Return a job dict's requirements in words: ``a GPU, 8 GiB of RAM, only on rack``. The job dict's values may be of
    any type."""
    said = []
    for name, each in CONSTRAINTS.items():
        value, words = spec.get(name), str(each.metadata.get("words") or "")
        if isinstance(value, list | tuple):
            value = ", ".join(map(str, value))
        if value and words and ("{:g}" not in words or (isinstance(value, int | float) and abs(value) < 1e15)):
            said.append(words.format(value).removesuffix("s" if value == 1 else ""))
    return ", ".join(said)


@frozen_kw
class Needs(Constraints):
    """A job's requirements: those of its plan, and the memory that attempts were seen to need."""

    ram_above_gib: float = 0.0  # it ran out of so much memory …
    vram_above_gib: float = 0.0  # … or so much GPU memory
    peak: Peak = NOT_KNOWN  # what jobs of its kind held; not known to a job dict

    @classmethod
    def of(cls, spec: Json) -> Needs:
        """Read the needs from a job dict, or from their canonical form; absent keys require nothing."""
        return cls(**{name: _read(spec[name], default) for name, default in _ASKED.items() if spec.get(name)})

    def canonical(self, work: Json | None = None) -> str:
        """Return the needs as canonical JSON; together with the facts that determine durations (``work``), this text
        identifies a class of jobs."""
        asked = {name: value for name, default in _ASKED.items() if (value := getattr(self, name)) != default}
        return strict_json.canonical(asked | ({} if work is None else {"work": dict(work)}))


_ASKED = {each.name: each.default for each in fields(Needs) if each.name != "peak"}


def _read(value: Any, default: Any) -> Any:
    """Convert a value of a job dict to the type of its key's default; names are sorted, because their order has no
    meaning."""
    if isinstance(default, tuple):
        return tuple(sorted({*map(str, value)}))
    return value if default is None else type(default)(value)


@frozen
class Host:
    """A host as scheduling sees it: the detected capability, limited by the manifest's declaration."""

    name: str
    cuda: bool = False
    vram_free_gib: float = 0.0  # of the largest CUDA device
    ram_available_gib: float = 0.0
    ram_total_gib: float = 0.0
    vram_total_gib: float = 0.0  # of the largest CUDA device
    cores: int = 0
    gpus: tuple[Gpu, ...] = ()
    slots: int = 0  # trained at once by its declaration; 0: as many as it bears
    untried: bool = False  # the plan does not name it, and too few of its models were verified: its word counts little
    room: Room | None = None  # beside what it trains; None: it trains nothing, or nobody looked
    priority: int = 0
    allow_jobs: frozenset[str] = frozenset()  # model names; empty allows all
    deny_jobs: frozenset[str] = frozenset()  # model names; deny wins
    outdated: frozenset[str] = frozenset()  # models whose trainer has other flags there
    datasets: frozenset[str] | None = None  # the data sets available to it; None: not checked
    reserve_ram_gib: float = 0.0  # its owner's, which is off all of the above …
    reserve_vram_gib: float = 0.0  # … of each GPU
    withheld: str = ""  # why its owner's reserve leaves nothing for jobs …
    short: str = ""  # … or nothing at the moment

    @classmethod
    def of(
        cls,
        name: str,
        capability: Json,
        declared: Json | None = None,
        outdated: Iterable[str] = (),
    ) -> Host:
        """Return a host from a capability dict (any subset of its fields), limited by the manifest's declaration.

        The more restrictive value wins: a declared ``cuda = false`` hides a GPU, ``max_*`` caps a detected value. The
        owner's reserve is subtracted from the free amount and from the total.
        """
        declared = declared or {}
        keep_cores, keep_ram, keep_vram = (declared.get(key) or 0 for key in RESERVES)
        gpus, capped = [], declared.get("max_vram_gib")
        for device in capability.get("cuda_devices") or ():
            free, whole = (
                _capped(float(device.get(key) or 0.0), capped) for key in ("vram_free_gib", "vram_total_gib")
            )
            gpus.append(Gpu(_less(free, keep_vram), _less(max(whole, free), keep_vram)))
        available = float(capability.get("ram_available_gib") or 0.0)
        installed = float(capability.get("ram_total_gib") or 0.0)
        cores = int(_capped(min(int(capability.get("cpu_cores") or 0), CORES_MAX), declared.get("max_cores")))
        ram, ram_total = (_capped(each, declared.get("max_ram_gib")) for each in (available, max(installed, available)))
        vram_total = max((gpu.total_gib for gpu in gpus), default=0.0)
        slots = declared.get("slots")
        return cls(
            name=name,
            # A GPU of which nothing is left is none.
            cuda=bool(capability.get("cuda_available"))
            and declared.get("cuda") is not False
            and (not keep_vram or vram_total > 0),
            vram_free_gib=max((gpu.free_gib for gpu in gpus), default=0.0),
            ram_available_gib=_less(ram, keep_ram),
            ram_total_gib=_less(ram_total, keep_ram),
            vram_total_gib=vram_total,
            cores=int(_less(cores, keep_cores)),
            gpus=tuple(gpus),
            slots=slots if isinstance(slots, int) else 0,
            priority=int(declared.get("priority") or 0),
            allow_jobs=frozenset(declared.get("allow_jobs") or ()),
            deny_jobs=frozenset(declared.get("deny_jobs") or ()),
            outdated=frozenset(outdated),
            reserve_ram_gib=float(keep_ram),
            reserve_vram_gib=float(keep_vram),
            withheld=_left_by(keep_cores, cores, f"{cores} cores", "reserve_cores")
            or _left_by(keep_ram, ram_total, f"{ram_total:.1f} GiB of memory", "reserve_ram_gib"),
            short=_left_by(keep_ram, ram, f"{ram:.1f} GiB of memory that are free now", "reserve_ram_gib"),
        )

    def at_best(self) -> Host:
        """Return the host with all its memory free, as if no program used any, and with no attempts."""
        return replace(
            self,
            ram_available_gib=max(self.ram_available_gib, self.ram_total_gib),
            vram_free_gib=max(self.vram_free_gib, self.vram_total_gib),
            gpus=tuple(Gpu(gpu.total_gib, gpu.total_gib) for gpu in self.gpus),
            room=None,
            short="",
        )


def _capped(detected: float, declared: float | None) -> float:
    return detected if declared is None else min(detected, declared)


def _left_by(kept: float, there: float, what: str, key: str) -> str:
    """Return why the owner's reserve leaves nothing for jobs; empty if it leaves something, or is 0."""
    return f"{key} = {kept:g} leaves nothing of its {what}" if kept and kept >= there else ""


def _less(free: float, kept: float) -> float:
    """Return the free amount less the owner's reserve, at least 0."""
    return max(0.0, free - kept) if kept else free


_DIGEST = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


@frozen
class Trained:
    """The inputs with which a model was trained: digests of data and code, and the checkout's commit; None: not
    reported."""

    data: str | None = None
    code: str | None = None
    commit: str | None = None

    @classmethod
    def of(cls, record: Json | None) -> Trained:
        """Read the digests and the commit from ``trained`` in a worker's record; a malformed value counts as not
        reported."""
        said = (record or {}).get("trained")
        said = said if isinstance(said, Mapping) else {}
        return cls(
            _like(_DIGEST, said.get("data")), _like(_DIGEST, said.get("code")), _like(_COMMIT, said.get("commit"))
        )

    def known(self) -> dict[str, str | None] | None:
        """Return the digests and the commit as a dict; None if none of them was reported."""
        return None if self == Trained() else self.to_dict()

    def to_dict(self) -> dict[str, str | None]:
        return asdict(self)


def _like(pattern: re.Pattern[str], value: object) -> str | None:
    return value if isinstance(value, str) and pattern.fullmatch(value) else None


@frozen
class Attempt:
    """One grant of a job to one worker. An attempt's number, from 1 on, is unique within its job."""

    job_id: str
    attempt: int
    claim_id: str
    host: str
    generation: int
    granted_at: float
    instance_id: str | None = None
    session_id: str | None = None
    slot: int | None = None
    request_id: str | None = None
    ended_at: float | None = None
    end_reason: EndReason | None = None
    error: str | None = None
    exit_code: int | None = None
    seq: int = 0
    progress: JsonObject | None = None
    readoptions: int = 0
    artifact_id: str | None = None
    record: JsonObject | None = None  # the worker's record: durations, versions
    log_next: int = 0  # number of the next output line that is not stored
    log_total: int | None = None  # all lines that it printed; None: it may print more, or nobody said
    lived_s: float | None = None  # how long it ran, as far as known; None while it is live
    heard_s: float | None = 0.0  # training time by its heartbeats; None: it trains no more
    paused: bool = False  # its trainer stood still when it was last heard …
    paused_s: float = 0.0  # … and for how long it has in all
    held_s: float = 0.0  # for which its host has had it, by the receiver's clock
    resumable: bool = False  # it saved a state from which its job can go on elsewhere, as its worker said last
    out_of_memory: str | None = None  # "ram" or "vram", when that ended it
    crashed: bool = False  # its host said that it crashed with this attempt in hand
    pardoned: bool = False  # it counts against no budget: the host was at fault
    trained: Trained = field(default_factory=Trained)  # the inputs of its model
    granted: JsonObject = field(default_factory=dict)  # the job dict of the grant
    booked: Booking = field(default_factory=Booking)  # of its host

    @property
    def fault(self) -> Fault | None:
        """Return the party that is at fault for the attempt's end; None while it is live."""
        return None if self.end_reason is None else FAULT_OF[self.end_reason]

    @property
    def live(self) -> bool:
        return self.ended_at is None

    @property
    def refused(self) -> bool:
        """Return True if the attempt failed with an exit code by which the trainer says that trying again cannot help:
        its arguments or its data are wrong."""
        return self.end_reason is EndReason.TRAINER_FAILED and self.exit_code in FINAL_EXITS

    @property
    def key(self) -> JsonObject:
        """Return the columns that identify the attempt in the database: job id and attempt number."""
        return {"job_id": self.job_id, "attempt": self.attempt}


@frozen
class Job:
    """A job of the queue: the values of its database row."""

    job_id: str
    name: str
    spec: JsonObject
    status: JobStatus
    priority: int
    created_at: float
    claimable_at: float
    attempt: int = 0  # grants so far, never reused
    generation: int = 1  # +1 per requeue
    grants: int = 0  # grants in this generation
    trainer_failures: int = 0
    host_losses: int = 0
    claim_id: str | None = None  # of the live attempt
    worker_hostname: str | None = None  # of the live attempt, or of the one that ended the job
    claimed_at: float | None = None
    heartbeat_at: float | None = None
    finished_at: float | None = None
    artifact_id: str | None = None
    error: str | None = None
    # the budget or rule that ended a failed job; of a pending one, that ends it unless another host does better
    ended_by: str | None = None
    failed_by: FailedBy | None = None
    avoid_host: str | None = None
    avoid_until: float | None = None
    short_runs: int = 0  # in a row: ended within moments without fault
    ram_above_gib: float = 0.0  # it ran out of so much memory
    vram_above_gib: float = 0.0
    progress: JsonObject | None = None
    in_manifest: bool = True
    passed_over: bool = False  # while it is pending no host gets it: it left the plan, and was not requeued since
    held_by: str | None = None  # the operator who holds it; None: not held
    held_at: float | None = None

    @property
    def held(self) -> bool:
        """Return True if the job is held: until it is unheld, no host is granted it, but a live attempt continues."""
        return self.held_at is not None

    @property
    def needs(self) -> Needs:
        """Return the job's requirements; if an attempt ran out of memory, they include more memory than that attempt's
        host has."""
        asked = Needs.of(self.spec)
        return replace(asked, ram_above_gib=self.ram_above_gib, vram_above_gib=self.vram_above_gib)

    @property
    def cancelled_as_removed(self) -> bool:
        """Return True if the job was cancelled only because the plan no longer named it."""
        said = (self.ended_by or "").endswith(f": {CANCELLED_AS_REMOVED}")
        return said and self.status is JobStatus.CANCELLED

    def granted(self, attempt: Attempt) -> Job:
        """Return the job with the spec and name that ``attempt`` was granted, instead of those in the present plan."""
        return replace(self, spec=attempt.granted, name=str(attempt.granted.get("name") or self.job_id))

    @property
    def model(self) -> str:
        return str(self.spec.get("model") or "")

    @property
    def mode(self) -> str:
        return str(self.spec.get("mode") or "")
