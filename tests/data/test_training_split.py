"""No episode on two sides, no train host in the test, and a sentence for everything that cannot be split."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data import split as splitting
from training.data.rows import Rows
from training.data.split import Side, SplitError, make_split, stratify


def windows(n_episodes=60, per_episode=8, hosts=("a", "b", "c"), classes=2, seed=0):
    """Columns of a small data set in which every host records every class."""
    rng = np.random.default_rng(seed)
    number = np.repeat(np.arange(n_episodes), per_episode)
    main_class = (np.arange(n_episodes) // len(hosts)) % classes
    y = np.where(rng.random(number.size) < 0.3, 0, main_class[number])
    return {
        "episode": np.array([f"ep-{n:04d}" for n in number]),
        "host": np.array([hosts[n % len(hosts)] for n in number]),
        "t_start": 1000.0 * number + 2.0 * np.tile(np.arange(per_episode), n_episodes),
        "y": y,
    }


def rows_of(data):
    return Rows.of(label=data["y"], **{name: column for name, column in data.items() if name != "y"})


def split_of(data, **arguments):
    return make_split(rows_of(data), **arguments)


@st.composite
def any_windows(draw):
    episodes = draw(st.integers(6, 60))
    hosts = draw(st.integers(2, 4))
    data = windows(
        n_episodes=episodes,
        per_episode=draw(st.integers(1, 5)),
        hosts=tuple("abcd"[:hosts]),
        classes=draw(st.integers(2, 4)),
        seed=draw(st.integers(0, 99)),
    )
    order = np.random.default_rng(draw(st.integers(0, 99))).permutation(data["y"].size)
    return {name: column[order] for name, column in data.items()}


def episodes_of(data, split, side):
    return set(data["episode"][split.side(side)].tolist())


@settings(max_examples=80, deadline=None)
@given(data=any_windows(), recipe=st.sampled_from(["host", "time", "sample"]), seed=st.integers(0, 2**32))
def test_sides_are_disjoint_complete_and_stable(data, recipe, seed):
    hosts = ("a",) if recipe == "host" else ()
    arguments = {"recipe": recipe, "train_hosts": hosts, "seed": seed, "supervised": False}
    if recipe == "host" and np.unique(data["episode"][data["host"] == "a"]).size < 3:
        with pytest.raises(SplitError, match="needs at least"):
            split_of(data, **arguments)
        return
    split = split_of(data, **arguments)
    rows = np.concatenate([split.side(side) for side in Side])
    assert sorted(rows.tolist()) == list(range(data["y"].size))
    sides = {side: episodes_of(data, split, side) for side in Side}
    for one in Side:
        assert split.n[one].episodes == len(sides[one])
        assert split.n[one].windows == split.side(one).size > 0
        assert all(sides[one].isdisjoint(sides[other]) for other in Side if other is not one)
    if recipe == "host":
        assert set(data["host"][split.test].tolist()) == set(data["host"].tolist()) - {"a"}
    again = split_of(data, **arguments)
    assert again.fingerprint == split.fingerprint
    assert np.array_equal(again.train, split.train)
    drawn = split_of(data, **{**arguments, "seed": seed + 1}, split_seed=seed)
    assert (drawn.fingerprint, drawn.to_dict()["split_seed"]) == (split.fingerprint, seed)
    assert "split_seed" not in split.to_dict(), "what was trained before keeps its split"


@settings(max_examples=40, deadline=None)
@given(data=any_windows(), seed=st.integers(0, 1000))
def test_every_class_that_can_be_on_all_sides_is(data, seed):
    split = split_of(data, recipe="sample", seed=seed, supervised=False)
    rest = np.concatenate([split.train, split.val, split.cal])
    for label in np.unique(data["y"]).tolist():
        carrying = np.unique(data["episode"][rest][data["y"][rest] == label]).size
        if carrying < 2 * len(np.unique(data["y"])) + 3:
            continue
        for side in Side:
            assert label in data["y"][split.side(side)], f"{label} is not in {side}"


@settings(max_examples=150, deadline=None)
@given(
    classes=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), min_size=3, max_size=30),
    seed=st.integers(0, 999),
)
def test_dealing_gives_the_largest_part_every_class_and_no_part_nothing(classes, seed):
    has_class = np.zeros((len(classes), 5), dtype=bool)
    for row, carried in enumerate(classes):
        has_class[row, carried] = True
    host = np.array(["a", "b"])[np.arange(len(classes)) % 2]
    part = stratify(has_class, host, (0.6, 0.15, 0.25), np.random.default_rng(seed))
    assert np.unique(part).tolist() == [0, 1, 2]
    if len(classes) >= 12:  # with fewer, each episode may be the last of some class
        assert (has_class.any(axis=0) == has_class[part == 0].any(axis=0)).all()


def test_a_class_of_one_episode_is_trained_on(monkeypatch):
    monkeypatch.setattr(splitting, "TEST_FRACTION", 0.01)
    for seed in range(30):
        data = windows(n_episodes=30) | {}
        data["y"] = np.where(data["episode"] == "ep-0007", 2, data["y"])
        split = split_of(data, recipe="sample", seed=seed)
        test_has_it = 2 in data["y"][split.test]
        assert test_has_it or 2 in data["y"][split.train]


def test_time_tests_on_later_episodes_only():
    data = windows()
    split = split_of(data, recipe="time")
    rest = np.concatenate([split.train, split.val, split.cal])
    assert data["t_start"][rest].max() < data["t_start"][split.test].min()
    assert split.n["test"].episodes == 18


def test_episodes_that_start_together_are_tested_together():
    data = windows(n_episodes=10, per_episode=1, hosts=("a",))
    data["t_start"] = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 9.0, 9.0, 9.0, 9.0, 9.0])
    split = split_of(data, recipe="time", supervised=False)
    assert split.test.tolist() == [5, 6, 7, 8, 9]


def test_a_recording_is_as_late_as_it_begins():
    data = windows(n_episodes=10, per_episode=4)
    data["t_start"][3] = 9999.0  # the first recording runs until after all others
    split = split_of(data, recipe="time", supervised=False)
    assert sorted(set(data["episode"][split.test])) == ["ep-0007", "ep-0008", "ep-0009"]


def test_time_purges_training_windows_that_reach_into_the_test():
    data = windows(per_episode=1, hosts=("a",))
    data["episode"] = np.array([f"own-{n}" for n in range(data["y"].size)])
    without = split_of(data, recipe="time")
    split = split_of(data | {"t_end": data["t_start"] + 1500.0}, recipe="time")
    purged = sum(c.windows for c in without.n.values()) - sum(c.windows for c in split.n.values())
    assert purged == 1
    assert split.notes == ("1 training windows that overlap the test in time were purged",)


def test_sides_have_about_the_shares_asked_for_on_every_host_and_class():
    data = windows(n_episodes=240, hosts=("a", "b", "c"))
    split = split_of(data, recipe="host", train_hosts=["a", "b"])
    assert split.n["test"].episodes == 80
    assert split.n["val"].episodes == pytest.approx(0.15 * 160, abs=2)
    assert split.n["cal"].episodes == pytest.approx(0.25 * 160, abs=2)
    for host in "ab":
        here = data["host"][split.cal] == host
        assert np.unique(data["episode"][split.cal][here]).size == pytest.approx(20, abs=2)


def test_seed_changes_the_split_and_the_order_of_train_hosts_does_not():
    data = windows()
    first = split_of(data, recipe="host", train_hosts=["a", "b"], seed=1)
    assert first.fingerprint != split_of(data, recipe="host", train_hosts=["a", "b"], seed=2).fingerprint
    turned = split_of(data, recipe="host", train_hosts=["b", "a", "a"], seed=1)
    assert turned.fingerprint == first.fingerprint
    assert turned.to_dict() == first.to_dict()
    assert first.to_dict()["n"]["test"] == {"windows": 160, "episodes": 20}


def test_named_test_hosts_alone_are_tested_and_the_others_left_out():
    data = windows(hosts=("a", "b", "c"))
    split = split_of(data, recipe="host", train_hosts=["b"], test_hosts=["c"])
    assert set(data["host"][split.test]) == {"c"}
    assert set(data["host"][np.concatenate((split.train, split.val, split.cal))]) == {"b"}
    assert split.to_dict()["left_out"] == ["a"]
    out = int((data["host"] == "a").sum())
    said = f"The test is on c alone: {out:,} windows of a are left out, and neither train nor test."
    assert said in split.notes
    every = split_of(data, recipe="host", train_hosts=["a", "b"], test_hosts=["c"])
    plain = split_of(data, recipe="host", train_hosts=["a", "b"])
    assert (every.fingerprint, every.notes) == (plain.fingerprint, plain.notes)
    assert "test_hosts" not in plain.to_dict(), "what was trained before keeps its split"


def test_no_calibration_side_when_none_is_wanted():
    split = split_of(windows(), recipe="sample", calibrated=False)
    assert split.cal.size == 0
    assert split.n["cal"].episodes == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"recipe": "hosts"}, "unknown split recipe 'hosts': choose one of host, sample, time"),
        ({"recipe": "host"}, "needs train_hosts: the data holds episodes of a, b, c"),
        (
            {"recipe": "host", "train_hosts": ["a", "pi"]},
            "train_hosts names pi, which recorded nothing: the data holds episodes of a, b, c",
        ),
        ({"recipe": "host", "train_hosts": ["a", "b", "c"]}, "none is left to test on"),
        ({"recipe": "time", "train_hosts": ["a"]}, "train_hosts has no effect under .* 'time'"),
        ({"recipe": "sample", "train_hosts": ["a"]}, "train_hosts has no effect under .* 'sample'"),
        ({"recipe": "time", "test_hosts": ["a"]}, "test_hosts has no effect under .* 'time'"),
        (
            {"recipe": "host", "train_hosts": ["a"], "test_hosts": ["pi"]},
            "test_hosts names pi, which recorded nothing: the data holds episodes of a, b, c",
        ),
        ({"recipe": "host", "train_hosts": ["a", "b"], "test_hosts": ["b"]}, "both name b: a host trains or is tested"),
    ],
)
def test_what_cannot_be_split_is_refused_with_a_sentence(arguments, sentence):
    with pytest.raises(SplitError, match=sentence):
        split_of(windows(), **arguments)


def test_data_that_cannot_be_split_is_refused_with_a_sentence():
    data = windows()
    with pytest.raises(SplitError, match="no windows to split"):
        split_of({name: column[:0] for name, column in data.items()}, recipe="sample")
    with pytest.raises(ValueError, match="one value a window"):
        split_of(data | {"y": data["y"][:-1]}, recipe="sample")
    with pytest.raises(SplitError, match="'ep-0000' has windows of more than one host"):
        split_of(data | {"host": np.roll(data["host"], 1)}, recipe="sample")
    with pytest.raises(SplitError, match="common clock"):
        split_of(data | {"t_start": np.zeros(data["y"].size)}, recipe="time")
    with pytest.raises(SplitError, match="needs a start time"):
        split_of(data | {"t_start": np.full(data["y"].size, np.nan)}, recipe="time")
    with pytest.raises(SplitError, match="single class"):
        split_of(data | {"y": np.zeros(data["y"].size)}, recipe="sample")
    few = {name: column[:16] for name, column in windows().items()}
    with pytest.raises(SplitError, match=r"needs at least 3 episodes.* and has 1"):
        split_of(few, recipe="sample")


def test_a_single_class_may_train_what_needs_no_labels():
    data = windows() | {"y": np.zeros(480)}
    assert split_of(data, recipe="sample", supervised=False).train.size > 0


def test_the_last_assertion_sees_a_leak():
    """The check on the finished split is independent of its construction, so it must be able to fail."""
    data = windows()
    episodes = splitting._gather(rows_of(data))
    split = split_of(data, recipe="host", train_hosts=["a"])
    with pytest.raises(splitting.LeakError, match="is on the sides"):
        splitting._refuse_leaks(replace(split, val=split.train[:1]), episodes)
    with pytest.raises(splitting.LeakError, match="trains and is in the test"):
        splitting._refuse_leaks(replace(split, test=split.train, train=split.test), episodes)
    alone = split_of(data, recipe="host", train_hosts=["a"], test_hosts=["b"])
    with pytest.raises(splitting.LeakError, match="host c is left out and on a side"):
        splitting._refuse_leaks(replace(alone, test=split.test), episodes)
