"""Checks that turn a TOML document into a plan: every key, every problem. Pure: no file, no process.

The names a model can have, and the hyperparameters of each, come as values (:class:`Trainers`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from training.contract import ARGUMENTS, Mode, Recipe, filled_in, job_identity, no_variable_because
from training.fleet.capability.describe import HyperFlag, HyperValue, shown
from training.fleet.manifest import matrix
from training.fleet.manifest.channels import Channel, ChannelKind, NoticeKind, Secret, Security
from training.fleet.manifest.reader import (
    KeyPath,
    Kind,
    Problem,
    Table,
    WrongValueError,
    list_of,
    matching,
    nearest,
    one_of,
    real,
    switch,
    text,
    whole,
)
from training.fleet.manifest.types import SCHEMA_VERSION, Defaults, HostSpec, JobSpec, TrainerSpec
from training.fleet.scheduling.hours import BadHoursError
from training.fleet.scheduling.hours import parse as parse_hours
from training.fleet.scheduling.job import SLOTS_AUTO
from training.fleet.scheduling.orders import IDLE_S, PAUSE_MAX_S
from training.fleet.scheduling.policy import Scheduling
from training.fleet.scheduling.retention import Rules
from training.fleet.wire import bundles
from training.fleet.wire.constants import SLOTS_MAX
from training.fleet.wire.dataset_listing import Catalogue, UnknownDataset, is_reference
from training.fleet.wire.messages import HOST_ID_PATTERN
from training.printable import printable

PRIORITY_MAX = 1_000_000
SEED_MAX = 2**31 - 1
N_RESAMPLES_MIN, N_RESAMPLES_MAX = (200, 1_000_000)  # 0 makes no intervals; fewer than 200 make unreliable ones
MEMORY_GIB_MAX = 1_000_000.0
CORES_MAX = 100_000
SECONDS_MAX = 1e8  # three years

_DIGITS = re.compile(r"[0-9a-f]{6,64}")  # a job's id, or enough of one to name it
_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_HYPER_KEY = re.compile(r"[a-z][a-z0-9_]{0,63}")
_OUTPUT = re.compile(r"(?:\{model\}|\{mode\}|[A-Za-z0-9])(?:\{model\}|\{mode\}|[A-Za-z0-9._-]){0,127}")

_host_name = matching(
    re.compile(HOST_ID_PATTERN),
    "a host's name (a letter or digit, then up to 63 letters, digits, dots, dashes or underscores)",
)
_model_name = matching(_MODEL_NAME, "a name of 1 to 64 small letters, digits, dots, dashes or underscores")
_output = matching(_OUTPUT, "a file's name without folders; {model} and {mode} are filled in")
_host_names = list_of(_host_name)
_name = text(128)
_priority = whole(-PRIORITY_MAX, PRIORITY_MAX)
_seed = whole(0, SEED_MAX)
_gib = real(0.0, MEMORY_GIB_MAX)
_cores = whole(0, CORES_MAX)
_threads = whole(1, CORES_MAX)
_seconds = real(0.0, SECONDS_MAX)
CELSIUS_MIN, CELSIUS_MAX = 30.0, 120.0
_idle_s = real(10.0, 86_400.0)
_pause_s = real(0.0, 86_400.0)
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_recipe = one_of([recipe.value for recipe in Recipe], "split recipe")
_mode = one_of([mode.value for mode in Mode], "mode")
_rotation = one_of(["hosts"], "rotation")
_FREE = frozenset({"seed", "hyper"})  # on which, beside its id, nothing else of a job depends
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
VARIABLES_MAX = 50
VALUE_CHARS_MAX = 1024
_value = text(VALUE_CHARS_MAX, empty=True)
_command = list_of(text(4096), least=1, most=100, words=str.split)


def _n_resamples(value: Any) -> int:
    number = whole(0, N_RESAMPLES_MAX)(value)
    if 0 < number < N_RESAMPLES_MIN:
        raise WrongValueError(
            f"must be 0 (no intervals) or from {N_RESAMPLES_MIN} to {N_RESAMPLES_MAX}, not {number}: "
            "the ends of fewer draws are a matter of luck"
        )
    return number


@dataclass(frozen=True, slots=True)
class Trainers:
    """The models that can be trained: the hyperparameters of each, ``None`` for one whose flags are not known."""

    flags: Mapping[str, Mapping[str, HyperFlag] | None]
    own: Mapping[str, TrainerSpec] = field(default_factory=dict)


def dataset_among(known: Catalogue | None) -> Kind[str]:
    """A data set's id, whether its id, a prefix of that, or its name is written. ``None``: no catalogue
    is at hand, and possible references stay as written."""

    def kind(value: Any) -> str:
        if not isinstance(value, str) or not is_reference(value):
            raise WrongValueError(f"must be the id or the name of a data set, not {shown(value)}")
        if known is None:
            return value
        try:
            return known.resolve(value)
        except UnknownDataset as unknown:
            names = ", ".join(sorted(known.names)) or "none; `cis490-jobs dataset push` brings one"
            raise WrongValueError(str(unknown), f"known: {names}") from None

    return kind


def check_head(root: Table, *, stem: str) -> str:
    """Check the plan's name; the file's own name where it is absent."""
    version = root.take("schema_version", whole(0, 2**31), SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        message = f"this program reads schema_version {SCHEMA_VERSION}, not {version}"
        root.report(("schema_version",), message, "update the older of the two")
    return root.take("name", text(128), stem)


def check_trainers(root: Table, builtin: set[str]) -> dict[str, TrainerSpec]:
    """Check ``[trainers.<name>]``: own trainers."""
    found = {}
    for name, table in root.tables("trainers"):
        try:
            _model_name(name)
        except WrongValueError as wrong:
            table.report((), wrong.message)
        if name in builtin:
            table.report((), f"`{name}` is one of the trainers that are there already", "rename it")
        found[name] = TrainerSpec(
            name=name,
            command=table.take("command", _command, (), required=True),
            outputs=_outputs(table, name),
            describe=table.take("describe", list_of(text(4096), most=100), ()),
            env=_env(table),
        )
        table.finish("a trainer")
    return found


def _outputs(table: Table, model: str) -> tuple[str, ...]:
    """Check the outputs: names that are valid in a bundle for every mode."""
    names: tuple[str, ...] = table.take("outputs", list_of(_output, most=32), ())
    filled: set[str] = set()
    for index, name in enumerate(names):
        full = filled_in(name, model, Mode.REALISTIC.value)
        if not bundles.NAME.fullmatch(full):
            table.report(("outputs", index), "is longer than 100 characters when it is filled in")
        if full in filled:
            table.report(("outputs", index), "is named twice", "remove one")
        filled.add(full)
    return names


def check_defaults(root: Table, dataset: Kind[str]) -> Defaults:
    values: dict[str, Any] = root.take("defaults", _table, {})
    table = Table(values, (*root.path, "defaults"), root.problems)
    recipe = table.take("split_recipe", _recipe, "" if table.has("split_recipe") else "sample")
    checked = Defaults(
        split_recipe=Recipe(recipe) if recipe else None,
        train_hosts=table.take("train_hosts", _host_names, ()),
        seed=table.take("seed", _seed, 0),
        n_resamples=table.take("n_resamples", _n_resamples, 1000),
        dataset=table.take("dataset", dataset, None),
        max_run_s=table.take("max_run_s", _seconds, None),
        max_silence_s=table.take("max_silence_s", _seconds, None),
        threads=table.take("threads", _threads, None),
    )
    table.finish("[defaults]")
    return checked


def check_hosts(root: Table, trainers: Trainers) -> dict[str, HostSpec]:
    """Check ``[hosts.<name>]``: the operator's declarations of machines."""
    models = list_of(one_of(trainers.flags, "model"))
    found: dict[str, HostSpec] = {}
    for name, table in root.tables("hosts"):
        try:
            _host_name(name)
        except WrongValueError as wrong:
            table.report((), wrong.message)
        twin = next((other for other in found if other.lower() == name.lower()), None)
        if twin is not None:
            message = f"[hosts.{twin}] is the same host: names are compared without case"
            table.report((), message, "remove one")
        found[name] = HostSpec(
            name=name,
            description=table.take("description", text(500, empty=True), ""),
            priority=table.take("priority", _priority, 0),
            allow_jobs=table.take("allow_jobs", models, ()),
            deny_jobs=table.take("deny_jobs", models, ()),
            cuda=table.take("cuda", switch, None),
            max_vram_gib=table.take("max_vram_gib", _gib, None),
            max_ram_gib=table.take("max_ram_gib", _gib, None),
            max_cores=table.take("max_cores", _cores, None),
            slots=table.take("slots", _slots, None),
            reserve_cores=table.take("reserve_cores", _cores, 0),
            reserve_ram_gib=table.take("reserve_ram_gib", _gib, 0.0),
            reserve_vram_gib=table.take("reserve_vram_gib", _gib, 0.0),
            env=_env(table),
            **_owner(table),
        )
        table.finish("a host")
    return found


