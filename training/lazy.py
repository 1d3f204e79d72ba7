"""Modules that load less: a package's names on demand (PEP 562), and foreign code that runs only when it is used."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any


def attribute(package: str, module: str, name: str) -> Any:
    """Return ``name`` of ``package.module``; raise AttributeError for names of Python's own and for submodules.

    A package's ``__init__`` runs for each of its modules, so it must not load what its neighbours need.
    """
    if not name.startswith("__") and find_spec(f"{package}.{name}") is None:
        return getattr(import_module(f"{package}.{module}"), name)
    raise AttributeError(f"module {package!r} has no attribute {name!r}")


def defer(name: str, *unused: str, **homes: str) -> None:
    """Enter a module, or a package with its modules, and run its own code only when a name of it is asked for.

    For those that bring much which nothing here uses. ``unused`` are names that foreign code imports for options which
    nobody here sets: each stands for an empty class. ``homes`` says in which other module a name of it lies.
    """
    parent, _, child = name.rpartition(".")
    try:
        package = find_spec(parent) if parent else None
    except ModuleNotFoundError:  # it is not installed here
        return
    places = package.submodule_search_locations if package is not None else None
    # Not find_spec(name), which would run the package, and that may ask for the module.
    spec = None if name in sys.modules else PathFinder.find_spec(name, places)
    if spec is None or spec.loader is None:
        return
    entered, loader = module_from_spec(spec), spec.loader

    def ask(attribute: str) -> Any:
        if attribute == "__path__":  # asked by every import of a name: is it a package?
            raise AttributeError(attribute)
        if attribute in unused:
            return type(attribute, (Exception,), {})
        if attribute in homes:
            return getattr(import_module(homes[attribute]), attribute)
        del entered.__getattr__  # from now on it has names of its own
        loader.exec_module(entered)
        return getattr(entered, attribute)

    entered.__getattr__ = ask  # type: ignore[method-assign]
    sys.modules[name] = entered
    if parent:
        setattr(import_module(parent), child, entered)
