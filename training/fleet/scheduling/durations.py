"""Predictions of how long a job takes on a host, learned from the durations of attempts. Pure.

The logarithm of the seconds is fitted a family at a time: the host's time for the family, and a power of each of the
job's sizes (its numeric hyperparameters), jointly, by ridge regression in closed form (:class:`_Fit`). A host's time is
shrunk towards its calibration and the family's mean; an outlying attempt gets little weight (Huber). The deviation of a
kind, and of exact settings on one host, are shrunk means of the fit's residuals. A host that never trained a family is
expected to be as fast with the family, relative to other hosts, as it is with other families (:class:`_HostEffects`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import mul, sub
from typing import Any

from training.fleet.scheduling.calibrations import Calibrations, middle
from training.fleet.scheduling.predictions import (
    LEAST_S,
    MOST_S,
    Basis,
    Prediction,
    bounded,
    own_word,
    word_variance,
)
from training.fleet.scheduling.workload import Workload
from training.frozen import frozen

_LINEAR = ("epoch", "round", "step", "tree", "iter", "estimator", "size")  # in the names of sizes that tell how much
_SPREAD_MOST = math.log(MOST_S / LEAST_S)  # more says no more: anything between these two is possible
_SURPRISE = 9.0  # an attempt beyond three standard deviations
_WORD_LEAST = 0.02  # share of its work of which an attempt's own estimate says something of others
_NEWEST, _AGE = 20, 0.9  # attempts of a family on a host that count, and the weight of each beside the next one
_REPEATS = 3  # of attempts with the very same settings on a host the middle of the newest ones counts
_ROUNDS, _SWEEPS = 4, 12  # of weighing again what fits badly; of setting families and hosts beside each other
_HUBER = 1.5  # standard deviations beyond which an attempt weighs less
_MIDDLE_STEP = 0.6745 * math.sqrt(2.0)  # between two equal attempts, in standard deviations
# Expectations before any attempt: means and variances
_BASE = (math.log(60.0), 1.6**2 + 0.9**2)  # of a family on the fastest host
_LINEAR_POWER, _POWER = (1.0, 0.5**2), (0.0, 0.5**2)  # of sizes that tell how much is done, and of others
_UNLIKE, _NOISE, _KNOWN_N = 0.3**2, 0.1**2, 3.0  # kinds beyond their sizes; equal attempts; weight of these guesses
_CELL_LEAST = 0.1**2  # of a kind on one host
_NOISE_LEAST, _NOISE_MOST, _UNLIKE_LEAST, _UNLIKE_MOST = 0.02**2, 1.0**2, 0.05**2, 1.5**2


@frozen
class Word:
    """A running attempt's own estimate of its whole duration, made when a share ``done`` of its work was complete."""

    work: Workload
    on: str
    seconds: float
    done: float


@frozen
class _Attempt:
    work: Workload
    log_s: float
    unsure: float = 0.0  # variance of what is still an estimate, because it goes on


Attempts = dict[str, deque[_Attempt]]  # of a family: host → the newest