def _owner(table: Table) -> dict[str, Any]:
    """Check the conditions of a machine's owner, and how it sleeps and wakes."""
    hours: tuple[str, ...] = table.take("hours", list_of(_hour, least=1, most=50), ())
    checked = {
        "hours": hours,
        "pause_on_battery": table.take("pause_on_battery", switch, False),
        "pause_when_used": table.take("pause_when_used", switch, False),
        "idle_s": table.take("idle_s", _idle_s, IDLE_S),
        "pause_above_cpu": table.take("pause_above_cpu", _share, None),
        "pause_above_gpu": table.take("pause_above_gpu", _share, None),
        "pause_above_celsius": table.take("pause_above_celsius", _celsius, None),
        "pause_max_s": table.take("pause_max_s", _pause_s, PAUSE_MAX_S),
        "may_sleep": table.take("may_sleep", switch, False),
        "mac": table.take("mac", _mac, None),
    }
    if table.has("idle_s") and not checked["pause_when_used"]:
        table.report(("idle_s",), "has no effect without pause_when_used", "write pause_when_used = true, or remove it")
    return checked


def _hour(value: Any) -> str:
    """Check hours of the week."""
    said = text(100)(value)
    try:
        parse_hours(said)
    except BadHoursError as error:
        raise WrongValueError(str(error), 'write "mo-fr 18:00-08:00", "sa su" or "22:00-07:00"') from None
    return said


