"""The types of the operator's plan, in which each key is declared by one line with its allowed values, and of a plan's
mistakes.

The records here are immutable. :func:`read` checks a manifest by these declarations, and ``to_dict`` returns the plain
values for the queue and the wire.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, field, fields
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Any

from training.contract import Mode, Recipe
from training.fleet.capability.describe import Description, HyperValue
from training.fleet.manifest import value_kinds as kinds
from training.fleet.manifest.channels import NotifyChannel
from training.fleet.manifest.reader import Kind, TomlTable, list_of, one_of, real, switch, text, whole
from training.fleet.scheduling.job import CONSTRAINTS, Constraints
from training.fleet.scheduling.orders import IDLE_S, PAUSE_MAX_S
from training.fleet.scheduling.policy import Scheduling
from training.fleet.scheduling.retention import Rules
from training.frozen import frozen, frozen_kw
from training.strict_json import Json, JsonObject

SCHEMA_VERSION = 1


def _key(kind: Kind[Any], default: Any = None, *, required: bool = False) -> Any:
    """Declare a key of the manifest, whose values the function ``kind`` checks."""
    return field(default=default, metadata={"kind": kind, "required": required})


@frozen_kw
class HostSpec:
    """A host as the manifest declares it. ``None``: not declared; of a resource, the detected value is then used."""

    name: str = ""
    description: str = _key(text(500, empty=True), "")
    priority: int = _key(kinds.priority, 0)  # of several hosts that could run a job, the higher is chosen first
    allow_jobs: tuple[str, ...] = ()  # model names; empty allows all
    deny_jobs: tuple[str, ...] = ()  # model names; deny wins
    cuda: bool | None = _key(switch)
    max_vram_gib: float | None = _key(kinds.gib)
    max_ram_gib: float | None = _key(kinds.gib)
    max_cores: int | None = _key(kinds.cores)
    slots: int | str | None = _key(kinds.slots)  # jobs at once; "auto" and None: as many as its resources bear
    reserve_cores: int = _key(kinds.cores, 0)  # for the owner, taken off what is free
    reserve_ram_gib: float = _key(kinds.gib, 0.0)
    reserve_vram_gib: float = _key(kinds.gib, 0.0)
    # the conditions of its owner, as the worker observes them
    hours: tuple[str, ...] = _key(kinds.hours, ())  # in which it may train, by its own clock; empty: always
    pause_on_battery: bool = _key(switch, default=False)
    pause_when_used: bool = _key(switch, default=False)  # by a person …
    idle_s: float = _key(real(10.0, 86_400.0), IDLE_S)  # … until nobody touched it for so long
    pause_above_cpu: float | None = _key(kinds.share)  # share of its cores that other programs use
    pause_above_gpu: float | None = _key(kinds.share)
    pause_above_celsius: float | None = _key(kinds.celsius)
    pause_max_s: float = _key(real(0.0, 86_400.0), PAUSE_MAX_S)  # then the job is handed back
    may_sleep: bool = _key(switch, default=False)  # while it trains on mains power
    mac: str | None = _key(kinds.mac)  # by which it can be woken
    env: Mapping[str, str] = _key(kinds.variables)  # for every trainer there; None: none

    def to_dict(self) -> JsonObject:
        """Return what the manifest declares for the host; keys that have their defaults are left out."""
        return _plain(self, without=defaults_of(HostSpec))


@frozen_kw
class TrainerSpec:
    """A custom trainer: its command, its output files, the command that describes its flags, and its environment
    variables."""

    name: str = ""
    command: tuple[str, ...] = _key(kinds.command, (), required=True)
    outputs: tuple[str, ...] = _key(kinds.outputs, ())
    describe: tuple[str, ...] = _key(list_of(text(4096), most=100), ())  # prints its flags; empty: hyper is unchecked
    env: Mapping[str, str] = _key(kinds.variables)  # wherever it runs; None: none

    def to_dict(self) -> JsonObject:
        return _plain(self)


@frozen_kw
class JobSpec(Constraints):
    """A job of the plan: a model to be trained once. Memory is in GiB, and hyperparameters have their flags' types if
    the flags are known."""

    name: str = _key(text(128), "", required=True)
    job_id: str = ""
    mode: str = _key(one_of([mode.value for mode in Mode], "mode"), "", required=True)
    priority: int = _key(kinds.priority, 0)
    hyper: Mapping[str, HyperValue] = field(default_factory=dict)
    split_recipe: str = _key(kinds.recipe, Recipe.SAMPLE.value)
    train_hosts: tuple[str, ...] = _key(kinds.host_names, ())  # recording hosts, sorted
    test_hosts: tuple[str, ...] = _key(kinds.host_names, ())  # the recording hosts tested, sorted; empty: all others
    seed: int = _key(kinds.seed, 0)
    split_seed: int | None = _key(kinds.seed)  # of the split alone; None: the seed draws that, too
    n_resamples: int = _key(kinds.n_resamples, 1000)
    max_run_s: float | None = _key(kinds.seconds)  # None: no limit
    max_silence_s: float | None = _key(kinds.seconds)  # 0: for ever; None: each worker's flag

    def to_dict(self) -> JsonObject:
        """Return the job as the dict that the queue stores and the wire carries; keys that are None are left out, and
        empty ``test_hosts``."""
        return {"name": self.name, "job_id": self.job_id} | _plain(self, without={"test_hosts": []})


# The keys of [defaults]: the value that a job gets where it does not say otherwise.
INHERITED = frozenset(
    {
        "split_recipe", "train_hosts", "seed", "split_seed", "n_resamples", "dataset", "max_run_s", "max_silence_s",
        "threads",
    }
)  # fmt: skip


def _kind_of(declared: dataclasses.Field[Any]) -> Kind[Any] | None:
    """Return the check of a declared key's values; None if the key has none, or the check depends on more than the
    declaration."""
    if declared.name not in CONSTRAINTS or declared.name in ("model", "dataset"):
        kind: Kind[Any] | None = declared.metadata.get("kind")
        return kind
    least, most = declared.metadata["least"], declared.metadata["most"]
    if isinstance(declared.default, tuple):
        return kinds.host_names
    if not most:
        return switch
    return real(least, most) if isinstance(declared.default, float) else whole(least, most)


def read(
    table: TomlTable,
    of: type,
    given: Mapping[str, Kind[Any]] = MappingProxyType({}),
    defaults: Json = MappingProxyType({}),
    only: Collection[str] = (),
) -> JsonObject:
    """Check the keys that the class ``of`` declares with a check, or only those named in ``only``; return each key's
    value, or its default if absent or wrong.

    ``given`` has the checks of keys whose allowed values depend on more than the declaration.
    """
    found = {}
    for name, declared_kind, default, required in _keys(of):
        kind = given.get(name) or declared_kind
        if kind is not None and (not only or name in only):
            found[name] = table.take(name, kind, defaults.get(name, default), required=required)
    return found


@cache
def _keys(of: type) -> Sequence[tuple[str, Kind[Any] | None, Any, bool]]:
    """Return (name, check, default, whether required) for each key that a class declares."""
    return [(each.name, _kind_of(each), each.default, each.metadata.get("required", False)) for each in fields(of)]


@frozen_kw
class Manifest:
    """A checked plan: its hosts, jobs, custom trainers, channels and rules."""

    name: str
    hosts: Mapping[str, HostSpec]
    jobs: tuple[JobSpec, ...]
    trainers: Mapping[str, TrainerSpec]
    programs: Mapping[str, Description]  # the built-in trainers' answers, by which the plan was checked
    names_jobs: bool  # false: the file has no list of jobs at all
    channels: tuple[NotifyChannel, ...]
    retention: Rules
    scheduling: Scheduling
    bound_by: Mapping[str, str]  # model → what bounds it, as its trainer declares

    def job_dict(self, job: JobSpec) -> JsonObject:
        """Return a job as the queue stores it, with its trainer if that is a custom trainer of the plan."""
        own = self.trainers.get(job.model)
        return job.to_dict() | ({} if own is None else {"trainer": own.to_dict()})

    def to_dict(self) -> JsonObject:
        return {"name": self.name, "jobs": [job.to_dict() for job in self.jobs]}


def retention_table(rules: Rules) -> JsonObject:
    """Return the retention rules as the manifest's table ``[retention]``; things that are kept without limit are left
    out."""
    ages = {key: age for key, age in _plain(rules).items() if key != "best"}
    return ({} if rules.best is None else {"keep": f"best {rules.best} per model and mode"}) | ages


@frozen
class Mistake:
    """A mistake in a manifest. ``line`` counts from 1; ``None`` if the line is unknown."""

    file: str
    line: int | None
    key: str  # e.g. jobs[2].hyper.epochs; empty for the file as a whole
    message: str
    suggestion: str = ""

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        sentence = f"{self.message}; {self.suggestion}" if self.suggestion else self.message
        return ": ".join(part for part in (place, self.key, sentence) if part)

    def to_dict(self) -> JsonObject:
        return asdict(self)


class ManifestError(Exception):
    """The manifest has mistakes (``mistakes``) and cannot be used."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("\n".join(str(mistake) for mistake in mistakes))
        self.mistakes = tuple(mistakes)


@cache
def defaults_of(declared: type) -> JsonObject:
    """Return the default of every field of this type, as JSON values."""
    return {each.name: _as_json(each.default) for each in fields(declared)}


def _plain(record: Any, without: Json = MappingProxyType({})) -> JsonObject:
    """Return a record's fields as JSON values, except those that are None or equal to their value in ``without``."""
    plain = {name: _as_json(getattr(record, name)) for name in record.__dataclass_fields__}
    return {
        name: value
        for name, value in plain.items()
        if value is not None and (name not in without or value != without[name])
    }


_AS_IT_IS = frozenset({str, int, float, bool, type(None)})


def _as_json(value: Any) -> Any:
    """Return a field as a JSON value: a tuple becomes a list, an enumeration's member its text."""
    if type(value) in _AS_IT_IS:  # nearly all, in plans of thousands of jobs
        return value
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    return value.value if isinstance(value, StrEnum) else value
