"""Tables and recordings that may mean otherwise than they say: refused with the flag that says it, or noted."""

import numpy as np
import polars as pl
import pytest
import telemetry_builders as made
from table_changes import in_question, noise, recordings

from training.data.classes import choose_benign
from training.data.doubts.label_copies import telling
from training.data.doubts.spelling import alike_hosts
from training.data.errors import DataError
from training.data.ingest.ingested import unite
from training.data.missing import Missing, check_classes, say_missing, stand_in
from training.data.rows import Rows
from training.data.split import make_split

pytestmark = pytest.mark.half

CUT = ("--window-s", "8")
BOTH = ("oracle", "realistic")
ATTACK = pl.col("label") == "attack"
EVERY_29TH = pl.int_range(pl.len()) % 29 == 3


def at(where, value, column="x"):
    return {column: pl.when(where).then(pl.lit(float(value))).otherwise(pl.col(column))}


# -- numbers that stand for nothing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-999, 9999, 65535, -1e30])
def test_a_number_far_out_that_means_missing_is_refused(ingested, value):
    rows = recordings().with_columns(**at(EVERY_29TH, value))
    said = ingested.refused(rows, *CUT)
    assert f"'x' repeats {value:.10g}, far from all its other values" in said
    assert "nothing was measured there say --missing=" in said
    kept = ingested.taken(rows, *CUT, f"--missing={value}")
    assert np.abs(ingested.load().tensors).max() < 10
    found = ingested.taken(rows, *CUT, f"--missing=x={value}", "--drop-nan")
    assert "11 values of x: --missing" in found["understood"]["left_out"]
    assert np.abs(ingested.load().tensors).max() < 10
    assert ingested.taken(rows, *CUT, "--level", "x")["windows"] == kept["windows"] > found["windows"]


def test_a_number_near_by_that_may_mean_missing_is_noted(ingested):
    rows = recordings().with_columns(x=pl.col("x").abs() * 30)
    for value in (-1, 255):
        notes = ingested.taken(rows.with_columns(**at(EVERY_29TH, value)), *CUT)["notes"]
        assert any(f"The channel x repeats {value}, apart from" in note for note in notes)
    assert "which no channel holds" in ingested.refused(rows, *CUT, "--missing=-2")
    assert "which is no channel" in ingested.refused(rows, *CUT, "--missing=y=-2")


def test_a_number_is_missing_in_the_channel_that_is_said_alone():
    columns = [np.array([1.0, -1.0, 2.0]), np.array([-1.0, 3.0, -1.0])]
    assert say_missing([Missing("b", -1.0)], ["a", "b"], columns) == ["2 values of b: --missing"]
    np.testing.assert_array_equal(columns, [[1, -1, 2], [np.nan, 3, np.nan]])


