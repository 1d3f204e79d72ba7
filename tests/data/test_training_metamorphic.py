# ruff: noqa: E501 - a change is a line
"""Metamorphic tests: some changes must not change a result, down to the verdict; others must be noticed.

The changes are lists (`table_changes` for tables, here for the rest): to add one, add a line. Each result is that of a
model trained for it. METAMORPHIC=n draws n times as many examples.
"""

import contextlib
import io
import json
import os
import re
import shutil

import msgspec
import numpy as np
import polars as pl
import pytest
import telemetry_builders
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from table_changes import NEAR, REFUSED, SAME, noise, recordings, several
from trainer_builders import arguments, run

from training.data import build, episode, ingest
from training.data.rows import Rows
from training.trainer import comparison, judging, scoring
from training.trainer.evaluation.metrics import Classes, OperatingPoint, Scored, evaluate

pytestmark = pytest.mark.usefixtures("one_anomaly_method")
MORE = int(os.environ.get("METAMORPHIC", "1"))
HOSTS = ("ape", "bat", "cat", "dog")  # the last one is the test
FIGURES = ("metrics", "operating_point", "confusion", "per_host", "baselines", "history", "curves")


def drawn(examples):
    """Settings for tests of which each example costs a training."""
    return settings(
        max_examples=examples * MORE,
        deadline=None,
        phases=[*([Phase.reuse, Phase.shrink] if MORE > 1 else []), Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


# -- tables ------------------------------------------------------------------------------------------------------------


def plain_table(signal=1.0, seed=0):
    """Six recordings of each host; the attack lifts x a little, and z is noise."""
    rows = recordings(HOSTS, 6, seed=seed)
    lifted = pl.col("x") + signal * (pl.col("label") == "attack").cast(pl.Float64)
    again = pl.col("host") + "/" + (pl.col("episode").rank("dense").over("host") - 1).cast(pl.String)
    return rows.with_columns(x=lifted, z=pl.Series(noise(rows.height, seed + 50)), episode=again)


def read(folder, rows, options=()):
    """Exit code of the ingest into ``folder``, and what it said."""
    folder.mkdir(parents=True, exist_ok=True)
    rows.write_parquet(folder / "rows.parquet")
    out, err = io.StringIO(), io.StringIO()
    command = [str(folder / "rows.parquet"), "--out-dir", str(folder / "data"), "--window-s", "8"]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = ingest.main([*command, "--json", *options])
    return code, err.getvalue() or out.getvalue()


def train(folder, *flags, test="dog"):
    """The report of a quick model, tested on the host with ``test`` in its name."""
    data = folder / "data"
    hosts = pl.read_parquet(data / "validation_v1.parquet")["host"].unique().sort().to_list()
    hosts = [flag for host in hosts if test not in host for flag in ("--train-hosts", host)]
    quick = ("--n-estimators", "8", "--colsample", "1", "--subsample", "1", "--target-fpr", "0.1")
    recipe = ("--split-recipe", "host", *hosts)
    ended = run(arguments("gbt", data, folder, *recipe, *quick, *flags))
    assert ended.code == 0, ended.sentence
    return json.loads((folder / "reports" / "gbt_oracle_train.json").read_text())


def reported(folder, rows, options=(), *flags):
    code, said = read(folder, rows, options)
    assert code == 0, said
    return train(folder, *flags)


def figures(report):
    """Figures, verdict and level by the plain table's names of hosts and classes."""
    names = report["classes"]
    text = json.dumps({key: report[key] for key in (*FIGURES, "verdict", "verdict_more", "verdict_level")})
    for kind in ("benign", "malicious"):
        text = text.replace(names["words"][kind], kind)
        for name in names[kind]:
            text = text.replace(json.dumps(name), json.dumps(kind))
    for host in (report["operating_point"]["hosts"] or {"levels": ()})[
        "levels"
    ]:  # of recordings: "pi-ape" is "ape" by another name
        text = text.replace(json.dumps(host), json.dumps(host[-3:]))
    for host in report["per_host"]:
        text = text.replace(json.dumps(host), '"dog"').replace(f"on {host}:", "on dog:")
    return json.loads(text)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return reported(tmp_path_factory.mktemp("plain"), plain_table())


def test_the_plain_table_has_a_result_worth_keeping(plain):
    auroc = plain["metrics"]["test"]["auroc"]
    assert 0.7 < auroc["ci95"][0] < auroc["value"] < 0.99
    assert plain["split"]["unseen_hosts"] == ["dog"]
    assert plain["operating_point"]["threshold"] is not None


@drawn(3)
@given(changed=several(SAME, least=3))
def test_what_only_looks_different_gives_the_same_report(tmp_path_factory, plain, changed):
    change, options = changed
    found = reported(tmp_path_factory.mktemp("same"), change(plain_table()), options)
    assert figures(found) == figures(plain)


@drawn(3)
@given(changed=several(NEAR, least=2))
def test_what_carries_nothing_moves_no_figure_far(tmp_path_factory, plain, changed):
    change, options = changed
    found = reported(tmp_path_factory.mktemp("near"), change(plain_table()), options)
    auroc, was = (one["metrics"]["test"]["auroc"]["value"] for one in (found, plain))
    assert abs(auroc - was) <= change.moves
    assert found["verdict_level"] == plain["verdict_level"]


@pytest.mark.parametrize("noticed", REFUSED, ids=repr)
@drawn(2)
@given(data=st.data())
def test_what_would_mislead_is_refused_whatever_stands_beside_it(tmp_path_factory, noticed, data):
    others = [change for change in SAME if change.touches not in (noticed.touches, "columns")]
    change, options = data.draw(several(others))
    rows = change(noticed.make(plain_table(), data.draw(noticed.draws)))
    code, said = read(tmp_path_factory.mktemp("refused"), rows, (*noticed.options, *options))
    assert code == 65, said
    assert said.count("\n") == 1
    assert noticed.says in said


def _of_recordings(rows, label):
    """Each recording with one label: ``label`` has as many as there are recordings."""
    ids = rows["episode"].unique(maintain_order=True).to_list()
    return rows.with_columns(label=pl.col("episode").replace_strict(dict(zip(ids, label, strict=True))))


def _dealt(seed):
    """The labels of whole recordings, which the samples know nothing of."""
    rng = np.random.default_rng(seed)
    label = np.concatenate([rng.permutation(["normal", "attack"] * 3) for _ in HOSTS])
    return _of_recordings(plain_table(signal=0, seed=seed), label.tolist())


ON_DOG = pl.col("host").str.contains("dog")
ATTACK = pl.col("label") == "attack"
# What there is to be known of the table shall be known of the report: rows, flags, and what the verdict says.
SAID = {
    "labels dealt anew": (_dealt(1), (), r"chance|Too few episodes to tell any model from chance"),
    "labels dealt anew again": (_dealt(2), (), r"chance|Too few episodes to tell any model from chance"),
    "a channel that gives the label away": (plain_table().with_columns(z=pl.col("z") + 9 * ATTACK), (), "smells of leakage"),
    "a class of the test host alone": (plain_table().with_columns(label=pl.when(ON_DOG & ATTACK & (pl.col("t") % 1000 >= 30)).then(pl.lit("worm")).otherwise("label")), (), r"No window of 'worm' trained"),
    "attacks that fall silent": (plain_table().with_columns(x=pl.when(ON_DOG & ATTACK).then(pl.col("x") - 2).otherwise("x")), (), r"Worse than chance|Not distinguishable from chance"),
    "a noisier test host": (plain_table().with_columns(x=pl.when(ON_DOG).then(pl.col("x") + 1).otherwise("x")), (), r"times the alarms it promised: do not rely on it there"),
}  # fmt: skip


@pytest.mark.half
@pytest.mark.parametrize("name", SAID)
def test_what_is_to_be_known_of_the_table_is_said_of_the_model(tmp_path, name):
    rows, options, says = SAID[name]
    found = reported(tmp_path, rows, options)
    assert re.search(says, said := found["verdict"] + found["verdict_more"]), said
    assert found["verdict_level"] != "good"


def test_who_calls_the_attack_benign_gets_the_same_ranking_the_other_way(tmp_path, plain):
    found = reported(tmp_path, plain_table(), ("--benign", "attack"))
    was, now = plain["metrics"]["test"], found["metrics"]["test"]
    assert now["auroc"]["value"] == pytest.approx(was["auroc"]["value"], abs=0.02)
    assert now["prevalence"]["value"] == 1 - was["prevalence"]["value"]
    assert "malicious-like (here: normal)" in found["verdict"]


# -- recordings --------------------------------------------------------------------------------------------------------


def fleet(root, change=None, *, each=6):
    """Recordings of three hosts, busier in their second half, with a reference of each.

    ``change`` edits their fields.
    """
    number = 0
    for host in ("ape", "bat", "dog"):
        for place in range(each + 1):
            t, values = telemetry_builders.signal(seed=number, strength=0.1)
            fields = {"number": number, "host": host, "started_at": 1000.0 + 100 * number}
            fields |= {"t": t, "values": values, "labels": [(0.0, "idle"), (10.0, "beacon")]}
            fields |= {"channels": telemetry_builders.channel_infos()}
            fields |= {"phases": {"idle": "benign", "beacon": "malicious"}, "baseline": place == each}
            if place == each:
                fields |= {"labels": [(0.0, "idle")], "phases": {"idle": "benign"}}
            folder = telemetry_builders.write_episode(root, **(change(fields) if change else fields))
            if change and "pack" in change.__name__:
                episode.pack(folder, folder.with_name(f"{folder.name}.tar.zst"))
                shutil.rmtree(folder)
            number += 1


def _other_phases(fields):
    words = {"idle": "sleep", "beacon": "call"}
    labels = [(t, words[phase]) for t, phase in fields["labels"]]
    return fields | {"labels": labels, "phases": {words[phase]: said for phase, said in fields["phases"].items()}}


def _turned(fields):
    return fields | {"channels": fields["channels"][::-1], "values": fields["values"][:, ::-1]}


def packed(fields):
    return fields


SAME_RECORDINGS = {
    "a later clock": lambda f: f | {"started_at": f["started_at"] + 2**20},
    "a clock of 1970": lambda f: f | {"started_at": f["started_at"] + 2**30},
    "other ids": lambda f: f | {"number": f["number"] + 40},
    "other hosts": lambda f: f | {"host": f"pi-{f['host']}"},
    "channels in another order": _turned,
    "labels said twice": lambda f: f | {"labels": [*f["labels"][:1], (4.0, "idle"), *f["labels"][1:]]},
    "a label of later": lambda f: f | {"labels": [*f["labels"], (21.0, "idle")]},
    "another scenario": lambda f: f | {"scenario": "lunch"},
    "other phases": _other_phases,
    "archives": packed,
}  # fmt: skip


def built(folder, *options):
    out, asked = io.StringIO(), ["--out-dir", str(folder / "data"), "--jobs", "1", "--json", *options]
    with contextlib.redirect_stdout(out):
        code = build.main([str(folder / "episodes"), *asked])
    return code, json.loads(out.getvalue()) if code == 0 else None


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    fleet(folder / "episodes")
    assert built(folder)[1]["quarantined"] == {}
    return folder, train(folder)


@drawn(2)
@given(names=st.lists(st.sampled_from(sorted(SAME_RECORDINGS)), min_size=2, max_size=4, unique=True))
def test_recordings_that_only_look_different_give_the_same_report(tmp_path_factory, recorded, names):
    def change(fields):
        for name in sorted(names, key=list(SAME_RECORDINGS).index):
            fields = SAME_RECORDINGS[name](fields)
        return fields

    change.__name__ = " ".join("pack" if name == "archives" else name for name in names)
    folder = tmp_path_factory.mktemp("episodes")
    fleet(folder / "episodes", change)
    code, found = built(folder)
    assert (code, found["quarantined"]) == (0, {})
    assert figures(train(folder)) == figures(recorded[1])


def _of_ape(**changed):
    """Changes to the first recording of the first host."""
    return lambda f: f | {key: make(f) for key, make in changed.items()} if f["number"] == 0 else f


def _other_unit(fields):
    return [msgspec.structs.replace(c, unit="KiB") if c.name == "memory_used" else c for c in fields["channels"]]


QUARANTINED = {
    "another unit": (_of_ape(channels=_other_unit), "Its channel memory_used is a gauge in KiB"),
    "a channel for the oracle alone": (_of_ape(channels=lambda f: [msgspec.structs.replace(c, modes=["oracle"]) for c in f["channels"]]), "for oracle; elsewhere it is"),
    "the attack declared benign": (_of_ape(phases=lambda f: dict.fromkeys(f["phases"], "benign")), "Its phase 'beacon' is benign"),
    "a copy under another host": (lambda f: f | {"host": "new"} | _FIRST if f["number"] == 5 else f, "It is a copy of"),
    "a copy of its own host": (lambda f: f | _FIRST if f["number"] == 1 else f, "It is a copy of"),
    "a part of it again": (lambda f: f | _PART if f["number"] == 1 else f, "of its samples are those of"),
}  # fmt: skip
_FIRST = dict(zip(("t", "values"), telemetry_builders.signal(seed=0, strength=0.1), strict=True))
_PART = {"t": _FIRST["t"][:120], "values": _FIRST["values"][40:], "duration_s": 15.0}


@pytest.mark.half
@pytest.mark.parametrize("name", QUARANTINED)
@drawn(1)
@given(beside=st.sampled_from(["other hosts", "other phases", "channels in another order"]))
def test_recordings_that_would_mislead_are_quarantined_whatever_stands_beside(tmp_path_factory, name, beside):
    odd, says = QUARANTINED[name]
    folder = tmp_path_factory.mktemp("odd")
    fleet(folder / "episodes", lambda f: SAME_RECORDINGS[beside](odd(f)), each=3)
    code, found = built(folder)
    ((_, reasons),) = found["quarantined"].items()
    says = says.replace("beacon", "call") if beside == "other phases" else says
    assert code == 0
    assert says in " ".join(reasons)


def test_recordings_in_another_unit_do_not_fit_an_existing_schema(tmp_path, recorded):
    schema = recorded[0] / "data" / "feature_schema_v1.json"
    fleet(tmp_path / "episodes", lambda f: f | {"channels": _other_unit(f)}, each=2)
    assert built(tmp_path, "--like", str(schema))[0] == 65


# -- models ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    reported(folder, plain_table())
    return folder / "artifacts" / "gbt_oracle.ckpt.json"


def scores(checkpoint, data):
    """Of each window its side, score and alarm, by the middle of its host's name and its time; and what was said."""
    judged = judging.judge(checkpoint, data)
    side = judging.sides(judged)
    table = pl.concat(scoring.parts(judged, side))
    host = table["host"].str.extract("(ape|bat|cat|dog)")
    rows = zip(host, table["t_start"] % 1e6, table["side"], table["score"], table["alarm"], strict=True)
    return sorted(rows), scoring.remarks(judged, side)


SCHEMA_KEPT = [c for c in SAME if c.touches not in ("label", "label's name", "columns")]
NAMES_TOO = [c for c in NEAR if c.touches in ("episode", "host")]


@drawn(10)
@given(changed=several([*SCHEMA_KEPT, *NAMES_TOO], least=2))
def test_a_model_says_the_same_of_the_same_samples_under_other_names(tmp_path_factory, model, changed):
    change, options = changed
    folder = tmp_path_factory.mktemp("scored")
    code, said = read(folder, change(plain_table()), options)
    assert code == 0, said
    assert scores(model, folder / "data")[0] == scores(model, model.parents[1] / "data")[0]


def test_a_window_alone_gets_the_score_it_gets_among_others(tmp_path, model):
    rows = plain_table().filter(pl.col("host").is_in(["bat", "dog"]) & (pl.col("t") % 1000 >= 12))
    assert read(tmp_path, rows)[0] == 0
    alone = {row[:2]: row[2:] for row in scores(model, tmp_path / "data")[0]}
    among = {row[:2]: row[2:] for row in scores(model, model.parents[1] / "data")[0]}
    shared = alone.keys() & among.keys()
    assert len(shared) > 24
    assert {key: alone[key] for key in shared} == {key: among[key] for key in shared}


def test_scores_raise_the_alarms_of_the_report_and_none_at_the_threshold_itself(model):
    judged = judging.judge(model, model.parents[1] / "data")
    table = pl.concat(scoring.parts(judged, judging.sides(judged)))
    table = table.with_columns(benign=pl.Series(judged.classes.is_benign(judged.inputs.y)))
    threshold = judged.document["threshold"]["threshold"]
    at_it = table.filter(pl.col("score") == threshold)
    assert (at_it["side"].unique().to_list(), at_it["alarm"].any()) == (["cal"], False)
    report = json.loads((model.parents[1] / "reports" / "gbt_oracle_train.json").read_text())
    test = table.filter(pl.col("side") == "test")
    for name, rows in (("fpr", test.filter("benign")), ("tpr", test.filter(~pl.col("benign")))):
        assert rows["alarm"].mean() == pytest.approx(report["metrics"]["test"][name]["value"], abs=1e-6)


OUTSIDE = {
    "thousandths": pl.col("x") * 1000,
    "thousands": pl.col("x") / 1000,
    "a dead sensor": pl.col("x") * 0,
    "another zero": pl.col("x") + 50,
}


@drawn(8)
@given(name=st.sampled_from(sorted(OUTSIDE)), host=st.sampled_from(HOSTS))
def test_samples_unlike_those_of_the_training_are_said_of_their_host_alone(tmp_path_factory, model, name, host):
    folder = tmp_path_factory.mktemp("unlike")
    changed = pl.when(pl.col("host") == host).then(OUTSIDE[name]).otherwise("x")
    assert read(folder, plain_table().with_columns(x=changed))[0] == 0
    said = " ".join(scores(model, folder / "data")[1])
    assert re.findall(r"of the windows of (\w+) lie outside", said) == [host]


@drawn(6)
@given(changed=several([*SCHEMA_KEPT, *NAMES_TOO], least=1))
def test_no_other_names_make_seen_windows_unseen(tmp_path_factory, model, changed):
    change, options = changed
    folder = tmp_path_factory.mktemp("compared")
    assert read(folder, change(plain_table()), options)[0] == 0
    one = judging.judge(model, folder / "data")
    found = comparison.compare(one, one, n_resamples=200, other_data=True)
    assert (found["windows"], len(found["hosts"]), found["gap"]["value"]) == (48, 1, 0)


# -- reports -----------------------------------------------------------------------------------------------------------


def windows(seed, classes, anomaly):
    """Scores of windows of three hosts: some recordings of one class, some of two."""
    rng = np.random.default_rng(seed)
    episode = np.repeat(np.arange(15), 6)
    course = np.where(np.arange(90) % 6 < 3, 0, rng.integers(0, classes, 15)[episode])
    logits = rng.normal(size=(15, classes))[episode] + rng.normal(size=(90, classes))
    logits[np.arange(90), course] += rng.choice([0.0, 1.0, 3.0])
    proba = np.exp2(np.round(logits))  # with ties
    proba /= proba.sum(axis=1, keepdims=True)
    start = 100.0 * episode + 2 * (np.arange(90) % 6)
    return {
        "label": course,
        "episode": np.array([f"e{n:02}" for n in episode]),
        "host": np.array(["h", "i", "j"])[episode % 3],
        "t_start": start,
        "t_end": start + 4,
        "proba": None if anomaly else proba,
        "score": np.round(logits[:, 1], 1) if anomaly else None,
    }


def _blocks(found, classes, rng):
    order = np.argsort(rng.permutation(15)[np.repeat(np.arange(15), 6)], kind="stable")
    return {k: None if v is None else v[order] for k, v in found.items()}, classes, 1.0


def _renumbered(found, classes, rng):
    new = rng.permutation(len(classes))
    names = tuple(classes.names[k] for k in new)
    proba = None if found["proba"] is None else found["proba"][:, new]
    return (found | {"label": np.argsort(new)[found["label"]], "proba": proba}, Classes(names, classes.benign), 1.0)


def _steeper(found, classes, _rng):
    if found["score"] is None:
        return found, classes, 1.0
    return found | {"score": found["score"] * 8}, classes, 8.0


# What is asked of a report's figures: the same windows in another order, with other numbers of classes, on another scale.
SAME_FIGURES = {
    "recordings in another order": _blocks,
    "classes in another order": _renumbered,
    "scores on another scale": _steeper,
    "another clock": lambda f, c, _: (f | {"t_start": f["t_start"] + 2**30, "t_end": f["t_end"] + 2**30}, c, 1.0),
    "other recordings": lambda f, c, _: (f | {"episode": np.char.add("x", f["episode"])}, c, 1.0),
    "other hosts": lambda f, c, _: (f | {"host": np.char.add("x", f["host"])}, c, 1.0),
}  # fmt: skip


def _figures_of(found, classes, threshold):
    found = dict(found)
    point = OperatingPoint(0.1, threshold, 90, 15, (0.05, 0.2))
    said = {name: found.pop(name) for name in ("proba", "score")}
    scored = Scored.build(Rows.of(**found), **said, classes=classes)
    made = evaluate(scored, classes=classes, operating_point=point, n_resamples=200)
    return made.metrics, [{k: v for k, v in host.items() if k != "one_class"} for host in made.per_host.values()]


@drawn(12)
@given(
    seed=st.integers(0, 99),
    kind=st.sampled_from([(2, False), (3, False), (2, True), (3, True)]),
    names=st.lists(st.sampled_from(sorted(SAME_FIGURES)), min_size=1, max_size=4, unique=True),
)
@example(seed=79, kind=(3, False), names=["classes in another order"])  # a word in a reason did
def test_figures_do_not_depend_on_order_names_and_scale(seed, kind, names):
    classes = Classes(("benign", "dos", "worm")[: kind[0]], ("benign",))
    found, rng = windows(seed, *kind), np.random.default_rng(seed)
    plain = _figures_of(found, classes, 0.5)
    threshold = 0.5
    for name in names:
        found, classes, scale = SAME_FIGURES[name](found, classes, rng)
        threshold *= scale
    assert close(_figures_of(found, classes, threshold), plain)


def close(one, other):
    """Equal but for the last digit of numbers, whose sums were taken in another order."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(close, one, other))
    return one == (pytest.approx(other, abs=2e-6) if isinstance(other, float) else other)


@drawn(12)
@given(seed=st.integers(0, 99), anomaly=st.booleans())
def test_a_ranking_turned_round_is_as_far_from_chance_on_the_other_side(seed, anomaly):
    classes = Classes(("benign", "dos"), ("benign",))
    found = windows(seed, 2, anomaly)
    turned = found | {k: -found[k] for k in ("score",) if anomaly}
    turned |= {k: found[k][:, ::-1] for k in ("proba",) if not anomaly}
    was, now = (_figures_of(one, classes, 0.5)[0]["auroc"] for one in (found, turned))
    if was["value"] is not None:
        assert now["value"] == pytest.approx(1 - was["value"], abs=2e-6)
        ends = [1 - end for end in reversed(was["ci95"])]
        assert now["ci95"] == pytest.approx(ends, abs=2e-6)


# -- sides -------------------------------------------------------------------------------------------------------------

LEARNT = ("facts", "normaliser", "ranges", "hyper")
QUICK = {"gbt": ("--n-estimators", "8"), "cnn": ("--epochs", "1")}


@pytest.mark.half
@pytest.mark.parametrize("family", QUICK)
def test_a_model_learns_and_calibrates_on_its_own_sides_alone(tmp_path, model, family):
    """The test side changes nothing but the figures; the calibration side moves the threshold alone."""
    judged = judging.judge(model, model.parents[1] / "data")
    on_side = dict(zip(judged.inputs.rows.episode.tolist(), judging.sides(judged).tolist(), strict=True))
    documents, weights, reports = {}, {}, {}
    for side in ("none", "test", "cal"):
        rows = plain_table().with_columns(
            pl.when(pl.col("episode").replace_strict(on_side) == side)
            .then(pl.col(column) * 3 + 40)
            .otherwise(column)
            .alias(column)
            for column in ("x", "z")
        )
        folder = tmp_path / side
        assert read(folder, rows)[0] == 0
        flags = [flag for host in HOSTS[:3] for flag in ("--train-hosts", host)]
        flags += ["--split-recipe", "host", "--target-fpr", "0.1", *QUICK[family]]
        ended = run(arguments(family, folder / "data", folder, *flags))
        assert ended.code == 0, ended.sentence
        (path,) = (folder / "artifacts").glob("*.ckpt.json")
        documents[side] = json.loads(path.read_text())
        (sidecar,) = set((folder / "artifacts").iterdir()) - {path}
        weights[side] = sidecar.read_bytes()
        (report,) = (folder / "reports").glob("*_train.json")
        reports[side] = json.loads(report.read_text())
    for side in ("test", "cal"):
        assert weights[side] == weights["none"]
        for member in LEARNT:
            assert documents[side][member] == documents["none"][member], (side, member)
        assert reports[side]["history"] == reports["none"]["history"]
    threshold = {side: found["threshold"]["threshold"] for side, found in documents.items()}
    assert threshold["test"] == threshold["none"] != threshold["cal"]
    ranked = {side: ranking(report) for side, report in reports.items()}
    assert ranked["cal"] == ranked["none"] != ranked["test"]


def ranking(report):
    """The AUROC of the model, and those of the plain methods."""
    plain = [found["auroc"] for _, found in sorted(report["baselines"].items())]
    return [report["metrics"]["test"]["auroc"], *plain]
