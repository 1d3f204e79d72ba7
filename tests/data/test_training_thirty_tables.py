# ruff: noqa: E501 - a case is a line
"""Tables of unlike shape: each is read right at the first try, or refused with one sentence that names the flag with
which it is read right.

The made ones are all the same recordings, so that all must give the same windows. The real ones are files of packages:
scikit-learn's are read where they are installed, those of ``real/`` are aeon's, long ones cut after 1,500 rows (its licence lies beside).
"""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from ingest_builders import Ingested
from table_changes import noise, recordings

from training.data import ingest

REAL = Path(__file__).parent / "real"
EPOCH = 1_788_600_000
CUT = ("--window-s", "8")


def base():
    """Two hosts with two recordings each of two channels, on one clock of dates."""
    x, v = (pl.Series(noise(192, seed).round(3)) for seed in (0, 1))
    rows = recordings("ab", 2, samples=48).with_columns(x=x, v=v)
    return rows.with_columns(t=(pl.col("t") + EPOCH).cast(pl.Int64)).select("t", "host", "episode", "label", "x", "v")


def dates(rows):
    return (rows["t"] * 1000).cast(pl.Datetime("ms"))


def text_time(form):
    return lambda rows: rows.with_columns(t=dates(rows).dt.strftime(form))


def labelled(normal, attack):
    return lambda rows: rows.with_columns(pl.col("label").replace_strict({"normal": normal, "attack": attack}))


def renamed(**names):
    return lambda rows: rows.rename(names)


def with_(**columns):
    return lambda rows: rows.with_columns(**columns)


def csv(**options):
    return lambda rows, path: rows.write_csv(path, **options)


def decimals(rows, path):
    """As a spreadsheet of another country writes it."""
    text = rows.write_csv(separator=";").replace(".", ",")
    path.write_bytes(text.encode("utf-16"))


def remarked(rows, path):
    path.write_text("# recorder 2.1\n# of the lab\nsep=,\n" + rows.write_csv())


def savetxt(rows, path):
    numbers = rows.with_columns(
        host=pl.col("host").replace_strict({"a": 1, "b": 2}),
        episode=pl.col("episode").str.slice(1).cast(pl.Int64),
        label=(pl.col("label") == "attack").cast(pl.Int64),
    )
    np.savetxt(path, numbers.to_numpy(), header="t,host,episode,label,x,v", fmt="%.10g")


def bare(rows, path):
    rows.write_csv(path, include_header=False)


def aligned(rows, path):
    """As programs print a table for people."""
    lines = [line.split(",") for line in rows.write_csv().strip().split("\n")]
    path.write_text("".join("".join(cell.rjust(14) for cell in line) + "\n" for line in lines))


def titled_unlike(rows, path):
    """The names with tabs and spaces between them, and the rows with tabs."""
    path.write_text("  t  \thost\tepisode   label\tx\tv\n" + rows.write_csv(separator="\t", include_header=False))


def bom(rows, path):
    path.write_bytes(("﻿" + rows.write_csv().replace("\n", "\r\n")).encode())


def quoted(rows, path):
    rows.write_csv(path, quote_style="always")


def parquet(rows, path):
    rows.write_parquet(path)


def twice_headed(rows, path):
    path.write_text(rows.head(96).write_csv() + rows.tail(96).write_csv())


def arff(rows, path):
    kinds = {"host": "STRING", "episode": "STRING", "label": "{normal,attack}"}
    heads = "".join(f"@attribute {name} {kinds.get(name, 'NUMERIC')}\n" for name in rows.columns)
    path.write_text(f"% made here\n@relation x\n{heads}@data\n{rows.write_csv(include_header=False)}")


def npy(rows, path):
    np.save(path, np.rec.fromarrays([rows[name].to_numpy().astype("U8" if rows[name].dtype == pl.String else float)
                                     for name in rows.columns], names=rows.columns))  # fmt: skip


def of_hosts(name):
    """Write a file or folder for each host, which it is called after."""

    def write(rows, path):
        for (host,), part in rows.group_by("host"):
            (file := path / name.format(host)).parent.mkdir(parents=True, exist_ok=True)
            part.drop("host").write_csv(file)

    return write


def by_rows(rows, path):
    """As a recorder begins a new file a day, with its columns in another order in one of them."""
    path.mkdir()
    rows[:70].write_csv(path / "1.csv")
    rows[70:].select(sorted(rows.columns)).write_csv(path / "2.csv")


