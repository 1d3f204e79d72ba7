"""The operating point: the score above which a window raises an alarm, and how far its promised rate can be trusted."""

from dataclasses import dataclass, replace

import numpy as np

from training.data.rows import MARK, Rows
from training.data.split import LeakError
from training.data.values import Bools, Floats, Json, JsonDict
from training.trainer.evaluation.facts import percent
from training.trainer.evaluation.host_levels import (
    FEWEST,
    HostThresholds,
    LevelUse,
    ReferenceScores,
    allowed_alarms,
    conformal,
    doubt_on,
    host_thresholds,
    needed,
    realised_spread,
)
from training.trainer.evaluation.scored import NAMELESS, Classes, Scored


class ChosenOnTestError(LeakError):
    """A threshold, or the rule for hosts, was chosen on test recordings, or a host's level set by test windows.

    Test figures by such a threshold would mean nothing.
    """


@dataclass(frozen=True)
class OperatingPoint:
    """The alarm threshold: a window whose score is *greater* than its host's threshold raises an alarm.

    A host's threshold is ``threshold``, or on a host with a reference the one that ``hosts`` gives. ``made_on`` are the
    recordings on which thresholds and rule were chosen. ``leveled_by`` are the marks of the windows that set hosts'
    levels (`Rows.marks`).
    """

    target_fpr: float
    threshold: float | None  # None: the calibration data cannot support one, see reason
    n_windows: int  # benign calibration windows
    n_episodes: int  # calibration episodes with a benign window: the effective number
    interval: tuple[float, float] | None  # 95 %: the rate of alarms such a calibration really gives
    warning: str | None = None
    reason: str | None = None
    hosts: HostThresholds | None = None
    made_on: frozenset[str] = frozenset()
    leveled_by: frozenset[str] = frozenset()
    n_hosts: int = 0  # hosts with a benign calibration window; 0 where the data name none

    @property
    def least_elsewhere(self) -> float | None:
        """The lowest false-alarm rate that can be promised for another host: 1 / (H + 1) with H calibration hosts.

        If hosts are exchangeable, the next one has the most alarms of all with probability 1 / (H + 1), whatever the
        threshold (hierarchical conformal prediction; Lee, Barber and Willett 2023). None without a threshold or hosts.
        """
        return None if self.threshold is None or not self.n_hosts else 1 / (self.n_hosts + 1)

    def notes_elsewhere(self) -> list[str]:
        """Return a sentence if the promised false-alarm rate is below :attr:`least_elsewhere`; else an empty list."""
        least = self.least_elsewhere
        if least is None or least <= self.target_fpr:
            return []
        hosts = f"{self.n_hosts} host{'s' * (self.n_hosts != 1)}"
        said = (
            f"With {hosts} to calibrate on, nothing below {percent(least)} false alarms can be promised for another "
            f"host (1 in {self.n_hosts + 1}), whatever the model: {percent(self.target_fpr)} would need "
            f"{needed(self.target_fpr)} hosts. What is said here of other hosts is measured on those of the test."
        )
        return [said]

    def each(self, scored: Scored) -> Floats:
        """Return (N,) the threshold of each window's host; infinity if there is none."""
        if self.hosts is not None:
            return self.hosts.each(scored.rows.host)
        return np.full(scored.y.size, np.inf if self.threshold is None else self.threshold)

    def alarms(self, scored: Scored) -> Bools | None:
        """Return (N,) True for the windows that raise an alarm; None without a threshold."""
        return None if self.threshold is None else scored.score > self.each(scored)

    def refuse_test(self, test: Rows) -> None:
        """Raise ChosenOnTestError if the threshold was chosen on recordings of these windows, or levels on these
        windows."""
        episodes = sorted({mark.split(MARK)[1] for mark in self.leveled_by})
        near = np.flatnonzero(np.isin(test.episode, episodes))  # hardly ever any
        told = sorted(self.leveled_by.intersection(test.take(near).marks.tolist()))
        if told:
            host, episode, _ = told[0].split(MARK)
            raise ChosenOnTestError(
                f"the level of {host} was set by windows of recording {episode} that test it; this is a mistake of "
                "the program, not of the data: please report it"
            )
        both = sorted(self.made_on.intersection(test.recording.tolist()))
        if both:
            raise ChosenOnTestError(
                f"the threshold was chosen on recording {both[0]}, which tests it; this is a mistake of the program, "
                "not of the data: please report it"
            )

    def to_dict(self) -> JsonDict:
        """Return JSON values. The threshold is not rounded, because decisions are made with it."""
        return {
            "target_fpr": self.target_fpr,
            "threshold": self.threshold,
            "n_windows": self.n_windows,
            "n_episodes": self.n_episodes,
            "ci95": None if self.interval is None else [round(x, 6) for x in self.interval],
            "warning": self.warning,
            "reason": self.reason,
            "n_hosts": self.n_hosts,
            "least_elsewhere": None if self.least_elsewhere is None else round(self.least_elsewhere, 6),
            "hosts": None if self.hosts is None else self.hosts.to_dict(),
        }


