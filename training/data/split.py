"""Divide recordings into sides: training, early stopping, calibration and test; a check refuses a recording on two
sides.

A whole recording is the unit of a split, and this module calls it an episode. Overlapping windows of one recording are
near-copies of each other. A split that shares a recording between two sides would measure memory instead of detection.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from training import strict_json
from training.contract import Recipe
from training.data.doubts.spelling import alike_hosts
from training.data.rows import Rows
from training.data.values import Bools, Floats, Ints, JsonDict, Names

VAL_FRACTION = 0.15  # of the training side's episodes, for early stopping
CAL_FRACTION = 0.25  # for the threshold: 19 benign episodes are wanted at 5 %, and most data sets are small
TEST_FRACTION = 0.30  # of all episodes, under `time` and `sample`
MIN_TRAIN_SIDE_EPISODES = 3  # one each to train, to stop early and to calibrate

_NOT_YOURS = "this is a mistake of the program, not of the data: please report it"


class SplitError(ValueError):
    """The wanted split cannot be made, for example because a side would be empty; the message gives the reason in one
    sentence."""


class LeakError(SplitError):
    """A finished split has an episode on two sides, a training host in the test, or a left-out host on a side: a
    mistake of this program; training does not begin."""


class Side(StrEnum):
    """The use of a window: to train, to stop early (val), to calibrate (cal) or to test; reports list the sides in this
    order."""

    TRAIN = "train"
    VAL = "val"
    CAL = "cal"
    TEST = "test"


class SideCount(NamedTuple):
    """The number of windows and the number of episodes (recordings) on one side of a split."""

    windows: int
    episodes: int


@dataclass(frozen=True)
class Split:
    """The row numbers of the windows on each side, ascending; a window is on one side, or on none if it was purged or
    its host is left out."""

    recipe: Recipe
    train_hosts: tuple[str, ...]  # sorted; empty unless the recipe goes by host
    seed: int
    train: Ints
    val: Ints
    cal: Ints
    test: Ints
    n: Mapping[str, SideCount]  # by side
    fingerprint: str  # SHA-256 over recipe and the episodes of each side
    notes: tuple[str, ...] = ()  # what a reader of the numbers must know, one sentence each
    test_hosts: tuple[str, ...] = ()  # sorted; empty: every host that does not train is tested
    split_seed: int | None = None  # by which it was drawn; None: by the seed
    left_out: tuple[str, ...] = ()  # hosts that neither train nor test, sorted

    @property
    def learnt(self) -> Ints:
        """The row numbers of the train and the val side, from which a model learns its weights and how long to
        train."""
        return np.concatenate((self.train, self.val))

    def side(self, side: Side) -> Ints:
        """Return the row numbers of one side."""
        rows: Ints = getattr(self, side.value)
        return rows

    def to_dict(self) -> JsonDict:
        """Return the split in JSON values, without row numbers, as reports and checkpoints show it."""
        return {
            "recipe": self.recipe.value,
            "train_hosts": list(self.train_hosts),
            **({"test_hosts": list(self.test_hosts), "left_out": list(self.left_out)} if self.test_hosts else {}),
            "seed": self.seed,
            **({} if self.split_seed is None else {"split_seed": self.split_seed}),
            "fingerprint": self.fingerprint,
            "n": {side: {"windows": count.windows, "episodes": count.episodes} for side, count in self.n.items()},
            "notes": list(self.notes),
        }


class _Episodes(NamedTuple):
    """A row for each of E episodes (recordings), in the order of the sorted ids."""

    ids: Names
    of_window: Ints  # (N,) row of the window's episode
    host: Names
    start: Floats  # earliest window's start, seconds
    has_class: Bools  # (E, K): some window of the episode carries the class


def make_split(
    rows: Rows,
    *,
    recipe: str,
    train_hosts: Sequence[str] = (),
    test_hosts: Sequence[str] = (),
    seed: int = 0,
    split_seed: int | None = None,
    supervised: bool = True,
    calibrated: bool = True,
) -> Split:
    """Divide windows into train, val, cal and test; no recording is on two sides.

    The labels of ``rows`` are class numbers; the recipe `time` needs times on a clock that all recordings share.
    ``train_hosts`` and ``test_hosts`` are names of hosts, and refused where they have no effect; with ``test_hosts``,
    hosts in neither list are on no side. Without ``split_seed``, ``seed`` draws the split. ``supervised=False`` admits
    a training side with a single class. ``calibrated=False`` makes no calibration side. Raises SplitError if the data
    do not allow such a split or the arguments contradict each other.
    """
    try:
        chosen = Recipe(recipe)
    except ValueError:
        raise SplitError(f"unknown split recipe {recipe!r}: choose one of {', '.join(Recipe)}") from None
    names, tested = tuple(sorted(set(train_hosts))), tuple(sorted(set(test_hosts)))
    episodes = _gather(rows)
    rng = np.random.default_rng(seed if split_seed is None else split_seed)

    in_test = _choose_test(episodes, chosen, names, tested, rng)
    out = ~np.isin(episodes.host, (*names, *tested)) if tested else np.zeros_like(in_test)
    side_of_episode = _carve(episodes, in_test, out, CAL_FRACTION if calibrated else 0.0, rng)
    keep, notes = np.ones(len(rows), bool), []
    if chosen is Recipe.TIME:
        keep = _without_overlap(episodes, in_test, rows)
        if not keep.all():
            notes.append(f"{int((~keep).sum())} training windows that overlap the test in time were purged")
    left_out = tuple(sorted(set(episodes.host[out].tolist())))
    if left_out:
        notes.append(
            f"The test is on {', '.join(tested)} alone: {int(out[episodes.of_window].sum()):,} windows of "
            f"{', '.join(left_out)} are left out, and neither train nor test."
        )
    if chosen.by_host:
        notes += [
            f"The train host {ours!r} and the test host {other!r} look like one machine: if they are, the test is of "
            "a machine that trained."
            for pair in alike_hosts(episodes.host[~out].tolist())
            for ours, other in (pair, pair[::-1])
            if ours in names and other not in names
        ]
    side_of_window = np.where(keep, side_of_episode[episodes.of_window], -1)
    sides = {side.value: np.flatnonzero(side_of_window == number) for number, side in enumerate(Side)}
    ids = {side: episodes.ids[np.unique(episodes.of_window[of])].tolist() for side, of in sides.items()}
    identity = {
        "recipe": chosen.value,
        "train_hosts": list(names),
        "episodes": ids,
        "windows": {side: of.size for side, of in sides.items()},
    }
    split = Split(
        recipe=chosen,
        train_hosts=names,
        seed=seed,
        **sides,
        n=MappingProxyType({side: SideCount(of.size, len(ids[side])) for side, of in sides.items()}),
        fingerprint=hashlib.sha256(strict_json.canonical(identity).encode()).hexdigest(),
        notes=tuple(notes),
        test_hosts=tested,
        split_seed=split_seed,
        left_out=left_out,
    )
    _check_sides(split, rows.label, supervised=supervised, calibrated=calibrated)
    _refuse_leaks(split, episodes)
    return split


def _gather(rows: Rows) -> _Episodes:
    y, hosts = rows.label, rows.host
    if y.size == 0:
        raise SplitError("there are no windows to split: build the data set first")
    if y.min() < 0:
        raise SplitError("class numbers must not be negative")
    ids, first, of_window = np.unique(rows.recording, return_index=True, return_inverse=True)
    if (hosts[first][of_window] != hosts).any():
        row = int(np.flatnonzero(hosts[first][of_window] != hosts)[0])
        raise SplitError(f"episode '{ids[of_window[row]]}' has windows of more than one host")
    start = np.full(ids.size, np.inf)
    np.minimum.at(start, of_window, np.where(np.isnan(rows.t_start), -np.inf, rows.t_start))
    has_class = np.zeros((ids.size, int(y.max()) + 1), bool)
    has_class[of_window, y] = True
    return _Episodes(ids, of_window.astype(int), hosts[first], start, has_class)


# -- the test side -----------------------------------------------------------------------------------------------------


def _choose_test(
    episodes: _Episodes,
    recipe: Recipe,
    train_hosts: tuple[str, ...],
    test_hosts: tuple[str, ...],
    rng: np.random.Generator,
) -> Bools:
    if recipe.by_host:
        return _test_by_host(episodes, recipe, train_hosts, test_hosts)
    if train_hosts or test_hosts:
        idle = "train_hosts" if train_hosts else "test_hosts"
        raise SplitError(
            f"{idle} has no effect under the split recipe {recipe.value!r}: remove it, or use the recipe 'host'"
        )
    if recipe is Recipe.TIME:
        return _test_by_time(episodes)
    parts = stratify(episodes.has_class, episodes.host, (1 - TEST_FRACTION, TEST_FRACTION), rng)
    return np.asarray(parts == 1, bool)


def _test_by_host(
    episodes: _Episodes, recipe: Recipe, train_hosts: tuple[str, ...], test_hosts: tuple[str, ...]
) -> Bools:
    known = sorted(set(episodes.host.tolist()))
    there = f"the data holds episodes of {', '.join(known)}"
    if not train_hosts:
        raise SplitError(f"the split recipe {recipe.value!r} needs train_hosts: {there}")
    for key, names in (("train_hosts", train_hosts), ("test_hosts", test_hosts)):
        unknown = [name for name in names if name not in known]
        if unknown:
            raise SplitError(f"{key} names {', '.join(unknown)}, which recorded nothing: {there}")
    both = sorted(set(train_hosts) & set(test_hosts))
    if both:
        raise SplitError(
            f"train_hosts and test_hosts both name {', '.join(both)}: a host trains or is tested, not both"
        )
    if test_hosts:
        return np.asarray(np.isin(episodes.host, test_hosts), bool)
    in_test = ~np.isin(episodes.host, train_hosts)
    if not in_test.any():
        raise SplitError(f"train_hosts names every host, so that none is left to test on: {there}")
    return in_test


def _test_by_time(episodes: _Episodes) -> Bools:
    if not np.isfinite(episodes.start).all():
        raise SplitError("the split recipe 'time' needs a start time for every window")
    if episodes.ids.size > 1 and np.ptp(episodes.start) == 0:
        raise SplitError(
            "the split recipe 'time' needs times on one common clock, and all episodes start at "
            "the same one: use the recipe 'sample' or 'host'"
        )
    order = np.lexsort((episodes.ids, episodes.start))
    in_test = np.zeros(episodes.ids.size, bool)
    in_test[order[-max(1, round(TEST_FRACTION * order.size)) :]] = True
    # Episodes that start at the same moment belong together: their names decide nothing.
    in_test |= episodes.start >= episodes.start[in_test].min()
    return in_test


def _without_overlap(episodes: _Episodes, in_test: Bools, rows: Rows) -> Bools:
    """Return a mask of the windows to keep. Left out are windows outside of the test that end after the first test
    window of their host begins."""
    keep = np.ones(len(rows), bool)
    window_in_test = in_test[episodes.of_window]
    window_host = episodes.host[episodes.of_window]
    for name in np.unique(episodes.host[in_test]):
        here = window_host == name
        first_test = rows.t_start[here & window_in_test].min()
        keep &= ~(here & ~window_in_test & (rows.t_end > first_test))
    return keep


# -- the training side -------------------------------------------------------------------------------------------------


def _carve(episodes: _Episodes, in_test: Bools, out: Bools, cal_fraction: float, rng: np.random.Generator) -> Ints:
    """Return the side of every episode, as its position in `Side`; -1 for the episodes that ``out`` marks."""
    rest = np.flatnonzero(~in_test & ~out)
    needed = MIN_TRAIN_SIDE_EPISODES - (not cal_fraction)
    if rest.size < needed:
        raise SplitError(
            f"the training side needs at least {needed} episodes, different ones to train, to stop early and (if any) "
            f"to calibrate, and has {rest.size}: record more, or cut long recordings into more episodes "
            "(--episode-s of training.data.ingest)"
        )
    shares = (1 - VAL_FRACTION - cal_fraction, VAL_FRACTION, cal_fraction)
    side = np.where(out, -1, list(Side).index(Side.TEST)).astype(int)
    side[rest] = stratify(episodes.has_class[rest], episodes.host[rest], shares, rng)
    return side


def stratify(has_class: Bools, host: Names, shares: tuple[float, ...], rng: np.random.Generator) -> Ints:
    """Return the part number of each of E episodes; part i gets about ``shares[i]`` of them. ``has_class`` (E, K) marks
    the classes of each episode.

    Episodes are ordered by their rarest class, then host, then at random; each goes to the part that is furthest below
    its share. The order divides every class and host in about the same shares as the whole. Afterwards the part with
    the largest share gets every class, unless another part would then have no episode. A smaller part that lacks a
    class gets an episode of this class from the largest part, if the largest keeps all its classes.
    """
    rarest = np.where(has_class, has_class.sum(axis=0).astype(float), np.inf).argmin(axis=1)
    _, of_host = np.unique(host, return_inverse=True)
    line = np.lexsort((rng.permutation(host.size), of_host, rarest))
    part = np.zeros(host.size, int)
    goal = np.asarray(shares)
    owed = goal * rng.random()  # a random phase, so that no part always comes first
    for row in line:
        owed += goal
        part[row] = int(np.argmax(owed))
        owed[part[row]] -= 1.0
    _fill_empty_parts(part, goal, has_class)
    return part


def _fill_empty_parts(part: Ints, goal: Floats, has_class: Bools) -> None:
    """Move single episodes by changing ``part`` in place.

    Each part with a share gets at least one episode, if there are enough. If that permits, the part with the largest
    share gets every class; each other part gets the classes that the largest can spare.
    """
    largest = int(goal.argmax())
    for carries in has_class.T:
        if carries.any() and not (carries & (part == largest)).any():
            part[np.flatnonzero(carries)[0]] = largest
    for number in np.flatnonzero(goal > 0).tolist():
        if not (part == number).any() and not _spare(part, largest, number, has_class):
            # An empty part is worse than a class less: the fullest one gives, even the last of a class.
            part[np.flatnonzero(part == np.bincount(part).argmax())[-1]] = number
        for carries in has_class.T:
            if not (carries & (part == number)).any():
                _spare(part, largest, number, has_class, carries)


def _spare(part: Ints, giver: int, taker: int, has_class: Bools, wanted: Bools | None = None) -> bool:
    """Move one of the ``wanted`` episodes (None: any) from the part ``giver`` to ``taker``, if ``giver`` then still has
    all its classes; return True if one was moved."""
    mine = part == giver
    kept = (has_class[mine].sum(axis=0) > 1) | ~has_class
    free = mine & kept.all(axis=1)
    spare = np.flatnonzero(free if wanted is None else free & wanted)
    if spare.size:
        part[spare[-1]] = taker
    return spare.size > 0


# -- the result --------------------------------------------------------------------------------------------------------


def _check_sides(split: Split, y: Ints, *, supervised: bool, calibrated: bool) -> None:
    for side in Side:
        if split.side(side).size == 0 and (side is not Side.CAL or calibrated):
            raise SplitError(
                f"the {side.value} side is empty under the recipe {split.recipe.value!r}: "
                "record more episodes or choose another recipe"
            )
    if supervised and np.unique(y[split.train]).size < 2:
        raise SplitError(
            "the training side holds a single class, so that nothing can be learned from it: "
            "choose other train_hosts or another recipe"
        )


def _refuse_leaks(split: Split, episodes: _Episodes) -> None:
    """Raise LeakError if an episode is on two sides, a training host in the test, or a left-out host on a side; this
    also works under ``python -O``."""
    seen: dict[int, Side] = {}
    for side in Side:
        for row in np.unique(episodes.of_window[split.side(side)]).tolist():
            if row in seen:
                raise LeakError(f"episode {episodes.ids[row]} is on the sides {seen[row]} and {side}; {_NOT_YOURS}")
            seen[row] = side
    if split.recipe.by_host:
        both = set(episodes.host[episodes.of_window[split.test]].tolist()) & set(split.train_hosts)
        if both:
            raise LeakError(f"host {min(both)} trains and is in the test; {_NOT_YOURS}")
    if split.test_hosts:
        sides = np.concatenate([split.side(side) for side in Side])
        stray = set(episodes.host[episodes.of_window[sides]].tolist()) - {*split.train_hosts, *split.test_hosts}
        if stray:
            raise LeakError(f"host {min(stray)} is left out and on a side; {_NOT_YOURS}")
