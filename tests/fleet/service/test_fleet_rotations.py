"""Rotations: what is folded with what, by which numbers, and what is said of the rest."""

from __future__ import annotations

import io
import json
import statistics

import pytest
from builders import a_capability, a_job
from hypothesis import given, settings
from hypothesis import strategies as st
from receiver_running import Receiver, Wire
from rich.console import Console
from shown_fleet import a_report
from wire_builders import whole

from training.fleet.cli.planned import render_plan
from training.fleet.cli.standings import _drawn
from training.fleet.service.rotations import Member, folded, name_of, planned
from training.fleet.wire import results
from training.fleet.wire.plans import PlanReply
from training.fleet.wire.views import Figure, ResultView
from training.rotation import fold, trains_on_all, turn_of

HOSTS = ("attic", "desk", "rack")


def spec(host="attic", seed=0, hosts=HOSTS, **other):
    name = f"{other.pop('name', 'gbt')}[host={host},seed={seed}]"
    rest = [each for each in hosts if each != host]
    return a_job(name, train_hosts=rest, test_hosts=[host], seed=seed, **other)


# ── the numbers ─────────────────────────────────────────────────────────────────────────────

figures = st.floats(0, 1, allow_nan=False).map(lambda value: round(value, 6))
by_host = st.dictionaries(st.sampled_from("abcdef"), st.lists(figures, max_size=4), max_size=6)


@settings(max_examples=80)
@given(by_host, st.booleans())
def test_every_host_counts_the_same_however_many_seeds_it_has(values, low_is_worst):
    found = fold(values, low_is_worst=low_is_worst)
    means = {host: statistics.fmean(each) for host, each in values.items() if each}
    if not means:
        assert found is None
        return
    assert found.mean == pytest.approx(statistics.fmean(means.values()))
    assert found.worst == pytest.approx((min if low_is_worst else max)(means.values()))
    assert found.worst == pytest.approx(means[found.worst_host])
    if len(means) > 1:
        assert found.spread == pytest.approx(statistics.stdev(means.values()), abs=1e-9)
    else:
        assert found.spread is None
    assert (found.seed_spread is None) == all(len(each) < 2 for each in values.values())
    turned = {host: values[host][::-1] for host in reversed(values)}
    assert fold(turned, low_is_worst=low_is_worst) == found
    doubled = fold({host: each * 2 for host, each in values.items()}, low_is_worst=low_is_worst)
    assert doubled.mean == pytest.approx(found.mean)


def test_seeds_spread_within_hosts_and_not_between_them():
    assert fold({"a": [0.9, 0.9], "b": [0.5, 0.5]}).seed_spread == 0
    assert fold({"a": [0.8, 0.9], "b": [0.5, 0.6]}).seed_spread == pytest.approx(statistics.stdev([0.8, 0.9]))


# ── what belongs together ───────────────────────────────────────────────────────────────────

others = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["gbt", "mlp"]),
        "mode": st.sampled_from(["realistic", "oracle"]),
        "hyper": st.sampled_from([{}, {"max_depth": 4}, {"max_depth": 6}]),
        "dataset": st.sampled_from(["d" * 64, "e" * 64]),
        "hosts": st.sampled_from([HOSTS, HOSTS[:2], (*HOSTS, "shed")]),
    },
)
jobs = st.builds(lambda kept, host, seed: spec(HOSTS[host], seed, **kept), others, st.integers(0, 1), st.integers(0, 2))


@settings(max_examples=150)
@given(jobs, jobs)
def test_jobs_are_folded_only_if_they_differ_in_host_and_seed_alone(one, other):
    mine, theirs = turn_of(one), turn_of(other)
    kept = ("model", "mode", "hyper", "dataset")
    alike = all(one.get(key) == other.get(key) for key in kept) and mine.hosts == theirs.hosts
    assert (mine.key == theirs.key) == alike


