"""One training run as a JSON report for machines and an HTML page for people; both byte-stable.

Neither holds a date, a duration, a path or the training machine's name: equal runs give equal files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training import strict_json
from training.data.split import LeakError, Split
from training.files import write_whole
from training.trainer.evaluation import verdict as words
from training.trainer.evaluation.incident_rates import Choice
from training.trainer.evaluation.metrics import Classes, Evaluation, OperatingPoint
from training.trainer.evaluation.page import render
from training.trainer.evaluation.sides import Sides

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A training run: the model, and its course.

    ``history`` has one mapping an epoch or round: {"epoch": 1, "train_loss": …, "val_loss": …, …}, numbers only and no
    durations. ``run_key`` is any JSON value.
    """

    model: str
    mode: str
    history: Sequence[Mapping[str, Any]]
    run_key: Any
    hyper: Mapping[str, Any] | None = None
    course: str | None = None  # how what is kept came of it, in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSource:
    """The data set, as far as it is not in the split.

    ``quarantined`` has {"episode_id": …, "reasons": […]} for each episode that validation kept out. ``understood`` are
    the lines of what the data were read as.
    """

    quarantined: Sequence[Mapping[str, Any]] = ()
    schema_hash: str | None = None
    understood: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The model on the windows of each side, and its rivals beside it."""

    split: Split
    sides: Sides
    classes: Classes
    evaluation: Evaluation
    operating_point: OperatingPoint | None
    baselines: Mapping[str, Mapping[str, Any]]
    choice: Choice | None = None  # of the rule of incidents
    incidents: Mapping[str, Any] | None = None
    weighed_by: NDArray[np.int64] | None = None  # rows that chose the weights of a model's parts, or its views


def build_report(
    run: Run,
    source: ReportSource,
    judgement: Judgement,
    *,
    notes: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The report as JSON values, verdict included; ``extra`` under its own keys (transformer_ssl: its scores).

    Raises LeakError where windows of the test side chose what judges them: the threshold, the rule for hosts, that of
    incidents, the weights of a model's parts, or its views.
    """
    if judgement.choice is not None:
        judgement.choice.require_none_of(judgement.split)
    if judgement.weighed_by is not None:
        both = np.intersect1d(judgement.weighed_by, judgement.split.test)
        if both.size:
            raise LeakError(
                f"the weights of a model's parts, or its views, were chosen by {both.size} windows of the test side, "
                "which would judge their own choice: this is a mistake of the program, not of the data: please report "
                "it"
            )
    point, evaluation = judgement.operating_point, judgement.evaluation
    if point is not None:
        point.refuse_test(evaluation.rows)
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "model": run.model,
        "mode": run.mode,
        "understood": source.understood,
        "classes": judgement.classes.to_dict(),
        "split": judgement.split.to_dict() | judgement.sides.to_dict(),
        "metrics": {"test": evaluation.metrics},
        "confusion": evaluation.confusion,
        "operating_point": None if point is None else point.to_dict(),
        "per_host": evaluation.per_host,
        "incidents": judgement.incidents,
        "baselines": judgement.baselines,
        "history": run.history,
        "course": run.course,
        "curves": evaluation.curves,
        "intervals": evaluation.intervals,
        "hyper": run.hyper or {},
        "schema_hash": source.schema_hash,
        "run_key": run.run_key,
        "quarantined": {"n": len(source.quarantined), "episodes": source.quarantined},
        "notes": [*judgement.sides.notes(), *notes],
    }
    taken = sorted(set(report) & set(extra or {}))
    if taken:
        raise ValueError(f"the report already has {', '.join(taken)}")
    report |= extra or {}
    finished: dict[str, Any] = plain(report)
    finished["verdict"] = words.verdict(finished)
    finished["verdict_level"] = words.level(finished)
    return finished


def verdict(report: Mapping[str, Any]) -> str:
    """The report in plain words for a person."""
    return words.verdict(report)


def write_report(report: Mapping[str, Any], reports_dir: Path, stem: str) -> tuple[Path, Path]:
    """Write ``<stem>.json`` and ``<stem>.html`` atomically, equal bytes for equal reports; the two paths."""
    reports_dir.mkdir(parents=True, exist_ok=True)
    page, data = reports_dir / f"{stem}.html", reports_dir / f"{stem}.json"
    write_whole(page, render(report).encode())
    write_whole(data, to_json(report).encode())  # last: who finds the JSON finds the page
    return data, page


def to_json(report: Mapping[str, Any]) -> str:
    """Canonical JSON: sorted keys, a line for each part, never NaN."""
    lines = [f"{json.dumps(key)}:" + strict_json.canonical(report[key]) for key in sorted(report)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def plain(value: Any) -> Any:
    """JSON values from mappings, sequences and NumPy scalars; what is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, str | bytes):
        return value
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
