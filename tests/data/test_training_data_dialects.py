"""Tables as people have them: however one is written, the data set is the same, or a sentence says what is unclear."""

import datetime as dt
import io

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ingest_builders import whole
from table_changes import recordings

from training.data import ingest
from training.data.coded import Coded
from training.data.errors import DataError
from training.data.ingest.roles import NAMES, Role, Roles, roles_of, unit_in
from training.data.ingest.tables import read_table
from training.data.ingest.times import NO_ZONE, SaidTimes, check_one_clock, from_array, from_column

CUT = ("--window-s", "8")
EXACT = {"t": np.arange(320.0) // 40 * 1000 + np.arange(320) % 40, "x": np.round(np.sin(np.arange(320.0)) * 900, 3)}
ROWS = recordings().with_columns(**{name: pl.Series(values) for name, values in EXACT.items()})
BEGIN = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)


def as_text(rows, *, delimiter=",", comma=False, before="", encoding="utf-8", quoted=False):
    """Write rows as a program in some country does."""
    out = io.StringIO()
    out.write(before)
    numbers = pl.selectors.float()
    text = rows.with_columns(numbers.map_elements(lambda value: f"{value:.3f}", return_dtype=pl.String))
    if comma:
        text = text.with_columns(pl.col(rows.select(numbers).columns).str.replace(".", ",", literal=True))
    text.write_csv(out, separator=delimiter, quote_style="always" if quoted else "necessary")
    return out.getvalue().encode(encoding)


def spelled(name, how):
    return {"as it is": name, "capitals": name.upper(), "title": name.title(), "spaces": f" {name} "}[how]


# -- layout ------------------------------------------------------------------------------------------------------------


@given(
    delimiter=st.sampled_from(",;\t| "),
    comma=st.booleans(),
    before=st.sampled_from(["", "# a logger, version 3\n", "# one\n# two; with: signs\n"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"]),
    quoted=st.booleans(),
    names=st.tuples(
        st.sampled_from(["t", "T", "timestamp", "Time", "Time (s)", "ts", "t_s", "Zeit [s]"]),
        st.sampled_from(["label", "Label", "CLASS", "target", "phase"]),
        st.sampled_from(["host", "Hostname", "MACHINE"]),
        st.sampled_from(["episode", "Session", "run_id", "Episode ID"]),
    ),
    order=st.permutations(range(5)),
)
@settings(max_examples=25, deadline=None)
def test_a_table_says_the_same_however_it_is_written(
    tmp_path_factory, delimiter, comma, before, encoding, quoted, names, order
):
    names = [name.replace(" ", "_") for name in names] if delimiter == " " and not quoted else list(names)
    rows = ROWS.rename(dict(zip(["t", "label", "host", "episode"], names, strict=True)))
    rows = rows.rename({"x": "größe"}).select(pl.nth(*order))
    path = tmp_path_factory.mktemp("written") / "a.csv"
    path.write_bytes(as_text(rows, delimiter=delimiter, comma=comma, before=before, encoding=encoding, quoted=quoted))
    table = whole(read_table(path, {}, ()))
    assert table.select("t", "host", "episode", "label", "größe").equals(ROWS.rename({"x": "größe"}))


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("1,0.5,normal\n2,0.25,normal\n3,0.5,attack\n", "does not name its columns: name all 3 with --columns"),
        ("x\n1\nb\n", "has one column"),
        ("", "holds no samples"),
        ("t,x,x,label\n1,2,3,a\n2,2,3,a\n", "are called 'x', and differ: leave the first out"),
        ("t;x;z;label\n1;1,5;1.234;a\n2;2,5;2.345;a\n", "'z' of {path} holds 1.234, which is a thousand or a fraction"),
        ('t,x,label\n1,"1,234",a\n2,"2,345",a\n', "'x' of {path} holds 1,234, which is a thousand or a fraction"),
        ("t\tx\tlabel\n1\t801\ta\n2\t1,345\ta\n", "'x' of {path} holds 1,345, which is a thousand or a fraction"),
        ("t;x;z;label\n1;1,801;1.5;a\n2;2,345;2.5;a\n", "'x' of {path} holds 1,801, which is a thousand or a"),
        ("t;x;z;label\n1;801;1,5;a\n2;1,345;2,5;a\n", "'x' of {path} holds 1,345, which is a thousand or a fraction"),
    ],
)
def test_a_table_that_two_readings_fit_is_refused(tmp_path, capsys, written, sentence):
    path = tmp_path / "a.csv"
    path.write_text(written)
    assert ingest.main([str(path), *CUT, "--out-dir", str(tmp_path / "o")]) == 65
    said = capsys.readouterr().err
    assert sentence.format(path=path) in said
    assert len(said.strip().splitlines()) == 2  # what it reads, and the sentence
    assert not (tmp_path / "o").exists()


