"""Names of a package that are loaded on demand (PEP 562)."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any


def attribute(package: str, module: str, name: str) -> Any:
    """Return ``name`` of ``package.module``; raise AttributeError for names of Python's own and for submodules.

    A package's ``__init__`` runs for each of its modules, so it must not load what its neighbours need.
    """
    if not name.startswith("__") and find_spec(f"{package}.{name}") is None:
        return getattr(import_module(f"{package}.{module}"), name)
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
