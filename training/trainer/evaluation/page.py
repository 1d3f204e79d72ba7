"""The HTML page of a report: converts the report's JSON values to what the template shows.

``python -m training.trainer.evaluation.page REPORT.json`` makes the page of a
report that came from another machine in a bundle.
"""

import json
import sys
from collections.abc import Callable, Sequence
from functools import cache
from math import sqrt
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, UndefinedError
from markupsafe import Markup

from training.charts import Series, Whisker, line_chart, nice_range, whisker_chart
from training.command_line import parser_of
from training.contract import Exit
from training.data.values import Json, JsonDict
from training.streams import complain, replace_unprintable
from training.trainer.evaluation.facts import about, span

NAMES = {
    "auroc_trained": "AUROC over the classes that trained",
    "balanced_accuracy_trained": "Balanced accuracy over the classes that trained",
    "accuracy": "Accuracy of the likeliest class",
    "accuracy_at_threshold": "Accuracy at the alarm threshold",
    "balanced_accuracy": "Balanced accuracy",
    "macro_f1": "Macro-F1",
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "prevalence": "Prevalence of malicious-like",
    "ece": "Calibration error (ECE)",
    "brier": "Brier score (0 to 2)",
    "tpr": "Caught at the threshold (TPR)",
    "fpr": "False alarms at the threshold (FPR)",
    "alerts_per_host_day": "Alarms a day on a host as busy as those tested",
    "tpr_at_1_percent_fpr": "Would be caught at 1 % false alarms",
    "tpr_at_0.1_percent_fpr": "Would be caught at 0.1 % false alarms",
    "logistic_regression": "Logistic regression",
    "isolation_forest": "Isolation forest",
    "mahalanobis": "Mahalanobis distance",
    "lof": "Local outlier factor",
}
SIDES = {"train": "to learn", "val": "to stop early", "cal": "to set the threshold", "test": "to judge"}
_MAX_LINES = 6  # classes drawn in one chart; more are unreadable
DIAGONAL = ((0, 0), (1, 1))
_SHADES = 8  # of a confusion cell, as classes c0 … c8


def render(report: Json) -> str:
    """Return a self-contained HTML page; equal reports give equal bytes."""
    without = {"channels": {}, "thresholds": {"rule": None}, "scenarios": []}
    report = {**without, "reasons": None, "new_behaviours": None, "verdict_more": "", "verdict_why": "", **report}
    page = _template().render(
        report=report,
        level=report["verdict_level"],
        judged_on=judged_on(report),
        names=NAMES,
        sides=SIDES,
        figures=_figures(report),
        confusion=_confusion(report["confusion"]),
        called=_called(report["incidents"]),
        span=span,
        about=about,
        hosts=_hosts(report),
        show=show,
        share=share,
        gap=gap,
        in_order=in_order,
        percent=_percent,
    )
    return page.replace(" %", "\u00a0%")  # no line ends between a number and its per cent sign


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("training.trainer.evaluation"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("report.html")


RECIPES = {
    "behaviour": "Trained on {train}; judged on {test}; and again without each behaviour.",
    "host": "Trained on {train}; judged on {test}.",
    "time": "Trained on earlier episodes, judged on later ones of {test}.",
    "sample": "Trained and judged on different episodes; the test is of {test}.",
}


def judged_on(report: Json) -> str:
    """Describe how the test was separated, naming the machines that the split contains."""
    split = report["split"]
    unseen, seen = split["unseen_hosts"], split["seen_hosts"]
    test = [f"{_machines(unseen)} it has not seen: {', '.join(unseen)}"] if unseen else []
    test += [f"{_machines(seen)} it was trained on: {', '.join(seen)}"] if seen else []
    train = ", ".join(sorted(split["hosts"]["train"]))
    there = "; and ".join(test) or ", ".join(sorted(report["per_host"]))
    return RECIPES[split["recipe"]].format(train=train, test=there)


def _machines(names: Sequence[str]) -> str:
    return "a machine" if len(names) == 1 else "machines"


def show(metric: Json, digits: int = 3) -> str:
    """Format a figure with its interval, ``0.812 (0.744 to 0.871)``; a dash if there is no value, and the figure alone
    if it has no interval."""
    return _worded(metric, lambda value: _number(value, digits))


def share(metric: Json) -> str:
    """Format a rate in per cent with its interval: ``8.1 % (2.0 to 14.4)``; a dash if there is no value, and the rate
    alone if it has no interval."""
    return _worded(metric, lambda value: f"{100 * value:.1f}", " %")


def gap(metric: Json) -> str:
    """Format a difference with its sign: ``+0.021 (−0.012 to +0.055)``; a dash if there is no value, and the difference
    alone if it has no interval."""
    return _worded(metric, lambda value: f"{value:+.3f}".replace("-", "−"))


def _worded(metric: Json, words: Callable[[float], str], unit: str = "") -> str:
    if metric["value"] is None:
        return "–"
    text = words(metric["value"]) + unit
    if metric.get("ci95") is None:
        return text
    low, high = map(words, metric["ci95"])
    return f"{text} ({low} to {high})"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def in_order(found: Json) -> list[tuple[str, Any]]:
    """Return the items in the order of `NAMES`, then all others by name; their order in the stored report does not
    matter."""
    place = {name: number for number, name in enumerate(NAMES)}
    return sorted(found.items(), key=lambda item: (place.get(item[0], len(place)), item[0]))


def _sorted(found: Json) -> list[tuple[str, Any]]:
    return sorted(found.items())


def _number(value: float, digits: int) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}f}"


