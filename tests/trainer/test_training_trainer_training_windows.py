"""The data that a model has seen, known by content: in splits, checkpoints, scores and comparisons."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import polars as pl
import pytest
from trainer_builders import SHORT, StopAfter, arguments, run, score, validated, window_set
from trainer_builders import trained as train

from training import families
from training.contract import Exit
from training.data.dataset import Labelling, Sampling, load_validation, write_processed
from training.data.identity import marks_of
from training.data.schema import ChannelSpec, Timing
from training.data.split import Side
from training.families import Takes
from training.trainer import compare as comparing
from training.trainer import comparison, judging, training_windows
from training.trainer import score as score_cli
from training.trainer.adaptation import without_envelope
from training.trainer.arguments import parse
from training.trainer.checkpoint import write as write_checkpoint
from training.trainer.contract import BadData
from training.trainer.inputs import read_inputs, split_inputs

pytestmark = pytest.mark.usefixtures("one_anomaly_method")

MODES = ("oracle", "realistic")


NONE = np.empty(0, dtype=np.int64)  # references that trained


def write(folder, X, episode, *, label=None, host=None, t_start=None, reference=None, **more):
    """A processed data set of these windows; the last channel is the laboratory's."""
    start, ids, length = np.zeros(len(X)) if t_start is None else t_start, episode.astype(str), float(X.shape[2])
    label = np.array(["benign", "malicious"])[(np.arange(len(X)) % 2) if label is None else label]
    host = np.full(len(X), "h") if host is None else host
    modes = {"x": MODES, "lab": MODES[:1]}
    specs = [ChannelSpec(name=name, unit="1", kind="gauge", modes=seen) for name, seen in modes.items()]
    write_processed(
        folder,
        window_set(X, episode=ids, host=host, t_start=start, length=length, label=label),
        Sampling(channels=specs, sample_hz=1.0, window_s=length, stride_s=length, **more),
        Labelling(target="malicious", names=["benign", "malicious"]),
        reference=reference,
        validation_rows=validated(sorted(set(ids.tolist()))),
    )
    return folder


def noise(windows=80, channels=2, samples=8, seed=0):
    return np.random.default_rng(seed).normal(size=(windows, channels, samples))


def inputs_of(data, mode="oracle"):
    args = parse(arguments("gbt", data, data, mode=mode), program="x", models=families.RUN_MODELS)
    return read_inputs(args, takes=Takes.FEATURES)


def split_of(found, seed=0):
    return split_inputs(found, recipe="sample", train_hosts=(), seed=seed, supervised=False, target_fpr=0.3)


def sides(data, *, seed=0, mode="oracle"):
    found = inputs_of(data, mode)
    split = split_of(found, seed)
    side = np.full(found.y.size, "none", dtype="U5")
    for name in ("train", "val", "cal", "test"):
        side[getattr(split, name)] = name
    return side


# -- splits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_copies_stand_on_one_side_in_every_split_and_mode(tmp_path, mode):
    X, episode = noise(), np.arange(80) // 4
    X[60:] = X[:20]  # five recordings again, under other names
    data = write(tmp_path / "d", X, episode)
    for seed in range(12):
        side = sides(data, seed=seed, mode=mode)
        np.testing.assert_array_equal(side[60:], side[:20])


def test_overlapping_windows_without_a_recording_stand_on_one_side(tmp_path):
    series = np.random.default_rng(1).normal(size=(12, 2, 40)).cumsum(axis=2)
    X = np.stack([line[:, b : b + 8] for line in series for b in range(0, 33, 4)])
    recording = np.repeat(np.arange(12), 9)
    data = write(tmp_path / "d", X, np.arange(len(X)), label=recording % 2)
    found = inputs_of(data)
    assert np.unique(found.rows.recording).size == 12, "intervals count recordings, not windows"
    assert np.unique(found.rows.episode).size == len(X)
    for seed in range(6):
        side = sides(data, seed=seed)
        assert all(np.unique(side[recording == n]).size == 1 for n in range(12))
    split = split_of(found)
    assert any("so that of 108 there are 12" in note for note in split.notes)


