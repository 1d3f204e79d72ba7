"""The rules for every family: shapes, oddities of data, repetition, interruption, and reading back."""

import io
from functools import cache
from statistics import geometric_mean

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trainer_builders import (
    BY_HOST,
    SHORT,
    Forgetful,
    StopAfter,
    arguments,
    ends_like,
    files,
    make_data,
    run,
    score,
    table,
    trained,
)

from training import families
from training.clock import SystemClock
from training.contract import Exit
from training.trainer import gbt, linear, machine, stages, supervised
from training.trainer.contract import BadArguments, Progress, Stop
from training.trainer.judging import judge, sides
from training.trainer.loop import LoopSpec, train
from training.trainer.normalise import QuantileNormal, RobustAsinh
from training.trainer.reasons import explain
from training.trainer.stages import Search
from training.trainer.supervised import build
from training.trainer.task import TEMPERATURES, Task, auroc, class_weights, log_loss, softmax, tempered
from training.trainer.windows import Resident, Streamed, windows

pytestmark = pytest.mark.usefixtures("one_anomaly_method")

OVER_TIME = ("cnn", "gru", "lstm", "transformer")


@pytest.fixture(scope="module")
def once(one_anomaly_method, data, tmp_path_factory):
    """Train a model as :func:`trained` does, for the first test that asks; others get the same run, to be read."""
    return cache(lambda model: trained(model, data, tmp_path_factory.mktemp(model)))


@pytest.mark.parametrize("model", families.FAMILIES)
def test_a_family_learns_repeats_and_reads_itself_back(model, data, once, tmp_path):
    first = once(model)
    trained(model, data, tmp_path)
    assert files(first.out) == files(tmp_path)
    assert [event["event"] for event in first.events][:2] == ["start", "data"]
    assert first.events[-1]["event"] == "done"
    judged = judge(first.checkpoint, data)
    scored = table(judged, sides(judged))
    assert scored.height == 216
    assert scored["score"].is_finite().all()
    test = (scored["side"] == "test").to_numpy()
    malicious = ~judged.classes.is_benign(judged.inputs.y)
    ranked = auroc(malicious[test], scored["score"].to_numpy()[test])
    assert ranked == pytest.approx(first.report["metrics"]["test"]["auroc"]["value"], abs=1e-6)
    assert explain(judged.fitted, judged.inputs, np.flatnonzero(malicious), seconds=False).share.any()
    assert first.report["model"] == model
    assert first.report["quarantined"]


@pytest.mark.parametrize("model", families.FAMILIES)
def test_an_interrupted_run_ends_like_one_that_never_stopped(model, data, once, tmp_path):
    argv = arguments(model, data, tmp_path, *SHORT[model])
    ends_like(once(model).out, argv, (1, 3, 8, 24, 31), tmp_path)


@pytest.mark.half
@pytest.mark.parametrize("model", ["mlp", "gbt"])
def test_a_run_that_moved_to_another_processor_goes_on_and_never_passes_for_a_run_of_one(
    model, data, once, tmp_path, monkeypatch
):
    alone = once(model)
    with monkeypatch.context() as there:
        there.setattr(machine, "cpu", lambda **_: {"machine": "aarch64"})
        assert run(arguments(model, data, tmp_path / "b", *SHORT[model]), stop=StopAfter(24)).code == Exit.INTERRUPTED
    ended = trained(model, data, tmp_path / "b")
    assert [event["event"] for event in ended.events].count("afresh") == 0
    one, moved = alone.document["run_key"], ended.document["run_key"]
    assert "mixed" not in one
    assert [each["cpu"]["machine"] for each in moved["mixed"]] == ["aarch64", one["cpu"]["machine"]]
    assert moved["digest"] != one["digest"]
    assert any("unlike processors" in note for note in ended.report["notes"])


@pytest.mark.parametrize("model", OVER_TIME)
@pytest.mark.parametrize(("channels", "samples", "classes", "batch"), [(1, 16, 2, 1), (64, 50, 5, 3), (64, 2000, 2, 2)])
def test_networks_take_every_permitted_shape(model, channels, samples, classes, batch):
    hyper = families.FAMILIES[model].defaults()
    body = build(model, (channels, samples), classes, hyper).body.train()
    logits = body(torch.randn(batch, channels, samples))
    assert logits.shape == (1, batch, classes)
    assert logits.isfinite().all()


