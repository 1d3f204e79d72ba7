# ruff: noqa: E501 - a case a line
"""Follow the advice of ingest's sentences: it leads to a data set with the file's values, or to another sentence."""

import re
import shlex
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import polars as pl
import pytest
from test_training_ingest_shapes import clocked, long_table, numbered, wide_table

pytestmark = pytest.mark.half

FLAG = re.compile(r"""(--[a-z-]+\w)(?:[= ]('[^']*'|"[^"]*"|[^\s,;:()]+))?""")
BARE = ("--no-benign", "--all-labelled", "--drop-nan", "--allow-copies", "--points")
WORDS = ("comma", "point", "file", "nan", "id", "risk", "state")  # values without a digit
STEPS = 3  # of advice that is followed
CUT = ("--window-s", "8")


class Case(NamedTuple):
    """A table with its flags, the values that stand for NAME and the like, and further values that a data set of it
    may hold."""

    rows: Callable[[], pl.DataFrame | str]
    flags: tuple[str, ...] = CUT
    fill: Mapping[str, tuple[str, ...]] = {}
    also: Callable[[pl.DataFrame], np.ndarray] = lambda rows: np.empty(0)
    hosts: int = 1
    near: float = 0.0  # to the values of the file, where means are taken


def devices(key="device_id", apart_s=0.2, samples=320):
    rows = numbered(long_table(wide_table(samples), "device_id", "temp", apart_s=apart_s), "device_id")
    return rows.rename({"device_id": key})


def texts(rows, key="device_id"):
    return rows.with_columns(("box-" + pl.col(key).cast(pl.String)).alias(key))


def at_random():
    moved = pl.col("t") + pl.Series(np.random.default_rng(3).uniform(0, 1, 960))
    return devices(apart_s=0.0).with_columns(t=moved).sort("t")


def labelled(normal, attack, name="label"):
    label = pl.when(pl.col("label") == "normal").then(pl.lit(normal)).otherwise(pl.lit(attack))
    return wide_table().with_columns(label=label).rename({"label": name})


def with_(**columns):
    return lambda: wide_table().with_columns(**columns)


