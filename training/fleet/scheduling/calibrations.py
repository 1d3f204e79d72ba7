"""A comparison of the speeds that hosts measured themselves (calibrations). Pure."""

import math
from collections.abc import Iterable, Mapping

from training.flag import BoundBy
from training.fleet.scheduling.predictions import amount

MIXED = ""  # the sort of work of a trainer that does not say what bounds it
# Variances of logarithms
_HOST, _CALIBRATED = 1.5**2, 0.5**2  # hosts differ so much, and so much where their measurement is taken off …
_PAIR, _MEASURED_PAIR = 0.7**2, 0.4**2  # … and for one family beside what they do for others
_MEASURED = ("gflops", "cuda_gflops", "steps", "cuda_steps", "branches")  # in a calibration
_FASTER_MOST = 1_000.0  # the fastest host, than the middle one


def middle(values: Iterable[float]) -> float:
    """Return the median of at least one value; of an even number of values, the lower of the two middle ones."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def calibrated(calibration: object) -> Mapping[str, float]:
    """Return a host's speed at each sort of work from its calibration, in a form that can be compared with other hosts.

    ``MIXED`` is for trainers that do not say what bounds them: the geometric mean of matrices and steps. For matrices
    and steps, the faster one of a host's CPU and GPU counts. Invalid values count as not measured.
    """
    if not isinstance(calibration, Mapping):
        return {}
    gflops, cuda_gflops, steps, cuda_steps, branches = (amount(calibration.get(name)) or 0.0 for name in _MEASURED)
    matrices, steps = max(gflops, cuda_gflops), max(steps, cuda_steps)
    found: dict[str, float] = {BoundBy.MATRICES: matrices, BoundBy.STEPS: steps, BoundBy.BRANCHES: branches}
    found[MIXED] = math.sqrt(matrices * steps)
    return {sort: speed for sort, speed in found.items() if speed > 0}


class Calibrations:
    """All hosts' calibrations: how many times slower each host is than the fastest, by sort of work.

    ``bound_by`` maps a family of models to the sort of work that bounds it, as its trainer declares. The object is
    immutable.
    """

    def __init__(
        self,
        measured: Mapping[str, Mapping[str, float]] | None = None,  # host → sort of work → speed
        bound_by: Mapping[str, str] | None = None,  # family → sort of work
    ) -> None:
        self._bound_by = dict(bound_by or {})
        self.hosts = frozenset(host for host, speeds in (measured or {}).items() if speeds)
        self._slower: dict[str, dict[str, float]] = {}  # sort of work → host → logarithm, from 0 on
        for sort in (MIXED, *BoundBy):
            speeds = {host: told[sort] for host, told in (measured or {}).items() if sort in told}
            if speeds:
                # A host that claims to be thousands of times as fast as others says nothing about these.
                best = min(max(speeds.values()), _FASTER_MOST * middle(speeds.values()))
                self._slower[sort] = {host: math.log(max(1.0, best / speed)) for host, speed in speeds.items()}

    def slower(self, host: str, family: str) -> float:
        """Return the logarithm of the factor by which a family's jobs take longer on this host than on the fastest
        host.

        If no host has a measurement of the family's sort of work, the mixed speed counts. A host without a measurement
        counts as the median host; if no host has one, the result is 0.
        """
        of_sort = self._slower.get(self._bound_by.get(family, MIXED)) or self._slower.get(MIXED, {})
        if host in of_sort or not of_sort:
            return of_sort.get(host, 0.0)
        return sorted(of_sort.values())[len(of_sort) // 2]

    def differ(self, host: str) -> tuple[float, float]:
        """Return two variances of the logarithm of a host's time that remain after calibration: the variance common to
        all families of models, and the variance of a single family.
        """
        return (_CALIBRATED, _MEASURED_PAIR) if host in self.hosts else (_HOST, _PAIR)