@pytest.mark.half
@pytest.mark.usefixtures("no_rival_models")
@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("transformer", ("--hidden", "10", "--heads", "4", "--patch", "7")),
        ("transformer_ssl", ("--hidden", "9", "--heads", "2", "--patch", "2000")),
        ("cnn", ("--kernel", "4", "--layers", "1")),
        ("gru", ("--layers", "2")),
        ("gbt", ("--max-depth", "1")),
        ("mlp", ("--members", "1", "--layers", "1", "--batch-size", "1")),
    ],
)
def test_permitted_hyperparameters_never_clash(model, more, data, tmp_path):
    trained(model, data, tmp_path, *more, mode="realistic")


@pytest.mark.half
@pytest.mark.parametrize("model", ["gbt", "cnn", "combined", "mlp"])
def test_many_classes(model, tmp_path):
    data = make_data(tmp_path / "data", classes=4, episodes=48)
    scored = score(trained(model, data, tmp_path, "--split-recipe", "time").checkpoint, data)
    assert {"p_benign", "p_malicious3", "class"} <= set(scored.columns)
    assert np.allclose(scored.select("^p_.*$").to_numpy().sum(axis=1), 1, atol=1e-6)


@pytest.mark.half
@pytest.mark.parametrize("model", ["gbt", "cnn"])
def test_classes_none_of_which_is_benign(model, tmp_path, monkeypatch):
    """Nothing is set aside, and each recording once decides on the temperature without having trained that model."""
    data = make_data(tmp_path / "data", classes=3, names=("walk", "sit", "run"))
    tasks, searches, folds, searched = [], [], Task.folds, stages.searched

    def noted_folds(task):
        tasks[:] = task, *folds(task)
        return tasks[1:]

    def noted_search(*asked, **how):
        searches.append(searched(*asked, **how))
        return searches[-1]

    monkeypatch.setattr(Task, "folds", noted_folds)
    monkeypatch.setattr(stages, "searched", noted_search)
    made = trained(model, data, tmp_path / "a", *BY_HOST)
    assert made.report["operating_point"] is None
    assert made.report["baselines"]["logistic_regression"]["macro_f1"]["value"] > 0
    learnt = sorted(tasks[0].split.learnt.tolist())
    assert sorted(np.concatenate([task.split.val for task in tasks]).tolist()) == learnt
    for task in tasks:
        assert sorted(task.split.learnt.tolist()) == learnt
        assert not set(task.recording[task.split.train]) & set(task.recording[task.split.val])
    facts, starts = made.document["facts"], 2 if model == "gbt" else 1
    assert (len(tasks), len(searches)) == (5, 5 * starts)
    kept = facts["temperatures"] if model == "gbt" else [facts["temperature"]]
    each = [[found.temperature for found in (*searches[start : 4 * starts : starts], searches[4 * starts + start])]
            for start in range(starts)]  # fmt: skip
    assert kept == [round(geometric_mean(temperatures), 4) for temperatures in each]
    argv = arguments(model, data, tmp_path / "b", *SHORT[model], *BY_HOST)
    ends_like(tmp_path / "a", argv, (1, 3, 8, 24, 31), tmp_path / "b")


@pytest.mark.parametrize(
    "model", [*(pytest.param(each, marks=pytest.mark.thorough) for each in ("gbt", "cnn")), "transformer_ssl"]
)
def test_forty_windows_of_the_largest_size(model, tmp_path, request):
    if model != "gbt":  # the rival models are the same beside each
        request.getfixturevalue("no_rival_models")
    data = make_data(tmp_path / "data", episodes=20, windows=2, channels=64, samples=2000)
    brief = ("--n-estimators", "3") if model == "gbt" else ("--epochs", "1")
    ended = run(arguments(model, data, tmp_path, *brief))
    assert ended.code == Exit.DONE, ended.sentence


def test_bins_from_some_of_the_windows_teach_as_much(data, once, tmp_path, monkeypatch):
    whole = once("gbt")
    monkeypatch.setattr(gbt, "MOST_SKETCHED", 60)
    monkeypatch.setattr(gbt, "MOST_SHOWN", 20)
    few = trained("gbt", data, tmp_path)
    assert few.events[-1]["metric"] == pytest.approx(whole.events[-1]["metric"], abs=0.05)
    assert files(tmp_path) != files(whole.out)


@pytest.mark.usefixtures("no_rival_models")
def test_more_windows_are_boosted_for_more_rounds(data, tmp_path, monkeypatch):
    """The refit also learns from the validation windows, and takes as many more rounds as it has more windows."""
    lengths, search = [], gbt._search

    def noted(*asked):
        found = search(*asked)
        lengths.append(found.length)
        return found

    monkeypatch.setattr(gbt, "_search", noted)
    made = trained("gbt", data, tmp_path)
    train, val = (made.report["split"]["n"][side]["windows"] for side in ("train", "val"))
    assert made.document["facts"]["rounds"] == [round(length * (train + val) / train) for length in lengths[-2:]]