def _share(value: Any) -> float:
    try:
        return real(0.0, 1.0)(value)
    except WrongValueError:
        percent = isinstance(value, int | float) and not isinstance(value, bool) and 1 < value <= 100
        hint = f"write {value / 100:g} for {value:g} %" if percent else "0.5 is half of it"
        raise WrongValueError(f"must be a share from 0 to 1, not {shown(value)}", hint) from None


def _celsius(value: Any) -> float:
    try:
        return real(CELSIUS_MIN, CELSIUS_MAX)(value)
    except WrongValueError:
        raise WrongValueError(
            f"must be a temperature from {CELSIUS_MIN:g} to {CELSIUS_MAX:g} degrees Celsius, not {shown(value)}",
            "at rest a machine is at 30 to 60",
        ) from None


def _mac(value: Any) -> str:
    """Check a hardware address, and write it as everybody does."""
    digits = value.replace("-", ":").lower() if isinstance(value, str) else ""
    if not _MAC.fullmatch(digits):
        hint = "`ip link` or `ipconfig /all` on that machine shows it"
        raise WrongValueError(f'must be a hardware address as "a0:b1:c2:d3:e4:f5", not {shown(value)}', hint)
    if int(digits[:2], 16) & 1:
        hint = "name the address of one network card"
        raise WrongValueError(f"is the address of a group of machines: {digits}", hint)
    return digits


def _slots(value: Any) -> int | str:
    """Check how many jobs a host trains at once."""
    if value == SLOTS_AUTO:
        return SLOTS_AUTO
    if value == 0 and not isinstance(value, bool):
        raise WrongValueError(
            f'must be at least 1, or "{SLOTS_AUTO}": a host that is to get no work is named in denied_hosts, or its '
            "worker is stopped"
        )
    try:
        return whole(1, SLOTS_MAX)(value)
    except WrongValueError:
        raise WrongValueError(
            f'must be "{SLOTS_AUTO}" or a whole number from 1 to {SLOTS_MAX}, not {shown(value)}'
        ) from None


def _env(table: Table) -> dict[str, str]:
    """Check variables for trainers."""
    values: dict[str, Any] = table.take("env", _table, {})
    if len(values) > VARIABLES_MAX:
        table.report(("env",), f"has more than {VARIABLES_MAX} variables", "leave some out")
    checked = {}
    for name, value in values.items():
        at: KeyPath = ("env", name)
        if not _VARIABLE.fullmatch(name):
            table.report(at, "is no variable's name: letters, digits and underscores")
        elif (why := no_variable_because(name)) is not None:
            table.report(at, f"cannot be set here: {why}")
        else:
            try:
                checked[name] = _value(value)
            except WrongValueError as wrong:
                table.report(at, wrong.message, 'write it as a text, "…"')
    return checked


