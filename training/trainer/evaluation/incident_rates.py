"""Incidents among scored windows: choose the rule on the calibration side, and compute its figures on the test side.

A *stretch* is a time of one recording in which all windows are malicious-like, without a gap. A stretch is caught when
one of its windows alarms during an incident that a malicious-like window raised. An incident that a benign window
raised is false, and catches nothing while it is open.
"""

from typing import NamedTuple, Self

import numpy as np

from training.data.rows import Rows
from training.data.split import LeakError, Split
from training.data.values import Bools, Floats, Ints, JsonDict, Names
from training.trainer.evaluation.figures import DIGITS, carried_by_one, figure, missing, rounded, shown_rate
from training.trainer.evaluation.rates import count_interval, exact_interval
from training.trainer.evaluation.scored import Classes, Scored, pace
from training.trainer.evaluation.thresholds import OperatingPoint
from training.trainer.incident_rule import JoinBy, JoinRule, Runs, find, paced, usual

DAY_S, HOUR_S = 86_400.0, 3_600.0
CANDIDATES = (
    *(
        (JoinBy.COUNT, k, n)
        for k, n in ((1, 1), (2, 2), (2, 3), (3, 3), (3, 4), (3, 5), (4, 5), (4, 6), (5, 6), (6, 8))
    ),
    *((JoinBy.MEAN, 1, n) for n in (2, 3, 4, 6)),
)
ENOUGH, ENOUGH_HOSTS = 40, 3  # calibration recordings, and their hosts, from which a choice is not said to be uncertain
KEPT = 0.8  # of the stretches that the best candidate catches: a rule may give up no more of them for quiet
CURVE_POINTS = 24


class Timeline(NamedTuple):
    """Scored windows, grouped by recording and in time order; ``margin`` (N,) is score minus threshold."""

    runs: Runs
    margin: Floats
    malicious: Bools
    recording: Ints
    host: Names
    every_s: float | None  # from one decision of a host to the next; None where there is no clock
    of: str  # "host" or "recording": what decides at that pace

    @classmethod
    def of_windows(cls, scored: Scored, threshold: float | Floats, classes: Classes, stride_s: float) -> Self:
        rows = scored.rows
        runs = runs_of(rows, stride_s)
        step = pace(scored)
        return cls(
            runs=runs,
            margin=(scored.score - threshold)[runs.order],
            malicious=~classes.is_benign(scored.y)[runs.order],
            recording=np.unique(rows.recording, return_inverse=True)[1][runs.order],
            host=rows.host[runs.order],
            every_s=None if step is None else step.every_s,
            of="host" if step is None else step.of,
        )

    def stretches(self, gap_s: float) -> Ints:
        """Return (N,) the number of each window's stretch; -1 for benign windows."""
        before = np.r_[False, self.malicious[:-1]][: self.malicious.size]
        new = self.malicious & ~(before & self.runs.joined(gap_s))
        return np.where(self.malicious, np.cumsum(new) - 1, -1)


def runs_of(rows: Rows, stride_s: float) -> Runs:
    """Sort the windows by recording and time; of those of a recording that begin at one time, keep only the first. If
    any start time is missing, all windows count as one ``stride_s`` apart in their order."""
    start, end = rows.t_start, rows.t_end
    if not np.isfinite(start).all():
        start, end = np.arange(len(rows), dtype=float) * stride_s, np.full(len(rows), np.nan)
    end = np.where(np.isfinite(end), end, start + stride_s).astype(float)
    return Runs.of(np.char.add(np.char.add(rows.host, "\0"), rows.episode), start, end)


def stride_of(rows: Rows, *, nominal_s: float) -> float:
    """Return the median time between the starts of neighbouring windows of a recording; ``nominal_s`` if a start is
    unknown, or if no recording has two windows."""
    if not np.isfinite(rows.t_start).all():
        return nominal_s
    runs = runs_of(rows, nominal_s)
    steps = np.diff(runs.t_start)[np.diff(runs.stream) == 0]
    return round(float(np.median(steps)), DIGITS) if steps.size else nominal_s


class RuleEffect(NamedTuple):
    """The result of a rule on a timeline: the stretches that it catches, and its false incidents."""

    caught: Bools  # (S,) by stretch
    delay_s: Floats  # (S,) from the stretch's first window to the alarm; NaN where it is missed
    recording: Ints  # (S,)
    host: Names  # (S,)
    false_at: Ints  # the windows at which false incidents were raised
    open: Bools  # (N,) windows during which an incident is open


