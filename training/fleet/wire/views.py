"""The wire's structs for those who look: pages, histories, hosts. The others are in messages.py, which knows all."""

from __future__ import annotations

from typing import Any

import msgspec

from training.fleet.wire.constants import LOOK_AGAIN_S


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Base of every message."""


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
    granted: dict[str, Any] | None = None  # the job dict as it was granted; null: nobody kept it
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
    held_by: str | None = None  # who keeps it from being granted, whatever its status; null: nobody
    held_at: float | None = None
    note: str | None = None  # what else an operator should know: whom it waits for, for example
    # of a completed job: digests of `data` and `code`, and the checkout's `commit`; null: not known
    trained: dict[str, str | None] | None = None


class JobsReply(Wire, frozen=True, kw_only=True):
    jobs: list[JobView]
    counts: dict[str, int]  # by status, of the whole queue
    now: float
    next_after: int | None = None  # pass as ?after= for the next page
    unlike: list[str] = []  # on the first page: what differs among the plan's completed jobs, in words


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
    reason: str  # "ok", or what stands in the way, with figures
    wait_s: float | None = None  # countdown, when time alone removes it


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


class WorkerView(Wire, frozen=True, kw_only=True):
    hostname: str
    capability: dict[str, Any]
    declared: dict[str, Any] | None  # the manifest's word on this host
    first_seen: float
    last_seen: float
    alive: bool  # heard within a lease
    jobs: list[str]  # names of the jobs it holds
    conflict: str | None  # a second installation with this id, when there is one
    obstacle: str | None  # e.g. its trainers' flags differ from the manifest's
    quarantine: str | None = None  # why it gets no jobs, and what ends that
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
    quarantined: dict[str, str] = {}  # host → why it gets no jobs, and what ends that
    refused: dict[str, str] = {}  # host → who else asks in its name, and what lets that one in
    missing_datasets: dict[str, str] = {}  # data set of the plan that is not here → what that holds up
    never_asked: dict[str, str] = {}  # host that the plan names → where, and whom it may mean
    plan_notes: list[str] = []  # what the plan says and hardly means, the first of it
    look_again_s: float = LOOK_AGAIN_S  # a host asks so often whether it may stay
