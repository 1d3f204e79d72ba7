"""The place of this program, in a checkout or installed from a wheel, its commit, stamps of its Python files, and a
digest of the code that trains models."""

import functools
import hashlib
import re
import sys
from importlib.util import find_spec
from pathlib import Path, PurePath

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ROOT / "training" / "shipped"  # in a wheel: plans, units and the like, which lie in the root of a checkout
BUILT_FROM, SAMPLE_DIGEST = SHIPPED / "commit", SHIPPED / "sample.sha256"
INSTALLED = BUILT_FROM.is_file()
# The folder in which relative paths begin: for `cis490 VERB` and in a wheel the present one, else the checkout.
HOME = Path() if INSTALLED or sys.argv[0].startswith("cis490 ") else ROOT
PROJECT, SAMPLE = "cis490-training-fleet", "examples/telemetry-sample"
# Files of the root that a wheel has below SHIPPED, beside its commit and the digest of the sample.
TO_SHIP: tuple[str, ...] = ("constraints.txt", "docs/*.md", "etc/*.service", "etc/*.example")
TO_SHIP += ("examples/*.toml", "examples/failing_trainer.py", "examples/own-trainer/*")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
# What trainers are made of, below training/: also what works at a worker of an engine.
CODE = ("*.py", "data/**/*.py", "trainer/**/*.py", "trainer/**/*.html")


def shipped(name: str) -> Path:
    """Return the path of a file that is outside of ``training/`` in a checkout, and comes along in a wheel."""
    return (SHIPPED if INSTALLED else ROOT) / name


def to_ship(root: Path) -> dict[str, bytes]:
    """Return the contents of the files that a wheel of the checkout ``root`` has below SHIPPED, by their names."""
    files = [path for pattern in TO_SHIP for path in root.glob(pattern)]
    try:
        commit = checkout_commit(root) or ""
    except OSError:  # no clone
        commit = ""
    made = {BUILT_FROM.name: commit, SAMPLE_DIGEST.name: folder_digest(root / SAMPLE, "*")}
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files} | {
        name: text.encode() for name, text in made.items()
    }


def to_install(extra: str, python: PurePath | str = sys.executable) -> str:
    """Return the command that adds an extra of the project, in the pinned versions, to the environment of ``python``;
    the environment of a tool of uv has no pip."""
    pip = f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"
    package = f"'{PROJECT}[{extra}]'" if INSTALLED else f"-e '{ROOT}[{extra}]'"
    return f"{pip} -c {shipped('constraints.txt')} {package}"


def is_ours(folder: Path) -> bool:
    """Tell whether trainers that start in ``folder`` are those of this program, and not of another checkout."""
    return folder == ROOT or not (folder / "training" / "__init__.py").exists()


def checkout_commit(root: Path) -> str | None:
    """Return the commit that our wheel was built from, or the one checked out in ``root``, read from git's files;
    ``None`` when they name none. For a folder that holds no program it is this program's. Raises OSError if a file of
    git is missing.

    Asking git itself would fail under a service account that does not own the checkout.
    """
    if is_ours(root):
        if INSTALLED:
            return BUILT_FROM.read_text(encoding="utf-8").strip() or None
        root = ROOT
    folder = root / ".git"
    if folder.is_file():  # a linked worktree: the file names the real folder
        folder = root / folder.read_text(encoding="utf-8").strip().removeprefix("gitdir: ")
    head = (folder / "HEAD").read_text(encoding="utf-8").strip()
    if not head.startswith("ref: "):
        return head if _COMMIT.fullmatch(head) else None
    name = head.removeprefix("ref: ")
    shared = folder / "commondir"
    common = folder / shared.read_text(encoding="utf-8").strip() if shared.exists() else folder
    for place in (folder, common):
        if (place / name).is_file():
            commit = (place / name).read_text(encoding="utf-8").strip()
            return commit if _COMMIT.fullmatch(commit) else None
    for line in (common / "packed-refs").read_text(encoding="utf-8").splitlines():
        commit, _, packed = line.partition(" ")
        if packed == name and _COMMIT.fullmatch(commit):
            return commit
    return None


@functools.cache
def own_commit() -> str | None:
    """Return the commit of this program as it was when first asked for; None if it is not known."""
    try:
        return checkout_commit(ROOT)
    except (OSError, ValueError):
        return None


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
    return folder_digest(ROOT / "training", *CODE)


def folder_digest(folder: Path, *patterns: str) -> str:
    """Return the SHA-256 (hex) of the names and contents of the files below ``folder`` that match a pattern."""
    total = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        text = path.read_bytes().replace(b"\r\n", b"\n")  # a Windows checkout is the same code
        total.update(f"{path.relative_to(folder).as_posix()} {len(text)}\n".encode() + text)
    return total.hexdigest()
