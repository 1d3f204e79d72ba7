"""Tables that nobody can use: one sentence each, and the folder of the data set is as it was."""

import datetime as dt
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from table_changes import noise, recordings

from training.contract import VALIDATION_FILE
from training.data import ingest, summary
from training.data.ingest import tables
from training.data.ingest.cells import CellStore

CUT = ("--window-s", "8")


@pytest.fixture
def refused(tmp_path, capsys):
    """Ingest a file into a folder that holds a data set: the sentence, when nothing of the folder has changed."""
    out = tmp_path / "out"
    usual = tmp_path / "usual.csv"
    recordings().write_csv(usual)
    assert ingest.main([str(usual), *CUT, "--out-dir", str(out), "--json"]) == 0
    capsys.readouterr()

    def content():
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.rglob("*") if path.is_file()}

    def refused(table, *options):
        path = tmp_path / "a.csv"
        if isinstance(table, str):
            path.write_text(table)
        else:
            table.write_csv(path)
        before = content()
        assert ingest.main([str(path), *CUT, *options, "--out-dir", str(out), "--json"]) == 65
        assert content() == before
        said = capsys.readouterr()
        assert said.err.count("\n") == 1
        assert said.err.startswith("error: ")
        assert not said.out
        return said.err

    return refused


def local(first, zone, samples=7200, hosts=1):
    """Rows each minute on a clock of local time, without its zone."""
    begin = dt.datetime.fromisoformat(first).replace(tzinfo=dt.UTC)
    t = [(begin + dt.timedelta(seconds=30 * n)).astimezone(ZoneInfo(zone)) for n in range(samples // 30)]
    label = np.where(np.arange(len(t)) // 20 % 2, "attack", "normal")
    return pl.DataFrame({"t": [at.strftime("%Y-%m-%d %H:%M:%S") for at in t], "label": label, "x": noise(len(t))})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds no samples"),
        ("t,label,x\n", "holds no samples"),
        ("x\n1\n2\n3\n", "has no column of labels"),
        ("t,label,x\n1,normal,2\n2,normal\n3,normal,5,6,7\n4,normal,1\n", "lines of unlike numbers of columns"),
    ],
)
def test_files_that_are_no_tables(refused, text, sentence):
    assert sentence in refused(text)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (10_000, "has 10,002 columns, more than 2,000: if each row is a whole window"),
        (1500, "has 1,500 columns, more than 1,000"),
    ],
)
def test_more_columns_than_a_table_may_have(refused, columns, sentence):
    wide = ",".join(f"c{n}" for n in range(columns))
    row = ",".join(["0.5"] * columns)
    assert sentence in refused(f"t,label,{wide}\n" + "".join(f"{t},normal,{row}\n" for t in range(4)))


def test_a_file_that_changes_while_it_is_read(refused, tmp_path, monkeypatch):
    load = CellStore.load

    def growing(store, *source):
        load(store, *source)
        with store.path.open("a") as file:
            file.write("99,e0,a,normal,0.5\n")

    monkeypatch.setattr(CellStore, "load", growing)
    assert "changed while it was read: wait for its recorder to end" in refused(recordings())


def test_a_table_that_memory_does_not_hold(refused, monkeypatch):
    monkeypatch.setattr(tables, "virtual_memory", lambda: SimpleNamespace(available=9000))
    assert "of memory, and 0.0 GiB are free: bring fewer rows" in refused(recordings())


def test_a_label_that_occurs_once(refused):
    odd = pl.when(pl.int_range(pl.len()) == 50).then(pl.lit("atack")).otherwise("label")
    assert "The label 'atack' occurs once" in refused(recordings().with_columns(label=odd))


def test_a_night_when_clocks_are_set_back(refused):
    """The hour occurs twice: in the order of the clock, and sorted by it."""
    rows = local("2026-10-24T23:00:00", "Europe/Berlin", 3 * 3600)
    assert "start over at row" in refused(rows) or "clocks are set back" in refused(rows)
    assert "clocks are set back (bring UTC)" in refused(rows.sort("t"))
    assert "clocks are set back (bring UTC)" in refused(rows.sample(fraction=1.0, shuffle=True, seed=1))


def test_a_night_of_a_long_table_when_clocks_are_set_back(refused):
    """Few of its times are doubled, but they stand side by side."""
    rows = local("2026-10-22T00:00:00", "Europe/Berlin", 5 * 86_400)
    assert "clocks are set back (bring UTC)" in refused(rows.sort("t"), "--window-s", "240")


def test_a_zone_that_changes_and_is_named_is_right(ingested):
    begin = dt.datetime(2026, 10, 24, 23, tzinfo=dt.UTC)
    t = [(begin + dt.timedelta(seconds=30 * n)).astimezone(ZoneInfo("Europe/Berlin")) for n in range(360)]
    label = np.repeat(["normal", "attack"], 180)
    rows = pl.DataFrame({"t": [at.isoformat() for at in t], "label": label, "x": noise(360)})
    ingested.taken(rows, "--window-s", "240")
    assert "2026-10-24 23:00 to 2026-10-25 01:59 UTC" in "".join(summary.read(ingested.out / VALIDATION_FILE).lines())


@pytest.mark.parametrize("sign", [1, -1])
def test_whole_numbers_that_floats_do_not_hold(tmp_path, refused, sign):
    rows = recordings().with_columns(x=(pl.int_range(pl.len()) * 7 % 251 + 2**60) * sign)
    assert "whole numbers of up to 1,152,921,504,606,847,226, of which the last digits" in refused(rows)


@pytest.mark.parametrize("column", ["label", "host", "t"])
def test_lists_in_a_column_with_a_meaning(tmp_path, ingested, column):
    recordings().with_columns(pl.concat_list(column)).write_parquet(tmp_path / "a.parquet")
    assert f"The column '{column}' holds lists or structs" in ingested.refused(tmp_path / "a.parquet", *CUT)


def test_bytes_that_are_no_text(tmp_path, ingested):
    (tmp_path / "a.csv").write_bytes(recordings().write_csv().encode("utf-16")[:-1])
    assert "is no text that can be read: unpack it first" in ingested.refused(tmp_path / "a.csv", *CUT)
