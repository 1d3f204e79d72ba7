"""The operating point: where on the score's scale the alarm starts, and how far that promise can be trusted."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.data.split import LeakError
from training.trainer.evaluation.conformal import allowed_alarms, conformal, needed, realised_spread
from training.trainer.evaluation.host_thresholds import HostThresholds, References, host_thresholds
from training.trainer.evaluation.scored import Classes, FloatArray, Scored


class ChosenOnTestError(LeakError):
    """A threshold, or the rule for hosts, was chosen on recordings of the test side: its figures would mean nothing."""


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """The threshold of the alarm: a window whose score is *greater* than its host's raises one.

    That is ``threshold``, or what ``hosts`` makes of it on a host with a reference. ``made_on`` are the recordings that
    all of it was chosen on.
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

    def each(self, scored: Scored) -> FloatArray:
        """(N,) the threshold of each window's host; infinity without one."""
        if self.hosts is not None:
            return self.hosts.each(scored.rows.host)
        return np.full(scored.y.size, np.inf if self.threshold is None else self.threshold)

    def alarms(self, scored: Scored) -> NDArray[np.bool_] | None:
        """The windows (N) that raise an alarm; None without a threshold."""
        return None if self.threshold is None else scored.score > self.each(scored)

    def refuse_test(self, recordings: Collection[str]) -> None:
        """Refuse a choice that was made on these recordings of a test side. Raises ChosenOnTestError."""
        both = sorted(self.made_on.intersection(recordings))
        if both:
            raise ChosenOnTestError(
                f"the threshold was chosen on recording {both[0]}, which tests it; this is a mistake of the program, "
                "not of the data: please report it"
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON values only. The threshold keeps all its digits, because decisions are taken with it."""
        return {
            "target_fpr": self.target_fpr,
            "threshold": self.threshold,
            "n_windows": self.n_windows,
            "n_episodes": self.n_episodes,
            "ci95": None if self.interval is None else [round(x, 6) for x in self.interval],
            "warning": self.warning,
            "reason": self.reason,
            "hosts": None if self.hosts is None else self.hosts.to_dict(),
        }


def operating_point(
    cal: Scored, target_fpr: float, *, classes: Classes, references: References | None = None
) -> OperatingPoint:
    """Choose the threshold on benign calibration windows so that a fraction ``target_fpr`` (0..0.5) exceeds it.

    Split-conformal: of n benign scores the ceil((n + 1)(1 - target))-th smallest. Where that number exceeds n, no
    threshold exists and none is invented. Windows of one episode repeat each other, so the rate really obtained is
    spread like a Beta distribution of the number of *episodes*. Hosts with ``references`` have thresholds of their own
    (see `host_thresholds`).
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
        reason = f"{n} benign calibration windows; a target of {100 * target_fpr:g} % needs {fewest}"
        return OperatingPoint(target_fpr, None, n, n_episodes, None, reason=reason)
    warning = None
    if allowed_alarms(n_episodes, target_fpr) < 1:
        warning = (
            f"calibrated on {n_episodes} episodes; {needed(target_fpr)} would be needed "
            f"to hold a target of {100 * target_fpr:g} %"
        )
    spread = realised_spread(n_episodes, target_fpr)
    hosts = None if references is None else host_thresholds(cal, references, threshold, target_fpr, classes=classes)
    made_on = frozenset(cal.rows.recording.tolist())
    return OperatingPoint(target_fpr, threshold, n, n_episodes, spread, warning, hosts=hosts, made_on=made_on)