_PATH = matching(re.compile(r"/[^\x00-\x1f\x7f]{1,1023}"), "a file's absolute path")
_NAME_OF_VARIABLE = matching(_VARIABLE, "a variable's name: letters, digits and underscores")
_MAIL = matching(re.compile(r"[^\s@<>,]{1,64}@[A-Za-z0-9.-]{1,190}"), "a mail address, as ada@example.org")
_MAILS = list_of(_MAIL, least=1, most=50)
_NOTICES = list_of(one_of([kind.value for kind in NoticeKind], "kind of notice"), least=1, most=20)


def check_notify(root: Table) -> tuple[Channel, ...]:
    """Check ``[notify.<name>]``: the channels that carry notices to people."""
    found = []
    for name, table in root.tables("notify"):
        try:
            _host_name(name)
        except WrongValueError:
            table.report((), "must be a name of letters, digits, dots, dashes and underscores", "rename it")
        kind = table.take("kind", one_of([kind.value for kind in ChannelKind], "kind of channel"), "", required=True)
        on: tuple[str, ...] = table.take("on", _NOTICES, tuple(NoticeKind))
        named: dict[str, Any] = {}
        if kind in (ChannelKind.WEBHOOK, ChannelKind.NTFY):
            named["url"] = _secret(table, "url", required=True)
        if kind == ChannelKind.NTFY:
            named["token"] = _secret(table, "token")
        if kind == ChannelKind.COMMAND:
            command: tuple[str, ...] = table.take("command", _command, (), required=True)
            named["command"] = command
        if kind == ChannelKind.EMAIL:
            named |= _mail_server(table)
        if kind:
            found.append(Channel(name=name, kind=ChannelKind(kind), on=tuple(map(NoticeKind, on)), **named))
            table.finish(f"a channel of kind {kind}")
    return tuple(found)


def _mail_server(table: Table) -> dict[str, Any]:
    security = table.take("security", one_of([each.value for each in Security], "security"), Security.STARTTLS.value)
    user, password = table.take("user", text(256), ""), _secret(table, "password")
    if bool(user) != (password is not None):
        table.report((), "needs both user and password_file (or password_env), or none of them")
    if user and security == Security.NONE:
        table.report(("security",), "would send the password unencrypted", 'write "starttls" or "tls"')
    to: tuple[str, ...] = table.take("to", _MAILS, (), required=True)
    return {
        "host": table.take("host", text(253), "", required=True),
        "port": table.take("port", whole(1, 65535), 465 if security == Security.TLS else 587),
        "security": Security(security or Security.STARTTLS),
        "user": user,
        "password": password,
        "sender": table.take("from", _MAIL, "", required=True),
        "to": to,
    }


def _secret(table: Table, key: str, *, required: bool = False) -> Secret | None:
    """Read the place of a secret, a file or a variable; the secret itself is refused."""
    if table.has(key):
        table.take(key, lambda value: value, None)
        hint = f"write it into a file and name that: {key}_file"
        table.report((key,), "is a secret, and does not belong into the plan", hint)
        return None
    file = table.take(f"{key}_file", _PATH, None)
    env = table.take(f"{key}_env", _NAME_OF_VARIABLE, None)
    if file is not None and env is not None:
        table.report((f"{key}_env",), f"stands beside {key}_file", "remove one of the two")
        return None
    if file is None and env is None:
        if required and not table.has(f"{key}_file") and not table.has(f"{key}_env"):
            hint = f'write {key}_file = "/path", or {key}_env = "VARIABLE"'
            table.problems.append(Problem(table.path, f"lacks its {key}", hint, missing=True))
        return None
    return Secret(file, env)


KEEP_ALL = "all"
BEST_MAX = 1000
DAYS_MAX = 36_500.0
_BEST = re.compile(r"best ([1-9][0-9]{0,3}) per model and mode")
_days = real(0.0, DAYS_MAX)


