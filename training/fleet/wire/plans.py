"""Structs of the plan endpoints: a plan that was read and checked elsewhere, and what a reload would make of it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, field

from training.fleet.wire.constants import HOST_ID_PATTERN
from training.fleet.wire.messages import ReloadReply
from training.fleet.wire.views import RemovedView, Wire

PLAN_BODY_MAX = 4 * 1024 * 1024  # bytes of a plan on the wire: some 9,000 jobs
PLAN_JOBS_MAX = 20_000
SHOWN_MAX = 1_000  # jobs in one answer
TAKEN_MAX = 10  # names of jobs for one host
HOSTS_MAX = 200
ADVICE_MAX = 100  # on memory
ROTATIONS_MAX = 100

_Name = Annotated[str, Meta(min_length=1, max_length=128)]
_Text = Annotated[str, Meta(max_length=4096)]
_Host = Annotated[str, Meta(pattern=HOST_ID_PATTERN)]
_Hosts = Annotated[list[_Host], Meta(max_length=10_000)]
_Names = Annotated[list[_Name], Meta(max_length=10_000)]
_Command = Annotated[list[_Text], Meta(max_length=100)]
_Priority = Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]
_Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Figure = Annotated[float, Meta(ge=0, le=1e8)]
_Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
_Env = Annotated[dict[str, Annotated[str, Meta(max_length=1024)]], Meta(max_length=50)]
Hyper = dict[str, bool | int | float | Annotated[str, Meta(max_length=256)]]


class Given(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of what a plan on the wire is made of: an unknown key would be left out of the answer, and is refused."""


class GivenJob(Given, frozen=True, kw_only=True):
    """A job of a plan, checked where its file lies. Its id is not sent: the receiver computes it."""

    name: _Name
    model: _Name
    mode: _Name
    priority: _Priority = 0
    require_cuda: bool = False
    prefer_cuda: bool = False
    min_vram_gib: _Figure = 0.0
    min_ram_gib: _Figure = 0.0
    min_cores: _Count = 0
    allowed_hosts: _Hosts = field(default_factory=list)
    denied_hosts: _Hosts = field(default_factory=list)
    hyper: Hyper = field(default_factory=dict)
    split_recipe: _Name = "sample"
    train_hosts: _Names = field(default_factory=list)
    test_hosts: _Names = field(default_factory=list)
    seed: _Count = 0
    n_resamples: _Count = 1000
    dataset: _Name | None = None  # its id, a prefix of that, or its name
    max_run_s: _Figure | None = None
    max_silence_s: _Figure | None = None
    threads: _Count | None = None
    urgent: bool = False


class GivenHost(Given, frozen=True, kw_only=True):
    """A table of ``[hosts]``."""

    description: _Text = ""
    priority: _Priority = 0
    allow_jobs: _Names = field(default_factory=list)
    deny_jobs: _Names = field(default_factory=list)
    cuda: bool | None = None
    max_vram_gib: _Figure | None = None
    max_ram_gib: _Figure | None = None
    max_cores: _Count | None = None
    slots: int | str | None = None
    reserve_cores: _Count = 0
    reserve_ram_gib: _Figure = 0.0
    reserve_vram_gib: _Figure = 0.0
    hours: _Names = field(default_factory=list)
    pause_on_battery: bool = False
    pause_when_used: bool = False
    idle_s: _Figure = 300.0
    pause_above_cpu: _Figure | None = None
    pause_above_gpu: _Figure | None = None
    pause_above_celsius: _Figure | None = None
    pause_max_s: _Figure = 600.0
    may_sleep: bool = False
    mac: _Name | None = None
    env: _Env = field(default_factory=dict)


class GivenTrainer(Given, frozen=True, kw_only=True):
    """A table of ``[trainers]``: data to compare with, never run."""

    command: _Command
    outputs: _Names = field(default_factory=list)
    describe: _Command = field(default_factory=list)
    env: _Env = field(default_factory=dict)


