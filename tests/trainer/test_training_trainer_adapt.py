"""A model adapted to a host that it has not seen: its level alone, or trained again with the host's reference."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from trainer_builders import BY_HOST, make_data, score, trained

from training.contract import Exit
from training.data.dataset import load_processed
from training.trainer import adaptation, checkpoint
from training.trainer.adapt import main
from training.trainer.comparison import compare
from training.trainer.judging import judge
from training.trainer.ssl import VIEWS
from training.trainer.training_windows import fresh_references

pytestmark = pytest.mark.usefixtures("one_anomaly_method")
HOST = (*BY_HOST, "--target-fpr", "0.3", "--split-seed", "7")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("adapt"), reference=True)


@pytest.fixture(scope="module")
def base(data, tmp_path_factory):
    return trained("gbt", data, tmp_path_factory.mktemp("base"), *HOST).checkpoint


def document(path):
    return checkpoint.read(path).document


def test_without_data_only_the_level_is_set_and_that_is_said(base, data, tmp_path, capsys):
    """For data that bring no reference: a level of their own host would stand before it."""
    assert main([str(base), str(data), "--out-dir", str(tmp_path)]) == Exit.DONE
    assert "the weights are as they were: without --data only the level of gamma was set" in capsys.readouterr().err
    path = tmp_path / base.name
    before, after = document(base), document(path)
    assert checkpoint.read(path).sidecar == checkpoint.read(base).sidecar
    assert after["adapted"] == {
        "checkpoint": before["digest"],
        "data": before["run_key"]["data"],
        "reference": after["adapted"]["reference"],
        "windows": {"gamma": 12},
        "trained": False,
    }
    bare = make_data(tmp_path / "bare")
    level, told = judge(base, data).hosts, judge(path, bare).hosts
    assert told.of("gamma") == level.of("gamma")


@pytest.mark.half
@pytest.mark.parametrize("model", ["gbt", "mlp"])
def test_with_its_data_a_model_learns_from_the_reference_as_well(model, base, data, tmp_path, capsys):
    start = base if model == "gbt" else trained(model, data, tmp_path / "base", *HOST).checkpoint
    asked = [str(start), str(data), "--data", str(data), "--n-resamples", "200"]
    assert main([*asked, "--out-dir", str(tmp_path / "one")]) == Exit.DONE
    assert main([*asked, "--out-dir", str(tmp_path / "two")]) == Exit.DONE
    path = tmp_path / "one" / start.name
    for one in (tmp_path / "one").iterdir():  # equal runs give equal bytes
        if "timing" not in one.name:
            assert one.read_bytes() == (tmp_path / "two" / one.name).read_bytes(), one.name
    found = document(path)
    assert found["adapted"]["trained"] is True
    assert found["adapted"]["checkpoint"] == document(start)["digest"]
    assert found["split"] == document(start)["split"]
    assert found["split"]["split_seed"] == 7
    assert found["run_key"]["digest"] != document(start)["run_key"]["digest"]
    assert checkpoint.read(path).sidecar != checkpoint.read(start).sidecar
    judged, before = judge(path, data), judge(start, data)
    # Half of the reference has trained, and is known by its content; the threshold is that of before.
    fresh = judged.inputs.reference_host[fresh_references(found, judged.inputs)].tolist()
    assert fresh.count("gamma") == 6
    assert judged.hosts.of("gamma") == before.hosts.of("gamma")
    report = json.loads((tmp_path / "one" / f"{model}_oracle_train.json").read_text())
    assert "Of the references of alpha, beta, gamma the first half has trained" in " ".join(report["notes"])
    assert compare(judged, before, n_resamples=200)["windows"] == report["split"]["n"]["test"]["windows"]
    capsys.readouterr()
    assert main([str(path), str(data), "--data", str(data), "--out-dir", str(tmp_path / "three")]) == Exit.BAD_DATA
    assert "adapted by training already" in capsys.readouterr().err


def test_what_cannot_be_adapted_is_refused_in_one_sentence(base, data, tmp_path, capsys):
    def said(*asked):
        assert main([*map(str, asked), "--out-dir", str(tmp_path / "out")]) == Exit.BAD_DATA
        found = capsys.readouterr().err
        assert found.count("error: ") == 1
        return found

    other = make_data(tmp_path / "other", reference=True, seed=4)
    bare = make_data(tmp_path / "bare")
    assert "--data is not the data set that the model was trained on" in said(base, data, "--data", other)
    assert "has no reference window of a host that is new to the model" in said(base, bare)
    unled = trained("gbt", bare, tmp_path / "unled", *HOST).checkpoint
    assert "has no rule by which a reference changes its threshold" in said(unled, data)
    assert "cannot be read" in said(tmp_path / "nothing.ckpt.json", data)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def short(monkeypatch):
    """Keep only so many windows of gamma's reference."""

    def short(windows):
        def load(*asked, **options):
            found = load_processed(*asked, **options)
            host = found.reference.rows.host
            keep = np.concatenate((np.flatnonzero(host != "gamma"), np.flatnonzero(host == "gamma")[:windows]))
            own = replace(found.reference, X=found.reference.X[keep], rows=found.reference.rows.take(keep))
            return replace(found, reference=own)

        monkeypatch.setattr(adaptation, "load_processed", load)

    return short


def test_a_short_reference_is_refused_with_what_is_needed(base, data, tmp_path, capsys, short):
    short(3)
    assert main([str(base), str(data), "--out-dir", str(tmp_path)]) == Exit.BAD_DATA
    assert "the reference of gamma has 3 windows, and a level needs 4" in capsys.readouterr().err
    short(6)
    assert main([str(base), str(data), "--out-dir", str(tmp_path)]) == Exit.DONE
    assert main([str(base), str(data), "--data", str(data), "--out-dir", str(tmp_path)]) == Exit.BAD_DATA
    assert "has 6 windows, and a training needs 7" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["transformer_ssl", "combined"])
def test_what_measures_hosts_gets_centres_of_the_host(model, data, tmp_path, capsys, short):
    base = trained(model, data, tmp_path / "base", *HOST).checkpoint
    assert main([str(base), str(data), "--out-dir", str(tmp_path / "level")]) == Exit.DONE
    path = tmp_path / "level" / base.name
    assert all(list(own) == ["gamma"] for own in document(path)["facts"]["centres"].values())
    # Data without references are scored as those that bring gamma's.
    bare, whole = (make_data(tmp_path / name, reference=name == "whole") for name in ("bare", "whole"))
    scores = [score(*asked) for asked in ((path, bare), (base, whole), (base, bare))]
    told = [one.filter(one["host"] == "gamma")["score"].to_list() for one in scores]
    assert told[0] == told[1] != told[2]
    if model == "transformer_ssl":
        assert document(path)["levels"]["own"] == {"gamma": document(base)["levels"]["known"]["gamma"]}
        assert set(document(path)["facts"]["centres"]) == set(VIEWS)
        asked = [str(base), str(data), "--data", str(data), "--out-dir", str(tmp_path / "fit")]
        assert main(asked) == Exit.BAD_DATA
        assert "without another training" in capsys.readouterr().err
        short(4)
        levels = []
        for start in (path, base):  # the newest reference counts
            assert main([str(start), str(data), "--out-dir", str(tmp_path / "again")]) == Exit.DONE
            levels.append(document(tmp_path / "again" / base.name)["levels"]["own"])
        assert levels[0] == levels[1] != document(path)["levels"]["own"]