def check_retention(root: Table) -> Rules:
    """Check ``[retention]``: what the receiver keeps, and how long."""
    values: dict[str, Any] = root.take("retention", _table, {})
    table = Table(values, (*root.path, "retention"), root.problems)
    checked = Rules(
        best=table.take("keep", _keep, None),
        models_days=table.take("keep_models_days", _days, 0.0),
        superseded_days=table.take("keep_superseded_days", _days, None),
        logs_days=table.take("keep_logs_days", _days, None),
        curves_days=table.take("keep_curves_days", _days, None),
        events_days=table.take("keep_events_days", _days, None),
        datasets_days=table.take("keep_datasets_days", _days, None),
        states_days=table.take("keep_states_days", _days, None),
    )
    table.finish("[retention]")
    return checked


def _keep(value: Any) -> int | None:
    if value == KEEP_ALL:
        return None
    best = _BEST.fullmatch(value) if isinstance(value, str) else None
    if best is None or int(best[1]) > BEST_MAX:
        known = f'known: "{KEEP_ALL}", and "best 3 per model and mode" with a number from 1 to {BEST_MAX}'
        raise WrongValueError(f"cannot be {shown(value)}", known)
    return int(best[1])


def check_jobs(root: Table, defaults: Defaults, trainers: Trainers, dataset: Kind[str]) -> list[JobSpec]:
    """Check ``[[jobs]]``. Jobs with a problem are left out of the comparison of ids."""
    sound: list[JobSpec] = []
    names: set[str] = set()
    by_id: dict[str, JobSpec] = {}
    places: dict[str, Table] = {}  # name → its position
    room = matrix.PLAN_JOBS_MAX
    for _, entry in root.tables("jobs", array=True):
        before = len(root.problems)
        tables = matrix.spread(entry, room, _rotated(entry, defaults))
        room -= len(tables) if {"matrix", matrix.ROTATE} & entry.values.keys() else 0
        jobs = list(_jobs(tables, defaults, trainers, dataset))
        as_it_should_be = len(root.problems) == before
        for table, job in zip(tables, jobs, strict=True):
            if job.name in names:
                message = f'there is another job called "{job.name}"'
                table.report(("name",), message, "jobs are named on the command line; rename one")
            if not as_it_should_be:
                continue
            names.add(job.name)
            if (twin := by_id.get(job.job_id)) is not None and twin.name != job.name:
                message = (
                    f'jobs "{twin.name}" and "{job.name}" would train the same model: '
                    "model, mode, hyper, split_recipe, train_hosts, test_hosts, seed and dataset are equal"
                )
                table.report((), message, "remove one, or change its seed")
            by_id.setdefault(job.job_id, job)
            sound.append(job)
            places[job.name] = table
        names |= {job.name for job in jobs} - {""}  # a malformed name was reported
    for name in filter(_DIGITS.fullmatch, places):
        other = next((job for job in sound if job.job_id.startswith(name)), None)
        if other is not None or len(name) == 64:
            whose = "an id" if other is None else f'the id of job "{other.name}"'
            message = f"is {whose}, or how it begins: a command could not tell the two apart"
            places[name].report(("name",), message, "choose another name")
    return sound


def _jobs(tables: Sequence[Table], defaults: Defaults, trainers: Trainers, dataset: Kind[str]) -> Iterator[JobSpec]:
    """Check the jobs of an entry: of a thousand seeds one wholly, and of the others what is their own."""
    sound: dict[tuple[Any, ...], tuple[Table, JobSpec]] = {}
    for table in tables:
        others = tuple(repr(table.values[key]) for key in table.varied if key not in _FREE)
        before = len(table.problems)
        if others in sound:
            yield _varied(table, *sound[others], defaults, trainers)
        else:
            job = _job(table, defaults, trainers, dataset)
            if len(table.problems) == before:
                sound[others] = table, job
            yield job


def _varied(table: Table, like: Table, job: JobSpec, defaults: Defaults, trainers: Trainers) -> JobSpec:
    """Check a job that differs from a sound one of its entry in name, seed and hyperparameters alone."""
    same = table.values.get("hyper") is like.values.get("hyper")
    hyper = job.hyper if same else _hyper(table, job.model, trainers)
    seed = table.take("seed", _seed, defaults.seed)
    name = table.take("name", _name, "", required=True)
    made = replace(job, name=name, hyper=hyper, seed=seed)
    return replace(made, job_id=_identity(made, trainers.own.get(job.model)))


def _identity(job: JobSpec, own: TrainerSpec | None) -> str:
    return job_identity(
        {
            "model": job.model,
            "mode": job.mode,
            "hyper": dict(job.hyper),
            "split_recipe": job.split_recipe,
            "train_hosts": list(job.train_hosts),
            "test_hosts": list(job.test_hosts),
            "seed": job.seed,
            "dataset": job.dataset,
            "trainer": {"command": own.command if own else ()},
        }
    )


