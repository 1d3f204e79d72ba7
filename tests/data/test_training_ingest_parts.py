"""Tables larger than memory: whatever a part's size, what comes out is the same, or the same sentence."""

from dataclasses import fields
from functools import partial
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_changes import in_question, recordings

from training.data import absent, identity
from training.data.absent import lacking_hosts, settled
from training.data.coded import Coded
from training.data.doubts import confounded, ids_and_totals
from training.data.errors import DataError
from training.data.ingest import even
from training.data.ingest.columns import Wanted
from training.data.ingest.ingested import SaidClasses, without_missing
from training.data.ingest.rows import WindowCut
from training.data.ingest.samples import read_long
from training.data.ingest.times import SaidTimes as Clock
from training.data.ingest.times import from_parts
from training.data.meter import STEPS, Meter
from training.data.rows import Rows
from training.data.scratch import WorkingMemory, blocks

CELLS = {
    "numbers": lambda n: str(n % 7),
    "a fraction at the end": lambda n: "2.5" if n > 300 else str(n % 5),
    "nothing at first": lambda n: "" if n < 200 else f"{n % 3}.5",
    "a word for nothing": lambda n: "NA" if n % 50 == 49 else f"{n % 9}.25",
    "spaces": lambda n: f" {n % 4} " if n > 160 else str(n % 6),
    "thousands": lambda n: f'"1,{n % 10}00.5"',
    "yes and no": lambda n: "true" if n % 3 else "false",
    "yes, and a number": lambda n: "true" if n < 300 else "7",
    "text at the end": lambda n: "broken" if n == 317 else str(n),
    "large at the end": lambda n: "99999999999999999999" if n > 310 else str(n % 8),
    "nothing": lambda _: "",
}


@st.composite
def tables(draw):
    """Text of 320 rows: in any order, with quoted line ends, copies, doubles, jitter, and columns of odd types."""
    rows = recordings()
    seed = draw(st.integers(0, 99))
    rng = np.random.default_rng(seed)
    if draw(st.booleans()):
        rows = rows.with_columns(t=pl.col("t") + pl.Series(rng.random(rows.height) * 0.3))
    odd = draw(st.lists(st.sampled_from(sorted(CELLS)), min_size=1, max_size=3, unique=True))
    cells = [pl.Series(f"z{place}", [CELLS[one](n) for n in range(rows.height)]) for place, one in enumerate(odd)]
    rows = rows.with_columns(pl.col("x").cast(pl.String), *cells)
    if draw(st.booleans()):
        rows = pl.concat([rows, rows[: draw(st.integers(1, 50))], rows[[5, 70, 200]].with_columns(x=pl.lit("0.5"))])
    if draw(st.booleans()):
        rows = rows.sample(fraction=1, shuffle=True, seed=seed)
    host = '"web\n{}"' if draw(st.booleans()) else "web{}"
    lines = [",".join(rows.columns)]
    lines += [
        ",".join(host.format(cell) if name == "host" else str(cell) for name, cell in row.items())
        for row in rows.iter_rows(named=True)
    ]
    lines.insert(draw(st.integers(1, len(lines))), draw(st.sampled_from(["", lines[-1]])))
    return "\n".join(lines) + draw(st.sampled_from(["", "\n"]))


def outcome(path, room, flags):
    """The result of reading, as far as it can be compared: fields by name, or the sentence."""
    try:
        found = read_long(
            [path], WindowCut(window_s=8.0), said=SaidClasses(), wanted=Wanted(**flags), roles={}, room=room
        )
        found = without_missing(found, most=0.2, drop=False, room=room)
    except DataError as error:
        return str(error)
    shown = {field.name: getattr(found, field.name) for field in fields(found)}
    return {name: value.tobytes() if isinstance(value, np.ndarray) else value for name, value in shown.items()}


@given(
    text=tables(), part=st.integers(700, 6000), flags=st.sampled_from([{}, {"counter": ("x",)}, {"ignore": ("z0",)}])
)
@settings(max_examples=8, deadline=None)
def test_any_size_of_part_gives_the_same(tmp_path_factory, text, part, flags):
    folder = tmp_path_factory.mktemp("parts")
    path = folder / "a.csv"
    path.write_text(text)
    assert outcome(path, WorkingMemory(part_bytes=part, folder=folder), flags) == outcome(path, WorkingMemory(), flags)


@pytest.mark.half
@pytest.mark.parametrize("odd", sorted(CELLS))
def test_columns_of_odd_cells_are_the_same_in_small_parts(tmp_path, odd):
    """The property above draws few of them; in parts of some rows a column may be now of one type, now of another."""
    path = tmp_path / "a.csv"
    recordings().with_columns(z=pl.Series([CELLS[odd](n) for n in range(320)])).write_csv(path, quote_style="never")
    assert outcome(path, WorkingMemory(part_bytes=2000, folder=tmp_path), {}) == outcome(path, WorkingMemory(), {})


@pytest.mark.half
@pytest.mark.parametrize("part", [100, 2000])
def test_parquet_in_parts_gives_what_text_gives(tmp_path, part):
    rows = recordings().with_columns(x=pl.when(pl.int_range(pl.len()) % 40 == 7).then(None).otherwise(pl.col("x")))
    rows.write_csv(tmp_path / "a.csv")
    rows.write_parquet(tmp_path / "a.parquet", row_group_size=37)
    whole, parts = (
        outcome(tmp_path / name, WorkingMemory(part_bytes=size, folder=tmp_path), {})
        for name, size in (("a.csv", 1 << 20), ("a.parquet", part))
    )
    assert whole | {"source": ""} == parts | {"source": ""}
    assert {path.name for path in tmp_path.iterdir()} == {"a.csv", "a.parquet"}


