"""Tables in the shapes that programs write: long ones, second labels, odd clocks."""

import datetime as dt
import gzip
import io
import json
import lzma
import os
import pickle
import re
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import polars.selectors as cs
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from table_changes import noise

from training.data import ingest
from training.data.errors import DataError
from training.data.ingest import opened
from training.data.ingest.foreign import check_foreign
from training.data.ingest.series import stand_in_turn, turns
from training.data.scratch import ROOM

pytestmark = pytest.mark.half
CUT = ("--window-s", "8")


def wide_table(samples=320, channels=3, step_s=1.0):
    label = np.where(np.arange(samples) // 80 % 2, "attack", "normal")
    values = {f"c{n}": 100.0 * n + noise(samples, n) for n in range(channels)}
    return pl.DataFrame({"t": np.arange(samples) * step_s, "label": label, **values})


def long_table(wide, key="sensor_no", value="value", apart_s=0.0):
    names = [name for name in wide.columns if name.startswith("c")]
    rows = wide.with_row_index("turn").unpivot(names, index=["turn", "t", "label"], variable_name=key, value_name=value)
    place = pl.col(key).str.slice(1).cast(pl.Float64)
    return rows.with_columns(t=pl.col("t") + apart_s * place).sort("turn", key).drop("turn")


def numbered(long, key="sensor_no"):
    return long.with_columns(pl.col(key).str.slice(1).cast(pl.Int64) + 7000)


# -- series in one table -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("apart_s", [0.0, 0.2], ids=["at one time", "in turn"])
@pytest.mark.parametrize(
    ("key", "flags"), [("device_id", ()), ("probe", ("--ignore", "probe")), ("mote ID", ()), ("pid", ())]
)
def test_rows_of_several_series_are_refused_until_a_flag_says_what_they_are(ingested, apart_s, key, flags):
    rows = numbered(long_table(wide_table(), key, apart_s=apart_s), key)
    said = ingested.refused(rows.rename({"value": "temp"}), *CUT, *flags)
    assert f"The column {key!r} of " in said
    assert "tells apart 3 series" in said
    assert f"--key {key}" in said
    assert len(ingested.taken(rows, *CUT, "--host-column", key)["hosts"]) == 3
    assert ingested.taken(rows, *CUT, "--key", key)["channels"]["oracle"] == 3


def test_series_at_random_times_are_refused_too(ingested):
    rows = numbered(long_table(wide_table()), "sensor_no").rename({"sensor_no": "sensor_id", "value": "temp"})
    rows = rows.with_columns(t=pl.col("t") + pl.Series(np.random.default_rng(3).uniform(0, 1, rows.height))).sort("t")
    for flags in ((), ("--ignore", "sensor_id"), ("--hz", "0.2"), ("--hz", "0.2", "--ignore", "sensor_id")):
        assert "tells apart 3 series" in ingested.refused(rows, "--window-s", "40", *flags)


def test_an_id_that_is_measured_is_kept_by_its_flag(ingested):
    rows = wide_table().with_columns(job_id=pl.Series(np.arange(320) // 40))
    assert "--level job_id if it is measured itself" in ingested.refused(rows, *CUT)
    assert ingested.taken(rows, *CUT, "--level", "job_id")["channels"]["oracle"] == 4


def test_channels_of_whole_numbers_are_no_series(ingested):
    busy = np.random.default_rng(0).integers(0, 60, 320)
    rows = wide_table().with_columns(processes=pl.Series(busy), watts=pl.Series(2.0 * busy + noise(320, 9)))
    assert ingested.taken(rows, *CUT)["channels"]["oracle"] == 5


@pytest.mark.parametrize("apart_s", [0.0, 0.2], ids=["at one time", "in turn"])
@pytest.mark.parametrize("key", ["sensor", "metric", "itemid"])
def test_a_long_table_gives_the_windows_of_the_wide_one(ingested, key, apart_s):
    wide = wide_table()
    ingested.taken(wide, *CUT)
    expected = np.array(ingested.load().tensors)
    long = long_table(wide, key, apart_s=apart_s)
    found = ingested.taken(numbered(long, key) if key == "itemid" else long, *CUT)
    assert found["channels"]["oracle"] == 3
    np.testing.assert_array_equal(ingested.load().tensors, expected)


def test_a_reading_that_is_missing_is_missing_in_its_channel_alone(ingested):
    wide = wide_table()
    long = long_table(wide, "metric").filter(~((pl.col("t") == 30.0) & (pl.col("metric") == "c1")))
    ingested.taken(wide.with_columns(c1=pl.when(pl.col("t") == 30.0).then(None).otherwise("c1")), *CUT)
    expected = np.array(ingested.load().tensors)
    ingested.taken(long, *CUT)
    np.testing.assert_array_equal(ingested.load().tensors, expected)


def test_several_columns_of_a_long_table_are_a_channel_each(ingested):
    wide = wide_table()
    long = long_table(wide, "box", "temp").with_columns(hum=pl.col("temp") * 2)
    ingested.taken(long, *CUT, "--key", "box", "--oracle", "c1 hum")
    names = ingested.load().channel_names
    assert sorted(names) == ["c0 hum", "c0 temp", "c1 hum", "c1 temp", "c2 hum", "c2 temp"]
    assert "--oracle names 'hum', which is no channel" in ingested.refused(
        long, *CUT, "--key", "box", "--oracle", "hum"
    )


@given(st.lists(st.floats(0, 0.05), min_size=30, max_size=60), st.integers(2, 5), st.integers(1, 29))
def test_a_turn_holds_each_series_of_one_recording_at_most_once_and_not_for_long(late, series, second):
    n = len(late) // series * series
    t = np.arange(n) / series + np.sort(np.array(late[:n]) / series)
    key, group = np.arange(n, dtype=np.int32) % series, (np.arange(n) >= second).astype(np.int32)
    begins = turns(t, key, group)
    of = np.cumsum(begins) - 1
    assert np.unique(np.stack([of, key]), axis=1).shape[1] == n
    assert (t - t[np.flatnonzero(begins)][of]).max() <= 1.0
    assert (group == group[np.flatnonzero(begins)][of]).all()


def test_a_state_that_sets_the_level_of_a_channel_is_a_series_and_a_slow_one_is_none():
    ids, t = np.array(["a", "b"] * 40), np.arange(80).astype(str)
    assert stand_in_turn(ids, [np.tile([1.0, 50.0], 40) + noise(80)], t)
    assert not stand_in_turn(np.sort(ids), [np.repeat([1.0, 50.0], 40) + noise(80)], t)
    assert not stand_in_turn(ids, [noise(80)], t)


# -- names and labels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["changepoint", "attack_cat", "Sub-Type", "attack_type"])
def test_a_second_label_is_no_channel(ingested, name):
    code = (pl.col("label") == "attack").cast(pl.Int64)
    rows = wide_table().with_columns(code.alias(name))
    found = ingested.taken(rows, *CUT)
    assert found["channels"]["oracle"] == 3
    assert f"column {name}: a second label" in found["understood"]["left_out"]


def test_labels_that_differ_by_a_space_inside_are_one_misspelled(ingested):
    odd = pl.when(pl.col("t") == 100.0).then(pl.lit("A ttack")).otherwise("label")
    assert "differ by" in ingested.refused(wide_table().with_columns(label=odd), *CUT)


@pytest.mark.parametrize("name", ["anomaly", "is_anomaly", "Attack", "Class", "outlier", "isAttack"])
def test_a_table_with_times_and_labels_needs_no_flag(ingested, name):
    rows = wide_table().with_columns(label=(pl.col("label") == "attack").cast(pl.Int64)).rename({"label": name})
    found = ingested.taken(rows)
    assert found["labels"] == ingested.taken(rows, "--window-s", "16")["labels"]
    assert "Windows have 16 samples, since nothing says their length: --window-s S sets it." in found["notes"]


@pytest.mark.parametrize(
    ("column", "labels", "sentence"),
    [
        ("Normal/Attack", ["1", "0"], "so that 1 or true may be it"),
        ("Attack LABEL (1:No Attack, -1:Attack)", ["1", "-1"], "Name the benign class"),
        ("Class", ["1", "2"], "Name the benign class"),
    ],
)
def test_which_number_is_benign_is_asked(ingested, column, labels, sentence):
    first, other = (pl.lit(int(one)) for one in labels)
    rows = wide_table().with_columns(pl.when(pl.col("label") == "normal").then(first).otherwise(other).alias(column))
    assert sentence in ingested.refused(rows.drop("label"))
    found = ingested.taken(rows.drop("label"), "--benign", labels[0])
    expected = ingested.taken(wide_table())["labels"]
    assert sorted(found["labels"].values()) == sorted(expected.values())
    assert found["benign"]["classes"] == [labels[0]]


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "index", "id"])
@pytest.mark.parametrize("first", [0, 1, 5000])
def test_a_number_of_the_rows_is_left_out_and_another_id_is_not(ingested, name, first):
    numbers = pl.Series(name, np.arange(first, first + 320))
    rows = wide_table().insert_column(0, numbers)
    found = ingested.taken(rows, *CUT)
    assert found["channels"]["oracle"] == 3
    assert f"column {name}: numbers the rows" in found["understood"]["left_out"]
    ingested.taken(rows, *CUT, "--ignore", name)
    odd = rows.with_columns(numbers.reverse())
    said = ingested.refused(odd, *CUT)
    assert "is a row number or an id by its name" in said
    ingested.taken(odd, *CUT, "--ignore", name)


@pytest.mark.parametrize(("differ", "kept"), [(False, 4), (True, 3)])
def test_a_column_that_stands_twice_is_taken_once(ingested, tmp_path, differ, kept):
    rows = wide_table().with_columns(pl.col("c0").alias("c9"), (pl.col("c0") + 2.0 * differ).alias("again"))
    text = rows.write_csv().replace("again", "c9", 1)
    (path := tmp_path / "twice.csv").write_text(text)
    flags = ()
    if differ:
        assert "--ignore c9_duplicated_0" in ingested.refused(path, *CUT)
        flags = ("--ignore", "c9,c9_duplicated_0")
    else:
        flags = ("--level", "c9")
    assert ingested.taken(path, *CUT, *flags)["channels"]["oracle"] == kept


def test_the_label_to_leave_out_is_said_as_the_table_writes_it(ingested):
    rows = wide_table().with_columns(label=(pl.col("t") == 100.0).cast(pl.Int64))
    assert "--unlabelled=1" in ingested.refused(rows, *CUT)
    assert "--unlabelled=true" in ingested.refused(rows.with_columns(pl.col("label").cast(pl.Boolean)), *CUT)


def test_rows_without_times_are_counted_at_the_rate_that_was_said(ingested):
    wide = wide_table()
    ingested.taken(wide, *CUT)
    expected = np.array(ingested.load().tensors)
    assert "--hz if rows follow each other at one rate" in ingested.refused(wide.drop("t"), *CUT)
    found = ingested.taken(wide.drop("t"), *CUT, "--hz", "1")
    np.testing.assert_array_equal(ingested.load().tensors, expected)
    assert "There is no column of times: the rows of a host follow each other at --hz, without a gap." in found["notes"]
    other = wide.with_columns(c0=pl.Series(noise(320, 8)), c1=pl.Series(noise(320, 9)), c2=pl.Series(noise(320, 7)))
    two = pl.concat(
        [
            rows.drop("t").with_columns(host=pl.lit(name), episode=pl.lit("e"))
            for rows, name in ((wide, "a"), (other, "b"))
        ]
    )
    assert ingested.taken(two, *CUT, "--hz", "1")["hosts"] == ["a", "b"]


# -- cells -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [" %", "%", " MiB", "W", " °C"])
def test_one_unit_behind_all_numbers_is_read(ingested, unit):
    wide = wide_table()
    written = pl.col("c1").map_elements(lambda x: f"{x:.3f}{unit}", pl.String)
    found = ingested.taken(wide.with_columns(c1=written), *CUT)
    assert f"c1 in {unit.strip()}" in found["understood"]["source"]
    got = np.array(ingested.load().tensors)
    ingested.taken(wide.with_columns(pl.col("c1").round(3)), *CUT)
    np.testing.assert_array_equal(got, ingested.load().tensors)


def test_amounts_in_changing_units_of_bytes_are_bytes(ingested):
    wide = wide_table().with_columns(c1=pl.Series(np.arange(320) * 7919 % 5000 * 2.0**20))

    def written(x):
        return f"{x / 2**30}GiB / 8GiB" if x >= 2**30 else f"{x / 2**20}MiB / 8GiB"

    ingested.taken(wide, *CUT)
    expected = np.array(ingested.load().tensors)
    ingested.taken(wide.with_columns(pl.col("c1").map_elements(written, pl.String)), *CUT)
    np.testing.assert_array_equal(ingested.load().tensors, expected)


def test_numbers_with_unlike_units_are_refused(ingested):
    unlike = pl.when(pl.col("t") < 50).then(pl.lit("5 ms")).otherwise(pl.lit("5 s"))
    assert "with a unit behind them" in ingested.refused(wide_table().with_columns(c1=unlike), *CUT)


def test_columns_are_divided_by_the_sign_that_divides_all_lines(ingested, tmp_path):
    wide = wide_table()
    ingested.taken(wide, *CUT)
    expected = np.array(ingested.load().tensors)
    names = {"c0": "in(device=eth0,host=a,)", "c1": "in(device=eth1,)", "c2": "x"}
    wide.rename(names).write_csv(tmp_path / "a.csv", separator=";")
    ingested.taken(tmp_path / "a.csv", *CUT)
    np.testing.assert_array_equal(ingested.load().tensors, expected)
    lines = [
        " ".join(wide.columns),
        *(f"{' ' * (n % 3)}{' '.join(map(str, row))}" for n, row in enumerate(wide.rows())),
    ]
    (tmp_path / "b.txt").write_text("\n".join(lines))
    ingested.taken(tmp_path / "b.txt", *CUT)
    np.testing.assert_array_equal(ingested.load().tensors, expected)


# -- clocks ------------------------------------------------------------------------------------------------------------


def clocked(form, step_s=1.05, first="2026-03-02T09:00:00", samples=320):
    begin = dt.datetime.fromisoformat(first)
    times = [(begin + dt.timedelta(seconds=step_s * n)).strftime(form) for n in range(samples)]
    return wide_table(samples).with_columns(t=pl.Series(times))


@pytest.mark.parametrize("form", ["%d/%m/%Y %H:%M:%S.%f", "%d/%m/%Y %H:%M:%S,%f", "%b %d, %Y @ %H:%M:%S.%f"])
def test_fractions_of_strptime_are_read(ingested, form, recwarn):
    found = ingested.taken(clocked(form), "--window-s", "8.4", "--time-format", form)
    assert found["understood"]["sample_hz"] == pytest.approx(1 / 1.05)
    assert not recwarn.list


def test_a_fraction_without_a_sign_is_refused(ingested):
    form = "%d/%m/%Y %H:%M:%S%f"
    assert "has no point before its %f" in ingested.refused(clocked(form), *CUT, "--time-format", form)


@pytest.mark.parametrize("flags", [(), ("--time-format", "%Y-%m-%d %H:%M:%S")])
def test_a_clock_of_twelve_hours_without_am_and_pm_is_refused(ingested, flags):
    cut, form = ("--window-s", "600"), "%Y-%m-%d %I:%M:%S"
    assert "write AM or PM behind the times" in ingested.refused(clocked(form, 60.0, samples=600), *cut, *flags)
    first, last = ingested.taken(clocked(f"{form} %p", 60.0, samples=600), *cut)["understood"]["span"]
    assert last - first == 600 * 60


def test_mornings_alone_have_a_clock_of_24_hours(ingested):
    assert ingested.taken(clocked("%Y-%m-%d %H:%M:%S", 60.0, samples=200), "--window-s", "600")


def starts(ingested):
    return ingested.load().rows.t_start.tolist()


@pytest.mark.parametrize(
    ("form", "flags"),
    [
        ("%H:%M:%S", ()),
        ("%I:%M:%S.%f %p", ()),
        ("%H-%M-%S", ("--time-format", "%H-%M-%S")),
        ("%d-%m %H:%M:%S", ("--time-format", "%d-%m %H:%M:%S")),
        ("%b %d %H:%M:%S", ("--time-format", "%b %d %H:%M:%S")),
    ],
)
def test_times_without_a_date_or_a_year_begin_on_the_day_that_is_said(ingested, form, flags):
    """Two hosts in turn, each of which passes midnight."""
    begins = ("2026-03-01T23:58:00", "2026-03-01T23:59:30")

    def hosts(form):
        tables = [clocked(form, 1.0, begin).with_columns(host=pl.lit(begin[-5:])) for begin in begins]
        rows = pl.concat([tables[0], tables[1].with_columns(c0=pl.lit(1.5) * noise(320, 9), c1=noise(320, 8))])
        return rows[np.arange(640).reshape(2, 320).T.ravel()]

    ingested.taken(hosts("%Y-%m-%d %H:%M:%S"), *CUT)
    expected = starts(ingested)
    assert "or a date without a year: say the first row's date, as in --day" in ingested.refused(
        hosts(form), *CUT, *flags
    )
    ingested.taken(hosts(form), *CUT, *flags, "--day", "2026-03-01")
    assert starts(ingested) == expected


def test_a_day_that_helps_nothing_is_refused(ingested, capsys):
    dated = clocked("%Y-%m-%d %H:%M:%S")
    assert "so --day has no effect" in ingested.refused(dated, *CUT, "--day", "2026-03-01")
    old = clocked("%d-%m %H:%M:%S", 86_400.0 * 2, "2026-11-01")
    flags = ("--window-s", "1000000", "--time-format", "%d-%m %H:%M:%S", "--day", "2026-11-01")
    assert "pass New Year without naming it" in ingested.refused(old, *flags)
    with pytest.raises(SystemExit):
        ingest.main(["a.csv", "--day", "monday"])
    assert "must be a date such as 2026-11-20" in capsys.readouterr().err


@pytest.mark.parametrize("parts", ["%Y,%-m,%d,%H", "%Y,%m,%-d", "%Y,%m,%d,%-H,%M,%S", "%Y%m%d,%H:%M:%S"])
def test_a_time_may_stand_in_several_columns(ingested, parts):
    step = 86_400.0 if parts.endswith("d") else 3600.0
    rows, cut = clocked("%Y-%m-%d %H:%M:%S", step, "2026-02-27"), ("--window-s", str(8 * step))
    ingested.taken(rows, *cut)
    expected, data = starts(ingested), np.array(ingested.load().tensors)
    names = ("date", "time") if ":" in parts else ("year", "month", "day", "hour", "minute", "second")
    columns = zip(*(one.split(",") for one in clocked(parts, step, "2026-02-27")["t"]), strict=True)
    apart = rows.drop("t").with_columns(pl.Series(name, cells) for name, cells in zip(names, columns, strict=False))
    ingested.taken(apart, *cut)
    assert starts(ingested) == expected
    np.testing.assert_array_equal(ingested.load().tensors, data)


def test_times_of_a_clock_that_is_coarser_than_the_rate_are_interpolated(ingested):
    """As Windows' clock, which goes in steps of 15.6 ms."""
    rows = wide_table(640, step_s=0.01).with_columns(episode=pl.lit("e"))
    flags = ("--window-s", "0.16", "--hz", "100")
    ingested.taken(rows, *flags)
    expected, data = starts(ingested), np.array(ingested.load().tensors)
    coarse = rows.with_columns(t=(pl.col("t") * 64).floor() / 64 + 1_788_600_000)
    refused = ingested.refused(coarse, "--window-s", "0.16")
    assert "have the time 2026-09-05 09:20:00 UTC, and such times are many" in refused
    assert "or its times are rounded (say their rate with --hz 100" in refused
    assert "(say their rate with --hz 100" in ingested.refused(coarse, "--window-s", "0.16", "--hz", "50")
    found = ingested.taken(coarse, *flags)
    assert starts(ingested) == pytest.approx([at + 1_788_600_000 for at in expected], abs=1 / 64)
    np.testing.assert_array_equal(ingested.load().tensors, data)
    assert "The clock goes in steps of 0.0156 s: times between each 64th row were interpolated" in "".join(
        found["notes"]
    )
    two = pl.concat([rows, rows.with_columns(pl.col("t", "c0") + 300)])
    ingested.taken(two, *flags)
    data = np.array(ingested.load().tensors)
    ingested.taken(two.with_columns(t=(pl.col("t") * 64).floor() / 64), *flags)
    np.testing.assert_array_equal(ingested.load().tensors, data)


def test_a_part_of_the_time_that_is_no_number_is_refused(ingested):
    rows = wide_table().drop("t").with_columns(year=2026, month=pl.lit("May"), day=1)
    assert "The column 'month' of " in ingested.refused(rows, *CUT)


@pytest.mark.parametrize("hz", [2, 5])
def test_rows_under_one_second_are_spread_at_the_rate_that_is_said(ingested, hz):
    rows = wide_table(step_s=1 / hz)
    ingested.taken(rows, *CUT)
    expected, data = starts(ingested), np.array(ingested.load().tensors)
    whole = rows.with_columns(t=pl.col("t").floor())
    assert f"or its times are rounded (say their rate with --hz {hz})" in ingested.refused(whole, *CUT)
    found = ingested.taken(whole, *CUT, "--hz", str(hz))
    assert starts(ingested) == pytest.approx(expected)
    np.testing.assert_array_equal(ingested.load().tensors, data)
    assert f"About {hz} rows share one time: spread over the 1 s until the next, by --hz." in found["notes"]
    lost, twelve = (pl.col("t").floor() == 18) & (pl.col("t") % 1 > 0.3), ("--window-s", str(12 / hz))
    ingested.taken(rows.filter(~lost), *twelve)
    expected, data = starts(ingested), np.array(ingested.load().tensors)
    ingested.taken(rows.filter(~lost).with_columns(pl.col("t").floor()), *twelve, "--hz", str(hz))
    assert starts(ingested) == pytest.approx(expected)
    np.testing.assert_array_equal(ingested.load().tensors, data)
    several = pl.concat([wide_table().with_columns(pl.col("c0", "c1", "c2") + 9000.0 * n) for n in range(hz)]).sort("t")
    assert f"alternate between {hz} recordings" in ingested.refused(several, *CUT, "--hz", str(hz))


# -- files -------------------------------------------------------------------------------------------------------------


def zipped(path, name, content):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(name, content)


def arff(wide):
    kinds = ["{normal,attack}" if name == "label" else "NUMERIC" for name in wide.columns]
    head = "".join(f"@ATTRIBUTE '{name}' {kind}\n" for name, kind in zip(wide.columns, kinds, strict=True))
    return f"% made here\n@RELATION x\n\n{head}\n@DATA\n{wide.write_csv(include_header=False)}"


FILES = {
    "a.csv.gz": lambda path, wide: path.write_bytes(gzip.compress(wide.write_csv().encode())),
    "a.csv.zst": lambda path, wide: path.write_bytes(zstandard.compress(wide.write_csv().encode())),
    "two.zst": lambda path, wide: path.write_bytes(
        b"".join(zstandard.compress(part.encode()) for part in wide.write_csv().partition("\n"))
    ),
    "a.parquet.gz": lambda path, wide: path.write_bytes(gzip.compress(parquet(wide))),
    "a.zip": lambda path, wide: zipped(path, "deep/table.csv", wide.write_csv()),
    "a.log": lambda path, wide: wide.write_csv(path),
    "a.dat": lambda path, wide: wide.write_csv(path, separator="\t"),
    "measured": lambda path, wide: wide.write_csv(path),
    "a.json": lambda path, wide: path.write_text(json.dumps(wide.to_dicts())),
    "a.jsonl": lambda path, wide: wide.write_ndjson(path),
    "a.arff": lambda path, wide: path.write_text(arff(wide)),
    "a.npy": lambda path, wide: np.save(path, wide.with_columns(pl.col("label") == "attack").to_numpy(structured=True)),
}


def parquet(wide):
    wide.write_parquet(held := io.BytesIO())
    return held.getvalue()


@pytest.mark.parametrize("name", FILES)
def test_a_table_is_the_same_in_every_form(ingested, tmp_path, name):
    wide = wide_table()
    ingested.taken(wide, *CUT)
    expected = np.array(ingested.load().tensors)
    FILES[name](tmp_path / name, wide)
    found = ingested.taken(tmp_path / name, *CUT)
    assert sorted(found["labels"].values()) == sorted(ingested.taken(wide, *CUT)["labels"].values())
    ingested.taken(tmp_path / name, *CUT)
    np.testing.assert_array_equal(ingested.load().tensors, expected)


def zip_of(name="a.csv", content=b"", more=()):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as packed:
        for each in (name, *more):
            packed.writestr(each, content)
    return held.getvalue()


def locked(archive):
    at = archive.index(b"PK\x01\x02")
    return archive[:6] + b"\x01" + archive[7 : at + 8] + b"\x01" + archive[at + 9 :]


def forged(description, body=b""):
    words = f"{{'descr': {description}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(words).to_bytes(2, "little") + words + body


class Harmful:
    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


def npy(array):
    np.save(held := io.BytesIO(), array, allow_pickle=True)
    return held.getvalue()


ROWS = b"t,label,x\n" + b"".join(b"%d,%s,0.5\n" % (t, b"normal" if t // 50 % 2 else b"attack") for t in range(200))
ALSO_RIGHT = [ROWS.decode().encode(form) for form in ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32")] + [
    ROWS.replace(b"attack", b"att\xe9ck"),
    zip_of("../../a.csv", ROWS),
    zip_of("a/..", ROWS),
    zip_of("a" * 300, ROWS),
]
NMON = (
    "AAA,progname,nmon\nCPU_ALL,CPU Total vm,User%,Sys%\nZZZZ,T0001,15:22:22,28-NOV-2026\nCPU_ALL,T0001,84.0,16.0\n"
    "ZZZZ,T0002,15:22:23,28-NOV-2026\nCPU_ALL,T0002,85.6,13.9\n"
)
AUDIT = "type=SYSCALL msg=audit(1364481363.243:1): arch=c000003e\ntype=CWD msg=audit(1364481363.5:2):  cwd=/\n"
STRACE = (
    '506  1795879349.04 execve("/usr/bin/ls", ["ls"], 0x7f /* 35 vars */) = 0\n506  1795879350.1 brk(NULL)  = 0x56\n'
)
WIRESHARK = (
    '"No.","Time","Source","Destination","Protocol","Length","Info"\n"1","0.00","10.0.0.1","10.0.0.2","TCP","66","x"\n'
    '"2","0.51","10.0.0.2","10.0.0.1","TCP","60","y"\n'
)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv.gz", gzip.compress(b"0" * 400_000_000, 1), "unpacks to over 200 times its size: say --max-gib"),
        ("a.zip", zip_of("a.csv", b"0" * 300_000_000), "unpacks to over 200 times its size"),
        ("a.csv.gz", gzip.compress(b"t,label,x\n1,a,2\n" * 99)[:30], "cannot be unpacked"),
        ("a.csv.zst", zstandard.compress(b"t,label,x\n1,a,2\n" * 99)[:20], "cannot be unpacked"),
        ("a.zip", zip_of("a.csv.gz", gzip.compress(ROWS)), "a.zip is packed: unpack it first"),
        ("a.csv.xz", lzma.compress(ROWS), "is packed"),
        ("a.zip", zip_of(more=["b.csv"]), "holds 2 files: unpack it"),
        ("a.zip", locked(zip_of()), "is encrypted"),
        ("a.xlsx", zip_of("[Content_Types].xml", more=["xl/workbook.xml"]), "is a spreadsheet: save it as CSV"),
        ("a.json", b'{"sysstat": {}}', "read it with --sysstat"),
        ("a.json", b'{"status": "success", "data": {}}', "read it with --prometheus"),
        ("a.json", b'{"a": {"0": 1}}', "is no list of records"),
        (
            "a.json",
            b'[{"t": 1, "x": [1], "m": {"a": [], "b": 1}}]',
            "of {path} hold lists: bring one value in each, or leave them out with --ignore x,m.a.",
        ),
        ("a.json", b'[{"a": {"b": 1}, "a.b": 2}]', "A record of {path} has two members 'a.b'"),
        (
            "a.csv",
            b"name;fault start;fault end;s\nx;2026-11-20 07:29;2026-11-20 08:29;1,026\n",
            "and this one with --labels-from",
        ),
        ("a.json", b"[" * 100_000, "is not JSON"),
        ("a.json", b'[{"t": "\xff"}]', "is not JSON"),
        ("a.json", b"[]", "holds no samples"),
        ("a.json", b'[{"t": 1', "is not JSON (Expecting ',' delimiter in line 1, column 9)"),
        ("a.json", b'[{"t": 1},\n{"t": 2},\n{"t" 3}]', "is not JSON (Expecting ':' delimiter in line 3, column 6)"),
        ("a.jsonl", b'{"t": 1}\n\n{"t": 2}\n{"t" 3}\n', "is not JSON (Expecting ':' delimiter in line 4, column 6)"),
        ("a.jsonl", b'{"t": 1}\n{"t": 2, "t": 3}\n', "A record of {path} has two members 't'"),
        (
            "a.arff",
            b"@relation x\n@attribute t date 'yyyy'\n@data\n1/2/3\n",
            "has the date '1/2/3', unlike its declared",
        ),
        ("a.h5", b"\x89HDF\r\n\x1a\n" + bytes(99), "an HDF5 file: write its columns"),
        ("a.mat", b"MATLAB 5.0 MAT-file" + bytes(99), "with scipy.io.loadmat"),
        *(("a.csv", pickle.dumps(Harmful(), protocol), "is a pickle") for protocol in range(2, 6)),
        ("a.npy", npy(np.array([Harmful()])), "is no array that can be read"),
        ("a.npy", npy(np.array([({},)], [("t", "O")])), "is no array that can be read"),
        ("a.npy", forged("'<f8', 'fortran_order': False, 'shape': (10**12, 3)"), "is no array that can be read"),
        ("a.npy", forged(f"'<f8', 'fortran_order': False, 'shape': ({10**12}, 3)"), "is no array that can be read"),
        ("a.npy", forged(f"[('a', '<U0')], 'fortran_order': False, 'shape': ({10**9},)"), "holds other things than"),
        ("a.npy", forged(f"'<f8', 'fortran_order': False, 'shape': ({10**9}, 0)"), "holds other things than numbers"),
        ("a.npy", npy(np.zeros((3, 4, 5))), "a row a sample and a column a channel"),
        ("a.arff", b"@relation x\n@attribute t numeric\n@data\n{0 1}\n", "sparse rows"),
        ("a.arff", b"@relation x\n@attribute t numeric\n@data\n", "no rows behind @data"),
        ("a.csv", b"", "holds no samples"),
        ("a.csv", ROWS + bytes(900), "has NUL bytes"),
        ("a.csv", bytes(900) + ROWS, "has NUL bytes"),
        ("a.csv", ROWS.replace(b"attack", b"attack\0"), "has NUL bytes"),
        ("a.csv", ROWS + "200,f\u00fcr,1\n".encode() + b"201,f\xfcr,1\n", "partly another encoding"),
        ("a.csv", ROWS.decode().encode("utf-16")[:-1], "is no text that can be read"),
        ("a.nmon", NMON.encode(), "a log of nmon"),
        ("a.txt", b"top - 09:00:00 up 1 day\nTasks: 132 total\n", "what top prints: record with vmstat -t 1"),
        ("a.txt", b"\n\nATOP - vm     2026/11/28  15:22:26   ----\n", "what atop prints: record with"),
        ("a.txt", b"waiting for 1 second sample...\n#         <--------CPU-------->\n", "record with collectl -P"),
        ("a.raw", b"\xef\xbe\xed\xfe" + bytes(400), "atop's own file: make a table, with atop -r {path} -P CPL"),
        ("a.prom", b"# HELP node_load1 1m load\n# TYPE node_load1 gauge\n", "one scrape of a Prometheus exporter"),
        ("a.log", b"################\n# Collectl:   V3.6\n#\n>>> 1370472565.004 <<<\n", "collectl -p {path} -P"),
        ("conn.log", b"#separator \\x09\n#path\tconn\n#fields\tts\tuid\n1.5\tC1\n", "of connections or events"),
        ("a.txt", b"m0,tag0=value0,tag1=value0 v0=1\nm1,tag0=value1,tag1=value0 v0=1\n", "line protocol of InfluxDB"),
        ("a.asc", b"date Tue May 27 04:09:35.000 pm 2014\nbase hex  timestamps absolute\n", "a log of a bus"),
        ("audit.log", AUDIT.encode(), "an audit log, of events and no samples"),
        ("a.txt", STRACE.encode(), "system calls and no samples"),
        ("a.txt", b'execve("/bin/ls", ["ls"], 0x7f /* 35 vars */) = 0\n', "system calls and no samples"),
        ("UAD-1.txt", b"6 6 63 6 42 120 " * 900, "a trace of system calls: count each number"),
        (
            "a.pcap",
            b"\xd4\xc3\xb2\xa1\x02\0\x04\0" + bytes(16),
            "packets and no samples: count them a second, with tshark",
        ),
        ("a.pcapng", b"\n\r\r\n" + bytes(99), "packets and no samples"),
        ("a.csv", WIRESHARK.encode(), "Wireshark's packets"),
        ("a.txt", b"09:00:00.123456 IP 10.0.0.1.443 > 10.0.0.2.5000: Flags [.], length 0\n", "tcpdump -tt"),
        ("a.evtx", b"ElfFile\0" + bytes(99), "Windows' events and no samples"),
        ("a.json", b'{"Channel": "Microsoft-Windows-Sysmon/Operational", "EventID": 12}\n', "Windows' events"),
        ("a.csv", "Level,Date and Time,Source,Event ID\n".encode("utf-16"), "Windows' events"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_a_file_that_is_no_table_is_refused_with_what_makes_one(
    ingested, tmp_path, monkeypatch, name, content, sentence
):
    (left := tmp_path / "left").mkdir()
    monkeypatch.setenv("TMPDIR", str(left))
    (path := tmp_path / name).write_bytes(content)
    said = ingested.refused(path, *CUT)
    assert sentence.format(path=path) in said
    assert said.count("\n") <= 1
    assert not [*left.iterdir()]


def test_members_of_objects_are_columns_and_ignored_ones_are_not_read(tmp_path):
    (path := tmp_path / "a.json").write_text('[{"t": 1, "m": {"a": [1], "b": {"c": 2}}, "n": {"d": []}, "x": 3}]')
    with opened.opened(path, ROOM, ["m.a", "n"]) as plain:
        assert pl.read_parquet(plain).to_dicts() == [{"t": 1, "m.a": None, "m.b.c": 2, "n": None, "x": 3}]


@pytest.mark.parametrize("content", ALSO_RIGHT, ids=range(len(ALSO_RIGHT)))
def test_odd_encodings_and_names_inside_archives_do_not_matter(ingested, tmp_path, content):
    (path := tmp_path / "a.csv").write_bytes(content)
    assert ingested.taken(path, *CUT)["windows"] == 44


@pytest.mark.parametrize(
    ("content", "table"),
    [
        (NMON, "t,User%,Sys%\n28-NOV-2026 15:22:22,84.0,16.0\n28-NOV-2026 15:22:23,85.6,13.9\n"),
        (AUDIT, "t,events\n1364481363,2\n"),
        (STRACE, "t,events\n1795879349,1\n1795879350,1\n"),
        (WIRESHARK, "t,packets,bytes\n0,2,126\n"),
    ],
    ids=["nmon", "audit", "strace", "wireshark"],
)
def test_the_command_of_a_refusal_makes_a_table(tmp_path, content, table):
    (path := tmp_path / "it's a.txt").write_text(content)
    with pytest.raises(DataError) as refusal:
        check_foreign(content.encode(), str(path))
    command = re.search(r"awk .*> (\w+\.csv)", str(refusal.value))
    subprocess.run(command[0], shell=True, check=True, cwd=tmp_path)
    names, *rows = (tmp_path / command[1]).read_text().splitlines()
    assert "\n".join([names, *sorted(rows), ""]) == table


def test_a_packed_file_may_become_as_large_as_is_said(ingested, tmp_path):
    (path := tmp_path / "a.csv.gz").write_bytes(gzip.compress(ROWS))
    assert "over 1e-06 GiB: say a higher --max-gib" in ingested.refused(path, *CUT, "--max-gib", "0.000001")
    assert ingested.taken(path, *CUT, "--max-gib", "1")["windows"] == 44
    opened.check_unpacked(path, opened.RATIO_MAX * opened.PART_BYTES, None)  # as equal rows of a small table do
    np.savez_compressed(path := tmp_path / "a.npz", X=np.zeros((9, 3, 16)), y=np.arange(9) % 2)
    assert "say a higher --max-gib" in ingested.refused(path, "--max-gib", "0.000001")


def test_pipes_devices_and_files_that_change_are_refused(ingested, tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "a.csv")
    for path in (tmp_path / "a.csv", Path("/dev/zero")):
        assert "is a folder, pipe or device" in ingested.refused(path, *CUT)
    (path := tmp_path / "a.csv.gz").write_bytes(gzip.compress(ROWS))

    def shrinking(source, *_):
        path.write_bytes(b"")
        return source

    monkeypatch.setattr(opened, "_from_text", shrinking)
    assert f"{path} changed while it was read" in ingested.refused(path, *CUT)


@pytest.mark.parametrize(
    ("java", "ours"),
    [("dd/MM/yyyy HH:mm:ss.SSS", "%d/%m/%Y %H:%M:%S.%f"), ("yy-MM-dd'T'hh:mm:ss a", "%y-%m-%dT%I:%M:%S %p")],
)
def test_dates_of_a_declared_format_need_no_flag(ingested, tmp_path, java, ours):
    ingested.taken(clocked("%Y-%m-%d %H:%M:%S.%f", 2.0), "--window-s", "16")
    expected, times = np.array(ingested.load().tensors), ingested.load().rows.t_start.tolist()
    text = arff(clocked(f"'{ours}'", 2.0)).replace("'t' NUMERIC", f"'t' DATE \"{java}\"")
    (path := tmp_path / "a.arff").write_text(text)
    ingested.taken(path, "--window-s", "16")
    np.testing.assert_array_equal(ingested.load().tensors, expected)
    assert ingested.load().rows.t_start.tolist() == times


def test_an_array_without_names_takes_those_that_are_said(ingested, tmp_path):
    wide = wide_table()
    ingested.taken(wide, *CUT)
    expected = np.array(ingested.load().tensors)
    array = wide.with_columns((pl.col("label") == "attack").cast(pl.Float64)).to_numpy()
    np.save(tmp_path / "a.npy", array)
    assert "5 with --columns" in ingested.refused(tmp_path / "a.npy", *CUT)
    ingested.taken(tmp_path / "a.npy", *CUT, "--columns", ",".join(wide.columns))
    np.testing.assert_array_equal(ingested.load().tensors, expected)


# -- several files -----------------------------------------------------------------------------------------------------


def days(wide, folder, form="day{}.csv"):
    folder.mkdir(parents=True, exist_ok=True)
    parts = [wide[:100], wide[100:180], wide[180:]]
    for number, part in enumerate(parts):
        names = part.columns if number != 1 else sorted(part.columns)
        write = part.select(names).with_columns(pl.col("t").cast(pl.Float64 if number else pl.Int64))
        path = folder / form.format(number)
        path.parent.mkdir(exist_ok=True)
        write.write_parquet(path) if form.endswith("parquet") else write.write_csv(path)
    return sorted(folder.rglob("*.*"))


@pytest.mark.parametrize("form", ["day{}.csv", "{}/day.csv", "day{}.parquet"])
@pytest.mark.parametrize("as_folder", [True, False])
def test_the_days_of_one_host_are_one_table(ingested, tmp_path, form, as_folder):
    wide = wide_table()
    ingested.taken(wide, *CUT)
    expected = np.array(ingested.load().tensors)
    files = days(wide, tmp_path / "days", form)
    code, said = ingested(None, *(map(str, [tmp_path / "days"] if as_folder else reversed(files))), *CUT)
    assert code == 0, said
    assert said["understood"]["source"].startswith("3 files: 320 rows")
    np.testing.assert_array_equal(ingested.load().tensors, expected)


@pytest.mark.parametrize(
    ("part", "form"), [("file", "web{}.csv"), ("folder", "web{}/log.csv"), ("file", "web{}.parquet")]
)
def test_the_files_of_several_hosts_are_told_apart_by_their_names(ingested, tmp_path, monkeypatch, part, form):
    wide = wide_table()
    for number in range(3):
        path = tmp_path / "hosts" / form.format(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        moved = wide.with_columns(pl.col("c0") + number)
        moved.write_parquet(path) if form.endswith("parquet") else moved.write_csv(path)
    code, said = ingested(None, str(tmp_path / "hosts"), *CUT)
    assert code == 65
    assert "--host-from file" in said
    code, said = ingested(None, str(tmp_path / "hosts"), *CUT, "--host-from", part)
    assert (code, said["hosts"]) == (0, ["web0", "web1", "web2"])
    monkeypatch.chdir(path.parent)
    code, said = ingested(None, path.name, *CUT, "--host-from", part)
    assert (code, said["hosts"]) == (0, ["web2"])


def test_hosts_keep_the_points_in_their_names(ingested, tmp_path):
    names = ["10.0.0.5.csv", "10.0.0.6.log.gz", "db1.lan.txt", "db1.dmz"]
    for number, name in enumerate(names):
        text = wide_table().with_columns(pl.col("c0") + number, pl.col("t") + 1000 * number).write_csv().encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    files = [str(tmp_path / name) for name in names]
    code, said = ingested(None, *files, *CUT, "--host-from", "file")
    assert (code, said["hosts"]) == (0, ["10.0.0.5", "10.0.0.6", "db1.dmz", "db1.lan"])
    (tmp_path / "10.0.0.5.txt").write_text(wide_table().write_csv())
    assert (
        "are called after one host"
        in ingested(None, *files, str(tmp_path / "10.0.0.5.txt"), *CUT, "--host-from", "file")[1]
    )


def test_files_are_joined_with_progress_shown(tmp_path, capfd):
    days(wide_table(), tmp_path / "days")
    assert ingest.main([str(tmp_path / "days"), *CUT, "--out-dir", str(tmp_path / "out")]) == 0
    assert "windows, " in capfd.readouterr().out


def test_tables_that_were_appended_with_their_names_are_one(ingested, tmp_path):
    wide = wide_table()
    ingested.taken(wide, *CUT)
    expected = np.array(ingested.load().tensors)
    (path := tmp_path / "both.csv").write_text(wide[:90].write_csv() + wide[90:].write_csv())
    ingested.taken(path, *CUT)
    np.testing.assert_array_equal(ingested.load().tensors, expected)


def test_files_that_are_no_one_table_are_refused(ingested, tmp_path):
    (tmp_path / "empty").mkdir()
    assert ingested(None, str(tmp_path / "empty"), *CUT)[1].startswith(f"error: {tmp_path / 'empty'} holds no files")
    wide = wide_table()
    wide.write_csv(tmp_path / "a.csv")
    wide.write_parquet(tmp_path / "b.parquet")
    files = [str(tmp_path / name) for name in ("a.csv", "b.parquet")]
    assert "others are Parquet: bring them apart" in ingested(None, *files, *CUT)[1]
    (tmp_path / "c.csv").write_text("p,q\n1,2\n3,4\n")
    assert "has no column in common" in ingested(None, files[0], str(tmp_path / "c.csv"), *CUT)[1]
    wide[300:].rename({"c1": "C1 "}).write_csv(tmp_path / "c.csv")
    assert "has the column 'C1', and" in ingested(None, files[0], str(tmp_path / "c.csv"), *CUT)[1]
    wide.with_columns(host=pl.lit("a")).write_csv(tmp_path / "d.csv")
    assert "leave --host-from out" in ingested(None, str(tmp_path / "d.csv"), "--host-from", "file", *CUT)[1]


# -- rows that are windows ---------------------------------------------------------------------------------------------


def programs(rows=240):
    """A table of examples: a row for each of many programs, of six families."""
    random = np.random.default_rng(0)
    bad = random.random(rows) < 0.4
    family = [f"f{n}" for n in random.integers(0, 6, rows)]
    values = {name: random.normal(size=rows) - bad for name in ("pslist.threads", "handles", "dlls", "mutexes")}
    return pl.DataFrame({**values, "family": family, "Class": np.where(bad, "Malware", "Benign")})


ROWS_AS = ("--rows-are-windows", "--group", "family")


def test_rows_that_are_windows_hold_the_values_of_the_table(ingested):
    table = programs()
    found = ingested.taken(table, *ROWS_AS)
    data = ingested.load()
    rows = [int(name.removeprefix("row ")) - 1 for name in data.rows.episode]
    assert sorted(rows) == [*range(240)]
    expected = table.select(data.channel_names).to_numpy()[rows].astype(np.float32)
    np.testing.assert_array_equal(data.tensors[:, :, 0], expected)
    features = pl.read_parquet(ingested.out / "features_window_v1.parquet")
    np.testing.assert_array_equal(features.select(f"{name}.value" for name in data.channel_names), expected)
    assert data.rows.host.tolist() == table["family"].gather(rows).to_list()
    names = sorted(data.schema.label_map, key=data.schema.label_map.get)
    assert [names[number] for number in data.rows.label] == table["Class"].gather(rows).to_list()
    assert (data.schema.time, data.schema.has_examples) == ("none", True)
    assert found["understood"]["sample_hz"] is found["understood"]["span"] is None
    assert "no figures by time" in found["notes"][0]
    assert not any("--group" in note or "ids?" in note for note in found["notes"])
    assert "There is no --group: rows of one" in ingested.taken(table.drop("family"), *ROWS_AS[:1])["notes"][1]
    third = pl.int_range(pl.len()) == 2
    ingested.taken(
        table.with_columns(Class=pl.when(third).then(pl.lit("?")).otherwise("Class")), *ROWS_AS, "--unlabelled", "?"
    )
    assert sorted(ingested.load().rows.episode) == [f"row {n:03}" for n in range(1, 241) if n != 3]


FLOWS = {"Src IP": pl.lit("10.0.0.1"), "Dst IP": pl.lit("10.0.0.2"), "t": pl.int_range(pl.len())}


@pytest.mark.parametrize(
    ("columns", "flags", "sentence"),
    [
        ({}, (*CUT, "--host-column", "family"), "say --rows-are-windows if each row is a separate example"),
        (FLOWS, (*CUT, "--ignore", "family"), "is a flow, and no sample of a recording: say --rows-are-windows"),
        ({"window": pl.int_range(pl.len())}, ROWS_AS, "has windows in 'window', which --rows-are-windows cannot use"),
        ({"reference": pl.lit(0)}, ROWS_AS, "has marks of the hosts' references: true where"),
        ({"proto": pl.lit("tcp")}, ROWS_AS, "leave it out with --ignore proto"),
    ],
)
def test_examples_and_recordings_are_not_mixed_up(ingested, columns, flags, sentence):
    assert sentence in ingested.refused(programs().with_columns(**columns), *flags)


def test_flags_of_samples_have_no_effect_on_rows_that_are_windows(ingested, capsys):
    with pytest.raises(SystemExit):
        ingested(programs(), *ROWS_AS, *CUT)
    assert "--window-s has no effect on rows that are windows" in capsys.readouterr().err


def test_equal_rows_are_copies_unless_their_values_are_usual(ingested):
    table = programs()
    twice = pl.concat([table, table.head(20)])
    assert "20 windows are copies of others, the first in the recordings" in ingested.refused(twice, *ROWS_AS)
    notes = ingested.taken(twice, *ROWS_AS, "--allow-copies")["notes"]
    assert any("of 260 there are 240" in note for note in notes)
    elsewhere = pl.concat([table, table.head(20).with_columns(family=pl.lit("f9"))])
    assert "Equal rows are in two groups" in ingested.refused(elsewhere, *ROWS_AS, "--allow-copies")
    idle = table.with_columns(cs.numeric() * 0).with_columns(handles=np.arange(240) % 5)
    ingested.taken(idle, *ROWS_AS)


def test_rows_like_those_of_another_set_are_windows_too(ingested, tmp_path):
    ingested.taken(programs(), *ROWS_AS)
    like = ingested.out.rename(tmp_path / "like")
    new = programs(90).drop("Class").with_columns(pl.col("handles") + 1)
    assert ingested.taken(new, "--like", str(like), "--group", "family")["samples"] == 1
