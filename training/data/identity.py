"""Recognise equal windows and related recordings by their content, whatever their names.

A window's digest covers its samples and the channels' names, and neither its number nor its recording, host or time.
Two recordings are *kin* if a window of one begins with samples that the other contains as well. Two recordings of one
host and one clock are also kin if their windows overlap in time. Kin of one host count as one recording wherever data
are divided or resampled. Kin of two hosts are a contradiction, as a sample comes from one machine.

Equal values prove nothing if little happens: an idle hour of zeros equals every other. Samples count as shared only if
they are very unlikely to be equal by chance, judged by how often their values and steps occur in the data.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from math import log2
from typing import NamedTuple

import numpy as np

from training.data.coded import Coded
from training.data.rows import CodedRows, Rows
from training.data.scratch import ROOM, blocks, picked, release
from training.data.values import AnyArray, Digests, Floats, Floats32, Indices, Names

BLOCK_VALUES = 1 << 20
SAMPLED_WINDOWS = 4096  # from which the usual steps of a channel are read off
HASHED_ROWS = 512  # of a recording at a time
RUN, SKETCH = 8, 256  # steps in a run of a recording, and runs that are remembered of it
SPARE_BITS = 4  # beyond what chance alone could bring about among all windows
EPOCH = 1e8  # seconds: later times are dates, on a clock that all recordings of a host share
TOUCHING = 0.01  # of a window: less than this is no overlap in time but rounding


class Pair(NamedTuple):
    """Two recordings that contain equal windows, and the number of these; or, with the same name twice, a recording
    that repeats its own windows."""

    first: str
    other: str
    windows: int


class Kinship(NamedTuple):
    """The recordings that are kin. ``of`` has, for each of N windows, the name of the one recording as which its
    recording and all its kin count."""

    of: Coded
    equal: tuple[Pair, ...]  # whose windows are copies of which recording's, of any host
    sharing: int  # windows that share samples with another recording
    overlapping: int  # windows that overlap in time with another recording of their host
    strangers: tuple[str, str, str, str] | None  # episode, host, episode, host: the same samples on two hosts
    notes: tuple[str, ...]  # one sentence each, for readers of the numbers

    @property
    def recording(self) -> Names:
        """The names in ``of`` as an array (N,) of strings."""
        return self.of.laid()


# -- digests -----------------------------------------------------------------------------------------------------------


def window_digests(X: Floats32, names: Sequence[str]) -> Digests:
    """Return the digests (N,) of windows ``X`` (N, C, T) whose channels are ``names``; the order of the channels does
    not matter."""
    return _whole(_sample_digests(X, names))


def digest_of_recording(values: AnyArray, names: Sequence[str]) -> str:
    """Return the SHA-256 over a recording's samples ``values`` (S, C) and channel names; the order of the channels,
    host, times and labels do not count."""
    order = sorted(range(len(names)), key=names.__getitem__)
    total = hashlib.sha256("\0".join(names[i] for i in order).encode())
    for start in range(0, len(values), HASHED_ROWS):
        total.update(np.ascontiguousarray(values[start : start + HASHED_ROWS, order], "<f8").data)
    return total.hexdigest()


def sketch_of_recording(values: AnyArray, names: Sequence[str]) -> tuple[int, ...]:
    """Return up to ``SKETCH`` of the lowest digests, ascending, of all runs of ``RUN`` steps between samples (S, C).

    These digests are a random sample of the content. Recordings that overlap for long share digests even if they begin
    at different times, and their counters at different levels. A run in which too little changes proves nothing, and is
    left out.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # who judges values says so of infinite ones
        steps = np.nan_to_num(np.diff(values, axis=0).astype(np.float32))
    if len(steps) < RUN or not steps.shape[1]:
        return ()
    digests = _runs(_sample_digests(steps.T[None], names), RUN)[0]
    found: dict[int, None] = {}
    for row in np.argsort(digests, kind="stable")[: 16 * SKETCH].tolist():
        seen = np.unique(steps[row : row + RUN])
        if (seen != 0).sum() >= RUN:
            found[int(digests[row])] = None
        if len(found) == SKETCH:
            break
    return tuple(found)


