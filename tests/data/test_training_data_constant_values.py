"""Values that stand still where measured ones move: noted with what they may be, and natural ones never."""

import numpy as np
import polars as pl
import pytest
import telemetry_builders as made
from table_changes import in_question, noise, recordings

from training.data.doubts.constant_values import filled_forward, one_sided, padding

CUT = ("--window-s", "8")
ATTACK = pl.col("label") == "attack"
SOME = pl.int_range(pl.len()) % 8 == 3


def notes(found, word):
    return [note for note in found["understood"]["notes"] if word in note]


# -- one value, in one class -------------------------------------------------------------------------------------------


@pytest.mark.half
@pytest.mark.parametrize(("level", "value"), [(0, 0), (0, 0.25), (50, 0)])
@pytest.mark.parametrize("where", [ATTACK, ~ATTACK])
def test_a_value_that_one_class_repeats_is_noted(ingested, level, value, where):
    lost = pl.when(SOME & where).then(pl.lit(float(value))).otherwise(pl.col("x") * 9 + level)
    rows = recordings().with_columns(x=lost)
    (said,) = notes(ingested.taken(rows, *CUT), "a missing value?")
    assert f"The value {value} makes up 12 % of x in windows of" in said
    assert f"say --missing=x={value}." in said
    assert not notes(ingested.taken(rows, *CUT, "--level", "x"), "a missing value?")
    gone = ingested.taken(rows, *CUT, f"--missing=x={value}", "--drop-nan")
    assert not notes(gone, "a missing value?")


def sides(*values):
    """Windows of one channel, the second half of them an attack's."""
    X = np.concatenate([one.reshape(-1, 1, 8) for one in values]).astype(np.float32)
    label = np.repeat(["attack", "benign"], [one.size // 8 for one in values])
    return one_sided(in_question(X, label=label))


def test_a_value_of_each_host_is_found_where_levels_were_taken_off():
    X = noise(1280).reshape(160, 1, 8)
    label, host = np.tile(["attack", "benign"], 80), np.repeat(list("abcd"), 40)
    X[::2, 0, 3] = np.repeat([0.1, 0.2, 0.3, 0.4], 20)
    (said,) = one_sided(in_question(X, label=label, host=host))
    assert " of x in windows of attack" in said


def test_natural_repetitions_are_no_missing_values():
    busy = noise(640) * 9 + 50
    often = np.arange(640) % 8 == 3
    idle = np.abs(noise(640, 1))
    assert len(sides(np.where(often, 0, busy), busy)) == 1
    assert not sides(np.where(often, 0, busy), np.where(often, 0, busy))  # in both
    assert not sides(np.where(often, 0, idle), idle + 1)  # next to where the others end
    assert not sides(np.where(np.arange(640) % 40 < 6, 0, busy), busy)  # for long: a state
    assert not sides(np.where(often, 50, busy).round(-1), busy)  # few values repeat
    assert not sides(np.where(np.arange(640) < 80, 0, busy), busy)  # nothing moves


# -- padding -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("part", "word"), [(slice(6, None), "end"), (slice(0, 6), "begin")])
def test_windows_padded_in_one_class_are_noted(ingested, part, word):
    X, y = noise(40 * 2 * 12).reshape(40, 2, 12), np.arange(40) % 2
    X[::4, :, part] = 0
    arrays = {"X": X, "y": y, "episode": np.arange(40) // 4}
    (said,) = notes(ingested.taken(arrays), "padding?")
    assert f"50 % of the windows of benign {word} in a stretch in which no channel moves" in said


def test_what_is_still_by_nature_is_no_padding():
    label, X = np.tile(["a", "b"], 20), noise(40 * 2 * 12).reshape(40, 2, 12)
    X[::4, :, 6:] = 0
    assert len(padding(in_question(X, ("x", "z"), label=label))) == 1
    either = X.copy()
    either[2::4, :, :6] = 0  # idle at either end
    assert not padding(in_question(either, ("x", "z"), label=label))
    X[1::4, :, 6:] = 0  # the other class as well
    assert not padding(in_question(X, ("x", "z"), label=label))


# -- filled forward ----------------------------------------------------------------------------------------------------


def test_data_filled_forward_are_noted_with_their_own_rate(ingested):
    rows = recordings(samples=160)
    held = rows.with_columns(x=pl.Series(np.repeat(noise(128), 10)), z=pl.Series(np.repeat(noise(128, 1), 10)))
    (said,) = notes(ingested.taken(held, *CUT), "filled forward")
    assert "change only every 10 s: the data were recorded at 0.1 Hz" in said
    assert not notes(ingested.taken(held.with_columns(z=rows["x"]), *CUT), "filled forward")


def test_archives_without_a_rate_are_judged_window_by_window():
    X = np.repeat(noise(20 * 12), 4).reshape(20, 1, 48)
    episode = np.arange(20).astype(str)
    said = filled_forward(in_question(X, episode=episode, timed=False))
    assert "only at every 4. sample" in said[0]
    rare = np.where(noise(960) > 1, 1.0, 0.0).reshape(20, 1, 48)
    assert not filled_forward(in_question(rare, episode=episode, timed=False))


def test_recordings_of_ones_own_are_judged_as_tables_are(tmp_path, built):
    channels = [(name, unit, "gauge", modes) for name, unit, _, modes in made.CHANNELS]
    for number in range(2):
        t, values = made.signal(seed=number)
        values = np.repeat(values[::4], 4, axis=0)[: t.size]
        values[:, 0] = noise(t.size, number)
        values[(np.arange(t.size) % 8 == 3) & (t >= 10.2), 0] = 0.25
        infos = made.channel_infos(channels)
        made.write_episode(tmp_path / "in", number=number, channels=infos, t=t, values=values)
    said = " ".join(built.taken()["understood"]["notes"])
    assert "a missing value? If so, leave it empty." in said
    assert "filled forward" in said