def operating_point(
    cal: Scored, target_fpr: float, *, classes: Classes, references: ReferenceScores | None = None
) -> OperatingPoint:
    """Choose the threshold on benign calibration windows so that about a fraction ``target_fpr`` (above 0, below 0.5)
    exceeds it.

    Split-conformal: of n benign scores the ceil((n + 1)(1 - target))-th smallest. With fewer benign scores than
    `needed` returns, the point has no threshold. Windows of one episode repeat each other, so the rate really obtained
    varies like a Beta distribution of the number of *episodes*. Hosts with ``references`` may have thresholds of their
    own (see `host_thresholds`).
    """
    if not 0 < target_fpr < 0.5:
        raise ValueError(f"target_fpr must lie between 0 and 0.5, not {target_fpr}")
    if not classes.benign:
        return OperatingPoint(target_fpr, None, 0, 0, None, reason="no class is benign")
    is_benign = classes.is_benign(cal.y)
    n, n_episodes = int(is_benign.sum()), int(np.unique(cal.rows.recording[is_benign]).size)
    threshold = conformal(cal.score[is_benign], target_fpr)
    if threshold is None:
        fewest = needed(target_fpr)
        there = f"{n} benign calibration windows" if cal.y.size else "too few benign windows to set any aside for it"
        reason = f"{there}; a target of {100 * target_fpr:g} % needs {fewest}"
        return OperatingPoint(target_fpr, None, n, n_episodes, None, reason=reason)
    warning = None
    if allowed_alarms(n_episodes, target_fpr) < 1:
        warning = (
            f"calibrated on {n_episodes} episodes; {needed(target_fpr)} would be needed "
            f"to hold a target of {100 * target_fpr:g} %"
        )
    point = OperatingPoint(
        target_fpr, threshold, n, n_episodes, realised_spread(n_episodes, target_fpr), warning,
        made_on=frozenset(cal.rows.recording.tolist()),
        n_hosts=len({*cal.rows.host[is_benign].tolist()} - {NAMELESS}),
    )  # fmt: skip
    if references is None:
        return point
    hosts = host_thresholds(cal, references, threshold, target_fpr, classes=classes)
    return replace(point, hosts=hosts, leveled_by=frozenset(references.marks.tolist()))


# -- thresholds by host beside the calibrated one ----------------------------------------------------------------------


def by_host(test: Scored, point: OperatingPoint | None, references: ReferenceScores, classes: Classes) -> JsonDict:
    """Compute the rates of each test host at its own threshold, and at the calibrated one.

    JSON values: ``rule`` and ``why`` (null without references), ``all`` and ``hosts`` by name. ``all`` and each host
    have ``fpr``, ``tpr``, ``calibrated_fpr`` and ``calibrated_tpr`` (null without such windows). A host also has its
    ``threshold``, the ``calibrated`` one, the number of ``windows`` of its reference, and ``alarming``: the share of
    these above the calibrated threshold. Without a threshold, ``all`` and ``hosts`` are empty, and ``rule`` and ``why``
    are null.
    """
    alarm = None if point is None else point.alarms(test)
    if point is None or alarm is None or point.threshold is None:
        return {"rule": None, "why": None, "all": {}, "hosts": {}}
    alone, benign = test.score > point.threshold, classes.is_benign(test.y)

    def rates(where: Bools) -> dict[str, float | None]:
        pairs = {"": alarm, "calibrated_": alone}
        kinds = {"fpr": where & benign, "tpr": where & ~benign}
        return {
            f"{prefix}{name}": round(float(raised[rows].mean()), 6) if rows.any() else None
            for prefix, raised in pairs.items()
            for name, rows in kinds.items()
        }

    hosts = {}
    for name in sorted(set(test.rows.host.tolist())):
        own = references.of(name).score
        hosts[name] = {
            "threshold": point.threshold if point.hosts is None else point.hosts.of(name),
            "calibrated": point.threshold,
            "windows": int(own.size),
            "alarming": round(float((own > point.threshold).mean()), 6) if own.size else None,
            **rates(test.rows.host == name),
        }
    rule = None if point.hosts is None else point.hosts.rule.value
    why = None if point.hosts is None else point.hosts.why
    return {"rule": rule, "why": why, "all": rates(np.ones(test.y.size, bool)), "hosts": hosts}


RULES = {
    LevelUse.CALIBRATED: "Thresholds are the calibrated one on every host",
    LevelUse.ONLY_UP: "A host's own reference may raise its threshold, never lower it",
    LevelUse.FOLLOWS: "A host's threshold follows its own reference, up and down",
}


def notes_on_hosts(found: Json) -> list[str]:
    """Return sentences on the hosts' thresholds: rule and reason, rates at the calibrated threshold, doubts on
    references."""
    if not found["hosts"]:
        return []
    without = [name for name, one in found["hosts"].items() if one["windows"] < FEWEST]
    if found["rule"] is None:
        return ["No host has a reference recording: every host has the calibrated threshold, which may not hold there."]
    said = [f"{RULES[LevelUse(found['rule'])]}: {found['why']}."]
    used, alone = (found["all"][name] for name in ("fpr", "calibrated_fpr"))
    if used is not None:
        caught, alone_caught = (found["all"][name] for name in ("tpr", "calibrated_tpr"))
        both = "" if caught is None else f", {100 * alone_caught:.1f} % caught instead of {100 * caught:.1f} %"
        false = f"{100 * alone:.1f} % false alarms instead of {100 * used:.1f} %"
        said.append(f"With the calibrated threshold alone: {false}{both}.")
    if without:
        said.append(
            f"{_are(without)} without a reference of {FEWEST} windows or more: the calibrated threshold stands there."
        )
    doubts = [doubt_on(name, one["alarming"], one["windows"]) for name, one in found["hosts"].items()]
    return [*said, *(doubt for doubt in doubts if doubt is not None)]


def _are(names: list[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"
