"""The columns of a table that are channels, and the channels that a detector should not see.

A row number, an id or a running total among the channels makes a perfect detector of noise. So names and values that
look like one are refused with the flags that say otherwise. All functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.data.classes import listed
from training.data.coded import Coded
from training.data.errors import DataError
from training.data.ingest.dialect import too_wide
from training.data.ingest.roles import Roles, plain
from training.data.missing import Missing
from training.data.rows import CodedRows, Rows
from training.data.scratch import PART_BYTES, blocks, picked, release

ROW_NUMBERS = ("index", "row", "rownumber", "rowindex", "id", "")
CHANNELS_MAX = 1000  # of a table: each has sixteen features
RISES_MIN = 10
FALLING_MAX = 0.05  # of the steps of a running total: where it was reset, or ran over
BOTTOM, BOTTOM_LATER = (0.1, 0.5)  # of its height: where a total that was reset goes on, at once or windows later
SAME = 1e-13  # of the largest value: what a constant's mean is rounded by
ROUNDING_MAX = 0.01  # of a channel's standard deviation


OTHER_SIZE = 20.0  # times beyond all of the others
SUMMED_ROWS = 1 << 20
LEVEL_VALUES, LEVEL_WINDOWS = 1 << 23, 64  # of a host that show it


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The user's word on columns: hidden from realistic, left out, totals, levels all the same, missing values."""

    oracle: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    counter: tuple[str, ...] = ()
    level: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()


def channel_names(columns: Sequence[str], roles: Roles, wanted: Wanted, where: str) -> list[str]:
    """The columns that are channels, by name, however the table has them. Raises DataError for row numbers and ids."""
    channels = sorted(name for name in columns if name not in roles.columns)
    if len(channels) > CHANNELS_MAX:
        raise too_wide(len(channels), CHANNELS_MAX, where)
    for name in channels:
        _check_name(name, columns)
    check_named(channels, wanted, where)
    return channels


def check_named(channels: Sequence[str], wanted: Wanted, where: str) -> None:
    """Refuse a flag that names no channel. Raises DataError."""
    for flag, said in (("--oracle", wanted.oracle), ("--counter", wanted.counter), ("--level", wanted.level)):
        unknown = sorted(set(said) - set(channels))
        if unknown:
            raise DataError(f"{flag} names {unknown[0]!r}, which is no channel of {where}.")


def _check_name(name: str, names: Sequence[str]) -> None:
    out = f"leave it out with --ignore {name!r}" if name.strip() else "write the table without it"
    word = plain(name)
    if word.startswith(("unnamed", "indexlevel")) or word in ROW_NUMBERS:
        raise DataError(
            f"The column {name!r} is a row number or an id, which is no channel (pandas: index=False): {out}."
        )
    twin = re.fullmatch(r"(.*)_duplicated_\d+", name)
    if twin and twin[1] in names:
        raise DataError(f"Two columns are called {twin[1]!r}: give each a name of its own.")


# -- values ------------------------------------------------------------------------------------------------------------


def check_total(name: str, falls: int, steps: int) -> None:
    """Refuse a running total that falls again and again: as a rate it would be noise cut in half. Raises DataError."""
    falling = falls / steps if steps else 0.0
    if falling > FALLING_MAX:
        raise DataError(
            f"The channel {name!r} falls in {falling:.0%} of its steps, so that it is no running total: leave it out "
            "of --counter."
        )


def check_rounding(columns: Iterable[tuple[str, NDArray[Any]]], host: NDArray[np.str_]) -> None:
    """Refuse channels whose changes are lost in 32 bits. Raises DataError.

    ``columns`` by name, each with a row (of one value or several) for each of ``host``.
    """
    _, of_host = np.unique(host, return_inverse=True)
    for name, column in columns:
        check_rounding_of(name, column, of_host)


