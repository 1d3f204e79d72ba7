"""The cells of a user's table in DuckDB: nothing of the file reaches a query, and threads change nothing."""

from contextlib import closing

import duckdb
import pytest
from ingest_builders import whole
from table_changes import recordings

from training.data.errors import DataError
from training.data.ingest import cells
from training.data.ingest.cells import open_cells
from training.data.ingest.tables import read_table


def test_a_store_reads_no_other_file_and_keeps_its_settings(tmp_path):
    recordings().write_csv(tmp_path / "a.csv")
    with closing(open_cells(tmp_path / "a.csv")) as store:
        for query in (f"FROM read_csv('{tmp_path}/a.csv')", "SET threads = 7", "INSTALL httpfs"):
            with pytest.raises((duckdb.Error, DataError)):
                store._execute(query)
        assert not {path.name for path in tmp_path.iterdir()} - {"a.csv"}
    assert not store.folder.exists()


@pytest.mark.parametrize("name", ["x'", 'x"; DROP TABLE cells; --', "c0", "a,b", "rowid", "größe [%]"])
def test_any_name_is_a_name_and_no_query(tmp_path, name):
    rows = recordings()
    rows.rename({"x": name}).write_csv(tmp_path / "glob[1]*.csv")
    assert whole(read_table(tmp_path / "glob[1]*.csv", {}, ()))[name].to_list() == rows["x"].to_list()


@pytest.mark.parametrize("threads", [1, 7])
def test_any_number_of_threads_gives_the_same(ingested, monkeypatch, threads):
    rows = recordings().sample(fraction=1, shuffle=True, seed=3)
    manifest = ingested.out / "tensor_window_v1" / "manifest.json"
    ingested.taken(rows, "--window-s", "8")
    once = manifest.read_bytes()
    monkeypatch.setitem(cells.SETTINGS, "threads", threads)
    ingested.taken(rows, "--window-s", "8")
    assert manifest.read_bytes() == once


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("t,label,x\n" + "1,a,2\n" * 30_000 + "1,a,2,3\n", "line 30002 has 4 where most have 3"),
        ("t,label,x\n" + "1,a,2\n" * 30_000 + '1,"a,2\n3,4,5\n', "a quote that never ends"),
        ("t,label,x\n" + "1,a,2\n" * 30_000 + "1,a\n", "line 30002 has 2 where most have 3"),
    ],
)
def test_lines_that_are_torn_behind_the_first_are_one_sentence(tmp_path, text, sentence):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError) as refused:
        open_cells(tmp_path / "a.csv")
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500
