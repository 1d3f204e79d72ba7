"""Reasons of alarms: contributions add up to the score, shares to one, and what carried it lowers it when it goes."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st
from trainer_builders import make_data, table, trained

from training import families
from training.contract import Exit
from training.trainer import anomaly as views
from training.trainer import score as score_cli
from training.trainer import scoring
from training.trainer.anomaly import Neighbours, Sided, Surprises
from training.trainer.checkpoint import digest_of
from training.trainer.evaluation.page import render
from training.trainer.gbt import BoosterPart, Gbt
from training.trainer.judging import judge
from training.trainer.linear import fit_linear
from training.trainer.reasons import Reasons, Usual, explain, in_words, log_odds, parts_of
from training.trainer.reasons import shares as shares_of
from training.trainer.scoring import why
from training.trainer.ssl import VIEWS, Anomaly, ViewMaker
from training.trainer.summary import lines
from training.trainer.supervised import Classifier, build
from training.trainer.task import GivenWindows, WindowsToExplain

pytestmark = pytest.mark.usefixtures("one_anomaly_method")

FEATURES = ("a.mean", "a.std", "b.mean", "a~b.corr")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data of which ``beta`` lacks a channel, and a model of them."""
    folder = tmp_path_factory.mktemp("trees")
    make_data(folder, signal=3.0, lacks={"beta": (1,)}, reference=True)
    trained("gbt", folder, folder, "--target-fpr", "0.2")
    return folder


@pytest.fixture(scope="module")
def trees(place):
    return judge(place / "artifacts" / "gbt_oracle.ckpt.json", place)


# -- pure rules --------------------------------------------------------------------------------------------------------


def test_a_correlation_is_half_of_each_of_its_channels():
    assert parts_of(FEATURES, ("a", "b")).tolist() == [[1, 0], [1, 0], [0, 1], [0.5, 0.5]]


carried = st.lists(st.lists(st.floats(-5, 5) | st.just(float("nan")), min_size=4, max_size=4), min_size=1, max_size=5)


@given(carried, st.lists(st.booleans(), min_size=4, max_size=4))
def test_shares_are_of_what_raised_a_score_and_of_what_is_there(values, lost):
    found = np.array(values)
    share = shares_of(found, np.tile(lost, (len(found), 1)))
    assert (share >= 0).all()
    assert not share[:, lost].any()
    assert not share[found <= 0].any()
    assert np.isclose(share.sum(axis=1), 1).sum() + (share.sum(axis=1) == 0).sum() == len(found)


def test_a_whitened_distance_is_parted_by_its_products():
    rng = np.random.default_rng(0)
    near = Neighbours.fit(rng.normal(size=(60, 2)) @ np.array([[1.0, 0.95], [0.0, 0.3]]), 1)
    seen = np.array([[1.0, 0.2]])
    gaps = seen * near.gain - near.benign
    precision = near.whiten @ near.whiten.T
    off = gaps[np.einsum("nd,de,ne->n", gaps, precision, gaps).argmin()]
    np.testing.assert_allclose(near.shares(seen)[0], off * (precision @ off) / (off @ precision @ off), rtol=1e-4)


def test_a_dimension_that_is_far_off_is_most_of_a_distance():
    near = Neighbours.fit(np.random.default_rng(0).normal(size=(40, 4)), 5)
    shares = near.shares(np.array([[0.0, 0.0, 8.0, 0.0], [-9.0, 0.0, 0.0, 0.0]]))
    assert shares.argmax(axis=1).tolist() == [2, 0]
    assert (shares.max(axis=1) > 0.9).all()


def test_moments_are_the_stretches_beyond_their_even_share():
    spans = ((0.0, 1.0), (1.0, 2.0), (2.0, 3.0), (3.0, 3.5))
    moment = np.array([[0.0, 0.5, 0.5, 0.0], [0.26, 0.25, 0.25, 0.24], [0.0, 0.0, 0.0, 0.0]])
    found = Reasons(rows=np.arange(3), channels=("a",), share=np.ones((3, 1)), stretches=spans, moment=moment, alarms=3)
    assert [found.moments(number) for number in range(3)] == [[(1.0, 3.0)], [(0.0, 3.5)], []]


# -- families ----------------------------------------------------------------------------------------------------------


