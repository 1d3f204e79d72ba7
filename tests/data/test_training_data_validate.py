"""Each way in which an episode can be unfit, and the sentence that says so."""

import numpy as np
import pytest
import telemetry_builders as made

from training.data.episode import read
from training.data.validate import judge, unreadable


def verdict_of(tmp_path, **changes):
    folder = made.write_episode(tmp_path, **changes)
    return judge(read(folder), folder.name)


def test_a_sound_episode_has_nothing_against_it(tmp_path):
    verdict = verdict_of(tmp_path)
    assert verdict.ok, verdict.reasons
    assert verdict.samples == 160
    assert verdict.gaps == 0
    assert verdict.nan_share == 0
    assert verdict.label_coverage == 1.0


def changed(column=None, row=None, value=np.nan):
    t, values = made.signal()
    values[slice(None) if row is None else row, slice(None) if column is None else column] = value
    return {"t": t, "values": values}


def without(rows):
    t, values = made.signal()
    return {"t": np.delete(t, rows), "values": np.delete(values, rows, axis=0)}


def backwards():
    t, values = made.signal()
    t[10] = t[12]
    return {"t": t, "values": values}


def falling():
    t, values = made.signal()
    values[:, 0] = np.sin(t)
    return {"t": t, "values": values}


def infos(**changes):
    first, *others = made.channel_infos()
    fields = {"name": first.name, "unit": first.unit, "kind": first.kind, "modes": first.modes}
    return {"channels": [type(first)(**(fields | changes)), *others]}


def test_a_last_label_soon_after_the_last_sample_is_no_fault(tmp_path):
    labels = [(0.0, "idle"), (10.0, "beacon"), (21.0, "idle")]
    assert verdict_of(tmp_path, labels=labels).ok


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schema_version": 2}, "schema version is 2"),
        ({"host": " "}, "names no host"),
        (infos(kind="gage"), "kind of its channel cpu_user is 'gage'"),
        (infos(modes=["lab"]), "modes of its channel cpu_user"),
        (infos(modes=[]), "modes of its channel cpu_user"),
        ({"duration_s": 0.0, **changed()}, "not a sensible number"),
        ({"sample_hz": float(0)} | changed(), "not a sensible number"),
        ({"t": np.arange(5) / 8, "values": np.zeros((5, 4))}, "holds 5 samples"),
        (backwards(), "does not run forward"),
        ({"channels": [], "values": np.zeros((160, 0))}, "no channels"),
        ({"duration_s": 40.0, "t": made.signal()[0], "values": made.signal()[1]}, "160 of the 320"),
        (without(np.s_[40:80]), "of its time lies in gaps"),
        (changed(column=1, row=3, value=np.inf), "infinite"),
        (changed(row=np.s_[40:80]), "values are missing"),
        (changed(), "holds no value at all"),
        (changed(value=7.0), "Nothing in it ever changes"),
        (falling(), "cpu_user keeps falling"),
        ({"labels": []}, "no labels"),
        ({"labels": [(5.0, "idle"), (2.0, "beacon")]}, "do not ascend"),
        ({"labels": [(10.0, "idle")]}, "labels cover only 50 %"),
        ({"labels": [(0.0, "lunch")]}, "phase 'lunch'"),
        ({"baseline": True}, "a reference, yet"),
        # What counts from elsewhere, or in another unit, took the phase of another moment, and nobody was told.
        (
            {"t": made.signal()[0] + 1.7e9, "values": made.signal()[1]},
            "begin at 1,700,000,000 s, but it lasts 20 s: they do not count from its start",
        ),
        ({"labels": [(0.0, "idle"), (10_000.0, "beacon")]}, "Its labels reach to 10,000 s"),
        ({"started_at": 1.7e12}, "no number of seconds since 1970"),
    ],
)
def test_every_fault_has_its_sentence(tmp_path, changes, says):
    verdict = verdict_of(tmp_path, **changes)
    assert not verdict.ok
    assert any(says in reason for reason in verdict.reasons), verdict.reasons
    assert all(reason.endswith(".") for reason in verdict.reasons)


def test_a_file_that_is_not_named_after_its_episode(tmp_path):
    folder = made.write_episode(tmp_path)
    assert "its file" in judge(read(folder), made.IDS[5]).reasons[0]


def test_rounding_errors_of_a_sum_are_not_a_falling_counter(tmp_path):
    t, values = made.signal()
    values[20:60, 0] = values[20, 0] - 1e-15 * np.arange(40)
    assert verdict_of(tmp_path, t=t, values=values).ok


def test_what_cannot_be_read_is_said():
    assert unreadable("X", "it is empty").reasons == ("It cannot be read: it is empty.",)