@dataclass
class Speeds:
    """All that the receiver knows about durations: the newest attempts of each family on each host, and the hosts'
    calibrations."""

    calibrations: Calibrations = field(default_factory=Calibrations, compare=False)  # first guesses
    attempts: dict[str, Attempts] = field(default_factory=dict)
    awaited: dict[str, dict[str, float]] = field(default_factory=dict)  # of families that nobody trained: middle sizes
    _fits: dict[str, _Fit] = field(default_factory=dict, init=False, compare=False, repr=False)
    _hosts: _HostEffects | None = field(default=None, init=False, compare=False, repr=False)

    def learn(self, work: Workload, on: str, seconds: float, unsure: float = 0.0) -> None:
        """Add the duration of an attempt of this workload on the host ``on``. A negative or infinite duration, or NaN,
        is ignored; any other is brought into the range from ``LEAST_S`` to ``MOST_S``.

        ``unsure`` is the variance of the duration's logarithm, if the duration is an estimate because the training is
        still running.
        """
        if not math.isfinite(seconds) or seconds < 0:
            return
        newest = self.attempts.setdefault(work.family, {}).setdefault(on, deque(maxlen=_NEWEST))
        newest.append(_Attempt(work, math.log(bounded(seconds)), unsure))
        self._fits.pop(work.family, None)
        self._hosts = None

    def expect(self, works: Sequence[Workload]) -> None:
        """Store the median sizes of the workloads of each family that was never trained, unless some are already stored
        for the family. The first guess for a family that was never trained applies at its stored sizes."""
        for family in {work.family for work in works} - self.attempts.keys() - self.awaited.keys():
            self.awaited[family] = _middles(work for work in works if work.family == family)
            self._fits.pop(family, None)

    def word_of(self, work: Workload, on: str, elapsed_s: float, progress: Mapping[str, Any] | None) -> Word | None:
        """Return a live attempt's own estimate of its duration; None if it has none, if less than a fiftieth of its
        work is done, or if the prediction for its kind is at least as certain."""
        done, left_s = (own_word(progress, elapsed_s) if progress else None) or (0.0, 0.0)
        if done < _WORD_LEAST or word_variance(done) >= self.predict(work, on).spread ** 2:
            return None
        return Word(work, on, elapsed_s + left_s, done)

    def with_words(self, words: Sequence[Word]) -> Speeds:
        """Return these speeds with live attempts' own estimates (``words``) added to a copy; without ``words``, return
        the object itself."""
        if not words:
            return self
        heard = Speeds(self.calibrations, dict(self.attempts), self.awaited)
        heard._fits = dict(self._fits)
        for family in {word.work.family for word in words} & heard.attempts.keys():
            heard.attempts[family] = {host: deque(each, _NEWEST) for host, each in self.attempts[family].items()}
        for word in words:
            heard.learn(word.work, word.on, word.seconds, word_variance(word.done))
        return heard

    def predict(self, work: Workload, on: str) -> Prediction:
        """Return the predicted duration of a job with this workload on the host ``on``."""
        return self._fit(work.family).predict(work, on, self._beside())

    def trained(self, host: str) -> bool:
        """Return True if the duration of any attempt on ``host`` is known."""
        return any(host in hosts for hosts in self.attempts.values())

    def slower_than_measured(self) -> dict[str, float]:
        """Map each host to the factor by which jobs take longer than its calibration predicts, relative to other hosts.

        Only hosts with a calibration and completed jobs are compared; with fewer than two of these the mapping is
        empty.
        """
        effects = self._beside().effects
        away = {host: effects[host][0] for host in self.calibrations.hosts & effects.keys()}
        ordered = sorted(away.values())
        half = (len(ordered) - 2) // 2  # the place of the others' median, …
        if half < 0:
            return {}
        # … one further where this one stands before
        return {host: math.exp(own - ordered[half + (own <= ordered[half])]) for host, own in away.items()}

    def calibrate(self, calibrations: Calibrations) -> None:
        """Replace the hosts' calibrations, from which first guesses are made."""
        self.calibrations, self._fits, self._hosts = calibrations, {}, None

    def _fit(self, family: str) -> _Fit:
        if family not in self._fits:
            awaited = self.awaited.get(family, {})
            self._fits[family] = _Fit(family, self.attempts.get(family, {}), self.calibrations, awaited)
        return self._fits[family]

    def _beside(self) -> _HostEffects:
        if self._hosts is None:
            self._hosts = _HostEffects({family: self._fit(family) for family in self.attempts}, self.calibrations)
        return self._hosts


@dataclass(slots=True)
class _Cell:
    """The attempts with exactly the same settings on one host, as one row of the fit."""

    host: str
    row: Sequence[float]  # 1, the sizes beside their centres, and the logarithm of the seconds, calibration taken off
    noise: float  # the variance of that
    age: float  # weight beside the newest attempt there
    seen: int  # attempts that have ended
    weight: float
    rest: float = 0.0  # what the fit leaves over


