"""The time that a job takes on a host, learned from what attempts took. Pure.

The logarithm of the seconds is a sum: the host's time for the family of the job, a power of each of the job's sizes
(its numeric hyperparameters), and what is particular to its kind, and to its kind on that host. Each term has a mean
and a variance. An attempt corrects all terms of its job at once, each by its share of the uncertainty: a Kalman
filter that keeps no covariances (assumed-density filtering). A family that a host never trained is expected there
from what it took elsewhere and from how fast the host was with others (:class:`_Table`). Terms forget slowly, so that
a throttled laptop is noticed; an attempt that nobody would have expected counts for less and makes its host
uncertain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any

from training import strict_json
from training.flag import BoundBy
from training.fleet.scheduling.job import Host

if TYPE_CHECKING:
    from statistics import NormalDist

Term = tuple[str, ...]

MIXED = ""  # the sort of work of a trainer that does not say what bounds it

LEAST_S, MOST_S = 0.01, 30 * 86_400.0  # what is taken for a duration; what is longer or shorter counts as this
_SEEDS = frozenset({"seed", "random_state", "random_seed"})  # hyperparameters that change no duration
_LINEAR = ("epoch", "round", "step", "tree", "iter", "estimator")  # in the names of sizes that tell how often
_SIZE_STEP = 1.25  # factor between two sizes that make different kinds
_SPREAD_MOST = math.log(MOST_S / LEAST_S)  # more says no more: anything between these two is possible
_MEAN_MOST = math.log(4.0)  # the mean over the median, at most
_SURPRISE = 9.0  # an attempt beyond three standard deviations
_LONGEST_S = 100 * 365 * 86_400.0  # no attempt has trained for longer
_CONTRADICTED = 4.0  # a prediction two standard deviations away from what its attempt says
_AFTER_EPOCHS = {"evaluate": 0.9, "done": 0.99}  # what a trainer of ours has done then
_WORD_LEAST = 0.02  # share of its work of which an attempt's own estimate says something of others
_HEARD_S = 30.0  # a progress line reaches the receiver so late, with a heartbeat
_PRIOR: Mapping[str, tuple[float, float]] = {  # mean and variance of a term nobody has seen, by its first word
    "size": (0.0, 0.5**2),  # the power of a size that may not matter …
    "linear": (1.0, 0.3**2),  # … and of one that tells how often something is done
    "kind": (0.0, 0.3**2),
    "cell": (0.0, 0.1**2),
}
_ALL = (math.log(60.0), 1.6**2)  # of what nobody has trained, on the fastest host …
_FAMILY = 0.9**2  # … and families of one fleet differ so much
_HOST = 1.5**2  # hosts differ so much, …
_CALIBRATED = 0.5**2  # … and so much where what they measured is taken off, …
_SORT = 0.5**2  # … those with CUDA from those without for one family, …
_DIFFER, _DIFFER_N = {"family": _FAMILY, "sort": _SORT}, 4.0  # first guesses, and for how many they count
_PAIR = 0.7**2  # … a host's time for a family from what both let expect, …
_MEASURED_PAIR = 0.4**2  # … and that where the host has measured itself
_NOISE = 0.1**2  # of equal attempts on one host, before any is known
_NOISE_LEAST, _NOISE_MOST = 0.02**2, 1.0**2
_UNLIKE_N, _UNLIKE_LEAST, _UNLIKE_MOST = 3.0, 0.05**2, 1.5**2  # kinds that the first guess of "kind" weighs; bounds
_FORGET = {"pair": 0.03**2, "cell": 0.03**2}  # what an attempt adds to the variance of its host's terms
_SWEEPS, _SWEEPS_AFRESH = 3, 20
_MEASURED = ("gflops", "cuda_gflops", "steps", "cuda_steps", "branches")  # in a calibration
_FASTER_MOST = 1_000.0  # the fastest host, than the middle one


@dataclass(frozen=True, slots=True)
class Workload:
    """The part of a job that bears on its duration. Jobs with equal workloads are of one kind."""

    family: str
    kind: str  # canonical; seeds left out
    sizes: tuple[tuple[str, float], ...] = ()  # name and logarithm

    @classmethod
    def of(cls, spec: Mapping[str, Any], data_bytes: float | None = None) -> Workload:
        """Read it from a job dict, or from its facts; ``data_bytes`` is the size of its data set, if known."""
        family, hyper = str(spec.get("model") or ""), _hyper(spec)
        sizes = [(name, math.log(value)) for name, value in sorted(hyper.items()) if _is_size(name, value)]
        if data_bytes is not None and data_bytes > 0:
            sizes.append(("data step", math.log(data_bytes)))
        return cls(family, strict_json.canonical(work_facts(spec)), tuple(sizes))


def work_facts(spec: Mapping[str, Any], *, coarse: bool = False) -> dict[str, Any]:
    """Return the part of a job dict that makes its kind; ``coarse`` leaves the hyperparameters out.

    A size is rounded to the nearest power of 1.25 and a fraction (a rate, a share) left out, so that a search over
    many hyperparameters makes few kinds. The facts of facts are the same again.
    """
    rounded = {name: _rounded(name, value) for name, value in _hyper(spec).items()}
    return {
        "model": str(spec.get("model") or ""),
        "mode": spec.get("mode"),
        "dataset": spec.get("dataset"),
        "trainer": spec.get("trainer"),
        "hyper": {} if coarse else {name: value for name, value in rounded.items() if value is not None},
    }


def _hyper(spec: Mapping[str, Any]) -> dict[str, Any]:
    hyper = spec.get("hyper")
    return {str(key): value for key, value in hyper.items()} if isinstance(hyper, Mapping) else {}


def _is_size(name: str, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or name in _SEEDS:
        return False
    return 0 < value < math.inf


def _rounded(name: str, value: Any) -> Any:
    if name in _SEEDS or isinstance(value, bool) or not isinstance(value, int | float):
        return None if name in _SEEDS else value
    if not 1 <= value < math.inf:
        return None
    return float(f"{_SIZE_STEP ** round(math.log(value, _SIZE_STEP)):.3g}")


class Basis(StrEnum):
    """The nearest thing that a prediction rests on."""

    SAME = "same"  # jobs with the very same settings on this host
    HERE = "here"  # jobs of its family on this host
    CALIBRATED = "calibrated"  # jobs of its family on other hosts, and this one's calibration
    ELSEWHERE = "elsewhere"  # jobs of its family on other hosts
    GUESS = "guess"  # nothing yet


@dataclass(frozen=True, slots=True)
class Gauss:
    """A belief about a term."""

    mean: float
    variance: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """The time that a job takes on a host: the median, and the spread of the logarithm."""

    seconds: float
    spread: float
    seen: int = 0  # attempts with the very same settings on this host that it rests on

    @property
    def mean(self) -> float:
        """Return the expected seconds, which are the longer the less is known."""
        return self.seconds * math.exp(min(self.spread**2 / 2, _MEAN_MOST))

    def at(self, share: float) -> float:
        """Return the seconds within which it ends with this probability, in (0, 1)."""
        return self.seconds * math.exp(self.spread * _normal().inv_cdf(share))

    def left(self, elapsed_s: float, share: float = 0.5) -> float:
        """Return the further seconds within which one ends that has trained for ``elapsed_s``, with this probability.

        Nothing is believed for ever: one that has outrun its prediction is expected to go on in proportion.
        """
        if elapsed_s <= LEAST_S:
            return self.at(share)
        spread = max(self.spread, 0.01)
        z = (math.log(elapsed_s) - math.log(self.seconds)) / spread
        halvings = -math.log2(1.0 - share)  # of what goes on
        outlives = math.erfc(z / math.sqrt(2.0)) / 2
        # Beyond 30 deviations the tail's probabilities are too small for numbers; its limit
        later = -_normal().inv_cdf(outlives * (1.0 - share)) if z < 30 else z + halvings * math.log(2.0) / z
        beyond = max(0.0, elapsed_s - self.at(0.9)) / 2 * halvings
        return beyond + max(elapsed_s * math.expm1(spread * (later - z)), 0.0)

    def corrected(self, elapsed_s: float, done: float, total_s: float | None = None) -> Prediction:
        """Join it with a running attempt's own word: ``elapsed_s`` seconds for the share ``done`` of its work.

        The word weighs little at first and much at the end; nonsense weighs nothing. ``total_s`` is the attempt's own
        estimate of the whole, where it is not in proportion. What it contradicts by far was a bad prediction.
        """
        if not (math.isfinite(elapsed_s) and math.isfinite(done)) or elapsed_s <= 0 or not 0 < done <= 1:
            return self
        own = math.log(_bounded(elapsed_s / done if total_s is None else total_s))
        own_variance = _word_variance(done)
        before = math.log(self.seconds)
        variance = max(self.spread**2, (own - before) ** 2 / _CONTRADICTED - own_variance, 1e-6)
        weight = own_variance / (variance + own_variance)
        mean = weight * before + (1.0 - weight) * own
        return replace(self, seconds=math.exp(mean), spread=math.sqrt(weight * variance))


@dataclass(frozen=True, slots=True)
class Doubt:
    """The spread of a prediction by what it is about: deviations of the logarithm, each on its own.

    An error that is a host's is the same for all its jobs, an error that is a family's the same everywhere: what one
    attempt shows is known of the others, and does not cancel out in a long plan.
    """

    own: float = 0.0  # of each attempt
    kind: float = 0.0  # of the kind, on every host
    here: float = 0.0  # of the family on this host
    host: float = 0.0  # of this host, for every family
    family: float = 0.0  # of the family, on every host
    everything: float = 0.0  # of all jobs


def remaining(prediction: Prediction, elapsed_s: float, progress: Mapping[str, Any] | None) -> tuple[float, float]:
    """Return the seconds until a live attempt ends: the median, and the time within which nine of ten end.

    ``elapsed_s`` is how long it has trained, ``progress`` its last progress object, which may be older and may be
    nonsense. Both results are finite, at least 0, at most :data:`MOST_S`, and in this order.
    """
    elapsed_s = min(elapsed_s, _LONGEST_S) if elapsed_s > 0 else 0.0
    own = _OwnWord.of(progress, elapsed_s) if progress else None
    if own is not None:
        prediction = prediction.corrected(elapsed_s, own.done, elapsed_s + own.left_s)
    left, late = (min(max(prediction.left(elapsed_s, share), 0.0), MOST_S) for share in (0.5, 0.9))
    return left, max(left, late)


@dataclass(frozen=True, slots=True)
class _OwnWord:
    """A running attempt's own estimate: the share of its work that is done, and the seconds that are left."""

    done: float
    left_s: float

    @property
    def variance(self) -> float:
        """Return the variance of the logarithm of the whole."""
        return _word_variance(self.done)

    @classmethod
    def of(cls, progress: Mapping[str, Any], elapsed_s: float) -> _OwnWord | None:
        """Read it from a progress object; None where it makes no sense or says nothing.

        No epoch to come counts for more than all time until now: that bounds an ETA.
        """
        epoch, epochs, then_s, eta_s = (_amount(progress.get(key)) for key in ("epoch", "epochs", "seconds", "eta_s"))
        then_s = elapsed_s if then_s is None else min(then_s, elapsed_s)  # at the time of these words
        if then_s <= 0:
            return None
        if progress.get("event") in _AFTER_EPOCHS:
            done = _AFTER_EPOCHS[progress["event"]]
            eta_s = step_s = then_s * (1.0 - done) / done
        elif not {"epoch", "epochs"} & progress.keys() and eta_s is not None:
            done, step_s = then_s / (then_s + eta_s), eta_s
        elif epoch is not None and epochs is not None and 0 < epoch <= epochs:
            done, most_s = epoch / epochs, then_s * (epochs - epoch)
            eta_s = min(most_s / epoch if eta_s is None else eta_s, most_s)
            step_s = eta_s / max(epochs - epoch, 1.0)
        else:
            return None
        silent_s, expected_s = elapsed_s - then_s, step_s + _HEARD_S
        stalled_s = max(silent_s - expected_s, 0.0) / 2  # as long again, in the median
        return cls(done, max(eta_s - min(silent_s, expected_s), 0.0) + stalled_s)


