"""The root folder of this checkout, and stamps that change when an update changes its Python files."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def stamps(folder: str = "") -> list[str]:
    """Return the stamp of each Python file below ``training/<folder>``. An update that changes any of them changes the
    list."""
    return [stamp(file) for file in sorted((ROOT / "training" / folder).rglob("*.py"))]


def stamp(file: Path) -> str:
    """Return a file's name, modification time and size as one text. Raises OSError."""
    stat = file.stat()
    return f"{file} {stat.st_mtime_ns} {stat.st_size}"
