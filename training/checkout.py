"""The root folder of this checkout, stamps of its Python files, and a digest of the code that trains models."""

import functools
import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What trainers are made of, below training/: also what works at a worker of an engine.
CODE = ("*.py", "data/**/*.py", "trainer/**/*.py", "trainer/**/*.html")


def stamps(folder: str = "") -> list[str]:
    """Return the stamps of all Python files below ``training/<folder>``, sorted by path. The list changes when an
    update changes, adds or removes a Python file there."""
    return [stamp(file) for file in sorted((ROOT / "training" / folder).rglob("*.py"))]


def stamp(file: Path) -> str:
    """Return a file's path, modification time (nanoseconds) and size (bytes) as one text. Raises OSError."""
    stat = file.stat()
    return f"{file} {stat.st_mtime_ns} {stat.st_size}"


@functools.cache
def code_digest() -> str:
    """Return the SHA-256 (hex) of the sources that may affect a model, computed once per process. A commit's hash would
    also change when only documentation changes."""
    folder, total = ROOT / "training", hashlib.sha256()
    for path in sorted(path for pattern in CODE for path in folder.glob(pattern)):
        text = path.read_bytes().replace(b"\r\n", b"\n")  # a Windows checkout is the same code
        total.update(f"{path.relative_to(folder).as_posix()} {len(text)}\n".encode() + text)
    return total.hexdigest()