class GivenRetention(Given, frozen=True, kw_only=True):
    """The table ``[retention]``."""

    keep: _Text = "all"
    keep_models_days: _Figure = 0.0
    keep_superseded_days: _Figure | None = None
    keep_logs_days: _Figure | None = None
    keep_curves_days: _Figure | None = None
    keep_events_days: _Figure | None = None
    keep_datasets_days: _Figure | None = None
    keep_states_days: _Figure | None = None


class PlanRequest(Wire, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/manifest/plan``: a checked plan. ``jobs`` null: the file has no list of jobs at all."""

    jobs: Annotated[list[GivenJob], Meta(max_length=PLAN_JOBS_MAX)] | None = None
    hosts: Annotated[dict[_Host, GivenHost], Meta(max_length=10_000)] = field(default_factory=dict)
    trainers: Annotated[dict[_Name, GivenTrainer], Meta(max_length=1_000)] = field(default_factory=dict)
    retention: GivenRetention | None = None
    scheduling: _Text | None = None
    # each channel by a digest: whom it reaches, and where its secrets lie, is not sent. Null: the caller does not tell
    notify: Annotated[dict[_Name, _Digest], Meta(max_length=1_000)] | None = None
    file: _Text = "plan.toml"  # its name in mistakes


class PlannedJob(Wire, frozen=True, kw_only=True):
    """A job of the plan as it would be: ``state`` is its status, or ``new``."""

    name: str
    job_id: str
    state: str
    outcome: str  # inserted, updated or unchanged, as a reload counts it
    host: str | None = None  # that trains it, or trained it
    at: float | None = None  # since when it runs, or when it ended
    artifact_id: str | None = None
    removed: RemovedView | None = None  # of its model, if that is not kept any more
    keys: list[str] = field(default_factory=list)  # which of its keys are edited
    was: str | None = None  # its name before
    ended_by: str | None = None
    held_by: str | None = None


class HostOutlook(Wire, frozen=True, kw_only=True):
    """The number of waiting jobs that a host could take, and the obstacles of the others."""

    host: str
    takes: int
    jobs: list[str]  # the first of them
    obstacles: dict[str, int] = field(default_factory=dict)  # why not → how many jobs
    note: str | None = None  # as that it was not heard for long


class MemoryAdvice(Wire, frozen=True, kw_only=True):
    """Jobs of the plan that ask for much more or less memory than trainers of their kind held."""

    jobs: list[str]  # the first of them
    count: int
    asked_gib: float  # their min_ram_gib
    held_gib: float  # the most that such a trainer held
    propose_gib: float  # what to ask instead: a fifth more than that


class PlannedRotation(Wire, frozen=True, kw_only=True):
    """Jobs of the plan that differ in the tested host and the seed alone."""

    name: str
    jobs: int
    hosts: list[str]  # of which each trains unless it is tested
    tested: list[str]  # each alone
    seeds: list[int]


class PlanReply(Wire, frozen=True, kw_only=True):
    """The answer of the plan endpoints. Nothing has changed."""

    changed: bool  # a reload would change something
    reload: ReloadReply  # what it would answer
    states: dict[str, int]  # of all jobs of the plan, by state
    jobs: list[PlannedJob]  # the first thousand
    waiting: int  # jobs that would wait for a host
    hosts: list[HostOutlook]
    nowhere: dict[str, str] = field(default_factory=dict)  # job → why no known host could take it
    memory: list[MemoryAdvice] = field(default_factory=list)  # of at most 100 kinds of jobs
    rotations: list[PlannedRotation] = field(default_factory=list)  # the first hundred
    file: str | None = None  # the manifest on the receiver's machine
    mark: str | None = None  # of that file as it lies there now: who finds the same mark there is on that machine
    machine: str | None = None  # the receiver's machine
    now: float | None = None
