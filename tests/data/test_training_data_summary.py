"""A table of what a data set was understood to be: printed, kept beside the validation rows, read back."""

import numpy as np
import polars as pl
import pytest
from telemetry_builders import write_episode, write_fleet

from training.data import build, ingest, summary
from training.data.errors import DataError
from training.data.summary import Understood


def test_lines_name_what_was_read_and_skip_what_is_not_there():
    found = Understood(
        source="a.csv: 40 rows",
        roles={"t": "time in seconds", "label": "class"},
        channels=tuple(f"c{n:02}" for n in range(14)),
        oracle_only=("c13",),
        hosts={"pi": 7, "desk": 0},
        recordings=20,
        without_window={"it is shorter than a window": 8},
        classes={"normal": 5, "attack": 2},
        benign=("normal",),
        benign_why="--benign",
        window_samples=8,
        sample_hz=2.0,
        window_s=4.0,
        stride_s=2.0,
        span=(1.7e9, 1.7e9 + 3600),
        clock="t",
        left_out=("18 of 20 stretches of attack are shorter than a window",),
    )
    dates = "2023-11-14 22:13 to 2023-11-14 23:13 UTC, if they count from 1970"
    assert found.lines() == [
        "benign      normal (--benign)",
        "read        a.csv: 40 rows",
        "columns     t: time in seconds, label: class",
        "channels    14: c00, c01, c02, c03, c04, c05, c06, c07, c08, c09, c10, c11 and 2 more (oracle only: c13)",
        "hosts       pi 7, desk 0",
        "recordings  20, 8 of them without a window: it is shorter than a window",
        "classes     normal 5, attack 2",
        "rate        2 Hz; windows of 8 samples = 4 s, one each 2 s",
        f"clock       t: 1,700,000,000 to 1,700,003,600 s = {dates}",
        "left out    18 of 20 stretches of attack are shorter than a window",
    ]
    slow = Understood(
        source="c.csv",
        window_samples=8,
        sample_hz=0.0166667,  # a minute, to six digits
        window_s=8 / 0.0166667,
        stride_s=4 / 0.0166667,
        span=(0.0, 6000.0 + 8 / 0.0166667),
        clock="t",
    )
    rate = "0.0166667 Hz; windows of 8 samples = 480 s, one each 240 s"
    assert f"rate        {rate}" in slow.lines()
    assert "clock       t: 0 to 6,480 s" in slow.lines()
    nothing = Understood(source="b.npz", window_samples=4)
    assert "rate        unknown; windows of 4 samples" in nothing.lines()
    assert "clock       none" in nothing.lines()
    assert not any(line.startswith(("columns", "hosts", "note")) for line in nothing.lines())


def test_ingest_prints_it_and_keeps_it(tmp_path, capsys, ingested):
    X = np.random.default_rng(0).normal(size=(20, 2, 8))
    said = ingested.taken({"X": X, "y": np.arange(20) % 2, "host": np.repeat(["pi", "desk"], 10)})["understood"]
    assert said["classes"] == {"benign": 10, "malicious": 10}
    assert ingest.main([str(tmp_path / "a.npz"), "--out-dir", str(ingested.out)]) == 0
    kept = summary.read(ingested.out / "validation_v1.parquet")
    assert capsys.readouterr().out.startswith("\n".join(kept.lines()))
    assert kept.hosts == {"desk": 10, "pi": 10}


def test_build_prints_it_and_keeps_it(tmp_path, capsys):
    write_fleet(tmp_path / "e")
    assert build.main([str(tmp_path / "e"), "--out-dir", str(tmp_path / "out")]) == 0
    kept = summary.read(tmp_path / "out" / "validation_v1.parquet")
    assert capsys.readouterr().out.startswith("\n".join(kept.lines()))
    assert (kept.recordings, kept.baselines, kept.benign) == (6, 2, ("benign",))


def test_build_says_which_stretches_and_recordings_gave_no_window(tmp_path, built):
    write_fleet(tmp_path / "in")
    brief = [(0.0, "idle"), (18.0, "beacon")]  # two seconds of it, where a window takes four
    write_episode(tmp_path / "in", number=30, host="h2", labels=brief, started_at=9000.0)
    write_episode(tmp_path / "in", number=31, host="h3", duration_s=3.0, started_at=9500.0)
    said = built.taken()["understood"]
    assert said["hosts"] == {"h0": 21, "h1": 21, "h2": 8, "h3": 0}
    assert (said["recordings"], said["without_window"]) == (8, {"it is shorter than a window": 1})
    assert "2 of 8 stretches of malicious: shorter than a window of 4 s" in said["left_out"]


def test_a_table_without_it_says_nothing_and_a_torn_one_is_refused(tmp_path):
    path = tmp_path / "validation_v1.parquet"
    pl.DataFrame({"episode_id": ["a"]}).write_parquet(path)
    assert summary.read(path) is None
    pl.DataFrame({"a": [1]}).write_parquet(path, metadata={summary.KEY: "nonsense"})
    with pytest.raises(DataError, match="cannot be read"):
        summary.read(path)
    path.write_bytes(b"PAR1")
    with pytest.raises(DataError, match="cannot be read"):
        summary.read(path)
