"""A host's level, computed from its reference: anomaly scores are measured from it, and it moves the host's threshold.

A host's *level* is a quantile of the scores of its reference. The reference was recorded while the host did its
ordinary work; its windows that set the level train, calibrate and test nothing. *Anomaly scores* are measured from the
level, because some hosts always look stranger than others. On the recorded sample, each host unseen in turn, a promise
of 5 % false alarms became 30 % (13 to 70 %) with scores as they are. With scores measured from the level, the same
promise became 5 % (1 to 10 %).

*Thresholds* depend on the level as well, those of probabilities included. The *margin* is the distance above their
hosts' levels that only the promised share of the calibration hosts' benign windows exceeds. For a host with a
reference, a *start* of alarms is computed: level plus margin. If the threshold that the reference alone would set for
the promised rate is lower, the start is moved towards this threshold, the further the more windows the reference has.
Three rules use the start:

    calibrated    not at all: the threshold is the calibrated one, whatever the reference
    only_up       the higher of the start and the calibrated threshold
    follows       the start itself, also where it is lower

The rule is chosen by leaving the calibration hosts out in turn: each is judged by threshold and margin of the others.
No test window is used: a choice names the recordings that it was made on, and a report refuses one that was made on its
test side. Probabilities are compared as log odds: between .98 and .99 lies as much as between .5 and .67.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import floor
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from training.data.values import Bools, Floats, Json, JsonDict, Names
from training.trainer.evaluation.facts import percent
from training.trainer.evaluation.intervals import CONFIDENCE
from training.trainer.evaluation.scored import Classes, Scored

# -- split-conformal thresholds: the bound that n values allow to promise for the next value ---------------------------


def conformal(values: Floats, target: float) -> float | None:
    """Return the ceil((n + 1)(1 - target))-th smallest of n values; None if that number exceeds n.

    On average at most a share ``target`` of further values of the same kind exceeds the returned value.
    """
    allowed = allowed_alarms(values.size, target)
    return None if allowed < 1 else float(np.partition(values, values.size - allowed)[values.size - allowed])


def allowed_alarms(n: int, target: float) -> int:
    """Return floor((n + 1) target): how many of n benign scores may reach the threshold.

    The small added term keeps rounding, as in 100 * 0.29 = 28.999…, from making the result one too small.
    """
    return floor((n + 1) * target + 1e-9)


def needed(target: float) -> int:
    """Return the smallest number of benign scores that can support a threshold for this target."""
    n = max(1, floor(1 / target) - 2)
    while allowed_alarms(n, target) < 1:
        n += 1
    return n


def realised_spread(n: int, target: float) -> tuple[float, float]:
    """Return the 95 % interval of the alarm rate that a conformal threshold on n exchangeable scores really has.

    The real alarm rate is distributed as Beta((n + 1) target, (n + 1)(1 - target)).
    """
    tails = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    low, high = stats.beta.ppf(tails, (n + 1) * target, (n + 1) * (1 - target))
    return float(low), float(high)


MEASURED_FROM = 0.75  # quantile of a host's reference scores: the level that anomaly scores are measured from
QUANTILE = 0.85  # of a host's reference scores: its level (docs/decisions/0037 says how it was found)
FEWEST = 4  # reference windows that say anything about a host
HALF = 120  # reference windows of which their own threshold counts as much as level and margin
MAY_COST = 0.5  # times the promised false alarms: what following may cost more than rising alone
KEPT = 2.5  # times the promised false alarms on hosts left out: they have a host less to learn from
SUSPECT = 0.5  # of a reference above the calibrated threshold, from which it may show an attack
EDGE = 1e-12  # probabilities nearer to 0 or 1 than this are as good as there
DIGITS = 9  # of levels and margins: below any meaning, above what a processor's rounding can move


class LevelUse(StrEnum):
    """The way in which a host's threshold uses the host's own reference."""

    CALIBRATED = "calibrated"
    ONLY_UP = "only_up"
    FOLLOWS = "follows"


class Scale(NamedTuple):
    """Converts scores to the scale on which hosts are compared: the log odds of probabilities; anomaly scores as they
    are."""

    odds: bool

    def of(self, score: Floats) -> Floats:
        """Convert scores to this scale."""
        if not self.odds:
            return np.asarray(score, float)
        bounded = np.clip(score, EDGE, 1 - EDGE)
        return np.asarray(np.log(bounded) - np.log1p(-bounded), float)

    def back(self, value: float) -> float:
        """Convert a value on this scale back to a score."""
        if not self.odds:
            return value
        return float(1 / (1 + np.exp(-value))) if value >= 0 else float(np.exp(value) / (1 + np.exp(value)))


_Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class Quantiles(NamedTuple):
    """The quantiles of a host's reference scores that give its level, and its threshold from the reference alone.

    A checkpoint keeps the quantiles that its margin was computed with.
    """

    usual: _Share
    high: _Share

    @classmethod
    def promising(cls, target: float) -> Quantiles:
        return cls(QUANTILE, 1 - target)

    def level(self, values: Floats) -> ReferenceLevel:
        """Compute a host's level from the scores (M,) of its reference windows on the `Scale`, M > 0."""
        usual, high = (round(float(value), DIGITS) for value in np.quantile(values, (self.usual, self.high)))
        return ReferenceLevel(usual, high, int(values.size))


