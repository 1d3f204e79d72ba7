"""The operator's plan as values: the parts of a checked manifest, and the mistakes of a bad one.

Everything here is frozen. ``to_dict`` gives the plain values that the queue stores and the wire carries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from training.contract import Recipe
from training.fleet.capability.describe import HyperValue
from training.fleet.manifest.channels import Channel
from training.fleet.scheduling.job import RESERVES
from training.fleet.scheduling.orders import IDLE_S, PAUSE_MAX_S
from training.fleet.scheduling.policy import Scheduling
from training.fleet.scheduling.retention import Rules

SCHEMA_VERSION = 1
# Keys of a host that older plans lack: left out where they say nothing, so that such a plan has not changed.
_LATER: Mapping[str, Any] = {
    "slots": None,
    **dict.fromkeys(RESERVES, 0),
    "hours": [],
    "pause_on_battery": False,
    "pause_when_used": False,
    "idle_s": IDLE_S,
    "pause_above_cpu": None,
    "pause_above_gpu": None,
    "pause_above_celsius": None,
    "pause_max_s": PAUSE_MAX_S,
    "may_sleep": False,
    "mac": None,
}


@dataclass(frozen=True, slots=True)
class Defaults:
    """The values that a job gets where it does not say otherwise."""

    split_recipe: Recipe | None = Recipe.SAMPLE  # None: the file's value is wrong
    train_hosts: tuple[str, ...] = ()
    seed: int = 0
    n_resamples: int = 1000
    dataset: str | None = None  # None: each host's local data
    max_run_s: float | None = None
    max_silence_s: float | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """A host as the manifest declares it. ``None`` declares nothing: the detected value holds."""

    name: str
    description: str = ""
    priority: int = 0  # of several hosts that could run a job, the higher is chosen first
    allow_jobs: tuple[str, ...] = ()  # model names; empty allows all
    deny_jobs: tuple[str, ...] = ()  # model names; deny wins
    cuda: bool | None = None
    max_vram_gib: float | None = None
    max_ram_gib: float | None = None
    max_cores: int | None = None
    slots: int | str | None = None  # jobs trained there at once; "auto" and None: as many as its resources bear
    reserve_cores: int = 0  # for the owner, taken off what is free
    reserve_ram_gib: float = 0.0
    reserve_vram_gib: float = 0.0
    # the conditions of its owner, as the worker observes them
    hours: tuple[str, ...] = ()  # in which it may train, by its own clock; empty: always
    pause_on_battery: bool = False
    pause_when_used: bool = False  # by a person …
    idle_s: float = IDLE_S  # … until nobody touched it for so long
    pause_above_cpu: float | None = None  # share of its cores that other programs use
    pause_above_gpu: float | None = None
    pause_above_celsius: float | None = None
    pause_max_s: float = PAUSE_MAX_S  # then the job is handed back
    may_sleep: bool = False  # while it trains on mains power
    mac: str | None = None  # by which it can be woken
    env: Mapping[str, str] = field(default_factory=dict)  # for every trainer there

    def to_dict(self) -> dict[str, Any]:
        plain = _without_empty_env(_plain(self))
        return {key: value for key, value in plain.items() if key not in _LATER or value != _LATER[key]}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSpec:
    """An own trainer: its command and its output files."""

    name: str
    command: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    describe: tuple[str, ...] = ()  # the command that prints its flags; empty: hyper keys go unchecked
    env: Mapping[str, str] = field(default_factory=dict)  # wherever it runs

    def to_dict(self) -> dict[str, Any]:
        return _without_empty_env(_plain(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One model to be trained once. Memory in GiB; hyper values are in their flag's type."""

    name: str
    job_id: str
    model: str
    mode: str
    priority: int = 0
    require_cuda: bool = False
    prefer_cuda: bool = False
    min_vram_gib: float = 0.0
    min_ram_gib: float = 0.0
    min_cores: int = 0
    allowed_hosts: tuple[str, ...] = ()
    denied_hosts: tuple[str, ...] = ()
    hyper: Mapping[str, HyperValue] = field(default_factory=dict)
    split_recipe: str = Recipe.SAMPLE.value
    train_hosts: tuple[str, ...] = ()  # recording hosts, sorted
    test_hosts: tuple[str, ...] = ()  # the recording hosts tested, sorted; empty: all others
    seed: int = 0
    n_resamples: int = 1000
    dataset: str | None = None  # its id; None: each host's local data
    max_run_s: float | None = None  # seconds; None: no limit
    max_silence_s: float | None = None  # seconds, 0 for ever; None: each worker's flag
    threads: int | None = None  # that its trainer computes with; None: by what its host has left
    urgent: bool = False  # first in its priority; jobs that can go on elsewhere give way to it

    def to_dict(self) -> dict[str, Any]:
        """Write the job dict of the queue and the wire; keys not given are left out.

        So is what older plans lack where it says nothing: they have not changed.
        """
        left_out = {key for key in ("test_hosts", "urgent") if not getattr(self, key)}
        return {key: value for key, value in _plain(self).items() if value is not None and key not in left_out}


@dataclass(frozen=True, slots=True)
class Manifest:
    """A plan without mistakes."""

    name: str
    schema_version: int
    defaults: Defaults
    hosts: Mapping[str, HostSpec]
    jobs: tuple[JobSpec, ...]
    trainers: Mapping[str, TrainerSpec]
    flag_digests: Mapping[str, str]  # program → digest of the flags the plan was checked against
    names_jobs: bool = True  # false: the file has no list of jobs at all
    channels: tuple[Channel, ...] = ()
    retention: Rules = field(default_factory=Rules)
    scheduling: Scheduling = Scheduling.SOONEST
    bound_by: Mapping[str, str] = field(default_factory=dict)  # model → what bounds it, as its trainer declares

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "jobs": [job.to_dict() for job in self.jobs]}


def retention_table(rules: Rules) -> dict[str, Any]:
    """Write what is kept as the manifest says it; what is kept for ever is left out."""
    days = {f"keep_{key}": value for key, value in _plain(rules).items() if key != "best" and value is not None}
    return ({} if rules.best is None else {"keep": f"best {rules.best} per model and mode"}) | days


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake in a manifest. ``line`` counts from 1; ``None`` when no line can be named."""

    file: str
    line: int | None
    key: str  # e.g. jobs[2].hyper.epochs; empty for the file as a whole
    message: str
    suggestion: str = ""

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        sentence = f"{self.message}; {self.suggestion}" if self.suggestion else self.message
        return ": ".join(part for part in (place, self.key, sentence) if part)

    def to_dict(self) -> dict[str, Any]:
        return _plain(self)


class ManifestError(Exception):
    """The manifest has mistakes (``mistakes``) and cannot be used."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("\n".join(str(mistake) for mistake in mistakes))
        self.mistakes = tuple(mistakes)


def _without_empty_env(plain: dict[str, Any]) -> dict[str, Any]:
    """Drop an empty ``env``, which older plans lack: a plan without variables has not changed."""
    return {key: value for key, value in plain.items() if key != "env" or value}


_AS_IT_IS = frozenset({str, int, float, bool, type(None)})


def _plain(record: Any) -> dict[str, Any]:
    """Write a record's fields as JSON values: tuples become lists, enumerations their text."""
    plain: dict[str, Any] = {}
    for name in record.__dataclass_fields__:
        value = getattr(record, name)
        if type(value) in _AS_IT_IS:  # nearly all, in plans of thousands of jobs
            pass
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, Mapping):
            value = dict(value)
        elif isinstance(value, StrEnum):
            value = value.value
        plain[name] = value
    return plain
