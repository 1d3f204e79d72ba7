"""Channels that some hosts lack: every family learns beside them, scores without them, and is what it was with them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import telemetry_builders as made
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trainer_builders import BY_HOST, files, make_data, score, trained

from training import families
from training.contract import Exit
from training.data import build
from training.trainer import score as score_cli
from training.trainer.blocks import Perturb
from training.trainer.channel_ablation import price_of
from training.trainer.checkpoint import digest_of
from training.trainer.judging import judge
from training.trainer.linear import Linear, fit_linear
from training.trainer.masked import MaskedModel
from training.trainer.mlp import Mlp
from training.trainer.normalise import QuantileNormal, RobustAsinh
from training.trainer.summary import lines
from training.trainer.task import auroc

pytestmark = pytest.mark.usefixtures("one_anomaly_method")


@pytest.fixture(scope="module")
def without_second(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("lacking"), lacks={"beta": (1,)})


@pytest.mark.half
@pytest.mark.parametrize("model", families.FAMILIES)
def test_a_family_learns_from_hosts_that_lack_a_channel(model, without_second, tmp_path):
    first = trained(model, without_second, tmp_path / "a")
    trained(model, without_second, tmp_path / "b")
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert score(first.checkpoint, without_second)["score"].is_finite().all()


@pytest.mark.half
@pytest.mark.parametrize("model", ["gbt", "mlp", "cnn", "transformer_ssl"])
def test_windows_that_lack_a_channel_are_scored_and_do_not_move_the_others(model, data, without_second, tmp_path):
    checkpoint = trained(model, data, tmp_path).checkpoint
    whole, lacking = score(checkpoint, data), score(checkpoint, without_second)
    assert lacking["score"].is_finite().all()
    there = (whole["host"] != "beta").to_numpy()
    before, after = (frame["score"].to_numpy() for frame in (whole, lacking))
    np.testing.assert_allclose(after[there], before[there], rtol=1e-5)
    assert (after[~there] != before[~there]).any()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 99), lost=st.lists(st.booleans(), min_size=24, max_size=24))
def test_a_scale_is_learnt_from_the_windows_that_know_a_channel(seed, lost):
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


def test_a_line_counts_what_is_absent_as_usual():
    X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    y = (X[:, 0] + X[:, 2] > 0).astype(np.int64)
    X[::3, 2] = np.nan
    X[:, 1] = np.nan
    line = fit_linear(X, y, np.ones(60), 2)
    assert np.isfinite(line.margins(X)).all()
    assert line.gain[1] == 0
    assert abs(line.weights[2]).item() > 0.1


def test_an_absent_feature_adds_nothing_to_a_margin():
    one = np.ones(2)
    line = Linear(5 * one, one, 0.2 * one, one, np.array([[1.0], [3.0]]), np.array([0.5]))
    X = np.array([[np.nan, np.nan], [5.0 + np.sinh(0.2), np.nan]], dtype=np.float32)
    assert line.margins(X) == pytest.approx([0.5, 0.5], abs=1e-6)


def test_an_embedding_marks_what_is_absent_as_the_training_marks_what_it_hides():
    torch.manual_seed(0)
    hyper = families.FAMILIES["transformer_ssl"].defaults()
    net = MaskedModel(3, 20, hyper).eval()
    x, hidden = torch.randn(2, 3, 20), torch.tensor([[False, True, False]] * 2)
    lacking = x.clone()
    lacking[:, 1] = torch.nan
    seen = []
    net.encoder.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        net.loss(x, hidden)
        net.embed(lacking)
    assert torch.equal(*seen)


def test_what_is_hidden_in_training_reads_as_absent():
    torch.manual_seed(0)
    x = torch.randn(64, 3, 5)
    x[::2, 1] = torch.nan
    perturb = Perturb(0.3, [1])
    seen = perturb.train()(x)
    assert seen.shape == x.shape
    absent = (seen[:, 1] == 0).all(dim=1)
    assert absent[::2].all()
    assert 0.2 < absent[1::2].float().mean() < 0.8  # half of the others, by chance
    assert (seen[:, [0, 2]] != 0).any(dim=2).all()  # of so few channels no other can be spared
    calm = perturb.eval()(x)
    assert torch.equal(calm[1::2], x[1::2])
    assert (calm[::2, 1] == 0).all()


def test_members_count_what_is_absent_as_usual_and_learn_without_it():
    torch.manual_seed(0)
    hyper = families.FAMILIES["mlp"].defaults() | {"dropout": 0.0}
    net = Mlp(4, 2, hyper, [[1, 3]])
    x = torch.randn(64, 4)
    without = torch.where(torch.tensor([False, True, False, True]), torch.nan, x)
    with torch.no_grad():
        one, lacking = net.eval()(x), net(without)
        assert torch.equal(lacking, net(torch.nan_to_num(without)))
        hidden = torch.isclose(net.train()(x), lacking, atol=1e-6).all(dim=2).all(dim=0)
        seen = torch.isclose(net(x), one, atol=1e-6).all(dim=2).all(dim=0)
    assert 0.2 < hidden.float().mean() < 0.8
    assert 0.2 < seen.float().mean() < 0.8


# -- what it costs -----------------------------------------------------------------------------------------------------

HOSTS = ("alpha", "beta", "gamma")


@pytest.mark.parametrize("model", ["gbt", "cnn", "transformer_ssl"])
def test_the_price_in_the_report_is_what_a_host_without_the_channel_pays(model, tmp_path):
    """Taken away from the windows of the test, or never recorded: figures are the same, and score tells them."""
    known = {"rename": "cpu_throttled", "reference": True}
    whole = make_data(tmp_path / "whole", **known)
    lacking = make_data(tmp_path / "lacking", lacks=dict.fromkeys(HOSTS, (1,)), **known)
    made = trained(model, whole, tmp_path, *BY_HOST, "--target-fpr", "0.3")
    checkpoint, found = made.checkpoint, made.document["channels"]
    assert (found["some"], found["none"]) == ([], [])
    (price,) = found["without"]
    assert price["channels"] == ["cpu_throttled"]
    test = score(checkpoint, whole)["side"].to_numpy() == "test"
    judged = judge(checkpoint, lacking)
    scored = judged.scored.take(np.flatnonzero(test))
    assert auroc(scored.y > 0, scored.score) == pytest.approx(price["auroc"], abs=1e-6)
    assert judged.alarm[test & (judged.scored.y > 0)].mean() == pytest.approx(price["tpr"], abs=1e-6)
    assert price["gap"]["value"] == pytest.approx(price["auroc"] - found["whole"]["auroc"], abs=2e-6)
    said = "\n".join(lines(judged))
    assert "missing     cpu_throttled on alpha, beta, gamma: on the test side AUROC" in said


def test_the_price_of_some_channels_is_that_of_the_fewest_taken_away_with_them():
    measured = [{"channels": names} for names in (["a", "b", "c"], ["a"], ["a", "b"])]
    document = {"channels": {"without": measured}}
    found = [price_of(names, document) for names in (["a"], ["b"], ["c", "a"], ["d"])]
    assert found == [measured[1], measured[2], measured[0], None]


def test_the_report_tells_which_channels_the_training_hosts_have(tmp_path):
    data = make_data(tmp_path / "data", lacks={"beta": (0,), "alpha": (0, 2), "gamma": (2,)})
    made = trained("gbt", data, tmp_path, *BY_HOST, "--target-fpr", "0.3")
    report = made.report["channels"]
    assert (report["none"], report["some"]) == (["channel0"], ["channel2"])
    # The unseen host has channel0, of which nothing was learnt, and lacks channel2.
    (price,) = report["without"]
    assert price["channels"] == ["channel0"]
    assert price["gap"]["value"] == 0
    page = (tmp_path / "reports" / "gbt_oracle_train.html").read_text()
    assert "Where a host lacks a channel" in page
    assert "Only some of the training hosts have channel2." in page
    said = "\n".join(lines(judge(made.checkpoint, data)))
    assert "missing     channel2 on alpha, gamma: what that costs was never measured" in said
    assert "channel0 on" not in said
    assert "believe it  with care" in said


def test_a_level_that_is_kept_by_name_alone_is_doubted(tmp_path):
    """The host has its name and nothing else in common, for all that the data tell."""
    data = make_data(tmp_path / "data", episodes=120, reference=True)
    made = trained("gbt", data, tmp_path, "--target-fpr", "0.2")
    checkpoint = made.checkpoint
    assert made.document["threshold"]["hosts"] is not None
    with_its_own = "\n".join(lines(judge(checkpoint, data)))
    without = "\n".join(lines(judge(checkpoint, make_data(tmp_path / "other", seed=3))))
    assert "of this name" not in with_its_own
    assert "alpha, beta, gamma: no reference recording here; the threshold is that of the host of this name" in without
    assert "believe it  with care" in without


def test_a_summary_of_what_lacks_nothing_says_so(data, tmp_path):
    made = trained("gbt", data, tmp_path)
    checkpoint, document = made.checkpoint, made.document
    said = lines(judge(checkpoint, data))
    assert said[0].startswith("scored      216 windows of 36 recordings by gbt oracle")
    assert "missing     nothing" in said

    def write(**channels):
        document["channels"] = {"none": [], **channels}
        checkpoint.write_text(json.dumps(document | {"digest": digest_of(document)}))

    write()
    lacking = make_data(tmp_path / "lacking", lacks={"beta": (1,)})
    assert "missing     channel1 on beta: what that costs was never measured" in lines(judge(checkpoint, lacking))
    figures = {"auroc": 0.8, "tpr": 0.5, "fpr": 0.1}
    for gap, doubted in ((-0.1, True), (-0.01, False), (0.1, False)):
        price = {"channels": ["channel1"], **figures, "gap": {"value": gap, "ci95": None}}
        write(whole=figures, without=[price])
        said = "\n".join(lines(judge(checkpoint, lacking)))
        assert ("beta lacks channel1, which costs 0.10 of AUROC" in said) == doubted
        assert ("beta lacks" in said) == doubted


@pytest.mark.parametrize("model", ["gbt", "cnn"])
def test_data_without_a_column_are_scored_as_data_in_which_it_is_empty(model, data, tmp_path):
    checkpoint = trained(model, data, tmp_path).checkpoint
    empty = make_data(tmp_path / "empty", lacks=dict.fromkeys(HOSTS, (0, 2)))
    gone = make_data(tmp_path / "gone", columns=(1, 3, 4))
    one, other = (score(checkpoint, folder)["score"].to_numpy() for folder in (empty, gone))
    assert (one == other).all()
    assert not (one == score(checkpoint, data)["score"].to_numpy()).all()


def test_a_machine_of_another_kind_is_recorded_built_and_scored_without_a_refusal(tmp_path, capsys):
    fleet, mine = tmp_path / "fleet", tmp_path / "mine"
    made.write_fleet(fleet, hosts=("h0", "h1", "h2"))
    assert build.main([str(fleet), "--out-dir", str(tmp_path / "processed"), "--jobs", "1"]) == 0
    model = trained("gbt", tmp_path / "processed", tmp_path, "--target-fpr", "0.3", mode="realistic").checkpoint
    t, values = made.signal(duration_s=30.0, seed=50)
    new = {"host": "laptop", "view": "machine", "channels": made.channel_infos(made.CHANNELS[1:3]), "duration_s": 30.0}
    quiet = {"baseline": True, "labels": [(0.0, "idle")], "phases": {"idle": "benign"}}
    made.write_episode(mine, number=50, t=t, values=values[:, 1:3], **new, **quiet)
    t, values = made.signal(duration_s=30.0, seed=51)
    made.write_episode(mine, number=51, t=t, values=values[:, 1:3], **new)
    like = ["--like", str(tmp_path / "processed")]
    assert build.main([str(mine), "--out-dir", str(tmp_path / "own"), *like, "--jobs", "1"]) == 0
    capsys.readouterr()
    assert score_cli.main([str(model), str(tmp_path / "own")]) == Exit.DONE
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1 + 11
    first, *_, last = [line for line in said.err.splitlines() if not line.startswith("note: ")]
    assert first.startswith("scored      11 windows of 1 recording by gbt realistic: ")
    assert "missing     cpu_user on laptop: what that costs was never measured" in said.err
    assert "laptop lacks cpu_user, and the model was not measured without." in said.err
    assert last.startswith("believe it  with care: ")
