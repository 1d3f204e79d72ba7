"""Decide what the plan's [retention] deletes, and why: facts about stored things in, removals out. Pure.

No bundle, log or curve of a job is deleted while the job is held, or before it has ended.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from training.frozen import frozen
from training.printable import counted

_DAY_S = 86_400.0


class RemovalKind(StrEnum):
    """The kinds of things that can be deleted."""

    BUNDLE = "bundle"
    LOG = "log"
    CURVE = "curve"
    EVENTS = "events"
    DATASET = "dataset"


@frozen
class Rules:
    """The plan's [retention]. None: the plan sets no limit; ages are in days."""

    best: int | None = None  # models of each model and mode, by their validation figure
    keep_models_days: float = 7.0  # no model is removed sooner
    keep_superseded_days: float | None = None
    keep_logs_days: float | None = None
    keep_curves_days: float | None = None
    keep_events_days: float | None = None
    keep_datasets_days: float | None = None
    keep_states_days: float | None = None  # saved states of trainers, which workers keep and let go

    @property
    def keeps_all(self) -> bool:
        """Return True if by these rules the receiver deletes nothing; saved states do not count."""
        return self == Rules(keep_models_days=self.keep_models_days, keep_states_days=self.keep_states_days)

    @property
    def states_s(self) -> float | None:
        """Return for how many seconds workers keep saved states; None: their own limits decide."""
        return None if self.keep_states_days is None else self.keep_states_days * _DAY_S


@frozen
class BundleShare:
    """One job's delivery of a bundle, and whether the bundle completes that job."""

    job_id: str
    attempt: int
    name: str  # of the job
    ended: bool  # it is completed, failed or cancelled
    held: bool
    current: bool  # the job is completed by this bundle
    since: float  # when that began or, of a bundle that completes no job, when it was delivered or the job ended
    figure: float | None = None  # the best validation figure that its trainer reported; None: none
    host: str = ""  # that trained it


@frozen
class RetainedBundle:
    """A bundle in the store, with all jobs that delivered it."""

    subject: str  # model, mode and digest, as the store's folders have them
    model: str
    mode: str
    size: int
    deliveries: tuple[BundleShare, ...]

    @property
    def current(self) -> tuple[BundleShare, ...]:
        return tuple(each for each in self.deliveries if each.current)

    @property
    def figure(self) -> float | None:
        """The best figure of the jobs that the bundle completes; None if there are none, or if one of them has no
        figure."""
        figures = [each.figure for each in self.current if each.figure is not None]
        return max(figures) if figures and len(figures) == len(self.current) else None

    @property
    def untouchable(self) -> bool:
        return any(each.held or not each.ended for each in self.deliveries)

    @property
    def since(self) -> float:
        return max(each.since for each in self.deliveries)

    @property
    def names(self) -> str:
        return ", ".join(sorted({each.name for each in self.deliveries}))


@frozen
class Output:
    """The log or the curve of an attempt that has ended."""

    kind: RemovalKind
    job_id: str
    attempt: int
    name: str
    ended_at: float
    size: int
    ended: bool  # so has its job
    held: bool


@frozen
class RetainedDataset:
    """A data set on the receiver, and when it was pushed or a job last needed it."""

    dataset_id: str
    names: tuple[str, ...]
    size: int
    needed: bool  # a job of the plan, or one that has not ended, names it
    used_at: float  # when it was pushed, or the last job that names it ended


@frozen
class Removal:
    """A bundle, log, curve, data set or range of events to be deleted, and why."""

    kind: RemovalKind
    subject: str  # of a bundle its place, of a log or curve the job's id, of a data set its id
    number: int  # of the attempt; of events, the last that goes; else 0
    size: int  # bytes; of logs and curves their text or rows, about
    why: str
    name: str  # for people


def groups_above(bundles: Iterable[RetainedBundle], best: int | None) -> set[tuple[str, str]]:
    """Return each pair of model and mode with more stored models than the plan keeps (``best``); no pair if ``best`` is
    None."""
    found = Counter((each.model, each.mode) for each in bundles if each.current)
    return set() if best is None else {group for group, n in found.items() if n > best}


def without_figure(bundles: Sequence[RetainedBundle], rules: Rules) -> dict[tuple[str, str], int]:
    """Count, for each model and mode with more models than the plan keeps, the models that are kept because they lack a
    validation figure."""
    silent = Counter((each.model, each.mode) for each in bundles if each.current and each.figure is None)
    return {group: silent[group] for group in groups_above(bundles, rules.best) & silent.keys()}