class _Fit:
    """The fit for one family of models: each host's time, and the powers of sizes. Before the fit, each host's
    calibrated slowness is subtracted from the logarithms of its seconds."""

    def __init__(
        self, family: str, attempts: Attempts, calibrations: Calibrations, awaited: Mapping[str, float]
    ) -> None:
        self._family, self._calibrations = family, calibrations
        trained = _middles(each.work for newest in attempts.values() for each in newest)
        self._centres = trained if attempts else dict(awaited)
        self._noise, self._unlike = _noise(attempts), _UNLIKE
        self._cells: dict[tuple[str, Workload], _Cell] = {}
        self._surprise = {host: self._take_in(host, newest) for host, newest in attempts.items()}
        self._prior = {host: sum(calibrations.differ(host)) for host in attempts}
        for _ in range(_ROUNDS):
            self._solve()
            self._weigh()
        self._known: dict[Workload, tuple[list[float], float, float, float]] = {}
        self._kinds: dict[str, list[_Cell]] = {}
        for (_, work), cell in self._cells.items():
            self._kinds.setdefault(work.kind, []).append(cell)

    def _sizes(self, work: Workload) -> list[float]:
        sizes = dict(work.sizes)
        return [1.0, *(sizes.get(name, centre) - centre for name, centre in self._centres.items())]

    def _take_in(self, host: str, newest: Sequence[_Attempt]) -> float:
        """Add a host's attempts to the cells. Return the variance that a surprising newest attempt adds to the host's
        predictions.

        The variance is 0 unless the newest attempt took a very different time than others with the same settings.
        """
        slower, ages = self._calibrations.slower(host, self._family), dict[Workload, float]()
        same: dict[Workload, list[_Attempt]] = {}
        for n, each in enumerate(reversed(newest)):
            ages.setdefault(each.work, _AGE**n)
            same.setdefault(each.work, []).append(each)
        for work, attempts in same.items():
            last = attempts[:_REPEATS]
            row = [*self._sizes(work), middle(each.log_s for each in last) - slower]
            noise = (self._noise + sum(each.unsure for each in last) / len(last)) / len(last)
            seen = sum(not each.unsure for each in attempts)
            self._cells[host, work] = _Cell(host, row, noise, ages[work], seen, ages[work] / (_UNLIKE + noise))
        newest_one = newest[-1]
        error = (newest_one.log_s - slower - self._cells[host, newest_one.work].row[-1]) ** 2
        return error / 2 if error > _SURPRISE * (self._noise + newest_one.unsure) else 0.0

    def _solve(self) -> None:
        """Solve the normal equations, after eliminating the hosts' own times."""
        priors = [_BASE, *(_power(name) for name in self._centres)]
        count = range(len(priors))
        normal = [[0.0] * len(priors) + [mean / variance] for mean, variance in priors]
        for n, (_, variance) in enumerate(priors):
            normal[n][n] = 1.0 / variance
        sums = {host: [0.0] * (len(priors) + 1) for host in self._prior}
        for cell in self._cells.values():
            _add(sums[cell.host], cell.row, cell.weight)
            for n in count:
                _add(normal[n], cell.row, cell.weight * cell.row[n])
        for host, told in sums.items():
            for n in count:
                _add(normal[n], told, -told[n] / (told[0] + 1.0 / self._prior[host]))
        self._inverse = _inverted([row[:-1] for row in normal])
        self._means = [_dot(row, [row[-1] for row in normal]) for row in self._inverse]
        self.hosts: dict[str, tuple[float, float, list[float]]] = {}  # beside the family; its variance; mean sizes
        for host, told in sums.items():
            here = 1.0 / (told[0] + 1.0 / self._prior[host])
            mean = here * (told[-1] - _dot(told[:-1], self._means))
            self.hosts[host] = mean, here, [here * each for each in told[:-1]]
            # A host that is nothing like its calibration is not held to it.
            self._prior[host] = max(sum(self._calibrations.differ(host)), mean**2)

    def _weigh(self) -> None:
        """Weight each cell by its residual from the fit; from the residuals, also estimate how much kinds differ."""
        squares = _KNOWN_N * _UNLIKE
        for cell in self._cells.values():
            *sizes, log_s = cell.row
            cell.rest = log_s - self.hosts[cell.host][0] - _dot(self._means, sizes)
            variance = self._unlike + cell.noise
            fits = min(1.0, _HUBER * math.sqrt(variance) / max(abs(cell.rest), 1e-9))
            cell.weight = cell.age * fits / variance
            squares += max(0.0, fits * cell.rest**2 - cell.noise)
        free = max(0, len(self._cells) - len(self.hosts) - len(self._centres))
        self._unlike = min(max(squares / (_KNOWN_N + free), _UNLIKE_LEAST), _UNLIKE_MOST)

    def level(self, host: str) -> tuple[float, float]:
        """Return the logarithm of a host's time for this family at the median sizes, and the variance of that
        logarithm."""
        mean, here, of_sizes = self.hosts[host]
        away = [1.0 - of_sizes[0], *(-each for each in of_sizes[1:])]
        return self._means[0] + mean, here + self._variance(away)

    def _variance(self, sizes: Sequence[float]) -> float:
        return _dot(sizes, [_dot(row, sizes) for row in self._inverse])

    def _everywhere(self, work: Workload) -> tuple[list[float], float, float, float]:
        """Return the parts of a prediction that are the same on every host: the sizes, the logarithm of the seconds,
        its variance, and the part of that logarithm that the kind adds.
        """
        if work not in self._known:
            # The limit on the variance is wide, so that a kind far from the mean keeps its distance.
            told = [(cell.rest, _CELL_LEAST + cell.noise) for cell in self._kinds.get(work.kind, ())]
            mean, _ = _shrunk(told, 0.0, _SPREAD_MOST**2)
            sizes, (unlike, unsure) = self._sizes(work), _shrunk(told, 0.0, max(self._unlike, mean**2))
            log_s = _dot(self._means, sizes) + unlike
            self._known[work] = sizes, log_s, unsure, unlike
        return self._known[work]

    def predict(self, work: Workload, host: str, hosts: _HostEffects) -> Prediction:
        sizes, log_s, everywhere, unlike = self._everywhere(work)
        if host in self.hosts:
            mean, here, of_sizes = self.hosts[host]
            log_s += mean
            everywhere += self._variance(list(map(sub, sizes, of_sizes)))
        else:
            level, unsure, here = hosts.expected(self._family, host)
            log_s += level - self._means[0]
            everywhere += unsure + self._variance([0.0, *sizes[1:]])
        own_kind = max(_CELL_LEAST, self._unlike / 2)
        shared, cell = here + everywhere + own_kind, self._cells.get((host, work))
        if cell is not None:
            rest = cell.rest - unlike
            own_kind = max(own_kind, rest**2)
            log_s += rest * own_kind / (own_kind + cell.noise)
            shared = 1.0 / (1.0 / shared + 1.0 / cell.noise)  # the sum was seen, so that errors of its terms cancel
        shared += self._surprise.get(host, 0.0)
        spread = min(math.sqrt(shared + self._noise), _SPREAD_MOST)
        seconds = bounded(math.exp(min(log_s + self._calibrations.slower(host, self._family), 50.0)))
        own, everywhere = math.sqrt(self._noise), math.sqrt(min(everywhere, shared, spread**2 - self._noise))
        seen = 0 if cell is None else cell.seen
        fresh = host in self._calibrations.hosts and host not in hosts.effects
        basis: Basis = "same" if seen else "here" if host in self.hosts else "calibrated" if fresh else "elsewhere"
        return Prediction(seconds, spread, seen, basis if self.hosts else "guess", own, everywhere)


