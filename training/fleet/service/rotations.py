"""Views of rotations, groups of jobs of which each leaves out another host for its test: figures, unfinished jobs, and
models to deploy. Read-only."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from training.clock import Clock
from training.fleet.database.writer import Database, Row
from training.fleet.scheduling.job import JobStatus
from training.fleet.wire.plans import PlannedRotation
from training.fleet.wire.views import (
    DeployView,
    Figure,
    FoldedView,
    NamedJob,
    ResultView,
    RotatedHost,
    RotationGap,
    RotationView,
)
from training.rotation import Turn, fold, trains_on_all, turn_of
from training.strict_json import Json

JOBS_MAX = 20_000  # that are looked at
ROTATIONS_MAX = 50
ALIKE_MAX = 1_000  # jobs of a model and mode among which those to deploy are looked for
DEPLOY_MAX = 3
_TURNS = ("host=", "seed=")  # in a job's name: what a rotation folds
SHARE = 100.0  # a look takes at most one part in so many of the time


class Member(NamedTuple):
    """One job of a rotation. ``result`` is None unless the job is completed and its report is stored; ``made_by`` has
    the digests of its data and code."""

    job_id: str
    name: str
    turn: Turn
    spec: Json
    status: str
    in_manifest: bool
    result: ResultView | None
    made_by: tuple[str | None, str | None] = (None, None)


class Rotations:
    """Queries about rotations, on the last committed state."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._db, self._clock = database, clock
        self._known: list[RotationView] = []
        self._as_of, self._seen_at, self._took_s = -1, 0.0, 0.0

    def all(self) -> list[RotationView]:
        """Return the rotations with their figures, computed again after a new event, but less often if the computation
        takes long."""
        head, now = self._db.number("newest_event"), self._clock.monotonic()
        if self._as_of != head and (self._as_of < 0 or now - self._seen_at >= SHARE * self._took_s):
            self._known = self._read()
            self._as_of, self._seen_at = head, self._clock.monotonic()
            self._took_s = self._seen_at - now
        return self._known

    def _read(self) -> list[RotationView]:
        members = [each for row in self._db.all("rotating_jobs", most=JOBS_MAX) if (each := _member(row)) is not None]
        found = folded(members)[:ROTATIONS_MAX]
        return [self._with_models(view, members) for view in found]

    def _with_models(self, view: RotationView, members: Sequence[Member]) -> RotationView:
        """Return the view with a few jobs that train the same model and mode on all of the rotation's hosts; one of
        these can be deployed."""
        like = next(each.spec for each in members if each.job_id == view.by_host[0].jobs[0].job_id)
        rows = self._db.all("jobs_like", model=view.model, mode=view.mode, most=ALIKE_MAX)
        fits = [row for row in rows if trains_on_all(json.loads(row["spec"]), like, view.hosts)]
        fits.sort(key=lambda row: (not row["in_manifest"], row["status"] != JobStatus.COMPLETED, row["name"]))
        return structs.replace(view, deploy=list(map(DeployView.of, fits[:DEPLOY_MAX])))


def result_of(figures: str) -> ResultView:
    """Convert the stored figures of a report to a view; figures in another form give a view that says so."""
    try:
        return msgspec.json.decode(figures, type=ResultView)
    except (msgspec.MsgspecError, RecursionError):
        return ResultView(why="another release kept its figures; the report itself is in the store")


def _member(row: Row) -> Member | None:
    spec = json.loads(row["spec"])
    turn = turn_of(spec)
    if turn is None:
        return None
    done = row["status"] == JobStatus.COMPLETED and row["figures"] is not None
    return Member(
        row["job_id"],
        row["name"],
        turn,
        spec,
        row["status"],
        bool(row["in_manifest"]),
        result_of(row["figures"]) if done else None,
        (row["data_digest"], row["code_digest"]) if done else (None, None),
    )


def folded(members: Iterable[Member]) -> list[RotationView]:
    """Group jobs into rotations, except groups that test only one host. Rotations of the plan come first, then complete
    ones, then those with a higher mean AUROC.

    Jobs that left the plan count only if the plan names no job of their rotation.
    """
    groups: dict[str, list[Member]] = {}
    for each in members:
        groups.setdefault(each.turn.key, []).append(each)
    found = []
    for group in groups.values():
        planned = [each for each in group if each.in_manifest] or group
        if len({each.turn.host for each in planned}) > 1:
            found.append(_view(planned))
    found.sort(key=lambda view: (not view.in_manifest, view.done < view.jobs, -(view.auroc.mean or -1.0), view.name))
    return with_gaps(found)


def _view(group: Sequence[Member]) -> RotationView:
    first = group[0]
    counted, notes = _alike(group)
    of_host = {host: [each for each in group if each.turn.host == host] for host in first.turn.hosts}
    used = {host: [each for each in counted if each.turn.host == host] for host in first.turn.hosts}
    without = [host for host, jobs in of_host.items() if not jobs]
    if without:
        notes.append(f"no job tests {', '.join(without)}")
    kept = [each.result for each in counted if each.result is not None]
    promised = {result.promised for result in kept}
    return RotationView(
        name=name_of([each.name for each in group]),
        model=str(first.spec.get("model")),
        mode=str(first.spec.get("mode")),
        hosts=list(first.turn.hosts),
        seeds=sorted({each.turn.seed for each in group}),
        jobs=len(group),
        done=len(counted),
        states=dict(Counter(each.status for each in group)),
        in_manifest=first.in_manifest,
        auroc=_folded(used, "auroc"),
        caught=_folded(used, "caught"),
        false_alarms=_folded(used, "false_alarms", low_is_worst=False),
        promised=promised.pop() if len(promised) == 1 else None,
        by_host=[
            RotatedHost(
                host=host,
                **{name: _mean(used[host], name) for name in ("auroc", "caught", "false_alarms")},
                test=_test(used[host]),
                jobs=[NamedJob(job_id=each.job_id, name=each.name) for each in jobs],
            )
            for host, jobs in of_host.items()
            if jobs
        ],
        notes=notes,
    )


