"""The benign class: said by the owner or by a usual word, and never by an order."""

import itertools
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from telemetry_builders import write_episode, write_fleet

from training.data import build
from training.data.assemble import BuildOptions, benign_names
from training.data.classes import USUAL, benign_of, choose_benign
from training.data.dataset import Labelling, Sampling, WindowSet, write_processed
from training.data.errors import DataError
from training.data.ingest.ingested import SaidClasses, channel_specs, name_labels
from training.data.rows import Rows
from training.data.schema import FeatureSchema, read_schema

OLD = FeatureSchema(
    schema_version=1,
    mode=None,
    target="phase",
    label_map={"attack": 0, "normal": 1},
    sample_hz=1.0,
    window_s=4.0,
    stride_s=4.0,
    window_samples=4,
    normaliser={"kind": "none"},
    channels=(),
    features=(),
)


def schema(**changes):
    return msgspec.structs.replace(OLD, **changes)


# -- the rule ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", [*USUAL, "Benign", "NORMAL", "False"])
def test_a_usual_word_names_the_benign_class_wherever_it_stands(word):
    for classes in itertools.permutations(["attack", "zombie", word]):
        chosen = choose_benign(classes)
        assert chosen.names == (word,)
        assert chosen.why.startswith("a usual word")


@given(names=st.lists(st.sampled_from(["a", "b", "normal", "dos", "worm"]), min_size=1, unique=True), data=st.data())
def test_what_is_said_holds_in_any_order_of_the_classes(names, data):
    said = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    shuffled = data.draw(st.permutations(names))
    assert set(choose_benign(names, said).names) == set(said)
    assert set(choose_benign(shuffled, said).names) == set(said)


@pytest.mark.parametrize(
    ("classes", "said", "none", "sentence"),
    [
        (["attack", "walk"], (), False, r"none has a usual name for it; the classes are attack, walk\): name it with"),
        (["1", "2"], (), False, "the classes are 1, 2"),
        (["background", "dos", "normal"], (), False, "several could be"),
        (["a", "b"], ("c",), False, "--benign names 'c', which is no class here: the classes are a, b"),
        (["a", "b"], ("a",), True, "contradict each other"),
        (["benign", "b"], (), True, "--no-benign contradicts the class 'benign'"),
        ([f"c{n:02}" for n in range(20)], (), False, "c11 and 8 more"),
    ],
)  # fmt: skip
def test_what_is_ambiguous_is_refused_with_the_flag(classes, said, none, sentence):
    with pytest.raises(DataError, match=sentence) as refused:
        choose_benign(classes, said, none=none)
    assert str(refused.value).count("\n") == 0


def test_no_class_may_be_benign():
    assert choose_benign(["walk", "sit"], none=True).names == ()


# -- the schema --------------------------------------------------------------------------------------------------------


def test_what_goes_without_saying_is_no_part_of_a_schemas_bytes(tmp_path):
    plain = b'{"channels":[],"features":[],"label_map":{"benign":0,"malicious":1},"mode":null,'
    plain += b'"normaliser":{"kind":"none"},"sample_hz":1.0,"schema_version":1,"stride_s":4.0,'
    plain += b'"target":"malicious","window_s":4.0,"window_samples":4}'
    (tmp_path / "schema.json").write_bytes(plain)
    found = read_schema(tmp_path / "schema.json")
    assert (found.canonical(), benign_of(found)) == (plain, ("benign",))


def test_benign_is_read_back_by_the_owners_names():
    assert benign_of(schema(benign=("normal",))) == ("normal",)
    assert schema(benign=("normal",)).hash() != schema(benign=("attack",)).hash()
    assert benign_of(schema(label_map={"benign": 1, "dos": 0})) == ("benign",)
    assert benign_of(schema(target="class")) == ()


@pytest.mark.parametrize(("changes", "named"), [({}, "benign"), ({"benign": ("idle",)}, "idle")])
def test_a_benign_class_that_is_none_of_the_classes_is_refused(changes, named):
    with pytest.raises(DataError, match=f"'{named}' benign, which is none of its classes"):
        benign_of(schema(**changes))


