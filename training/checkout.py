"""The folder of this checkout. All paths relative to it start here."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def stamps(folder: str = "") -> list[str]:
    """Return the size and time of each Python file below a folder of ``training/``: an update of the checkout changes
    some."""
    files = sorted((ROOT / "training" / folder).rglob("*.py"))
    return [f"{file.relative_to(ROOT)} {stat.st_mtime_ns} {stat.st_size}" for file in files for stat in [file.stat()]]