def to_explain(X, usual, alarm):
    host, parts = np.array(["a"] * len(X)), parts_of(FEATURES, ("a", "b"))
    return WindowsToExplain(X=X, features=X, host=host, usual=lambda: usual, parts=parts, alarm=alarm)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000), classes=st.integers(2, 4), lost=st.lists(st.integers(0, 59), max_size=9))
def test_contributions_of_trees_add_up_to_the_margin_of_an_alarm(seed, classes, lost):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % classes
    X[lost, rng.integers(0, 4, len(lost))] = np.nan
    line = fit_linear(X, y, np.ones(60), classes)
    parts = []
    for start in (None, line):
        margin = None if start is None else start.margins(X)
        many = {"objective": "multi:softprob", "num_class": classes}
        kind = {"objective": "binary:logistic"} if classes == 2 else many
        booster = xgboost.train(kind, xgboost.DMatrix(X, label=y, base_margin=margin), 3)
        parts.append(BoosterPart(booster, start, float(rng.uniform(0.5, 2)), float(rng.uniform(0.5, 2))))
    fitted = Gbt(tuple(parts), classes, 1, [], np.flatnonzero(rng.random(4) < 0.5))
    alarm = np.arange(classes) != rng.integers(classes)
    contributions = fitted.contributions(X, alarm)
    asked = to_explain(X, X, alarm)
    np.testing.assert_allclose(fitted.carried(asked).sum(axis=1), contributions[:, :-1].sum(axis=1), atol=1e-9)
    each, weights = [], [part.weight for part in parts]
    for part in parts:  # of both sides the mean logarithm by probability; of two classes these are log odds
        proba = part.proba(fitted._usual_where_absent(X), 1)
        one, other = (np.average(np.log(proba[:, s]), axis=1, weights=proba[:, s]) for s in (alarm, ~alarm))
        each.append(one - other)
    np.testing.assert_allclose(contributions.sum(axis=1), np.average(each, axis=0, weights=weights), atol=1e-4)


@pytest.mark.parametrize("model", ["mlp", "cnn", "gru", "transformer"])
def test_what_networks_say_of_channels_adds_up_to_the_rise_from_the_usual(model):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    shape = (4,) if model == "mlp" else (2, 16)
    X, usual = rng.normal(size=(2, 6, *shape)).astype(np.float32)
    X[1] = usual[1]
    X[2, 1] = np.nan
    hyper = families.FAMILIES[model].defaults()
    net = build(model, shape, 3, hyper)
    net.normalise.fit(usual, np.arange(6))
    fitted = Classifier(net, shape, 3, 1.0, torch.device("cpu"), [])
    alarm = np.array([False, True, True])
    asked = to_explain(X, usual, alarm)
    start = np.where(np.isnan(X), np.nan, usual)
    rise = [log_odds(fitted.predict(GivenWindows(V, X, asked.host), asked.rows).proba, alarm) for V in (start, X)]
    found = fitted.carried(asked)
    np.testing.assert_allclose(found.sum(axis=1), rise[1] - rise[0], atol=0.05)
    assert not found[1].any()
    if model != "mlp":
        assert found[2, 1] == 0


def test_anomaly_scores_are_parted_but_for_what_embeddings_say():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    hyper = families.FAMILIES["transformer_ssl"].defaults()
    sizes = {"channels": 2, "samples": 16, "features": 4}
    detector = ViewMaker(**sizes, hyper=hyper)
    X, F = rng.normal(size=(12, 2, 16)).astype(np.float32), rng.normal(size=(12, 4)).astype(np.float32)
    detector.normalise.fit(X, np.arange(12))
    detector.scale.fit(F[:, :, None], np.arange(12))
    x, host = torch.from_numpy(X), np.array(["a"] * 12)
    seen = Sided(detector.eval().tables(detector.normalise(x), torch.from_numpy(F), VIEWS), host)
    surprises = Surprises.fit(seen, seen, seen, neighbours=5)
    anomaly = Anomaly(detector, sizes, surprises, views.shares_of(VIEWS[:-1], 0.5), {}, torch.device("cpu"), [])
    X, F = X + rng.normal(size=X.shape).astype(np.float32), F * 3
    parts = parts_of(FEATURES, ("a", "b"))
    asked = WindowsToExplain(X=X, features=F, host=host, usual=lambda: X, parts=parts, alarm=np.array([False, True]))
    score = anomaly.predict(asked, asked.rows).score
    np.testing.assert_allclose(anomaly.carried(asked).sum(axis=1), score, rtol=1e-6)
    every = replace(anomaly, shares=views.shares_of(VIEWS))
    said = every.predict(asked, asked.rows).score
    assert (every.carried(asked).sum(axis=1) < said).all()