def _sample_digests(X: Floats32, names: Sequence[str]) -> Digests:
    """Return the digests (N, T) of the samples of windows ``X`` (N, C, T), of all channels together.

    The windows are read in blocks, as ``X`` may be larger than memory.
    """
    total: Digests = ROOM.empty((len(X), X.shape[2]), np.uint64)
    for start, part in blocks(X, 4 * BLOCK_VALUES):
        total[start : start + len(part)] = sample_digests(part.transpose(1, 0, 2), names)
        release(total)
    return total


def sample_digests(values: Floats32, names: Sequence[str]) -> Digests:
    """Return the digests of samples ``values`` (C, ...), each of all channels together; the result has the shape
    without C."""
    total = np.zeros(values.shape[1:], np.uint64)
    for channel, name in zip(values, names, strict=True):
        salt = np.frombuffer(hashlib.sha256(name.encode()).digest()[:8], "<u8")[0].astype(np.uint64)
        plain = np.ascontiguousarray(channel, "<f4") + np.float32(0)  # -0 is 0
        plain[np.isnan(plain)] = np.nan  # of which there are many in bits
        total += _mixed(plain.view("<u4").astype(np.uint64) + salt)
    return total


def _whole(rows: Digests) -> Digests:
    return np.concatenate([np.empty(0, np.uint64), *(_runs(part, rows.shape[1])[:, 0] for _, part in blocks(rows))])


