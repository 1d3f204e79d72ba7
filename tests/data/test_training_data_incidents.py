"""Labels from a log of incidents: each sample gets the label of its time, or none, and what was left out is said."""

import datetime as dt
import json

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from table_changes import recordings

from training.data import ingest
from training.data.coded import Coded
from training.data.ingest.incident_log import IncidentLog, label_samples
from training.data.ingest.samples import classes_of_points

pytestmark = pytest.mark.half

CUT = ("--window-s", "4")
BEGIN = dt.datetime(2026, 11, 20, tzinfo=dt.UTC).timestamp()


def log_of(rows):
    """The incidents of recordings whose second half is an attack, as one who noticed them writes them."""
    attacks = rows.filter(pl.col("label") == "attack").group_by("host", "episode", maintain_order=True)
    return attacks.agg(start=pl.col("t").min(), end=pl.col("t").max() + 1, label=pl.lit("attack")).drop("episode")


def written(ingested, log, name="incidents.csv"):
    path = ingested.tmp_path / name
    log.write_csv(path)
    return "--labels-from", str(path)


def test_a_log_gives_the_labels_that_a_column_gives(ingested):
    rows = recordings()
    flags = (*CUT, *written(ingested, log_of(rows)))
    by_column = ingested.taken(rows, *CUT)
    before = ingested.load().rows
    by_log = ingested.taken(rows.drop("label"), *flags, "--rest", "normal")
    after = ingested.load().rows
    assert by_log["schema_hash"] == by_column["schema_hash"]
    assert (after.label.tolist(), after.t_start.tolist()) == (before.label.tolist(), before.t_start.tolist())
    assert by_log["understood"]["roles"]["incidents.csv"] == "class"
    assert "labels of its own in 'label'" in ingested.refused(rows, *flags)
    only = ingested.refused(rows.drop("label"), *flags)
    assert "Name the benign class" in only
    assert "; --rest normal makes a benign class of all" in only
    left = ingested.taken(rows.drop("label"), *flags, "--no-benign")["understood"]
    assert left["classes"] == {"attack": 72}
    assert "160 of 320 samples: in no incident (--rest NAME gives them a class)" in left["left_out"]


def test_dates_zones_and_hosts_are_held_to_those_of_the_table(ingested):
    rows = recordings().with_columns(pl.col("t") + BEGIN)
    log = log_of(rows)
    dated = rows.drop("label").with_columns(pl.from_epoch("t").dt.strftime("%d.%m.%Y %H:%M:%S"))
    text = log.with_columns(pl.from_epoch(pl.col("start", "end")).dt.strftime("%Y-%m-%d %H:%M:%S"))
    found = ingested.taken(dated, *CUT, *written(ingested, text), "--rest", "normal")
    assert found["labels"] == {"attack": 72, "normal": 72}
    zoned = text.with_columns(pl.col("start", "end") + "Z")
    said = ingested.refused(dated, *CUT, *written(ingested, zoned))
    assert "name no time zone and those of" in said
    late = log.with_columns(pl.col("start", "end") + 86_400 * 9)
    said = ingested.refused(rows.drop("label"), *CUT, *written(ingested, late))
    assert "lies in a recording: they are from 2026-11-29 00:00:20 UTC to" in said
    other = log.with_columns(host=pl.col("host") + "1")
    said = ingested.refused(rows.drop("label"), *CUT, *written(ingested, other))
    assert "it names a1, b1, c1, d1, and the hosts are a, b, c, d" in said
    some = pl.concat([log, other.head(5), late.head(1)])
    notes = ingested.taken(rows.drop("label"), *CUT, *written(ingested, some), "--rest", "normal")["notes"]
    assert (
        "6 of 14 incidents lie in no recording of their hosts: rows 9, 10, 11 and 3 more (attack 6); "
        "the table has no host a1, b1, c1." in notes
    )
    bare = ingested.taken(rows.drop("label"), *CUT, *written(ingested, log.drop("host")), "--rest", "normal")["notes"]
    assert "incidents.csv names no host: each incident counts on every host." in bare


