"""Windows from elsewhere become the same data set as our own, or are refused in one sentence."""

import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data import ingest
from training.data.errors import DataError
from training.data.ingest.ingested import SaidClasses, name_labels
from training.data.ingest.recorders import pcp as ingest_pcp
from training.data.ingest.samples import starts_between, stretch_edges

pytestmark = pytest.mark.half

N, C, T = 24, 3, 20


def arrays(**changes):
    """A whole archive's arrays; None leaves one out."""
    rng = np.random.default_rng(0)
    found = {
        "X": rng.normal(size=(N, C, T)),
        "y": np.arange(N) % 2,
        "episode": np.array([f"e{n // 4}" for n in range(N)]),
        "host": np.array([f"h{n // 12}" for n in range(N)]),
        "channel": np.array(["cpu", "net", "tree"]),
        "oracle": np.array([False, False, True]),
        "t": 100.0 * (np.arange(N) // 4) + 5.0 * (np.arange(N) % 4),
    }
    return {key: value for key, value in (found | changes).items() if value is not None}


# -- .npz --------------------------------------------------------------------------------------------------------------


def test_npz_arrives_whole_and_hides_oracle_channels(ingested):
    found = ingested.taken(arrays(), "--hz", "10")
    assert found["windows"] == N
    assert found["episodes"] == 6
    assert found["hosts"] == ["h0", "h1"]
    assert found["channels"] == {"realistic": 2, "oracle": 3}
    assert found["window_s"] == 2.0
    assert found["labels"] == {"benign": 12, "malicious": 12}
    oracle, realistic = ingested.load(), ingested.load("realistic")
    given = arrays()
    np.testing.assert_array_equal(oracle.tensors, given["X"].astype(np.float32))
    assert oracle.channel_names == ("cpu", "net", "tree")
    assert realistic.channel_names == ("cpu", "net")
    assert oracle.y.tolist() == given["y"].tolist()
    assert oracle.rows.episode.tolist() == given["episode"].tolist()
    assert oracle.rows.host.tolist() == given["host"].tolist()
    assert oracle.rows.t_start.tolist() == given["t"].tolist()
    assert oracle.schema.stride_s == 5.0
    assert ingested.validation["ok"].all()
    assert ingested.validation["windows"].to_list() == [4] * 6


def test_npz_of_x_and_y_alone_makes_each_window_an_episode(ingested):
    found = ingested.taken(arrays(**dict.fromkeys(("episode", "host", "channel", "oracle", "t"))))
    assert found["episodes"] == N
    assert found["hosts"] == ["unknown"]
    assert "There is no array t: a split by time is not possible." in found["notes"]
    assert ingested.load().channel_names == ("c0", "c1", "c2")
    assert np.unique(ingested.load().rows.t_start).size == 1


def test_windows_without_times_follow_each_other_inside_their_episode(ingested):
    ingested.taken(arrays(t=None), "--hz", "10")
    assert ingested.load().rows.t_start.tolist() == [0.0, 2.0, 4.0, 6.0] * 6


def test_equal_files_give_equal_data_sets(ingested):
    digests = set()
    for _ in range(2):
        ingested.taken(arrays())
        digests.add(ingested.load().data_digest)
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"X": None}, "has no array 'X'"),
        ({"y": None}, "has no array 'y'"),
        ({"X": np.zeros((N, T))}, "X must hold numbers in the shape (windows, channels, samples)"),
        ({"X": np.zeros((0, C, T))}, "X must hold numbers"),
        ({"X": np.full((N, C, T), "a")}, "X must hold numbers"),
        ({"X": np.zeros((N, C, 3))}, "The windows have 3 samples; at least 4 are needed."),
        ({"y": np.arange(3)}, "'y' has the shape (3,) where (24,) is needed"),
        ({"y": np.full(N, 0.5)}, "numbers that are not whole"),
        ({"y": np.full(N, -1)}, "the classes are -1): name it with --benign"),
        ({"episode": np.arange(3)}, "'episode' has the shape (3,)"),
        ({"oracle": np.array([True])}, "'oracle' has the shape (1,) where (3,) is needed"),
        ({"channel": np.array(["a", "a", "b"])}, "occurs twice: a"),
        ({"t": np.full(N, np.nan)}, "'t' holds values that are not finite"),
    ],
)
def test_npz_that_cannot_be_used_is_refused(ingested, changes, sentence):
    said = ingested.refused(arrays(**changes))
    assert sentence in said
    assert said.startswith("error: ")
    assert not ingested.out.exists()