def _mixed(z: Digests) -> Digests:
    """Mix the bits of each number with the finaliser of SplitMix64, so that every input bit affects every output
    bit."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _runs(rows: Digests, length: int) -> Digests:
    """Return the digests (n, T - length + 1) of every run of ``length`` samples, computed from the samples' digests
    (n, T)."""
    count = rows.shape[1] - length + 1
    total = np.zeros((len(rows), count), np.uint64)
    for place in range(length):
        total *= np.uint64(0x9E3779B97F4A7C15)
        total += rows[:, place : place + count]
    return _mixed(total)


class Marks(NamedTuple):
    """Runs of samples inside windows, selected by their content, so that overlapping windows select the same runs."""

    window: Indices  # (n,) the window of each run
    digest: Digests  # (n,)


def marks_of(X: Floats32, names: Sequence[str], every: int, *, telling: bool) -> Marks:
    """Return about one in ``every`` runs of samples of windows ``X`` (N, C, T), selected by their digests.

    With ``telling``, runs that other data may equal by chance are left out.
    """
    length = run_length(X.shape[2])
    samples = _sample_digests(X, names)
    chance = _ChanceEquality(X)
    windows, digests = [], []
    step = max(1, BLOCK_VALUES // (X.shape[1] * X.shape[2]))
    for start in range(0, len(X), step):
        runs = _runs(samples[start : start + step], length)
        row, offset = np.nonzero(runs % np.uint64(every) == 0)
        if telling and row.size:
            part = np.asarray(X[start : start + step], np.float32)
            places = offset[:, None] + np.arange(length)
            run = part[row[:, None], :, places].transpose(0, 2, 1)  # (n, C, length)
            said = chance.excluded(run, np.arange(row.size), 0, length)
            keep = np.array([said[number] for number in range(row.size)], bool)
            row, offset = row[keep], offset[keep]
        windows.append(row + start)
        digests.append(runs[row, offset])
    return Marks(np.concatenate([*windows, np.empty(0, int)]), np.concatenate([*digests, np.empty(0, np.uint64)]))


def run_length(samples: int) -> int:
    """Return the length of the runs by which windows of ``samples`` samples are compared: a quarter, at least 4; of
    rows that are windows, 1."""
    return min(samples, max(4, samples // 4))


# -- kin ---------------------------------------------------------------------------------------------------------------


def find_kin(X: Floats32, names: Sequence[str], rows: Rows | CodedRows, digests: Digests | None = None) -> Kinship:
    """Return which recordings of the windows ``X`` (N, C, T) are kin.

    ``digests`` (N, T) has the digests of the samples; if None, they are computed.
    """
    rows = rows.coded
    ids, of = rows.episode.names, rows.episode.codes
    host = np.empty(ids.size, np.int32)
    host[of] = rows.host.codes  # of an episode each window has the same
    hosts = rows.host.names[host]
    digests = _sample_digests(X, names) if digests is None else digests
    whole = _whole(digests)
    chance = _ChanceEquality(X)
    equal = _equal_windows(X, whole, of, chance)
    links, sharing = _shared_samples(X, digests, of, chance)
    tree = list(range(len(ids)))
    strangers: tuple[str, str, str, str] | None = None
    for a, b in sorted(links | set(equal)):
        if hosts[a] == hosts[b]:
            _join(tree, a, b)
        elif strangers is None:
            strangers = str(ids[a]), str(hosts[a]), str(ids[b]), str(hosts[b])
    timed, overlapping, unclear = _overlaps_in_time(of, hosts, rows.t_start, rows.t_end)
    for a, b in timed:
        _join(tree, a, b)
    root = np.array([_root(tree, number) for number in range(len(ids))], int)
    return Kinship(
        of=rows.episode.renamed(ids[root].tolist()),
        equal=tuple(Pair(str(ids[a]), str(ids[b]), n) for (a, b), n in sorted(equal.items())),
        sharing=sharing,
        overlapping=overlapping,
        strangers=strangers,
        notes=_notes(len(X), ids, root, sharing, overlapping, unclear),
    )


def of_two_hosts(strangers: tuple[str, str, str, str]) -> str:
    """Return the sentence for two recordings with the same samples but different hosts, given as episode, host,
    episode, host."""
    one, host, other, elsewhere = strangers
    return (
        f"The recordings {one!r} of {host} and {other!r} of {elsewhere} hold the same samples, and a sample comes "
        "from one host: leave one of them out, or name its host rightly."
    )


def _equal_windows(X: Floats32, whole: Digests, of: Indices, chance: _ChanceEquality) -> Counter[tuple[int, int]]:
    """Return, for pairs of recordings, the number of equal windows that chance cannot explain.

    ``whole`` (N,) has the windows' digests. Each copy counts for the pair with the first recording that has the window.
    """
    order = np.lexsort((of, whole))
    same = np.r_[False, whole[order][1:] == whole[order][:-1]]
    first = np.maximum.accumulate(np.where(same, 0, np.arange(order.size)))
    rows, origin = order[same], order[first[same]]
    telling = chance.excluded(X, np.unique(origin), 0, X.shape[2])
    found: Counter[tuple[int, int]] = Counter()
    for row, begin in zip(rows.tolist(), origin.tolist(), strict=True):
        if telling[begin]:
            found[int(of[begin]), int(of[row])] += 1
    return found


def _shared_samples(
    X: Floats32, digests: Digests, of: Indices, chance: _ChanceEquality
) -> tuple[set[tuple[int, int]], int]:
    """Return the pairs of recordings of which one contains the first samples of a window of the other. Return also the
    number of windows that contain samples shared by two recordings."""
    length = run_length(X.shape[2])
    begins = _whole(digests[:, :length])
    order = np.lexsort((of, begins))
    begins = begins[order]
    new = np.r_[True, begins[1:] != begins[:-1]]
    known, group = begins[new], np.cumsum(new, dtype=np.int32) - np.int32(1)
    holder = order[new]  # the first window, by recording, that begins so
    links: set[tuple[int, int]] = set()
    shares = np.zeros(len(X), bool)
    telling: dict[int, bool] = {}

    def take(rows: Indices, groups: Indices) -> None:
        other = of[rows] != of[holder[groups]]
        rows, groups = rows[other], groups[other]
        new = [g for g in np.unique(groups).tolist() if g not in telling]
        said = chance.excluded(X, holder[np.array(new, int)], 0, length)
        telling.update({g: said[int(holder[g])] for g in new})
        keep = np.array([telling[g] for g in groups.tolist()], bool)
        rows, mates = rows[keep], holder[groups[keep]]
        shares[rows] = shares[mates] = True
        pairs = np.unique(np.stack([of[mates], of[rows]], axis=1), axis=0)
        links.update((min(a, b), max(a, b)) for a, b in pairs.tolist())

    take(order, group)
    mask = np.uint64((1 << max(16, (8 * known.size).bit_length())) - 1)
    maybe = np.zeros(int(mask) + 1, bool)
    maybe[known & mask] = True
    step = max(1, BLOCK_VALUES // X.shape[2])
    for start in range(0, len(X), step):
        runs = _runs(digests[start : start + step, 1:], length)
        row, offset = np.nonzero(maybe[runs & mask])  # most are not, and a table is read faster
        wanted = runs[row, offset]
        found = np.minimum(np.searchsorted(known, wanted), known.size - 1)
        hit = known[found] == wanted
        take(row[hit] + start, found[hit])
        release(digests)
    return links, int(shares.sum())


class _ChanceEquality:
    """Judges whether samples may be equal by chance, from how often their values, and the steps between them, occur in
    the data."""

    def __init__(self, X: Floats32) -> None:
        """Store the windows ``X`` (N, C, T); values are counted at the first call of ``excluded``."""
        count, _, samples = X.shape
        self._X = X
        self._needed = log2(max(count, 1)) + log2(max(count * samples, 1)) + SPARE_BITS
        self._usual: list[tuple[_Frequencies, _Frequencies]] | None = None

    def excluded(self, X: Floats32, rows: Indices, start: int, length: int) -> dict[int, bool]:
        """Return, for each of the ``rows`` of ``X``, True if its ``length`` samples from ``start`` cannot equal others
        by chance; the most distinctive channel decides, or all of them together where windows have one sample."""
        if not rows.size:
            return {}
        if self._usual is None:
            self._usual = self._count()
        best = np.zeros(rows.size)
        for channel, (values, steps) in enumerate(self._usual):
            run = _constant_where_absent(picked(X[:, channel, start : start + length], rows))
            # Where values repeat, steps follow from them; where they wander, values follow from steps.
            walked = values.bits(run[:, :1]) + steps.bits(np.diff(run, axis=1))
            bits = np.minimum(values.bits(run), walked)
            best = best + bits if self._X.shape[2] == 1 else np.maximum(best, bits)
        return dict(zip(rows.tolist(), (best >= self._needed).tolist(), strict=True))

    def _count(self) -> list[tuple[_Frequencies, _Frequencies]]:
        places = np.linspace(0, len(self._X) - 1, SAMPLED_WINDOWS).astype(int)
        part = np.asarray(picked(self._X, np.unique(places)), np.float32)
        part = _constant_where_absent(part)
        return [
            (_Frequencies.of(part[:, channel]), _Frequencies.of(np.diff(part[:, channel], axis=1)))
            for channel in range(part.shape[1])
        ]


def _constant_where_absent(values: AnyArray) -> Floats32:
    """Return the values with absent ones replaced by 0, because an absent value says nothing about which window it
    is from."""
    return np.nan_to_num(np.asarray(values, np.float32), nan=0.0, posinf=np.inf, neginf=-np.inf)


class _Frequencies(NamedTuple):
    """The frequency of each value, as bits of information; a value that did not occur counts as half as frequent as one
    seen once."""

    values: Floats32
    bits_of: Floats
    bits_unseen: float

    @classmethod
    def of(cls, seen: Floats32) -> _Frequencies:
        values, counts = np.unique(seen, return_counts=True)
        return cls(values, -np.log2(counts / max(seen.size, 1)), log2(2 * max(seen.size, 1)))

    def bits(self, values: Floats32) -> Floats:
        """Return the information (n,) in bits of each row of ``values`` (n, k), as if its values were independent.

        A value repeated within a row adds nothing, because a stuck sensor repeats its value.
        """
        ordered = np.sort(values, axis=1)
        new = np.ones(ordered.shape, bool)
        new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        place = np.minimum(np.searchsorted(self.values, ordered), self.values.size - 1)
        each = np.where(self.values[place] == ordered, self.bits_of[place], self.bits_unseen)
        return np.asarray((each * new).sum(axis=1))


def _overlaps_in_time(
    of: Indices, hosts: Names, t_start: Floats, t_end: Floats
) -> tuple[list[tuple[int, int]], int, list[str]]:
    """Return the pairs of recordings of one host whose windows overlap in time, the number of these windows, and the
    hosts with an unclear clock.

    If a host's times are no dates, and more than half of its recordings would overlap, the host's overlaps are ignored,
    because its clock probably restarts with each recording. Overlaps are not ignored on hosts on which each window is a
    recording of its own and no two begin together: those recordings share one clock. If ignored recordings begin at
    different times, the clock is unclear.
    """
    known = np.isfinite(t_start) & np.isfinite(t_end)
    pairs: list[tuple[int, int]] = []
    windows, unclear = 0, []
    for name in np.unique(hosts).tolist():
        rows = np.flatnonzero((hosts == name)[of] & known)
        rows = rows[np.lexsort((t_end[rows], t_start[rows]))]
        if not rows.size:
            continue
        slack = TOUCHING * float(np.median(t_end[rows] - t_start[rows]))
        ends = t_end[rows]
        place = np.where(ends == np.maximum.accumulate(ends), np.arange(rows.size), 0)
        latest, later = rows[np.maximum.accumulate(place)[:-1]], rows[1:]  # of all before the one that ends last
        meets = (t_start[later] < t_end[latest] - slack) & (of[later] != of[latest])
        if not meets.any():
            continue
        found = np.unique(np.stack([of[latest[meets]], of[later[meets]]], axis=1), axis=0)
        mine, dated = np.unique(of[rows]), float(t_start[rows[0]]) >= EPOCH
        # A clock that restarts with each of them would give windows that are recordings of their own one time.
        apart = mine.size == rows.size and bool((np.diff(t_start[rows]) > slack).all())
        if not (dated or apart) and np.unique(found).size * 2 > mine.size:
            _, first = np.unique(of[rows], return_index=True)  # rows are in the order of time
            if np.ptp(t_start[rows[first]]) > slack:
                unclear.append(str(name))
            continue
        pairs += map(tuple, found.tolist())
        windows += np.union1d(later[meets], latest[meets]).size
    return pairs, windows, unclear


def _join(tree: list[int], a: int, b: int) -> None:
    first, other = sorted((_root(tree, a), _root(tree, b)))
    tree[other] = first


def _root(tree: list[int], number: int) -> int:
    while tree[number] != number:
        tree[number] = tree[tree[number]]
        number = tree[number]
    return number


def _notes(
    windows: int, ids: Names, root: Indices, sharing: int, overlapping: int, unclear: Sequence[str]
) -> tuple[str, ...]:
    notes = []
    if ids.size == windows > 1:
        notes.append("Each window counts as a recording of its own: no two bear the name of one.")
    joined = np.flatnonzero(root != np.arange(root.size))
    if joined.size:
        one = int(joined[0])
        why = " and ".join(
            f"{count:,} windows {what}"
            for count, what in ((sharing, "share samples with"), (overlapping, "overlap in time with"))
            if count
        )
        notes.append(
            f"{why} another recording of their host (the first: {ids[root[one]]} and {ids[one]}): such "
            f"recordings count as one, so that of {ids.size:,} there are {np.unique(root).size:,}."
        )
    notes += [
        f"The recordings of {host} overlap in time if its times are on one clock, which was not assumed."
        for host in unclear
    ]
    return tuple(notes)
