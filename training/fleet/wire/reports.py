"""PURE: read a trainer's report strictly and within bounds.

A report comes from a trainer: its figures may be invalid, and its texts may contain anything. Each part is parsed
separately: an invalid part counts as absent, and the others stay. The code that shows a text makes it printable.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from training.fleet.wire.views import Figure, HostFigures, Line, ReportView, ResultView

T = TypeVar("T")

HOSTS_SHOWN = 40
LINES_SHOWN = 4  # of a ROC curve
POINTS_SHOWN = 200  # of each line
NAMES_SHOWN = 20  # in a list
TEXT_MAX, NAME_MAX = 4000, 200  # characters
UNREADABLE = "not readable"
LEVELS = ("good", "caution", "poor")


class _Metric(Struct):
    value: float | None = None
    ci95: tuple[float, float] | None = None
    reason: str | None = None


_UNREADABLE = _Metric(reason=UNREADABLE)


class _Promise(Struct):
    target_fpr: float | None = None


class _Line(Struct):
    label: str = ""
    points: list[tuple[float, float]] = []


class _Count(Struct):
    windows: int = 0
    episodes: int = 0


class _Split(Struct):
    recipe: str = ""
    seed: int | None = None
    fingerprint: str = ""
    unseen_hosts: list[str] | None = None
    seen_hosts: list[str] | None = None
    hosts: dict[str, dict[str, int]] = {}
    classes: dict[str, dict[str, int]] = {}
    n: dict[str, _Count] = {}


def read(body: bytes) -> ReportView:
    """Return the figures of a report that pages draw. If ``body`` is no report, the result has no figures, and its
    ``why`` has the reason."""
    try:
        said = msgspec.json.decode(body, type=dict[str, Raw])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return ReportView(result=ResultView(bytes=len(body), why=f"{UNREADABLE}: it is no report in JSON"))
    metrics = _parts(_parts(said.get("metrics")).get("test"))
    hosts = _parts(said.get("per_host"))
    split = _part(said.get("split"), _Split)
    test = split.n.get("test", _Count())
    of_split = _part(_parts(said.get("split")).get("notes"), list[str])  # as of hosts that were left out
    level = _part(said.get("verdict_level"), str)
    result = ResultView(
        bytes=len(body),
        auroc=_figure(metrics.get("auroc")),
        caught=_figure(metrics.get("tpr")),
        false_alarms=_figure(metrics.get("fpr")),
        promised=_share(_part(said.get("operating_point"), _Promise).target_fpr),
        alarms_a_day=_figure(metrics.get("alerts_per_host_day"), share=False),
        calls_a_day=_figure(_parts(said.get("incidents")).get("false_per_host_day"), share=False),
        verdict=(_part(said.get("verdict"), str) or "\n".join(_part(said.get("verdict"), list[str])))[:TEXT_MAX],
        more=_part(said.get("verdict_more"), str)[:TEXT_MAX],
        level=level if level in LEVELS else "",
        because=_part(said.get("verdict_why"), str)[:NAME_MAX],
        windows=_count(test.windows),
        episodes=_count(test.episodes),
        hosts=_names(hosts),
        hosts_in_all=len(hosts),
        never_tested=_never_tested(split, hosts),
        test=_test(split, _part(_parts(said.get("run_key")).get("data"), str)),
    )
    if result.auroc.value is None and not result.verdict and not metrics:
        return ReportView(result=ResultView(bytes=len(body), why=f"{UNREADABLE}: it has neither figures nor a verdict"))
    return ReportView(
        result=result,
        roc=_roc(_parts(said.get("curves")).get("roc")),
        per_host=[_host(name, hosts[name]) for name in sorted(hosts)[:HOSTS_SHOWN]],
        baselines={
            name[:NAME_MAX]: _figure(_parts(each).get("auroc"))
            for name, each in sorted(_parts(said.get("baselines")).items())[:NAMES_SHOWN]
        },
        notes=[each[:TEXT_MAX] for each in [*of_split, *_part(said.get("notes"), list[str])][:NAMES_SHOWN]],
    )


def _part(raw: Raw | None, kind: type[T], otherwise: T | None = None) -> T:
    """Decode one part of a report as ``kind``. For an absent or invalid part return ``otherwise``, by default an empty
    ``kind``."""
    found: T | None = None
    with suppress(msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        found = msgspec.json.decode(b"null" if raw is None else raw, type=kind | None)
    return found if found is not None else otherwise or kind()


def _parts(raw: Raw | None) -> dict[str, Raw]:
    return _part(raw, dict[str, Raw])


def _figure(raw: Raw | None, *, share: bool = True) -> Figure:
    """Read a metric's value and 95 % interval; without one of them the figure's ``why`` has the reason. With ``share``,
    value and interval must lie between 0 and 1, else between 0 and 1e15."""
    if raw is None:
        return Figure(why="not given")
    said = _part(raw, _Metric, _UNREADABLE)
    if said.value is None:
        return Figure(why=(said.reason or "not given")[:NAME_MAX])
    bounds = (0.0, 1.0) if share else (0.0, 1e15)
    if not _within(said.value, bounds):
        return Figure(why=f"{UNREADABLE}: {said.value:.6g} cannot be")
    low, high = said.ci95 or (None, None)
    if low is None or high is None or not (_within(low, bounds) and _within(high, bounds) and low <= high):
        return Figure(value=said.value, why=(said.reason or "no interval is given")[:NAME_MAX])
    return Figure(value=said.value, low=low, high=high)


def _count(value: int) -> int:
    return value if 0 <= value < 2**53 else 0


def _within(value: float, bounds: tuple[float, float]) -> bool:
    return math.isfinite(value) and bounds[0] <= value <= bounds[1]


def _share(value: float | None) -> float | None:
    return value if value is not None and _within(value, (0.0, 1.0)) else None


def _host(name: str, raw: Raw) -> HostFigures:
    said = _parts(raw)
    return HostFigures(
        host=name[:NAME_MAX],
        windows=_count(_part(said.get("windows"), int)),
        auroc=_figure(said.get("auroc")),
        caught=_figure(said.get("tpr")),
        false_alarms=_figure(said.get("fpr")),
    )


def _roc(raw: Raw | None) -> list[Line]:
    lines = _part(raw, list[_Line])[:LINES_SHOWN]
    return [Line(label=line.label[:NAME_MAX], points=_thinned(line.points)) for line in lines if line.points]


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most ``POINTS_SHOWN`` of a line's points, evenly chosen, the last one among them. Points outside of the
    unit square are left out."""
    good = [point for point in points if all(_within(each, (0.0, 1.0)) for each in point)]
    if len(good) <= POINTS_SHOWN:
        return good
    step = len(good) / (POINTS_SHOWN - 1)
    return [good[int(n * step)] for n in range(POINTS_SHOWN - 1)] + [good[-1]]


