"""Absent values: NaN, wherever nothing was measured.

Values are absent, for example, for a host without a sensor, an empty cell, or a channel that means something else in
another view; this is no error. A window is "settled" if each channel is either known in all samples or absent from all.
The function `settled` fills a channel of which at least half of a window's samples are known, by straight lines and, at
the ends, by repetition. A channel with fewer known samples becomes absent from the window. The features of an absent
channel are NaN; trees handle NaN, networks get a mask. All functions are pure.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from training.data.classes import listed
from training.data.coded import Coded
from training.data.scratch import ROOM, blocks, release
from training.data.values import AnyArray, Bools, Floats, Floats32, Ints, Names

KNOWN_MIN = 0.5  # of a channel's samples in a window; with fewer it is absent there
LACKING_MIN = 0.5  # of a host's windows; without a channel in as many the host lacks it
TOLD_SHARE, TOLD_TENTH = 0.05, 0.1  # of a channel missing in a class, from which; and of that in the others, at most
RARE_MIN = 0.95  # of a host's windows; a channel absent in as many though it has values there is rare
STEP_MIN = 16  # values in windows; fewer show no step
PAIR = "~"  # between the two channels of a correlation


def absent(X: AnyArray) -> Bools:
    """Return a mask (N, C) of the channels that are absent from each of the settled windows ``X`` (N, C, T)."""
    return np.isnan(X[:, :, 0])


def is_settled(X: AnyArray) -> bool:
    """Return True if each channel of each window in ``X`` (N, C, T) is either known in all samples or absent from
    all."""
    unknown = np.isnan(X)
    return bool((unknown.any(axis=2) == unknown.all(axis=2)).all())


def settled(X: Floats32) -> Floats32:
    """Return the windows ``X`` (N, C, T) with each channel made either known in all samples or absent from all; ``X``
    itself if that is already so."""
    known = ~np.isnan(X)
    share = known.mean(axis=2)
    if ((share == 0) | (share == 1)).all():
        return X
    result = X.copy()
    result[share < KNOWN_MIN] = np.nan
    partly = (share >= KNOWN_MIN) & (share < 1)
    result[partly] = _bridged(X[partly], known[partly])
    return result


def _bridged(rows: Floats32, known: Bools) -> Floats:
    """Return rows (m, T) with gaps filled by straight lines between known neighbours.

    Gaps before the first and after the last known value repeat that value. Each row must have a known sample.
    """
    samples = rows.shape[1]
    place = np.broadcast_to(np.arange(samples), rows.shape)
    left = np.maximum.accumulate(np.where(known, place, -1), axis=1)
    right = np.minimum.accumulate(np.where(known, place, samples)[:, ::-1], axis=1)[:, ::-1]
    left, right = np.where(left < 0, right, left), np.where(right == samples, left, right)
    low = np.take_along_axis(rows, left, axis=1).astype(float)
    high = np.take_along_axis(rows, right, axis=1).astype(float)
    way = np.divide(place - left, right - left, out=np.zeros(rows.shape), where=right > left)
    return np.asarray(low + (high - low) * way)


def columns_of(features: Sequence[str], channel: str) -> Ints:
    """Return the column numbers of the features that are computed from this channel: its statistics and its
    correlations."""
    return np.array([i for i, name in enumerate(features) if channel in channels_of(name)], int)


def channels_of(feature: str) -> tuple[str, ...]:
    """Return the names of the channels (one, or two for a correlation) from which the feature with this name is
    computed."""
    return tuple(feature.rpartition(".")[0].split(PAIR))


def without(X: Floats32, names: Sequence[str], taken: Iterable[str]) -> Floats32:
    """Return a copy of the windows ``X`` (N, C, T), whose channels are ``names``, with the channels ``taken`` made
    absent."""
    result = np.array(X, np.float32)
    result[:, [names.index(name) for name in taken]] = np.nan
    return result


def on_channels(X: Floats32, places: Sequence[int | None]) -> Floats32:
    """Return the windows ``X`` (N, C, T) with only the channels whose numbers ``places`` gives, in that order; None
    gives an absent channel."""
    result = ROOM.empty((len(X), len(places), X.shape[2]), np.float32)
    for start, part in blocks(X):
        for number, place in enumerate(places):
            result[start : start + len(part), number] = np.nan if place is None else part[:, place]
        release(result)
    return result


def lacking_hosts(X: AnyArray, host: Names | Coded) -> Bools:
    """Return a mask (H, C), a row for each host in the ascending order of their names: True where the host lacks the
    channel.

    A host lacks a channel that is absent from at least the share ``LACKING_MIN`` of its windows. ``X`` (N, C, T) has
    the settled windows of all hosts.
    """
    return lacking(((start, absent(part)) for start, part in blocks(X)), host)


def lacking(gone: Iterable[tuple[int, AnyArray]], host: Names | Coded) -> Bools:
    """Return the mask of :func:`lacking_hosts`, computed from parts of the windows.

    ``gone`` yields, for each part, the number of its first window and the mask (n, C) of its absent channels.
    """
    of_host = Coded.of(host).codes
    count = np.bincount(of_host)
    lacks: Any = 0
    for start, part in gone:
        of = of_host[start : start + len(part)]
        lacks = lacks + np.stack([np.bincount(of, column, count.size) for column in part.T], axis=1)
    return np.asarray(lacks / count[:, None] >= LACKING_MIN)


class Rare(NamedTuple):
    """A channel that has values, but too few of them in nearly all windows of ``hosts``; empty ``hosts`` means all
    hosts that have the channel."""

    channel: str
    hosts: tuple[str, ...]
    share: float  # of the windows that lack it, of those where it has values at all
    every: int  # samples from value to value; 0: they are few, or lie together in few windows
    even: bool  # those samples are as many throughout


def rare_channels(names: Sequence[str], host: Names | Coded, gone: AnyArray, samples: int) -> list[Rare]:
    """Return the channels that have some values on a host, but too few in nearly all of its windows, each of
    ``samples`` samples.

    ``gone`` (N, C) has the number of missing samples of each channel in each window; ``host`` has each window's host.
    """
    hosts, of_host = (coded := Coded.of(host)).names, coded.codes
    count = np.bincount(of_host, minlength=hosts.size)
    found = []
    for number, name in enumerate(names):
        known = samples - gone[:, number].astype(int)
        lacks = known < KNOWN_MIN * samples
        if not (lacks & (known > 0)).any():
            continue
        has = np.bincount(of_host, known, hosts.size) > 0
        lost = np.bincount(of_host, lacks, hosts.size)
        rare = has & (lost >= RARE_MIN * count)
        if not rare.any():
            continue
        mine = rare[of_host]
        spread, scarce = known[mine], known[mine & lacks]
        scattered = 2 * scarce.sum() >= spread.sum() >= STEP_MIN
        which = () if (rare == has).all() else tuple(hosts[rare].tolist())
        every = round(samples * spread.size / int(spread.sum())) if scattered else 0
        found.append(Rare(name, which, float(lost[rare].sum() / count[rare].sum()), every, bool(np.ptp(scarce) <= 1)))
    return found


def notes_on_absent(
    names: Sequence[str], label: Names | Coded, host: Names | Coded, gone: AnyArray, samples: int = 1
) -> list[str]:
    """Return sentences that name the hosts without any value of some channels, and the channels whose gaps may reveal
    the class.

    ``gone`` (N, C) has the number of missing samples of each channel in each window of ``samples`` samples.
    """
    hosts, of_host = (known := Coded.of(host)).names, known.codes
    least = np.full((hosts.size, len(names)), samples)
    np.minimum.at(least, of_host, gone)
    has = least < samples
    missing = [[names[i] for i in np.flatnonzero(~each).tolist()] for each in has]
    said = [
        f"The host {name} has no value of {listed(channels)}: absent there, as on a machine that cannot measure it."
        for name, channels in zip(hosts.tolist(), missing, strict=True)
        if channels
    ]
    for number, name in enumerate(names):
        if gone[:, number].any():
            said += _told_by_gaps(name, Coded.of(label), has[of_host, number], gone[:, number] / samples)
    return said


def _told_by_gaps(name: str, label: Coded, there: Bools, gone: Floats) -> list[str]:
    """Return a list with one sentence if samples of a channel are missing in one class's windows and hardly any in the
    others'; else an empty list.

    Only the windows ``there``, of hosts that measure the channel, count; ``gone`` (N,) is each window's missing share.
    """
    mine, share = Coded.of(label.take(there)), gone[there]
    shares = [(float(share[mine.codes == number].mean()), one) for number, one in enumerate(mine.names.tolist())]
    if len(shares) < 2:
        return []
    (most, where), (next_most, _), *_ = sorted(shares, reverse=True)
    if most < TOLD_SHARE or next_most > TOLD_TENTH * most:
        return []
    said = f"{100 * most:.0f} % of {name} is missing in windows of {where}, and {100 * next_most:.2g} % at most in the"
    return [f"{said} others: what is missing may tell the class."]
