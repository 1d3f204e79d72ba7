"""Note data in which the host or the time separates the classes, or two channels have the same values. All functions
are pure.

If each class comes from other hosts or other times, a model cannot know whether to learn the behaviour, or the host or
time.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from training.data.classes import listed
from training.data.doubts.windows import WindowsInQuestion
from training.data.rows import CodedRows
from training.data.scratch import blocks

RECORDINGS_LEAST = 2  # of a host, to say that its classes follow each other: one recording has to begin with one


def doubled_channels(windows: WindowsInQuestion) -> list[str]:
    """Return a sentence for each channel whose values equal those of an earlier channel in all windows.

    Channels that never change are left to another detector.
    """
    X, names = windows.X, windows.channels
    low, high = np.full(len(names), np.inf), np.full(len(names), -np.inf)
    digests = [hashlib.sha256() for _ in names]
    for _, part in blocks(X):
        low, high = np.minimum(low, part.min(axis=(0, 2))), np.maximum(high, part.max(axis=(0, 2)))
        for number, digest in enumerate(digests):
            digest.update(part[:, number].tobytes())
    first: dict[str, str] = {}
    notes = []
    for number in np.flatnonzero(low != high).tolist():
        name = names[number]
        other = first.setdefault(digests[number].hexdigest(), name)
        if other != name:
            notes.append(f"The channels {other} and {name} hold the same values: leave one out with --ignore.")
    return notes


def confounded(windows: WindowsInQuestion) -> list[str]:
    """Return sentences if the host, or the time (if times can be compared), separates the classes."""
    rows, benign = windows.rows, windows.benign
    found = [*_classes_of_one_host(rows), *_hosts_of_one_side(rows, benign)]
    return [*found, *_sides_in_time(rows, benign)] if windows.timed and windows.one_clock else found


def _classes_of_one_host(rows: CodedRows) -> list[str]:
    if rows.host.names.size < 2:
        return []
    of: dict[str, list[str]] = {}
    for number, name in enumerate(rows.label.names.tolist()):
        found = rows.host.take(rows.label.codes == number).present.tolist()
        if len(found) == 1:
            of.setdefault(found[0], []).append(name)
    return [
        f"Only the host {host} has the class{'es' * (len(names) > 1)} {listed(names)}: no other host can test it."
        for host, names in of.items()
    ]


def _hosts_of_one_side(rows: CodedRows, benign: Sequence[str]) -> list[str]:
    is_benign = rows.label.among(benign)
    total, good = np.bincount(rows.host.codes), np.bincount(rows.host.codes, is_benign)
    calm, wild = rows.host.names[good == total].tolist(), rows.host.names[good == 0].tolist()
    if not calm or not wild or len(calm) + len(wild) < total.size:
        return []
    said = f"Each host is wholly benign ({listed(calm)}) or not at all ({listed(wild)}): what tells hosts apart tells"
    return [f"{said} the classes apart, and figures say nothing about behaviour."]


def _sides_in_time(rows: CodedRows, benign: Sequence[str]) -> list[str]:
    is_benign = rows.label.among(benign)
    orders = set()
    for number in range(rows.host.names.size):
        mine = rows.host.codes == number
        calm, other = rows.t_start[mine & is_benign], rows.t_start[mine & ~is_benign]
        if not calm.size or not other.size:
            continue
        if rows.episode.take(mine).present.size < RECORDINGS_LEAST:
            return []
        orders.add("before" if calm.max() <= other.min() else "after" if other.max() <= calm.min() else "among")
    if len(orders) != 1 or "among" in orders:
        return []
    (order,) = orders
    said = f"On every host all benign windows lie {order} the others"
    return [f"{said}: whatever drifts with time tells the classes apart as well."]
