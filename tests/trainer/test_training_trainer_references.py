"""References of training hosts: half of each trains, the other half tells the level, and nothing else changes sides."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_builders import BY_HOST, make_data, trained

from training.contract import FEATURES_FILE, SCHEMA_FILE, TENSORS_FOLDER
from training.data.dataset import load_processed
from training.data.split import Side
from training.families import Takes
from training.trainer.evaluation.host_levels import FEWEST
from training.trainer.evaluation.scored import Classes
from training.trainer.inputs import from_dataset, split_inputs
from training.trainer.judging import judge
from training.trainer.references import join, part, stacked
from training.trainer.training_windows import fresh_references

pytestmark = pytest.mark.usefixtures("one_anomaly_method")


def inputs_of(folder, takes=Takes.TENSORS):
    return from_dataset(
        load_processed(folder / FEATURES_FILE, folder / TENSORS_FOLDER, folder / SCHEMA_FILE, "oracle"), takes=takes
    )


@given(
    first=st.integers(0, 6),
    second=st.integers(1, 6),
    rows=st.lists(st.integers(0, 100), max_size=9),
    seed=st.integers(0, 99),
)
def test_two_arrays_are_read_like_one(first, second, rows, seed):
    rng = np.random.default_rng(seed)
    parts = [rng.normal(size=(count, 3, 4)).astype(np.float32) for count in (first, second)]
    whole, both = np.concatenate(parts), stacked(*parts)
    places = np.array(rows, dtype=np.int64) % whole.shape[0]
    assert (both.shape, both.ndim) == (whole.shape, whole.ndim)
    np.testing.assert_array_equal(both[places], whole[places])
    np.testing.assert_array_equal(both[places, 1], whole[places, 1])
    np.testing.assert_array_equal(both[:, :, 0], whole[:, :, 0])


@given(
    counts=st.tuples(*[st.sampled_from([0, 6, 7, 10])] * 4),
    seed=st.integers(0, 9),
    benign=st.sampled_from([("x",), ("x", "y"), ()]),
    also=st.sampled_from(["", "d"]),
)
def test_a_reference_window_trains_or_tells_a_level(counts, seed, benign, also):
    """Windows of a train, of b only say how long to learn, of c and d none teach anything; ``also`` is named."""
    reference = np.random.default_rng(seed).permutation(np.repeat(list("abcd"), counts))
    rows = SimpleNamespace(host=np.array(["c", "a", "b", "a", "d"]))
    inputs = SimpleNamespace(reference_host=reference, rows=rows, classes=Classes(("x", "y", "z"), benign))
    split = SimpleNamespace(learnt=np.array([1, 3, 2]))
    found = part(inputs, split, also=also)
    assert sorted([*found.train.tolist(), *found.level.tolist()]) == list(range(reference.size))
    for name in "abcd":
        own = np.flatnonzero(reference == name)
        enough = own.size - own.size // 2 >= FEWEST
        half = own.size // 2 if len(benign) == 1 and name in f"ab{also}" and enough else 0
        assert own[np.isin(own, found.train)].tolist() == own[:half].tolist()


@pytest.mark.parametrize("takes", list(Takes))
def test_half_of_a_training_host_joins_and_no_other_side_changes(tmp_path, takes):
    inputs = inputs_of(make_data(tmp_path, reference=True), takes)
    split = split_inputs(inputs, recipe="host", train_hosts=("alpha", "beta"), seed=1, supervised=True, target_fpr=0.3)
    parted = part(inputs, split)
    assert inputs.reference_host[parted.train].tolist() == ["alpha"] * 6 + ["beta"] * 6
    assert sorted([*parted.train, *parted.level]) == list(range(36))
    joined = join(inputs, split, parted.train)
    n = inputs.y.size
    assert joined.split.train.tolist() == [*split.train, *range(n, n + 12)]
    for side in (Side.VAL, Side.CAL, Side.TEST):
        assert joined.split.side(side) is split.side(side)
    assert inputs.classes.is_benign(joined.y[n:]).all()
    np.testing.assert_array_equal(joined.X[np.arange(n, n + 12)], inputs.reference[parted.train])
    np.testing.assert_array_equal(joined.features[n:], inputs.reference_features[parted.train])
    assert joined.host[n:].tolist() == inputs.reference_host[parted.train].tolist()
    # Nothing joins where no one class is what a reference shows.
    many = inputs_of(
        make_data(tmp_path / "many", reference=True, classes=3, names=("idle", "web", "bad"), benign=("idle", "web"))
    )
    assert part(many, split).train.size == 0


def test_what_has_trained_tells_no_level_here_or_elsewhere(tmp_path):
    data = make_data(tmp_path, reference=True)
    made = trained("gbt", data, tmp_path, *BY_HOST, "--target-fpr", "0.3")
    kept = made.document["threshold"]["hosts"]["levels"]
    assert {name: level["windows"] for name, level in kept.items()} == {"alpha": 6, "beta": 6, "gamma": 12}
    judged = judge(made.checkpoint, data)
    assert judged.references.host.tolist() == ["alpha"] * 6 + ["beta"] * 6 + ["gamma"] * 12
    assert fresh_references(judged.document, judged.inputs).tolist() == [*range(6, 12), *range(18, 36)]
    assert judged.hosts.to_dict()["levels"] == kept
