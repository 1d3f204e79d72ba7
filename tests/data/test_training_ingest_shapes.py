"""Tables in the shapes that programs write: long ones, second labels, odd clocks."""

import datetime as dt
import gzip
import io
import json
import zipfile

import numpy as np
import polars as pl
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from table_changes import noise

from training.data import ingest
from training.data.ingest.series import stand_in_turn, turns

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


@given(st.lists(st.floats(0, 0.05), min_size=30, max_size=60), st.integers(2, 5))
def test_a_turn_holds_each_series_at_most_once_and_not_for_long(late, series):
    n = len(late) // series * series
    t = np.arange(n) / series + np.sort(np.array(late[:n]) / series)
    key, group = np.arange(n, dtype=np.int32) % series, np.zeros(n, np.int32)
    begins = turns(t, key, group)
    of = np.cumsum(begins) - 1
    assert np.unique(np.stack([of, key]), axis=1).shape[1] == n
    assert (t - t[np.flatnonzero(begins)][of]).max() <= 1.0


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
    assert "or, if its rows follow each other at one rate, that with --hz" in ingested.refused(wide.drop("t"), *CUT)
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


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv.gz", gzip.compress(b"0" * 400_000_000, 1), "unpacks to over 200 times its size"),
        ("a.csv.gz", gzip.compress(b"t,label,x\n1,a,2\n" * 99)[:30], "cannot be unpacked"),
        ("a.csv.zst", zstandard.compress(b"t,label,x\n1,a,2\n" * 99)[:20], "cannot be unpacked"),
        ("a.json", b'{"sysstat": {}}', "read it with --sysstat"),
        ("a.json", b'{"status": "success", "data": {}}', "read it with --prometheus"),
        ("a.json", b'{"a": {"0": 1}}', "is no list of records"),
        ("a.json", b'[{"t": 1, "x": [1]}]', "'x' of {path} holds lists or objects"),
        ("a.json", b'[{"t": 1', "is not JSON"),
        ("a.h5", b"\x89HDF\r\n\x1a\n" + bytes(99), "an HDF5 file: write its columns"),
        ("a.mat", b"MATLAB 5.0 MAT-file" + bytes(99), "with scipy.io.loadmat"),
        ("a.arff", b"@relation x\n@attribute t numeric\n@data\n{0 1}\n", "sparse rows"),
        ("a.arff", b"@relation x\n@attribute t numeric\n@data\n", "no rows behind @data"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_a_file_that_is_no_table_is_refused_with_what_makes_one(ingested, tmp_path, name, content, sentence):
    (path := tmp_path / name).write_bytes(content)
    assert sentence.format(path=path) in ingested.refused(path, *CUT)


def test_an_array_without_names_takes_those_that_are_said(ingested, tmp_path):
    wide = wide_table()
    ingested.taken(wide, *CUT)
    expected = np.array(ingested.load().tensors)
    array = wide.with_columns((pl.col("label") == "attack").cast(pl.Float64)).to_numpy()
    np.save(tmp_path / "a.npy", array)
    assert "5 with --columns" in ingested.refused(tmp_path / "a.npy", *CUT)
    ingested.taken(tmp_path / "a.npy", *CUT, "--columns", ",".join(wide.columns))
    np.testing.assert_array_equal(ingested.load().tensors, expected)


def test_archives_and_arrays_of_other_shapes_are_refused(ingested, tmp_path):
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as packed:
        packed.writestr("a.csv", "")
        packed.writestr("b.csv", "")
    assert "holds 2 files: unpack it" in ingested.refused(tmp_path / "two.zip", *CUT)
    zipped(tmp_path / "a.xlsx", "[Content_Types].xml", "")
    assert "is a spreadsheet: save it as CSV" in ingested.refused(tmp_path / "a.xlsx", *CUT)
    np.save(tmp_path / "cube.npy", np.zeros((3, 4, 5)))
    assert "a row a sample and a column a channel" in ingested.refused(tmp_path / "cube.npy", *CUT)
    np.save(tmp_path / "any.npy", np.array([{}, {}]), allow_pickle=True)
    assert "is no array that can be read" in ingested.refused(tmp_path / "any.npy", *CUT)


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
def test_the_files_of_several_hosts_are_told_apart_by_their_names(ingested, tmp_path, part, form):
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
    wide.with_columns(host=pl.lit("a")).write_csv(tmp_path / "d.csv")
    assert "leave --host-from out" in ingested(None, str(tmp_path / "d.csv"), "--host-from", "file", *CUT)[1]
