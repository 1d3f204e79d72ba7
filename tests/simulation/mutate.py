"""One-line changes of the production code, made for the time of a test and undone after it."""

from __future__ import annotations

import contextlib
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from training.fleet.database import sqlite


@dataclass(frozen=True)
class Mutant:
    """``old`` is replaced by ``new`` in one function, or in one named SQL statement."""

    name: str
    where: Any  # a function, a method as `Class.method`, or a statement's name
    old: str
    new: str
    # The simulated fleet that sees it; see test_fleet_simulation.py. `python -m tests.simulation --bugs` finds one.
    seed: int | None = 0  # None: no such fleet is known
    also: Mutant | None = None  # where two lines guard the same, both are changed
    # A test that sees it, as `module:function`, where no fleet among many hundred meets what it takes.
    seen_by: str = ""

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Raises LookupError when a line to change is not there (any more)."""
        with self._planted_one(), self.also.planted() if self.also else contextlib.nullcontext():
            yield

    @contextlib.contextmanager
    def _planted_one(self) -> Iterator[None]:
        if isinstance(self.where, str):
            with self._in_sql():
                yield
            return
        owner, name = _owner(self.where)
        original = inspect.getattr_static(owner, name)
        function = original
        if isinstance(original, classmethod | staticmethod):
            function = original.__func__
        elif isinstance(original, property):
            function = original.fget
        changed: Any = self._compiled(function)
        if isinstance(original, classmethod | staticmethod | property):
            changed = type(original)(changed)
        holders = [owner, *_importers(owner, name, original)]
        for holder in holders:
            setattr(holder, name, changed)
        try:
            yield
        finally:
            for holder in holders:
                setattr(holder, name, original)

    def _compiled(self, function: FunctionType) -> FunctionType:
        source = textwrap.dedent(inspect.getsource(function))
        lines = source.splitlines()
        while lines[0].startswith("@"):
            lines.pop(0)
        namespace: dict[str, Any] = {}
        code = compile("from __future__ import annotations\n" + self._changed("\n".join(lines)), self.name, "exec")
        exec(code, function.__globals__, namespace)
        made: FunctionType = namespace[function.__name__]
        made.__kwdefaults__ = function.__kwdefaults__
        made.__defaults__ = function.__defaults__
        return made

    @contextlib.contextmanager
    def _in_sql(self) -> Iterator[None]:
        original = sqlite.statements
        statements: Mapping[str, str] = original()
        changed = {**statements, self.where: self._changed(statements[self.where])}
        sqlite.statements = lambda: changed  # type: ignore[assignment]
        try:
            yield
        finally:
            sqlite.statements = original

    def _changed(self, text: str) -> str:
        if text.count(self.old) != 1:
            raise LookupError(
                f"the planted bug {self.name!r} no longer applies: its line is there {text.count(self.old)} times"
            )
        return text.replace(self.old, self.new)


def _importers(owner: Any, name: str, original: Any) -> list[ModuleType]:
    """The other modules that call a module's function by the name they imported."""
    if not isinstance(owner, ModuleType):
        return []
    ours = [each for key, each in list(sys.modules.items()) if key.startswith("training.")]
    return [each for each in ours if each is not owner and vars(each).get(name) is original]


def _owner(function: Any) -> tuple[type | ModuleType, str]:
    """The module or class that holds a function, and its name there."""
    function = getattr(function, "__func__", function)
    owner: Any = sys.modules[function.__module__]
    *path, name = function.__qualname__.split(".")
    for part in path:
        owner = getattr(owner, part)
    return owner, name
