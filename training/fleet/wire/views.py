"""Structs of the read-only endpoints: pages, histories, hosts. messages.py has the others and exports all."""

from __future__ import annotations

from typing import Any, Self

import msgspec

from training.fleet.wire.constants import LOOK_AGAIN_S


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Base of every message."""

    @classmethod
    def of(cls, value: object, **given: Any) -> Self:
        """Make the message of a value's attributes, which have the members' names; ``given`` are the other members."""
        return cls(**{name: getattr(value, name) for name in cls.__struct_fields__ if name not in given}, **given)


class AttemptView(Wire, frozen=True, kw_only=True):
    attempt: int
    generation: int
    host: str
    granted_at: float
    ended_at: float | None
    end_reason: str | None
    error: str | None
    exit_code: int | None
    progress: dict[str, Any] | None
    artifact_id: str | None
    record: dict[str, Any] | None = None
    granted: dict[str, Any] | None = None  # the job dict as it was granted; null: not kept
    # digests of data and code and the checkout's commit; null: not known
    trained: dict[str, str | None] | None = None


class EventView(Wire, frozen=True, kw_only=True):
    seq: int
    at: float
    job_id: str
    transition: str
    from_status: str | None
    to_status: str
    attempt: int | None
    host: str | None
    detail: str | None


class JobView(Wire, frozen=True, kw_only=True):
    """A job as ``GET /v1/jobs`` shows it. Times are epoch seconds of the receiver's clock."""

    job_id: str
    name: str
    model: str
    mode: str
    status: str
    priority: int
    host: str | None
    attempt: int
    generation: int
    trainer_failures: int
    host_losses: int
    progress: dict[str, Any] | None  # includes eta_s when the trainer gives one
    error: str | None
    ended_by: str | None
    artifact_id: str | None
    created_at: float
    claimable_at: float
    claimed_at: float | None
    heartbeat_at: float | None
    finished_at: float | None
    obstacle: str | None  # why no known host can run a pending job; null when one can
    in_manifest: bool
    held_by: str | None = None  # the operator who holds it, at any status; null: not held
    held_at: float | None = None
    note: str | None = None  # a further note for the operator, as the host it waits for
    # of a completed job: digests of `data` and `code`, and the checkout's `commit`; null: not known
    trained: dict[str, str | None] | None = None


class JobsReply(Wire, frozen=True, kw_only=True):
    jobs: list[JobView]
    counts: dict[str, int]  # by status, of the whole queue
    now: float
    next_after: int | None = None  # pass as ?after= for the next page
    unlike: list[str] = []  # on the first page: differences among the plan's completed jobs, in words


class JobDetail(Wire, frozen=True, kw_only=True):
    job: JobView
    spec: dict[str, Any]
    attempts: list[AttemptView]
    events: list[EventView]
    now: float


class HostVerdict(Wire, frozen=True, kw_only=True):
    """One host's answer to "why is it not running here?"."""

    host: str
    fits: bool
    reason: str  # "ok", or the obstacle, with numbers
    wait_s: float | None = None  # seconds until the obstacle ends by itself


class ExplainReply(Wire, frozen=True, kw_only=True):
    job_id: str
    name: str
    status: str
    summary: str
    hosts: list[HostVerdict]


class LogReply(Wire, frozen=True, kw_only=True):
    job_id: str
    attempt: int
    first: int
    lines: list[str]
    next: int  # pass as ?after= to follow
    live: bool
    gap: str | None = None  # why lines before `first` are missing, if lines do not say it themselves


class CurvePoint(Wire, frozen=True, kw_only=True):
    """An epoch as its trainer reported it; null: it did not say."""

    attempt: int
    epoch: int
    loss: float | None
    metric: float | None
    seconds: float | None  # since that attempt's trainer began


class CurveAttempt(Wire, frozen=True, kw_only=True):
    """An attempt in a job's curve, which has its epochs from ``first`` to ``last``."""

    attempt: int
    host: str
    granted_at: float
    ended_at: float | None
    end_reason: str | None
    first: int
    last: int
    epochs: int  # of its epochs in the curve, before thinning
    complete: (
        bool | None
    )  # it has ended and all its output has arrived; null: ended, and its worker did not say how much


class UsageSample(Wire, frozen=True, kw_only=True):
    seconds: float  # since the grant
    cpu: float | None  # cores
    memory_bytes: int | None
    gpu: float | None  # share of the time in which the GPU worked
    gpu_memory_bytes: int | None


class CurveReply(Wire, frozen=True, kw_only=True):
    """``GET /v1/job/{id}/curve``: a job's attempts as one curve, in the order of epochs.

    Where an attempt went over epochs again, the later one counts.
    """

    job_id: str
    name: str
    status: str
    attempts: list[CurveAttempt]
    points: list[CurvePoint]
    epochs: int  # in the curve, before thinning
    usage_attempt: int  # of which attempt these are
    usage: list[UsageSample]
    now: float


class WorkerView(Wire, frozen=True, kw_only=True):
    hostname: str
    capability: dict[str, Any]
    declared: dict[str, Any] | None  # the manifest's note on this host
    first_seen: float
    last_seen: float
    alive: bool  # seen within a lease
    jobs: list[str]  # names of the jobs it holds
    conflict: str | None  # a second installation with this id, when there is one
    obstacle: str | None  # e.g. its trainers' flags differ from the manifest's
    quarantine: str | None = None  # why it gets no jobs, and the remedy
    set_aside: list[str] = []  # finished work that lies there, refused; `--deliver JOB` on that machine brings it


class WorkersReply(Wire, frozen=True, kw_only=True):
    workers: list[WorkerView]
    now: float
    next_after: str | None = None  # leads to the next page


class HealthReply(Wire, frozen=True, kw_only=True):
    status: str  # "ok" or "degraded"
    version: str
    counts: dict[str, int]
    granting: bool  # false while the disk is low
    detail: str | None = None
    quarantined: dict[str, str] = {}  # host → why it gets no jobs, and the remedy
    refused: dict[str, str] = {}  # host → the second installation with its id, and the remedy
    missing_datasets: dict[str, str] = {}  # missing data set of the plan → the jobs that wait for it
    never_asked: dict[str, str] = {}  # unknown host in the plan → its place there, and the likely host
    plan_notes: list[str] = []  # the first warnings about the plan
    look_again_s: float = LOOK_AGAIN_S  # between two heartbeats of a host
