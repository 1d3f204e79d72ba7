"""The record of runs: one entry a run, to be repeated by its seed at its commit, and the inputs of each target.

Several processes may write to one file, each again and again while it runs: what is killed leaves what it had done.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from training.locking import LockedError, exclusive

_NAME = ("target", "engine", "seed", "commit")
_LOCKED_S = 0.05


def total(path: Path, target: str) -> int:
    """Count the inputs that the target has had altogether."""
    return sum(run["runs"] for run in _read(path)["runs"] if run["target"] == target)


def keep(path: Path, run: dict[str, Any]) -> None:
    """Add the run, or bring it up to date when it is there."""
    while True:
        try:
            with exclusive(path.with_suffix(".lock")):
                return _write(path, run)
        except LockedError:
            time.sleep(_LOCKED_S)


def _write(path: Path, run: dict[str, Any]) -> None:
    record = _read(path)
    runs = record["runs"] = [each for each in record["runs"] if _name(each) != _name(run)] + [run]
    record["inputs"] = dict.fromkeys(sorted({each["target"] for each in runs}), 0)
    for each in runs:
        record["inputs"][each["target"]] += each["runs"]
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


def _name(run: dict[str, Any]) -> list[Any]:
    return [run.get(part) for part in _NAME]


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"inputs": {}, "runs": []}
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record
