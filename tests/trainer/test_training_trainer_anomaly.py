"""Views of windows: their centres, distances, p-values and the choice among them; and the masked network."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from training import families
from training.trainer import anomaly
from training.trainer.anomaly import FEW, Centres, Neighbours, Sided, Surprise, Surprises, choose
from training.trainer.masked import MaskedModel


def benign(n=200, dimensions=4, seed=0):
    return np.random.default_rng(seed).normal(size=(n, dimensions))


@given(st.integers(0, 99), st.integers(1, 6), st.integers(3, 60))
def test_distances_are_those_of_the_nearest_whitened_windows(seed, dimensions, count):
    rng = np.random.default_rng(seed)
    known = rng.normal(size=(count, dimensions)) @ rng.normal(size=(dimensions, dimensions))
    new = rng.normal(size=(7, dimensions)) * 2
    near = Neighbours.fit(known, 10)
    scaled = np.clip(new * near.gain, -10, 10)
    apart = cdist(scaled @ near.whiten, near.benign.astype(np.float64) @ near.whiten)
    expected = np.sort(apart, axis=1)[:, : near.neighbours].mean(axis=1)
    np.testing.assert_allclose(near.distances(new), expected, rtol=1e-3, atol=1e-3)
    shares = near.shares(new)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-4)


def test_a_dimension_that_never_varied_does_not_count():
    known = benign()
    known[:, 2] = 5.0
    near = Neighbours.fit(known, 10)
    moved = known[:5].copy()
    moved[:, 2] = 1e9
    np.testing.assert_array_equal(near.distances(moved), near.distances(known[:5]))
    assert not near.shares(moved)[:, 2].any()


def test_neighbours_are_looked_for_where_everyday_movement_counts_little():
    rng = np.random.default_rng(0)
    together = rng.normal(size=(300, 1)) * 5
    near = Neighbours.fit(np.hstack((together, together)) + rng.normal(size=(300, 2)) * 0.1, 10)
    along, across = near.distances(np.array([[6.0, 6.0], [1.0, -1.0]]))
    assert across > 2 * along


def test_scores_do_not_depend_on_how_many_are_asked_for(monkeypatch):
    near = Neighbours.fit(benign(), 10)
    whole = near.distances(benign(100, seed=1))
    monkeypatch.setattr(anomaly, "AT_ONCE", 7)
    np.testing.assert_allclose(near.distances(benign(100, seed=1)), whole, rtol=1e-5)


def test_a_host_is_measured_from_its_own_reference_the_more_the_longer_it_is():
    train = np.zeros((50, 2), dtype=np.float32)
    for windows in (1, 4, 400):
        own = np.full((windows, 2), 8.0, dtype=np.float32)
        own[:, 1] = np.nan  # what the host lacks stays where the training windows have it
        centres = Centres.fit(train).settled(own, np.array(["pi"] * windows))
        found = centres.of(np.array(["pi", "stranger"]))
        np.testing.assert_allclose(found, [[8.0 * windows / (windows + FEW), 0.0], [0.0, 0.0]])


def sided(shift, host, seed, count=80):
    rows = {name: (benign(count, 3, seed) + shift).astype(np.float32) for name in ("means", "spreads")}
    return Sided(rows, np.array([host] * count))


def test_what_is_usual_on_a_host_surprises_no_longer_once_its_reference_is_known():
    fitted = Surprises.fit(sided(0, "a", 0), sided(0, "a", 1), sided(0, "a", 2), neighbours=5)
    settled = fitted.settled(sided(9, "b", 3))
    before, after = fitted.of(sided(9, "b", 4)), settled.of(sided(9, "b", 4))
    assert after.mean() < 2 < before.mean()
    np.testing.assert_array_equal(settled.of(sided(1, "a", 5)), fitted.of(sided(1, "a", 5)))
    again = Surprises.load(["means", "spreads"], fitted.arrays()).recalled(settled.centres())
    np.testing.assert_array_equal(again.of(sided(9, "b", 4)), after)


@given(st.lists(st.floats(-100, 100), min_size=5, max_size=80), st.lists(st.floats(-200, 200), min_size=2, max_size=20))
def test_surprise_never_falls_as_scores_rise(calm, scores):
    told = Surprise.fit(np.array(calm)).of(np.sort(scores))
    assert np.isfinite(told).all()
    assert (np.diff(told) >= -1e-9).all()
    assert (told >= 0).all()


def test_surprise_is_the_conformal_p_value_inside():
    told = Surprise.fit(np.arange(100.0)).of(np.array([49.5]))
    assert told.item() == pytest.approx(-math.log(51 / 101))


def test_surprise_tells_strange_from_stranger():
    told = Surprise.fit(benign(30, 1)[:, 0]).of(np.array([50.0, 51.0]))
    assert told[1] > told[0] > -math.log(1 / 31)


def chosen(*, good, network=("net",)):
    """The choice where each view's strange windows lie so much higher than its benign ones."""
    rng, names = np.random.default_rng(0), list(good)
    strange = np.arange(400) >= 200
    surprises = np.stack([rng.normal(size=400) + strange * good[name] for name in names], axis=1)
    return choose(names, surprises, strange, network=network)


def test_the_view_that_tells_best_is_chosen():
    assert chosen(good={"a": 3, "b": 0, "c": 0, "net": 0}).shares == {"a": 1.0}
    assert chosen(good={"a": 2, "b": 2, "c": 2, "net": 0}).shares == dict.fromkeys("abc", 1 / 3)
    assert chosen(good={"a": 1, "b": 1, "c": 1, "net": 1}).shares == dict.fromkeys(("a", "b", "c", "net"), 0.25)


@given(st.integers(1, 8), st.floats(0, 1))
def test_shares_add_up_to_one_and_no_other_view_leads(views, lead):
    shares = list(anomaly.shares_of([str(one) for one in range(views)], lead).values())
    assert sum(shares) == pytest.approx(1)
    assert all(shares[0] >= one >= 0 for one in shares)
    assert len(set(shares[1:])) <= 1


def test_the_score_is_the_sum_of_surprises_in_their_shares():
    column = {"a": np.array([1.0, 2.0]), "b": np.array([3.0, 5.0]), "c": np.array([100.0, 100.0])}
    assert anomaly.weighed({"a": 0.75, "b": 0.25}, column).tolist() == [1.5, 2.75]


def test_the_network_stays_only_where_it_adds():
    for net, members in ((0, ["a"]), (4, ["a", "b", "net"])):
        found = chosen(good={"a": 3, "b": 0, "net": net})
        assert (found.network_adds > 0) == ("net" in found.shares) == (net > 0)
        assert list(found.shares) == members
        assert f"{found.network_adds:+.3f}" in found.why


def test_without_labels_it_is_the_mean_of_all():
    found = choose(["a", "net"], np.ones((5, 2)), np.zeros(5, dtype=np.bool_), network=["net"])
    assert found.shares == {"a": 0.5, "net": 0.5}
    assert (found.network_adds, found.auroc) == (None, {})


def masked(channels, samples):
    torch.manual_seed(0)
    hyper = families.FAMILIES["transformer_ssl"].defaults()
    return MaskedModel(channels, samples, hyper).eval()


@pytest.mark.parametrize(("channels", "samples"), [(1, 16), (2, 17), (7, 40)])
def test_what_is_hidden_cannot_be_seen(channels, samples):
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


def test_hidden_channels_are_guessed_from_the_others():
    model = masked(3, 32)
    rng = torch.Generator().manual_seed(0)

    def draw(count):
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