class _HostEffects:
    """A comparison of hosts over all families of models, which predicts a host's time for a family that the host never
    trained."""

    def __init__(self, fits: Mapping[str, _Fit], calibrations: Calibrations) -> None:
        self._differ = calibrations.differ
        of_family: dict[str, list[tuple[str, float, float]]] = {}
        of_host: dict[str, list[tuple[str, float, float]]] = {}
        for family, fit in fits.items():
            for host in fit.hosts:
                mean, variance = fit.level(host)
                of_family.setdefault(family, []).append((host, mean, variance + self._differ(host)[1]))
                of_host.setdefault(host, []).append((family, mean, variance + self._differ(host)[1]))
        self._families: dict[str, tuple[float, float]] = {}
        self.effects = dict.fromkeys(of_host, (0.0, 0.0))  # mean and variance
        for _ in range(_SWEEPS):
            for family, told in of_family.items():
                self._families[family] = _shrunk(
                    [(mean - self.effects[of][0], unsure) for of, mean, unsure in told], *_BASE
                )
            for host, told in of_host.items():
                differ = self._differ(host)[0]
                self.effects[host] = _shrunk(
                    [(mean - self._families[of][0], unsure) for of, mean, unsure in told], 0.0, differ
                )

    def expected(self, family: str, host: str) -> tuple[float, float, float]:
        """Return the expected logarithm of a family's seconds on a host that never trained the family, without the
        host's calibrated slowness; then the variance of the family on every host, and the variance of this host.
        """
        differ, pair = self._differ(host)
        level, everywhere = self._families.get(family, _BASE)
        effect, here = self.effects.get(host, (0.0, differ))
        return level + effect, everywhere, here + pair