def test_dates_without_a_zone_are_not_held_against_seconds_since_1970(ingested):
    """They are rather local times: each incident would lie some hours beside where it was."""
    rows = recordings().with_columns(pl.col("t") + BEGIN)
    log = log_of(rows)
    dates = pl.from_epoch(pl.col("start", "end").cast(pl.Int64)).dt.to_string()
    seconds, text = rows.drop("label"), log.with_columns(dates)
    sentence = "incidents.csv name no time zone and {path} has numbers: write dates in UTC"
    path = ingested.tmp_path / "a.csv"
    assert sentence.format(path=path) in ingested.refused(seconds, *CUT, *written(ingested, text))
    dated = seconds.with_columns(pl.from_epoch(pl.col("t").cast(pl.Int64)).dt.to_string())
    assert "incidents.csv has numbers" in ingested.refused(dated, *CUT, *written(ingested, log))
    zoned = text.with_columns(pl.col("start", "end") + "Z")
    assert ingested.taken(seconds, *CUT, *written(ingested, zoned), "--rest", "normal")["windows"] > 0


def seen(ingested):
    data = ingested.load()
    names = sorted(data.label_map, key=data.label_map.get)
    return data.rows.t_start.tolist(), [names[number] for number in data.rows.label]


@pytest.mark.parametrize("form", ["pairs by file", "pairs by host", "records"])
def test_intervals_in_json_label_as_a_log_does(ingested, form):
    """The labels of the Numenta benchmark: an interval has its last moment in it."""
    rows = recordings("ab", 2).with_columns(pl.col("t") + BEGIN).drop("episode")
    spans = {
        host: [[BEGIN + 1000 * n + 20, BEGIN + 1000 * n + 39] for n in (at, at + 1)]
        for host, at in (("a", 0), ("b", 2))
    }
    for host, of in rows.drop("label").group_by("host"):
        of.drop("host").write_csv(ingested.tmp_path / f"{host[0]}.csv")
    files = [str(ingested.tmp_path / f"{host}.csv") for host in spans]
    rows.drop("host").drop("label").write_csv(whole := ingested.tmp_path / "whole.csv")
    content, flags = {
        "pairs by file": ({"real/whole.csv": [*spans["a"], *spans["b"]], "real/other.csv": [[0, 1]]}, [str(whole)]),
        "pairs by host": ({f"x/{host}.csv": of for host, of in spans.items()}, [*files, "--host-from", "file"]),
        "records": ([{"start": low, "end": high + 1} for of in spans.values() for low, high in of], [str(whole)]),
    }[form]
    (path := ingested.tmp_path / "windows.json").write_text(json.dumps(content))
    code, said = ingested(None, *flags, *CUT, "--labels-from", str(path), "--rest", "normal")
    assert code == 0, said
    times, labels = seen(ingested)
    assert set(labels) == {"anomaly", "normal"}
    assert [label == "anomaly" for label in labels] == [(t - BEGIN) % 1000 >= 20 for t in times]


LABEL_FILES = {
    "labels.csv with times": lambda rows, path: rows.select("t", "label").write_csv(path),
    "labels.csv": lambda rows, path: rows.select("label").write_csv(path),
    "labels.txt": lambda rows, path: path.write_text("\n".join(rows["label"].cast(pl.String))),
    "labels.npy": lambda rows, path: np.save(path, rows["label"].to_numpy()),
    "labels.csv with an index": lambda rows, path: rows.select("label").with_row_index("").write_csv(path),
}


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        *zip(LABEL_FILES, [pl.Float64, pl.String, pl.Int64, pl.Boolean, pl.Int64], strict=True),
        ("labels.txt", pl.String),
    ],
)
def test_a_second_file_has_the_label_of_each_row(ingested, form, kind):
    rows = recordings().with_columns(label=(pl.col("label") == "attack").cast(pl.Int64).cast(kind))
    ingested.taken(rows, *CUT)
    expected = seen(ingested)
    path = ingested.tmp_path / form.split()[0]
    LABEL_FILES[form](rows, path)
    flags = (*CUT, "--labels-from", str(path))
    found = ingested.taken(rows.drop("label"), *flags)
    assert seen(ingested) == expected
    assert found["understood"]["roles"][path.name] == "class"
    bare = rows.drop("label", "t", "episode")
    assert ingested.taken(bare, *flags, "--hz", "1")["windows"] > 0
    assert "a label for each row, so --rest has no effect" in ingested.refused(bare, *flags, "--rest", "x")
    short = ingested.refused(bare.head(300), *flags, "--hz", "1")
    assert f"{path.name} has 320 labels" in short
    assert ", and the table 300 rows" in short


