"""Read the versions of installed distributions from the names of their metadata folders, and how a program is called.

``importlib.metadata`` reads versions as well, but costs each program more than a megabyte of memory.
"""

import sys
from collections.abc import Iterable
from pathlib import Path


def version(distribution: str, folders: Iterable[str | Path] | None = None) -> str | None:
    """Return the version of a distribution, from the first of ``folders`` that has it; None if none has. Without
    ``folders``: from this program's import path."""
    stem = f"{distribution.replace('-', '_')}-"
    for folder in sys.path if folders is None else folders:
        for found in sorted(Path(folder).glob(f"{stem}*.dist-info")):
            return found.name.removeprefix(stem).removesuffix(".dist-info")
    return None


def own_version() -> str:
    """Return the installed version of this project, or ``unknown``."""
    return version("cis490-training-fleet") or "unknown"


def build_of(program: str) -> str:
    """Return a program's name, its version and commit, and the build of torch, as ``--version`` shows them."""
    from training.checkout import own_commit

    return f"{program} {own_version()}, commit {(own_commit() or 'unknown')[:12]}, {torch_build()}"


def torch_build() -> str:
    """Return the version of the installed torch, and for which devices it was built, in words. Torch is not imported,
    as that takes seconds."""
    from importlib.util import find_spec

    found = find_spec("torch")
    if found is None or found.origin is None:
        return "without torch"
    built: dict[str, str] = {}
    for line in Path(found.origin).with_name("version.py").read_text(encoding="utf-8").splitlines():
        name, equal, value = line.partition(" = ")
        if equal:
            built[name.partition(":")[0]] = value.strip("'\"")
    kinds = [f"{kind.upper()} {built[kind]}" for kind in ("cuda", "hip", "xpu") if built.get(kind, "None") != "None"]
    return f"torch {built.get('__version__', '')} for {' and '.join(kinds) or 'the CPU'}"


def typed(program: str) -> str:
    """Return the name by which the user started ``program``: ``cis490 VERB``, its own, or that of its module."""
    if sys.argv[0].startswith("cis490 "):
        return sys.argv[0]
    return f"python -m {program}" if "." in program else program
