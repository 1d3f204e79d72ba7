"""Two models on the same windows: is one really better, or was it the draw of episodes?"""

from __future__ import annotations

from typing import Any

import numpy as np

from training.trainer.evaluate import by_class, rank_measure, shown, support_of
from training.trainer.resample import FloatArray, Weights, bootstrap, clusters
from training.trainer.scored import LabelMap, Scored, benign_class


def paired_gap(
    a: Scored, b: Scored, *, label_map: LabelMap, n_resamples: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """AUROC of ``a`` minus that of ``b``, as {value, ci95}: oracle minus realistic, or a rival minus the model.

    Both are resampled with the same episodes, so what makes an episode easy or hard for both cancels out: the
    interval is much narrower than those of the two AUROCs suggest. Raises ValueError when the windows differ, or when
    one is judged by class and the other by its alarm score.
    """
    if not (np.array_equal(a.episode, b.episode) and np.array_equal(a.y, b.y)):
        raise ValueError("a paired comparison needs the same windows in the same order")
    if by_class(a, label_map) is not by_class(b, label_map):
        raise ValueError("an AUROC over classes cannot be compared with one of alarms")
    episode, n_clusters = clusters(a.episode)
    first, second = (rank_measure(one, label_map, episode) for one in (a, b))

    def gap(weights: Weights) -> dict[str, FloatArray]:
        return {"gap": first(weights)["auroc"] - second(weights)["auroc"]}

    sizes = {"n_episodes": n_clusters, "n_windows": a.y.size}
    estimate = bootstrap([gap], **sizes, n_resamples=n_resamples, seed=seed)["gap"]
    support = support_of(a, benign_class(label_map))["auroc"]
    return shown(estimate, support, bounded=False)
