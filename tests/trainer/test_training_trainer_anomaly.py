"""Distances, p-values and their combination."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import LocalOutlierFactor

from training.trainer import anomaly, flags
from training.trainer.anomaly import Distances, Surprise, fisher
from training.trainer.masked import MaskedModel
from training.trainer.ssl import GROUPS, MAY_LOSE, PLAIN, USUAL, Detector, choose


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


@given(st.lists(st.floats(-100, 100), min_size=5, max_size=80), st.lists(st.floats(-200, 200), min_size=2, max_size=20))
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
    assert {Detector.names[k] for k in GROUPS["lof"]} >= {"residual_lof", "embedding_lof"}
    assert set(PLAIN) <= set(Detector.names)


def test_neighbours_are_looked_for_where_everyday_movement_counts_little() -> None:
    rng = np.random.default_rng(0)
    together = rng.normal(size=(300, 1)) * 5
    known = torch.from_numpy(np.hstack((together, together)) + rng.normal(size=(300, 2)) * 0.1)
    distances = Distances(2, 300, 10)
    distances.fit(known)
    knn = Distances.names.index("knn")
    along, across = distances(torch.tensor([[6.0, 6.0], [1.0, -1.0]], dtype=torch.double))[:, knn]
    assert across > 2 * along


def test_scores_do_not_depend_on_how_many_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    distances = Distances(4, 200, 10)
    distances.fit(benign())
    whole = distances(benign(100, seed=1))
    monkeypatch.setattr(anomaly, "AT_ONCE", 40)
    assert torch.allclose(distances(benign(100, seed=1)), whole)


def test_the_usual_combination_gives_way_only_to_what_is_clearly_better() -> None:
    alone = dict.fromkeys(Detector.names, 0.6) | {"embedding_knn": 0.99}
    together = dict.fromkeys(GROUPS, 0.6) | {"lof": 0.6 + MAY_LOSE / 2}
    assert choose(alone, together)[0] == GROUPS[USUAL]
    together["lof"] = 0.7
    assert choose(alone, together)[0] == GROUPS["lof"]
    alone["feature_knn"] = 0.7 + MAY_LOSE / 2
    assert choose(alone, together)[0] == GROUPS["lof"]
    alone["feature_knn"] = 0.7 + MAY_LOSE * 2
    members, why = choose(alone, together)
    assert members == (Detector.names.index("feature_knn"),)
    assert "fell back to feature_knn" in why


def masked(channels: int, samples: int) -> MaskedModel:
    torch.manual_seed(0)
    hyper = {hyper.key: hyper.default for hyper in flags.MODELS["transformer_ssl"]}
    return MaskedModel(channels, samples, hyper).eval()


@pytest.mark.parametrize(("channels", "samples"), [(1, 16), (2, 17), (7, 40)])
def test_what_is_hidden_cannot_be_seen(channels: int, samples: int) -> None:
    model = masked(channels, samples)
    x = torch.randn(3, channels, samples)
    hidden = model.draw(3, 0.4, x.device)
    assert hidden.any(dim=1).all()
    assert not hidden.all(dim=1).any()
    unseen = model._spread(hidden)
    other = torch.where(unseen.bool(), torch.randn_like(x), x)
    there = torch.ones_like(x, dtype=torch.bool)
    guess, same = (model._residuals(one, unseen, there) + one for one in (x, other))
    assert torch.allclose(guess, same, atol=1e-5)
    means, squares = model.once_each(x)
    assert means.shape == squares.shape == (3, channels)


def test_hidden_channels_are_guessed_from_the_others() -> None:
    model = masked(3, 32)
    rng = torch.Generator().manual_seed(0)

    def draw(count: int) -> torch.Tensor:
        level = torch.randn(count, 1, 1, generator=rng)
        signs = torch.tensor([1.0, -1.0, 1.0])[None, :, None]
        return level * signs + 0.1 * torch.randn(count, 3, 32, generator=rng)

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    x = draw(128)
    for _ in range(40):
        loss = model.loss(x, model.draw(len(x), 0.4, x.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    odd = draw(64)
    odd[:, 1] *= -1  # each channel is as usual, together they are not
    with torch.no_grad():
        assert model.once_each(odd)[1].mean() > 5 * model.once_each(draw(64))[1].mean()