def test_one_recording_cut_into_many_cannot_be_divided(tmp_path):
    line = np.random.default_rng(1).normal(size=(2, 400)).cumsum(axis=1)
    X = np.stack([line[:, b : b + 8] for b in range(0, 392, 4)])
    data = write(tmp_path / "d", X, np.arange(len(X)) // 10)
    with pytest.raises(BadData, match=r"training side needs .* count as one"):
        sides(data)


def test_recordings_of_one_host_at_one_time_stand_on_one_side(tmp_path):
    episode = np.arange(80) // 4
    t = 1.7e9 + 100.0 * episode + 8.0 * (np.arange(80) % 4)
    t[40:] = t[:40] + 1  # a second recorder, at the same times
    data = write(tmp_path / "d", noise(), episode, t_start=t)
    for seed in range(6):
        side = sides(data, seed=seed)
        np.testing.assert_array_equal(side[40:], side[:40])


def test_one_recording_under_two_hosts_is_refused(tmp_path):
    X, host = noise(), np.array(["a"] * 40 + ["b"] * 40)
    X[76:] = X[:4]
    data = write(tmp_path / "d", X, np.arange(80) // 4, host=host)
    with pytest.raises(BadData, match="'0' of a and '19' of b hold the same samples"):
        sides(data)


# -- checkpoints, scores -----------------------------------------------------------------------------------------------


def walks(seed=3, recordings=40, each=4):
    """(windows, number of each one's recording): random walks, as telemetry is; nothing overlaps."""
    steps = np.random.default_rng(seed).normal(size=(recordings, 2, 8 * each))
    lines = steps.cumsum(axis=2)
    X = np.stack([line[:, b * 8 : b * 8 + 8] for line in lines for b in range(each)])
    return X, np.repeat(np.arange(recordings), each)


def walked(folder, shift=0.0, first=0):
    """The data set of ``walks``."""
    X, recording = walks()
    return write(folder, X + shift, first + recording, label=recording % 2)


def trained_on(data, out):
    return train("gbt", data, out, "--target-fpr", "0.3").checkpoint


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(data, checkpoint)"""
    folder = tmp_path_factory.mktemp("seen")
    data = walked(folder / "data")
    return data, trained_on(data, folder)


def forgetful(checkpoint, folder):
    """The checkpoint of a model that has seen more windows than one keeps."""
    document = json.loads(checkpoint.read_text())
    document["seen"] = {"sides": None, "marks": None, "every": 1}
    sidecar = checkpoint.with_name("gbt_oracle.xgb.json").read_bytes()
    return write_checkpoint(folder, without_envelope(document), sidecar, ".xgb.json")


def scored(checkpoint, data, capsys):
    """The rows, and what was said beside them."""
    assert score_cli.main([str(checkpoint), str(data), "--format", "json"]) == Exit.DONE
    said = capsys.readouterr()
    return pl.read_json(said.out.encode(), infer_schema_length=None), said.err


def test_scores_of_the_training_data_say_the_side_of_each_row(trained, capsys):
    data, checkpoint = trained
    rows, said = scored(checkpoint, data, capsys)
    report = json.loads((checkpoint.parents[1] / "reports" / "gbt_oracle_train.json").read_text())
    counts = dict(rows["side"].value_counts().iter_rows())
    assert counts == {side: n["windows"] for side, n in report["split"]["n"].items()}
    assert "only test and new ones tell how good the model is" in said
    assert "lie outside" not in said


def test_sides_are_known_by_content_in_other_data(trained, tmp_path, capsys):
    """The windows again in another order, under other recordings and hosts, with others between them."""
    data, checkpoint = trained
    known, _ = scored(checkpoint, data, capsys)
    X, _ = walks()
    fresh, _ = walks(seed=9, recordings=10)
    turn = np.random.default_rng(0).permutation(200)
    both = np.concatenate([X, fresh])[turn]
    other = write(tmp_path / "other", both, 100 + np.arange(200) // 4, host=np.full(200, "g"))
    rows, _ = scored(checkpoint, other, capsys)
    expected = np.array([*known["side"].to_list(), *["new"] * 40])[turn]
    assert rows["side"].to_list() == expected.tolist()


def cut_again(shift):
    """(windows, number of each one's recording): the recordings of ``walks``, without their first samples."""
    X, _ = walks()
    lines = X.reshape(40, 4, 2, 8).transpose(0, 2, 1, 3).reshape(40, 2, 32)[:, :, shift:]
    kept = lines[:, :, :24].reshape(40, 2, 3, 8).transpose(0, 2, 1, 3)
    return kept.reshape(120, 2, 8), np.repeat(np.arange(40), 3)


@pytest.mark.parametrize("shift", [1, 3, 4, 7])
def test_windows_cut_otherwise_from_the_same_samples_are_not_new(trained, tmp_path, capsys, shift):
    """An export that began three samples later had no window in common, and counted as new: half of it had trained."""
    data, checkpoint = trained
    known, _ = scored(checkpoint, data, capsys)
    of = dict(zip(known["episode_id"].to_list(), known["side"].to_list(), strict=True))
    X, recording = cut_again(shift)
    fresh, _ = walks(seed=9, recordings=10)
    episode = 100 + np.r_[recording, 40 + np.arange(40) // 4]
    other = write(tmp_path / "other", np.concatenate([X, fresh]), episode)
    rows, said = scored(checkpoint, other, capsys)
    expected = [of[str(number)] for number in recording.tolist()] + ["new"] * 40
    assert rows["side"].to_list() == expected
    assert "a copy that was rounded or scaled is not recognised" in said
    one = judging.judge(checkpoint, other)
    found = comparison.compare(one, one, other_data=True, n_resamples=200)
    assert found["left_out"] == sum(side not in ("test", "new") for side in expected)


def test_an_idle_hour_that_trained_makes_no_other_one_known(tmp_path):
    X, recording = walks()
    X[:100] = 0.0
    fresh, _ = walks(seed=9)
    fresh[:, :, :6] = 0.0
    found = inputs_of(write(tmp_path / "d", X, recording, label=recording % 2))
    split = split_of(found)
    kept = {"seen": msgspec.to_builtins(training_windows.keep(found, split, NONE))}
    other = inputs_of(write(tmp_path / "o", fresh, recording, label=recording % 2))
    assert set(training_windows.sides_by_content(kept, other).tolist()) == {"new"}


def test_marks_are_few_and_found_in_another_cut():
    line = np.random.default_rng(5).normal(size=(2, 4096)).cumsum(axis=1).astype(np.float32)
    cuts = [sliding(line, begin, samples=64, stride=32) for begin in (0, 13)]
    every = training_windows._every(*cuts[0].shape[::2])
    known, other = (marks_of(X, ("a", "b"), every, telling=True) for X in cuts)
    assert np.unique(known.digest).size < 6 * len(cuts[0])
    hit = np.unique(other.window[np.isin(other.digest, known.digest)])
    assert hit.size > 0.95 * len(cuts[1])
    assert training_windows._every(10**6, 64) > every  # what a checkpoint keeps is bounded


def sliding(line, begin, *, samples, stride):
    starts = range(begin, line.shape[1] - samples + 1, stride)
    return np.stack([line[:, start : start + samples] for start in starts])


def test_windows_are_compared_a_part_at_a_time(trained, tmp_path, monkeypatch):
    """Other data may be larger than memory."""
    document = json.loads(trained[1].read_text())
    X, recording = cut_again(3)
    other = inputs_of(write(tmp_path / "o", X, recording))
    at_once = training_windows.sides_by_content(document, other)
    read = []

    def noted(X, *args, **how):
        read.append(X.size)
        return marks_of(X, *args, **how)

    monkeypatch.setattr(training_windows, "marks_of", noted)
    monkeypatch.setattr(training_windows, "PART_VALUES", 5 * X[0].size)
    in_parts = training_windows.sides_by_content(document, other)
    assert (max(read), len(set(read))) == (5 * X[0].size, 2 if len(X) % 5 else 1)
    assert in_parts.tolist() == at_once.tolist()
    assert "train" in in_parts.tolist()


def test_a_checkpoint_that_keeps_too_little_says_that_it_cannot_know(trained, tmp_path, capsys):
    data, checkpoint = trained
    without = forgetful(checkpoint, tmp_path / "forgetful")
    rows, said = scored(without, data, capsys)
    assert rows["side"].to_list() == scored(checkpoint, data, capsys)[0]["side"].to_list()
    X, _ = walks(seed=9)
    rows, said = scored(without, write(tmp_path / "other", X, np.arange(160) // 4), capsys)
    assert rows["side"].null_count() == 160
    assert "has seen is not known: a checkpoint keeps the digests of at most" in said


@pytest.mark.parametrize(
    "change",
    [
        lambda X: X * 0 + 6.0 * (-1.0) ** np.arange(8),  # no value is new, each step is
        lambda X: np.where(np.arange(2)[None, :, None] == 0, 0, X),  # one dead sensor
    ],
    ids=["shaken", "dead"],
)
def test_values_beyond_those_of_the_training_are_said_by_host(trained, tmp_path, capsys, change):
    X, recording = walks(seed=9)
    host = np.where(recording % 2 == 0, "odd", "usual")
    X = np.where((host == "odd")[:, None, None], change(X), X)
    data = write(tmp_path / "d", X, recording, host=host)
    _, said = scored(trained[1], data, capsys)
    (line,) = [line for line in said.splitlines() if "lie outside" in line]
    assert "100 % of the windows of odd lie" in line


def test_samples_of_another_rate_are_said_to_lie_outside(trained, tmp_path, capsys):
    lines = np.random.default_rng(9).normal(size=(20, 2, 8 * 64)).cumsum(axis=2)[:, :, ::16]
    X = np.stack([line[:, b * 8 : b * 8 + 8] for line in lines for b in range(4)])
    _, said = scored(trained[1], write(tmp_path / "d", X, np.arange(80) // 4), capsys)
    assert "of the windows of h lie outside of what the model was trained on" in said


def test_a_rate_that_nobody_said_and_hosts_without_a_reference_are_noted(tmp_path, capsys):
    X, recording = walks()
    host = np.where(recording < 20, "a", "b")
    columns = {"episode": np.full(48, "quiet"), "host": np.full(48, "a"), "label": np.full(48, "baseline")}
    more = {"normaliser": {"type": "host_baseline"}, "time": Timing.NONE}
    more["reference"] = window_set(X[47::-1], t_start=np.arange(48.0), length=8, **columns)
    data = write(tmp_path / "d", X, recording, label=recording % 2, host=host, **more)
    _, said = scored(trained_on(data, tmp_path), data, capsys)
    assert "The sampling rate of these windows is unknown" in said
    assert "b has no reference recording here" in said
    assert "a has no reference" not in said


def test_what_is_kept_of_windows_is_small_sorted_and_bounded(monkeypatch, tmp_path):
    found = inputs_of(write(tmp_path / "d", noise(), np.arange(80) // 4))
    split = split_of(found)
    kept = training_windows.keep(found, split, NONE)
    assert sum(len(text) for text in kept.sides.values()) < 80 * 8 + 4 * 4
    train = kept.digests(Side.TRAIN)
    assert train.size == split.train.size
    assert (np.diff(train.astype(np.int64)) > 0).all()
    monkeypatch.setattr(training_windows, "MOST_WINDOWS", 79)
    nothing = training_windows.keep(found, split, NONE)
    assert nothing.sides is nothing.marks is None
    assert training_windows.sides_by_content({"seen": msgspec.to_builtins(nothing)}, found) is None


# -- comparisons -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported_twice(tmp_path_factory):
    """(data, checkpoint) of an export and of the same windows again, shuffled inside the classes: the ids stay."""
    folder = tmp_path_factory.mktemp("twice")
    X, rng = noise(160, seed=4), np.random.default_rng(1)
    label = np.arange(160) % 2
    turn = np.arange(160)
    for one in (0, 1):
        turn[label == one] = rng.permutation(turn[label == one])
    found = []
    for name, order in (("a", np.arange(160)), ("b", turn)):
        data = write(folder / name, X[order], np.arange(160), label=label)
        found += [data, trained_on(data, folder / f"{name}-out")]
    return (found[0], found[1], found[2], found[3])


def test_a_model_trained_on_another_export_is_refused_though_the_names_are_equal(exported_twice, capsys):
    _, a, data, b = exported_twice
    fingerprints = [json.loads(path.read_text())["split"]["fingerprint"] for path in (a, b)]
    assert fingerprints[0] == fingerprints[1]
    assert comparing.main([str(a), str(b), str(data)]) == Exit.BAD_DATA
    said = capsys.readouterr()
    assert "neither saw" not in said.out
    assert "gbt oracle was trained on other data than these" in said.err


def test_other_data_are_judged_where_neither_has_learnt(exported_twice, capsys):
    _, a, data, b = exported_twice
    judged = [judging.judge(one, data) for one in (a, b)]
    found = comparison.compare(*judged, other_data=True)
    side = [judging.sides(one) for one in judged]
    unseen = (side[0] == "test") & (side[1] == "test")
    assert (found["windows"], found["left_out"]) == (int(unseen.sum()), int((~unseen).sum()))
    assert 0 < found["windows"] < 40
    assert comparing.main([str(a), str(b), str(data), "--other-data"]) == Exit.DONE
    said = capsys.readouterr().out
    assert "that neither saw" in said
    assert "windows were left out: one of the models has seen part of their recordings." in said


def test_nothing_is_concluded_where_a_checkpoint_does_not_know(exported_twice, tmp_path, capsys):
    first, a, data, b = exported_twice
    old = forgetful(a, tmp_path / "old")
    assert comparing.main([str(old), str(a), str(first)]) == Exit.DONE, "its own data it knows"
    assert "that neither saw" in capsys.readouterr().out
    assert comparing.main([str(old), str(b), str(data), "--other-data"]) == Exit.DONE
    said = capsys.readouterr().out
    assert "neither saw" not in said
    assert "Which is better is unknown: gbt oracle may have been trained on these" in said
    assert "is better, and" not in said


def test_data_of_which_everything_was_seen_are_refused(trained, tmp_path):
    data, checkpoint = trained
    rows = score(checkpoint, data)
    learnt = (rows["side"] == "train").to_numpy()
    X, recording = walks()
    again = write(tmp_path / "d", X[learnt], recording[learnt], label=recording[learnt] % 2)
    one = judging.judge(checkpoint, again)
    with pytest.raises(BadData, match="nothing is left to judge them on"):
        comparison.compare(one, one, other_data=True)


# -- what belongs together ---------------------------------------------------------------------------------------------


def test_the_validation_table_of_another_data_set_is_refused(tmp_path):
    data = walked(tmp_path / "d")
    other = walked(tmp_path / "o", first=100)
    argv = arguments("gbt", data, tmp_path, *SHORT["gbt"])
    argv[argv.index("--validation") + 1] = str(other / "validation_v1.parquet")
    ended = run(argv)
    assert ended.code == Exit.BAD_DATA
    assert "of another data set (it does not know the recording '0')" in ended.sentence
    # Of equal recordings, with another one quarantined: names do not show it, the digest does.
    table = pl.read_parquet(data / "validation_v1.parquet")
    torn = pl.concat([table, table.head(1)]).with_row_index()
    torn = torn.with_columns(
        episode_id=pl.when(pl.col("index") == table.height).then(pl.lit("torn")).otherwise("episode_id"),
        ok=pl.col("index") != table.height,
    )
    torn.drop("index").write_parquet(other / "validation_v1.parquet")
    ended = run(argv)
    assert ended.code == Exit.BAD_DATA
    assert "is the validation table of another data set: name the one" in ended.sentence


def test_the_run_key_covers_what_a_report_takes_from_the_validation_table(trained):
    data, checkpoint = trained
    key = json.loads(checkpoint.read_text())["run_key"]
    assert key["validation"] == load_validation(data / "validation_v1.parquet").digest


def test_a_run_whose_data_changed_says_that_it_starts_afresh(tmp_path):
    first, other = walked(tmp_path / "a"), walked(tmp_path / "b", 1.0)
    stopped = run(arguments("gbt", first, tmp_path, *SHORT["gbt"]), stop=StopAfter(9))
    assert stopped.code == Exit.INTERRUPTED
    ended = run(arguments("gbt", other, tmp_path, *SHORT["gbt"], "--seed", "4"))
    assert ended.code == Exit.DONE
    said = [event["reason"] for event in ended.events if event["event"] == "afresh"]
    assert said == ["a run that was interrupted here cannot resume: the data, what was asked for changed since"]
    again = run(arguments("gbt", other, tmp_path, *SHORT["gbt"]))
    assert not [event for event in again.events if event["event"] == "afresh"]
