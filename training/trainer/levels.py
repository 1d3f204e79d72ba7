"""The usual level of an anomaly score on a host, from the host's own reference recordings.

Some hosts always look stranger than others, and a threshold set on some of them does not
hold on the next. So scores are measured from the host's own level: a quantile of the scores of its
reference, which was recorded before, while the host did its ordinary work, and which trains,
calibrates and tests nothing. A host without one is measured from the median level of those that
trained, and is said to have none.

On the recorded sample, each host unseen in turn, a promise of 5 % false alarms became 30 % without
levels (13 to 70 %), and 5 % with them (1 to 10 %).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.trainer.evaluation.host_thresholds import FEWEST

FloatArray = NDArray[np.float64]

QUANTILE = 0.75  # of the scores of a host's reference

NO_LEVELS = (
    "No host that trained has a reference recording: scores are compared between hosts as they are, "
    "and a threshold may not hold on the next one."
)


@dataclass(frozen=True, slots=True)
class Levels:
    """``known`` has the hosts with a reference; ``usual`` stands in for the others, None when no host has one."""

    known: Mapping[str, float]
    usual: float | None

    @classmethod
    def trained(cls, score: FloatArray, host: NDArray[np.str_], *, on: Sequence[str]) -> Levels:
        """Levels by the scores (M,) of reference windows; the usual level is the median of the hosts trained ``on``."""
        known = _known(score, host)
        usual = [known[name] for name in on if name in known]
        return cls(known, float(np.median(usual)) if usual else None)

    @classmethod
    def elsewhere(cls, score: FloatArray, host: NDArray[np.str_], recorded: Mapping[str, Any]) -> Levels:
        """On other data: hosts' levels there, and those ``recorded``: the usual one, and of hosts adapted to."""
        return cls({**recorded.get("own", {}), **_known(score, host)}, recorded["usual"])

    def applied(self, score: FloatArray, host: NDArray[np.str_]) -> FloatArray:
        """The scores (N,) from the level of each one's host; as they are when there is no usual level."""
        if self.usual is None:
            return score
        level = {name: self.known.get(name, self.usual) for name in set(host.tolist())}
        return np.asarray(score - np.array([level[name] for name in host.tolist()], dtype=np.float64))

    def notes(self, host: NDArray[np.str_]) -> list[str]:
        """Collect the sentences that a reader of the numbers must know."""
        if self.usual is None:
            return [NO_LEVELS]
        without = sorted(set(host.tolist()) - set(self.known))
        said = "Scores are measured from each host's own level, taken from its reference recordings"
        if not without:
            return [f"{said}."]
        return [f"{said}; {', '.join(without)} has none and is measured from the usual level."]

    def to_dict(self) -> dict[str, Any]:
        return {"quantile": QUANTILE, "known": dict(self.known), "usual": self.usual}


def _known(score: FloatArray, host: NDArray[np.str_]) -> dict[str, float]:
    return {
        name: round(float(np.quantile(score[host == name], QUANTILE)), 9)
        for name in sorted(set(host.tolist()))
        if (host == name).sum() >= FEWEST
    }