# -- the doors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "said", "names", "benign"),
    [
        (["attack", "normal"], SaidClasses(), ("normal", "attack"), ("normal",)),
        (["Attack", "Benign"], SaidClasses(), ("Benign", "Attack"), ("Benign",)),
        (["worm", "normal", "dos"], SaidClasses(), ("normal", "dos", "worm"), ("normal",)),
        (["b", "a"], SaidClasses(benign=("b",)), ("b", "a"), ("b",)),
        (["c", "b", "a"], SaidClasses(benign=("c", "b")), ("b", "c", "a"), ("b", "c")),
        ([0, 1], SaidClasses(labels=("attack", "ok")), ("attack", "ok"), ("ok",)),
        ([0, 1], SaidClasses(benign=("1",)), ("1", "0"), ("1",)),
        ([0, 1], SaidClasses(benign=("malicious",)), ("benign", "malicious"), ("malicious",)),
        ([0, 1], SaidClasses(no_benign=True), ("0", "1"), ()),
        ([True, False], SaidClasses(benign=("true",)), ("true", "false"), ("true",)),
        ([1, 2], SaidClasses(benign=("2",)), ("2", "1"), ("2",)),
        ([0, 2], SaidClasses(), ("0", "2"), ("0",)),
        ([-1, 1], SaidClasses(benign=("1",)), ("1", "-1"), ("1",)),
        ([1.0, 0.0], SaidClasses(), ("benign", "malicious"), ("benign",)),
        (["true", "false"], SaidClasses(), ("false", "true"), ("false",)),
        ([2, 0], SaidClasses(labels=("idle", "benign", "grind")), ("idle", "benign", "grind"), ("benign",)),
        ([5, 0, 2], SaidClasses(), ("0", "2", "5"), ("0",)),
    ],
)
def test_labels_of_every_type_follow_the_same_rule(y, said, names, benign):
    found = name_labels(np.array(y), said)
    assert found.names == names
    assert found.benign.names == benign


def test_ingest_may_be_told_that_no_class_is_benign(ingested):
    X = np.random.default_rng(0).normal(size=(20, 2, 8))
    ingested.taken({"X": X, "y": np.array(["run", "walk"] * 10)}, "--no-benign")
    assert ingested.load().benign == ()


def test_phases_declare_which_are_benign(tmp_path, built):
    write_fleet(tmp_path / "in")
    phases = {"idle": "benign", "aria": "benign", "beacon": "malicious"}
    labels = [(0.0, "aria"), (8.0, "idle"), (14.0, "beacon")]
    write_episode(tmp_path / "in", number=20, phases=phases, labels=labels)
    assert built.taken("--target", "phase")["benign"] == ["aria", "idle"]
    built.taken("--like", tmp_path / "out", out="again")
    found, again = (read_schema(tmp_path / out / "feature_schema_v1.json") for out in ("out", "again"))
    assert (found.benign, found.hash()) == (("aria", "idle"), again.hash())


def test_a_phase_that_is_benign_here_and_malicious_there_decides_nothing():
    def recording(**phases):
        return SimpleNamespace(meta=SimpleNamespace(baseline=False, phases=phases), label_phase=("idle", "idle"))

    options = BuildOptions(target="phase")
    assert benign_names([recording(idle="benign", aria="malicious")], options) == ("idle",)
    with pytest.raises(DataError, match="'idle' is benign in some episodes and malicious in"):
        benign_names([recording(idle="benign"), recording(idle="malicious")], options)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"host": "H0"}, "The hosts 'H0' and 'h0' differ by case only"),
        ({"host": "h0 "}, "The hosts 'h0' and 'h0 ' differ by spaces only"),
        (
            {"phases": {"Idle": "benign", "beacon": "malicious"}, "labels": [(0.0, "Idle"), (9.0, "beacon")]},
            "The phases 'Idle' and 'idle' differ by case only",
        ),
    ],
)  # fmt: skip
def test_a_build_refuses_hosts_and_phases_under_two_spellings(tmp_path, capsys, changes, sentence):
    write_fleet(tmp_path / "e", hosts=("h0", "h1"))
    write_episode(tmp_path / "e", number=40, started_at=9000.0, **changes)
    assert build.main([str(tmp_path / "e"), "--out-dir", str(tmp_path / "o")]) == 65
    assert sentence in capsys.readouterr().err


def test_a_data_set_is_not_written_without_a_word_on_what_is_benign(tmp_path):
    windows = WindowSet(
        X=np.zeros((2, 1, 4), dtype=np.float32),
        rows=Rows.of(
            episode=np.array(["a", "b"]),
            host=np.array(["h", "h"]),
            t_start=np.zeros(2),
            t_end=np.ones(2),
            label=np.array(["run", "walk"]),
        ),
    )
    sampling = Sampling(channels=channel_specs(["x"], [False]), sample_hz=1, window_s=4, stride_s=4)
    for target, benign in (("phase", ("walk",)), ("class", ())):
        labelling = Labelling(target=target, names=["run", "walk"], benign=benign)
        assert benign_of(write_processed(tmp_path, windows, sampling, labelling, validation_rows=[])) == benign