def test_an_archives_number_that_means_missing_is_refused_or_left_out(ingested):
    X = np.random.default_rng(0).normal(size=(24, 2, 8))
    X[::4, 1] = -999
    arrays = {"X": X, "y": np.arange(24) % 2, "channel": ["a", "b"], "episode": np.arange(24) // 6}
    assert "'b' repeats -999" in ingested.refused(arrays)
    assert ingested.taken(arrays, "--missing=-999", "--drop-nan")["windows"] == 18


@pytest.mark.parametrize(
    "values",
    [
        np.r_[np.zeros(50), np.arange(50.0)],  # nothing happens
        np.r_[np.arange(50.0) / 20, np.full(50, 100.0)],  # a processor at its limit
        np.r_[np.arange(256.0), np.full(20, 255.0)],  # eight bits that are full
        np.tile([0.0, 1.0, -1.0], 30),  # states
        np.r_[np.linspace(-3, 3, 90), np.full(9, -1.0)],
        np.r_[np.arange(90.0), 9999.0],  # a single peak
        np.tile(np.r_[np.arange(20.0), 4096.0], 2)[:41],
    ],
)
def test_natural_limits_and_states_stand_for_nothing(values):
    assert stand_in("x", values) is None


def test_a_peak_in_many_windows_is_no_repetition():
    series = np.r_[np.arange(40.0), 9999.0, np.arange(40.0)]
    windows = np.lib.stride_tricks.sliding_window_view(series, 8)
    assert stand_in("x", windows) is None


# -- labels of what nobody labelled ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-1, 255])
def test_a_number_for_unlabelled_is_no_class(ingested, value):
    rows = recordings().with_columns(label=ATTACK.cast(pl.Int64))
    some = rows.with_columns(label=pl.when(pl.col("t") % 1000 > 29).then(value).otherwise("label"))
    said = ingested.refused(some, *CUT)
    assert f"The label {value} reads like a missing label" in said
    assert "--all-labelled" in said
    found = ingested.taken(some, *CUT, f"--unlabelled={value}")
    assert found["labels"] == {"benign": 32, "malicious": 8}
    assert "80 of 320 rows: --unlabelled" in found["understood"]["left_out"]
    kept = ingested.taken(some, *CUT, "--all-labelled", "--benign", "0")
    assert str(value) in kept["labels"]


def test_a_window_that_is_labelled_in_part_is_left_out(ingested):
    place = pl.int_range(pl.len())
    unknown = pl.when(place % 32 > 28).then(pl.lit("unknown"))
    label = unknown.when(place % 16 < 8).then(pl.lit("normal")).otherwise(pl.lit("attack"))
    rows = recordings().drop("t", "episode").with_columns(window=place // 8, label=label)
    found = ingested.taken(rows, "--unlabelled", "unknown")
    assert found["labels"] == {"attack": 10, "normal": 20}


def test_empty_labels_can_be_left_out(ingested):
    last = pl.col("host") == "d"
    rows = recordings().with_columns(label=pl.when(last).then(None).otherwise("label"))
    assert "--unlabelled nan" in ingested.refused(rows, *CUT)
    found = ingested.taken(rows, *CUT, "--unlabelled", "nan")
    assert "80 of 320 rows: --unlabelled, all of d" in found["understood"]["left_out"]
    y = np.where(np.arange(24) < 6, np.nan, np.arange(24) % 2)
    arrays = {"X": np.random.default_rng(0).normal(size=(24, 1, 8)), "y": y}
    assert "--unlabelled nan" in ingested.refused(arrays)
    assert ingested.taken(arrays, "--unlabelled", "nan")["windows"] == 18
    assert "which no label is" in ingested.refused(arrays, "--unlabelled", "7")


@pytest.mark.parametrize(
    ("present", "odd"),
    [
        (["-1", "0", "1"], "-1"),
        (["0", "1", "255"], "255"),
        (["0", "1", "9999"], "9999"),
        (["attack", "normal", "unknown"], "unknown"),
        (["-1", "1"], None),
        (["254", "255", "3"], None),
        (["-2", "-1", "0"], None),
        (["0", "1", "2"], None),
        (["unknown"], None),
    ],
)
def test_only_what_stands_apart_reads_as_unlabelled(present, odd):
    if odd is None:
        check_classes(present, ())
    else:
        check_classes(present, (odd,))
        with pytest.raises(DataError, match=f"The label {odd} reads"):
            check_classes(present, ())


# -- totals that begin anew --------------------------------------------------------------------------------------------


def test_a_total_that_is_reset_or_runs_over_is_still_a_total(ingested):
    growth = np.abs(noise(320, 3)) * 900
    reset = np.concatenate([np.cumsum(part) for part in np.split(growth, [25, 150, 250])])
    over = (np.cumsum(growth) + 60_000) % 65_536
    signed = (np.cumsum(growth) + 30_000 + 32_768) % 65_536 - 32_768
    for total in (reset, over, signed):
        rows = recordings().with_columns(sent=pl.Series(total))
        said = ingested.refused(rows, *CUT)
        assert "Rising, and rarely falling to its bottom: sent" in said
        ingested.taken(rows, *CUT, "--counter", "sent")
        assert ingested.load().tensors[:, 0].min() >= 0
        assert ingested.load().tensors[:, 0].max() < 5000
        ingested.taken(rows, *CUT, "--level", "sent")
    level = 4e5 + np.resize(np.linspace(0, 1e5, 23), 320)  # memory that is tidied up
    assert ingested.taken(recordings().with_columns(level=pl.Series(level)), *CUT)


# -- the label among the channels --------------------------------------------------------------------------------------


def test_a_noisy_or_late_copy_of_the_label_is_refused_or_noted(ingested):
    rows = recordings()
    label = (rows["label"] == "attack").to_numpy()
    wrong = np.random.default_rng(1).random(label.size) < 0.03
    late = np.r_[label[-2:], label[:-2]]
    for copy in (label ^ wrong, late, ~late, label + noise(320) / 500):
        said = ingested.refused(rows.with_columns(busy=pl.Series(copy) * 1.0), *CUT)
        assert "'busy' has a value for each class" in said
        assert "looks like a copy of the label" in said
    kept = rows.with_columns(busy=pl.Series(label ^ wrong) * 1.0)
    assert not ingested.taken(kept, *CUT, "--level", "busy")["notes"]
    strong = rows.with_columns(busy=pl.Series(label + noise(320, 9) * 0.2))
    notes = ingested.taken(strong, *CUT)["understood"]["notes"]
    assert any("tells the classes on every host: busy" in note for note in notes)


def test_a_label_that_is_smoothed_or_comes_much_later_is_noted(ingested):
    between = (pl.col("t") % 1000).is_between(12, 27)
    rows = recordings().with_columns(label=pl.when(between).then(pl.lit("attack")).otherwise(pl.lit("normal")))
    label = (rows["label"] == "attack").to_numpy().reshape(8, 40) * 1.0
    mean = np.stack([np.convolve(one, np.ones(16) / 16)[:40] for one in label])
    late = np.concatenate([label[:, -12:] * 0, label[:, :-12]], axis=1)
    for echo in (mean, late, 5 - 3 * late):
        echo = echo.ravel() + noise(320, 3) / 30
        found = ingested.taken(rows.with_columns(load=pl.Series(echo)), *CUT)
        said = [note for note in found["notes"] if "Following the label" in note]
        assert said[0].startswith("Following the label, smoothed or moved by up to two windows: load:")
        found = ingested.taken(rows.with_columns(load=pl.Series(echo)), *CUT, "--level", "load")
        assert not any("Following" in note for note in found["notes"])
    busy = rows.with_columns(load=pl.Series(mean.ravel() + noise(320, 3)))
    assert not any("Following" in note for note in ingested.taken(busy, *CUT)["notes"])


def test_a_copy_of_several_classes_is_refused(ingested):
    rows = recordings().with_columns(label=pl.col("t") % 1000 // 14)
    copy = rows["label"].to_numpy() * 2.0
    copy[::50] = 4.0
    rows = rows.with_columns(pl.col("label").cast(pl.Int64).cast(pl.String), kind=pl.Series(copy))
    assert "'kind' has a value" in ingested.refused(rows, *CUT, "--no-benign")


def test_a_channel_that_tells_on_one_host_alone_is_no_copy():
    label = np.tile(["benign", "bad"], 20)
    host = np.repeat(["a", "b"], 20)
    X = noise(40 * 8).reshape(40, 1, 8) + 9 * ((label == "bad") & (host == "a"))[:, None, None]
    found = telling(in_question(X, label=label, host=host))
    assert (found.states, found.levels) == ((), ())
    also = host == "a"  # which has no benign window: the other host decides
    label[also] = np.where(label[also] == "bad", "worse", "bad")
    X = noise(40 * 8).reshape(40, 1, 8) + 9 * (label != "benign")[:, None, None]
    assert telling(in_question(X, label=label, host=host)).levels == ("x",)


def test_a_level_of_hosts_that_have_one_class_each_is_no_copy():
    host = np.repeat(["a", "b"], 20)
    X = noise(40 * 8).reshape(40, 1, 8) + 9 * (host == "a")[:, None, None]
    found = telling(in_question(X, label=host, host=host, benign=("b",)))
    assert (found.states, found.levels) == ((), ())
    found = telling(in_question(X.round(-1), label=host, host=host, benign=("b",)))
    assert found.states == ("x",)


def recorded(root, **columns):
    """A few recordings whose telemetry has such columns besides; declared, if the name says so."""
    more = [(name, "1", "gauge", list(BOTH)) for name in columns]
    infos = made.channel_infos((*made.CHANNELS, *more))
    for number in range(4):
        t, values = made.signal(seed=number)
        values = np.column_stack([values, *(column(t) for column in columns.values())])
        made.write_episode(root, number=number, channels=infos, t=t, values=values)


def test_recordings_say_what_may_be_no_measurement(tmp_path, built):
    lost = lambda t: np.where(np.arange(t.size) % 29 == 3, -1.0, 9 + 9 * np.sin(t))  # noqa: E731
    copy = lambda t: (t >= 10.2) + noise(t.size) / 9  # noqa: E731
    moved = lambda t: (t >= 12.7) + noise(t.size) / 99  # noqa: E731
    recorded(tmp_path / "in", lost=lost, busy=copy, moved=moved)
    for folder in sorted((tmp_path / "in").iterdir())[:2]:
        rows = pl.read_parquet(folder / "telemetry.parquet").with_columns(extra=pl.lit(1.0))
        rows.write_parquet(folder / "telemetry.parquet")
    said = built.taken()["understood"]
    assert said["left_out"][-1] == "column extra of 2 recordings: their meta.json does not declare it"
    notes = " ".join(said["notes"])
    assert "tells the classes on every host: memory_used, busy" in notes
    assert "moved by up to two windows: moved: made from it?" in notes
    assert "lost (-1) in 4 recordings" in notes
    validation = pl.read_parquet(tmp_path / "out" / "validation_v1.parquet")
    assert validation["undeclared"].to_list() == [["extra"]] * 2 + [[]] * 2


def test_a_recording_with_a_number_for_missing_is_quarantined(tmp_path, built):
    recorded(tmp_path / "in", lost=lambda t: np.where(np.arange(t.size) % 29 == 3, -999.0, np.sin(t)))
    assert "Its channel lost repeats -999, far from all its other values" in built.refused()


# -- two recordings under one name -------------------------------------------------------------------------------------


def test_two_recordings_between_each_others_samples_are_refused(ingested):
    a = recordings("a", 1).drop("episode")
    level = a.with_columns(t=pl.col("t") + 0.5, x=pl.Series(noise(40, 5)) + 20)
    alike = a.with_columns(t=pl.col("t") + 0.37, x=pl.Series(noise(40, 5)))
    for other in (level, alike):
        rows = pl.concat([a, other]).sort("t")
        said = ingested.refused(rows, *CUT)
        assert "The rows of the host 'a' seem to alternate between 2 recordings" in said
    ingested.taken(pl.concat([a, level]).sort("t").with_columns(episode=pl.lit("one")), *CUT)
    ingested.taken(a.with_columns(t=pl.Series(np.arange(40) + noise(40) / 30)), *CUT)


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        (["h0", "h0.lan", "h1"], [("h0", "h0.lan")]),
        (["h0.lan", "h0.lan."], [("h0.lan", "h0.lan.")]),
        (["build-box", "build_box"], [("build-box", "build_box")]),
        (["db.eu", "db.us", "h1", "h10", "10.1", "10.10", "10"], []),
    ],
)
def test_hosts_that_look_like_one_machine(names, pairs):
    assert alike_hosts(names) == pairs


def test_hosts_that_look_like_one_machine_are_said_and_so_is_a_split_between_them(ingested):
    rows = recordings().with_columns(host=pl.col("host").replace({"a": "h0", "b": "h0.lan"}))
    notes = ingested.taken(rows, *CUT)["understood"]["notes"]
    assert any("'h0' and 'h0.lan' look like one machine" in note for note in notes)
    host = np.repeat(["h0.lan", "h0", "h1"], 8)
    rows = Rows.of(episode=np.arange(24), host=host, t_start=np.arange(24.0), label=np.arange(24) % 2)
    split = make_split(rows, recipe="host", train_hosts=["h0"])
    assert len(split.notes) == 1
    assert "train host 'h0' and the test host 'h0.lan'" in split.notes[0]
    turned = make_split(rows, recipe="host", train_hosts=["h0.lan"])
    assert "train host 'h0.lan' and the test host 'h0'" in turned.notes[0]
    both = ["h0", "h0.lan"]
    assert not make_split(rows, recipe="host", train_hosts=both).notes


def test_names_with_commas_can_be_said(ingested):
    rows = recordings().with_columns(label=pl.col("label").replace({"normal": "idle, quiet"}))
    said = ingested.refused(rows, *CUT)
    assert "--benign '\"idle, quiet\"'" in said
    found = ingested.taken(rows, *CUT, "--benign", '"idle, quiet"')
    assert found["benign"]["classes"] == ["idle, quiet"]
    with pytest.raises(DataError, match="in double quotes"):
        choose_benign(["a, b", "c"], ("a",))


def test_names_with_slashes_stay_apart():
    names = unite(np.array(["a", "a/b", "a", "c"]), np.array(["b/c", "c", "x", "x"]))
    assert np.unique(names).size == 4
    assert unite(np.array(["a", "b"]), np.array(["1", "1"])).tolist() == ["a/1", "b/1"]


# -- something else that tells the classes apart -----------------------------------------------------------------------


def notes_of(ingested, rows):
    return "\n".join(ingested.taken(rows, *CUT)["notes"])


def test_channels_that_hold_the_same_values_are_noted(ingested):
    twice = notes_of(ingested, recordings().with_columns(again=pl.col("x"), other=-pl.col("x")))
    assert "The channels again and x hold the same values: leave one out with --ignore." in twice
    assert twice.count("hold the same values") == 1
    still = recordings().with_columns(one=pl.lit(7.0), two=pl.lit(7.0))
    assert "hold the same values" not in notes_of(ingested, still)


def test_a_class_of_one_host_is_noted(ingested):
    rows = recordings()
    alone = rows.with_columns(label=pl.when(ATTACK & (pl.col("host") == "b")).then(pl.lit("scan")).otherwise("label"))
    assert "Only the host b has the class scan: no other host can test it." in notes_of(ingested, alone)
    assert "Only the host" not in notes_of(ingested, rows)
    assert "Only the host" not in notes_of(ingested, rows.filter(pl.col("host") == "a"))


def test_hosts_that_tell_the_classes_apart_are_noted(ingested):
    label = pl.when(pl.col("host") < "c").then(pl.lit("normal")).otherwise(pl.lit("attack"))
    by_host = recordings().with_columns(label=label)
    said = "Each host is wholly benign (a, b) or not at all (c, d): what tells hosts apart"
    assert said in notes_of(ingested, by_host)
    mixed = pl.concat([by_host, recordings("e", seed=9).with_columns(t=pl.col("t") + 9e4)])
    assert "Each host is wholly" not in notes_of(ingested, mixed)
    calm = recordings().with_columns(label=pl.lit("normal"))
    assert "Each host is wholly" not in notes_of(ingested, calm)


@pytest.mark.parametrize(("first", "order"), [("normal", "before"), ("attack", "after")])
def test_times_that_tell_the_classes_apart_are_noted(ingested, first, order):
    """The first recording of each host is of one side, the second of the other."""
    is_first = pl.col("episode").rank("dense").over("host") == 1
    second = {"normal": "attack", "attack": "normal"}[first]
    rows = recordings().with_columns(label=pl.when(is_first).then(pl.lit(first)).otherwise(pl.lit(second)))
    assert f"On every host all benign windows lie {order} the others" in notes_of(ingested, rows)
    once = rows.with_columns(label=pl.when(pl.col("host") == "a").then(pl.lit(first)).otherwise("label"))
    assert f"lie {order} the others" in notes_of(ingested, once)  # a host with one side says nothing
    turned = pl.when(pl.col("host") == "a").then(pl.when(is_first).then(pl.lit(second)).otherwise(pl.lit(first)))
    assert "the others: whatever drifts" not in notes_of(ingested, rows.with_columns(label=turned.otherwise("label")))
    assert "the others: whatever drifts" not in notes_of(ingested, recordings())
    assert "the others: whatever drifts" not in notes_of(ingested, recordings(each=1))  # it has to begin with one