def outcome(rule: JoinRule, line: Timeline) -> RuleEffect:
    found = find(rule, line.runs, line.margin)
    stretch = line.stretches(rule.gap_s)
    first = np.flatnonzero(np.r_[True, np.diff(stretch) != 0][: stretch.size] & (stretch >= 0))
    alarm_end = np.full(first.size, np.nan)

    def during(raised: Ints, last: Ints) -> Bools:
        marks = np.zeros(len(line.runs) + 1)
        np.add.at(marks, raised, 1)
        np.add.at(marks, last + 1, -1)
        return np.cumsum(marks[:-1]) > 0

    true = line.malicious[found.raised]
    calling = np.flatnonzero(during(found.raised[true], found.last[true]) & (line.margin > 0) & line.malicious)
    hit, at = np.unique(stretch[calling], return_index=True)
    alarm_end[hit] = line.runs.t_end[calling[at]]
    return RuleEffect(
        caught=np.isfinite(alarm_end),
        delay_s=alarm_end - line.runs.t_start[first],
        recording=line.recording[first],
        host=line.host[first],
        false_at=found.raised[~true],
        open=during(found.raised, found.last),
    )


# -- the choice --------------------------------------------------------------------------------------------------------


def refuse_rows(rows: Ints, split: Split, what: str) -> None:
    """Raise LeakError if any of these rows, by which something was chosen, is on the test side; the error's text begins
    with ``what``."""
    if (both := np.intersect1d(rows, split.test)).size:
        raise LeakError(
            f"{what} chosen by {both.size} windows of the test side, which would judge their own choice: this is a "
            "mistake of the program, not of the data: please report it"
        )


class Choice(NamedTuple):
    """The chosen rule, the numbers of the rows on which it was chosen, and why."""

    rule: JoinRule
    rows: Ints
    why: str
    recordings: int = 0
    hosts: int = 0

    @property
    def note(self) -> str:
        """A sentence about the number of recordings and hosts on which the rule of incidents was chosen, and what that
        means for the figures."""
        rests = (
            f"The rule of incidents ({self.rule.words}) rests on {self.recordings} calibration "
            f"recording{'s' * (self.recordings != 1)} of {self.hosts} host{'s' * (self.hosts != 1)}"
        )
        if self.recordings >= ENOUGH and self.hosts >= ENOUGH_HOSTS:
            return f"{rests}."
        return (
            f"{rests}: few, so that other recordings there might have chosen another rule. The intervals of incidents "
            "are those of this rule, and do not show how much that changes."
        )

    def require_none_of(self, split: Split) -> None:
        """Raise LeakError if the rule was chosen by windows of the test side."""
        refuse_rows(self.rows, split, "the rule of incidents was")

    def to_dict(self) -> JsonDict:
        return {**self.rule.to_dict(), "why": self.why}


def choose(line: Timeline, rows: Ints, stride_s: float) -> Choice:
    """Choose the rule on calibration windows: fewest false incidents, then most stretches caught, then the shortest
    delay.

    Only candidates that catch at least ``KEPT`` times as many stretches as the best one count; among equals the first
    wins. If no candidate catches a stretch, the usual rule is chosen.
    """
    rules = [paced(*one, stride_s=stride_s) for one in CANDIDATES]
    rests = {"recordings": int(np.unique(line.recording).size), "hosts": int(np.unique(line.host).size)}
    outcomes = [outcome(rule, line) for rule in rules]
    most = max((int(one.caught.sum()) for one in outcomes), default=0)
    if most == 0:
        why = (
            "nothing malicious-like of the calibration side is caught by any"
            if line.malicious.any()
            else ("the calibration side has no malicious-like window")
        )
        return Choice(usual(stride_s), rows, f"{why}: the usual rule", **rests)

    def worth(number: int) -> tuple[int, int, float, int]:
        one = outcomes[number]
        caught = int(one.caught.sum())
        return one.false_at.size, -caught, float(np.nanmedian(one.delay_s)) if caught else np.inf, number

    allowed = [number for number, one in enumerate(outcomes) if one.caught.sum() >= KEPT * most]
    best = min(allowed, key=worth)
    one = outcomes[best]
    why = (
        f"on the calibration side {one.false_at.size} false incidents, where single windows make "
        f"{outcomes[0].false_at.size}, and {int(one.caught.sum())} of {one.caught.size} stretches caught"
    )
    return Choice(rules[best], rows, why, **rests)


