"""Channels that follow the label smoothed or moved: a rolling mean of it, or its value of a minute ago.

No threshold tells the classes by such a channel, and a trainer learns nothing else from it. The label of each recording
is smoothed and moved in turn, and what a channel has in common with the nearest of these is its correlation with it, as
inside recordings levels do not count. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from training.data.arrays import Bools, Floats, Ints
from training.data.classes import listed
from training.data.coded import Coded
from training.data.doubts.label_copies import notes_on_copies, telling
from training.data.doubts.windows import WindowsInQuestion
from training.data.scratch import picked

FOLLOWS = 0.97  # correlation inside recordings
CHANGES_MIN = 4  # of the label, in all recordings that are looked at: a single ramp resembles many things
RECORDINGS_MAX = 8
SAMPLES_MAX = 8192  # of a recording
SMOOTHED = (0, 0.5, 1, 2, 4)  # over so many windows
MOVED = tuple(number / 4 for number in range(-8, 9))  # by so many


def label_again(windows: WindowsInQuestion) -> list[str]:
    """Sentences on channels that copy the label, and on others that follow it. Raises DataError for a sure copy."""
    copies = telling(windows)
    notes = notes_on_copies(copies, windows)
    known = {*windows.exempt, *copies.states, *copies.levels}
    names = [name for name in echoes(windows) if name not in known] if windows.timed else []
    if names:
        said = f"Following the label, smoothed or moved by up to two windows: {listed(names)}: made from it?"
        notes.append(f"{said} ({windows.remedy}).")
    return notes


def echoes(windows: WindowsInQuestion) -> list[str]:
    """Name the channels that follow what raises an alarm, late or smoothed."""
    X, names, rows, benign = windows.X, windows.channels, windows.rows, windows.benign
    classes, t_start = rows.label.names, rows.t_start
    if not benign and classes.size != 2:
        return []
    alarm = ~rows.label.among(benign) if benign else rows.label.among(classes[1:])
    samples = X.shape[2]
    common, mine, its = 0.0, np.zeros((1, len(names))), np.zeros((1, 1))
    changes = 0
    for here in _recordings_of_both(rows.episode, alarm):
        place = np.rint((t_start[here] - t_start[here].min()) * windows.sample_hz).astype(np.int64)
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
    """The rows of the longest recordings that have windows of either side."""
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