def units(rows, path):
    rows.with_columns(x=pl.format("{} %", "x"), v=pl.format("{}MiB", "v")).write_csv(path)


def long(rows):
    return rows.unpivot(["x", "v"], index=["t", "host", "episode", "label"], variable_name="probe").sort("t", "probe")


@dataclass(frozen=True)
class Case:
    """A table; ``refused`` is what the sentence says before ``flags`` are given, ``same`` whether windows are those."""

    name: str
    make: object = None
    write: object = None
    suffix: str = ".csv"
    refused: str = ""
    flags: tuple[str, ...] = ()
    same: bool = True
    log: str = ""

    def __repr__(self):
        return self.name


LOG = "".join(f"{EPOCH + 1000 * n + 24},{EPOCH + 1000 * n + 48},attack,{host}\n" for n, host in enumerate("aabb"))
CASES = [
    Case("plain"),
    Case("semicolons, decimal commas, UTF-16", write=decimals),
    Case("tabs", write=csv(separator="\t"), suffix=".tsv"),
    Case("bars", write=csv(separator="|"), suffix=".txt"),
    Case("numpy's savetxt", write=savetxt, suffix=".txt", same=False),
    Case("a mark and Windows' line ends", write=bom),
    Case("quotes around everything", write=quoted),
    Case("remarks before the names", write=remarked),
    Case("Parquet", write=parquet, suffix=".parquet"),
    Case("Parquet with dates", lambda rows: rows.with_columns(t=dates(rows)), parquet, ".parquet"),
    Case("Parquet with a zone", lambda rows: rows.with_columns(t=dates(rows).dt.replace_time_zone("UTC")), parquet, ".parquet"),
    Case("ISO 8601", text_time("%Y-%m-%dT%H:%M:%SZ")),
    Case("ISO 8601, local", text_time("%Y-%m-%d %H:%M:%S")),
    Case("German dates", lambda rows: text_time("%d.%m.%Y %H:%M:%S")(rows).rename({"t": "Zeitstempel"})),
    Case("American dates", text_time("%m/%d/%Y %I:%M:%S %p"), refused="--time-format", flags=("--time-format", "%m/%d/%Y %I:%M:%S %p")),
    Case("a date and a time of day", lambda rows: rows.with_columns(date=dates(rows).dt.strftime("%Y-%m-%d"), time=dates(rows).dt.strftime("%H:%M:%S")).drop("t")),
    Case("milliseconds since 1970", with_(t=pl.col("t") * 1000)),
    Case("nanoseconds since 1970", with_(t=pl.col("t") * 10**9)),
    Case("a unit in the name", lambda rows: rows.with_columns(t=(pl.col("t") - EPOCH) * 1000).rename({"t": "Time (ms)"}), same=False),
    Case("classes 0 and 1 called y", lambda rows: labelled(0, 1)(rows).rename({"label": "y"})),
    Case("truth values called is_anomaly", lambda rows: labelled(False, True)(rows).rename({"label": "is_anomaly"})),
    Case("other words for the names", renamed(host="Hostname", episode="session_id", label="Class", t="Timestamp")),
    Case("two labels", with_(category=pl.lit("c"))),
    Case("rows in any order", lambda rows: rows.sample(fraction=1.0, shuffle=True, seed=3)),
    Case("every row twice", lambda rows: pl.concat([rows, rows])),
    Case("a few empty cells", with_(v=pl.when(pl.int_range(pl.len()) % 24 == 5).then(None).otherwise("v")), same=False),
    Case("a comma at the end of each line", write=lambda rows, path: path.write_text(rows.write_csv().replace("\n", ",\n"))),
    Case("spaces behind the commas", write=lambda rows, path: path.write_text(rows.write_csv().replace(",", ", "))),
    Case("tabs with spaces", write=lambda rows, path: path.write_text(rows.write_csv(separator="\t").replace("\t", " \t ")), suffix=".tsv"),
    Case("names with tabs and spaces between them", write=titled_unlike, suffix=".txt"),
    Case("NA for nothing, as R writes it", with_(v=pl.when(pl.int_range(pl.len()) % 24 == 5).then(pl.lit("NA")).otherwise(pl.col("v").cast(pl.String))), same=False),
    Case("a dash for nothing", with_(v=pl.when(pl.int_range(pl.len()) % 24 == 5).then(pl.lit(" - ")).otherwise(pl.col("v").cast(pl.String))), same=False),
    Case("columns below each other", write=aligned, suffix=".txt"),
    Case("no names", write=bare, refused="--columns", flags=("--columns", "t,host,episode,label,x,v")),
    Case("an index of pandas", lambda rows: rows.with_row_index("Unnamed: 0")),
    Case("remarks in a column", with_(note=pl.lit("see log")), refused="--ignore note", flags=("--ignore", "note")),
    Case("classes 1 and 2", labelled(1, 2), refused="--benign", flags=("--benign", "1")),
    Case("classes -1 and 1", labelled(-1, 1), refused="--benign", flags=("--benign=-1",)),
    Case("an hour called when", renamed(t="when"), refused="--time", flags=("--time", "when")),
    Case("a label called state", renamed(label="state"), refused="--label", flags=("--label", "state")),
    Case("a host called node", renamed(host="node")),
    Case("a host called device", renamed(host="device"), refused="--host-column", flags=("--host-column", "device")),
    Case("two times", with_(time=pl.col("t") + 5), refused="--time", flags=("--time", "t", "--ignore", "time")),
    Case("milliseconds of no date", with_(t=(pl.col("t") - EPOCH) * 1000), refused="--t-unit", flags=("--t-unit", "ms"), same=False),
    Case("days that may be months", text_time("%d/%m/%Y %H:%M:%S"), refused="--time-format", flags=("--time-format", "%d/%m/%Y %H:%M:%S")),
    Case("years of two digits", text_time("%d.%m.%y %H:%M:%S"), refused="--time-format", flags=("--time-format", "%d.%m.%y %H:%M:%S")),
    Case("-999 for nothing", with_(v=pl.when(pl.int_range(pl.len()) % 24 == 5).then(-999.0).otherwise("v")), refused="--missing=-999", flags=("--missing=-999",), same=False),
    Case("labels of nobody", with_(label=pl.when(pl.int_range(pl.len()) % 48 < 4).then(pl.lit("unknown")).otherwise("label")), refused="--unlabelled=unknown", flags=("--unlabelled=unknown",), same=False),
    Case("a running total", with_(sent=pl.col("x").abs().cum_sum() + 7), refused="--counter", flags=("--counter", "sent"), same=False),
    Case("a slower host", lambda rows: rows.with_columns(t=pl.when(pl.col("host") == "b").then((pl.col("t") - EPOCH) * 2 + EPOCH).otherwise("t")), refused="--hz 0.5", flags=("--hz", "0.5"), same=False),
    Case("no labels", lambda rows: rows.drop("label"), refused="--labels-from", flags=("--labels-from", "LOG", "--rest", "normal"), log="start,end,label,host\n" + LOG),
    Case("a header twice", write=twice_headed),
    Case("ARFF", write=arff, suffix=".arff"),
    Case("an array with names", write=npy, suffix=".npy"),
    Case("JSON records", write=lambda rows, path: path.write_text(json.dumps(rows.to_dicts())), suffix=".json"),
    Case("JSON lines", write=lambda rows, path: rows.write_ndjson(path), suffix=".jsonl"),
    Case("a file a day", write=by_rows, suffix=""),
    Case("a file a host", write=of_hosts("{}.csv"), suffix="", flags=("--host-from", "file")),
    Case("a folder a host", write=of_hosts("{}/log.csv"), suffix="", flags=("--host-from", "folder")),
    Case("units behind the numbers", write=units),
    Case("CR ends the lines", write=lambda rows, path: path.write_text(rows.write_csv().replace("\n", "\r"), newline="")),
    Case("one row a reading", long, flags=("--key", "probe")),
]  # fmt: skip


