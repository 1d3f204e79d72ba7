"""The report's fields, its bytes, its page and its words."""

import json
import re
from copy import deepcopy
from functools import cache
from html.parser import HTMLParser

import numpy as np
import pytest
from programs import installed
from trainer_builders import BINARY

from training.charts import Series, Whisker, line_chart, nice_range, whisker_chart
from training.data.rows import Rows
from training.data.split import LeakError, make_split
from training.trainer.evaluation.facts import percent
from training.trainer.evaluation.incident_rates import Timeline, choose, figures
from training.trainer.evaluation.metrics import Classes, Scored, evaluate, operating_point
from training.trainer.evaluation.page import gap, render, share, show
from training.trainer.evaluation.page import main as page_of
from training.trainer.evaluation.report import build_report, plain, to_json, write_report
from training.trainer.evaluation.sides import sides_of
from training.trainer.evaluation.thresholds import ChosenOnTestError

ROWS = Rows.of(label=[0, 1], episode=["a", "b"], host=["h", "h"])


def report(*, classes=BINARY, strength=2.0, proba=True, target=0.05, host="lab-c", **changes):
    """A complete report on made-up windows of three hosts."""
    rng = np.random.default_rng(1)
    n_classes = len(classes)
    episode = np.repeat(np.arange(90), 10)
    y = (np.arange(90) // 3 % n_classes)[episode]
    hosts = np.array(["lab-a", "lab-b", host])[episode % 3]
    names = np.array([f"e{n:03d}" for n in episode])
    t = 2.0 * np.tile(np.arange(10), 90) + 1000.0 * episode
    windows = Rows.of(episode=names, host=hosts, t_start=t, t_end=t + 4, label=y)
    split = make_split(windows, recipe="host", train_hosts=["lab-a", "lab-b"], seed=3)
    logits = 0.7 * rng.normal(size=(90, n_classes))[episode] + rng.normal(size=(900, n_classes))
    logits[np.arange(900), y] += strength
    chance = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

    def scored(rows):
        said = {"proba": chance[rows]} if proba else {"score": logits[rows, 1]}
        return Scored.build(windows.take(rows), **said, classes=classes)

    point = operating_point(scored(split.cal), target, classes=classes)
    found = evaluate(scored(split.test), classes=classes, operating_point=point, n_resamples=200)
    choice = incidents = None
    if point.threshold is not None:
        lines = [Timeline.of_windows(scored(rows), point.threshold, classes, 2.0) for rows in (split.cal, split.test)]
        choice = choose(lines[0], split.cal, 2.0)
        incidents = figures(choice.rule, lines[1]) | {"why": choice.why}
    arguments = {
        "model": "mlp",
        "mode": "realistic",
        "split": split,
        "sides": sides_of(split, windows, classes),
        "classes": classes,
        "evaluation": found,
        "operating_point": point,
        "choice": choice,
        "incidents": incidents,
        "baselines": {
            "logistic_regression": {"kind": "supervised"} | found.metrics,
            "lof": {"kind": "anomaly", "note": "no benign training windows to learn from"},
        },
        "history": [
            {"epoch": n, "train_loss": 1 / n, "val_loss": 1.2 / n, "val_metric": 1 - 0.5 / n} for n in range(1, 12)
        ],
        "run_key": {"digest": "0" * 64, "threads": 1},
        "quarantined": [],
        "weighed_by": None,
        "course": None,
        "understood": [],
        "notes": [],
        "hyper": {"lr": 1e-3},
        "schema_hash": "f" * 64,
    }
    return build_report(**{**arguments, **changes})


@cache
def quiet():
    made = report()
    figures = {
        "auroc": (0.9, [0.85, 0.94]),
        "tpr": (0.81, [0.7, 0.9]),
        "fpr": (0.052, [0.02, 0.074]),
        "alerts_per_host_day": (2246.4, [900.0, 3900.0]),
    }
    made["metrics"]["test"] |= {name: {"value": value, "ci95": ci95} for name, (value, ci95) in figures.items()}
    made["baselines"]["logistic_regression"]["auroc"] = {"value": 0.8, "ci95": [0.7, 0.88]}
    made["operating_point"]["warning"] = None
    return made | {"incidents": None}


def quiet_report(**figures):
    """A report with nothing to complain about but the figures of the test side that are given."""
    made = deepcopy(quiet())
    for name, (value, ci95) in figures.items():
        made["metrics"]["test"][name] = {"value": value, "ci95": ci95}
    return made


# -- JSON --------------------------------------------------------------------------------------------------------------


def test_report_has_the_fields_that_were_promised():
    made = report()
    fields = "model mode metrics operating_point baselines history run_key verdict"
    assert set(fields.split()) <= set(made)
    assert made["schema_version"] == 1
    assert set(made["split"]) >= {"recipe", "train_hosts", "seed", "fingerprint", "n"}
    assert set(made["split"]["n"]) == {"train", "val", "cal", "test"}
    for name, metric in made["metrics"]["test"].items():
        assert {"value", "ci95"} <= set(metric), name
    assert made["quarantined"] == {"n": 0, "episodes": []}
    assert made["intervals"] == {"confidence": 0.95, "resamples": 200, "unit": "episode"}
    assert list(made["per_host"]) == ["lab-c"]


def test_a_threshold_that_was_chosen_on_the_test_side_is_refused():
    """The guard of all that is chosen: the calibrated threshold, and the rule for hosts beside it."""
    made = np.random.default_rng(0).random((900, 2))
    names = np.array([f"e{n // 10:03d}" for n in range(900)])
    rows = Rows.of(episode=names, host=names, label=np.arange(900) // 10 // 3 % 2)
    planted = operating_point(Scored.build(rows, proba=made, classes=BINARY), 0.05, classes=BINARY)
    with pytest.raises(ChosenOnTestError, match="was chosen on recording e002, which tests it"):
        report(operating_point=planted)


def test_the_page_shows_thresholds_by_host_beside_the_calibrated_one():
    one = {"threshold": 0.91, "calibrated": 0.7, "windows": 40, "alarming": 0.1, "fpr": 0.04, "tpr": 0.81}
    one |= {"calibrated_fpr": 0.33, "calibrated_tpr": None}
    made = report(thresholds={"rule": "only_up", "why": "", "all": {}, "hosts": {"lab-c": one}})
    page = render(made)
    for words in (
        "Thresholds by host",
        "0.91",
        "40 windows",
        "81.0\N{NO-BREAK SPACE}%",
        "0.7: – caught, 33.0\N{NO-BREAK SPACE}% false alarms",
    ):
        assert words in page
    assert "Thresholds by host" not in render(report())


def test_files_are_canonical_stable_and_without_nan(tmp_path):
    history = [{"epoch": 1, "train_loss": float("nan"), "val_loss": np.float32(0.5)}]
    made = report(history=history)
    first = write_report(made, tmp_path / "a" / "deep", "mlp_realistic_train")
    shuffled = turned(made)
    second = write_report(shuffled, tmp_path / "b", "other_name")
    assert [path.name for path in first] == ["mlp_realistic_train.json", "mlp_realistic_train.html"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    text = first[0].read_text(encoding="utf-8")
    (epoch,) = json.loads(text, parse_constant=pytest.fail)["history"]
    assert epoch == {"epoch": 1, "train_loss": None, "val_loss": 0.5}
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["other_name.html", "other_name.json"]


def turned(value):
    """Equal JSON whose mappings were built in another order."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in sorted(value, reverse=True)}
    return [turned(item) for item in value] if isinstance(value, list) else value


def test_numbers_of_numpy_become_json():
    assert plain({"a": np.float32(0.5), 1: (np.int64(2), [np.inf]), "b": np.arange(2)}) == {
        "a": 0.5,
        "1": [2, [None]],
        "b": [0, 1],
    }


def test_json_refuses_nan():
    with pytest.raises(ValueError, match="Out of range"):
        to_json({"a": float("nan")})


# -- the page ----------------------------------------------------------------------------------------------------------


class _Balanced(HTMLParser):
    """Fails on a tag that closes what is not open."""

    VOID = frozenset({"meta", "br", "line", "circle", "polyline"})

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.parametrize("classes", [BINARY, Classes(("benign", "grind", "sweep"), ("benign",))])
def test_page_is_whole_and_needs_nothing_from_elsewhere(classes):
    page = render(report(classes=classes))
    parser = _Balanced()
    parser.feed(page)
    assert parser.open == []
    tags = [tag for tag, _ in parser.seen]
    assert "script" not in tags
    assert tags.count("svg") == 7  # incidents, AUROC, ROC, PR, calibration, losses, validation metric
    assert not [a for _, attrs in parser.seen for a in attrs if a in ("src", "href")]
    assert "http" not in re.sub(r"http-equiv", "", page)
    assert "nan" not in re.findall(r"[a-z]+", page)


def test_what_is_shown_of_a_stored_report_is_what_was_shown_when_it_was_made():
    made = report()
    assert render(json.loads(to_json(made))) == render(made)


def test_the_page_begins_with_what_was_understood_and_with_machines_that_are_there():
    page = render(report(understood=["benign      normal (--benign)", "rate        8 Hz"]))
    assert page.index("What the data were understood to be") < page.index("Host by host")
    assert "benign      normal (--benign)" in page
    assert "Trained on lab-a, lab-b; judged on a machine it has not seen: lab-c." in page


def test_what_a_person_is_called_by_stands_first():
    made = report()
    assert made["incidents"]["caught"]["value"] > 0.5
    page = render(made)
    assert page.index("Stretches with an incident") < page.index("<dt>AUROC") < page.index("<h2>Incidents")
    assert "until 60 s are quiet" in page


def test_a_rule_of_incidents_that_test_windows_chose_is_refused():
    """A planted choice: its figures would be those of the windows that it was fitted to."""
    rule = choose(Timeline.of_windows(Scored.build(ROWS, score=[1.0, 2.0]), 0.0, BINARY, 2.0), np.arange(900), 2.0)
    with pytest.raises(LeakError, match="windows of the test side"):
        report(choice=rule)


def test_names_cannot_break_out_of_the_page():
    page = render(report(model="<script>alert(1)</script>", host='"><img src=x>'))
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page


def test_page_without_threshold_scores_or_history_still_stands():
    made = report(proba=False, history=[], baselines={}, target=0.001)
    page = render(made)
    assert "No threshold:" in page
    assert "–" in page


def test_the_page_of_a_fetched_report_is_made_again(tmp_path, capsys):
    data, made = write_report(report(), tmp_path, "mlp_realistic_train")
    there = made.read_text()
    made.unlink()
    assert page_of([str(data)]) == 0
    assert capsys.readouterr().out.strip() == str(made)
    assert made.read_text() == there
    (tmp_path / "other.json").write_text('{"model": "mlp"}')
    assert page_of([str(tmp_path / "other.json")]) == 65
    assert page_of([str(tmp_path / "gone.json")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "other.json is not a report" in said[0]


def test_page_in_a_browser_fits_a_phone(tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api")
    _, page = write_report(report(host="a-host-with-a-rather-long-name"), tmp_path, "one")
    flags = "--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
    with sync_api.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=installed("chromium", "chromium"), args=flags.split())
        seen = browser.new_page(viewport={"width": 360, "height": 740})
        problems, requests = [], []
        seen.on("pageerror", lambda error: problems.append(str(error)))
        seen.on("console", lambda message: problems.append(message.text))
        seen.on("request", lambda request: requests.append(request.url))
        seen.goto(page.as_uri())
        assert seen.evaluate("document.documentElement.scrollWidth") == 360
        assert seen.locator("svg").count() == 7
        assert seen.locator("svg").first.bounding_box()["width"] > 250
        assert requests == [page.as_uri()]
        assert problems == []
        browser.close()


def test_numbers_are_written_for_people():
    assert show({"value": 0.5, "ci95": [0.25, 0.75]}) == "0.500 (0.250 to 0.750)"
    assert show({"value": 12345.6, "ci95": None}) == "12,346"
    assert share({"value": 0.081, "ci95": [0.02, 0.144]}) == "8.1 % (2.0 to 14.4)"
    assert gap({"value": 0.021, "ci95": [-0.012, 0.055]}) == "+0.021 (−0.012 to +0.055)"
    assert gap({"value": -0.5, "ci95": None}) == "−0.500"
    assert {f({"value": None, "ci95": None}) for f in (show, share, gap)} == {"–"}


def test_charts_keep_inside_their_frame():
    drawn = [Series("a", [[0, 0], [1, 1]], [3.0, 3.0]), Series("b", [[0.5, 0.2]])]
    svg = line_chart("t", drawn, x_label="x", y_label="y")
    xs = [float(x) for x in re.findall(r'(?:cx|x1|x2)="([\d.]+)"', svg)]
    assert min(xs) >= 0
    assert max(xs) <= 360
    assert svg.count("<circle") == 2
    rows = [Whisker("model", 0.4, 0.3, 0.5, strong=True), Whisker("other", 1.0)]
    assert whisker_chart("t", rows, guide=0.5).count("whisker") == 1


def test_ranges_have_room_and_width():
    assert nice_range([2.0, 2.0]) == (1.8, 2.2)
    assert nice_range([0.0, 0.0], floor=0.0) == (0.0, 1.0)
    assert nice_range([1.0, 1.0]) == (0.9, 1.0)
    low, high = nice_range([1.0, 3.0], floor=0.0)
    assert (low, high) == (0.0, pytest.approx(3.15))


def test_per_cents_never_round_to_nothing_or_everything():
    shares = {0.81: "81 %", 0.05: "5 %", 0.052: "5.2 %", 0.001: "0.1 %", 0.999: "99.9 %", 0.0: "0 %", 1.0: "100 %"}
    assert {share: percent(share) for share in shares} == shares
