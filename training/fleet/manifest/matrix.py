"""A job's ``matrix`` and its rotation: one entry of the plan that expands to many jobs. Pure.

``matrix = { seed = [0, 1, 2], "hyper.max_depth" = [4, 6] }`` makes the six jobs that a person would write by hand, with
the same ids; each job's name contains its values, ``gbt[seed=0,max_depth=4]``. ``rotate = "hosts"`` makes one job for
each host of ``train_hosts``, tested only on that host and trained on the others: ``gbt[host=attic-pi,seed=0]``.
"""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from training.fleet.capability.describe import shown
from training.fleet.manifest.reader import KeyPath, TomlTable, UnplacedMistake, WrongValueError, nearest
from training.printable import printable
from training.strict_json import Json, JsonObject

JOBS_MAX = 1_000  # of one matrix …
PLAN_JOBS_MAX = 100_000  # … and of all in a plan
NAME_CHARS_MAX = 128
# The members of a job's identity. Anything else would make jobs that train the same model.
KEYS = ("model", "mode", "seed", "split_seed", "split_recipe", "dataset")
_HYPER = "hyper"
ROTATE = "rotate"


class Axis(NamedTuple):
    """A key of a matrix: its place in a job (``in_job``), its place in the file (``at``), and its values."""

    key: str
    in_job: KeyPath
    at: KeyPath
    values: Sequence[Any]
    label: str = ""  # in names; empty: the last part of its place in a job

    @property
    def short(self) -> str:
        return self.label or str(self.in_job[-1])

    def put(self, values: JsonObject, index: int) -> None:
        """Set this key in a job's table ``values`` to the value number ``index``."""
        key, *below = map(str, self.in_job)
        inside = values.get(key, {}) if below else None
        if inside is None:
            values[key] = self.values[index]
        elif isinstance(inside, Mapping):  # anything else is a mistake of the entry itself
            values[key] = {**inside, below[0]: self.values[index]}

    def place(self, index: int) -> KeyPath:
        """Return the place in the file of the value number ``index``."""
        return (*self.at, index)

    def part(self, label: str, index: int) -> str:
        """Write the value number ``index`` as a part of a job's name, as ``seed=0``."""
        value = self.values[index]
        if isinstance(value, str):
            return f"{label}={printable(value)}"
        return f"{label}={json.dumps(value) if isinstance(value, float) else shown(value)}"


class Rotation(Axis):
    """The axis of a rotation: each host in ``train_hosts`` is tested once by a model that is trained on the others."""

    def put(self, values: JsonObject, index: int) -> None:
        values["train_hosts"] = [host for host in self.values if host != self.values[index]]
        values["test_hosts"] = [self.values[index]]
        values.pop(ROTATE, None)

    def place(self, index: int) -> KeyPath:  # noqa: ARG002 - hosts may stand in the defaults
        return self.at


def rotation(hosts: Sequence[str]) -> Rotation:
    """Make the axis of a rotation over ``hosts``, which have been checked."""
    return Rotation("test_host", ("test_hosts",), (ROTATE,), hosts, label="host")


def spread(entry: TomlTable, room: int = PLAN_JOBS_MAX, hosts: Sequence[str] = ()) -> list[TomlTable]:
    """Expand an entry's matrix and rotation: return one table for each job, which reports mistakes at the value's place
    in the file.

    ``room`` is how many more jobs the matrices and rotations of this plan may make. A matrix with mistakes makes only
    as many jobs as are needed to check each value once. ``hosts``: the hosts of the entry's rotation, if it has one.
    """
    if "matrix" not in entry.values:
        entry.skip("matrix")
        if not hosts:
            return [entry]
    before = len(entry.problems)
    axes = [*([rotation(hosts)] if hosts else []), *(_axes(entry) if "matrix" in entry.values else [])]
    count = math.prod(len(axis.values) for axis in axes)
    if count > min(JOBS_MAX, room):
        words = f"at most {JOBS_MAX} are allowed" if count > JOBS_MAX else f"all of a plan at most {PLAN_JOBS_MAX}"
        key = "matrix" if "matrix" in entry.values else ROTATE
        entry.report((key,), f"makes {count} jobs, and {words}", "leave values out")
    whole = len(entry.problems) == before
    choices = _choices(axes, whole=whole)
    once: set[UnplacedMistake] = set()
    return [
        _one(entry, axes, choice, name, once)
        for choice, name in zip(choices, _names(entry, axes, choices), strict=True)
    ]


def _choices(axes: Sequence[Axis], *, whole: bool) -> list[tuple[int, ...]]:
    """Return one tuple for each job: the number of its value on each axis. If not ``whole``, make only enough jobs that
    each value occurs."""
    if whole:
        return list(product(*(range(len(axis.values)) for axis in axes)))
    longest = max((len(axis.values) for axis in axes), default=1)
    return [tuple(n % len(axis.values) for axis in axes) for n in range(min(longest, JOBS_MAX))]


