"""Models and saved states of other machines: no library that trusts its input reads them before a check."""

import hashlib
import io
import json
import zipfile

import msgspec
import pytest
import torch
import trainer_builders
from hypothesis import given
from hypothesis import strategies as st
from trainer_builders import SHORT, StopAfter, arguments, files, run, score

from training.contract import Exit
from training.trainer import checkpoint, gbt, loop, session, trees
from training.trainer.contract import BadData
from training.trainer.state_file import StateFile
from training.trainer.weights_file import read, restored, written

pytestmark = pytest.mark.usefixtures("one_anomaly_method")

BENT = {
    "child far outside": ("left_children", 0, 2**30),
    "child negative": ("right_children", 0, -2),
    "only one child": ("right_children", 0, -1),
    "one child twice": ("right_children", 0, 1),
    "cycle": ("left_children", 1, 0),
    "feature far outside": ("split_indices", 0, 2**28),
    "feature outside": ("split_indices", 0, 10_000),
    "feature negative": ("split_indices", 0, -1),
    "list too short": ("sum_hessian", slice(1), []),
    "list of texts": ("split_conditions", 0, "1"),
    "number too large": ("split_conditions", 0, 1e300),
}


def bent(text, name):
    """Return a booster's JSON with one value of its second tree changed."""
    key, place, value = BENT[name]
    document = json.loads(text)
    document["learner"]["gradient_booster"]["model"]["trees"][1][key][place] = value
    return json.dumps(document).encode()


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """By family: a run that ended well."""
    folder = tmp_path_factory.mktemp("whole")
    return {model: trainer_builders.trained(model, data, folder / model) for model in ("gbt", "mlp")}


def refused(whole, model, sidecar, data, folder):
    """Assert that a checkpoint with these weights is refused in one sentence."""
    ending = ".xgb.json" if model == "gbt" else ".pt"
    path = checkpoint.write(folder, {**whole[model].document, "sidecar": None}, sidecar, ending)
    with pytest.raises(BadData, match=f"holds (no|something other than) weights of {model}") as said:
        score(path, data)
    assert ".cc:" not in str(said.value), "a place in another's sources"


@pytest.mark.half
@pytest.mark.parametrize("name", BENT)
def test_a_booster_with_an_impossible_tree_is_refused(whole, name, data, tmp_path):
    found = whole["gbt"].checkpoint.with_name("gbt_oracle.xgb.json").read_bytes()
    refused(whole, "gbt", bent(found, name), data, tmp_path)
    document = json.loads(found)
    attributes = document["learner"]["attributes"]
    attributes["over_the_line"] = bent(attributes["over_the_line"].encode(), name).decode()
    refused(whole, "gbt", json.dumps(document).encode(), data, tmp_path)


@pytest.mark.parametrize(
    "made",
    [
        lambda _: b"{}",
        lambda _: b"[" * 9999,
        lambda sound: sound[:-99],
        lambda sound: sound.replace(rb"\"bias\": [", rb"\"bias\": [1, "),
        lambda sound: sound.replace(b"[5E-1]", b"[1, 2]").replace(b'"base_score":"', b'"base_score":"1'),
    ],
    ids=["empty", "nested", "cut", "line", "base score"],
)
def test_a_booster_of_another_form_is_refused(whole, made, data, tmp_path):
    sound = whole["gbt"].checkpoint.with_name("gbt_oracle.xgb.json").read_bytes()
    assert made(sound) != sound
    refused(whole, "gbt", made(sound), data, tmp_path)


def is_tree(left, right):
    seen, waiting = [], [0]
    while waiting and len(seen) <= len(left):
        seen.append(node := waiting.pop())
        if not 0 <= node < len(left):
            return False
        waiting += [] if left[node] == right[node] == -1 else [left[node], right[node]]
    return sorted(seen) == [*range(len(left))]


CHILD = st.integers(-1, 5)