@dataclass(frozen=True, slots=True)
class Word:
    """An attempt's word on jobs like it: it will have taken so long, and has done this share."""

    work: Workload
    on: Machine
    seconds: float
    done: float


def _word_variance(done: float) -> float:
    """Return how unsure an attempt's own estimate of its whole time is: much at first, little at the end."""
    return (0.3 * (1.0 - done) + 0.02) ** 2 / done


def _amount(value: object) -> float | None:
    """Return a finite number from 0 on; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST_S:
        return None
    return float(value)


def middle(values: Iterable[float]) -> float:
    """Return the median of these, of an even number the lower one; at least one."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def _of_the_sum(doubt: float, seen: float, noise: float) -> float:
    """Return the doubt about a sum of terms that was itself seen: their errors cancel out there.

    Without covariances only the count of what was seen tells that.
    """
    return 1.0 / (1.0 / max(doubt, 1e-9) + seen / noise)


def _bounded(seconds: float) -> float:
    return min(max(seconds, LEAST_S), MOST_S)


@dataclass(frozen=True, slots=True)
class Machine:
    """The part of a host that bears on durations."""

    name: str
    cuda: bool = False

    @classmethod
    def of(cls, host: Host) -> Machine:
        return cls(host.name, host.cuda)


def calibrated(calibration: object) -> Mapping[str, float]:
    """Read a host's calibration: by each sort of work the speed there, to be compared with other hosts'.

    ``MIXED`` is for trainers that do not say what bounds them: the mean, as of ratios, of matrices and steps. A GPU
    counts where the host has one. Nonsense counts as not measured.
    """
    if not isinstance(calibration, Mapping):
        return {}
    gflops, cuda_gflops, steps, cuda_steps, branches = (_amount(calibration.get(name)) or 0.0 for name in _MEASURED)
    matrices, steps = max(gflops, cuda_gflops), max(steps, cuda_steps)
    found: dict[str, float] = {BoundBy.MATRICES: matrices, BoundBy.STEPS: steps, BoundBy.BRANCHES: branches}
    found[MIXED] = math.sqrt(matrices * steps)
    return {sort: speed for sort, speed in found.items() if speed > 0}


