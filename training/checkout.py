"""The root folder of this checkout, and stamps and a digest that change when an update changes its Python files."""

import functools
import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What trainers are made of, below training/: also what works at a worker of an engine.
CODE = ("*.py", "data/**/*.py", "trainer/**/*.py", "trainer/**/*.html")


def stamps(folder: str = "") -> list[str]:
    """Return the stamp of each Python file below ``training/<folder>``. An update that changes any of them changes the
    list."""
    return [stamp(file) for file in sorted((ROOT / "training" / folder).rglob("*.py"))]


def stamp(file: Path) -> str:
    """Return a file's name, modification time and size as one text. Raises OSError."""
    stat = file.stat()
    return f"{file} {stat.st_mtime_ns} {stat.st_size}"


@functools.cache
def code_digest() -> str:
    """Return the SHA-256 of the sources that affect a model. A commit's hash would also change with every edited
    page."""
    folder, total = ROOT / "training", hashlib.sha256()
    for path in sorted(path for pattern in CODE for path in folder.glob(pattern)):
        text = path.read_bytes().replace(b"\r\n", b"\n")  # a Windows checkout is the same code
        total.update(f"{path.relative_to(folder).as_posix()} {len(text)}\n".encode() + text)
    return total.hexdigest()
