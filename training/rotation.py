"""Rotations: jobs that differ only in the seed and in which one of the same hosts is tested, and the averages of their
figures. PURE: values in and out.

The result of one host and one seed proves little. A rotation tests every host in turn, and three numbers summarize it:
the mean over hosts of each host's mean over seeds, the spread between hosts, and the worst host.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from training.contract import Recipe, digest, identity_of


class Turn(NamedTuple):
    """The place of one job in its rotation: the tested host and the seed. ``key`` is equal for all jobs of a rotation,
    and for no other job."""

    key: str
    hosts: tuple[str, ...]  # of the rotation, sorted
    host: str  # tested
    seed: int


def turn_of(spec: Mapping[str, Any]) -> Turn | None:
    """Return a job dict's place in its rotation; None if the job belongs to no rotation. A rotation's job has the
    recipe ``host``, a whole number as seed, train hosts, and exactly one test host, which is none of the train
    hosts."""
    tested, trained = list(spec.get("test_hosts") or []), list(spec.get("train_hosts") or [])
    seed = spec.get("seed")
    if spec.get("split_recipe") != Recipe.HOST or len(tested) != 1 or not trained or tested[0] in trained:
        return None
    if not isinstance(seed, int):
        return None
    hosts = tuple(sorted({*map(str, trained), str(tested[0])}))
    rest = {**identity_of(spec), "train_hosts": list(hosts), "test_hosts": None, "seed": None}
    return Turn(digest(rest), hosts, str(tested[0]), seed)


def trains_on_all(spec: Mapping[str, Any], like: Mapping[str, Any], hosts: Sequence[str]) -> bool:
    """Tell whether a job differs from ``like`` at most in split and seed, and trains on all ``hosts``: then its model
    is the one to deploy. Any recipe but ``host`` counts as training on all."""
    split = dict.fromkeys(("split_recipe", "train_hosts", "test_hosts", "seed", "split_seed"))
    if {**identity_of(spec), **split} != {**identity_of(like), **split}:
        return False
    return spec.get("split_recipe") != Recipe.HOST or {*hosts} <= {*(spec.get("train_hosts") or ())}


@dataclass(frozen=True)
class Fold:
    """A figure of a rotation, such as its AUROC: the mean over hosts, the spread, and the worst host with its value."""

    mean: float  # over hosts, of each host's mean over seeds
    spread: float | None  # standard deviation between the hosts' means (n - 1); None: of one host there is none
    seed_spread: float | None  # standard deviation between seeds, pooled over hosts; None: no host has two seeds
    worst_host: str
    worst: float  # that host's mean


def fold(values: Mapping[str, Sequence[float]], *, low_is_worst: bool = True) -> Fold | None:
    """Combine the values of each host (one for each seed) into a Fold in which every host counts the same; None if
    there are no values. The worst host has the lowest mean or, without ``low_is_worst``, the highest."""
    means = {host: math.fsum(found) / len(found) for host, found in sorted(values.items()) if found}
    if not means:
        return None
    mean = math.fsum(means.values()) / len(means)
    spread = None
    if len(means) > 1:
        spread = math.sqrt(math.fsum((each - mean) ** 2 for each in means.values()) / (len(means) - 1))
    within = [(each - means[host]) ** 2 for host in means for each in values[host]]
    free = len(within) - len(means)
    pick = min if low_is_worst else max
    worst = pick(means, key=means.__getitem__)
    return Fold(mean, spread, math.sqrt(math.fsum(within) / free) if free else None, worst, means[worst])
