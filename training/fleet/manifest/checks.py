"""Checks that turn a TOML document into a plan, and report mistakes key by key. Pure: no file, no process.

The caller passes the known models and their hyperparameters as :class:`Trainers`.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from typing import Any

from training.contract import ARGUMENTS, IDENTITY_KEYS, Mode, Recipe, filled_in, job_identity
from training.fleet.capability.describe import Description, HyperFlag, HyperValue, shown
from training.fleet.manifest import matrix
from training.fleet.manifest import value_kinds as kinds
from training.fleet.manifest.channels import ChannelKind, NoticeKind, NotifyChannel, Secret, Security
from training.fleet.manifest.reader import (
    KeyPath,
    Kind,
    TomlTable,
    UnplacedMistake,
    WrongValueError,
    list_of,
    matching,
    nearest,
    one_of,
    real,
    text,
    whole,
)
from training.fleet.manifest.types import INHERITED, SCHEMA_VERSION, HostSpec, JobSpec, Manifest, TrainerSpec, read
from training.fleet.scheduling.policy import Scheduling
from training.fleet.scheduling.retention import Rules
from training.fleet.wire import bundles
from training.fleet.wire.dataset_listing import Catalogue, UnknownDataset, is_reference
from training.frozen import frozen
from training.printable import printable
from training.strict_json import Json, JsonObject

_DIGITS = re.compile(r"[0-9a-f]{6,64}")  # a job's id, or enough of one to name it
_HYPER_KEY = re.compile(r"[a-z][a-z0-9_]{0,63}")
_rotation = one_of(["hosts"], "rotation")
_FREE = frozenset({"seed", "hyper"})  # on which, beside its id, nothing else of a job depends


Defaults = Json  # the checked values of [defaults]


@frozen
class Trainers:
    """The models that can be trained, each with its hyperparameters, and the custom and built-in trainers of them."""

    flags: Mapping[str, Mapping[str, HyperFlag] | None]  # hyperparameters of each; None: they are not known
    own: Mapping[str, TrainerSpec] = field(default_factory=dict)
    programs: Mapping[str, Description] = field(default_factory=dict)  # the built-in ones' answers
    bound_by: Mapping[str, str] = field(default_factory=dict)  # model → what bounds it


def dataset_among(known: Catalogue | None) -> Kind[str]:
    """Make the check of a value that names a data set by id, the beginning of an id, or name; the check returns the id.
    Without a catalogue (``None``) well-formed values stay as written."""

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


def check_head(root: TomlTable, *, stem: str) -> str:
    """Check the schema version and the plan's name, and return the name; ``stem`` (from the file's name) if the plan
    has no valid one."""
    version = root.take("schema_version", whole(0, 2**31), SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        message = f"this program reads schema_version {SCHEMA_VERSION}, not {version}"
        root.report(("schema_version",), message, "update the older of the two")
    return root.take("name", text(128), stem)


def check_trainers(root: TomlTable, builtin: Collection[str]) -> dict[str, TrainerSpec]:
    """Check the custom trainers, ``[trainers.<name>]``, and return them by name."""
    found = {}
    for name, table in root.tables("trainers"):
        table.judge(kinds.model_name, name)
        if name in builtin:
            table.report((), f"`{name}` is the name of a built-in trainer", "rename it")
        found[name] = TrainerSpec(name=name, **read(table, TrainerSpec))
        _check_outputs(table, name, found[name].outputs)
        table.finish("a trainer")
    return found


def _check_outputs(table: TomlTable, model: str, names: Sequence[str]) -> None:
    """Report output files whose names are equal or too long for a bundle. The longest mode is filled in, so that a name
    short enough for this mode is short enough for every mode."""
    filled: set[str] = set()
    for index, name in enumerate(names):
        full = filled_in(name, model, Mode.REALISTIC.value)
        if not bundles.NAME.fullmatch(full):
            table.report(("outputs", index), "is longer than 100 characters when it is filled in")
        if full in filled:
            table.report(("outputs", index), "is named twice", "remove one")
        filled.add(full)


def check_defaults(root: TomlTable, dataset: Kind[str]) -> JsonObject:
    """Check ``[defaults]`` and return its values. A missing split recipe becomes ``sample``, a wrong one an empty text;
    wrong ``train_hosts`` become None."""
    table = root.table("defaults")
    checked = read(table, JobSpec, {"dataset": dataset}, {"split_recipe": ""}, INHERITED)
    table.finish("[defaults]")
    checked |= {"train_hosts": None} if table.is_wrong("train_hosts") else {}
    return checked if table.has("split_recipe") else {**checked, "split_recipe": Recipe.SAMPLE.value}


def check_hosts(root: TomlTable, trainers: Trainers) -> dict[str, HostSpec]:
    """Check ``[hosts.<name>]``, the operator's declarations of machines, and return them by name."""
    models = list_of(one_of(trainers.flags, "model"))
    found: dict[str, HostSpec] = {}
    for name, table in root.tables("hosts"):
        table.judge(kinds.host_name, name)
        twin = next((other for other in found if other.lower() == name.lower()), None)
        if twin is not None:
            message = f"[hosts.{twin}] is the same host: names are compared without case"
            table.report((), message, "remove one")
        found[name] = HostSpec(name=name, **read(table, HostSpec, {"allow_jobs": models, "deny_jobs": models}))
        if table.has("idle_s") and not found[name].pause_when_used:
            hint = "write pause_when_used = true, or remove it"
            table.report(("idle_s",), "has no effect without pause_when_used", hint)
        table.finish("a host")
    return found