def check_rounding_of(name: str, column: NDArray[Any], of_host: NDArray[np.integer[Any]]) -> None:
    """The same of one channel, with a row (of one value or several) for each number of a host."""
    values = np.asarray(column, dtype=np.float64).reshape(of_host.size, -1)
    largest = max((float(np.abs(part[np.isfinite(part)]).max(initial=0.0)) for _, part in _some(values)), default=0.0)
    with np.errstate(over="ignore"):
        rounding = float(np.spacing(np.float32(largest))) / 2
    if not np.isfinite(rounding):
        return  # no 32-bit number at all, which is refused as not finite
    spread = _within(values, of_host)
    if SAME * largest < spread < rounding / ROUNDING_MAX:
        raise DataError(
            f"The channel {name!r} changes by about {spread:.3g} around values of {largest:.3g}, which 32 bits "
            f"round to {2 * rounding:.3g}: subtract a constant, or bring rates (--counter)."
        )


def _within(values: NDArray[np.float64], group: NDArray[np.integer[Any]]) -> float:
    """Standard deviation inside the groups, whose own levels are no signal."""
    groups = int(group.max()) + 1
    counts, sums = np.zeros(groups), np.zeros(groups)
    for rows, part in _some(values):
        known = np.isfinite(part)
        counts += np.bincount(group[rows], known.sum(axis=1), groups)
        sums += np.bincount(group[rows], np.where(known, part, 0.0).sum(axis=1), groups)
    mean = np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0)
    squares = 0.0
    for rows, part in _some(values):
        squares += float((np.where(np.isfinite(part), part - mean[group[rows]][:, None], 0.0) ** 2).sum())
    return float(np.sqrt(squares / max(1, counts.sum())))


