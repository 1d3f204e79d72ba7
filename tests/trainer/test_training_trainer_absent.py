"""Channels that some hosts lack: every family learns beside them, scores without them, and is what it was with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trainer_builders import SHORT, arguments, files, make_data, run

from training.contract import Exit
from training.trainer import flags
from training.trainer.blocks import Perturb
from training.trainer.linear import fit_linear
from training.trainer.mlp import Mlp
from training.trainer.normalise import QuantileNormal, RobustAsinh
from training.trainer.score import score

pytestmark = pytest.mark.usefixtures("one_anomaly_method")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def without_second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("lacking"), lacks={"beta": (1,)})


@pytest.mark.parametrize("model", flags.MODELS)
def test_a_family_learns_from_hosts_that_lack_a_channel(model: str, without_second: Path, tmp_path: Path) -> None:
    first = run(arguments(model, without_second, tmp_path / "a", *SHORT[model]))
    again = run(arguments(model, without_second, tmp_path / "b", *SHORT[model]))
    assert first.code == again.code == Exit.DONE, first.sentence
    assert files(tmp_path / "a") == files(tmp_path / "b")
    scored = score(tmp_path / "a" / "artifacts" / f"{model}_oracle.ckpt.json", without_second)
    assert scored["score"].is_finite().all()


@pytest.mark.parametrize("model", ["gbt", "mlp", "cnn", "transformer_ssl"])
def test_windows_that_lack_a_channel_are_scored_and_do_not_move_the_others(
    model: str, data: Path, without_second: Path, tmp_path: Path
) -> None:
    assert run(arguments(model, data, tmp_path, *SHORT[model])).code == Exit.DONE
    checkpoint = tmp_path / "artifacts" / f"{model}_oracle.ckpt.json"
    whole, lacking = score(checkpoint, data), score(checkpoint, without_second)
    assert lacking["score"].is_finite().all()
    there = (whole["host"] != "beta").to_numpy()
    before, after = (frame["score"].to_numpy() for frame in (whole, lacking))
    np.testing.assert_allclose(after[there], before[there], rtol=1e-5)
    assert (after[~there] != before[~there]).any()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 99), lost=st.lists(st.booleans(), min_size=24, max_size=24))
def test_a_scale_is_learnt_from_the_windows_that_know_a_channel(seed: int, lost: list[bool]) -> None:
    rng, gone = np.random.default_rng(seed), np.array(lost)
    F = rng.normal(size=(24, 3)).astype(np.float32)
    F[gone, 1] = np.nan
    samples = np.repeat(F[:, :, None], 4, axis=2)
    few = np.flatnonzero(~gone)
    for normalise, X in ((QuantileNormal(3), F), (RobustAsinh(3), samples)):
        normalise.fit(X, np.arange(24))
        assert (np.isnan(normalise(torch.from_numpy(X)).numpy()) == np.isnan(X)).all()
    if few.size:
        other = RobustAsinh(3)
        other.fit(samples[few], np.arange(few.size))
        assert other.center[1] == normalise.center[1]
        assert other.gain[1] == normalise.gain[1]


def test_a_line_counts_what_is_absent_as_usual() -> None:
    X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    y = (X[:, 0] + X[:, 2] > 0).astype(np.int64)
    X[::3, 2] = np.nan
    X[:, 1] = np.nan
    line = fit_linear(X, y, np.ones(60), 2)
    assert np.isfinite(line.margins(X)).all()
    assert line.gain[1] == 0
    assert abs(line.weights[2]).item() > 0.1


def test_what_is_hidden_in_training_reads_as_absent() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 3, 5)
    x[::2, 1] = torch.nan
    perturb = Perturb(0.3, [1])
    seen = perturb.train()(x)
    assert seen.shape == (64, 4, 5)
    absent = seen[:, 3, 0] == 0
    assert absent[::2].all()
    assert 0 < absent[1::2].float().mean() < 0.5  # some more, by chance
    assert ((seen[:, 1] == 0).all(dim=1) == absent).all()
    calm = perturb.eval()(x)
    assert torch.equal(calm[1::2, :3], x[1::2])
    assert torch.equal(calm[:, 3, 0], (~x[:, 1, 0].isnan()).float())


def test_members_are_told_which_channels_are_there() -> None:
    torch.manual_seed(0)
    hyper = {one.key: one.default for one in flags.MODELS["mlp"]}
    net = Mlp(4, 2, hyper, [[1, 3]]).eval()
    assert net.straight.weight.shape[1] == 5
    with torch.no_grad():
        net.straight.weight[:, 4, 1] = 7.0
    x = torch.zeros(1, 4)
    there, lacking = net(x), net(torch.tensor([[0.0, torch.nan, 0.0, torch.nan]]))
    assert not torch.allclose(there, lacking)