_PATH = matching(re.compile(r"/[^\x00-\x1f\x7f]{1,1023}"), "a file's absolute path")
_NAME_OF_VARIABLE = matching(kinds.VARIABLE, "a variable's name: letters, digits and underscores, no digit first")
_MAIL = matching(re.compile(r"[^\s@<>,]{1,64}@[A-Za-z0-9.-]{1,190}"), "a mail address, as ada@example.org")
_MAILS = list_of(_MAIL, least=1, most=50)
_NOTICES = list_of(one_of([kind.value for kind in NoticeKind], "kind of notice"), least=1, most=20)


def check_notify(root: TomlTable) -> tuple[NotifyChannel, ...]:
    """Check ``[notify.<name>]`` and return the channels that carry notices to people."""
    found = []
    for name, table in root.tables("notify"):
        table.judge(kinds.host_name, name, "rename it")
        kind = table.take("kind", one_of([kind.value for kind in ChannelKind], "kind of channel"), "", required=True)
        on: tuple[str, ...] = table.take("on", _NOTICES, tuple(NoticeKind))
        named: JsonObject = {}
        if kind in (ChannelKind.WEBHOOK, ChannelKind.NTFY):
            named["url"] = _secret(table, "url", required=True)
        if kind == ChannelKind.NTFY:
            named["token"] = _secret(table, "token")
        if kind == ChannelKind.COMMAND:
            command: tuple[str, ...] = table.take("command", kinds.command, (), required=True)
            named["command"] = command
        if kind == ChannelKind.EMAIL:
            named |= _mail_server(table)
        if kind:
            found.append(NotifyChannel(name=name, kind=ChannelKind(kind), on=tuple(map(NoticeKind, on)), **named))
            table.finish(f"a channel of kind {kind}")
    return tuple(found)


def _mail_server(table: TomlTable) -> JsonObject:
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


def _secret(table: TomlTable, key: str, *, required: bool = False) -> Secret | None:
    """Return the file or variable in which a secret is; None if neither is given, or after reporting a mistake. A
    secret written in the plan itself is a mistake."""
    if table.has(key):
        table.take(key, lambda value: value, None)
        hint = f"write it into a file and name that: {key}_file"
        table.report((key,), "is a secret, and does not belong into the plan", hint)
        return None
    file = table.take(f"{key}_file", _PATH, None)
    env = table.take(f"{key}_env", _NAME_OF_VARIABLE, None)
    if file is not None and env is not None:
        table.report((f"{key}_env",), f"cannot be given with {key}_file", "remove one of the two")
        return None
    if file is None and env is None:
        if required and not table.has(f"{key}_file") and not table.has(f"{key}_env"):
            hint = f'write {key}_file = "/path", or {key}_env = "VARIABLE"'
            table.problems.append(UnplacedMistake(table.path, f"lacks its {key}", hint, missing=True))
        return None
    return Secret(file, env)


