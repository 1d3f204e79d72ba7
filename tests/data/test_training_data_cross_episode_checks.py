"""Findings that show only beside other episodes: copies, parts of each other, one name for different things."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import telemetry_builders as made

from training.contract import VALIDATION_FILE
from training.data.doubts.cross_episode_checks import judge_together
from training.data.validate import EpisodeFindings

pytestmark = pytest.mark.half


def quarantined(built, *options, **folders):
    return {name: " ".join(reasons) for name, reasons in built.taken(*options, **folders)["quarantined"].items()}


def fleet(folder, episodes=6):
    """Episodes of one host, one after the other."""
    for number in range(episodes):
        made.write_episode(folder, number=number, started_at=1.7e9 + 100.0 * number)


# -- copies ------------------------------------------------------------------------------------------------------------


def test_a_copy_under_another_name_and_host_is_quarantined(tmp_path, built):
    fleet(tmp_path / "in")
    for number, host in ((20, "h0"), (21, "laptop")):
        made.write_episode(tmp_path / "in", number=number, seed=1, host=host, started_at=9e8)
    said = quarantined(built)
    assert said == {
        made.IDS[20]: f"It is a copy of {made.IDS[1]}.",
        made.IDS[21]: f"It is a copy of {made.IDS[1]} on h0, and a sample comes from one host.",
    }
    table = pl.read_parquet(tmp_path / "out" / VALIDATION_FILE)
    assert "laptop" not in table.filter("ok")["host"].to_list()


def test_a_copy_with_other_labels_is_still_a_copy(tmp_path, built):
    fleet(tmp_path / "in")
    made.write_episode(tmp_path / "in", number=20, seed=1, labels=[(0.0, "beacon"), (5.0, "idle")])
    said = quarantined(built)
    assert said == {made.IDS[20]: f"It is a copy of {made.IDS[1]}, with other labels."}


def test_a_copy_is_written_anew_with_channels_in_another_order_and_other_times(tmp_path, built):
    fleet(tmp_path / "in")
    t, values = made.signal(seed=1)
    turned = made.channel_infos(made.CHANNELS[::-1])
    made.write_episode(tmp_path / "in", number=20, t=t + 0.003, values=values[:, ::-1], channels=turned)
    said = quarantined(built)
    assert said == {made.IDS[20]: f"It is a copy of {made.IDS[1]}."}


@pytest.mark.parametrize(
    "rows", [np.s_[:-1], np.s_[1:], np.s_[17:], np.s_[:120]], ids=["last", "first", "later", "shorter"]
)
@pytest.mark.parametrize("host", ["h0", "laptop"])
def test_a_copy_that_lacks_some_samples_is_known_by_the_others(tmp_path, built, rows, host):
    fleet(tmp_path / "in")
    t, values = made.signal(seed=1)
    t, values = (t[rows] - t[rows][0], values[rows] - values[rows][0] * [1, 1, 0, 0])  # counters from 0
    made.write_episode(tmp_path / "in", number=20, host=host, t=t, values=values, duration_s=float(len(t)) / 8)
    said = quarantined(built)
    assert list(said) == [made.IDS[20]]
    assert f"of its samples are those of {made.IDS[1]}" in said[made.IDS[20]]
    assert ("on h0, and a sample comes from one host" in said[made.IDS[20]]) is (host == "laptop")


def test_recordings_of_one_host_may_overlap_a_little_and_then_count_as_one(tmp_path, built):
    _, values = made.signal(duration_s=75.0, seed=50)
    for number, begin in enumerate((0, 17, 34, 51)):  # seconds: three of 20 are shared
        rows = np.s_[begin * 8 : begin * 8 + 160]
        made.write_episode(tmp_path / "in", number=number, values=values[rows], started_at=1.7e9 + begin)
    summary = built.taken()
    assert summary["quarantined"] == {}
    notes = " ".join(summary["understood"]["notes"])
    assert "overlap in time with another recording of their host" in notes
    assert "so that of 4 there are 1." in notes


def sketched(entries):
    return np.array(entries, dtype="<u8").tobytes()


@pytest.mark.parametrize(("shared", "is_copy"), [(4, True), (3, False)])
def test_half_of_the_samples_make_a_copy(shared, is_copy):
    known = list(range(0, 16, 2))
    own = list(range(1, 2 * (8 - shared), 2))  # below the other's last, so that it would list them
    first = EpisodeFindings(episode_id="a", meta=None, reasons=(), content="a", sketch=sketched(known))
    other = replace(first, episode_id="b", content="b", sketch=sketched(known[:shared] + own))
    _, judged = judge_together([first, other])
    assert judged.ok is not is_copy


def test_a_part_under_another_host_is_quarantined_however_small(tmp_path, built):
    fleet(tmp_path / "in")
    _, values = made.signal(seed=77)
    values[:40] = made.signal(seed=1)[1][:40]
    values[40:, :2] += values[39, :2]
    made.write_episode(tmp_path / "in", number=20, host="laptop", values=values)
    said = quarantined(built)
    assert "a sample comes from one host" in said[made.IDS[20]]


def test_a_copy_of_what_is_quarantined_itself_is_taken(tmp_path, built):
    fleet(tmp_path / "in", episodes=3)
    made.write_episode(tmp_path / "in", number=10, seed=9, labels=[])
    made.write_episode(tmp_path / "in", number=11, seed=9)
    said = quarantined(built)
    assert said == {made.IDS[10]: "It has no labels."}


# -- one name for different things -------------------------------------------------------------------------------------

OTHERWISE = {
    "unit": (2, ("memory_used", "KiB", "gauge", ["oracle", "realistic"])),
    "kind": (1, ("net_tx_bytes", "B", "gauge", ["oracle", "realistic"])),
    "modes": (0, ("cpu_user", "s", "counter", ["oracle"])),
}


@pytest.mark.parametrize("what", list(OTHERWISE))
@pytest.mark.parametrize("all_of_them", [True, False])
def test_recordings_that_declare_otherwise_than_the_schema_are_quarantined(tmp_path, built, what, all_of_them):
    fleet(tmp_path / "old")
    built(source="old", out="a")
    place, channel = OTHERWISE[what]
    odd = made.channel_infos([*made.CHANNELS[:place], channel, *made.CHANNELS[place + 1 :]])
    for number in range(10, 16):
        own = {"channels": odd} if all_of_them or number <= 12 else {}
        made.write_episode(tmp_path / "new", number=number, **own)
    like = {"source": "new", "out": "b"}
    if all_of_them:
        said = built.refused("--like", tmp_path / "a", **like)
        assert f"Its channel {channel[0]} is a" in said
        assert "in the schema it is a" in said
    else:
        assert sorted(quarantined(built, "--like", tmp_path / "a", **like)) == [made.IDS[n] for n in (10, 11, 12)]


def test_where_no_side_has_the_majority_nothing_is_guessed(tmp_path, built):
    made.write_episode(tmp_path / "in", number=0)
    made.write_episode(tmp_path / "in", number=1, phases={"idle": "benign", "beacon": "benign"})
    made.write_episode(tmp_path / "in", number=2, **made.IDLE)
    said = quarantined(built)
    assert said == {
        made.IDS[0]: "Its phase 'beacon' is malicious; elsewhere it is benign as often.",
        made.IDS[1]: "Its phase 'beacon' is benign; elsewhere it is malicious as often.",
    }
