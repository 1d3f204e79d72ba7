"""Tables and archives that once went wrong without a word: each is right now, noted, or refused with the way out."""

import datetime as dt
import re
import shlex

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_changes import SAME, in_question, noise, recordings, several

from training.data import ingest, summary
from training.data.dataset import load_processed
from training.data.doubts.ids_and_totals import ids_and_totals
from training.data.doubts.spelling import check_alike
from training.data.errors import DataError
from training.data.ingest.columns import Wanted, channel_names, check_rounding
from training.data.ingest.even import rates
from training.data.ingest.roles import roles_of
from training.data.schema import read_schema

pytestmark = pytest.mark.half

CUT = ("--window-s", "8")


# -- ids that begin anew on each host ----------------------------------------------------------------------------------


def test_windows_that_begin_anew_on_each_host_are_different_windows(ingested):
    rows = pl.DataFrame(
        {
            "t": np.tile(np.arange(480.0), 4),
            "window": np.tile(np.arange(480) // 8, 4),
            "host": np.repeat(list("abcd"), 480),
            "label": np.tile(np.arange(480) // 8 % 2, 4),
            "x": np.repeat([0.0, 100.0, 200.0, 300.0], 480) + noise(4 * 480),
        }
    )
    found = ingested.taken(rows)
    assert (found["windows"], found["samples"], found["hosts"]) == (240, 8, ["a", "b", "c", "d"])
    data = ingested.load()
    assert np.ptp(data.tensors, axis=2).max() < 50  # no window holds samples of two hosts
    assert np.unique(data.rows.episode).size == 240


def test_episodes_that_begin_anew_on_each_host_are_different_recordings(ingested):
    a = recordings("a", 3).with_columns(episode=pl.col("episode").str.slice(1).cast(pl.Int64))
    b = a.with_columns(host=pl.lit("b"), t=pl.col("t") + 0.5, x=pl.Series(noise(120, 1)) + 50)
    found = ingested.taken(pl.concat([a, b]), *CUT)
    assert found["hosts"] == ["a", "b"]
    assert found["understood"]["sample_hz"] == 1.0
    assert found["understood"]["recordings"] == 6
    assert set(ingested.load().rows.episode.tolist()) == {f"{h}/{n}" for h in "ab" for n in range(3)}


def test_npz_episodes_that_begin_anew_on_each_host_are_different_recordings(ingested):
    rng = np.random.default_rng(0)
    arrays = {"X": rng.normal(size=(24, 2, 8)), "y": np.arange(24) % 2}
    arrays |= {"episode": np.arange(24) // 3 % 4, "host": np.repeat(["a", "b"], 12)}
    assert ingested.taken(arrays)["episodes"] == 8
    assert "a/0" in ingested.load().rows.episode


def test_two_runs_under_one_name_are_refused(ingested):
    one = recordings("a", 1).drop("episode")
    jittered = one.with_columns(t=pl.col("t") + 0.37, x=pl.Series(noise(40, 5)))
    assert "start over at row 41 and overlap" in ingested.refused(pl.concat([one, jittered]), *CUT)
    same = one.with_columns(x=pl.Series(noise(40, 5)))
    said = ingested.refused(pl.concat([one, same]), *CUT)
    assert "Two rows of the host 'a' have the time 0" in said
    assert "add a column 'episode'" in said


def test_a_table_appended_to_itself_is_taken_once_or_refused_without_times(ingested):
    rows = recordings("ab", 1).with_columns(window=pl.Series(np.arange(80) // 10)).drop("episode")
    found = ingested.taken(pl.concat([rows, rows]))
    assert "80 of 160 rows were copies of others, in all columns: left out." in found["notes"]
    assert found["windows"] == 8
    other = rows.with_columns(x=pl.col("x") + 1)
    assert "The window '0' of the host 'a' has two rows of one time" in ingested.refused(pl.concat([rows, other]))
    untimed = rows.drop("t")
    said = ingested.refused(pl.concat([untimed, untimed]))
    assert "table hold a copy" in said
    assert "window '0' of the host 'a'" in said


# -- columns that are no channels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "__index_level_0__", "index", "Row Index"])
def test_row_numbers_and_ids_are_refused_by_their_names(name):
    found = roles_of(["t", "label", "x"], {}, "a.csv")
    with pytest.raises(DataError, match="row number or an id"):
        channel_names(["t", "label", name, "x"], found, Wanted(), "a.csv")


def test_a_table_without_its_label_says_what_its_columns_are(ingested):
    said = ingested.refused(recordings().drop("label"), *CUT)
    assert "no column of labels: name it with --label NAME, or bring a log of incidents" in said
    assert "; its columns are t, host, episode, x" in said


def test_what_a_table_does_not_say_is_noted(ingested):
    notes = ingested.taken(recordings("a", 1).drop("host", "episode"), *CUT)["notes"]
    assert "There is no column host: all rows count as one machine's." in notes
    assert "There is no column episode: each host is one recording." in notes


def test_two_columns_of_one_name_are_refused(ingested, tmp_path, capsys):
    (tmp_path / "b.csv").write_text("t,label,x,x\n" + "".join(f"{n},0,{n % 3},1\n" for n in range(20)))
    assert ingest.main([str(tmp_path / "b.csv"), "--out-dir", str(tmp_path / "o"), *CUT]) == 65
    assert "are called 'x', and differ" in capsys.readouterr().err


def test_a_running_total_is_refused_or_made_a_rate(ingested):
    total = np.cumsum(np.abs(noise(320))) * 7
    rows = recordings().with_columns(net_total=pl.Series(total))
    said = ingested.refused(rows, *CUT)
    assert "Never falling inside a recording: net_total" in said
    assert "--counter NAME" in said
    for average in ("ldavg-15", "[CPU]L-Avg5", "load avg 15m", "%scpu-300"):
        ingested.taken(rows.rename({"net_total": average}), *CUT)
    ingested.taken(rows, *CUT, "--counter", "net_total")
    channel = ingested.load().schema.channels[0]
    assert (channel.kind, channel.unit) == ("counter", "1/s")
    assert ingested.load().tensors[:, 0].max() < 7 * 5
    assert "net_total" not in ingested.taken(rows, *CUT, "--ignore", "net_total")["understood"]["channels"]
    assert ingested.taken(rows, *CUT, "--level", "net_total")["channels"]["oracle"] == 2
    assert "--counter needs a column of times" in ingested.refused(
        rows.with_columns(window=pl.Series(np.arange(320) // 20)).drop("t"), "--counter", "net_total"
    )


def test_what_only_runs_down_is_refused_or_kept(ingested):
    """Free bytes that shrink in every recording tell a benign beginning from the attack behind it, and nothing else."""
    rows = recordings().with_columns(free=-pl.int_range(pl.len()).cast(pl.Float64))
    said = ingested.refused(rows, *CUT)
    assert "Never rising inside a recording: free: a remainder?" in said
    ingested.taken(rows, *CUT, "--level", "free")


def test_empty_lines_are_no_rows_and_a_name_may_end_in_capitals(tmp_path, capsys):
    (tmp_path / "A.CSV").write_text("\n".join((recordings().write_csv(), "", "")))
    assert ingest.main([str(tmp_path / "A.CSV"), *CUT, "--out-dir", str(tmp_path / "o")]) == 0


def test_a_cell_of_text_among_numbers_is_named(ingested):
    rows = recordings().with_columns(pl.col("x").cast(pl.String))
    x = rows["x"].to_list()
    x[6] = x[9] = "n.a."
    said = ingested.refused(rows.with_columns(x=pl.Series(x)), *CUT)
    assert "holds text in 2 of 320 rows, the first 'n.a.' in row 7 (leave a cell empty" in said
    said = ingested.refused(rows.with_columns(x=pl.lit("tcp")), *CUT)
    assert "is a channel but holds no numbers: leave it out" in said
    many = recordings().rename({"host": "hosts"})
    assert "holds no numbers: leave it out with --ignore hosts, or say what it is (" in ingested.refused(many, *CUT)
    assert ingested.taken(many, *CUT, "--host-column", "hosts")["hosts"] == ["a", "b", "c", "d"]
    many = many.with_columns(hosts=noise(320))
    notes = ingested.taken(many, *CUT)["notes"]
    assert "The column hosts is taken for a channel: say --host-column hosts if it is the host." in notes


def test_all_columns_that_hold_no_numbers_are_named_at_once(ingested):
    rows = recordings().with_columns(**{"tcp, udp": pl.lit("tcp"), "user": pl.lit("me"), "x": pl.lit("1 %, 2 %")})
    said = ingested.refused(rows, *CUT)
    assert "3 columns of" in said
    assert "'tcp, udp' holds no numbers; 'user' holds no numbers; 'x' " in said
    assert """with --ignore '"tcp, udp",user,x', or say what one is (--time, --label, --host-column, """ in said
    flags = shlex.split(said.partition("out with ")[2].partition(", or say")[0])
    assert "holds no samples" in ingested.refused(rows, *CUT, *flags)
    wide = rows.with_columns(**{f"c{number}": pl.lit("y") for number in range(40)})
    assert "; and 35 more: " in ingested.refused(wide, *CUT)


def test_a_channel_that_keeps_falling_is_no_running_total(ingested):
    said = ingested.refused(recordings(), *CUT, "--counter", "x")
    assert re.search(r"The channel 'x' falls in (4|5)\d.% of its steps, so that it is no", said)
    said = ingested.refused(arrays(), "--hz", "1", "--counter", "c1")
    assert "The channel 'c1' falls in" in said


def test_a_column_that_is_left_out_has_no_meaning(ingested):
    """A label that was said to be left out was the label all the same."""
    rows = recordings().with_columns(y=pl.when(pl.col("x") > 9).then(1).otherwise(0))
    found = ingested.taken(rows, *CUT, "--ignore", "label,host")["understood"]
    assert found["roles"] == {"t": "time in s", "episode": "recording", "y": "class"}
    assert (found["classes"], found["hosts"]) == ({"benign": 72, "malicious": 0}, {"unknown": 72})
    said = ingested.refused(recordings(), *CUT, "--ignore", "label")
    assert "has no column of labels" in said
    assert "has no column of times" in ingested.refused(recordings(), *CUT, "--ignore", "t")


@pytest.mark.parametrize("values", [(0, 1), (False, True), ("false", "True")])
def test_a_column_called_after_what_is_benign_is_not_read_the_wrong_way_round(ingested, values):
    attack, normal = values
    fine = pl.when(pl.col("label") == "normal").then(pl.lit(normal)).otherwise(pl.lit(attack))
    rows = recordings().with_columns(is_normal=fine).drop("label")
    flags = (*CUT, "--label", "is_normal")
    assert "The column 'is_normal' is called after what is benign" in ingested.refused(rows, *flags)
    for word in ("1", "0") if values == (0, 1) and attack is not False else ("true", "false"):
        assert ingested.taken(rows, *flags, "--benign", word)["understood"]["benign"] == [word]


def test_a_total_that_is_reset_did_not_grow():
    total, t = np.array([5.0, 7.0, 1.0, 4.0, 100.0, 104.0]), np.array([0.0, 1, 2, 4, 0, 2])
    group = np.array([0, 0, 0, 0, 1, 1])
    assert rates(total, t, group).tolist() == [2.0, 2.0, 0.0, 1.5, 2.0, 2.0]


def test_what_is_constant_is_named(ingested):
    size = pl.col("host").replace_strict({"a": 1, "b": 2, "c": 4, "d": 8})
    rows = recordings().with_columns(zero=pl.lit(0.0), size=size)
    notes = ingested.taken(rows, *CUT)["notes"]
    assert "Channels that never change: zero." in notes
    assert "Channels with one value a host, which only name the host: size." in notes


@given(seed=st.integers(0, 50))
def test_noise_is_never_suspected(seed):
    X = np.random.default_rng(seed).normal(size=(12, 2, 8)).astype(np.float32)
    where = {"label": np.array(["a", "b"] * 6), "episode": np.repeat(list("wxyz"), 3)}
    where |= {"host": np.repeat(["h", "i"], 6), "t_start": np.arange(12.0)}
    assert ids_and_totals(in_question(X, ["p", "q"], **where)) == []


# -- rates -------------------------------------------------------------------------------------------------------------


def test_hosts_that_are_slower_are_refused_by_name_with_the_rate_that_all_have(ingested):
    usual, slow = recordings("a", 4), recordings("b", 4, hz=0.125)
    slow = slow.with_columns(episode=pl.col("episode") + "b")
    rows = pl.concat([usual, usual.with_columns(host=pl.lit("c")), slow])
    said = ingested.refused(rows, *CUT)
    assert "Sampled at 0.125 Hz, but the usual rate is 1: the host 'b': say --hz 0.125 to bring all to one" in said
    assert "another unit" not in said
    said = ingested.refused(rows, "--hz", "2", *CUT)
    assert "Sampled at 1 Hz, but --hz says 2: the host 'a', the host 'b', the host 'c': say --hz 0.125" in said
    one = recordings("a", 2, hz=10.0)
    assert ingested.taken(one, "--window-s", "1", "--hz", "10.2")["windows"] > 0
    windows = pl.concat([recordings("a", 1), recordings("b", 1, hz=10.0)]).drop("episode")
    windows = windows.with_columns(window=pl.Series(np.arange(80) // 10))
    assert "Sampled at" in ingested.refused(windows)


# -- what gives no window ----------------------------------------------------------------------------------------------


def test_recordings_and_stretches_too_short_for_a_window_are_said_and_stored(ingested):
    long = recordings("abc", 2)
    short = recordings("s", 2, samples=6).with_columns(episode=pl.col("episode") + "s")
    few = pl.when(pl.col("t") % 1000 < 34).then(pl.lit("normal")).otherwise(pl.lit("attack"))
    rows = pl.concat([long.with_columns(label=few), short])
    found = ingested.taken(rows, *CUT)["understood"]
    assert found["recordings"] == 8
    assert found["without_window"] == {"it is shorter than a window": 2}
    assert found["hosts"] == {"a": 16, "b": 16, "c": 16, "s": 0} | {h: found["hosts"][h] for h in "abc"}
    assert found["classes"]["attack"] == 0
    assert (
        "8 of 8 stretches of attack: shorter than a window of 8 s (--points labels each window that holds one)"
        in found["left_out"]
    )
    none = ingested.validation.filter(pl.col("windows") == 0)
    assert none["episode_id"].to_list() == ["e0s", "e1s"]
    assert none["host"].unique().to_list() == ["s"]
    assert none["ok"].all()
    assert none["reasons"].to_list() == [["it is shorter than a window"]] * 2
    kept = summary.read(ingested.out / "validation_v1.parquet")
    assert "recordings  8, 2 of them without a window: it is shorter than a window" in kept.lines()


# -- spelling ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", [("10.1", "10.10"), ("1", "01"), ("7" * 20 + "1", "7" * 20 + "2")])
@pytest.mark.parametrize("column", ["host", "episode"])
def test_ids_that_are_one_number_are_two_names(ingested, column, pair):
    """Read as numbers, the subnets 10.1 and 10.10 were one host, and nobody was told."""
    rows = recordings("ab", 1).with_columns(
        pl.col(column).replace(dict(zip(("a", "b") if column == "host" else ("e0", "e1"), pair, strict=True)))
    )  # fmt: skip
    ingested.taken(rows, *CUT)
    assert sorted(np.unique(getattr(ingested.load().rows, column)).tolist()) == sorted(pair)


@pytest.mark.parametrize("other", ["normal\u200b", "nor\u00admal", "\uff4eormal", "NORMAL\u200b"])
def test_names_that_look_alike_are_refused(ingested, other):
    """A class with an invisible sign in its name was a class of its own, and so an attack."""
    odd = pl.int_range(pl.len()) % 40 > 30
    rows = recordings("ab", 2).with_columns(label=pl.when(odd).then(pl.lit(other)).otherwise(pl.col("label")))
    assert "signs that look alike only" in ingested.refused(rows, *CUT)


def test_one_name_in_two_encodings_is_refused():
    with pytest.raises(DataError, match="signs that look alike only"):
        check_alike(["b\u00fcro", "bu\u0308ro"], "host")
    with pytest.raises(DataError, match="differ by spaces only"):
        check_alike(["web 1", "web  1"], "host")
    check_alike(["10.1", "10.10", "1", "01", "b\u00fcro", "buro"], "host")


@pytest.mark.parametrize("word", ["nan", "NaN", "NA", "null", "n/a", "<NA>", "?", "NaT"])
@pytest.mark.parametrize("column", ["label", "host", "episode"])
def test_words_for_nothing_are_no_names(ingested, column, word):
    """The word that pandas writes for a missing label was a class, and counted as an attack."""
    odd = pl.int_range(pl.len()) % 40 > 30
    rows = recordings("ab", 2).with_columns(pl.when(odd).then(pl.lit(word)).otherwise(pl.col(column)).alias(column))
    said = ingested.refused(rows, *CUT)
    assert f"A {column} is {word!r}, which is what programs write where nothing is known" in said


def test_none_is_a_usual_word_for_benign_and_no_host(ingested):
    rows = recordings("ab", 2)
    is_benign = rows.with_columns(label=pl.col("label").replace({"normal": "None"}))
    assert ingested.taken(is_benign, *CUT)["understood"]["benign"] == ["None"]
    said = ingested.refused(rows.with_columns(host=pl.col("host").replace({"a": "None"})), *CUT)
    assert "A host is 'None'" in said


# -- float32 -----------------------------------------------------------------------------------------------------------


def test_changes_that_32_bits_swallow_are_refused(ingested):
    rows = recordings().with_columns(memory=16e9 + 20 * pl.Series(noise(320, 3)))
    said = ingested.refused(rows, *CUT)
    assert "'memory' changes by about" in said
    assert "subtract a constant" in said
    fine = rows.with_columns(memory=pl.col("memory") - 16e9)
    assert ingested.taken(fine, *CUT)["windows"] > 0
    X = 1e9 + noise(24 * 2 * 8).reshape(24, 2, 8)
    assert "'c0' changes by" in ingested.refused({"X": X, "y": np.arange(24) % 2})
    X = 1e9 + 20 * noise(24 * 2 * 8).reshape(24, 2, 8)  # lost before it came here: four values are left
    assert "'c0' changes by" in ingested.refused({"X": X.astype(np.float32), "y": np.arange(24) % 2})


def test_a_constant_is_not_lost_in_its_own_rounding(ingested):
    found = ingested.taken(recordings().with_columns(still=pl.lit(0.6)), *CUT)
    assert "Channels that never change: still." in found["notes"]


def test_levels_of_hosts_hide_no_rounding():
    host = np.repeat(["a", "b"], 100)
    values = np.where(host == "a", 8e9, 16e9) + 20 * noise(200)
    with pytest.raises(DataError, match="changes by about"):
        check_rounding([("m", values)], host)
    check_rounding([("m", values - np.where(host == "a", 8e9, 16e9))], host)
    values[3] = np.nan
    with pytest.raises(DataError, match="changes by about 19"):
        check_rounding([("m", values)], host)
    check_rounding([("m", np.where(host == "a", 8e9, 16e9))], host)  # nothing changes: nothing is lost
    check_rounding([("m", np.where(host == "a", 1e39, -1e200))], host)  # refused elsewhere


# -- clocks ------------------------------------------------------------------------------------------------------------


def arrays(**changes):
    rng = np.random.default_rng(0)
    found = {"X": rng.normal(size=(24, 2, 8)), "y": np.arange(24) % 2}
    found |= {"episode": np.arange(24) // 6, "host": np.repeat(["a", "b"], 12)}
    return found | changes


def test_without_clock_and_rate_no_time_is_made_up(ingested):
    found = ingested.taken(arrays())["understood"]
    assert (found["sample_hz"], found["window_s"], found["stride_s"]) == (None, None, None)
    schema = read_schema(ingested.out / "feature_schema_v1.json")
    assert schema.time == "none"
    assert np.isnan(ingested.load().rows.t_end).all()
    assert ingested.load().rows.t_start[:6].tolist() == [0.0, 8.0, 16.0, 24.0, 32.0, 40.0]
    ingested.taken(arrays(), "--hz", "10")
    assert read_schema(ingested.out / "feature_schema_v1.json").time == "seconds"
    assert b'"time"' not in (ingested.out / "feature_schema_v1.json").read_bytes()
    ingested.taken(arrays(t=np.arange(24) * 2.0))
    assert read_schema(ingested.out / "feature_schema_v1.json").time == "starts"
    assert ingested.load().schema.stride_s == 2.0
    assert (ingested.load().rows.t_end == ingested.load().rows.t_start).all()
    rows = recordings("ab", 1).with_columns(window=pl.Series(np.arange(80) // 10)).drop("t")
    ingested.taken(rows)
    assert read_schema(ingested.out / "feature_schema_v1.json").time == "none"


def test_a_part_with_most_samples_lost_is_no_other_rate(ingested):
    steps = np.r_[np.full(200, 1.0), np.tile([2.0, 5.0, 9.0, 3.0], 40), np.full(200, 1.0)]
    rows = pl.DataFrame({"t": np.cumsum(steps), "label": np.arange(560) // 20 % 2, "x": noise(560)})
    found = ingested.taken(rows, *CUT, "--episode-s", "5000")
    assert found["understood"]["sample_hz"] == 1
    assert found["windows"] == 20 * 4
    assert ingested.load().tensors[-1, 0].tolist() == rows["x"][-8:].cast(pl.Float32).to_list()


@pytest.mark.parametrize("other", [2.0, 0.05, 0.5, 0.7])
def test_a_rate_that_changes_inside_a_recording_is_refused_or_averaged(ingested, other):
    """Steps of half the usual length are no break, so that windows of 4 s were said to be 8 s long."""
    steps = np.r_[np.full(200, 1.0), np.full(100, other)]
    rows = pl.DataFrame({"t": np.cumsum(steps), "label": np.arange(300) // 20 % 2, "x": noise(300)})
    if other == 2.0:
        assert "is sampled at 0.5 Hz, the others at 1 Hz: say --hz 0.5 to" in ingested.refused(rows, *CUT)
        found = ingested.taken(rows, *CUT, "--hz", "0.5")
        assert "came unevenly or faster and were brought to 0.5 Hz: the host 'unknown' (0.749 Hz)" in found["notes"][-1]
    elif other == 0.05:
        assert "is sampled at 20 Hz, the others at 1 Hz: in another unit of time? Else" in ingested.refused(rows, *CUT)
        ingested.taken(rows, *CUT, "--hz", "1")
    else:
        assert "were brought to 1 Hz: the host 'unknown' (" in ingested.taken(rows, *CUT)["notes"][-1]
    # Jitter of a third, and every tenth sample lost, are no other rate.
    t = np.arange(300.0) + np.random.default_rng(0).uniform(-0.15, 0.15, 300)
    steady = rows.with_columns(t=pl.Series(t)).filter(pl.int_range(300) % 10 != 3)
    assert "brought to" not in str(ingested.taken(steady, *CUT)["notes"])


def test_values_of_another_size_on_one_host_are_noted(ingested):
    rows = recordings().with_columns(x=pl.col("x").abs() + 1)
    for factor, size in ((1000.0, "0 times the size"), (0.001, "about 1/")):
        odd = pl.when(pl.col("host") == "c").then(pl.col("x") * factor).otherwise("x")
        notes = ingested.taken(rows.with_columns(x=odd), *CUT)["understood"]["notes"]
        (note,) = [note for note in notes if "another unit?" in note]
        assert note.startswith("Values of x on c have about ")
        assert size in note
    assert not any("unit" in note for note in ingested.taken(rows, *CUT)["understood"]["notes"])


def test_times_in_hours_are_refused(ingested):
    hours = recordings().with_columns(t=pl.col("t") / 3600)
    said = ingested.refused(hours, "--window-s", "0.003")
    assert "say its unit with --t-unit s, ms, us, ns, min, h or d" in said
    ingested.taken(hours, "--window-s", "0.003", "--t-unit", "s")


def test_dates_say_whether_they_named_a_zone(ingested):
    rows = recordings()
    dates = pl.from_epoch(rows["t"] + dt.datetime(2026, 11, 20, tzinfo=dt.UTC).timestamp())
    texts = rows.with_columns(t=dates.dt.strftime("%Y-%m-%dT%H:%M:%S") + "+02:00")
    assert ingested.taken(texts, *CUT)["understood"]["roles"]["t"] == "dates with a time zone"
    assert ingested.load().rows.t_start.min() == dt.datetime(2026, 11, 19, 22, tzinfo=dt.UTC).timestamp()
    some = texts.with_columns(t=pl.when(pl.int_range(pl.len()) < 9).then(pl.col("t").str.head(19)).otherwise("t"))
    assert "names a time zone in some rows and none in others" in ingested.refused(some, *CUT)
    twice = rows.head(40).with_columns(t=pl.Series(dates.head(40).dt.strftime("%Y-%m-%d %H:%M:%S")))
    twice = pl.concat([twice, twice.head(20).with_columns(x=pl.col("x") + 1)])
    assert "clocks are set back (bring UTC)" in ingested.refused(twice, *CUT)


@pytest.mark.parametrize(
    ("t", "options", "sentence"),
    [
        (np.arange(24) * 800.0, ("--hz", "10"), "By --hz a window is 0.8 s long, but by t one begins each 800 s"),
        (1.7e11 + np.arange(24) * 800.0, ("--hz", "10"), "holds no usual seconds"),
        (np.arange(24) * 8000.0, (), "are 1,000 apart, if t counts seconds"),
        (np.r_[np.arange(12) * 2.0, np.arange(12) * 2000.0], (), "milliseconds? Bring all times to seconds"),
        (np.r_[np.arange(12) * 2.0, 1.7e9 + np.arange(12) * 2], (), "bring all hosts to one clock"),
        (np.full(24, "x"), (), "must hold times"),
        (np.full(24, "2026-11-20 07:00:00"), ("--t-unit", "s"), "--t-unit has no effect on the dates"),
    ],
)  # fmt: skip
def test_times_that_may_be_milliseconds_are_refused(ingested, t, options, sentence):
    assert sentence in ingested.refused(arrays(t=t), *options)


def test_windows_of_one_recording_at_one_time_are_refused(ingested):
    """Dates in 32 bits are two minutes apart: ten windows began at one time, and alarms a day were a tenth."""
    t = (1.76e9 + np.arange(24) * 8.0).astype(np.float32)
    said = ingested.refused(arrays(t=t))
    assert "Two windows of the recording '0' begin at the time 1760000000" in said
    once = arrays(t=np.arange(24) * 8.0)
    ingested.taken(once)
    twice = {name: np.repeat(values, 2, axis=0) for name, values in once.items()}
    ingested.taken(twice, "--allow-copies")


@pytest.mark.filterwarnings("error")
def test_values_that_no_number_holds_are_refused_in_one_sentence(ingested):
    assert "larger ones than 32 bits can hold" in ingested.refused(arrays(X=np.full((24, 2, 8), 1e39)))
    y = np.where(np.arange(24) == 3, np.nan, np.arange(24) % 2)
    assert "1 of 24 labels are empty (nan)" in ingested.refused(arrays(y=y))
    assert "not whole" in ingested.refused(arrays(y=np.arange(24) / 2))


def test_a_window_shorter_than_half_a_step_is_refused(ingested):
    """Milliseconds read as seconds ended in a traceback where the window was shorter than half a step."""
    rows = recordings(hz=50.0).with_columns(pl.col("t") * 1000)
    said = ingested.refused(rows, *CUT)
    assert "are 20 s apart by t, so that a window of 8 s holds none" in said
    ingested.taken(rows, "--t-unit", "ms", "--window-s", "0.2")


def test_the_unit_of_time_can_be_said(ingested):
    found = ingested.taken(arrays(t=np.arange(24) * 800.0), "--hz", "10", "--t-unit", "ms")
    assert found["understood"]["stride_s"] == 0.8
    found = ingested.taken(arrays(t=np.arange(24) * 800.0), "--hz", "10", "--t-unit", "s")
    assert found["understood"]["stride_s"] == 800
    assert "so --t-unit has no effect" in ingested.refused(arrays(), "--t-unit", "ms")


def test_the_step_of_windows_without_episodes_is_that_of_their_host(ingested):
    rows = recordings("ab", 1, samples=80).drop("episode")
    overlapping = [
        rows.filter(pl.col("host") == host).slice(begin, 8).with_columns(window=pl.lit(begin))
        for host in "ab"
        for begin in (*range(32), *range(40, 70))
    ]
    found = ingested.taken(pl.concat(overlapping))
    assert found["understood"]["stride_s"] == 1.0
    assert ingested.load().schema.window_s == 8.0


def test_a_stride_cannot_contradict_the_times(ingested):
    rows = recordings("ab", 1).with_columns(window=pl.Series(np.arange(80) // 10))
    assert "by t it is 10 s" in ingested.refused(rows, "--stride-s", "4")
    ingested.taken(rows.drop("t"), "--hz", "1", "--stride-s", "4")
    assert ingested.load().rows.t_start[:4].tolist() == [0.0, 4.0, 8.0, 12.0]


def test_single_windows_in_milliseconds_are_refused(ingested):
    single = {name: value for name, value in arrays().items() if name != "episode"}
    said = ingested.refused(single | {"t": np.arange(24) * 800.0}, "--hz", "10")
    assert "a window is 0.8 s long, but by t one begins each 800 s" in said


# -- small ones --------------------------------------------------------------------------------------------------------


def test_more_channels_than_samples_are_asked_about(ingested):
    X = noise(24 * 128 * 9).reshape(24, 128, 9)
    notes = ingested.taken({"X": X, "y": np.arange(24) % 2})["notes"]
    assert any("128 channels of 9 samples" in note for note in notes)
    named = {"channel": np.array([f"c{n}" for n in range(128)])}
    notes = ingested.taken({"X": X, "y": np.arange(24) % 2} | named)["notes"]
    assert not any("128 channels" in note for note in notes)


@pytest.mark.parametrize("oracle", [["False", "True"], ["0", "1"], [0, 1], [False, True], [0.0, 1.0]])
def test_oracle_may_be_text(ingested, oracle):
    found = ingested.taken(arrays(oracle=np.array(oracle)))
    assert found["channels"] == {"realistic": 1, "oracle": 2}


def test_oracle_that_is_neither_true_nor_false_is_refused(ingested):
    assert "holds 'yes'" in ingested.refused(arrays(oracle=np.array(["yes", "no"])))
    assert "holds '2'" in ingested.refused(arrays(oracle=np.array([2, 0])))


# -- changes that must not change what is read -------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(changed=several(SAME))
def test_what_only_looks_different_is_read_alike(tmp_path_factory, changed):
    folder = tmp_path_factory.mktemp("same")
    change, options = changed
    rows = recordings("ab", 2)
    assert _read(folder, "a", rows, ()) == _read(folder, "b", change(rows), options)


def _read(folder, name, rows, options):
    """Windows by host and time, with their samples and whether they are benign; and the recordings they divide into."""
    rows.write_parquet(folder / f"{name}.parquet")
    out = folder / name
    command = [str(folder / f"{name}.parquet"), "--out-dir", str(out), "--json", *CUT, *options]
    assert ingest.main(command) == 0
    data = load_processed(None, out / "tensor_window_v1", None, "oracle")
    names = {number: name for name, number in data.label_map.items()}
    is_benign = [names[y] in data.benign for y in data.y.tolist()]
    host, t_start, episode = data.rows.host.tolist(), data.rows.t_start, data.rows.episode
    windows = sorted(zip(host, t_start.tolist(), is_benign, map(bytes, data.tensors), strict=True))
    divided = {frozenset(t_start[episode == one].tolist()) for one in set(episode.tolist())}
    schema = read_schema(out / "feature_schema_v1.json")
    return windows, divided, (schema.sample_hz, schema.window_s, schema.stride_s, schema.time)
