"""Tables of which a number, a time or a host may mean two things: what is refused, and what a flag decides."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from training.data.errors import DataError
from training.data.ingest.roles import Role
from training.data.ingest.tables import read_table


def whole(table):
    """A table that was read, as it would be in memory."""
    roles = [name for name in table.columns if name not in table.channels]
    meant = {name: pl.concat(table.parts(Role(name))) for name in roles}
    return pl.DataFrame(meant | {name: table.values[:, place] for place, name in enumerate(table.channels)})


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
