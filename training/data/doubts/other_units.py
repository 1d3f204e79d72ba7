"""Detect a host that reports a channel in another unit than all other hosts. All functions are pure."""

import numpy as np

from training.data.doubts.windows import WindowsInQuestion, evenly
from training.data.scratch import picked

OTHER_SIZE = 20.0  # times beyond all of the others
LEVEL_VALUES, LEVEL_WINDOWS = 1 << 23, 64  # of a host that show it


def other_units(windows: WindowsInQuestion) -> list[str]:
    """Return a sentence for each channel whose values on one host are more than ``OTHER_SIZE`` times larger, or
    smaller, than on every other host.

    The absolute values other than zero are compared, without the lowest and highest twentieth. If a host has more than
    LEVEL_VALUES values, some of its windows are drawn evenly.
    """
    X, channels = windows.X, windows.channels
    names, of = windows.rows.host.names, windows.rows.host.codes
    rows = np.split(np.argsort(of, kind="stable"), np.cumsum(np.bincount(of))[:-1])
    sizes: list[list[tuple[float, float, float, str]]] = [[] for _ in channels]
    for name, mine in zip(names.tolist(), rows, strict=True):
        part = np.abs(picked(X, evenly(mine, max(LEVEL_WINDOWS, LEVEL_VALUES // (X.shape[1] * X.shape[2])))))
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
        (first, _, first_high, name), (second, second_low, _, _) = found[:2]
        (before, _, before_high, _), (last, last_low, _, most) = found[-2:]
        if last_low > OTHER_SIZE * before_high:
            name, ratio = most, f"{_round(last / before)} times"
        elif second_low > OTHER_SIZE * first_high:
            ratio = f"1/{_round(second / first)} of"
        else:
            continue
        notes.append(f"Values of {channel} on {name} have about {ratio} the size of those elsewhere: another unit?")
    return notes


def _round(ratio: float) -> str:
    return f"{float(f'{ratio:.2g}'):,.0f}"