def _names(found: Mapping[str, Any]) -> list[str]:
    return [name[:NAME_MAX] for name in sorted(found)[:NAMES_SHOWN]]


def _never_tested(split: _Split, hosts: Mapping[str, Raw]) -> list[str]:
    """List in words what the test lacks: machines unseen in training, further recordings of the training's machines,
    classes, and a second class of a machine that has only one."""
    missing = []
    if split.unseen_hosts is not None and not split.unseen_hosts:
        missing.append("a machine that it has not seen")
    if split.unseen_hosts and not split.seen_hosts:
        trained = _names(split.hosts.get("train", {}))
        whose = "machine" if len(trained) == 1 else "machines"
        said = f"further recordings of the {whose} that it was trained on ({', '.join(trained)})"
        missing.append(said if trained else "")
    tested = split.classes.get("test", {})
    known = sorted({name for side in split.classes.values() for name in side})
    missing += [f"windows of {name[:NAME_MAX]}" for name in known if split.classes and tested.get(name, 0) <= 0]
    for name in sorted(hosts)[:HOSTS_SHOWN]:
        only = _part(_parts(hosts[name]).get("one_class"), str)
        if only:
            missing.append(f"anything but {only[:NAME_MAX]} on {name[:NAME_MAX]}")
    return [each for each in missing if each][:NAMES_SHOWN]


def _test(split: _Split, data: str) -> str:
    """Return a key that is equal for models judged on the same windows; empty if the windows are not known.

    The key covers data, test hosts and classes and, unless the split is by host or behaviour, its recipe and
    fingerprint.
    """
    here = split.hosts.get("test")
    if not here or not data:
        return ""
    by_host = split.recipe in ("host", "behaviour")  # which test alike
    recipe, division = ("host", "") if by_host else (split.recipe, split.fingerprint)
    said = (data, recipe, division, sorted(here.items()), sorted(split.classes.get("test", {}).items()))
    return hashlib.sha256(repr(said).encode()).hexdigest()[:16]