@dataclass(frozen=True)
class ReferenceLevel:
    """A host's reference in figures: its level and the threshold it would set alone, both on the `Scale`, and the
    number of its windows."""

    usual: float  # its level
    high: float  # the threshold that it would set by itself
    windows: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]

    def start(self, margin: float) -> float:
        """Return the value on the `Scale` above which the host's windows raise alarms: level plus margin, or lower.

        The value is drawn towards ``high`` if ``high`` is lower, the further the more windows the reference has.
        """
        above = self.usual + margin
        return above + min(0.0, self.high - above) * self.windows / (self.windows + HALF)


@dataclass(frozen=True)
class ReferenceScores:
    """Scores (M,) of reference windows on which the model was not trained, and the host of each.

    ``marks`` (M,) identify the windows (see `Rows.marks`); empty if the caller gives none.
    """

    score: Floats
    host: Names
    marks: Names = field(default_factory=lambda: np.zeros(0, str))

    def by_host(self) -> Iterator[tuple[str, Floats]]:
        """Yield each host that has at least ``FEWEST`` reference windows, with their scores."""
        for name in sorted(set(self.host.tolist())):
            own = self.score[self.host == name]
            if own.size >= FEWEST:
                yield name, own

    def of(self, hosts: ArrayLike) -> ReferenceScores:
        """Return the scores of the reference windows of these hosts."""
        here = np.isin(self.host, hosts)
        marks = self.marks[here] if self.marks.size else self.marks
        return replace(self, score=self.score[here], host=self.host[here], marks=marks)

    def measured(self, levels: HostLevels | None) -> ReferenceScores:
        """Return these scores minus the levels of their hosts; unchanged without levels."""
        return self if levels is None else replace(self, score=levels.applied(self.score, self.host))

    def levels(self, scale: Scale, quantiles: Quantiles) -> dict[str, ReferenceLevel]:
        """Compute the level of each host that has at least ``FEWEST`` reference windows."""
        return {name: quantiles.level(scale.of(own)) for name, own in self.by_host()}

    def doubts(self, threshold: float) -> list[str]:
        """Return a sentence for each host whose reference is too short, or may show an attack.

        An attack is possible if at least half of the reference's windows exceed the calibrated ``threshold``.
        """
        found = []
        for name in sorted(set(self.host.tolist())):
            own = self.score[self.host == name]
            if own.size < FEWEST:
                found.append(
                    f"The reference of {name} has {own.size} windows, and a level needs {FEWEST}: the calibrated "
                    "threshold stands there; record a longer one."
                )
            elif (doubt := doubt_on(name, float((own > threshold).mean()), own.size)) is not None:
                found.append(doubt)
        return found


def doubt_on(host: str, alarming: float | None, windows: int) -> str | None:
    """Return a sentence if at least half of a host's reference exceeds the calibrated threshold; otherwise None.

    A reference that would alarm in half of its windows may show an attack. Return None also for fewer than ``FEWEST``
    windows.
    """
    if windows < FEWEST or alarming is None or alarming < SUSPECT:
        return None
    return (
        f"The reference of {host} would raise alarms in {100 * alarming:.0f} % of its windows: if it was recorded "
        "during an attack, that attack is now taken for usual there; check what happened, and record it again."
    )


NO_LEVELS = (
    "No host that trained has a reference recording: scores are compared between hosts as they are, "
    "and a threshold may not hold on the next one."
)


