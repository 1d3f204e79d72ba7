"""A Parquet file that is written one row group at a time, as two readers that know nothing of its writer see it."""

import io
from itertools import pairwise

import duckdb
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data import dataset, parquet_groups, scratch
from training.data.rows import Rows
from training.data.schema import ChannelSpec
from training.data.tensors import WindowIndex

LABELS, NUMBERS = st.sampled_from(["", "benign", "malicious", "ü"]), st.none() | st.integers(-5, 2**40)
ROWS = st.lists(st.tuples(LABELS, NUMBERS, st.floats(width=32)), max_size=30)
COLUMNS = {"label": pl.String, "number": pl.Int64, "value": pl.Float32}


def places(path):
    """Row group, rows, first byte and size of each column of each group, as DuckDB finds them."""
    # The first page of a column whose values are numbered is the dictionary.
    query = (
        "SELECT row_group_id, row_group_num_rows, coalesce(dictionary_page_offset, data_page_offset), "
        f"total_compressed_size FROM parquet_metadata('{path}')"
    )
    return duckdb.sql(query).fetchall()


@settings(max_examples=40)
@given(st.lists(ROWS, min_size=1, max_size=5))
def test_what_was_written_is_read_by_others(tmp_path_factory, groups):
    path = tmp_path_factory.mktemp("groups") / "table.parquet"
    tables = [pl.DataFrame(rows, schema=COLUMNS, orient="row") for rows in groups]
    parquet_groups.write_groups(path, iter(tables))
    whole = pl.concat(tables)
    assert pl.read_parquet(path).equals(whole)
    assert pl.scan_parquet(path).slice(3, 7).collect().equals(whole.slice(3, 7))
    read = duckdb.sql(f"SELECT * FROM '{path}'").fetchall()
    np.testing.assert_equal(read, whole.rows())
    at = len(parquet_groups.MAGIC)
    for _, _, begin, size in places(path):
        assert begin == at, "one behind the other, with nothing between them"
        at += size
    assert [rows for _, rows, *_ in places(path)[:: len(COLUMNS)]] == [len(table) for table in tables if len(table)]


def test_equal_groups_are_equal_bytes_wherever_they_lie(tmp_path):
    table = pl.DataFrame({"label": ["a", "b"] * 50, "value": np.arange(100, dtype=np.float32)})
    other = table.with_columns(pl.col("value") * 2)
    parquet_groups.write_groups(tmp_path / "p", iter([table, other, table]))
    content = (tmp_path / "p").read_bytes()
    parts = {}
    for group, _, begin, size in places(tmp_path / "p"):
        parts.setdefault(group, []).append(content[begin : begin + size])
    assert parts[0] == parts[2] != parts[1]


def test_a_footer_is_written_as_it_was_read():
    buffer = io.BytesIO()
    table = pl.DataFrame({f"a column with a name {n}": np.arange(300.0) for n in range(40)})
    table.write_parquet(buffer, row_group_size=100, metadata={"key": "value"})
    content = buffer.getvalue()
    footer = content[-8 - int.from_bytes(content[-8:-4], "little") : -8]
    assert parquet_groups._struct(parquet_groups.ThriftReader(footer).struct()) == footer


def test_a_file_of_no_table_or_of_unlike_ones_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no table"):
        parquet_groups.write_groups(tmp_path / "p", iter([]))
    one, other = pl.DataFrame({"a": [1]}), pl.DataFrame({"b": [1]})
    with pytest.raises(ValueError, match="columns of the tables differ"):
        parquet_groups.write_groups(tmp_path / "p", iter([one, other]))


@given(st.lists(st.integers(0, 400), min_size=1, max_size=6).filter(any))
@settings(max_examples=20)
def test_the_bytes_of_features_do_not_depend_on_how_their_rows_come(tmp_path_factory, sizes):
    folder = tmp_path_factory.mktemp("features")
    count = sum(sizes)
    channels = (ChannelSpec(name="a", unit="1", kind="gauge", modes=("oracle", "realistic")),)
    width = len(dataset.feature_specs(channels))
    F = np.arange(count * width, dtype=np.float32).reshape(count, width)
    names = np.array(["e"] * count)
    times = np.arange(count, dtype=np.float64)
    rows = Rows.of(episode=names, host=names, label=names, t_start=times, t_end=times + 1)
    index = WindowIndex(rows.coded)
    whole = dataset.write_features(folder, index, channels, iter([F]))
    first = (folder / dataset.FEATURES_FILE).read_bytes()
    parts = np.split(F, np.cumsum(sizes)[:-1])
    assert dataset.write_features(folder, index, channels, iter(parts)) == whole
    assert (folder / dataset.FEATURES_FILE).read_bytes() == first
    read = pl.read_parquet(folder / dataset.FEATURES_FILE)
    np.testing.assert_array_equal(read.drop(dataset.INDEX_COLUMNS).to_numpy(), F)


@given(st.integers(1, 10**8), st.integers(1, 5000))
def test_a_group_of_rows_is_bounded_in_memory(windows, features):
    rows = dataset._group_rows(windows, features)
    assert rows == dataset.GROUP_ROWS_LEAST or 2 * rows * 4 * features <= dataset.GROUP_BYTES_MOST
    assert rows < 2 * windows or rows == dataset.GROUP_ROWS_LEAST


SIZES = st.lists(st.integers(1, 40) | st.sampled_from([150, 999]), min_size=1, max_size=30)


@given(SIZES, st.integers(4, 64))
def test_groups_hold_all_rows_and_none_too_many(sizes, usual):
    episodes = [(f"e{n}", int(end)) for n, end in enumerate(np.cumsum(sizes))]
    ends = list(dataset.group_ends(iter(episodes), usual))
    assert ends[-1] == sum(sizes)
    lengths = np.diff([0, *ends])
    assert (lengths > 0).all()
    assert (lengths <= 2 * usual).all()
    assert len(ends) <= 2 + 4 * sum(sizes) / usual, "few groups"
    if max(sizes) <= 2 * usual:
        assert set(ends) <= {end for _, end in episodes}


@given(st.integers(0, 10**6), st.integers(0, 299))
@settings(max_examples=30)
def test_an_episode_that_goes_changes_few_groups(seed, gone):
    def groups(without):
        sizes = np.random.default_rng(seed).integers(5, 25, 300)
        kept = [(f"{seed}-{n}", int(size)) for n, size in enumerate(sizes) if n != without]
        names = np.repeat([name for name, _ in kept], [size for _, size in kept])
        episodes = [(name, int(end)) for (name, _), end in zip(kept, np.cumsum([s for _, s in kept]), strict=True)]
        ends = [0, *dataset.group_ends(iter(episodes), 128)]
        return {tuple(names[low:high]) for low, high in pairwise(ends)}

    assert len(groups(gone) - groups(None)) <= 8, "of some 35"


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30), st.integers(1, 9))
def test_each_run_of_an_episode_has_an_end(names, span):
    rows = Rows.of(episode=names, host=names, label=names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scratch.spans, "__kwdefaults__", {"overlap": 0, "step": span})
        found = list(WindowIndex(rows).episode_ends())
    ends = [n + 1 for n in range(len(names)) if names[n : n + 1] != names[n + 1 : n + 2]]
    assert found == [(names[end - 1], end) for end in ends]