def windows(data):
    """Everything of a data set that does not depend on how classes and columns are called."""
    benign = [data.label_map[name] for name in data.benign]
    order = np.argsort(data.channel_names)
    return data.tensors[:, order], np.isin(data.y, benign), data.rows.t_start, data.rows.host, data.rows.episode


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    folder = tmp_path_factory.mktemp("usual")
    base().write_csv(folder / "a.csv")
    assert ingest.main([str(folder / "a.csv"), *CUT, "--out-dir", str(folder / "out"), "--json"]) == 0
    return windows(Ingested(folder, None).load())


@pytest.mark.half
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_a_table_is_read_right_or_refused_with_the_flag_that_reads_it_right(case, ingested, usual, tmp_path):
    rows = base() if case.make is None else case.make(base())
    path = tmp_path / f"a{case.suffix}"
    (case.write or csv())(rows, path)
    flags = case.flags
    if case.log:
        (tmp_path / "log.csv").write_text(case.log)
        flags = tuple(str(tmp_path / "log.csv") if flag == "LOG" else flag for flag in flags)
    if case.refused:
        assert case.refused in ingested.refused(path, *CUT)
        assert not ingested.out.exists()
        if not flags:
            return
    found = ingested.taken(path, *CUT, *flags)
    X, benign, t_start, host, episode = windows(ingested.load())
    assert np.unique(host).size == 2
    assert np.unique(episode).size == 4
    assert 0 < benign.mean() < 1
    if case.same:
        assert np.array_equal(X, usual[0])
        assert np.array_equal(benign, usual[1])
        assert t_start == pytest.approx(usual[2], abs=1e-3)
    else:
        assert found["samples"] == found["understood"]["sample_hz"] * 8
        assert found["windows"] >= 24