class Calibrations:
    """The hosts' own measurements beside each other: how much slower each is than the fastest, by sort of work.

    ``bound_by`` tells of a family which sort bounds it, as its trainer declares. Never changed once made.
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
        """Return the logarithm of how many times as long jobs of a family take there as on the fastest host.

        Of a host that has not measured it: as on the middle one.
        """
        of_sort = self._slower.get(self._bound_by.get(family, MIXED)) or self._slower.get(MIXED, {})
        if host in of_sort or not of_sort:
            return of_sort.get(host, 0.0)
        return sorted(of_sort.values())[len(of_sort) // 2]


@dataclass
class Speeds:
    """All that is known of durations. :meth:`learn` corrects it by an attempt; :meth:`predict` asks it."""

    beliefs: dict[Term, Gauss] = field(default_factory=dict)
    pairs: dict[tuple[str, str], Gauss] = field(
        default_factory=dict
    )  # a host's time for a family, of sizes at their centre
    sorts: dict[str, bool] = field(default_factory=dict)  # whether a host that has trained has CUDA
    calibrations: Calibrations = field(default_factory=Calibrations, compare=False)  # first guesses
    noise: dict[str, tuple[float, float]] = field(default_factory=dict)  # of a family: sum of squares, and their number
    unlike: dict[str, tuple[float, float]] = field(default_factory=dict)  # the same of its new kinds
    seen: dict[tuple[str, str], float] = field(default_factory=dict)  # attempts of a kind on a host, fading
    exact: dict[Workload, dict[str, int]] = field(default_factory=dict)  # attempts with the very same settings, by host
    centres: dict[tuple[str, str], float] = field(default_factory=dict)  # the first value of a family's size
    _table: _Table = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.calibrate(self.calibrations)

    def learn(self, work: Workload, on: Machine, seconds: float, unsure: float = 0.0) -> None:
        """Correct all terms by an attempt that trained for so long. Nonsense (NaN, negative) is passed over.

        ``unsure`` is the variance of the logarithm of what is still an estimate, because it goes on.
        """
        if not math.isfinite(seconds) or seconds < 0:
            return
        for name, value in work.sizes:
            self.centres.setdefault((work.family, name), value)
        pair, base = (on.name, work.family), self._pair(work.family, on)
        terms = [(term, weight, self._belief(term, work.family)) for term, weight in self._terms(work, on)]
        expected = base.mean + sum(weight * belief.mean for _, weight, belief in terms)
        doubt = base.variance + sum(weight**2 * belief.variance for _, weight, belief in terms)
        noise, cell = self._noise(work.family) + unsure, (work.kind, on.name)
        error = math.log(_bounded(seconds)) - expected
        if not unsure and ("kind", work.kind) not in self.beliefs:
            self._hear_unlike(work.family, error, doubt + noise)
        unexpected = error**2 > _SURPRISE * (doubt + noise)
        if unexpected and pair not in self.pairs:
            # A guess was bad: it takes the whole error.
            unexpected, base = False, Gauss(base.mean, base.variance + error**2 - doubt - noise)
            doubt = error**2 - noise
        elif unexpected and work not in self.exact:
            new_kind = ("kind", work.kind) not in self.beliefs
            fresh = [new_kind or term[0] not in ("kind", "cell") for term, _, _ in terms]
            guessed = sum(weight**2 * told.variance for (_, weight, told), new in zip(terms, fresh, strict=True) if new)
            if guessed:
                unexpected, widen = False, 1.0 + (error**2 - doubt - noise) / guessed
                doubt = error**2 - noise
                terms = [
                    (term, weight, Gauss(told.mean, told.variance * widen) if new else told)
                    for (term, weight, told), new in zip(terms, fresh, strict=True)
                ]
        if unexpected:
            # A hiccup, or a host that is another now. It counts as much as three deviations would, and the host's
            # time is open for what comes next.
            noise = max(noise, error**2 / _SURPRISE - doubt)
            self._begin_anew(pair)
        elif not unsure:
            self._hear_noise(work.family, error, _of_the_sum(doubt, self.seen.get(cell, 0.0), noise))
        for term, weight, belief in terms:
            after = _corrected(belief, weight, error, doubt + noise)
            most = max(belief.variance, _PRIOR[term[0]][1])
            variance = min(after.variance + _FORGET.get(term[0], 0.0), most)
            self.beliefs[term] = Gauss(after.mean, variance)
        after = _corrected(base, 1.0, error, doubt + noise)
        told = Gauss(after.mean, after.variance + (error**2 / 2 if unexpected else _FORGET["pair"]))
        self.pairs[pair] = told
        self._table.hear(work.family, on, told)
        self.sorts[on.name] = on.cuda
        if not unsure:
            hosts = self.exact.setdefault(work, {})
            hosts[on.name] = hosts.get(on.name, 0) + 1
            self.seen[cell] = 0.0 if unexpected else 1.0 + 0.95 * self.seen.get(cell, 0.0)

    def expect(self, works: Iterable[Workload]) -> None:
        """Note which sizes jobs of families have that nobody has trained: their middle is what is guessed of."""
        found: dict[tuple[str, str], list[float]] = {}
        for work in works:
            for name, value in work.sizes:
                if (work.family, name) not in self.centres:
                    found.setdefault((work.family, name), []).append(value)
        self.centres.update((size, middle(values)) for size, values in found.items())

    def word_of(self, work: Workload, on: Machine, elapsed_s: float, progress: Mapping[str, Any] | None) -> Word | None:
        """Return what a live attempt says of its kind: seconds trained, last progress; None when it is known better."""
        own = _OwnWord.of(progress, elapsed_s) if progress else None
        if own is None or own.done < _WORD_LEAST or own.variance >= self.predict(work, on).spread ** 2:
            return None
        return Word(work, on, elapsed_s + own.left_s, own.done)

    def with_words(self, words: Iterable[Word]) -> Speeds:
        """Return what is known with what live attempts say, which is no part of what was learned."""
        told = list(words)
        if not told:
            return self
        # An attempt that goes on changes no more than these: the rest is learned of those that have ended.
        heard = replace(
            self,
            beliefs=dict(self.beliefs),
            pairs=dict(self.pairs),
            sorts=dict(self.sorts),
            seen=dict(self.seen),
            centres=dict(self.centres),
        )
        for word in told:
            heard.learn(word.work, word.on, word.seconds, _word_variance(word.done))
        return heard

    def predict(self, work: Workload, on: Machine) -> Prediction:
        """Say how long this kind of job takes there."""
        base = self._pair(work.family, on)
        told = [(self._belief(term, work.family), weight) for term, weight in self._terms(work, on)]
        mean = base.mean + sum(weight * belief.mean for belief, weight in told)
        doubt = base.variance + sum(weight**2 * belief.variance for belief, weight in told)
        noise, seen = self._noise(work.family), self.seen.get((work.kind, on.name), 0.0)
        spread = min(math.sqrt(_of_the_sum(doubt, seen, noise) + noise), _SPREAD_MOST)
        return Prediction(_bounded(math.exp(min(mean, 50.0))), spread, self._alike(work, on))

    def doubt(self, work: Workload, on: Machine) -> Doubt:
        """Say what the spread of :meth:`predict` is about."""
        of_kind = sum(weight**2 * self._belief(term, work.family).variance for term, weight in self._terms(work, on))
        pair = self.pairs.get((on.name, work.family))
        where = (pair.variance, 0.0, 0.0, 0.0) if pair is not None else self._table.doubt(work.family, on)
        noise, seen = self._noise(work.family), self.seen.get((work.kind, on.name), 0.0)
        whole = of_kind + sum(where)
        after = _of_the_sum(whole, seen, noise)
        believed = min(1.0, _SPREAD_MOST**2 / (after + noise))
        known = believed * after / whole
        return Doubt(math.sqrt(believed * noise), *(math.sqrt(known * each) for each in (of_kind, *where)))

    def basis(self, work: Workload, on: Machine) -> Basis:
        """Say what :meth:`predict` rests on."""
        if self._alike(work, on):
            return Basis.SAME
        if (on.name, work.family) in self.pairs:
            return Basis.HERE
        if not self._table.knows(work.family):
            return Basis.GUESS
        fresh = on.name in self.calibrations.hosts and not self.trained(on.name)
        return Basis.CALIBRATED if fresh else Basis.ELSEWHERE

    def trained(self, host: str) -> bool:
        """Tell whether a host has trained anything."""
        return host in self.sorts

    def slower_than_measured(self) -> dict[str, float]:
        """Return of each host how many times as long jobs take there as its calibration says, beside the others' jobs.

        Of those that have a calibration and have trained, where another one has, too.
        """
        away = {host: self._table.effect(("host", host)).mean for host in self.calibrations.hosts & self.sorts.keys()}
        ordered = sorted(away.values())
        half = (len(ordered) - 2) // 2  # the place of the others' median, …
        return {
            host: math.exp(own - ordered[half + (own <= ordered[half])])  # … one further where this one stands before
            for host, own in away.items()
            if len(away) > 1
        }

    def _alike(self, work: Workload, on: Machine) -> int:
        """Count the attempts there with the very same settings: those of a kind are equal but for rounding."""
        return self.exact.get(work, {}).get(on.name, 0)

    def calibrate(self, calibrations: Calibrations) -> None:
        """Take hosts' own measurements for first guesses, in place of those of before."""
        self.calibrations = calibrations
        self._table = _Table(calibrations)
        for (host, family), told in self.pairs.items():
            self._table.put(family, Machine(host, self.sorts[host]), told)
        self._table.fit_all(_SWEEPS_AFRESH)

    def _terms(self, work: Workload, on: Machine) -> list[tuple[Term, float]]:
        """List the terms beside the host's time for the family, with their weights."""
        sizes: list[tuple[Term, float]] = []
        for name, value in work.sizes:
            away = value - self.centres.get((work.family, name), value)
            if away:
                linear = any(word in name.lower() for word in _LINEAR)
                sizes.append((("linear" if linear else "size", work.family, name), away))
        return [*sizes, (("kind", work.kind), 1.0), (("cell", on.name, work.kind), 1.0)]

    def _belief(self, term: Term, family: str) -> Gauss:
        known = self.beliefs.get(term)
        if known is None:
            known = Gauss(0.0, self._unlike(family)) if term[0] == "kind" else Gauss(*_PRIOR[term[0]])
        return known

    def _pair(self, family: str, on: Machine) -> Gauss:
        return self.pairs.get((on.name, family)) or self._table.expected(family, on)

    def _begin_anew(self, pair: tuple[str, str]) -> None:
        """Let the attempts of a family on a host vouch for nothing any more: one was as none of them lets expect."""
        host, family = pair
        for work, hosts in self.exact.items():
            if work.family == family and host in hosts:
                self.seen[work.kind, host] = 0.0

    def _noise(self, family: str) -> float:
        squares, n = self.noise.get(family, (0.0, 0.0))
        return min(max((3 * _NOISE + squares) / (3 + n), _NOISE_LEAST), _NOISE_MOST)

    def _unlike(self, family: str) -> float:
        """Return the variance by which kinds of a family differ beyond their sizes."""
        squares, n = self.unlike.get(family, (0.0, 0.0))
        return min(max((_UNLIKE_N * _PRIOR["kind"][1] + squares) / (_UNLIKE_N + n), _UNLIKE_LEAST), _UNLIKE_MOST)

    def _hear_unlike(self, family: str, error: float, total: float) -> None:
        """Take of a new kind's squared error what nothing else explains, the more so the less else was in doubt."""
        now = self._unlike(family)
        squares, n = self.unlike.get(family, (0.0, 0.0))
        share, found = now / total, min(error**2, _SURPRISE * total) - (total - now)
        self.unlike[family] = (squares + share * found, n + share)

    def _hear_noise(self, family: str, error: float, doubt: float) -> None:
        """Take of the error's square what doubt does not explain, the more so the less doubt there was."""
        share = self._noise(family) / (doubt + self._noise(family))
        squares, n = self.noise.get(family, (0.0, 0.0))
        self.noise[family] = (0.98 * squares + share * (error**2 - doubt), 0.98 * n + share)