@dataclass(frozen=True)
class HostLevels:
    """The levels from which anomaly scores are measured, by host.

    ``known`` has the hosts with at least ``FEWEST`` reference windows. ``usual`` is the level of all other hosts: the
    median level of the hosts that trained, None when none of these has one. ``own`` are the levels of hosts that the
    model was adapted to.
    """

    known: dict[str, float]
    usual: float | None
    own: dict[str, float] = field(default_factory=dict)

    @classmethod
    def trained(cls, references: ReferenceScores, *, on: Sequence[str]) -> HostLevels:
        """Compute the levels from reference windows, for a model that was trained ``on`` these hosts."""
        known = cls._known(references)
        usual = [known[name] for name in on if name in known]
        return cls(known, float(np.median(usual)) if usual else None)

    def elsewhere(self, references: ReferenceScores) -> HostLevels:
        """Return the levels for other data: from the references there, else from the adapted hosts' ``own`` levels.

        All other hosts are measured from the usual level.
        """
        return replace(self, known={**self.own, **self._known(references)})

    @staticmethod
    def _known(references: ReferenceScores) -> dict[str, float]:
        return {name: round(float(np.quantile(own, MEASURED_FROM)), DIGITS) for name, own in references.by_host()}

    def applied(self, score: Floats, host: Names) -> Floats:
        """Return the scores (N,) minus the level of each window's host; unchanged when there is no usual level."""
        if self.usual is None:
            return score
        names, place = np.unique(host, return_inverse=True)
        return score - np.array([self.known.get(name, self.usual) for name in names.tolist()])[place]

    def notes(self, host: Names) -> list[str]:
        """Return sentences for readers of the figures: which hosts' scores are measured from their own level, and which
        not."""
        if self.usual is None:
            return [NO_LEVELS]
        without = sorted(set(host.tolist()) - set(self.known))
        said = "Scores are measured from each host's own level, taken from its reference recordings"
        if not without:
            return [f"{said}."]
        return [f"{said}; {', '.join(without)} has none and is measured from the usual level."]

    def to_dict(self) -> JsonDict:
        return {"quantile": MEASURED_FROM, "known": self.known, "usual": self.usual}


@dataclass(frozen=True)
class LeftOut:
    """One calibration host's rates under each rule, by the threshold and margin of the other hosts."""

    host: str
    benign: int  # windows
    malicious: int
    fpr: dict[LevelUse, float]
    tpr: dict[LevelUse, float]  # empty where no window is malicious-like


@dataclass(frozen=True, kw_only=True)
class HostThresholds:
    """The thresholds of hosts that have a level; every other host has the calibrated one.

    ``left_out`` has the figures by which the rule was chosen, ``why`` the reason in words. ``kept`` has the thresholds
    of hosts on whose reference the model was trained: they come from the model trained earlier, because a model scores
    its own training data too low.
    """

    rule: LevelUse
    calibrated: float = 0.0  # in a checkpoint it stands beside these
    margin: float
    levels: dict[str, ReferenceLevel]
    log_odds: bool
    quantiles: Quantiles
    why: str = ""
    left_out: tuple[LeftOut, ...] = ()
    kept: dict[str, float] = field(default_factory=dict)

    @property
    def scale(self) -> Scale:
        return Scale(self.log_odds)

    def of(self, host: str) -> float:
        """Return the threshold of a host, in the unit of the scores."""
        if host in self.kept:
            return self.kept[host]
        if self.rule is LevelUse.CALIBRATED or host not in self.levels:
            return self.calibrated
        start = self.scale.back(self.levels[host].start(self.margin))
        return start if self.rule is LevelUse.FOLLOWS else max(self.calibrated, start)

    def each(self, host: Names) -> Floats:
        """Return (N,) each window's threshold, by its host (N,)."""
        names, place = np.unique(host, return_inverse=True)
        return np.array([self.of(str(name)) for name in names], float)[place]

    def elsewhere(self, references: ReferenceScores, *, measured: bool = False) -> HostThresholds:
        """Return the same rule for other data: a host's level comes from its reference there, or else is the earlier
        one.

        With ``measured``, the data's values are relative to references: hosts without a reference there lose earlier
        levels and kept thresholds.
        """
        own = references.levels(self.scale, self.quantiles)
        if not measured:
            return replace(self, levels={**self.levels, **own})
        here = set(references.host.tolist())
        return replace(self, levels=own, kept={name: start for name, start in self.kept.items() if name in here})

    def to_dict(self) -> JsonDict:
        """Return JSON values for checkpoints and reports, without ``calibrated``."""
        return {name: value for name, value in msgspec.to_builtins(self).items() if name != "calibrated"}

    @classmethod
    def recorded(cls, document: Json, calibrated: float) -> HostThresholds:
        """Read what `to_dict` wrote."""
        return msgspec.convert({**document, "calibrated": calibrated}, cls)


