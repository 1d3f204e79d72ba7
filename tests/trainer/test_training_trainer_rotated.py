"""Two rotations, trained for real, host by host."""

import json
import shutil

import pytest
from trainer_builders import trained as train

from training.contract import Exit
from training.trainer import checkpoint, rotated
from training.trainer import compare as command
from training.trainer.contract import BadData
from training.trainer.rotated import compare_rotations, turns_in

pytestmark = pytest.mark.usefixtures("one_anomaly_method")


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """(data, rotation of an oracle, rotation of a realistic model): two of three hosts in turn, by small trees."""
    folder = tmp_path_factory.mktemp("rotated")
    for mode in ("oracle", "realistic"):
        for tested, other in (("alpha", "beta"), ("beta", "alpha")):
            split = ("--split-recipe", "host", "--train-hosts", other, "--test-hosts", tested)
            train("gbt", data, folder / mode / tested, *split, "--target-fpr", "0.2", mode=mode)
    return data, folder / "oracle", folder / "realistic"


def test_each_host_is_compared_and_the_gaps_folded(trained, capsys):
    data, oracle, realistic = trained
    assert command.main([str(oracle), str(realistic), str(data), "--json"]) == Exit.DONE
    found = json.loads(capsys.readouterr().out)
    for letter, folder in (("a", oracle), ("b", realistic)):
        for host, row in found["hosts"].items():
            (path,) = (folder / host / "reports").glob("*_train.json")
            report = json.loads(path.read_text())
            assert report["metrics"]["test"]["auroc"]["value"] == pytest.approx(row[letter], abs=2e-6)
            assert set(report["per_host"]) == {host}
            assert report["split"]["left_out"] == ["gamma"]
            assert any("gamma are left out" in note for note in report["split"]["notes"])
            page = path.with_suffix(".html").read_text()
            assert f"judged on a machine it has not seen: {host}" in page
            assert "gamma are left out, and neither train nor test" in page
            assert "machines" not in report["verdict"] + report["verdict_more"]
    assert found["gap"]["mean"] == pytest.approx(sum(row["gap"] for row in found["hosts"].values()) / 2)
    assert command.main([str(oracle), str(realistic), str(data)]) == Exit.DONE
    said = capsys.readouterr().out
    assert f"ahead on {found['ahead']} of 2 hosts" in said
    assert set(found["gaps"]) == {"tpr", "fpr"}
    assert "At their thresholds the first catches" in said


def test_a_host_that_trained_the_model_is_no_test_of_it(trained, tmp_path, monkeypatch):
    """Planted: the checkpoint says that the tested host trained."""
    _, oracle, _ = trained
    real = checkpoint.read

    def planted(path):
        found = real(path)
        split = {**found.document["split"], "train_hosts": [*found.document["split"]["train_hosts"], "alpha"]}
        return found._replace(document={**found.document, "split": split})

    monkeypatch.setattr(rotated, "read", planted)
    with pytest.raises(BadData, match="alpha among the hosts that trained it"):
        turns_in(oracle / "alpha")


def test_what_is_no_rotation_is_refused_with_a_sentence(trained, tmp_path):
    data, oracle, _ = trained
    with pytest.raises(BadData, match="no checkpoint below"):
        turns_in(tmp_path)
    mixed = oracle.parent
    with pytest.raises(BadData, match="differ in more than host and seed"):
        turns_in(mixed)
    shutil.copytree(oracle / "alpha", tmp_path / "one")
    with pytest.raises(BadData, match="no host and seed was tested by a model of both"):
        compare_rotations(tmp_path, oracle / "beta", data)
    shutil.copytree(oracle / "alpha", tmp_path / "two")
    with pytest.raises(BadData, match="are of one host and seed"):
        turns_in(tmp_path)
