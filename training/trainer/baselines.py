"""The bar every model has to clear: plain methods on the same features, split and threshold rule."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from training.data.split import Split
from training.trainer.evaluate import LabelMap, Scored


def run_baselines(
    X: NDArray[Any],
    y: NDArray[Any],
    split: Split,
    *,
    test: Scored,
    cal: Scored,
    label_map: LabelMap,
    target_fpr: float,
    n_resamples: int = 1000,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Fit on split.train and judge on split.test: logistic_regression, isolation_forest, mahalanobis, lof.

    ``X`` (N_all, F) are the mode's features and ``y`` (N_all) the classes of *all* windows; ``test``
    and ``cal`` are the model's own `Scored`, of which everything but the scores is taken over. The
    result maps each name to {kind: supervised | anomaly, auroc, tpr, fpr: {value, ci95}}, plus a note
    where something had to be left out.
    """
    raise NotImplementedError
