"""Load names of a package when they are first used (PEP 562)."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any


def attribute(package: str, module: str, name: str) -> Any:
    """Return ``name`` of ``package.module``; raise AttributeError for names that begin with two underscores and for
    submodules of the package.

    A package's ``__init__`` runs when any of its modules is imported, so ``__init__`` must not load what only some of
    those modules need.
    """
    if not name.startswith("__") and find_spec(f"{package}.{name}") is None:
        return getattr(import_module(f"{package}.{module}"), name)
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