def host_thresholds(
    cal: Scored, references: ReferenceScores, calibrated: float, target: float, *, classes: Classes
) -> HostThresholds | None:
    """Choose rule and margin on calibration windows alone; None if no host has ``FEWEST`` reference windows.

    If no margin can be learnt from the calibration hosts, the margin is 0 and the rule is ``ONLY_UP``.
    """
    scale, quantiles = Scale(odds=cal.proba is not None), Quantiles.promising(target)
    levels = references.levels(scale, quantiles)
    if not levels:
        return None
    plain = HostThresholds(
        rule=LevelUse.ONLY_UP,
        calibrated=calibrated,
        margin=0.0,
        levels=levels,
        log_odds=scale.odds,
        quantiles=quantiles,
        why="no host that calibrated has a reference to learn from",
    )
    margin = _margin(cal, plain, target, classes)
    if margin is None:
        return plain
    found = _leave_out(cal, plain, target, classes)
    rule, why = choose(found, target)
    return replace(plain, rule=rule, margin=margin, why=why, left_out=tuple(found))


def choose(found: Sequence[LeftOut], target: float) -> tuple[LevelUse, str]:
    """Choose the rule by its rates on calibration hosts that are left out in turn; return it with the reason. Every
    host counts the same.

    ``FOLLOWS`` never catches less than ``ONLY_UP``. ``FOLLOWS`` is chosen if its false alarms are at most ``KEPT``
    times the promise, or exceed those of ``ONLY_UP`` by at most ``MAY_COST`` times the promise. If the false alarms of
    ``FOLLOWS`` exceed both limits, or if no host could be left out, the rule is ``ONLY_UP``. ``CALIBRATED`` is never
    chosen here: that the calibrated threshold holds on the calibration hosts says little about another host.
    """
    if not found:
        return LevelUse.ONLY_UP, "one host that calibrated has a reference, and cannot be left out"
    up, follows = (float(np.mean([one.fpr[rule] for one in found])) for rule in (LevelUse.ONLY_UP, LevelUse.FOLLOWS))
    catching = [one.tpr for one in found if one.tpr]
    caught = ""
    if catching:
        more = [float(np.mean([tpr[rule] for tpr in catching])) for rule in (LevelUse.ONLY_UP, LevelUse.FOLLOWS)]
        caught = f" ({percent(more[1])} caught, {percent(more[0])} without)"
    said = (
        f"hosts left out in turn had {percent(follows)} false alarms with thresholds that follow, {percent(up)} without"
    )
    pays = follows <= max(KEPT * target, up + MAY_COST * target)
    return (LevelUse.FOLLOWS if pays else LevelUse.ONLY_UP), said + caught


def _margin(cal: Scored, hosts: HostThresholds, target: float, classes: Classes) -> float | None:
    """Return the distance above their hosts' levels that only a share ``target`` of benign calibration windows exceeds.

    Return None if too few benign calibration windows are of hosts with a level.
    """
    known = classes.is_benign(cal.y) & np.isin(cal.rows.host, list(hosts.levels))
    usual = np.array([hosts.levels[name].usual for name in cal.rows.host[known].tolist()], float)
    found = conformal(hosts.scale.of(cal.score[known]) - usual, target)
    return None if found is None else round(found, DIGITS)


def _share(alarms: Bools) -> float:
    return round(float(alarms.mean()), 6)


def _leave_out(cal: Scored, hosts: HostThresholds, target: float, classes: Classes) -> list[LeftOut]:
    benign, host = classes.is_benign(cal.y), cal.rows.host
    found = []
    for name in sorted(set(host[benign].tolist()) & set(hosts.levels)):
        others = cal.take(np.flatnonzero(host != name))
        calibrated = conformal(others.score[classes.is_benign(others.y)], target)
        margin = _margin(others, hosts, target, classes)
        if calibrated is None or margin is None:
            continue
        score, false = cal.score[host == name], benign[host == name]
        by = replace(hosts, calibrated=calibrated, margin=margin)
        start = {rule: replace(by, rule=rule).of(name) for rule in LevelUse}
        alarms = {rule: _share(score[false] > place) for rule, place in start.items()}
        caught = {rule: _share(score[~false] > place) for rule, place in start.items() if not false.all()}
        found.append(LeftOut(name, int(false.sum()), int((~false).sum()), alarms, caught))
    return found
