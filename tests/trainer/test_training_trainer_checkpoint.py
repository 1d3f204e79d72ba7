"""Checkpoints refuse what they were not made for, and states what is not theirs."""

from __future__ import annotations

import io
import json
import os
import pickle
from functools import cache
from itertools import islice

import pytest
import torch
import trainer_builders
from fakes import FakeClock
from odd_values import variants
from trainer_builders import make_data, score

from training.contract import Exit
from training.data import dataset
from training.trainer import checkpoint
from training.trainer.checkpoint import CheckpointError
from training.trainer.comparison import compare
from training.trainer.contract import BadData
from training.trainer.judging import judge
from training.trainer.score import main
from training.trainer.state_file import StateFile

pytestmark = pytest.mark.usefixtures("one_anomaly_method")


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """(checkpoint, data) of a small mlp in oracle mode."""
    return trainer_builders.trained("mlp", data, tmp_path_factory.mktemp("trained")).checkpoint, data


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"rename": "renamed"}, "lack the channels channel"),
        ({"unit": "bytes"}, "unit"),
        ({"samples": 21}, "window_samples"),
        ({"channels": 6}, "channels"),
        ({"classes": 3}, "label_map"),
    ],
    ids=["renamed", "unit", "window", "more", "classes"],
)
def test_data_of_another_schema_is_refused_by_its_first_difference(trained, other, field, tmp_path):
    with pytest.raises(BadData, match=field):
        score(trained[0], make_data(tmp_path, **other))


def test_an_oracle_checkpoint_refuses_realistic_data(trained):
    from training.data.dataset import load_processed

    path, data = trained
    found = load_processed(None, data / "tensor_window_v1", None, "realistic")
    with pytest.raises(CheckpointError, match="mode"):
        checkpoint.require_schema(checkpoint.read(path), found.schema)


def copied(trained, folder):
    path = trained[0]
    document = json.loads(path.read_text())
    (folder / path.name).write_bytes(path.read_bytes())
    (folder / "mlp_oracle.pt").write_bytes((path.parent / "mlp_oracle.pt").read_bytes())
    return folder / path.name, document


def test_a_changed_sidecar_is_refused_before_it_is_read(trained, tmp_path):
    path, _ = copied(trained, tmp_path)
    sidecar = tmp_path / "mlp_oracle.pt"
    content = bytearray(sidecar.read_bytes())
    content[len(content) // 2] ^= 1
    sidecar.write_bytes(content)
    with pytest.raises(CheckpointError, match="fetch the bundle again"):
        checkpoint.read(path)
    sidecar.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match="fetch the bundle again"):
        checkpoint.read(path)
    sidecar.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.read(path)


def test_a_figure_that_was_changed_by_hand_is_noticed(trained, tmp_path):
    path, document = copied(trained, tmp_path)
    path.write_text(json.dumps(document, indent=7))  # written otherwise, and the same
    checkpoint.read(path)
    document["facts"]["temperature"] += 1
    path.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match="was changed after it was written"):
        checkpoint.read(path)


@pytest.mark.parametrize("gone", ["digest", "seen", "ranges", "channels", "incidents", "levels", "run_key"])
def test_a_checkpoint_of_another_form_is_refused_in_one_sentence(trained, tmp_path, gone, capsys):
    path, document = copied(trained, tmp_path)
    del document[gone]
    path.write_text(json.dumps(document))
    assert main([str(path), str(trained[1])]) == Exit.BAD_DATA
    assert "damaged or of another form" in (said := capsys.readouterr().err.splitlines()[-1])
    assert gone in said
    assert said.endswith("train the model again")


@pytest.mark.parametrize("name", ["../mlp_oracle.pt", "/etc/passwd", "", ".."])
def test_a_sidecar_lies_beside_its_checkpoint_or_nowhere(trained, name, tmp_path):
    path, document = copied(trained, tmp_path)
    document["sidecar"]["file"] = name
    path.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match="do not trust it"):
        checkpoint.read(path)


class Hostile:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (os.system, (f"touch {self.target}",))


def test_a_hostile_pickle_never_runs(trained, tmp_path):
    _, data = trained
    document = json.loads(trained[0].read_text())
    document.pop("sidecar")
    for payload in (pickle.dumps(Hostile(tmp_path / "owned"), 2), saved(Hostile(tmp_path / "owned"))):
        path = checkpoint.write(tmp_path, document, payload, ".pt")
        with pytest.raises(BadData, match="do not trust this file") as refused:
            score(path, data)
        assert "weights_only" not in str(refused.value)
    assert not (tmp_path / "owned").exists()


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


