"""Long tables, in which each row holds one reading of one of several series, and a column names the series.

Read as one machine, the readings of unlike sensors would follow each other in one channel. So a column that looks like
the names of series is refused until a flag says what it names: hosts (``--host-column``), or channels of one host
(``--key``), which :func:`widened` brings side by side. All functions but :func:`check_series` are pure.
"""

import re
from dataclasses import replace

import numpy as np

from training.data.coded import Coded
from training.data.errors import DataError
from training.data.ingest.columns import Wanted
from training.data.ingest.numerals import Kind
from training.data.ingest.roles import Role, plain
from training.data.ingest.rows import INTERLEAVED_MIN, INTERLEAVED_ROWS, SampleRows
from training.data.ingest.tables import Stored
from training.data.values import AnyArray, Bools, Codes, Floats, Names

ID = re.compile(r"(^|.*[\s_.\-])(p|t|u)?id|.*[a-z]I[dD]|.*[A-Z] ?ID", re.DOTALL)
ID_WORDS = {f"{word}id" for word in ("item", "mote", "device", "sensor", "meter", "station", "tag", "series", "unit")}
ROWS_MIN = 4  # of each series, on average
TURNS = 0.5  # share of the steps from row to row at which the series changes
CLOSER = 0.5  # of the step from row to row: a series' own step is smaller
SLOT = 0.75  # of a series' step: what follows later is of its next turn


def check_series(table: Stored, wanted: Wanted) -> None:
    """Raise DataError if a channel is a number of several series by its name, or if a channel or a column that --ignore
    names tells apart series whose rows stand in turn. Columns that --level names are not judged."""
    if Role.KEY in table.columns or Role.TIME not in table.columns:
        return
    whole = [name for name in table.channels if table.kinds[name].kind is Kind.WHOLE and name not in wanted.level]
    judged = [*whole, *(name for name in wanted.ignore if name in table.store.names)]
    if not judged:
        return
    ids = [f"CAST({table.store.column(name)} AS VARCHAR)" for name in judged]
    values = [f"coalesce({table.kinds[name].number}, 'nan'::DOUBLE)" for name in table.channels]
    of_one = [f"CAST({table.cell(role)} AS VARCHAR)" for role in (Role.HOST, Role.EPISODE) if role in table.columns]
    time = f"CAST({table.cell(Role.TIME)} AS VARCHAR)"
    _, found = next(table.store.parts([*ids, *values, *of_one, time], INTERLEAVED_ROWS))
    cells = [np.ma.getdata(column) for column in found]
    first = np.logical_and.reduce([column == column[0] for column in cells[len(ids) + len(values) : -1]] or [True])
    cells = [column[np.broadcast_to(first, column.shape)] for column in cells]
    readings, t = dict(zip(table.channels, cells[len(ids) :], strict=False)), cells[-1]
    for name, column in zip(judged, cells, strict=False):
        others = [reading for other, reading in readings.items() if other != name]
        count = np.unique(column.astype(str)).size
        if not 2 <= count <= column.size / ROWS_MIN:
            continue
        by_name = name in whole and (ID.fullmatch(name) or plain(name) in ID_WORDS)
        if by_name or stand_in_turn(column.astype(str), others, t.astype(str)):
            instead = "in place of --ignore" if name in wanted.ignore else f"or --level {name} if it is measured itself"
            raise DataError(
                f"The column {name!r} of {table.path} tells apart {count:,} series, whose rows stand in one table: say "
                f"--host-column {name} if each is a machine, or --key {name} if each is a channel of one, {instead}."
            )


def stand_in_turn(ids: Names, readings: list[AnyArray], t: Names) -> bool:
    """Return True if ``ids`` seem to name series whose rows alternate: at half of the times, rows of several follow;
    or half of the ``readings`` that move do so far less inside a series than from row to row."""
    changes = ids[1:] != ids[:-1]
    if ids.size < INTERLEAVED_MIN or changes.mean() < TURNS:
        return False
    if (t[1:] == t[:-1]).mean() >= TURNS and np.unique(np.stack([t, ids]), axis=1).shape[1] == ids.size:
        return True
    order = np.argsort(ids, kind="stable")
    same = ids[order][1:] == ids[order][:-1]
    moving = closer = 0
    for reading in readings:
        near = _usual(np.diff(reading))
        moving += near > 0
        closer += _usual(np.diff(reading[order])[same]) < CLOSER * near
    return bool(moving and 2 * closer >= moving)


def _usual(steps: Floats) -> float:
    known = np.abs(steps[np.isfinite(steps)])
    return float(np.median(known)) if known.size else 0.0


def widened(rows: SampleRows, key: Coded, names: list[str]) -> tuple[SampleRows, list[str]]:
    """Return a row for each turn of the series, with a channel for each series and column, and the channels' names.

    The rows are sorted, ``key`` names the series of each, and ``names`` has their columns. A turn's row has the time of
    its first reading. A turn whose readings differ in label is left out. A series without a reading in a turn has NaN.
    """
    group = rows.recording
    begins = turns(rows.clock, key.codes, group)
    of = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    torn = np.zeros(first.size, bool)
    torn[of[rows.label != rows.label[first][of]]] = True
    wide = rows.room.empty((first.size, key.names.size * len(names)), rows.values.dtype, "F")
    wide[:] = np.nan
    for place in range(len(names)):
        wide[of, key.codes * len(names) + place] = rows.values[:, place]
    said = [str(one) if len(names) == 1 else f"{one} {name}" for one in key.names.tolist() for name in names]
    found = rows.at(first, wide)
    left_out = rows.left_out
    if torn.any():
        left_out = (*left_out, f"{int(torn.sum()):,} of {first.size:,} turns of the series: readings of several labels")
        found = found.at(np.flatnonzero(~torn))
    return replace(found, left_out=left_out), said


def turns(t: Floats, key: Codes, group: Codes) -> Bools:
    """Return a mask of the rows at which a turn begins: another recording, a series that the turn has already, or a
    time later than ``SLOT`` of a series' usual step (than the turn's first, if most rows share their time with
    another)."""
    order = np.lexsort((t, key, group))
    steps = np.diff(t[order])[(np.diff(key[order]) == 0) & (np.diff(group[order]) == 0)]
    shared = (np.diff(t) == 0).mean() >= TURNS if t.size > 1 else True
    most = 0.0 if shared or not (steps > 0).any() else SLOT * float(np.median(steps[steps > 0]))
    begins = np.zeros(t.size, bool)
    since, of, seen = -np.inf, -1, set[int]()
    for row, (at, series, recording) in enumerate(zip(t.tolist(), key.tolist(), group.tolist(), strict=True)):
        if recording != of or series in seen or at - since > most:
            begins[row] = True
            since, of, seen = at, recording, set()
        seen.add(series)
    return begins