def test_files_that_are_no_archives_are_refused(ingested, tmp_path):
    ingested.taken(arrays())
    torn, text, pickled = (tmp_path / f"{name}.npz" for name in ("torn", "text", "pickled"))
    torn.write_bytes((tmp_path / "a.npz").read_bytes()[:200])
    text.write_text("hello")
    np.savez(pickled, X=np.array([{"a": 1}], dtype=object), y=np.zeros(1))
    for path in (torn, text, pickled, tmp_path / "absent.npz"):
        assert ingested.refused(path).startswith(f"error: {path}")


def test_missing_values_are_refused_or_left_out(ingested):
    X = arrays()["X"]
    X[3, 1, 5] = np.nan
    X[7, 2, 0] = np.inf
    said = ingested.refused(arrays(X=X))
    assert "1 of 24 windows hold infinite values (or larger ones than 32 bits can hold), first in" in said
    found = ingested.taken(arrays(X=X), "--drop-nan")
    assert found["windows"] == 22
    left_out = found["understood"]["left_out"]
    assert "2 windows (2 of 12 of malicious): values missing or infinite (--drop-nan)" in left_out
    X[7, 2, 0] = 0
    assert ingested.taken(arrays(X=X))["windows"] == 24
    ingested.refused(arrays(X=np.full((N, C, T), np.nan)), "--drop-nan")


# -- labels ------------------------------------------------------------------------------------------------------------


def test_labels_beyond_the_names_given_are_refused():
    with pytest.raises(DataError, match="class number 3, but 2 labels are named"):
        name_labels(np.array([0, 3]), SaidClasses(labels=("a", "b")))
    with pytest.raises(DataError, match="'c' is not among"):
        name_labels(np.array(["a", "c"]), SaidClasses(labels=("a", "b")))


# -- tables in long form -----------------------------------------------------------------------------------------------