KEEP_ALL = "all"
BEST_MAX = 1000
DAYS_MAX = 36_500.0
_BEST = re.compile(r"best ([1-9][0-9]{0,3}) per model and mode")
_days = real(0.0, DAYS_MAX)


def check_retention(root: TomlTable) -> Rules:
    """Check ``[retention]`` and return the rules of what the receiver keeps, and how long."""
    table = root.table("retention")
    ages: JsonObject = {each.name: table.take(each.name, _days, each.default) for each in fields(Rules)[1:]}
    checked = Rules(best=table.take("keep", _keep, None), **ages)
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


def check_jobs(root: TomlTable, defaults: Defaults, trainers: Trainers, dataset: Kind[str]) -> list[JobSpec]:
    """Check ``[[jobs]]`` and return the jobs of all entries without a mistake of their own. Only the jobs of such
    entries are compared for equal ids."""
    sound: list[JobSpec] = []
    names: set[str] = set()
    by_id: dict[str, JobSpec] = {}
    places: dict[str, TomlTable] = {}  # name → its position
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
                    "model, mode, hyper, split_recipe, train_hosts, test_hosts, both seeds and dataset are equal"
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
            message = f"is {whose}, or how it begins: a command could not distinguish the two"
            places[name].report(("name",), message, "choose another name")
    return sound


def _jobs(tables: Sequence[TomlTable], defaults: Defaults, trainers: Trainers, dataset: Kind[str]) -> Iterator[JobSpec]:
    """Check and yield the jobs of an entry. Once a job is completely checked and correct, jobs that differ from it only
    in name, seed and hyperparameters are checked only in these three."""
    sound: dict[tuple[Any, ...], tuple[TomlTable, JobSpec]] = {}
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


def _varied(table: TomlTable, like: TomlTable, job: JobSpec, defaults: Defaults, trainers: Trainers) -> JobSpec:
    """Check and return a job that differs from a correct job of its entry only in name, seed and hyperparameters."""
    same = table.values.get("hyper") is like.values.get("hyper")
    hyper = job.hyper if same else _hyper(table, job.model, trainers)
    seed = table.take("seed", kinds.seed, defaults["seed"])
    name = table.take("name", text(128), "", required=True)
    made = replace(job, name=name, hyper=hyper, seed=seed)
    return replace(made, job_id=_identity(made, trainers.own.get(job.model)))


def _identity(job: JobSpec, own: TrainerSpec | None) -> str:
    spec = {key: getattr(job, key) for key in (*IDENTITY_KEYS, "test_hosts", "split_seed", "dataset")}
    return job_identity({**spec, "trainer": {"command": own.command if own else ()}})


def _job(table: TomlTable, defaults: Defaults, trainers: Trainers, dataset: Kind[str]) -> JobSpec:
    given = {"model": one_of(trainers.flags, "model"), "dataset": dataset}
    keys = read(table, JobSpec, given, defaults)
    split = _split(table, keys, defaults)
    job = JobSpec(**keys | split, hyper=_hyper(table, keys["model"], trainers))
    table.finish("a job", {"urgent": "give it a higher `priority`"})
    return replace(job, job_id=_identity(job, trainers.own.get(job.model)))


def _rotated(entry: TomlTable, defaults: Defaults) -> Sequence[str]:
    """Return the hosts over which an entry rotates, sorted; none if the entry does not rotate, or has a mistake in its
    rotation."""
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
            at, "cannot be given with test_hosts: it tests each of train_hosts itself", "remove one of the two"
        )
    varied, recipe = entry.values.get("matrix"), entry.values.get("split_recipe", defaults["split_recipe"])
    if isinstance(varied, Mapping) and "split_recipe" in varied:
        entry.report(
            at, "cannot be given with a matrix of split_recipe: it leaves whole hosts out", "remove one of the two"
        )
    elif recipe in {one for one in Recipe if not one.by_host}:
        message = f'leaves whole hosts out, which split_recipe "{recipe}" does not'
        entry.report(at, message, 'set split_recipe = "host" in the job, or remove rotate')
    own = entry.values.get("train_hosts")
    try:
        hosts = list(kinds.host_names(own) if own is not None else defaults["train_hosts"] or ())
    except WrongValueError:  # to be reported by who reads them
        return ()
    for index, host in enumerate(hosts):
        if host in hosts[:index]:
            place = (*entry.path, "train_hosts", index) if own is not None else ("defaults", "train_hosts", index)
            problem = UnplacedMistake(
                place, f"{host} is there twice, and a rotation tests each host once", "remove one"
            )
            if problem not in entry.problems:
                entry.problems.append(problem)
    if len(hosts) == 1:
        entry.report(
            at, f"has {hosts[0]} alone in train_hosts: tested, it leaves none to train on", "name two hosts or more"
        )
    return sorted(hosts) if len(entry.problems) == before else ()