def _names(entry: TomlTable, axes: Sequence[Axis], choices: Sequence[tuple[int, ...]]) -> list[Any]:
    """Return each job's name: the entry's name with the job's values. If the values make a name too long, report that
    and return numbers as names.

    A name that is missing, empty or no text is returned as it is; the later check of names reports it.
    """
    name = entry.values.get("name")
    if not isinstance(name, str) or not name or not axes:
        return [name] * len(choices)
    labels = _labels(axes)
    values = [zip(axes, labels, choice, strict=True) for choice in choices]
    names = [f"{name}[{','.join(axis.part(label, n) for axis, label, n in each)}]" for each in values]
    longest = max(map(len, names))
    if longest > NAME_CHARS_MAX >= len(name):
        what = "matrix" if "matrix" in entry.values else "rotation"
        words = f"with the values of its {what} a name has {longest} characters"
        words += f", and at most {NAME_CHARS_MAX} are allowed"
        entry.report(("name",), words, "shorten it")
        return [f"{n}" for n in range(len(choices))]
    return names


def _one(
    entry: TomlTable, axes: Sequence[Axis], choice: Sequence[int], name: Any, once: set[UnplacedMistake]
) -> TomlTable:
    values = {key: value for key, value in entry.values.items() if key != "matrix"}
    moved: dict[KeyPath, KeyPath] = {}
    for axis, index in zip(axes, choice, strict=True):
        moved[axis.in_job] = axis.place(index)
        axis.put(values, index)
    if name is not None:
        values["name"] = name
    made = TomlTable(values, entry.path, entry.problems, moved=moved, once=once)
    made.skip("matrix")
    made.skip(ROTATE)
    return made


def _labels(axes: Sequence[Axis]) -> list[str]:
    """Return each axis's key as it appears in names: its last part, or the whole key if two last parts are equal."""
    short = [axis.short for axis in axes]
    return [axis.key if short.count(label) > 1 else label for axis, label in zip(axes, short, strict=True)]


def _axes(entry: TomlTable) -> list[Axis]:
    """Read the matrix and return its axes; report every mistake, and leave out each key that cannot vary, is repeated,
    or has a wrong list of values."""
    before = len(entry.problems)
    matrix: JsonObject = entry.take("matrix", _table, {})
    found: dict[str, Axis] = {}
    for key, at, values in _entries(matrix):
        in_job: KeyPath = (_HYPER, key.partition(".")[2]) if key.startswith(f"{_HYPER}.") else (key,)
        if len(in_job) == 1 and key not in KEYS:
            words = f"`{printable(key)[:80]}` cannot vary in a matrix: each job would train the same model"
            entry.report(at, words, nearest(key, [*KEYS, "hyper.<key>"]))
            continue
        if key in found:
            entry.report(at, f"`{printable(key)[:80]}` is there twice", "remove one")
            continue
        inside = entry.values.get(_HYPER)
        there = in_job[-1] in inside if len(in_job) > 1 and isinstance(inside, Mapping) else key in entry.values
        if there:
            entry.report(at, f"the job itself sets `{printable(key)[:80]}`, too", "remove one")
        if _listed(entry, at, values):
            found[key] = Axis(key, in_job, at, values)
    if not matrix and len(entry.problems) == before:
        entry.report(("matrix",), "is empty", "write matrix = { seed = [0, 1, 2] }, or leave it out")
    return list(found.values())


def _entries(matrix: Json) -> list[tuple[str, KeyPath, Any]]:
    """Return the matrix as (key, place, values); ``"hyper.lr" = […]`` and ``hyper.lr = […]`` give the same key."""
    found: list[tuple[str, KeyPath, Any]] = []
    for key, value in matrix.items():
        if key == _HYPER and isinstance(value, Mapping):
            found += [(f"{_HYPER}.{inner}", ("matrix", key, inner), values) for inner, values in value.items()]
        else:
            found.append((key, ("matrix", key), value))
    return found


def _listed(entry: TomlTable, at: KeyPath, values: Any) -> bool:
    """Tell whether the values of a key are a list of different single values; report each mistake."""
    before = len(entry.problems)
    if not isinstance(values, list):
        entry.report(at, f"must be a list of values, not {shown(values)}", "put it in brackets: […]")
    elif not values:
        entry.report(at, "is an empty list, which gives no job", "name its values, or remove it")
    else:
        met = set()
        for index, value in enumerate(values):
            if not isinstance(value, bool | int | float | str):
                entry.report((*at, index), f"must be one value, not {shown(value)}")
            elif (isinstance(value, bool), value) in met:
                entry.report((*at, index), f"{shown(value)} is there twice", "remove one")
            else:
                met.add((isinstance(value, bool), value))
    return len(entry.problems) == before


def _table(value: Any) -> JsonObject:
    if isinstance(value, dict):
        return value
    raise WrongValueError(f"must be a table, not {shown(value)}", "write matrix = { seed = [0, 1, 2] }")
