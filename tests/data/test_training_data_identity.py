"""Windows and recordings are known by their content, whatever they are called and in whatever order they come."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.identity import digest_of_recording, find_kin, window_digests
from training.data.rows import Rows


def kin_of(X, episode, host=None, t=None, window_s=1.0, names=None):
    start = np.zeros(len(X)) if t is None else np.asarray(t, dtype=np.float64)
    return find_kin(
        np.asarray(X, dtype=np.float32),
        names or [f"c{number}" for number in range(X.shape[1])],
        Rows.of(
            episode=episode,
            host=np.full(len(X), "h") if host is None else host,
            t_start=start,
            t_end=start + window_s,
            label=np.zeros(len(X)),
        ),
    )


def noise(windows=40, channels=2, samples=8, seed=0):
    return np.random.default_rng(seed).normal(size=(windows, channels, samples)).astype(np.float32)


def assert_apart(X, each=10):
    """Recordings of so many windows have nothing in common."""
    kin = kin_of(X, np.arange(len(X)) // each)
    assert (np.unique(kin.recording).size, kin.equal) == (len(X) // each, ())


# -- digests -----------------------------------------------------------------------------------------------------------


def test_a_digest_is_of_samples_and_channel_names_alone():
    X, names = noise(), ["cpu", "net"]
    found = window_digests(X, names)
    assert np.unique(found).size == len(X)
    np.testing.assert_array_equal(window_digests(X[:, ::-1], names[::-1]), found)
    np.testing.assert_array_equal(window_digests(X[::-1], names), found[::-1])
    assert not np.isin(window_digests(X, names[::-1]), found).any()
    X[3, 1, 7] += 1e-6
    assert (window_digests(X, names) != found).sum() == 1
    assert window_digests(X * np.float32(0), names)[0] == window_digests(-X * np.float32(0), names)[0]


def test_digests_are_the_same_on_every_machine():
    X = np.arange(16, dtype=np.float32).reshape(2, 2, 4)
    assert [f"{d:016x}" for d in window_digests(X, ["a", "b"]).tolist()] == DIGESTS


DIGESTS = ["45bad7919c520e08", "a0545fdc655d36ad"]


def test_a_recording_is_known_without_its_name():
    values = np.random.default_rng(0).normal(size=(50, 2))
    assert digest_of_recording(values, ["a", "b"]) == digest_of_recording(values[:, ::-1], ["b", "a"])
    assert digest_of_recording(values, ["a", "b"]) != digest_of_recording(values[:-1], ["a", "b"])


# -- kin ---------------------------------------------------------------------------------------------------------------


def test_recordings_without_anything_in_common_stay_apart():
    kin = kin_of(noise(), np.arange(40) // 4)
    assert np.unique(kin.recording).size == 10
    assert (kin.equal, kin.sharing, kin.overlapping, kin.strangers, kin.notes) == ((), 0, 0, None, ())


@pytest.mark.parametrize("trimmed", [1, 2, 3, 5])
def test_a_copy_that_begins_or_ends_elsewhere_is_kin(trimmed):
    line = np.random.default_rng(1).normal(size=200)
    cut = lambda series: [series[b : b + 8] for b in range(0, series.size - 7, 8)]  # noqa: E731
    whole, late, early = cut(line), cut(line[trimmed:]), cut(line[:-trimmed])
    X = np.array(whole + late + early + cut(np.random.default_rng(2).normal(size=200)))[:, None]
    names = ["a"] * len(whole) + ["b"] * len(late) + ["c"] * len(early) + ["d"] * len(whole)
    kin = kin_of(X, names)
    assert sorted(set(kin.recording.tolist())) == ["a", "d"]


def test_copies_are_counted_by_recording():
    X = np.concatenate([noise(), noise()[:12]])
    kin = kin_of(X, [*(np.arange(40) // 4), *(100 + np.arange(12) // 4)])
    assert [(p.first, p.other, p.windows) for p in kin.equal] == [("0", "100", 4), ("1", "101", 4), ("102", "2", 4)]
    again = kin_of(np.concatenate([noise(), noise()]), np.r_[np.arange(40), np.arange(40)] // 4)
    assert sum(p.windows for p in again.equal if p.first == p.other) == 40


def test_what_every_idle_hour_looks_like_proves_nothing():
    rng = np.random.default_rng(0)
    X = np.zeros((300, 6, 16), dtype=np.float32)
    X[:, 1] = 3.25
    X[:, 2, 5] = rng.integers(0, 4, 300)  # now and then something small
    X[:, 3] = rng.integers(200, 202, (300, 16))
    assert_apart(X[:, :3], each=3)
    assert kin_of(rng.integers(0, 3, (500, 1, 8)), np.arange(500)).equal == ()


@pytest.mark.parametrize("values", [2, 3, 5, 10])
def test_small_whole_numbers_repeat_by_chance(values):
    for seed in range(8):
        rng = np.random.default_rng(seed)
        X = np.zeros((300, 3, 12), dtype=np.float32)
        X[:, 0] = rng.integers(0, values, (300, 12))
        X[:, 1] = (rng.random((300, 12)) < 0.1).cumsum(axis=1) % values
        X[:, 2] = np.repeat(rng.integers(0, 9, 300), 12).reshape(300, 12)
        assert_apart(X)


def test_a_few_levels_prove_nothing_whatever_their_order():
    X = np.random.default_rng(0).choice([0, 1, 3, 7, 15, 31], (300, 1, 16))
    X[55] = X[5]
    assert kin_of(X, np.arange(300) // 10).equal == ()


def test_a_ramp_that_begins_anew_repeats_by_chance():
    begins = np.random.default_rng(0).integers(0, 50, 300)
    X = ((begins[:, None] + np.arange(16)) % 50)[:, None]
    assert kin_of(X, np.arange(300) // 10).equal == ()


@pytest.mark.parametrize("dead", [2, 30, 120])
def test_a_dead_sensor_is_no_copy_of_itself(dead):
    X = noise(120, samples=16)
    X[120 - dead :] = 0
    X[: dead // 2] = np.repeat(X[: dead // 2, :, :1], 16, axis=2)  # stuck where it was
    assert_apart(X)


def test_copies_are_known_however_many_there_are():
    X = np.concatenate([noise(40), *[noise(40)[:2]] * 200])
    kin = kin_of(X, np.arange(len(X)))
    assert np.unique(kin.recording).size == 40
    assert sum(pair.windows for pair in kin.equal) == 400


def test_a_switch_that_flips_each_time_is_no_more_telling_than_one_that_does_not():
    X = np.random.default_rng(0).integers(0, 2, (300, 1, 16))
    X[[5, 55]] = np.arange(16) % 2  # each step is rarer than staying, and follows from the value before
    X[[105, 155]] = 0
    assert kin_of(X, np.arange(300) // 10).equal == ()


def test_recordings_of_one_host_at_one_time_are_kin():
    day = 1.7e9 + 10.0 * np.arange(40)
    episode = np.arange(40) // 4
    assert np.unique(kin_of(noise(), episode, t=day, window_s=10).recording).size == 10
    again = day.copy()
    again[8:12] = day[4:8] + 3  # the third recording, during the second
    kin = kin_of(noise(), episode, t=again, window_s=10)
    assert np.unique(kin.recording).size == 9
    assert kin.overlapping > 0
    assert "overlap in time with another recording of their host (the first: 1 and 2)" in kin.notes[0]
    apart = kin_of(noise(), episode, t=again, window_s=10, host=np.where(episode == 2, "g", "h"))
    assert np.unique(apart.recording).size == 10


def test_a_long_window_is_kin_of_all_that_begin_before_its_end():
    start = 1.7e9 + np.array([0.0, 10.0, 30.0, 200.0])
    last = start + np.array([100.0, 5.0, 5.0, 5.0])
    rows = Rows.of(episode=list("0123"), host=np.full(4, "h"), t_start=start, t_end=last, label=np.zeros(4))
    kin = find_kin(noise(4), ["a", "b"], rows)
    assert kin.recording.tolist() == ["0", "0", "0", "3"]
    assert kin.overlapping == 3


def test_a_clock_that_begins_anew_tells_of_no_overlap():
    t = 10.0 * (np.arange(40) % 4)
    kin = kin_of(noise(), np.arange(40) // 4, t=t, window_s=10)
    assert (np.unique(kin.recording).size, kin.notes) == (10, ())
    jitter = kin_of(noise(), np.arange(40) // 4, t=t + np.arange(40) // 4, window_s=10)
    assert np.unique(jitter.recording).size == 10
    assert "if its times are on one clock, which was not assumed" in jitter.notes[0]


def test_windows_that_never_begin_together_are_on_one_clock():
    """Cut by their owner, and normalised one by one, so that their samples do not show it."""
    own = kin_of(noise(), np.arange(40), t=4.0 * np.arange(40), window_s=10)
    assert (np.unique(own.recording).size, own.overlapping) == (1, 40)
    anew = kin_of(noise(), np.arange(40), t=4.0 * (np.arange(40) % 10), window_s=10)
    assert np.unique(anew.recording).size == 40


@settings(max_examples=25, deadline=None)
@given(
    order=st.permutations(range(40)),
    channels=st.permutations(range(3)),
    copies=st.integers(0, 5),
    prefix=st.sampled_from(["", "run-", "Z"]),
)
def test_order_and_names_change_nothing(order, channels, copies, prefix):
    X = noise(40, channels=3)
    X[40 - copies :] = X[:copies]
    episode, order = np.arange(40) // 4, np.array(order)
    names = np.array(["a", "b", "c"])

    def together(rows, ids, columns):
        kin = kin_of(X[rows][:, columns], ids[rows], names=names[columns].tolist())
        back = np.argsort(rows)
        return kin.recording[back][:, None] == kin.recording[back][None, :], kin.sharing

    plain = together(np.arange(40), episode.astype(str), [0, 1, 2])
    renamed = np.array([f"{prefix}{9 - n}" for n in episode])
    turned = together(order, renamed, list(channels))
    np.testing.assert_array_equal(turned[0], plain[0])
    assert turned[1] == plain[1] == 2 * copies


# -- what ingest says of it --------------------------------------------------------------------------------------------


def archive(X, **more):
    return {"X": X, "y": np.arange(len(X)) % 2, **more}


def test_copies_are_refused_unless_they_are_wanted(ingested):
    copied = archive(np.concatenate([noise(), *[noise()[:4]] * 9]))  # the rarer class nine times more
    said = ingested.refused(copied)
    assert said.startswith("error: 36 windows are copies of others, the first in the recordings")
    assert "--allow-copies" in said
    assert not ingested.out.exists()
    notes = ingested.taken(copied, "--allow-copies")["notes"]
    assert any(n.endswith("--allow-copies took them along.") for n in notes)
    assert any("so that of 76 there are 40" in n for n in notes)


def test_one_recording_under_two_hosts_is_refused_in_any_case(ingested):
    X, episode, host = np.concatenate([noise(8)] * 2), np.repeat(["a", "b"], 8), np.repeat(["pi", "laptop"], 8)
    for options in ((), ("--allow-copies",)):
        said = ingested.refused(archive(X, episode=episode, host=host), *options)
        assert "'a' of pi and 'b' of laptop hold the same samples" in said


def test_windows_without_a_recording_are_named_by_their_content(ingested):
    ids = []
    for turn in (1, -1):
        notes = ingested.taken(archive(noise()[::turn]))["notes"]
        assert any("Each window counts as a recording of its own" in n for n in notes)
        data = ingested.load()
        ids.append(dict(zip(data.rows.episode.tolist(), data.tensors[:, 0, 0].tolist(), strict=True)))
    assert ids[0] == ids[1]
