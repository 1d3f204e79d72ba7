"""Distances, p-values and their combination."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import LocalOutlierFactor

from training.trainer.anomaly import Distances, Surprise, fisher
from training.trainer.ssl import GROUPS, MAY_LOSE, PLAIN, Detector, choose


def benign(n: int = 200, dimensions: int = 4, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, dimensions)))


def test_the_density_score_is_the_local_outlier_factor() -> None:
    known, new = benign(), benign(50, seed=1) * 2
    distances = Distances(4, 200, 10)
    distances.fit(known)
    scaled = (known - known.mean(0)) / known.std(0)
    ours = distances(new)[:, Distances.names.index("lof")]
    peer = LocalOutlierFactor(n_neighbors=10, novelty=True).fit(scaled.numpy())
    theirs = -peer.score_samples(((new - known.mean(0)) / known.std(0)).numpy())
    assert np.allclose(ours.numpy(), theirs, rtol=1e-4)


def test_far_away_is_stranger_in_every_way() -> None:
    distances = Distances(4, 200, 10)
    distances.fit(benign())
    near, far = distances(benign(50, seed=1)), distances(benign(50, seed=1) + 6)
    assert (far.min(dim=0).values > near.median(dim=0).values).all()


def test_a_dimension_that_never_varied_does_not_count() -> None:
    known = benign()
    known[:, 2] = 5.0
    distances = Distances(4, 200, 10)
    distances.fit(known)
    moved = known[:5].clone()
    moved[:, 2] = 1e9
    assert torch.allclose(distances(moved), distances(known[:5]))


@given(
    st.lists(st.floats(-100, 100), min_size=5, max_size=80),
    st.lists(st.floats(-200, 200), min_size=2, max_size=20),
)
def test_surprise_never_falls_as_scores_rise(calm: list[float], scores: list[float]) -> None:
    surprise = Surprise(1, len(calm))
    surprise.fit(torch.tensor(calm, dtype=torch.double)[:, None])
    told = surprise(torch.tensor(sorted(scores), dtype=torch.double)[:, None])[:, 0]
    assert told.isfinite().all()
    assert (told.diff() >= -1e-9).all()
    assert (told >= 0).all()


def test_surprise_is_the_conformal_p_value_inside() -> None:
    surprise = Surprise(1, 100)
    surprise.fit(torch.arange(100, dtype=torch.double)[:, None])
    told = surprise(torch.tensor([[49.5]], dtype=torch.double))
    assert told.item() == pytest.approx(-math.log(51 / 101))


def test_surprise_tells_strange_from_stranger() -> None:
    surprise = Surprise(1, 30)
    surprise.fit(benign(30, 1))
    told = surprise(torch.tensor([[50.0], [51.0]], dtype=torch.double))[:, 0]
    assert told[1] > told[0] > -math.log(1 / 31)


def test_fisher_means_over_the_members() -> None:
    surprise = torch.tensor([[1.0, 3.0, 100.0]])
    assert fisher(surprise, [0, 1]).tolist() == [2.0]


def test_groups_are_made_of_known_scores() -> None:
    assert GROUPS["every"] == tuple(range(len(Detector.names)))
    assert {Detector.names[k] for k in GROUPS["lof"]} >= {"error_lof", "embedding_lof"}
    assert set(PLAIN) <= set(Detector.names)


def test_a_combination_gives_way_only_to_a_clearly_better_plain_method() -> None:
    alone = dict.fromkeys(Detector.names, 0.6) | {"embedding_knn": 0.99}
    together = dict.fromkeys(GROUPS, 0.6) | {"lof": 0.7}
    assert choose(alone, together)[0] == GROUPS["lof"]
    alone["feature_knn"] = 0.7 + MAY_LOSE / 2
    assert choose(alone, together)[0] == GROUPS["lof"]
    alone["feature_knn"] = 0.7 + MAY_LOSE * 2
    members, why = choose(alone, together)
    assert members == (Detector.names.index("feature_knn"),)
    assert "fell back to feature_knn" in why