def _alike(group: Sequence[Member]) -> tuple[list[Member], list[str]]:
    """Return the completed jobs that count (tested on their own host, with the most frequent data and code), and
    sentences about completed jobs that do not count."""
    notes, done = [], [each for each in group if each.result is not None]
    honest = [each for each in done if each.result and each.result.hosts in ([], [each.turn.host])]
    if len(honest) < len(done):
        odd = next(each for each in done if each not in honest)
        notes.append(f"{odd.name} says that it was tested on other hosts, and is not counted: fix its trainer")
    made = Counter(each.made_by for each in honest)
    if len(made) > 1:
        chosen = max(made, key=lambda one: (made[one], [each.made_by for each in honest].index(one)))
        rest = [each for each in honest if each.made_by != chosen]
        what = "on other data" if any(each.made_by[0] != chosen[0] for each in rest) else "by other code"
        notes.append(f"{rest[0].name} and {len(rest) - 1} more were trained {what}, and are not counted: requeue them")
        honest = [each for each in honest if each.made_by == chosen]
    return honest, notes


def _test(jobs: Iterable[Member]) -> str:
    """Return the test on which all these jobs were judged; empty if it is unknown, or they differ."""
    tests = {each.result.test for each in jobs if each.result is not None}
    return tests.pop() if len(tests) == 1 else ""


def _values(jobs: Iterable[Member], name: str) -> list[float]:
    figures: list[Figure] = [getattr(each.result, name) for each in jobs if each.result is not None]
    return [figure.value for figure in figures if figure.value is not None]


def _mean(jobs: Iterable[Member], name: str) -> float | None:
    values = _values(jobs, name)
    return sum(values) / len(values) if values else None


def _folded(used: Mapping[str, Sequence[Member]], name: str, *, low_is_worst: bool = True) -> FoldedView:
    values = {host: _values(jobs, name) for host, jobs in used.items()}
    found = fold(values, low_is_worst=low_is_worst)
    if found is None:
        return FoldedView()
    return FoldedView.of(found, hosts=sum(map(bool, values.values())))


def planned(jobs: Iterable[Json]) -> list[PlannedRotation]:
    """Return the rotations among the job dicts of a plan, in the order of the plan; groups that test only one host are
    left out."""
    groups: dict[str, list[tuple[str, Turn]]] = {}
    for spec in jobs:
        turn = turn_of(spec)
        if turn is not None:
            groups.setdefault(turn.key, []).append((str(spec["name"]), turn))
    found = []
    for group in groups.values():
        tested = sorted({turn.host for _, turn in group})
        if len(tested) > 1:
            seeds = sorted({turn.seed for _, turn in group})
            names, hosts = [name for name, _ in group], list(group[0][1].hosts)
            found.append(PlannedRotation(name=name_of(names), jobs=len(group), hosts=hosts, tested=tested, seeds=seeds))
    return found


def with_gaps(found: Sequence[RotationView]) -> list[RotationView]:
    """Return the rotations; complete ones of the plan get their gap to the first complete one with the same seeds and,
    host by host, the same tests."""
    firsts: dict[Any, RotationView] = {}
    made = []
    for view in found:
        tests = tuple((each.host, each.test) for each in view.by_host)
        whole = view.in_manifest and view.done == view.jobs and all(test for _, test in tests)
        first = firsts.setdefault((tests, tuple(view.seeds)), view) if whole else view
        made.append(view if first is view else structs.replace(view, gap=_gap(view, first)))
    return made


def _gap(view: RotationView, first: RotationView) -> RotationGap | None:
    pairs = [
        (mine.auroc - theirs.auroc)
        for mine, theirs in zip(view.by_host, first.by_host, strict=True)
        if mine.auroc is not None and theirs.auroc is not None
    ]
    apart = fold({str(n): [each] for n, each in enumerate(pairs)})
    if apart is None:
        return None
    return RotationGap(
        to=first.name, mean=apart.mean, spread=apart.spread, ahead=sum(each > 0 for each in pairs), hosts=len(pairs)
    )


def name_of(names: Sequence[str]) -> str:
    """Return a rotation's name: that of its entry in the plan, with the values of the entry's matrix that all its jobs
    share; or for jobs written by hand, the first job's name with "and others"."""
    stems = {name.partition("[")[0] for name in names}
    if len(stems) > 1 or not all(name.endswith("]") for name in names):
        return f"{names[0]} and others"
    first, *others = (name.partition("[")[2].removesuffix("]").split(",") for name in names)
    shared = [part for part in first if all(part in each for each in others) and not part.startswith(_TURNS)]
    return stems.pop() + (f"[{','.join(shared)}]" if shared else "")