def bundles_to_remove(bundles: Sequence[RetainedBundle], rules: Rules, now: float) -> list[Removal]:
    """Return the removals of models beyond the best ones of their model and mode, and of bundles that for
    ``keep_superseded_days`` have been no job's result.

    For each model and mode, the best model of each host, by the figures that this host reported, stays. Of models
    beyond the best, those younger than ``keep_models_days`` stay. A bundle of a job that is held or has not ended
    stays. A model without a validation figure is not ranked: it does not count towards the number to keep, and stays
    while it completes a job. Of models with equal figures the first completed one ranks first, then the one with the
    lesser digest. A bundle that completes several jobs is one model.
    """
    return sorted(
        (*_beyond_the_best(bundles, rules, now), *_superseded(bundles, rules, now)), key=lambda each: each.subject
    )


def _beyond_the_best(bundles: Iterable[RetainedBundle], rules: Rules, now: float) -> Iterator[Removal]:
    if rules.best is None:
        return
    groups: dict[tuple[str, str], list[tuple[float, RetainedBundle]]] = defaultdict(list)
    for each in bundles:
        if each.current and (figure := each.figure) is not None:
            groups[each.model, each.mode].append((figure, each))
    for (model, mode), found in sorted(groups.items()):
        ranked = sorted(found, key=lambda pair: (-pair[0], _completed_at(pair[1]), pair[1].subject))
        last = ranked[: rules.best][-1][0]
        best_of_hosts = _best_of_hosts([each for _, each in ranked])
        for figure, each in ranked[rules.best :]:
            young = now - each.since < rules.keep_models_days * _DAY_S
            if each.untouchable or young or each.subject in best_of_hosts:
                continue
            of = "the best" if rules.best == 1 else f"the best {rules.best}"
            why = f"it is not among {of} of {model} {mode}: its validation figure is {figure:.6g}, the last kept one's "
            earlier = ", reached earlier" if figure == last else ""
            yield _bundle(each, f"{why}{last:.6g}{earlier}")


def _best_of_hosts(ranked: Sequence[RetainedBundle]) -> set[str]:
    """Return the subject of each host's best bundle, by its own figures; of equal ones the one that ranks first."""
    said = [(share.figure or 0.0, share.host, each.subject) for each in reversed(ranked) for share in each.current]
    return set({host: subject for _, host, subject in sorted(said, key=lambda one: one[0])}.values())


def _completed_at(bundle: RetainedBundle) -> float:
    return min(each.since for each in bundle.current)


def _superseded(bundles: Iterable[RetainedBundle], rules: Rules, now: float) -> Iterator[Removal]:
    if rules.keep_superseded_days is None:
        return
    for each in bundles:
        if not each.current and not each.untouchable and now - each.since >= rules.keep_superseded_days * _DAY_S:
            yield _bundle(each, f"no job has been completed by it for {_days(rules.keep_superseded_days)}")


def _bundle(bundle: RetainedBundle, why: str) -> Removal:
    return Removal(RemovalKind.BUNDLE, bundle.subject, 0, bundle.size, why, bundle.names)


def outputs_to_remove(outputs: Iterable[Output], rules: Rules, now: float) -> list[Removal]:
    """Return the removals of logs and curves that are older than the plan keeps them, except those of jobs that are
    held or have not ended."""
    ages = {RemovalKind.LOG: rules.keep_logs_days, RemovalKind.CURVE: rules.keep_curves_days}
    words = {RemovalKind.LOG: "logs", RemovalKind.CURVE: "curves"}
    found = []
    for each in outputs:
        days = ages[each.kind]
        if days is None or each.held or not each.ended or now - each.ended_at < days * _DAY_S:
            continue
        why = f"{words[each.kind]} are kept for {_days(days)}"
        found.append(Removal(each.kind, each.job_id, each.attempt, each.size, why, each.name))
    return sorted(found, key=lambda each: (each.kind, each.subject, each.number))


def datasets_to_remove(datasets: Iterable[RetainedDataset], rules: Rules, now: float) -> list[Removal]:
    """Return the removals of data sets that for ``keep_datasets_days`` were neither pushed nor needed by a job."""
    days = rules.keep_datasets_days
    if days is None:
        return []
    found, why = [], f"no job has named it for {_days(days)}"
    for each in sorted(datasets, key=lambda each: each.dataset_id):
        if not each.needed and now - each.used_at >= days * _DAY_S:
            name = ", ".join(each.names) or each.dataset_id[:12]
            found.append(Removal(RemovalKind.DATASET, each.dataset_id, 0, each.size, why, name))
    return found


def events_before(rules: Rules, now: float) -> float | None:
    """Return the time before which events may be deleted; None if all events are kept."""
    return None if rules.keep_events_days is None else now - rules.keep_events_days * _DAY_S


def events_removal(last: int, count: int, rules: Rules) -> Removal:
    """Return the removal of the ``count`` oldest events, up to the event with the number ``last``."""
    why = f"events are kept for {_days(rules.keep_events_days or 0.0)}"
    return Removal(RemovalKind.EVENTS, "", last, 0, why, counted(count, "events"))


def _days(days: float) -> str:
    return "1 day" if days == 1 else f"{days:g} days"