# -- figures -----------------------------------------------------------------------------------------------------------


def _figures(report: Json) -> list[JsonDict]:
    """Draw the charts for which this report has figures, in reading order: {title, note, svg}."""
    drawn = [
        _incidents_figure(report["incidents"]),
        _auroc_figure(report),
        _roc_figure(report["curves"], report["metrics"]["test"]),
        _pr_figure(report["curves"], report["metrics"]["test"]),
        _calibration_figure(report["curves"]),
        *_history_figures(report["history"], report["course"]),
    ]
    return [figure for figure in drawn if figure is not None]


def _figure(title: str, note: str, svg: Markup) -> JsonDict:
    return {"title": title, "note": note, "svg": svg}


def _lines(title: str, note: str, series: Sequence[Series], axes: tuple[str, str], **more: Any) -> JsonDict:
    chart = line_chart(more.pop("chart", title), series, x_label=axes[0], y_label=axes[1], **more)
    return _figure(title, note, chart)


def _auroc_figure(report: Json) -> JsonDict | None:
    mine = report["metrics"]["test"]["auroc"]
    rows = [(report["model"], mine, True)]
    rows += [(NAMES.get(k, k), v.get("auroc"), False) for k, v in in_order(report["baselines"])]
    rows += [(f"on {name}", found["auroc"], False) for name, found in _sorted(report["per_host"])]
    whiskers = [
        Whisker(label, metric["value"], low, high, strong)
        for label, metric, strong in rows
        if metric is not None and metric["value"] is not None
        for low, high in [metric["ci95"] or (None, None)]
    ]
    if not whiskers:
        return None
    note = "Area under the ROC curve on the test side with 95 % intervals; 0.5 is chance."
    return _figure("Against plain methods", note, whisker_chart("AUROC", whiskers, guide=0.5))


def _incidents_figure(incidents: Json | None) -> JsonDict | None:
    if incidents is None or not incidents["curve"]:
        return None
    points = incidents["curve"]
    series = [Series("other thresholds", points)]
    rate, caught = incidents["false_per_host_day"]["value"], incidents["caught"]["value"]
    if rate is not None and caught is not None:
        series.append(Series("the threshold in use", [[rate, caught]], dots=[4.0]))
    note = "Share of malicious-like stretches with an incident against false incidents, as the threshold moves."
    axes = ("false incidents a host-day", "stretches caught")
    return _lines("Incidents", note, series, axes, x=nice_range([x for x, _ in points], floor=0.0))


def _roc_figure(curves: Json, metrics: Json) -> JsonDict | None:
    series = _drawn(curves["roc"])
    if not series:
        return None
    note = "Share of malicious-like windows caught against the share of benign ones that raise an alarm."
    caught, false = metrics["tpr"]["value"], metrics["fpr"]["value"]
    if len(series) == 1 and caught is not None and false is not None:
        series.append(Series("the threshold in use", [[false, caught]], dots=[4.0]))
        note += " The dot is the threshold in use."
    axes = ("false-positive rate", "true-positive rate")
    return _lines("ROC", note, series, axes, chart="ROC curve", guide=DIAGONAL)


def _pr_figure(curves: Json, metrics: Json) -> JsonDict | None:
    series = _drawn(curves["pr"])
    if not series:
        return None
    prevalence = metrics["prevalence"]["value"]
    alone = len(series) == 1 and prevalence is not None
    note = "How many alarms are right, by how much is caught."
    if alone:
        note += f" The dashed line is what guessing gives ({100 * prevalence:.0f} %)."
    guide = [(0, prevalence), (1, prevalence)] if alone else ()
    return _lines("Precision and recall", note, series, ("recall", "precision"), guide=guide)


