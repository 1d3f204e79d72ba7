"""Tables of which a number, a time or a host may mean two things: what is refused, and what a flag decides."""

import datetime as dt

import numpy as np
import polars as pl
import pytest
from ingest_builders import whole

from training.data.errors import DataError
from training.data.ingest.roles import Role, roles_of
from training.data.ingest.tables import read_table

pytestmark = pytest.mark.half


@pytest.mark.parametrize(
    "cells", [("987", "1.234"), ("1.234.567", "2.345.678"), ("-3", "-1.234"), ("NA", "7", "1.234")]
)
def test_points_between_thousands_are_no_fractions_before_that_is_said(tmp_path, cells):
    path = tmp_path / "a.csv"
    path.write_text("t;x;label\n" + "".join(f"{t};{cell};a\n" for t, cell in enumerate(cells)))
    with pytest.raises(DataError, match=f"'x' of {path} holds -?1.234.*, which is a thousand or a fraction"):
        read_table(path, {}, ())
    known = [float(cell.replace(".", "")) for cell in cells if cell != "NA"]
    assert [x for x in whole(read_table(path, {}, (), decimal=","))["x"] if not np.isnan(x)] == known


def test_points_that_are_said_to_be_decimal_stay(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("t;x;label\n1;987;a\n2;1.234;a\n")
    assert whole(read_table(path, {}, (), decimal="."))["x"].to_list() == [987.0, 1.234]


@pytest.mark.parametrize(
    "cells",
    [("0.125", "1.500"), ("1.500", "12.25"), ("1.234", "2.345"), ("1", "0.125"), ("1234", "1.234"), ("987", "9")],
)
@pytest.mark.parametrize("between", [";", ","])
def test_usual_decimal_points_are_not_doubted(tmp_path, cells, between):
    path = tmp_path / "a.csv"
    lines = [("t", "x", "label"), *((str(t), cell, "a") for t, cell in enumerate(cells))]
    path.write_text("".join(between.join(line) + "\n" for line in lines))
    assert whole(read_table(path, {}, ()))["x"].to_list() == [float(cell) for cell in cells]


def samples(t, name="t"):
    """A table of one host, with a class for each half."""
    noise = np.random.default_rng(7).normal(size=(len(t), 2))
    label = np.where(np.arange(len(t)) // 40 % 2 == 1, "attack", "normal")
    return pl.DataFrame({name: t, "label": label, "cpu": noise[:, 0], "mem": noise[:, 1]})


@pytest.mark.parametrize(
    ("name", "flags", "unit", "step"),
    [
        ("time (min)", (), "min", 60.0),
        ("minute", ("--time", "minute"), "min", 60.0),
        ("t_min", ("--time", "t_min"), "min", 60.0),
        ("elapsed_h", (), "h", 3600.0),
        ("hours", ("--time", "hours"), "h", 3600.0),
        ("t_days", (), "d", 86_400.0),
    ],
)
def test_minutes_hours_and_days_are_known_by_the_columns_name(ingested, name, flags, unit, step):
    found = ingested.taken(samples(np.arange(160.0), name), "--window-s", str(8 * step), *flags)
    assert found["understood"]["roles"][name] == f"time in {unit}, as its name says"
    assert ingested.load().schema.sample_hz == pytest.approx(1 / step, rel=1e-5)


def test_a_unit_of_minutes_can_be_said(ingested):
    found = ingested.taken(samples(np.arange(160.0) * 5), "--window-s", "2400", "--t-unit", "min")
    assert found["understood"]["roles"]["t"] == "time in min, as --t-unit says"


def test_the_least_of_something_is_no_time():
    found = roles_of(["t", "t_min", "t_max", "cpu_h", "label"], {}, "a table")
    assert (found.columns[Role.TIME], found.unit) == ("t", None)


@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M:%S", "%m/%d/%Y %H:%M:%S", None])
def test_dates_may_be_far_apart(ingested, form):
    stamps = pl.Series([dt.datetime(2026, 11, 20, tzinfo=dt.UTC) + dt.timedelta(minutes=5 * n) for n in range(160)])
    rows = samples(stamps.dt.replace_time_zone(None) if form is None else stamps.dt.strftime(form))
    ingested.taken(rows, "--window-s", "2400")
    assert ingested.load().schema.sample_hz == pytest.approx(1 / 300, rel=1e-5)
    assert ingested.refused(rows, "--window-s", "8").endswith("holds none: change --window-s.\n")


BEGIN = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)


def logged(ingested, rows, *, form="%Y-%m-%d %H:%M:%S", **more):
    """The flags for a log of an attack in the last half of each recording of ``rows``, with other columns."""
    end = len(rows)
    times = [(BEGIN + dt.timedelta(seconds=second)).strftime(form) for second in (end // 2, end)]
    log = pl.DataFrame({"start": times[:1], "end": times[1:], "label": ["attack"]})
    log = pl.concat([log.with_columns(host=pl.lit(host)) for host in more["host"]]) if more else log
    log.write_csv(ingested.tmp_path / "log.csv")
    return ("--window-s", "8", "--rest", "normal", "--labels-from", str(ingested.tmp_path / "log.csv"))


def dated(form="%Y-%m-%d %H:%M:%S", **more):
    stamps = [(BEGIN + dt.timedelta(seconds=second)).strftime(form) for second in range(160)]
    return samples(stamps).drop("label").with_columns(**{name: pl.lit(value) for name, value in more.items()})


ODD = "%d.%m.%y %H:%M:%S"


@pytest.mark.parametrize(("of_table", "of_log"), [(None, ODD), (ODD, None), (ODD, ODD)])
def test_a_format_is_of_the_table_or_of_its_log_or_of_both(ingested, of_table, of_log):
    forms = [{} if form is None else {"form": form} for form in (of_table, of_log)]
    rows = dated(**forms[0])
    flags = logged(ingested, rows, **forms[1])
    assert "--time-format" in ingested.refused(rows, *flags)
    assert ingested.taken(rows, *flags, "--time-format", ODD)["understood"]["classes"] == {"attack": 19, "normal": 19}


def test_a_format_that_neither_the_table_nor_its_log_has_is_refused(ingested):
    rows = dated()
    assert "has no effect on the times of" in ingested.refused(rows, *logged(ingested, rows), "--time-format", ODD)


@pytest.mark.parametrize("cell", ["web1,web2", "web1;web9", "web1 web2", "['WEB1', 'web2']", "web1 and web2:9100"])
def test_several_hosts_in_a_cell_are_refused(ingested, cell):
    rows = pl.concat([dated(host="web1"), dated(host="web2")])
    said = ingested.refused(rows, *logged(ingested, dated(), host=["web1", cell]))
    assert f"log.csv names several hosts in one cell, {cell!r}: write a row for each of them." in said


def test_a_table_without_hosts_is_told_the_flag_for_a_log_with_hosts(ingested):
    rows = dated(device="web1")
    flags = logged(ingested, dated(), host=["db1", "web1"])
    said = ingested.refused(rows, *flags)
    assert "log.csv names hosts (db1, web1)" in said
    assert "has no column of hosts: name it with --host-column NAME" in said
    ingested.taken(rows, *flags, "--host-column", "device")


LINES = ["t,host,label,cpu", *(f"{t},a,{'normal' if t < 40 else 'attack'},{t % 7}.5" for t in range(80))]


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([*LINES, "(80 rows affected)"], "line 82 has 1 by commas where most have 4: fix that line, or take it out."),
        ([*LINES, "", "(80 rows affected)"], "line 83 has 1 by commas where most have 4"),
        ([*LINES[:-1], "79,a,at"], "line 81 has 3 by commas where most have 4"),
        (
            ["# a remark", *LINES[:20], '20,"a,b",normal,2.5,9', *LINES[21:]],
            "line 22 has 5 by commas where most have 4",
        ),
        (["t,host,label", *LINES[1:]], "line 1 has 3 by commas where most have 4, and the first line must name each"),
        (["A test", *(line.replace(",", "\t") for line in LINES)], "line 1 has 1 by tabs where most have 4, and"),
    ],
)
def test_a_line_of_another_number_of_columns_is_named(tmp_path, lines, sentence):
    path = tmp_path / "a.csv"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError) as refused:
        read_table(path, {}, ())
    assert f"{path} has lines of unlike numbers of columns: {sentence}" in str(refused.value)


def test_a_log_of_the_performance_monitor_is_told_its_flag(tmp_path):
    path = tmp_path / "desk.csv"
    rows = "".join(f'"11/20/2026 07:00:{second:02d}.000","{second}.5"\n' for second in range(30))
    path.write_text('"(PDH-CSV 4.0) (UTC)(0)","\\\\DESK\\Memory\\Available Bytes"\n' + rows)
    with pytest.raises(DataError, match=f"read it with --perfmon {path}"):
        read_table(path, {}, ())
    assert whole(read_table(path, {Role.TIME: "(PDH-CSV 4.0) (UTC)(0)"}, ())).height == 30