def _some(values: NDArray[np.float64]) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Some rows of an array at a time: always as many, so that sums are the same wherever there is less memory."""
    for start in range(0, len(values), SUMMED_ROWS):
        rows = slice(start, start + SUMMED_ROWS)
        yield rows, values[rows]
        release(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspects:
    """Channels by what their values look like."""

    totals: tuple[str, ...] = ()  # never fall inside a recording
    reset: tuple[str, ...] = ()  # rise, and rarely start again
    remainders: tuple[str, ...] = ()  # never rise inside one
    ids: tuple[str, ...] = ()  # one value a recording, another in the next of the same host
    labels: tuple[str, ...] = ()  # one value a class
    of_hosts: tuple[str, ...] = ()  # one value a host
    of_recordings: tuple[str, ...] = ()  # one value a recording, though not each another
    constant: tuple[str, ...] = ()


def suspects(X: NDArray[np.float32], names: Sequence[str], rows: Rows | CodedRows) -> Suspects:
    """Collect what is suspicious in the channels of windows X (N, C, T)."""
    rows = rows.coded
    groups = [column.codes for column in (rows.label, rows.host, rows.episode)]
    several = rows.episode.names.size < len(X)  # windows a recording
    courses = [Course(*(column.names.size for column in (rows.label, rows.host, rows.episode))) for _ in names]
    order = np.lexsort((rows.t_start, groups[2]))
    for rows_of, values in _of_channels(X, order):
        for course, (here, one) in zip(courses, zip(rows_of, values, strict=True), strict=True):
            course.add(one, *(group[here] for group in groups))
    unsure = [number for number, course in enumerate(courses) if course.may_be_reset]
    if unsure:
        for rows_of, values in _of_channels(X, order):
            for number in unsure:
                courses[number].add_falls(values[number], groups[2][rows_of[number]])
    found: dict[str, list[str]] = {kind: [] for kind in Suspects.__dataclass_fields__}
    for name, course in zip(names, courses, strict=True):
        if kind := course.kind(several=several):
            found[kind].append(name)
    return Suspects(**{kind: tuple(names) for kind, names in found.items()})


def _of_channels(
    X: NDArray[np.float32], order: NDArray[np.intp]
) -> Iterator[tuple[list[NDArray[np.intp]], list[NDArray[np.float32]]]]:
    """Some windows at a time, in this order: by channel those that have it, by number and with their values (n, T)."""
    for _, rows in blocks(order, 8 * max(1, PART_BYTES // (4 * X.shape[1] * X.shape[2]))):
        part = X[rows] if (np.diff(rows) == 1).all() else picked(X, rows)
        there = ~np.isnan(part[:, :, 0])
        every = range(X.shape[1])
        yield [rows[there[:, c]] for c in every], [part[there[:, c], c] for c in every]
        release(X)


class Course:
    """A channel's values in the order of recordings and time, in little memory however many they are."""

    def __init__(self, classes: int, hosts: int, recordings: int) -> None:
        """Count nothing yet; the groups are numbered from 0."""
        self._ranges = [np.tile([[np.inf], [-np.inf]], count) for count in (classes, hosts, recordings)]
        self._falls = self._rises = self._falls_later = self._rises_later = 0
        self._last: tuple[int, np.float32] | None = None  # the last window's recording and first value
        self._last_high: tuple[int, np.float32, np.float32] | None = None
        self._to_bottom = True

    def add(self, values: NDArray[np.float32], *groups: NDArray[np.integer[Any]]) -> None:
        """Take the next windows (n, T) and their class, host and recording."""
        if not len(values):
            return
        low, high = values.min(axis=1), values.max(axis=1)
        for (least, most), group in zip(self._ranges, groups, strict=True):
            np.minimum.at(least, group, low)
            np.maximum.at(most, group, high)
        inside = np.diff(values, axis=1)
        self._falls += int((inside < 0).sum())
        self._rises += int((inside > 0).sum())
        recording, first = groups[2], values[:, 0]
        if self._last is not None:
            recording, first = np.r_[self._last[0], recording], np.r_[self._last[1], first]
        follows, between = recording[1:] == recording[:-1], np.diff(first)
        self._falls_later += int((follows & (between < 0)).sum())
        self._rises_later += int((follows & (between > 0)).sum())
        self._last = int(recording[-1]), first[-1]

    def kind(self, *, several: bool) -> str | None:
        """The field of :class:`Suspects` that this channel belongs to; ``several``: windows a recording."""
        least, most = self._ranges[0]
        if most.max() == -np.inf:
            return None
        if least.min() == most.max():
            return "constant"
        of_class, of_host, inside = (_values_of(*found) for found in self._ranges)
        if _each_its_own(of_class):
            return "labels"
        if _each_its_own(of_host):
            return "of_hosts"
        if several and _each_its_own(inside):
            return "ids"
        if inside is not None:
            return "of_recordings"
        if self._falls + self._falls_later == 0:
            return "totals" if self._rises >= RISES_MIN else None
        if self._rises + self._rises_later == 0:
            return "remainders" if self._falls >= RISES_MIN else None
        return "reset" if self.may_be_reset and self._to_bottom else None

    @property
    def may_be_reset(self) -> bool:
        """Tell whether it rises, and rarely falls: where to, a second look at all windows says."""
        falls, rises = self._falls + self._falls_later, self._rises + self._rises_later
        return falls > 0 and self._rises >= RISES_MIN and falls <= FALLING_MAX * (falls + rises)

    def add_falls(self, values: NDArray[np.float32], recording: NDArray[np.integer[Any]]) -> None:
        """Look at the next windows again: a level sinks a little; a total that was reset goes on at its bottom."""
        if not len(values):
            return
        bottom = np.minimum(self._ranges[2][0], 0.0)
        window, place = np.nonzero(np.diff(values, axis=1) < 0)
        low, before, after = bottom[recording[window]], values[window, place], values[window, place + 1]
        self._to_bottom &= bool((after - low <= BOTTOM * (before - low)).all())
        # Between two windows it had time to grow again.
        first, high, least = values[:, 0], values.max(axis=1), values.min(axis=1)
        if self._last_high is not None:
            recording = np.r_[self._last_high[0], recording]
            first, high = np.r_[self._last_high[1], first], np.r_[self._last_high[2], high]
            least = np.r_[np.float32(0), least]  # of which nothing is asked
        later = np.flatnonzero((recording[1:] == recording[:-1]) & (np.diff(first) < 0))
        low, before, after = bottom[recording[later]], high[later], least[later + 1]
        self._to_bottom &= bool((after - low <= BOTTOM_LATER * (before - low)).all())
        self._last_high = int(recording[-1]), first[-1], high[-1]