def _drawn(lines: Sequence[Json]) -> list[Series]:
    return [Series(one["label"], one["points"]) for one in lines if one["points"]][:_MAX_LINES]


def _calibration_figure(curves: Json) -> JsonDict | None:
    rows = curves["calibration"]
    if not rows:
        return None
    points = [[row["claimed"], row["observed"]] for row in rows]
    most = max(row["windows"] for row in rows)
    dots = [1.0 + 5.0 * sqrt(row["windows"] / most) for row in rows]
    note = "On the dashed line a probability means what it says; below it the model claims too much."
    axes = ("probability claimed", "share observed")
    return _lines("Calibration", note, [Series("windows", points, dots)], axes, guide=DIAGONAL)


def _history_figures(history: Sequence[Json], course: str | None) -> list[JsonDict | None]:
    """Draw the losses of the training history in one chart, and its other figures in another."""
    keys = sorted({*history[0]} - {"epoch"}) if history else []
    losses = [key for key in keys if key.endswith("loss")]
    others = [key for key in keys if key not in losses]
    return [
        _history_figure(history, losses, "Training", "loss", course),
        _history_figure(history, others, "Validation while training", "metric", course),
    ]


def _history_figure(
    history: Sequence[Json], keys: Sequence[str], title: str, y_label: str, course: str | None
) -> JsonDict | None:
    drawn = {}
    for key in keys:
        known = [(n, row.get(key)) for n, row in enumerate(history, start=1)]
        drawn[key] = [[float(n), float(value)] for n, value in known if isinstance(value, int | float)]
    series = [Series(key.replace("_", " "), points) for key, points in drawn.items() if points][:_MAX_LINES]
    if not series:
        return None
    across = (0.0, float(max(2, len(history))))
    up = nice_range([value for one in series for _, value in one.points], floor=0.0)
    return _lines(title, course or f"{len(history)} epochs.", series, ("epoch", y_label), x=across, y=up)


# -- tables ------------------------------------------------------------------------------------------------------------


def _confusion(confusion: Json | None) -> JsonDict | None:
    """Return the cells of the confusion table, each with its share of the row and a shade for that share."""
    if confusion is None:
        return None
    rows = []
    for label, counts in zip(confusion["labels"], confusion["matrix"], strict=True):
        total = sum(counts)
        cells = [{"count": n, "share": n / (total or 1), "shade": round(_SHADES * n / (total or 1))} for n in counts]
        rows.append({"label": label, "cells": cells})
    return {"labels": confusion["labels"], "rows": rows}


def _called(incidents: Json | None) -> list[JsonDict]:
    """Return the figures of incidents: over all hosts, then for each host if there are several."""
    if incidents is None:
        return []
    hosts = [{"name": name, **found} for name, found in _sorted(incidents["per_host"])]
    return [{"name": "all", **incidents}, *(hosts if len(hosts) > 1 else [])]


def _hosts(report: Json) -> list[JsonDict]:
    target = (report.get("operating_point") or {}).get("target_fpr")
    rows = []
    for name, found in _sorted(report["per_host"]):
        false = found["fpr"]["value"]
        times = None if false is None or not target else false / target
        ci95 = found["fpr"]["ci95"]
        over = times is not None and ci95 is not None and ci95[0] > target
        rows.append({"name": name, "found": found, "times": times, "over": over})
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page beside the report, or where ``--out`` says.

    Exit codes: 0 done; 2 bad arguments, or a file that cannot be read or written; 65 the file is no report.
    """
    replace_unprintable()
    parser = parser_of(
        "training.trainer.evaluation.page",
        description="Write the HTML page of a report, with its curves.",
    )
    parser.add_argument("report", type=Path, help="<model>_<mode>_train.json, or _pretrain.json of transformer_ssl")
    parser.add_argument("--out", type=Path, help="the page (default: the report's name with .html)")
    names = parser.parse_args(argv)
    out = names.out or names.report.with_suffix(".html")
    try:
        text = render(json.loads(names.report.read_text(encoding="utf-8")))
    except OSError as error:
        complain(f"{names.report} cannot be read ({error.strerror}).")
        return 2
    except (ValueError, LookupError, TypeError, AttributeError, UndefinedError):
        print(
            f"{names.report} is not a report of this version: name a <model>_<mode>_train.json, or train it again.",
            file=sys.stderr,
        )
        return Exit.BAD_DATA
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        complain(f"{out} cannot be written ({error.strerror}).")
        return 2
    print(out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
