"""Trainers' reports: whatever their bytes are, they are read within bounds or said to be not readable."""

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shown_fleet import a_report

from training.fleet.service.models import standing
from training.fleet.wire import reports, results
from training.fleet.wire.views import Figure, ResultView

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
PARTS = ("metrics", "per_host", "operating_point", "curves", "split", "baselines", "notes", "verdict", "verdict_level")


def read(report):
    return reports.read(json.dumps(report).encode())


def test_a_report_says_its_figures_in_short():
    found = read(a_report(0.937, 0.04, "caution"))
    result = found.result
    assert (result.auroc.value, result.auroc.low, result.auroc.high) == pytest.approx((0.937, 0.897, 0.977))
    assert (result.promised, result.level, result.windows, result.episodes) == (0.05, "caution", 480, 24)
    assert result.never_tested == [
        "further recordings of the machine that it was trained on (laptop)",
        "anything but benign on workshop",
    ]
    assert len(found.roc[0].points) == 41
    assert [each.host for each in found.per_host] == ["office-print", "workshop"]


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(body):
    found = reports.read(body)
    assert msgspec.json.decode(msgspec.json.encode(found.result), type=ResultView) == found.result


@given(st.dictionaries(st.sampled_from(PARTS), VALUES))
def test_no_nonsense_in_a_part_breaks_the_others(parts):
    found = read({**a_report(), **parts})
    assert msgspec.json.decode(msgspec.json.encode(found), type=reports.ReportView) == found
    if "metrics" not in parts:
        assert found.result.auroc.value == 0.9
    for figure in (found.result.auroc, found.result.caught, found.result.false_alarms):
        assert figure.value is None or 0 <= figure.value <= 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"nonsense",
        b"\xff\xfe",
        b'{"verdict": NaN}',
        b'{"metrics": ' + b"[" * 200_000,
        b'{"metrics": {"test": {"auroc": {"value": NaN}}}}',
        b"{}",
    ],
)
def test_what_is_no_report_says_so(body):
    assert reports.read(body).result.why.startswith("not readable")


def test_lies_and_nonsense_are_left_out_with_a_word():
    metrics = b'{"test": {"auroc": {"value": 1e400}, "tpr": {"value": "0.9"}, "fpr": {"value": 7, "ci95": [0, 1]}}}'
    result = reports.read(b'{"verdict": "believe me", "metrics": ' + metrics + b"}").result
    assert [each.value for each in (result.auroc, result.caught, result.false_alarms)] == [None] * 3
    assert result.false_alarms.why == "not readable: 7 cannot be"
    upside_down = {"test": {"auroc": {"value": 0.9, "ci95": [0.95, 0.1]}}}
    assert read({"metrics": upside_down}).result.auroc == Figure(value=0.9, why="no interval is given")


def test_ten_thousand_hosts_are_counted_and_the_first_shown():
    found = read({"verdict": "x" * 9000, "per_host": {f"host-{n:05}": {"windows": 10**30} for n in range(10_000)}})
    assert (found.result.hosts_in_all, len(found.per_host), len(found.result.hosts)) == (10_000, 40, 20)
    assert len(found.result.verdict) == 4000
    assert found.per_host[0].windows == 0
    assert results.tested_on(msgspec.to_builtins(found.result)) == (
        "host-00000, host-00001, host-00002, host-00003 and 9996 more"
    )


def test_models_are_judged_on_one_test_only_where_it_is_the_same():
    one = read(a_report(0.9)).result.test
    assert one == read(a_report(0.8)).result.test
    assert one != read(a_report(run_key={"data": "e" * 64})).result.test
    other = a_report()
    other["split"]["hosts"]["test"] = {"office-print": 239, "workshop": 240}
    assert one != read(other).result.test
    by_sample = [a_report(split={**a_report()["split"], "recipe": "sample", "fingerprint": each}) for each in "ab"]
    assert len({read(each).result.test for each in by_sample}) == 2
    assert read(a_report(run_key=None)).result.test == ""


def test_ties_follow_from_intervals_that_overlap():
    best = Figure(value=0.95, low=0.92, high=0.98)
    assert standing(Figure(value=0.90, low=0.85, high=0.93), best) == "tied"
    assert standing(Figure(value=0.85, low=0.80, high=0.91), best) == "behind"
    assert standing(Figure(value=0.94), best) == "unknown"
    assert standing(best, Figure(value=0.99)) == "unknown"


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_a_gap_is_told_with_what_the_intervals_say(a, b, half_a, half_b):
    first, second = ({"value": v, "low": v - h, "high": v + h} for v, h in ((a, half_a), (b, half_b)))
    difference, said = results.gap(first, second)
    assert said.startswith("the intervals overlap") == (
        abs(a - b) <= half_a + half_b or math.isclose(abs(a - b), half_a + half_b)
    ) or math.isclose(abs(a - b), half_a + half_b, abs_tol=1e-12)
    assert difference[0] in "+−"
    shown = [float(results.value(each)) for each in (first, second)]
    assert abs(float(difference.replace("−", "-")) - (shown[1] - shown[0])) < 0.0051
    assert results.gap(first, {"value": None})[0] == "–"


def test_digits_are_no_more_than_the_interval_allows():
    assert results.whole({"value": 0.93712, "low": 0.8, "high": 0.98}) == "0.94 (0.80 to 0.98)"
    assert results.whole({"value": 0.93712, "low": 0.92, "high": 0.95}) == "0.937 (0.920 to 0.950)"
    assert results.whole({"value": 0.93712, "low": None}) == "0.937"
    assert results.whole({"value": None, "low": None}) == "–"


def test_what_a_split_left_out_is_among_the_notes():
    split = {**a_report()["split"], "notes": ["The test is on rack alone: 12 windows of shed are left out."]}
    assert reports.read(json.dumps(a_report(split=split)).encode()).notes == [*split["notes"], *a_report()["notes"]]
