# ruff: noqa: E501 - a change is a line
"""Tables of recordings, and changes to them: those that must change no result, and those that must be noticed.

To add a change, add a line to a list. What touches the same thing (`touches`) is never drawn together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl
from hypothesis import strategies as st

from training.data.doubts.windows import WindowsInQuestion
from training.data.rows import Rows


def in_question(X, names=("x",), benign=("benign",), sample_hz=1.0, timed=True, exempt=(), **columns):
    """Windows as detectors of doubts take them, in one recording of one host unless said otherwise."""
    usual = {name: np.full(len(X), "a") for name in ("label", "host", "episode")} | {"t_start": np.zeros(len(X))}
    rows = Rows.of(**usual | columns).coded
    return WindowsInQuestion(
        X=X, channels=names, rows=rows, benign=benign, sample_hz=sample_hz, timed=timed, exempt=exempt
    )


def noise(count, seed=0):
    return np.random.default_rng(seed).normal(size=count)


def recordings(hosts="abcd", each=2, samples=40, hz=1.0, seed=0):
    """Rows of some recordings of some hosts, on one clock; the second half of each is an attack."""
    n = len(hosts) * each
    t = np.concatenate([1000 * number + np.arange(samples) / hz for number in range(n)])
    return pl.DataFrame(
        {
            "t": t,
            "host": np.repeat(list(hosts), each * samples),
            "episode": np.repeat([f"e{number}" for number in range(n)], samples),
            "label": np.tile(np.repeat(["normal", "attack"], samples // 2), n),
            "x": noise(t.size, seed),
        }
    )


def attack(rows):
    return rows["label"] == "attack"


NOTHING = st.none()


@dataclass(frozen=True)
class Change:
    """Of rows, with the flags that make it the same table again, or with what is said of it."""

    name: str
    touches: str
    make: Callable  # from rows and what is drawn for it to rows
    options: tuple[str, ...] = ()
    draws: st.SearchStrategy = NOTHING
    says: str = ""
    moves: float = 0.0  # the AUROC, at most

    def __repr__(self):
        return self.name


def _dates(unit):
    return lambda rows, _: rows.with_columns(
        t=(pl.col("t") * 1000).cast(pl.Int64).cast(pl.Datetime("ms")).cast(pl.Datetime(unit))
    )


def _label(**words):
    """Other words for normal and attack."""
    return lambda rows, _: rows.with_columns(
        label=pl.col("label").replace_strict({"normal": words["normal"], "attack": words["attack"]})
    )


def _column(**columns):
    return lambda rows, _: rows.with_columns(**columns)


def _shuffled(rows, seed):
    return rows.sample(fraction=1.0, shuffle=True, seed=seed)


SEEDS = st.integers(0, 9)
WORDS = st.sampled_from(["benign", "OK", "Clean", "0"])
AGAIN = pl.col("episode").rank("dense").over("host") - 1  # ids that begin anew on each host

# The windows, their order and the schema stay what they were, and so must every figure, to the last digit.
SAME = [
    Change("milliseconds", "t", _column(t=pl.col("t") * 1000), ("--t-unit", "ms")),
    Change("whole microseconds", "t", _column(t=(pl.col("t") * 1e6).cast(pl.Int64)), ("--t-unit", "us")),
    Change("dates of milliseconds", "t", _dates("ms")),
    Change("dates of nanoseconds", "t", _dates("ns")),
    Change("dates as text", "t", lambda rows, _: _dates("ms")(rows, _).with_columns(pl.col("t").dt.strftime("%Y-%m-%d %H:%M:%S"))),
    Change("other names of episodes", "episode", _column(episode=pl.lit("run ") + pl.col("episode"))),
    Change("ids that begin anew on each host", "episode", _column(episode=AGAIN)),
    Change("a usual word for benign", "label", lambda rows, word: rows.with_columns(label=pl.col("label").replace({"normal": word})), draws=WORDS),
    Change("words that sort the other way", "label", _label(normal="zzz", attack="aaa"), ("--benign", "zzz")),
    Change("classes as numbers", "label", _label(normal=0, attack=1)),
    Change("classes as booleans", "label", _label(normal=False, attack=True)),
    Change("spaces", "label", _column(label=pl.col("label") + " ", host=pl.lit(" ") + pl.col("host"))),
    Change("the label called y", "label's name", lambda rows, _: rows.rename({"label": "y"})),
    Change("the label called Class", "label's name", lambda rows, _: rows.rename({"label": "Class"})),
    Change("a second label", "label's name", _column(phase=pl.lit("p"))),
    Change("columns to ignore", "columns", _column(note=pl.lit("x"), id=pl.int_range(pl.len())), ("--ignore", "note,id")),
    Change("shuffled rows", "order", _shuffled, draws=SEEDS),
    Change("reversed rows", "order", lambda rows, _: rows.reverse()),
    Change("every row twice", "order", lambda rows, _: pl.concat([rows, rows])),
    Change("columns in another order", "columns' order", lambda rows, first: rows.select(*[n for n in first if n in rows.columns], pl.exclude(first)), draws=st.permutations(["t", "host", "episode", "label"])),
    Change("an index of pandas", "columns", lambda rows, _: rows.with_row_index("Unnamed: 0")),
]  # fmt: skip

# The same windows in another order, or beside something that carries nothing: figures may move, and hardly.
NEAR = [
    Change("channels in another order", "columns", lambda rows, _: rows.select(sorted(rows.columns, reverse=True)), moves=0.02),
    Change("a channel that never changes", "columns", _column(still=pl.lit(7.5)), moves=0.02),
    Change("a channel twice", "columns", _column(copy=pl.col("x")), moves=0.02),
    Change("a channel of noise", "columns", lambda rows, seed: rows.with_columns(hiss=pl.Series(noise(rows.height, 100 + seed))), draws=SEEDS, moves=0.08),
    Change("x in thousandths", "values", _column(x=pl.col("x") * 1024), moves=0.02),
    Change("missing values", "values", _column(x=pl.when(pl.int_range(pl.len()) % 23 == 7).then(None).otherwise("x")), moves=0.05),
    Change("x from another zero", "values", _column(x=pl.col("x") + 50), moves=0.02),
    Change("classes numbered the other way", "label", lambda rows, _: rows, ("--labels", "attack,normal"), moves=0.02),
    Change("episodes that sort the other way", "episode", _column(episode=(90 - pl.col("episode").rank("dense")).cast(pl.String)), moves=0.1),
    Change("hosts that sort the other way", "host", lambda rows, _: rows.with_columns(host=(pl.lit(9) - pl.col("host").rank("dense")).cast(pl.String) + "-" + pl.col("host")), moves=0.02),
    Change("a clock of 1970", "t", _column(t=pl.col("t") + 1.7e9), moves=0.02),
]  # fmt: skip


def _again(rows, of, **changed):
    """Some rows once more, under other names."""
    return pl.concat([rows, rows.filter(of).with_columns(**changed).select(rows.columns)])


FIRST = pl.col("episode") == pl.col("episode").first()
LATER = {"t": pl.col("t") + 5e6, "episode": pl.lit("zz")}
HERE = pl.col("host") == pl.col("host").first()

# Changes that would make a confident wrong result; each is refused, and the sentence says what it is about.
REFUSED = [
    Change("a copy under another id", "copy", lambda rows, _: _again(rows, FIRST, **LATER), says="are copies of others"),
    Change("a copy on another host", "copy", lambda rows, _: _again(rows, FIRST, **LATER, host=pl.lit("new")), says="hold the same samples"),
    Change("the times of another recording", "copy", lambda rows, _: pl.concat([rows, rows.with_columns(x=pl.col("x") + 1)]), says="two recordings share the id"),
    Change("half a copy", "copy", lambda rows, _: _again(rows, FIRST & (pl.col("t") % 1000 >= 12), **LATER), says="are copies of others"),
    Change("milliseconds unsaid", "t", _column(t=pl.col("t") * 1000), says="say its unit with --t-unit"),
    Change("milliseconds on one host", "t", _column(t=pl.when(HERE).then(pl.col("t") * 1000).otherwise("t")), says="Sampled at 0.001 Hz"),
    Change("another rate on one host", "t", _column(t=pl.when(HERE).then(pl.col("t") * 4).otherwise("t")), says="Sampled at 0.25 Hz"),
    Change("a contradicting rate", "t", lambda rows, _: rows, ("--hz", "3"), says="but --hz says 3"),
    Change("a host by another case", "host", _column(host=pl.when(FIRST).then(pl.col("host").str.to_uppercase()).otherwise("host")), says="differ by case only"),
    Change("an episode by another case", "episode", _column(episode=pl.when(FIRST & (pl.col("t") % 1000 > 30)).then(pl.col("episode").str.to_uppercase()).otherwise("episode")), says="differ by case only"),
    Change("a class by another case", "label", _column(label=pl.when(FIRST).then(pl.col("label").str.to_titlecase()).otherwise("label")), says="differ by case only"),
    Change("classes without a usual word", "label", _label(normal="zzz", attack="aaa"), says="Name the benign class"),
    Change("classes with two usual words", "label", _label(normal="ok", attack="none"), says="several could be"),
    Change("the label among the channels", "columns", lambda rows, _: rows.with_columns(kind=attack(rows).cast(pl.Int64) + 4), says="it is the label again"),
    Change("ids among the channels", "columns", lambda rows, _: rows.with_columns(batch=pl.col("t") // 1000 * 7 % 101), says="an id?"),
    Change("a row number", "columns", lambda rows, _: rows.with_row_index("nr"), says="a row number or a running total"),
    Change("a running total", "columns", _column(sent=pl.col("x").abs().cum_sum()), says="a row number or a running total"),
    Change("a total that begins anew", "columns", _column(sent=pl.col("x").abs().cum_sum() % 200), says="a running total that was reset"),
    Change("a noisy copy of the label", "columns", lambda rows, _: rows.with_columns(busy=attack(rows) ^ (pl.int_range(pl.len()) % 41 == 0)), says="like a copy of the label"),
    Change("ids by a near name", "columns", _column(episode_id=pl.col("episode").rank("dense")), says="may both be the episode"),
    Change("a large offset", "values", _column(x=pl.col("x") + 4e9), says="subtract a constant"),
    Change("a number for missing", "values", _column(x=pl.when(pl.int_range(pl.len()) % 31 == 7).then(-999.0).otherwise("x")), says="far from all its other values"),
    Change("a word for unlabelled", "label", lambda rows, _: rows.with_columns(label=pl.when(FIRST).then(pl.lit("unknown")).otherwise("label")), says="reads like a missing label"),
]  # fmt: skip


@st.composite
def several(draw, changes, least=1):
    """Some of the changes, each of another thing, in the order of their list: rows → rows, and the flags for them."""
    chosen = list({change.touches: change for change in draw(st.permutations(changes))}.values())
    chosen = sorted(chosen[: draw(st.integers(least, len(chosen)))], key=changes.index)
    drawn = [(change, draw(change.draws)) for change in chosen]

    def made(rows):
        for change, what in drawn:
            rows = change.make(rows, what)
        return rows

    made.__name__ = ", then ".join(change.name for change in chosen)
    made.moves = sum(change.moves for change in chosen)
    return made, tuple(option for change in chosen for option in change.options)