def _job(table: Table, defaults: Defaults, trainers: Trainers, dataset: Kind[str]) -> JobSpec:
    name = table.take("name", _name, "", required=True)
    model = table.take("model", one_of(trainers.flags, "model"), "", required=True)
    mode = table.take("mode", _mode, "", required=True)
    recipe, train_hosts, test_hosts = _split(table, defaults)
    hyper = _hyper(table, model, trainers)
    seed = table.take("seed", _seed, defaults.seed)
    data = table.take("dataset", dataset, defaults.dataset)
    job = JobSpec(
        name=name,
        job_id="",
        model=model,
        mode=mode,
        priority=table.take("priority", _priority, 0),
        require_cuda=table.take("require_cuda", switch, default=False),
        prefer_cuda=table.take("prefer_cuda", switch, default=False),
        min_vram_gib=table.take("min_vram_gib", _gib, 0.0),
        min_ram_gib=table.take("min_ram_gib", _gib, 0.0),
        min_cores=table.take("min_cores", _cores, 0),
        allowed_hosts=table.take("allowed_hosts", _host_names, ()),
        denied_hosts=table.take("denied_hosts", _host_names, ()),
        hyper=hyper,
        split_recipe=recipe,
        train_hosts=train_hosts,
        test_hosts=test_hosts,
        seed=seed,
        n_resamples=table.take("n_resamples", _n_resamples, defaults.n_resamples),
        dataset=data,
        max_run_s=table.take("max_run_s", _seconds, defaults.max_run_s),
        max_silence_s=table.take("max_silence_s", _seconds, defaults.max_silence_s),
        threads=table.take("threads", _threads, defaults.threads),
        urgent=table.take("urgent", switch, default=False),
    )
    table.finish("a job")
    return replace(job, job_id=_identity(job, trainers.own.get(model)))


def _rotated(entry: Table, defaults: Defaults) -> Sequence[str]:
    """Return the hosts over which an entry rotates, sorted; none where it does not, or a mistake was reported."""
    at: KeyPath = (matrix.ROTATE,)
    if not entry.has(matrix.ROTATE):
        entry.skip(matrix.ROTATE)
        return ()
    before = len(entry.problems)
    word = entry.take(matrix.ROTATE, _rotation, "")
    if not word:
        return ()
    if entry.has("test_hosts"):
        entry.report(
            at, "stands beside test_hosts, and tests each of train_hosts in turn itself", "remove one of the two"
        )
    varied, recipe = entry.values.get("matrix"), entry.values.get("split_recipe", defaults.split_recipe)
    if isinstance(varied, Mapping) and "split_recipe" in varied:
        entry.report(at, "stands beside a matrix of split_recipe, and leaves whole hosts out", "remove one of the two")
    elif recipe in {one for one in Recipe if not one.by_host}:
        message = f'leaves whole hosts out, which split_recipe "{recipe}" does not'
        entry.report(at, message, 'set split_recipe = "host" in the job, or remove rotate')
    own = entry.values.get("train_hosts")
    try:
        hosts = list(_host_names(own) if own is not None else defaults.train_hosts)
    except WrongValueError:  # to be reported by who reads them
        return ()
    for index, host in enumerate(hosts):
        if host in hosts[:index]:
            place = (*entry.path, "train_hosts", index) if own is not None else ("defaults", "train_hosts", index)
            problem = Problem(place, f"{host} is there twice, and a rotation tests each host once", "remove one")
            if problem not in entry.problems:
                entry.problems.append(problem)
    if len(hosts) == 1:
        entry.report(
            at, f"has {hosts[0]} alone in train_hosts: tested, it leaves none to train on", "name two hosts or more"
        )
    return sorted(hosts) if len(entry.problems) == before else ()