def _values_of(least: NDArray[np.float64], most: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """The value of each group that has some, where every one has a single value."""
    there = least <= most
    return least[there] if (least[there] == most[there]).all() else None


def _each_its_own(values: NDArray[np.float64] | None) -> bool:
    return values is not None and np.unique(values).size == values.size > 1


def unlike_levels(X: NDArray[np.float32], host: NDArray[np.str_] | Coded, channels: Sequence[str]) -> list[str]:
    """Name channels whose values on one host are all of another size than on each other host: another unit?

    ``X`` is (N, C, T). Compared are the sizes of what is not zero, without the outermost twentieths; of a host with
    more than LEVEL_VALUES values windows are drawn evenly.
    """
    names, of = (known := Coded.of(host)).names, known.codes
    rows = np.split(np.argsort(of, kind="stable"), np.cumsum(np.bincount(of))[:-1])
    sizes: list[list[tuple[float, float, float, str]]] = [[] for _ in channels]
    for name, mine in zip(names.tolist(), rows, strict=True):
        few = min(mine.size, max(LEVEL_WINDOWS, LEVEL_VALUES // (X.shape[1] * X.shape[2])))
        part = np.abs(picked(X, mine[np.linspace(0, mine.size - 1, few).astype(np.int64)]))
        for number, found in enumerate(sizes):
            size = part[:, number]
            if (size > 0).any():
                low, middle, high = np.quantile(size[size > 0], (0.05, 0.5, 0.95)).tolist()
                found.append((middle, low, high, name))
    notes = []
    for channel, found in zip(channels, sizes, strict=True):
        found.sort()
        if len(found) < 2:
            continue
        (first, _, first_high, least), (second, second_low, _, _) = found[:2]
        (before, _, before_high, _), (last, last_low, _, most) = found[-2:]
        if last_low > OTHER_SIZE * before_high:
            notes.append((channel, most, f"{_round(last / before)} times"))
        elif second_low > OTHER_SIZE * first_high:
            notes.append((channel, least, f"1/{_round(second / first)} of"))
    return [
        f"Values of {channel} on {name} have about {size} the size of those elsewhere: another unit?"
        for channel, name, size in notes
    ]


def _round(ratio: float) -> str:
    return f"{float(f'{ratio:.2g}'):,.0f}"


def judge(found: Suspects, wanted: Wanted) -> list[str]:
    """Notes on the channels; raises DataError for one that is nearly surely no channel and was not said to be one."""
    labels, totals, reset, remainders, ids = (
        [name for name in kind if name not in wanted.level]
        for kind in (found.labels, found.totals, found.reset, found.remainders, found.ids)
    )
    if labels:
        raise DataError(
            f"The channel {labels[0]!r} has one value for each class: it is the label again; leave it out with "
            f"--ignore {labels[0]}, or say that it is measured with --level {labels[0]}."
        )
    if totals:
        raise DataError(
            f"Never falling inside a recording: {listed(totals)}: a row number or a running total tells when, not "
            "what; make it a rate with --counter NAME, leave it out with --ignore NAME, or keep it with --level NAME."
        )
    if reset:
        raise DataError(
            f"Rising, and rarely falling to its bottom: {listed(reset)}: a running total that was reset or ran over? "
            "Make it a rate with --counter NAME (a fall counts as no growth), leave it out with --ignore NAME, or keep "
            "it with --level NAME."
        )
    if remainders:
        raise DataError(
            f"Never rising inside a recording: {listed(remainders)}: what only runs down tells when, not what; leave "
            "it out with --ignore NAME, or keep it with --level NAME."
        )
    if ids:
        raise DataError(
            f"One value a recording, and another in the next of the same host: {listed(ids)}: an id? Leave it out with "
            "--ignore NAME, or keep it with --level NAME."
        )
    notes = []
    if found.constant:
        notes.append(f"Channels that never change: {listed(found.constant)}.")
    if found.of_hosts:
        notes.append(f"Channels with one value a host, which name the host and no more: {listed(found.of_hosts)}.")
    if found.of_recordings:
        notes.append(f"Channels with one value a recording: {listed(found.of_recordings)}: ids?")
    return notes
