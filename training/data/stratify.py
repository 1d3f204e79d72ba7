"""Dealing episodes into parts of given shares, evenly over classes and hosts. Pure, and the same for equal seeds."""

from __future__ import annotations

import numpy as np

from training.data.arrays import Bools, Floats, Ints, Names


def stratify(has_class: Bools, host: Names, shares: tuple[float, ...], rng: np.random.Generator) -> Ints:
    """The part of each of E episodes; ``has_class`` is (E, K), ``shares`` sum to 1.

    Episodes are lined up by their rarest class, then host, then chance; each goes to the part that
    is furthest behind its share. Every run of the line, so every class and host, is thereby divided
    like the whole. Afterwards the largest part has every class, and a part that still lacks one takes
    an episode with it from the largest, when that one can spare it.
    """
    rarest = _rarest_class(has_class)
    _, of_host = np.unique(host, return_inverse=True)
    line = np.lexsort((rng.permutation(host.size), of_host, rarest))
    part = np.zeros(host.size, dtype=np.int64)
    goal = np.asarray(shares)
    owed = goal * rng.random()  # a random phase, so that no part always comes first
    for row in line:
        owed += goal
        part[row] = int(np.argmax(owed))
        owed[part[row]] -= 1.0
    _fill_empty_parts(part, goal, has_class)
    return part


def _rarest_class(has_class: Bools) -> Ints:
    episodes_with = has_class.sum(axis=0).astype(np.float64)
    ranked = np.where(has_class, episodes_with, np.inf)
    return np.asarray(ranked.argmin(axis=1), dtype=np.int64)


def _fill_empty_parts(part: Ints, goal: Floats, has_class: Bools) -> None:
    """Move single episodes, in place: the largest part gets every class, then each other part what can be spared."""
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
    """Give one episode, of the ``wanted`` ones, if the giver keeps all its classes without it; whether it could."""
    mine = part == giver
    kept = (has_class[mine].sum(axis=0) > 1) | ~has_class
    free = mine & kept.all(axis=1)
    spare = np.flatnonzero(free if wanted is None else free & wanted)
    if spare.size:
        part[spare[-1]] = taker
    return spare.size > 0
