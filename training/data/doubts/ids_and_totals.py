"""Detect channels that a model should not see, by their values: row numbers, ids, running totals, copies of the label.

A channel that looks like a row number, an id, a running total, a remainder or the label is refused, unless the user
exempts it; the sentence names the flags for that. Channels with a single value, with one for each host, or with one in
each recording that other recordings may repeat, are only noted. All functions are pure.
"""

import re
from collections.abc import Iterator

import numpy as np

from training.data.classes import listed
from training.data.doubts.windows import WindowsInQuestion
from training.data.errors import DataError
from training.data.scratch import PART_BYTES, blocks, picked, release
from training.data.values import Bools, Floats, Floats32, Indices

RISES_MIN = 10
FALLING_MAX = 0.05  # of the steps of a running total: where it was reset, or ran over
BOTTOM, BOTTOM_LATER = (0.1, 0.5)  # of its height: where a total that was reset goes on, at once or windows later
# Averages over minutes, which rise for as long: ldavg-15, load5, load avg 15m; %scpu-300 of a kernel's pressure.
AVERAGE = re.compile(r"(ld|l-|load[ _-]?)avg|load[ _-]?\d+m?$|%\w+-(60|300)$", re.IGNORECASE)

REFUSALS = {
    "labels": "The channel {first!r} has one value for each class: it is the label again; leave it out with --ignore "
    "{first}, or say that it is measured with --level {first}.",
    "totals": "Never falling inside a recording: {}: a row number or a running total? Make it a rate with "
    "--counter NAME, leave it out with --ignore NAME, or keep it with --level NAME.",
    "reset": "Rising, and rarely falling to its bottom: {}: a running total that was reset or ran over? Make it a rate "
    "with --counter NAME (a fall counts as no growth), leave it out with --ignore NAME, or keep it with --level NAME.",
    "remainders": "Never rising inside a recording: {}: a remainder? Leave it out with --ignore NAME, or keep it with "
    "--level NAME.",
    "ids": "One value in each recording, and no two equal: {}: an id? Leave it out with --ignore NAME, or keep it with "
    "--level NAME.",
}
OF_ROWS = ("labels", "constant", "of_hosts")  # what a channel of rows that are windows may be
NOTES = {
    "constant": "Channels that never change: {}.",
    "of_hosts": "Channels with one value a host, which only name the host: {}.",
    "of_recordings": "Channels with one value a recording: {}: ids?",
}


def suspects(windows: WindowsInQuestion) -> dict[str, list[str]]:
    """Return the names of the suspicious channels by the kind of suspicion, as :meth:`Course.kind` names it."""
    X, names, rows = windows.X, windows.channels, windows.rows
    groups = [column.codes for column in (rows.label, rows.host, rows.episode)]
    several = rows.episode.names.size < len(X)  # windows a recording
    courses = [Course(*(column.names.size for column in (rows.label, rows.host, rows.episode))) for _ in names]
    order = np.lexsort((rows.t_start, groups[2]))
    for rows_of, values in _of_channels(X, order):
        for course, (here, one) in zip(courses, zip(rows_of, values, strict=True), strict=True):
            course.add(one, *(group[here] for group in groups))
    unsure = [number for number, course in enumerate(courses) if course.may_be_reset]
    if unsure:
        for number in unsure:
            courses[number].rewind()
        for rows_of, values in _of_channels(X, order):
            for number in unsure:
                courses[number].add_falls(values[number], groups[2][rows_of[number]])
    found: dict[str, list[str]] = {}
    for name, course in zip(names, courses, strict=True):
        if (kind := course.kind(several=several)) and (X.shape[2] > 1 or kind in OF_ROWS):
            found.setdefault(kind, []).append(name)
    return found