def test_a_sign_between_thousands_goes_where_a_decimal_comma_shows_what_it_is(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("t;x;label\n1;1.234,5;a\n2;2 345,25;a\n3;1'000'000,0;b\n4;17;b\n")
    assert whole(read_table(path, {}, ()))["x"].to_list() == [1234.5, 2345.25, 1e6, 17.0]


def test_three_digits_behind_a_comma_are_decimals_where_another_column_shows_it(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("t;x;z;label\n1;1,234;0,5;a\n2;2,345;1,25;a\n")
    assert whole(read_table(path, {}, ()))["x"].to_list() == [1.234, 2.345]


@pytest.mark.parametrize("between", [",", ";", "\t"])
def test_a_point_behind_a_comma_shows_that_the_comma_is_of_thousands(tmp_path, between):
    path = tmp_path / "a.csv"
    lines = [("t", "x", "label"), *(("1", cell, "a") for cell in ('"1,234.5"', '"12,345,678"', "17", "-2.5"))]
    path.write_text("".join(between.join(line) + "\n" for line in lines))
    assert whole(read_table(path, {}, ()))["x"].to_list() == [1234.5, 12345678.0, 17.0, -2.5]


def test_how_it_was_read_is_said(ingested):
    path = ingested.tmp_path / "a.txt"
    rows = ROWS.rename({"t": "Zeit (ms)", "label": "Class"}).with_columns(pl.col("Zeit (ms)") * 1000)
    path.write_bytes(as_text(rows, delimiter=";", comma=True, before="# x\n", encoding="utf-16"))
    assert ingest.main([str(path), *CUT, "--out-dir", str(ingested.out)]) == 0
    said = ingested.capsys.readouterr().out
    assert "a.txt: 320 rows (semicolons between columns, UTF-16, 1 line before the names of the columns, " in said
    assert "decimal commas)" in said
    assert "Zeit (ms): time in ms, as its name says, host: host, episode: recording, Class: class" in said


# -- roles -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "said", "found"),
    [
        (["label", "y", "phase"], {}, Roles(columns={Role.LABEL: "label"}, second_labels=("y", "phase"))),
        (["year", "month", "day", "hour"], {}, Roles(columns={Role.TIME: "year"}, clock=("month", "day", "hour"))),
        (["x", "y", "z", "Class"], {}, Roles(columns={Role.LABEL: "Class"})),
        (["Class", "y"], {Role.LABEL: "Class"}, Roles(columns={Role.LABEL: "Class"}, second_labels=("y",))),
        (["bad", "subtype"], {Role.LABEL: "bad"}, Roles(columns={Role.LABEL: "bad"}, second_labels=("subtype",))),
        (["Date", "Time", "y"], {}, Roles(columns={Role.TIME: "Date", Role.LABEL: "y"}, clock=("Time",))),
        (["Date", "Time", "y"], {Role.TIME: "t_ns"}, "--time names 't_ns', which is no column of a.csv"),
        (["a", "Time (s)"], {Role.TIME: "a"}, "--time names 'a', and 'Time (s)' may mean the same: leave it out with"),
        (["a", "y"], {Role.TIME: "a", Role.LABEL: "a"}, "Two flags name one column"),
        (["time", "timestamp"], {}, "'timestamp' and 'time' may both be the time: say which with --time NAME"),
        (["Class", "target"], {}, "'target' and 'Class' may both be the label: say which with --label NAME"),
        (["Class", "y"], {}, "may both be the label"),
        (["label", "Label"], {}, "may both be the label"),
        (["host", "machine"], {}, "may both be the host: say which with --host-column NAME"),
        (["t_ns"], {}, Roles(columns={Role.TIME: "t_ns"}, unit="ns")),
        (["Time [µs]"], {}, Roles(columns={Role.TIME: "Time [µs]"}, unit="us")),
    ],
)  # fmt: skip
def test_columns_get_their_roles_by_their_names_or_by_flags(names, said, found):
    if isinstance(found, str):
        with pytest.raises(DataError) as refused:
            roles_of(names, said, "a.csv")
        assert found in str(refused.value)
    else:
        assert roles_of(names, said, "a.csv") == found


def test_a_unit_is_known_by_its_short_and_its_long_names():
    known = {
        "s": ["t_s", "t (sec)", "time.seconds"],
        "ms": ["t_MS", "t-msec", "Time [millis]", "time milliseconds"],
        "us": ["t_us", "t_usec", "Time (micros)", "t microseconds"],
        "ns": ["t_ns", "t_nsec", "t [nanos]", "t nanoseconds"],
        None: ["ms", "t_min", "items", "t_ms_x"],
    }
    assert {unit: [name for name in names if unit_in(name) == unit] for unit, names in known.items()} == known


@given(st.data())
def test_every_usual_name_is_its_role_alone_in_any_case(data):
    role = data.draw(st.sampled_from(list(Role)))
    name = data.draw(st.sampled_from(NAMES[role]))
    cased = "".join(data.draw(st.sampled_from([sign, sign.upper()])) for sign in name)
    other = "value" if role is Role.KEY else "q"
    assert roles_of([other, cased], {}, "a.csv").columns == {role: cased}


def test_flags_say_what_a_column_of_any_name_is(ingested):
    rows = ROWS.rename({"t": "when", "label": "what", "host": "where", "episode": "which"})
    flags = ("--time", "when", "--label", "what", "--host-column", "where", "--episode", "which")
    plain, named = ingested.taken(ROWS, *CUT), ingested.taken(rows, *CUT, *flags)
    assert named["schema_hash"] == plain["schema_hash"]
    assert {name: named[name] for name in ("hosts", "labels", "episodes")} == {
        name: plain[name] for name in ("hosts", "labels", "episodes")
    }
    assert "--label" in ingested.refused(rows, *CUT)
    beside = ROWS.with_columns(when=pl.col("t"), what=pl.col("label"))
    said = ingested.refused(beside, *CUT, "--time", "when", "--label", "what")
    assert "--time names 'when', and 't' may mean the same: leave it out with --ignore" in said
    found = ingested.taken(beside, *CUT, "--time", "when", "--label", "what", "--ignore", "t")
    assert found["schema_hash"] == plain["schema_hash"]
    assert "column label: a second label" in found["understood"]["left_out"]


# -- times -------------------------------------------------------------------------------------------------------------


STAMPS = [BEGIN + dt.timedelta(seconds=7 * 3600 + 1.25 * number) for number in range(40)]


@pytest.mark.parametrize(
    "written",
    [
        lambda stamp: stamp.isoformat(),
        lambda stamp: stamp.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        lambda stamp: stamp.strftime("%Y-%m-%d %H:%M:%S.%f"),
        lambda stamp: stamp.strftime("%Y-%m-%d %H:%M:%S.%f UTC"),
        lambda stamp: stamp.strftime("%Y/%m/%d %H:%M:%S,%f"),
        lambda stamp: stamp.strftime("%d.%m.%Y %H:%M:%S,%f"),
        lambda stamp: stamp.strftime("%d/%m/%Y %H:%M:%S.%f"),
        lambda stamp: stamp.strftime("%m/%d/%Y %H:%M:%S.%f"),
        lambda stamp: stamp.strftime("%m/%d/%Y %I:%M:%S.%f %p"),
        lambda stamp: stamp.astimezone(dt.timezone(dt.timedelta(hours=-7))).isoformat(),
        lambda stamp: str(stamp.timestamp()),
        lambda stamp: stamp.timestamp() * 1e3,
        lambda stamp: stamp.timestamp() * 1e6,
        lambda stamp: int(stamp.timestamp() * 1e3) * 10**6,
    ],
)
def test_a_time_is_the_same_in_any_form(written):
    seconds, _ = from_column(pl.Series("when", [written(stamp) for stamp in STAMPS]), SaidTimes(), "a.csv")
    np.testing.assert_allclose(seconds, [stamp.timestamp() for stamp in STAMPS], atol=1e-3, rtol=0)


def test_dates_before_1970_are_seconds_below_zero():
    days = pl.Series("day", ["1969-12-31", "1821-01-01"])
    assert from_column(days, SaidTimes(), "a.csv")[0].tolist() == [-86_400.0, -4_701_974_400.0]


@pytest.mark.parametrize(
    ("values", "said", "sentence"),
    [
        (["03/04/2026 07:00:00", "03/05/2026 07:00:00"], SaidTimes(), "may be the day or the month: say it with"),
        (["13/14/2026 07:00:00"], SaidTimes(), "may be the day or the month"),
        (["2026-13-04 07:00:00"], SaidTimes(), "holds '2026-13-04 07:00:00', which is no date: say the format"),
        (["1669-01-01"], SaidTimes(format="%Y-%m-%d"), "of the year 1669: bring years of 1700 to 2099, or numbers"),
        (["yesterday"], SaidTimes(), "must hold times: numbers, or dates such as"),
        (["04.03.26"], SaidTimes(format="%d.%m.%Y"), "holds dates of the year 26: say their format (a year of two"),
        (["04.03.26"], SaidTimes(format="%d-%m-%y"), "which is no date: say the format"),
        ([1.0], SaidTimes(format="%d.%m.%Y"), "so --time-format has no effect"),
        ([1e11], SaidTimes(), "holds no usual seconds: say its unit with --t-unit"),
    ],
)  # fmt: skip
def test_times_that_two_readings_fit_are_refused(values, said, sentence):
    with pytest.raises(DataError) as refused:
        from_column(pl.Series("when", values), said, "a.csv")
    assert sentence in str(refused.value)
    assert str(refused.value).startswith("The column 'when' of a.csv")


def test_dates_that_are_written_as_numbers_need_their_format():
    column = pl.Series("t", [20261120000000, 20261120000001])
    with pytest.raises(DataError, match="its form with --time-format %Y%m%d%H%M%S"):
        from_column(column, SaidTimes(), "a.csv")
    found, role = from_column(column, SaidTimes(format="%Y%m%d%H%M%S"), "a.csv")
    assert (found - BEGIN.timestamp()).tolist() == [0.0, 1.0]
    assert role == "dates, read as UTC"


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize(("kind", "role"), [("datetime64", NO_ZONE), ("timedelta64", "durations")])
def test_dates_and_durations_of_an_archive_are_seconds_whatever_their_unit(unit, kind, role):
    values = np.array([0, 7, 90]).astype(f"{kind}[s]").astype(f"{kind}[{unit}]")
    seconds, said = from_array(values, None, "a.npz")
    assert (seconds.tolist(), said) == ([0.0, 7.0, 90.0], role)


def test_the_unit_that_is_said_prevails_over_the_columns_name():
    column = pl.Series("t_ms", [0.0, 2000.0])
    assert from_column(column, SaidTimes(named="ms"), "a.csv")[0].tolist() == [0.0, 2.0]
    assert from_column(column, SaidTimes(unit="s", named="ms"), "a.csv")[0].tolist() == [0.0, 2000.0]


@given(dated=st.lists(st.integers(0, 5), min_size=3, max_size=3))
def test_hosts_are_on_one_clock_by_most_of_their_times(dated):
    """Some samples of a machine that has just started may be of 1970."""
    host = np.repeat(["a", "b", "c"], 5)
    t = np.where(np.tile(np.arange(5), 3) < np.repeat(dated, 5), 1.7e9, 7.0)
    if len({count > 2 for count in dated}) == 1:
        check_one_clock(t, Coded.of(host))
    else:
        with pytest.raises(DataError, match="bring all hosts to one clock"):
            check_one_clock(t, Coded.of(host))


def test_a_format_says_what_days_and_months_are():
    said = SaidTimes(format="%m/%d/%Y %H:%M:%S")
    seconds, _ = from_column(pl.Series("t", ["03/04/2026 07:00:00"]), said, "a.csv")
    assert seconds[0] == dt.datetime(2026, 3, 4, 7, tzinfo=dt.UTC).timestamp()


def test_a_date_and_a_time_of_day_are_one_time(ingested):
    stamp = pl.from_epoch(pl.col("t") + BEGIN.timestamp())
    day, hour = stamp.dt.strftime("%d.%m.%Y"), stamp.dt.strftime("%H:%M:%S")
    rows = ROWS.with_columns(Date=day, Time=hour).drop("t")
    found = ingested.taken(rows, *CUT)
    assert found["understood"]["roles"]["Time"] == "time of day"
    assert ingested.load().rows.t_start.min() == BEGIN.timestamp()
    said = ingested.refused(rows.with_columns(Time=pl.int_range(pl.len())), *CUT)
    assert "'Date' and 'Time' may both be the time" in said


# -- what a flag settles, or a sentence --------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", ["UTC+2", "GMT+02:00", " utc+0200", "+02:00"])
def test_an_offset_may_follow_utc(offset):
    stamps = pl.Series("t", [f"2026-11-20 09:29:0{n} {offset}" for n in "34"])
    seconds, role = from_column(stamps, SaidTimes(), "a")
    assert seconds.tolist() == [dt.datetime(2026, 11, 20, 7, 29, n, tzinfo=dt.UTC).timestamp() for n in (3, 4)]
    assert role == "dates with a time zone"


@pytest.mark.parametrize(
    ("form", "written"),
    [
        (None, "2026-12-31 {}:00"),
        (None, "2026-12-31T{}:00:00.0Z"),
        (None, "12/31/2026 {}:00:00"),
        ("%d %m %Y %H:%M", "31 12 2026 {}:00"),
    ],
)
def test_hour_24_is_the_midnight_after_its_date(form, written):
    seconds, _ = from_column(pl.Series("t", [written.format(hour) for hour in (23, 24)]), SaidTimes(format=form), "a")
    end = dt.datetime(2027, 1, 1, tzinfo=dt.UTC).timestamp()
    assert seconds.tolist() == [end - 3600, end]
    with pytest.raises(DataError, match=r"holds '.*24.30.*', which is no date: say the format"):
        from_column(pl.Series("t", [written.format("24:30")]), SaidTimes(format=form), "a")


def test_minutes_before_an_hour_are_no_hour_24():
    seconds, _ = from_column(pl.Series("t", ["2026-12-31 05 24:00"]), SaidTimes(format="%Y-%m-%d %H %M:%S"), "a")
    assert seconds[0] == dt.datetime(2026, 12, 31, 5, 24, tzinfo=dt.UTC).timestamp()


@pytest.mark.parametrize("zone", ["CEST", "EST", "Europe/Berlin"])
def test_a_zone_by_its_name_is_refused_by_its_name(zone):
    with pytest.raises(DataError, match=f"names its time zone {zone}, .* with their offset"):
        from_column(pl.Series("t", [f"2026-11-20 09:29:03 {zone}"]), SaidTimes(), "a.csv")


def test_half_days_are_no_zones():
    seconds, _ = from_column(pl.Series("t", ["11/20/2026 7:29:03 PM", "11/20/2026 7:29:04 PM"]), SaidTimes(), "a.csv")
    assert seconds[1] - seconds[0] == 1


@pytest.mark.parametrize(("decimal", "values"), [("comma", [1.234, 2.345]), ("point", [1234, 2345])])
def test_a_flag_says_what_a_comma_before_three_digits_is(tmp_path, decimal, values):
    path = tmp_path / "a.csv"
    path.write_text("t;x;label\n1;1,234;a\n2;2,345;a\n")
    with pytest.raises(DataError, match="--decimal comma \\(or point\\)"):
        read_table(path, {}, ())
    read = read_table(path, {}, (), decimal={"comma": ",", "point": "."}[decimal])
    assert whole(read).select("x", "t").to_dict(as_series=False) == {"x": values, "t": ["1", "2"]}


def test_points_between_thousands_beside_decimal_commas_that_are_said(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("t;x;label\n1;1.234;a\n2;12.345;a\n")
    assert whole(read_table(path, {}, (), decimal=","))["x"].to_list() == [1234, 12345]
    assert whole(read_table(path, {}, ()))["x"].to_list() == [1.234, 12.345]
    recordings().write_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="leave --decimal out"):
        read_table(tmp_path / "a.parquet", {}, (), decimal=",")


def test_the_hour_that_spring_leaves_out_is_noted(ingested):
    begin = dt.datetime(2026, 3, 29, 1, tzinfo=dt.UTC).timestamp()
    rows = recordings("a", 1, samples=240).drop("episode", "host")
    local = begin + 30 * np.arange(240.0) + np.where(np.arange(240) >= 120, 3600, 0)
    text = [dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%d %H:%M:%S") for at in local]
    cut = ("--window-s", "120")
    notes = ingested.taken(rows.with_columns(t=pl.Series(text)), *cut)["understood"]["notes"]
    assert any("the hour that clocks leave out in spring" in note for note in notes)
    later = [dt.datetime.fromtimestamp(at + 7 * 86_400 + 3600, dt.UTC).strftime("%Y-%m-%d %H:%M:%S") for at in local]
    notes = ingested.taken(rows.with_columns(t=pl.Series(later)), *cut)["understood"]["notes"]
    assert not any("in spring" in note for note in notes)


def test_a_table_without_times_or_labels_is_told_the_flags(ingested):
    rows = recordings()
    assert "--window-column NAME if they are cut into windows already" in ingested.refused(rows.drop("t"), *CUT)
    assert "--window-column NAME" in ingested.refused(rows.with_columns(t=pl.lit(5)), *CUT)
    halves = rows.with_columns(label=pl.int_range(pl.len()) / 7)
    assert "bring a log of incidents with --labels-from" in ingested.refused(halves, *CUT)
