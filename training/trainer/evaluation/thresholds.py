"""The operating point: where on the score's scale the alarm starts, and how far that promise can be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import Any

import numpy as np
from scipy import stats

from training.trainer.evaluation.intervals import CONFIDENCE
from training.trainer.evaluation.scored import Classes, Scored


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """The threshold of the alarm: a window whose score is *greater* than ``threshold`` raises one."""

    target_fpr: float
    threshold: float | None  # None: the calibration data cannot support one, see reason
    n_windows: int  # benign calibration windows
    n_episodes: int  # calibration episodes with a benign window: the effective number
    interval: tuple[float, float] | None  # 95 %: the rate of alarms such a calibration really gives
    warning: str | None = None
    reason: str | None = None

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
        }


def operating_point(cal: Scored, target_fpr: float, *, classes: Classes) -> OperatingPoint:
    """Choose the threshold on benign calibration windows so that a fraction ``target_fpr`` (0..0.5) exceeds it.

    Split-conformal: of n benign scores the ceil((n + 1)(1 - target))-th smallest. Where that number exceeds n, no
    threshold exists and none is invented. Windows of one episode repeat each other, so the rate really obtained is
    spread like a Beta distribution of the number of *episodes*.
    """
    if not 0 < target_fpr < 0.5:
        raise ValueError(f"target_fpr must lie between 0 and 0.5, not {target_fpr}")
    if not classes.benign:
        return OperatingPoint(target_fpr, None, 0, 0, None, reason="no class is benign")
    is_benign = classes.is_benign(cal.y)
    n, n_episodes = int(is_benign.sum()), int(np.unique(cal.rows.recording[is_benign]).size)
    allowed = _allowed_alarms(n, target_fpr)
    if allowed < 1:
        needed = _needed(target_fpr)
        reason = f"{n} benign calibration windows; a target of {100 * target_fpr:g} % needs {needed}"
        return OperatingPoint(target_fpr, None, n, n_episodes, None, reason=reason)
    threshold = float(np.partition(cal.score[is_benign], n - allowed)[n - allowed])
    warning = None
    if _allowed_alarms(n_episodes, target_fpr) < 1:
        warning = (
            f"calibrated on {n_episodes} episodes; {_needed(target_fpr)} would be needed "
            f"to hold a target of {100 * target_fpr:g} %"
        )
    spread = _realised_spread(n_episodes, target_fpr)
    return OperatingPoint(target_fpr, threshold, n, n_episodes, spread, warning=warning)


def _allowed_alarms(n: int, target: float) -> int:
    """Return floor((n + 1) target): the benign scores of n that may reach the threshold.

    The small term keeps 0.05 * 20 = 0.999… from losing one.
    """
    return floor((n + 1) * target + 1e-9)


def _needed(target: float) -> int:
    n = max(1, floor(1 / target) - 2)
    while _allowed_alarms(n, target) < 1:
        n += 1
    return n


def _realised_spread(n: int, target: float) -> tuple[float, float]:
    """The rate above the chosen one of n exchangeable scores is Beta((n + 1) target, (n + 1)(1 - target))."""
    tails = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    low, high = stats.beta.ppf(tails, (n + 1) * target, (n + 1) * (1 - target))
    return float(low), float(high)
