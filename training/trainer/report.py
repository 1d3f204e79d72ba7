"""One training run as a JSON report for machines and an HTML page for people; both byte-stable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from training.data.split import Split
from training.trainer.evaluate import Evaluation, OperatingPoint

SCHEMA_VERSION = 1


def build_report(
    *,
    model: str,
    mode: str,
    split: Split,
    evaluation: Evaluation,
    operating_point: OperatingPoint | None,
    baselines: Mapping[str, Mapping[str, Any]],
    history: Sequence[Mapping[str, Any]],
    run_key: Mapping[str, Any],
    quarantined: Sequence[Mapping[str, Any]],
    hyper: Mapping[str, Any] | None = None,
    schema_hash: str | None = None,
    notes: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The report, verdict included.

    ``history`` has one mapping an epoch or round: {"epoch": 1, "train_loss": …, "val_loss": …, …}, numbers only and no
    durations. ``quarantined`` has {"episode_id": …, "reasons": […]} for each episode that validation kept out.
    ``extra`` is shown under its own keys (transformer_ssl: its scores).
    """
    raise NotImplementedError


def write_report(report: Mapping[str, Any], reports_dir: Path, stem: str) -> tuple[Path, Path]:
    """Write ``<stem>.json`` and ``<stem>.html`` atomically, equal bytes for equal reports; the two paths."""
    raise NotImplementedError


def verdict(report: Mapping[str, Any]) -> str:
    """The report in plain words for a person."""
    raise NotImplementedError