@given(st.lists(st.tuples(CHILD, CHILD), min_size=1, max_size=5) | st.permutations([(1, 2), (3, 4)] + [(-1, -1)] * 3))
def test_nodes_are_accepted_where_they_are_a_tree(nodes):
    left, right = ([node[side] for node in nodes] for side in (0, 1))
    tree = trees.Tree(left, right, *[[0] * len(nodes)] * 6)
    if is_tree(left, right):
        with pytest.raises(ValueError, match="a feature that does not exist"):
            trees.Tree(left, right, [1] * len(nodes), *[[0] * len(nodes)] * 5).checked(0, features=1, depth=5)
        assert len(tree.checked(0, features=1, depth=5)["parents"]) == len(nodes)
        if len(nodes) > 1:
            with pytest.raises(ValueError, match="deeper than 0"):
                tree.checked(0, features=1, depth=0)
    else:
        with pytest.raises(ValueError, match="tree 0"):
            tree.checked(0, features=1, depth=5)


def packed_small(sound):
    """A ``.pt`` whose members are compressed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(sound)) as some, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as other:
        for name in some.namelist():
            other.writestr(name, some.read(name))
    return buffer.getvalue()


def test_one_tensor_that_is_named_many_times_is_not_read_beyond_the_size_of_its_file():
    buffer = io.BytesIO()
    torch.save(dict.fromkeys("abc", torch.zeros(9_999)), buffer)
    with pytest.raises(ValueError, match="larger than the file"):
        read(buffer.getvalue())


@pytest.mark.parametrize(
    "made",
    [
        packed_small,
        lambda sound: sound.replace(b"FloatStorage", b"HalfStorages"),
        lambda sound: written({name: one[..., :1] for name, one in read(sound).items()}),
        lambda sound: written({**read(sound), "more": torch.zeros(1)}),
        lambda sound: written({name: one * torch.nan for name, one in read(sound).items()}),
        lambda sound: sound[:-40],
    ],
    ids=["compressed", "changed", "smaller", "one more", "not finite", "cut"],
)
def test_weights_of_another_form_are_refused(whole, made, data, tmp_path):
    sound = whole["mlp"].checkpoint.with_name("mlp_oracle.pt").read_bytes()
    refused(whole, "mlp", made(sound), data, tmp_path)


@pytest.mark.parametrize(
    ("model", "why"), [("gbt", "ValueError: tree 1"), ("mlp", "ValueError: its tensors"), ("junk", "ValidationError")]
)
def test_a_state_of_another_form_costs_time_and_no_failure(whole, model, why, data, tmp_path, monkeypatch):
    """Saved on another host, which is broken or was taken over; the trainer begins again, and says so."""
    name = "mlp" if model == "junk" else model
    argv = arguments(name, data, tmp_path, *SHORT[name])
    with monkeypatch.context() as there:
        if model == "gbt":
            there.setattr(gbt, "to_json", lambda booster: bent(trees.to_json(booster), "child far outside"))
        if model == "mlp":
            there.setattr(
                loop,
                "written",
                lambda some: written({n: one[:1].clone() if n == "exp_avg" else one for n, one in some.items()}),
            )
        assert run(argv, stop=StopAfter(30 if model == "gbt" else 8)).code == Exit.INTERRUPTED
    if model == "junk":
        (path,) = tmp_path.rglob("*.state")
        header = json.loads(path.read_bytes().partition(b"\n")[0])
        junk = msgspec.msgpack.encode({"name": 7, "ended": [b"x"]})
        header["sha256"] = hashlib.sha256(junk).hexdigest()
        path.write_bytes(json.dumps(header).encode() + b"\n" + junk)
    ended = run(argv)
    assert ended.code == Exit.DONE
    (said,) = (str(one["reason"]) for one in ended.events if one["event"] == "afresh")
    assert f"the saved state cannot be used ({why}" in said
    assert files(tmp_path) == files(whole[name].out)


def test_a_failure_counts_once_the_run_has_saved_a_state_of_its_own(data, tmp_path, monkeypatch):
    argv = arguments("mlp", data, tmp_path, *SHORT["mlp"])
    assert run(argv, stop=StopAfter(8)).code == Exit.INTERRUPTED
    monkeypatch.setattr(StateFile, "EVERY_S", 0.0)
    monkeypatch.setattr(session, "_judge", lambda *_: 1 // 0)
    ended = run(argv)
    assert ended.code == Exit.BUG
    assert "afresh" not in [one["event"] for one in ended.events]


def test_a_network_takes_no_memory_before_its_weights_were_looked_at():
    places = []

    def make():
        net = torch.nn.Linear(2, 2)
        places.append(net.weight.device.type)
        return net

    with pytest.raises(ValueError, match="other names or shapes"):
        restored(make, {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)})
    assert places == ["meta"]