def _split(table: TomlTable, keys: Json, defaults: Defaults) -> JsonObject:
    """Check the job's training and test hosts together and return them, sorted; ``{}`` if the recipe or one of the two
    is wrong. Hosts that the job itself names are a mistake if its split recipe ignores them and the job does not
    rotate."""
    recipe, tested = keys["split_recipe"], keys["test_hosts"]
    if not recipe or table.is_wrong("split_recipe", "train_hosts", "test_hosts"):
        return {}  # reported, and nothing can be said of them together
    if not Recipe(recipe).by_host:
        for key in ("train_hosts", "test_hosts"):
            if table.values.get(key) and not table.has(matrix.ROTATE):  # of which the cause was reported
                message = f'{key} has no effect under split_recipe "{recipe}"'
                table.report((key,), message, 'remove it, or set split_recipe = "host"')
        return {"train_hosts": (), "test_hosts": ()}
    named = keys["train_hosts"] or defaults["train_hosts"]
    if named is None:
        return {}
    hosts = tuple(sorted({*named}))
    if not hosts:
        _report_no_train_hosts(table, recipe)
    both = sorted({*hosts} & {*tested})
    if both and not table.has(matrix.ROTATE):
        table.report(("test_hosts",), f"{both[0]} is one of train_hosts, too", "remove it from one of the two")
    return {"train_hosts": hosts, "test_hosts": tuple(sorted({*tested}))}


def _report_no_train_hosts(table: TomlTable, recipe: str) -> None:
    """Report that ``train_hosts`` is missing: at the job if the job rotates or sets the recipe itself, otherwise once,
    at the defaults."""
    if table.has(matrix.ROTATE):
        message = "needs train_hosts, the recording hosts that are tested one at a time"
        table.report((matrix.ROTATE,), message, 'add train_hosts = ["…", "…"]', missing=True)
        return
    at: KeyPath = (*table.path, "split_recipe") if table.has("split_recipe") else ("defaults",)
    message = f'split_recipe "{recipe}" needs train_hosts, the recording hosts whose episodes train'
    problem = UnplacedMistake(at, message, 'add train_hosts = ["…"] there or in the job', missing=True)
    if problem not in table.problems:
        table.problems.append(problem)


def _hyper(table: TomlTable, model: str, trainers: Trainers) -> dict[str, HyperValue]:
    """Check the job's hyperparameters and return the correct ones, in their flags' types if the flags are known; none
    if the model itself is unknown."""
    values: JsonObject = table.take("hyper", kinds.table, {})
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
    """Check a hyperparameter without the trainer's flags; return (mistake, remedy), or None if no mistake is found."""
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


def check_plan(
    root: TomlTable, trainers: Trainers, datasets: Catalogue | None = None, *, stem: str = "plan"
) -> Manifest:
    """Check everything except the trainers, report unknown keys at the top level, and return the plan. Mistakes are
    added to ``root.problems``."""
    dataset = dataset_among(datasets)
    defaults = check_defaults(root, dataset)
    plan = Manifest(
        name=check_head(root, stem=stem),
        hosts=check_hosts(root, trainers),
        jobs=tuple(check_jobs(root, defaults, trainers, dataset)),
        trainers=trainers.own,
        programs=trainers.programs,
        names_jobs=root.has("jobs"),
        channels=check_notify(root),
        retention=check_retention(root),
        scheduling=Scheduling(root.take("scheduling", one_of(Scheduling, "scheduling"), Scheduling.SOONEST.value)),
        bound_by=trainers.bound_by,
    )
    root.finish("a manifest")
    return plan