def _of_channels(X: Floats32, order: Indices) -> Iterator[tuple[list[Indices], list[Floats32]]]:
    """Yield the windows in the given order, some at a time, channel by channel.

    For each channel there are the numbers of the windows that have it, and the channel's values (n, T) in them.
    """
    for _, rows in blocks(order, 8 * max(1, PART_BYTES // (4 * X.shape[1] * X.shape[2]))):
        part = X[rows] if (np.diff(rows) == 1).all() else picked(X, rows)
        there = ~np.isnan(part[:, :, 0])
        every = range(X.shape[1])
        yield [rows[there[:, c]] for c in every], [part[there[:, c], c] for c in every]
        release(X)


class Course:
    """Statistics of one channel over recordings and time, which show whether the channel looks like an id, a total or
    the label."""

    def __init__(self, classes: int, hosts: int, recordings: int) -> None:
        """Start with no values; the arguments are the numbers of classes, hosts and recordings, which are numbered
        from 0."""
        self._ranges = [np.tile([[np.inf], [-np.inf]], count) for count in (classes, hosts, recordings)]
        self._falls = self._rises = 0  # inside windows
        self._falls_later = self._rises_later = 0  # from one to the next of their recording
        self._last: tuple[int, Floats32] | None = None  # the last window's recording and values
        self._to_bottom = True

    def _behind_the_last(self, values: Floats32, recording: Indices) -> tuple[Floats32, Indices, Bools]:
        """Put the last window of the previous call in front of these windows.

        Returns the windows, their recordings, and a mask of the windows (from the second) that follow one of the same
        recording.
        """
        if self._last is not None:
            values, recording = np.concatenate([self._last[1], values]), np.r_[self._last[0], recording]
        self._last = int(recording[-1]), values[-1:].copy()
        return values, recording, recording[1:] == recording[:-1]

    def add(self, values: Floats32, *groups: Indices) -> None:
        """Count the next windows (n, T); ``groups`` has their classes, hosts and recordings, each (n,), as numbers."""
        if not len(values):
            return
        low, high = values.min(axis=1), values.max(axis=1)
        for (least, most), group in zip(self._ranges, groups, strict=True):
            np.minimum.at(least, group, low)
            np.maximum.at(most, group, high)
        inside = np.diff(values, axis=1)
        self._falls += int((inside < 0).sum())
        self._rises += int((inside > 0).sum())
        joined, _, follows = self._behind_the_last(values, groups[2])
        between = np.diff(joined[:, 0])
        self._falls_later += int((follows & (between < 0)).sum())
        self._rises_later += int((follows & (between > 0)).sum())

    def kind(self, *, several: bool) -> str | None:
        """Return the kind of a suspicious channel, else None; ``several`` is True if at least one recording has several
        windows.

        A channel of the kind ``constant`` has a single value. ``labels`` have a different value for each class,
        ``of_hosts`` for each host, and ``ids`` for each recording if at least one recording has several windows.
        ``of_recordings`` have one value in each recording without being ``ids``. ``totals`` never fall inside a
        recording, ``remainders`` never rise, and ``reset`` rise and rarely start again at the bottom.
        """
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
        """True if the channel rises and rarely falls; :meth:`add_falls` must then find where each fall ends."""
        falls, rises = self._falls + self._falls_later, self._rises + self._rises_later
        return falls > 0 and self._rises >= RISES_MIN and falls <= FALLING_MAX * (falls + rises)

    def rewind(self) -> None:
        """Forget the last window, before a second pass from the first window on."""
        self._last = None

    def add_falls(self, values: Floats32, recording: Indices) -> None:
        """Examine the falls in the next windows (n, T), in a second pass: a total that was reset falls to its lowest
        value, a level only a little."""
        if not len(values):
            return
        bottom = np.minimum(self._ranges[2][0], 0.0)
        window, place = np.nonzero(np.diff(values, axis=1) < 0)
        low, before, after = bottom[recording[window]], values[window, place], values[window, place + 1]
        self._to_bottom &= bool((after - low <= BOTTOM * (before - low)).all())
        # Between two windows it had time to grow again.
        joined, of, follows = self._behind_the_last(values, recording)
        later = np.flatnonzero(follows & (np.diff(joined[:, 0]) < 0))
        low, before, after = bottom[of[later]], joined[later].max(axis=1), joined[later + 1].min(axis=1)
        self._to_bottom &= bool((after - low <= BOTTOM_LATER * (before - low)).all())


def _values_of(least: Floats, most: Floats) -> Floats | None:
    """Return the single value of each group that has values; None if a group has two different values."""
    there = least <= most
    return least[there] if (least[there] == most[there]).all() else None


def _each_its_own(values: Floats | None) -> bool:
    return values is not None and np.unique(values).size == values.size > 1


def ids_and_totals(windows: WindowsInQuestion) -> list[str]:
    """Return notes on suspicious channels.

    Raises DataError for a channel that looks like the label, an id, a total or a remainder, unless it is exempt by a
    flag.
    """
    found = suspects(windows)
    for kind, refusal in REFUSALS.items():
        names = [name for name in found.get(kind, ()) if name not in windows.exempt]
        if kind in ("totals", "remainders"):
            names = [name for name in names if not AVERAGE.search(name)]
        if names:
            raise DataError(refusal.format(listed(names), first=names[0]))
    return [note.format(listed(found[kind])) for kind, note in NOTES.items() if kind in found]