@pytest.mark.parametrize(
    "change",
    [
        {"test_hosts": []},
        {"test_hosts": ["attic", "shed"]},
        {"split_recipe": "sample"},
        {"train_hosts": ["attic", "desk"]},
        {"train_hosts": []},
    ],
)
def test_other_jobs_are_of_no_rotation(change):
    assert turn_of(spec("attic") | change) is None


def test_the_model_to_deploy_is_the_same_and_trains_on_all_hosts():
    like = spec()
    whole = {"split_recipe": "sample", "train_hosts": [], "test_hosts": None, "seed": 9}
    assert trains_on_all(like | whole, like, HOSTS)
    assert not trains_on_all(like | whole | {"hyper": {"max_depth": 3}}, like, HOSTS)
    assert trains_on_all(like | {"train_hosts": [*HOSTS, "shed"], "test_hosts": None}, like, HOSTS)
    assert not trains_on_all(like | {"test_hosts": None}, like, HOSTS)


# ── the rows ────────────────────────────────────────────────────────────────────────────────


def member(host, seed, auroc, **more):
    asked = spec(host, seed, **more.pop("spec", {}))
    told = {"test": f"test of {host}", "hosts": [host], **more.pop("result", {})}
    result = None if auroc is None else ResultView(auroc=Figure(value=auroc), promised=0.05, **told)
    fields = {"status": "pending" if result is None else "completed", "in_manifest": True, "made_by": ("d", "c")}
    turn = turn_of(asked)
    return Member(asked["job_id"], asked["name"], turn, asked, result=result, **(fields | more))