def test_what_carried_the_alarms_is_the_channel_that_differs(trees):
    rows = np.flatnonzero(~trees.classes.is_benign(trees.inputs.y))
    found, again = (explain(trees.fitted, trees.inputs, rows) for _ in range(2))
    np.testing.assert_array_equal(found.share, again.share)
    np.testing.assert_array_equal(found.moment, again.moment)
    mean = found.mean(rows)
    assert found.named(mean)[0][0] == "channel0"
    assert mean.sum() == pytest.approx(1)
    assert mean[-1] == 0, "a constant channel says nothing"
    assert np.allclose(found.moment.sum(axis=1), 1)


def test_a_channel_that_is_missing_has_no_share(trees):
    found = why(trees)
    on_beta = trees.inputs.rows.host[found.rows] == "beta"
    assert on_beta.any()
    assert not found.share[on_beta, 1].any()


def test_what_is_usual_is_the_host_s_own_or_else_that_of_training(trees):
    inputs = trees.inputs
    own, other = (Usual.of(trees.fitted, inputs, host) for host in ("alpha", "nobody"))
    mine = inputs.reference_tensors[inputs.reference_host == "alpha"]
    assert own.channels[0] == np.median(mine[:, 0])
    names = list(inputs.names)
    assert other.channels[0] == other.features[names.index("channel0.q50")]


# -- the program -------------------------------------------------------------------------------------------------------


def test_score_explains_alarms_on_request(trees):
    frame = table(trees, None, why(trees))
    plain = table(trees, None)
    assert frame.drop("why", "why_seconds").equals(plain)
    assert (frame["why"].is_not_null() == frame["alarm"]).all()
    assert (frame["why_seconds"].is_not_null() <= frame["alarm"]).all()
    assert frame.filter("alarm")["why"].str.contains("channel0").any()
    called = scoring.follow(trees).called
    told = scoring.incident_table(trees, called, why(trees))
    assert told["why"].null_count() == 0
    assert scoring.incident_table(trees, called).columns == told.columns[:-1]


def test_without_a_threshold_there_is_nothing_to_explain(place, capsys):
    document = json.loads((place / "artifacts" / "gbt_oracle.ckpt.json").read_text())
    path = place / "artifacts" / "other.ckpt.json"
    document["threshold"]["threshold"] = None
    path.write_text(json.dumps(document | {"digest": digest_of(document)}))
    assert score_cli.main([str(path), str(place), "--explain"]) == Exit.BAD_ARGUMENTS
    assert "gbt oracle has no threshold, so no window is an alarm to explain" in capsys.readouterr().err


def test_more_alarms_than_are_explained_are_said_to_be(trees):
    found = explain(trees.fitted, trees.inputs, np.flatnonzero(trees.alarm)[:9])
    few = found._replace(rows=found.rows[::3], share=found.share[::3], moment=found.moment[::3])
    told = "\n".join(lines(trees, (), few))
    assert "of 9 alarms 3 were explained, evenly drawn" in told
    assert "which is not to say that they caused it" in told


def test_a_score_that_nothing_raised_has_words_of_its_own():
    assert in_words([]) == "no channel of its own"
    assert in_words([("a", 0.514), ("b", 0.2)]) == "a 51 %, b 20 %"


def test_a_report_says_what_carried_true_and_false_alarms(place):
    report = json.loads((place / "reports" / "gbt_oracle_train.json").read_text())
    found, caught = report["reasons"], report["metrics"]["test"]["tpr"]["value"]
    confused = report["split"]["n"]["test"]["windows"]
    assert 0 < found["true"]["alarms"] + found["false"]["alarms"] <= confused
    assert (found["true"]["alarms"] > 0) == (caught > 0)
    assert found["true"]["channels"][0]["channel"] == "channel0"
    page = render(report)
    assert f"{found['true']['alarms']} true" in page
    assert "channel0 " in page
    assert "Which channels carried" not in render({**report, "reasons": None})


def test_reasons_of_parts_are_those_of_the_whole(trees, monkeypatch):
    reasons = why(trees)
    whole = table(trees, None, reasons)
    assert 0 < whole["why"].null_count() < whole.height
    monkeypatch.setattr(scoring, "PART_ROWS", 7)
    assert pl.concat(scoring.parts(trees, None, reasons)).equals(whole)