PACKED = {
    "": lambda content: content,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".zip": lambda content: zipped(content),
}


def zipped(content):
    with zipfile.ZipFile(held := io.BytesIO(), "w") as archive:
        archive.writestr("deep/table", content)
    return held.getvalue()


SAME = [case for case in CASES if case.same and not case.refused and case.suffix]


@pytest.mark.half
@settings(max_examples=8, deadline=None)
@given(case=st.sampled_from(SAME), packing=st.sampled_from(sorted(PACKED)), cut=st.integers(0, 191))
def test_all_ways_to_write_and_pack_a_table_give_the_same_bytes(case, packing, cut, usual, tmp_path_factory):
    """One file, or two of one kind that are named in any order."""
    folder = tmp_path_factory.mktemp("ways")
    rows = base() if case.make is None else case.make(base())
    parts = [part for part in (rows[:cut], rows[cut:]) if part.height > 20]
    for number, part in enumerate(parts):
        (case.write or csv())(part, plain := folder / f"plain{case.suffix}")
        (folder / f"{number}{case.suffix}{packing}").write_bytes(PACKED[packing](plain.read_bytes()))
    files = sorted((str(folder / f"{number}{case.suffix}{packing}") for number in range(len(parts))), reverse=True)
    if sum(part.height for part in parts) < rows.height:
        return
    assert ingest.main([*files, *CUT, *case.flags, "--out-dir", str(folder / "out"), "--json"]) == 0
    for got, wanted in zip(windows(Ingested(folder, None).load())[:2], usual, strict=False):
        assert np.array_equal(got, wanted)


def test_there_are_thirty():
    assert len(CASES) >= 30


# -- tables of packages ------------------------------------------------------------------------------------------------


def of_sklearn(name):
    return Path(find_spec("sklearn").origin).parent / "datasets" / "data" / name


@pytest.mark.parametrize(
    ("name", "sentence", "flags"),
    [
        ("S06R02E0.csv", "", ("--window-s", "2")),
        ("135_UCR_Anomaly_InternalBleeding16_TRAIN.csv", "", ("--window-s", "64")),
        ("ecg-diff-count-3_TRAIN_A.csv", "", ("--window-s", "64")),
        ("solar.csv", "--labels-from", ()),
        ("Airline.csv", "--label NAME", ()),
        ("Lynx.csv", "--columns", ()),
        ("Longley.csv", "--label NAME", ()),
        ("GunPoint_TRAIN.tsv", "--columns", ()),
        ("iris.csv", "--label NAME", ()),
        ("wine_data.csv", "lines of unlike numbers of columns", ()),
        ("breast_cancer.csv", "lines of unlike numbers of columns", ()),
        ("linnerud_exercise.csv", "--label NAME", ()),
    ],
)
def test_tables_of_packages_are_read_or_refused_in_one_sentence(ingested, name, sentence, flags):
    path = REAL / name if (REAL / name).exists() else of_sklearn(name)
    assert path.exists()
    if sentence:
        assert sentence in ingested.refused(path, *flags)
    else:
        ingested.taken(path, *flags)
