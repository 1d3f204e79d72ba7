"""Bugs that somebody could write in one line. The simulation must see each of them, or it sees nothing.

``planted_bugs.txt`` lists them: a name, and what sees the bug: a fleet by its seed, or a test as `module:function`
where no fleet among many hundred meets what it takes. Then a function or an SQL statement, a line of it (-) and what
replaces it during a test (+); where two lines guard the same, both are changed. ``python -m tests.simulation --bugs``
looks for the first fleet that sees each. What the simulation found in earnest stands there too.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from training.fleet.database import sqlite


@dataclass(frozen=True)
class Change:
    """``old`` is replaced by ``new`` in one function, or in one named SQL statement."""

    module: str  # below `training`, or `sql`
    name: str
    old: str
    new: str

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """Raises LookupError when the line to change is not there (any more)."""
        if self.module == "sql":
            statements = sqlite.statements()
            changed = {**statements, self.name: self._changed(statements[self.name])}
            holders, name, original, made = [sqlite], "statements", sqlite.statements, lambda: changed
        else:
            owner: Any = importlib.import_module(f"training.{self.module}")
            *path, name = self.name.split(".")
            for part in path:
                owner = getattr(owner, part)
            original = inspect.getattr_static(owner, name)
            holders, made = [owner, *_importers(owner, name, original)], self._remade(original)
        for holder in holders:
            setattr(holder, name, made)
        try:
            yield
        finally:
            for holder in holders:
                setattr(holder, name, original)

    def _remade(self, original: Any) -> Any:
        if isinstance(original, classmethod | staticmethod):
            return type(original)(self._compiled(original.__func__))
        if isinstance(original, property):
            assert isinstance(original.fget, FunctionType)
            return property(self._compiled(original.fget))
        return self._compiled(original)

    def _compiled(self, function: FunctionType) -> FunctionType:
        lines = textwrap.dedent(inspect.getsource(function)).splitlines()
        while lines[0].startswith("@"):
            lines.pop(0)
        namespace: dict[str, Any] = {}
        code = compile("from __future__ import annotations\n" + self._changed("\n".join(lines)), self.name, "exec")
        exec(code, function.__globals__, namespace)
        made: FunctionType = namespace[function.__name__]
        made.__kwdefaults__ = function.__kwdefaults__
        made.__defaults__ = function.__defaults__
        return made

    def _changed(self, text: str) -> str:
        if (times := text.count(self.old)) != 1:
            raise LookupError(f"{self.name} has {times} times the line of a planted bug: {self.old!r}")
        return text.replace(self.old, self.new)


def _importers(owner: Any, name: str, original: Any) -> list[ModuleType]:
    """The other modules that call a module's function by the name they imported."""
    if not isinstance(owner, ModuleType):
        return []
    ours = [each for key, each in list(sys.modules.items()) if key.startswith("training.")]
    return [each for each in ours if each is not owner and vars(each).get(name) is original]


@dataclass(frozen=True)
class PlantedBug:
    name: str
    changes: tuple[Change, ...]
    seed: int | None = None  # the simulated fleet that sees it
    seen_by: str = ""  # the test that sees it

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for change in self.changes:
                stack.enter_context(change.made())
            yield


def _read(text: str) -> Iterator[PlantedBug]:
    for block in text.split("\n\n"):
        if block.startswith("#"):
            continue
        title, *rest = block.strip("\n").split("\n@ ")
        name, _, seen = title.rpartition(": ")
        how, _, what = seen.partition(" ")
        changes = tuple(map(_change, rest))
        yield PlantedBug(name, changes, int(what) if how == "fleet" else None, what if how == "test" else "")


def _change(text: str) -> Change:
    where, *lines = text.split("\n")
    old, new = ("\n".join(line[2:] for line in lines if line.startswith(sign)) for sign in "-+")
    return Change(*where.split(" "), old, new)


BUGS = tuple(_read(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")))
