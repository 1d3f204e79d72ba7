"""One training run as a JSON report for machines and an HTML page for people; both byte-stable.

Neither holds a date, a duration, a path or the training machine's name: equal runs give equal files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from training import strict_json
from training.data.split import Split
from training.files import write_whole
from training.trainer.evaluation import verdict as words
from training.trainer.evaluation.metrics import Classes, Evaluation, OperatingPoint
from training.trainer.evaluation.page import render
from training.trainer.evaluation.sides import Sides

SCHEMA_VERSION = 1


def build_report(
    *,
    model: str,
    mode: str,
    split: Split,
    sides: Sides,
    classes: Classes,
    evaluation: Evaluation,
    operating_point: OperatingPoint | None,
    baselines: Mapping[str, Mapping[str, Any]],
    history: Sequence[Mapping[str, Any]],
    run_key: Any,
    quarantined: Sequence[Mapping[str, Any]],
    hyper: Mapping[str, Any] | None = None,
    schema_hash: str | None = None,
    notes: Sequence[str] = (),
    understood: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The report as JSON values, verdict included.

    ``history`` has one mapping an epoch or round: {"epoch": 1, "train_loss": …, "val_loss": …, …}, numbers only and no
    durations. ``quarantined`` has {"episode_id": …, "reasons": […]} for each episode that validation kept out.
    ``run_key`` is any JSON value. ``understood`` are the lines of what the data were read as. ``extra`` is shown under
    its own keys (transformer_ssl: its scores).
    """
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "model": model,
        "mode": mode,
        "understood": understood,
        "classes": classes.to_dict(),
        "split": split.to_dict() | sides.to_dict(),
        "metrics": {"test": evaluation.metrics},
        "confusion": evaluation.confusion,
        "operating_point": None if operating_point is None else operating_point.to_dict(),
        "per_host": evaluation.per_host,
        "baselines": baselines,
        "history": history,
        "curves": evaluation.curves,
        "intervals": evaluation.intervals,
        "hyper": hyper or {},
        "schema_hash": schema_hash,
        "run_key": run_key,
        "quarantined": {"n": len(quarantined), "episodes": quarantined},
        "notes": [*sides.notes(), *notes],
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