def _split(table: Table, defaults: Defaults) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Check the job's recipe, training and test hosts. An option without effect is refused where the job sets it."""
    before = len(table.problems)
    inherited = "" if defaults.split_recipe is None else defaults.split_recipe.value
    recipe = table.take("split_recipe", _recipe, inherited)
    own: tuple[str, ...] = table.take("train_hosts", _host_names, ())
    tested: tuple[str, ...] = table.take("test_hosts", _host_names, ())
    if not recipe or len(table.problems) > before:  # reported, and nothing can be said of them together
        return recipe, own, tested
    if not Recipe(recipe).by_host:
        for key, names in (("train_hosts", own), ("test_hosts", tested)):
            if names and not table.has(matrix.ROTATE):  # of which the cause was reported
                message = f'{key} has no effect under split_recipe "{recipe}"'
                table.report((key,), message, 'remove it, or set split_recipe = "host"')
        return recipe, (), ()
    hosts = tuple(sorted({*(own or defaults.train_hosts)}))
    if not hosts:
        _report_no_train_hosts(table, recipe)
    both = sorted({*hosts} & {*tested})
    if both and not table.has(matrix.ROTATE):
        table.report(("test_hosts",), f"{both[0]} is one of train_hosts, too", "remove it from one of the two")
    return recipe, hosts, tuple(sorted({*tested}))


def _report_no_train_hosts(table: Table, recipe: str) -> None:
    """Report at the job when it rotates or sets the recipe itself; else once, at the defaults."""
    if table.has(matrix.ROTATE):
        message = "needs train_hosts, the recording hosts of which each is tested in turn"
        table.report((matrix.ROTATE,), message, 'add train_hosts = ["…", "…"]', missing=True)
        return
    at: KeyPath = (*table.path, "split_recipe") if table.has("split_recipe") else ("defaults",)
    message = f'split_recipe "{recipe}" needs train_hosts, the recording hosts whose episodes train'
    problem = Problem(at, message, 'add train_hosts = ["…"] there or in the job', missing=True)
    if problem not in table.problems:
        table.problems.append(problem)


def _hyper(table: Table, model: str, trainers: Trainers) -> dict[str, HyperValue]:
    """Read the job's hyper values in their flags' types; unchecked while the model itself is wrong."""
    values: dict[str, Any] = table.take("hyper", _table, {})
    checked: dict[str, HyperValue] = {}
    if model not in trainers.flags:
        return checked
    flags = trainers.flags[model]
    for key, value in values.items():
        at: KeyPath = ("hyper", key)
        if flags is None:
            problem = _unchecked(key, value)
            if problem:
                table.report(at, *problem)
            else:
                checked[key] = value
        elif key not in flags:
            hint = nearest(key, flags, table.problems)
            table.report(at, f"{model} has no hyperparameter `{printable(key)[:80]}`", hint)
        else:
            try:
                checked[key] = flags[key].coerce(value)
            except ValueError as error:
                table.report(at, str(error))
    return checked


def _unchecked(key: str, value: object) -> tuple[str, str] | None:
    """Check a hyper value as far as possible without the trainer's flags."""
    if key in ARGUMENTS or any(each.startswith(key) for each in ("out_dir", "reports_dir")):
        return f"`{key}` is set by the worker and cannot be a hyperparameter", "remove it"
    if not _HYPER_KEY.fullmatch(key):
        return "must be small letters, digits and underscores", "- in a flag is _ here"
    try:
        if isinstance(value, str):
            text(256)(value)
        if isinstance(value, str) and value.startswith("-"):
            return "must not begin with -", "it would be read as a flag"
        if isinstance(value, int | float) and not isinstance(value, bool):
            real(-1e300, 1e300)(value)
        if not isinstance(value, bool | int | float | str):
            return f"must be one value, not {shown(value)}", ""
    except WrongValueError as wrong:
        return wrong.message, ""
    return None


def _table(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise WrongValueError(f"must be a table, not {shown(value)}", "write key = value pairs below its header")


def check_plan(
    root: Table, trainers: Trainers, datasets: Catalogue | None = None
) -> tuple[Defaults, dict[str, HostSpec], list[JobSpec], tuple[Channel, ...], Rules, Scheduling]:
    """Check defaults, hosts, jobs, channels, retention and scheduling, then refuse other keys at the top."""
    dataset = dataset_among(datasets)
    defaults = check_defaults(root, dataset)
    hosts = check_hosts(root, trainers)
    jobs = check_jobs(root, defaults, trainers, dataset)
    channels = check_notify(root)
    retention = check_retention(root)
    scheduling = Scheduling(root.take("scheduling", one_of(Scheduling, "scheduling"), Scheduling.SOONEST.value))
    root.finish("a manifest")
    return defaults, hosts, jobs, channels, retention, scheduling
