"""Long recordings cut into episodes: by a length that was said, or by the rule where no column names episodes."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from table_changes import noise, recordings

from training.data.ingest.columns import Wanted
from training.data.ingest.ingested import SaidClasses, measured, rate_of_step
from training.data.ingest.rows import WindowCut
from training.data.ingest.samples import EPISODE_WINDOWS, EPISODES_LEAST, EPISODES_MOST, episode_length, read_long
from training.data.split import SplitError, make_split


def long_recordings(hosts="abc", samples=1200, hz=1.0):
    """One recording a host, whose label changes each 60 samples."""
    n = len(hosts) * samples
    label = np.where(np.tile(np.arange(samples), len(hosts)) // 60 % 2, "attack", "normal")
    return pl.DataFrame(
        {
            "t": np.tile(np.arange(samples) / hz, len(hosts)),
            "host": np.repeat(list(hosts), samples),
            "label": label,
            "x": noise(n),
        }
    )


def read(path, **cut):
    return read_long([path], WindowCut(**cut), said=SaidClasses(), wanted=Wanted(), roles={})


def numbered(data):
    """The rows with class numbers for labels, as a split takes them."""
    return replace(data.rows, label=np.unique(data.rows.label, return_inverse=True)[1])


@given(windows=st.floats(0.1, 300.0), window=st.floats(1e-3, 1e6))
def test_the_rule_makes_three_to_ten_episodes_of_eight_windows_or_none(windows, window):
    span = windows * window
    length = episode_length(span, window)
    if length is None:
        assert span / window < EPISODES_LEAST * (EPISODE_WINDOWS + 1) + 1e-6
        return
    episodes = int(span // length) + 1
    assert EPISODES_LEAST <= episodes <= EPISODES_MOST
    assert length * (1 + 1e-6) >= (EPISODE_WINDOWS + 1) * window
    assert episodes * length == pytest.approx(span, rel=1e-6)


@given(
    episode_s=st.sampled_from([None, 30.0, 97.3, 250.0, 5000.0]),
    window_s=st.sampled_from([4.0, 8.0, 16.0]),
    samples=st.integers(200, 900),
    gap=st.integers(0, 199),
)
@settings(max_examples=12, deadline=None)
def test_windows_of_two_episodes_are_a_window_apart_and_stand_where_they_stood(
    tmp_path_factory, episode_s, window_s, samples, gap
):
    assume(episode_s is None or episode_s >= 4 * window_s)  # else a gap may leave no window anywhere, which is refused
    rows = long_recordings("ab", samples).filter((pl.col("t") < gap) | (pl.col("t") >= gap + 9))
    path = tmp_path_factory.mktemp("cut") / "a.parquet"

    rows.write_parquet(path)
    cut = read(path, window_s=window_s, episode_s=episode_s)
    rows.with_columns(episode=pl.col("host")).write_parquet(path)
    whole = read(path, window_s=window_s)
    values = dict(zip(zip(rows["host"], rows["t"], strict=True), rows["x"].cast(pl.Float32), strict=True))
    for host, start, window in zip(cut.host.strings().tolist(), cut.t_start.tolist(), cut.X[:, 0], strict=True):
        assert window.tolist() == [values[host, start + step] for step in range(int(window_s))]
    assert set(cut.label_names) == set(whole.label_names)
    for host in "ab":
        mine = cut.host.among([host])
        order = np.argsort(cut.t_start[mine])
        start, episode = cut.t_start[mine][order], cut.episode.strings(mine)[order]
        other = episode[1:] != episode[:-1]
        assert (np.diff(start)[other] >= 2 * window_s - 1e-9).all()
        assert np.unique(episode).size == 1 + other.sum()  # an episode is one stretch of time


def test_no_more_than_a_window_is_left_out_between_two_episodes(tmp_path):
    path = tmp_path / "a.parquet"
    long_recordings("a", 100).with_columns(t=pl.int_range(pl.len()).cast(pl.Float64)).write_parquet(path)
    cut = read(path, window_s=4.0, episode_s=20.0)
    first = {name: cut.t_start[cut.episode.among([name])].min() for name in cut.episode.present.tolist()}
    assert [*first.values()] == [0.0, 24.0, 44.0, 60.0, 84.0]  # 60: where an attack begins, which no cut shortens


@pytest.mark.parametrize("begin", [115, 118, 120])
def test_a_cut_lies_beside_incidents_and_what_no_window_shows_is_counted(tmp_path, begin):
    t = pl.int_range(1200, eager=True).cast(pl.Float64)
    label = (((t >= begin) & (t < begin + 6)) | (t == 241)).cast(pl.Int8)  # on cuts at 120 and 240
    pl.DataFrame({"t": t, "x": noise(1200), "label": label}).write_csv(path := tmp_path / "a.csv")

    def found(**options):
        cut = read(path, window_s=4.0, **options)
        alarm = cut.t_start[cut.label.among(["malicious"])].tolist()
        return alarm, [line.partition(":")[0] for line in cut.left_out if "between" in line or "no window" in line]

    assert found() == ([begin, begin + 2.0], [])
    alarm, left_out = found(points=True)
    assert left_out == []
    assert all(any(at - 4 < start <= at for start in alarm) for at in (begin, begin + 5, 241))
    assert found(episode_s=8.0)[1] == ["1 of 2 stretches of malicious"]  # which leaves cuts no room
    assert found(episode_s=8.0, points=True)[1] == ["1 of 2 stretches of malicious"]


def test_one_recording_a_host_can_be_split_and_named_ones_stay_as_they_are(ingested):
    rows = long_recordings()
    found = ingested.taken(rows, "--window-s", "8")
    assert found["episodes"] == 30
    note = "3 of 3 recordings were cut into episodes of 119.9 s (no column names episodes; --episode-s S says another "
    assert note + "length); between two of them a window's length is left out, 216 samples." in found["notes"]
    assert "There is no column episode: each host is one recording." not in found["notes"]
    data = ingested.load()
    make_split(numbered(data), recipe="host", train_hosts=("a", "b"))
    named = rows.with_columns(episode=pl.col("host"))
    assert ingested.taken(named, "--window-s", "8")["episodes"] == 3
    with pytest.raises(SplitError, match=r"cut long recordings into more episodes \(--episode-s"):
        make_split(numbered(ingested.load()), recipe="host", train_hosts=("a", "b"))
    assert ingested.taken(named, "--window-s", "8", "--episode-s", "300")["episodes"] == 12
    assert "were cut" not in str(ingested.taken(named, "--window-s", "8", "--episode-s", "5000")["notes"])
    short = ingested.taken(recordings("ab", 1).drop("episode"), "--window-s", "8")
    assert short["episodes"] == 2
    assert "There is no column episode: each host is one recording." in short["notes"]
    cut = recordings().with_columns(window=pl.int_range(pl.len()) // 8)
    assert "so --episode-s has nothing to cut" in ingested.refused(cut, "--episode-s", "9")


def test_a_length_of_episodes_that_cuts_nothing_or_leaves_no_window_is_named(ingested):
    rows = recordings("ab", 1, samples=400).drop("episode")
    found = ingested.taken(rows, "--window-s", "8", "--episode-s", "2000")
    assert "--episode-s 2000 cuts nothing: the longest recording has 399 s." in found["notes"]
    said = ingested.refused(rows, "--window-s", "8", "--episode-s", "7")
    assert "--episode-s 7 is too short for windows of 8 s" in said
    assert "say 16 or more" in said
    ingested.taken(rows, "--window-s", "8", "--episode-s", "16")


@pytest.mark.parametrize("step", [3.0, 7.0, 7.5, 49.0, 60.0, 300.0])
def test_windows_of_slow_samples_are_as_long_as_their_samples(tmp_path, step):
    rows = recordings("a", 2, samples=16).with_columns(t=1.7e9 + pl.int_range(32) * step)
    path = tmp_path / "a.parquet"
    rows.write_parquet(path)
    found = read(path, window_s=8 * step, t_unit="s")
    assert found.window_s == pytest.approx(8 * step, rel=1e-15)
    assert found.stride_s == pytest.approx(4 * step, rel=1e-15)


@given(hz=st.one_of(st.floats(1, 1e4), st.sampled_from([0.5, 0.2, 0.625, 0.8, 0.0625, 0.1, 0.01])))
def test_rates_that_six_digits_hold_stay_what_they_are(hz):
    assert rate_of_step(1 / measured(hz)) == measured(hz)


@given(step=st.floats(1.001, 86_400), wrong=st.floats(-1e-8, 1e-8))
def test_slow_rates_are_those_of_steps_of_six_digits(step, wrong):
    step = float(f"{step:.4g}")
    assert 1 / rate_of_step(step * (1 + wrong)) == pytest.approx(step, rel=1e-12)
