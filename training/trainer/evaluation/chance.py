"""An exact test of whether chance would rank as well: exchange the labels between episodes, and compute the AUROC
again.

If scores had nothing to do with labels, every assignment of the recordings' labels to the recordings would be as likely
as the observed one. An episode keeps its scores and takes the whole sequence of labels of another one, stretched to its
own length. If there are few ways, all are enumerated; of many, a fixed number is drawn. The test stays exact because
the observed way is counted as one of them.
"""

from collections.abc import Iterator, Sequence
from math import comb
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from training.data.values import AnyArray, Floats, Ints, JsonDict

MOST_COUNTED = 20_000  # ways to deal the labels that are all counted through
DRAWN = 4_999  # where there are more
MOST_CELLS = 20_000_000  # episodes times different courses times classes; beyond, the interval has to do
SIDE = 0.025  # the half of 5 % that one side of a 95 % interval leaves
_AT_ONCE = 1 << 20  # cells of (ways, episodes) worked on at a time


class Chance(NamedTuple):
    """The exact test's result: the share ``p`` of ways to assign labels whose AUROC is as far from 0.5 as the observed
    one, or farther.

    Only AUROCs on the observed one's side of 0.5 count.
    """

    p: float
    ways: int  # counted or drawn
    counted: bool  # all there are

    def to_dict(self) -> JsonDict:
        return {"p": round(self.p, 6), "ways": self.ways, "counted": self.counted}


class _Courses(NamedTuple):
    """The different sequences of labels, and which one each episode has."""

    labels: list[Ints]
    of_episode: Ints


def chance_test(scores: Sequence[Floats], classes: Sequence[int], y: Ints, episode: AnyArray) -> Chance | None:
    """Test the mean AUROC of several scores (N,), each for its class against the rest of ``y`` (N,), by exchanging the
    labels between episodes; ``episode`` (N,) names each window's.

    The windows of an episode must be in time order. Return None if fewer than two different sequences of labels exist,
    if no AUROC can be computed, or if the tables would exceed ``MOST_CELLS``.
    """
    order = np.argsort(episode, kind="stable")
    y = y[order]
    _, first, length = np.unique(episode[order], return_index=True, return_counts=True)
    courses = _courses(y, first, length)
    n_kinds = len(courses.labels)
    if n_kinds < 2 or first.size * n_kinds * len(classes) > MOST_CELLS:
        return None
    ranks = [rankdata(score[order]) for score in scores]
    tables = [_tables(rank, k, courses, first, length) for rank, k in zip(ranks, classes, strict=True)]
    seen = _statistic(tables, courses.of_episode[None], y.size)[0]
    if not np.isfinite(seen):
        return None
    above = seen >= 0.5
    as_far = total = 0
    counted = _number_of_ways(courses.of_episode, n_kinds) <= MOST_COUNTED
    ways = _all_ways(courses.of_episode) if counted else _drawn_ways(courses.of_episode)
    for block in ways:
        found = np.nan_to_num(_statistic(tables, block, y.size), nan=seen)
        as_far += int(((found >= seen - 1e-12) if above else (found <= seen + 1e-12)).sum())
        total += len(block)
    if not counted:  # the labels as they were seen are one of the ways
        as_far, total = as_far + 1, total + 1
    return Chance(as_far / total, total, counted)


def _courses(y: Ints, first: Ints, length: Ints) -> _Courses:
    """Number the different sequences of labels. A sequence in which all labels are equal counts as the same at every
    length."""
    known = {}
    labels: list[Ints] = []
    of_episode = np.empty(first.size, int)
    for number, (start, size) in enumerate(zip(first.tolist(), length.tolist(), strict=True)):
        course = y[start : start + size]
        course = course[:1] if (course == course[0]).all() else course
        key = course.tobytes()
        if key not in known:
            known[key] = len(labels)
            labels.append(course)
        of_episode[number] = known[key]
    return _Courses(labels, of_episode)


Tables = tuple[Floats, Floats]


def _tables(rank: Floats, k: int, courses: _Courses, first: Ints, length: Ints) -> Tables:
    """Return two arrays (E, S): sum of ranks and number of windows of class ``k`` in episode e, if it had label
    sequence s."""
    sums = np.empty((first.size, len(courses.labels)))
    counts = np.empty_like(sums)
    ends = np.r_[0.0, np.cumsum(rank)]
    whole = ends[first + length] - ends[first]
    for number, course in enumerate(courses.labels):
        if course.size == 1:
            mine = float(course[0] == k)
            sums[:, number], counts[:, number] = mine * whole, mine * length
            continue
        place = np.arange(length.sum()) - np.repeat(first, length)
        stretched = course[place * course.size // np.repeat(length, length)] == k
        sums[:, number] = np.add.reduceat(np.where(stretched, rank, 0.0), first)
        counts[:, number] = np.add.reduceat(stretched.astype(float), first)
    return sums, counts


def _statistic(tables: Sequence[Tables], ways: Ints, n: int) -> Floats:
    """Return (R,) the mean AUROC, over the classes present, of each of R ways to assign labels; NaN if there is
    none."""
    episodes = np.arange(ways.shape[1])
    each = []
    for sums, counts in tables:
        up = counts[episodes, ways].sum(axis=1)
        won = sums[episodes, ways].sum(axis=1) - up * (up + 1) / 2
        with np.errstate(invalid="ignore", divide="ignore"):
            each.append(won / (up * (n - up)))
    values = np.stack(each, axis=1)
    there = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.where(there, values, 0.0).sum(axis=1) / there.sum(axis=1)


def _number_of_ways(of_episode: Ints, n_kinds: int) -> int:
    ways, left = 1, int(of_episode.size)
    for count in np.bincount(of_episode, minlength=n_kinds).tolist():
        ways *= comb(left, count)
        left -= count
    return ways


def _all_ways(of_episode: Ints) -> Iterator[Ints]:
    """Yield every different assignment of the label sequences to the episodes, in blocks (R, E) of sequence numbers."""
    rows = max(1, _AT_ONCE // of_episode.size)
    block = []
    for way in _orders(np.bincount(of_episode).tolist(), of_episode.size):
        block.append(way)
        if len(block) == rows:
            yield np.array(block)
            block = []
    if block:
        yield np.array(block)


def _orders(counts: list[int], left: int) -> Iterator[list[int]]:
    if left == 0:
        yield []
        return
    for kind, count in enumerate(counts):
        if count:
            counts[kind] -= 1
            for rest in _orders(counts, left - 1):
                yield [kind, *rest]
            counts[kind] += 1


def _drawn_ways(of_episode: Ints) -> Iterator[Ints]:
    """Yield ``DRAWN`` random assignments of the label sequences in blocks (R, E), from a fixed seed."""
    rng = np.random.default_rng(0)
    rows = max(1, _AT_ONCE // of_episode.size)
    for start in range(0, DRAWN, rows):
        repeated = np.tile(of_episode, (min(rows, DRAWN - start), 1))
        yield rng.permuted(repeated, axis=1)
