"""The folder of this checkout. All paths relative to it start here."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def stamps(folder: str = "") -> list[str]:
    """Return the size and time of each Python file below a folder of ``training/``: an update of the checkout changes
    some."""
    return [stamp(file) for file in sorted((ROOT / "training" / folder).rglob("*.py"))]


def stamp(file: Path) -> str:
    """Return the name, time and size of a file. Raises OSError."""
    stat = file.stat()
    return f"{file} {stat.st_mtime_ns} {stat.st_size}"
