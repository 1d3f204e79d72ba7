"""A training run's report: JSON for machines and an HTML page for people.

Neither JSON nor page holds a date, a duration, a path or the training machine's name, so equal runs give equal bytes.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from training import strict_json
from training.data.dataset import Dataset
from training.data.split import Split
from training.data.values import Floats, Ints, Json, JsonDict
from training.files import write_whole
from training.trainer.evaluation.incident_rates import Choice, refuse_rows
from training.trainer.evaluation.metrics import Classes, Evaluation, OperatingPoint, Scored, evaluate
from training.trainer.evaluation.page import render
from training.trainer.evaluation.sides import Sides, sides_of
from training.trainer.evaluation.verdict import verdict

SCHEMA_VERSION = 1


def build_report(
    *,
    split: Split,
    sides: Sides,
    classes: Classes,
    evaluation: Evaluation,
    operating_point: OperatingPoint | None,
    quarantined: Sequence[Json],
    choice: Choice | None,
    weighed_by: Ints | None,
    notes: Sequence[str],
    **parts: Any,
) -> JsonDict:
    """Build the report as JSON values, with its verdict; each of ``parts`` gets its own key.

    The part ``history`` has one mapping an epoch or round: {"epoch": 1, "train_loss": …, "val_loss": …, …}, numbers or
    null, and no durations. The part ``course`` says how the kept model follows from the history. ``quarantined`` has
    {"episode_id": …, "reasons": […]} for each episode that validation kept out. ``choice`` is the choice of the
    incident rule; ``weighed_by`` are the rows that chose the weights of a model's parts, or its views.

    Raises LeakError if test windows were used to choose the threshold, the hosts' rule, the incident rule, or the
    weights or views of a model.
    """
    if choice is not None:
        choice.require_none_of(split)
    if weighed_by is not None:
        refuse_rows(weighed_by, split, "the weights of a model's parts, or its views, were")
    if operating_point is not None:
        operating_point.refuse_test(evaluation.rows)
    report = {
        "schema_version": SCHEMA_VERSION,
        "classes": classes.to_dict(),
        "split": split.to_dict() | sides.to_dict(),
        "metrics": {"test": evaluation.metrics},
        "operating_point": None if operating_point is None else operating_point.to_dict(),
        "quarantined": {"n": len(quarantined), "episodes": quarantined},
        "notes": [*sides.notes(), *notes],
    }
    report |= {name: getattr(evaluation, name) for name in ("confusion", "per_host", "curves", "intervals")}
    finished = plain(report | parts)
    found = verdict(finished)
    said = {"verdict": "\n".join(found.lines), "verdict_more": found.more}
    return finished | said | {"verdict_level": found.level, "verdict_why": found.why}


def least_report(data: Dataset, split: Split, score: Floats) -> JsonDict:
    """Build the report of a trainer of one's own, which ranks its model beside the built-in ones. ``score`` has a
    number for each test window, in the order of the split; a higher one is more malicious-like."""
    classes = Classes.of(data.label_map, data.benign)
    found = evaluate(Scored.build(data.rows.take(split.test), score=score), classes=classes, operating_point=None)
    return plain(
        {
            "metrics": {"test": found.metrics},
            "per_host": found.per_host,
            "curves": found.curves,
            "split": split.to_dict() | sides_of(split, data.rows, classes).to_dict(),
            "run_key": {"data": data.data_digest},
        }
    )


def write_report(report: Json, reports_dir: Path, stem: str) -> tuple[Path, Path]:
    """Write ``<stem>.html``, then ``<stem>.json``, each atomically; return the paths of JSON and page."""
    reports_dir.mkdir(parents=True, exist_ok=True)
    page, data = reports_dir / f"{stem}.html", reports_dir / f"{stem}.json"
    write_whole(page, render(report).encode())
    write_whole(data, to_json(report).encode())  # last: who finds the JSON finds the page
    return data, page


def to_json(report: Json) -> str:
    """Return canonical JSON: sorted keys, one line for each key of the report, never NaN."""
    lines = [f"{json.dumps(key)}:" + strict_json.canonical(report[key]) for key in sorted(report)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def plain(value: Any) -> Any:
    """Convert mappings, sequences and NumPy scalars to JSON values; numbers that are not finite become null."""
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