LATER = json.dumps({"format": checkpoint.FORMAT, "version": 99})


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense", "[" * 100_000, '{"format": "x"}', LATER])
def test_what_is_no_checkpoint_is_said_to_be_none(text, tmp_path):
    path = tmp_path / "x.ckpt.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match="version 99" if text == LATER else "is not a checkpoint"):
        checkpoint.read(path)


def test_no_member_of_another_kind_is_a_bug_in_the_trainer(trained, tmp_path, monkeypatch):
    """Members that scoring and comparing take from a checkpoint's JSON, which had no digest of its own once."""
    path, data = trained
    monkeypatch.setattr(dataset, "load_processed", cache(dataset.load_processed))  # always the same
    sound = json.loads(path.read_bytes())
    del sound["digest"]
    judged = judge(path, data)
    (tmp_path / "mlp_oracle.pt").write_bytes(path.with_name("mlp_oracle.pt").read_bytes())
    used = ("facts", "hyper", "label_map", "levels", "mode", "model", "ranges", "seen", "sidecar", "split", "threshold")
    refused = 0
    # Every fourth, which meets each place with some values and each value at some places.
    for place, _, some in islice(variants({name: sound[name] for name in used}), 0, None, 4):
        rest = {name: value for name, value in sound.items() if name not in used}
        (tmp_path / path.name).write_text(json.dumps({**rest, **some}))
        try:
            if place[0] == "split":
                compare(judge(tmp_path / path.name, data), judged, n_resamples=2)
            else:
                score(tmp_path / path.name, data)
        except BadData:
            refused += 1
    assert refused > 125


def test_nothing_tells_where_or_when_it_was_made(trained):
    import platform

    document = trained[0].read_text()
    for telltale in (str(trained[0].parent), "/tmp", platform.node() + '"', "started_at"):
        assert telltale not in document


def test_scoring_mistakes_end_in_one_sentence(trained, tmp_path, capsys):
    path, data = trained
    assert main([str(path), str(data), "--out", "scores.xls"]) == Exit.BAD_ARGUMENTS
    assert main([str(path), str(tmp_path / "nowhere")]) == Exit.BAD_DATA
    assert main([str(tmp_path / "no.ckpt.json"), str(data)]) == Exit.BAD_DATA
    said = capsys.readouterr().err
    assert said.count("error: ") == 3
    assert "Traceback" not in said


# -- the state of an interrupted run ---------------------------------------------------------------


def kept_in(path, key="key", **facts):
    return StateFile(path, key, FakeClock(), **facts)


def test_a_state_returns_to_the_run_that_left_it(tmp_path):
    path = tmp_path / "folder" / "x.state"
    kept = kept_in(path)
    kept.save()
    assert not path.exists(), "nothing had begun"
    kept.watch(lambda: b"weights\nand more")
    kept.save()
    again = kept_in(path)
    assert again.load() == b"weights\nand more"
    assert again.resumed
    assert kept_in(path, "another key").load() is None
    again.discard()
    assert kept_in(path).load() is None


def _moved(path, *facts):
    """Keep a state on one machine after the other; returns the last one's keeper."""
    for each in facts:
        kept = kept_in(path, json.dumps(each), facts=each)
        assert kept.stranger() is None
        kept.load()
        kept.watch(lambda: b"weights")
        kept.save()
    return kept


def test_a_state_goes_on_on_another_processor_and_tells_of_all(tmp_path):
    desk, pi = ({"spec": 1, "cpu": name, "threads": 2} for name in ("avx2", "neon"))
    assert _moved(tmp_path / "one", desk, desk).mixed == []
    moved = _moved(tmp_path / "two", desk, pi, desk, pi)
    assert [each["cpu"] for each in moved.mixed] == ["avx2", "neon"]
    assert moved.load() == b"weights"
    more_threads = {**pi, "threads": 4}
    assert [each["threads"] for each in _moved(tmp_path / "two", more_threads).mixed] == [2, 2, 4]


@pytest.mark.parametrize("name", ["spec", "data", "code", "versions", "device", "what nobody knows yet"])
def test_a_state_of_another_run_is_refused_wherever_it_was_trained(tmp_path, name):
    facts = {"spec": 1, "data": 1, "code": 1, "versions": 1, "device": "cpu", "cpu": "avx2"}
    _moved(tmp_path / "x.state", facts)
    other = {**facts, name: "another", "cpu": "neon"}
    kept = kept_in(tmp_path / "x.state", "another key", facts=other)
    assert kept.load() is None
    assert (kept.stranger() or "").endswith("changed since")
    assert kept.mixed == []


@pytest.mark.parametrize("cut", [0, 1, 20, 90, -1])
def test_a_torn_state_counts_as_none(tmp_path, cut):
    path = tmp_path / "x.state"
    kept = kept_in(path)
    kept.watch(lambda: b"weights")
    kept.save()
    path.write_bytes(path.read_bytes()[:cut])
    assert kept_in(path).load() is None
    path.write_bytes(b'{"facts": {"cpu": ' + b"[" * 99_999 + b"\n")
    assert kept_in(path).load() is kept_in(path).stranger() is None


def test_a_state_is_renewed_every_minute(tmp_path):
    clock, path = FakeClock(), tmp_path / "x.state"
    kept = StateFile(path, "key", clock)
    kept.watch(lambda: b"weights")
    kept.tick()
    assert not path.exists()
    clock.advance(StateFile.EVERY_S)
    kept.tick()
    assert path.exists()
