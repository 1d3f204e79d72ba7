"""Detect channels that alone separate the classes: a noisy or delayed copy of the label, or a strong measurement.

Only the user knows whether a channel that separates the classes is a copy or a measurement. A channel is noted if, on
every host with enough benign and other samples, a threshold of that host nearly separates the two. An ingest refuses a
channel that has one value for each class in nearly all samples, unless the user exempts it; a build refuses nothing.
Whole windows are examined, and their halves, because a late or early copy is wrong at the beginning or end of each
period. A few windows of each host are enough.

No threshold reveals a rolling mean of the label, or its value a minute ago. The label is also smoothed and moved in
several ways, and each channel is correlated with each result, inside recordings. All functions are pure.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from training.data.classes import listed
from training.data.coded import Coded
from training.data.doubts.windows import WindowsInQuestion, evenly
from training.data.errors import DataError
from training.data.scratch import picked
from training.data.values import Bools, Floats, Floats32, Indices, Ints

TELLS = 0.99  # AUROC of the samples, by one threshold, on every host
AGREES = 0.95  # of the samples of each class
STATE = 0.95  # of the samples lie at one of the classes' usual values,
NEAR = 0.02  # within this share of the distance between them
SLACK = 0.1  # a single host is a small draw
WINDOWS_MAX = 64  # of each class on each host
SAMPLES_MIN = 20  # of each class on a host


class Telling(NamedTuple):
    """The names of channels that separate the classes: ``states`` have nearly always one value for each class; of
    ``levels``, a threshold of each host nearly separates benign windows from the others."""

    states: tuple[str, ...] = ()  # two values (one a class), as the label has
    levels: tuple[str, ...] = ()  # any others


def telling(windows: WindowsInQuestion) -> Telling:
    """Return the channels that nearly separate the classes, as states or by a threshold of each host. Only hosts with
    benign windows and others are examined (without benign classes, hosts with several classes). If there is no such
    host, all hosts are examined together, and only for states."""
    X, benign, label = windows.X, windows.benign, windows.rows.label
    classes, of_class = label.names, label.codes
    alarm = ~np.isin(classes, benign) if benign else np.arange(classes.size) == 1
    two = bool(benign) or classes.size == 2
    if classes.size < 2:
        return Telling()
    of_host = windows.rows.host.codes
    both = _has_two(alarm[of_class].astype(int) if two else of_class, of_host)
    apart = not both.any()  # each host has one class: of levels its own says nothing
    hosts = _drawn(of_class, np.zeros_like(of_host) if apart else of_host, [True] if apart else both.tolist())
    by_class = [of_class[rows] for rows in hosts]
    by_alarm = [alarm[of].astype(int) for of in by_class] if two else []
    samples = X.shape[2]
    parts = slice(None), slice(samples // 2, None), slice(0, samples - samples // 2)
    found: dict[str, list[str]] = {"state": [], "level": []}
    for number, name in enumerate(windows.channels):
        for part in parts:
            # One host rules nearly every channel out, and spares the others.
            if not _tells(*_known(X[:, number, part], hosts[:1], by_class, by_alarm), SLACK):
                continue
            kind = _tells(*_known(X[:, number, part], hosts, by_class, by_alarm))
            if kind is not None and not (apart and kind == "level"):
                found[kind].append(name)
                break
    return Telling(tuple(found["state"]), tuple(found["level"]))


def _known(
    values: Floats32, hosts: Sequence[Indices], *groups: Sequence[Indices]
) -> tuple[list[Floats32], list[Indices], list[Indices]]:
    """Return, for each host that measures a channel, the drawn windows (n, T) that have the channel, and the windows'
    classes in each of ``groups``."""
    drawn = [picked(values, rows) for rows in hosts]
    kept = [~np.isnan(windows[:, 0]) for windows in drawn]
    samples, by_class, by_alarm = (
        [each[keep] for each, keep in zip(of, kept, strict=False) if keep.any()] for of in (drawn, *groups)
    )
    return samples, by_class, by_alarm


def _tells(
    samples: Sequence[Floats32], by_class: Sequence[Indices], by_alarm: Sequence[Indices], slack: float = 0.0
) -> str | None:
    if not samples:
        return None
    if any(_is_state(samples, groups, slack) for groups in (by_class, by_alarm) if groups):
        return "state"
    return "level" if by_alarm and _threshold_tells(samples, by_alarm, slack) else None


def _drawn(of_class: Indices, of_host: Indices, wanted: Sequence[bool]) -> list[Indices]:
    """Return, for each wanted host, the rows of some of its windows: at most ``WINDOWS_MAX`` of each class."""
    order = np.lexsort((of_class, of_host))
    edges = np.flatnonzero(np.diff(of_host[order]) | np.diff(of_class[order])) + 1
    by_host: dict[int, list[Indices]] = {}
    for rows in np.split(order, edges):
        by_host.setdefault(int(of_host[rows[0]]), []).append(evenly(rows, WINDOWS_MAX))
    return [np.concatenate(parts) for number, parts in by_host.items() if wanted[number]]


def _has_two(of_class: Indices, of_host: Indices) -> Bools:
    """Return a mask of the hosts that have windows of more than one class."""
    first = np.full(of_host.max() + 1, of_class.max() + 1)
    last = np.full(of_host.max() + 1, -1)
    np.minimum.at(first, of_host, of_class)
    np.maximum.at(last, of_host, of_class)
    return first < last


def _threshold_tells(samples: Sequence[Floats32], alarm: Sequence[Indices], slack: float) -> bool:
    """Return True if the channel nearly separates alarm windows from the others, in the same direction, on every host
    that has enough of both."""
    way = None
    for values, raised in zip(samples, alarm, strict=True):
        there, others = values[raised == 1].ravel(), values[raised == 0].ravel()
        if min(there.size, others.size) < SAMPLES_MIN:
            continue
        auroc = _auroc(there, others)
        if way is None:
            way = auroc > 0.5
        if (auroc if way else 1 - auroc) < TELLS - slack:
            return False
    return way is not None


def _auroc(there: Floats32, others: Floats32) -> float:
    others = np.sort(others)
    below = np.searchsorted(others, there, "left") + np.searchsorted(others, there, "right")
    return float(below.sum() / 2 / there.size / others.size)


def _is_state(samples: Sequence[Floats32], groups: Sequence[Indices], slack: float) -> bool:
    """Return True if the channel, on all these hosts together, nearly always has one value for each class, and no other
    value."""
    values = np.concatenate([part.ravel() for part in samples])
    of = np.repeat(np.concatenate(groups), samples[0].shape[1])
    present, of = np.unique(of, return_inverse=True)
    if present.size < 2 or np.bincount(of).min() < SAMPLES_MIN:
        return False
    usual = np.array([np.median(values[of == k]) for k in range(present.size)])
    least = np.diff(np.sort(usual)).min()
    if least <= 0:
        return False
    away = np.abs(values[:, None] - usual)
    meant = away.argmin(axis=1)
    at_one = (away.min(axis=1) <= NEAR * least).mean()
    agree = [(meant[of == k] == k).mean() for k in range(present.size)]
    return bool(at_one >= STATE - slack and min(agree) >= AGREES - slack)


def notes_on_copies(found: Telling, windows: WindowsInQuestion) -> list[str]:
    """Return a list with one sentence on the channels that alone separate the classes; an empty list without any.

    With ``by_flags``, raises DataError for a channel with one value for each class; exempt channels do not count.
    """
    states, levels = ([name for name in kind if name not in windows.exempt] for kind in found)
    if states and windows.by_flags:
        raise DataError(
            f"The channel {states[0]!r} has a value for each class in at least {100 * AGREES:.0f} % of its samples: it "
            f"looks like a copy of the label; leave it out with --ignore {states[0]}, or say that it is measured with "
            f"--level {states[0]}."
        )
    named = listed([*states, *levels])
    said = f"One channel alone tells the classes on every host: {named}: a copy of the label? ({windows.remedy})."
    return [said] if named else []


# -- smoothed or moved -------------------------------------------------------------------------------------------------

FOLLOWS = 0.97  # correlation inside recordings
CHANGES_MIN = 4  # of the label, in all recordings that are looked at: a single ramp resembles many things
RECORDINGS_MAX = 8
SAMPLES_MAX = 8192  # of a recording
SMOOTHED = (0, 0.5, 1, 2, 4)  # over so many windows
MOVED = tuple(number / 4 for number in range(-8, 9))  # by so many


def label_again(windows: WindowsInQuestion) -> list[str]:
    """Return sentences about channels that may copy the label, and about others that follow the label smoothed or
    moved.

    Raises DataError as :func:`notes_on_copies` does.
    """
    copies = telling(windows)
    notes = notes_on_copies(copies, windows)
    known = {*windows.exempt, *copies.states, *copies.levels}
    names = [name for name in echoes(windows) if name not in known] if windows.timed else []
    if names:
        said = f"Following the label, smoothed or moved by up to two windows: {listed(names)}: made from it?"
        notes.append(f"{said} ({windows.remedy}).")
    return notes


def echoes(windows: WindowsInQuestion) -> list[str]:
    """Return the channels that follow the label (benign or not), smoothed over up to four windows, and moved in time by
    up to two. Without benign classes, only data of two classes are examined."""
    X, names, rows, benign = windows.X, windows.channels, windows.rows, windows.benign
    classes, t_start = rows.label.names, rows.t_start
    if not benign and classes.size != 2:
        return []
    alarm = ~rows.label.among(benign) if benign else rows.label.among(classes[1:])
    samples = X.shape[2]
    common, mine, its = 0.0, np.zeros((1, len(names))), np.zeros((1, 1))
    changes = 0
    for here in _recordings_of_both(rows.episode, alarm):
        place = np.rint((t_start[here] - t_start[here].min()) * windows.sample_hz).astype(int)
        here, place = here[place < SAMPLES_MAX], place[place < SAMPLES_MAX]
        at = place[:, None] + np.arange(samples)
        values = np.full((at.max() + 1, len(names)), np.nan)
        raised = np.full(at.max() + 1, np.nan)
        values[at] = picked(X, here).transpose(0, 2, 1)
        raised[at] = alarm[here][:, None]
        known = np.flatnonzero(np.isfinite(raised))
        # Between two windows the label is unknown: it is taken to last.
        raised = raised[known[np.searchsorted(known, np.arange(raised.size), "right") - 1]]
        changes += int((np.diff(raised) != 0).sum())
        copies = np.stack(list(_copies(raised, samples)), axis=1)[known]
        copies -= copies.mean(axis=0)
        values = values[known] - values[known].mean(axis=0)
        values[:, np.isnan(values).any(axis=0)] = 0.0  # absent in some window: it says nothing here
        common = common + copies.T @ values
        mine = mine + np.square(values).sum(axis=0)
        its = its + np.square(copies).sum(axis=0)[:, None]
    if changes < CHANGES_MIN:
        return []
    size = np.sqrt(mine * its)
    alike = np.abs(np.divide(common, size, out=np.zeros_like(size), where=size > 0)).max(axis=0)
    return [name for name, one in zip(names, alike.tolist(), strict=True) if one >= FOLLOWS]


def _recordings_of_both(episode: Coded, alarm: Bools) -> Iterable[Ints]:
    """Return the rows of each of the ``RECORDINGS_MAX`` longest recordings that have alarm windows and others."""
    of = episode.codes
    counts, raised = np.bincount(of), np.bincount(of, alarm)
    both = np.flatnonzero((raised > 0) & (raised < counts))
    longest = both[np.argsort(-counts[both], kind="stable")][:RECORDINGS_MAX]
    return [np.flatnonzero(of == number) for number in longest.tolist()]


def _copies(raised: Floats, samples: int) -> Iterable[Floats]:
    total = np.concatenate([[0.0], np.cumsum(raised)])
    place = np.arange(raised.size)
    for windows in SMOOTHED:
        length = max(1, round(windows * samples))
        low = np.maximum(place + 1 - length, 0)
        mean = (total[place + 1] - total[low]) / (place + 1 - low)
        for by in MOVED:
            yield mean[np.clip(place - round(by * samples), 0, raised.size - 1)]