def test_the_start_that_explains_validation_better_counts_for_more():
    losses = (0.4, 0.2, 0.0)
    weights = [gbt.weight_of(Search(1, 1.0, loss, [])) for loss in losses]
    assert weights == sorted(weights)
    assert np.isfinite(weights).all()


def test_the_line_is_the_same_chunk_by_chunk(monkeypatch):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 6)).astype(np.float32), np.arange(50) % 3
    line = linear.fit_linear(X, y, np.ones(50), 2)
    whole = line.margins(X)
    monkeypatch.setattr(linear, "BLOCK", 7)
    assert whole.shape == (50, 3)
    assert np.allclose(line.margins(X), whole, atol=1e-6)


@given(st.integers(1, 65_536), st.integers(1, 100_000))
def test_few_windows_are_learnt_in_several_steps_and_many_as_asked(batch, windows):
    spec = LoopSpec(epochs=1, batch_size=batch, lr=0.1, weight_decay=0, patience=1, seed=0)
    taken = supervised._for_few(spec, "mlp", windows).batch_size
    assert taken <= batch
    assert taken == batch or taken <= 8 or taken * 4 <= windows
    assert taken == batch if batch * 4 <= windows else taken >= min(batch, 8, windows)
    few = windows < 1.5 * batch
    assert supervised._for_few(spec, "cnn", windows).batch_size == (taken if few else batch)


@given(st.integers(0, 2**32 - 1), st.integers(2, 4), st.floats(0.05, 20))
def test_the_best_temperature_is_found_without_trying_all(seed, classes, scale):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, 60)
    logits = (rng.normal(size=(60, classes)) + np.eye(classes)[y]) * scale
    weights = np.ones(classes)
    loss, temperature = tempered(y, logits, weights)
    all_of_them = [log_loss(y, softmax(logits / heat), weights) for heat in TEMPERATURES]
    assert loss == pytest.approx(min(all_of_them), abs=1e-9)
    assert temperature in TEMPERATURES


def test_a_loss_that_is_not_finite_stops_before_the_update():
    net = torch.nn.Linear(2, 1)
    before = [value.clone() for value in net.parameters()]
    spec = LoopSpec(epochs=2, batch_size=2, lr=0.5, weight_decay=0, patience=3, seed=0)
    with pytest.raises(BadArguments, match="choose a lower lr"):
        train(
            net,
            windows=Resident(torch.zeros(4, 1)),
            loss_of=lambda rows: net(torch.ones(2, 2)).sum() * float("nan"),
            validate=lambda: (0.0, None),
            spec=spec,
            progress=Progress(io.StringIO(), SystemClock()),
            stop=Stop(),
            keeper=Forgetful(),
        )
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


# -- normalisers -----------------------------------------------------------------------------------


def test_quantiles_become_normal_and_constants_zero():
    rng = np.random.default_rng(0)
    X = np.stack([np.exp(rng.normal(size=500) * 4), np.full(500, 7.0)], axis=1).astype(np.float32)
    normal = QuantileNormal(2)
    normal.fit(X, np.arange(500))
    z = normal(torch.from_numpy(X))
    assert abs(z[:, 0].mean()) < 0.05
    assert abs(z[:, 0].std() - 1) < 0.1
    beyond = normal(torch.tensor([[1e30, -1e30], [-1e30, 1e30]]))
    assert beyond.isfinite().all()
    assert (beyond[:, 1] == 0).all()
    assert (z[:, 1] == 0).all()


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=40))
def test_normalising_keeps_the_order(values):
    column = np.array(values, dtype=np.float32)[:, None]
    normal = QuantileNormal(1)
    normal.fit(column, np.arange(len(values)))
    z = normal(torch.from_numpy(np.sort(column, axis=0)))[:, 0]
    assert z.isfinite().all()
    assert (z.diff() >= -1e-5).all()


def test_channels_of_any_scale_become_alike_and_constants_zero():
    rng = np.random.default_rng(0)
    scales = np.array([1e-6, 1.0, 1e9])[None, :, None]
    X = np.concatenate((rng.normal(size=(80, 3, 30)) * scales, np.full((80, 1, 30), 4e9)), axis=1)
    normal = RobustAsinh(4)
    normal.fit(X.astype(np.float32), np.arange(80))
    z = normal(torch.from_numpy(X.astype(np.float32)))
    assert torch.allclose(z[:, :3].std(dim=(0, 2)), torch.ones(3), atol=0.05)
    assert (normal(torch.full((1, 4, 30), 1e30))[:, 3] == 0).all()