def test_progress_is_told_and_ends(tmp_path):
    recordings().write_csv(tmp_path / "a.csv")
    told = []
    room = WorkingMemory(part_bytes=4000, folder=tmp_path, progress=lambda what, share: told.append((what, share)))
    read_long([tmp_path / "a.csv"], WindowCut(window_s=8.0), said=SaidClasses(), wanted=Wanted(), roles={}, room=room)
    steps = list(dict.fromkeys(what for what, _ in told))
    assert steps == ["looking at the columns", "reading times and names", "reading", "sorting", "cutting"]
    for step in steps:
        shares = [share for what, share in told if what == step]
        assert shares == sorted(shares)
        assert shares[-1] == 1


@given(seed=st.integers(0, 99), part=st.integers(1, 3000))
@settings(max_examples=30, deadline=None)
def test_windows_are_judged_alike_in_any_blocks(seed, part):
    rng = np.random.default_rng(seed)
    n, names = 30, list("abcdefgh")
    recording = rng.integers(0, 4, n)
    X = np.stack([rng.random((n, 5)), np.cumsum(np.ones((n, 5)), 1) + 5 * np.arange(n)[:, None]] * 3, axis=1)
    X[:, 2] = recording[:, None]
    X[:, 3] = -X[:, 1]
    X[:, 4] = np.where(rng.random(n) < 0.03, 0.0, X[:, 1].T).T
    X[rng.random((n, 6)) < 0.1] = np.nan
    X = np.concatenate([X, X[:, [0, 2]]], axis=1)
    X, host = X.astype(np.float32), (recording % 2).astype(str)
    given = {"episode": recording.astype(str), "host": host, "label": np.arange(n) % 2, "t_start": np.arange(n)}
    windows = in_question(X, names, **given)

    def judged():
        lacks = lacking_hosts(settled(X), host).tolist()
        return ids_and_totals.suspects(windows), confounded.doubled_channels(windows), lacks

    once = judged()
    assert len(once[1]) == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids_and_totals, "PART_BYTES", part)
        for module in (absent, confounded):
            patch.setattr(module, "blocks", partial(blocks, part_bytes=part))
        assert judged() == once


def cut_at(values, cuts):
    """A column in pieces, none of them empty."""
    edges = sorted({0, *(cut for cut in cuts if cut < len(values)), len(values)})
    return [pl.Series("t", values[low:high]) for low, high in pairwise(edges)]


@pytest.mark.parametrize("form", ["{:02}/01/2026 07:00", "1/{}/2026 3:00 PM", "{}.1.2026", "2026-01-{:02}T07:00:03Z"])
@pytest.mark.parametrize("beyond", range(5))
def test_dates_are_read_alike_in_any_parts(form, beyond):
    """One day beyond the twelfth, in whichever part, says for all which number is the month; without it none does."""

    def read(parts):
        try:
            seconds, role = from_parts(lambda: parts, Clock(), "a.csv")
        except DataError as error:
            return str(error)
        return seconds.tolist(), role

    written = [form.format(13 if place == beyond else day) for place, day in enumerate([2, 5, 12, 3])]
    whole = read([pl.Series("t", written)])
    assert all(read(cut_at(written, cuts)) == whole for cuts in ([1, 2, 3], [1], [2], [3]))
    assert isinstance(whole, str) == (beyond == 4 and "/" in form)


@given(st.lists(st.sampled_from(["b", "a", "c", "ä", "10", "9"]), min_size=1), st.lists(st.integers(1, 20), max_size=3))
def test_names_are_numbered_alike_in_any_parts(words, cuts):
    whole, parts = Coded.of(words), Coded.of_series(cut_at(words, cuts))
    assert parts.names.tolist() == whole.names.tolist() == sorted(set(words))
    assert parts.codes.tolist() == whole.codes.tolist()
    assert parts.strings().tolist() == words


@given(times=st.lists(st.integers(0, 6), min_size=1, max_size=40), part=st.integers(1, 500))
@settings(max_examples=40)
def test_copies_are_found_in_any_parts(times, part):
    t = np.array(times, dtype=np.float64)
    values = np.stack([t % 2, np.arange(t.size) % 3.0], axis=1)
    once = even.first_of_copies(values, t)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(even, "PART_BYTES", part)
        assert np.array_equal(even.first_of_copies(values, t), once)


def test_kin_are_the_same_where_their_digests_lie_in_a_file(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.random((40, 2, 8), dtype=np.float32)
    X[30:] = X[:10]
    rows = Rows.of(episode=(np.arange(40) // 10).astype(str), host=["h"] * 40, label=np.zeros(40, dtype=int))
    once = identity.find_kin(X, ["a", "b"], rows)
    monkeypatch.setattr(identity, "ROOM", WorkingMemory(part_bytes=64, folder=tmp_path))
    monkeypatch.setattr(identity, "BLOCK_VALUES", 20)
    again = identity.find_kin(X, ["a", "b"], rows)
    assert (again.equal, again.sharing, again.recording.tolist()) == (once.equal, once.sharing, once.recording.tolist())


def test_the_meter_tells_seldom_what_is_done_and_left():
    said, at = [], [0.0]
    meter = Meter(lambda: at[0], said.append, 10.0)
    for second, step, share in (
        (2, "looking at the columns", 1.0),
        (4, "looking at the columns", 1.0),
        (8, "reading", 0.5),
        (200, "writing", 0.5),
        (300, "reading", 0.0),
    ):
        at[0] = float(second)
        meter(step, share)
    assert said == [
        " 35 %  looking at the columns, about 7 s left",
        " 93 %  writing, about 15 s left",
        " 93 %  reading, about 23 s left",
    ]
    assert sum(STEPS.values()) == pytest.approx(1)