@pytest.mark.parametrize(
    ("above", "sentence"),
    [
        ("", ""),
        ("state\n", ""),
        ("normal\n", "labels.txt has 321 labels, and the table 320 rows"),
        ("label\nnormal\n", "labels.txt has 321 labels below the name 'label' in its first line, and the table 320"),
    ],
)
def test_a_first_line_that_stands_below_too_is_a_label(ingested, above, sentence):
    rows = recordings().with_columns(pl.col("label").replace("attack", "disk stall"))
    ingested.taken(rows, *CUT)
    expected = seen(ingested)
    path = ingested.tmp_path / "labels.txt"
    path.write_text(above + "\n".join(rows["label"]))
    flags = (*CUT, "--labels-from", str(path))
    if sentence:
        assert sentence in ingested.refused(rows.drop("label"), *flags)
    else:
        ingested.taken(rows.drop("label"), *flags)
        assert seen(ingested) == expected


@given(st.lists(st.sampled_from([0, 0, 0, 1, 2, 3]), min_size=9, max_size=40), st.integers(2, 6))
def test_a_window_has_the_class_of_the_marked_samples_in_it(label, samples):
    """The classes 0 and 1 are benign."""
    begins = np.arange(len(label) - samples + 1)
    expected = []
    for low in begins.tolist():
        here = set(label[low : low + samples])
        found = here - {0, 1} or here
        expected.append(found.pop() if len(found) == 1 else -1)
    assert classes_of_points(np.array(label), begins, samples, {0, 1}).tolist() == expected


def test_single_marked_samples_label_the_windows_that_hold_them(ingested):
    rows = recordings("ab", 2, samples=80)
    rows = rows.with_columns(label=(pl.col("t") % 1000).is_in([33.0, 55.0]).cast(pl.Int64))
    assert ingested.taken(rows, *CUT)["labels"] == {"benign": 4 * (15 + 9 + 11)}
    left = ingested.taken(rows, *CUT)["understood"]["left_out"]
    assert "8 of 8 stretches of malicious: shorter than a window of 4 s (--points labels each window" in left[0]
    ingested.taken(rows, *CUT, "--points", "--stride-s", "1")
    times, labels = seen(ingested)
    assert [label == "malicious" for label in labels] == [30 <= t % 1000 <= 33 or 52 <= t % 1000 <= 55 for t in times]
    assert len(times) == 4 * 77


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("start,end,label\n5,2,x\n", "Row 1 of {path} ends before it begins"),
        ("start,end,label\n5,6,x\n7,7,x\n", "Row 2 of {path} ends before it begins, or at once"),
        ("start,end,label\n5,,x\n", "Row 1 of {path} has no 'end'"),
        ("start,label\n5,x\n", "has no column 'end': name the columns of incidents start, end, label"),
        ("start,from,end,label\n5,5,6,x\n", "has several columns that may be the start (start, from)"),
        ("start,end,label\n2026-11-20 00:00:00,9,x\n", "and time in s as 'end': write both alike"),
        ("start,end,label\n5,6,?\n", "A label is '?'"),
    ],
)
def test_a_log_that_cannot_be_used_is_refused(ingested, text, sentence):
    path = ingested.tmp_path / "incidents.csv"
    path.write_text(text)
    said = ingested.refused(recordings().drop("label"), *CUT, "--labels-from", str(path))
    assert sentence.format(path=path) in said


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        ("start,end,label,device\n1000,1020,attack,a\n", "The column 'device' of"),
        ("start,end,label,host\n1000,1020,attack,a\n1000,1020,attack,B:9100\n", "'B:9100', and the table 'b'"),
    ],
)
def test_hosts_of_a_log_are_not_lost(ingested, log, sentence):
    path = ingested.tmp_path / "incidents.csv"
    path.write_text(log)
    rows = recordings("ab", 2).drop("label")
    assert sentence in ingested.refused(rows, *CUT, "--labels-from", str(path), "--rest", "normal")