def table(samples=40, hz=10.0, **changes):
    """Two recordings of two hosts, each benign and then malicious."""
    t = np.arange(samples) / hz
    rng = np.random.default_rng(0)
    columns = {
        "episode": ["one"] * samples + ["two"] * samples,
        "host": ["pi"] * samples + ["desk"] * samples,
        "t": np.r_[t, 1000 + t],
        "label": (["benign"] * (samples // 2) + ["malicious"] * (samples // 2)) * 2,
        "cpu": rng.normal(size=2 * samples),
        "tree": rng.normal(size=2 * samples),
    }
    return pl.DataFrame({k: v for k, v in (columns | changes).items() if v is not None})


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_long_tables_are_cut_inside_labels_and_recordings(ingested, tmp_path, suffix):
    path = tmp_path / f"samples{suffix}"
    frame = table().sample(fraction=1.0, shuffle=True, seed=1)  # rows in any order
    frame.write_csv(path) if suffix == ".csv" else frame.write_parquet(path)
    options = ("--window-s", "1", "--stride-s", "0.5", "--oracle", "tree")
    found = ingested.taken(path, *options)
    assert found["windows"] == 12  # three in each of the four stretches of 2 s
    assert found["labels"] == {"benign": 6, "malicious": 6}
    assert found["channels"] == {"realistic": 1, "oracle": 2}
    data = ingested.load()
    assert data.rows.t_start[data.rows.episode == "two"].tolist() == [1000, 1000.5, 1001, 1002, 1002.5, 1003]
    ordered = table().filter(pl.col("episode") == "two")["cpu"].to_numpy()
    first = data.tensors[data.rows.episode == "two"][0, 0]
    np.testing.assert_allclose(first, ordered[:10].astype(np.float32))
    assert set(data.rows.host.tolist()) == {"pi", "desk"}


def test_when_a_table_was_recorded_is_no_part_of_its_schema(ingested):
    hashes = set()
    for begin in (0.0, 1.7e9 + 0.1):  # where stamps of 0.1 s are rounded otherwise
        t = begin + np.arange(80) / 10
        rows = table().with_columns(t=pl.Series(t), episode=pl.lit("one"), label=pl.lit("benign"))
        found = ingested.taken(rows, "--window-s", "1", "--labels", "benign,bad")
        assert found["window_s"] == 1.0
        hashes.add(found["schema_hash"])
    assert len(hashes) == 1


def test_long_tables_may_bring_their_own_windows(ingested):
    frame = table(label=None, episode=None).with_columns(
        window=pl.Series(np.arange(80) // 8), y=pl.Series(np.arange(80) // 8 % 2)
    )
    found = ingested.taken(frame.sample(fraction=1.0, shuffle=True, seed=2))
    assert (found["windows"], found["episodes"], found["samples"]) == (10, 10, 8)
    assert found["window_s"] == pytest.approx(0.8)
    data = ingested.load()
    assert data.y.sum() == 5
    ordered = frame.filter(pl.col("window") == 3)["cpu"].to_numpy()
    mine = data.tensors[data.rows.episode == "3"][0, 0]
    np.testing.assert_allclose(mine, ordered.astype(np.float32))


@pytest.mark.parametrize(
    ("frame", "options", "sentence"),
    [
        (table(label=None), (), "has no column of labels"),
        (table(cpu=None, tree=None), (), "holds no samples"),
        (table(cpu=["x"] * 80), (), "'cpu' of"),
        (table(), ("--window-s", "9"), "no stretch of 9 s"),
        (table(), ("--window-s", "1", "--oracle", "net"), "--oracle names 'net'"),
        (table(t=[None] * 80), ("--window-s", "1"), "'t' of"),
        (table(t=[1.0] * 80), ("--window-s", "1"), "do not rise"),
        (table(host=[None] * 80), ("--window-s", "1"), "'host' has 80 empty cells, the first in row 1"),
        (table(window=[0] * 79 + [1]), (), "all windows must have the same number"),
        (table(window=[0] * 80), (), "more than one label"),
        (table(window=[0] * 80), ("--window-s", "1"), "nothing to cut"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(ingested, tmp_path, frame, options, sentence):
    path = tmp_path / "samples.parquet"
    frame.write_parquet(path)
    assert sentence in ingested.refused(path, *options)


def test_empty_cells_of_a_channel_are_missing_values(ingested):
    rows = table(cpu=[None, *(7.0 * (n % 9) for n in range(79))])
    found = ingested.taken(rows, "--window-s", "1")
    assert found["understood"]["missing"] == 1
    assert ingested.taken(rows, "--window-s", "1", "--drop-nan")["windows"] == found["windows"] - 1


@settings(max_examples=80, deadline=None)
@given(
    steps=st.lists(st.sampled_from([1.0, 1.0, 1.0, 1.2, 3.0]), min_size=1, max_size=60),
    labels=st.lists(st.integers(0, 1), min_size=61, max_size=61),
    samples=st.integers(1, 10),
    stride=st.integers(1, 10),
)
def test_no_window_crosses_a_gap_or_a_change_of_label(steps, labels, samples, stride):
    t = np.r_[0.0, np.cumsum(steps)]
    label = np.array(labels[: t.size]) // (1 + np.arange(t.size) // 40)
    begins = starts_between(stretch_edges(t, label, 1.0), samples, stride)
    for begin in begins.tolist():
        rows = slice(begin, begin + samples)
        assert begin + samples <= t.size
        assert np.unique(label[rows]).size == 1
        assert (np.diff(t[rows]) <= 1.5).all()
    whole = (np.diff(t) <= 1.5).all() and np.unique(label).size == 1
    if whole:
        assert begins.size == max(0, (t.size - samples) // stride + 1)


# -- Performance Co-Pilot ----------------------------------------------------------------------------------------------

METRICS = {metric for metric, _ in ingest_pcp.METRICS.values()}


def csv_of(rows=200, seed=0):
    """Write a CSV as pmrep prints it: a first line without rates, two interfaces, loopback among them."""
    names = sorted(metric for metric in METRICS if not metric.startswith("network.interface"))
    of = ("in.bytes", "out.bytes", "in.packets", "out.packets")
    interfaces = [f"network.interface.{way}-{name}" for way in of for name in ("lo", "eth0")]
    header = ",".join(["Time", *(f'"{name}"' for name in names + interfaces)])
    rng = np.random.default_rng(seed)
    cells = 1000 * rng.random((rows, len(names) + len(interfaces))).round(6)
    lines = [",".join([str(1_700_000_000 + 60 * n), *map(str, row)]) for n, row in enumerate(cells.tolist())]
    empty = ",".join(["1699999940", *[""] * cells.shape[1]])
    return "\n".join([header, empty, *lines]) + "\n"


def answered(monkeypatch, csv, host="pi"):
    """PCP's programs, answering from memory."""
    label = f"Performance metrics from host {host}\n" if host else "nonsense"
    monkeypatch.setattr(ingest_pcp, "_run", lambda command, _: label if command[0].endswith("pmdumplog") else csv)
    monkeypatch.setattr(ingest_pcp.shutil, "which", lambda name: f"/usr/bin/{name}")


def test_pcp_archives_become_benign_windows_of_our_channels(ingested, monkeypatch):
    answered(monkeypatch, csv_of())
    found = ingested.taken(None, "--pcp", "archive", "--every-s", "60")
    assert found["hosts"] == ["pi"]
    assert found["labels"] == {"benign": found["windows"]}
    assert found["samples"] == 16
    assert any(note.startswith("The recorder carries no labels") for note in found["notes"])
    assert set(ingested.load("realistic").channel_names) == set(ingest_pcp.METRICS)


def test_pcp_is_not_read_finer_than_it_was_recorded(ingested, monkeypatch):
    answered(monkeypatch, csv_of())
    inner = ingest_pcp._run
    stamps = "".join(f"23:{50 + n}:10.6{n}0000 1 metric\n    x: value 1\n" for n in range(10))
    stamps += "00:00:10.6 1 metric\n00:01:10.6 1 metric\n"

    def run_tool(command, path):
        return stamps if command[-1] in METRICS and "pmdumplog" in command[0] else inner(command, path)

    monkeypatch.setattr(ingest_pcp, "_run", run_tool)
    said = ingested.refused(None, "--pcp", "archive", "--every-s", "5")
    assert "archive holds a sample each 60 s: --every-s 5 would draw straight lines" in said
    ingested.taken(None, "--pcp", "archive", "--every-s", "60")


def test_the_same_pcp_archive_twice_counts_once(ingested, monkeypatch):
    answered(monkeypatch, csv_of())
    once, twice = (ingested.taken(None, *["--pcp", "archive"] * count) for count in (1, 2))
    assert twice["windows"] == once["windows"]
    assert any("rows were copies of others" in note for note in twice["notes"])


@pytest.mark.parametrize(
    ("csv", "host", "sentence"),
    [
        (csv_of(), "", "is not an archive of Performance Co-Pilot"),
        ("", "pi", "holds no values of the usual metrics"),
        ("Time,a\n1,2\n", "pi", "holds none of the channels of a host"),
    ],
)
def test_pcp_that_cannot_be_used_is_refused(ingested, monkeypatch, csv, host, sentence):
    answered(monkeypatch, csv, host)
    assert sentence in ingested.refused(None, "--pcp", "archive")


def test_pcp_without_its_program_says_how_to_get_it(ingested, monkeypatch):
    monkeypatch.setattr(ingest_pcp.shutil, "which", lambda name: None)
    said = ingested.refused(None, "--pcp", "archive")
    assert "needs its program pmrep: install it (Debian and Ubuntu: apt install pcp" in said


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "give files, or one of --pcp"),
        (["a.npz", "--pcp", "b"], "give files, or one of --pcp"),
        (["a.npz", "b.npz"], "give one .npz file"),
        (["a.npz", "--episode-s", "9"], "--episode-s has no effect on a .npz file"),
        (["a.npz", "--host-column", "b"], "--host-column has no effect on a .npz file"),
        (["a.npz", "--window-s", "4"], "--window-s has no effect on a .npz file"),
        (["a.csv", "--every-s", "4"], "--every-s has no effect on a file"),
        (["--pcp", "a", "--labels", "x,y"], "--labels has no effect on --pcp without --labels-from"),
        (["a.npz", "--hz", "0"], "must be a positive number"),
        (["a.npz", "--labels", "x,x"], "must be different names"),
        (["a.npz", "--out", "b"], "unrecognized arguments"),
    ],
)
def test_mistakes_on_the_command_line_exit_with_2(capsys, options, sentence):
    with pytest.raises(SystemExit) as ended:
        ingest.main(options)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_dry_run_shows_a_table_and_the_notes_and_writes_nothing(tmp_path, capsys):
    path = tmp_path / "a.npz"
    np.savez(path, **arrays())
    assert ingest.main([str(path), "--hz", "2", "--out-dir", str(tmp_path / "out"), "--dry-run"]) == 0
    dry = capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert dry.endswith("nothing was written: --dry-run\n")
    assert ingest.main([str(path), "--hz", "2", "--out-dir", str(tmp_path / "out")]) == 0
    wet = capsys.readouterr()
    assert wet.out.splitlines()[:-1] == dry.splitlines()[:-1]
    assert "classes     benign 12, malicious 12" in wet.out
    assert "describing 24 windows" in wet.err
    assert len(dry.splitlines()) <= 12
    assert ingest.main([str(path), "--hz", "2", "--out-dir", str(tmp_path / "dry"), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema_hash"] is None
    assert not (tmp_path / "dry").exists()
