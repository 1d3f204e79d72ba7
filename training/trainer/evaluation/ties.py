"""Several models on one test side: which differ from the first beyond chance, and how much of its lead is luck.

The same test ranks the models and gives their figures. So every other model is tied with the first unless a paired test
shows a difference, and the report states how much too high the first one's figure is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from training.data.values import Floats

SURE = 0.05  # chance, over all comparisons together, of telling one apart that is not behind


@dataclass(frozen=True, slots=True)
class Standings:
    """M models in their given order: the number of the ``first``, and each one's probability and tie with the first.

    ``p`` (M,) is the chance of so large a gap to the first if the models were equal, corrected by Holm; it is 1 for the
    first itself. ``wins`` (M,) are the shares of resamples in which each has the highest value. ``optimism`` is by how
    much the highest value of a resample exceeds what the same model has on the whole test, on average: the first one's
    value is about so much too high for having been chosen here. None where there are no resamples.
    """

    first: int
    p: Floats
    tied: tuple[bool, ...]
    wins: Floats | None
    optimism: float | None


def standings(values: Sequence[float], samples: Floats, support: int) -> Standings:
    """Rank models by their ``values`` (M,) and paired resamples (R, M) of them.

    A gap over the standard deviation of its resamples is taken for Student's t with ``support`` - 1 degrees of freedom,
    the number of episodes that carry the value; the chances are corrected for their number by Holm's steps.
    """
    known = samples[np.isfinite(samples).all(axis=1)]
    whole = np.asarray(values, dtype=np.float64)
    first = int(whole.argmax())
    p = np.ones(whole.size)
    if not len(known) or support < 2:
        return Standings(first, p, (True,) * whole.size, None, None)
    gaps = known[:, [first]] - known
    spread = gaps.std(axis=0, ddof=1) if len(known) > 1 else np.zeros(whole.size)
    gap = whole[first] - whole
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(gap > 0, gap / spread, 0.0)
    others = [number for number in range(whole.size) if number != first]
    p[others] = holm([float(2 * stats.t.sf(ratio[number], support - 1)) for number in others])
    best = known.argmax(axis=1)
    return Standings(
        first,
        p,
        tuple(bool(one > SURE) for one in p),
        np.bincount(best, minlength=whole.size) / len(known),
        float((known.max(axis=1) - whole[best]).mean()),
    )


def holm(chances: Sequence[float]) -> list[float]:
    """The probabilities corrected by Holm's step-down method, in their order."""
    order = sorted(range(len(chances)), key=lambda number: chances[number])
    made, most = [0.0] * len(chances), 0.0
    for place, number in enumerate(order):
        most = max(most, min(1.0, (len(chances) - place) * chances[number]))
        made[number] = most
    return made


def in_words(
    first: int, names: Sequence[str], tied: Sequence[bool], wins: Sequence[float | None], optimism: float | None
) -> list[str]:
    """Sentences about the standings of models with these names; ``first`` is the number of the model with the highest
    value."""
    share = wins[first]
    if share is None or optimism is None:
        return [f"{names[first]} has the highest AUROC; too few episodes, or resamples, say how sure that is."]
    alike = [name for number, name in enumerate(names) if tied[number] and number != first]
    behind = [name for number, name in enumerate(names) if not tied[number]]
    lines = [f"{names[first]} has the highest AUROC, and is first in {share:.0%} of the resamples."]
    if alike:
        lines.append(f"Not distinguishable from it: {', '.join(alike)}.")
    if behind:
        lines.append(f"Behind it, by a paired test with Holm's correction: {', '.join(behind)}.")
    return [
        *lines,
        f"Chosen by this very test, its AUROC is {optimism:.3f} too high or more: only another test decides.",
    ]