def test_streamed_and_resident_windows_are_the_same():
    X = np.random.default_rng(0).normal(size=(50, 3, 8)).astype(np.float32)
    normal = RobustAsinh(3)
    normal.fit(X, np.arange(50))
    rows = np.arange(0, 50, 2)
    resident = windows(X, rows, normal, torch.device("cpu"))
    streamed = windows(X, rows, normal, torch.device("cpu"), resident_bytes=0)
    assert isinstance(resident, Resident)
    assert isinstance(streamed, Streamed)
    chosen = torch.tensor([3, 0, 24])
    assert torch.allclose(resident.take(chosen), streamed.take(chosen))


# -- small rules -----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_class_weights_average_to_one_and_favour_the_rare(labels):
    y = np.array(labels)
    weights = class_weights(y, 4)
    assert weights[y].mean() == pytest.approx(1)
    counts = np.bincount(y, minlength=4)
    present = counts > 0
    order = np.argsort(counts[present])
    assert (np.diff(weights[present][order]) <= 1e-12).all()


def test_imbalance_of_one_in_a_hundred_weighs_ten_to_one():
    weights = class_weights(np.array([0] * 100 + [1]), 2)
    assert weights[1] / weights[0] == pytest.approx(10)


def test_auroc_counts_ties_half_and_knows_when_it_is_undefined():
    assert auroc(np.array([True, False]), np.array([1.0, 1.0])) == 0.5
    assert auroc(np.array([True, True]), np.array([1.0, 0.0])) is None
    assert log_loss(np.array([0]), np.array([[1.0, 0.0]]), np.ones(2)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("shown", [[0, 2], [0, 1], [1, 2], [0, 1, 3]])
def test_a_line_has_a_margin_for_classes_that_no_window_showed(shown):
    rng = np.random.default_rng(0)
    y = np.array(shown)[rng.integers(0, len(shown), 80)]
    X = (rng.normal(size=(80, 3)) + 6 * np.eye(4, 3)[y]).astype(np.float32)
    line = linear.fit_linear(X, y, np.ones(80), 4)
    margins = line.margins(X)
    assert margins.shape == (80, 4)
    assert (margins.argmax(axis=1) == y).mean() > 0.9
    absent = sorted({0, 1, 2, 3} - set(shown))
    assert (softmax(margins.astype(float))[:, absent] < 0.01).all()


@pytest.mark.parametrize("model", ["gbt", "mlp"])
def test_a_class_that_no_training_window_shows_ends_no_run(model, tmp_path):
    names = ["benign", "grind", "miner"]
    data = make_data(tmp_path / "data", classes=3, episodes=36, names=names, only_on={"miner": "gamma"})
    trained(model, data, tmp_path, *BY_HOST)


def test_neither_names_nor_numbers_of_the_classes_decide_what_an_alarm_is(tmp_path):
    """A detector that learns from benign windows: called otherwise and numbered otherwise it is the same."""
    reports = []
    for number, (names, turned) in enumerate(
        [(["benign", "malicious"], False), (["normal", "attack"], True), (["normal", "attack"], False)]
    ):
        out = tmp_path / str(number)
        data = make_data(out / "data", names=names, benign=names[:1], turned=turned)
        reports.append(trained("transformer_ssl", data, out, *BY_HOST, "--target-fpr", "0.2").report)
    first, *others = reports
    for other in others:
        assert other["metrics"] == first["metrics"]
        assert other["operating_point"] == first["operating_point"]
        assert other["confusion"]["matrix"] == first["confusion"]["matrix"]
        assert other["confusion"]["labels"] == ["normal", "attack"]
        ours = other["verdict"].replace(" (here: normal)", "").replace(" (here: attack)", "")
        assert ours == first["verdict"]
        assert ours != other["verdict"]


def test_a_class_that_never_trained_does_not_decide_the_headline(tmp_path):
    names = ["benign", "grind", "miner"]
    data = make_data(tmp_path / "data", classes=3, episodes=72, signal=6.0, names=names, only_on={"miner": "gamma"})
    report = trained("gbt", data, tmp_path, *BY_HOST).report
    test = report["metrics"]["test"]
    assert report["split"]["never_trained"] == ["miner"]
    assert test["auroc_trained"]["value"] > test["auroc"]["value"]
    assert test["balanced_accuracy_trained"]["value"] > test["balanced_accuracy"]["value"]
    assert "No window of 'miner' trained" in report["verdict_more"]
    assert "The train side has no window of miner." in report["notes"]
    assert report["verdict_level"] != "good"