PLACE = pl.int_range(pl.len())
CASES = {
    "devices in turn": Case(devices, hosts=3),
    "devices at one time": Case(lambda: devices(apart_s=0.0), hosts=3),
    "devices at random times": Case(at_random, ("--window-s", "40", "--hz", "0.2"), hosts=3, near=1.0),
    "devices by text": Case(lambda: texts(devices(apart_s=0.0)), hosts=3),
    "devices by text in turn": Case(lambda: texts(devices()), hosts=3),
    "an id of tests": Case(with_(job_id=PLACE // 40)),
    "two devices without a name": Case(lambda: devices(apart_s=0.0).drop("device_id")),
    "a label once": Case(with_(label=(PLACE == 100).cast(pl.Int64))),
    "single marked samples": Case(with_(label=(PLACE % 50 == 20).cast(pl.Int64))),
    "no benign name": Case(lambda: labelled("calm", "storm"), fill={"--benign": ("calm",)}),
    "one is normal": Case(lambda: labelled(1, 0, name="normal")),
    "no label": Case(lambda: labelled(0, 1, name="state"), fill={"--label": ("state",)}),
    "two labels": Case(with_(attack=pl.lit(1) * (pl.col("label") == "attack").cast(pl.Int64), anomaly=PLACE // 80 % 2, label=pl.lit(1.5) * pl.col("c0")), fill={"--label": ("attack", "anomaly"), "--ignore": ("label,anomaly", "label,attack")}),
    "labels without a meaning": Case(lambda: labelled(0, 255)),
    "labels that lack": Case(with_(label=pl.when(PLACE % 80 > 2).then(pl.col("label")))),
    "times of day": Case(lambda: clocked("%H:%M:%S", 1.0)),
    "dates without a year": Case(lambda: clocked("%d-%m %H:%M:%S", 1.0), (*CUT, "--time-format", "%d-%m %H:%M:%S")),
    "month or day": Case(lambda: clocked("%d/%m/%Y %H:%M:%S", 1.0)),
    "whole seconds": Case(lambda: wide_table(step_s=0.2).with_columns(pl.col("t").floor())),
    "milliseconds": Case(lambda: wide_table(step_s=1000.0), fill={"--t-unit": ("ms",)}),
    "no times": Case(lambda: wide_table().drop("t"), fill={"--hz": ("1",), "--window-column": ("c0",)}),
    "names missing": Case(lambda: wide_table().write_csv(include_header=False), fill={"--columns": ("t,label,c0,c1,c2", "c")}),
    "ids of rows": Case(with_(id=319 - PLACE)),
    "a column twice": Case(lambda: wide_table().with_columns(c9=pl.col("c0") + 2).write_csv().replace("c9", "c0", 1), also=lambda rows: rows["c0"] + 2),
    "a total": Case(with_(sent=3.0 * PLACE + PLACE % 3), fill={"--counter": ("sent",), "--ignore": ("sent",), "--level": ("sent",)}, also=lambda rows: np.r_[0.0, np.diff(rows["sent"])]),
    "nothing measured": Case(with_(c0=pl.when(PLACE % 40 > 1).then(pl.col("c0")).otherwise(-999.0)), near=1.0),
    "decimals or thousands": Case(lambda: wide_table().with_columns(c0=(PLACE * 19 % 97 + 1.0)).select("t", "label", "c0").write_csv(separator=";").replace(".0;", ";").replace(".0\n", ".000\n"), also=lambda rows: np.r_[1:99, 1000:99000:1000]),
    "a copy of the label": Case(with_(risk=(pl.col("label") == "attack") * 3.0 + 1)),
    "copies": Case(lambda: pl.concat([wide_table(160).with_columns(episode=pl.lit(str(n)), t=pl.col("t") + 1000.0 * n) for n in range(2)])),
    "short stretches": Case(with_(label=pl.when(PLACE % 9 < 5).then(pl.lit("normal")).otherwise(pl.lit("attack"))), ("--window-s", "30"), {"--hz": ("0.5",)}),
    "infinite": Case(with_(c0=pl.when(PLACE == 50).then(np.inf).otherwise(pl.col("c0")))),
    "text in a channel": Case(with_(state=pl.when(PLACE % 2 == 0).then(pl.lit("on")).otherwise(pl.lit("off")))),
    "a part slower": Case(lambda: wide_table().with_columns(t=pl.when(PLACE < 160).then(PLACE).otherwise(160 + (PLACE - 160) * 2).cast(pl.Float64)), near=1.0),
}  # fmt: skip


def advice(sentence, fill):
    """The flags that a sentence names, each with the value that stands there or in ``fill``."""
    for flag, said in FLAG.findall(sentence):
        value = shlex.split(said.rstrip("."))[0] if said else ""
        if flag in BARE:
            yield (flag,)
        elif flag in fill:
            yield from ((f"{flag}={one}",) for one in fill[flag])
        elif re.search(r"[\d_/]", value) or value in WORDS:
            yield (f"{flag}={value}",)


@pytest.mark.parametrize("name", CASES)
def test_advice_that_is_followed_leads_to_the_values_of_the_file(ingested, name):
    case = CASES[name]
    rows = case.rows()
    source = rows
    if isinstance(rows, str):
        (source := ingested.tmp_path / "a.csv").write_text(rows)
        rows = wide_table() if "sent" not in rows else rows
    numbers = [rows[c].cast(pl.Float64).to_numpy() for c in rows.columns if rows[c].dtype.is_numeric()]
    known = np.unique(np.concatenate([*numbers, np.asarray(case.also(rows), float), [0.0, 1.0]]).astype(np.float32))
    seen, waiting, read = set(), [((), ())], 0
    while waiting:
        flags, path = waiting.pop(0)
        code, said = ingested(source, *case.flags, *flags)
        if code == 0:
            read += 1
            tensors = np.array(ingested.load().tensors)
            found = tensors[np.isfinite(tensors)]
            beside = np.clip(np.searchsorted(known, found), 1, known.size - 1)
            far = np.minimum(np.abs(known[beside] - found), np.abs(known[beside - 1] - found))
            odd = found[far > case.near + 1e-6 * np.abs(found)]
            assert not odd.size, (flags, odd[:5], said["notes"])
            assert len(said["hosts"]) * (said["channels"]["oracle"] or 1) >= case.hosts, (flags, said)
            continue
        assert code == 65, said
        said = re.sub(r"host '\w+'", "host", said)
        assert said not in path, f"{flags} leads back to: {said}"
        if len(path) < STEPS:
            for more in advice(said, case.fill):
                is_false = case.hosts > 1 and more[0].startswith("--level")  # an id is not measured itself
                if not is_false and more[0] not in flags and frozenset((*flags, *more)) not in seen:
                    seen.add(frozenset((*flags, *more)))
                    waiting.append(((*flags, *more), (*path, said)))
    assert bool(read) != (name == "two devices without a name"), "what leads to a data set"