def called(
    cal: Scored, test: Scored, point: OperatingPoint, classes: Classes, *, rows: Ints, nominal_s: float, curve: bool
) -> tuple[Choice, JsonDict]:
    """Choose the rule on calibration windows, whose row numbers are ``rows``; return it with its figures on the test
    side."""
    stride_s = stride_of(cal.rows, nominal_s=nominal_s)
    calibrated, judged = (Timeline.of_windows(one, point.each(one), classes, stride_s) for one in (cal, test))
    choice = choose(calibrated, rows, stride_s)
    return choice, figures(choice.rule, judged, curve=curve) | {"why": choice.why}


# -- the figures -------------------------------------------------------------------------------------------------------


def figures(rule: JoinRule, line: Timeline, *, curve: bool = True) -> JsonDict:
    """Compute a rule's figures as JSON values: stretches, false, caught, delay_s, open_share, false_per_host_day, over
    all hosts and by host; and a curve.

    ``smallest_rate`` is the upper end of the interval that would result here without any false incident.
    """
    one = outcome(rule, line)
    hosts = sorted(set(line.host.tolist()))
    made: JsonDict = {"rule": rule.to_dict(), "words": rule.words} | _figures(one, line, np.ones(len(line.runs), bool))
    made["per_host"] = {name: _figures(one, line, line.host == name) for name in hosts}
    made["curve"] = _curve(rule, line) if curve else []
    return made


def _figures(one: RuleEffect, line: Timeline, here: Bools) -> JsonDict:
    mine = np.isin(one.host, np.unique(line.host[here]))
    false = one.false_at[here[one.false_at]]
    benign = here & ~line.malicious
    clusters = int(line.recording.max(initial=-1)) + 1
    made: JsonDict = {"stretches": int(mine.sum()), "false": int(false.size)}
    made["caught"] = missing("the test has no malicious-like stretch")
    if mine.any():
        caught = np.bincount(one.recording[mine], weights=one.caught[mine]).astype(float)
        made["caught"] = shown_rate(caught, np.bincount(one.recording[mine]).astype(float), unit="recording")
    made["delay_s"] = _median(one.delay_s[mine & one.caught], one.recording[mine & one.caught], line)
    made["open_share"] = None if not benign.any() else rounded(one.open[benign].mean())
    made["false_per_host_day"] = _rate(
        np.bincount(line.recording[false], minlength=clusters),
        np.bincount(line.recording[benign], minlength=clusters),
        line,
    )
    return made


def _median(delay: Floats, recording: Ints, line: Timeline) -> JsonDict:
    """Return the median delay with Woodruff's interval: quantiles found from the binomial interval of the share one
    half."""
    if line.every_s is None:
        return missing("the data have no clock")
    if not delay.size:
        return missing("nothing was caught")
    number = float(np.unique(recording).size)
    low, high = np.quantile(delay, exact_interval(number / 2, number), method="inverted_cdf").tolist()
    return figure(np.median(delay), (low, high) if number > 1 else None, carried_by_one("recording"))


def _rate(false: Ints, benign: Ints, line: Timeline) -> JsonDict:
    if line.every_s is None:
        return missing("the data do not say how far apart their windows are (no times, or no rate)")
    days = benign.astype(float) * (line.every_s / DAY_S)
    total = float(days.sum())
    if not total:
        return missing("the test has no benign window")
    smallest = count_interval(np.zeros_like(days), days)
    found = figure(false.sum() / total, count_interval(false.astype(float), days), carried_by_one("recording"))
    found |= {"of": line.of, "benign_hours": rounded(total * DAY_S / HOUR_S)}
    return found if smallest is None else found | {"smallest_rate": rounded(smallest[1])}


def _curve(rule: JoinRule, line: Timeline) -> list[list[float]]:
    """Return points [false incidents a host-day, share of stretches caught] for a threshold that rises.

    The list is empty if times are unknown, or if benign or malicious-like windows are missing.
    """
    benign = np.sort(line.margin[~line.malicious])[::-1]
    if line.every_s is None or not benign.size or not line.malicious.any():
        return []
    days = benign.size * line.every_s / DAY_S
    ranks = np.unique(np.r_[0, np.geomspace(1, benign.size, CURVE_POINTS).astype(int) - 1])
    points = []
    for shift in np.unique(benign[ranks]).tolist():
        one = outcome(rule, line._replace(margin=line.margin - shift))
        points.append([round(one.false_at.size / days, 3), round(float(one.caught.mean()), 4)])
    return points