def a_rotation(*auroc, **more):
    return [member(HOSTS[n // 2], n % 2, value, **more) for n, value in enumerate(auroc)]


def test_a_rotation_that_is_not_whole_says_how_many_are_done_and_stands_last():
    part = a_rotation(0.99, 0.99, None, None, None, 0.99, spec={"name": "mlp", "model": "mlp"})
    whole = a_rotation(0.9, 0.8, 0.7, 0.7, 0.95, 0.85)
    first, second = folded([*part, *whole])
    assert (first.name, first.done, first.jobs) == ("gbt", 6, 6)
    assert first.auroc.mean == pytest.approx((0.85 + 0.7 + 0.9) / 3)
    assert (first.auroc.worst, first.auroc.worst_host) == (0.7, "desk")
    assert results.done_of({"done": 3, "jobs": 6, "states": second.states}) == "3 of 6 (3 pending)"
    assert (second.name, second.done, second.auroc.hosts, second.gap) == ("mlp", 3, 2, None)


def test_what_was_made_otherwise_or_tested_elsewhere_is_not_counted():
    found = a_rotation(0.9, 0.9, 0.8, 0.8, 0.1, 0.1)
    strange = [member("rack", seed, 0.1, made_by=("other", "c")) for seed in (0, 1)]
    (view,) = folded([*found[:4], *strange])
    assert (view.done, view.auroc.mean) == (4, pytest.approx(0.85))
    assert view.notes == [
        "gbt[host=rack,seed=0] and 1 more were trained on other data, and are not counted: requeue them"
    ]
    (view,) = folded([*found[:4], member("rack", 0, 0.1, result={"hosts": ["rack", "shed"]})])
    assert view.done == 4
    assert "was tested on other hosts" in view.notes[0]


def test_jobs_that_left_the_plan_count_where_their_rotation_left_it():
    left = [member("attic", 2, 0.1, in_manifest=False)]
    (view,) = folded([*a_rotation(*[0.9] * 6), *left])
    assert (view.jobs, view.seeds) == (6, [0, 1])
    (view,) = folded(a_rotation(*[0.9] * 6, in_manifest=False))
    assert (view.jobs, view.in_manifest) == (6, False)
    assert folded(a_rotation(0.9, 0.9)) == [], "one host tested is no rotation"


def test_the_gap_is_paired_by_host():
    first = a_rotation(0.9, 0.9, 0.7, 0.7, 0.8, 0.8)
    other = a_rotation(0.8, 0.8, 0.75, 0.75, 0.7, 0.7, spec={"name": "mlp", "model": "mlp"})
    gap = folded([*other, *first])[1].gap
    assert (gap.to, gap.ahead, gap.hosts) == ("gbt", 1, 3)
    assert gap.mean == pytest.approx(-0.05)
    assert gap.spread == pytest.approx(statistics.stdev([-0.1, 0.05, -0.1]))


def test_a_plan_says_what_its_rotations_unfold_to():
    turns = [spec(host, seed) for host in HOSTS for seed in (0, 1)]
    (found,) = planned([*turns, a_job("one"), spec("attic", 0, hosts=HOSTS[:2], name="alone")])
    assert (found.name, found.jobs, found.tested, found.seeds) == ("gbt", 6, [*HOSTS], [0, 1])
    answer = whole(PlanReply, rotations=[found.to_dict()])
    text = io.StringIO()
    Console(file=text, width=200).print(render_plan(answer))
    said = "gbt: 6 jobs: attic, desk, rack, each tested alone by models that the others trained, seeds 0, 1"
    assert said in " ".join(text.getvalue().split())


# ── through the receiver ────────────────────────────────────────────────────────────────────


@pytest.fixture
def receiver(tmp_path):
    turns = [spec(host, seed) for host in ("attic", "desk") for seed in (0, 1)]
    for each in turns:
        each["train_hosts"] = ["desk" if each["test_hosts"] == ["attic"] else "attic"]
    whole = a_job("gbt-all", split_recipe="sample", train_hosts=[], seed=0)
    with Receiver(tmp_path, [*turns, whole]) as found:
        yield found


@pytest.mark.parametrize(
    ("names", "name"),
    [
        (["rot[host=a,seed=0]", "rot[host=b,seed=1]"], "rot"),
        (["rot[host=a,max_depth=1]", "rot[host=b,max_depth=1]"], "rot[max_depth=1]"),
        (["rot[host=a,seed=0,lr=0.1,max_depth=1]", "rot[host=b,seed=0,lr=0.1,max_depth=1]"], "rot[lr=0.1,max_depth=1]"),
        (["rot[host=a]", "other[host=b]"], "rot[host=a] and others"),
        (["one", "two"], "one and others"),
    ],
)
def test_a_rotation_is_called_by_all_that_its_jobs_share(names, name):
    assert name_of(names) == name


def test_the_list_of_models_folds_rotations_and_names_what_to_deploy(receiver):
    client = receiver.client()
    for n in range(3):
        grant = client.claim(a_capability())
        host = grant.spec["test_hosts"][0]
        split = {"recipe": "host", "unseen_hosts": [host], "hosts": {"test": {host: 240}}, "classes": {}}
        body = receiver.folder / "bundle"
        body.write_bytes(b"bundle" + grant.job_id.encode())
        artifact = client.upload_artifact(grant.job_id, body)
        on = a_report(0.9 - 0.1 * n, split=split)
        report = json.dumps(on | {"per_host": {host: on["per_host"]["office-print"]}})
        client.complete(grant.job_id, artifact_id=artifact, report=report)
    (row,) = client.models()["rotations"]
    assert (row["name"], row["done"], row["jobs"], row["seeds"]) == ("gbt", 3, 4, [0, 1])
    assert [each["name"] for each in row["deploy"]] == ["gbt-all"]
    assert results.worst(row["auroc"]) == "0.700 on desk"
    assert results.folded(row["auroc"]) == "0.775 ± 0.106"
    text = io.StringIO()
    Console(file=text, width=160).print(_drawn(client.models(), why=False))
    assert "gbt: to deploy: gbt-all (pending)." in text.getvalue()
    with Wire(receiver) as wire:
        page = wire.request("GET", "/models").answer()[2].decode()
        turn = row["by_host"][0]["jobs"][0]["job_id"]
        compared = wire.request("GET", f"/compare?jobs={turn},gbt-all").answer()[2].decode()
    for words in ("(pending)", "3 of 4 (1 pending)", "0.775 ± 0.106", "0.700 on desk", "gbt-all", "none is whole yet"):
        assert words in page
        assert words in compared
    assert "Their rotations" in compared