def _middles(works: Iterable[Workload]) -> dict[str, float]:
    """Map the name of each size (a numeric hyperparameter) to the median of its values in these workloads."""
    sizes: dict[str, list[float]] = {}
    for work in works:
        for name, value in work.sizes:
            sizes.setdefault(name, []).append(value)
    return {name: middle(values) for name, values in sizes.items()}


def _power(name: str) -> tuple[float, float]:
    """Return the exponent of a size that is expected before any attempt, and the variance of this exponent."""
    linear = any(word in name.lower() for word in _LINEAR) and "batch" not in name.lower()
    return _LINEAR_POWER if linear else _POWER


def _noise(attempts: Attempts) -> float:
    """Estimate the variance between equal attempts on a host from the differences between successive ones. A single
    surprising attempt changes little."""
    steps = []
    for newest in attempts.values():
        last: dict[Workload, float] = {}
        for each in newest:
            if each.work in last and not each.unsure:
                steps.append(abs(each.log_s - last[each.work]))
            last[each.work] = each.log_s
    variance = (middle(steps) / _MIDDLE_STEP) ** 2 if steps else 0.0
    weighed = (_KNOWN_N * _NOISE + len(steps) * variance) / (_KNOWN_N + len(steps))
    return min(max(weighed, _NOISE_LEAST), _NOISE_MOST)


def _shrunk(told: Iterable[tuple[float, float]], mean: float, variance: float) -> tuple[float, float]:
    """Return the weighted mean of values, each with its variance, shrunk towards the expected ``mean``; and the
    variance of the result."""
    precision, total = 1.0 / variance, mean / variance
    for value, unsure in told:
        precision += 1.0 / unsure
        total += value / unsure
    return total / precision, 1.0 / precision


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    total: float = sum(map(mul, one, other))
    return total


def _add(to: list[float], row: Sequence[float], times: float) -> None:
    to[:] = [a + times * b for a, b in zip(to, row, strict=True)]


def _inverted(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Invert a positive definite matrix, by elimination."""
    size = len(matrix)
    rows = [[*row, *(float(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for i in range(size):
        rows[i] = [each / rows[i][i] for each in rows[i]]
        for j in range(size):
            if j != i:
                _add(rows[j], rows[i], -rows[j][i])
    return [row[size:] for row in rows]