def test_what_no_incident_needs_is_not_read(ingested):
    rows = recordings("ab", 2).drop("label")
    (path := ingested.tmp_path / "log.csv").write_text("start;end;label;lasted\n1000;1020;attack;1,026\n")
    flags = (*CUT, "--labels-from", str(path), "--rest", "normal", "--points")
    found = ingested.taken(rows, *flags)
    path.write_text("start;end;label\n1000;1020;attack\n")
    assert found == ingested.taken(rows, *flags)
    path.write_text("fault start;fault end;label\n1000;1020;attack\n")
    assert "has no column 'start': name the columns" in ingested.refused(rows, *flags)


def test_flags_that_fit_no_log_are_refused(ingested, capsys):
    rows = recordings().drop("label")
    flags = written(ingested, log_of(recordings()))
    assert "no column of times: name it" in ingested.refused(rows.drop("t"), *CUT, *flags)
    cut = rows.with_columns(window=pl.int_range(pl.len()) // 8)
    assert "is cut into windows, which --labels-from cannot label" in ingested.refused(cut, *flags)
    with pytest.raises(SystemExit):
        ingest.main(["a.csv", "--rest", "normal"])
    assert "--rest has no effect without --labels-from" in capsys.readouterr().err


@given(
    spans=st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 12), st.sampled_from("xy"), st.sampled_from(["a", "aa", "b"])),
        min_size=1,
        max_size=6,
    ),
    rest=st.sampled_from([None, "calm"]),
    order=st.randoms(),
)
def test_a_sample_has_the_label_of_the_incidents_in_whose_time_it_lies(spans, rest, order):
    """Compared with a look at every sample and every incident; the order of the log changes nothing.

    No sample is of the host aa, which is sorted between the others.
    """
    assume(any(where != "aa" for *_, where in spans))
    t, host = np.tile(np.arange(-5.0, 40.0), 2), np.repeat(["a", "b"], 45)
    expected = []
    for moment, of in zip(t.tolist(), host.tolist(), strict=True):
        found = {label for start, length, label, where in spans if where == of and start <= moment < start + length}
        expected.append(found.pop() if len(found) == 1 else "" if found else rest or "")
    shuffled = list(spans)
    order.shuffle(shuffled)
    start, length, label, where = (np.array(column) for column in zip(*shuffled, strict=True))
    incidents = IncidentLog(
        path=ingest.Path("log.csv"),
        start=start.astype(float),
        end=(start + length).astype(float),
        label=label,
        host=where,
        role="",
    )
    labelled = label_samples(t, Coded.of(host), incidents, rest=rest)
    assert labelled.label.strings().tolist() == expected
    counted = sum(int(text.split(" of ")[0].replace(",", "")) for text in labelled.left_out)
    assert counted == expected.count("")


def test_an_incident_of_no_host_beside_others_is_named_with_its_log(ingested):
    rows = recordings().drop("label")
    log = pl.DataFrame({"start": [5, 50], "end": [9, 60], "label": ["attack"] * 2, "host": ["a", None]})
    refused = ingested.refused(rows, *CUT, *written(ingested, log))
    assert "Row 2 of" in refused
    assert "incidents.csv has no 'host': write the incident once for each host" in refused