def _corrected(belief: Gauss, weight: float, error: float, total: float) -> Gauss:
    """Give a term its share of the error of a sum whose variance is ``total``."""
    gain = belief.variance * weight / total
    return Gauss(belief.mean + gain * error, belief.variance * (1.0 - gain * weight))


@dataclass(slots=True, eq=False)
class _Cell:
    """A host's time for a family in the table."""

    effects: tuple[Term, ...]
    mean: float = 0.0
    weight: float = 0.0
    rest: float = 0.0  # of the mean, what the effects do not explain


class _Table:
    """Hosts' times for families: a table with gaps, fitted by a sum of effects.

    One of all cells, one of the family, one of the host, one of the family with or without CUDA.

    Each effect is its mean residual, shrunk by how much such effects differ. A new cell has all of them
    fitted anew; of one that is heard again only its own are, so that an attempt costs a row and a column.
    """

    def __init__(self, calibrations: Calibrations) -> None:
        self._calibrations = calibrations  # what they tell is taken off before the effects are fitted
        self._cells: dict[tuple[str, str], _Cell] = {}
        self._of: dict[Term, list[_Cell]] = {}
        self.effects: dict[Term, Gauss] = {}
        self._differ = dict(_DIFFER)  # sort of effect → how much such effects differ here

    def hear(self, family: str, on: Machine, told: Gauss) -> None:
        """Take in what is known of a host's time for a family."""
        if self.put(family, on, told):
            self.fit_all(_SWEEPS)
            return
        for _ in range(_SWEEPS):
            for effect in _effects(family, on.name, on.cuda):
                self.fit(effect)

    def put(self, family: str, on: Machine, told: Gauss) -> bool:
        """Change a cell, or make it, and fit nothing; returns True when it is new in its row or column."""
        effects, mean = _effects(family, on.name, on.cuda), told.mean - self._calibrations.slower(on.name, family)
        cell = self._cells.get((on.name, family))
        new = cell is None or cell.effects != effects  # its host may have CUDA now, or no longer
        if cell is None or new:
            if cell is not None:
                for effect in cell.effects:
                    self._of[effect].remove(cell)
            cell = self._cells[on.name, family] = _Cell(effects)
            for effect in effects:
                self._of.setdefault(effect, []).append(cell)
                cell.rest -= self.effect(effect).mean
        cell.rest += mean - cell.mean
        cell.mean, cell.weight = mean, 1.0 / (told.variance + self._pair(on.name))
        return new

    def fit_all(self, sweeps: int) -> None:
        """Fit every effect so often: each fit leaves the others a little off."""
        for _ in range(sweeps):
            for effect in self._of:
                self.fit(effect)
        found = {kind: (_DIFFER_N * variance, _DIFFER_N) for kind, variance in _DIFFER.items()}
        for effect, told in self.effects.items():
            if effect[0] in ("family", "sort"):
                squares, n = found[effect[0]]
                found[effect[0]] = squares + told.mean**2 + told.variance, n + 1
        self._differ = {kind: squares / n for kind, (squares, n) in found.items()}

    def fit(self, effect: Term) -> None:
        """Fit one effect to its cells."""
        cells = self._of.get(effect, ())
        prior, before = self._beforehand(effect), self.effect(effect).mean
        weight, total = 1.0 / prior.variance, prior.mean / prior.variance
        for cell in cells:
            weight += cell.weight
            total += cell.weight * (cell.rest + before)
        fitted = Gauss(total / weight, 1.0 / weight)
        for cell in cells:
            cell.rest += before - fitted.mean
        self.effects[effect] = fitted

    def knows(self, family: str) -> bool:
        """Tell whether some host has trained this family."""
        return ("family", family) in self._of

    def effect(self, effect: Term) -> Gauss:
        """Return an effect as it is known now."""
        return self.effects.get(effect) or self._beforehand(effect)

    def _pair(self, host: str) -> float:
        return _MEASURED_PAIR if host in self._calibrations.hosts else _PAIR

    def _beforehand(self, effect: Term) -> Gauss:
        """Return what is expected of an effect beforehand."""
        if effect[0] == "all":
            return Gauss(*_ALL)
        if effect[0] == "family":
            return Gauss(0.0, self._differ["family"])
        if effect[0] == "host":
            return Gauss(0.0, _CALIBRATED if effect[1] in self._calibrations.hosts else _HOST)
        return Gauss(0.0, self._differ["sort"])

    def expected(self, family: str, on: Machine) -> Gauss:
        """Return what a family takes on a host that never trained it."""
        told = [self.effect(effect) for effect in _effects(family, on.name, on.cuda)]
        slower = self._calibrations.slower(on.name, family)
        return Gauss(
            slower + sum(each.mean for each in told), sum(each.variance for each in told) + self._pair(on.name)
        )

    def doubt(self, family: str, on: Machine) -> tuple[float, float, float, float]:
        """Split the variance of :meth:`expected`: of this family here, of the host, of the family, of everything."""
        every, of_family, of_host, of_sort = (self.effect(each).variance for each in _effects(family, on.name, on.cuda))
        return of_sort + self._pair(on.name), of_host, of_family, every


def _effects(family: str, host: str, cuda: bool) -> tuple[Term, ...]:
    return ("all",), ("family", family), ("host", host), ("sort", "cuda" if cuda else "cpu", family)


@cache
def _normal() -> NormalDist:
    """Return the bell curve; loaded with the first range, since fractions and decimals come with it."""
    from statistics import NormalDist

    return NormalDist()
